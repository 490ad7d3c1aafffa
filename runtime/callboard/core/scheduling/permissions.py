"""Permissions of one schedule's turns: those of all scheduled turns, narrowed by the schedule's own rights. Pure.

A mode only removes rights, and deny and ask rules are added. If there are allow rules, only their calls and calls that
only read run without asking. So a schedule never has more rights than any other. An ask is refused if nobody can
answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from callboard.core.approvals.plan_gate import SUBMIT
from callboard.core.permissions.modes import CHAIN, within
from callboard.types.agent_spec import AgentSpec, PermissionRules
from callboard.types.records import PermissionMode
from callboard.types.schedules import Schedule, ScheduleRights

NOTHING_UNASKED = "Nothing"
"""Allow rule that matches no tool."""
_LEAST: PermissionMode = "plan"
_MODES: Mapping[str, PermissionMode] = MappingProxyType({mode: mode for mode in (*CHAIN, "sandboxed")})


def narrow_spec(spec: AgentSpec, rights: ScheduleRights) -> AgentSpec:
    """Return the agent's spec under which calls are judged in a turn of a schedule with these rights.

    The spec also applies in the agents that this turn starts. An unknown mode counts as the least permissive.
    """
    if rights == ScheduleRights():
        return spec
    limit = _MODES.get(rights.mode, _LEAST)
    update = {
        "permission_mode": within(spec.permission_mode, limit) if rights.mode else spec.permission_mode,
        "rules": spec.rules.joined(PermissionRules(ask=rights.ask, deny=rights.deny)),
        "unasked": rights.allow or spec.unasked,
    }
    return spec.model_copy(update=update)


def none_more(rights: ScheduleRights, turn: ScheduleRights) -> ScheduleRights:
    """Return the rights of a schedule created in a turn of another one, no more than those of the other one.

    Of two lists of allow rules, only the common ones count. Without common rules, only calls that only read run without
    asking.
    """
    modes: list[PermissionMode] = [_MODES.get(mode, _LEAST) for mode in (rights.mode, turn.mode) if mode]
    mode: str = within(modes[0], modes[-1]) if modes else ""
    both = tuple(rule for rule in rights.allow if rule in turn.allow) or (NOTHING_UNASKED,)
    allow = both if rights.allow and turn.allow else rights.allow or turn.allow
    ask = (*turn.ask, *(rule for rule in rights.ask if rule not in turn.ask))
    deny = (*turn.deny, *(rule for rule in rights.deny if rule not in turn.deny))
    return ScheduleRights(mode=mode, allow=allow, ask=ask, deny=deny)


def schedule_id(cause: str) -> str:
    """Return the schedule whose fire began a turn of that cause; empty if none did."""
    kind, _, source = cause.partition(":")
    return source.partition(":")[0] if kind == "schedule" else ""


def in_turn(spec: AgentSpec, schedule: Schedule | None) -> AgentSpec:
    """Return the narrowed spec for the schedule of the turn; None: the turn was not started by a schedule."""
    return spec if schedule is None else narrow_spec(spec, schedule.rights)


def judged_in_turn(spec: AgentSpec, schedule: Schedule | None) -> AgentSpec:
    """Return the narrowed spec for judging the agent's own calls in that turn.

    If the schedule lets it only read, the spec is without `submit_plan`: an approval would end the agent's own mode
    `plan`, and not that of the schedule.
    """
    spec = in_turn(spec, schedule)
    if schedule is None or not schedule.rights.mode or _MODES.get(schedule.rights.mode, _LEAST) != _LEAST:
        return spec
    return spec.model_copy(update={"tools": tuple(name for name in spec.tools if name != SUBMIT)})

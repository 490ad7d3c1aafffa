"""What the turns of one schedule may do: what holds for all scheduled turns, made narrower by its own rights. Pure.

A mode takes away, deny and ask rules are added, and where there are allow rules nothing but what they name, and what
only reads, runs unasked. So a schedule never has more than any other; what asks is refused where nobody sits there.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from callboard.core.permission.modes import CHAIN, within
from callboard.words.schedules import Schedule, ScheduleRights
from callboard.words.specs import AgentSpec, PermissionMode, PermissionRules

NOTHING_UNASKED = "Nothing"
"""An allow rule that names no tool."""
_LEAST: PermissionMode = "plan"
_MODES: Mapping[str, PermissionMode] = MappingProxyType({one: one for one in (*CHAIN, "sandboxed")})


def narrowed(spec: AgentSpec, rights: ScheduleRights) -> AgentSpec:
    """The spec of an agent as its calls are judged in a turn of a schedule with these rights, and as those are made
    that this turn starts. A mode that is none is the least."""
    if rights == ScheduleRights():
        return spec
    known = _MODES.get(rights.mode, _LEAST)
    update = {
        "permission_mode": within(spec.permission_mode, known) if rights.mode else spec.permission_mode,
        "rules": spec.rules.joined(PermissionRules(ask=rights.ask, deny=rights.deny)),
        "unasked": rights.allow or spec.unasked,
    }
    return spec.model_copy(update=update)


def none_more(rights: ScheduleRights, turn: ScheduleRights) -> ScheduleRights:
    """The rights of a schedule that is made in a turn of another one: no more than that one's. Of two rows of allow
    rules what stands in both counts; where nothing does, nothing runs unasked but what only reads."""
    modes: list[PermissionMode] = [_MODES.get(one, _LEAST) for one in (rights.mode, turn.mode) if one]
    mode: str = within(modes[0], modes[-1]) if modes else ""
    both = tuple(rule for rule in rights.allow if rule in turn.allow) or (NOTHING_UNASKED,)
    allow = both if rights.allow and turn.allow else rights.allow or turn.allow
    ask = (*turn.ask, *(rule for rule in rights.ask if rule not in turn.ask))
    deny = (*turn.deny, *(rule for rule in rights.deny if rule not in turn.deny))
    return ScheduleRights(mode=mode, allow=allow, ask=ask, deny=deny)


def schedule_id(cause: str) -> str:
    """The schedule whose fire began a turn of that cause; empty: none did."""
    kind, _, rest = cause.partition(":")
    return rest.partition(":")[0] if kind == "schedule" else ""


def in_turn(spec: AgentSpec, schedule: Schedule | None) -> AgentSpec:
    """The same, for the schedule of the turn; None: no schedule began it."""
    return spec if schedule is None else narrowed(spec, schedule.rights)

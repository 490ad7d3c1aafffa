"""What a fire sends, as writes of one commit: its prompt as an envelope, and the agent that it is for.

`context` says whose conversation it goes into: the lead's, that of an agent made for this fire, or that of one agent of
the schedule's own. Refuses with words where there can be no such agent: the slot is `refused` then, never lost.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from callboard.core.bus.mail import sending
from callboard.core.mcp.rights import bounded
from callboard.core.names import END_FIRE, agent_key, short_id, subagent_suffix
from callboard.core.permission.grammar import left_of
from callboard.core.schedule import delivered
from callboard.core.schedule.history import envelope_id
from callboard.core.schedule.rights import narrowed
from callboard.core.team.moving import worktree_in_use
from callboard.core.toolset import tools_for
from callboard.engine.host import Host
from callboard.engine.specs import load_spec, spec_digest, spec_key
from callboard.ports.store import Put, Write
from callboard.words.errors import ToolRefused
from callboard.words.schedules import Fire, Schedule
from callboard.words.specs import AgentSpec
from callboard.words.values import AgentRow, Envelope

GENERAL = "general"
"""The agent type of who is started, where the schedule names none."""


async def sent(host: Host, schedule: Schedule, fire: Fire, now: float) -> tuple[Fire, list[Write]]:
    """The fire as it is sent now, and what is written for it. Raises `ToolRefused` where nobody can take it."""
    if schedule.context == "lead":
        lead = host.board.agent("lead")
        writes: list[Write] = []
        name, life = "lead", lead[0].incarnation if lead else 1
    else:
        name, life, writes = await _agent_of(host, schedule, fire, now)
    going = fire.model_copy(update={"agent": name, "outcome": "waiting", "ended_at": None})
    envelope = Envelope(
        id=envelope_id(going),
        sender="schedule",
        recipient=name,
        incarnation=life,
        type="scheduled",
        content=schedule.prompt,
        cause="schedule",
        metadata={
            "schedule": schedule.id,
            "deliver": delivered(schedule),
            "fired_at": datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "slot": fire.nominal,
        },
        sent_at=now,
    )
    return going, [*writes, sending(host.session, envelope)]


def ending(host: Host, fire: Fire, now: float) -> list[Write]:
    """Word to the runtime of its agent to end a fire: out of the mail, or its turn is interrupted. No other turn is."""
    row = host.board.agent(fire.agent) if fire.agent else None
    if row is None:
        return []
    envelope = Envelope(
        id=short_id("env", envelope_id(fire), END_FIRE),
        sender="runtime",
        recipient=fire.agent,
        incarnation=row[0].incarnation,
        type="command",
        content=envelope_id(fire),
        cause="schedule",
        metadata={"action": END_FIRE},
        sent_at=now,
    )
    return [sending(host.session, envelope)]


def told(host: Host, schedule: Schedule, about: str, content: str, *, result: bool = False) -> Write:
    """News for the lead's next turn: they wake nobody. `about`: what makes them once."""
    lead = host.board.agent("lead")
    envelope = Envelope(
        id=short_id("env", schedule.id, about),
        sender="schedule",
        recipient="lead",
        incarnation=lead[0].incarnation if lead else 1,
        type="result" if result else "error",
        mode="queue",
        content=content,
        cause="schedule",
        metadata={"schedule": schedule.id},
        sent_at=host.clock.now(),
    )
    return sending(host.session, envelope)


def own_name(schedule: Schedule) -> str:
    """The name of the agents of a schedule: `sched-` and its name, or the end of its id."""
    named = re.sub(r"[^a-z0-9]+", "-", (schedule.name or schedule.id.rpartition("_")[2]).lower()).strip("-")
    return f"sched-{named[:40].strip('-') or 'agent'}"


async def _agent_of(host: Host, schedule: Schedule, fire: Fire, now: float) -> tuple[str, int, list[Write]]:
    """Whose turn it is: name, incarnation, and what makes that agent where it is not there."""
    if schedule.context == "own":
        name = own_name(schedule)
        found = host.board.agent(name)
        if found is not None and found[0].life == "crashed":
            raise ToolRefused(f"its agent {name} has crashed and is parked: `callboard agent resume {name}`")
        if found is not None and found[0].life != "stopped":
            return name, found[0].incarnation, []
        living = [row for row in host.board.agents() if row.kind != "subagent" and row.life != "stopped"]
        if len(living) >= host.max_agents:
            raise ToolRefused(f"there is no room for its agent: the team is full ({host.max_agents}, team.max_agents)")
        life, revision = (found[0].incarnation + 1, found[1]) if found else (1, 0)
        return name, life, await _made(host, schedule, "teammate", (name, life, revision), now)
    name = own_name(schedule) + subagent_suffix(envelope_id(fire))
    found = host.board.agent(name)
    if found is not None:  # the same try again
        return name, found[0].incarnation, []
    return name, 1, await _made(host, schedule, "subagent", (name, 1, 0), now)


async def _made(host: Host, schedule: Schedule, kind: str, life: tuple[str, int, int], now: float) -> list[Write]:
    """Row and spec of a new agent: below the lead, with no more rights than it."""
    name, incarnation, revision = life
    lead = host.board.agent("lead")
    if lead is None:
        raise ToolRefused("the session has no lead")
    spec = await _spec(host, schedule, kind, name, await load_spec(host.ports.store, host.session, lead[0].spec))
    row = AgentRow.model_validate(
        {
            "name": name,
            "incarnation": incarnation,
            "kind": kind,
            "role": spec.role,
            "agent_type": spec.agent_type,
            "parent": "lead",
            "spec": spec_digest(spec),
            "created_at": now,
            "since": now,
            "depth": 1,
            "worktree": worktree_in_use(spec),
        }
    )
    return [
        Put(agent_key(host.session, name), row.encode(), expected=revision),
        Put(spec_key(host.session, row.spec), spec.encode()),
    ]


async def _spec(host: Host, schedule: Schedule, kind: str, name: str, lead: AgentSpec) -> AgentSpec:
    agent_type = schedule.target if schedule.target not in ("lead", "") else GENERAL
    spec = bounded(host.types(agent_type, name, lead), lead)
    keeps = bool(spec.memory)
    tools = tools_for("teammate" if kind == "teammate" else "subagent", spec.tools, memory=keeps).names
    update: dict[str, object] = {
        "name": name,
        "kind": kind,
        "role": f"schedule {schedule.name or schedule.id}",
        "parent": "lead",
        "tools": left_of(tools, spec.rules.deny),
        "claims_tasks": False,
    }
    return narrowed(spec.model_copy(update=update), schedule.rights)

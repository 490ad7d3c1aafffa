"""Writes of a fire, in one commit: its prompt as an envelope, and the agent that receives it.

`context` selects the conversation: the lead's, that of a new agent for this fire, or that of one separate agent of the
schedule. If there can be no such agent, the slot is `refused` with the reason and never lost.

The user can also fire a schedule at any time, from any process, even without a host. The fire is in the history at once
and waits; the host is notified, or finds it when it next starts. Such a fire does not count as a slot, and runs even if
other fires are running, or the schedule is paused or has ended.

Pausing a schedule that can no longer fire is one commit: its row with the reason, and a message to the lead. The
schedule stays in the list until the user resumes it (`callboard cron resume`).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from callboard.core.agent.rules.worktree import worktree_in_use
from callboard.core.budgets.tree import used_up
from callboard.core.keys import END_FIRE, agent_key, fire_key, schedule_key, short_id, subagent_suffix
from callboard.core.mcp.tool_names import limit_tools
from callboard.core.messaging.envelopes import envelope_write
from callboard.core.permissions.rule_check import allowed_tools
from callboard.core.scheduling import delivery_of, no_more_fires, pause_schedule
from callboard.core.scheduling.history import BY_HAND, envelope_id
from callboard.core.scheduling.permissions import narrow_spec
from callboard.core.tool_access import AgentKind, tools_for
from callboard.engine.recall import load_spec, spec_digest, spec_key
from callboard.engine.runtime import SessionRuntime
from callboard.engine.team.admin_orders import order_to_fire
from callboard.ports.store import Put, Store, Write
from callboard.types import steps as st
from callboard.types.agent_spec import AgentSpec
from callboard.types.errors import ToolRefused
from callboard.types.records import AgentRow, Envelope
from callboard.types.schedules import Fire, Schedule

GENERAL = "general"
"""Agent type for a schedule that names none."""


async def send_fire(runtime: SessionRuntime, schedule: Schedule, fire: Fire, now: float) -> tuple[Fire, list[Write]]:
    """Return the fire as sent now, and its writes. Raises `ToolRefused` if no agent can take it."""
    if schedule.context == "lead":
        lead = runtime.rows.agent("lead")
        writes: list[Write] = []
        name = "lead"
        life = lead[0].incarnation if lead else 1
    else:
        name, life, writes = await _agent_of(runtime, schedule, fire, now)
    going = fire.model_copy(update={"agent": name, "outcome": "waiting", "ended_at": None, "again_at": None})
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
            "deliver": delivery_of(schedule),
            "fired_at": datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "slot": fire.nominal,
        },
        sent_at=now,
    )
    return going, [*writes, envelope_write(runtime.session, envelope)]


def ending_writes(runtime: SessionRuntime, fire: Fire, now: float) -> list[Write]:
    """Return the writes that end a fire: its mail is removed, or its turn is interrupted, but no other turn."""
    row = runtime.rows.agent(fire.agent) if fire.agent else None
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
    return [envelope_write(runtime.session, envelope)]


def note_for_lead(
    runtime: SessionRuntime, schedule: Schedule, about: str, content: str, *, result: bool = False
) -> Write:
    """Return the write of a note for the lead's next turn.

    It wakes no agent. `about`: key that makes the note unique.
    """
    lead = runtime.rows.agent("lead")
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
        sent_at=runtime.clock.now(),
    )
    return envelope_write(runtime.session, envelope)


def own_name(schedule: Schedule) -> str:
    """Return the name for agents of a schedule: `sched-` and the schedule's name, or the end of its id."""
    named = re.sub(r"[^a-z0-9]+", "-", (schedule.name or schedule.id.rpartition("_")[2]).lower()).strip("-")
    return f"sched-{named[:40].strip('-') or 'agent'}"


async def _agent_of(
    runtime: SessionRuntime, schedule: Schedule, fire: Fire, now: float
) -> tuple[str, int, list[Write]]:
    """Return the agent that runs the turn: name, incarnation, and the writes that create it if it does not exist."""
    if schedule.context == "own":
        name = own_name(schedule)
        match = runtime.rows.agent(name)
        if match is not None and match[0].life == "crashed":
            raise ToolRefused(f"its agent {name} has crashed and is parked: `callboard team resume {name}`")
        if match is not None and match[0].life != "stopped":
            return name, match[0].incarnation, []
        living = [row for row in runtime.rows.agents() if row.kind != "subagent" and row.life != "stopped"]
        if len(living) >= runtime.max_agents:
            raise ToolRefused(
                f"there is no room for its agent: the team is full ({runtime.max_agents}, team.max_agents)"
            )
        life, revision = (match[0].incarnation + 1, match[1]) if match else (1, 0)
        return name, life, await _new_agent_writes(runtime, schedule, "teammate", life=(name, life, revision), now=now)
    name = own_name(schedule) + subagent_suffix(envelope_id(fire))
    match = runtime.rows.agent(name)
    if match is not None:  # the same attempt, repeated
        return name, match[0].incarnation, []
    return name, 1, await _new_agent_writes(runtime, schedule, "subagent", life=(name, 1, 0), now=now)


async def _new_agent_writes(
    runtime: SessionRuntime, schedule: Schedule, kind: AgentKind, *, life: tuple[str, int, int], now: float
) -> list[Write]:
    """Return the writes of a new agent's row and spec: below the lead, with no more rights than the lead."""
    name, incarnation, revision = life
    lead = runtime.rows.agent("lead")
    if lead is None:
        raise ToolRefused("the session has no lead")
    spec = await _spec(
        runtime, schedule, kind, name=name, lead=await load_spec(runtime.services.store, runtime.session, lead[0].spec)
    )
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
        Put(agent_key(runtime.session, name), row.encode(), expected=revision),
        Put(spec_key(runtime.session, row.spec), spec.encode()),
    ]


async def _spec(
    runtime: SessionRuntime, schedule: Schedule, kind: AgentKind, *, name: str, lead: AgentSpec
) -> AgentSpec:
    agent_type = schedule.target if schedule.target not in ("lead", "") else GENERAL
    spec = limit_tools(runtime.types(agent_type, name, lead, kind), lead)
    keeps = bool(spec.memory)
    tools = tools_for("teammate" if kind == "teammate" else "subagent", spec.tools, memory=keeps).names
    update: dict[str, object] = {
        "name": name,
        "role": f"schedule {schedule.name or schedule.id}",
        "parent": "lead",
        "tools": allowed_tools(tools, spec.rules.deny),
        "claims_tasks": False,
        "ask_deadline": _shortest_wait(spec.ask_deadline, lead.ask_deadline),
    }
    return narrow_spec(spec.model_copy(update=update), schedule.rights)


def _shortest_wait(*deadlines: float | None) -> float | None:
    """Return the shortest wait for an answer; None: all wait forever.

    If the lead does not wait, no agent of the session waits, in any host.
    """
    return min((deadline for deadline in deadlines if deadline is not None), default=None)


async def fire_by_hand(store: Store, session: str, schedule: Schedule, *, now: float, nonce: str) -> str:
    """Fire a schedule now and return the id of the fire.

    `nonce`: unique letters and digits. Raises the exceptions of `Store.commit`.
    """
    fire = Fire(
        id=f"schedule:{schedule.id}:{BY_HAND}{nonce}", schedule=schedule.id, session=session, nominal=now, at=now
    )
    order = order_to_fire(session, fire.id, now)
    key = fire_key(session, schedule.id, fire.id)
    await store.commit(Put(key, fire.encode(), expected=0), envelope_write(session, order))
    return fire.id


def used_up_schedule(runtime: SessionRuntime, schedule: Schedule) -> str:
    """Return the reason why the budget of the schedule allows no further fire; empty if it does."""
    return no_more_fires(runtime.budgets.of_schedule(schedule.id), runtime.awake.now())


def pause_for(runtime: SessionRuntime, reached: st.ReachBudget) -> tuple[Write, ...]:
    """Return the writes for the commit of an exhausted budget.

    The writes pause the schedule that owns the budget; there are none for another owner.
    """
    kind, _, schedule = reached.budget.partition(":")
    if kind != "schedule" or reached.kind in ("agents", "depth"):
        return ()
    reason = used_up(reached.budget, reached.kind, limit=reached.limit, spent=reached.spent, needed=reached.wanted)
    return pause(runtime, schedule, reason, wakes=False)


def pause(runtime: SessionRuntime, schedule: str, reason: str, *, wakes: bool) -> tuple[Write, ...]:
    """Return the writes that pause a schedule; none if it is no longer active. `wakes`: inform the lead at once."""
    match = runtime.rows.schedule(schedule)
    if match is None or match[0].state != "active":
        return ()
    row, revision = match
    lead = runtime.rows.agent("lead")
    envelope = Envelope(
        id=short_id("env", row.id, "paused", revision),
        sender="schedule",
        recipient="lead",
        incarnation=lead[0].incarnation if lead else 1,
        type="error",
        mode="wake" if wakes else "queue",
        content=f"schedule {row.id} ({row.cron}, {row.timezone}) is paused: {reason}",
        cause="schedule",
        sent_at=runtime.clock.now(),
    )
    put = Put(schedule_key(runtime.session, row.id), pause_schedule(row, reason).encode(), expected=revision)
    return envelope_write(runtime.session, envelope), put

"""What a run left in its store, and which promises it broke: read from journals, mailboxes and rows alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from callboard.core.agent.apply import apply, is_for_runtime
from callboard.core.agent.state import AgentState
from callboard.core.approvals.plan_gate import gate_refusal
from callboard.core.context.view.invariants import invariants
from callboard.core.keys import journal, mailbox, rows_prefix
from callboard.engine.recall import events_of
from callboard.ports.store import Store
from callboard.types import events as ev
from callboard.types.records import AgentRow, Envelope, Request, Task

BUG = "a bug at record"
"""Beginning of the text of the bugs that runs raise (`chaos_tools.Bugs`)."""


@dataclass(frozen=True)
class Life:
    """One incarnation of a name: its journal, its mailbox, its state."""

    name: str
    incarnation: int
    events: Sequence[ev.Event]
    mail: Sequence[Envelope]
    state: AgentState
    faults: Sequence[str]
    """Laws that were broken on the way: by a view at the moment when it was sent, by a call that passed the gate."""
    parked: bool = False
    """It crashed again and again, and lives no more in any process; its mail waits."""


@dataclass(frozen=True)
class Evidence:
    """A session as its store tells it."""

    lives: Sequence[Life]
    tasks: Sequence[Task]
    requests: Sequence[Request]
    rows: Sequence[AgentRow]

    def life(self, name: str) -> Life:
        """The newest life of that name."""
        return [life for life in self.lives if life.name == name][-1]


async def gather(store: Store, session: str) -> Evidence:
    """Read everything. Raises `StoreDamaged` when a journal has a gap or a record that is no event."""
    rows = {
        row.key.removeprefix(rows_prefix(session)): row.value or b"" for row in await store.keys(rows_prefix(session))
    }
    agents = [AgentRow.model_validate_json(value) for key, value in rows.items() if key.startswith("agent/")]
    lives = [await _life(store, session, row, inc) for row in agents for inc in range(1, row.incarnation + 1)]
    return Evidence(
        lives=lives,
        tasks=[Task.model_validate_json(value) for key, value in rows.items() if key.startswith("task/")],
        requests=[Request.model_validate_json(value) for key, value in rows.items() if key.startswith("request/")],
        rows=agents,
    )


async def _life(store: Store, session: str, row: AgentRow, incarnation: int) -> Life:
    name, parked = row.name, row.life == "crashed" and row.incarnation == incarnation
    events = await events_of(store, journal(session, name, incarnation))
    records = await store.read(mailbox(session, name, incarnation))
    mail = [Envelope.model_validate_json(record.data).model_copy(update={"seq": record.seq}) for record in records]
    state, faults = AgentState(), list[str]()
    for event in events:
        if isinstance(event, ev.ModelCalled) and event.purpose == "turn":
            sent = state.model.stop_reason != "pause_turn"  # a paused reply is sent back as it stands
            laws = invariants(state.context.conversation.messages, sent=sent)
            faults += [f"before call {event.ordinal}: {law}" for law in laws]
        if isinstance(event, ev.ToolStarted):
            faults += _passed_the_gate(state, event)
        state = apply(state, event)
    faults += [f"at the end: {law}" for law in invariants(state.context.conversation.messages, sent=False)]
    return Life(name, incarnation, events, mail, state, faults, parked)


def _passed_the_gate(state: AgentState, event: ev.ToolStarted) -> Iterator[str]:
    name = next((one.call.name for one in state.calls if one.call.id == event.call), "?")
    if gate_refusal(state.work.gate, name, reads_only=event.effect == "read") is not None:
        yield f"{name} started while the plan gate was {state.work.gate.gate}"


def broken(evidence: Evidence, *, at_rest: bool = True) -> list[str]:
    """Every promise that was broken, in words. Empty is what we want. `at_rest`: all is quiet, and nothing is owed."""
    found: list[str] = []
    for life in evidence.lives:
        who = f"{life.name}.{life.incarnation}"
        for check in (_mail, _calls, _turns, _ordinals, _crashes):
            found += [f"{who}: {fault}" for fault in check(life)]
        if at_rest and not life.parked and not buried(life, evidence.rows):
            found += [f"{who}: {fault}" for fault in (*_unread(life), *_ends(life, evidence))]
        found += [f"{who}: {fault}" for fault in life.faults]
    found += [f"{task.id}: held by nobody alive" for task in evidence.tasks if _orphaned(task, evidence)]
    return found


def _mail(life: Life) -> Iterator[str]:
    """Every envelope is received once, in mailbox order, and then enters the conversation once, or is dropped once."""
    heard = [event for event in life.events if isinstance(event, ev.EnvelopeReceived)]
    received, refused = [event.envelope for event in heard], {event.envelope.id for event in heard if event.refused}
    sent = list(life.mail)
    if [one.seq for one in received] != [one.seq for one in sent[: len(received)]]:
        yield f"received {[one.seq for one in received]} of the mailbox {[one.seq for one in sent]}"
    if [one.id for one in received] != [one.id for one in sent[: len(received)]]:
        yield "what was received is not what was sent"
    if len({one.id for one in sent}) != len(sent):
        yield "an envelope was sent twice"
    taken = Counter[str]()
    for event in life.events:
        if isinstance(event, (ev.EnvelopesDelivered, ev.EnvelopesDropped)):
            taken.update(event.ids)
    waiting = {one.id for one in life.state.inbox.mail}
    for one in received:
        expected = 0 if is_for_runtime(one) or one.id in waiting or one.id in refused else 1
        if taken[one.id] != expected:
            yield f"{one.type} {one.id} entered the conversation {taken[one.id]} times, not {expected}"
    if set(taken) - {one.id for one in received}:
        yield "mail that was never received entered the conversation"


def _unread(life: Life) -> Iterator[str]:
    """Whoever lives has received all its mail."""
    if life.state.lifecycle.ended is None and life.state.inbox.position < len(life.mail):
        yield f"received {life.state.inbox.position} of {len(life.mail)} envelopes"


def _calls(life: Life) -> Iterator[str]:
    """Every call of a reply is finished or refused once, settled once; one of an unknown effect starts once."""
    asked = [call.id for event in life.events if isinstance(event, ev.ModelReplied) for call in event.calls]
    if len(set(asked)) != len(asked):
        yield "two calls have one id"
    started = Counter(event.call for event in life.events if isinstance(event, ev.ToolStarted))
    finished = Counter(event.call for event in life.events if isinstance(event, ev.ToolFinished))
    settled = Counter(event.call for event in life.events if isinstance(event, ev.ToolSettled))
    settled += Counter(event.call for event in life.events if isinstance(event, ev.ToolFinished) and event.settled)
    for name, counts in (("started", started), ("finished", finished), ("settled", settled)):
        yield from (f"call {call} was {name} {count} times" for call, count in counts.items() if count > 1)
        yield from (f"call {call} was {name} and never asked for" for call in counts if call not in asked)
    open_now = {one.call.id for one in life.state.calls}
    yield from (
        f"call {call} started and never finished" for call in started if call not in finished and call not in open_now
    )


def buried(life: Life, rows: Sequence[AgentRow]) -> bool:
    """Return True for a life that was killed and could not be settled: only its row says that it is over."""
    over = {(row.name, row.incarnation) for row in rows if row.life == "stopped"}
    return (
        life.state.lifecycle.stop == "asked"
        and life.state.lifecycle.ended is None
        and (life.name, life.incarnation) in over
    )


def _turns(life: Life) -> Iterator[str]:
    """Turns begin and end by turns."""
    marks = [event.t for event in life.events if isinstance(event, (ev.TurnBegan, ev.TurnEnded))]
    if marks != [("turn_began", "turn_ended")[place % 2] for place in range(len(marks))]:
        yield f"turns do not alternate: {marks}"


def _let_go(life: Life) -> bool:
    """It waited with an unfinished task, of which its lead read, and the task was taken from it."""
    for event in reversed(life.events):
        if isinstance(event, ev.TurnEnded):
            return False
        if isinstance(event, ev.TaskHeld) and not event.held:
            return True
    return False


def _lead_read_of_end(life: Life, evidence: Evidence) -> bool:
    """It was stopped while its turn waited for its subagents, and the lead got a last word about that."""
    mail = [envelope for lead in evidence.lives if lead.name == "lead" for envelope in lead.mail]
    return life.state.lifecycle.ended is not None and any(
        (one.sender, one.sender_incarnation, one.type) == (life.name, life.incarnation, "error") for one in mail
    )


def _ends(life: Life, evidence: Evidence) -> Iterator[str]:
    """All is quiet: nothing is half done, and nobody owes a word after a turn that ended by itself."""
    state = life.state
    if state.turn is not None or state.calls or state.model.call is not None or state.compaction.summary is not None:
        yield "something is under way while all is quiet"
    said_so = state.turns.last_reason in ("interrupted", "stopped", "") or bool(state.work.tasks) or _let_go(life)
    said_so = said_so or _lead_read_of_end(life, evidence)
    if life.state.identity.spec is not None and state.me.kind == "teammate" and state.work.assignment and not said_so:
        yield f"its turn ended ({state.turns.last_reason}) and the lead never heard of its assignment"


def _ordinals(life: Life) -> Iterator[str]:
    """Replies are numbered in order, none twice."""
    numbers = [e.ordinal for e in life.events if isinstance(e, (ev.ModelReplied, ev.ReplyDropped, ev.ReplyInterrupted))]
    if numbers != sorted(set(numbers)):
        yield f"replies are numbered {numbers}"


def _crashes(life: Life) -> Iterator[str]:
    """Only what the run raised on purpose crashes an agent."""
    for event in life.events:
        if isinstance(event, ev.AgentCrashed) and BUG not in event.why:
            yield f"it crashed: {event.why}"


def _orphaned(task: Task, evidence: Evidence) -> bool:
    alive = {(row.name, row.incarnation) for row in evidence.rows if row.life not in ("stopped", "crashed")}
    return task.status == "in_progress" and (task.owner, task.owner_incarnation) not in alive

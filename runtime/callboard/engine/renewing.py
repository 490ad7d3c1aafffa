"""`/new` and `/new --carry`: the lead's conversation is closed and begun anew, in a new life of its name.

The old life ends first, with its last record in its journal (`AgentState.renew` says what is to follow); then the new
one is written in one commit: its row, the first records of its journal, the mail that the old one had not taken, the
commands that run in the background, and with `--carry` its tasks, questions and todos. A process that dies in between
leaves the rest to the next host. What a process that did not know yet gives the old life afterwards is looked for once
more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from callboard.core.bus.mail import sending
from callboard.core.context.counting import room
from callboard.core.context.summary.carry import Carried, Left, carry
from callboard.core.context.view.transcript import transcript_lines
from callboard.core.names import agent_key, journal, mailbox, request_key, task_key
from callboard.core.state import AgentState
from callboard.core.tasks.laws import Holder
from callboard.engine.host import Host
from callboard.engine.memory import history, recall
from callboard.ports.store import Append, Put, Write
from callboard.words import events as ev
from callboard.words.errors import Conflict
from callboard.words.values import AgentRow, Envelope

_FOR_THE_OLD = frozenset({"command", "shutdown_request"})
"""Mail that was meant for the life that is over."""


async def renew_if_due(host: Host, row: AgentRow) -> None:
    """Begin the new life of an agent whose old one ended to be followed by one. Nothing, where none is to follow."""
    found = host.board.agent(row.name)
    if row.kind != "lead" or found is None or found[0].incarnation != row.incarnation or found[0].life != "stopped":
        return
    state = await recall(host.ports.store, host.session, row.name, row.incarnation)
    if state.ended is None or not state.renew:
        return
    carried = await _carried(host, state) if state.renew == "carry" else None
    mail = await _mail_left(host, state, state.position)
    new = found[0].model_copy(
        update={
            "incarnation": row.incarnation + 1,
            "life": "starting",
            "waiting_for": "",
            "outcome": "",
            "since": host.clock.now(),
        }
    )
    writes: list[Write] = [Put(agent_key(host.session, row.name), new.encode(), expected=found[1])]
    writes += _journal(host, state, carried)
    writes += _held(host, state) if state.renew == "carry" else []
    writes += moved(host.session, state.incarnation, (*state.mail, *mail))
    try:
        await host.commit(*writes)
    except Conflict as lost:
        await host.refresh(lost.what)  # another process was faster
        return
    later = await _mail_left(host, state, max([state.position, *(envelope.seq for envelope in mail)]))
    if later:
        await host.commit(*moved(host.session, state.incarnation, later))


async def _carried(host: Host, state: AgentState) -> Carried:
    """What the new life begins with. Writes the transcript and the hand-off note."""
    spec, facts = state.me, host.facts(state, frozenset())
    stem = f"{facts.transcripts}/{spec.name}.{state.incarnation}-{state.seq}"
    left = Left(f"{stem}.jsonl", f"{stem}-handoff.md")
    made = carry(state.conversation.messages, host.known(state), room(state), left)
    archive = host.ports.archive
    await archive.keep(left.transcript, transcript_lines(await history(host.ports.store, state)).decode())
    await archive.keep(left.note, made.note)
    if host.ports.remembered is not None:
        await host.ports.remembered.handed_off(spec, state.incarnation, made.note, left.note)
    return made


async def _mail_left(host: Host, state: AgentState, after: int) -> tuple[Envelope, ...]:
    """What came into the old mailbox behind a position."""
    stream = mailbox(host.session, state.me.name, state.incarnation)
    found: list[Envelope] = []
    while records := await host.ports.store.read(stream, max([after, *(one.seq for one in found)])):
        found += [
            Envelope.model_validate_json(record.data).model_copy(update={"seq": record.seq}) for record in records
        ]
    return tuple(found)


def moved(session: str, life: int, mail: Sequence[Envelope]) -> list[Write]:
    """The writes that move the mail of a life to the next one. Moved twice, it arrives once."""
    update = {"incarnation": life + 1, "seq": 0}
    return [sending(session, one.model_copy(update=update)) for one in mail if one.type not in _FOR_THE_OLD]


def _journal(host: Host, state: AgentState, carried: Carried | None) -> list[Write]:
    """The first records of the new journal; none has been there before."""
    now, life = host.clock.now(), state.incarnation + 1
    stream = journal(host.session, state.me.name, life)
    started = ev.AgentStarted(
        at=now,
        spec=state.me,
        session=host.session,
        incarnation=life,
        ordinal=state.ordinal + 1,  # the next was perhaps asked already, and given up
        summaries=state.summaries,
    )
    events: list[ev.Event] = [started, *(one.began for one in state.background.values() if one.status == "running")]
    if carried is not None:
        events += [*_kept(state, now), ev.InjectionsDelivered(at=now, blocks=carried.blocks)]
    return [Append(stream, event.encode(), expected=place) for place, event in enumerate(events)]


def _kept(state: AgentState, now: float) -> Iterator[ev.Event]:
    """What the runtime knew of the old life and goes on knowing."""
    if state.todos:
        yield ev.TodosSet(at=now, todos=state.todos)
    for path, digest in state.files.items():
        yield ev.FileSeen(at=now, path=path, digest=digest, changed=path in state.changed)
    for name in state.skills:
        yield ev.SkillLoaded(at=now, name=name)
    for task, subject in state.tasks.items():
        yield ev.TaskHeld(at=now, task=task, subject=subject)


def _held(host: Host, state: AgentState) -> list[Write]:
    """Tasks and open questions of the old life are the new one's."""
    holder, life = Holder(state.me.name, state.incarnation), state.incarnation + 1
    writes: list[Write] = []
    for task in host.board.tasks():
        row = host.board.task(task.id)
        if row is not None and holder.holds(row[0]):
            mine = row[0].model_copy(update={"owner_incarnation": life})
            writes.append(Put(task_key(host.session, task.id), mine.encode(), expected=row[1]))
    for request in host.board.requests():
        found = host.board.request(request.id)
        mine = request.asked_by == state.me.name and request.incarnation == state.incarnation
        if found is not None and mine and found[0].status == "pending" and found[0].kind == "question":
            moved = found[0].model_copy(update={"incarnation": life})
            writes.append(Put(request_key(host.session, request.id), moved.encode(), expected=found[1]))
    return writes

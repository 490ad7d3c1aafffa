"""New life of the lead: `/new` and `/new --carry`, and the repair of a session after damage.

The old life ends first, with its last record in its journal (`Lifecycle.renew` says what follows). One commit then
writes the new life: its row, the first records of its journal, the mail that the old life had not received, the running
background commands, and with `--carry` its tasks, questions and todos. If the process dies in between, the next host
does the rest. Items that an uninformed process adds to the old life later are looked up once more.

The process that has taken over a session repairs it before its agents start. A damaged row of an agent is made from its
journal. With `--carry`, a lead whose journal lacks records begins a new life with what came before them. All other
losses are only reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from callboard.core.agent.apply import RUNTIME_MAIL, apply
from callboard.core.agent.rules.compaction import room
from callboard.core.agent.state import AgentState
from callboard.core.context.summary.handoff import Carried, Left, carry
from callboard.core.context.view.transcript import Origin, transcript_lines
from callboard.core.decoding import in_words, read_envelope
from callboard.core.frozen import replace
from callboard.core.keys import agent_key, count_words, journal, mailbox, request_key, task_key
from callboard.core.messaging.envelopes import sending
from callboard.core.tasks.board import Holder
from callboard.engine.recall import JournalGap, history, load_spec, recall, recall_readable, spec_digest
from callboard.engine.runtime import Host
from callboard.ports.store import Append, Expect, Put, Write
from callboard.ports.store_reading import records_of
from callboard.types import events as ev
from callboard.types.errors import Conflict
from callboard.types.records import AgentRow, Envelope

_FOR_THE_OLD = frozenset({"command", "shutdown_request"})
"""Types of mail that are only for the ended life."""


async def renew_if_due(host: Host, row: AgentRow) -> None:
    """Begin the new life of an agent whose old life ended for it. Does nothing otherwise."""
    match = host.board.agent(row.name)
    if row.kind != "lead" or match is None or match[0].incarnation != row.incarnation or match[0].life != "stopped":
        return
    state = await recall(host.ports.store, host.session, row.name, row.incarnation)
    if state.lifecycle.ended is None or not state.lifecycle.renew:
        return
    await _begin_next(host, match[0], match[1], state)


async def renew_past_damage(host: Host) -> str:
    """Begin a new life of a lead whose journal lacks necessary records, with what came before them. Return what is
    lost, for the user; empty if nothing is."""
    match = host.board.agent("lead")
    if match is None:
        return ""
    row = match[0]
    store = host.ports.store
    recalled = await recall_readable(store, host.session, row.name, row.incarnation)
    lost = recalled.lost
    if lost is None:
        return ""
    state = recalled.state
    if state.identity.spec is None:
        spec = await load_spec(store, host.session, row.spec)
        started = ev.AgentStarted(at=row.created_at, spec=spec, session=host.session, incarnation=row.incarnation)
        state = apply(state, started)
    await _begin_next(host, row, match[1], _past(state, lost))
    behind = f", and {count_words(len(lost.after), 'record')} after it" if lost.after else ""
    return (
        f"record {lost.first} of the lead's journal was damaged: it goes on in a fresh conversation, with what came "
        f"before that record. Not in it: that record{behind}"
    )


def _past(state: AgentState, lost: JournalGap) -> AgentState:
    """Return the state before a gap in a form that can continue: known later mail is not received twice, and no number
    is used twice."""
    mail = {envelope.id: envelope for envelope in state.inbox.mail}
    ordinal = state.model.ordinal
    summaries = state.compaction.summaries
    position = state.inbox.position
    for _, event in lost.after:
        match event:
            case ev.EnvelopeReceived(envelope=envelope, refused=refused):
                position = max(position, envelope.seq)
                if not refused and envelope.type not in RUNTIME_MAIL:
                    mail[envelope.id] = envelope
            case ev.EnvelopesDelivered(ids=ids) | ev.EnvelopesDropped(ids=ids):
                for envelope_id in ids:
                    mail.pop(envelope_id, None)
            case ev.ModelCalled(purpose="summary") | ev.SummaryBegan():
                summaries += 1
            case ev.ModelCalled():
                ordinal = max(ordinal, event.ordinal)
            case _:
                continue
    return replace(
        state,
        lifecycle=replace(state.lifecycle, renew="carry"),
        model=replace(state.model, ordinal=ordinal + 1),
        compaction=replace(state.compaction, summaries=summaries + 1),
        inbox=replace(state.inbox, position=position, mail=tuple(mail.values())),
        seq=lost.last,
    )


async def _begin_next(host: Host, row: AgentRow, revision: int, state: AgentState) -> None:
    """Begin the life after `state`, as its `renew` says. Does nothing if another process was faster."""
    carried = await _carried(host, state) if state.lifecycle.renew == "carry" else None
    new = row.model_copy(
        update={
            "incarnation": row.incarnation + 1,
            "life": "starting",
            "waiting_for": "",
            "outcome": "",
            "since": host.clock.now(),
            "totals": None,
            # The usage of the session includes its ended lives (test_a_fresh_conversation_keeps_what_the_session_used).
            "earlier": row.earlier.plus(state.budget.usage),
        }
    )
    # The revision decides between two processes that both find the old life ended.
    writes: list[Write] = [Put(agent_key(host.session, row.name), new.encode(), expected=revision)]
    writes += _journal(host, state, carried)
    writes += _held(host, state) if state.lifecycle.renew == "carry" else []
    stream = mailbox(host.session, row.name, state.identity.incarnation)
    while True:
        # Asked first: mail that comes between the two is then an unexpected number, and is read again.
        last = await host.ports.store.last(stream)
        mail = await _mail_left(host, state, stream)
        # No mail reaches the old life after this reading: moved by a later commit, it could arrive after newer mail of
        # the same sender (test_mail_that_arrives_while_the_new_life_begins_keeps_its_order).
        unread = [Expect(stream, last), *moved(host.session, state.identity.incarnation, (*state.inbox.mail, *mail))]
        try:
            await host.commit(*writes, *unread)
        except Conflict as lost:
            if lost.what == stream:
                continue
            await host.refresh(lost.what)  # another process was faster
        return


async def _carried(host: Host, state: AgentState) -> Carried:
    """Return the content with which the new incarnation begins. Writes the transcript and the hand-off note."""
    spec = state.me
    facts = host.facts(state, frozenset())
    stem = f"{facts.transcripts}/{spec.name}.{state.identity.incarnation}-{state.seq}"
    files = Left(f"{stem}.jsonl", f"{stem}-handoff.md")
    made = carry(state.context.conversation.messages, host.known_state(state), room(state), files)
    archive = host.ports.archive
    origin = Origin(host.session, spec.name, state.identity.incarnation, spec.kind, str(archive.folders(spec).root))
    lines = transcript_lines(await history(host.ports.store, state), origin)
    await archive.keep(files.transcript, b"".join(lines).decode())
    await archive.keep(files.note, made.note)
    if host.ports.remembered is not None:
        await host.ports.remembered.handed_off(spec, state.identity.incarnation, made.note, files.note)
    return made


async def _mail_left(host: Host, state: AgentState, stream: str) -> tuple[Envelope, ...]:
    """Return the envelopes in the old mailbox that its agent has not received."""
    envelopes: list[Envelope] = []
    while records := await records_of(
        host.ports.store, stream, max([state.inbox.position, *(envelope.seq for envelope in envelopes)])
    ):
        envelopes += [read_envelope(record.data, stream, record.seq) for record in records]
    return tuple(envelopes)


def moved(session: str, life: int, mail: Sequence[Envelope]) -> list[Write]:
    """Return the writes that move the mail of a life to the next one. Idempotent."""
    update = {"incarnation": life + 1, "seq": 0}
    return [
        sending(session, envelope.model_copy(update=update)) for envelope in mail if envelope.type not in _FOR_THE_OLD
    ]


def _journal(host: Host, state: AgentState, carried: Carried | None) -> list[Write]:
    """Return the first records of the new journal."""
    now = host.clock.now()
    life = state.identity.incarnation + 1
    stream = journal(host.session, state.me.name, life)
    started = ev.AgentStarted(
        at=now,
        spec=state.me,
        session=host.session,
        incarnation=life,
        ordinal=state.model.ordinal + 1,  # the next was perhaps asked already, and given up
        summaries=state.compaction.summaries,
    )
    events: list[ev.Event] = [
        started,
        # The new life watches the commands that still run
        # (test_a_fresh_conversation_keeps_what_runs_in_the_background).
        *(command.began for command in state.work.background.values() if command.status == "running"),
    ]
    if carried is not None:
        events += [*_retained(state, now), ev.InjectionsDelivered(at=now, blocks=carried.blocks)]
    return [Append(stream, event.encode(), expected=place) for place, event in enumerate(events)]


def _retained(state: AgentState, now: float) -> Iterator[ev.Event]:
    """Return the events that carry over the runtime's knowledge of the old life."""
    if state.work.todos:
        yield ev.TodosSet(at=now, todos=state.work.todos)
    for path, digest in state.work.files.items():
        yield ev.FileSeen(at=now, path=path, digest=digest, changed=path in state.work.changed)
    for name in state.work.skills:
        yield ev.SkillLoaded(at=now, name=name)
    for task, subject in state.work.tasks.items():
        yield ev.TaskHeld(at=now, task=task, subject=subject)


def _held(host: Host, state: AgentState) -> list[Write]:
    """Return the writes that move tasks and open questions to the new life."""
    holder = Holder(state.me.name, state.identity.incarnation)
    life = state.identity.incarnation + 1
    writes: list[Write] = []
    for task in host.board.open_tasks():
        row = host.board.task(task.id)
        if row is not None and holder.holds(row[0]):
            own_task = row[0].model_copy(update={"owner_incarnation": life})
            writes.append(Put(task_key(host.session, task.id), own_task.encode(), expected=row[1]))
    for request in host.board.requests():
        match = host.board.request(request.id)
        is_own = request.asked_by == state.me.name and request.incarnation == state.identity.incarnation
        if match is not None and is_own and match[0].status == "pending" and match[0].kind == "question":
            moved = match[0].model_copy(update={"incarnation": life})
            writes.append(Put(request_key(host.session, request.id), moved.encode(), expected=match[1]))
    return writes


@dataclass(frozen=True, slots=True)
class Repaired:
    """Result of a repair. `renewed`: the lead has a new incarnation."""

    notes: tuple[str, ...] = ()
    renewed: bool = False


async def repair(host: Host, damaged: Sequence[str], *, carry: bool) -> Repaired:
    """Repair a session. `damaged`: the keys of its rows that were set aside. Raises the exceptions of
    `Store.commit`."""
    notes = list[str]()
    names = {key.rpartition("/")[2] for key in damaged if key.startswith(agent_key(host.session, ""))}
    for name in sorted({*names, "lead"}):
        if host.board.agent(name) is None and await _row_again(host, name):
            notes.append(f"the row of {name} was damaged and is made again from its journal")
    for key in damaged:
        kind = key.split("/")[2] if key.count("/") > 1 else ""
        if kind in ("task", "request", "schedule", "rule") and await host.ports.store.get(key) is None:
            notes.append(f"{in_words(key)} was damaged and is lost: add it again if it is needed")
    lost = await renew_past_damage(host) if carry else ""
    return Repaired((*notes, *([lost] if lost else [])), bool(lost))


async def _row_again(host: Host, name: str) -> bool:
    """Write the row of an agent's newest life from its journal. Return False if it has none."""
    store = host.ports.store
    life = 0
    while await store.last(journal(host.session, name, life + 1)):
        life += 1
    if not life:
        return False
    state = (await recall_readable(store, host.session, name, life)).state
    if state.identity.spec is None:
        return False
    spec = state.me
    ended = state.lifecycle.ended
    row = AgentRow(
        name=spec.name,
        incarnation=state.identity.incarnation,
        kind=spec.kind,
        role=spec.role,
        agent_type=spec.agent_type,
        parent=None if spec.kind == "lead" else "lead",
        spec=spec_digest(spec),
        life="idle" if ended is None else "stopped",
        created_at=state.identity.began_at,
        since=state.identity.began_at,
        outcome="" if ended is None else ended.outcome,
    )
    await host.commit(Put(agent_key(host.session, name), row.encode(), expected=0))
    return True

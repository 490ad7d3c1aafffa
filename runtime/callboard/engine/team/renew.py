"""New life of the lead: `/new` and `/new --carry`, and the repair of a session after damage.

The old life ends first; the last record in its journal names the kind of renewal (`Lifecycle.renew`). One commit then
writes the new life: its row, the first records of its journal, the mail that the old life had not received, the running
background commands, and with `--carry` its tasks, questions and todos. If the process dies in between, the next host
does the rest. Items that a process adds to the old life later, because it does not know of the new one, are looked up
once more.

The process that has taken over a session repairs it before its agents start. A damaged row of an agent is made from its
journal. With `callboard resume --carry`, a lead whose journal lacks records begins a new life with the conversation
before them. All other losses are only reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from callboard.core.agent.apply import RUNTIME_MAIL, apply, fold
from callboard.core.agent.rules.compaction import room
from callboard.core.agent.state import AgentState
from callboard.core.context.summary.handoff import Handoff, HandoffFiles, carry
from callboard.core.context.view.conversation import restored_from
from callboard.core.context.view.messages import is_call, is_thinking, make_message
from callboard.core.context.view.transcript import Origin, message_uuid, transcript_lines
from callboard.core.decoding import in_words, read_envelope, read_value
from callboard.core.frozen import replace
from callboard.core.keys import agent_key, count_words, journal, mailbox, request_key, task_key
from callboard.core.messaging.envelopes import envelope_write
from callboard.core.tasks.board import Holder
from callboard.engine.facts import facts_of
from callboard.engine.recall import (
    JournalGap,
    history,
    load_spec,
    numbered_events,
    recall,
    recall_readable,
    spec_digest,
)
from callboard.engine.runtime import SessionRuntime
from callboard.ports.store import Append, Expect, Put, Store, Write
from callboard.ports.store_reading import records_of, row_of
from callboard.types import events as ev
from callboard.types.agent_spec import AgentSpec
from callboard.types.errors import Conflict, UsageError
from callboard.types.lazy_dataclass import dataclass
from callboard.types.messages import BranchPoint, ViewMessage
from callboard.types.records import AgentRow, Envelope

_NOT_MOVED = frozenset({"command", "shutdown_request"})
"""Types of mail that are only for the ended life."""


async def renew_if_due(runtime: SessionRuntime, row: AgentRow) -> None:
    """Begin the new life of an agent whose old life ended for that purpose. Does nothing otherwise."""
    match = runtime.rows.agent(row.name)
    if row.kind != "lead" or match is None or match[0].incarnation != row.incarnation or match[0].life != "stopped":
        return
    state = await recall(runtime.services.store, runtime.session, row.name, row.incarnation)
    if state.lifecycle.ended is None or not state.lifecycle.renew:
        return
    await _begin_next(runtime, match[0], match[1], state)


async def renew_past_damage(runtime: SessionRuntime) -> str:
    """Begin a new life of a lead whose journal lacks necessary records, with the conversation before them.

    Return a description of the loss for the user; empty if nothing is lost.
    """
    match = runtime.rows.agent("lead")
    if match is None:
        return ""
    row = match[0]
    store = runtime.services.store
    recalled = await recall_readable(store, runtime.session, row.name, row.incarnation)
    lost = recalled.lost
    if lost is None:
        return ""
    state = recalled.state
    if state.identity.spec is None:
        spec = await load_spec(store, runtime.session, row.spec)
        started = ev.AgentStarted(at=row.created_at, spec=spec, session=runtime.session, incarnation=row.incarnation)
        state = apply(state, started)
    await _begin_next(runtime, row, match[1], _state_past_gap(state, lost))
    behind = f", and {count_words(len(lost.after), 'record')} after it" if lost.after else ""
    return (
        f"record {lost.first} of the lead's journal was damaged: it continues in a fresh conversation, with what came "
        f"before that record. Not in it: that record{behind}"
    )


def _state_past_gap(state: AgentState, lost: JournalGap) -> AgentState:
    """Return the state before a gap in a form that can continue.

    Known later mail is not received twice, and no number is used twice.
    """
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


async def _begin_next(
    runtime: SessionRuntime, row: AgentRow, revision: int, state: AgentState, *, more: Sequence[ev.Event] | None = None
) -> None:
    """Begin the life after `state`, by the kind in its `renew`, or with the events of `more`.

    Does nothing if another process was faster.
    """
    if more is None and state.lifecycle.renew == "carry":
        handoff = await _handoff(runtime, state)
        now = runtime.clock.now()
        more = [*_retained_events(state, now), ev.InjectionsDelivered(at=now, blocks=handoff.blocks)]
    new = row.model_copy(
        update={
            "incarnation": row.incarnation + 1,
            "life": "starting",
            "waiting_for": "",
            "outcome": "",
            "since": runtime.clock.now(),
            "totals": None,
            # The usage of the session includes its ended lives (test_a_fresh_conversation_keeps_what_the_session_used).
            "earlier": row.earlier.plus(state.budget.usage),
        }
    )
    # The revision decides between two processes that both find the old life ended.
    writes: list[Write] = [Put(agent_key(runtime.session, row.name), new.encode(), expected=revision)]
    writes += _journal_writes(runtime, state, more or ())
    writes += _moved_work(runtime, state) if state.lifecycle.renew == "carry" else []
    stream = mailbox(runtime.session, row.name, state.identity.incarnation)
    while True:
        # Read first: mail that arrives between the two reads makes the number unexpected, and is read again.
        last = await runtime.services.store.last(stream)
        mail = await _unread_mail(runtime, state, stream)
        # The commit fails if mail reaches the old life after this reading. Moved by a later commit, that mail could
        # arrive after newer mail of the same sender (test_mail_that_arrives_while_the_new_life_begins_keeps_its_order).
        unread = [
            Expect(stream, last),
            *moved_mail(runtime.session, state.identity.incarnation, (*state.inbox.mail, *mail)),
        ]
        try:
            await runtime.commit(*writes, *unread)
        except Conflict as lost:
            if lost.what == stream:
                continue
            await runtime.refresh(lost.what)  # another process was faster
        return


async def _handoff(runtime: SessionRuntime, state: AgentState) -> Handoff:
    """Return the content with which the new incarnation begins. Writes the transcript and the hand-off note."""
    spec = state.me
    facts = facts_of(runtime, state, frozenset())
    stem = f"{facts.transcripts}/{spec.name}.{state.identity.incarnation}-{state.seq}"
    files = HandoffFiles(f"{stem}.jsonl", f"{stem}-handoff.md")
    made = carry(state.context.conversation.messages, runtime.state_block(state), room(state), files)
    archive = runtime.services.archive
    origin = Origin(runtime.session, spec.name, state.identity.incarnation, spec.kind, str(archive.folders(spec).root))
    lines = transcript_lines(await history(runtime.services.store, state), origin)
    await archive.keep(files.transcript, b"".join(lines).decode())
    await archive.keep(files.note, made.note)
    if runtime.services.remembered is not None:
        await runtime.services.remembered.handed_off(spec, state.identity.incarnation, made.note, files.note)
    return made


async def _unread_mail(runtime: SessionRuntime, state: AgentState, stream: str) -> tuple[Envelope, ...]:
    """Return the envelopes in the old mailbox that its agent has not received."""
    envelopes: list[Envelope] = []
    while records := await records_of(
        runtime.services.store, stream, max([state.inbox.position, *(envelope.seq for envelope in envelopes)])
    ):
        envelopes += [read_envelope(record.data, stream, record.seq) for record in records]
    return tuple(envelopes)


def moved_mail(session: str, life: int, mail: Sequence[Envelope]) -> list[Write]:
    """Return the writes that move the mail of a life to the next one. Idempotent."""
    update = {"incarnation": life + 1, "seq": 0}
    return [
        envelope_write(session, envelope.model_copy(update=update))
        for envelope in mail
        if envelope.type not in _NOT_MOVED
    ]


def _journal_writes(runtime: SessionRuntime, state: AgentState, last: Sequence[ev.Event]) -> list[Write]:
    """Return the first records of the new journal, which end with the events of `last`."""
    now = runtime.clock.now()
    life = state.identity.incarnation + 1
    stream = journal(runtime.session, state.me.name, life)
    started = ev.AgentStarted(
        at=now,
        spec=state.me,
        session=runtime.session,
        incarnation=life,
        ordinal=state.model.ordinal + 1,  # the next number may already be used by a call that was abandoned
        summaries=state.compaction.summaries,
    )
    events: list[ev.Event] = [
        started,
        # The new life watches the commands that still run
        # (test_a_fresh_conversation_keeps_what_runs_in_the_background).
        *(command.began for command in state.work.background.values() if command.status == "running"),
        *last,
    ]
    return [Append(stream, event.encode(), expected=place) for place, event in enumerate(events)]


def _retained_events(state: AgentState, now: float) -> Iterator[ev.Event]:
    """Return the events that preserve the runtime's knowledge of the old life."""
    if state.work.todos:
        yield ev.TodosSet(at=now, todos=state.work.todos)
    for path, digest in state.work.files.items():
        yield ev.FileSeen(at=now, path=path, digest=digest, changed=path in state.work.changed)
    for name in state.work.skills:
        yield ev.SkillLoaded(at=now, name=name)
    for task, subject in state.work.tasks.items():
        yield ev.TaskHeld(at=now, task=task, subject=subject)


def _moved_work(runtime: SessionRuntime, state: AgentState) -> list[Write]:
    """Return the writes that move tasks and open questions to the new life."""
    holder = Holder(state.me.name, state.identity.incarnation)
    life = state.identity.incarnation + 1
    writes: list[Write] = []
    for task in runtime.rows.open_tasks():
        row = runtime.rows.task(task.id)
        if row is not None and holder.holds(row[0]):
            own_task = row[0].model_copy(update={"owner_incarnation": life})
            writes.append(Put(task_key(runtime.session, task.id), own_task.encode(), expected=row[1]))
    for request in runtime.rows.requests():
        match = runtime.rows.request(request.id)
        is_own = request.asked_by == state.me.name and request.incarnation == state.identity.incarnation
        if match is not None and is_own and match[0].status == "pending" and match[0].kind == "question":
            moved_request = match[0].model_copy(update={"incarnation": life})
            writes.append(Put(request_key(runtime.session, request.id), moved_request.encode(), expected=match[1]))
    return writes


@dataclass(frozen=True, slots=True)
class RepairResult:
    """Result of a repair. `renewed`: the lead has a new incarnation."""

    notes: tuple[str, ...] = ()
    renewed: bool = False


async def repair(runtime: SessionRuntime, damaged: Sequence[str], *, carry: bool) -> RepairResult:
    """Repair a session.

    `damaged`: the keys of its rows that were set aside. Raises the exceptions of `Store.commit`.
    """
    notes = list[str]()
    names = {key.rpartition("/")[2] for key in damaged if key.startswith(agent_key(runtime.session, ""))}
    for name in sorted({*names, "lead"}):
        if runtime.rows.agent(name) is None and await _restore_row(runtime, name):
            notes.append(f"the row of {name} was damaged and is restored from its journal")
    for key in damaged:
        kind = key.split("/")[2] if key.count("/") > 1 else ""
        if kind in ("task", "request", "schedule", "rule") and await runtime.services.store.get(key) is None:
            notes.append(f"{in_words(key)} was damaged and is lost: add it again if it is needed")
    lost = await renew_past_damage(runtime) if carry else ""
    return RepairResult((*notes, *([lost] if lost else [])), bool(lost))


async def _restore_row(runtime: SessionRuntime, name: str) -> bool:
    """Write the row of an agent's newest life from its journal. Return False if the agent has no journal."""
    store = runtime.services.store
    life = 0
    while await store.last(journal(runtime.session, name, life + 1)):
        life += 1
    if not life:
        return False
    state = (await recall_readable(store, runtime.session, name, life)).state
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
    await runtime.commit(Put(agent_key(runtime.session, name), row.encode(), expected=0))
    return True


@dataclass(frozen=True, slots=True)
class Branch:
    """Beginning of a conversation: the state at the point, and the UUIDs of the messages by their ids."""

    state: AgentState
    uuids: Mapping[int, str]

    def events(self, now: float) -> list[ev.Event]:
        """Return the events with which the new conversation begins."""
        messages = _without_open_calls(self.state.context.conversation.messages)
        copied = [
            ev.MessageCopied(
                at=max(block.at for block in message.blocks),
                role=message.role,
                blocks=restored_from(message).blocks,
                turn=message.turn,
                uuid=self.uuids.get(message.id, ""),
            )
            for message in messages
        ]
        return [*_retained_events(replace(self.state, work=replace(self.state.work, tasks={})), now), *copied]


def _without_open_calls(messages: Sequence[ViewMessage]) -> list[ViewMessage]:
    """Return the messages without calls at their end that have no result."""
    if not messages or messages[-1].role != "assistant":
        return list(messages)
    last = messages[-1]
    blocks = tuple(block for block in last.blocks if not is_call(block))
    whole = (
        [make_message(last.id, last.role, blocks, last.turn)] if any(not is_thinking(b.data) for b in blocks) else []
    )
    return [*messages[:-1], *whole]


async def branch_of(store: Store, session: str, point: BranchPoint) -> Branch:
    """Return the lead's conversation at a point.

    Raises `UsageError` if the session has no such message, or if more than the stated turn would be lost.
    """
    raw = await row_of(store, agent_key(session, "lead"))
    if raw is None or raw.value is None:
        raise UsageError(f"session {session} has no conversation yet")
    newest = read_value(AgentRow, raw.value, raw.key).incarnation
    for life in range(newest, 0, -1):
        events = await numbered_events(store, journal(session, "lead", life))
        numbered = list(_message_ids(session, life, events))
        uuids = dict(reversed(numbered))
        if not point.message:
            return Branch(await recall(store, session, "lead", life), uuids)
        position = next((seq for seq, uuid in numbered if uuid == point.message), None)
        if position is None:
            continue
        _refuse_other_turns(session, life, events, position, drops=point.drops)
        return Branch(fold([event for seq, event in events if seq <= position], AgentState()), uuids)
    raise UsageError(f"session {session} has no message {point.message}: use the uuid of a message of its lead")


def _message_ids(session: str, life: int, events: Sequence[tuple[int, ev.Event]]) -> Iterator[tuple[int, str]]:
    """Yield the journal position and the UUID of each message of the lead, the UUID that the client knows first."""
    of_client: dict[str, str] = {}
    calls = 0
    for seq, event in events:
        match event:
            case ev.EnvelopeReceived(envelope=envelope) if envelope.metadata.get("uuid"):
                of_client[envelope.id] = str(envelope.metadata["uuid"])
            case ev.EnvelopesDelivered(ids=ids):
                yield from ((seq, of_client[each]) for each in ids if each in of_client)
                yield seq, message_uuid(session, "lead", life, seq)
            case ev.MessageCopied(uuid=uuid):
                if uuid:
                    yield seq, uuid
                yield seq, message_uuid(session, "lead", life, seq)
            case ev.ModelReplied():
                calls = len(event.calls)
                yield seq, message_uuid(session, "lead", life, seq)
            case ev.ResultsMerged():
                yield from ((seq, message_uuid(session, "lead", life, seq, part=part)) for part in range(max(calls, 1)))
            case _:
                continue


def _refuse_other_turns(
    session: str, life: int, events: Sequence[tuple[int, ev.Event]], position: int, *, drops: str
) -> None:
    """Raise `UsageError` if the messages after a position belong to anything but the turn of the prompt `drops`."""
    if not drops:
        return
    uuids_at = dict[int, set[str]]()
    for seq, uuid in _message_ids(session, life, events):
        uuids_at.setdefault(seq, set()).add(uuid)
    inside = False
    for seq, event in events:
        if seq <= position or seq not in uuids_at:
            continue
        if isinstance(event, ev.EnvelopesDelivered):
            inside = not inside and len(event.ids) == 1 and drops in uuids_at[seq]
        if not inside:
            raise UsageError(
                "Resume rejected by --resume-drops-turn: messages after the resume point do not belong to the turn of "
                f"the prompt {drops}"
            )


async def branch_lead(runtime: SessionRuntime, point: BranchPoint) -> None:
    """Continue the lead with its conversation at a point: it begins a new life. Raises as `branch_of` does."""
    branch = await branch_of(runtime.services.store, runtime.session, point)
    match = runtime.rows.agent("lead")
    assert match is not None, "its conversation was read"
    state = await recall(runtime.services.store, runtime.session, "lead", match[0].incarnation)
    await _begin_next(runtime, match[0], match[1], state, more=branch.events(runtime.clock.now()))


def first_records(session: str, lead: AgentSpec, copied: Sequence[ev.Event], now: float) -> list[Write]:
    """Return the first records of the lead of a new session that continues a conversation.

    Its calls are counted on from the copied replies, because the conversation may have had the same session id.
    """
    replies = sum(isinstance(event, ev.MessageCopied) and event.role == "assistant" for event in copied)
    started = ev.AgentStarted(at=now, spec=lead, session=session, incarnation=1, ordinal=replies)
    stream = journal(session, lead.name, 1)
    events: list[ev.Event] = [started, *copied]
    return [Append(stream, event.encode(), expected=place) for place, event in enumerate(events)]


@dataclass(frozen=True, slots=True)
class _FileChange:
    """Change of a file by a tool: digests of the content before and after it, empty for no file."""

    at: float
    path: str
    before: str
    after: str


_Life = Sequence[tuple[tuple[int, int], ev.Event]]
"""Events of all lives of an agent, each with its life and its position in the journal."""


async def changes_since(store: Store, session: str, agents: Sequence[str], message: str) -> Mapping[str, str]:
    """Return the files that tools have changed since a message of the lead, by path.

    The value is the digest of the content before the first change, empty for a new file. Raises `UsageError` if the
    lead has no such message.

    Positions in the journals decide, because a clock may be set back. In the journal of another agent, everything
    after mail that the lead's later turns caused is later; only for the rest the time decides.
    """
    lives = {name: await _lives_of(store, session, name) for name in {"lead": None, **dict.fromkeys(agents)}}
    point = _point_of(session, lives["lead"], message)
    since = dict(lives["lead"])[point].at
    lead = [event for place, event in lives.pop("lead") if place >= point]
    later = _later_mail(lead, lives.values())
    series = [_changes(lead), *(_changes(_later_events(life, later, since)) for life in lives.values())]
    by_path: dict[str, list[list[_FileChange]]] = {}
    for changes in series:
        for path in {change.path: None for change in changes}:
            by_path.setdefault(path, []).append([change for change in changes if change.path == path])
    return {path: _earliest_content(of_agents) for path, of_agents in by_path.items()}


async def _lives_of(store: Store, session: str, name: str) -> _Life:
    life = 1
    events: list[tuple[tuple[int, int], ev.Event]] = []
    while numbered := await numbered_events(store, journal(session, name, life)):
        events += [((life, seq), event) for seq, event in numbered]
        life += 1
    return events


def _point_of(session: str, lead: _Life, message: str) -> tuple[int, int]:
    """Return the life and the position of a message of the lead."""
    for life in dict.fromkeys(life for (life, _), _ in lead):
        numbered = [(seq, event) for (of_life, seq), event in lead if of_life == life]
        match = next((seq for seq, uuid in _message_ids(session, life, numbered) if uuid == message), None)
        if match is not None:
            return life, match
    raise UsageError(f"session {session} has no message {message}: use the uuid of a message of its lead")


def _later_mail(lead: Sequence[ev.Event], others: Iterable[_Life]) -> frozenset[str]:
    """Return the ids of the mail that the lead read in these events, and of all mail that it caused."""
    later = {id for event in lead if isinstance(event, ev.EnvelopesDelivered) for id in event.ids}
    received = [event.envelope for life in others for _, event in life if isinstance(event, ev.EnvelopeReceived)]
    while caused := {envelope.id for envelope in received if envelope.caused_by in later} - later:
        later |= caused
    return frozenset(later)


def _later_events(life: _Life, later: frozenset[str], since: float) -> Sequence[ev.Event]:
    """Return the events after the first delivery of such mail, and those that are later by the clock."""
    events = [event for _, event in life]
    start = next(
        (
            place
            for place, event in enumerate(events)
            if isinstance(event, ev.EnvelopesDelivered) and not later.isdisjoint(event.ids)
        ),
        len(events),
    )
    return [event for place, event in enumerate(events) if place > start or event.at >= since]


def _changes(events: Sequence[ev.Event]) -> Sequence[_FileChange]:
    return [
        _FileChange(event.at, str(event.data["path"]), str(event.data["before"]), str(event.data["after"]))
        for event in events
        if isinstance(event, ev.ToolFinished) and _is_change(event)
    ]


def _earliest_content(series: Sequence[Sequence[_FileChange]]) -> str:
    """Return the content of a file before its first change. `series`: its changes, by agent and in order.

    The first change begins with a content that no change of another agent made. If several do, the time decides.
    """
    by_time = sorted(series, key=lambda changes: changes[0].at)
    for changes in by_time:
        made = {change.after for other in series if other is not changes for change in other}
        if changes[0].before not in made:
            return changes[0].before
    return by_time[0][0].before


def _is_change(event: ev.ToolFinished) -> bool:
    data = event.data
    return not event.is_error and {"path", "before", "after"} <= data.keys() and data["before"] != data["after"]

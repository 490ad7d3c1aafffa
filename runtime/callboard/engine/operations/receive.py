"""Receiving end of the bus: an agent's listener takes envelopes from its mailbox, in order, each exactly once.

An envelope is sent only as a write (`core/messaging/envelopes.py`) in the commit of its cause.

Each envelope is checked once, at its receipt, by its sender, its cause and the row of its request
(`core.messaging.authority.rejection_reason` has the rules). A rejected envelope is acknowledged and kept out, the
journal has the reason, and its sender and the lead are informed. The row is read from the store, because this process's
row cache may be older than the mailbox. A host's listener and a process that reads a mailbox while the session has no
host (`undo.py`) use the same check.

Envelopes that are too long for the conversation, and too many results at once, are first written to a file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from callboard.core.agent.apply import is_for_runtime
from callboard.core.agent.state import AgentState
from callboard.core.context.oversize import file_of, too_long
from callboard.core.decoding import read_envelope, read_value
from callboard.core.keys import agent_key, mailbox, request_key, short_id
from callboard.core.messaging.authority import (
    ANSWERED_KINDS,
    REQUESTED_KINDS,
    effective_authority,
    is_user_prompt,
    rejection_reason,
)
from callboard.core.messaging.envelopes import envelope_block, envelope_write
from callboard.engine.agent_runtime import AgentRuntime
from callboard.engine.approvals.answer_guard import FORGED_MAIL
from callboard.engine.operations.cleanup import request_withdrawn
from callboard.engine.recall import PAGE
from callboard.ports.store import Put, Record, Row, Store, Write
from callboard.ports.store_reading import records_of
from callboard.types.errors import Conflict
from callboard.types.events import EnvelopeReceived
from callboard.types.lazy_dataclass import dataclass
from callboard.types.messages import Placed
from callboard.types.records import AgentRow, Envelope, Request


def _unchanged_row_write(row: Row | None) -> list[Write]:
    """Return a write of a shutdown's unchanged row, which fails if it was answered in between."""
    # The agent that asked may reject the shutdown while the shutdown is being received
    # (test_a_shutdown_that_is_refused_while_it_is_taken_in_is_not_carried_out).
    return [] if row is None or row.value is None else [Put(row.key, row.value, expected=row.revision)]


_PLAN_VOID = {"plan_request": "another plan was asked for", "shutdown_request": "it was asked to stop"}
"""Envelope type -> reason why the waiting plan is withdrawn."""


TOGETHER = 256
"""Most envelopes to acknowledge in one commit."""


async def listen(agent: AgentRuntime) -> None:
    """Record every envelope of the agent's mailbox, from the position that its journal has reached. Never returns."""
    stream = mailbox(agent.runtime.session, agent.name, agent.row.incarnation)
    agent.runtime.mailboxes.join(stream, lambda: agent.state)
    async with agent.runtime.services.store.follow(stream, agent.state.inbox.position) as records:
        async for record in records:
            # Envelopes that arrived together share one commit, because each commit costs a sync of the disk
            # (test_a_burst_of_mail_is_received_in_few_commits_and_in_its_order).
            await _receive_all(agent, stream, (record, *records.at_hand()))


async def receive_rest(agent: AgentRuntime) -> None:
    """Record the current content of the mailbox and return, for a life that is about to be settled."""
    stream = mailbox(agent.runtime.session, agent.name, agent.row.incarnation)
    while records := await records_of(agent.runtime.services.store, stream, agent.state.inbox.position, PAGE):
        await _receive_all(agent, stream, records)


async def _receive_all(agent: AgentRuntime, stream: str, records: Iterable[Record]) -> None:
    """Acknowledge mail in order. Envelopes that depend on no row share commits, because each commit is an fsync."""
    guard = agent.runtime.guard
    plain = list[Envelope]()
    for record in records:
        envelope = read_envelope(record.data, stream, record.seq)
        forged = guard is not None and not guard.admits(stream, record.seq, record.data, envelope)
        if forged or _depends_on_a_row(envelope) or refusal_reason(agent.row, envelope, None):
            await _receive_plain(agent, plain)
            plain = []
            await _receive(agent, envelope, forged=forged)
            continue
        plain.append(envelope)
        if len(plain) == TOGETHER:
            await _receive_plain(agent, plain)
            plain = []
    await _receive_plain(agent, plain)


def _depends_on_a_row(envelope: Envelope) -> bool:
    """Return True if a row decides on the envelope, or changes with it."""
    return envelope.request_id is not None or envelope.type in (
        *REQUESTED_KINDS,
        *ANSWERED_KINDS,
        "shutdown_request",
        "plan_request",
    )


async def _receive_plain(agent: AgentRuntime, envelopes: Sequence[Envelope]) -> None:
    """Acknowledge envelopes in one commit."""
    if not envelopes:
        return
    now = agent.runtime.clock.now()
    last = envelopes[-1].seq
    events = [EnvelopeReceived(at=now, envelope=envelope) for envelope in envelopes]

    # The mail of a killed life is read by a second reader of the same mailbox, so some may already be received.
    def known(state: AgentState) -> bool:
        return state.inbox.position >= last

    # The first turn begins in the same commit. The prompt of a schedule is recorded at once: the scheduler follows it.
    if agent.begins_alone and all(envelope.metadata.get("assignment") for envelope in envelopes):
        await agent.note(*events, unless=known)
    else:
        await agent.record(*events, unless=known)
    if any(is_user_prompt(envelope) for envelope in envelopes):
        agent.mark_call_urgent()


async def _receive(agent: AgentRuntime, envelope: Envelope, *, forged: bool) -> None:
    """Acknowledge one envelope. `forged`: it does not count, whatever the rows say.

    A request for another plan or a request to stop withdraws a waiting plan, because the model reads nothing while a
    plan waits.
    """
    while True:
        runtime = agent.runtime
        gate = agent.state.work.gate
        void = FORGED_MAIL if forged else ""
        now = runtime.clock.now()
        admission = await admit(runtime.services.store, runtime.session, agent.row, envelope, now=now, void=void)
        fault = admission.refused
        writes = admission.notices
        reason = _PLAN_VOID.get(envelope.type, "")
        if not fault and reason and not is_for_runtime(envelope) and gate.gate == "pending" and gate.request_id:
            writes = request_withdrawn(agent.runtime, gate.request_id, reason)
        if not fault and envelope.type == "shutdown_request":
            writes = [*writes, *_unchanged_row_write(admission.row)]
        try:
            await agent.record(
                EnvelopeReceived(at=agent.runtime.clock.now(), envelope=envelope, refused=fault),
                writes=writes,
                # The plan gate may have changed while this envelope waited to be recorded.
                unless=lambda state, seen=gate: state.inbox.position >= envelope.seq or state.work.gate != seen,
            )
        except Conflict as lost:
            await agent.runtime.refresh(lost.what)  # the request was answered at the same moment
        if agent.state.inbox.position >= envelope.seq:
            if not fault and is_user_prompt(envelope):
                agent.mark_call_urgent()
            if forged and runtime.guard is not None:
                await runtime.guard.report(f"{envelope.type} {envelope.id}", shown=True)
            return  # else the gate changed while this envelope waited: check again


@dataclass(frozen=True, slots=True)
class Admission:
    """Decision on an envelope at its receipt."""

    row: Row | None
    """Row of the request that the envelope makes or answers; None if it has no request, or the request does not
    exist."""
    refused: str
    """Reason why the envelope does not count; empty if it does."""
    notices: list[Write]
    """Notices of a refusal to the lead and the sender, for the commit that acknowledges the envelope."""


async def admit(
    store: Store, session: str, recipient: AgentRow, envelope: Envelope, *, now: float, void: str = ""
) -> Admission:
    """Decide by the rows in the store whether an envelope counts. `void`: reason why it does not, whatever they say.

    Used by the listener of a host, and by a process that reads a mailbox while no process hosts the session.
    """
    row = None
    if envelope.request_id is not None and envelope.type in (*REQUESTED_KINDS, *ANSWERED_KINDS):
        row = await store.get(request_key(session, envelope.request_id))
    reason = void or refusal_reason(recipient, envelope, row)
    if not reason:
        return Admission(row, "", [])
    agents = list[AgentRow]()
    for name in ("lead", envelope.sender):
        agent = await store.get(agent_key(session, name))
        if agent is not None and agent.value is not None:
            agents.append(read_value(AgentRow, agent.value, agent.key))
    return Admission(row, reason, refusal_notices(session, agents, envelope, reason=reason, now=now))


def refusal_reason(recipient: AgentRow, envelope: Envelope, row: Row | None) -> str:
    """Return the reason why the envelope is rejected, given this row; empty if it is accepted."""
    request = read_value(Request, row.value, row.key) if row is not None and row.value is not None else None
    return rejection_reason(envelope, recipient, request)


def refusal_notices(
    session: str, agents: Iterable[AgentRow], envelope: Envelope, *, reason: str, now: float
) -> list[Write]:
    """Return notices to the lead and to the sender for the commit that rejects the envelope.

    `agents`: their rows, if they exist.
    """
    living = {row.name: row for row in agents if row.life not in ("stopped", "crashed")}
    about = f"{envelope.id}, type {envelope.type}"
    text = f"Mail of {envelope.sender} to {envelope.recipient} ({about}) does not count: {reason}."
    return [envelope_write(session, _notice_envelope(envelope, to, text, now)) for to in living.values()]


def _notice_envelope(about: Envelope, to: AgentRow, text: str, now: float) -> Envelope:
    return Envelope(
        id=short_id("env", about.id, "refused", to.name),
        sender="runtime",
        recipient=to.name,
        incarnation=to.incarnation,
        type="error",
        mode="queue",
        content=text,
        reply_to=about.id,
        cause=effective_authority(about),
        sent_at=now,
    )


NEWEST = 3
"""Results of schedules that are shown in full if many wait together."""
MANY = 5
"""Most results of schedules that are shown without a digest."""


async def delivery_blocks(agent: AgentRuntime, envelopes: Sequence[Envelope]) -> tuple[Placed | None, ...]:
    """Return the block of each envelope; None for one that a digest replaces. Write the files that the blocks name.

    A file is named after its envelopes, so that the same delivery finds it after a crash. Raises `StoreFull`.
    """
    older = _older_results(envelopes)
    hidden = {envelope.id for envelope in older}
    long_ids = too_long(envelopes).difference(hidden)
    if not older and not long_ids:
        return tuple(envelope_block(envelope) for envelope in envelopes)
    archive = agent.runtime.services.archive
    folder = archive.folders(agent.state.me).tool_results
    paths = {envelope_id: f"{folder}/{file_of(envelope_id)}" for envelope_id in long_ids}
    for envelope in envelopes:
        if envelope.id in paths:
            await archive.keep(paths[envelope.id], envelope.content)
    if not older:
        return tuple(envelope_block(envelope, paths.get(envelope.id, "")) for envelope in envelopes)
    path = f"{folder}/schedule-results-{older[0].id}-{len(older)}.txt"
    await archive.keep(path, "\n\n".join(envelope.content for envelope in older))
    digest = envelope_block(_digest_envelope(older, path))
    blocks = {
        envelope.id: envelope_block(envelope, paths.get(envelope.id, ""))
        for envelope in envelopes
        if envelope.id not in hidden
    }
    return tuple(digest if envelope is older[0] else blocks.get(envelope.id) for envelope in envelopes)


def _older_results(envelopes: Sequence[Envelope]) -> list[Envelope]:
    """Return the results of schedules that a digest replaces: all but the newest, if there are many."""
    results = [envelope for envelope in envelopes if envelope.sender == "schedule" and envelope.type == "result"]
    return results[:-NEWEST] if len(results) > MANY else []


def _digest_envelope(older: Sequence[Envelope], path: str) -> Envelope:
    counts = Counter(str(envelope.metadata.get("schedule", "")) for envelope in older)
    each = ", ".join(f"{schedule}: {count}" for schedule, count in counts.items())
    text = (
        f"{len(older)} earlier results of schedules are not shown ({each}). They are in {path}, the oldest first; "
        "`callboard cron history` lists their fires. The newest follow."
    )
    return older[0].model_copy(update={"content": text, "metadata": {"status": "digest"}})

"""Reader of journals: an agent's state by folding, its full history without edits, its window, its edits and its spec.

A damaged record leaves a gap in the numbers of a journal. A snapshot after the gap still has the state. Without such a
snapshot, the state before the gap is the newest that is certain: `recall` then refuses, and `recall_readable` returns
that state with the readable records after the gap.

An agent's spec is stored in a row for its content, so that it commits with the agent's own row. The spec of a subagent
whose journal begins in the same commit is only there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from callboard.core.agent.apply import apply, apply_behind_hole, fold
from callboard.core.agent.snapshot import load
from callboard.core.agent.state import AgentState
from callboard.core.decoding import in_words, read_event, read_value
from callboard.core.keys import count_words, journal, session_of, snapshot_key
from callboard.core.reports.context import EditReport, Numbered, WindowMap, explain_edits, window_map
from callboard.ports.store import Store
from callboard.ports.store_reading import records_of, row_of
from callboard.types.agent_spec import AgentSpec
from callboard.types.errors import SessionUnreadable, UsageError
from callboard.types.events import AgentStarted, ContextEdited, Event
from callboard.types.lazy_dataclass import dataclass
from callboard.types.messages import ViewMessage, joined_blocks
from callboard.types.records import AgentRow

PAGE = 500
"""Number of records to read at once."""


@dataclass(frozen=True, slots=True)
class JournalGap:
    """Gap in a journal that no snapshot covers."""

    stream: str
    first: int
    """Number of the first missing record."""
    last: int
    """Number of the newest record of the journal."""
    after: tuple[Numbered, ...]
    """Readable records after the gap, which are not part of the state."""


@dataclass(frozen=True, slots=True)
class RecalledState:
    """Newest readable state of an agent."""

    state: AgentState
    lost: JournalGap | None = None


async def numbered_events(store: Store, stream: str, after: int = 0) -> list[Numbered]:
    """Return the readable events of a journal after a position, each with its number.

    Raises `SessionUnreadable` for an event of a newer version.
    """
    events: list[Numbered] = []
    while True:
        page = await _page(store, stream, events[-1][0] if events else after)
        events += page
        if len(page) < PAGE:
            return events


async def _page(store: Store, stream: str, after: int) -> list[Numbered]:
    records = await records_of(store, stream, after, PAGE)
    return [(record.seq, read_event(record.data, stream, record.seq)) for record in records]


async def events_of(store: Store, stream: str, after: int = 0) -> list[Event]:
    """Return the readable events of a journal after a position."""
    return [event for _, event in await numbered_events(store, stream, after)]


async def fold_journal(store: Store, stream: str, state: AgentState) -> tuple[AgentState, Sequence[Numbered]]:
    """Return the state after the records that follow `state` without a gap, and the readable records after the gap.

    Folds page by page: a page is gone before the next is read, and the process does other work in between.
    """
    behind: list[Numbered] = []
    after = state.seq
    while True:
        page = await _page(store, stream, after)
        whole = [event for place, (seq, event) in enumerate(page) if seq == state.seq + 1 + place]
        state = fold(whole, state)
        behind += page[len(whole) :]
        if len(page) < PAGE:
            return state, behind
        after = page[-1][0]


async def recall(store: Store, session: str, name: str, incarnation: int) -> AgentState:
    """Return an agent's state: the newest snapshot that this version reads, with the later events applied.

    Raises `SessionUnreadable` if a record is missing that no snapshot covers.
    """
    recalled = await recall_readable(store, session, name, incarnation)
    if recalled.lost is not None:
        raise SessionUnreadable(lost_words(recalled.lost), session)
    return recalled.state


async def recall_readable(store: Store, session: str, name: str, incarnation: int) -> RecalledState:
    """Return the newest readable state, and the gap after it if there is one."""
    row = await row_of(store, snapshot_key(session, name, incarnation))
    state = (load(row.value) if row is not None and row.value is not None else None) or AgentState()
    stream = journal(session, name, incarnation)
    last = await store.last(stream)
    readable, behind = await fold_journal(store, stream, state)
    if readable.seq >= last:
        return RecalledState(readable)
    return RecalledState(readable, JournalGap(stream, readable.seq + 1, last, tuple(behind)))


def lost_words(lost: JournalGap) -> str:
    """Describe a gap in a journal, its effect, and the command that continues."""
    session = session_of(lost.stream)
    first = in_words(f"{lost.stream}#{lost.first}")
    behind = len(lost.after)
    lead = lost.stream.startswith(f"j/{session}/lead.")
    also = f", and {count_words(behind, 'later record')} that build on it" if behind else ""
    way = (
        f"`callboard resume {session} --carry` continues in a fresh conversation with what came before it"
        if lead
        else f"`callboard resume {session}` continues without this agent; its tasks are freed"
    )
    return f"session {session} is damaged: {first} cannot be read{also}. {way}"


async def history(store: Store, state: AgentState) -> Sequence[ViewMessage]:
    """Return the whole conversation up to this state, as if it had never been compacted."""
    events = await numbered_events(store, journal(state.identity.session, state.me.name, state.identity.incarnation))
    return unedited_messages(event for event in events if event[0] <= state.seq)


def unedited_messages(events: Iterable[Numbered]) -> Sequence[ViewMessage]:
    """Return the messages of a journal without any edit. After a gap, events that do not fit are left out."""
    bare = AgentState()
    holes = 0
    for seq, event in events:
        if isinstance(event, ContextEdited):
            event = event.model_copy(update={"edits": ()})
        holes += seq != bare.seq + 1
        bare = apply_behind_hole(bare, seq, event) if holes else apply(bare, event)
    return bare.context.conversation.messages


async def window_of(store: Store, state: AgentState) -> WindowMap:
    """Return the map of an agent's window. Raises `UsageError` for an agent that has not started."""
    _running_operations(state)
    context = state.context
    tools = await store.get_blob(context.tools) if context.tools else b""
    system = joined_blocks(await store.get_blob(context.system), context.own_blocks) if context.system else b""
    return window_map(state, tools, system)


async def edits_of(store: Store, state: AgentState) -> Sequence[EditReport]:
    """Return every edit in an agent's journal, oldest first. Raises `UsageError` for an agent that has not started."""
    _running_operations(state)
    events = await numbered_events(store, journal(state.identity.session, state.me.name, state.identity.incarnation))
    events = [event for event in events if event[0] <= state.seq]
    return explain_edits(events, unedited_messages(events), state.me)


def _running_operations(state: AgentState) -> None:
    if state.identity.spec is None:
        raise UsageError("this agent has not begun yet: it has no window")


def spec_digest(spec: AgentSpec) -> str:
    """Return the sha256 (hex) of the spec's durable form."""
    return hashlib.sha256(spec.encode()).hexdigest()


def spec_key(session: str, digest: str) -> str:
    """Return the key of an agent's spec, by its digest."""
    return f"s/{session}/spec/{digest}"


async def load_spec(store: Store, session: str, digest: str) -> AgentSpec:
    """Return the spec with this digest. Raises `SessionUnreadable` if the store no longer has it."""
    row = await store.get(spec_key(session, digest))
    if row is None or row.value is None:
        message = f"session {session} is damaged: the spec {digest[:12]} of one of its agents is missing"
        raise SessionUnreadable(message, session)
    return read_value(AgentSpec, row.value, row.key)


async def first_spec(store: Store, session: str, row: AgentRow) -> AgentSpec:
    """Return the spec with which an agent's life began. Raises `SessionUnreadable` if the store no longer has it."""
    if row.spec:
        return await load_spec(store, session, row.spec)
    stream = journal(session, row.name, row.incarnation)
    records = await records_of(store, stream, 0, 1)
    first = read_event(records[0].data, stream, records[0].seq) if records else None
    if not isinstance(first, AgentStarted):
        raise SessionUnreadable(f"session {session} is damaged: the first record of {row.name} is missing", session)
    return first.spec

"""Reading journals back: an agent's state by folding, its full history without the edits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from callboard.core.apply import apply, fold
from callboard.core.names import journal, snapshot_key
from callboard.core.snapshot import load
from callboard.core.state import AgentState
from callboard.ports.store import Store
from callboard.words.context import Message
from callboard.words.errors import StoreDamaged
from callboard.words.events import ContextEdited, Event, decode_event

PAGE = 500
"""Records read at once."""


async def events_of(store: Store, stream: str, after: int = 0) -> list[Event]:
    """The events of a journal after a position. Raises `StoreDamaged` when a record is missing or no event of ours."""
    found: list[Event] = []
    while True:
        records = await store.read(stream, after + len(found), PAGE)
        for record in records:
            wanted = after + len(found) + 1
            if record.seq != wanted:
                raise StoreDamaged(f"{stream} has no readable record {wanted}: `callboard doctor` tells more")
            try:
                found.append(decode_event(record.data))
            except ValueError as wrong:
                raise StoreDamaged(f"record {record.seq} of {stream} is no event: {wrong}") from wrong
        if len(records) < PAGE:
            return found


async def recall(store: Store, session: str, name: str, incarnation: int) -> AgentState:
    """An agent's state: its newest snapshot, if this version can read it, and the events since folded over it."""
    row = await store.get(snapshot_key(session, name, incarnation))
    state = load(row.value) if row is not None and row.value is not None else None
    state = state or AgentState()
    return fold(await events_of(store, journal(session, name, incarnation), state.seq), state)


async def history(store: Store, state: AgentState) -> Sequence[Message]:
    """Everything that was said up to this state, as if nothing had ever been compacted."""
    return unedited((await events_of(store, journal(state.session, state.me.name, state.incarnation)))[: state.seq])


def unedited(events: Iterable[Event]) -> Sequence[Message]:
    """The messages of a journal without any edit."""
    bare = AgentState()
    for event in events:
        if isinstance(event, ContextEdited):
            event = event.model_copy(update={"edits": ()})
        bare = apply(bare, event)
    return bare.conversation.messages

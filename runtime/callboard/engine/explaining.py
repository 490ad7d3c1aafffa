"""Reads an agent's journal for a person: what fills its window, and every edit of it. It changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from callboard.core.context.told.explain import EditTold, Numbered, WindowMap, explain_edits, window_map
from callboard.core.names import journal
from callboard.core.state import AgentState
from callboard.engine.memory import events_of, unedited
from callboard.ports.store import Store
from callboard.words.errors import UsageError
from callboard.words.events import Event


async def window_of(store: Store, state: AgentState) -> WindowMap:
    """The map of an agent's window. Raises `UsageError` for one that has not begun."""
    _begun(state)
    tools = await store.get_blob(state.tools) if state.tools else b""
    return window_map(state, tools, await store.get_blob(state.system) if state.system else b"")


async def edits_of(store: Store, state: AgentState) -> Sequence[EditTold]:
    """Every edit in an agent's journal, oldest first. Raises `UsageError` for one that has not begun."""
    _begun(state)
    events = (await events_of(store, journal(state.session, state.me.name, state.incarnation)))[: state.seq]
    return explain_edits(numbered(events), unedited(events), state.me)


def numbered(events: Sequence[Event]) -> list[Numbered]:
    """The events of a whole journal with their positions."""
    return list(enumerate(events, 1))


def _begun(state: AgentState) -> None:
    if state.spec is None:
        raise UsageError("this agent has not begun yet: it has no window")

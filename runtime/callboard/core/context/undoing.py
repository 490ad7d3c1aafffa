"""An edit that a person takes back: when it is taken up, and what the record of it changes. Pure.

The command waits in `AgentState.undo` until the record that answers it: a `ContextEdited` whose `undoes` names the same
edits, with the restored messages, or without any edit and with the reason why not.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from callboard.core.context.view.conversation import edited
from callboard.core.context.view.spare import spared_after
from callboard.core.frozen import replace
from callboard.core.state import AgentState, Facts
from callboard.words import steps as st
from callboard.words.context import Edit, Restored
from callboard.words.events import ContextEdited


def undo_asked(state: AgentState, words: str) -> AgentState:
    """The state once a person asked to take back the edits at these journal positions."""
    wanted = asked_for(words)
    return replace(state, undo=(*state.undo, wanted)) if wanted else state


def asked_for(words: str) -> tuple[int, ...]:
    """The journal positions that a command names."""
    return tuple(dict.fromkeys(int(word) for word in words.split() if word.isdecimal()))


def undoing(state: AgentState, facts: Facts) -> st.Step | None:
    """Edits are taken back as soon as no call that was sent the view as it is can come back."""
    if not state.undo or state.call is not None or state.summary is not None:
        return None
    return st.Undo(state.undo[0])


def spared(edit: Edit, edits: Sequence[tuple[int, ContextEdited]], wanted: tuple[int, ...]) -> Edit:
    """The edit of an undo, with what it brings back marked as not compactable: stages that choose single blocks leave
    those alone from now on. What stood beside them stays compactable.

    `edits`: all edits of the journal, by position; `wanted`: those that are taken back.
    """
    folds, blocks = list[tuple[int, int]](), set[tuple[int, int | None]]()
    for old in (old for seq, event in edits if seq in wanted for old in event.edits):
        if old.kind in ("cleared", "persisted"):
            blocks.add((old.message, old.block))
        else:
            folds.append((old.message, old.last))
    messages = tuple(_spared(message, folds, blocks) for message in edit.messages)
    return edit.model_copy(update={"messages": messages})


def _spared(message: Restored, folds: Sequence[tuple[int, int]], blocks: Set[tuple[int, int | None]]) -> Restored:
    whole = any(first <= message.id <= last for first, last in folds)
    marked = tuple(
        block.model_copy(update={"compactable": False}) if whole or (message.id, place) in blocks else block
        for place, block in enumerate(message.blocks)
    )
    return message.model_copy(update={"blocks": marked})


def undone(state: AgentState, event: ContextEdited) -> AgentState:
    """The state after the record of an undo, done or refused. What else had been asked for stays asked for; a summary
    that a dead process began of the view before is void."""
    left = list(state.undo)
    if event.undoes in left:
        left.remove(event.undoes)
    state = replace(state, undo=tuple(left))
    if not event.edits:
        return state
    return replace(
        state,
        conversation=edited(state.conversation, event.edits),
        tried=frozenset(),
        summary=None,
        summary_transcript="",
        summary_halted=False,
        spared=spared_after(state.spared, event),
    )

"""A person's own stages: Python callables, named in their settings, asked like any other stage.

`(view, budget, now, **params) -> list[Edit] | None`: `view` is a `Conversation`, `budget` tokens, `now` Unix seconds.
It must be a function of these, since it may be asked again, and must not change what it is given. It runs in the loop:
while it does, no other agent of its process goes on.

Whatever it does, the agent lives on. Refused as a whole, with why: an exception, a return value that is no list of
edits, edits that break a law of the view, do not make it smaller, or write elsewhere than to the agent's own results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeGuard, cast

from callboard.core.context.situation import OwnStage, Situation
from callboard.core.context.view.conversation import Conversation, edit_faults, edited, invariants
from callboard.words.context import Edit
from callboard.words.values import Json

LONGEST = 300
"""Characters that are told of what went wrong."""


class Refused(NamedTuple):
    """What a stage did is not taken."""

    why: str


def is_own(stage: str) -> bool:
    """The name is one of a callable: `module:name`."""
    return ":" in stage


def ask_own(
    stage: OwnStage | None, view: Conversation, budget: int, situation: Situation, params: Json
) -> list[Edit] | Refused:
    """Its edits, none if it has nothing to do, or why they are refused. Raises nothing."""
    if stage is None:
        return Refused("no such callable was loaded when this process started: is it still in your settings?")
    try:
        found = stage(view, budget, situation.now, **params)
    except Exception as failed:  # noqa: BLE001  # it is not our code: whatever it raises, the agent goes on without it
        return Refused(f"{type(failed).__name__}: {failed}"[:LONGEST])
    if found is None:
        return []
    if not _are_edits(found):
        return Refused(f"it returned {type(found).__name__!r}, not a list of edits")
    why = _fault(view, found, situation.folder) if found else ""
    return Refused(why[:LONGEST]) if why else list(found)


def _are_edits(found: object) -> TypeGuard[Sequence[Edit]]:
    return isinstance(found, list | tuple) and all(isinstance(one, Edit) for one in cast("Sequence[object]", found))


def _fault(view: Conversation, edits: Sequence[Edit], folder: str) -> str:
    """What is wrong with these edits; empty when nothing is."""
    for edit in edits:
        if edit.kind == "restored":
            return "only an undo restores"
        inside = edit.path.startswith(f"{folder}/") and ".." not in edit.path
        if edit.kind == "persisted" and not inside:
            return f"it may persist in {folder} only, not in {edit.path!r}"
    try:
        after = edited(view, edits)
        faults = edit_faults(view, after) + invariants(after.messages, sent=view.messages[-1].role == "user")
    except Exception as failed:  # noqa: BLE001  # an edit that cannot even be applied
        return f"its edits cannot be applied: {type(failed).__name__}: {failed}"
    if faults:
        return f"its edits break a law of the view: {faults[0]}"
    # Edits of one size could be made for ever, one undoing the other.
    return "" if after.tokens < view.tokens else "its edits do not make the view smaller"

"""A person's own stages: Python callables named in the settings, and called like any other stage.

`(view, budget, now, **params) -> list[Edit] | None`: `view` is a `Conversation`, `budget` tokens, `now` Unix seconds. A
stage must depend only on its arguments, since it may be called again, and must not change them. It runs in the event
loop and blocks all other agents of its process.

A failing stage does not stop the agent. The result is refused as a whole, with the reason, for an exception, a return
value that is not a list of edits, and edits that violate an invariant of the view, do not make it smaller, or write
outside the agent's own results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeGuard, cast

from callboard.core.context.stage_input import Situation
from callboard.core.context.view.conversation import Conversation, apply_edits
from callboard.core.context.view.invariants import edit_faults, invariants
from callboard.types.messages import Edit, OwnStage
from callboard.types.records import Json

LONGEST = 300
"""Maximum number of characters of an error description."""


class StageRefusal(NamedTuple):
    """Rejection of a stage's result."""

    reason: str


def is_own(stage: str) -> bool:
    """Return True if the name is that of a callable: `module:name`."""
    return ":" in stage


def ask_own(
    stage: OwnStage | None, view: Conversation, budget: int, situation: Situation, *, params: Json
) -> list[Edit] | StageRefusal:
    """Call the stage.

    Return its edits (none if it has nothing to do), or the reason why they are refused. Raises nothing.
    """
    if stage is None:
        return StageRefusal("no such callable was loaded when this process started: is it still in your settings?")
    try:
        result = stage(view, budget, situation.now, **params)
    except Exception as failed:  # noqa: BLE001 - the code of a user: whatever it raises, the agent goes on without it
        return StageRefusal(f"{type(failed).__name__}: {failed}"[:LONGEST])
    if result is None:
        return []
    if not _are_edits(result):
        return StageRefusal(f"it returned {type(result).__name__!r}, not a list of edits")
    fault = _fault(view, result, situation.folder) if result else ""
    return StageRefusal(fault[:LONGEST]) if fault else list(result)


def _are_edits(value: object) -> TypeGuard[Sequence[Edit]]:
    return isinstance(value, list | tuple) and all(isinstance(item, Edit) for item in cast("Sequence[object]", value))


def _fault(view: Conversation, edits: Sequence[Edit], folder: str) -> str:
    """Return the error in these edits; empty if they are valid."""
    folds = False
    for edit in edits:
        if edit.kind == "restored":
            return "only an undo restores"
        rereads = edit.kind in ("cleared", "persisted")
        if folds and rereads:
            return f"its {edit.kind!r} edit names a block after an edit that replaces messages: put it before that one"
        folds = folds or not rereads
        inside = edit.path.startswith(f"{folder}/") and ".." not in edit.path
        if edit.kind == "persisted" and not inside:
            return f"it may persist in {folder} only, not in {edit.path!r}"
    try:
        after = apply_edits(view, edits)
        faults = edit_faults(view, after) + invariants(after.messages, sent=view.messages[-1].role == "user")
    except Exception as failed:  # noqa: BLE001 - an edit by the code of a user, which cannot even be applied
        return f"its edits cannot be applied: {type(failed).__name__}: {failed}"
    if faults:
        return f"its edits break a law of the view: {faults[0]}"
    # Edits of one size could be repeated forever, one undoing the other.
    return "" if after.tokens < view.tokens else "its edits do not make the view smaller"

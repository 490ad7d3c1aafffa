"""`persist_large_results`: what the model has not seen and is large goes to files; a preview and the path stay. Pure.

It refuses to touch results that the model has answered (their text is cached; `clear_old_results` takes them).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from callboard.core.bus.mail import defused
from callboard.core.context.situation import Situation
from callboard.core.context.stages.results import PERSISTED, results_of, words_of
from callboard.core.context.summary.folding import tail_start
from callboard.core.context.view.conversation import Conversation, result_text
from callboard.core.context.view.tokens import estimate_text
from callboard.words.context import Edit
from callboard.words.values import Json

PERSIST: Mapping[str, Any] = MappingProxyType(
    {"trigger": "total", "total": 200_000, "each": 30_000, "preview": 2_000},
)
"""Characters. `trigger`: `total` acts when unanswered results are over `total` together, `each` whenever one is over
`each`, `fit` when the newest exchange alone is over the budget."""

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


def persist_large_results(view: Conversation, budget: int, situation: Situation, params: Json) -> list[Edit] | None:
    """Unanswered results over `each` go to files, largest first, until the rest fits."""
    given = {**PERSIST, **params}
    if not view.messages or view.messages[-1].role != "user":
        return None
    if given["trigger"] == "fit" and _newest_exchange(view) <= budget:
        return None
    large = [result for result in results_of(view.messages[-1:], {}) if result.block.compactable]
    total = sum(len(result_text(result.block)) for result in large)
    most = given["total"] if given["trigger"] == "total" else 0
    surplus = _newest_exchange(view) - budget
    edits: list[Edit] = []
    for result in sorted(large, key=lambda found: -len(result_text(found.block))):
        text = result_text(result.block)
        fits = surplus <= 0 if given["trigger"] == "fit" else total <= most
        if fits or len(text) <= given["each"]:
            break
        path = f"{situation.folder}/{_file_name(str(result.block.data.get('tool_use_id')))}"
        shown = persisted_mark(path, text[: given["preview"]])
        saving = estimate_text(text) - estimate_text(shown)
        if saving > 0 and not PERSISTED.match(text):
            edits.append(result.reads("persisted", shown, path))
            total -= len(text) - len(shown)
            surplus -= saving
    return edits


def persisted_mark(path: str, preview: str) -> str:
    """What stands where a large result stood."""
    return f"<persisted-output>\nFull output: {defused(path)}\nPreview:\n{defused(preview)}\n</persisted-output>"


def persisted_texts(view: Conversation, edits: Sequence[Edit]) -> dict[str, str]:
    """The whole text for each path that these edits name, as it stands in the view before them."""
    standing = {message.id: message for message in view.messages}
    return {
        edit.path: words_of(standing[edit.message].blocks[edit.block])
        for edit in edits
        if edit.kind == "persisted" and edit.block is not None and edit.message in standing
    }


def _newest_exchange(view: Conversation) -> int:
    """Tokens of what can neither be summarised nor dropped."""
    return sum(message.tokens for message in view.messages[tail_start(view.messages) :])


def _file_name(use_id: str) -> str:
    reduced = _UNSAFE.sub("", use_id)[:100]
    if reduced == use_id:
        return f"{reduced}.txt"
    # What was taken out may have told it from another.
    return f"{reduced}-{hashlib.sha256(use_id.encode('utf-8', 'replace')).hexdigest()[:8]}.txt"

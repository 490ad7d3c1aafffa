"""`persist_large_results`: writes large results that the model has not seen to files, and keeps a preview and the path.
Pure.

It does not touch results that the model has answered (their text is cached; `clear_old_results` removes them).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from callboard.core.context.stage_input import Situation
from callboard.core.context.stages.results import PERSISTED, results_of, words_of
from callboard.core.context.summary.folding import tail_start
from callboard.core.context.view.blocks import result_text
from callboard.core.context.view.conversation import Conversation
from callboard.core.context.view.tokens import estimate_text
from callboard.core.messaging.envelopes import defused
from callboard.types.messages import Edit
from callboard.types.records import Json

PERSIST: Mapping[str, Any] = MappingProxyType(
    {"trigger": "total", "total": 200_000, "each": 30_000, "preview": 2_000},
)
"""Sizes in characters. `trigger`: `total` acts when unanswered results are over `total` together, `each` whenever one
is over `each`, `fit` when the newest exchange alone is over the budget."""

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


def persist_large_results(view: Conversation, budget: int, situation: Situation, params: Json) -> list[Edit] | None:
    """Write unanswered results over `each` to files, largest first, until the rest fits."""
    settings = {**PERSIST, **params}
    if not view.messages or view.messages[-1].role != "user":
        return None
    if settings["trigger"] == "fit" and _newest_exchange(view) <= budget:
        return None
    large = [result for result in results_of(view.messages[-1:], {}) if result.block.compactable]
    total = sum(len(result_text(result.block)) for result in large)
    most = settings["total"] if settings["trigger"] == "total" else 0
    surplus = _newest_exchange(view) - budget
    edits: list[Edit] = []
    for result in sorted(large, key=lambda candidate: -len(result_text(candidate.block))):
        text = result_text(result.block)
        fits = surplus <= 0 if settings["trigger"] == "fit" else total <= most
        if fits or len(text) <= settings["each"]:
            break
        path = f"{situation.folder}/{_file_name(str(result.block.data.get('tool_use_id')))}"
        mark = persisted_mark(path, text[: settings["preview"]])
        saving = estimate_text(text) - estimate_text(mark)
        if saving > 0 and not PERSISTED.match(text):
            edits.append(result.reads("persisted", mark, path))
            total -= len(text) - len(mark)
            surplus -= saving
    return edits


def persisted_mark(path: str, preview: str) -> str:
    """Return the mark that replaces a large result."""
    return f"<persisted-output>\nFull output: {defused(path)}\nPreview:\n{defused(preview)}\n</persisted-output>"


def persisted_texts(view: Conversation, edits: Sequence[Edit]) -> dict[str, str]:
    """Return the whole text for each path that these edits name, from the view before them."""
    standing = {message.id: message for message in view.messages}
    return {
        edit.path: words_of(standing[edit.message].blocks[edit.block])
        for edit in edits
        if edit.kind == "persisted" and edit.block is not None and edit.message in standing
    }


def _newest_exchange(view: Conversation) -> int:
    """Return the tokens of the messages that can be neither summarised nor dropped."""
    return sum(message.tokens for message in view.messages[tail_start(view.messages) :])


def _file_name(use_id: str) -> str:
    reduced = _UNSAFE.sub("", use_id)[:100]
    if reduced == use_id:
        return f"{reduced}.txt"
    # What was taken out may have told it from another.
    return f"{reduced}-{hashlib.sha256(use_id.encode('utf-8', 'replace')).hexdigest()[:8]}.txt"

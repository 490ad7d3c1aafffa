"""`clear_old_results`: replaces results that the model has answered with a mark, all at once. Pure.

It does not touch messages that the model has not seen, pins, images, and short results. It never loses the path of a
result that is in a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from callboard.core.context.stage_input import Situation
from callboard.core.context.stages.results import PlacedResult, kept_path, results_of
from callboard.core.context.view.blocks import calls_of, is_plain, result_text
from callboard.core.context.view.conversation import Conversation, held
from callboard.core.context.view.tokens import BLOCK_TOKENS, CALL_TOKENS, estimate_text
from callboard.core.messaging.envelopes import defused
from callboard.types.messages import Edit, ViewMessage
from callboard.types.records import Json

CLEAR: Mapping[str, Any] = MappingProxyType(
    {
        "keep": 3,
        "keep_of": "answered",
        "unit": "results",
        "preserve_tools": (),
        "left_alone": 120,
        "mark": "[Previous: used NAME. Result cleared; ask again only if you need it.]",
        "over": 0.6,
        "at_least": 0.1,
    }
)
"""It acts over `over` of the budget, if that saves at least `at_least` of it. It keeps the newest `keep` results, or
all results of the newest `keep` turns (`unit`), counted among the answered ones or among all (`keep_of`); results of
`preserve_tools`; and results of up to `left_alone` characters."""


def clear_old_results(view: Conversation, budget: int, situation: Situation, params: Json) -> list[Edit] | None:
    """Replace results that the model has answered with a mark, all that can be cleared together: each edit costs a
    cached prefix."""
    settings = {**CLEAR, **params}
    if held(view) <= settings["over"] * budget or _most(view, settings["left_alone"]) < settings["at_least"] * budget:
        return None
    edits: list[Edit] = []
    saved = 0
    for result in _clearable(view.messages, settings):
        text = cleared_mark(result, str(settings["mark"]))
        saving = result.block.tokens - (BLOCK_TOKENS + CALL_TOKENS + estimate_text(text))
        if saving > 0:
            edits.append(result.reads("cleared", text, kept_path(result_text(result.block))))
            saved += saving
    return edits if saved >= settings["at_least"] * budget else None


def _most(view: Conversation, left_alone: int) -> int:
    """Return a quick upper bound of the savings, so that a long view is not searched without result at each step."""
    # Results that are too small for `bulk` have texts of up to 96 bytes.
    return view.messages.bulk if left_alone >= 96 else view.result_tokens


def _clearable(messages: Sequence[ViewMessage], settings: Json) -> list[PlacedResult]:
    """Return the answered results that may be cleared, oldest first."""
    names = {
        str(call.get("id")): str(call.get("name") or "unknown") for message in messages for call in calls_of(message)
    }
    answered = len(messages) - (messages[-1].role == "user") if messages else 0
    every = list(results_of(messages, names))
    old = [result for result in every if result.message.id <= messages[answered - 1].id] if answered else []
    counted = every if settings["keep_of"] == "all" else old
    recent = _newest_results(counted, int(settings["keep"]), str(settings["unit"]))
    return [
        result
        for result in old
        if (result.message.id, result.place) not in recent
        and result.name not in settings["preserve_tools"]
        and result.block.compactable
        and is_plain(result.block)
        and len(result_text(result.block)) > settings["left_alone"]
    ]


def _newest_results(results: Sequence[PlacedResult], keep: int, unit: str) -> set[tuple[int, int]]:
    """Return the newest `keep` results, or all of the newest `keep` turns."""
    if unit == "turns":
        turns = list(dict.fromkeys(result.message.turn for result in results))
        newest = set(turns[max(0, len(turns) - keep) :])
        return {(result.message.id, result.place) for result in results if result.message.turn in newest}
    return {(result.message.id, result.place) for result in results[max(0, len(results) - keep) :]}


def cleared_mark(result: PlacedResult, mark: str) -> str:
    path = kept_path(result_text(result.block))
    text = mark.replace("NAME", defused(result.name))
    if not path:
        return text
    return f"{text[:-1]} Full output: {path}]" if text.endswith("]") else f"{text} [Full output: {path}]"

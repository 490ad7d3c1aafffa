"""`clear_old_results`: results that the model has answered become a mark, all at once. Pure.

It refuses to touch what the model has not seen, pins, images, and results that are short anyway; and it never loses the
path of a result that stands in a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from callboard.core.bus.mail import defused
from callboard.core.context.situation import Situation
from callboard.core.context.stages.results import Result, kept_path, results_of
from callboard.core.context.view.conversation import Conversation, calls_of, held, is_plain, result_text
from callboard.core.context.view.tokens import BLOCK_TOKENS, CALL_TOKENS, estimate_text
from callboard.words.context import Edit, Message
from callboard.words.values import Json

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
"""It acts over `over` of the budget, if that saves at least `at_least` of it. Kept are the newest `keep` results, or
all results of the newest `keep` turns (`unit`), counted among the answered ones or among all (`keep_of`); results of
`preserve_tools`; those of up to `left_alone` characters."""


def clear_old_results(view: Conversation, budget: int, situation: Situation, params: Json) -> list[Edit] | None:
    """Results that the model has answered become a mark, all that can go together: each edit costs a cached prefix."""
    given = {**CLEAR, **params}
    if held(view) <= given["over"] * budget or _most(view, given["left_alone"]) < given["at_least"] * budget:
        return None
    edits: list[Edit] = []
    saved = 0
    for result in _clearable(view.messages, given):
        text = cleared_mark(result, str(given["mark"]))
        saving = result.block.tokens - (BLOCK_TOKENS + CALL_TOKENS + estimate_text(text))
        if saving > 0:
            edits.append(result.reads("cleared", text, kept_path(result_text(result.block))))
            saved += saving
    return edits if saved >= given["at_least"] * budget else None


def _most(view: Conversation, left_alone: int) -> int:
    """A quick bound on what clearing can save, so that a long view is not searched in vain at each step."""
    # Results that are too small for `bulk` have texts of up to 96 bytes.
    return view.messages.bulk if left_alone >= 96 else view.result_tokens


def _clearable(messages: Sequence[Message], given: Json) -> list[Result]:
    """The answered results that may go, oldest first."""
    names = {
        str(call.get("id")): str(call.get("name") or "unknown") for message in messages for call in calls_of(message)
    }
    answered = len(messages) - (messages[-1].role == "user") if messages else 0
    every = list(results_of(messages, names))
    old = [result for result in every if result.message.id <= messages[answered - 1].id] if answered else []
    counted = every if given["keep_of"] == "all" else old
    kept = _kept(counted, int(given["keep"]), str(given["unit"]))
    return [
        result
        for result in old
        if (result.message.id, result.place) not in kept
        and result.name not in given["preserve_tools"]
        and result.block.compactable
        and is_plain(result.block)
        and len(result_text(result.block)) > given["left_alone"]
    ]


def _kept(results: Sequence[Result], keep: int, unit: str) -> set[tuple[int, int]]:
    """The newest `keep` results, or all of the newest `keep` turns."""
    if unit == "turns":
        turns = list(dict.fromkeys(result.message.turn for result in results))
        newest = set(turns[max(0, len(turns) - keep) :])
        return {(result.message.id, result.place) for result in results if result.message.turn in newest}
    return {(result.message.id, result.place) for result in results[max(0, len(results) - keep) :]}


def cleared_mark(result: Result, mark: str) -> str:
    path = kept_path(result_text(result.block))
    text = mark.replace("NAME", defused(result.name))
    if not path:
        return text
    return f"{text[:-1]} Full output: {path}]" if text.endswith("]") else f"{text} [Full output: {path}]"

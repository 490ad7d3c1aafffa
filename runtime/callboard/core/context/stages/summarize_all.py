"""`summarize_all` and `react`: which range becomes one summary, and its maximum length. Pure.

They request no summary of a range that is too short to shrink, or that the model has not seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from callboard.core.context.stage_input import Situation
from callboard.core.context.summary.folding import Split, is_summary, split, tail_start
from callboard.core.context.view.conversation import Conversation, held
from callboard.types.messages import FROM_THE_START, SummaryWanted
from callboard.types.records import Json

_GROWTH = 1.5
"""Size of a view at which a summary is made, as a multiple of the size that the summary leaves."""

CALL: Mapping[str, Any] = MappingProxyType(
    {"max_tokens": 2_000, "input": "all", "input_chars": 80_000, "prompt": "", "place": "system"}
)
"""Parameters of a summary request: its maximum length, the part of the record that the model gets (`all`, or
`input_chars` of its `head`, its `tail` or `both`), instructions that replace the runtime's own, and their position
(`system`, `user`)."""

SUMMARIZE: Mapping[str, Any] = MappingProxyType(
    {
        "over": 1.0,
        "over_chars": 0,
        "over_tokens": 0,
        "at_least": 0.05,
        "resummarize": "never",
        "summaries": 0.15,
        **CALL,
    }
)
"""It acts over `over` of the budget; over `over_chars` characters of the messages as they are sent; or over
`over_tokens`, counted as characters // 4 - whichever is reached first (0: not counted). There must be at least
`at_least` to summarise, a share of the budget, or of the smallest of these. Earlier summaries stay (`resummarize:
never`) until they exceed `summaries` of the smallest of these, and are then made again from the history; or they are
summarised again each time (`allow`)."""
REACT: Mapping[str, Any] = MappingProxyType({"keep": 5, **CALL})


def summarize_all(view: Conversation, budget: int, situation: Situation, params: Json) -> SummaryWanted | None:
    """Summarise everything but the newest exchange. Earlier summaries stay until they are too many."""
    settings = {**SUMMARIZE, **params}
    if held(view) <= settings["over"] * budget and not _over_count(view, settings):
        return None
    summaries = sum(block.tokens for message in view.messages for block in message.blocks if is_summary(block))
    again = settings["resummarize"] == "allow"
    anew = not again and summaries > settings["summaries"] * _smallest(budget, settings)
    upto = tail_start(view.messages)
    sorted_ = split(view.messages, upto, budget, rebuild=again or anew)
    folded = sorted_.folded_tokens
    if folded < settings["at_least"] * _smallest(budget, settings) or not _pays(view, folded, budget, settings):
        return None
    request = _request(view, upto, sorted_, stage="summarize_all", settings=settings)
    if request is None:
        return None
    return request.model_copy(update={"again": again} | ({"message": FROM_THE_START} if anew else {}))


def _pays(view: Conversation, folded: int, budget: int, settings: Json) -> bool:
    """Return True if a summary leaves clearly less than there is.

    The rest (the newest exchange, pins, the person's texts) can exceed the threshold by itself. Without this rule every
    step would then be summarised; with it, the view grows by half first. A view over the budget is summarised at once.
    """
    if held(view) > budget:
        return True
    remaining = view.tokens - folded + summary_size(folded, settings["max_tokens"])
    return view.tokens >= _GROWTH * remaining


def react(view: Conversation, budget: int, situation: Situation, params: Json) -> SummaryWanted | None:
    """Request a summary of everything before the last messages, regardless of thresholds.

    If too little is before them, summarise everything but the newest exchange.
    """
    settings = {**REACT, **params}
    for keep in (settings["keep"], 0):
        upto = tail_start(view.messages, keep)
        request = _request(view, upto, split(view.messages, upto, budget), stage="react", settings=settings)
        if request is not None:
            return request
    return None


def summary_size(folded_tokens: int, most: int) -> int:
    """Return the maximum size of a summary: a fifth of the replaced text plus 200 tokens, at most `most`."""
    return min(most, folded_tokens // 5 + 200)


def characters(view: Conversation) -> int:
    """Return the characters of the messages as they are sent. Walks the view, which the calling stages keep small."""
    return sum(
        len(wire) if wire.isascii() else len(wire.decode()) for wire in (message.wire for message in view.messages)
    )


def _over_count(view: Conversation, settings: Json) -> bool:
    most_chars = settings["over_chars"]
    most_tokens = settings["over_tokens"]
    if not most_chars and not most_tokens:
        return False
    count = characters(view)
    return 0 < most_chars < count or 0 < most_tokens < count // 4


def _smallest(budget: int, settings: Json) -> int:
    """Return the budget in tokens, or the smallest of the thresholds in other units."""
    return min([budget, *(limit for limit in (settings["over_chars"] // 4, settings["over_tokens"]) if limit)])


def _request(view: Conversation, upto: int, sorted_: Split, *, stage: str, settings: Json) -> SummaryWanted | None:
    """Return the summary request for this range; None if the range is too short to shrink."""
    longest = summary_size(sorted_.folded_tokens, settings["max_tokens"])
    if not upto or sorted_.folded_tokens < 2 * longest:
        return None
    return SummaryWanted(
        stage=stage,
        trigger="reactive" if stage == "react" else "auto",
        message=view.messages[0].id,
        last=view.messages[upto - 1].id,
        **request_fields(settings, longest),
    )


def request_fields(settings: Json, longest: int) -> Json:
    """Return the fields of a `SummaryWanted` that say how to make it."""
    return {**{name: settings[name] for name in CALL}, "max_tokens": longest}

"""`summarize_all` and `react`: which stretch becomes one summary, and how long that may be. Pure.

They refuse to ask for a summary of what is too little to become shorter, or of what the model has not seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from callboard.core.context.situation import Situation
from callboard.core.context.summary.folding import Split, is_summary, split, tail_start
from callboard.core.context.view.conversation import Conversation, held
from callboard.words.context import SummaryWanted
from callboard.words.values import Json

FROM_THE_START = 0
"""`SummaryWanted.message` of a summary that also replaces the summaries made before."""

CALL: Mapping[str, Any] = MappingProxyType(
    {"max_tokens": 2_000, "input": "all", "input_chars": 80_000, "prompt": "", "place": "system"}
)
"""How a summary is asked for: its length at most, what of the record the model is given (`all`, or `input_chars` of its
`head`, its `tail` or `both`), instructions instead of the runtime's own, and where they stand (`system`, `user`)."""

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
"""It acts over `over` of the budget; over `over_chars` characters of the messages as they are sent; over `over_tokens`,
counted as characters // 4: whichever comes first (0: not counted). There must be `at_least` to summarise, a share of
the budget, or of the smallest of these. Earlier summaries stay (`resummarize: never`) until they are over `summaries`
of the budget, and are then made anew from the history; or they are summarised again each time (`allow`)."""
REACT: Mapping[str, Any] = MappingProxyType({"keep": 5, **CALL})


def summarize_all(view: Conversation, budget: int, situation: Situation, params: Json) -> SummaryWanted | None:
    """All but the newest exchange becomes one summary. Earlier summaries stay, until they are too many."""
    given = {**SUMMARIZE, **params}
    if held(view) <= given["over"] * budget and not _over_count(view, given):
        return None
    summaries = sum(block.tokens for message in view.messages for block in message.blocks if is_summary(block))
    again = given["resummarize"] == "allow"
    anew = not again and summaries > given["summaries"] * budget
    upto = tail_start(view.messages)
    sorted_ = split(view.messages, upto, budget, rebuild=again or anew)
    if sorted_.folded_tokens < given["at_least"] * _smallest(budget, given):
        return None
    wanted = _wanted(view, upto, sorted_, "summarize_all", given)
    if wanted is None:
        return None
    return wanted.model_copy(update={"again": again} | ({"message": FROM_THE_START} if anew else {}))


def react(view: Conversation, budget: int, situation: Situation, params: Json) -> SummaryWanted | None:
    """What stands before the last messages becomes a summary, whatever the thresholds say.

    Where nothing worth it stands before them, all but the newest exchange does.
    """
    given = {**REACT, **params}
    for keep in (given["keep"], 0):
        upto = tail_start(view.messages, keep)
        wanted = _wanted(view, upto, split(view.messages, upto, budget), "react", given)
        if wanted is not None:
            return wanted
    return None


def summary_size(folded_tokens: int, most: int) -> int:
    """How long a summary may be: a fifth of what it replaces and 200 tokens, `most` at most."""
    return min(most, folded_tokens // 5 + 200)


def characters(view: Conversation) -> int:
    """Characters of the messages as they are sent. It walks the view, which the stages that ask keep small."""
    return sum(len(wire) if wire.isascii() else len(wire.decode()) for wire in (one.wire for one in view.messages))


def _over_count(view: Conversation, given: Json) -> bool:
    most_chars, most_tokens = given["over_chars"], given["over_tokens"]
    if not most_chars and not most_tokens:
        return False
    count = characters(view)
    return 0 < most_chars < count or 0 < most_tokens < count // 4


def _smallest(budget: int, given: Json) -> int:
    """The budget in tokens, or the smallest of the thresholds that are counted otherwise."""
    return min([budget, *(one for one in (given["over_chars"] // 4, given["over_tokens"]) if one)])


def _wanted(view: Conversation, upto: int, sorted_: Split, stage: str, given: Json) -> SummaryWanted | None:
    """The summary of this stretch, if it is long enough to become shorter."""
    longest = summary_size(sorted_.folded_tokens, given["max_tokens"])
    if not upto or sorted_.folded_tokens < 2 * longest:
        return None
    return SummaryWanted(
        stage=stage,
        trigger="reactive" if stage == "react" else "auto",
        message=view.messages[0].id,
        last=view.messages[upto - 1].id,
        **asked(given, longest),
    )


def asked(given: Json, longest: int) -> Json:
    """The part of a `SummaryWanted` that says how it is to be made."""
    return {**{name: given[name] for name in CALL}, "max_tokens": longest}

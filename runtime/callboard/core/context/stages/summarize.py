"""Stages that request a summary: `summarize_all`, `react` and `summarize_regions`.

Each chooses a range and the maximum length of its summary. Pure.

No summary is requested for a range that is too short to shrink, or that the model has not seen.

`summarize_regions` replaces runs of finished exchanges, the largest first. A region is a run of whole consecutive
exchanges: calls with their results, text next to calls, old reminders, hook notes and mail. It ends where a block must
stay: the person's texts, pins, the text of a reply that ended a turn, earlier summaries. A message with results and
texts of the person ends its region: the results are removed, the texts stay.

It does not touch the recent window (unless the view is about to overflow), the newest exchange, and a region that is
too small to pay for its summary or did not shrink when it was tried in this turn. Pins are computed again each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from callboard.core.context.stage_input import REGION_STAGE, Situation, region_key
from callboard.core.context.summary.folding import (
    REGION,
    ViewSplit,
    block_of_edit,
    is_standing,
    is_summary,
    note,
    render_state,
    split,
    standing_notes,
    tail_start,
    tokens_of,
    words_in,
)
from callboard.core.context.view.conversation import Conversation, message_tokens
from callboard.core.context.view.invariants import pins
from callboard.core.context.view.messages import calls_of, is_result, result_text
from callboard.core.messaging.envelopes import defuse_tags
from callboard.types.messages import FROM_THE_START, Edit, Placed, StateBlock, SummaryWanted, ViewBlock, ViewMessage
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
"""The stage acts over `over` of the budget; over `over_chars` characters of the messages as they are sent; or over
`over_tokens`, counted as characters // 4 - whichever is reached first (0: not counted). There must be at least
`at_least` to summarise, a share of the budget, or of the smallest of these. Earlier summaries stay (`resummarize:
never`) until they exceed `summaries` of the smallest of these, and are then made again from the history; or they are
summarised again each time (`allow`)."""
REACT: Mapping[str, Any] = MappingProxyType({"keep": 5, **CALL})


def summarize_all(view: Conversation, budget: int, situation: Situation, params: Json) -> SummaryWanted | None:
    """Summarise everything but the newest exchange. Earlier summaries stay until they are too many."""
    settings = {**SUMMARIZE, **params}
    if message_tokens(view) <= settings["over"] * budget and not _over_count(view, settings):
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
    """Return True if a summary would make the view clearly smaller.

    The rest (the newest exchange, pins, the person's texts) can exceed the threshold by itself. Without this rule every
    step would then be summarised; with it, the view grows by half first. A view over the budget is summarised at once.
    """
    if message_tokens(view) > budget:
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


def _request(view: Conversation, upto: int, sorted_: ViewSplit, *, stage: str, settings: Json) -> SummaryWanted | None:
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
    """Return the fields of a `SummaryWanted` with the instructions and the length of the summary."""
    return {**{name: settings[name] for name in CALL}, "max_tokens": longest}


REGIONS: Mapping[str, Any] = MappingProxyType(
    {
        "soft": 0.7,
        "down_to": 0.5,
        "at_least": 0.05,
        "hard": 0.9,
        "spare": 0.05,
        "turns": 4,
        "tokens": 20_000,
        "share": 0.5,
        "first_over": 10_000,
        "last_under": 1_000,
        **CALL,
        "max_tokens": 8_000,
    }
)
"""Shares of the budget: a batch begins over `soft` and continues down to `down_to`; over `hard`, regions of the recent
window are summarised too, until `spare` is free. A region has at least `at_least`, or half of the longest region if
that is less, so that its summary pays for the call; a view over the budget accepts a region of any size. The window is
the larger of `turns` and `tokens`, at most `share` of the budget. Regions with a result of over `first_over` characters
come first, regions without one over `last_under` last. No region is longer than five times `max_tokens`."""


class Region(NamedTuple):
    """Messages `start` to before `end` of a view."""

    start: int
    end: int
    tokens: int
    """Tokens that summarising removes, before the replacement is added."""
    largest: int
    """Characters of its largest result."""


def summarize_regions(view: Conversation, budget: int, situation: Situation, params: Json) -> SummaryWanted | None:
    """Request a summary of the next region, if the view is over a threshold or a batch is in progress."""
    settings = {**REGIONS, **params}
    size = message_tokens(view)
    going = situation.batch == REGION_STAGE
    if size <= settings["down_to" if going else "soft"] * budget:
        return None
    messages = view.messages
    window = _window(messages, budget, settings)
    tail = tail_start(messages)
    keeps = _keeper(messages)
    most = max(1_000, 5 * (settings["max_tokens"] - 200))
    least = 0 if size > budget else min(int(settings["at_least"] * budget), most // 2)
    old = _worthwhile(regions(messages[:window], keeps, most), messages, situation, settings=settings, least=least)
    recent: list[Region] = []
    if size > (1 - settings["spare"] if going else settings["hard"]) * budget:
        recent = _worthwhile(
            regions(messages[:tail], keeps, most, start=window), messages, situation, settings=settings, least=least
        )
    for candidates in (old, recent):
        if candidates:
            best = min(candidates, key=lambda region: (_rank(region, settings), -region.tokens))
            return _region_request(messages, best, settings)
    return None


def regions(
    messages: Sequence[ViewMessage], keeps: Callable[[ViewBlock], bool], most: int, start: int = 0
) -> list[Region]:
    """Return all regions from `start` on, in order. Each has at most `most` tokens, unless one exchange is longer."""
    regions_: list[Region] = []
    open_: Region | None = None
    for unit in _units(messages, start, keeps):
        whole = unit.region
        if open_ and not unit.stays and open_.tokens + whole.tokens <= most:
            largest = max(open_.largest, whole.largest)
            open_ = Region(open_.start, whole.end, open_.tokens + whole.tokens, largest)
        else:
            regions_ += [open_] if open_ else []
            open_ = None if unit.stays else whole
        if unit.closes and open_:
            regions_.append(open_)
            open_ = None
    return [*regions_, open_] if open_ else regions_


def region_edits(
    view: Conversation,
    request: SummaryWanted,
    text: str,
    *,
    state: StateBlock,
    transcript: str,
    history: Sequence[ViewMessage],
) -> list[Edit]:
    """Return the edits that replace a region with a summary; empty if they would not make the view smaller.

    The person's texts in its last message stay after it. Only the newest summary has the state and the path of the
    transcript; they are removed from an older one. `history`: the unreduced messages, for counting turns.
    """
    start, end = view.messages.span(request.message, request.last)
    covered = view.messages[start:end]
    if not covered or not text.strip():
        return []
    keeps = _keeper(view.messages)
    pinned = pins(view.messages)
    summary = note(f"{_mark(history or view.messages, request)}\n{defuse_tags(text.strip())}")
    notes = [note(text) for text in standing_notes(render_state(state), transcript)]
    stays = [block_of_edit(block, pinned) for message in covered for block in message.blocks if keeps(block)]
    blocks = [summary, *notes, *stays]
    edits = list(_without_notes(view.messages, start, end, pinned))
    was = [view.messages[index] for edit in edits for index in [view.messages.find(edit.message)] if index is not None]
    before = sum(message.tokens for message in (*covered, *was))
    if tokens_of([*blocks, *(block for edit in edits for block in edit.blocks)]) >= before:
        return []
    # Notes first, because a message next to the region is joined with its summary.
    first = covered[0].id
    last = covered[-1].id
    return [*edits, Edit(kind="summarised", message=first, last=last, blocks=tuple(blocks), path=transcript)]


class _Unit(NamedTuple):
    """An exchange, or a single message."""

    region: Region
    stays: bool
    """True if it is not part of any region."""
    closes: bool
    """True if a block that stays follows its results."""


def _units(messages: Sequence[ViewMessage], start: int, keeps: Callable[[ViewBlock], bool]) -> Iterator[_Unit]:
    at = start
    while at < len(messages):
        calls = any(calls_of(messages[at]))
        end = min(at + 1 + calls, len(messages))
        unit = messages[at:end]
        blocks = [block for message in unit for block in message.blocks]
        texts = [result_text(block) for block in blocks if is_result(block)]
        whole = Region(
            start=at,
            end=end,
            tokens=sum(block.tokens for block in blocks if not keeps(block)),
            largest=max(map(len, texts), default=0),
        )
        retained = [block for block in blocks if keeps(block)]
        others = [block for block in unit[-1].blocks if not is_result(block)] if calls else []
        yield _Unit(
            whole,
            stays=_ends_turn(messages, at) or any(not any(block is other for other in others) for block in retained),
            closes=bool(retained),
        )
        at = end


def _ends_turn(messages: Sequence[ViewMessage], at: int) -> bool:
    """Return True for a reply without calls, unless its turn continues: it was cut, or a hook continued it."""
    message = messages[at]
    if message.role != "assistant" or any(calls_of(message)):
        return False
    return at + 1 == len(messages) or messages[at + 1].turn != message.turn


def _keeper(messages: Sequence[ViewMessage]) -> Callable[[ViewBlock], bool]:
    """Return a predicate that decides whether a block stays when the blocks around it are summarised."""
    pinned = pins(messages)
    stretch = [(message, block) for message in messages for block in message.blocks]
    retained = (
        {id(block) for block in (*pinned, *words_in(stretch, messages[-1].turn, pinned))} if messages else set[int]()
    )

    def keeps(block: ViewBlock) -> bool:
        if block.source == "compactor":
            return not is_standing(block)
        return id(block) in retained or not block.compactable

    return keeps


def _window(messages: Sequence[ViewMessage], budget: int, settings: Json) -> int:
    """Return the index of the first message of the recent window: the newest exchange, and more as far as it fits."""
    start = tail_start(messages)
    tokens = sum(message.tokens for message in messages[start:])
    turns = {message.turn for message in messages[start:]}
    while start > 0:
        before = start - 1
        while before > 0 and any(is_result(block) for block in messages[before].blocks):
            before -= 1
        added = sum(message.tokens for message in messages[before:start])
        wide = len(turns | {messages[before].turn}) > settings["turns"]
        if (wide and tokens >= settings["tokens"]) or tokens + added > settings["share"] * budget:
            break
        start = before
        tokens = tokens + added
        turns = turns | {messages[before].turn}
    return start


def _worthwhile(
    candidates: Sequence[Region], messages: Sequence[ViewMessage], situation: Situation, *, settings: Json, least: int
) -> list[Region]:
    """Return the regions of at least `least` tokens that a summary makes shorter and that have not failed before."""
    failed = {name for name, _revision in situation.tried}
    return [
        region
        for region in candidates
        if region.tokens >= max(least, 2 * summary_size(region.tokens, settings["max_tokens"]))
        and region_key(messages[region.start].id, messages[region.end - 1].id) not in failed
    ]


def _rank(region: Region, settings: Json) -> int:
    if region.largest > settings["first_over"]:
        return 0
    return 1 if region.largest > settings["last_under"] else 2


def _region_request(messages: Sequence[ViewMessage], region: Region, settings: Json) -> SummaryWanted:
    return SummaryWanted(
        stage=REGION_STAGE,
        trigger="auto",
        message=messages[region.start].id,
        last=messages[region.end - 1].id,
        **request_fields(settings, summary_size(region.tokens, settings["max_tokens"])),
    )


def _mark(history: Sequence[ViewMessage], request: SummaryWanted) -> str:
    """Return the mark of a region, with its first and last turn, counted from 1.

    Replies determine the turns: a user message may have moved to another turn.
    """
    turns = list(dict.fromkeys(message.turn for message in history if message.turn))
    covered = [message for message in history if request.message <= message.id <= request.last]
    within = [message.turn for message in covered if message.role == "assistant"] or [
        message.turn for message in covered
    ]
    numbers = [turns.index(turn) + 1 for turn in within if turn in turns] or [0]
    return f"{REGION}{min(numbers)}-{max(numbers)}]"


def _without_notes(
    messages: Sequence[ViewMessage], start: int, end: int, pinned: Sequence[ViewBlock]
) -> Iterator[Edit]:
    """Yield edits that remove the state and path of an earlier summary outside the region.

    The newest message stays whole.
    """
    for index, message in enumerate(messages[:-1]):
        if start <= index < end or not any(is_standing(block) for block in message.blocks):
            continue
        blocks: list[Placed] = [block_of_edit(block, pinned) for block in message.blocks if not is_standing(block)]
        if blocks:
            yield Edit(kind="summarised", message=message.id, last=message.id, blocks=tuple(blocks))

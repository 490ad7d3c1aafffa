"""`summarize_regions`: runs of finished exchanges become a short summary each, the largest first. Pure.

A region is a run of whole exchanges in order: calls with their results, text beside calls, old reminders, hook notes
and mail. It ends where something must stay: the person's words, pins, the text of a reply that ended a turn, what was
summarised before. A message with results and words of the person ends its region: the results go, the words stay.

It refuses to touch the recent window (but for a view that is about to overflow), the newest exchange, and a region that
would not shrink, or has not shrunk when it was tried in this turn. Pins are computed anew each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from callboard.core.bus.mail import defused
from callboard.core.context.situation import Situation
from callboard.core.context.stages.summarizing import CALL, asked, summary_size
from callboard.core.context.summary.folding import (
    REGION,
    is_standing,
    note,
    placed_again,
    render_state,
    standing_notes,
    tail_start,
    tokens_of,
    words_in,
)
from callboard.core.context.view.conversation import Conversation, calls_of, held, is_result, pins, result_text
from callboard.words.context import Block, Edit, Message, Placed, StateBlock, SummaryWanted
from callboard.words.values import Json

NAME = "summarize_regions"

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
"""Shares of the budget: a batch begins over `soft`, if there is `at_least` to summarise, and goes on down to `down_to`;
over `hard` what is in the recent window goes too, until `spare` is free. The window is the larger of `turns` and
`tokens`, at most `share` of the budget. Regions with a result of over `first_over` characters come first, those with
none over `last_under` last. No region is longer than what `max_tokens` are a fifth of."""


class Region(NamedTuple):
    """Messages `start` to before `end` of a view."""

    start: int
    end: int
    tokens: int
    """What summarising takes away, before anything is put in its place."""
    largest: int
    """Characters of its largest result."""


def summarize_regions(view: Conversation, budget: int, situation: Situation, params: Json) -> SummaryWanted | None:
    """The next region to be summarised, if the view is over a threshold or a batch is under way."""
    given = {**REGIONS, **params}
    size, going = held(view), situation.batch == NAME
    if size <= given["down_to" if going else "soft"] * budget:
        return None
    messages = view.messages
    window, tail = _window(messages, budget, given), tail_start(messages)
    keeps, most = _keeper(messages), max(1_000, 5 * (given["max_tokens"] - 200))
    old = _worth(regions(messages[:window], keeps, most), messages, situation, given)
    if size > (1 - given["spare"] if going else given["hard"]) * budget:
        recent = _worth(regions(messages[:tail], keeps, most, start=window), messages, situation, given)
    elif going or sum(one.tokens for one in old) >= given["at_least"] * budget:
        recent = []
    else:
        return None
    for found in (old, recent):
        if found:
            best = min(found, key=lambda one: (_rank(one, given), -one.tokens))
            return _wanted(messages, best, given)
    return None


def regions(messages: Sequence[Message], keeps: Callable[[Block], bool], most: int, start: int = 0) -> list[Region]:
    """All regions from `start` on, in order, of at most `most` tokens where an exchange is not longer itself."""
    found: list[Region] = []
    open_: Region | None = None
    for unit in _units(messages, start, keeps):
        whole = unit.region
        if open_ and not unit.stays and open_.tokens + whole.tokens <= most:
            largest = max(open_.largest, whole.largest)
            open_ = Region(open_.start, whole.end, open_.tokens + whole.tokens, largest)
        else:
            found += [open_] if open_ else []
            open_ = None if unit.stays else whole
        if unit.closes and open_:
            found.append(open_)
            open_ = None
    return [*found, open_] if open_ else found


def region_edits(
    view: Conversation,
    wanted: SummaryWanted,
    text: str,
    state: StateBlock,
    transcript: str,
    history: Sequence[Message],
) -> list[Edit]:
    """The edits that put a summary in the place of a region. Empty: they would not make the view smaller.

    Words of the person in its last message stay behind it. The state and the path of the transcript stand beside the
    newest summary alone: where an older one has them, they go. `history`: the unreduced messages, by which turns count.
    """
    start, end = view.messages.span(wanted.message, wanted.last)
    covered = view.messages[start:end]
    if not covered or not text.strip():
        return []
    keeps, pinned = _keeper(view.messages), pins(view.messages)
    summary = note(f"{_mark(history or view.messages, wanted)}\n{defused(text.strip())}")
    notes = [note(one) for one in standing_notes(render_state(state), transcript)]
    stays = [placed_again(block, pinned) for message in covered for block in message.blocks if keeps(block)]
    blocks = [summary, *notes, *stays]
    edits = list(_without_notes(view.messages, start, end, pinned))
    was = [view.messages[index] for edit in edits for index in [view.messages.find(edit.message)] if index is not None]
    before = sum(message.tokens for message in (*covered, *was))
    if tokens_of([*blocks, *(block for edit in edits for block in edit.blocks)]) >= before:
        return []
    # The notes first: a message beside the region becomes one with its summary.
    first, last = covered[0].id, covered[-1].id
    return [*edits, Edit(kind="summarised", message=first, last=last, blocks=tuple(blocks), path=transcript)]


def failed_at(wanted: SummaryWanted, revision: int) -> tuple[str, int]:
    """How a summary that failed is remembered: a region by its ends, so that others are tried all the same."""
    return (_key(wanted.message, wanted.last), 0) if wanted.stage == NAME else (wanted.stage, revision)


def still_failed(tried: frozenset[tuple[str, int]]) -> frozenset[tuple[str, int]]:
    """What an edit elsewhere does not change: the regions that were tried in this turn and did not shrink."""
    return frozenset(one for one in tried if one[0].startswith(f"{NAME} "))


class _Unit(NamedTuple):
    """An exchange, or a message that stands alone."""

    region: Region
    stays: bool
    """It is no part of any region."""
    closes: bool
    """Something that stays follows its results."""


def _units(messages: Sequence[Message], start: int, keeps: Callable[[Block], bool]) -> Iterator[_Unit]:
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
        kept = [block for block in blocks if keeps(block)]
        beside = [block for block in unit[-1].blocks if not is_result(block)] if calls else []
        yield _Unit(
            whole,
            stays=_ends_turn(messages, at) or any(not any(block is one for one in beside) for block in kept),
            closes=bool(kept),
        )
        at = end


def _ends_turn(messages: Sequence[Message], at: int) -> bool:
    """A reply without calls, unless its turn goes on: it was cut, or a hook kept it going."""
    message = messages[at]
    if message.role != "assistant" or any(calls_of(message)):
        return False
    return at + 1 == len(messages) or messages[at + 1].turn != message.turn


def _keeper(messages: Sequence[Message]) -> Callable[[Block], bool]:
    """Whether a block stays when what stands around it is summarised."""
    pinned = pins(messages)
    stretch = [(message, block) for message in messages for block in message.blocks]
    kept = {id(block) for block in (*pinned, *words_in(stretch, messages[-1].turn, pinned))} if messages else set[int]()

    def keeps(block: Block) -> bool:
        if block.source == "compactor":
            return not is_standing(block)
        return id(block) in kept or not block.compactable

    return keeps


def _window(messages: Sequence[Message], budget: int, given: Json) -> int:
    """Index of the first message of the recent window: the newest exchange, and more as far as there is room."""
    start = tail_start(messages)
    tokens = sum(message.tokens for message in messages[start:])
    turns = {message.turn for message in messages[start:]}
    while start > 0:
        before = start - 1
        while before > 0 and any(is_result(block) for block in messages[before].blocks):
            before -= 1
        more = sum(message.tokens for message in messages[before:start])
        wide = len(turns | {messages[before].turn}) > given["turns"]
        if (wide and tokens >= given["tokens"]) or tokens + more > given["share"] * budget:
            break
        start, tokens, turns = before, tokens + more, turns | {messages[before].turn}
    return start


def _worth(found: Sequence[Region], messages: Sequence[Message], situation: Situation, given: Json) -> list[Region]:
    """Those that a summary makes shorter, and that have not failed to become so."""
    failed = {name for name, _revision in situation.tried}
    return [
        one
        for one in found
        if one.tokens >= 2 * summary_size(one.tokens, given["max_tokens"])
        and _key(messages[one.start].id, messages[one.end - 1].id) not in failed
    ]


def _rank(region: Region, given: Json) -> int:
    if region.largest > given["first_over"]:
        return 0
    return 1 if region.largest > given["last_under"] else 2


def _wanted(messages: Sequence[Message], region: Region, given: Json) -> SummaryWanted:
    return SummaryWanted(
        stage=NAME,
        trigger="auto",
        message=messages[region.start].id,
        last=messages[region.end - 1].id,
        **asked(given, summary_size(region.tokens, given["max_tokens"])),
    )


def _key(message: int, last: int) -> str:
    return f"{NAME} {message}-{last}"


def _mark(history: Sequence[Message], wanted: SummaryWanted) -> str:
    """Its first and last turn, counted from 1. Replies tell: a user message may have become another turn's."""
    turns = list(dict.fromkeys(message.turn for message in history if message.turn))
    covered = [message for message in history if wanted.message <= message.id <= wanted.last]
    within = [one.turn for one in covered if one.role == "assistant"] or [one.turn for one in covered]
    numbers = [turns.index(turn) + 1 for turn in within if turn in turns] or [0]
    return f"{REGION}{min(numbers)}-{max(numbers)}]"


def _without_notes(messages: Sequence[Message], start: int, end: int, pinned: Sequence[Block]) -> Iterator[Edit]:
    """Messages outside the region without the state and path of an earlier summary. The newest message stays whole."""
    for index, message in enumerate(messages[:-1]):
        if start <= index < end or not any(is_standing(block) for block in message.blocks):
            continue
        rest: list[Placed] = [placed_again(block, pinned) for block in message.blocks if not is_standing(block)]
        if rest:
            yield Edit(kind="summarised", message=message.id, last=message.id, blocks=tuple(rest))

"""Search for the cheapest edits of a session, knowing the whole session: when to clear or summarize, and what to keep.

A beam search over the steps, with knowledge of the content that each later step needs. It counts in the tokens and
units of the rehearsed service, under generous assumptions: every prefix is still cached after an edit, a summary keeps
every noted fact, and several ways of clearing are tried at every other step. `context_cost.py` compares `economic` with
the result.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from context_bill import OUTPUT, OVERHEAD, READ, WRITE
from context_player import reply_of
from context_session import Need, Session, Work

from callboard.adapters.models.rehearsal.tokens import block_tokens, output_tokens

BEAM = 32
"""Number of candidates in the beam."""
BUCKET = 2_500
"""If the views of two candidates differ by fewer tokens, only the cheaper candidate stays."""
AHEAD = 20
"""Number of later reads that count as the cost of a larger view."""
MARK = 33
"""Number of tokens of a cleared result."""
SUMMARY, NOTES, ASKING = 1_340, 60, 400
"""Numbers of tokens of a summary, of the text beside it, and of the request for it at the end of the conversation."""
NEVER = 10**9


class Item(NamedTuple):
    """Part of a view."""

    tokens: int
    result: bool
    mark: str
    """Content that a result shows; empty for none."""
    stays: bool = False
    """True if summaries leave the item unchanged."""
    path: str = ""
    """File that was read."""
    born: int = 0
    """Step that added the item."""


class Tail(NamedTuple):
    """Items since the last edit, newest first; diverging candidates share the earlier ones."""

    item: Item
    before: Tail | None


@dataclass(frozen=True)
class Way:
    """Candidate: a sequence of edits up to a step."""

    cost: float
    total: int
    """Number of tokens of the messages."""
    hit: int
    """Number of tokens of the cached prefix, including system prompt and tools."""
    old: tuple[Item, ...]
    new: Tail | None = None
    gone: frozenset[str] = frozenset()
    """Content that is no longer shown."""
    rereads: int = 0
    edits: tuple[str, ...] = ()

    def items(self) -> list[Item]:
        made: list[Item] = []
        at = self.new
        while at is not None:
            made.append(at.item)
            at = at.before
        return [*self.old, *reversed(made)]

    def added(self, *items: Item) -> Way:
        new, total = self.new, self.total
        for item in items:
            new, total = Tail(item, new), total + item.tokens
        return replace(self, new=new, total=total)


class Knowledge:
    """The content that a session needs, and the steps that need it."""

    def __init__(self, session: Session, foresight: bool) -> None:
        self.foresight = foresight
        self.works = session.works
        self.uses: dict[str, list[int]] = {}
        noted = {word for work in self.works for word in work.words.replace(".", " ").split() if "fact_" in word}
        self.needs: list[list[Need]] = []
        for step, work in enumerate(self.works):
            needs = [need for need in work.needs if need.mark not in noted]
            self.needs.append(needs)
            for need in needs:
                self.uses.setdefault(need.mark, []).append(step)
        self.touched: dict[str, list[int]] = {}
        for step, work in enumerate(self.works):
            if "src/" in work.input.get("path", ""):
                self.touched.setdefault(work.input["path"], []).append(step)
        self.shows = {id(need.again): need.mark for needs in self.needs for need in needs}

    def next_use(self, mark: str, step: int) -> int:
        """Return the first step at or after `step` that needs the item."""
        uses = self.uses.get(mark, [])
        at = bisect_right(uses, step - 1)
        return uses[at] if at < len(uses) else NEVER

    def is_dead(self, item: Item, step: int, soon: int) -> bool:
        """Return whether no step needs the item within `soon` steps; without foresight, whether no step used it in the
        last `soon`."""
        if self.foresight:
            return self.next_use(item.mark, step) > step + soon
        return self.idle(item, step) > soon

    def idle(self, item: Item, step: int) -> int:
        """Return the steps since the last known use; an item that is not a file counts as idle for four more."""
        if not item.path:
            return step - item.born + 4
        at = bisect_right(self.touched[item.path], step - 1)
        return step - (self.touched[item.path][at - 1] if at else item.born)

    def items(self, work: Work, step: int) -> list[Item]:
        """Return the items that a step adds to the view."""
        said = reply_of(work, "toolu_00000")
        spoken = Item(sum(block_tokens(block) for block in said), False, "")
        if not work.tool:
            return [spoken, Item(block_tokens({"type": "text", "text": work.prompt}), False, "", stays=True)]
        result = block_tokens({"type": "tool_result", "tool_use_id": "", "content": work.result})
        path = work.input["path"] if work.tool == "read_file" else ""
        return [spoken, Item(result, True, self.shows.get(id(work), ""), False, path, step)]


def cheapest(session: Session, *, foresight: bool) -> Way:
    """Return the cheapest candidate. `foresight`: the search also knows what later steps need."""
    known = Knowledge(session, foresight)
    first = Item(block_tokens({"type": "text", "text": session.first}), False, "", stays=True)
    ways = [Way(0.0, first.tokens, 0, (first,))]
    for step in range(len(known.works)):
        found = list(ways)
        if step % 2 and step > 4:
            found += [other for way in ways for other in _edits(way, known, step)]
        ways = _best([_stepped(way, known, step) for way in _best(found)])
    return min(ways, key=lambda way: way.cost)


def _stepped(way: Way, known: Knowledge, step: int) -> Way:
    for need in known.needs[step]:
        if need.mark in way.gone:
            way = replace(_asked(way, known, need.again, step), gone=way.gone - {need.mark}, rereads=way.rereads + 1)
    return _asked(way, known, known.works[step], step)


def _asked(way: Way, known: Knowledge, work: Work, step: int) -> Way:
    """Return the candidate after one request and its result."""
    whole = OVERHEAD + way.total
    price = READ * way.hit + WRITE * (whole - way.hit) + OUTPUT * output_tokens(reply_of(work, "toolu_00000"))
    return replace(way, cost=way.cost + price, hit=whole).added(*known.items(work, step))


def _edits(way: Way, known: Knowledge, step: int) -> Iterator[Way]:
    items = way.items()
    for soon in (8, 20, 60) if known.foresight else (6, 12, 30):
        for horizon in (8, 20, 50):
            cleared = _cleared(way, items, known, (step, soon, horizon))
            if cleared is not None:
                yield cleared
    for soon in (4, 12) if known.foresight else (6, 12):
        summarised = _summarised(way, items, known, (step, soon))
        if summarised is not None:
            yield summarised


def _cleared(way: Way, items: Sequence[Item], known: Knowledge, when: tuple[int, int, int]) -> Way | None:
    """Clear all results that are not needed soon, as far back as it pays within the horizon."""
    step, soon, horizon = when
    best, cut, behind, frees = 0.0, -1, 0, 0
    for place in range(len(items) - 2, -1, -1):
        item = items[place]
        if item.result and item.tokens > 2 * MARK and known.is_dead(item, step, soon):
            frees += item.tokens - MARK
            behind += MARK
            worth = READ * frees * horizon - (WRITE - READ) * behind
            if worth > best:
                best, cut = worth, place
        else:
            behind += item.tokens
    if cut < 0:
        return None
    kept: list[Item] = list(items[:cut])
    gone = set(way.gone)
    for place, item in enumerate(items[cut:], start=cut):
        dead = item.result and item.tokens > 2 * MARK and place < len(items) - 1
        if dead and known.is_dead(item, step, soon):
            gone.add(item.mark)
            item = Item(MARK, True, "")
        kept.append(item)
    hit = min(way.hit, OVERHEAD + sum(item.tokens for item in items[:cut]))
    total = sum(item.tokens for item in kept)
    return replace(
        way, total=total, hit=hit, old=tuple(kept), new=None, gone=frozenset(gone), edits=(*way.edits, f"{step} clear")
    )


def _summarised(way: Way, items: Sequence[Item], known: Knowledge, when: tuple[int, int]) -> Way | None:
    """Summarize up to the oldest result that is needed soon, and clear unneeded results in the rest."""
    step, soon = when
    start = len(items) - 2
    for place in range(len(items) - 1, -1, -1):
        item = items[place]
        if item.result and item.mark and not known.is_dead(item, step, soon):
            start = min(start, place - 1)
        if len(items) - place > 40:
            break
    folded = [item for item in items[:start] if not item.stays]
    if sum(item.tokens for item in folded) < 2 * SUMMARY:
        return None
    sent = READ * way.hit + OVERHEAD + way.total - way.hit + ASKING + OUTPUT * SUMMARY
    gone = set(way.gone) | {item.mark for item in folded if item.result and item.mark}
    rest: list[Item] = []
    for place, item in enumerate(items[start:], start=start):
        large = item.result and item.tokens > 2 * MARK and place < len(items) - 1
        if large and known.is_dead(item, step, 20 if known.foresight else soon):
            gone.add(item.mark)
            item = Item(MARK, True, "")
        rest.append(item)
    kept = [*(item for item in items[:start] if item.stays), Item(SUMMARY + NOTES, False, ""), *rest]
    total = sum(item.tokens for item in kept)
    return replace(
        way,
        cost=way.cost + sent,
        total=total,
        hit=OVERHEAD,
        old=tuple(kept),
        new=None,
        gone=frozenset(gone),
        edits=(*way.edits, f"{step} summary"),
    )


def _best(ways: Sequence[Way]) -> list[Way]:
    """Return the candidates that stay in the beam."""
    found: dict[tuple[int, int], Way] = {}
    for way in ways:
        bucket = (way.total // BUCKET, (OVERHEAD + way.total - way.hit) // BUCKET)
        if bucket not in found or way.cost < found[bucket].cost:
            found[bucket] = way
    ranked = sorted(found.values(), key=lambda way: way.cost + WRITE * (way.total - way.hit) + READ * AHEAD * way.total)
    return ranked[:BEAM]

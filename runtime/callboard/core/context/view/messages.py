"""The messages of a view as an immutable sequence in chunks: a step costs the same at message 50 and at 5,000. Pure.

A step changes the end only. All that is older stands in full chunks, each with its messages' bytes joined and its sums
made once; the newest messages stand one by one in the tail. So growing, measuring and sending walk the tail and the
list of chunks, never the messages. An edit makes the chunks anew that it touches. It refuses nothing: `laws` does.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import accumulate, chain, pairwise
from typing import Any, NamedTuple, overload

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from callboard.core.context.view.blocks import is_result
from callboard.core.context.view.sending import wire_for, writers
from callboard.words.context import Block, Message, Source

FULL = 32
"""Messages of a chunk. The tail holds as many, and up to twice as many before a chunk is cut off it."""
SMALL = 40
"""A result of up to so many tokens (a text of 96 bytes) is not worth an edit: its mark counts about as much."""


class _Sums(NamedTuple):
    """Of some messages: tokens, those of results, and those of results of more than `SMALL`."""

    tokens: int = 0
    results: int = 0
    bulk: int = 0


_NONE = _Sums()


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Some messages in a row, and what there is to know of them."""

    messages: tuple[Message, ...]
    wire: bytes
    """Their bytes, joined by commas."""
    sums: _Sums
    by_source: Mapping[Source, int]
    """Tokens of the blocks of a source."""
    pinned: tuple[Block, ...]
    bulky: tuple[int, ...]
    """Places of the messages that hold results of more than `SMALL` tokens."""
    writers: frozenset[str]
    """Whose blocks are in them that are not sent to everybody (`sending`)."""
    others: dict[str, bytes] = field(default_factory=dict[str, bytes], compare=False, repr=False)
    """The bytes for the newest reader that is not sent all of it: made once, since messages never change."""

    def wire_for(self, reader: str) -> bytes:
        """Their bytes as `reader` is sent them, joined by commas; empty when nothing is left."""
        if not reader or not self.writers - {reader}:
            return self.wire
        if reader not in self.others:
            self.others.clear()
            self.others[reader] = b",".join(wire for one in self.messages if (wire := wire_for(one, reader)))
        return self.others[reader]


@dataclass(slots=True, eq=False, repr=False)  # nothing sets a field again; `frozen` would make each step pay for that
class Messages(Sequence[Message]):
    """Messages in the order of their ids, which rise. Make one with `Messages.of`, and grow it.

    Equal to any other `Messages` or tuple of the same messages. An index costs a bisection, a slice what it holds.
    """

    _chunks: tuple[_Chunk, ...] = ()
    _starts: tuple[int, ...] = (0,)
    """The index at which each chunk begins, and the tail behind them."""
    _tail: tuple[Message, ...] = ()
    """Empty only where there are no messages at all."""
    _before: _Sums = _NONE
    """Of all but the newest message, which may still grow."""

    @classmethod
    def of(cls, messages: Iterable[Message]) -> Messages:
        """These messages."""
        return messages if isinstance(messages, Messages) else _built((), tuple(messages))

    # What it knows, at no cost

    @property
    def tokens(self) -> int:
        """The sum of all estimates."""
        return self._before.tokens + self._tail[-1].tokens if self._tail else 0

    @property
    def result_tokens(self) -> int:
        """Tokens of all results: no clearing or persisting can save more. Ask this before you look for some."""
        return self._all().results

    @property
    def bulk(self) -> int:
        """Tokens of the results of more than `SMALL` tokens: what a stage that heeds nothing smaller can save at most.

        Cleared marks and short answers, of which a long session has thousands, do not count here. Where it is less
        than what a stage must save, there is nothing to do and nothing to search; else `bulky` says where they are.
        """
        return self._all().bulk

    @property
    def last(self) -> Message | None:
        """The newest message."""
        return self._tail[-1] if self._tail else None

    # What it knows at the cost of its chunks and tail

    def tokens_of(self, source: Source) -> int:
        """Tokens of all blocks of a source, such as `compactor`: at most what the summaries hold."""
        old = sum(chunk.by_source.get(source, 0) for chunk in self._chunks)
        return old + sum(block.tokens for one in self._tail for block in one.blocks if block.source == source)

    def pinned(self) -> list[Block]:
        """All blocks that carry a pin, in order (see `laws.pins` for those that count)."""
        old = [block for chunk in self._chunks for block in chunk.pinned]
        return old + [block for one in self._tail for block in one.blocks if block.pinned]

    def bulky(self, *, newest_first: bool = False) -> Iterator[int]:
        """Indexes of the messages that hold results of more than `SMALL` tokens; other chunks are not looked into."""
        places = [chunk.bulky for chunk in self._chunks]
        places.append(_bulky(self._tail))
        pairs = list(zip(self._starts, places, strict=True))
        for start, found in reversed(pairs) if newest_first else pairs:
            for place in reversed(found) if newest_first else found:
                yield start + place

    def pieces(self, replaced: Mapping[int, bytes] | None = None, reader: str = "") -> list[bytes]:
        """The bytes of all messages as the model `reader` is sent them (`sending`; empty: as they stand), in pieces to
        be joined by commas; those of an index in `replaced` read so instead.

        A piece is one message or, of those long past, several joined. The newest `FULL` stand alone.
        """
        groups: dict[int, dict[int, bytes]] = {len(self._chunks): {}}
        for index, wire in (replaced or {}).items():
            groups.setdefault(self._chunk_at(index), {})[index] = wire
        made = [chunk.wire_for(reader) for chunk in self._chunks]
        for number in sorted(groups, reverse=True):  # from the end: what stands before keeps its place
            whole = self._of_chunk(number)
            alone = [wire_for(one, reader, last=one is self.last) if one.private else one.wire for one in whole]
            for index, wire in groups[number].items():
                alone[index - self._starts[number]] = wire
            made[number : number + 1] = alone
        return [wire for wire in made if wire]

    # Look-ups by id: ids rise

    def find(self, id: int) -> int | None:
        """The index of the message with this id."""
        index = self._below(id)
        return index if index < len(self) and self[index].id == id else None

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Indexes (from, to before) of the messages with ids from `first` to `last`; both alike where there is none."""
        start = self._below(first)
        return start, max(start, self._below(last + 1))

    # Growing and changing: each returns another sequence, which shares all chunks that are not touched

    def append(self, message: Message) -> Messages:
        """With one more at the end. Its id is higher than all others."""
        tail, before = (*self._tail, message), self._all()
        if len(tail) < 2 * FULL:
            return Messages(self._chunks, self._starts, tail, before)
        chunks = (*self._chunks, _chunk(tail[:FULL]))
        return Messages(chunks, (*self._starts, self._starts[-1] + FULL), tail[FULL:], before)

    def with_last(self, message: Message) -> Messages:
        """With the newest message exchanged; there must be one."""
        return Messages(self._chunks, self._starts, (*self._tail[:-1], message), self._before)

    def changed(self, instead: Mapping[int, Message]) -> Messages:
        """With other messages at these indexes, many at once."""
        if not instead:
            return self
        by_chunk: dict[int, dict[int, Message]] = {}
        for index, message in instead.items():
            by_chunk.setdefault(self._chunk_at(index), {})[index] = message
        chunks = list(self._chunks)
        tail = self._tail
        for number, group in by_chunk.items():
            old = chunks[number].messages if number < len(chunks) else tail
            start = self._starts[number]
            made = tuple(group.get(start + place, one) for place, one in enumerate(old))
            if number < len(chunks):
                chunks[number] = _chunk(made)
            else:
                tail = made
        return _whole(tuple(chunks), tail)

    def spliced(self, start: int, stop: int, messages: Sequence[Message]) -> Messages:
        """With `messages` in place of those from index `start` to before `stop`."""
        first, end = self._chunk_at(start), self._chunk_at(max(start, stop - 1))
        before = self._of_chunk(first)[: start - self._starts[first]]
        after = self._of_chunk(end)[stop - self._starts[end] :]
        middle = (*before, *messages, *after)
        kept = self._chunks[:first]
        if end == len(self._chunks):
            return _built(kept, middle)
        later = self._chunks[end + 1 :]
        if len(middle) < FULL // 2:  # too small for a chunk of its own: it joins the next
            middle += later[0].messages if later else self._tail
            if not later:
                return _built(kept, middle)
            later = later[1:]
        return _whole((*kept, *_cut(middle), *later), self._tail)

    # A sequence

    def __bool__(self) -> bool:
        return bool(self._tail)

    def __len__(self) -> int:
        return self._starts[-1] + len(self._tail)

    def __iter__(self) -> Iterator[Message]:
        return chain(chain.from_iterable(chunk.messages for chunk in self._chunks), self._tail)

    def __reversed__(self) -> Iterator[Message]:
        yield from reversed(self._tail)
        for chunk in reversed(self._chunks):
            yield from reversed(chunk.messages)

    @overload
    def __getitem__(self, index: int) -> Message: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Message, ...]: ...

    def __getitem__(self, index: int | slice) -> Message | tuple[Message, ...]:
        if isinstance(index, slice):
            return self._slice(index)
        if 0 < -index <= len(self._tail):
            return self._tail[index]
        place = index if index >= 0 else len(self) + index
        if not 0 <= place < len(self):
            raise IndexError(f"there is no message {index} of {len(self)}")
        number = self._chunk_at(place)
        return self._of_chunk(number)[place - self._starts[number]]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Messages):
            if self._chunks is other._chunks and self._tail is other._tail:
                return True
            same = len(self) == len(other) and self.tokens == other.tokens
            return same and tuple(self) == tuple(other)
        return tuple(self) == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"Messages.of({tuple(self)!r})"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """In a snapshot it is the list of its messages."""
        return core_schema.no_info_after_validator_function(
            Messages.of,
            handler(tuple[Message, ...]),
            serialization=core_schema.plain_serializer_function_ser_schema(
                tuple[Message, ...], return_schema=handler(tuple[Message, ...])
            ),
        )

    # Inside

    def _all(self) -> _Sums:
        return _plus(self._before, self._tail[-1]) if self._tail else self._before

    def _chunk_at(self, index: int) -> int:
        """The number of the chunk that holds an index; that of the tail is the number of chunks."""
        return bisect_right(self._starts, index) - 1

    def _of_chunk(self, number: int) -> tuple[Message, ...]:
        return self._chunks[number].messages if number < len(self._chunks) else self._tail

    def _below(self, id: int) -> int:
        """How many messages have a lower id."""
        number = bisect_left(self._chunks, id, key=lambda chunk: chunk.messages[-1].id)
        return self._starts[number] + bisect_left(self._of_chunk(number), id, key=lambda one: one.id)

    def _slice(self, wanted: slice) -> tuple[Message, ...]:
        start, stop, step = wanted.indices(len(self))
        if step != 1:
            return tuple(self)[wanted]
        if start >= stop:
            return ()
        if start >= self._starts[-1]:
            return self._tail[start - self._starts[-1] : stop - self._starts[-1]]
        first, last = self._chunk_at(start), self._chunk_at(stop - 1)
        found = tuple(chain.from_iterable(self._of_chunk(number) for number in range(first, last + 1)))
        return found[start - self._starts[first] : stop - self._starts[first]]


def _plus(sums: _Sums, message: Message) -> _Sums:
    results = bulk = 0
    for block in message.blocks:
        if is_result(block):
            results += block.tokens
            bulk += block.tokens if block.tokens > SMALL else 0
    return _Sums(sums.tokens + message.tokens, sums.results + results, sums.bulk + bulk)


def _bulky(messages: Sequence[Message]) -> tuple[int, ...]:
    return tuple(
        place
        for place, one in enumerate(messages)
        if any(block.tokens > SMALL and is_result(block) for block in one.blocks)
    )


def _chunk(messages: tuple[Message, ...]) -> _Chunk:
    by_source: dict[Source, int] = {}
    for block in (block for one in messages for block in one.blocks):
        by_source[block.source] = by_source.get(block.source, 0) + block.tokens
    return _Chunk(
        messages,
        b",".join(one.wire for one in messages),
        reduce(_plus, messages, _NONE),
        by_source,
        tuple(block for one in messages for block in one.blocks if block.pinned),
        _bulky(messages),
        frozenset[str]().union(*map(writers, messages)),
    )


def _cut(messages: Sequence[Message]) -> tuple[_Chunk, ...]:
    """Chunks of about one size, none fuller than `FULL`, and none half empty where there are enough messages."""
    count = -(-len(messages) // FULL)
    ends = [len(messages) * number // count for number in range(count + 1)] if count else [0]
    return tuple(_chunk(tuple(messages[a:b])) for a, b in pairwise(ends))


def _whole(chunks: tuple[_Chunk, ...], tail: tuple[Message, ...]) -> Messages:
    starts = tuple(accumulate((len(chunk.messages) for chunk in chunks), initial=0))
    sums = [chunk.sums for chunk in chunks]
    old = _Sums(sum(one.tokens for one in sums), sum(one.results for one in sums), sum(one.bulk for one in sums))
    return Messages(chunks, starts, tail, reduce(_plus, tail[:-1], old))


def _built(chunks: tuple[_Chunk, ...], rest: tuple[Message, ...]) -> Messages:
    """These chunks, and the rest cut into chunks and a tail that is long enough, if there are so many."""
    while chunks and len(rest) < FULL:
        chunks, rest = chunks[:-1], chunks[-1].messages + rest
    surplus = max(0, len(rest) - FULL) // FULL * FULL
    return _whole((*chunks, *_cut(rest[:surplus])), rest[surplus:])

"""Blocks, messages, and the messages of a view as an immutable sequence in chunks. Pure.

A block's `data` never changes, and a message never grows in place. Each change makes a new message with its own tokens,
and its bytes are made once, at the first request that contains it.

A step costs the same at message 50 and at message 5,000. It changes only the end: older messages are in full chunks,
each with sums and joined bytes that are computed once; the newest messages are single, in the tail. Growing, measuring
and sending read the tail and the list of chunks, never all messages. An edit builds only the chunks that it touches.
Nothing is refused here: `invariants` does that.

Requests leave out two things, which the journal and the view keep:

- Thinking of another model. A service accepts thinking only from the model that signed it, which each thinking block
  names (`ViewBlock.by`). The same reader receives the same bytes at every call, so that its cached prefix is kept.
- A call of the service's own tools without a result, once a user message follows. The service paused during the call,
  the reply was abandoned, and the service would refuse the history from then on. Messages with calls of this runtime's
  tools are not changed: the service may still be working on such a reply.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import accumulate, chain, pairwise
from operator import attrgetter
from typing import Any, Literal, NamedTuple, cast, overload

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from callboard.core.context.view.tokens import estimate_block
from callboard.types.lazy_dataclass import dataclass
from callboard.types.messages import Placed, Source, ViewBlock, ViewMessage, serialise
from callboard.types.records import Json


def make_message(id: int, role: Literal["user", "assistant"], blocks: tuple[ViewBlock, ...], turn: str) -> ViewMessage:
    """Make a message from these blocks."""
    tokens = 0
    private = False
    for block in blocks:
        tokens += block.tokens
        private = private or bool(block.by) or is_service_call(block)
    return ViewMessage(id, role, blocks, tokens, turn, private)


def make_block(
    data: Json, source: Source, at: float, *, pinned: bool = False, compactable: bool = True, by: str = ""
) -> ViewBlock:
    """Make a block with its token estimate. `by`: the model that wrote it; kept only for thinking."""
    return ViewBlock(data, source, estimate_block(data), at, pinned, compactable, by if is_thinking(data) else "")


def is_call(block: ViewBlock) -> bool:
    """Return True for a call of one of the runtime's tools."""
    return block.data.get("type") == "tool_use"


def images_of(block: ViewBlock) -> Iterator[Json]:
    """Yield the images in this block, or the block itself."""
    if block.data.get("type") == "image":
        yield block.data
    content = block.data.get("content")
    parts = cast("list[Json]", content) if isinstance(content, list) else []
    yield from (part for part in parts if part.get("type") == "image")


def is_private(block: ViewBlock) -> bool:
    """Return True if the block is not sent to every model (`wire_for`)."""
    return bool(block.by) or is_service_call(block)


def is_service_call(block: ViewBlock) -> bool:
    """Return True for a call of one of the service's own tools."""
    return block.data.get("type") in ("server_tool_use", "mcp_tool_use")


def is_thinking(data: Json) -> bool:
    """Return True for a block that is sent back only to the model that signed it."""
    return data.get("type") in ("thinking", "redacted_thinking")


def is_unsigned(data: Json) -> bool:
    """Return True for thinking without a signature, as some gateways send it."""
    return data.get("type") == "thinking" and not data.get("signature")


def placed_block(item: Placed, at: float, *, pinned: bool) -> ViewBlock:
    """Return the block that an event carries."""
    return make_block(item.data, item.source, at, pinned=pinned, compactable=item.compactable, by=item.by)


def append_blocks(message: ViewMessage, blocks: tuple[ViewBlock, ...], turn: str) -> ViewMessage:
    """Return a message with more blocks after its own. New results are moved up, after the existing results."""
    whole = (*message.blocks, *blocks)
    ordered = results_first(whole)
    if ordered != whole:
        return make_message(message.id, message.role, ordered, turn or message.turn)
    tokens = message.tokens + sum(block.tokens for block in blocks)
    private = message.private or any(map(is_private, blocks))
    return ViewMessage(message.id, message.role, whole, tokens, turn or message.turn, private)


def results_first(blocks: tuple[ViewBlock, ...]) -> tuple[ViewBlock, ...]:
    """Return results, then the rest.

    Stable: an existing result never changes its index, so an edit keeps its target.
    """
    results = [block for block in blocks if block.data.get("type") == "tool_result"] if len(blocks) > 1 else []
    if not results or len(results) == len(blocks):
        return blocks
    return (*results, *(block for block in blocks if not is_result(block)))


def is_result(block: ViewBlock) -> bool:
    """Return True for the result of a call."""
    return block.data.get("type") == "tool_result"


def is_empty(data: Json) -> bool:
    """Return True for a text block without text: the API rejects it."""
    return data.get("type") == "text" and not str(data.get("text", "")).strip()


def calls_of(message: ViewMessage) -> Iterator[Json]:
    """Yield the calls in a message."""
    return (block.data for block in message.blocks if block.data.get("type") == "tool_use")


def result_text(block: ViewBlock) -> str:
    """Return all text of a result."""
    content = block.data.get("content")
    if isinstance(content, str):
        return content
    parts = cast("list[Json]", content) if isinstance(content, list) else []
    return "\n".join(str(part.get("text", "")) for part in parts if part.get("type") == "text")


def is_plain(block: ViewBlock) -> bool:
    """Return True for a result that contains only text."""
    content = block.data.get("content")
    parts = cast("list[Json]", content) if isinstance(content, list) else []
    return isinstance(content, str) or (bool(parts) and all(part.get("type") == "text" for part in parts))


UNANSWERED = ""
"""Entry in the `writers` of a message for a service call without a result, which is sent to no model."""


def writers(message: ViewMessage) -> frozenset[str]:
    """Return the writers of blocks in a message that are not sent to every model. Empty for nearly all messages."""
    if not message.private:
        return frozenset()
    authors = {block.by for block in message.blocks if block.by}
    return frozenset({*authors, UNANSWERED}) if _unanswered(message) else frozenset(authors)


def wire_for(message: ViewMessage, reader: str, *, last: bool = False) -> bytes:
    """Return the message's bytes for `reader` (empty: all of them); nothing if no block is left.

    `last`: the message ends the conversation and is sent back unchanged, so that the service can continue it.
    """
    if not reader or not message.private:
        return message.wire
    open_calls = frozenset[str]() if last else _unanswered(message)
    if not open_calls and all(block.by in ("", reader) for block in message.blocks):
        return message.wire
    visible = tuple(block for block in message.blocks if _is_sent(block, reader, open_calls))
    return serialise(message.role, visible) if visible else b""


def _is_sent(block: ViewBlock, reader: str, open_calls: frozenset[str]) -> bool:
    if block.by and block.by != reader:
        return False
    return not open_calls or not is_service_call(block) or str(block.data.get("id")) not in open_calls


def _unanswered(message: ViewMessage) -> frozenset[str]:
    """Return the ids of the service's own calls in the message that have no result there."""
    if not any(map(is_service_call, message.blocks)) or any(map(is_call, message.blocks)):
        return frozenset()
    call_ids = {str(block.data.get("id")) for block in message.blocks if is_service_call(block)}
    return frozenset(call_ids - {str(block.data.get("tool_use_id")) for block in message.blocks})


FULL = 32
"""Messages in a chunk. The tail holds at least as many, and up to twice as many before a chunk is cut off."""
SMALL = 40
"""Maximum tokens of a result (96 bytes of text) that is not worth an edit: its mark would be about as large."""


class _Sums(NamedTuple):
    """Sums over some messages: tokens, tokens of results, those of results with more than `SMALL`, and images."""

    tokens: int = 0
    results: int = 0
    bulk: int = 0
    images: int = 0

    def plus(self, messages: Iterable[ViewMessage]) -> _Sums:
        """Return the sums with those over more messages."""
        tokens, results, bulk, images = self
        for message in messages:
            tokens += message.tokens
            for block in message.blocks:
                kind = block.data["type"]
                if kind == "tool_result":
                    results += block.tokens
                    bulk += block.tokens if block.tokens > SMALL else 0
                if kind == "image" or not isinstance(block.data.get("content", ""), str):
                    images += sum(1 for _ in images_of(block))
        return _Sums(tokens, results, bulk, images)


_NONE = _Sums()
_ID = attrgetter("id")
_LAST = attrgetter("last_id")


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Consecutive messages and their precomputed values."""

    messages: tuple[ViewMessage, ...]
    last_id: int
    """Id of the last message."""
    sums: _Sums
    by_source: Mapping[Source, int]
    """Tokens of the blocks of each source."""
    pinned: tuple[ViewBlock, ...]
    bulky: tuple[int, ...]
    """Indexes of the messages with results of more than `SMALL` tokens."""
    writers: frozenset[str]
    """Writers of blocks in the messages that are not sent to every model."""
    sent: dict[str, bytes] = field(default_factory=dict[str, bytes], compare=False, repr=False)
    """Bytes of all of the chunk (for the reader ""), and those for the newest reader that does not get all of it.

    Computed once, since messages never change."""

    def wire_for(self, reader: str) -> bytes:
        """Return the messages' bytes for `reader`, joined by commas; empty if nothing is left."""
        if not self.writers - {reader}:
            reader = ""
        if reader not in self.sent:
            for other in [name for name in self.sent if name and reader]:
                del self.sent[other]
            self.sent[reader] = b",".join(wire for message in self.messages if (wire := wire_for(message, reader)))
        return self.sent[reader]


@dataclass(frozen=True, slots=True)
class SavedMessage:
    """Message in a snapshot, without what follows from its blocks."""

    id: int
    role: Literal["user", "assistant"]
    blocks: tuple[ViewBlock, ...]
    turn: str = ""


def _saved(messages: Messages) -> tuple[SavedMessage, ...]:
    return tuple(SavedMessage(message.id, message.role, message.blocks, message.turn) for message in messages)


def _restored(saved: Iterable[SavedMessage]) -> Messages:
    return Messages.of(make_message(message.id, message.role, message.blocks, message.turn) for message in saved)


@dataclass(slots=True, eq=False, repr=False)  # no field is set again; `frozen` would cost time at each step
class Messages(Sequence[ViewMessage]):
    """Messages in ascending order of their ids. Create with `Messages.of`, then grow.

    Equal to any other `Messages` or tuple of the same messages. An index costs a bisection, a slice its length.
    """

    _chunks: tuple[_Chunk, ...] = ()
    _starts: tuple[int, ...] = (0,)
    """Index at which each chunk begins, and the index of the tail."""
    _tail: tuple[ViewMessage, ...] = ()
    """The newest messages. Empty only if there are no messages at all."""
    _before: _Sums = _NONE
    """Sums of all but the newest message, which may still grow."""

    @classmethod
    def of(cls, messages: Iterable[ViewMessage]) -> Messages:
        """Create the sequence of these messages."""
        return messages if isinstance(messages, Messages) else _built((), tuple(messages))

    # Values available at no cost

    @property
    def tokens(self) -> int:
        """Return the sum of all estimates."""
        return self._before.tokens + self._tail[-1].tokens if self._tail else 0

    @property
    def result_tokens(self) -> int:
        """Return the tokens of all results: no clearing or persisting can save more.

        Check this before searching for results.
        """
        return self._all().results

    @property
    def bulk(self) -> int:
        """Return the tokens of the results of more than `SMALL` tokens.

        A stage that skips smaller results can save no more than that. Cleared marks and short answers, of which a long
        session has thousands, do not count here. If it is less than a stage must save, no search is needed; otherwise
        `bulky` lists the messages.
        """
        return self._all().bulk

    @property
    def images(self) -> int:
        """Return the number of images."""
        return self._all().images

    @property
    def last(self) -> ViewMessage | None:
        """Return the newest message."""
        return self._tail[-1] if self._tail else None

    # Values that cost a walk over the chunks and the tail

    def tokens_of(self, source: Source) -> int:
        """Return the tokens of all blocks of a source. For `compactor`, this is an upper bound for the summaries."""
        old = sum(chunk.by_source.get(source, 0) for chunk in self._chunks)
        return old + sum(block.tokens for message in self._tail for block in message.blocks if block.source == source)

    def pinned_blocks(self) -> list[ViewBlock]:
        """Return all blocks with a pin, in order (`invariants.pins` returns the pins that count)."""
        old = [block for chunk in self._chunks for block in chunk.pinned]
        return old + [block for message in self._tail for block in message.blocks if block.pinned]

    def bulky(self, *, newest_first: bool = False) -> Iterator[int]:
        """Yield the indexes of the messages with results of more than `SMALL` tokens.

        Chunks without them are skipped.
        """
        places = [chunk.bulky for chunk in self._chunks]
        places.append(_bulky(self._tail))
        pairs = list(zip(self._starts, places, strict=True))
        for start, found_places in reversed(pairs) if newest_first else pairs:
            for place in reversed(found_places) if newest_first else found_places:
                yield start + place

    def pieces(self, replaced: Mapping[int, bytes] | None = None, reader: str = "") -> list[bytes]:
        """Return the bytes of all messages for the model `reader`, in pieces to be joined by commas.

        `reader`: as for `wire_for`; empty: unchanged. `replaced`: bytes to use instead, by index.

        A piece is one message or, for old messages, several joined. The newest `FULL` are separate pieces.
        """
        groups: dict[int, dict[int, bytes]] = {len(self._chunks): {}}
        for index, wire in (replaced or {}).items():
            groups.setdefault(self._chunk_at(index), {})[index] = wire
        made = [chunk.wire_for(reader) for chunk in self._chunks]
        for number in sorted(groups, reverse=True):  # from the end, so that earlier indexes stay valid
            whole = self._of_chunk(number)
            alone = [
                wire_for(message, reader, last=message is self.last)
                if message.private
                else message.sent or message.wire
                for message in whole
            ]
            for index, wire in groups[number].items():
                alone[index - self._starts[number]] = wire
            made[number : number + 1] = alone
        return [wire for wire in made if wire]

    # Look-ups by id, in ascending order

    def find(self, id: int) -> int | None:
        """Return the index of the message with this id."""
        index = self._below(id)
        return index if index < len(self) and self[index].id == id else None

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Return the indexes (start, end) of the messages with ids from `first` to `last`; equal if there are none."""
        start = self._below(first)
        return start, max(start, self._below(last + 1))

    # Growing and changing: each method returns another sequence that shares all unchanged chunks

    def append(self, message: ViewMessage) -> Messages:
        """Return the messages with one more at the end. Its id must be higher than all others."""
        tail = (*self._tail, message)
        before = self._all()
        if len(tail) < 2 * FULL:
            return Messages(self._chunks, self._starts, tail, before)
        chunks = (*self._chunks, _chunk(tail[:FULL]))
        return Messages(chunks, (*self._starts, self._starts[-1] + FULL), tail[FULL:], before)

    def with_last(self, message: ViewMessage) -> Messages:
        """Return the messages with the newest one replaced; there must be one."""
        return Messages(self._chunks, self._starts, (*self._tail[:-1], message), self._before)

    def with_replaced(self, instead: Mapping[int, ViewMessage]) -> Messages:
        """Return the messages with those at these indexes replaced, many at once."""
        if not instead:
            return self
        by_chunk: dict[int, dict[int, ViewMessage]] = {}
        for index, message in instead.items():
            by_chunk.setdefault(self._chunk_at(index), {})[index] = message
        chunks = list(self._chunks)
        tail = self._tail
        for number, group in by_chunk.items():
            old = chunks[number].messages if number < len(chunks) else tail
            start = self._starts[number]
            made = tuple(group.get(start + place, message) for place, message in enumerate(old))
            if number < len(chunks):
                chunks[number] = _chunk(made)
            else:
                tail = made
        return _whole(tuple(chunks), tail)

    def splice(self, start: int, stop: int, messages: Sequence[ViewMessage]) -> Messages:
        """Return the messages with `messages` in place of those from index `start` to before `stop`."""
        first = self._chunk_at(start)
        end = self._chunk_at(max(start, stop - 1))
        before = self._of_chunk(first)[: start - self._starts[first]]
        after = self._of_chunk(end)[stop - self._starts[end] :]
        middle = (*before, *messages, *after)
        preceding = self._chunks[:first]
        if end == len(self._chunks):
            return _built(preceding, middle)
        later = self._chunks[end + 1 :]
        if len(middle) < FULL // 2:  # too small for a separate chunk: joined with the next
            middle += later[0].messages if later else self._tail
            if not later:
                return _built(preceding, middle)
            later = later[1:]
        return _whole((*preceding, *_cut(middle), *later), self._tail)

    # Methods of a sequence

    def __bool__(self) -> bool:
        return bool(self._tail)

    def __len__(self) -> int:
        return self._starts[-1] + len(self._tail)

    def __iter__(self) -> Iterator[ViewMessage]:
        return chain(chain.from_iterable(chunk.messages for chunk in self._chunks), self._tail)

    def __reversed__(self) -> Iterator[ViewMessage]:
        yield from reversed(self._tail)
        for chunk in reversed(self._chunks):
            yield from reversed(chunk.messages)

    @overload
    def __getitem__(self, index: int) -> ViewMessage: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[ViewMessage, ...]: ...

    def __getitem__(self, index: int | slice) -> ViewMessage | tuple[ViewMessage, ...]:
        if isinstance(index, slice):
            return self._slice(index)
        place = index if index >= 0 else len(self) + index
        behind = place - self._starts[-1]  # in the tail, which is asked most often
        if 0 <= behind < len(self._tail):
            return self._tail[behind]
        if not 0 <= place < len(self):
            raise IndexError(f"there is no message {index} of {len(self)}")
        number = bisect_right(self._starts, place) - 1
        return self._chunks[number].messages[place - self._starts[number]]

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
        """Serialise as a list of messages in a snapshot."""
        saved = handler(tuple[SavedMessage, ...])
        return core_schema.no_info_after_validator_function(
            _restored,
            saved,
            serialization=core_schema.plain_serializer_function_ser_schema(_saved, return_schema=saved),
        )

    # Internals

    def _all(self) -> _Sums:
        return self._before.plus(self._tail[-1:])

    def _chunk_at(self, index: int) -> int:
        """Return the number of the chunk that contains an index; for the tail, the number of chunks."""
        return bisect_right(self._starts, index) - 1

    def _of_chunk(self, number: int) -> tuple[ViewMessage, ...]:
        return self._chunks[number].messages if number < len(self._chunks) else self._tail

    def _below(self, id: int) -> int:
        """Return the number of messages with a lower id."""
        number = bisect_left(self._chunks, id, key=_LAST)
        return self._starts[number] + bisect_left(self._of_chunk(number), id, key=_ID)

    def _slice(self, index: slice) -> tuple[ViewMessage, ...]:
        start, stop, step = index.indices(len(self))
        if step != 1:
            return tuple(self)[index]
        if start >= stop:
            return ()
        if start >= self._starts[-1]:
            return self._tail[start - self._starts[-1] : stop - self._starts[-1]]
        first = self._chunk_at(start)
        last = self._chunk_at(stop - 1)
        messages = tuple(chain.from_iterable(self._of_chunk(number) for number in range(first, last + 1)))
        return messages[start - self._starts[first] : stop - self._starts[first]]


def _bulky(messages: Sequence[ViewMessage]) -> tuple[int, ...]:
    return tuple(
        place
        for place, message in enumerate(messages)
        if any(block.tokens > SMALL and is_result(block) for block in message.blocks)
    )


def _chunk(messages: tuple[ViewMessage, ...]) -> _Chunk:
    by_source: dict[Source, int] = {}
    pinned: list[ViewBlock] = []
    for message in messages:
        for block in message.blocks:
            by_source[block.source] = by_source.get(block.source, 0) + block.tokens
            if block.pinned:
                pinned.append(block)
    return _Chunk(
        messages,
        messages[-1].id,
        _NONE.plus(messages),
        by_source,
        tuple(pinned),
        _bulky(messages),
        frozenset[str]().union(*(writers(message) for message in messages if message.private)),
    )


def _cut(messages: Sequence[ViewMessage]) -> tuple[_Chunk, ...]:
    """Return chunks of about equal size, none larger than `FULL`, and none half empty if there are enough messages."""
    count = -(-len(messages) // FULL)
    ends = [len(messages) * number // count for number in range(count + 1)] if count else [0]
    return tuple(_chunk(tuple(messages[a:b])) for a, b in pairwise(ends))


def _whole(chunks: tuple[_Chunk, ...], tail: tuple[ViewMessage, ...]) -> Messages:
    starts = tuple(accumulate((len(chunk.messages) for chunk in chunks), initial=0))
    old = _Sums(*map(sum, zip(_NONE, *(chunk.sums for chunk in chunks), strict=True)))
    return Messages(chunks, starts, tail, old.plus(tail[:-1]))


def _built(chunks: tuple[_Chunk, ...], messages: tuple[ViewMessage, ...]) -> Messages:
    """Return these chunks, and the rest cut into chunks and a tail that is long enough.

    The tail is shorter if there are not enough messages.
    """
    while chunks and len(messages) < FULL:
        chunks, messages = chunks[:-1], chunks[-1].messages + messages
    surplus = max(0, len(messages) - FULL) // FULL * FULL
    return _whole((*chunks, *_cut(messages[:surplus])), messages[surplus:])

"""Messages in chunks: whatever is done to them, they are what a plain tuple would be, and their sums are true."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from tests.core.context.context_histories import result, said, text

from callboard.core.context.view.conversation import Conversation, add_user, apply_edits
from callboard.core.context.view.messages import FULL, SMALL, Messages, is_result, make_block, make_message
from callboard.types.messages import Edit, ViewMessage


def one(id: int, letters: int = 4, *, pinned: bool = False) -> ViewMessage:
    """A reply for an even id; else a result of so many letters, and a word of a person."""
    if id % 2 == 0:
        return make_message(id, "assistant", (make_block(text("w" * letters), "assistant", id),), "t")
    answer = make_block(result(f"c{id}", "r" * letters).data, "tool", id)
    return make_message(id, "user", (answer, make_block(said("go").data, "person", id, pinned=pinned)), "t")


def row(count: int, first: int = 1) -> tuple[ViewMessage, ...]:
    return tuple(one(id, 4 if id % 5 else 4 * SMALL, pinned=id % 7 == 0) for id in range(first, first + count))


def check(messages: Messages, plain: Sequence[ViewMessage]) -> None:
    """The same as the tuple, by every question that can be asked."""
    plain = tuple(plain)
    assert tuple(messages) == plain == messages
    assert (len(messages), list(reversed(messages))) == (len(plain), list(reversed(plain)))
    assert [messages[n] for n in range(-len(plain), len(plain))] == [*plain, *plain]
    assert messages.last == (plain[-1] if plain else None)
    results = [block.tokens for message in plain for block in message.blocks if is_result(block)]
    assert messages.tokens == sum(message.tokens for message in plain)
    assert messages.result_tokens == sum(results)
    assert messages.bulk == sum(tokens for tokens in results if tokens > SMALL)
    assert messages.tokens_of("person") == sum(b.tokens for m in plain for b in m.blocks if b.source == "person")
    assert messages.pinned_blocks() == [block for message in plain for block in message.blocks if block.pinned]
    bulky = [n for n, m in enumerate(plain) if any(b.tokens > SMALL and is_result(b) for b in m.blocks)]
    assert list(messages.bulky()) == bulky == list(messages.bulky(newest_first=True))[::-1]
    assert b",".join(messages.pieces()) == b",".join(message.wire for message in plain)
    assert messages.pieces()[-FULL:] == [message.wire for message in plain[-FULL:]]
    assert Messages.of(plain) == messages


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "last", "changed", "spliced"]),
        st.integers(0, 400),
        st.integers(0, 90),
        st.integers(0, 80),
    ),
    max_size=12,
)


def changed(messages: Messages, plain: tuple[ViewMessage, ...], change: tuple[str, int, int, int]) -> tuple[Any, Any]:
    """Both after a change. Ids rise by a thousand, so that there is room between them."""
    kind, at, span, count = change
    size = len(plain)
    if kind == "append" or not plain:
        fresh = [replace(one(n), id=(plain[-1].id if plain else 0) + 1_000 * (n + 1)) for n in range(span)]
        for message in fresh:
            messages = messages.append(message)
        return messages, (*plain, *fresh)
    if kind == "last":
        other = replace(one(span % 2, 900), id=plain[-1].id)
        return messages.with_last(other), (*plain[:-1], other)
    start = at % size
    stop = min(size, start + span)
    if kind == "changed":
        instead = {n: replace(one(n, 700, pinned=True), id=plain[n].id) for n in range(start, stop, 3)}
        return messages.with_replaced(instead), tuple(instead.get(n, m) for n, m in enumerate(plain))
    first = plain[start].id if start < stop else (plain[start - 1].id + 1 if start else -999)
    fresh = [replace(one(n, 5), id=first + n) for n in range(count)]
    return messages.splice(start, stop, fresh), (*plain[:start], *fresh, *plain[stop:])


@given(st.integers(0, 5 * FULL), CHANGES)
@settings(max_examples=150, deadline=None)
def test_after_any_changes_they_are_what_a_tuple_would_be(count: int, changes: list[Any]) -> None:
    plain = tuple(replace(message, id=message.id * 1_000) for message in row(count))
    messages = Messages.of(plain)
    check(messages, plain)
    for change in changes:
        before = tuple(messages)
        messages, after = changed(messages, plain, change)
        assert before == plain, "nothing is changed in place"
        plain = after
        check(messages, plain)


@given(st.integers(0, 200), st.integers(-220, 220), st.integers(-220, 220), st.sampled_from([None, 1, 2, -1]))
@settings(max_examples=200, deadline=None)
def test_a_slice_is_that_of_a_tuple(count: int, start: int, stop: int, step: int | None) -> None:
    assert Messages.of(row(count))[start:stop:step] == row(count)[start:stop:step]


@pytest.mark.parametrize("index", [3, -4])
def test_an_index_outside_is_an_error(index: int) -> None:
    with pytest.raises(IndexError):
        Messages.of(row(3))[index]


@given(st.integers(0, 200), st.integers(0, 450), st.integers(0, 450))
@settings(max_examples=200, deadline=None)
def test_ids_are_found_and_spans_hold_what_lies_between(count: int, first: int, last: int) -> None:
    plain = tuple(replace(message, id=message.id * 2) for message in row(count))
    messages = Messages.of(plain)
    assert [messages.find(message.id) for message in plain] == list(range(count))
    assert messages.find(first) == next((n for n, message in enumerate(plain) if message.id == first), None)
    start, stop = messages.span(first, last)
    assert plain[start:stop] == tuple(message for message in plain if first <= message.id <= last)


@pytest.mark.parametrize("count", [FULL, 2 * FULL, 5 * FULL + 3])
def test_marked_messages_stand_alone_and_old_ones_in_pieces(count: int) -> None:
    plain = row(count)
    marks = {0: b"A", count // 2: b"B", count - 1: b"C"}
    pieces = Messages.of(plain).pieces(marks)
    assert b",".join(pieces) == b",".join(marks.get(n, message.wire) for n, message in enumerate(plain))
    assert {b"A", b"B", b"C"} <= set(pieces)
    assert all(isinstance(json.loads(b"[" + piece + b"]"), list) for piece in pieces if piece not in marks.values())


def test_a_step_shares_all_full_chunks_and_a_request_has_one_piece_for_each() -> None:
    long, longer = Messages.of(row(100 * FULL)), Messages.of(row(100 * FULL)).append(one(100 * FULL + 1))
    assert len(long.pieces()) == 99 + FULL
    assert long.pieces()[0] is long.append(one(100 * FULL + 1)).pieces()[0]
    assert len(longer.pieces()) == len(long.pieces()) + 1


def test_an_edit_makes_only_the_chunks_anew_that_it_touches() -> None:
    conv = Conversation(messages=Messages.of(row(20 * FULL)))
    cleared = apply_edits(conv, [Edit(kind="cleared", message=5 * FULL + 1, last=5 * FULL + 1, block=0, text="gone")])
    before, after = conv.messages.pieces(), cleared.messages.pieces()
    assert [n for n, piece in enumerate(after) if piece is not before[n]] == [5]
    folded = apply_edits(conv, [Edit(kind="dropped", message=3 * FULL, last=6 * FULL + 1, blocks=(said("mark"),))])
    assert folded.messages.pieces()[:2] == before[:2]
    assert folded.messages.pieces()[-FULL:] == before[-FULL:]
    assert sum(piece in set(before) for piece in folded.messages.pieces()) >= len(before) - 5


SMALLER: list[Callable[[Messages], Messages]] = [
    lambda messages: messages.splice(0, len(messages) - 1, ()),
    lambda messages: messages.splice(3, len(messages), ()),
    lambda messages: messages.splice(FULL, len(messages), row(1)),
]


@pytest.mark.parametrize("shrink", SMALLER)
def test_after_most_of_it_is_gone_the_newest_still_stand_alone(shrink: Callable[[Messages], Messages]) -> None:
    left = shrink(Messages.of(row(5 * FULL)))
    assert left.pieces()[-FULL:] == [message.wire for message in tuple(left)[-FULL:]]
    assert left.append(one(1_000)).last == one(1_000)


def test_equal_is_who_holds_the_same_messages_and_nothing_else() -> None:
    messages = Messages.of(row(3))
    assert messages == row(3)
    assert messages != row(4)
    assert messages != list(row(3))
    assert messages != Messages.of((*row(2), one(3, 5)))
    assert messages == Messages().append(one(1)).append(one(2)).append(one(3))
    assert Messages.of(messages) is messages
    assert "id=3" in repr(messages)
    assert hash(Messages()) == hash(())
    with pytest.raises(TypeError):
        hash(messages)


def test_in_a_snapshot_they_are_a_list() -> None:
    adapter = TypeAdapter(Messages)
    messages = Messages.of(row(3 * FULL))
    data = adapter.dump_json(messages)
    assert [entry["id"] for entry in json.loads(data)] == list(range(1, 3 * FULL + 1))
    assert adapter.validate_json(data) == messages


def test_a_conversation_counts_what_clearing_could_save() -> None:
    conv = add_user(Conversation(), 1, [result("a", "r" * 400), result("b", "ok"), said("go")], at=0.0, turn="t")
    assert (conv.result_tokens, conv.messages.bulk) == (116 + 17, 116)
    cleared = apply_edits(conv, [Edit(kind="cleared", message=1, last=1, block=0, text="[cleared]")])
    assert (cleared.result_tokens, cleared.messages.bulk) == (19 + 17, 0)

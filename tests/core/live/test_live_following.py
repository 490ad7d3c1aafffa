"""Live text is shown before its end in the journal and after what precedes it, in whatever order both arrive."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as some

from callboard.core.live.following import LiveGate, LiveText, ReadPosition
from callboard.core.live.frames import FrameKind, LiveFrame, LiveReply
from callboard.types.events import CallFailed, Event, ModelReplied, ReplyDropped, ReplyInterrupted, TurnBegan
from callboard.types.records import Fault, Usage


def noted() -> TurnBegan:
    return TurnBegan(at=0.0, turn="t", cause="e")


def replied() -> ModelReplied:
    return ModelReplied(at=0.0, ordinal=1, model="m", stop_reason="end_turn", blocks=(), usage=Usage(), draw=0.0)


def failed(purpose: str = "turn") -> CallFailed:
    fault = Fault(kind="overloaded", message="busy")
    fields = {"at": 0.0, "ordinal": 1, "attempt": 1, "model": "m", "fault": fault, "draw": 0.0, "purpose": purpose}
    return CallFailed.model_validate(fields)


def piece(position: int, text: str) -> LiveFrame:
    return LiveFrame(LiveReply("lead", 1, position), "text", text)


@some.composite
def arrivals(draw: some.DrawFn) -> list[tuple[int, Event] | LiveFrame]:
    """Return the events of a journal and the text of its replies, merged in any order that keeps each of both."""
    journal: list[tuple[int, Event]] = [(1, noted())]
    frames: list[LiveFrame] = []
    for _ in range(draw(some.integers(1, 5))):
        position = journal[-1][0]
        frames += [piece(position, part) for part in "ab"]
        for event in (*[noted()] * draw(some.integers(0, 2)), failed("summary"), draw(some.sampled_from(ENDS))):
            position += 1
            journal.append((position, event))
    merged: list[tuple[int, Event] | LiveFrame] = []
    while journal or frames:
        merged.append(journal.pop(0) if journal and (not frames or draw(some.booleans())) else frames.pop(0))
    return merged


ENDS: list[Event] = [replied(), failed(), ReplyInterrupted(at=0.0, ordinal=1, text="")]


@given(arrivals())
def test_text_is_shown_after_what_precedes_it_and_before_its_end(
    merged: list[tuple[int, Event] | LiveFrame],
) -> None:
    gate = LiveGate()
    read = ended = 0
    timely: list[LiveFrame] = []
    shown: list[LiveFrame] = []
    for item in merged:
        if isinstance(item, LiveFrame):
            timely += [item] if item.reply.position >= ended else []
            news = gate.take(item)
        else:
            read = item[0]
            ended = read if item[1] in ENDS else ended
            news = gate.handle_event(*item)
        assert all(ended <= frame.reply.position <= read for frame in news)
        shown += news
    assert shown == timely


def test_text_that_comes_before_the_reply_before_it_waits() -> None:
    gate = LiveGate(3)
    assert gate.take(piece(3, "one")) == [piece(3, "one")]
    assert gate.take(piece(5, "two")) == []
    assert gate.handle_event(4, noted()) == []
    assert gate.handle_event(5, replied()) == [piece(5, "two")]
    assert gate.take(piece(3, "late")) == []


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (failed(), "overloaded: busy"),
        (ReplyDropped(at=0.0, ordinal=1, why="cut at the output limit", usage=Usage()), "cut at the output limit"),
        (replied(), ""),
        (ReplyInterrupted(at=0.0, ordinal=1, text="one"), ""),
        (failed("summary"), ""),
    ],
)
def test_text_that_was_shown_is_void_if_its_call_failed(event: Event, reason: str) -> None:
    gate = LiveGate(7)
    assert gate.void_reason(event) == "", "nothing was shown"
    gate.take(piece(7, "one"))
    assert gate.void_reason(event) == reason
    gate.handle_event(8, event)
    if reason:
        assert gate.void_reason(event) == "", "it is said once"
        assert gate.take(piece(7, "more")) == []


def test_what_waits_for_the_journal_is_bounded() -> None:
    gate = LiveGate()
    for _ in range(5):
        assert gate.take(piece(1, "x" * 400_000)) == []
    assert "lost" in [frame.kind for frame in gate.handle_event(1, noted())]


PARTS = some.lists(some.tuples(some.integers(1, 3), some.sampled_from(get_args(FrameKind)), some.text()))


@given(PARTS, some.lists(some.booleans()))
def test_a_reader_that_looks_at_any_time_sees_the_newest_reply_once(
    parts: list[tuple[int, FrameKind, str]], looks: list[bool]
) -> None:
    live = LiveText()
    position = ReadPosition()
    seen: list[tuple[str, str]] = []
    reply: LiveReply | None = None
    for number, (ordinal, kind, text) in enumerate(sorted(parts, key=lambda part: part[0])):
        live.take(LiveFrame(LiveReply("lead", 1, ordinal), kind, text))
        if not (number < len(looks) and looks[number]) and number + 1 < len(parts):
            continue
        news, continues, position = live.since(position)
        if position.reply != reply:
            reply = position.reply
            seen = []
        assert not continues or seen[-1][0] == news[0].kind
        for at, part in enumerate(news):
            if at == 0 and continues:
                seen[-1] = part.kind, seen[-1][1] + part.text
            else:
                seen.append((part.kind, part.text))
    whole, continues, _ = live.since(ReadPosition())
    assert not continues
    assert seen == [(part.kind, part.text) for part in whole]
    assert live.since(position)[0] == []


def test_a_piece_of_an_earlier_reply_changes_nothing() -> None:
    live = LiveText()
    live.take(piece(2, "two"))
    live.take(piece(1, "one"))
    assert [part.text for part in live.since(ReadPosition())[0]] == ["two"]
    live.clear()
    assert live.since(ReadPosition())[0] == []

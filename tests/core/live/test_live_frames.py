"""Lines of live text: whatever is sent arrives, however the bytes are cut."""

from __future__ import annotations

import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as some

from callboard.core.live.frames import (
    LONGEST_LINE,
    LONGEST_PIECE,
    VERSION,
    FrameKind,
    LineReader,
    LiveFrame,
    LiveProtocolError,
    LiveReply,
    LiveRequest,
    check_greeting,
    frame_lines,
    greeting_line,
    read_frame,
    read_request,
    request_line,
)

REPLIES = some.builds(LiveReply, some.text(min_size=1), some.integers(1, 9), some.integers(1, 10_000))
FRAMES = some.builds(LiveFrame, REPLIES, some.sampled_from(get_args(FrameKind)), some.text())


@given(some.lists(FRAMES), some.lists(some.integers(1, 200), min_size=1))
def test_frames_arrive_as_they_were_sent(frames: list[LiveFrame], sizes: list[int]) -> None:
    data = b"".join(frame_lines(frames))
    reader = LineReader()
    lines: list[bytes] = []
    at = turn = 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        lines += reader.feed(data[at : at + size])
        at, turn = at + size, turn + 1
    assert [read_frame(line) for line in lines] == frames


@pytest.mark.parametrize("kind", ["text", "call"])
def test_a_long_piece_takes_several_lines_that_a_reader_accepts(kind: FrameKind) -> None:
    text = "\U0001f600" * (2 * LONGEST_PIECE) + "."
    reply = LiveReply("lead", 1, 2)
    lines = list(frame_lines([LiveFrame(reply, kind, text)]))
    assert max(map(len, lines)) < LONGEST_LINE
    read = [frame for line in LineReader().feed(b"".join(lines)) if (frame := read_frame(line)) is not None]
    assert "".join(frame.text for frame in read) == text
    assert [frame.kind for frame in read] == [kind, *["input" if kind == "call" else kind] * 2]


@given(some.none() | some.frozensets(some.text()), some.text())
def test_a_request_and_a_greeting_are_read_as_they_were_written(agents: frozenset[str] | None, session: str) -> None:
    request = LiveRequest(agents)
    assert read_request(request_line(request)) == request
    assert request.includes("bob") == (agents is None or "bob" in agents)
    check_greeting(greeting_line(session), session)
    with pytest.raises(LiveProtocolError, match="another session"):
        check_greeting(greeting_line(session), f"{session}x")


@given(some.binary() | some.recursive(some.none() | some.integers() | some.text(), some.lists).map(json.dumps))
def test_anything_else_is_a_fault_of_the_protocol_and_nothing_worse(data: bytes | str) -> None:
    line = data if isinstance(data, bytes) else data.encode()
    for read in (read_request, read_frame):
        with pytest.raises(LiveProtocolError):
            read(line)


def test_later_versions_may_add_fields_and_kinds_and_nothing_else() -> None:
    later = {"agent": "lead", "life": 1, "reply": 2, "kind": "image", "text": "", "more": [1]}
    assert read_frame(json.dumps(later).encode()) is None
    assert read_frame(json.dumps({**later, "kind": "text"}).encode()) is not None
    for changed in ({"life": "1"}, {"reply": True}, {"reply": None}, {"agent": 3}, {"kind": "text", "text": None}):
        with pytest.raises(LiveProtocolError):
            read_frame(json.dumps({**later, **changed}).encode())
    for other in (VERSION + 1, None, "1"):
        with pytest.raises(LiveProtocolError, match="version"):
            read_request(json.dumps({"live": other, "agents": None}).encode())
    with pytest.raises(LiveProtocolError, match="names"):
        read_request(json.dumps({"live": VERSION, "agents": ["lead", 1]}).encode())


def test_a_line_without_an_end_is_refused() -> None:
    reader = LineReader()
    with pytest.raises(LiveProtocolError, match="too long"):
        reader.feed(b"x" * (LONGEST_LINE + 1))

"""What waits for a slow reader of live text is bounded, and every reply arrives from its beginning, or is marked."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as some

from callboard.core.live.frames import LineReader, LiveFrame, LiveReply, ReaderBuffer, frame_lines, read_frame

LIMIT = 1_000
MARK = 120
"""More bytes than a mark takes."""
AGENTS = ("lead", "alice", "bob")
PIECES = some.tuples(some.sampled_from(AGENTS), some.booleans(), some.integers(0, 600))
TAKEN = some.integers(0, 400)
"""Bytes that the reader takes after a piece."""


def taken(buffer: ReaderBuffer, most: int) -> bytes:
    data = bytearray()
    while buffer and most > 0:
        part = bytes(buffer.next_bytes()[:most])
        buffer.remove_sent(len(part))
        data += part
        most -= len(part)
    return bytes(data)


@given(some.lists(some.tuples(PIECES, TAKEN)))
def test_a_reader_gets_the_beginning_of_each_reply_in_order_and_a_mark_for_what_it_missed(
    steps: list[tuple[tuple[str, bool, int], int]],
) -> None:
    buffer = ReaderBuffer(LIMIT)
    ordinals = dict.fromkeys(AGENTS, 1)
    sent: defaultdict[LiveReply, str] = defaultdict(str)
    data = bytearray()
    for number, ((agent, begins, size), most) in enumerate(steps):
        ordinals[agent] += begins
        reply = LiveReply(agent, 1, ordinals[agent])
        text = chr(ord("a") + number % 26) * size
        sent[reply] += text
        buffer.add(reply, b"".join(frame_lines([LiveFrame(reply, "text", text)])))
        assert buffer.size <= LIMIT + MARK * len(AGENTS)
        data += taken(buffer, most)
    data += taken(buffer, 1_000_000)
    assert (buffer.size, bool(buffer)) == (0, False)
    got: defaultdict[LiveReply, str] = defaultdict(str)
    lost: set[LiveReply] = set()
    for line in LineReader().feed(bytes(data)):
        frame = read_frame(line)
        assert frame is not None
        assert frame.reply not in lost, "nothing follows the mark"
        lost |= {frame.reply} if frame.kind == "lost" else set()
        got[frame.reply] += frame.text
    newest = {LiveReply(agent, 1, ordinals[agent]) for agent in AGENTS}
    for reply, text in sent.items():
        assert text.startswith(got[reply])
        # Of an older reply that was left out, also the mark may be left out: the journal has the reply by then.
        assert got[reply] == text or reply in lost or reply not in newest


def test_a_reader_that_keeps_up_misses_nothing() -> None:
    buffer = ReaderBuffer(LIMIT)
    buffer.add_line(b"hello\n")
    reply = LiveReply("lead", 1, 1)
    data = bytearray(taken(buffer, LIMIT))
    for _ in range(50):
        buffer.add(reply, b"".join(frame_lines([LiveFrame(reply, "text", "x" * 500)])))
        data += taken(buffer, LIMIT)
    lines = LineReader().feed(bytes(data))
    assert lines[0] == b"hello"
    assert len(lines) == 51

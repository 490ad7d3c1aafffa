"""Lines of announcements and their replies, and the writes that have to be announced."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.core.approvals.vouching import (
    MOST_DIGESTS,
    announcement_line,
    read_announcement,
    read_reply,
    reply_line,
    vouched_digests,
    write_digest,
)
from callboard.core.keys import mailbox, request_key, rule_key, task_key
from callboard.core.live.frames import LiveProtocolError
from callboard.core.messaging.envelopes import envelope_write
from callboard.engine.commands import prompt_envelope
from callboard.types.store_writes import Append, Delete, Expect, Put


@given(st.lists(st.text(), max_size=20), st.text())
def test_lines_are_read_as_they_were_written(digests: list[str], reason: str) -> None:
    assert read_announcement(announcement_line(digests)) == tuple(digests)
    assert read_reply(reply_line(reason)) == reason


@pytest.mark.parametrize("line", [b"", b"no", b"[1]", b"1", b"{}", b'{"digests": 1}', b'{"accepted": "yes"}', b"\xff"])
def test_other_lines_are_refused(line: bytes) -> None:
    for read in (read_announcement, read_reply):
        with pytest.raises(LiveProtocolError):
            read(line)


def test_an_announcement_is_bounded() -> None:
    with pytest.raises(LiveProtocolError):
        read_announcement(announcement_line(["a"] * (MOST_DIGESTS + 1)))


def test_answers_rules_and_mail_of_the_person_are_announced_and_nothing_else() -> None:
    prompt = envelope_write("s1", prompt_envelope("s1", "go on", now=1.0, nonce="1"))
    guarded = [Put(request_key("s1", "r"), b"v"), Delete(rule_key("s1", "r")), prompt]
    others = [
        Put(request_key("s2", "r"), b"v"),
        Put(task_key("s1", "t"), b"v"),
        Append(mailbox("s1", "lead", 1), b'{"sender":"amy","type":"message"}'),
        Append(mailbox("s2", "lead", 1), prompt.record),
        Expect(mailbox("s1", "lead", 1), 1),
    ]
    assert vouched_digests("s1", [*guarded, *others]) == [
        write_digest(request_key("s1", "r"), b"v"),
        write_digest(rule_key("s1", "r"), None),
        write_digest(prompt.stream, prompt.record),
    ]

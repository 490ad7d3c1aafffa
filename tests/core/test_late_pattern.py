"""Patterns compiled at their first use behave as those of `re`."""

from __future__ import annotations

import copy
import re

import pytest

from callboard.types.late_pattern import late_pattern


@pytest.mark.parametrize("flags", [0, re.IGNORECASE, re.DOTALL | re.VERBOSE])
def test_it_finds_what_the_pattern_of_re_finds(flags: int) -> None:
    late = late_pattern(r"(?P<word>[a-z]+) ?", flags)
    eager = re.compile(r"(?P<word>[a-z]+) ?", flags)
    text = "one Two three"
    for _ in range(2):
        assert late.findall(text) == eager.findall(text)
        assert late.sub(r"<\g<word>>", text, count=1) == eager.sub(r"<\g<word>>", text, count=1)
        assert late.split(text) == eager.split(text)
        assert [found.span() for found in late.finditer(text)] == [found.span() for found in eager.finditer(text)]
        assert [str(late.match(text)), str(late.fullmatch(text)), str(late.search(text, 4))] == [
            str(eager.match(text)),
            str(eager.fullmatch(text)),
            str(eager.search(text, 4)),
        ]
    assert (late.pattern, late.flags, late.groups) == (eager.pattern, eager.flags, eager.groups)
    assert dict(late.groupindex) == dict(eager.groupindex)
    assert repr(late) == repr(eager)


def test_a_pattern_of_bytes_is_one() -> None:
    assert late_pattern(rb"\d+").findall(b"1 22") == [b"1", b"22"]


def test_it_is_compiled_at_the_first_use() -> None:
    wrong = late_pattern("(")
    assert copy.copy(wrong) is not wrong
    with pytest.raises(re.error):
        wrong.match("")
    with pytest.raises(AttributeError):
        late_pattern("a").matches  # noqa: B018 - the access is what is tested

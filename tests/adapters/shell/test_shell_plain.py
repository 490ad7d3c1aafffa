"""The fast parser of plain commands agrees with shfmt's tree, and leaves everything else to shfmt."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from callboard.adapters.shell.parser import BashParser, PlainReader, plain_script
from callboard.core.permissions.values import Script, UnparsedScript

WORDS = [
    "ls",
    "a",
    "-x",
    "2",
    "12",
    "--",
    "x=1",
    "*",
    "?",
    "%",
    "^",
    "{}",
    "[",
    "]",
    "if",
    "time",
    "\\;",
    "\\(",
    ".",
    "}",
]
QUOTED = ["'a b'", '"c d"', '""', "''", "'|'", '"&& x"', "'$(x)'"]
JOINS = [" ", " ", " ", " ", "\t", "|", " | ", "&&", " && ", "||", ";", "; "]
ENDS = [
    "2>&1",
    ">/dev/null",
    " 2>/dev/null",
    " > /dev/null",
    "&>/dev/null",
    ">",
    "&",
    "|&",
    ";;",
    "\n",
    "#",
    "~",
    "!",
    "$x",
]


def draw_script(draw: random.Random) -> str:
    pieces = [WORDS] * 6 + [QUOTED] * 2 + [JOINS] * 7 + [ENDS]
    return "".join(draw.choice(draw.choice(pieces)) for _ in range(draw.randint(1, 10)))


def disagreements(seed: int, wanted: int) -> list[str]:
    """Draw scripts until enough were plain, and return those that shfmt parses differently."""
    draw, reader, parser = random.Random(seed), PlainReader(), BashParser(plain=False)
    plain: list[tuple[str, Script]] = []
    while len(plain) < wanted:
        source = draw_script(draw)
        if (script := reader.read(source)) is not None:
            plain.append((source, script))
    with ThreadPoolExecutor(2) as pool:
        theirs = list(pool.map(parser.parse, (source for source, _ in plain)))
    return [source for (source, ours), other in zip(plain, theirs, strict=True) if ours != other]


def test_what_is_plain_is_read_as_shfmt_reads_it() -> None:
    assert disagreements(1, 300) == []


@pytest.mark.soak
def test_what_is_plain_is_read_as_shfmt_reads_it_soak(soak: int) -> None:
    for seed in range(10 * soak):
        assert disagreements(100 + seed, 2_000) == []


@pytest.mark.parametrize(
    "source",
    [
        *("ls $X", "ls `x`", 'ls "$X"', "ls > x", "ls & x", "(ls)", "{ ls; }", "if x; then y; fi", "! ls", "time ls"),
        *("ls \\", "l\\s", "ls # x", "ls ~", "ls {a,b}", "X=1 ls", "ls\nx", "ls;", "|ls", "ls |& x", "ls ;; x", ""),
        *("coproc ls", "export x", "[[ a ]]", "ls 2>x", "ls > /dev/nullx", "ls 3>/dev/null", 'ls "a\\b"', "ls a[1]"),
        *("ls >/dev/null x", "ls x>/dev/null", "ls <x", "ls <<x", "a[0]=1", "f() ls", "ls ''if; 'x"),
    ],
)
def test_what_is_not_plain_is_left_to_shfmt(source: str) -> None:
    assert plain_script(source) is None


def test_what_was_parsed_is_remembered_and_what_failed_too() -> None:
    parser = BashParser()
    assert parser.parse("ls $X") is parser.parse("ls $X")
    assert isinstance(parser.parse("ls '"), UnparsedScript)

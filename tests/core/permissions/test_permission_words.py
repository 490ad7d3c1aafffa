"""Words become what bash makes of them: compared with bash itself."""

from __future__ import annotations

import random
import shutil
import subprocess

import pytest

from callboard.adapters.shell.parser import BashParser
from callboard.core.permissions.values import HOLE, Script, Simple, Text, Word
from callboard.core.permissions.word_expansion import decode_ansi_c, expand

BASH = shutil.which("bash")
needs_bash = pytest.mark.skipif(BASH is None, reason="bash is not installed here")


def bash_words(lines: list[str]) -> list[list[str]]:
    """Return the words that bash makes of each line, without globbing."""
    script = 'set -f; cd /; while IFS= read -r l; do eval "set -- $l"; printf "%s\\x1f" "$@"; echo; done'
    done = subprocess.run(
        [str(BASH), "-c", script],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        check=True,
        env={"HOME": "/home/me"},
    )
    return [line.split("\x1f")[:-1] for line in done.stdout.split("\n")[:-1]]


@needs_bash
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_brace_expansion_is_bashs(seed: int) -> None:
    draw = random.Random(seed)
    lines = ["".join(draw.choice("{{{,,}}}ab.1-0..") for _ in range(draw.randint(3, 12))) for _ in range(500)]
    unknown = 0
    for line, theirs in zip(lines, bash_words(lines), strict=True):
        ours = [arg.text for arg in expand(Word((Text(line, quoted=False),)), "/home/me")]
        if ours == [HOLE] and ".." in line:  # bash has rules of its own for what is nearly a range
            unknown += 1
        else:
            assert [word for word in ours if word] == [word for word in theirs if word], line
    assert unknown < 25


@needs_bash
def test_quotes_escapes_and_tildes_are_bashs() -> None:
    lines = [
        r"plain a\ b \r\m 'single \n' ",
        r'''"double \" \\ \a \$ x" ""''',
        r"$'\x41\102\t\'q\u0041\e' $'a\cAb' $'\\'",
        r"a'b'\"c\" 'x'\''y' a$'b'c",
        r"~ ~/x '~' \~ a~ ~/'q r'",
        r"{a,b}c {1..3} {a..c..2} '{a,b}' \{a,b\} {a,'b c'} x{,y} {03..1} {a,{b,c}d}",
        r"r''m -r\f / \-\- $\"x\"",
        r"--opt={a,b} /x/{y,z}/w {}",
    ]
    parser = BashParser()
    for line, theirs in zip(lines, bash_words(lines), strict=True):
        script = parser.parse("x " + line)
        assert isinstance(script, Script)
        node = script.nodes[0]
        assert isinstance(node, Simple)
        assert [arg.text for word in node.words[1:] for arg in expand(word, "/home/me")] == theirs


def test_a_nul_ends_an_ansi_c_string_and_bytes_above_127_are_not_guessed() -> None:
    assert decode_ansi_c(r"rm\x00junk") == "rm"
    assert decode_ansi_c(r"\xff") is None
    assert decode_ansi_c(r"\x41\101") == "AA"


def test_too_many_alternatives_are_one_unknown_word() -> None:
    for text in ("{1..1000}", "{a,b}" * 12, "{1..999999}"):
        assert [arg.text for arg in expand(Word((Text(text, quoted=False),)), "/h")] == [HOLE]

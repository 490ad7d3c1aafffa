"""The parser hides nothing: odd input is refused, and both ways of parsing agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard.adapters.shell.hidden_text import MOST_CHARACTERS
from callboard.adapters.shell.parser import BashParser, PlainReader
from callboard.core.permissions.values import Script, UnparsedScript

PARSER = BashParser()


@pytest.mark.parametrize(
    "text",
    [
        "ls\r",
        "ls\x07",
        "l\u200bs",
        "ls\xa0x",
        "ls \u202ex",
        "ls\u3000x",
        "ls\x7f",
        "ls \ufeff",
        "ls \ue000",
        "ls\u2028x",
        chr(0xDCFF),
        "x" * (MOST_CHARACTERS + 1),
        "ls '",
        "if",
        "$(",
        "(" * 5000,
        "{ " * 2000,
        "a=(",
        "ls )",
        "cat <<E\nx",
        "() a",
        "() ( rm -rf / )",
        "coproc () ( a )",
        "ls && ! () if a; then b; fi",
        "[[ a == @(b|$(rm x)) ]]",
        "[[ a == !(`rm x`|b) ]]",
        "[[ a == @(<(rm x)) ]]",
        '[[ a == @(b|")") && $(rm x) ]]',
        "cat <<E\nfoo\nE\\\n\nrm x\nE\n",
        "cat <<E\n${x:-\nE\nrm x\n}\nE\n",
        "cat <<-E\n\t${x:-\n\tE\n\trm x\n\t}\n\tE\n",
        "echo $(cat <<E\nErm x )\nE\n)",
        "cat <(cat <<'E'\nErm x )\nE\n)",
        "echo `cat <<E\nfoo\nE\\\n\nrm x\nE\n`",
        "cat <<$x\nrm x\n$x\n",
    ],
)
def test_what_cannot_be_parsed_says_why(text: str) -> None:
    parsed = PARSER.parse(text)
    assert isinstance(parsed, UnparsedScript)
    assert parsed.why
    assert not parsed.nul


@pytest.mark.parametrize(
    "text",
    [
        "cat <<E\na \\\n  b\nE\n",
        "cat <<'E'\nfoo\nE\\\n\nE\n",
        "cat <<'a b' <<-\"F\"\n${x:-\na b\n\tE\n\tF\n",
        "cat <<E\n${x:-a}\nE 1\n$(ls)\nE",
        "git commit -m \"$(cat <<'EOF'\nfix (a)\nEOF\n)\"",
        "cat <<E\\\nF\n$(ls)\nEF\n",
        "echo `cat <<E\nfoo\nE\n`",
        "cat <<E\nE\n",
        "[[ a == @(b|c|[0-9])* ]]",
        "ls ${x%%+(a|b)}",
    ],
)
def test_a_plain_heredoc_or_pattern_is_understood(text: str) -> None:
    assert isinstance(PARSER.parse(text), Script)


def test_a_tree_of_an_unknown_shape_is_refused(tmp_path: Path) -> None:
    parser = BashParser(str(tmp_path / "shfmt"), plain=False)
    for number, tree in enumerate(['{"Stmts": [{"Cmd": {}}]}', '{"Stmts": [1]}', "[]", '{"Stmts": 1}', "{"]):
        program = tmp_path / "shfmt"
        program.write_text(f"#!/bin/sh\ncat >/dev/null\nprintf %s '{tree}'\n")
        program.chmod(0o755)
        parsed = parser.parse(f"ls {number}")
        assert isinstance(parsed, UnparsedScript)
        assert parsed.why.startswith("the parser failed")


def test_a_nul_is_marked() -> None:
    assert PARSER.parse("ls\0") == UnparsedScript("it holds a NUL character", nul=True)


def test_words_of_every_script_are_plain_text_too() -> None:
    assert isinstance(PARSER.parse("echo 你好 é 🎉"), Script)


@pytest.mark.parametrize(
    "line",
    [
        "ls",
        "ls -la src",
        "git log --oneline -n 5",
        "a/b.py --x=y",
        "rm -rf /",
        "echo 1 2 3",
        "echo a=b",
        "echo if then",
        "cat a,b:c@d%e+f",
    ],
)
def test_the_quick_way_and_the_whole_grammar_agree(line: str) -> None:
    quick = PARSER.parse(line)
    whole = PARSER.parse(line + " ''")
    assert isinstance(quick, Script)
    assert isinstance(whole, Script)
    first, second = quick.nodes[0], whole.nodes[0]
    assert [w.parts for w in first.words] == [w.parts for w in second.words[:-1]]


@pytest.mark.parametrize("line", ["if ls", "time ls", "a=b ls", "export x", "while x", "a=b", "[[ a"])
def test_the_quick_way_leaves_grammar_to_the_grammar(line: str) -> None:
    assert PlainReader().read(line) is None


def test_without_shfmt_only_what_is_plain_is_understood() -> None:
    parser = BashParser("/nonexistent/shfmt")
    assert isinstance(parser.parse("ls -la 'a b' | cat"), Script)
    assert isinstance(parser.parse("ls $(pwd)"), UnparsedScript)


def test_the_same_text_gives_the_same_value() -> None:
    text = 'for i in a {b,c}; do echo "$(ls `pwd`)" > x <<< y; done'
    assert PARSER.parse(text) == PARSER.parse(text)
    assert len({PARSER.parse(text), PARSER.parse(text)}) == 1

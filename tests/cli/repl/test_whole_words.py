"""No word is broken on a screen of 80 columns: in the captures, in the output of commands, in any text of the package.

A capture at 80 columns is compared with a wider one of the same situation: a broken word is a word that the wider one
does not have.
"""

from __future__ import annotations

import ast
import functools
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.commands.command import Command
from tests.cli.repl.pty_screen import PtyScreen
from tests.cli.repl.screens_page import PAGE, SCENARIO, SITUATIONS, fixed
from tests.cli.repl.test_plan_prompt import edit

from callboard.cli.repl.prompt_line import wrap_prompt
from callboard.cli.slash.context import SlashContext
from callboard.cli.slash.registry import COMMANDS
from callboard.cli.terminal.terminal import Line, columns, wrap_line

NARROW, WIDE = 80, 220
PACKAGE = Path(__file__).parents[3] / "runtime" / "callboard"
VALUES = ("callboard", "/home/me/a-long-folder/of-a-project", "漢字かな", "req_a2b3c4d5e6f7")
"""Texts in place of the values of a template, in turn."""


def words_of(text: str) -> list[str]:
    """Return the words of a screen, without frames, rules, and texts that were shortened on purpose."""
    words = re.sub(r"[│╭╮╰╯─]", " ", text).split()
    return [word for word in words if "…" not in word and not set(word) <= set("#.-")]


def broken_words(narrow: str, wide: str) -> list[str]:
    """Return the words of the narrow screen that the wide one does not have.

    The status line has other punctuation where it is shortened.
    """
    known = {word.rstrip(",") for word in words_of(wide)}
    return [word for word in words_of(narrow) if word.rstrip(",") not in known]


def test_a_broken_word_is_found() -> None:
    assert broken_words("one tw\no three", "one two three") == ["tw", "o"]
    assert broken_words("one\ntwo th…", "one two three") == []


@pytest.mark.parametrize("title", [situation.title for situation in SITUATIONS])
def test_no_word_of_a_capture_is_broken(title: str) -> None:
    """`test_screens.py` compares the captures with the command."""
    section = PAGE.read_text("utf-8").partition(f"## {title}\n")[2].partition("\n## ")[0]
    narrow, wide = re.findall(r"```text\n(.*?)```", section, re.DOTALL)
    assert max(map(columns, narrow.split("\n"))) <= NARROW
    assert broken_words(narrow, wide) == []


TYPED = (
    "/help",
    *(f"/{name}" for name in COMMANDS if name not in ("quit", "help", "compact", "new", "clear", "team")),
    "/nosuch",
    "/config set limits.steps many",
    "/config set language Italian",
    "/mode plan",
    "/model claude-new-9",
    "/approve req_nosuch",
    "/stop nobody",
)


def shown(width: int) -> str:
    """Return everything on the screen after these lines were typed, in a folder whose path fits on a narrow screen."""
    with tempfile.TemporaryDirectory(prefix="x", dir="/tmp") as folder:
        text = re.sub(r"\b\d\d:\d\d:\d\d\b", "09:09:09", fixed(_typed(Path(folder), width), Path(folder)))
        text = re.sub(r"(?<=http://127\.0\.0\.1:)\d+/#[\w-]{43}", "40000/#token", text)  # of `/web`, with its code
        return re.sub(r"\b[A-Z0-9]{4}-[A-Z0-9]{4}\b", "CODE-CODE", text)


def _typed(folder: Path, width: int) -> str:
    command = Command(folder)
    screen = PtyScreen(command, "--model", command.scenario(SCENARIO), columns=width, rows=24)
    try:
        screen.wait(r"^> *$")
        for number, line in enumerate(TYPED):
            screen.type(f"{line}\r")
            screen.wait_for_output(re.escape(line))
            screen.type(f"!echo end-{number}\r")
            screen.wait(rf"^end-{number}$")
        screen.type("/nosuchcommand\r")
        screen.wait(r"backslash: \\/nosuchcommand")
        return screen.text()
    finally:
        screen.close()


@pytest.mark.slow
def test_no_word_of_a_command_is_broken() -> None:
    assert broken_words(shown(NARROW), shown(WIDE)) == []


class NoCommands:
    """The part of a session that `/help` uses."""

    def commands(self) -> Sequence[object]:
        return ()


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("width", [60, NARROW, 100])
async def test_the_help_keeps_its_two_columns_on_a_narrow_screen(width: int) -> None:
    context = SlashContext(NoCommands(), edit)  # pyright: ignore[reportArgumentType] - only this part is used
    page = await COMMANDS["help"].act(context, "")
    lines = [line.text for line in page.lines_for(width)]
    assert max(map(columns, lines)) <= width
    assert " ".join(lines).split() == " ".join(line.text for line in page.lines).split()
    assert all(line[:26].strip() == "" or not line.startswith(" ") for line in lines)
    beside = [line for line in lines if "  " in line.strip() or line.startswith(" ")]
    assert all(line[24:26] == "  " and line[26] != " " for line in beside), beside
    assert page.lines_for(WIDE) == page.lines


def texts_of(tree: ast.AST) -> Iterator[str]:
    """Yield each text of a module with a blank in it. The values of a template are replaced."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else VALUES[at % len(VALUES)]
                for at, part in enumerate(node.values)
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@functools.cache
def package_texts() -> Sequence[str]:
    """Return the lines of all texts in the package that do not fit on a narrow screen. Takes seconds."""
    lines = {
        line
        for file in sorted(PACKAGE.rglob("*.py"))
        for text in texts_of(ast.parse(file.read_text("utf-8")))
        for line in text.split("\n")
        if columns(line) > NARROW // 2 and " " in line.strip() and line.isprintable()
    }
    return sorted(lines)


def assert_whole(line: Line, width: int) -> None:
    parts = wrap_line(line, width)
    assert [word for part in parts for word in part.text.split()] == line.text.split()
    for part in parts:
        room = width - (columns(f"{part.name} ") if part.name else 0)
        assert columns(part.text) <= room or len(part.text.split()) == 1, part.text


@pytest.mark.slow
def test_no_text_of_the_package_is_broken_at_80_columns() -> None:
    assert len(package_texts()) > 5_000
    for text in package_texts():
        assert_whole(Line(text), NARROW)
        assert_whole(Line(text, name="explore 1"), NARROW)
        if max(map(columns, text.split())) < NARROW:
            rows = wrap_prompt(text, NARROW).split("\n")
            assert [word for row in rows for word in row.split()] == text.split()


TEXTS = st.deferred(lambda: st.sampled_from(package_texts()))


@given(
    st.lists(TEXTS, min_size=1, max_size=4),
    st.sampled_from(["", "lead", "explore 12"]),
    st.data(),
)
def test_no_texts_together_are_broken_at_any_width(texts: list[str], name: str, data: st.DataObject) -> None:
    assert_whole(Line(" ".join(texts), name=name), data.draw(st.integers(20, 200)))

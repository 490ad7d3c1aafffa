"""Stress in a real terminal: six agents print two thousand lines while a person types, resizes, and pastes."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

import pytest
from tests.cli.commands.command import Command
from tests.cli.repl.pty_screen import PtyScreen

AGENTS = 6
TOKEN = re.compile(r"t(\d)-(\d{3})-(\d{3})-end")
TYPED = "naïve 日本 e\u0301 👩\u200d👧 and so on"
"""Text with wide, combining, and joined characters."""


def scenario(steps: int, lines: int) -> str:
    """Return a scenario in which a lead starts six agents that each print `steps` blocks of `lines` numbered lines."""
    calls = [
        f"        - tool_use: {{name: spawn_teammate, input: {{name: w{n}, role: tester, prompt: Talk.}}}}"
        for n in range(AGENTS)
    ]
    start = ["  lead:", "    - when: {contains: go ahead}", "      reply:", "        - text: I start them.", *calls]
    said = [*start, "    - otherwise: true", "      reply: I hear you."]
    for n in range(AGENTS):
        said.append(f"  w{n}:")
        for step in range(steps):
            words = "\\n".join(f"- t{n}-{step:03}-{line:03}-end" for line in range(lines))
            note = f"- tool_use: {{name: todo_write, input: {{todos: [{{content: Part {step}, status: pending}}]}}}}"
            said += ["    - reply:", f'        - text: "{words}"', f"        {note}"]
        said += ["    - otherwise: true", "      reply: All said."]
    return "\n".join(["agents:", *said, ""])


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., PtyScreen]]:
    """Start the prompt line with a scenario."""
    screens: list[PtyScreen] = []
    command = Command(tmp_path)

    def start(steps: int, lines: int, *args: str, columns: int = 100, rows: int = 30, **env: str) -> PtyScreen:
        model = command.scenario(scenario(steps, lines))
        # `-v` prints the output of all agents; otherwise it would be in their streams.
        screens.append(PtyScreen(command, "--model", model, "-v", *args, columns=columns, rows=rows, **env))
        screens[-1].wait(r"^> *$")
        return screens[-1]

    yield start
    for one in screens:
        one.close()


def check_order(shown: str, steps: int, lines: int) -> None:
    """Check that every line appears once, each block in one piece, and each agent's blocks in order."""
    tokens = [tuple(map(int, found)) for found in TOKEN.findall(shown)]
    assert len(tokens) == len(set(tokens)) == AGENTS * steps * lines
    blocks = [(block, [line for *_, line in found]) for block, found in groupby(tokens, lambda one: one[:2])]
    assert len(blocks) == AGENTS * steps, "a block is in one piece"
    assert all(found == list(range(lines)) for _, found in blocks)
    for agent in range(AGENTS):
        assert [step for (who, step), _ in blocks if who == agent] == list(range(steps))


def typed_line(screen: PtyScreen) -> str:
    """Return the prompt line (the last row with its prefix) without joiners, which the window does not show."""
    return next((row for row in reversed(screen.rows_now()) if row.startswith(">")), "> ?")[2:]


def type_meanwhile(screen: PtyScreen, keys: list[str], total: int) -> None:
    """Type the keys while output arrives: each after some more of it has been written."""
    for number, key in enumerate(keys):
        wanted = total * number // (len(keys) + 1)
        screen.until(lambda wanted=wanted: screen.count(b"-end") >= wanted, f"{wanted} lines")
        screen.type(key)


def column_in_typed_line(screen: PtyScreen) -> int | None:
    """Return the column of the cursor, if it is in the typed line."""
    column, row = screen.cursor
    return column if screen.rows_now()[row].startswith("> ") else None


def stress(opened: Callable[..., PtyScreen], steps: int, lines: int) -> None:
    screen = opened(steps, lines)
    screen.type("go ahead\r")
    total = AGENTS * steps * lines
    type_meanwhile(screen, [*TYPED, "\x1b[D", "\x1b[D", "X"], total)
    screen.until(lambda: screen.count(b"-end") >= total, "all lines")
    sent = f"{TYPED[:-2]}X{TYPED[-2:]}"
    wanted = unicodedata.normalize("NFC", sent.replace("\u200d", ""))
    screen.until(lambda: typed_line(screen) == wanted, f"the typed line {wanted!r}")
    check_order(screen.text(), steps, lines)
    place = 2 + 5 + 1 + 4 + 1 + 1 + 1 + 4 + 1 + len("and so X")
    screen.until(
        lambda: column_in_typed_line(screen) == place, "the cursor is in its old place"
    )  # the status may be drawn
    screen.type("\r")
    screen.wait(rf"^> {re.escape(wanted)}$")
    screen.until(lambda: typed_line(screen) == "", "an empty line")
    screen.until(lambda: screen.text().count(wanted) == 1, "the sent line, once")
    assert sent in screen.output


@pytest.mark.slow
def test_six_agents_print_2000_lines_while_a_person_types(opened: Callable[..., PtyScreen]) -> None:
    stress(opened, steps=7, lines=48)


@pytest.mark.soak
def test_six_agents_print_for_long_while_a_person_types(opened: Callable[..., PtyScreen]) -> None:
    stress(opened, steps=40 * int(os.environ.get("SOAK", "1")), lines=60)


def test_the_window_changes_its_size_while_agents_print(opened: Callable[..., PtyScreen]) -> None:
    steps, lines = 4, 6
    screen = opened(steps, lines)
    screen.type("go ahead\r")
    total = AGENTS * steps * lines
    sizes = [(60, 20), (20, 10), (132, 50), (21, 6), (100, 30)]
    for number, (columns, rows) in enumerate(sizes):
        wanted = total * number // (len(sizes) + 1)
        screen.until(lambda wanted=wanted: screen.count(b"-end") >= wanted, f"{wanted} lines")
        screen.resize(columns, rows)
        screen.type("abcde"[number])
    screen.until(lambda: screen.count(b"-end") >= total, "all lines")
    screen.until(lambda: typed_line(screen) == "abcde", "the typed line")
    check_order(screen.output, steps, lines)


def test_what_is_pasted_is_one_text_whatever_is_printed(opened: Callable[..., PtyScreen]) -> None:
    steps, lines = 3, 8
    screen = opened(steps, lines)
    screen.type("go ahead\r")
    screen.until(lambda: screen.count(b"-end") > lines, "some lines")
    screen.type("\x1b[200~first\rsecond 日本\rthird\x1b[201~")
    screen.until(lambda: screen.count(b"-end") >= AGENTS * steps * lines, "all lines")
    screen.wait(r"third$")
    assert "first" in typed_line(screen)
    screen.type("\r")
    screen.wait_for_output(r"(?s)> first\s+second 日本\s+third.*I hear you")
    check_order(screen.text(), steps, lines)

"""Esc stops the turn and keeps the draft, closes a menu, and is no answer to a question."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.commands.command import Command
from tests.cli.repl.pty_screen import PtyScreen

SCENARIO = """
agents:
  lead:
    - when: {contains: wait long}
      reply: At last.
      latency_ms: 600000
    - when: {contains: make it}
      reply: [{tool_use: {name: bash, input: {command: make it}}}]
    - when: {contains: write much}
      reply: MUCH
    - {reply: "I see.", repeat: forever}
summaries:
  lead:
    - reply: I have read it all.
      latency_ms: 600000
""".replace("MUCH", "so many words " * 1_000)


@pytest.fixture
def screen(tmp_path: Path) -> Iterator[PtyScreen]:
    command = Command(tmp_path)
    window = PtyScreen(command, "--model", command.scenario(SCENARIO))
    try:
        window.wait(r"1 idle")
        yield window
    finally:
        window.close()


def test_it_stops_the_turn_and_keeps_the_draft(screen: PtyScreen) -> None:
    screen.type("wait long\r")
    screen.wait(r"1 working")
    screen.type("and then")
    screen.wait(r"^> and then$")
    screen.type("\x1b")
    screen.wait(r"(?s)^stopping the turn$.*^lead turn ended: interrupted.*^> and then$")
    screen.type("\r")
    screen.wait(r"(?s)^> and then$.*^lead I see\.$")


@pytest.mark.parametrize("key", ["\x1b", "\x03"])
def test_it_stops_a_compaction_between_turns_and_says_so(screen: PtyScreen, key: str) -> None:
    screen.type("write much\r")
    screen.wait(r"so many words(?s:.*)1 idle \| \d\d")
    for prompt in ("and then", "and now"):
        screen.type(f"{prompt}\r")
        screen.wait(rf"(?s)^> {prompt}$.*^lead I see\.$.*1 idle")
    screen.type("/compact\r")
    screen.wait(r"1 working")
    screen.type(key)
    screen.wait(r"(?s)^stopping the turn.*^lead summary failed: interrupted.*1 idle")
    screen.type("hello\r")
    screen.wait(r"(?s)^> hello$.*^lead I see\.$")


def test_a_signal_at_a_question_leaves_with_the_way_back(screen: PtyScreen) -> None:
    screen.type("make it\r")
    screen.wait(r"allow this\?")
    screen.process.send_signal(signal.SIGTERM)
    screen.wait(r"(?s)1 waits for you \(`callboard plans`\)$.*^the session is kept: .*^callboard: ended by SIGTERM$")
    assert screen.process.wait(180) == 143


def test_it_closes_a_menu(screen: PtyScreen) -> None:
    screen.type("wait long\r")
    screen.wait(r"1 working")
    screen.type("/sta")
    screen.wait(r"^ +/status")
    screen.type("\x1b")
    screen.until(lambda: not any(row.startswith("  /status") for row in screen.rows_now()), "the menu is closed")
    screen.wait(r"1 working")


def test_it_closes_the_tree_before_it_stops_the_turn(screen: PtyScreen) -> None:
    screen.type("wait long\r")
    screen.wait(r"1 working")
    screen.type("\x14")  # Ctrl-T
    screen.wait(r"^── the team ──")
    screen.type("\x1b")
    screen.wait(r"^lead +\d+ s +.*thinks$")
    screen.wait(r"1 working")
    screen.type("\x1b")
    screen.wait(r"(?s)^stopping the turn$.*^lead turn ended: interrupted")


def test_at_a_question_it_stops_the_turn_and_answers_nothing(screen: PtyScreen) -> None:
    screen.type("make it\r")
    screen.wait(r"allow this\?")
    time.sleep(0.6)  # keys typed sooner do not count
    screen.type("\x1b")
    screen.wait(r"(?s)\(not answered\)$.*^stopping the turn$.*^lead turn ended: interrupted.*1 idle")
    screen.type("hello\r")
    screen.wait(r"(?s)^> hello$.*^lead I see\.$")


def test_a_key_that_begins_with_it_is_another_key(screen: PtyScreen) -> None:
    screen.type("wait long\r")
    screen.wait(r"1 working")
    screen.type("ab\x1b[Dc\x1b\rd")  # Left, Alt-Enter
    screen.wait(r"^> ac$\n^  db$")
    screen.wait(r"1 working")

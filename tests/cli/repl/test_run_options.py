"""On a terminal, the options of `run` open the prompt line, unless one of them is only for a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.commands.command import Command
from tests.cli.repl.pty_screen import PtyScreen

SCENARIO = """
agents:
  lead:
    - when: {contains: touch}
      reply: [{tool_use: {name: bash, input: {command: touch made.txt}}}]
    - {reply: "I see.", repeat: forever}
"""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


def screen(command: Command, *args: str) -> PtyScreen:
    return PtyScreen(command, "--model", command.scenario(SCENARIO), *args)


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        (("--dangerously-skip-permissions",), r"^mode bypassPermissions \| 1 idle"),
        (("--effort", "low", "--add-dir", "/tmp", "/usr"), r"^mode default \| 1 idle"),
        (("--ide",), r"(?s)^callboard: --ide is ignored: no editor is connected$.*^mode default \| 1 idle"),
        (("--max-turns", "3", "Say it."), r"(?s)^> Say it\.$.*^lead I see\.$.*^mode default \| 1 idle"),
        (("Say it.", "--append-system-prompt", "Be short."), r"(?s)^> Say it\.$.*^lead I see\.$.*^mode default"),
    ],
)
def test_an_option_of_run_opens_the_prompt_line(command: Command, args: tuple[str, ...], shown: str) -> None:
    window = screen(command, *args)
    try:
        window.wait(shown)
    finally:
        window.close()


def test_the_options_take_effect_at_the_prompt_line(command: Command) -> None:
    window = screen(command, "--dangerously-skip-permissions")
    try:
        window.wait(r"1 idle")
        window.type("touch it\r")
        window.wait(r"^lead I see\.$")
        assert (command.workspace / "made.txt").exists(), "no one was asked"
    finally:
        window.close()


def test_the_mode_without_questions_can_be_chosen_only_if_the_line_allows_it(command: Command) -> None:
    window = screen(command, "--allow-dangerously-skip-permissions")
    try:
        window.wait(r"^mode default \| 1 idle")
        for mode in ("acceptEdits", "plan", "bypassPermissions"):
            window.type("\x1b[Z")
            window.wait(rf"^mode {mode} \| 1 idle")
    finally:
        window.close()


@pytest.mark.parametrize("args", [("-p",), ("--output-format", "json"), ("run",)])
def test_a_line_for_a_run_is_a_run(command: Command, args: tuple[str, ...]) -> None:
    before, after = (args, ()) if args == ("run",) else ((), args)
    ran = PtyScreen(command, *before, "--model", command.scenario(SCENARIO), "--effort", "low", *after, "Say it.")
    try:
        ran.wait(r"I see\.")
        assert ran.process.wait(60) == 0
        assert not any(row.startswith("mode ") for row in ran.rows_now())
    finally:
        ran.close()


def test_a_run_needs_the_name_of_the_session_that_it_resumes(command: Command) -> None:
    ran = command.run_inline("run", "--resume", "--print")
    assert ran.code == 2
    assert "--resume requires the id or the name of a session: `callboard sessions` lists them" in ran.err


def test_a_run_takes_names_of_claude_code(command: Command) -> None:
    line = ("--agent", "general-purpose", "--thinking", "enabled", "--brief", "--output-format", "json")
    ran = command.run_inline("run", "--model", command.scenario(SCENARIO), *line, "Say it.")
    assert ran.out, ran.err
    result = json.loads(ran.out)
    assert (ran.code, result["result"]) == (0, "I see.")
    assert result["usage"]["server_tool_use"] == {"web_search_requests": 0, "web_fetch_requests": 0}

"""The command line itself: help, names, errors, listings, docs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from tests.faces.command import Command

from callboard.__main__ import main
from callboard.faces.cli.reference import page
from callboard.faces.cli.root import COMMANDS, cli
from callboard.words.errors import StoreFull

GREET = """
agents:
  lead:
    - reply:
        - tool_use: {name: create_task, input: {subject: Read the file}}
        - tool_use: {name: todo_write, input: {todos: [{content: read, status: pending}]}}
    - reply: Done.
"""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


def test_the_page_of_the_command_line_is_what_the_commands_say() -> None:
    written = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    assert written == page(), "run: python -m callboard.faces.cli.reference > docs/cli.md"


def test_the_table_of_commands_has_the_words_of_the_commands() -> None:
    context = click.Context(cli)
    for name, (_, short) in COMMANDS.items():
        found = cli.get_command(context, name)
        assert found is not None
        assert found.name == name
        said = (found.help or "").splitlines()[0]
        assert said.replace("PROMPT", "a prompt").replace("SESSION (the current one)", "a session") == short


def test_help_imports_nothing_heavy() -> None:
    code = "import sys; from callboard.__main__ import main; code = main(['--help']); print(code, *sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    loaded = said.splitlines()[-1].split()
    assert loaded[0] == "0"
    assert not {"anthropic", "mcp", "prompt_toolkit", "pydantic", "anyio", "apsw", "rich"} & set(loaded)


def test_a_listing_imports_no_service_and_no_prompt_line() -> None:
    code = "import sys; from callboard.__main__ import main; main(['cron', 'list']); print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert not {"anthropic", "mcp", "uvicorn", "prompt_toolkit"} & set(ran.stdout.split())


@pytest.mark.parametrize("flag", ["-h", "--help"])
@pytest.mark.parametrize("name", [(), *((name,) for name in COMMANDS), ("cron", "add"), ("rehearse", "serve")])
def test_every_command_has_help(name: tuple[str, ...], flag: str) -> None:
    ran = CliRunner().invoke(cli, [*name, flag])
    assert ran.exit_code == 0
    assert ran.output.startswith("Usage: ")


def test_a_mistyped_command_is_told_what_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["taks"]) == 2
    assert "Did you mean tasks" in capsys.readouterr().err


def test_a_mistyped_option_is_told_what_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--max-turn", "3", "x"]) == 2
    assert "--max-turns" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("callboard ")


def raising(error: BaseException) -> click.Command:
    def fail() -> None:
        raise error

    return click.Command("fail", callback=fail)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return monkeypatch


def fail_with(error: BaseException, failing: pytest.MonkeyPatch, *args: str) -> int:
    failing.setattr(type(cli), "resolve_command", lambda self, ctx, given: ("fail", raising(error), given[1:]))
    return main([*args, "fail"])


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (StoreFull("no room on /disk: free some"), 3, "callboard: no room on /disk: free some\n"),
        (ExceptionGroup("g", [ExceptionGroup("h", [StoreFull("no room")])]), 3, "callboard: no room\n"),
        (KeyboardInterrupt(), 130, ""),
        (BaseExceptionGroup("g", [KeyboardInterrupt(), StoreFull("x")]), 130, ""),
        (SystemExit(143), 143, ""),
        (StoreFull("\x1b[2Jgone"), 3, "callboard: ?[2Jgone\n"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    error: BaseException, code: int, said: str, failing: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fail_with(error, failing) == code
    assert capsys.readouterr().err.lstrip("\n") == said


def test_a_bug_is_a_file_and_never_a_traceback_on_the_screen(
    failing: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert fail_with(ZeroDivisionError("oops"), failing) == 70
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert "ZeroDivisionError: oops" in said
    (kept,) = (tmp_path / "state" / "callboard" / "crashes").iterdir()
    assert str(kept) in said
    assert "Traceback" in kept.read_text()
    assert kept.stat().st_mode & 0o777 == 0o600


def test_debug_shows_the_traceback(failing: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert fail_with(ZeroDivisionError("oops"), failing, "--debug") == 70
    assert "Traceback" in capsys.readouterr().err


def test_listings_for_people_and_scripts(command: Command) -> None:
    assert command.here("run", "--model", command.scenario(GREET), "Go.").code == 0
    for name in ("sessions", "team", "tasks"):
        assert len(json.loads(command.here(name, "--json").out)) == 1
        shown = command.here(name)
        assert shown.code == 0
        assert len(shown.out.splitlines()) == (4 if name == "team" else 2)  # how it is hosted stands above the team
    assert "Read the file" in command.here("tasks").out
    assert command.here("plans", "--json").out == "[]\n"


def test_schedules_are_added_listed_and_removed(command: Command) -> None:
    assert command.here("run", "--model", command.scenario(GREET), "Go.").code == 0
    added = command.here("cron", "add", "0 9 * * mon-fri", "Look at the news", "--timezone", "Europe/Berlin")
    assert added.code == 0
    assert "at 09:00 on weekdays, Europe/Berlin" in added.out
    assert added.out.count("next:") == 5
    (schedule,) = json.loads(command.here("cron", "list", "--json").out)
    assert command.here("cron", "remove", schedule["id"]).code == 0
    (schedule,) = json.loads(command.here("cron", "list", "--json").out)
    assert schedule["state"] == "cancelled"
    wrong = command.here("cron", "add", "61 * * * *", "x")
    assert (wrong.code, "0 to 59" in wrong.err) == (2, True)


def test_without_a_terminal_the_prompt_line_says_what_to_use(command: Command) -> None:
    ran = command.here()
    assert ran.code == 2
    assert "callboard run" in ran.err


def test_a_folder_that_is_not_there_is_told(command: Command) -> None:
    ran = command.run("-C", "/nowhere", "tasks")
    assert ran.code == 3
    assert ran.err.startswith("callboard: /nowhere: No such file")


def test_the_doctor_says_what_is_there_and_what_is_not(command: Command) -> None:
    ran = command.here("doctor")
    assert ran.code == 0
    assert "found    git" in ran.out
    assert "missing  key" in ran.out
    assert "  level " in ran.out
    assert "does not stop" in ran.out
    (command.workspace.parent / "config" / "callboard").mkdir(parents=True)
    (command.workspace.parent / "config" / "callboard" / "settings.yaml").write_text("modell: x\n")
    ran = command.here("doctor", "--json")
    assert ran.code == 3
    assert [one["what"] for one in json.loads(ran.out) if one["state"] == "broken"] == ["settings"]


def test_b29_what_the_store_set_aside_is_told_by_doctor_run_and_resume(command: Command) -> None:
    hello = "agents: {lead: [{reply: Hello.}, {reply: Hello again.}]}"
    assert command.here("run", "--model", command.scenario(hello), "Say hello").code == 0
    (database,) = (command.workspace.parent / "state").rglob("callboard.db")
    aside = database.parent / "damaged" / ("0" * 64)
    aside.write_bytes(b"not what it was")
    told = command.here("doctor")
    assert "damaged  store" in told.out
    assert str(aside) in told.out
    assert "docs/store.md" in told.out
    for args in (["run", "--model", command.scenario(hello), "Again"], ["resume"]):
        ran = command.here(*args, "-q")
        assert f"set aside: {aside}" in ran.err
    aside.unlink()
    assert "set aside" not in command.here("resume").err
    assert "found    store" in command.here("doctor").out


def test_the_doctor_runs_no_program_of_the_workspace(command: Command) -> None:
    trap = command.workspace / "git"
    trap.write_text("#!/bin/sh\ntouch sprung\necho git version 9\n")
    trap.chmod(0o755)
    ran = command.here("doctor", PATH=f"{command.workspace}:{command.env['PATH']}")
    assert "git version 9" not in ran.out
    assert not (command.workspace / "sprung").exists()


def test_settings_say_where_they_came_from(command: Command) -> None:
    rows = json.loads(command.here("settings", "--json", CALLBOARD_MODEL="m").out)
    assert {"name": "model", "value": "m", "origin": "CALLBOARD_MODEL"} in rows


def test_a_rehearsal_is_served_until_it_is_ended(command: Command) -> None:
    scenario = command.scenario(GREET).removeprefix("rehearsal:")
    serving = command.start("rehearse", "serve", scenario)
    assert serving.stdout is not None
    try:
        assert serving.stdout.readline().startswith("listening on http://127.0.0.1:")
    finally:
        serving.terminate()
        serving.communicate(timeout=30)

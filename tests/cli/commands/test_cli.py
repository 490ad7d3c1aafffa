"""The command line itself: help, names, errors, listings, docs."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from tests.cli.commands.command import Command

from callboard import __version__
from callboard.__main__ import main
from callboard.cli.commands.reference import page
from callboard.cli.commands.root import COMMANDS, GROUPS, cli
from callboard.types.errors import StoreFull

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
    written = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()
    assert written == page(), "run: python -m callboard.cli.commands.reference > docs/cli.md"


def test_the_table_of_commands_has_the_words_of_the_commands() -> None:
    context = click.Context(cli)
    for name, (_, short) in COMMANDS.items():
        found = cli.get_command(context, name)
        assert found is not None
        assert found.name == name
        said = (found.help or "").splitlines()[0]
        assert (
            said.replace("PROMPT", "a prompt")
            .replace("FILE", "a file")
            .replace("SESSION (the current one)", "a session")
            == short
        )


def test_help_imports_nothing_heavy() -> None:
    code = "import sys; from callboard.__main__ import main; code = main(['--help']); print(code, *sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    loaded = said.splitlines()[-1].split()
    assert loaded[0] == "0"
    assert not {"anthropic", "mcp", "prompt_toolkit", "pydantic", "anyio", "apsw", "rich"} & set(loaded)


@pytest.mark.slow
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


def test_an_error_breaks_between_words_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    with open(theirs, "w", encoding="utf-8") as screen, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", screen)
        assert main(["--model", "x", "sessions"]) == 2
    shown = b""
    with contextlib.suppress(OSError):  # EIO: the other end is closed, and everything has been read
        while True:
            shown += os.read(ours, 65_536)
    os.close(ours)
    lines = shown.decode().splitlines()
    assert len(lines) > 2
    assert all(len(one) <= 40 for one in lines), lines
    assert "before `sessions` has no effect: write it after `sessions`" in " ".join(lines)


@pytest.mark.parametrize("option", [["--model", "x"], ["--permission-mode", "plan"], ["--trust"], ["-c"]])
def test_an_option_of_the_prompt_line_before_a_command_is_refused(
    option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*option, "sessions"]) == 2
    assert "before `sessions` has no effect: write it after `sessions`" in capsys.readouterr().err
    assert main(["-q", "sessions", "--help"]) == 0


@pytest.mark.parametrize("option", ["--version", "-v"])
def test_version(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([option]) == 0
    assert capsys.readouterr().out == f"callboard {__version__}\n"


def test_v_with_anything_else_means_verbose(command: Command) -> None:
    run = command.run_inline("-v", "-p", "hello", "--model", command.scenario("agents: {lead: [{reply: Hi}]}"))
    assert run.out == "Hi\n"
    assert "asks rehearsal" in run.err


def failing_command(error: BaseException) -> click.Command:
    def fail() -> None:
        raise error

    return click.Command("fail", callback=fail)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return monkeypatch


def fail_with(error: BaseException, failing: pytest.MonkeyPatch, *args: str) -> int:
    failing.setattr(type(cli), "resolve_command", lambda self, ctx, given: ("fail", failing_command(error), given[1:]))
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
    ran = command.run_inline("run", "--model", command.scenario(GREET), "Go.")
    assert (ran.code, "still open:" in ran.err) == (1, True), "the task that it created is not done"
    for name in ("sessions", "team", "tasks"):
        assert len(json.loads(command.run_inline(name, "--json").out)) == 1
        shown = command.run_inline(name)
        assert shown.code == 0
        assert len(shown.out.splitlines()) == (4 if name == "team" else 2)  # the host's line comes before the team
    assert "Read the file" in command.run_inline("tasks").out
    assert command.run_inline("plans", "--json").out == "[]\n"


def test_schedules_are_added_listed_and_removed(command: Command) -> None:
    ran = command.run_inline("run", "--model", command.scenario(GREET), "Go.")
    assert (ran.code, "still open:" in ran.err) == (1, True), "the task that it created is not done"
    added = command.run_inline("cron", "add", "0 9 * * mon-fri", "Look at the news", "--timezone", "Europe/Berlin")
    assert added.code == 0
    assert "at 09:00 on weekdays, Europe/Berlin" in added.out
    assert added.out.count("next:") == 5
    (schedule,) = json.loads(command.run_inline("cron", "list", "--json").out)
    assert command.run_inline("cron", "remove", schedule["id"]).code == 0
    (schedule,) = json.loads(command.run_inline("cron", "list", "--json").out)
    assert schedule["state"] == "cancelled"
    wrong = command.run_inline("cron", "add", "61 * * * *", "x")
    assert (wrong.code, "0 to 59" in wrong.err) == (2, True)


def test_without_a_terminal_the_prompt_line_says_what_to_use(command: Command) -> None:
    ran = command.run_inline()
    assert ran.code == 2
    assert "callboard run" in ran.err


def test_a_folder_that_is_not_there_is_told(command: Command) -> None:
    ran = command.run("-C", "/nowhere", "tasks")
    assert ran.code == 3
    assert ran.err.startswith("callboard: /nowhere: No such file")


def test_the_doctor_says_what_is_there_and_what_is_not(command: Command) -> None:
    ran = command.run_inline("doctor")
    assert ran.code == 0
    assert "found    git" in ran.out
    assert "missing  key" in ran.out
    assert "  level " in ran.out
    assert "does not stop" in ran.out
    (command.workspace.parent / "config" / "callboard").mkdir(parents=True)
    (command.workspace.parent / "config" / "callboard" / "settings.yaml").write_text("modell: x\n")
    ran = command.run_inline("doctor", "--json")
    assert ran.code == 3
    assert [one["what"] for one in json.loads(ran.out) if one["state"] == "broken"] == ["settings"]


@pytest.mark.slow
def test_doctor_run_and_resume_say_what_the_store_set_aside(command: Command) -> None:
    hello = "agents: {lead: [{reply: Hello.}, {reply: Hello again.}]}"
    assert command.run_inline("run", "--model", command.scenario(hello), "Say hello").code == 0
    (database,) = (command.workspace.parent / "state").rglob("callboard.db")
    aside = database.parent / "damaged" / ("0" * 64)
    aside.write_bytes(b"not what it was")
    told = command.run_inline("doctor")
    assert "damaged  store" in told.out
    assert f"{aside}. The rest is used as it is. Move it away when it is no longer needed" in told.out
    for args in (["run", "--model", command.scenario(hello), "Again"], ["resume"]):
        ran = command.run_inline(*args, "-q")
        assert f"set aside: {aside}" in ran.err
    others = [aside.with_name(str(number) * 64) for number in range(1, 5)]
    for other in others:
        other.write_bytes(b"nor this")
    ran = command.run_inline("resume", "-q")
    assert ran.err.count("set aside") == 1
    assert (
        f"the store: 5 damaged files are set aside in {aside.parent}. The rest is used as it is. Move them" in ran.err
    )
    assert command.run_inline("doctor").out.count("set aside in") == 1
    for file in (aside, *others):
        file.unlink()
    whole = database.with_name("callboard.db.damaged-20261122")
    whole.write_bytes(b"no database")
    assert f"`callboard restore {whole}` restores its readable data" in command.run_inline("doctor").out
    whole.unlink()
    assert "set aside" not in command.run_inline("resume").err
    assert "found    store" in command.run_inline("doctor").out


@pytest.mark.slow
def test_the_doctor_starts_a_command_in_the_sandbox_and_says_why_that_fails(command: Command, tmp_path: Path) -> None:
    """The machine's own check of bubblewrap may succeed, but a command's sandbox needs more."""
    folder = tmp_path / "programs"
    folder.mkdir()
    bwrap = folder / "bwrap"
    bwrap.write_text(
        '#!/bin/sh\ncase "$*" in *" -c :") exit 0;; esac\necho "bwrap: cannot cover a socket" >&2; exit 1\n'
    )
    bwrap.chmod(0o755)
    ran = command.run_inline("doctor", PATH=f"{folder}:{command.env['PATH']}")
    (line,) = [line for line in ran.out.splitlines() if " sandbox " in line]
    assert line.startswith("broken   sandbox    level 2: ")
    assert "bwrap: cannot cover a socket" in line
    assert "-> no command runs until this works" in ran.out
    assert ran.code == 3
    assert "broken   sandbox" not in command.run_inline("doctor").out, "with the machine's own programs"


def test_the_doctor_runs_no_program_of_the_workspace(command: Command) -> None:
    trap = command.workspace / "git"
    trap.write_text("#!/bin/sh\ntouch sprung\necho git version 9\n")
    trap.chmod(0o755)
    ran = command.run_inline("doctor", PATH=f"{command.workspace}:{command.env['PATH']}")
    assert "git version 9" not in ran.out
    assert not (command.workspace / "sprung").exists()


def test_settings_list_what_was_changed_and_all_on_request(command: Command) -> None:
    ran = command.run_inline("settings", CALLBOARD_MODEL="m")
    assert [line.split() for line in ran.out.splitlines()[1:]] == [["model", '"m"', "CALLBOARD_MODEL"]]
    assert "settings have their built-in values: callboard config list --all" in ran.err
    assert len(command.run_inline("settings", "--all").out.splitlines()) > 100


def test_each_command_stands_in_one_section_of_the_help() -> None:
    text = CliRunner().invoke(cli, ["--help"]).output
    titles = [line for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert titles == ["Options:", *(f"{title}:" for title in GROUPS)]
    listed = re.findall(r"^  ([a-z]+)  +[A-Z]", text, re.MULTILINE)
    assert sorted(listed) == sorted(COMMANDS)


def test_settings_say_where_they_came_from(command: Command) -> None:
    rows = json.loads(command.run_inline("settings", "--json", CALLBOARD_MODEL="m").out)
    assert {"name": "model", "value": "m", "origin": "CALLBOARD_MODEL"} in rows


@pytest.mark.slow
def test_a_rehearsal_is_served_until_it_is_ended(command: Command) -> None:
    scenario = command.scenario(GREET).removeprefix("rehearsal:")
    serving = command.start("rehearse", "serve", scenario)
    assert serving.stdout is not None
    try:
        assert serving.stdout.readline().startswith("listening on http://127.0.0.1:")
    finally:
        serving.terminate()
        serving.communicate(timeout=180)


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (["auth", "login"], "set ANTHROPIC_API_KEY"),
        (["setup-token"], "set ANTHROPIC_API_KEY"),
        (["install"], "callboard update"),
        (["run", "--teleport", "x"], "use --resume ID"),
        (["run", "--from-pr", "12", "x"], "not linked to pull requests"),
        (["plugin", "uninstall", "x"], "no plugin is installed"),
        (["plugin", "details", "x"], "counts the parts of each plugin"),
        (["plugin", "install", "x", "--scope", "project"], "in all workspaces"),
        (["plugin", "marketplace", "update"], "read a marketplace again"),
        (["plugins", "remove", "x"], "no plugin is installed"),
        (["mcp", "add-from-claude-desktop"], "callboard mcp add-json NAME JSON"),
        (["mcp", "login", "sentry"], "--header"),
        (["init"], "Write an AGENTS.md"),
        (["commit"], "callboard run"),
        (["stats"], "callboard cost"),
        (["explaim"], "callboard -p explaim"),
        (["run", "--remote-control", "x"], "callboard attach"),
    ],
)
def test_what_people_type_for_claude_code_gets_an_answer_that_helps(
    command: Command, line: list[str], answer: str
) -> None:
    ran = command.run_inline(*line)
    assert ran.code == 2
    assert answer in ran.err


def test_commands_have_the_other_names_of_claude_code(command: Command) -> None:
    assert command.run_inline("upgrade").out.startswith("callboard ")
    assert command.run_inline("config", "ls").code == 0
    assert "there is no marketplace" in command.run_inline("plugins", "marketplace", "ls").out
    (command.workspace / ".mcp.json").write_text('{"mcpServers": {"a": {"command": "a"}}}')
    assert command.run_inline("trust", "--yes").code == 0
    ran = command.run_inline("mcp", "reset-project-choices")
    assert ran.out == f"no longer trusted: {command.workspace}\n"
    assert json.loads(command.run_inline("trust", "show", "--json").out)[0]["trusted"] is False

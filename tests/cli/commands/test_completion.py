"""Completion: the offers after each beginning of a line, and their display in real shells."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cli.commands.command import Command

from callboard.adapters.storage.quick_names import glance
from callboard.cli.commands.command_tree import shape
from callboard.cli.commands.completion import SHELLS, Choice, find_completions, shell_words

COMMANDS_FILE = Path(__file__).parents[3] / "runtime" / "callboard" / "data" / "commands.json"
SHAPE: Mapping[str, Any] = json.loads(COMMANDS_FILE.read_text("utf-8"))
NAMES: Mapping[str, Sequence[Choice]] = {
    "session": [("20261122-aaaa", "Mend it"), ("20261121-bbbb", "")],
    "agent": [("lead", "lead, idle"), ("alice", "tests, working")],
    "request": [("req_abc", "plan of alice")],
    "schedule": [("nightly", "@daily: look"), ("cron_abc", "@daily: look")],
    "model": [("rehearsal:", "a scenario file")],
    "agent_type": [("explore", "bundled")],
    "task": [("task_x", "ready: \x1b[2Jgone\n"), ("odd; rm -rf x", "")],
}


def words(*typed: str) -> list[str]:
    return [word for word, _ in find_completions(typed, SHAPE, lambda kind, said: NAMES.get(kind, [])).choices]


def test_the_shape_of_the_commands_is_what_the_commands_say() -> None:
    assert COMMANDS_FILE.read_text("utf-8") == shape(), (
        "run: python -m callboard.cli.commands.command_tree > runtime/callboard/data/commands.json"
    )


@pytest.mark.parametrize(
    ("typed", "first"),
    [
        (["ru"], ["run"]),
        (["cron", "ad"], ["add"]),
        (["help", "cos"], ["cost"]),
        (["run", "--max-tu"], ["--max-turns"]),
        (["-p", "--max-tu"], ["--max-turns"]),
        (["run", "--output-format", ""], ["text", "json", "stream-json"]),
        (["run", "--output-format=st"], ["stream-json"]),
        (["run", "--permission-mode", "acc"], ["acceptEdits"]),
        (["--permission-mode", "acc"], ["acceptEdits"]),
        (["run", "--model", "reh"], ["rehearsal:"]),
        (["-q", "approve", ""], ["req_abc"]),
        (["approve", "req_abc", ""], []),
        (["approve", "--why", "yes", "r"], ["req_abc"]),
        (["attach", ""], ["20261122-aaaa", "20261121-bbbb"]),
        (["--resume", "20261121"], ["20261121-bbbb"]),
        (["team", "kill", "a"], ["alice"]),
        (["--agent", ""], ["explore"]),
        (["run", "--agent="], ["explore"]),
        (["cron", "add", "--agent-type", ""], ["explore"]),
        (["cron", "add", "--overlap", "re"], ["replace"]),
        (["send", "hello", "--to", ""], ["lead", "alice"]),
        (["tasks", "show", ""], ["task_x"]),
        (["nonsense", "--whatever", ""], []),
        (["run", "--", "--max"], []),
        (["completion", "z"], ["zsh"]),
    ],
)
def test_what_is_offered(typed: list[str], first: list[str]) -> None:
    assert words(*typed) == first


@pytest.mark.parametrize(
    ("typed", "kind"),
    [
        (["-C", ""], "dir"),
        (["run", "--add-dir", ""], "dir"),
        (["--mcp-config", ""], "file"),
        (["run", "--record", "x"], "file"),
        (["run", "--model", "rehearsal:gr"], "file"),
        (["rehearse", "serve", "gr"], "file"),
    ],
)
def test_paths_are_left_to_the_shell(typed: list[str], kind: str) -> None:
    assert find_completions(typed, SHAPE, lambda kind, said: []).kind == kind


def test_an_option_that_stands_there_is_not_offered_again() -> None:
    assert "--model" not in words("run", "--model", "m", "--mo")
    assert "--allowed-tools" in words("run", "--allowed-tools", "x", "--allow")


def test_what_the_line_says_so_far_is_told_to_who_knows_the_names() -> None:
    told: list[tuple[str, Mapping[str, str]]] = []
    find_completions(
        ["-C", "there", "approve", "--session=2026", ""], SHAPE, lambda kind, said: told.append((kind, said)) or []
    )
    assert told == [("request", {"dir": "there", "session": "2026"})]


def test_a_name_or_a_word_about_it_can_do_nothing_to_a_shell_or_a_screen() -> None:
    (found,) = find_completions(["tasks", "show", ""], SHAPE, lambda kind, said: NAMES[kind]).choices
    assert found == ("task_x", "ready: ?[2Jgone")


def test_words_that_bash_cut_and_quoted_are_whole_again() -> None:
    cut = ["callboard", "-C", '"my folder"', "run", "--model", "rehearsal", ":", "gr", "--session", "=", "ab"]
    assert shell_words(cut, 10) == ["-C", "my folder", "run", "--model", "rehearsal:gr", "--session=ab"]
    assert shell_words(cut, 9)[-1] == "--session="
    assert shell_words(["callboard", "ru", "later"], 1) == ["ru"]
    assert shell_words(["callboard", "-C", '"half a na'], 2) == ["-C", "half a na"]
    assert shell_words(["callboard"], 1) == [""]


ODD = st.sampled_from([*SHAPE, "--model", "-C", "--session=", "=", ":", "--", "", "-q", "'", "x", "help"])


@given(st.lists(ODD, max_size=8))
@settings(max_examples=40)
def test_no_line_is_too_odd_for_it(line: list[str]) -> None:
    parts = [part for entry in line for part in (entry.split() or [""])]
    find_completions(shell_words(["callboard", *parts], len(parts)), SHAPE, lambda kind, said: NAMES.get(kind, []))


# With a store


TEAM = """
agents:
  lead:
    - reply:
        - tool_use: {name: create_task, input: {subject: Read the file}}
    - capture: {task: 'task_[a-z2-7]{12}'}
      reply:
        - tool_use: {name: update_task, input: {task_id: '${task}', status: cancelled}}
        - tool_use: {name: spawn_teammate, input: {name: alice, role: tests, prompt: Wait.}}
    - otherwise: true
      reply: Done.
  alice:
    - otherwise: true
      reply: I wait.
"""


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """A workspace with a session, an agent, a task, and a schedule."""
    command = Command(tmp_path_factory.mktemp("completing"))
    ran = command.run_inline("run", "--model", command.scenario(TEAM), "Go.")
    assert ran.code == 0, ran.err
    assert command.run_inline("cron", "add", "0 9 * * *", "Look at the news").code == 0
    folder = command.workspace.parent / "bin"
    folder.mkdir()
    (folder / "callboard").write_text(f'#!/bin/sh\nexec {sys.executable} -m callboard "$@"\n')
    (folder / "callboard").chmod(0o755)
    command.env["PATH"] = f"{folder}:{command.env['PATH']}"
    return command


def completions(command: Command, *typed: str) -> list[str]:
    ran = command.run_inline("_complete", str(len(typed)), "--", "callboard", *typed)
    assert (ran.code, ran.err) == (0, "")
    return ran.out.splitlines()


def test_names_come_from_the_store(command: Command) -> None:
    (session,) = json.loads(command.run_inline("sessions", "--json").out)
    assert [line.split("\t") for line in completions(command, "attach", "")] == [["values"], [session["id"], "Go."]]
    assert [line.split("\t")[0] for line in completions(command, "inbox", "a")] == ["values", "alice"]
    assert completions(command, "tasks", "show", "task_")[1].endswith(": Read the file")
    assert completions(command, "cron", "show", "")[1].endswith("\t0 9 * * *: Look at the news")
    assert completions(command, "tasks", "--session", "none-begins-so", "show", "") == ["values"]


def test_agent_types_and_models_are_offered_without_a_store(tmp_path: Path) -> None:
    command = Command(tmp_path)
    folder = command.workspace / ".claude" / "agents" / "data"
    folder.mkdir(parents=True)
    (folder / "file.md").write_text('---\ndescription: Migrates.\nname: "migrator"\n---\nYou migrate.\n')
    (folder / "README.md").write_text("no front matter\n")
    offer = completions(command, "run", "--agent", "")
    assert [line.split("\t")[0] for line in offer[:3]] == ["values", "migrator", "explore"]
    assert [line.split("\t")[0] for line in completions(command, "agents", "show", "m")] == ["values", "migrator"]
    assert "claude-sonnet-5\t" in completions(command, "--model", "claude-s")


def test_completion_makes_nothing_and_says_nothing_where_there_is_no_store(tmp_path: Path) -> None:
    command = Command(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert completions(command, "attach", "") == ["values"]
    assert completions(command, "-C", "/nowhere/at/all", "attach", "") == ["values"]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("damage", [b"", b"not a database at all" * 300])
def test_a_store_that_cannot_be_read_offers_no_names(
    damage: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = Command(tmp_path)
    assert command.run_inline("run", "--model", command.scenario(TEAM), "Go.").code == 0
    monkeypatch.setenv("XDG_STATE_HOME", command.env["XDG_STATE_HOME"])
    assert glance(command.workspace, "session")
    (database,) = (tmp_path / "state").rglob("callboard.db")
    database.write_bytes(damage)
    before = sorted((tmp_path / "state").rglob("*"))
    assert glance(command.workspace, "session") == ()
    assert sorted((tmp_path / "state").rglob("*")) == before


def test_completion_imports_no_command_and_nothing_heavy(command: Command) -> None:
    asked = ["callboard", "_complete", "2", "--", "callboard", "attach", ""]
    code = f"import sys; sys.argv = {asked!r}; from callboard.__main__ import main; main(); print(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=command.env,
        cwd=command.workspace,
    )
    loaded = set(ran.stdout.splitlines()[-1].split())
    assert "values" in ran.stdout
    assert (
        not {
            "anyio",
            "asyncio",
            "pydantic",
            "apsw",
            "anthropic",
            "callboard.sessions.hosted",
            "callboard.cli.commands.run",
        }
        & loaded
    )


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_a_shell_says_how_to_keep_it(shell: str, command: Command) -> None:
    ran = command.run_inline("completion", shell)
    assert ran.code == 0
    assert f"callboard completion {shell} >" in ran.out
    if found := shutil.which(shell):
        assert subprocess.run([found, "-n"], input=ran.out, text=True, check=False, timeout=180).returncode == 0


BASH = """
eval "$(callboard completion bash)"
for line in "$@"; do
    read -ra COMP_WORDS <<< "$line"
    [[ $line == *' ' ]] && COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMP_LINE=$line COMP_POINT=${#line}
    _callboard callboard "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
    echo "${COMPREPLY[*]}"
done
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes(command: Command) -> None:
    asked = ["callboard comp", "callboard inbox a", "callboard tasks --status = in"]
    ran = subprocess.run(
        ["bash", "--norc", "-c", BASH, "bash", *asked],
        capture_output=True,
        text=True,
        env=command.env,
        cwd=command.workspace,
        check=True,
        timeout=180,
    )
    assert (ran.stdout.splitlines(), ran.stderr) == (["completion", "alice", "in_progress"], "")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes(command: Command) -> None:
    (command.workspace / "plan.yaml").touch()
    asked = ["inbox a", "run --model rehearsal:pl", "run --record=pl"]
    lines = [f'complete -C "callboard {line}"' for line in asked]
    script = "; ".join(["callboard completion fish | source", *lines])
    ran = subprocess.run(
        ["fish", "--no-config", "-c", script],
        capture_output=True,
        text=True,
        env=command.env,
        cwd=command.workspace,
        check=True,
        timeout=180,
    )
    assert ran.stderr == ""
    assert [line.split("\t")[0] for line in ran.stdout.splitlines()] == [
        "alice",
        "rehearsal:plan.yaml",
        "--record=plan.yaml",
    ]

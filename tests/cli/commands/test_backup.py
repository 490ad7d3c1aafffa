"""`callboard backup` and `restore`: a session continues from a backup, and from the rest of a damaged database."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.cli.commands.command import Command
from tests.simulation.processes import started
from tests.simulation.serving import new_session

from callboard.adapters.storage.sqlite.schema import PAGE_BYTES

SCENARIO = """
agents:
  lead:
    - reply: [{tool_use: {name: bash, input: {command: "touch began; until [ -e go ]; do sleep 0.05; done"}}}]
    - reply: Done as asked.
"""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


def state_of(command: Command) -> Path:
    (database,) = Path(command.env["XDG_STATE_HOME"]).glob("callboard/*/callboard.db")
    return database.parent


@pytest.mark.slow
def test_a_session_goes_on_from_a_backup_that_was_made_while_it_ran(command: Command) -> None:
    model = command.scenario(SCENARIO)
    backup = command.workspace.parent / "backup.tar.gz"
    with started(command, "run", "--permission-mode", "bypassPermissions", "--model", model, "Hello.") as running:
        while not (command.workspace / "began").exists():
            assert running.process.poll() is None
        made = command.run_inline("backup", str(backup))
        assert made.code == 0, made.err
        refused = command.run_inline("restore", str(backup), "--replace")
        assert (refused.code, "end it first" in refused.err) == (2, True)
    for kind in ("STATE", "DATA"):
        shutil.rmtree(command.env[f"XDG_{kind}_HOME"])
    restored = command.run_inline("restore", str(backup))
    assert (restored.code, "1 session restored" in restored.out) == (0, True), restored.err
    (command.workspace / "go").touch()
    resumed = command.run_inline("resume")
    assert (resumed.code, resumed.out) == (0, "Done as asked.\n"), resumed.err
    assert state_of(command).stat().st_mode & 0o777 == 0o700


@pytest.mark.slow
def test_sessions_are_replaced_only_when_told_to_and_kept_aside(command: Command) -> None:
    first = new_session(command)
    backup = command.workspace.parent / "backup.tar.gz"
    assert command.run_inline("backup", str(backup)).code == 0
    assert command.run_inline("backup", str(backup)).code == 2
    second = new_session(command)
    assert command.run_inline("restore", str(backup)).code == 2
    assert command.run_inline("restore", str(backup), "--replace").code == 0
    listed = command.run_inline("sessions").out
    assert (first in listed, second in listed) == (True, False)
    assert list(state_of(command).glob("replaced-*/callboard.db"))
    assert command.run_inline("restore", str(command.workspace.parent / "scenario.yaml"), "--replace").code == 3


@pytest.mark.slow
def test_what_is_readable_of_a_damaged_database_is_brought_back_as_advised(command: Command) -> None:
    sessions = [new_session(command) for _ in range(2)]
    database = state_of(command) / "callboard.db"
    data = database.read_bytes()
    first, second = (session.encode() for session in sessions)
    pages = {at: data[at : at + PAGE_BYTES] for at in range(0, len(data), PAGE_BYTES)}
    hit = max(at for at, page in pages.items() if page[0] == 13 and first in page and second not in page)
    database.write_bytes(data[:hit] + bytes(PAGE_BYTES) + data[hit + PAGE_BYTES :])
    told = command.run_inline("sessions")
    assert told.code == 3
    advice = told.err.partition("`callboard restore ")[2].partition("`")[0]
    assert command.run_inline("sessions").out.startswith("no session yet")
    restored = command.run_inline("restore", advice)
    assert restored.code == 0, restored.err
    again = command.run_inline("run", "--resume", sessions[1], "Once more.")
    assert (again.code, again.out) == (0, "Done as asked.\n"), again.err


def test_a_restore_of_a_database_without_a_readable_session_fails_and_says_so(command: Command) -> None:
    new_session(command)
    database = state_of(command) / "callboard.db"
    data = database.read_bytes()
    database.write_bytes(data[:4096] + bytes(len(data) - 4096))  # only the names of its tables remain
    told = command.run_inline("sessions")
    assert (told.code, told.err.count("\n"), "***" in told.err) == (3, 1, False), told.err
    advice = told.err.partition("`callboard restore ")[2].partition("`")[0]
    restored = command.run_inline("restore", advice)
    assert (restored.code, f"no session of {advice} could be read" in restored.out) == (1, True), restored.out

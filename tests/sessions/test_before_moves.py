"""A killed session and a cassette from the commit before the modules moved both continue with this version.

That commit wrote the files in `before_moves/`, which never change. The session was killed with kill -9 while its lead
ran a command and a teammate was idle.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from tests.cli.commands.command import Command

OLD = Path(__file__).with_name("before_moves")
MODEL = f"rehearsal:{OLD / 'scenario.yaml'}"


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


def restored(command: Command) -> None:
    done = command.run_inline("restore", str(OLD / "session.tar.gz"))
    assert (done.code, "2 sessions restored" in done.out) == (0, True), done.err


def test_a_killed_session_is_restored_and_goes_on(command: Command) -> None:
    restored(command)
    ran = command.run_inline("run", "-c", "Go on", "--model", MODEL)
    assert ran.code == 1, "its task is still open"
    assert "The command ended." in ran.out + ran.err, "said first or last, depending on the mail"
    assert ran.out in ("The command ended.\n", "So be it.\n"), ran.out
    assert "alice: continues where it was" in ran.err
    assert "The runtime stopped while this command was under way" in ran.err
    tasks = json.loads(command.run_inline("tasks", "--json").out)
    assert [task["subject"] for task in tasks] == ["Count the lines"]


def test_a_session_that_ended_in_order_goes_on_from_its_snapshots(command: Command) -> None:
    restored(command)
    (database,) = Path(command.env["XDG_STATE_HOME"]).glob("callboard/*/callboard.db")
    with contextlib.closing(sqlite3.connect(database)) as store:
        ((session,),) = store.execute("SELECT DISTINCT substr(key, 6, 22) FROM row WHERE key LIKE 'snap/%'").fetchall()
    ran = command.run_inline("run", "--resume", session, "Go on", "--model", MODEL)
    assert (ran.code, ran.out) == (1, "So be it.\n"), ran.err


def test_a_cassette_replays_to_the_same_words(command: Command, tmp_path: Path) -> None:
    cassette = shutil.copy(OLD / "cassette.jsonl", tmp_path)
    ran = command.run_inline(
        "run", "Do it", "--model", f"cassette:{cassette}", "--permission-mode", "bypassPermissions"
    )
    assert ran.out == "So be it.\n", ran.err
    assert "alice: Alice is done." in ran.err
    assert ran.code == 1, "its task is still open"

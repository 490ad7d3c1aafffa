"""`callboard tasks`: the board for people and scripts, a person's changes to tasks, and changes as they happen."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import anyio
import pytest
from tests.cli.commands.command import Command
from tests.warm import Process

from callboard.adapters.storage.sqlite import open_store
from callboard.cli.views.tasks import change_line, matches_status, tasks_table
from callboard.core.keys import agent_key, mailbox, task_key
from callboard.core.tasks.board import by_id
from callboard.engine.row_cache import RowCache
from callboard.ports.store import Put
from callboard.sessions.inspect.tasks import NewTask, TaskInspector
from callboard.types.errors import UsageError
from callboard.types.records import AgentRow, Envelope, Task

HELLO = """
agents:
  lead:
    - reply: Hello.
      repeat: forever
"""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    command = Command(tmp_path)
    assert command.run_inline("run", "--model", command.scenario(HELLO), "Go.").code == 0
    return command


def tasks_of(command: Command, *args: str) -> list[dict[str, Any]]:
    return json.loads(command.run_inline("tasks", *args, "--json").out)


def test_a_person_adds_gives_takes_back_cancels_and_reads_tasks(command: Command) -> None:
    assert command.run_inline("tasks").out == "the board is empty\n"
    added = command.run_inline("tasks", "add", "Write the parser", "--file", "./src/*.py", "--check", "make test")
    assert added.code == 0
    assert " ready " in added.out
    assert command.run_inline("tasks", "--status", "failed").out == "no task has the status failed\n"
    (first,) = tasks_of(command)
    assert (first["created_by"], first["cause"], first["check_by"], first["files"]) == (
        "person",
        "person",
        "person",
        ["src/*.py"],
    )
    name = first["id"].removeprefix("task_")[:6]
    assert command.run_inline("tasks", "add", "Test it", "--after", name, "--owner", "lead").code == 0
    (second,) = tasks_of(command, "--status", "pending")[1:]
    assert (second["blocked_by"], second["reserved_for"]) == ([first["id"]], "lead")
    assert [one["id"] for one in tasks_of(command, "--status", "ready")] == [first["id"]]
    whole = command.run_inline("tasks", "show", name).out
    assert "Check:\nmake test\n(set by person; complete_task runs it)" in whole
    assert json.loads(command.run_inline("tasks", "show", name, "--json").out) == first
    assert command.run_inline("tasks", "assign", name, "lead").code == 0
    assert " for lead " in command.run_inline("tasks").out
    assert command.run_inline("tasks", "release", name).code == 0
    assert tasks_of(command)[0]["reserved_for"] == ""
    assert command.run_inline("tasks", "cancel", name).code == 0
    assert [one["id"] for one in tasks_of(command, "--status", "cancelled")] == [first["id"]]


def test_what_is_wrong_is_said_and_nothing_is_changed_from_inside_a_tool(command: Command) -> None:
    assert command.run_inline("tasks", "add", "A").code == 0
    (task,) = tasks_of(command)
    for line, words in (
        (("assign", task["id"], "carol"), "'carol' takes no task"),
        (("cancel", "nothing"), "unknown task 'nothing': choose task_"),
        (("reopen", task["id"]), "only a failed task is reopened"),
        (("add", " "), "subject: "),
        (("add", "B", "--file", "/etc/passwd"), "files: "),
        (("add", "B", "--after", "task_none"), "unknown task 'task_none'"),
        (("add", "B", "--owner", "carol"), "takes no task"),
    ):
        ran = command.run_inline("tasks", *line)
        assert (ran.code, words in ran.err) == (2, True), (line, ran.err)
    for line in (("add", "B"), ("assign", task["id"], "lead"), ("release", "x"), ("cancel", "x"), ("reopen", "x")):
        assert command.run_inline("tasks", *line, CALLBOARD_TOOL="1").code == 2
    assert tasks_of(command) == [task]
    assert command.run_inline("tasks", "--json", CALLBOARD_TOOL="1").code == 0, "listing is allowed"


def task(name: str, **fields: object) -> Task:
    return Task.model_validate({"id": name, "subject": name.upper(), "created_at": 1.0, **fields})


def test_the_table_says_who_works_on_the_same_files() -> None:
    rows = [
        task("t1", status="in_progress", owner="alice", files=("src/a.py",)),
        task("t2", status="in_progress", owner="bob", files=("src",)),
        task("t3", blocked_by=("t1",)),
        task("t4", reserved_for="carol"),
    ]
    shown = [line.text for line in tasks_table(rows).lines]
    assert shown == [
        "TASK  STATUS       OWNER      WAITS FOR  FILES     SUBJECT",
        "t1    in_progress  alice                 src/a.py  T1",
        "t2    in_progress  bob                   src       T2",
        "t3    pending                 t1                   T3",
        "t4    ready        for carol                       T4",
        "alice and bob work on the same files: src",
    ]
    board = by_id(rows)
    assert [row.id for row in rows if matches_status(row, "ready", board)] == ["t4"]
    assert change_line(rows[1], board).text.endswith("t2 [in_progress, bob] T2 (src)")


# A person and an agent at work


class BoardStore:
    """A store with a session in which alice holds `t1`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def inspector(self) -> TaskInspector:
        self.store = await open_store(self.folder, durability="process")
        alice = AgentRow(name="alice", kind="teammate", life="working")
        held = task("t1", status="in_progress", owner="alice", owner_incarnation=1, attempts=1)
        await self.store.commit(
            Put(agent_key("s1", "alice"), alice.encode()),
            Put(agent_key("s1", "bob"), alice.model_copy(update={"name": "bob"}).encode()),
            Put(task_key("s1", "t1"), held.encode()),
        )
        board = RowCache("s1", lambda kind, name: None)
        for row in await self.store.keys("s/s1/"):
            board.take(row)
        return TaskInspector(self.store, "s1", board)

    async def messages(self) -> list[str]:
        records = await self.store.read(mailbox("s1", "alice", 1))
        found = [Envelope.model_validate_json(one.data) for one in records]
        assert all((one.sender, one.cause, one.mode) == ("person", "person", "queue") for one in found)
        return [one.content for one in found]


@pytest.mark.parametrize(
    ("act", "status", "words"),
    [
        ("assign", "pending", "It is now reserved for bob"),
        ("release", "pending", "Any agent may claim it"),
        ("cancel", "cancelled", "no longer needed"),
    ],
)
def test_who_loses_its_task_to_a_persons_word_is_told(tmp_path: Path, act: str, status: str, words: str) -> None:
    async def act_on_it() -> None:
        outside = BoardStore(tmp_path / "s")
        inspector = await outside.inspector()
        given = ("t1", "bob") if act == "assign" else ("t1",)
        after = await getattr(inspector, act)(*given)
        assert (after.status, after.owner) == (status, None)
        (told,) = await outside.messages()
        assert "the person took t1 from you: T1." in told
        assert words in told
        await outside.store.aclose()

    anyio.run(act_on_it)


def test_a_persons_act_is_done_on_the_row_as_it_is_now(tmp_path: Path) -> None:
    async def late() -> None:
        outside = BoardStore(tmp_path / "s")
        inspector = await outside.inspector()
        failed = task("t1", status="failed", attempts=3)
        await outside.store.commit(Put(task_key("s1", "t1"), failed.encode()))
        assert (await inspector.reopen("t1")).status == "pending"
        with pytest.raises(UsageError, match="only a failed task"):
            await inspector.reopen("t1")
        added = await inspector.add(NewTask("More", blocked_by=("t1",), owner="bob"))
        assert (added.blocked_by, added.reserved_for) == (("t1",), "bob")
        await outside.store.aclose()

    anyio.run(late)


# As they happen


def start_watch(command: Command, *args: str) -> Process:
    return command.start("tasks", "--watch", *args)


def lines_of(stream: IO[str]) -> Iterator[str]:
    """Yield the lines as they arrive; a line that does not arrive within a minute fails the test."""
    while True:
        box: list[str] = []
        reader = threading.Thread(target=lambda: box.append(stream.readline()), daemon=True)  # noqa: B023 - the thread ends before the next turn, or the test fails
        reader.start()
        reader.join(180)
        assert "".join(box), "no line arrived"
        yield box[0].rstrip("\n")


def test_changes_come_as_lines_and_as_json_without_asking_again(command: Command) -> None:
    assert command.run_inline("tasks", "add", "First").code == 0
    (first,) = tasks_of(command)
    plain, as_json = start_watch(command), start_watch(command, "--json", "--status", "cancelled")
    try:
        assert plain.stdout is not None
        assert as_json.stdout is not None
        said, told = lines_of(plain.stdout), lines_of(as_json.stdout)
        assert next(said).endswith(f"{first['id']} [ready] First")
        assert command.run_inline("tasks", "cancel", first["id"]).code == 0
        assert next(said).endswith(f"{first['id']} [cancelled] First")
        assert json.loads(next(told))["status"] == "cancelled"
        plain.send_signal(signal.SIGINT)
        assert plain.wait(180) == 130
    finally:
        for process in (plain, as_json):
            process.kill()
            process.communicate()


def test_on_a_screen_the_table_is_painted_and_what_was_seen_last_stays(command: Command) -> None:
    assert command.run_inline("tasks", "add", "First").code == 0
    ours, theirs = pty.openpty()
    process = Process(
        [*command.argv[1:], "tasks", "--watch"],
        command.workspace,
        command.env,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    try:
        assert "First" in _read_until(ours, "First")
        assert command.run_inline("tasks", "add", "Second").code == 0
        assert "Second" in _read_until(ours, "Second")
        process.send_signal(signal.SIGINT)
        last = _read_until(ours, "\x1b[?1049l", after="Second")
        assert "Second" in last.partition("\x1b[?1049l")[2]
        assert process.wait(180) == 130
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _read_until(screen: int, words: str, after: str = "") -> str:
    """Return the output up to this text, and then up to `after`."""
    text = ""
    while words not in text or after not in text.partition(words)[2]:
        ready, _, _ = select.select([screen], [], [], 60)
        assert ready, f"{words!r} did not appear: {text!r}"
        text += os.read(screen, 65_536).decode(errors="replace")
    return text

"""`callboard tasks`: the board for people and scripts, what a person does to tasks, and changes as they come."""

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
from callboard.engine.row_cache import SessionBoard
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
    assert command.here("run", "--model", command.scenario(HELLO), "Go.").code == 0
    return command


def listed(command: Command, *args: str) -> list[dict[str, Any]]:
    return json.loads(command.here("tasks", *args, "--json").out)


def test_a_person_adds_gives_takes_back_cancels_and_reads_tasks(command: Command) -> None:
    assert command.here("tasks").out == "the board is empty\n"
    added = command.here("tasks", "add", "Write the parser", "--file", "./src/*.py", "--check", "make test")
    assert added.code == 0
    assert " ready " in added.out
    (first,) = listed(command)
    assert (first["created_by"], first["cause"], first["check_by"], first["files"]) == (
        "person",
        "person",
        "person",
        ["src/*.py"],
    )
    name = first["id"].removeprefix("task_")[:6]
    assert command.here("tasks", "add", "Test it", "--after", name, "--owner", "lead").code == 0
    (second,) = listed(command, "--status", "pending")[1:]
    assert (second["blocked_by"], second["reserved_for"]) == ([first["id"]], "lead")
    assert [one["id"] for one in listed(command, "--status", "ready")] == [first["id"]]
    whole = command.here("tasks", "show", name).out
    assert "Check:\nmake test\n(set by person; complete_task runs it)" in whole
    assert json.loads(command.here("tasks", "show", name, "--json").out) == first
    assert command.here("tasks", "assign", name, "lead").code == 0
    assert " for lead " in command.here("tasks").out
    assert command.here("tasks", "release", name).code == 0
    assert listed(command)[0]["reserved_for"] == ""
    assert command.here("tasks", "cancel", name).code == 0
    assert [one["id"] for one in listed(command, "--status", "cancelled")] == [first["id"]]


def test_what_is_wrong_is_said_and_nothing_is_changed_from_inside_a_tool(command: Command) -> None:
    assert command.here("tasks", "add", "A").code == 0
    (task,) = listed(command)
    for line, words in (
        (("assign", task["id"], "carol"), "'carol' takes no task"),
        (("cancel", "nothing"), "'nothing' is not a task; there are: task_"),
        (("reopen", task["id"]), "only a failed task is reopened"),
        (("add", " "), "subject: "),
        (("add", "B", "--file", "/etc/passwd"), "files: "),
        (("add", "B", "--after", "task_none"), "is not a task"),
        (("add", "B", "--owner", "carol"), "takes no task"),
    ):
        ran = command.here("tasks", *line)
        assert (ran.code, words in ran.err) == (2, True), (line, ran.err)
    for line in (("add", "B"), ("assign", task["id"], "lead"), ("release", "x"), ("cancel", "x"), ("reopen", "x")):
        assert command.here("tasks", *line, CALLBOARD_TOOL="1").code == 2
    assert listed(command) == [task]
    assert command.here("tasks", "--json", CALLBOARD_TOOL="1").code == 0, "looking is free"


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


class Outside:
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
        board = SessionBoard("s1", lambda kind, name: None)
        for row in await self.store.keys("s/s1/"):
            board.take(row)
        return TaskInspector(self.store, "s1", board)

    async def told(self) -> list[str]:
        records = await self.store.read(mailbox("s1", "alice", 1))
        found = [Envelope.model_validate_json(one.data) for one in records]
        assert all((one.sender, one.cause, one.mode) == ("person", "person", "queue") for one in found)
        return [one.content for one in found]


@pytest.mark.parametrize(
    ("act", "status", "words"),
    [
        ("assign", "pending", "It is kept for bob now"),
        ("release", "pending", "open to anybody"),
        ("cancel", "cancelled", "nobody needs it"),
    ],
)
def test_who_loses_its_task_to_a_persons_word_is_told(tmp_path: Path, act: str, status: str, words: str) -> None:
    async def act_on_it() -> None:
        outside = Outside(tmp_path / "s")
        inspector = await outside.inspector()
        given = ("t1", "bob") if act == "assign" else ("t1",)
        after = await getattr(inspector, act)(*given)
        assert (after.status, after.owner) == (status, None)
        (told,) = await outside.told()
        assert "the person took t1 from you: T1." in told
        assert words in told
        await outside.store.aclose()

    anyio.run(act_on_it)


def test_a_persons_act_is_done_on_the_row_as_it_is_now(tmp_path: Path) -> None:
    async def late() -> None:
        outside = Outside(tmp_path / "s")
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


# As they come


def watching(command: Command, *args: str) -> Process:
    return command.start("tasks", "--watch", *args)


def lines_of(stream: IO[str]) -> Iterator[str]:
    """The lines as they come; one that does not come in a minute ends the test."""
    while True:
        box: list[str] = []
        reader = threading.Thread(target=lambda: box.append(stream.readline()), daemon=True)  # noqa: B023
        reader.start()
        reader.join(180)
        assert "".join(box), "nothing came"
        yield box[0].rstrip("\n")


def test_changes_come_as_lines_and_as_json_without_asking_again(command: Command) -> None:
    assert command.here("tasks", "add", "First").code == 0
    (first,) = listed(command)
    plain, as_json = watching(command), watching(command, "--json", "--status", "cancelled")
    try:
        assert plain.stdout is not None
        assert as_json.stdout is not None
        said, told = lines_of(plain.stdout), lines_of(as_json.stdout)
        assert next(said).endswith(f"{first['id']} [ready] First")
        assert command.here("tasks", "cancel", first["id"]).code == 0
        assert next(said).endswith(f"{first['id']} [cancelled] First")
        assert json.loads(next(told))["status"] == "cancelled"
        plain.send_signal(signal.SIGINT)
        assert plain.wait(180) == 130
    finally:
        for process in (plain, as_json):
            process.kill()
            process.communicate()


def test_on_a_screen_the_table_is_painted_and_what_was_seen_last_stays(command: Command) -> None:
    assert command.here("tasks", "add", "First").code == 0
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
        assert "First" in _seen(ours, "First")
        assert command.here("tasks", "add", "Second").code == 0
        assert "Second" in _seen(ours, "Second")
        process.send_signal(signal.SIGINT)
        last = _seen(ours, "\x1b[?1049l", after="Second")
        assert "Second" in last.partition("\x1b[?1049l")[2]
        assert process.wait(180) == 130
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _seen(screen: int, words: str, after: str = "") -> str:
    """What is written until these words have come, and then `after`."""
    text = ""
    while words not in text or after not in text.partition(words)[2]:
        ready, _, _ = select.select([screen], [], [], 60)
        assert ready, f"{words!r} did not come: {text!r}"
        text += os.read(screen, 65_536).decode(errors="replace")
    return text

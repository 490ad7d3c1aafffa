"""One process hosts a session; others look, answer and add schedules beside it; and one goes on when it was killed."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from tests.cli.commands.command import Command
from tests.simulation.processes import left_behind, no_traceback, started, until

from callboard.adapters.storage.sqlite import open_store
from callboard.ports.store import Put
from callboard.types.schedules import Schedule

pytestmark = pytest.mark.anyio

PLAN = """
agents:
  lead:
    - reply: [{tool_use: {name: submit_plan, input: {plan: Rebuild the roof.}}}]
    - reply: The answer came.
    - when: {contains: Look at the roof}
      reply: It holds.
"""
BESIDE = """
agents:
  lead:
    - reply:
        - tool_use:
            name: task
            input: {description: look, prompt: look, agent_type: general, run_in_background: true}
    - when: {contains: "its report"}
      reply: I have it.
    - {reply: I wait., repeat: forever}
  'general-*':
    - reply: [{tool_use: {name: bash, input: {command: "echo began >> began.txt; sleep 100000"}}}]
    - reply: It holds.
"""
PLANNING = ("--permission-mode", "plan")
BACKGROUND = """
agents:
  lead:
    - reply: [{tool_use: {name: bash, input: {command: "sleep 3; echo over >> over.txt", run_in_background: true}}}]
    - when: {contains: "<task-notification>"}
      reply: It is over.
    - {reply: I wait., repeat: forever}
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


@pytest.mark.parametrize(("word", "args"), [("approved", ("approve",)), ("rejected", ("reject", "--why", "Too dear"))])
def test_a_second_process_answers_while_the_first_hosts(command: Command, word: str, args: tuple[str, ...]) -> None:
    model = command.scenario(PLAN)
    with started(command, "run", *PLANNING, "--model", model, "Go.") as host:
        host.wait_for("waits for approval")
        (request,) = json.loads(command.run("plans", "--json").out)
        refused = command.run(args[0], request["id"], CALLBOARD_TOOL="1")
        assert (refused.code, refused.out) == (2, "")
        assert command.run(*args, request["id"]).code == 0
        ended = host.end()
    assert (ended.code, ended.out) == (0, "The answer came.\n")
    assert f"{word} by person" in ended.err
    assert command.run(*args, request["id"]).code == 2, "an answered request is not answered again"


def test_beside_a_host_others_may_look_and_may_not_host(command: Command) -> None:
    with started(command, "run", *PLANNING, "--model", command.scenario(PLAN), "Go.") as host:
        host.wait_for("waits for approval")
        second = command.run("run", "-c", "And the walls?")
        no_traceback(second)
        assert (second.code, second.out) == (3, "")
        assert f"is hosted by process {host.pid}" in second.err
        (lead,) = json.loads(command.run("team", "--json").out)
        assert (lead["name"], lead["life"]) == ("lead", "waiting")
        for listing in (("tasks",), ("cron", "list")):
            assert json.loads(command.run(*listing, "--json").out) == []
        host.signal(signal.SIGTERM)
        assert host.end().code == 143


async def test_a_schedule_that_another_process_adds_fires_once_in_the_host(command: Command) -> None:
    """The row is made as `cron add` makes it, but two minutes ago: no test waits for a minute to pass."""
    with started(command, "run", *PLANNING, "--model", command.scenario(PLAN), "Go.") as host:
        host.wait_for("waits for approval")
        assert command.run("cron", "add", "* * * * *", "Look at the roof.").code == 0
        (added,) = json.loads(command.run("cron", "list", "--json").out)
        (database,) = Path(command.env["XDG_STATE_HOME"]).rglob("callboard.db")
        store = await open_store(database.parent)
        (key,) = [row for row in await store.keys("s/") if row.key.endswith(added["id"]) and row.value]
        schedule = Schedule.model_validate_json(key.value or b"")
        early = schedule.model_copy(update={"created_at": schedule.created_at - 120})
        await store.commit(Put(key.key, early.encode(), expected=key.revision))
        (request,) = json.loads(command.run("plans", "--json").out)
        assert command.run("approve", request["id"]).code == 0
        ended = host.end()
        await store.aclose()
    assert (ended.code, ended.out) == (0, "It holds.\n"), ended.err
    (fired,) = json.loads(command.run("cron", "list", "--json").out)
    assert fired["fires"] == 1


def test_a_background_command_outlives_kill_9_and_is_told_exactly_once(command: Command) -> None:
    rules = ("--permission-mode", "bypassPermissions")
    with started(command, "run", "-v", *rules, "--model", command.scenario(BACKGROUND), "Go.") as host:
        host.wait_for("started: sleep 3")
        until(lambda: "sleep 3" in left_behind(command), "the command runs")
        host.signal(signal.SIGKILL)
        host.end()
    ran = command.run("resume")
    assert (ran.code, ran.out) == (0, "It is over.\n"), ran.err
    again = command.run("resume")
    assert (again.code, again.out) == (0, "It is over.\n"), again.err
    assert (command.workspace / "over.txt").read_text() == "over\n"
    assert left_behind(command) == []


def test_a_subagent_in_the_background_goes_on_after_kill_9_and_is_told_exactly_once(
    command: Command,
) -> None:
    rules = ("--permission-mode", "bypassPermissions")
    with started(command, "run", "-v", *rules, "--model", command.scenario(BESIDE), "Go.") as host:
        host.wait_for("goes on in the background")
        began = command.workspace / "began.txt"
        until(lambda: began.exists() and began.read_text() == "began\n", "the subagent works")
        host.signal(signal.SIGKILL)
        host.end()
    for _ in range(2):
        ran = command.run("resume")
        assert (ran.code, ran.out) == (0, "I have it.\n"), ran.err
    assert (command.workspace / "began.txt").read_text() == "began\n", "the call is not run again"
    mail = json.loads(command.run("inbox", "lead", "--all", "--json").out)
    reports = [one for one in mail if one["envelope"]["type"] == "task_notification"]
    assert len(reports) == 1, mail

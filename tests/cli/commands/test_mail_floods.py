"""A run whose teammates flood each other or the board ends with the reason; an honest reporter or planner continues."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest
from tests.cli.commands.command import Command, CommandResult

from callboard.adapters.models.rehearsal.emulator import serve
from callboard.adapters.models.rehearsal.replies import SimulatedReply, SimulatedRequest, say, tool_use
from callboard.adapters.models.rehearsal.scenario import Scenario
from callboard.core.messaging.floods import BURST

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]
ENDLESS = 300
"""Number of calls of one agent after which a run counts as endless."""


@dataclass
class Flood:
    """A lead with teammates, whose replies come from `answer(agent, number)`."""

    command: Command
    answer: Callable[[str, int], SimulatedReply]
    mates: tuple[str, ...]
    calls: Counter[str] = field(default_factory=Counter[str])

    def model(self, request: SimulatedRequest) -> SimulatedReply:
        if request.purpose != "turn":
            return say("A summary.")
        self.calls[request.agent] += 1
        number = self.calls[request.agent]
        if request.agent == "lead":
            spawned = [
                tool_use("spawn_teammate", {"name": name, "role": "worker", "prompt": "Go."}) for name in self.mates
            ]
            return SimulatedReply(tuple(spawned)) if number == 1 else say("I see.")
        return self.answer(request.agent, number) if number < ENDLESS else say("Nobody stopped me.")

    async def run(self) -> CommandResult:
        emulator = await serve(Scenario.from_callable(self.model))
        key = {"ANTHROPIC_BASE_URL": emulator.url, "ANTHROPIC_API_KEY": "any", "MODEL_ID": "claude-sonnet-4-5"}
        line = ("run", "--permission-mode", "acceptEdits", "--allowed-tools", "Bash(echo:*)", "Go.")
        try:
            return await anyio.to_thread.run_sync(lambda: self.command.run(*line, timeout=300, **key))
        finally:
            await emulator.aclose()


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


def letters(agent: str, receiver: str, number: int, count: int) -> list[dict[str, object]]:
    return [
        tool_use("send_message", {"to": receiver, "content": f"news {number}.{place} of {agent}"})
        for place in range(count)
    ]


def writes(agent: str, number: int) -> dict[str, object]:
    return tool_use("write_file", {"path": f"{agent}-{number}.txt", "content": f"{number}"})


def echoes(agent: str, number: int) -> dict[str, object]:
    return tool_use("bash", {"command": f"echo {agent} {number}"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mates", "count", "beside"),
    [
        (("alice",), 10, writes),
        pytest.param(("alice", "bob"), 10, writes, marks=pytest.mark.soak),
        pytest.param(("alice",), 5, echoes, marks=pytest.mark.soak),
        pytest.param(("alice", "bob", "carol"), 8, echoes, marks=pytest.mark.soak),
        (("alice",), 200, writes),
        pytest.param(("alice", "bob", "carol"), 3, echoes, marks=pytest.mark.soak),
    ],
    ids=["a new file", "two teammates", "a new echo", "three teammates", "two hundred", "three teammates, few letters"],
)
async def test_a_flood_ends_with_its_reason_whatever_is_done_beside_it(
    command: Command, mates: tuple[str, ...], count: int, beside: Callable[[str, int], dict[str, object]]
) -> None:
    def answer(agent: str, number: int) -> SimulatedReply:
        receiver = next((name for name in mates if name != agent), "lead")
        return SimulatedReply((*letters(agent, receiver, number, count), beside(agent, number)))

    flood = Flood(command, answer, mates)
    ran = await flood.run()
    assert ran.code == 1
    assert ran.err.count("stopped at a limit: stuck: messages ") > 0, ran.err
    assert max(flood.calls.values()) < ENDLESS / 2, flood.calls
    sent = await anyio.to_thread.run_sync(lambda: command.run("inbox", "--all", "--json"))
    assert 0 < sent.out.count('"type": "message"') <= len(mates) * 2 * BURST


@pytest.mark.slow
async def test_a_teammate_that_works_long_and_reports_often_goes_on(command: Command) -> None:
    steps = itertools.count()

    def answer(agent: str, number: int) -> SimulatedReply:
        if number > 60:
            return SimulatedReply((tool_use("report", {"status": "done", "result": "All is done."}),))
        next(steps)
        news = letters(agent, "lead", number, 1) if number % 2 == 0 else []
        return SimulatedReply((writes(agent, number), *news))

    flood = Flood(command, answer, ("alice",))
    ran = await flood.run()
    assert ran.code == 0, ran.err
    assert "stuck" not in ran.err
    assert flood.calls["alice"] == 61


def tasks(number: int, count: int) -> list[dict[str, object]]:
    return [tool_use("create_task", {"subject": f"part {number}.{place}"}) for place in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("count", [pytest.param(10, marks=pytest.mark.soak), 100])
async def test_a_teammate_that_floods_the_board_is_stopped_with_the_reason(command: Command, count: int) -> None:
    def answer(agent: str, number: int) -> SimulatedReply:
        return SimulatedReply((*tasks(number, count), writes(agent, number)))

    flood = Flood(command, answer, ("alice",))
    ran = await flood.run()
    assert ran.code == 1
    assert "stopped at a limit: stuck: tasks that are not created" in ran.err, ran.err
    assert max(flood.calls.values()) < ENDLESS / 2, flood.calls
    board = await anyio.to_thread.run_sync(lambda: command.run("tasks", "--json"))
    assert BURST <= board.out.count('"subject"') < 2 * BURST


@pytest.mark.slow
async def test_a_planner_of_many_tasks_is_not_stopped(command: Command) -> None:
    def answer(agent: str, number: int) -> SimulatedReply:
        if number > 1:
            return SimulatedReply((tool_use("report", {"status": "done", "result": "The plan is on the board."}),))
        return SimulatedReply(tuple(tasks(number, 60)))

    flood = Flood(command, answer, ("alice",))
    ran = await flood.run()
    assert "not created" not in ran.err
    board = await anyio.to_thread.run_sync(lambda: command.run("tasks", "--json"))
    assert board.out.count('"subject"') == 60

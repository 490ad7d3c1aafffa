"""Delivery: a busy agent reads at its next step, an idle one is woken by what wakes and not by what queues."""

from __future__ import annotations

import anyio
import pytest
from tests.engine.team.team_world import spawn, team_world

from callboard.core.keys import task_key
from callboard.core.messaging.envelopes import envelope_write
from callboard.core.tasks.board import ready
from callboard.engine.row_cache import RowCache
from callboard.ports.model import ModelRequest, OnDelta, Reply
from callboard.ports.store import Row
from callboard.testing import ScriptedModel, say, use
from callboard.types.records import Envelope, Task

pytestmark = pytest.mark.anyio


class Slow(ScriptedModel):
    """Alice's first call takes until `go` is set."""

    def __init__(self, script: dict[str, list[Reply]]) -> None:
        super().__init__(script)
        self.begun, self.go = anyio.Event(), anyio.Event()

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        reply = await super().complete(request, on_delta)
        if request.agent == "alice":
            self.begun.set()
            await self.go.wait()
        return reply

    def of(self, agent: str) -> list[ModelRequest]:
        return [one for one in self.requests if one.agent == agent]


async def test_a_message_reaches_a_busy_agent_at_its_next_step_and_not_at_the_end_of_its_task() -> None:
    tell = use("send_message", {"to": "alice", "content": "the file has moved"})
    model = Slow(
        {
            "lead": [use(*spawn("alice")), say("w"), tell, *[say("ok")] * 5],
            "alice": [use("list_tasks"), use("list_team"), use("report", {"status": "done", "result": "r"})],
        }
    )
    world = team_world(model)
    async with world.session() as team:
        await team.prompt("go")
        await model.begun.wait()
        await team.prompt("tell her")
        while not team.state("alice").inbox.mail:
            await anyio.lowlevel.checkpoint()
        model.go.set()
        await team.quiet()
        first, second, third = model.of("alice")
        assert b"the file has moved" not in b"".join(first.messages)
        assert b"tool_result" in second.messages[-1]
        assert second.messages[-1].index(b"tool_result") < second.messages[-1].index(b"the file has moved")
        assert b"".join(third.messages).count(b"the file has moved") == 1
        assert (await team.journal("alice")).count("turn_began") == 1


async def test_what_queues_waits_for_the_next_turn_and_what_wakes_begins_one() -> None:
    report = use("report", {"status": "done", "result": "here"})
    model = ScriptedModel(
        {
            "lead": [
                use(*spawn("alice")),
                *[say("w")] * 2,
                use("broadcast", {"content": "the interface changed"}),
                say("told"),
                use("send_message", {"to": "alice", "content": "go on"}),
                *[say("ok")] * 5,
            ],
            "alice": [report, say("going on")],
        }
    )
    async with team_world(model).session() as team:
        await team.prompt("go")
        await team.quiet()
        await team.prompt("tell all")
        await team.quiet()
        assert len([one for one in model.requests if one.agent == "alice"]) == 1, "a broadcast starts nobody"
        await team.prompt("and her")
        await team.quiet()
        last = [one for one in model.requests if one.agent == "alice"][-1].messages[-1]
        assert last.index(b"the interface changed") < last.index(b"go on")


async def test_a_burst_of_mail_is_received_in_few_commits_and_in_its_order() -> None:
    burst = [
        Envelope(id=f"env_{number:04}", sender="runtime", recipient="lead", type="error", mode="queue")
        for number in range(1_000)
    ]
    world = team_world(ScriptedModel({"lead": [say("ok")] * 9}))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        before = world.store.writes
        await world.store.commit(*(envelope_write("s1", one) for one in burst))
        while len(team.state("lead").inbox.mail) < len(burst):
            await anyio.lowlevel.checkpoint()
        assert [one.id for one in team.state("lead").inbox.mail] == [one.id for one in burst]
        assert world.store.writes - before < 20


async def test_an_agents_step_looks_at_no_task_that_has_ended() -> None:
    ended = [Task(id=f"task_{number}", subject="s", status="completed", created_at=number) for number in range(50)]
    board = RowCache("s1", lambda kind, name: None)
    rows = [Row(task_key("s1", one.id), one.encode(), place) for place, one in enumerate(ended, 1)]
    open_one = Task(id="task_open", subject="s", blocked_by=("task_7",), created_at=99.0)
    board.take(*rows, Row(task_key("s1", "task_open"), open_one.encode(), 99))
    assert [one.id for one in board.open_tasks()] == ["task_open"]
    assert board.at_stake().keys() == {"task_open", "task_7"}, "what it waits for decides whether it is ready"
    assert [one.id for one in ready(board.at_stake())] == ["task_open"]
    done = open_one.model_copy(update={"status": "cancelled"})
    board.take(Row(task_key("s1", "task_open"), done.encode(), 100))
    assert board.at_stake() == {}

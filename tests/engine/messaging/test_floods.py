"""Mail in bursts: a flood is slowed, told of and ended with its reason, and what comes together wakes once."""

from __future__ import annotations

import re
from collections.abc import Callable

import anyio
import pytest
from tests.engine.agent.test_one_agent import Echo
from tests.engine.team.team_world import spawn, team_world
from tests.simulation.outside import Outside

from callboard.core.keys import mailbox
from callboard.ports.model import ModelRequest, OnDelta, Reply
from callboard.ports.store import Record
from callboard.testing import ScriptedModel, say, use
from callboard.types.records import Envelope, Json

pytestmark = pytest.mark.anyio

SPAWNED = 16


@pytest.fixture
def anyio_backend() -> object:
    """Virtual time alone."""
    from trio.testing import MockClock

    return "trio", {"clock": MockClock(autojump_threshold=0)}


class Timed(ScriptedModel):
    """Each agent replies by a function of how often it was asked, after its own time."""

    def __init__(self, reply: Callable[[str, int], Reply], seconds: Callable[[str], float]) -> None:
        super().__init__({})
        self.reply, self.seconds = reply, seconds

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        self.requests.append(request)
        count = self.asked(request.agent)
        await anyio.sleep(self.seconds(request.agent))
        return self.reply(request.agent, count)

    def asked(self, agent: str) -> int:
        return sum(one.agent == agent for one in self.requests)


def envelope(record: Record) -> Envelope:
    return Envelope.model_validate_json(record.data)


def flood(number: int, calls: int) -> Reply:
    """Messages to the lead, each with other words."""
    letters: list[tuple[str, Json]] = [
        ("send_message", {"to": "lead", "content": f"news {number}.{place}"}) for place in range(calls)
    ]
    return use(*letters[0], *letters[1:])


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize(
    ("calls", "lead_seconds", "why", "most_lead_calls"),
    [
        (1, 0.01, "the same failure, send_message", 70),
        (7, 0.01, "messages that are not sent", 12),
        (7, 2.0, "messages that are not sent", 8),
        (200, 2.0, "messages to others and little else", 8),
    ],
)
async def test_a_teammate_that_only_sends_messages_is_told_and_its_turn_ends(
    calls: int, lead_seconds: float, why: str, most_lead_calls: int
) -> None:
    def reply(agent: str, number: int) -> Reply:
        if agent == "alice":
            return flood(number, calls)
        return use(*spawn("alice")) if number == 1 else say("I see")

    model = Timed(reply, lambda agent: 0.05 if agent == "alice" else lead_seconds)
    async with team_world(model).session() as team:
        await team.prompt("go")
        await team.quiet()
        records = await team.world.store.read(mailbox(team.id, "lead", 1), 0, 10_000)
        mail = list(map(envelope, records))
        (stopped,) = [one for one in mail if one.type == "error"]
        assert stopped.metadata["status"] == "limit"
        assert f"stuck: {why}" in stopped.content
        assert model.asked("alice") <= 2 * (100 // calls + 1)
        assert model.asked("lead") <= most_lead_calls
        assert team.state("lead").inbox.position == len(mail), "what was accepted is read"
        results = b"\n".join([one for one in model.requests if one.agent == "alice"][-1].messages)
        refused = results.count(b"and 20 is the most. It was not sent.")
        assert (refused > 0) is (calls > 1), "who sends faster than is read is refused, and told"


async def test_one_harmless_call_in_each_reply_does_not_hide_a_flood() -> None:
    outside = Outside(files={"a.txt": "nothing new"})

    def reply(agent: str, number: int) -> Reply:
        if agent == "lead":
            return use(*spawn("alice")) if number == 1 else say("I see")
        if number > 60:
            return say("Nobody stopped me.")
        letters: list[tuple[str, Json]] = [
            ("send_message", {"to": "lead", "content": f"news {number}.{place}"}) for place in range(7)
        ]
        return use("read_file", {"path": "a.txt"}, *letters)

    model = Timed(reply, lambda agent: 0.05 if agent == "alice" else 0.01)
    async with team_world(model, outside.tools()["read_file"]).session() as team:
        await team.prompt("go")
        await team.quiet()
        assert model.asked("alice") <= 2 * (100 // 7 + 1)
        records = await team.world.store.read(mailbox(team.id, "lead", 1), 0, 10_000)
        (stopped,) = [one for one in map(envelope, records) if one.type == "error"]
        assert "stuck: messages that are not sent" in stopped.content


async def test_results_that_come_together_wake_the_lead_once() -> None:
    def reply(agent: str, number: int) -> Reply:
        if agent == "lead" and number == 1:
            return use(*spawn("mate-0"), *[spawn(f"mate-{n}") for n in range(1, SPAWNED)])
        return say("I see" if agent == "lead" else "done")

    model = Timed(reply, lambda agent: 0.001 if agent == "lead" else 5.0 + int(agent.rpartition("-")[2]) * 0.03)
    async with team_world(model).session() as team:
        await team.prompt("go")
        await team.quiet()
        assert team.state("lead").turns.count == 2, "the person's words, and all that was done"
        last = b"\n".join([one for one in model.requests if one.agent == "lead"][-1].messages)
        assert last.count(b'type=\\"result\\"') == SPAWNED


@pytest.mark.parametrize(("seconds", "most_turns"), [(1.0, 2), (10.0, 8)])
async def test_a_teammate_that_works_off_the_board_wakes_its_lead_once_a_minute(
    seconds: float, most_turns: int
) -> None:
    """A task takes three replies of `seconds`: 18 tasks are done in 1 or in 9 minutes."""

    def reply(agent: str, number: int) -> Reply:
        if agent == "lead":
            tasks: list[tuple[str, Json]] = [("create_task", {"subject": f"part {at}"}) for at in range(18)]
            return use(*spawn("alice"), *tasks) if number == 1 else say("I see")
        newest = b"".join([one for one in model.requests if one.agent == "alice"][-1].messages[-1:])
        claimed = re.search(rb"You claimed (task_\w+)", newest)
        return use("complete_task", {"task_id": claimed[1].decode(), "result": "ok"}) if claimed else say("done")

    model = Timed(reply, lambda agent: 0.01 if agent == "lead" else seconds)
    async with team_world(model, Echo(name="write_file")).session() as team:
        began = anyio.current_time()
        await team.prompt("go")
        await team.quiet()
        took = anyio.current_time() - began
        assert team.state("lead").turns.count <= most_turns, "not one for each of nineteen results"
        last = b"\n".join([one for one in model.requests if one.agent == "lead"][-1].messages)
        assert last.count(b'type=\\"result\\"') == 19, "the lead has read all of them"
        assert took < seconds * 2 * 19 + 3, "nobody waits for more once the last result has come"


async def test_a_result_whose_sender_does_not_go_on_after_all_wakes_the_lead() -> None:
    """Two teammates end at once, and one task is left: both mean to go on, and one does."""

    def reply(agent: str, number: int) -> Reply:
        if agent == "lead":
            more: list[tuple[str, Json]] = [spawn("bob"), ("create_task", {"subject": "the only one"})]
            return use(*spawn("alice"), *more) if number == 1 else say("I see")
        newest = b"".join([one for one in model.requests if one.agent == agent][-1].messages[-1:])
        claimed = re.search(rb"You claimed (task_\w+)", newest)
        return use("complete_task", {"task_id": claimed[1].decode(), "result": "ok"}) if claimed else say("done")

    model = Timed(reply, lambda agent: 0.01 if agent == "lead" else 5.0)
    async with team_world(model, Echo(name="write_file")).session() as team:
        await team.prompt("go")
        await team.quiet()
        lead = [one for one in model.requests if one.agent == "lead"]
        assert team.state("lead").turns.count == 2, "the words of the person, and all three results"
        assert b"\n".join(lead[-1].messages).count(b'type=\\"result\\"') == 3


async def test_a_single_message_waits_for_nobody_who_is_at_rest() -> None:
    def reply(agent: str, number: int) -> Reply:
        if agent == "lead":
            return use(*spawn("alice")) if number == 1 else say("I see")
        return say("done")

    model = Timed(reply, lambda agent: 1.0)
    async with team_world(model).session() as team:
        began = anyio.current_time()
        await team.prompt("go")
        await team.quiet()
        assert anyio.current_time() - began == pytest.approx(3.0, abs=0.01)

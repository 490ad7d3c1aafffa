"""Background commands of an agent that is parked end with it, and it reads of that when it is resumed."""

from __future__ import annotations

import pytest
from tests.engine.agent.test_background import Commands, Starts
from tests.engine.agent.test_one_agent import Echo
from tests.engine.team.supervised import Breaks, Processes, at_work, order, to_lead, told, until, virtual
from tests.engine.team.team_world import team_world
from tests.engine.team.test_kills import Undying

from callboard.ports.model import Reply
from callboard.testing import ScriptedModel, say, use
from callboard.types import events as ev


def parking(commands: Commands, *after: Reply) -> Processes:
    """Alice starts a command and crashes until she is parked; the world's own process goes on."""
    alice = [use("bash", {"text": "1"}), use("write_file", {"text": "x"}), *after]
    model = ScriptedModel({**at_work(say("I see"), say("good")), "alice": alice})
    made = team_world(model, Echo(name="write_file", effect="unknown"), Starts("bash", effect="unknown"))
    world = Processes(model, made.tools, judge=Breaks(4))
    world.commands = commands
    return world


@virtual
async def test_the_commands_of_a_parked_agent_are_ended_and_told_of() -> None:
    commands = Commands()
    world = parking(commands, say("did it after all"))
    async with world.session() as team:
        await team.prompt("go")
        await until(team, "alice", "crashed")
        await team.quiet()
        assert commands.over[1].is_set()
        assert [(one.id, one.status) for one in await told(team, "alice", ev.BackgroundEnded)] == [("bg_1", "stopped")]
        assert (await team.journal("alice"))[-2:] == ["background_ended", "agent_crashed"]
        assert "Its background commands are ended (bg_1)" in to_lead(world.model)
        await order(team, "resume", "alice")
        await until(team, "alice", "idle")
        await team.quiet()
        shown = b"\n".join([r for r in world.model.requests if r.agent == "alice"][-1].messages).decode()
        assert "bg_1 stopped, exit code 143" in shown
        assert "were parked" in shown


class Broken(Commands):
    """Its commands cannot even be looked at."""

    async def end(self, pid: int, started: float) -> bool:
        raise OSError("no such thing")


@pytest.mark.parametrize("commands", [Undying, Broken])
def test_what_cannot_be_ended_holds_no_parking_up_and_is_still_said_to_run(commands: type[Commands]) -> None:
    @virtual
    async def lived() -> None:
        world = parking(commands())
        async with world.session() as team:
            await team.prompt("go")
            await until(team, "alice", "crashed")
            await team.quiet()
            assert await told(team, "alice", ev.BackgroundEnded) == []
            assert "alice crashed again and again and is parked" in to_lead(world.model)

    lived()

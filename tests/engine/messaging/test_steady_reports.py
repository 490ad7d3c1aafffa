"""A teammate that reports for hours is read for hours, and what waits to wake is read though nothing else happens."""

from __future__ import annotations

import anyio
import pytest
from tests.engine.team.team_world import team_world

from callboard import tool
from callboard.core.messaging.envelopes import envelope_write
from callboard.core.messaging.floods import MOST_WAKES
from callboard.testing import Rehearsal, ScriptedModel, SteadyClock, run_virtual, say, use
from callboard.types.records import Envelope


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    """Virtual time only: these tests wait for minutes."""
    from trio.testing import MockClock

    return "trio", {"clock": MockClock(autojump_threshold=0)}


PART_SECONDS = 20.0
PARTS = 170
"""So many that the lead has been woken as often as messages may wake it at once."""


@tool(reads=True)
async def build(part: int) -> str:
    """Build a part.

    Args:
        part: The number of the part.
    """
    await anyio.sleep(PART_SECONDS)
    return f"part {part} is built, {part * 7} objects"


@pytest.mark.slow
def test_a_teammate_that_reports_every_twenty_seconds_is_never_stopped() -> None:
    amy = [
        reply
        for part in range(PARTS)
        for reply in (
            use("build", {"part": part}),
            use("send_message", {"to": "lead", "content": f"part {part} of {PARTS} is built"}),
        )
    ]
    spawned = use("spawn_teammate", {"name": "amy", "role": "worker", "prompt": "Report each part."})
    script = {"lead": [spawned, *[say("I see.")] * (2 * PARTS)], "amy": [*amy, say("All parts are built.")]}
    recorded = run_virtual(Rehearsal(script, tools=[build]).run, "go")
    sent = [call for call in recorded.calls if call.name == "send_message"]
    assert len(sent) == PARTS
    assert not [call for call in sent if call.is_error]


class SetClock(SteadyClock):
    """A clock that somebody sets."""

    ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead


@pytest.mark.slow(keep=1)
@pytest.mark.anyio
@pytest.mark.parametrize("jump", [0.0, -86_400.0, 86_400.0], ids=["untouched", "set back", "set forward"])
async def test_what_waits_to_wake_is_read_though_nothing_else_happens_and_whatever_the_clock_says(jump: float) -> None:
    clock = SetClock()
    model = ScriptedModel({"lead": [say("I see.")] * (MOST_WAKES + 5)})
    world = team_world(model, clock=clock)

    async def send(number: int) -> None:
        envelope = Envelope(id=f"env_{number}", sender="amy", recipient="lead", type="message", sent_at=clock.now())
        await world.store.commit(envelope_write("s1", envelope))

    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        for number in range(MOST_WAKES):
            await send(number)
            await team.quiet()
        turns = team.state("lead").turns.count
        await send(MOST_WAKES)
        while not team.state("lead").inbox.mail:
            await anyio.lowlevel.checkpoint()
        assert team.state("lead").turns.count == turns == MOST_WAKES + 1
        clock.ahead = jump
        await team.quiet()
        assert team.state("lead").inbox.mail == ()
        assert team.state("lead").turns.count == turns + 1

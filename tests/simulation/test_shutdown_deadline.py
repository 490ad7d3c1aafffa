"""A teammate that does not follow the request to stop: it is ended at the deadline, and the run is no worse for it."""

from __future__ import annotations

import anyio

from callboard import tool
from callboard.testing import Rehearsal, run_virtual, say, use


@tool
async def migrate() -> str:
    """Take longer than anybody waits."""
    await anyio.sleep(6_000)
    return "migrated"


def test_a_shutdown_that_is_carried_out_at_its_deadline_is_no_unanswered_request() -> None:
    lead = [
        use("spawn_teammate", {"name": "alice", "role": "worker", "prompt": "Migrate."}),
        use("request_shutdown", {"teammate": "alice"}),
        *[say("She stops.") for _ in range(4)],
    ]

    async def play() -> None:
        team = Rehearsal({"lead": lead, "alice": [use("migrate", {})]}, tools=[migrate])
        async with team.session() as session:
            await session.say("Go.")
            result = await session.rest()
            (request,) = (await session.record()).requests
            assert (request.kind, request.status, result.exit_code, result.why) == ("shutdown", "expired", 0, "")

    run_virtual(play)

"""Results of schedules that have piled up reach the lead as a digest and the newest few."""

from __future__ import annotations

import pytest
from tests.engine.team.team_world import team_world

from callboard.core.messaging.envelopes import envelope_write
from callboard.testing import ScriptedModel, say
from callboard.types.records import Envelope

pytestmark = pytest.mark.anyio


def result(number: int) -> Envelope:
    return Envelope(
        id=f"env_{number}",
        sender="schedule",
        recipient="lead",
        type="result",
        mode="queue",
        content=f"schedule deps, fire {number}: done\nupdated package {number}",
        cause="schedule",
        metadata={"schedule": "cron_deps" if number % 3 else "cron_docs"},
        sent_at=float(number),
    )


@pytest.mark.parametrize(("count", "shown"), [(1, 1), (5, 5), (6, 3), (300, 3)])
async def test_the_lead_reads_a_digest_and_the_newest_results_and_a_file_has_the_others(count: int, shown: int) -> None:
    model = ScriptedModel({"lead": [say("hello")]})
    world = team_world(model)
    async with world.session() as team:
        await world.store.commit(*(envelope_write(team.id, result(number)) for number in range(count)))
        await team.prompt("hi")
        await team.quiet()
        sent = b"\n".join(model.requests[-1].messages).decode()
        assert [number for number in range(count) if f"updated package {number}\\n" in sent] == list(
            range(count - shown, count)
        )
        files = {path: text for path, text in world.archive.files.items() if "schedule-results" in path}
        assert len(files) == (1 if shown < count else 0)
        for path, text in files.items():
            assert f"{count - shown} earlier results of schedules are not shown" in sent
            assert path in sent
            assert text.count("updated package") == count - shown
        assert (team.state("lead").inbox.mail, len(sent) < 6_000) == ((), True)

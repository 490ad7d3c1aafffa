"""Snapshots: a shortcut through a long journal that changes nothing."""

from __future__ import annotations

import pytest
from tests.engine.agent.test_one_agent import Echo, Person
from tests.engine.team.team_world import spawn, team_world

from callboard.core.agent import snapshot
from callboard.core.agent.apply import apply, fold
from callboard.core.agent.snapshot import dump, load
from callboard.core.agent.state import AgentState
from callboard.core.keys import journal, snapshot_key
from callboard.engine.recall import events_of, recall
from callboard.ports.environment import Answer
from callboard.ports.store import Put
from callboard.testing import ScriptedModel, say, use

pytestmark = pytest.mark.anyio


async def test_every_state_of_a_team_survives_being_dumped_and_loaded() -> None:
    model = ScriptedModel(
        {
            "lead": [
                use(*spawn("alice", plan_required=True), ("todo_write", {"todos": [{"content": "x"}]})),
                say("waiting"),
                use("compact", {"focus": "x"}),
                say("done"),
            ],
            "alice": [
                use("submit_plan", {"plan": "p"}),
                use("write_file", {"text": "a"}),
                use("report", {"status": "done", "result": "ok"}),
            ],
        }
    )
    world = team_world(model, Echo(name="write_file"), approvers=[Person(Answer("approved", "person"))])
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        for name in ("lead", "alice"):
            state = AgentState()
            events = await events_of(world.store, journal("s1", name, 1))
            assert len(events) > 20
            for event in events:
                state = apply(state, event)
                assert load(dump(state)) == state


async def test_a_resume_from_a_snapshot_equals_folding_all_and_a_bad_one_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(snapshot, "EVERY", 200)
    steps = 60
    model = ScriptedModel({"lead": [use("list_tasks") for _ in range(steps)]})
    world = team_world(model, spec={"stuck_after": 0})
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        key = snapshot_key("s1", "lead", 1)
        row = await world.store.get(key)
        assert row is not None, "the journal is long enough for one"
        snapped = load(row.value or b"")
        assert snapped is not None
        assert snapped.seq > 0
        whole = fold(await events_of(world.store, journal("s1", "lead", 1)))
        assert await recall(world.store, "s1", "lead", 1) == whole
        for bad in (b"", b"otherversion\n{}", (row.value or b"")[:-9]):
            await world.store.commit(Put(key, bad))
            assert await recall(world.store, "s1", "lead", 1) == whole

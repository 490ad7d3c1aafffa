"""An agent whose operation takes longer than it may is told of once; who waits rightly, and who rests, never is."""

from __future__ import annotations

import anyio
import pytest
from tests.engine.team.supervised import (
    WORK,
    Hangs,
    at_work,
    replying,
    row,
    to_lead,
    told,
    until,
    virtual,
)
from tests.engine.team.team_world import spawn, team_world

from callboard.ports.environment import Observer
from callboard.ports.model import Delta
from callboard.testing import AllowAll, ScriptedModel, say, use
from callboard.types import events as ev
from callboard.types.rate_limits import RateNotice
from callboard.types.records import Envelope, Json


@virtual
async def test_a_stalled_teammate_is_told_of_once_with_what_it_waits_for_and_since_when() -> None:
    hangs, model = Hangs(), ScriptedModel(at_work(say("hm"), say("never")))
    async with team_world(model, hangs).session() as team:
        await team.prompt("go")
        await hangs.begun.wait()
        began = team.world.clock.now()
        await anyio.sleep(620)
        assert await told(team, "alice", ev.StallNoticed) == []
        await anyio.sleep(4 * 3_600)
        (stalled,) = await told(team, "alice", ev.StallNoticed)
        assert (stalled.what, stalled.since, stalled.at - began) == (
            "write_file",
            pytest.approx(began),
            pytest.approx(630),
        )
        assert to_lead(model).count("alice is stalled: it waits for write_file since") == 1
        assert team.state("lead").turns.last_text == "hm", "told once"
        hangs.free.set()
        await team.quiet()


class StumblesOnce(Observer):
    """An observer with a bug: it raises when it first sees a stall."""

    def __init__(self) -> None:
        self.seen = 0

    def on_event(self, agent: str, seq: int, event: ev.Event) -> None:
        if isinstance(event, ev.StallNoticed):
            self.seen += 1
            if self.seen == 1:
                raise ZeroDivisionError("a bug where a stall is shown")

    def on_delta(self, agent: str, delta: Delta) -> None:
        pass

    def on_mail(self, envelope: Envelope) -> None:
        pass


@virtual
async def test_what_goes_wrong_while_a_stall_is_told_crashes_that_agent_alone_and_it_goes_on() -> None:
    hangs, model = Hangs(), ScriptedModel(at_work(say("hm"), say("never")))
    world = team_world(model, hangs)
    world.observers = [StumblesOnce()]
    async with world.session() as team:
        await team.prompt("go")
        await hangs.begun.wait()
        await anyio.sleep(4 * 3_600)
        (crash,) = await told(team, "alice", ev.AgentCrashed)
        assert "a bug where a stall is shown" in crash.why
        assert row(team, "lead").life == "idle"
        assert row(team, "alice").life in ("idle", "working"), "it went on from its journal"


@virtual
async def test_a_stalled_lead_is_told_to_the_person_and_a_model_call_has_its_time_from_its_sending_on() -> None:
    model = ScriptedModel({"lead": [say("at last")]}, delay=5_000)
    async with team_world(model).session() as team:
        await team.prompt("go")
        await team.quiet()
        (stalled,) = await told(team, "lead", ev.StallNoticed)
        assert (stalled.what, stalled.limit) == ("the model's reply", 930)
        assert stalled.at == pytest.approx(stalled.since + 930)
        mail = await team.world.store.read("m/s1/lead.1")
        assert len(mail) == 1, "the person's prompt, and no word to itself"


@virtual
async def test_who_waits_for_a_person_a_subagent_or_is_idle_is_never_stalled() -> None:
    look: tuple[str, Json] = ("task", {"description": "d", "prompt": "p", "agent_type": "explore"})
    script = {"lead": [use(*spawn("alice")), say("w"), use(*look)], "alice": [use(*WORK)]}
    asks = AllowAll(ask=["write_file"])
    model = ScriptedModel(script)
    model.complete = replying(model, use(*WORK))
    async with team_world(model, Hangs(), judge=asks, spec={"ask_deadline": None}).session() as team:
        await team.prompt("go")
        await until(team, "alice", "waiting")
        await team.prompt("look")
        await anyio.sleep(24 * 3_600)
        assert (row(team, "alice").life, row(team, "lead").waiting_for) == ("waiting", "subagents")
        for one in team.team.runtime.rows.agents():
            assert await told(team, one.name, ev.StallNoticed) == []


@virtual
async def test_an_idle_team_arms_no_timer() -> None:
    names = [f"mate-{n}" for n in range(20)]
    model = ScriptedModel({"lead": [use(*spawn(names[0]), *(spawn(name) for name in names[1:])), say("w")]})
    async with team_world(model).session() as team:
        await team.prompt("go")
        await team.quiet()
        await anyio.sleep(3_600)  # what the last operation had armed is over
        assert team.team.stalls.next_look is None


@virtual
async def test_a_call_that_waits_for_the_rate_is_an_event_and_its_row_says_so() -> None:
    model = ScriptedModel({"lead": [say("at last")]})
    async with team_world(model).session() as team:
        runtime, now = team.team.runtime, team.world.clock.now()
        runtime.key_limiter.handle_notice(RateNotice(model="scripted", at=now, parked_until=now + 50))
        await team.prompt("go")
        waiting = await until(team, "lead", "waiting")
        assert (waiting.waiting_for, model.requests) == ("rate", [])
        await until(team, "lead", "idle")
        (began,) = await told(team, "lead", ev.WaitBegan)
        assert (began.what, began.until, waiting.since) == ("rate", now + 50, began.at)
        assert team.world.clock.now() >= now + 50

"""The rights of one schedule: never more than those of all scheduled turns, also for what its turns start."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.team_world import spawn, team_world
from tests.engine.test_one_agent import Echo
from tests.engine.test_schedules import add

from callboard.adapters.judging import PolicyJudge, TurnRights, parse_rules
from callboard.core.permission.modes import within
from callboard.core.schedule.rights import narrowed
from callboard.engine.memory import events_of
from callboard.ports.tool import Folders, ToolSpec
from callboard.testing import ScriptedModel, say, use
from callboard.words.events import AgentStarted, CallJudged
from callboard.words.schedules import ScheduleRights
from callboard.words.specs import AgentSpec, PermissionMode, PermissionRules
from callboard.words.values import ToolCall

BASH = ToolSpec("bash", "", {}, "unknown")
SPEC = AgentSpec(name="lead", kind="lead", agent_type="lead", model="m", permission_mode="bypassPermissions")
MODES: tuple[PermissionMode, ...] = ("plan", "dontAsk", "default", "acceptEdits", "sandboxed", "bypassPermissions")


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    """Virtual time only."""
    from trio.testing import MockClock

    return "trio", {"clock": MockClock(autojump_threshold=0)}


@given(own=st.sampled_from(MODES), asked=st.sampled_from([*MODES, "", "godmode"]))
def test_a_schedule_never_has_a_wider_mode_than_its_agent(own: PermissionMode, asked: str) -> None:
    spec = narrowed(SPEC.model_copy(update={"permission_mode": own}), ScheduleRights(mode=asked, deny=("x",)))
    assert within(own, spec.permission_mode) == spec.permission_mode
    if asked == "godmode":
        assert spec.permission_mode == "plan"


@pytest.mark.parametrize(
    ("rights", "command", "decision"),
    [
        (ScheduleRights(), "make test", "allow"),
        (ScheduleRights(deny=("Bash(make:*)",)), "make test", "deny"),
        (ScheduleRights(ask=("Bash(make:*)",)), "make test", "ask"),
        (ScheduleRights(allow=("Bash(make:*)",)), "make test", "allow"),
        (ScheduleRights(allow=("Bash(npm:*)",)), "make test", "ask"),
        (ScheduleRights(allow=("Bash(npm:*)",)), "npm install", "ask"),
        (ScheduleRights(allow=("Bash(npm:*)",)), "ls", "allow"),
        (ScheduleRights(mode="plan"), "make test", "ask"),
    ],
)
@pytest.mark.anyio
async def test_rights_only_take_away(tmp_path: Path, rights: ScheduleRights, command: str, decision: str) -> None:
    profile = TurnRights("default", PermissionRules(allow=("Bash(make:*)",)))
    judge = PolicyJudge((), (), parse_rules(["Bash(git push:*)"], ""), scheduled=profile)
    call = ToolCall(id="c", use_id="u", name="bash", input={"command": command})
    folders = Folders(tmp_path, tmp_path / "r", tmp_path / "t")
    ruling = await judge.judge(call, BASH, narrowed(SPEC, rights), folders, "schedule")
    if rights.mode == "plan":
        assert ruling.decision != "allow"
    else:
        assert ruling.decision == decision


@pytest.mark.anyio
async def test_the_turn_of_a_fire_and_whom_it_starts_have_the_rights_of_the_schedule_and_other_turns_do_not() -> None:
    class Looks(PolicyJudge):
        async def judge(self, *given: object, **more: object) -> object:  # type: ignore[override]
            seen.append(given[2])
            return await super().judge(*given, **more)  # type: ignore[arg-type]

    seen: list[object] = []
    script = {
        "lead": [use(*spawn("alice")), say("done"), use("write_file"), say("done")],
        "alice": [use("write_file"), say("done")],
    }
    world = team_world(ScriptedModel(script, end="done"), Echo("write_file"))
    world.judge = Looks((), (), ())  # type: ignore[assignment]
    async with world.session() as team:
        await add(world, rights={"mode": "dontAsk", "deny": ("Bash(rm:*)",)}, recurring=False)
        await anyio.sleep(3_720)
        await team.quiet()
        await team.prompt("write")
        await team.quiet()
    modes = [(one.name, one.permission_mode) for one in seen if isinstance(one, AgentSpec)]
    assert modes[0] == ("lead", "dontAsk")
    assert ("alice", "dontAsk") in modes
    assert modes[-1] == ("lead", "default")
    started = [one for one in await events_of(world.store, "j/s1/alice.1") if isinstance(one, AgentStarted)]
    assert started[0].spec.rules.deny == ("Bash(rm:*)",)
    judged = [one for one in await events_of(world.store, "j/s1/alice.1") if isinstance(one, CallJudged)]
    assert judged[0].verdict == "deny", "nobody is there to be asked"

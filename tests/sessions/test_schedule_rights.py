"""The rights of one schedule never exceed those of all scheduled turns, including agents that its turns start."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.agent.test_one_agent import Echo
from tests.engine.scheduling.test_schedules import add
from tests.engine.team.team_world import spawn, team_world

from callboard.adapters.shell.policy_judge import PolicyJudge, TurnRights, parse_rules
from callboard.core.permissions.modes import within
from callboard.core.scheduling.permissions import judged_in_turn, narrow_spec
from callboard.engine.recall import events_of
from callboard.ports.environment import PermissionDecision, PermissionQuery
from callboard.ports.tool import Folders, ToolSpec
from callboard.testing import ScriptedModel, say, use
from callboard.types.agent_spec import AgentSpec, PermissionRules
from callboard.types.events import AgentStarted, CallJudged
from callboard.types.records import Cause, PermissionMode, ToolCall
from callboard.types.schedules import Schedule, ScheduleRights

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
    spec = narrow_spec(SPEC.model_copy(update={"permission_mode": own}), ScheduleRights(mode=asked, deny=("x",)))
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
    spec = narrow_spec(SPEC, rights)
    query = PermissionQuery(call=call, tool=BASH, spec=spec, folders=folders, authority="schedule")
    ruling = await judge.judge(query)
    if rights.mode == "plan":
        assert ruling.decision != "allow"
    else:
        assert ruling.decision == decision


@pytest.mark.parametrize(
    ("own", "rights", "profile", "authority", "submits"),
    [
        ("plan", None, None, "schedule", True),
        ("plan", "dontAsk", None, "schedule", True),
        ("plan", None, "plan", "person", True),
        ("plan", "plan", None, "schedule", False),
        ("plan", None, "plan", "schedule", False),
        ("default", "plan", None, "schedule", False),
        ("default", None, "plan", "schedule", False),
    ],
)
@pytest.mark.anyio
async def test_a_refusal_in_plan_mode_names_submit_plan_only_where_its_approval_helps(
    tmp_path: Path,
    own: PermissionMode,
    rights: PermissionMode | None,
    profile: PermissionMode | None,
    authority: Cause,
    submits: bool,
) -> None:
    spec = SPEC.model_copy(update={"permission_mode": own, "tools": ("bash", "submit_plan")})  # once listed, it stays
    row = Schedule(id="cron_a", cron="0 * * * *", prompt="look", rights=ScheduleRights(mode=rights or ""))
    judge = PolicyJudge((), (), (), scheduled=TurnRights(profile))
    call = ToolCall(id="c", use_id="u", name="bash", input={"command": "make test"})
    folders = Folders(tmp_path, tmp_path / "r", tmp_path / "t")
    spec_in_turn = judged_in_turn(spec, row)
    query = PermissionQuery(call=call, tool=BASH, spec=spec_in_turn, folders=folders, authority=authority)
    ruling = await judge.judge(query)
    assert ruling.decision == "deny"
    assert ("submit_plan" in ruling.why) is submits
    assert ("report your plan as text" in ruling.why) is not submits


class Shell(Echo):
    """A shell that runs nothing."""

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec("bash", "Run it.", {"type": "object", "properties": {"command": {"type": "string"}}}, "unknown")


@pytest.mark.anyio
async def test_a_lead_that_a_schedule_lets_only_read_learns_to_report_its_plan() -> None:
    world = team_world(
        ScriptedModel({"lead": [use("bash", {"command": "make"}), say("done")]}, end="done"),
        Shell(),
    )
    world.judge = PolicyJudge((), (), ())
    async with world.session() as team:
        await add(world, rights={"mode": "plan"}, recurring=False)
        await anyio.sleep(3_720)
        await team.quiet()
    (judged,) = [one for one in await events_of(world.store, "j/s1/lead.1") if isinstance(one, CallJudged)]
    assert judged.verdict == "deny"
    assert "report your plan as text" in judged.why
    assert "submit_plan" not in judged.why


@pytest.mark.anyio
async def test_the_turn_of_a_fire_and_whom_it_starts_have_the_rights_of_the_schedule_and_other_turns_do_not() -> None:
    class Looks(PolicyJudge):
        async def judge(self, query: PermissionQuery) -> PermissionDecision:
            seen.append(query.spec)
            return await super().judge(query)

    seen: list[AgentSpec] = []
    script = {
        "lead": [use(*spawn("alice")), say("done"), use("write_file"), say("done")],
        "alice": [use("write_file"), say("done")],
    }
    world = team_world(ScriptedModel(script, end="done"), Echo("write_file"))
    world.judge = Looks((), (), ())
    async with world.session() as team:
        await add(world, rights={"mode": "dontAsk", "deny": ("Bash(rm:*)",)}, recurring=False)
        await anyio.sleep(3_720)
        await team.quiet()
        await team.prompt("write")
        await team.quiet()
    modes = [(one.name, one.permission_mode) for one in seen]
    assert modes[0] == ("lead", "dontAsk")
    assert ("alice", "dontAsk") in modes
    assert modes[-1] == ("lead", "default")
    started = [one for one in await events_of(world.store, "j/s1/alice.1") if isinstance(one, AgentStarted)]
    assert started[0].spec.rules.deny == ("Bash(rm:*)",)
    judged = [one for one in await events_of(world.store, "j/s1/alice.1") if isinstance(one, CallJudged)]
    assert judged[0].verdict == "deny", "no person can be asked"

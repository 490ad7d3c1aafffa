"""Tools for schedules, skills, compaction, questions, and subagents."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.adapters.tools.tool_world import MemorySkills, ToolWorld

from callboard.adapters.tools.control import control_tools, skill_tools
from callboard.adapters.tools.cron import cron_tools
from callboard.core import keys as names
from callboard.core.approvals.requests import digest_of
from callboard.ports.store import Put
from callboard.types.errors import Conflict, ToolRefused
from callboard.types.events import CompactAsked
from callboard.types.records import Budget
from callboard.types.schedules import Schedule, ScheduleRights
from callboard.types.skills import SkillText

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def world() -> ToolWorld:
    world = ToolWorld(control_tools({"general": "anything"}), cron_tools(), skill_tools())
    await world.join("lead", "lead")
    await world.join("alice")
    return world


# Schedules


async def _schedule(world: ToolWorld, job_id: object) -> Schedule:
    found = (await world.rows()).schedule(str(job_id))
    assert found is not None
    return found[0]


async def test_a_right_expression_is_echoed_in_words_with_its_next_three_times(world: ToolWorld) -> None:
    made = await world.run("schedule_cron", cron=" 0 9 * * 1-5 ", prompt="Sum up.", timezone="Europe/Berlin")
    lines = str(made.content).splitlines()
    assert lines[0] == f"Scheduled {made.data['id']}: at 09:00 on weekdays, Europe/Berlin."
    assert lines[1].startswith("Next: ")
    assert lines[1].count("09:00 CEST") == 3
    schedule = await _schedule(world, made.data["id"])
    assert (schedule.cron, schedule.prompt, schedule.created_by) == ("0 9 * * 1-5", "Sum up.", "lead")


async def test_a_one_shot_tells_its_one_time(world: ToolWorld) -> None:
    made = await world.run("schedule_cron", cron="30 8 * * *", prompt="Remind me.", recurring=False)
    assert str(made.content).startswith(f"Scheduled {made.data['id']}: once, at ")
    assert str(made.content).count("08:30") == 1


async def test_a_schedule_may_be_given_a_budget_in_all_and_for_each_fire(world: ToolWorld) -> None:
    budgets: dict[str, Any] = {"budget": {"cost_usd": 2, "tokens": 90_000}, "fire_budget": {"steps": 1, "seconds": 60}}
    made = await world.run("schedule_cron", cron="@daily", prompt="Sum up.", **budgets)
    last = str(made.content).splitlines()[-1]
    assert last == "Budget: $2.0000, 90,000 tokens in all; 1 call, 60 s for each fire."
    schedule = await _schedule(world, made.data["id"])
    assert schedule.budget == Budget(cost_usd=2, tokens=90_000)
    assert schedule.fire_budget == Budget(steps=1, seconds=60)
    plain = await world.run("schedule_cron", cron="@daily", prompt="Sum up.")
    assert "Budget" not in str(plain.content)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"cron": "@daily", "budget": {"cost_usd": -1}}, "budget.cost_usd: "),
        ({"cron": "@daily", "fire_budget": {"calls": 3}}, "fire_budget.calls: "),
        ({"cron": "61 * * * *"}, "cron: minute: "),
        ({"cron": "* * * *"}, "cron: expression: "),
        ({"cron": "@reboot"}, "cron: expression: "),
        ({"cron": "0 9 * * *", "timezone": "Europe/Berln"}, "timezone: 'Europe/Berln'"),
        ({"cron": "every 5s"}, "cron: expression: "),
        ({"cron": "at 2020-01-01T00:00"}, "cron: at 2020-01-01T00:00 never fires"),
        ({"cron": "@daily", "expires": "2020-01-01"}, "expires: '2020-01-01' is past"),
        ({"cron": "@daily", "deadline": "soon"}, "deadline: 'soon' is not a duration"),
        ({"cron": "@daily", "overlap": "all"}, "overlap: "),
        ({"cron": "@daily", "agent_type": "wizard"}, "agent_type: no type wizard"),
        ({"cron": "@daily", "agent_type": "explore", "context": "lead"}, "agent_type: "),
        ({"cron": "@daily", "permission_mode": "bypassPermissions"}, "permission_mode: bypassPermissions is more than"),
        ({"cron": "@daily", "deny": ["Bash("]}, "deny: "),
        ({"cron": "0 9 * * *", "prompt": " "}, "prompt: "),
    ],
)
async def test_a_wrong_schedule_is_refused_with_its_field(world: ToolWorld, given: dict[str, Any], field: str) -> None:
    assert (await world.refusal("schedule_cron", **{"prompt": "p", **given})).startswith(field)
    assert (await world.rows()).schedules() == []


async def test_an_agent_may_say_all_that_a_person_may_but_what_gives_it_more(world: ToolWorld) -> None:
    fields: dict[str, Any] = {"name": "look", "agent_type": "explore", "deadline": "20m", "retries": 2, "max_runs": 5}
    more: dict[str, Any] = {
        "overlap": "queue",
        "misfire": "all",
        "misfire_cap": 3,
        "permission_mode": "plan",
        "deny": ["Bash(rm *)"],
    }
    made = await world.run("schedule_cron", cron="every 20m", prompt="Look.", **fields, **more)
    assert f"{made.data['id']} (look): every 20 minutes" in str(made.content)
    schedule = await _schedule(world, made.data["id"])
    assert (schedule.context, schedule.target, schedule.deadline) == ("fresh", "explore", 1_200)
    assert (schedule.overlap, schedule.misfire, schedule.misfire_cap) == ("queue", "all", 3)
    assert (schedule.rights.mode, schedule.rights.allow, schedule.rights.deny) == ("plan", (), ("Bash(rm *)",))
    taken = await world.refusal("schedule_cron", cron="@daily", prompt="p", name="look")
    assert taken == f"name: look is the name of {schedule.id} already: choose another one"
    await world.run("cancel_cron", job_id="look")
    assert (await _schedule(world, schedule.id)).state == "cancelled"
    assert "look" in str((await world.run("schedule_cron", cron="@daily", prompt="p", name="look")).content)


async def test_a_schedule_made_in_a_turn_of_another_has_no_more_rights_than_that(world: ToolWorld) -> None:
    rights = ScheduleRights(mode="plan", allow=("Bash(npm test)", "Edit"), deny=("Bash(rm *)",))
    outer = Schedule(id="cron_o", cron="@daily", prompt="p", rights=rights)
    await world.put(names.schedule_key("s1", outer.id), outer)
    context = replace(await world.context(), caused_by="schedule:cron_o:2026-11-22T00:00:00Z")

    async def made(**given: object) -> ScheduleRights:
        outcome = await world.tools["schedule_cron"].run({"cron": "@daily", "prompt": "p", **given}, context)
        (put,) = outcome.writes
        assert isinstance(put, Put)
        return Schedule.model_validate_json(put.value).rights

    assert await made() == rights
    more = await made(permission_mode="default", allow=["Edit", "Bash(git push)"], deny=["Write"])
    assert (more.mode, more.allow, more.deny) == ("plan", ("Edit",), ("Bash(rm *)", "Write"))
    assert (await made(allow=["Bash(git push)"])).allow == ("Nothing",)


async def test_an_agent_cannot_cancel_what_a_file_says(world: ToolWorld) -> None:
    filed = Schedule(id="cron_f", cron="@daily", prompt="p", source=".callboard/schedules/f.md")
    await world.put(names.schedule_key("s1", "cron_f"), filed)
    assert "comes from .callboard/schedules/f.md" in await world.refusal("cancel_cron", job_id="cron_f")


async def test_a_cancelled_schedule_stays_in_the_list_and_never_fires(world: ToolWorld) -> None:
    first = (await world.run("schedule_cron", cron="@daily", prompt="One\nmore")).data["id"]
    second = (await world.run("schedule_cron", cron="@hourly", prompt="Two")).data["id"]
    await world.run("cancel_cron", job_id=first)
    assert (await _schedule(world, first)).enabled is False
    lines = str((await world.run("list_crons", "alice")).content).splitlines()
    assert lines[0] == f"{first} [@daily, UTC; cancelled] One"
    assert lines[1].startswith(f"{second} [@hourly, UTC; next ")
    assert "cancelled already" in await world.refusal("cancel_cron", job_id=first)
    assert await world.refusal("cancel_cron", job_id="x") == f"job_id: no schedule x; active: {second}"


async def test_a_cancel_beside_a_fire_runs_again(world: ToolWorld) -> None:
    job = str((await world.run("schedule_cron", cron="@daily", prompt="p")).data["id"])
    cancel = await world.preview("cancel_cron", job_id=job)
    fired = (await _schedule(world, job)).model_copy(update={"fires": 1})
    await world.put(names.schedule_key("s1", job), fired)
    with pytest.raises(Conflict):
        await world.store.commit(*cancel.writes)


@pytest.mark.parametrize(
    ("fields", "standing"),
    [
        ({"enabled": False}, "switched off"),
        ({"state": "paused", "paused_why": "its money is used up"}, "paused: its money is used up"),
        ({"state": "fired", "enabled": False}, "fired"),
        ({"cron": "what"}, "cannot fire: expression: "),
    ],
)
async def test_the_list_says_how_each_schedule_stands(
    world: ToolWorld, fields: dict[str, object], standing: str
) -> None:
    schedule = Schedule.model_validate({"id": "cron_x", "cron": "@daily", "prompt": "p", **fields})
    await world.put(names.schedule_key("s1", "cron_x"), schedule)
    assert f"; {standing}" in str((await world.run("list_crons")).content)


async def test_without_schedules_the_list_says_so(world: ToolWorld) -> None:
    assert (await world.run("list_crons")).content == "There are no schedules."


# Skills


async def test_a_skill_comes_as_the_engine_fills_it(world: ToolWorld) -> None:
    world.skills = MemorySkills([SkillText("git", "d", "/skills/git", "Use it.")])
    loaded = await world.run("load_skill", name="git", arguments="a b")
    assert loaded.content == "git(a b): Use it."
    with pytest.raises(ToolRefused, match="there are git"):
        await world.run("load_skill", name="hg")


# Compaction, questions


async def test_compact_asks_for_it_in_exactly_these_words(world: ToolWorld) -> None:
    outcome = await world.run("compact", focus="the parser")
    assert outcome.content == "[Compaction follows]"
    (event,) = outcome.events
    assert isinstance(event, CompactAsked)
    assert (event.focus, event.by) == ("the parser", "tool")
    assert not world.tools["compact"].spec.barrier, "the other calls of the reply run first, even later ones"


async def test_a_question_is_a_request_that_only_the_person_answers(world: ToolWorld) -> None:
    asked = await world.run("ask_person", "alice", question="Which\ndatabase?", options=["sqlite", "postgres"])
    found = (await world.rows()).request(str(asked.data["request_id"]))
    assert found is not None
    request = found[0]
    assert (request.kind, request.may_answer, request.subject) == ("question", ("person",), "Which")
    assert request.payload == {"question": "Which\ndatabase?", "options": ["sqlite", "postgres"]}
    assert request.digest == digest_of("question", request.payload)
    assert request.expires_at == request.created_at + 1_800
    assert asked.content == f"Question {request.id} is put to the person. The answer comes as a message."


async def test_a_question_that_nobody_can_answer_is_refused_at_once(world: ToolWorld) -> None:
    await world.join("carol", ask_deadline=0)
    assert "decide yourself" in await world.refusal("ask_person", "carol", question="Which?")
    await world.join("dora", ask_deadline=None)
    asked = await world.run("ask_person", "dora", question="Which?")
    found = (await world.rows()).request(str(asked.data["request_id"]))
    assert found is not None
    assert found[0].expires_at is None
    assert "empty" in await world.refusal("ask_person", question=" \n")


# Subagents


async def test_a_subagent_returns_its_text_and_has_the_tools_of_one(world: ToolWorld) -> None:
    outcome = await world.run("task", "alice", description="Find it", prompt="Find the retry code.")
    assert (outcome.content, outcome.is_error) == ("did: Find the retry code.", False)
    (spec,) = world.started.values()
    assert (spec.kind, spec.parent, spec.role) == ("subagent", "alice", "Find it")
    assert spec.name.startswith("general-")
    assert "edit_file" in spec.tools
    assert not {"task", "report", "send_message"} & set(spec.tools)


@pytest.mark.parametrize("outcome", ["limit", "failed", "stopped"])
async def test_a_subagent_that_did_not_finish_is_never_told_as_done(world: ToolWorld, outcome: str) -> None:
    world.answers["p"] = (outcome, "half of it")
    told = await world.run("task", description="d", prompt="p")
    assert told.is_error
    assert str(told.content).startswith(f"[status: {outcome}] ")
    assert str(told.content).endswith("half of it")
    assert told.data["outcome"] == outcome


async def test_a_subagent_without_words_says_so(world: ToolWorld) -> None:
    world.answers["p"] = ("done", " ")
    assert (await world.run("task", description="d", prompt="p")).content == "(it said nothing)"


async def test_after_a_crash_the_same_call_finds_the_same_subagent(world: ToolWorld) -> None:
    tool = world.tools["task"]
    given = {"description": "d", "prompt": "p"}
    context = await world.context("lead", call="call_same")
    await tool.run(given, context)
    again = await tool.repair(given, {}, context)
    assert again is not None
    assert again.content == "did: p"
    assert list(world.started) == ["call_same"]
    assert tool.spec.effect == "attach"


async def test_a_subagent_starts_no_subagent_and_an_unknown_type_is_refused_before_the_start(world: ToolWorld) -> None:
    await world.join("sub", "subagent")
    assert "cannot start subagents" in await world.refusal("task", "sub", description="d", prompt="p")
    assert "no type wizard" in await world.refusal("task", description="d", prompt="p", agent_type="wizard")
    assert world.started == {}

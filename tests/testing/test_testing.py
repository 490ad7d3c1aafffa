"""`callboard.testing` in users' tests of a team: they pass if the team is right, and fail if it is not."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
import structlog

from callboard import Agent, Deny, Request, Session, tool
from callboard.ports.model import Reply
from callboard.testing import (
    Played,
    Recorded,
    Rehearsal,
    ScenarioModel,
    Survived,
    ThatAgent,
    assert_that,
    fault,
    pretend,
    recorded,
    run_virtual,
    say,
    survive,
    use,
)
from callboard.types.errors import UsageError
from callboard.types.hook_answers import PreToolUse, hook


@tool
def weather(city: str) -> str:
    """How the weather will be.

    Args:
        city: Where.
    """
    return f"Rain in {city}."


@tool(effect="again")
def note(text: str) -> str:
    """Write a line down."""
    return f"noted: {text}"


TEAM: Mapping[str, Sequence[Played]] = {
    "lead": [
        use("spawn_teammate", {"name": "alice", "role": "worker", "prompt": "Look at the weather in Oslo."}),
        say("alice looks."),
        say("Take a coat."),
        say("Take a coat."),
    ],
    "alice": [use("weather", {"city": "Oslo"}), use("report", {"status": "done", "result": "Rain in Oslo."})],
}


def check_team(record: Recorded) -> None:
    """Check a team, as a user's test does."""
    claims = assert_that(record).has_agents("alice").every_call_has_a_result().every_message_once().nothing_waits()
    claims.agent("alice").called("weather", city="Oslo", times=1).then("report", status="done")
    claims.lead.heard("Rain in Oslo", sender="alice").ended_with("coat").never_called("weather")
    claims.tokens_under(1_000).cost_under(1)


def test_a_team_that_is_right_passes() -> None:
    check_team(run_virtual(Rehearsal(TEAM, tools=[weather]).run, "What should I wear?"))


BROKEN: Mapping[str, Mapping[str, Sequence[Played]]] = {
    "nobody is asked": {"lead": [say("Take a coat.")]},
    "the wrong city": {**TEAM, "alice": [use("weather", {"city": "Rome"}), *TEAM["alice"][1:]]},
    "reports before it looks": {**TEAM, "alice": [TEAM["alice"][1], TEAM["alice"][0]]},
    "no coat": {**TEAM, "lead": [TEAM["lead"][0], say("alice looks."), say("I don't know."), say("I don't know.")]},
    "looks twice": {**TEAM, "alice": [TEAM["alice"][0], *TEAM["alice"]]},
    "the lead looks itself": {**TEAM, "lead": [use("weather", {"city": "Oslo"}), *TEAM["lead"]]},
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_team_that_is_broken_fails(what: str) -> None:
    record = run_virtual(Rehearsal(BROKEN[what], tools=[weather]).run, "What should I wear?")
    with pytest.raises(AssertionError):
        check_team(record)


def test_a_failed_claim_says_what_there_was_instead() -> None:
    record = run_virtual(Rehearsal(TEAM, tools=[weather]).run, "What should I wear?")
    with pytest.raises(
        AssertionError, match=r"alice called weather\(city='Rome'\); it called\n  alice: weather\(city='Oslo'\)"
    ):
        assert_that(record).agent("alice").called("weather", city="Rome")
    with pytest.raises(AssertionError, match="no agent 'bob'; there were: lead, alice"):
        assert_that(record).agent("bob")
    with pytest.raises(AssertionError, match=r"it used .* tokens"):
        assert_that(record).tokens_under(20)


# Requests and refusals


PLANNED: Mapping[str, Sequence[Played]] = {
    "lead": [use("bash", {"command": "rm -r build"}), say("Gone.")],
}


def test_a_question_is_answered_by_a_function_or_by_the_test() -> None:
    def only_builds(request: Request) -> bool:
        return "build" in str(request.payload["input"])

    asks = Rehearsal(PLANNED, tools=[pretend("bash", "")], ask=["bash"], approver=only_builds)
    assert_that(run_virtual(asks.run, "Clean up")).lead.called("bash").approved_before("bash").ended_with("Gone")

    async def by_hand() -> Recorded:
        async with Rehearsal(PLANNED, tools=[pretend("bash", "")], ask=["bash"], answerable=True).session() as session:
            await session.say("Clean up")
            await session.answer(await session.asked(), False, "not today")
            assert (await session.rest()).ok
            return await session.record()

    record = run_virtual(by_hand)
    assert_that(record).lead.refused("bash").never_called("bash")
    with pytest.raises(AssertionError, match="never called bash"):
        assert_that(record).lead.approved_before("bash")


def test_what_is_called_without_a_word_is_told() -> None:
    record = run_virtual(Rehearsal(PLANNED, tools=[pretend("bash", "")]).run, "Clean up")
    with pytest.raises(AssertionError, match="before anything was approved"):
        assert_that(record).lead.approved_before("bash")


def test_where_nobody_can_answer_it_is_refused_at_once() -> None:
    async def main() -> int:
        async with Rehearsal(PLANNED, tools=[pretend("bash", "")], ask=["bash"]).session() as session:
            result = await session.run("Clean up")
            assert_that(await session.record()).lead.refused("bash")
            return result.exit_code

    assert run_virtual(main) == 4


def test_hooks_and_agents_of_the_program_take_part() -> None:
    @hook("PreToolUse", matcher="bash")
    def no_rm(event: PreToolUse) -> Deny | None:
        return Deny("nothing is removed here") if "rm" in str(event.call.input) else None

    record = run_virtual(Rehearsal(PLANNED, tools=[pretend("bash", "")], hooks=[no_rm]).run, "Clean up")
    assert_that(record).lead.refused("bash")
    scout = Agent("scout", "Looks.", "You look.", tools=[weather])
    script = {"lead": [use("task", {"agent_type": "scout", "description": "look", "prompt": "Look."}), say("Done.")]}
    team = Rehearsal({**script, "scout-*": []}, tools=[weather, note], agents=[scout])
    found = run_virtual(team.run, "Go")
    assert_that(found).has_agents("scout")
    model = team.world().model
    assert model is not None


# Time


def test_a_night_passes_in_a_moment() -> None:
    woken = {"cron": "0 3 * * *", "prompt": "Look at the inbox", "recurring": False}
    script = {"lead": [use("schedule_cron", woken), say("Good night."), say("Nothing new.")]}

    async def main() -> float:
        async with Rehearsal(script).session() as session:
            begun = session.world.clock.now()
            await session.run("Look tomorrow at three")
            await session.team.quiet(lambda: session.state("lead").turns.last_text == "Nothing new.")
            assert_that(await session.record()).lead.heard("Look at the inbox").ended_with("Nothing new")
            return session.world.clock.now() - begun

    before = time.monotonic()
    assert run_virtual(main) >= 19 * 3_600
    assert time.monotonic() - before < 60, "not in real time"


# Chaos


def survive_chaos(seed: int) -> Survived:
    script = {**TEAM, "lead": [TEAM["lead"][0], *[say("Take a coat.")] * 4]}  # whichever step comes first
    return run_virtual(lambda: survive(Rehearsal(script, tools=[weather, note]), "What should I wear?", seed=seed))


def test_a_team_comes_to_the_same_end_through_faults_and_kills() -> None:
    found = [survive_chaos(seed) for seed in range(6)]
    assert sum(one.kills for one in found) > 6
    assert sum(one.faults for one in found) > 3
    for one in found:
        claims = assert_that(one.record).has_agents("alice").every_call_has_a_result().every_message_once()
        claims.lead.ended_with("coat")
        prompts = [mail for mail in one.record.agent("lead").mail if mail.type == "prompt"]
        assert len(prompts) == 1, "text from before a kill is not repeated"


def test_the_same_seed_is_the_same_run() -> None:
    def course(seed: int) -> list[str]:
        return [event.model_dump_json() for agent in survive_chaos(seed).record for event in agent.events]

    assert course(3) == course(3)
    assert course(3) != course(4)


# Scenarios


SCENARIO = """
agents:
  lead:
    - reply:
        - tool_use: {name: weather, input: {city: Oslo}}
      fault: {status: 529}
    - when: {result_of: weather}
      reply: Take a coat.
"""


def test_a_scenario_is_played_in_memory(tmp_path: Path) -> None:
    file = tmp_path / "oslo.yaml"
    file.write_text(SCENARIO)
    for source in (SCENARIO, file):
        record = run_virtual(Rehearsal(ScenarioModel(source), tools=[weather]).run, "What should I wear?")
        assert_that(record).lead.called("weather", city="Oslo", times=1).ended_with("coat")
        assert "call_failed" in [event.t for event in record.agent("lead").events]


def test_a_fault_of_the_script_is_tried_again() -> None:
    record = run_virtual(Rehearsal({"lead": [fault("overloaded"), say("Here.")]}).run, "Are you there?")
    assert_that(record).lead.ended_with("Here")


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        (lambda lead: lead.called("weather"), r"expected that lead called weather\(\); it called\n"),
        (lambda lead: lead.called("spawn_teammate", times=2), "2 times, not 1"),
        (lambda lead: lead.called("spawn_teammate").then("spawn_teammate"), "then called spawn_teammate"),
        (lambda lead: lead.never_called("spawn_teammate"), "never called spawn_teammate; it did"),
        (lambda lead: lead.refused("spawn_teammate"), "was refused; there were"),
        (lambda lead: lead.said("sunshine"), "never said 'sunshine'; it said"),
        (lambda lead: lead.ended_with("sunshine"), "there is no 'sunshine' in them"),
        (lambda lead: lead.heard("Snow", sender="alice"), "never heard 'Snow' from alice"),
        (lambda lead: lead.heard("Rain", sender="bob"), "never heard 'Rain' from bob"),
    ],
)
def test_each_claim_about_an_agent_that_does_not_hold_fails(claim: Callable[[ThatAgent], object], said: str) -> None:
    record = run_virtual(Rehearsal(TEAM, tools=[weather]).run, "What should I wear in Oslo?")
    with pytest.raises(AssertionError, match=said):
        claim(assert_that(record).lead)


def test_a_session_on_disk_is_read_as_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text("agents:\n  lead:\n    - reply: Take a coat.\n")

    async def kept() -> str:
        async with Session(workspace, model=f"rehearsal:{scenario}") as session:
            await session.run("What should I wear?")
            return session.id

    session = anyio.run(kept)
    record = anyio.run(recorded, workspace)
    assert record.session == session
    assert_that(record).every_message_once().lead.heard("What should I wear?", sender="person").ended_with("coat")
    assert anyio.run(recorded, workspace, session).session == session
    with pytest.raises(UsageError, match="has no session nonesuch"):
        anyio.run(recorded, workspace, "nonesuch")


def test_what_a_test_raises_inside_a_rehearsal_leaves_as_itself() -> None:
    def never(request: object) -> Reply:
        raise AssertionError("the second call has no result")

    async def in_the_block() -> None:
        async with Rehearsal({}).session() as session:
            assert (await session.run("Hello")).text == "Hi."

    async def in_a_storm() -> None:
        await survive(Rehearsal({"lead": [never]}), "Hello", seed=1)

    def refuses(request: Request) -> bool:
        raise LookupError(request.kind)

    asking = Rehearsal({"lead": [use("weather", {"city": "Oslo"})]}, tools=[weather], ask=["weather"], approver=refuses)
    with pytest.raises(AssertionError, match=r"Hi\."):
        run_virtual(in_the_block)
    with pytest.raises(AssertionError, match="second call"):
        run_virtual(Rehearsal({"lead": [use("weather", {"city": "Oslo"}), never]}, tools=[weather]).run, "Hello")
    with pytest.raises(AssertionError, match="second call"):
        run_virtual(in_a_storm)
    with pytest.raises(LookupError, match="permission"):
        run_virtual(asking.run, "Hello")


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ([say("Hi.")], "the script is list"),
        ({"lead": say("Hi.")}, "the script of 'lead' is Reply"),
        ({"lead": ["Hi."]}, "entry 1 is 'Hi.': write say"),
        ({"lead": [lambda request: "Hi."]}, "a function returned 'Hi.': write say"),  # pyright: ignore[reportUnknownLambdaType] - as users write it
    ],
    ids=["list", "reply", "text", "function"],
)
def test_a_script_that_is_none_is_refused(script: Any, error: str) -> None:
    with pytest.raises(UsageError, match=re.escape(error)):
        run_virtual(Rehearsal(script).run, "Hello")
    plain: Any = str.upper
    with pytest.raises(UsageError, match="decorate the function with `@tool`"):
        run_virtual(Rehearsal({}, tools=[plain]).run, "Hello")


def test_a_failing_tool_is_logged_without_the_values_of_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    @tool
    def failing() -> str:
        """Fail."""
        password = "s" + "esame"
        raise LookupError(len(password))

    structlog.reset_defaults()
    run_virtual(Rehearsal({"lead": [use("failing")]}, tools=[failing]).run, "Hello")
    log = capsys.readouterr().out
    assert ("LookupError: 6" in log, "sesame" in log) == (True, False)
    assert len(log.splitlines()) < 50
    assert not structlog.is_configured()

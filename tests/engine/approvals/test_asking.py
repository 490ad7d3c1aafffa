"""A call that asks: what a person is asked and how often, session rules, and hooks in the person's place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import pytest
from tests.engine.agent.test_one_agent import Echo, texts, tools
from tests.simulation.virtual import run_virtual

from callboard.core.approvals.session_rules import AlwaysAllow
from callboard.core.keys import rows_prefix
from callboard.core.messaging.envelopes import envelope_write
from callboard.engine.recall import events_of
from callboard.ports.environment import Answer, PermissionDecision, PermissionQuery
from callboard.ports.tool import ToolSpec
from callboard.sessions.handle import RuleInspector
from callboard.testing import AllowAll, HostedSession, ScriptedModel, World, say, use
from callboard.types.errors import UsageError
from callboard.types.events import CallJudged
from callboard.types.hook_answers import Allow, Ask, Deny, Halt, PermissionRequest, PreToolUse, Rewrite
from callboard.types.records import Envelope, Request

pytestmark = pytest.mark.anyio

YES = Answer("approved", "person")
ALWAYS = Answer("approved", "person", always=AlwaysAllow())


@dataclass
class Person:
    """Answers what it is asked, one after the other; then never again."""

    answers: list[Answer]
    asked: list[Request] = field(default_factory=list[Request])

    async def answer(self, request: Request) -> Answer | None:
        self.asked.append(request)
        if len(self.asked) > len(self.answers):
            await anyio.sleep_forever()
        return self.answers[len(self.asked) - 1]


def world_of(person: Person, *replies: Any, echo: Echo | None = None) -> World:
    world = World(ScriptedModel({"lead": [*replies, say("done")]}), tools(echo or Echo()))
    world.judge, world.approvers = AllowAll(ask=["echo"]), [person]
    return world


async def verdicts(team: HostedSession, name: str = "lead") -> list[str]:
    events = await events_of(team.world.store, f"j/{team.id}/{name}.1")
    return [event.by for event in events if isinstance(event, CallJudged)]


async def rows(team: HostedSession) -> list[Request]:
    found = await team.world.store.keys(f"{rows_prefix(team.id)}request/")
    return [Request.model_validate_json(row.value or b"") for row in found]


# Session rules


async def test_what_was_allowed_for_always_is_asked_once_and_told_in_the_journal() -> None:
    echo, person = Echo(), Person([ALWAYS])
    async with world_of(person, use("echo"), use("echo"), use("echo"), echo=echo).session() as team:
        await team.prompt("go")
        await team.quiet()
        assert (len(echo.ran), len(person.asked)) == (3, 1)
        assert person.asked[0].payload["always"] == ["echo"]
        assert await verdicts(team) == ["session rule echo", "session rule echo"]


async def test_what_waits_already_is_settled_by_the_rule_that_an_answer_makes() -> None:
    echo, person = Echo(), Person([ALWAYS])
    async with world_of(person, use("echo", {}, ("echo", {}), ("echo", {})), echo=echo).session() as team:
        await team.prompt("go")
        await team.quiet()
        assert len(echo.ran) == 3
        assert sorted(one.answered_by or "" for one in await rows(team)) == ["person", "policy", "policy"]


async def test_it_survives_a_resume_and_another_session_knows_nothing_of_it() -> None:
    echo, person = Echo(), Person([ALWAYS])
    world = world_of(person, use("echo"), say("first"), use("echo"), say("second"), use("echo"), echo=echo)
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
    async with world.session(resume=True) as team:
        await team.command("interrupt")  # numbers what is said here from another number on
        await team.prompt("again")
        await team.quiet()
        assert (len(echo.ran), len(person.asked)) == (2, 1)
    async with world.session("s2") as team:
        await team.prompt("elsewhere")
        while len(person.asked) < 2:
            await anyio.sleep(0.001)
        assert len(echo.ran) == 2


async def test_a_turn_that_a_schedule_began_asks_all_the_same() -> None:
    echo, person = Echo(), Person([ALWAYS, YES])
    world = world_of(person, use("echo"), say("first"), use("echo"), echo=echo)
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        fire = Envelope(
            id="env_fire", sender="schedule", recipient="lead", type="scheduled", cause="schedule", content="tidy"
        )
        await world.store.commit(envelope_write(team.id, fire))
        await team.quiet()
        assert [one.cause for one in person.asked] == ["person", "schedule"]
        assert len(echo.ran) == 2


async def test_a_rule_that_is_taken_back_allows_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    echo, person = Echo(), Person([ALWAYS, YES])
    world = world_of(person, use("echo"), say("first"), use("echo"), echo=echo)
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        inspector = RuleInspector(world.store, team.id, team.team.runtime.rows)
        (rule,) = inspector.active_rules()
        assert [one.id for one in await inspector.made_by(person.asked[0].id)] == [rule.id]
        monkeypatch.setenv("CALLBOARD_TOOL", "1")
        with pytest.raises(UsageError, match="is for a person"):
            await inspector.revoke(rule.id)
        monkeypatch.delenv("CALLBOARD_TOOL")
        await inspector.revoke(rule.id[:9])
        with pytest.raises(UsageError, match="already revoked"):
            await inspector.revoke(rule.id)
        await team.prompt("again")
        await team.quiet()
        assert (len(person.asked), list(inspector.active_rules())) == (2, [])


def test_a_rule_with_a_time_ends_with_it() -> None:
    run_virtual(_timed)


async def _timed() -> None:
    echo, person = Echo(), Person([Answer("approved", "person", always=AlwaysAllow(7_200)), YES])
    world = world_of(person, use("echo"), say("1"), use("echo"), say("2"), use("echo"), echo=echo)
    async with world.session() as team:
        for wait, asked in ((0, 1), (7_000, 1), (300, 2)):
            await anyio.sleep(wait)
            await team.prompt("go")
            await team.quiet()
            assert len(person.asked) == asked
        assert len(echo.ran) == 3


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Answer("approved", "policy", always=AlwaysAllow()), "only a person may allow"),
        (Answer("rejected", "person", always=AlwaysAllow()), "only what is allowed"),
        (Answer("approved", "person", always=AlwaysAllow(-1.0)), "longer than 0"),
    ],
)
async def test_an_always_that_does_not_count_is_no_answer_at_all(answer: Answer, why: str) -> None:
    echo, told = Echo(), list[str]()
    world = world_of(Person([]), use("echo"), echo=echo)
    world.approvers = [Person([Answer(answer.status, answer.by, always=answer.always, refused=told.append)])]
    world.spec = {"ask_deadline": None}
    async with world.session() as team:
        await team.prompt("go")
        while not told:
            await anyio.sleep(0.001)
        assert why in told[0]
        assert (await rows(team))[0].status == "pending"
        assert echo.ran == []


# Hooks in the person's place


def hooked(event: str, *answers: object) -> Callable[[Any], object]:
    """A hook that gives these, one for each time it is asked, and writes down what it was told."""
    left = list(answers)

    async def answer(told: Any) -> object:
        heard.append(told)
        return left.pop(0) if left else None

    heard: list[Any] = []
    answer.heard = heard
    answer.__name__ = event
    return answer


@pytest.mark.parametrize(
    ("before", "instead", "ran", "asked", "by"),
    [
        (None, None, 1, 1, []),
        (Allow("fine"), None, 1, 0, ["hook PreToolUse (person)"]),
        (Ask("look"), None, 1, 1, []),
        (Ask("look"), Allow("fine"), 1, 1, []),
        (Ask("look"), Deny("no"), 0, 0, ["hook PermissionRequest (person)"]),
        (None, Allow("fine"), 1, 0, ["hook PermissionRequest (person)"]),
        (None, Deny("no"), 0, 0, ["hook PermissionRequest (person)"]),
        (Allow("fine"), Deny("no"), 1, 0, ["hook PreToolUse (person)"]),
        (Deny("no"), Allow("fine"), 0, 0, ["hook PreToolUse (person)"]),
    ],
)
async def test_hooks_come_before_rules_and_then_in_the_persons_place(
    before: object, instead: object, ran: int, asked: int, by: list[str]
) -> None:
    echo, person = Echo(), Person([YES])
    world = world_of(person, use("echo"), echo=echo)
    world.hooks.add("PreToolUse", hooked("PreToolUse", before))
    world.hooks.add("PermissionRequest", hooked("PermissionRequest", instead))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert (len(echo.ran), len(person.asked)) == (ran, asked)
        assert await verdicts(team) == by


@dataclass
class Strict(AllowAll):
    """A judge whose question no rule lifts; `theirs`: only a person may answer it."""

    theirs: bool = False

    def __post_init__(self) -> None:
        super().__init__(ask=["echo"])

    async def judge(self, query: PermissionQuery) -> PermissionDecision:
        decision = await super().judge(replace(query, overrides=()))
        return PermissionDecision(decision.decision, "F", "the floor", person_only=self.theirs)

    async def always(self, query: PermissionQuery) -> tuple[str, ...]:
        return ()


@pytest.mark.parametrize("theirs", [False, True])
async def test_no_hook_lifts_what_no_rule_lifts(theirs: bool) -> None:
    echo, person = Echo(), Person([YES])
    world = world_of(person, use("echo"), echo=echo)
    world.judge = Strict(theirs)
    instead = hooked("PermissionRequest", Allow("fine"))
    world.hooks.add("PreToolUse", hooked("PreToolUse", Allow("fine")))
    world.hooks.add("PermissionRequest", instead)
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert (len(echo.ran), len(person.asked)) == (1, 1)
        assert person.asked[0].payload["always"] == []
        heard: list[PermissionRequest] = instead.heard
        assert len(heard) == (0 if theirs else 1)


async def test_a_hook_in_the_persons_place_is_told_what_always_would_allow_and_may_change_the_input() -> None:
    echo, person = Echo(), Person([])
    instead = hooked("PermissionRequest", Rewrite(input={"text": "tame"}))
    world = world_of(person, use("echo", {"text": "wild"}), echo=echo)
    world.hooks.add("PermissionRequest", instead)
    world.hooks.add("PermissionRequest", hooked("second", Allow("fine")))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert (echo.ran, person.asked) == ([{"text": "tame"}], [])
        (heard,) = instead.heard
        assert heard.suggestions[0]["rules"] == [{"toolName": "echo"}]
        assert (heard.call.input, heard.by.name) == ({"text": "wild"}, "lead")


async def test_an_input_of_a_hook_that_does_not_fit_is_not_run_and_the_person_is_asked() -> None:
    echo, person = Echo(), Person([YES])
    world = world_of(person, use("echo", {"text": "wild"}), echo=echo)
    world.hooks.add("PermissionRequest", hooked("first", Rewrite(input={"nonsense": 1})))
    world.hooks.add("PermissionRequest", hooked("second", Allow("fine")))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert (echo.ran, len(person.asked)) == ([{"text": "wild"}], 1)


async def test_a_hook_in_the_persons_place_may_stop_the_agent() -> None:
    echo, person = Echo(), Person([])
    world = world_of(person, use("echo"), echo=echo)
    world.hooks.add("PermissionRequest", hooked("PermissionRequest", Halt("enough")))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert (echo.ran, person.asked, team.state("lead").turns.last_reason) == ([], [], "interrupted")


async def test_a_call_that_waits_for_an_answer_at_an_interrupt_is_said_not_to_have_run() -> None:
    echo, person = Echo(), Person([])
    async with (world := world_of(person, use("echo"), echo=echo)).session() as team:
        await team.prompt("go")
        while not person.asked:
            await anyio.sleep(0.001)
        await team.command("interrupt")
        await team.quiet()
        await team.prompt("go on")
        await team.quiet()
        assert echo.ran == []
        assert "Not run: interrupted before it began." in texts(world)


async def test_a_hook_that_fails_in_the_persons_place_leaves_it_to_the_person() -> None:
    async def broken(event: PermissionRequest) -> None:
        raise ValueError("boom")

    echo, person = Echo(), Person([YES])
    world = world_of(person, use("echo"), echo=echo)
    world.hooks.add("PermissionRequest", broken)
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert (len(echo.ran), len(person.asked)) == (1, 1)


async def test_a_reason_with_a_no_reaches_the_model() -> None:
    person = Person([Answer("rejected", "person", "use the staging key")])
    world = world_of(person, use("echo"))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert "use the staging key" in texts(world)


async def test_hooks_see_the_call_before_any_rule_does() -> None:
    echo = Echo()
    seen = hooked("PreToolUse", None)
    world = world_of(Person([]), use("echo"), echo=echo)
    world.judge = AllowAll(deny=["echo"])
    world.hooks.add("PreToolUse", seen)
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        (heard,) = seen.heard
        assert isinstance(heard, PreToolUse)
        assert await verdicts(team) == ["rule"]


@dataclass
class Odd(Echo):
    """A tool whose arguments are named like variables of ours."""

    @property
    def spec(self) -> ToolSpec:
        names = ("self", "given", "context", "call", "agent", "tool", "name", "input", "kwargs", "__class__")
        properties = {name: {"type": "string"} for name in names}
        schema = {"type": "object", "properties": properties, "additionalProperties": False}
        return ToolSpec(self.name, "Echo.", schema, "read", "shared")


async def test_arguments_named_like_our_variables_reach_their_tool_and_nobody_else() -> None:
    tool = Odd(name="mcp__shop__list")
    arguments = {name: f"<{name}>" for name in tool.spec.input_schema["properties"]}
    world = World(ScriptedModel({"lead": [use(tool.name, arguments), say("done")]}), tools(tool))
    seen = hooked("PreToolUse", None)
    world.hooks.add("PreToolUse", seen, "mcp__shop__.*")
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert tool.ran == [arguments]
        (heard,) = seen.heard
        assert (heard.call.input, heard.call.name, heard.by.name) == (arguments, tool.name, "lead")

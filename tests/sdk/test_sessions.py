"""Whole sessions from Python with the rehearsal model: tools, agents, hooks, approvers, and stages in code."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import anyio
import pytest
import structlog
from pydantic import BaseModel

from callboard import Agent, Deny, Request, Session, ToolContext, ToolError, hook, schedule, tool
from callboard.core.keys import journal, session_key
from callboard.ports.environment import Answer
from callboard.ports.model import Delta
from callboard.ports.store_reading import records_of
from callboard.sdk import events
from callboard.sdk.errors import RunFailed, SessionClosed, UsageError, WrongResult
from callboard.sessions.hosted import HostedSession
from callboard.types.errors import ValueDamaged
from callboard.types.events import Event
from callboard.types.hook_answers import PreToolUse
from callboard.types.records import Envelope

SCENARIO = """\
agents:
  lead:
    - {when: {contains: "number please"}, reply: "seven"}
    - {when: {contains: "share please"}, reply: '{"share": NaN}'}
    - {when: {contains: "it contains NaN"}, reply: '{"share": 0.5}'}
    - {when: {contains: "does not fit"}, repeat: forever, reply: '{"number": 7}'}
    - {when: {contains: "never fits"}, reply: "eight"}
    - {when: {contains: "book it"}, repeat: forever, reply: [{tool_use: {name: book, input: {room: Blue, self: me}}}]}
    - {when: {contains: "fail it"}, reply: [{tool_use: {name: fail, input: {}}}]}
    - {when: {contains: "slow it"}, reply: [{tool_use: {name: slow, input: {}}}]}
    - {when: {contains: "ask it"}, reply: [{tool_use: {name: ask_person, input: {question: "Which?"}}}]}
    - when: {contains: "give it"}
      reply: [{tool_use: {name: task, input: {description: d, prompt: p, agent_type: clerk}}}]
    - {when: {contains: "break it"}, fault: {status: 400}}
    - {otherwise: true, reply: "Done."}
  clerk*:
    - {when: {result_of: book}, reply: "Booked."}
    - {reply: [{tool_use: {name: book, input: {room: Red, self: me}}}]}
"""


class Number(BaseModel):
    number: int


class Share(BaseModel):
    share: float


booked: list[str] = []


@tool
def book(room: str, self: str, context: ToolContext) -> dict[str, str]:
    """Book a room."""
    booked.append(f"{room} for {context.agent}")
    return {"room": room, "by": self}


def tool_end(told: list[events.Event], name: str) -> events.ToolEnded:
    return next(one for one in told if isinstance(one, events.ToolEnded) and one.name == name)


async def events_of(session: Session, prompt: str) -> list[events.Event]:
    return [event async for event in session.stream(prompt)]


def test_a_run_says_what_came_of_it_and_a_resume_goes_on(place: Path) -> None:
    async def go() -> None:
        async with Session(place, schedules=[schedule("@daily", "x")]) as session:
            result = await session.run("Hello")
            assert (result.ok, result.text, result.value, result.session) == (True, "Done.", None, session.id)
            assert result.usage.output_tokens > 0
            assert result.usage == session.cost()
            assert [one.name for one in session.team()] == ["lead"]
        with pytest.raises(SessionClosed):
            await session.run("Too late")
        with pytest.raises(SessionClosed):
            _ = Session(place).id
        async with Session.resume(session.workspace, session.id, schedules=[schedule("@daily", "x")]) as again:
            assert (await again.rest()).text == "Done."
            assert len(again.schedules()) == 1, "the same schedule exists once"
        with pytest.raises(UsageError, match="opened only once"):
            await again.__aenter__()

    asyncio.run(go())


def test_a_schedule_of_a_program_begins_when_it_is_added(place: Path) -> None:
    async def go() -> None:
        before = time.time()
        async with Session(place, schedules=[schedule("0 3 1 1 *", "x", misfire="all", window="3650d")]) as session:
            assert (await session.run("Hello")).ok
            row = session.schedules()[0]
            assert row.created_at >= before
            assert row.last_slot is None, "no time before that was missed"

    asyncio.run(go())


def test_a_typed_result_is_asked_for_again_with_what_is_wrong(place: Path) -> None:
    async def go() -> None:
        async with Session(place) as session:
            assert (await session.run("A number please", result=Number)).value.number == 7
            assert (await session.run("A share please", result=Share)).value.share == 0.5
            with pytest.raises(WrongResult) as wrong:
                await session.run("This never fits", result=list[str])
            assert len(wrong.value.errors) == 4
            assert wrong.value.errors[-1] == "must be a list"
            failed = await session.run("Now break it")
            assert (failed.ok, failed.exit_code) == (False, 1)
            with pytest.raises(RunFailed) as told:
                failed.check()
            assert told.value.result is failed

    asyncio.run(go())


@pytest.mark.slow
def test_a_tool_from_python_asks_and_is_judged_under_its_own_name(place: Path) -> None:
    async def go() -> None:
        booked.clear()
        asked: list[Request] = []

        async def approve(request: Request) -> bool | str:
            asked.append(request)
            return True if len(asked) == 1 else "Blue" if request.kind == "question" else False

        @hook("PreToolUse", matcher="book")
        def no_red(event: PreToolUse) -> Deny | None:
            return Deny("red is closed") if event.call.input["room"] == "Red" else None

        clerk = Agent("clerk", "Books.", "You book.", tools=[book])
        async with Session(place, tools=[book], agents=[clerk], hooks=[no_red], approver=approve) as session:
            told = await events_of(session, "book it")
            assert tool_end(told, "book").data == {"room": "Blue", "by": "me"}
            assert [one.request.payload["tool"] for one in told if isinstance(one, events.Asked)] == ["book"]
            assert isinstance(told[-1], events.Rested)
            denied = tool_end(await events_of(session, "book it again"), "book")
            assert (denied.is_error, "denied" in denied.text.lower()) == (True, True)
            by_clerk = [one for one in await events_of(session, "give it away") if isinstance(one, events.ToolEnded)]
            assert [(one.name, one.is_error) for one in by_clerk] == [("book", True), ("task", False)]
            assert "red is closed" in by_clerk[0].text
            assert (await session.run("ask it")).ok
        assert booked == ["Blue for lead"]
        assert [one.kind for one in asked] == ["permission", "permission", "question"]

    asyncio.run(go())


def test_a_run_waits_for_the_answer_to_a_question(place: Path) -> None:
    async def slowly(request: Request) -> str:
        await anyio.sleep(0.3)
        return "The blue one."

    async def go() -> None:
        async with Session(place, approver=slowly) as session:
            assert (await session.run("ask it")).ok
            (question,) = session.runtime.requests(pending_only=False)
            assert (question.status, question.reason) == ("answered", "The blue one.")
            assert session.runtime.open_work().requests == ()

    asyncio.run(go())


def test_what_a_tool_raises_and_one_that_takes_too_long_are_error_results(place: Path) -> None:
    @tool(reads=True)
    async def fail() -> str:
        """Fails."""
        raise ToolError("no room at all")

    @tool(reads=True, timeout=0.05)
    async def slow() -> str:
        """Takes long."""
        await anyio.sleep_forever()
        return "never"

    async def go() -> None:
        async with Session(place, tools=[fail, slow]) as session:
            failed = tool_end(await events_of(session, "fail it"), "fail")
            assert (failed.is_error, failed.text) == (True, "no room at all")
            late = tool_end(await events_of(session, "slow it"), "slow")
            assert (late.is_error, "longer than 0.05 s" in late.text) == (True, True)

    asyncio.run(go())


def test_texts_of_a_program_that_are_not_utf_8_end_no_session(place: Path) -> None:
    name = "caf\udce9"  # as `os.listdir` returns a name that is not UTF-8
    calls: list[str] = []

    @tool
    def fail() -> str:
        """Fails."""
        calls.append(name)
        raise ToolError(f"cannot read {name}")

    @tool(reads=True)
    def slow() -> str:
        """Fails in another way."""
        raise FileNotFoundError(f"no {name}")

    async def go() -> None:
        answers = iter([True, name])
        async with Session(place, tools=[fail, slow], approver=lambda _: next(answers)) as session:
            failed = tool_end(await events_of(session, f"fail it: {name}"), "fail")
            assert (failed.is_error, failed.text, len(calls)) == (True, "cannot read caf?", 1)
            failed = tool_end(await events_of(session, "slow it"), "slow")
            assert (failed.is_error, failed.text) == (True, "FileNotFoundError: no caf?")
            assert (await session.run("ask it")).ok
            assert [row.reason for row in session.runtime.requests(pending_only=False)] == ["", "caf?"]
            assert (await session.run(f"and {name}")).ok

    asyncio.run(go())


def test_cancelling_loses_nothing_and_what_is_raised_inside_leaves_as_itself(place: Path) -> None:
    began, go_on = anyio.Event, anyio.Event

    async def go() -> None:
        here, free = began(), go_on()

        @tool(reads=True)
        async def slow() -> str:
            """Waits."""
            here.set()
            await free.wait()
            return "waited"

        async with Session(place, tools=[slow]) as session:
            async with anyio.create_task_group() as group:
                group.start_soon(session.run, "slow it")
                await here.wait()
                group.cancel_scope.cancel()
            free.set()
            assert (await session.rest()).text == "Done.", "the turn continues"
        with pytest.raises(ZeroDivisionError):
            async with Session(place):
                1 / 0  # noqa: B018 - it raises

    asyncio.run(go())


@pytest.mark.slow
def test_a_session_may_be_opened_used_and_closed_by_different_tasks(place: Path) -> None:
    """A web service that keeps its sessions in an exit stack does this."""

    async def go() -> None:
        stack = AsyncExitStack()
        opening = [asyncio.create_task(stack.enter_async_context(Session(place))) for _ in range(2)]
        sessions = [await one for one in opening]
        first = sessions[0].id
        results = await asyncio.gather(*(asyncio.create_task(one.run("Hello")) for one in sessions))
        assert [one.text for one in results] == ["Done.", "Done."]
        await asyncio.create_task(stack.aclose())
        with pytest.raises(SessionClosed):
            await sessions[0].run("Too late")
        resumed = Session.resume(place, first)
        assert await asyncio.create_task(resumed.__aenter__()) is resumed, "no process hosts it any more"
        await asyncio.create_task(resumed.__aexit__(None, None, None))

    asyncio.run(go())


def test_opening_that_is_cancelled_or_fails_leaves_nothing_open(place: Path) -> None:
    async def go() -> None:
        opening = asyncio.create_task(Session(place, id=(name := str(uuid4()))).__aenter__())
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        with anyio.move_on_after(0) as scope:
            async with Session(place):
                pytest.fail("the block ran although it was cancelled")
        assert scope.cancelled_caught
        with pytest.raises(UsageError, match="no session"):
            await Session.resume(place, name).__aenter__()
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []

    asyncio.run(go())


def test_a_run_in_another_task_ends_when_the_session_is_closed(place: Path) -> None:
    async def go() -> None:
        begun = asyncio.Event()

        @tool(reads=True)
        async def slow() -> str:
            """Take long."""
            begun.set()
            await asyncio.Event().wait()
            return "too late"

        session = await Session(place, tools=[slow]).__aenter__()
        running = asyncio.create_task(session.run("slow it"))
        await begun.wait()
        await session.__aexit__(None, None, None)
        with pytest.raises(SessionClosed):
            await running

    asyncio.run(go())


def test_prompts_at_the_same_time_all_arrive_and_rest(place: Path) -> None:
    async def go() -> None:
        async with Session(place) as session:
            await asyncio.gather(session.say("one"), session.say("two"), session.say("three"))
            assert (await session.rest()).ok
            runs = await asyncio.gather(*(session.run(f"again {number}") for number in range(4)), session.rest())
            assert all(result.ok for result in runs)
            streams = await asyncio.gather(events_of(session, "left"), events_of(session, "right"))
            assert [type(stream[-1]) for stream in streams] == [events.Rested] * 2
            assert (await session.run("next")).ok
            assert isinstance(session.runtime, HostedSession)
            records = await records_of(session.runtime.store, journal(session.id, "lead", 1))
            prompts = "".join(map(str, records))
            for prompt in ("one", "two", "three", *(f"again {number}" for number in range(4)), "left", "right"):
                assert f'"{prompt}"' in prompts

    asyncio.run(go())


def test_a_session_that_cannot_be_named_still_gets_the_prompt(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(session: HostedSession, text: str) -> None:
        raise ValueDamaged(text, session_key(session.id))

    async def go() -> None:
        monkeypatch.setattr(HostedSession, "name_session", fails)
        async with Session(place) as session:
            assert (await session.run("Hello")).text == "Done."

    asyncio.run(go())


def test_an_error_while_a_stream_waits_for_the_rest_is_raised_by_that_stream(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(session: HostedSession, code: int) -> None:
        raise ZeroDivisionError

    async def go() -> None:
        async with Session(place) as session:
            with monkeypatch.context() as broken:
                broken.setattr(HostedSession, "mark_ended", fails)
                stream = session.stream("Hello")
                with pytest.raises(ZeroDivisionError):
                    _ = [event async for event in stream]
                assert [event async for event in stream] == [], "it is closed"
            assert (await session.run("next")).ok

    asyncio.run(go())


def test_a_stream_whose_first_read_is_cancelled_goes_on_with_the_next(place: Path) -> None:
    async def go() -> None:
        async with Session(place) as session:
            stream = session.stream("Hello")
            with anyio.move_on_after(0) as scope:
                await anext(stream)
            assert scope.cancelled_caught
            told = [type(event) async for event in stream]
            assert (told[0], told[-1]) == (events.TurnBegan, events.Rested)
            unread = session.stream("Too late")
        for _ in range(2):
            with pytest.raises(SessionClosed):
                await anext(unread)

    asyncio.run(go())


def test_a_session_can_be_closed_as_soon_as_the_prompt_of_a_stream_is_sent(place: Path) -> None:
    sent = asyncio.Event()

    class Noting(Session):
        async def say(self, text: str, to: str = "lead") -> None:
            await super().say(text, to)
            sent.set()

    async def go() -> None:
        async with Noting(place) as session:
            reading = asyncio.create_task(events_of(session, "Hello"))
            await sent.wait()
        assert not any(isinstance(event, events.Rested) for event in await reading)
        async with Session.resume(place) as again:
            assert (await again.rest()).text == "Done."

    asyncio.run(go())


def test_a_session_that_is_closed_while_it_is_opened_is_not_open(place: Path) -> None:
    async def go() -> None:
        session = Session(place)
        opening = asyncio.create_task(session.__aenter__())
        await asyncio.sleep(0)
        await session.__aexit__(None, None, None)
        with pytest.raises(SessionClosed):
            await opening
        with pytest.raises(SessionClosed):
            session.team()
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []

    asyncio.run(go())


def test_a_session_whose_lead_was_ended_says_so(place: Path) -> None:
    async def go() -> None:
        async with Session(place) as session:
            assert (await session.run("Hello")).ok
            await session.stop("lead")
            ended = await session.rest()
            assert (ended.ok, ended.exit_code) == (False, 1)
            assert "start a new session" in ended.why
            with pytest.raises(UsageError, match="start a new session"):
                await session.run("Hello again")
            with pytest.raises(UsageError, match="start a new session"):
                await events_of(session, "Hello again")
        async with Session.resume(place) as session:
            with pytest.raises(UsageError, match="start a new session"):
                await session.run("Hello again")
            assert not (await session.rest()).ok

    asyncio.run(go())


def test_an_observer_of_the_program_that_raises_is_logged_and_stops_nothing(place: Path) -> None:
    calls = set[str]()

    class Fails:
        def on_event(self, agent: str, seq: int, event: Event) -> None:
            calls.add("event")
            raise ValueError("an event")

        def on_delta(self, agent: str, delta: Delta) -> None:
            calls.add("delta")
            raise ValueError("a delta")

        def on_mail(self, envelope: Envelope) -> None:
            calls.add("mail")
            raise ValueError("mail")

    async def go() -> None:
        async with Session(place, observers=[Fails()]) as session:
            assert (await session.run("Hello")).text == "Done."

    asyncio.run(go())
    assert calls >= {"event", "delta"}
    logged = "".join(path.read_text() for path in (place.parent / "STATE").rglob("*.jsonl"))
    assert "ValueError: a delta" in logged


@pytest.mark.parametrize(
    ("prompt", "value", "reason"),
    [
        ("book it", Answer("answered", "person", "x"), "is a permission: an answer is approved or rejected"),
        ("book it", Answer(cast("Any", "bogus"), "person"), "not 'bogus'"),
        ("book it", Answer("approved", "person", cast("Any", None)), "a wrong `reason`: None"),
        ("book it", "yes", "answer it with True or False, not with 'yes'"),
        ("ask it", {"a": 1}, "answer it with a text, not with {'a': 1}"),
        ("ask it", True, "answer it with a text, not with True"),
        ("ask it", Answer("approved", "person"), "an answer is answered, not 'approved'"),
    ],
)
@pytest.mark.parametrize("kind", ["function", "object"])
def test_a_value_that_does_not_answer_the_request_refuses_it(
    place: Path, prompt: str, value: object, reason: str, kind: str
) -> None:
    class Fixed:
        async def answer(self, request: Request) -> Any:
            return value

    async def go() -> None:
        booked.clear()
        approver = Fixed() if kind == "object" else Fixed().answer
        async with Session(place, tools=[book], approver=approver) as session:
            assert (await session.run(prompt)).ok
            (request,) = session.runtime.requests(pending_only=False)
            assert request.status == ("rejected" if prompt == "book it" else "answered")
            assert "the approver did not answer" in request.reason
            assert reason in request.reason
        assert booked == []

    asyncio.run(go())


def test_tools_of_the_program_stay_when_the_runtimes_are_chosen(place: Path) -> None:
    async def booking(**options: Any) -> bool:
        booked.clear()
        async with Session(place, tools=[book], approver=lambda _: True, **options) as session:
            await session.run("book it")
        return bool(booked)

    async def go() -> None:
        assert await booking(lead_tools=["read_file"])
        assert not await booking(lead_tools=["read_file"], denied=["book"])

    asyncio.run(go())


@pytest.mark.slow
def test_several_sessions_live_in_one_program_and_leave_it_as_it_was(
    place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGINT), logging.root.handlers[:], logging.root.level
    other = place.parent / "other"
    other.mkdir()

    async def go() -> None:
        async with Session(place) as one, Session(place) as two, Session(other) as three:
            results = [await each.run("Hello") for each in (one, two, three)]
            assert [result.text for result in results] == ["Done."] * 3
            assert len({result.session for result in results}) == 3
            assert signal.getsignal(signal.SIGINT) is before[0] or signal.getsignal(signal.SIGINT) is not None
        structlog.get_logger("callboard.late").info("goes nowhere")

    asyncio.run(go())
    assert (signal.getsignal(signal.SIGINT), logging.root.handlers[:], logging.root.level) == before
    assert capfd.readouterr() == ("", "")
    structlog.get_logger("mine").info("is printed as before")
    assert "is printed as before" in capfd.readouterr().out


def test_a_stage_of_ones_own_is_asked_by_the_name_that_settings_give_it(place: Path) -> None:
    asked: list[int] = []

    def look(view: object, budget: int, now: float) -> None:
        asked.append(budget)

    async def go() -> None:
        settings = {"context": {"pipeline": [{"stage": "code:look"}, {"stage": "summarize_all"}], "limit": 100}}
        async with Session(place, stages={"code:look": look}, settings=settings) as session:
            await session.run("Hello " * 200)

    asyncio.run(go())
    assert asked


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"tools": [len]}, "decorate the function with `@tool`"),
        ({"hooks": [len]}, "decorate the function with `@hook"),
        ({"agents": [Agent("a", "b", "c", tools=["no_such"])]}, "there is no tool 'no_such'"),
        ({"agents": [Agent("A b", "b", "c")]}, "name"),
        ({"modell": "x"}, "unknown option 'modell': choose model"),
        ({"approver": 7}, "not an approver"),
        ({"budget": -1}, "budget"),
        ({"tools": [book, tool(name="book")(lambda: "")]}, "two tools have the name book"),
    ],
)
def test_options_that_do_not_fit_are_refused_at_once(place: Path, options: dict[str, object], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Session(place, **options)  # wrong on purpose


def test_a_tool_with_a_name_of_the_runtime_is_refused(place: Path) -> None:
    async def go() -> None:
        with pytest.raises(UsageError, match="bash"):
            async with Session(place, tools=[tool(name="bash")(book.function)]):
                pass

    asyncio.run(go())


def test_importing_the_package_loads_nothing_and_every_public_name_is_there_and_described() -> None:
    code = "import sys, callboard; print([m for m in sys.modules if m.startswith('callboard.')])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "['callboard._renamed']"
    import callboard
    from callboard.sdk import errors

    assert set(callboard.__all__) <= set(dir(callboard))
    for module in (callboard, events, errors):
        for name in set(module.__all__) - {"__version__", "Event"}:
            assert (getattr(module, name).__doc__ or "").strip(), f"{name} has no docstring"
            assert not (getattr(module, name).__doc__ or "").startswith(f"{name}("), f"{name}: a generated docstring"
    for name in [one for one in vars(Session) if not one.startswith("_")]:
        assert (getattr(Session, name).__doc__ or "").strip(), f"Session.{name} has no docstring"
    with pytest.raises(AttributeError, match="no attribute 'Sesion'"):
        callboard.Sesion  # noqa: B018 - the look-up raises

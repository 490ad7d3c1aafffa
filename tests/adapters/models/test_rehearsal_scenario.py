"""A scenario gives each agent of each session its steps, remembers them after a kill, and reports its mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from callboard.adapters.models.rehearsal.api import ApiError
from callboard.adapters.models.rehearsal.player import Player
from callboard.adapters.models.rehearsal.replies import (
    SimulatedReply,
    SimulatedRequest,
    call,
    fit_reply,
    say,
    text,
    thinking,
    tool_use,
)
from callboard.adapters.models.rehearsal.scenario import Scenario
from callboard.adapters.models.rehearsal.scenario_file import load_scenario

pytestmark = pytest.mark.anyio

Json = dict[str, Any]

TOOLS = [{"name": "read", "input_schema": {"type": "object"}}, {"name": "bash", "input_schema": {"type": "object"}}]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def request_with(
    words: str | list[Json] = "hello",
    *,
    agent: str = "lead",
    session: str = "s",
    ordinal: int | str = 1,
    attempt: int = 1,
    purpose: str = "turn",
    role: str = "",
    before: list[Json] | None = None,
    **fields: Any,
) -> SimulatedRequest:
    messages = [*(before or []), {"role": "user", "content": words}]
    body = {"model": "rehearsal", "max_tokens": 4_000, "tools": TOOLS, "messages": messages, **fields}
    return SimulatedRequest(session, agent, str(ordinal), attempt, purpose, role, body)


async def reply_text(player: Player, request: SimulatedRequest) -> str:
    """Return the text of the reply, or the error's message."""
    reply = await player.play(request)
    if isinstance(reply, ApiError):
        return reply.message
    return " ".join(str(block.get("text") or block.get("name")) for block in reply.blocks)


def scenario(steps: str, **more: str) -> Scenario:
    indented = "\n".join(f"    {line}" for line in steps.strip().splitlines())
    rest = "\n".join(f"{name}: {value}" for name, value in more.items())
    return load_scenario(f"name: test\nagents:\n  lead:\n{indented}\n{rest}\n", "test.yaml")


async def test_steps_are_played_in_order_for_each_session_alone() -> None:
    player = Player(scenario("- reply: one\n- reply: two"))
    assert await reply_text(player, request_with(session="a")) == "one"
    assert await reply_text(player, request_with(session="b")) == "one"
    assert await reply_text(player, request_with(session="a", ordinal=2)) == "two"
    assert await reply_text(player, request_with(session="b", ordinal=2)) == "two"


async def test_a_call_asked_again_gets_the_same_step_again() -> None:
    player = Player(scenario("- reply: one\n- reply: two"))
    first, again = request_with(), request_with()
    assert await player.play(first) == await player.play(again)
    assert player.attempt("s", "lead", "turn", "1") == 3
    assert await reply_text(player, request_with(ordinal=2)) == "two"


async def test_a_guarded_step_waits_until_it_fits() -> None:
    player = Player(scenario("- when: {contains: 'from bob'}\n  reply: bob wrote\n- reply: plain\n- reply: last"))
    assert await reply_text(player, request_with("hello")) == "plain"
    assert await reply_text(player, request_with("a letter from bob", ordinal=2)) == "bob wrote"
    assert await reply_text(player, request_with("a letter from bob", ordinal=3)) == "last"


@pytest.mark.parametrize(
    ("guard", "fits"),
    [
        ("{contains: 'h.llo'}", True),
        ("{contains: [hello, there]}", False),
        ("{contains: '^second'}", True),
        ("{not_contains: hello}", False),
        ("{not_contains: goodbye}", True),
        ("{anywhere: 'the prompt'}", True),
        ("{anywhere: 'not there'}", False),
        ("{model: 'reh*'}", True),
        ("{model: 'claude-*'}", False),
        ("{result_of: bash}", False),
    ],
)
async def test_guards_look_at_the_request(guard: str, fits: bool) -> None:
    player = Player(scenario(f"- when: {guard}\n  reply: fits\n- reply: does not"))
    request = request_with("hello\nsecond line", system="the prompt")
    assert await reply_text(player, request) == ("fits" if fits else "does not")


async def test_a_guard_knows_whose_result_came() -> None:
    before = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "bash", "input": {}}]},
    ]
    results = [{"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "2 passed"}]}]
    player = Player(scenario("- when: {result_of: bash, contains: '2 passed'}\n  reply: it works"))
    request = request_with(results, before=before)
    assert await reply_text(player, request) == "it works"
    assert request.results[0].tool == "bash"
    assert request.results[0].text == "2 passed"


async def test_a_step_can_be_given_more_than_once() -> None:
    player = Player(scenario("- {reply: again, repeat: 2}\n- {reply: for ever, repeat: forever}"))
    replies = [await reply_text(player, request_with(ordinal=n)) for n in range(1, 6)]
    assert replies == ["again", "again", "for ever", "for ever", "for ever"]


async def test_an_otherwise_step_is_for_when_nothing_else_fits() -> None:
    player = Player(scenario("- {otherwise: true, reply: what?}\n- when: {contains: please}\n  reply: gladly"))
    assert await reply_text(player, request_with("do it")) == "what?"
    assert await reply_text(player, request_with("please do it", ordinal=2)) == "gladly"
    assert await reply_text(player, request_with("please do it", ordinal=3)) == "what?"


async def test_a_scenario_that_leads_nowhere_says_so() -> None:
    player = Player(scenario("- reply: one"))
    await player.play(request_with())
    error = await player.play(request_with("and now?", ordinal=2))
    assert isinstance(error, ApiError)
    assert (error.status, error.type) == (400, "invalid_request_error")
    assert error.message == (
        "rehearsal: the scenario 'test' has no step for agent 'lead', call 2 (none of its steps fits or is left); "
        "the newest message was: and now?"
    )
    nobody = await reply_text(player, request_with(agent="carol"))
    assert "no agent of that name, glob or role is in it" in nobody


async def test_an_end_step_answers_whoever_has_none_left() -> None:
    player = Player(scenario("- reply: one", end="{reply: nothing more}"))
    replies = [await reply_text(player, request_with(ordinal=n)) for n in range(1, 4)]
    assert replies == ["one", "nothing more", "nothing more"]


async def test_agents_are_found_by_name_then_glob_then_role() -> None:
    player = Player(
        load_scenario(
            "agents:\n  'role:subagent': [{reply: a role}]\n  'ex*': [{reply: a glob}]\n  explore: [{reply: a name}]\n"
        )
    )
    assert await reply_text(player, request_with(agent="explore")) == "a name"
    assert await reply_text(player, request_with(agent="explore-2")) == "a glob"
    assert await reply_text(player, request_with(agent="x", role="subagent")) == "a role"


async def test_what_was_captured_is_used_later_by_any_agent_of_the_session() -> None:
    steps = """
- capture: {first: 'task_[a-z2-7]{4}', second: {find: 'task_([a-z2-7]{4})', nth: 2}}
  reply: [{tool_use: {name: read, input: {path: 'x/${first}', more: ['${second}', 3]}}}]
- reply: 'I am ${agent}; keep $${this}'
"""
    player = Player(scenario(steps))
    reply = await player.play(request_with("made task_aaaa and task_bbbb"))
    assert isinstance(reply, SimulatedReply)
    assert reply.blocks[0]["input"] == {"path": "x/task_aaaa", "more": ["bbbb", 3]}
    assert await reply_text(player, request_with(ordinal=2)) == "I am lead; keep ${this}"


async def test_a_capture_without_a_match_and_an_unknown_value_are_told() -> None:
    player = Player(scenario("- {capture: {id: 'task_.'}, reply: x}"))
    missing = await reply_text(player, request_with("nothing here"))
    assert "test.yaml:4: agents.lead[0] captures 'id' and found no match" in missing
    player = Player(scenario("- reply: '${gone}'"))
    assert "uses gone, which no step of this session captured" in await reply_text(player, request_with())


async def test_a_call_of_a_tool_that_is_not_offered_is_told() -> None:
    player = Player(scenario("- reply: [{tool_use: {name: rm, input: {}}}]"))
    assert "calls 'rm', a tool that the request of 'lead' does not offer (it offers: bash, read)" in await reply_text(
        player, request_with()
    )
    wanted = Player(scenario("- reply: [{tool_use: {name: rm, input: {}, unoffered: true}}]"))
    assert await reply_text(wanted, request_with()) == "rm"


async def test_summaries_have_steps_of_their_own_or_are_made() -> None:
    player = Player(scenario("- reply: a turn", summaries="{lead: [{reply: 'in short'}]}"))
    assert await reply_text(player, request_with(purpose="summary")) == "in short"
    assert await reply_text(player, request_with()) == "a turn"
    plain = Player(scenario("- reply: a turn"))
    made = await reply_text(plain, request_with("  mend the tests ", purpose="summary"))
    assert made == "Summary of 1 messages. The last words were: mend the tests"


async def test_a_killed_player_goes_on_where_it_was(tmp_path: Path) -> None:
    state = tmp_path / "state.jsonl"
    steps = "- {capture: {id: 'task_.'}, reply: one}\n- reply: 'two ${id}'\n"
    steps += "- {reply: again, repeat: 2}\n- reply: 'last ${id}'"
    first = Player(scenario(steps), state)
    one = await first.play(request_with("task_a"))
    assert await reply_text(first, request_with(ordinal=2)) == "two task_a"
    with state.open("a") as file:
        file.write('{"session": "s", "torn')
    second = Player(scenario(steps), state)
    assert second.attempt("s", "lead", "turn", "2") == 2
    assert await reply_text(second, request_with(ordinal=2)) == "two task_a"
    assert await second.play(request_with("task_a")) == one
    assert await reply_text(second, request_with(ordinal=3)) == "again"
    third = Player(scenario(steps), state)
    assert await reply_text(third, request_with(ordinal=4)) == "again"
    assert await reply_text(third, request_with(ordinal=5)) == "last task_a"
    assert all(json.loads(line) for line in state.read_text().splitlines())


async def test_thinking_given_before_calls_is_remembered_over_a_kill(tmp_path: Path) -> None:
    steps = "- reply: [{thinking: hm}, {tool_use: {name: read, input: {path: a}}}]"
    first = Player(scenario(steps), tmp_path / "s")
    await first.play(request_with(thinking={"type": "adaptive"}))
    second = Player(scenario(steps), tmp_path / "s")
    assert second.issued_thinking("s", "lead", "rehearsal") == first.issued_thinking("s", "lead", "rehearsal") != {}
    assert second.issued_thinking("s", "lead", "claude-opus-5-5") == {}


async def test_a_model_in_code_may_be_plain_or_async() -> None:
    async def later(request: SimulatedRequest) -> SimulatedReply:
        return say(f"later {request.newest_text}")

    assert await reply_text(Player(Scenario.from_callable(lambda r: say(r.agent))), request_with()) == "lead"
    assert await reply_text(Player(Scenario.from_callable(later)), request_with()) == "later hello"


def test_faults_stand_before_the_reply_for_as_many_attempts_as_they_say() -> None:
    faults = scenario("- {reply: x, fault: [{status: 529, times: 2}, {drop: mid_stream}]}").agents[0][1][0].reply.faults
    player = Player(scenario("- reply: x"))
    met = [player.fault(request_with(attempt=n), SimulatedReply(faults=faults)) for n in range(1, 6)]
    assert [fault and str(fault) for fault in met] == ["status 529", "status 529", "drop mid_stream", None, None]


# Fitting a reply to its request.


def test_thinking_is_only_sent_to_those_who_asked_for_it() -> None:
    reply = SimulatedReply((thinking("hm"), text("yes")))
    assert [b["type"] for b in fit_reply(reply, request_with()).blocks] == ["text"]
    shown = fit_reply(reply, request_with(thinking={"type": "adaptive"})).blocks
    assert [b["type"] for b in shown] == ["thinking", "text"]
    hidden = fit_reply(reply, request_with(thinking={"type": "adaptive", "display": "omitted"})).blocks
    assert hidden[0]["thinking"] == ""
    assert hidden[0]["signature"]
    always = fit_reply(say("yes"), request_with(thinking={"type": "enabled", "budget_tokens": 1_024})).blocks
    assert [b["type"] for b in always] == ["thinking", "text"]


def test_stop_reasons_follow_from_the_reply() -> None:
    assert fit_reply(say("x"), request_with()).stop_reason == "end_turn"
    assert fit_reply(call("read", {}), request_with()).stop_reason == "tool_use"
    assert fit_reply(SimulatedReply((text("x"),), "refusal"), request_with()).stop_reason == "refusal"
    stopped = fit_reply(say("one END two"), request_with(stop_sequences=["END"]))
    assert (stopped.stop_reason, stopped.stop_sequence, stopped.blocks[0]["text"]) == ("stop_sequence", "END", "one ")


def test_a_reply_is_cut_at_max_tokens() -> None:
    cut = fit_reply(say("word " * 100), request_with(max_tokens=14))
    assert (cut.stop_reason, cut.output) == ("max_tokens", 14)
    assert cut.blocks[0]["text"] == "word " * 8
    late = fit_reply(SimulatedReply((text("ok"), tool_use("read", {"path": "x" * 400}))), request_with(max_tokens=30))
    assert late.cut
    assert late.stop_reason == "max_tokens"
    assert fit_reply(say("x"), request_with(max_tokens=0)).blocks == ()


def test_ids_are_the_same_for_the_same_call_and_differ_between_calls() -> None:
    reply = SimulatedReply((tool_use("read", {}), tool_use("read", {})))
    first, again = fit_reply(reply, request_with()).blocks, fit_reply(reply, request_with(attempt=2)).blocks
    assert [b["id"] for b in first] == [b["id"] for b in again]
    other = fit_reply(reply, request_with(ordinal=2)).blocks
    assert len({b["id"] for b in (*first, *other)}) == 4

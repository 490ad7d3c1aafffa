"""stream-json: the lines that a client of that protocol reads, made from events."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callboard.cli.headless.messages import json_line
from callboard.cli.headless.stream_json import StreamJson
from callboard.engine.audience import Audience
from callboard.sessions.result import RunEnd, RunLimit
from callboard.types import events as ev
from callboard.types.agent_spec import AgentSpec
from callboard.types.messages import Edit, Placed
from callboard.types.records import Envelope, Fault, ToolCall, Usage


def spec(name: str, kind: str = "lead", **more: Any) -> AgentSpec:
    return AgentSpec(name=name, kind=kind, agent_type="explore", model="m", tools=("bash", "task"), **more)


def agent_started(name: str, kind: str = "lead", **more: Any) -> ev.AgentStarted:
    return ev.AgentStarted(at=0, spec=spec(name, kind, **more), session="s", incarnation=1)


def replied(*calls: ToolCall, text: str = "words", stop: str = "end_turn") -> ev.ModelReplied:
    blocks = [{"type": "text", "text": text}]
    blocks += [{"type": "tool_use", "id": call.use_id, "name": call.name, "input": call.input} for call in calls]
    usage = Usage(input_tokens=10, output_tokens=5, cost_usd=0.25)
    return ev.ModelReplied(
        at=3, ordinal=1, model="m", stop_reason=stop, blocks=tuple(blocks), calls=calls, usage=usage, message_id="msg_1"
    )


class Stream:
    """An opened stream and its output."""

    def __init__(self, *, opened: bool = True) -> None:
        self.output: list[dict[str, Any]] = []
        self.stream = StreamJson(self.output.append, cwd="/w", version="1")
        self._audience = Audience([self.stream])
        if opened:
            self.stream.begin("s1", model="m", mode="default")

    def on(self, agent: str, *events: ev.Event) -> None:
        for event in events:
            self._audience.on_event(agent, 1, event)

    def of(self, kind: str, subtype: str | None = None) -> list[dict[str, Any]]:
        return [one for one in self.output if one["type"] == kind and subtype in {None, one.get("subtype")}]


def test_init_comes_first_even_when_events_came_before_the_session_was_open() -> None:
    stream = Stream(opened=False)
    stream.on("lead", agent_started("lead"), replied())
    assert stream.output == []
    stream.stream.begin("s1", model="other", mode="plan")
    init, reply = stream.output
    assert (init["subtype"], init["model"], init["tools"], init["session_id"]) == ("init", "m", ["bash", "task"], "s1")
    assert reply["message"]["content"] == [{"type": "text", "text": "words"}]


def test_a_resumed_session_takes_init_from_the_session() -> None:
    stream = Stream(opened=False)
    stream.on("lead", ev.AgentResumed(at=0, pid=1), replied())
    stream.stream.begin("s1", model="other", mode="plan")
    assert (stream.output[0]["model"], stream.output[0]["permissionMode"]) == ("other", "plan")


def test_results_follow_in_the_order_of_the_calls() -> None:
    first = ToolCall(id="a", use_id="toolu_a", name="bash", input={"command": "ls"})
    second = ToolCall(id="b", use_id="toolu_b", name="bash", input={"command": "ls"})
    stream = Stream()
    stream.on(
        "lead",
        agent_started("lead"),
        replied(first, second, stop="tool_use"),
        ev.ToolFinished(at=1, call="b", content=({"type": "text", "text": "two"},), is_error=True),
        ev.ToolSettled(at=1, call="b"),
        ev.ToolFinished(at=1, call="a", content=({"type": "text", "text": "secret"},)),
        ev.ToolSettled(at=1, call="a", content=({"type": "text", "text": "one"},)),
        ev.ResultsMerged(at=1),
    )
    (user,) = stream.of("user")
    content = user["message"]["content"]
    assert [(one["tool_use_id"], one["content"], one["is_error"]) for one in content] == [
        ("toolu_a", "one", False),
        ("toolu_b", "two", True),
    ]


def test_a_subagent_names_the_call_that_made_it() -> None:
    call = ToolCall(id="a", use_id="toolu_a", name="task", input={"description": "Find it", "prompt": "..."})
    mate = ToolCall(
        id="b", use_id="toolu_b", name="spawn_teammate", input={"name": "alice", "role": "x", "prompt": "y"}
    )
    stream = Stream()
    stream.on("lead", agent_started("lead"), replied(call, mate, stop="tool_use"))
    stream.on("explore-1", agent_started("explore-1", "subagent", parent="lead", role="Find it"), replied(text="found"))
    stream.on("alice", agent_started("alice", "teammate", parent="lead", role="x"), replied(text="hello"))
    stream.on("explore-1", ev.AgentStopped(at=9, outcome="done", result="found"))
    parents = {one["message"]["content"][0]["text"]: one["parent_tool_use_id"] for one in stream.of("assistant")}
    assert parents == {"words": None, "found": "toolu_a", "hello": "toolu_b"}
    assert [one["tool_use_id"] for one in stream.of("system", "task_started")] == ["toolu_a", "toolu_b"]
    (ended,) = stream.of("system", "task_notification")
    assert (ended["status"], ended["summary"]) == ("completed", "found")


def test_a_retry_carries_what_went_wrong() -> None:
    stream = Stream()
    fault = Fault(kind="overloaded", status=529, message="busy", may_bill=True)
    stream.on(
        "lead",
        agent_started("lead"),
        ev.CallFailed(at=1, ordinal=1, attempt=1, model="m", fault=fault),
        ev.RetryPlanned(at=1, until=2.5, attempt=2),
    )
    (retry,) = stream.of("system", "api_retry")
    assert (retry["error"], retry["error_status"], retry["retry_delay_ms"]) == ("overloaded", 529, 1500)
    assert (retry["max_retries"], retry["may_be_billed"]) == (3, True)


def test_only_summaries_are_compact_boundaries() -> None:
    edit = (Edit(kind="summarised", message=1, last=2),)
    stream = Stream()
    stream.on(
        "lead",
        agent_started("lead"),
        ev.ContextEdited(at=1, stage="clear_old_results", revision=1, edits=edit),
        ev.ContextEdited(at=1, stage="summarize_all", revision=1, edits=()),
        ev.ContextEdited(at=1, stage="summarize_all", revision=2, edits=edit, tokens_before=900, trigger="manual"),
    )
    (boundary,) = stream.of("system", "compact_boundary")
    assert boundary["compact_metadata"]["pre_tokens"] == 900
    assert boundary["compact_metadata"]["trigger"] == "manual"


def test_mail_is_told_with_its_sender_and_the_persons_own_words_are_not() -> None:
    stream = Stream()
    mine = Envelope(id="1", sender="person", recipient="lead", type="prompt", content="go")
    theirs = Envelope(id="2", sender="alice", recipient="lead", type="message", content="found")
    block = Placed(data={"type": "text", "text": "<inbox>found</inbox>"}, source="inbox")
    stream.on(
        "lead",
        agent_started("lead"),
        ev.EnvelopeReceived(at=1, envelope=mine),
        ev.EnvelopesDelivered(at=1, ids=("1",), blocks=(block,)),
        ev.EnvelopeReceived(at=1, envelope=theirs),
        ev.EnvelopesDelivered(at=1, ids=("2",), blocks=(block,)),
    )
    (mail,) = stream.of("user")
    assert mail["isSynthetic"] is True
    assert mail["origin"] == {"kind": "peer", "from": "alice"}


def test_every_call_is_counted_for_its_model_and_the_cost_is_their_sum() -> None:
    stream, used = Stream(), Usage(output_tokens=1, cost_usd=0.125)
    called = ev.ModelCalled(at=1, ordinal=1, attempt=1, model="large", max_tokens=9)
    edited = ev.ContextEdited(at=2, stage="summarize", revision=1, usage=used)
    stream.on("lead", agent_started("lead"), called)
    stream.on("lead", ev.ReplyDropped(at=2, ordinal=1, why="cut", usage=used.plus(Usage(web_searches=2))))
    stream.on("lead", edited, ev.SummaryFailed(at=2, why="empty", usage=used))
    stream.on("lead", edited.model_copy(update={"undoes": (1,)}))  # its calls were made for the edit that it undoes
    stream.on("bob", agent_started("bob", "teammate", small_model="small"), edited)
    stream.stream.result(RunEnd(0, "Done.", "", Usage(cost_usd=9.0), []), seconds=1.5)
    result = stream.output[-1]
    counted = {model: (each["outputTokens"], each["costUSD"]) for model, each in result["modelUsage"].items()}
    assert counted == {"large": (3, 0.375), "small": (1, 0.125)}
    assert result["modelUsage"]["large"]["webSearchRequests"] == 2
    assert result["total_cost_usd"] == 0.5, "of what this process has observed, not of the session"


def test_the_result_counts_what_was_used_and_lists_what_was_denied() -> None:
    call = ToolCall(id="a", use_id="toolu_a", name="bash", input={"command": "rm x"})
    stream = Stream()
    stream.on("lead", agent_started("lead"), replied(call, stop="tool_use"))
    stream.on("lead", ev.CallJudged(at=1, call="a", verdict="deny", by="rule", why="no"), ev.ResultsMerged(at=1))
    (refused,) = stream.output[-1]["message"]["content"]
    assert (refused["content"], refused["is_error"]) == ("no", True)
    stream.on("lead", replied())
    stream.on("bob", agent_started("bob", "teammate"), replied())
    stream.stream.result(RunEnd(0, "Done.", "", Usage(cost_usd=0.75), []), seconds=1.5)
    result = stream.output[-1]
    assert (result["type"], result["subtype"], result["result"], result["is_error"]) == (
        "result",
        "success",
        "Done.",
        False,
    )
    assert (result["num_turns"], result["usage"]["output_tokens"], result["duration_ms"]) == (2, 10, 1500)
    assert result["modelUsage"]["m"]["outputTokens"] == 15
    assert result["permission_denials"] == [
        {"tool_name": "bash", "tool_use_id": "toolu_a", "tool_input": {"command": "rm x"}}
    ]
    assert stream.of("system", "permission_denied")[0]["message"] == "no"


def test_the_subtype_says_which_limit_ended_it() -> None:
    cases: tuple[tuple[int, RunLimit, str, str], ...] = (
        (5, "turn_steps", "error_max_turns", "max_turns"),
        (5, "turn_cost", "error_max_budget_usd", "budget_exhausted"),
        (5, "budget_cost", "error_max_budget_usd", "budget_exhausted"),
        (5, "turn_tokens", "error_during_execution", "blocking_limit"),
        (5, "budget_steps", "error_during_execution", "blocking_limit"),
        (5, "repetition", "error_during_execution", "blocking_limit"),
        (5, "window", "error_during_execution", "prompt_too_long"),
        (124, "turn_seconds", "error_during_execution", "blocking_limit"),
        (6, "", "error_during_execution", "api_error"),
    )
    for code, limit, subtype, reason in cases:
        stream, why = Stream(), "any words: the limit of 3 model steps, money, the window"
        stream.stream.result(RunEnd(code, "", why, Usage(), [], limit=limit), seconds=0)
        result = stream.output[-1]
        assert (result["subtype"], result["terminal_reason"], result["is_error"]) == (subtype, reason, True)
        assert result["errors"][0] == why
        assert "result" not in result


def test_waits_budgets_and_repetition_are_messages_of_ours() -> None:
    stream = Stream()
    stream.on(
        "lead",
        agent_started("lead"),
        ev.CallHeld(at=1, ordinal=1, seconds=2.5, why="rate"),
        ev.BudgetReached(at=1, budget="session", kind="tokens", limit=10, spent=9, wanted=2, winds_down=True),
        ev.StuckNoticed(at=1, pattern="repeat", count=3, what="bash ls", action="nudge"),
        ev.TasksReminded(at=1, tasks=("task_a",)),
    )
    assert stream.of("system", "tasks_reminded")[0]["tasks"] == ["task_a"]
    held, budget, stuck = (stream.of("system", kind)[0] for kind in ("call_held", "budget_reached", "stuck"))
    assert (held["held_ms"], held["reason"]) == (2500, "rate")
    assert (budget["budget"], budget["limit"], budget["last_call"]) == ("session", 10, True)
    assert "token budget of the session" in budget["message"]
    assert (stuck["pattern"], stuck["count"], stuck["action"], stuck["message"]) == ("repeat", 3, "nudge", "bash ls")


@pytest.mark.parametrize("begun_first", [True, False])
def test_a_subagent_in_the_background_says_so_at_its_start_whichever_journal_is_seen_first(begun_first: bool) -> None:
    given = {"description": "Find it", "prompt": "...", "run_in_background": True}
    began = ev.BackgroundStarted(
        at=1, id="explore-1", command="Find it", pid=0, started=0, output="", agent="explore-1"
    )
    stream = Stream()
    stream.on("lead", agent_started("lead"), replied(ToolCall(id="a", use_id="toolu_a", name="task", input=given)))
    if begun_first:
        stream.on("lead", began)
    stream.on("explore-1", agent_started("explore-1", "subagent", parent="lead", role="Find it"))
    if not begun_first:
        stream.on("lead", began)
    (started,) = stream.of("system", "task_started")
    assert (started["tool_use_id"], started["is_backgrounded"]) == ("toolu_a", True)
    assert stream.of("system", "task_updated") == []


def test_a_line_never_contains_a_number_that_json_lacks() -> None:
    line = json_line({"tool_use_result": {"share": float("nan"), "all": [float("inf"), 1.5]}})
    assert json.loads(line, parse_constant=pytest.fail) == {"tool_use_result": {"share": None, "all": [None, 1.5]}}

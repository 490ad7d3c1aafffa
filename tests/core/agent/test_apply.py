"""What each event changes. The happy ways are told by other tests through `Life`; here stand the laws and the edges."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.core.agent.agent_states import Life, done, finished, judged, settled, started

from callboard.core.agent.apply import RUNTIME_MAIL, apply, fold
from callboard.core.agent.apply_tools import FAILED
from callboard.core.agent.state import AgentState, LifeEnd
from callboard.core.recovery.retry_policy import CONTINUATION_PROMPT
from callboard.types import events as ev
from callboard.types.messages import Injection
from callboard.types.records import Envelope, Fault, Todo, ToolCall, Usage

TEXT = {"type": "text", "text": "hi"}


def prompted(**spec: Any) -> Life:
    return Life.begun(**spec).prompted("go")


def texts(life: Life) -> list[str]:
    """Every text of the newest message."""
    blocks = life.state.context.conversation.messages[-1].blocks
    return [str(block.data.get("text", block.data.get("content", ""))) for block in blocks]


def test_every_event_moves_the_position_by_one() -> None:
    life = prompted()
    assert life.state.seq == len(life.events)
    assert fold(life.events) == life.state


def test_what_is_no_event_of_ours_is_a_bug() -> None:
    with pytest.raises(KeyError):
        apply(AgentState(), Injection(kind="x", text="y"))


def test_a_state_without_a_start_has_no_spec() -> None:
    with pytest.raises(AssertionError, match="AgentStarted"):
        _ = AgentState().me


def test_its_life_begins_changes_and_ends() -> None:
    life = Life.begun(plan_required=True)
    assert (life.state.identity.session, life.state.work.gate.gate, life.state.context.conversation.overhead) == (
        "s1",
        "required",
        100,
    )
    assert life.on(ev.AgentResumed, pid=7).state.turns.count == 0
    changed = life.on(ev.SpecChanged, spec=life.state.me.model_copy(update={"model": "two"}))
    assert changed.state.me.model == "two"
    stopping = life.on(ev.StopAsked, by="person", request_id="req_1")
    assert (stopping.state.lifecycle.stop, stopping.state.lifecycle.stop_by, stopping.state.lifecycle.stop_request) == (
        "asked",
        "person",
        "req_1",
    )
    ended = prompted().on(ev.AgentStopped, outcome="done", result="r").state
    assert (ended.lifecycle.ended, ended.turn, ended.context.wants_reply) == (LifeEnd("done", "r"), None, False)


@pytest.mark.parametrize("kind", sorted(RUNTIME_MAIL))
def test_mail_for_the_runtime_takes_effect_with_its_receipt_and_never_enters(kind: str) -> None:
    life = prompted().mailed("x", type=kind, request_id="req_9", sender="lead", metadata={"action": "stop"})
    assert life.state.inbox.mail == ()
    assert life.state.inbox.position == 2
    asked = kind in ("shutdown_request", "command")
    assert (life.state.lifecycle.stop, life.state.lifecycle.stop_request) == (
        ("asked", "req_9") if asked else ("", None)
    )


@pytest.mark.parametrize(("action", "turn"), [("interrupt", True), ("interrupt", False), ("nonsense", True)])
def test_an_interrupt_is_for_the_turn_under_way(action: str, turn: bool) -> None:
    life = prompted() if turn else Life.begun()
    state = life.mailed("", type="command", metadata={"action": action}).state
    assert (state.turn is not None and state.turn.interrupted) == (action == "interrupt" and turn)
    assert Life.begun().on(ev.Interrupted).state.turn is None


def test_a_persons_compact_is_kept_over_the_end_of_the_turn_the_tools_own_is_not() -> None:
    by_person = prompted().mailed("the paths", type="command", metadata={"action": "compact"})
    by_tool = prompted().on(ev.CompactAsked, focus="x")
    end = {"turn": "t", "reason": "end"}
    assert by_person.on(ev.TurnEnded, **end).state.compaction.focus == "the paths"
    assert by_tool.on(ev.TurnEnded, **end).state.compaction.focus is None


def test_what_is_delivered_or_dropped_leaves_the_mail_and_the_rest_stays() -> None:
    life = Life.begun().mailed("one").mailed("two").mailed("three").turned()
    life = life.delivered("env_2")
    assert [one.id for one in life.state.inbox.mail] == ["env_1", "env_3"]
    assert texts(life) == ["two"]
    assert life.state.turn is not None
    assert life.state.turn.wakes == ("prompt",)
    assert [one.id for one in life.on(ev.EnvelopesDropped, ids=("env_1",), why="w").state.inbox.mail] == ["env_3"]


def test_mail_that_is_delivered_between_turns_enters_as_well() -> None:
    life = Life.begun().mailed("words").delivered()
    assert (life.state.turn, life.state.inbox.mail, texts(life)) == (None, (), ["words"])


def test_an_assignment_is_owed_until_it_is_reported() -> None:
    life = Life.begun().mailed("do it", type="message", metadata={"assignment": True}).turned().delivered()
    assert life.state.work.assignment
    assert life.state.context.conversation.messages[0].blocks[0].pinned
    life = life.on(ev.Reported, status="done", result="done it")
    assert (life.state.work.assignment, life.state.work.reported) == (False, "done it")
    again = life.mailed("and this", type="message", metadata={"assignment": True}).delivered()
    assert (again.state.work.assignment, again.state.work.reported) == (True, "")


def test_a_newer_injection_of_a_kind_and_key_replaces_an_unsent_one() -> None:
    life = Life.begun()
    for kind, key, text in (("a", "", "old"), ("a", "k", "other"), ("b", "", "b"), ("a", "", "new")):
        life = life.on(ev.InjectionQueued, injection=Injection(kind=kind, key=key, text=text))
    assert [one.text for one in life.state.context.injections] == ["other", "b", "new"]
    sent = life.on(ev.InjectionsDelivered, blocks=({"data": TEXT, "source": "reminder"},))
    assert (sent.state.context.injections, sent.state.context.wants_reply) == ((), True)


def test_a_reply_is_counted_and_kept_and_its_calls_are_open() -> None:
    usage = Usage(input_tokens=9, output_tokens=2, cost_usd=0.25)
    life = prompted().called("bash").state
    assert (life.model.call, life.model.ordinal, life.context.wants_reply, life.turns.steps) == (None, 1, False, 1)
    assert [one.open for one in life.calls] == [True]
    state = prompted().replied(TEXT, usage=usage).state
    assert state.turn is not None
    assert (state.budget.usage, state.turn.usage, state.turn.steps, state.turn.text) == (usage, usage, 1, "hi")
    paused = prompted().replied(TEXT, stop="pause_turn").state
    assert paused.context.wants_reply
    empty = prompted().replied().state
    assert len(empty.context.conversation.messages) == 1
    assert Life.begun().replied(TEXT).state.turn is None, "a reply outside a turn breaks nothing"


def test_the_text_of_a_turn_is_the_newest_that_was_not_empty() -> None:
    life = done(prompted().said("first").called("bash"), "c1").on(ev.ResultsMerged)
    assert life.state.turn is not None
    assert life.state.turn.text == "first"


def test_a_dropped_reply_is_billed_numbered_and_asked_again() -> None:
    life = prompted().asked().on(ev.ReplyDropped, ordinal=1, why="cut", usage=Usage(output_tokens=8))
    life = life.on(ev.OutputRaised, limit=16_000)
    assert (life.state.model.call, life.state.model.ordinal, life.state.context.wants_reply) == (None, 1, True)
    assert (life.state.budget.usage.output_tokens, life.state.model.recovery.output_limit) == (8, 16_000)
    assert len(life.state.context.conversation.messages) == 1


def test_what_was_seen_of_an_interrupted_reply_is_kept_as_text() -> None:
    seen = prompted().asked().on(ev.ReplyInterrupted, ordinal=1, text="I was about to ")
    assert texts(seen) == ["I was about to"]
    assert (seen.state.model.call, seen.state.context.wants_reply) == (None, False)
    unseen = prompted().asked().on(ev.ReplyInterrupted, ordinal=1, text=" ")
    assert len(unseen.state.context.conversation.messages) == 1
    assert Life.begun().on(ev.ReplyInterrupted, ordinal=1, text="x").state.model.ordinal == 1


def test_a_failed_call_waits_for_a_decision_and_is_billed_if_it_was_used() -> None:
    fault = Fault(kind="server", usage=Usage(input_tokens=5))
    failed = {"ordinal": 1, "attempt": 1, "model": "one", "fault": fault}
    life = prompted().asked().on(ev.CallFailed, **failed)
    assert life.state.model.recovery.failure == life.events[-1]
    assert (life.state.model.call, life.state.model.last_fault, life.state.budget.usage.input_tokens) == (
        None,
        "server",
        5,
    )
    summary = prompted().on(ev.CallFailed, **{**failed, "purpose": "summary"})
    assert (summary.state.model.recovery.failure, summary.state.budget.usage.input_tokens) == (None, 5)
    called = prompted().on(ev.ModelCalled, ordinal=1, attempt=1, model="m", max_tokens=1, purpose="summary")
    assert called.state.model.call is None


def test_a_continuation_asks_in_so_many_words() -> None:
    life = prompted().said("half", stop="max_tokens").on(ev.ContinuationAsked, count=1)
    assert texts(life) == [CONTINUATION_PROMPT]
    assert (life.state.model.recovery.continuations, life.state.model.recovery.cut) == (1, False)


def test_a_rewritten_input_is_what_runs() -> None:
    life = prompted().called("bash", "bash")
    life = life.on(ev.CallJudged, call="c1", verdict="allow", input={"command": "safe"}, context=("mind",))
    life = life.on(ev.ApprovalNeeded, call="c2", request_id="req_1", input={"command": "asked"}, expires_at=9.0)
    first, second = life.state.calls
    assert (first.call.input, first.stage, first.context) == ({"command": "safe"}, "allowed", ("mind",))
    assert (second.call.input, second.stage, second.expires_at) == ({"command": "asked"}, "asking", 9.0)


def test_a_denial_is_an_error_result_with_its_reason() -> None:
    life = judged(prompted().called("bash"), "c1", verdict="deny").on(ev.ResultsMerged)
    block = life.state.context.conversation.messages[-1].blocks[0].data
    assert block == {"type": "tool_result", "tool_use_id": "u1_1", "content": "no", "is_error": True}


@pytest.mark.parametrize(
    ("status", "by", "reason", "said"),
    [
        ("rejected", "person", "too risky", "Permission denied: person said no: too risky"),
        ("rejected", "policy", "", "Permission denied: policy said no"),
        ("expired", "", "", "Permission denied: nobody answered req_1 in time"),
        ("expired", "", "nobody answered in time", "Permission denied: nobody answered req_1 in time"),
        ("expired", "", "nobody can be asked in this run", "Permission denied: nobody can be asked in this run"),
        ("withdrawn", "", "", "Permission denied: req_1 was withdrawn"),
    ],
)
def test_a_permission_that_is_not_given_is_a_denial_that_says_why(status: str, by: str, reason: str, said: str) -> None:
    life = prompted().called("bash").on(ev.ApprovalNeeded, call="c1", request_id="req_1")
    answer = {"request_id": "req_1", "kind": "permission", "status": status, "by": by, "reason": reason}
    one = life.on(ev.AnswerTaken, **answer).state.calls[0]
    assert (one.stage, one.denied, one.content[0]["text"]) == ("settled", True, said)
    late = judged(prompted().called("bash"), "c1").on(ev.AnswerTaken, **answer)
    assert late.state.calls[0].stage == "allowed", "an answer to what was not asked changes nothing"
    question = life.on(ev.AnswerTaken, **{**answer, "kind": "question"})
    assert question.state.calls == life.state.calls


def test_hooks_after_a_call_change_what_the_model_sees_and_add_beside_it() -> None:
    life = finished(started(judged(prompted().called("bash", "bash"), "c1", "c2"), "c1", "c2"), "c1", "c2")
    changed = ({"type": "text", "text": "changed"},)
    life = life.on(ev.ToolSettled, call="c1", content=changed, is_error=True, context=("note one", "note two"))
    life = settled(life, "c2").on(ev.ResultsMerged)
    first, second = (block.data for block in life.state.context.conversation.messages[-1].blocks)
    assert (first["content"], first.get("is_error"), second["content"]) == ("changed", True, "did c2")
    assert [one.text for one in life.state.context.injections] == ["note one", "note two"]
    assert life.state.calls == ()


def test_a_result_that_no_hook_can_change_needs_no_second_event() -> None:
    life = started(judged(prompted().called("bash"), "c1"), "c1")
    two = life.on(ev.ToolFinished, call="c1", content=(TEXT,)).on(ev.ToolSettled, call="c1")
    one = life.on(ev.ToolFinished, call="c1", content=(TEXT,), settled=True)
    assert [item.stage for item in one.state.calls] == ["settled"]
    assert replace(one.state.calls[0], finished_at=0.0) == replace(two.state.calls[0], finished_at=0.0)


def test_results_stand_in_the_order_of_the_calls_whoever_was_first() -> None:
    life = done(done(prompted().called("a", "b", "c"), "c3"), "c1", "c2").on(ev.ResultsMerged)
    ids = [block.data["tool_use_id"] for block in life.state.context.conversation.messages[-1].blocks]
    assert ids == ["u1_1", "u1_2", "u1_3"]


def test_a_result_of_several_blocks_stays_so_and_an_empty_one_says_so() -> None:
    life = judged(prompted().called("a", "b"), "c1", "c2")
    life = life.on(ev.ToolFinished, call="c1", content=(TEXT, TEXT)).on(ev.ToolFinished, call="c2", content=())
    life = settled(life, "c1", "c2").on(ev.ResultsMerged)
    first, second = (block.data["content"] for block in life.state.context.conversation.messages[-1].blocks)
    assert (first, second) == ([TEXT, TEXT], "(no output)")


def test_a_failed_result_keeps_its_image_and_says_that_it_failed() -> None:
    image = {"type": "image", "source": {"type": "url", "url": "https://example.org/screen.png"}}
    life = judged(prompted().called("a", "b"), "c1", "c2")
    life = life.on(ev.ToolFinished, call="c1", content=(TEXT, image), is_error=True)
    life = life.on(ev.ToolFinished, call="c2", content=(TEXT, TEXT), is_error=True)
    life = settled(life, "c1", "c2").on(ev.ResultsMerged)
    first, second = (block.data for block in life.state.context.conversation.messages[-1].blocks)
    assert first["content"] == [{"type": "text", "text": FAILED}, TEXT, image]
    assert (first.get("is_error"), second["content"], second["is_error"]) == (None, [TEXT, TEXT], True)


def test_a_tool_that_failed_ends_no_turn() -> None:
    life = started(judged(prompted().called("report"), "c1"), "c1")
    failed = settled(life.on(ev.ToolFinished, call="c1", content=(), is_error=True, ends_turn=True), "c1")
    assert not failed.state.calls[0].ends_turn
    ended = settled(finished(life, "c1", ends_turn=True), "c1").on(ev.ResultsMerged)
    assert ended.state.turn is not None
    assert ended.state.turn.ending


def test_open_todos_are_brought_to_mind_after_some_steps_and_then_after_as_many_again() -> None:
    life = prompted(todo_reminder_steps=2).on(ev.TodosSet, todos=(Todo(content="ship"),))
    reminded: list[int] = []
    for _ in range(5):
        life = done(life.called("read_file"), "c1").on(ev.ResultsMerged)
        reminded.append(len(life.state.context.injections))
        life = life.on(ev.InjectionsDelivered, blocks=())
    assert reminded == [0, 1, 0, 1, 0]
    done_all = prompted(todo_reminder_steps=1).on(ev.TodosSet, todos=(Todo(content="x", status="completed"),))
    assert done(done_all.called("a"), "c1").on(ev.ResultsMerged).state.context.injections == ()
    never = prompted(todo_reminder_steps=0).on(ev.TodosSet, todos=(Todo(content="x"),))
    assert done(never.called("a"), "c1").on(ev.ResultsMerged).state.context.injections == ()


def test_stop_hooks_keep_a_turn_going_or_let_it_end() -> None:
    kept = prompted().said("done").on(ev.StopHookRan, go_on="one more")
    assert kept.state.turn is not None
    assert (kept.state.turn.stop_blocks, kept.state.context.wants_reply) == (1, True)
    assert kept.state.context.injections[0].kind == "stop-hook"
    let = kept.on(ev.StopHookRan)
    assert let.state.turn is not None
    assert (let.state.turn.stop_asked, let.state.turn.stop_blocks) == (True, 0)
    assert Life.begun().on(ev.StopHookRan, go_on="x").state.context.injections == ()


def test_what_tools_change_in_their_agents_state() -> None:
    life = Life.begun().on(ev.FileSeen, path="a", digest="1").on(ev.FileSeen, path="b", digest="2", changed=True)
    life = life.on(ev.FileSeen, path="b", digest="3", changed=True)
    assert (dict(life.state.work.files), life.state.work.changed) == ({"a": "1", "b": "3"}, ("b",))
    life = life.on(ev.SkillLoaded, name="s").on(ev.SkillLoaded, name="s")
    assert life.state.work.skills == ("s",)
    life = (
        life.on(ev.TaskHeld, task="t1", subject="one").on(ev.TaskHeld, task="t2").on(ev.TaskHeld, task="t1", held=False)
    )
    assert dict(life.state.work.tasks) == {"t2": ""}
    life = life.on(ev.BackgroundStarted, id="b1", command="c", pid=1, started=1.0, output="/o")
    life = life.on(ev.BackgroundEnded, id="b1", status="failed", exit_code=3).on(
        ev.BackgroundEnded, id="b2", status="failed"
    )
    assert [(one.status, one.exit_code) for one in life.state.work.background.values()] == [("failed", 3)]


def began(trigger: str = "auto", life: Life | None = None) -> Life:
    wanted = {"stage": "summarize_all", "trigger": trigger, "message": 1, "last": 1}
    return (life or prompted()).on(ev.SummaryBegan, wanted=wanted, revision=0, transcript="/t/1")


def test_a_failed_summary_is_counted_billed_and_not_tried_again_for_this_view() -> None:
    life = began().on(ev.SummaryFailed, why="empty", usage=Usage(output_tokens=3))
    assert life.state.turn is not None
    assert (life.state.turn.summaries_failed, life.state.compaction.summary, life.state.budget.usage.output_tokens) == (
        1,
        None,
        3,
    )
    assert ("summarize_all", 0) in life.state.compaction.tried
    assert Life.begun().on(ev.SummaryFailed, why="late").state.compaction.tried == frozenset()
    manual = began("manual", prompted().on(ev.CompactAsked)).on(ev.SummaryFailed, why="empty")
    assert manual.state.compaction.focus is None, "what was asked for by hand was tried once"


def test_an_edit_answers_what_asked_for_it_and_starts_the_count_anew() -> None:
    edit = {"kind": "summarised", "message": 3, "last": 3, "blocks": ({"data": TEXT, "source": "compactor"},)}
    life = began("manual", prompted().on(ev.CompactAsked))
    life = life.on(ev.ContextEdited, stage="summarize_all", trigger="manual", revision=0, edits=(edit,))
    assert (
        life.state.compaction.focus,
        life.state.compaction.summary,
        life.state.compaction.count,
        life.state.compaction.tried,
    ) == (
        None,
        None,
        1,
        frozenset(),
    )
    reacting = prompted().on(ev.ReactAsked)
    assert reacting.state.model.recovery.react
    given = {"stage": "react", "revision": 0, "usage": Usage(output_tokens=5)}
    after = reacting.on(ev.ContextEdited, trigger="reactive", **given)
    assert (after.state.model.recovery.react, after.state.budget.usage.output_tokens) == (False, 5)
    assert after.state.compaction.count == 0, "a stage that found nothing is no compaction"


def test_a_turn_begins_with_a_clean_slate_and_ends_with_its_words() -> None:
    life = (
        began()
        .on(ev.SummaryFailed, why="x")
        .on(ev.ModelSwitched, model="two")
        .on(ev.RetryPlanned, until=9.0, attempt=1)
    )
    ended = life.on(ev.TurnEnded, turn="t", reason="limit", text="so far", why="30 steps")
    state = ended.state
    assert (state.turn, state.turns.last_text, state.turns.last_reason, state.turns.last_why) == (
        None,
        "so far",
        "limit",
        "30 steps",
    )
    assert (state.model.recovery.model, state.model.recovery.waiting_until) == ("", 0.0)
    assert ended.turned().state.compaction.tried == frozenset()


def test_a_call_that_nobody_made_changes_nothing() -> None:
    life = prompted().called("bash")
    assert started(life, "c9").state.calls == life.state.calls
    assert ToolCall(id="c", use_id="u", name="n", input={}).bad_input is None


def test_what_a_skill_grants_ends_with_its_turn_and_what_it_takes_away_with_the_next_words() -> None:
    life = Life.begun().on(ev.TurnBegan, turn="t", cause="env_1")
    life = life.on(ev.SkillLoaded, name="s", text="blob", allowed=("Read",), disallowed=("Edit",), effort="high")
    turn = life.state.turn
    assert turn is not None
    assert (turn.overrides, turn.denies, turn.effort) == (("Read",), ("Edit",), "high")
    life = life.on(ev.EnvelopeReceived, envelope=Envelope(id="env_2", sender="person", recipient="lead", type="prompt"))
    life = life.on(ev.SkillCommandsBegan, envelope="env_2", commands=("git fetch",))
    assert life.state.work.commands_begun == {"env_2"}
    life = life.on(ev.EnvelopesDelivered, ids=("env_2",), blocks=())
    assert life.state.work.commands_begun == frozenset()
    assert life.state.turn is not None
    assert (life.state.turn.overrides, life.state.turn.denies) == (("Read",), ())
    life = life.on(ev.TurnEnded, turn="t", reason="end").on(ev.TurnBegan, turn="t2", cause="env_3")
    assert life.state.turn is not None
    assert (life.state.turn.overrides, life.state.work.skill_texts) == ((), {"s": "blob"})

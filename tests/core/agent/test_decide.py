"""The rules of `decide`, one by one and in their order: a state told in events, the facts, the step that follows."""

from __future__ import annotations

import pytest
from tests.core.agent.agent_states import Life, done, facts, finished, judged, settled, started
from tests.core.agent.decisions import HI, failing, prompted, step

from callboard.core.agent.decide import MAX_DEPTH, MODEL, RULES, SUMMARY
from callboard.core.agent.rules.hooks import STOP_HOOKS
from callboard.core.agent.rules.limits import limit_reached
from callboard.core.budgets.tree import Amount, BudgetNode
from callboard.core.recovery import retry_policy as rec
from callboard.types import events as ev
from callboard.types import steps as st
from callboard.types.messages import Injection
from callboard.types.operations import Operation
from callboard.types.records import Budget, Request, Usage

TOOL = Operation("tool", "c1")
WATCH = Operation("bg", "b1")
JUDGE = Operation("judge", "c1")
JUDGE_2 = Operation("judge", "c2")
SETTLE = Operation("settle", "c1")


def request(status: str = "pending", expires_at: float | None = None, id: str = "req_1") -> dict[str, Request]:
    given = {"id": id, "kind": "plan", "asked_by": "alice", "status": status, "expires_at": expires_at}
    return {id: Request.model_validate(given)}


def test_the_order_of_the_rules_is_the_policy() -> None:
    assert [rule.__name__ for rule in RULES] == [
        "finish_life",
        "handle_stop",
        "release_reassigned_tasks",
        "handle_answers",
        "recover_orphans",
        "undo_edits",
        "recover_from_failure",
        "prepare_folder",
        "advance_calls",
        "run_start_hooks",
        "await_model",
        "end_requested_turn",
        "handle_cut_reply",
        "await_plan_answer",
        "compose_prompt",
        "count_tokens",
        "compact_view",
        "inject",
        "deliver_mail",
        "stop_repetition",
        "ask_model",
        "end_turn",
        "rest_between_turns",
    ]


def test_a_clock_that_is_set_back_lengthens_no_deadline_and_one_that_is_set_forward_ends_it() -> None:
    plan = prompted().on(ev.GateSet, gate="pending", request_id="req_1", digest="d", plan="x")
    call = prompted().called("bash").on(ev.ApprovalNeeded, call="c1", request_id="req_1", kind="permission", digest="d")
    for life in (plan, call):
        due = {"requests": request(expires_at=500.0), "deadlines": {"req_1": 150.0}}
        waits = step(life, awake_at=140.0, **due)
        assert (type(waits), getattr(waits, "until", None)) == (st.Wait, 110.0), "ten seconds are left by any clock"
        assert isinstance(step(life, awake_at=150.0, **due), st.Expire)
        assert isinstance(step(life, now=500.0, awake_at=140.0, **due), st.Expire)
        assert not isinstance(step(life, awake_at=150.0, requests=request(expires_at=500.0)), st.Expire)


def test_an_ended_life_is_done_whatever_else_is_there() -> None:
    life = prompted().on(ev.AgentStopped, outcome="failed", result="alas").mailed("too late")
    assert step(life) == st.LifeDone("failed", "alas")


def stopped(life: Life) -> Life:
    return life.on(ev.StopAsked, by="person")


def test_a_stop_cancels_all_then_answers_all_then_ends_the_turn_then_the_life() -> None:
    life = stopped(prompted().called("bash", "bash"))
    assert step(life, running=frozenset({TOOL, WATCH})) == st.Cancel((WATCH, TOOL))
    assert step(life) == st.Interrupt("stopped")
    life = settled(finished(life, "c1", "c2"), "c1", "c2")
    assert step(life) == st.Merge()
    life = life.on(ev.ResultsMerged)
    assert step(life) == st.EndTurn("stopped")
    life = life.on(ev.TurnEnded, turn="t", reason="stopped", text="what I had")
    assert step(life) == st.StopAgent("stopped", "what I had")


def test_a_stop_between_turns_ends_the_life_with_its_report() -> None:
    life = stopped(Life.begun().on(ev.Reported, status="done", result="the report"))
    assert step(life) == st.StopAgent("stopped", "the report")


def test_an_interrupt_ends_the_turn_but_lets_background_commands_run() -> None:
    life = prompted().called("bash").on(ev.Interrupted)
    assert step(life, running=frozenset({TOOL, WATCH})) == st.Cancel((TOOL,))
    assert step(life, running=frozenset({WATCH})) == st.Interrupt("interrupted")
    ended = settled(finished(life, "c1"), "c1").on(ev.ResultsMerged)
    assert step(ended, running=frozenset({WATCH})) == st.EndTurn("interrupted")


def test_an_interrupt_before_the_prompt_is_read_drops_the_prompt_and_no_other_mail() -> None:
    prompt = {"sender": "person", "cause": "person"}
    life = Life.begun().mailed("go", **prompt).mailed("a report").turned("env_1").on(ev.Interrupted)
    hooks = Operation("prompt-hooks")
    assert step(life, running=frozenset({hooks})) == st.Cancel((hooks,))
    dropped = step(life)
    assert dropped == st.Drop(("env_1",), "the prompt was not read before the interrupt: send it again", refused=True)
    life = life.on(ev.EnvelopesDropped, ids=("env_1",), why="not read", refused=True)
    assert step(life) == st.EndTurn("interrupted", "not read")
    waits = Life.begun().mailed("go", **prompt).mailed("and this", **prompt).turned("env_1").on(ev.Interrupted)
    assert step(waits) == dropped, "a prompt that waits for its own turn stays"
    of_agent = Life.begun().mailed("a report").turned("env_1").on(ev.Interrupted)
    assert step(of_agent) == st.EndTurn("interrupted"), "mail of agents is not lost"
    stopped = Life.begun().mailed("go", **prompt).turned("env_1").on(ev.StopAsked, by="person")
    assert step(stopped) == st.EndTurn("stopped"), "a stop leaves it to the dead letters"


@pytest.mark.parametrize("what", ["call", "summary"])
def test_an_interrupt_settles_a_model_call_and_a_summary_without_an_owner(what: str) -> None:
    life = prompted().asked() if what == "call" else summarising()
    assert step(life.on(ev.Interrupted)) == st.Interrupt("interrupted")


def test_the_time_limit_of_a_turn_ends_it_like_an_interrupt_and_says_so() -> None:
    life = prompted(limits={"seconds": 60})
    assert isinstance(step(life, now=159.9), st.AskModel)
    assert step(life, now=160.0) == st.EndTurn("limit", "the time limit of a turn (60 s) is reached", "turn_seconds")
    assert step(life.called("bash"), now=160.0, running=frozenset({TOOL})) == st.Cancel((TOOL,))


def asking(life: Life | None = None) -> Life:
    return (life or prompted().called("bash", "bash")).on(ev.ApprovalNeeded, call="c1", request_id="req_1")


@pytest.mark.parametrize("status", ["approved", "rejected", "expired", "withdrawn"])
def test_an_answer_is_taken_before_anything_else_goes_on(status: str) -> None:
    rows = request(status)
    assert step(asking(), requests=rows) == st.TakeAnswer(rows["req_1"])


def test_a_request_past_its_deadline_expires_and_one_before_it_is_waited_for() -> None:
    life = judged(asking(), "c2", verdict="deny")
    rows = request(expires_at=200.0)
    assert step(life, requests=rows, now=200.0) == st.Expire(rows["req_1"])
    assert step(life, requests=rows, now=199.0) == st.Wait(200.0, "permission", "req_1")
    assert step(life) == st.Wait(None, "permission", "req_1"), "a row that is not known yet is waited for"


def test_siblings_of_a_call_that_asks_go_on_where_they_do_not_depend_on_it() -> None:
    life = asking(prompted().called("write_file", "read_file"))
    apart, same = {"c1": "/w/a", "c2": "/w/b"}, {"c1": "/w/a", "c2": "/w/a"}
    assert step(life, requests=request(), keys=apart) == st.CheckPermissions(("c2",))
    assert step(judged(life, "c2"), requests=request(), keys=apart) == st.Run(("c2",))
    assert step(life, requests=request(), keys=same) == st.Wait(None, "permission", "req_1"), "it would see the effect"
    assert step(asking(), requests=request()) == st.Wait(None, "permission", "req_1")


def test_work_whose_process_died_is_taken_care_of() -> None:
    assert step(prompted().asked()) == st.LoseCall()
    assert step(prompted().asked(), running=frozenset({MODEL})) == st.Wait(None, "model")
    life = started(judged(prompted().called("bash"), "c1"), "c1")
    assert step(life) == st.Repair(("c1",))
    assert isinstance(step(life, running=frozenset({TOOL})), st.Wait)


def summarising() -> Life:
    wanted = {"stage": "summarize_all", "trigger": "manual", "message": 1, "last": 1}
    return prompted().on(ev.SummaryBegan, wanted=wanted, revision=0)


def test_a_summary_whose_process_died_is_made_again() -> None:
    life = summarising()
    assert life.state.compaction.summary is not None
    assert step(life) == st.SummarizeView(life.state.compaction.summary, begun=True)
    assert step(life, running=frozenset({SUMMARY})) == st.Wait(None, "model")


def test_a_background_command_that_nobody_watches_is_watched() -> None:
    life = Life.begun().on(ev.BackgroundStarted, id="b1", command="sleep", pid=1, started=1.0, output="/o")
    assert step(life) == st.WatchBackground(("b1",))
    assert step(life, running=frozenset({WATCH})) == st.Wait(None, "idle")
    assert step(life.on(ev.BackgroundEnded, id="b1", status="completed")) == st.Wait(None, "idle")


def test_a_failed_call_is_decided_on_by_recovery() -> None:
    assert step(failing()) == st.PlanRetry(100.5, 1, parked=False, why="server")
    assert step(failing("credentials")) == st.EndTurn("failed", f"{rec.FINAL['credentials']} (credentials)")


def test_a_planned_retry_is_waited_for_and_mail_that_comes_meanwhile_stays_out() -> None:
    life = failing().on(ev.RetryPlanned, until=130.0, attempt=1).mailed("hurry")
    assert step(life) == st.Wait(130.0, "rate")
    assert step(life, now=130.0) == st.Deliver(("env_2",))
    assert step(life.delivered(), now=130.0) == st.AskModel(1, 2, "one", 8_000)


def test_a_parked_key_stops_the_calls_of_everybody() -> None:
    assert step(prompted(), parked_until=150.0) == st.Wait(150.0, "rate")
    assert isinstance(step(prompted(), parked_until=100.0), st.AskModel)
    timed = prompted(limits={"seconds": 20})
    assert step(timed, parked_until=150.0) == st.Wait(120.0, "rate"), "the limit of the turn comes before"


def test_a_persons_prompt_waits_for_no_long_park() -> None:
    person = {"type": "prompt", "sender": "person", "cause": "person"}
    asked = Life.begun().mailed("go", **person).turned().delivered()
    assert isinstance(step(asked, parked_until=160.0, named_until=3_700.0), st.AskModel)
    assert step(asked, parked_until=130.0, named_until=130.0) == st.Wait(130.0, "rate"), "a short one is waited for"
    parked = failing("rate_limited").on(ev.RetryPlanned, until=160.0, attempt=1, parked=True)
    assert step(parked, parked_until=150.0) == st.Wait(150.0, "rate")
    again = parked.mailed("again", **person)
    assert step(again, parked_until=160.0) == st.Deliver(("env_2",))
    assert isinstance(step(again.delivered(), parked_until=160.0, named_until=3_700.0), st.AskModel)


def test_a_parked_agent_goes_on_as_soon_as_the_key_is_no_longer_parked() -> None:
    parked = failing("rate_limited").on(ev.RetryPlanned, until=160.0, attempt=1, parked=True)
    assert isinstance(step(parked, now=110.0, parked_until=0.0), st.AskModel)


def test_a_fallback_model_is_used_where_the_service_named_a_long_wait() -> None:
    life = prompted(fallback_models=["two"])
    assert step(life, parked_until=150.0, named_until=3_700.0) == st.SwitchModel(
        "two", "the service asks for a wait of 3,600 s"
    )
    assert step(life, parked_until=150.0, named_until=160.0) == st.Wait(150.0, "rate"), "a short wait is waited for"
    alone = prompted()
    assert step(alone, parked_until=150.0, named_until=3_700.0) == st.Wait(150.0, "rate")


def test_a_reply_cut_at_the_highest_limit_goes_on_twice() -> None:
    life = prompted().said("half", stop="max_tokens")
    for count in (1, 2):
        assert step(life) == st.Continue(count)
        life = life.on(ev.ContinuationAsked, count=count)
        assert step(life) == st.AskModel(count + 1, 1, "one", 8_000)
        life = life.said("half", stop="max_tokens")
    assert step(life) == rec.after_cut(life.state.model.recovery)
    assert isinstance(step(life), st.EndTurn)


def test_calls_go_from_judged_to_run_to_settled_to_merged() -> None:
    life = prompted().called("read_file", "read_file")
    assert step(life) == st.CheckPermissions(("c1", "c2"))
    assert step(life, running=frozenset({JUDGE})) == st.CheckPermissions(("c2",))
    assert step(life, running=frozenset({JUDGE, JUDGE_2})) == st.Wait(None, "tools")
    life = judged(life, "c1")
    assert step(life, running=frozenset({JUDGE_2})) == st.Run(("c1",))
    life = finished(started(life, "c1"), "c1")
    assert step(life, running=frozenset({JUDGE_2})) == st.Settle(("c1",))
    assert step(life, running=frozenset({JUDGE_2, SETTLE})) == st.Wait(None, "tools")
    life = judged(settled(life, "c1"), "c2", verdict="deny")
    assert step(life) == st.Merge()
    assert isinstance(step(life.on(ev.ResultsMerged)), st.AskModel)


def test_a_barrier_waits_for_the_calls_before_it_and_stops_those_behind_it() -> None:
    life = prompted().called("read_file", "submit_plan", "bash")
    assert step(life) == st.CheckPermissions(("c1",)), "the barrier itself is judged when all before it is settled"
    life = done(life, "c1")
    assert step(life) == st.CheckPermissions(("c2",))
    assert step(done(life, "c2")) == st.Skip(("c3",), "Not run: waiting for plan approval.")
    assert step(judged(life, "c2", verdict="deny")) == st.CheckPermissions(("c3",)), "a denied plan holds nothing back"
    failed = settled(finished(started(judged(life, "c2"), "c2"), "c2", is_error=True), "c2")
    assert step(failed) == st.CheckPermissions(("c3",)), "no plan waits for approval"


def test_all_calls_of_a_reply_run_before_the_compaction_that_one_of_them_asks_for() -> None:
    life = prompted().called("compact", "bash")
    assert step(life) == st.CheckPermissions(("c1",))
    life = done(life.on(ev.CompactAsked, focus=""), "c1")
    assert step(life) == st.CheckPermissions(("c2",)), "the compaction waits for the results"
    assert isinstance(step(done(life, "c2").on(ev.ResultsMerged)), st.SummarizeView | st.EditView)


def test_a_barrier_that_was_denied_holds_nobody_up() -> None:
    life = judged(prompted().called("submit_plan"), "c1", verdict="deny")
    assert step(life) == st.Merge()


def test_a_report_ends_the_turn_once_its_result_is_merged() -> None:
    life = judged(prompted().called("report"), "c1")
    life = settled(finished(started(life, "c1"), "c1", ends_turn=True), "c1")
    assert step(life) == st.Merge()
    assert step(life.on(ev.ResultsMerged)) == st.EndTurn("end")


def test_while_a_plan_waits_the_model_is_not_asked_and_mail_stays() -> None:
    life = prompted().on(ev.GateSet, gate="pending", request_id="req_1", digest="d").mailed("by the way")
    assert step(life, requests=request(expires_at=900.0)) == st.Wait(900.0, "plan", "req_1")
    assert step(stopped(life), requests=request()) == st.EndTurn("stopped"), "a stop always passes"


def test_between_turns_a_pending_plan_keeps_from_the_board() -> None:
    life = Life.begun(claims_tasks=True).on(ev.GateSet, gate="pending", request_id="req_1")
    assert step(life, claimable="task_1") == st.Wait(None, "plan", "req_1")


def test_injections_go_with_the_message_that_is_about_to_be_sent_and_wake_nobody() -> None:
    note = Injection(kind="system-reminder", text="mind")
    life = Life.begun().on(ev.InjectionQueued, injection=note)
    assert step(life) == st.Wait(None, "idle")
    assert step(life.prompted("go")) == st.Inject()
    assert step(prompted().said("done").on(ev.InjectionQueued, injection=note)) == st.EndTurn("end")


def test_mail_that_wakes_begins_a_turn_and_takes_queued_mail_along() -> None:
    life = Life.begun().mailed("news", mode="queue")
    assert step(life) == st.Wait(None, "idle")
    life = life.mailed("now")
    assert step(life) == st.BeginTurn("env_2")
    assert step(life.turned("env_2")) == st.Deliver(("env_1", "env_2"))


def test_a_note_of_the_person_goes_with_the_next_request_and_makes_none() -> None:
    note = {"sender": "person", "cause": "person", "mode": "queue"}
    late = prompted().said("done").mailed("$ ls", **note)
    assert step(late) == st.EndTurn("end")
    assert step(late, hooks=True) == st.AskStopHooks()
    assert step(late.mailed("news", mode="queue")) == st.Deliver(("env_2", "env_3"))
    assert step(late.mailed("go on")) == st.Deliver(("env_2", "env_3"))
    assert step(late.on(ev.TurnEnded, turn="turn_0", reason="end")) == st.Wait(None, "idle")
    amid = done(prompted().called("bash").mailed("$ ls", **note), "c1").on(ev.ResultsMerged)
    assert step(amid) == st.Deliver(("env_2",)), "the results are sent in any case"


def test_mail_waits_while_calls_are_open() -> None:
    life = prompted().called("bash").mailed("and another thing")
    assert step(life, running=frozenset({JUDGE})) == st.Wait(None, "tools")
    assert step(done(life, "c1").on(ev.ResultsMerged)) == st.Deliver(("env_2",))


def test_a_chain_of_messages_that_is_too_deep_is_dropped_and_told() -> None:
    life = Life.begun().mailed("ping", depth=MAX_DEPTH).mailed("pong", depth=MAX_DEPTH + 1)
    found = step(life)
    assert isinstance(found, st.Drop)
    assert found.ids == ("env_2",)


def test_a_changed_file_or_task_begins_the_chain_of_messages_again() -> None:
    begun = (
        Life.begun()
        .mailed("ping", depth=MAX_DEPTH)
        .on(ev.TurnBegan, turn="t", cause="env_1", depth=MAX_DEPTH, authority="teammate")
    )
    assert begun.state.turn is not None
    assert begun.state.turn.depth == MAX_DEPTH
    for life in (
        begun.on(ev.FileSeen, path="a.py", digest="d1", changed=True),
        begun.on(ev.TaskHeld, task="task_1"),
    ):
        assert life.state.turn is not None
        assert life.state.turn.depth == 0
    read = begun.on(ev.FileSeen, path="a.py", digest="d1", changed=False)
    assert read.state.turn is not None
    assert read.state.turn.depth == MAX_DEPTH, "a file that was only read continues the chain"


def test_a_schedule_that_wants_its_own_turn_waits_for_the_end_of_this_one() -> None:
    life = prompted().mailed("nightly", type="scheduled").mailed("join", type="scheduled", metadata={"deliver": "step"})
    assert step(life) == st.Deliver(("env_3",))
    own = Life.begun().mailed("nightly", type="scheduled").mailed("more words").turned("env_1")
    assert step(own) == st.Deliver(("env_1",)), "its own turn begins with it alone"
    assert step(own.delivered("env_1")) == st.Deliver(("env_2",))


def test_an_answered_plan_between_turns_begins_a_turn_of_its_own() -> None:
    life = Life.begun().on(ev.GateSet, gate="pending", request_id="req_1", digest="d", plan="p")
    life = life.on(ev.AnswerTaken, request_id="req_1", kind="plan", status="approved", digest="d")
    assert step(life) == st.BeginTurn("req_1 approved")


@pytest.mark.parametrize(
    ("limits", "said", "limit"),
    [
        ({"steps": 1}, "1 model step ", "turn_steps"),
        ({"tokens": 10}, "10 tokens", "turn_tokens"),
        ({"cost_usd": 0.5}, "$0.50", "turn_cost"),
        ({"steps": 2, "tokens": 11, "cost_usd": 0.6}, "", ""),
    ],
)
def test_a_limit_of_the_turn_ends_it_and_says_which(limits: dict[str, float], said: str, limit: str) -> None:
    life = prompted(limits=limits).replied(HI, stop="pause_turn", usage=Usage(input_tokens=10, cost_usd=0.5))
    reached = limit_reached(life.state, facts())
    assert (reached is not None and said in reached.why and reached.limit == limit) if said else reached is None
    assert step(life) == (reached or st.AskModel(2, 1, "one", 8_000))


def test_no_limit_means_none_and_nought_means_none_at_all() -> None:
    assert limit_reached(prompted().state, facts()) is None
    none_at_all = limit_reached(prompted(limits={"steps": 0}).state, facts())
    assert none_at_all is not None
    assert "0 model steps" in none_at_all.why
    spent = BudgetNode("session", budget=Budget(cost_usd=1), spent=Amount(cost_usd=1))
    assert isinstance(step(prompted(), budgets=(spent,)), st.ReachBudget)
    assert isinstance(step(prompted(), budgets=(BudgetNode("session", budget=Budget(cost_usd=1)),)), st.AskModel)
    assert step(Life.begun(), budgets=(spent,)) == st.Wait(None, "idle"), "between turns there is nothing to limit"


def test_stop_hooks_are_asked_once_and_may_go_on_up_to_the_cap() -> None:
    life = prompted(stop_hook_cap=2).said("done")
    for _ in range(2):
        assert step(life, hooks=True) == st.AskStopHooks()
        assert step(life, hooks=True, running=frozenset({STOP_HOOKS})) == st.Wait(None, "model")
        life = life.on(ev.StopHookRan, go_on="one more thing")
        assert step(life) == st.Inject()
        life = life.on(ev.InjectionsDelivered, blocks=({"data": HI, "source": "hook"},)).said("done")
    assert step(life, hooks=True) == st.EndTurn("end")
    let = prompted().said("done").on(ev.StopHookRan)
    assert step(let, hooks=True) == st.EndTurn("end")


def test_a_refusal_ends_the_turn_and_says_so() -> None:
    assert step(prompted().replied(HI, stop="refusal")) == st.EndTurn("refused", rec.REFUSED)


def test_a_turn_whose_mail_was_blocked_ends_without_a_word() -> None:
    life = Life.begun().mailed("blocked").turned().on(ev.EnvelopesDropped, ids=("env_1",), why="a hook")
    assert step(life, hooks=True) == st.EndTurn("end")


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        ("end", "done"),
        ("limit", "limit"),
        ("stopped", "stopped"),
        ("interrupted", "stopped"),
        ("failed", "failed"),
        ("overflow", "failed"),
        ("refused", "failed"),
    ],
)
def test_a_subagent_is_done_after_its_turn(reason: str, outcome: st.Outcome) -> None:
    life = Life.begun(kind="subagent").prompted("find it").on(ev.TurnEnded, turn="t", reason=reason, text="found")
    assert step(life) == st.StopAgent(outcome, "found")
    # Mail that begins no turn does not keep it, otherwise its caller would wait forever.
    assert step(life.mailed("your command has ended", mode="queue")) == step(life)
    assert isinstance(step(life.mailed("one more thing")), st.BeginTurn)
    silent = Life.begun(kind="subagent").prompted("x").on(ev.TurnEnded, turn="t", reason=reason, why="no key")
    assert step(silent) == st.StopAgent(outcome, "no key")


def test_an_idle_teammate_claims_a_ready_task_and_only_one() -> None:
    life = Life.begun(claims_tasks=True)
    assert step(life, claimable="task_1") == st.ClaimTask("task_1")
    assert step(life.on(ev.TaskHeld, task="task_0"), claimable="task_1") == st.Wait(None, "idle")
    assert step(life.mailed("first this"), claimable="task_1") == st.BeginTurn("env_1"), "inbox before board"
    assert step(life) == st.Wait(None, "idle")


def test_a_task_that_was_taken_away_is_let_go_before_anything_else_is_done() -> None:
    life = Life.begun().on(ev.TaskHeld, task="task_0").mailed("on with it")
    assert step(life, taken=("task_0",)) == st.ReleaseTasks(("task_0",))
    assert step(life.on(ev.StopAsked, by="person"), taken=("task_0",)) != st.ReleaseTasks(("task_0",))


def test_a_fire_that_is_ended_before_its_turn_has_read_it_begins_no_second_turn() -> None:
    life = Life.begun("subagent").mailed("nightly", type="scheduled").turned("env_1")
    life = life.on(ev.AgentResumed, pid=1).mailed("env_1", type="command", metadata={"action": "end_fire"})
    assert isinstance(step(life), st.EndTurn)
    ended = life.on(ev.TurnEnded, turn="turn_0", reason="interrupted", text="")
    assert isinstance(step(ended), st.StopAgent)

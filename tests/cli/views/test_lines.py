"""Lines about events: one-liners are short, and texts for people are complete."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from callboard.cli.terminal.terminal import Block
from callboard.cli.views.events import Detail, call_words, lines_of, mail_line, result_block, shorten
from callboard.types import events as ev
from callboard.types.agent_spec import AgentSpec
from callboard.types.messages import Edit
from callboard.types.records import Envelope, Todo, ToolCall

LONG = " ".join(["a constraint that must not be lost"] * 200)


def block_of(event: ev.Event, calls: dict[str, ToolCall] | None = None, detail: Detail = "brief") -> Block | None:
    if isinstance(event, ev.ToolFinished):
        return result_block("alice", event, (calls or {}).get(event.call), detail)
    return lines_of("alice", event)


def text(event: ev.Event, calls: dict[str, ToolCall] | None = None) -> str:
    shown = block_of(event, calls)
    return "" if shown is None else "\n".join(line.text for line in shown.lines)


def progress(event: ev.Event) -> bool:
    shown = block_of(event)
    assert shown is not None
    return shown.progress


def test_a_plan_is_shown_whole_and_not_hidden_by_quiet() -> None:
    plan = "\n".join(f"{number}. {LONG}" for number in range(20))
    shown = ev.GateSet(at=0, gate="pending", request_id="req_1", plan=plan)
    assert plan in text(shown)
    assert not progress(shown)


def test_what_the_model_says_is_shown_whole() -> None:
    reply = ev.ModelReplied(
        at=0, ordinal=1, model="m", stop_reason="end_turn", blocks=({"type": "text", "text": LONG},)
    )
    assert text(reply) == LONG
    assert not progress(reply)


def test_a_tool_call_folds_into_one_line_with_the_ends_of_its_result() -> None:
    call = ToolCall(id="call_1", use_id="toolu_1", name="bash", input={"command": "pytest -q\necho done"})
    output = "\n".join(["first line", *["dots"] * 40, "2 failed, 3 passed"])
    done = ev.ToolFinished(at=0, call="call_1", content=({"type": "text", "text": output},))
    assert text(done, {"call_1": call}) == "bash pytest -q => first line … 40 lines … 2 failed, 3 passed"


@pytest.mark.parametrize(
    ("agent_type", "said"),
    [("teammate", "started as teammate of lead: reads"), ("tester", "started as teammate (tester) of lead: reads")],
)
def test_a_start_names_the_type_unless_it_is_the_kind(agent_type: str, said: str) -> None:
    spec = AgentSpec(name="alice", kind="teammate", agent_type=agent_type, model="m", parent="lead", role="reads")
    assert text(ev.AgentStarted(at=0, spec=spec, session="s1", incarnation=1)) == said


def test_an_overflow_of_the_lead_offers_a_fresh_conversation() -> None:
    ended = ev.TurnEnded(at=0, turn="t", reason="overflow", why="it does not fit")
    assert text(ended) == "turn ended: overflow: it does not fit"
    shown = lines_of("lead", ended)
    assert shown is not None
    assert shown.lines[0].text.startswith("turn ended: overflow: it does not fit; if that does not help: /new --carry ")


def test_a_failed_call_stands_out() -> None:
    done = ev.ToolFinished(at=0, call="call_1", content=({"type": "text", "text": "no"},), is_error=True)
    shown = block_of(done)
    assert shown is not None
    assert shown.lines[0].style == "bad"


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (ev.RetryPlanned(at=10, until=11.5, attempt=2, why="overloaded"), "retry (attempt 2) in 1.5 s: overloaded"),
        (ev.RetryPlanned(at=10, until=130, attempt=2, parked=True, why="rate"), "parked for 120 s: rate"),
        (
            ev.ContextEdited(
                at=0,
                stage="summarize_all",
                revision=1,
                edits=(Edit(kind="summarised", message=1, last=2),),
                tokens_before=52_000,
                tokens_after=8_100,
                transcript="/t/lead-9.jsonl",
            ),
            "compaction: summarize_all (auto), 52,000 -> 8,100 tokens, transcript /t/lead-9.jsonl",
        ),
        (
            ev.ContextEdited(
                at=0,
                stage="undo",
                trigger="manual",
                revision=2,
                edits=(Edit(kind="restored", message=1, last=2),),
                tokens_before=8_100,
                tokens_after=52_000,
                undoes=(41, 44),
            ),
            "undid edit 41, edit 44, 8,100 -> 52,000 tokens",
        ),
        (
            ev.ContextEdited(
                at=0, stage="summarize_all", trigger="manual", revision=0, why="the conversation is empty"
            ),
            "nothing to compact: the conversation is empty",
        ),
        (
            ev.ContextEdited(at=0, stage="undo", revision=2, undoes=(41,), why="it does not fit"),
            "did not undo edit 41: it does not fit",
        ),
        (
            ev.CacheThrash(at=0, calls=3, changed='tool "bash"'),
            '3 calls in a row read almost nothing from the prompt cache; changed: tool "bash"',
        ),
        (
            ev.CacheThrash(at=0, calls=3, changed="nothing in the requests: the service no longer writes to its cache"),
            "3 calls in a row read almost nothing from the prompt cache; the service no longer writes to its cache",
        ),
        (
            ev.CacheThrash(at=0, calls=3, changed="nothing of ours: the service no longer writes its cache"),
            "3 calls in a row read almost nothing from the prompt cache; the service no longer writes its cache",
        ),
        (ev.ModelSwitched(at=0, model="small"), "continues with model small"),
        (ev.BackgroundEnded(at=0, id="bg_1", status="failed", exit_code=3), "background bg_1 failed (exit 3)"),
        (ev.TaskHeld(at=0, task="task_1", subject="Mend it"), "took task_1 Mend it"),
    ],
)
def test_runtime_events_are_one_line_that_quiet_hides(event: ev.Event, said: str) -> None:
    assert text(event) == said
    assert progress(event)


def test_a_stage_that_found_nothing_is_silent() -> None:
    cleared = (Edit(kind="cleared", message=1, last=1, text="[gone]"),)
    for after, shown in ((39_000, False), (30_000, True)):
        event = ev.ContextEdited(
            at=0, stage="clear_old_results", revision=3, edits=cleared, tokens_before=40_000, tokens_after=after
        )
        assert bool(text(event)) is shown, "a small edit is not reported at every step"
    assert text(ev.ContextEdited(at=0, stage="snip_middle", revision=3)) == ""
    failed = text(ev.ContextEdited(at=0, stage="mine:shorten", revision=3, why="ValueError: no"))
    assert failed.endswith("the stage mine:shorten is skipped: ValueError: no")


def test_todos_are_a_list_with_marks() -> None:
    todos = (
        Todo(content="read", status="completed"),
        Todo(content="write", status="in_progress"),
        Todo(content="ship"),
    )
    assert text(ev.TodosSet(at=0, todos=todos)).splitlines() == ["todos", "  [x] read", "  [>] write", "  [ ] ship"]


def test_an_envelope_is_sender_recipient_and_its_first_line() -> None:
    shown = mail_line(Envelope(id="e", sender="alice", recipient="lead", type="message", content="\nfound it\nmore"))
    assert shown is not None
    assert [line.text for line in shown.lines] == ["alice -> lead found it"]


def test_a_fire_names_its_schedule_and_sixty_columns_of_its_prompt() -> None:
    fired = Envelope(
        id="schedule:cron_1:x", sender="schedule", recipient="lead", type="scheduled", content="y" * 90,
        metadata={"schedule": "cron_1"},
    )  # fmt: skip
    shown = mail_line(fired)
    assert shown is not None
    assert shown.lines[0].text == f"cron_1 fired: {'y' * 59}…"


def test_what_the_person_typed_is_not_repeated() -> None:
    assert mail_line(Envelope(id="e", sender="person", recipient="lead", type="prompt", content="hello")) is None


def test_one_liners_stay_one_line_whatever_they_carry() -> None:
    for kind in get_args(get_args(ev.Event)[0]):
        given = {"why": "a\nb", "until": 0, "attempt": 1, "pid": 1}
        fields = {name: given[name] for name in given if name in kind.model_fields}
        try:
            event = kind(at=0, **fields)
        except ValueError:
            continue  # needs fields that this test does not set
        shown = block_of(event)
        assert shown is None or not shown.progress or all("\n" not in line.text for line in shown.lines)


def test_wide_characters_count_two_columns() -> None:
    assert shorten("日本語のテスト", 6) == "日本…"
    assert shorten("short", 6) == "short"


def test_a_call_is_named_by_its_main_field() -> None:
    assert call_words(ToolCall(id="1", use_id="1", name="grep", input={"path": "src", "pattern": "x"})) == "grep x"
    assert call_words(ToolCall(id="1", use_id="1", name="list_tasks", input={})) == "list_tasks"


def test_a_held_call_says_how_long_and_why() -> None:
    held = ev.CallHeld(at=0, ordinal=3, seconds=12.4, why="the service's rate of requests")
    assert text(held) == "the call waited 12 s: the service's rate of requests"
    assert progress(held)


@pytest.mark.parametrize(
    ("budget", "kind", "last", "said"),
    [
        ("session", "tokens", True, ["token budget of the session", "one last call", "`budget` in settings.yaml"]),
        (
            "alice",
            "cost_usd",
            False,
            [
                "money budget of alice is used up.",
                "`callboard team budget alice cost_usd=N`, or `budgets` in settings.yaml",
            ],
        ),
        ("schedule:cron_1", "steps", False, ["schedule cron_1", "raise the budget of its schedule"]),
        ("session", "agents", True, ["agents started in total"]),
    ],
)
def test_a_budget_that_is_reached_says_which_and_where_it_is_raised(
    budget: str, kind: Any, last: bool, said: list[str]
) -> None:
    event = ev.BudgetReached(at=0, budget=budget, kind=kind, limit=10, spent=9, wanted=2, winds_down=last)
    assert [words for words in said if words not in text(event)] == []
    assert not progress(event), "`--quiet` does not hide it"
    if kind == "agents":
        assert "last call" not in text(event)


def test_repetition_is_a_line_of_progress_and_its_end_is_not() -> None:
    about = {"at": 0, "pattern": "repeat", "count": 3, "what": "bash pytest, with the same result"}
    nudge, stop = (ev.StuckNoticed.model_validate({**about, "action": one}) for one in ("nudge", "stop"))
    assert text(nudge) == ("repeats itself, 3 times: bash pytest, with the same result; it is asked to try another way")
    assert progress(nudge)
    assert "its turn ends. Send it new instructions" in text(stop)
    assert not progress(stop)


def test_a_call_is_named_by_its_subject_not_by_its_description() -> None:
    made = ToolCall(id="c1", use_id="u1", name="create_task", input={"description": "every file", "subject": "Tests"})
    looked = ToolCall(id="c2", use_id="u2", name="task", input={"prompt": "all of it", "description": "read the log"})
    assert [call_words(made), call_words(looked)] == ["create_task Tests", "task read the log"]

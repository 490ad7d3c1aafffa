"""The map of a window adds up to the window, and every edit of a journal is told: what, why, at what cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from tests.core.agent.agent_states import Life, settled

from callboard.core.agent.apply import fold
from callboard.core.context.view.conversation import restored_from, size
from callboard.core.context.view.tokens import estimate_json
from callboard.core.reports.context import EditEffect, EditReport, WindowMap, explain_edits, window_map
from callboard.core.reports.metrics import metrics_of, together
from callboard.types import events as ev
from callboard.types.messages import Edit, Injection, Placed, ViewMessage
from callboard.types.records import ToolCall, Usage

TOOLS = b"x" * 160


def used(life: Life, name: str, result: str = "word " * 400, **given_: Any) -> Life:
    """A reply that calls a tool, and its result."""
    at = life.state.model.ordinal + 1
    call = ToolCall(id=f"c{at}", use_id=f"u{at}", name=name, input=given_)
    block = {"type": "tool_use", "id": call.use_id, "name": name, "input": given_}
    life = life.replied({"type": "text", "text": "Let me see."}, block, stop="tool_use", calls=[call])
    life = life.on(ev.CallJudged, call=call.id, verdict="allow").on(ev.ToolStarted, call=call.id, effect="read")
    life = life.on(ev.ToolFinished, call=call.id, content=({"type": "text", "text": result},))
    return settled(life, call.id).on(ev.ResultsMerged)


def worked() -> Life:
    life = Life.begun().prompted("Mend the parser.")
    life = used(life, "read_file", path="src/parser.py")
    life = used(life, "bash", command="pytest -q", result="word " * 900)
    return used(life, "read_file", path="docs/guide.md")


def history_of(life: Life) -> Sequence[ViewMessage]:
    bare = [e.model_copy(update={"edits": ()}) if isinstance(e, ev.ContextEdited) else e for e in life.events]
    return tuple(fold(bare).context.conversation.messages)


def told(life: Life) -> tuple[EditReport, ...]:
    return explain_edits(list(enumerate(life.events, 1)), history_of(life), life.state.me)


def edited(life: Life, *edits: Edit, stage: str = "clear_old_results", **fields: Any) -> Life:
    return life.on(
        ev.ContextEdited, stage=stage, revision=life.state.context.conversation.revision, edits=edits, **fields
    )


def clearing(life: Life, place: int) -> Edit:
    """The edit that clears the results of the `place`-th user message with any."""
    holding = [m for m in life.state.context.conversation.messages if m.blocks[0].data.get("type") == "tool_result"]
    message = holding[place].id
    return Edit(kind="cleared", message=message, last=message, block=0, text="[Previous: used it]")


def tokens(found: WindowMap) -> dict[tuple[str, str], int]:
    return {(part.source, part.tool): part.tokens for part in found.parts}


def test_the_parts_add_up_to_the_window() -> None:
    found = window_map(worked().state, TOOLS)
    assert sum(part.tokens for part in found.parts) == found.window
    assert sum(part.share for part in found.parts) == pytest.approx(1.0)
    parts = tokens(found)
    listed = estimate_json(TOOLS)
    assert parts["tools", ""] == listed
    assert parts["system prompt", ""] == 100 - listed
    assert parts["output reserve", ""] == worked().state.me.output_tokens
    assert parts["tool results", "bash"] > parts["tool results", "read_file"] // 2 > 0
    assert [part.source for part in found.parts] == [
        *("system prompt", "tools", "person", "assistant text", "tool calls", "tool results", "tool results"),
        *("output reserve", "free"),
    ]


def test_every_source_has_a_part_of_its_own() -> None:
    life = worked().on(ev.InjectionQueued, injection=Injection(kind="system-reminder", text="Mind the todos."))
    blocks = tuple(
        Placed(data={"type": "text", "text": f"from {source} <b>"}, source=source)
        for source in ("reminder", "hook", "schedule", "inbox", "memory", "skill", "ide", "compactor")
    )
    found = tokens(window_map(life.on(ev.InjectionsDelivered, blocks=blocks).state, TOOLS))
    sources = {"reminders", "hooks", "schedules", "mail", "memory", "skills", "editor", "summaries and state"}
    assert sources <= {source for source, _ in found}


def test_what_the_service_counted_beyond_the_estimate_has_a_part() -> None:
    life = worked()
    estimate = life.state.context.conversation.overhead + life.state.context.conversation.tokens
    assert window_map(life.state, TOOLS).counted is None
    life = life.replied({"type": "text", "text": "Done."}, usage=Usage(input_tokens=estimate + 500))
    found = window_map(life.state, TOOLS)
    assert (found.counted, found.used) == (estimate + 500, size(life.state.context.conversation))
    assert tokens(found)["beyond the estimate", ""] == found.used - found.estimate > 0
    assert sum(part.tokens for part in found.parts) == found.window


def test_a_view_that_does_not_fit_leaves_nothing_free() -> None:
    life = worked()
    small = life.state.me.model_copy(update={"models": {"one": life.state.me.limits_of("one")}})
    limits = small.limits_of("one").model_copy(update={"window": 9_000})
    found = window_map(life.on(ev.SpecChanged, spec=small.model_copy(update={"models": {"one": limits}})).state, TOOLS)
    assert ("free", "") not in tokens(found)
    assert sum(part.tokens for part in found.parts) > found.window == 9_000


def test_a_cleared_result_is_told_by_its_tool_and_what_the_call_was_about() -> None:
    life = worked()
    before = size(life.state.context.conversation)
    life = edited(
        life, clearing(life, 0), clearing(life, 1), why="over 60 %", tokens_before=before, tokens_after=before - 700
    )
    (one,) = told(life)
    assert (one.seq, one.stage, one.trigger, one.why) == (len(life.events), "clear_old_results", "auto", "over 60 %")
    assert (one.freed, one.taken_back_by, one.refused) == (700, None, False)
    names = [(touched.what, touched.about) for touched in one.touched]
    assert names == [("read_file", "src/parser.py"), ("bash", "pytest -q")]
    assert all(touched.tokens > 400 for touched in one.touched)


def test_a_fold_is_told_by_what_it_held() -> None:
    life = worked()
    messages = life.state.context.conversation.messages
    fold_ = Edit(kind="summarised", message=messages[0].id, last=messages[-2].id)
    (one,) = told(edited(life, fold_, stage="summarize_all", transcript="/t/alice-9.jsonl"))
    (touched,) = one.touched
    assert touched == EditEffect(
        kind="summarised",
        what="3 calls (read_file 2, bash 1), 3 texts, 1 prompt",
        about="",
        message=messages[0].id,
        last=messages[-2].id,
        messages=len(messages) - 1,
        tokens=sum(message.tokens for message in list(messages)[:-1]),
    )
    assert one.transcript == "/t/alice-9.jsonl"


def test_the_cost_is_the_summary_and_what_is_stored_anew() -> None:
    life = worked()
    usage = Usage(input_tokens=10, cost_usd=0.02)
    (one,) = told(edited(life, clearing(life, 0), usage=usage, rewritten=100_000))
    assert one.rewritten == 100_000
    assert one.cost_usd == pytest.approx(0.02 + 100_000 * 3.75 / 1_000_000)


def test_a_stage_that_found_nothing_is_not_told() -> None:
    assert told(edited(worked())) == ()


def test_an_undo_marks_what_it_takes_back_and_an_undone_undo_brings_it_back() -> None:
    life = worked()
    life = edited(life, clearing(life, 0))
    first = len(life.events)
    standing = clearing(life, 0).model_copy(update={"kind": "restored", "block": None})
    life = edited(life, standing, stage="undo", trigger="manual", undoes=(first,))
    second = len(life.events)
    assert [(one.seq, one.taken_back_by) for one in told(life)] == [(first, second), (second, None)]
    life = edited(life, standing, stage="undo", trigger="manual", undoes=(second,))
    assert [one.taken_back_by for one in told(life)] == [None, len(life.events), None]


def test_an_undo_of_a_summary_is_told_by_all_that_it_brings_back() -> None:
    life = worked()
    messages = list(life.state.context.conversation.messages)
    fold_ = Edit(kind="summarised", message=messages[0].id, last=messages[-2].id)
    life = edited(life, fold_, stage="summarize_all")
    back = tuple(restored_from(message) for message in messages[:-1])
    edit = Edit(kind="restored", message=messages[0].id, last=messages[0].id, messages=back)
    summarised, restored = (
        one.touched[0] for one in told(edited(life, edit, stage="undo", undoes=(len(life.events),)))
    )
    assert (restored.messages, restored.tokens, restored.what) == (
        summarised.messages,
        summarised.tokens,
        summarised.what,
    )


def test_an_undo_that_was_refused_is_told_with_its_reason_and_takes_nothing_back() -> None:
    life = worked()
    life = edited(life, clearing(life, 0))
    life = edited(life, stage="undo", trigger="manual", undoes=(len(life.events),), why="it does not fit")
    cleared, refused = told(life)
    assert cleared.taken_back_by is None
    assert (refused.refused, refused.why) == (True, "it does not fit")


def test_a_stage_of_ones_own_that_was_refused_is_told_with_its_reason() -> None:
    life = edited(worked(), stage="mine:tidy", why="mine:tidy raised ValueError: no")
    (one,) = told(life)
    assert (one.refused, one.why, one.touched) == (True, "mine:tidy raised ValueError: no", ())


def test_words_that_went_to_a_file_are_told_by_whose_they_were() -> None:
    life = worked()
    first = life.state.context.conversation.messages[0].id
    edit = Edit(kind="persisted", message=first, last=first, block=0, text="[kept]", path="/out/x.txt")
    (one,) = told(edited(life, edit, stage="persist_newest"))
    assert (one.touched[0].what, one.files) == ("person", ("/out/x.txt",))


def test_an_edit_of_what_the_history_does_not_hold_is_told_all_the_same() -> None:
    life = edited(worked(), Edit(kind="cleared", message=9_999, last=9_999, block=3, text="[gone]"))
    (one,) = told(life)
    assert one.touched[0].what == "unknown"


def test_metrics_are_of_all_input_and_not_means_of_shares() -> None:
    def life(**usage: int) -> Life:
        return Life.begun().prompted("go").replied({"type": "text", "text": "x"}, usage=Usage(**usage))

    one = life(input_tokens=100, output_tokens=7)
    other = life(cache_read_input_tokens=300, cache_creation_input_tokens=600)
    assert metrics_of(one.state).cache_hit_rate == 0.0
    assert metrics_of(other.state).cache_hit_rate == pytest.approx(0.3333)
    both = together([metrics_of(one.state), metrics_of(other.state)])
    assert both.cache_hit_rate == pytest.approx(0.3)
    assert together([]).token_usage == {"input": 0, "write": 0, "read": 0, "output": 0}
    assert both.token_usage == {"input": 100, "write": 600, "read": 300, "output": 7}


def test_compactions_are_counted_by_stage_and_trigger() -> None:
    life = worked()
    life = edited(edited(life, clearing(life, 0)), clearing(life, 1))
    assert metrics_of(life.state).compact_count == {"clear_old_results/auto": 2}
    assert together([metrics_of(life.state)] * 2).compact_count == {"clear_old_results/auto": 4}


@given(steps=some.lists(some.sampled_from(["read", "run", "clear", "say"]), max_size=12))
def test_whatever_happened_the_parts_add_up_and_nothing_is_told_twice(steps: list[str]) -> None:
    life = worked()
    for step in steps:
        match step:
            case "read":
                life = used(life, "read_file", path="a")
            case "run":
                life = used(life, "bash", command="make", result="long " * 3_000)
            case "clear":
                life = edited(life, clearing(life, 0))
            case _:
                life = life.replied({"type": "text", "text": "so"}, usage=Usage(input_tokens=4_000)).prompted("more")
    found = window_map(life.state, TOOLS)
    assert sum(part.tokens for part in found.parts) == found.window
    seqs = [one.seq for one in told(life)]
    assert seqs == sorted(set(seqs))
    assert len(seqs) == steps.count("clear")

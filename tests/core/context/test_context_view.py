"""The view: how it grows, how it is measured, which laws it names; estimates; cache anchors."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import replace

import pytest
from tests.core.context.context_histories import Session, call, png, result, said, text

from callboard.core.context.cache.breakpoints import anchored_list, marks, with_anchor, with_marks
from callboard.core.context.view.conversation import (
    RENDERING,
    Conversation,
    add_assistant,
    add_user,
    apply_edits,
    message_tokens,
    render,
    size,
    usage_seen,
    with_overhead,
)
from callboard.core.context.view.invariants import edit_faults, invariants, pins
from callboard.core.context.view.messages import Messages, make_block, make_message
from callboard.core.context.view.tokens import IMAGE_MOST, estimate_block, estimate_json, estimate_text
from callboard.types.messages import Edit, ViewMessage
from callboard.types.records import Json, Usage

# Growing


def test_results_come_first_then_the_rest_in_its_order() -> None:
    session = Session().user(said("go")).reply(call("a"), call("b"))
    session.user(said("a reminder", "reminder"), result("a", "1")).user(said("more"), result("b", "2"))
    kinds = [block.data.get("tool_use_id") or block.data["text"] for block in session.view.messages[-1].blocks]
    assert kinds == ["a", "b", "a reminder", "more"]
    assert invariants(session.view.messages) == []


def test_neighbours_of_one_role_are_one_message_with_the_first_id() -> None:
    session = Session().user(said("a")).user(said("b", "inbox")).reply(text("c")).reply(text("d"))
    assert [(message.id, len(message.blocks)) for message in session.view.messages] == [(1, 2), (3, 2)]


def test_empty_text_never_enters_and_an_empty_message_neither() -> None:
    session = Session().user(said("a"), said(" \n")).reply(text("")).user(said(""))
    assert json.loads(session.view.messages[0].wire) == {"role": "user", "content": [text("a")]}
    assert len(session.view.messages) == 1


def test_a_reply_does_not_end_in_white_space() -> None:
    session = Session().user(said("a")).reply(text("b \n"))
    assert session.view.messages[1].blocks[0].data == text("b")


def test_the_wire_is_compact_utf8_and_a_lone_surrogate_cannot_break_it() -> None:
    view = Session().user(said("漢 \ud800 é")).view
    assert view.messages[0].wire == '{"role":"user","content":[{"type":"text","text":"漢 ? é"}]}'.encode()


def test_the_first_instruction_is_pinned_whoever_gives_it() -> None:
    session = Session().user(said("<memory>", "memory"), said("do it", "schedule"), said("and this"))
    session.reply(text("ok")).user(said("next"))
    assert [block.data["text"] for block in pins(session.view.messages)] == ["do it"]


def test_an_older_assignment_gives_way_to_a_newer_one() -> None:
    session = Session().user(said("role", "inbox"))
    for number in range(3):
        session.reply(text("ok")).user(said(f"assignment {number}", "inbox", pinned=True))
    assert [block.data["text"] for block in pins(session.view.messages)] == ["role", "assignment 2"]


# Measuring


def test_before_any_usage_the_estimate_counts_with_system_and_tools() -> None:
    conv = Session().user(said("x" * 400)).view
    assert (message_tokens(conv), size(conv)) == (104, 604)


def test_the_exact_usage_counts_where_it_is_larger_and_new_blocks_come_on_top() -> None:
    session = Session().user(said("x" * 4_000))
    session.view = usage_seen(session.view, Usage(input_tokens=100, cache_read_input_tokens=1_700, output_tokens=50))
    session.reply(text("y" * 40))
    assert size(session.view) == 1_850
    assert session.view.counted_upto == 2
    before = session.view.tokens
    session.user(said("z" * 4_000))
    fresh = session.view.tokens - before
    assert size(session.view) == 1_850 + -(-fresh * (1_850_000 // 1_518) // 1_000)


def test_an_exact_usage_below_the_estimate_does_not_lower_it() -> None:
    session = Session().user(said("x" * 4_000))
    session.view = usage_seen(session.view, Usage(input_tokens=10, output_tokens=1))
    assert size(session.view) == 500 + 1_004


def test_an_offset_of_a_first_small_call_does_not_multiply_what_comes_after() -> None:
    conv = usage_seen(Session(view=Conversation()).user(said("hi")).view, Usage(input_tokens=3_000, output_tokens=0))
    conv = add_user(conv, 9, [said("x" * 40_000)], at=0.0, turn="t")
    assert size(conv) == 3_000 + 15_006  # at most half as much again as its estimate of 10,004


def test_after_an_edit_the_exact_count_shrinks_with_the_estimate() -> None:
    session = Session().user(said("go")).step("x" * 40_000).step("y" * 400)
    session.view = usage_seen(session.view, Usage(input_tokens=2 * (session.view.tokens + 500), output_tokens=0))
    assert size(session.view) == 2 * (session.view.tokens + 500)
    session.run("clear_old_results", 100, keep=0)
    assert size(session.view) == 2 * (session.view.tokens + 500)
    assert session.view.tokens < 400


def test_no_usage_is_no_calibration() -> None:
    conv = Session().user(said("hi")).view
    assert usage_seen(conv, Usage()) is conv


def test_overhead_can_change_with_the_prompt() -> None:
    conv = Session().user(said("x" * 40)).view
    assert size(with_overhead(conv, 9_000)) == 9_014


@pytest.mark.parametrize(
    ("sample", "tokens"),
    [
        ("", 0),
        ("abc", 1),
        ("x" * 4_000, 1_000),
        ("漢", 2),
        ("漢字" * 100, 300),
        ("한국어", 5),
        ("éé", 1),
        ("漢a字b", 4),
    ],
)
def test_a_text_counts_a_quarter_for_each_byte_and_one_and_a_half_for_each_cjk_character(
    sample: str, tokens: int
) -> None:
    assert estimate_text(sample) == tokens
    assert estimate_json(sample.encode()) == tokens


JPEG = b"\xff\xd8\xff\xe0\x00\x10" + b"J" * 14 + b"\xff\xc0\x00\x11\x08" + bytes([1, 44, 2, 88]) + b"\0" * 12
GIF = b"GIF89a" + (600).to_bytes(2, "little") + (300).to_bytes(2, "little") + b"\0\0\0"


def image(data: bytes | str) -> Json:
    encoded = data if isinstance(data, str) else base64.b64encode(data).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": "image/x", "data": encoded}}


@pytest.mark.parametrize(
    ("block", "tokens"),
    [
        (png(600, 300), 240),
        (png(60_000, 60_000), IMAGE_MOST),
        (image(JPEG), 240),
        (image(GIF), 240),
        (image(b"\xff\xd8\xff"), IMAGE_MOST),
        (image(b"RIFF...."), IMAGE_MOST),
        (image("not base64!!"), IMAGE_MOST),
        ({"type": "image", "source": {"type": "url", "url": "http://x"}}, IMAGE_MOST),
        ({"type": "image", "source": "?"}, IMAGE_MOST),
    ],
)
def test_an_image_counts_by_its_size(block: Json, tokens: int) -> None:
    assert estimate_block(block) == 4 + tokens


@pytest.mark.parametrize(
    ("block", "tokens"),
    [
        (text("x" * 40), 14),
        (call("id", "bash", command="x" * 29), 16 + 1 + 11),
        (result("id", "x" * 40).data, 16 + 10),
        (result("id", [text("x" * 40), png(600, 300)]).data, 16 + 14 + 244),
        ({"type": "tool_result", "tool_use_id": "id"}, 16),
        ({"type": "thinking", "thinking": "x" * 40, "signature": "s"}, 14),
        ({"type": "thinking", "thinking": "", "signature": "s" * 400}, 104),
        ({"type": "redacted_thinking", "data": "d" * 360}, 4 + 100),
    ],
)
def test_every_block_has_an_estimate(block: Json, tokens: int) -> None:
    assert abs(estimate_block(block) - tokens) <= 1


# Laws


def message(id: int, role: str, *blocks: Json) -> ViewMessage:
    conv = Conversation()
    if role == "user":
        placed = [result(str(b["tool_use_id"]), "r") if b["type"] == "tool_result" else said(b["text"]) for b in blocks]
        return replace(add_user(conv, id, placed, at=0.0, turn="t").messages[0], id=id)
    return add_assistant(conv, id, blocks, at=0.0, turn="t").messages[0]


ASK, ASKED, ANSWER = message(1, "user", text("go")), message(2, "assistant", call("a")), result("a", "r").data


def mutated() -> ViewMessage:
    """A message whose data was changed in place after it was sent."""
    sent = message(1, "user", text("x"))
    assert b"x" in sent.wire
    sent.blocks[0].data["text"] = "y"
    return sent


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([ASKED], "the first message is not the user's"),
        ([ASK, message(2, "assistant", text("x"))], "the last message is not the user's"),
        ([ASK, message(3, "user", text("x"))], "neighbours of one role: 3"),
        ([ASK, message(1, "assistant", text("x")), replace(ASK, id=3)], "ids that do not rise: 1"),
        ([ASK, ASKED], "a call without its result: a"),
        ([ASK, ASKED, message(3, "user", text("x"))], "a call without its result: a"),
        ([message(1, "user", ANSWER)], "a result without its call: a"),
        ([ASK, ASKED, message(3, "user", ANSWER, ANSWER)], "two results of one call in 3"),
        ([ASK, message(2, "assistant", call("a"), call("a")), message(3, "user", ANSWER)], "stands twice: a"),
        ([ASK, ASKED, message(3, "user", ANSWER), replace(ASKED, id=4), message(5, "user", ANSWER)], "stands twice: a"),
        ([make_message(1, "user", (), "t")], "an empty message in 1"),
        ([make_message(1, "user", (make_block(text(" "), "person", 0.0),), "t")], "an empty text block in 1"),
        ([mutated()], "the wire is not what its blocks say in 1"),
        ([replace(ASK, tokens=1)], "the tokens are not the sum of its blocks in 1"),
        (
            [make_message(1, "user", ASK.blocks + message(1, "user", ANSWER).blocks, "t")],
            "results do not come first in 1",
        ),
        ([ASK, make_message(2, "assistant", ASK.blocks, "t"), replace(ASK, id=3)], "words of another"),
    ],
)
def test_each_broken_law_is_named(messages: list[ViewMessage], fault: str) -> None:
    assert any(fault in found for found in invariants(messages))


def test_between_turns_a_view_may_end_with_a_reply() -> None:
    assert invariants([ASK, message(2, "assistant", text("x"))], sent=False) == []
    assert invariants([ASK, ASKED], sent=False) == []


@pytest.mark.parametrize(
    ("edit", "fault"),
    [
        (Edit(kind="dropped", message=1, last=3, blocks=(said("gone", "compactor"),)), "a pinned block is gone"),
        (Edit(kind="dropped", message=4, last=5, blocks=(said("x"),)), "the newest user message is not whole"),
        (Edit(kind="summarised", message=2, last=3, blocks=(said("x" * 999, "compactor"),)), "the view is larger"),
        (Edit(kind="dropped", message=1, last=2), "the first message is gone"),
    ],
)
def test_an_edit_that_breaks_a_law_is_named(edit: Edit, fault: str) -> None:
    session = Session().user(said("go")).step("a").step("b").edit([edit])
    assert fault in session.faults


def test_words_put_into_the_models_mouth_are_named() -> None:
    before = Session().user(said("go")).reply(text("a")).user(said("b")).view
    forged = (before.messages[0], message(2, "assistant", text("c")), before.messages[2])
    assert "words that the model did not say" in edit_faults(before, replace(before, messages=Messages.of(forged)))


def test_an_edit_whose_target_no_longer_stands_changes_nothing() -> None:
    view = Session().user(said("go")).step("a").view
    stale = [
        Edit(kind="cleared", message=99, last=99, block=0, text="x"),
        Edit(kind="cleared", message=3, last=3, block=7, text="x"),
        Edit(kind="cleared", message=2, last=2, block=0, text="x"),
        Edit(kind="summarised", message=50, last=60, blocks=(said("x"),)),
    ]
    assert apply_edits(view, stale) is view
    assert render(view.messages, stale) == view.messages


def test_a_revision_rises_with_an_edit_and_with_nothing_else() -> None:
    session = Session().user(said("go")).step("a" * 900).step("b")
    assert session.view.revision == 0
    assert session.run("clear_old_results", 10, keep=0).view.revision == 1


def test_a_persisted_result_keeps_its_images() -> None:
    session = Session().user(said("go")).step([text("x" * 9_000), png(9, 9)])
    session.run("persist_large_results", 99, trigger="each", each=3_000)
    content = session.view.messages[-1].blocks[0].data["content"]
    assert content[0]["text"].startswith("<persisted-output>\n")
    assert content[1:] == [png(9, 9)]


def test_the_bytes_of_a_history_and_its_edits_are_those_of_this_rendering() -> None:
    """Where this fails on purpose, `RENDERING` rises: a snapshot of before would not be what the journal says."""
    session = Session().user(said("Do é it.")).step("x" * 400).step([text("y" * 400), png(9, 9)]).step("z", error=True)
    session.user(said("more", "inbox")).reply(text("ok"))
    session.edit([Edit(kind="cleared", message=5, last=5, block=0, text="[gone]")])
    session.edit([Edit(kind="snipped", message=2, last=3, blocks=(said("[snipped]", "compactor"),))])
    wire = b",".join(session.view.messages.pieces())
    assert (RENDERING, hashlib.sha256(wire).hexdigest()[:16]) == (3, "135f534fac55b1bd")


# Anchors

THINKING = {"type": "thinking", "thinking": 'h"m é}]}', "signature": "s"}


@pytest.mark.parametrize(
    ("blocks", "marked"),
    [
        ([text("a"), text('b}]}"漢')], 1),
        ([text("a"), THINKING], 0),
        ([THINKING, call("a", x=[1, {"y": "}]}"}]), THINKING, {"type": "redacted_thinking", "data": "d"}], 1),
        ([THINKING], None),
    ],
)
def test_the_anchor_goes_onto_the_last_block_that_can_bear_it(blocks: list[Json], marked: int | None) -> None:
    whole = message(2, "assistant", *blocks).wire
    content = json.loads(with_anchor(whole))["content"]
    assert content == [
        {**block, "cache_control": {"type": "ephemeral"}} if number == marked else block
        for number, block in enumerate(blocks)
    ]


def test_the_newest_user_message_and_the_one_before_are_anchored() -> None:
    view = Session().user(said("go")).step("a").step([text("b"), png(9, 9)]).reply(text("paused")).view
    wires = with_marks(view, marks(view))
    assert [wire.count(b"cache_control") for wire in wires] == [0, 0, 1, 0, 1, 0]
    assert wires[0] is view.messages[0].wire


def test_a_list_is_marked_at_its_end_and_may_be_empty() -> None:
    assert anchored_list([]) == b"[]"
    marked = json.loads(anchored_list([{"name": "a"}, {"name": "é"}]))
    assert marked == [{"name": "a"}, {"name": "é", "cache_control": {"type": "ephemeral"}}]

"""What of a view each model is sent: its own thinking, nobody else's, and the same bytes at every call."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as hy

from callboard.core.context.cache.breakpoints import marks, with_marks
from callboard.core.context.summary.shared_prefix import shared_prefix_messages
from callboard.core.context.view.conversation import Conversation, add_assistant, add_user, apply_edits, restored_from
from callboard.core.context.view.invariants import invariants
from callboard.core.context.view.messages import FULL, Messages, wire_for
from callboard.core.recovery.fallback import TAKES_NONE, reader_of
from callboard.types.agent_spec import AgentSpec, ModelLimits
from callboard.types.messages import Edit, Placed
from callboard.types.records import Json

MODELS = ("one", "two")


def thought(words: str = "hm", kind: str = "thinking") -> Json:
    if kind == "redacted_thinking":
        return {"type": kind, "data": words}
    return {"type": kind, "thinking": words, "signature": f"sig of {words}"}


def text(words: str) -> Json:
    return {"type": "text", "text": words}


def call(use_id: str) -> Json:
    return {"type": "tool_use", "id": use_id, "name": "bash", "input": {}}


def searched(use_id: str, *, answered: bool) -> list[Json]:
    asked: Json = {"type": "server_tool_use", "id": use_id, "name": "web_search", "input": {"query": "q"}}
    return [asked, {"type": "web_search_tool_result", "tool_use_id": use_id, "content": []}] if answered else [asked]


class Talk:
    """A conversation that grows."""

    def __init__(self) -> None:
        self.view, self.id = Conversation(), 0

    def user(self, *blocks: Json) -> Talk:
        self.id += 1
        placed = [Placed(data=block, source="tool" if "tool_use_id" in block else "person") for block in blocks]
        self.view = add_user(self.view, self.id, placed, at=float(self.id), turn="t")
        return self

    def reply(self, by: str, *blocks: Json) -> Talk:
        self.id += 1
        self.view = add_assistant(self.view, self.id, blocks, at=float(self.id), turn="t", by=by)
        return self

    def step(self, by: str, *before: Json) -> Talk:
        """A call, and its result."""
        use_id = f"u{self.id}"
        result: Json = {"type": "tool_result", "tool_use_id": use_id, "content": f"result of {use_id}"}
        return self.reply(by, *before, call(use_id)).user(result)

    def sent(self, reader: str) -> list[Json]:
        return sent(self.view.messages.pieces(reader=reader))


def sent(pieces: Sequence[bytes]) -> list[Json]:
    return json.loads(b"[" + b",".join(pieces) + b"]")


def kinds(messages: list[Json]) -> list[list[str]]:
    return [[block["type"] for block in message["content"]] for message in messages]


def test_after_a_switch_thinking_of_the_other_model_is_left_out_and_on_the_way_back_too() -> None:
    talk = Talk().user(text("go")).step("one", thought("of one")).step("two", thought("of two"), text("so"))
    assert kinds(talk.sent("one"))[1] == ["thinking", "tool_use"]
    assert kinds(talk.sent("one"))[3] == ["text", "tool_use"]
    assert kinds(talk.sent("two"))[1] == ["tool_use"]
    assert kinds(talk.sent("two"))[3] == ["thinking", "text", "tool_use"]
    assert kinds(talk.sent("")) == [["text"], ["thinking", "tool_use"], ["tool_result"], *kinds(talk.sent("two"))[3:]]
    assert invariants(talk.view.messages) == []


@pytest.mark.parametrize("kind", ["thinking", "redacted_thinking"])
def test_a_reply_of_nothing_but_thinking_leaves_no_empty_message(kind: str) -> None:
    talk = Talk().user(text("go")).reply("one", thought(kind=kind)).user(text("and?"))
    assert kinds(talk.sent("two")) == [["text"], ["text"]]
    assert kinds(talk.sent("one")) == [["text"], [kind], ["text"]]


def test_a_model_that_takes_no_thinking_is_sent_none_not_even_its_own() -> None:
    spec = AgentSpec(name="a", kind="lead", agent_type="lead", model="one", models={"two": ModelLimits(thinking=False)})
    assert (reader_of(spec, "one"), reader_of(spec, "two")) == ("one", TAKES_NONE)
    talk = Talk().user(text("go")).step("two", thought())
    assert kinds(talk.sent(TAKES_NONE)) == [["text"], ["tool_use"], ["tool_result"]]


def test_signed_thinking_stays_whole_for_the_model_that_signed_it() -> None:
    signed = thought("long thought")
    talk = Talk().user(text("go")).step("one", signed)
    assert talk.sent("one")[1]["content"][0] == signed


def test_a_paused_reply_goes_back_as_it_stands_and_loses_open_calls_of_the_service_once_it_was_given_up() -> None:
    paused = Talk().user(text("go")).reply("one", text("I look"), *searched("s1", answered=False))
    assert kinds(paused.sent("one"))[-1] == ["text", "server_tool_use"]
    given_up = paused.user(text("never mind"))
    assert kinds(given_up.sent("one")) == [["text"], ["text"], ["text"]]
    only = Talk().user(text("go")).reply("one", *searched("s1", answered=False)).user(text("never mind"))
    assert kinds(only.sent("one")) == [["text"], ["text"]]


def test_calls_of_the_service_with_results_or_beside_calls_of_ours_stay() -> None:
    talk = Talk().user(text("go")).reply("one", *searched("s1", answered=True)).user(text("more"))
    assert kinds(talk.sent("two"))[1] == ["server_tool_use", "web_search_tool_result"]
    talk = Talk().user(text("go")).step("one", *searched("s1", answered=False))
    assert kinds(talk.sent("one"))[1] == ["server_tool_use", "tool_use"]
    odd: Json = {"type": "compaction", "content": "what was said"}
    assert Talk().user(text("go")).reply("one", odd).sent("two")[1]["content"] == [odd]


STEPS = hy.lists(
    hy.tuples(
        hy.sampled_from(MODELS),
        hy.sampled_from(["call", "thought call", "thought", "text", "search", "paused"]),
    ),
    max_size=FULL * 3,
)


def talked(steps: Sequence[tuple[str, str]]) -> Talk:
    talk = Talk().user(text("go"))
    for by, what in steps:
        if what.endswith("call"):
            talk.step(by, *([thought(f"t{talk.id}")] if "thought" in what else []))
        elif what == "thought":
            talk.reply(by, thought(f"t{talk.id}")).user(text("go on"))
        elif what == "text":
            talk.reply(by, thought(f"t{talk.id}"), text("so")).user(text("go on"))
        else:
            talk.reply(by, *searched(f"s{talk.id}", answered=what == "search")).user(text("go on"))
    return talk


def plainly(messages: Messages, reader: str) -> list[Json]:
    """The same from scratch, message by message, without any chunk."""
    last = messages[len(messages) - 1]
    wires = [wire_for(one, reader, last=one is last) for one in messages]
    return sent([wire for wire in wires if wire])


@given(STEPS)
def test_whatever_was_said_each_model_is_sent_a_whole_conversation_without_thinking_of_others(
    steps: list[tuple[str, str]],
) -> None:
    talk = talked(steps)
    for reader in (*MODELS, "three", TAKES_NONE):
        messages = talk.sent(reader)
        assert messages == plainly(talk.view.messages, reader)
        assert messages[0]["role"] == "user"
        assert all(message["content"] for message in messages)
        mine = {block.data["thinking"] for one in talk.view.messages for block in one.blocks if block.by == reader}
        assert {b["thinking"] for m in messages for b in m["content"] if b["type"] == "thinking"} == mine
        assert pairs(messages) == pairs(talk.sent(""))


def pairs(messages: list[Json]) -> list[tuple[str, str]]:
    """Our calls and their results, in order."""
    blocks: list[dict[str, Any]] = [block for message in messages for block in message["content"]]
    return [
        (block["type"], block.get("tool_use_id") or block["id"])
        for block in blocks
        if block["type"] in ("tool_use", "tool_result")
    ]


@given(STEPS, STEPS)
def test_what_a_model_was_sent_before_is_the_beginning_of_what_it_is_sent_later(
    before: list[tuple[str, str]], later: list[tuple[str, str]]
) -> None:
    """Else its cached prefix is lost at each switch, and on each way back."""
    first, whole = talked(before), talked([*before, *later])
    for reader in MODELS:
        begun = b",".join(first.view.messages.pieces(reader=reader))
        assert b",".join(whole.view.messages.pieces(reader=reader)).startswith(begun)


def test_old_chunks_are_put_together_once_for_a_reader_so_that_a_step_costs_no_more_when_the_history_is_long() -> None:
    talk = talked([("one", "thought call")] * 400)
    before = talk.view.messages.pieces(reader="two")
    for _ in range(3):
        talk.step("two", thought())
    now = with_marks(talk.view, marks(talk.view), reader="two")
    known = {id(piece) for piece in before}
    assert sum(id(piece) not in known for piece in now) <= 2 * FULL, "the newest messages alone"
    assert len(now) < 100, "those long past stand in chunks"


def test_a_summary_that_rides_and_an_edit_elsewhere_leave_out_the_same() -> None:
    talk = talked([("one", "thought call")] * 40)
    asked = sent(shared_prefix_messages(talk.view, "SUM UP", "two"))
    assert not any("thinking" in types for types in kinds(asked))
    cleared = apply_edits(talk.view, [Edit(kind="cleared", message=3, last=3, block=0, text="[cleared]")])
    assert not any("thinking" in types for types in kinds(sent(cleared.messages.pieces(reader="two"))))
    assert len(sent(cleared.messages.pieces(reader="one"))) == len(cleared.messages)


def test_what_an_undo_brings_back_is_still_known_by_its_model() -> None:
    talk = Talk().user(text("go")).step("one", thought())
    back = restored_from(talk.view.messages[1])
    assert [block.by for block in back.blocks] == ["one", ""]
    whole = apply_edits(talk.view, [Edit(kind="restored", message=2, last=2, messages=(back,))])
    assert kinds(sent(whole.messages.pieces(reader="two")))[1] == ["tool_use"]


@pytest.mark.parametrize("signature", [{}, {"signature": ""}])
def test_thinking_that_nobody_signed_is_not_sent_back(signature: Json) -> None:
    unsigned: Json = {"type": "thinking", "thinking": "hm", **signature}
    view = add_assistant(Conversation(), 1, [unsigned, thought(), {"type": "text", "text": "said"}], at=1.0, turn="t")
    assert [block.data for block in view.messages[0].blocks] == [thought(), {"type": "text", "text": "said"}]
    assert not add_assistant(Conversation(), 1, [unsigned], at=1.0, turn="t").messages

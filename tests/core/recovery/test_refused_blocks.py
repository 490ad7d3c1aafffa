"""Images and documents that the service refuses, and what else a refusal names."""

from __future__ import annotations

import pytest
from tests.core.recovery.failures import NOW, failed, spec

from callboard.core.context.view.conversation import Conversation, apply_edits
from callboard.core.context.view.messages import Messages, make_block, make_message
from callboard.core.recovery.refused_blocks import refused_block
from callboard.core.recovery.retry_policy import RecoveryState, recover, without_advice
from callboard.types.messages import ViewMessage
from callboard.types.records import Fault, Json
from callboard.types.steps import EndTurn

IMAGE: Json = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
DOCUMENT: Json = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBE"}}


def user(id: int, *blocks: Json) -> ViewMessage:
    made = tuple(make_block(data, "person", 0.0) for data in blocks)
    return make_message(id, "user", made, "turn")


TEXT: Json = {"type": "text", "text": "look"}
CALL: Json = {"type": "tool_use", "id": "toolu_1", "name": "read_file", "input": {}}
REPLY = make_message(2, "assistant", (make_block(CALL, "assistant", 0.0),), "turn")
SHOWN: Json = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [TEXT, IMAGE]}
PLAIN: Json = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "look"}
VIEW = [user(1, TEXT, IMAGE, DOCUMENT), REPLY, user(3, SHOWN, TEXT), user(4, PLAIN)]


@pytest.mark.parametrize(
    ("place", "target", "text"),
    [
        ("messages.0.content.1.image.source.url", (1, 1), "[Image left out: the service refused it: "),
        ("messages.0.content.2.pdf", (1, 2), "[Document left out: the service refused it: "),
        ("messages.2.content.0.content.1.image.source.url", (3, 0), "look\n[Image left out: "),
    ],
)
def test_the_named_image_or_document_is_left_out(place: str, target: tuple[int, int], text: str) -> None:
    edit = refused_block(Fault(kind="invalid", message=f"{place}: it is gone", status=400), VIEW, "one")
    assert edit is not None
    assert (edit.message, edit.block) == target
    assert edit.text.startswith(text)
    assert edit.text.endswith(f"{place}: it is gone]")


NEW: Json = {"type": "new_kind", "id": "n_1"}
THOUGHT: Json = {"type": "thinking", "thinking": "hm", "signature": "s"}


@pytest.mark.parametrize(
    ("reader", "number", "block"), [("one", 1, 1), ("two", 0, 1), ("one", 0, None), ("two", 1, None)]
)
def test_a_named_block_of_an_unknown_kind_in_a_reply_is_left_out(reader: str, number: int, block: int | None) -> None:
    made = tuple(make_block(data, "assistant", 0.0, by="one") for data in (THOUGHT, NEW, CALL))
    conv = Conversation(messages=Messages.of([make_message(1, "assistant", made, "turn")]))
    fault = Fault(kind="invalid", message=f"messages.0.content.{number}: unknown kind", status=400)
    edit = refused_block(fault, conv.messages, reader)
    assert (edit.block if edit else None) == block
    if edit:
        (message,) = apply_edits(conv, [edit]).messages
        assert [part.data["type"] for part in message.blocks] == ["thinking", "text", "tool_use"]
        assert "[Block of kind new_kind left out: the service refused it: messages.0" in str(message.blocks[1].data)


@pytest.mark.parametrize(
    "place",
    [
        "messages.0.content.0.text",
        "messages.0.content.9",
        "messages.1.content.0.input",
        "messages.2.content.1",
        "messages.3.content.0",
        "messages.9.content.0",
        "messages.1",
        "max_tokens",
    ],
)
def test_no_text_call_or_result_without_an_image_is_left_out(place: str) -> None:
    assert refused_block(Fault(kind="invalid", message=f"{place}: it is wrong", status=400), VIEW, "one") is None


def test_only_an_invalid_request_is_changed() -> None:
    assert (
        refused_block(Fault(kind="server", message="messages.0.content.1: it is gone", status=500), VIEW, "one") is None
    )


def test_a_refused_message_is_not_worth_another_try() -> None:
    step = recover(failed("invalid", message="messages.1: it is wrong"), RecoveryState(), spec(), now=NOW)
    assert isinstance(step, EndTurn)
    assert "--carry" in step.why
    assert "try again" not in step.why
    assert "--carry" not in without_advice(step.why), "no model can follow that"

"""Questions of an MCP server during a call, as a person at the prompt line and a client receive them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from callboard.cli.headless.client import ClientApprover, ClientRefused, field_words, question_of
from callboard.cli.terminal.approver import PersonApprover, TakenBack
from callboard.cli.terminal.frame import Frame
from callboard.cli.views.question import request_block
from callboard.core.mcp.elicitation import fields_of, payload_of, read
from callboard.types.mcp import Elicitation, ElicitationAnswer
from callboard.types.records import Json, Request

pytestmark = pytest.mark.anyio

FORM: Json = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "title": "Full name"},
        "size": {"type": "string", "enum": ["s", "l"], "enumNames": ["small", "large"]},
        "gift": {"type": "boolean", "default": False},
        "note": {"type": "string"},
    },
    "required": ["name", "size"],
}
URL = "https://shop.example/\u202elogin"


def request(schema: Json, url: str = "") -> tuple[Elicitation, Request]:
    asked = Elicitation("shop", "Where to?", schema, url)
    return asked, Request(id="req_1", kind="question", asked_by="lead", payload=payload_of(asked, "c1"))


class Typist:
    """Terminal that types one line after another, and records the text shown."""

    def __init__(self, *lines: str | None) -> None:
        self.lines, self.shown, self.words = list(lines), [""], [""]

    async def __call__(self, shown: Frame, words: str, back: TakenBack) -> str | None:
        self.shown.append("\n".join(line.text for line in shown.lines))
        self.words.append(words)
        return self.lines.pop(0)


async def answer_typed(schema: Json, *lines: str | None, url: str = "") -> tuple[ElicitationAnswer | str, Typist]:
    asked, row = request(schema, url)
    typist = Typist(*lines)
    answer = await PersonApprover(typist).answer(row)
    assert answer is not None
    assert answer.status == "answered"
    assert not typist.lines
    return read(asked, answer.reason), typist


async def test_a_form_is_shown_whole_and_asked_field_by_field() -> None:
    back, typist = await answer_typed(FORM, "Ada Lovelace", "huge", "2", "", "")
    assert back == ElicitationAnswer("accept", {"name": "Ada Lovelace", "size": "l", "gift": False})
    assert "asked by the MCP server shop" in typist.shown[1]
    assert "name (string): Full name" in typist.shown[1]
    assert "size: one of small, large, please, or its number" in typist.shown[3]
    assert typist.words[2] == "size [1 small, 2 large]> "


@pytest.mark.parametrize(
    ("lines", "action"),
    [(["decline"], "decline"), (["Ada", "cancel"], "cancel"), ([""], "decline"), ([None], "decline")],
)
async def test_a_form_may_be_declined_at_any_field(lines: Sequence[str | None], action: str) -> None:
    back, _ = await answer_typed(FORM, *lines)
    assert isinstance(back, ElicitationAnswer)
    assert back.action == action


async def test_an_address_is_shown_with_what_hides_in_it_and_nothing_opens_it() -> None:
    back, typist = await answer_typed({}, "y", url=URL)
    assert back == ElicitationAnswer("accept")
    assert "\u202e" not in typist.shown[1]
    assert "it asks you to visit: https://shop.example/" in typist.shown[1]
    assert (await answer_typed({}, "n", url=URL))[0] == ElicitationAnswer("decline")


async def test_one_field_is_one_line_and_is_asked_again_until_it_fits() -> None:
    age: Json = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    back, typist = await answer_typed(age, "old", "36")
    assert back == ElicitationAnswer("accept", {"age": 36})
    assert "age: a whole number, please" in typist.shown[2]


def test_a_listing_shows_what_is_asked_too() -> None:
    shown = "\n".join(line.text for line in request_block(request({}, URL)[1]).lines)
    assert "it asks you to visit" in shown


class AnsweringClient:
    """Client that gives this answer."""

    def __init__(self, said: Any) -> None:
        self.said, self.asked = said, Json()

    async def ask(self, request: Json) -> Json:
        self.asked = request
        if isinstance(self.said, Exception):
            raise self.said
        return dict(self.said)


async def answer_by_client(row: Request, said: Any) -> tuple[str, AnsweringClient]:
    client = AnsweringClient(said)
    approver = ClientApprover(client, lambda _: None, lambda: None)

    class NoCalls:
        def call(self, agent: str, call: str) -> None:
            return None

    approver.attach(NoCalls())
    answer = await approver.answer(row)
    assert answer is not None
    return answer.reason, client


async def test_a_client_is_asked_by_can_use_tool_one_question_for_each_field() -> None:
    asked, row = request(FORM)
    name, size = (field_words(asked, one) for one in fields_of(FORM)[:2])
    reply = {"behavior": "allow", "updatedInput": {"answers": {name: "Ada", size: "large"}}}
    text, client = await answer_by_client(row, reply)
    assert read(asked, text) == ElicitationAnswer("accept", {"name": "Ada", "size": "l", "gift": False})
    questions = client.asked["input"]["questions"]
    assert client.asked["tool_name"] == "AskUserQuestion"
    assert [one["question"] for one in questions][:2] == [name, size]
    assert [one["label"] for one in questions[1]["options"]] == ["small", "large"]


@pytest.mark.parametrize(
    "said",
    [
        {"behavior": "deny", "message": "no"},
        {"behavior": "allow", "updatedInput": {"answers": {"size": "huge"}}},
        {"behavior": "allow"},
        ClientRefused("it cannot"),
        {},
    ],
)
async def test_a_client_that_does_not_answer_the_form_has_declined(said: Any) -> None:
    asked, row = request(FORM)
    text, _ = await answer_by_client(row, said)
    assert read(asked, text) == ElicitationAnswer("decline")


def test_a_plain_question_is_asked_as_before() -> None:
    row = Request(id="req_2", kind="question", asked_by="lead", payload={"question": "Why?", "options": ["a"]})
    assert json.dumps(question_of(row, "toolu_1")["input"]["questions"][0]["question"]) == '"Why?"'

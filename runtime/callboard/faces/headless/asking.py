"""The client in the person's place: permissions, plans and questions are put to it by `can_use_tool`.

What it allows with another input is judged again before it runs, as `engine.asking` says. A client that has gone, that
fails or that answers what cannot be read has said no.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import anyio

from callboard.core.asking.session_rules import Always, offered
from callboard.core.hooks.names import compatible_name, from_compatible, to_compatible
from callboard.core.mcp.forms import Field, asked_of, fields_of, read
from callboard.core.permission.rules import parse_rule
from callboard.core.permission.updates import rules_of, suggestions_of
from callboard.faces.editing import approval
from callboard.faces.headless.client import Client, ClientGone, ClientRefused
from callboard.ports.world import Answer
from callboard.words.errors import UsageError
from callboard.words.mcp import AnsweredBack, Asked
from callboard.words.values import Json, Request, ToolCall

GONE = "the client that would have answered has gone"
_TOOLS = {"plan": "submit_plan", "question": "ask_person"}


class Calls(Protocol):
    """What an approver asks the session for."""

    def call(self, agent: str, call: str) -> ToolCall | None:
        """A tool call that an agent has under way, by our id."""
        ...


class ClientApprover:
    """Asks the client whatever a person may answer."""

    def __init__(self, client: Client, told: Callable[[str], None], stop: Callable[[], None]) -> None:
        """`told`: what of an answer is not heeded. `stop`: ends the turn, when an answer says so."""
        self._client, self._told, self._stop = client, told, stop
        self._calls: Calls | None = None
        self._attached = anyio.Event()

    def attach(self, calls: Calls) -> None:
        """The session is open: from now on its calls can be looked at."""
        self._calls = calls
        self._attached.set()

    async def answer(self, request: Request) -> Answer | None:
        """See `Approver.answer`."""
        if "person" not in request.may_answer or request.kind == "shutdown":
            return None
        await self._attached.wait()
        call = self._calls.call(request.asked_by, str(request.payload.get("call_id"))) if self._calls else None
        try:
            said = await self._client.ask(question_of(request, call.use_id if call else request.id))
        except ClientGone:
            return _no(request, GONE)
        except ClientRefused as refused:
            return _no(request, f"the client could not answer: {refused}")
        if said.get("behavior") == "deny":
            if said.get("interrupt") is True:
                self._stop()  # begun when the answer is written
            return _no(request, str(said.get("message") or ""))
        if said.get("behavior") != "allow":
            return _no(request, "the client answered neither `allow` nor `deny`")
        updated = _object(said.get("updatedInput"))
        if request.kind == "permission":
            return self._permission(request, updated, said.get("updatedPermissions"))
        if (asked := asked_of(request)) is not None:
            return _filled_in(asked, updated)
        return self._plan(request, updated) if request.kind == "plan" else _answered(updated)

    def _permission(self, request: Request, updated: Json | None, permissions: object) -> Answer:
        tool, given = str(request.payload["tool"]), cast("Json", request.payload["input"])
        folder = str(request.payload.get("folder") or "")
        edited = None
        if updated is not None and updated != to_compatible(tool, given, folder):
            ours = from_compatible(tool, given, updated, folder)
            edited = ours if ours != given else None
        return Answer("approved", "person", always=self._always(request, permissions), input=edited)

    def _always(self, request: Request, permissions: object) -> Always | None:
        """All of its class is allowed where the client took up what was suggested; the rest is told."""
        taken, left = rules_of(permissions)
        rules = {_key(text) for text in offered(request)}
        wanted = {_key(text) for text in taken}
        takes = bool(rules) and rules <= wanted
        more = [text for text in taken if not takes or _key(text) not in rules]
        for what in (*(f"the rule {text}: only what was suggested can be allowed" for text in more), *left):
            self._told(f"updatedPermissions is not heeded for {what}")
        return Always() if takes else None

    def _plan(self, request: Request, updated: Json | None) -> Answer:
        text = (updated or {}).get("plan")
        if not isinstance(text, str) or text == request.payload.get("plan"):
            return Answer("approved", "person")
        try:
            return Answer("approved", "person", word=approval(request, text))
        except UsageError as refused:
            self._told(f"the edited plan is not taken: {refused}")
            return Answer("rejected", "person", f"the plan was edited, and the edit is not taken: {refused}")


def question_of(request: Request, use_id: str) -> Json:
    """The `can_use_tool` that puts a request to the client, in its words. `use_id`: the provider's id of the call."""
    permission = request.kind == "permission"
    tool = str(request.payload["tool"]) if permission else _TOOLS[request.kind]
    given = cast("Json", request.payload["input"]) if permission else request.payload
    form = asked_of(request)
    told = _form(form) if form else to_compatible(tool, given, str(request.payload.get("folder") or ""))
    asked: Json = {
        "subtype": "can_use_tool",
        "tool_name": compatible_name(tool),
        "input": told if request.kind != "plan" else {"plan": request.payload.get("plan", "")},
        "permission_suggestions": list(suggestions_of(offered(request))) if permission else None,
        "blocked_path": None,
        "decision_reason": str(request.payload.get("why") or "") or None,
        "title": request.subject,
        "display_name": compatible_name(tool),
        "description": request.subject,
        "tool_use_id": use_id,
    }
    return asked if request.asked_by == "lead" else {**asked, "agent_id": request.asked_by}


def _answered(updated: Json | None) -> Answer:
    """The answers to a question: each a text, or a list of them."""
    answers = _object((updated or {}).get("answers")) or {}
    words = "; ".join(
        ", ".join(map(str, cast("Sequence[object]", one))) if isinstance(one, list) else str(one)
        for one in answers.values()
    )
    return Answer("answered", "person", words or "(the person gave no answer)")


def _filled_in(asked: Asked, updated: Json | None) -> Answer:
    """A form of an MCP server: one question for each field, by the words that were asked. What does not fit is no."""
    answers = _object((updated or {}).get("answers")) or {}
    fields = fields_of(asked.schema)
    if asked.url or not fields:
        said = next((str(one) for one in answers.values()), "")
        return Answer("answered", "person", said)
    words = {one.name: answers.get(field_words(asked, one), answers.get(one.name)) for one in fields}
    given = {name: said for name, said in words.items() if said not in (None, "")}
    listed = {
        name: ", ".join(map(str, cast("Sequence[object]", one))) if isinstance(one, list) else str(one)
        for name, one in given.items()
    }
    text = json.dumps(listed) if listed else ""
    return Answer("answered", "person", text if isinstance(read(asked, text), AnsweredBack) else "decline")


def field_words(asked: Asked, field: Field) -> str:
    """How a field is asked for."""
    return f"{asked.message} {field.name}{f' ({field.about})' if field.about else ''}"


def _form(asked: Asked) -> Json:
    """The form as the questions that the compatible tool asks."""
    fields = fields_of(asked.schema)
    if asked.url or not fields:
        words = f"{asked.message} {asked.url}".strip()
        return {"questions": [_question(asked, words, ("yes", "decline"), several=False)]}
    return {
        "questions": [
            _question(asked, field_words(asked, one), one.options or _yes_no(one), several=one.kind == "array")
            for one in fields
        ]
    }


def _yes_no(field: Field) -> tuple[str, ...]:
    return ("yes", "no") if field.kind == "boolean" else ()


def _question(asked: Asked, words: str, options: Sequence[str], *, several: bool) -> Json:
    listed = [{"label": one, "description": ""} for one in options]
    return {"question": words, "header": asked.server[:12], "options": listed, "multiSelect": several}


def _no(request: Request, why: str) -> Answer:
    if asked_of(request) is not None:
        return Answer("answered", "person", "decline")
    if request.kind == "question":
        return Answer("answered", "person", f"(the person gave no answer){f': {why}' if why else ''}")
    return Answer("rejected", "person", why)


def _key(text: str) -> tuple[str, str | None]:
    rule = parse_rule(text)
    return rule.tool, rule.specifier


def _object(value: Any) -> Json | None:
    return cast("Json", value) if isinstance(value, dict) else None

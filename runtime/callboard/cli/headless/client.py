"""The client at the other end of the pipe: its lines, requests to it, its answers, and its disconnection at any time.

A line of the client has at most `LONGEST` bytes. Reading does not block the loop.

A question is a `control_request` with a new id; it waits until the client answers, refuses, or is gone. A withdrawn
question is reported to the client (`control_cancel_request`), so that it stops working on it.

`ClientApprover` asks the client about permissions, plans and questions by `can_use_tool`, in place of the user. A call
that the client allows with another input is checked again before it runs. If the client is gone, fails or gives an
unreadable answer, the call is denied. Changes of permissions in an answer (`updatedPermissions`) take effect before the
answer.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Callable, Sequence, Set
from dataclasses import field, replace
from typing import Any, cast

import anyio

from callboard.cli.views.edits import approval
from callboard.core.approvals.plans import PLAN_MODES, AnswerDetails
from callboard.core.approvals.session_rules import AlwaysAllow, offered_rules
from callboard.core.hooks.payloads import compatible_name, from_compatible, to_compatible
from callboard.core.mcp.elicitation import Field, fields_of, question_in, read
from callboard.core.permissions.claude_updates import RuleChange, client_changes, mode_of, suggestions_of
from callboard.core.permissions.rules import parse_rule
from callboard.core.utf8 import storable_json
from callboard.ports.environment import Answer
from callboard.ports.mcp import Servers
from callboard.sessions.hosted import HostedSession
from callboard.types.errors import ToolRefused, UsageError
from callboard.types.lazy_dataclass import dataclass
from callboard.types.mcp import Elicitation, ElicitationAnswer
from callboard.types.records import Json, Request


class ClientGone(Exception):
    """The client has closed its end: there will be no answer."""


class ClientRefused(Exception):
    """The client refused to answer; the message is the client's text."""


@dataclass(slots=True)
class _Asked:
    answered: anyio.Event = field(default_factory=anyio.Event)
    response: Json | None = None
    refused: str = ""


class Client:
    """Requests to the client and their answers. Belongs to one event loop."""

    def __init__(self, emit: Callable[[Json], None]) -> None:
        """Store `emit`, which writes one message to the client and never blocks."""
        self._emit = emit
        self._asked: dict[str, _Asked] = {}
        self._count = 0
        self.gone = False

    async def ask(self, request: Json) -> Json:
        """Return the client's response.

        Raises `ClientGone` and `ClientRefused`. If cancelled, withdraw the question.
        """
        if self.gone:
            raise ClientGone
        self._count += 1
        name = f"callboard_{self._count}"
        question = self._asked[name] = _Asked()
        self._emit({"type": "control_request", "request_id": name, "request": request})
        try:
            await question.answered.wait()
        except anyio.get_cancelled_exc_class():
            # The client may still show the question to a person (test_a_question_that_an_interrupt_ends_is_taken_back).
            self._emit({"type": "control_cancel_request", "request_id": name})
            raise
        finally:
            del self._asked[name]
        if question.refused:
            raise ClientRefused(question.refused)
        if question.response is None:
            raise ClientGone
        return question.response

    def take(self, message: Json) -> None:
        """Handle a `control_response`. A response to a question that is no longer open is ignored."""
        envelope: Any = message.get("response")
        response = cast("Json", envelope) if isinstance(envelope, dict) else {}
        question = self._asked.get(str(response.get("request_id")))
        if question is None:
            return
        if response.get("subtype") == "success":
            payload: Any = response.get("response")
            question.response = cast("Json", payload) if isinstance(payload, dict) else {}
        else:
            question.refused = str(response.get("error") or "it failed, and said nothing")
        question.answered.set()

    def leave(self) -> None:
        """Note that the client's end is closed, and inform all waiting questions."""
        self.gone = True
        for question in self._asked.values():
            question.answered.set()

    def answer(self, request_id: str, response: Json) -> None:
        """Report success of a request of the client."""
        message: Json = {"subtype": "success", "request_id": request_id, "response": response}
        self._emit({"type": "control_response", "response": message})

    def refuse(self, request_id: str, reason: str) -> None:
        """Report failure of a request of the client."""
        message: Json = {"subtype": "error", "request_id": request_id, "error": reason}
        self._emit({"type": "control_response", "response": message})


class PromptTool:
    """An MCP tool that answers permission requests in place of the client (`--permission-prompt-tool`).

    It gets `tool_name`, `input` and `tool_use_id`, and answers with JSON as the client does: `{"behavior": "allow"}` or
    `{"behavior": "deny", "message": ...}`.
    """

    def __init__(self, name: str) -> None:
        """Store the tool's name, `mcp__server__tool`."""
        self._name = name
        self.servers: Servers | None = None

    async def ask(self, request: Json) -> Json:
        """Return the tool's answer. Raises `ClientRefused` if there is none."""
        if self.servers is None:
            raise ClientRefused(f"the session has no MCP servers, and so no tool {self._name}")
        if request["subtype"] != "can_use_tool":
            raise ClientRefused(f"{self._name} answers permission requests only")
        await self.servers.ready()
        try:
            content = await self.servers.call(
                self._name, {name: request[name] for name in ("tool_name", "input", "tool_use_id")}
            )
        except ToolRefused as refused:
            raise ClientRefused(str(refused)) from None
        text = "".join(str(part.get("text") or "") for part in content)
        try:
            answer: object = storable_json(json.loads(text))
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise ClientRefused(f"the answer of {self._name} is not a JSON object")
        return cast("Json", answer)


GONE = "the client that would have answered is gone"
_TOOLS = {"plan": "submit_plan", "question": "ask_person"}


class ClientApprover:
    """Approver that asks the client everything that the user may answer."""

    def __init__(
        self,
        client: Client | PromptTool,
        reporter: Callable[[str], None],
        stop: Callable[[], None],
        *,
        may_bypass: bool = False,
    ) -> None:
        """Create an approver.

        `reporter`: receives each ignored part of an answer. `stop`: ends the turn if an answer says so. `may_bypass`:
        True if an answer may choose the mode `bypassPermissions`.
        """
        self._may_bypass = may_bypass
        self._client = client
        self._told = reporter
        self._stop = stop
        self._session: HostedSession | None = None
        self._attached = anyio.Event()

    def attach(self, session: HostedSession) -> None:
        """Set the open session, whose calls can now be looked up."""
        self._session = session
        if isinstance(self._client, PromptTool):
            self._client.servers = session.servers
        self._attached.set()

    async def answer(self, request: Request) -> Answer | None:
        """See `Approver.answer`."""
        if "person" not in request.may_answer or request.kind == "shutdown":
            return None
        await self._attached.wait()
        call = self._session.call(request.asked_by, str(request.payload.get("call_id"))) if self._session else None
        try:
            form = question_in(request)
            if form is not None and (answer := await self._elicited(form)) is not None:
                return answer
            response = await self._client.ask(question_of(request, call.use_id if call else request.id))
        except ClientGone:
            return _denial(request, GONE)
        except ClientRefused as refused:
            return _denial(request, f"the client could not answer: {refused}")
        if response.get("behavior") == "deny":
            if response.get("interrupt") is True:
                self._stop()  # takes effect after the answer is written
            return _denial(request, str(response.get("message") or ""))
        if response.get("behavior") != "allow":
            return _denial(request, "the client answered neither `allow` nor `deny`")
        return await self._allowed(request, response)

    async def _allowed(self, request: Request, response: Json) -> Answer:
        updated = _object(response.get("updatedInput"))
        if request.kind == "permission":
            return await self._permission(request, updated, response.get("updatedPermissions"))
        if (form := question_in(request)) is not None:
            return _filled_in(form, updated)
        await self._changed(request, response.get("updatedPermissions"))
        if request.kind == "plan":
            return self._plan(request, updated, response.get("updatedPermissions"))
        return _answered(updated)

    async def _elicited(self, form: Elicitation) -> Answer | None:
        """Put a question of an MCP server to a client that knows such questions; None if it does not.

        Raises `ClientGone`.
        """
        question: Json = {"subtype": "elicitation", "mcp_server_name": form.server, "message": form.message}
        question |= {"mode": "url", "url": form.url} if form.url else {"mode": "form", "requested_schema": form.schema}
        try:
            response = await self._client.ask(question)
        except ClientRefused:
            return None
        action = response.get("action")
        if action not in ("accept", "decline", "cancel"):
            return None
        content = _object(response.get("content")) or {}
        text = json.dumps({name: _field_text(value) for name, value in content.items()}) if content else "yes"
        if action == "accept":
            action = text if isinstance(read(form, text), ElicitationAnswer) else "decline"
        return Answer("answered", "person", action)

    async def _permission(self, request: Request, updated: Json | None, permissions: object) -> Answer:
        tool = str(request.payload["tool"])
        tool_input = cast("Json", request.payload["input"])
        folder = str(request.payload.get("folder") or "")
        edited = None
        if updated is not None and updated != to_compatible(tool, tool_input, folder):
            changed_input = from_compatible(tool, tool_input, updated, folder)
            edited = changed_input if changed_input != tool_input else None
        return Answer("approved", "person", always=await self._changed(request, permissions), input=edited)

    async def _changed(self, request: Request, permissions: object) -> AlwaysAllow | None:
        """Apply the changes that the client requests with its answer, and report those without effect.

        Return the class of calls that the answer allows, if the client accepted the suggestion.
        """
        changes = client_changes(permissions)
        for item in changes.ignored:
            self._told(f"updatedPermissions is ignored for {item}")
        session = self._session
        if session is None:
            return None
        rules = {_key(text) for text in offered_rules(request)}
        takes = bool(rules) and rules <= {_key(text) for text in changes.allowed}
        try:
            for change in changes.rules:
                await self._change_rules(session, change, besides=rules if takes else set())
            if changes.mode and request.kind != "plan":
                await session.use_mode(changes.mode, may_bypass=self._may_bypass)
        except UsageError as refused:
            self._told(f"updatedPermissions is ignored: {refused}")
        return AlwaysAllow() if takes else None

    async def _change_rules(
        self, session: HostedSession, change: RuleChange, *, besides: Set[tuple[str, str | None]]
    ) -> None:
        """Add and revoke session rules. `besides`: allow rules that the answer itself adds."""
        texts = {_key(text): text for text in change.rules}
        if change.kind != "add":
            removed = [rule for rule in session.rules.active_rules() if rule.effect == change.effect]
            if change.kind == "remove":
                removed = [rule for rule in removed if _key(rule.rule) in texts]
                for key in texts.keys() - {_key(rule.rule) for rule in removed}:
                    named = f"the removal of {texts[key]} ({change.effect})"
                    self._told(f"updatedPermissions is ignored for {named}: the session has no such rule")
            for rule in removed:
                await session.rules.revoke(rule.id)
        if change.kind != "remove":
            for key, text in texts.items():
                if change.effect != "allow" or key not in besides:
                    await session.rules.add(text, change.effect)

    def _plan(self, request: Request, updated: Json | None, permissions: object) -> Answer:
        text = (updated or {}).get("plan")
        mode = self._mode(permissions)
        if not isinstance(text, str) or text == request.payload.get("plan"):
            return Answer("approved", "person", word=AnswerDetails(mode=mode))
        try:
            return Answer("approved", "person", word=replace(approval(request, text), mode=mode))
        except UsageError as refused:
            self._told(f"the edited plan is not accepted: {refused}")
            return Answer("rejected", "person", f"the plan was edited, and the edit is not accepted: {refused}")

    def _mode(self, permissions: object) -> str:
        """Return the mode for an approved plan; empty: the client named no valid one."""
        chosen = mode_of(permissions)
        if chosen and chosen not in PLAN_MODES:
            self._told(f"updatedPermissions is ignored for the mode {chosen}: {' or '.join(PLAN_MODES)} can be chosen")
        return chosen if chosen in PLAN_MODES else ""


def question_of(request: Request, use_id: str) -> Json:
    """Return the `can_use_tool` that puts a request to the client. `use_id`: the provider's id of the call."""
    permission = request.kind == "permission"
    tool = str(request.payload["tool"]) if permission else _TOOLS[request.kind]
    tool_input = cast("Json", request.payload["input"]) if permission else request.payload
    form = question_in(request)
    client_input = _form(form) if form else to_compatible(tool, tool_input, str(request.payload.get("folder") or ""))
    question: Json = {
        "subtype": "can_use_tool",
        "tool_name": compatible_name(tool),
        "input": client_input if request.kind != "plan" else {"plan": request.payload.get("plan", "")},
        "permission_suggestions": list(suggestions_of(offered_rules(request))) if permission else None,
        "blocked_path": None,
        "decision_reason": str(request.payload.get("why") or "") or None,
        "title": request.subject,
        "display_name": compatible_name(tool),
        "description": request.subject,
        "tool_use_id": use_id,
    }
    return question if request.asked_by == "lead" else {**question, "agent_id": request.asked_by}


def _answered(updated: Json | None) -> Answer:
    """Return the answers to a question: each a text, or a list of texts."""
    answers = _object((updated or {}).get("answers")) or {}
    text = "; ".join(map(_as_text, answers.values()))
    return Answer("answered", "person", text or "(the person gave no answer)")


def _field_text(value: object) -> str:
    """Return the value of a form's field as the text that a person would type."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return _as_text(value)


def _as_text(value: object) -> str:
    """Return a value as text, a list as its items with commas between."""
    return ", ".join(map(str, cast("Sequence[object]", value))) if isinstance(value, list) else str(value)


def _filled_in(form: Elicitation, updated: Json | None) -> Answer:
    """Return the answer to a form of an MCP server: one question for each field, by its text.

    An invalid answer declines the form.
    """
    answers = _object((updated or {}).get("answers")) or {}
    fields = fields_of(form.schema)
    if form.url or not fields:
        reply = next((str(value) for value in answers.values()), "")
        return Answer("answered", "person", reply)
    replies = {field.name: answers.get(field_words(form, field), answers.get(field.name)) for field in fields}
    filled = {name: reply for name, reply in replies.items() if reply not in (None, "")}
    listed = {name: _as_text(value) for name, value in filled.items()}
    text = json.dumps(listed) if listed else ""
    return Answer("answered", "person", text if isinstance(read(form, text), ElicitationAnswer) else "decline")


def field_words(form: Elicitation, field: Field) -> str:
    """Return the question for a field."""
    return f"{form.message} {field.name}{f' ({field.about})' if field.about else ''}"


def _form(form: Elicitation) -> Json:
    """Return the form as questions of the compatible tool."""
    fields = fields_of(form.schema)
    if form.url or not fields:
        text = f"{form.message} {form.url}".strip()
        return {"questions": [_question(form, text, ("yes", "decline"), several=False)]}
    return {
        "questions": [
            _question(form, field_words(form, field), field.options or _yes_no(field), several=field.kind == "array")
            for field in fields
        ]
    }


def _yes_no(field: Field) -> tuple[str, ...]:
    return ("yes", "no") if field.kind == "boolean" else ()


def _question(form: Elicitation, text: str, options: Sequence[str], *, several: bool) -> Json:
    listed = [{"label": option, "description": ""} for option in options]
    return {"question": text, "header": form.server[:12], "options": listed, "multiSelect": several}


def _denial(request: Request, reason: str) -> Answer:
    if question_in(request) is not None:
        return Answer("answered", "person", "decline")
    if request.kind == "question":
        return Answer("answered", "person", f"(the person gave no answer){f': {reason}' if reason else ''}")
    return Answer("rejected", "person", reason)


def _key(text: str) -> tuple[str, str | None]:
    rule = parse_rule(text)
    return rule.tool, rule.specifier


def _object(value: Any) -> Json | None:
    return cast("Json", value) if isinstance(value, dict) else None


LONGEST = 10_000_000
"""Limit of one line in bytes, as allowed by the protocol."""
_PIECE = 1 << 16


async def lines_of(descriptor: int) -> AsyncGenerator[tuple[int, bytes]]:
    """Yield each line with its number from 1, without its end, until the input ends; the last one may lack an end.

    Raises `UsageError` for a line of more than `LONGEST` bytes.
    """
    buffer = bytearray()
    number = 0
    while piece := await _piece(descriptor):
        buffer += piece
        if b"\n" in piece:
            *whole, tail = buffer.split(b"\n")
            buffer = bytearray(tail)
            for line in whole:
                number += 1
                yield number, _fitting(bytes(line), number)
        _fitting(buffer, number + 1)
    if buffer.strip():
        yield number + 1, bytes(buffer)


async def _piece(descriptor: int) -> bytes:
    """Wait for the next input and return it; empty at the end."""
    try:
        await anyio.wait_readable(descriptor)
    except (OSError, ValueError):
        await anyio.lowlevel.checkpoint()  # a file or /dev/null cannot be waited for, but is always readable
    try:
        return os.read(descriptor, _PIECE)
    except OSError:
        return b""  # the terminal is gone: the input has ended


def _fitting(line: bytes | bytearray, number: int) -> bytes:
    if len(line) > LONGEST:
        raise UsageError(f"line {number} of stdin has more than {LONGEST:,} bytes: put long content into a file")
    return line if isinstance(line, bytes) else b""


def message_in(line: bytes, number: int) -> Json | None:
    """Parse a message; None for an empty line. Raises `UsageError`, with the line's number, for an invalid one."""
    if not line.strip():
        return None
    try:
        value: object = storable_json(json.loads(line))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"line {number} of stdin is not JSON: {error}. Each line is one message") from error
    if not isinstance(value, dict) or not isinstance(cast("Json", value).get("type"), str):
        raise UsageError(f"line {number} of stdin is not a message: a JSON object with a `type` is expected")
    return cast("Json", value)

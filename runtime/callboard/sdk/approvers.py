"""Adapter from a program's approver (a function, or an object that answers for a person) to the engine's approver."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from types import NoneType
from typing import Any, Literal, cast

import anyio
import anyio.to_thread
import structlog

from callboard.core.approvals.plans import AnswerDetails
from callboard.core.approvals.requests import ANSWERS
from callboard.core.approvals.session_rules import AlwaysAllow
from callboard.core.mcp.elicitation import question_in
from callboard.core.utf8 import storable
from callboard.ports.environment import Answer, Approver
from callboard.ports.foreign_code import result_of_own_task
from callboard.sdk.errors import UsageError
from callboard.types.records import Request

log = structlog.get_logger("callboard.approvers")

Said = Answer | bool | str | None
"""Answer of a program: True or False to approve or reject, a string to answer a question, an `Answer` for every detail,
or None to leave the answer to others."""
ApproverFunction = Callable[[Request], "Said | Awaitable[Said]"]
_FIELDS: Mapping[str, tuple[type[Any], ...]] = {
    "by": (str,),
    "reason": (str,),
    "word": (AnswerDetails,),
    "always": (AlwaysAllow, NoneType),
    "input": (dict, NoneType),
}
"""Types of the fields of an `Answer`, apart from its status."""
_LONGEST = 80
"""Most characters of a wrong answer that a message shows."""


def answer_of(request: Request, value: object, reason: str = "") -> Answer | None:
    """Convert a program's answer to a request (`Said`) into the engine's form.

    Raises `UsageError` for anything that does not answer this request, for example True or False in reply to a
    question, and a string in reply to any other request.
    """
    if value is None:
        return None
    if isinstance(value, Answer):
        _check(request, value)
        return replace(value, reason=storable(value.reason))
    if request.kind == "question":
        if not isinstance(value, str):
            raise UsageError(f"{request.id} is a question: answer it with a text, not with {_described(value)}")
        return Answer("answered", "person", storable(value))
    if not isinstance(value, bool):
        raise UsageError(f"{request.id} is not a question: answer it with True or False, not with {_described(value)}")
    return Answer("approved" if value else "rejected", "person", storable(reason))


def _check(request: Request, answer: Answer) -> None:
    """Raise `UsageError` for an `Answer` that this kind of request cannot have."""
    statuses = sorted(ANSWERS[request.kind])
    if answer.status not in statuses:
        expected = " or ".join(statuses)
        raise UsageError(f"{request.id} is a {request.kind}: an answer is {expected}, not {_described(answer.status)}")
    for name, types in _FIELDS.items():
        value: object = getattr(answer, name)
        if not isinstance(value, types):
            raise UsageError(f"the answer to {request.id} has a wrong `{name}`: {_described(value)}")


def _described(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def status_of(answer: Answer) -> Literal["approved", "rejected", "answered"]:
    """Return the status that the answer gives its request."""
    return answer.status


class ProgramApprover:
    """Approver that calls a function of the program.

    If the function raises, the session fails with that error. A value that does not answer the request refuses it: no
    one else would be asked, so the agent would wait for the deadline.
    """

    def __init__(self, function: ApproverFunction, *, threaded: bool) -> None:
        """Store the function. `threaded`: run it in a worker thread unless it is async."""
        self._function = function
        self._threaded = threaded and not inspect.iscoroutinefunction(function)

    async def answer(self, request: Request) -> Answer | None:
        """Return the function's answer."""
        if self._threaded:
            made = await anyio.to_thread.run_sync(partial(self._function, request), abandon_on_cancel=True)
        else:
            made = self._function(request)
        value = await result_of_own_task(made) if inspect.isawaitable(made) else made
        try:
            return answer_of(request, value)
        except UsageError as wrong:
            log.warning("the approver did not answer the request", request=request.id, reason=str(wrong))
            return _refusal(request, f"the approver did not answer: {wrong}")


def _refusal(request: Request, reason: str) -> Answer:
    """Return the answer that refuses a request. A question has no such status: the reason is its answer."""
    if question_in(request) is not None:  # a form of an MCP server takes no free text
        return Answer("answered", "person", "decline")
    return Answer("answered" if request.kind == "question" else "rejected", "person", reason)


def approver_of(approver: Approver | ApproverFunction) -> Approver:
    """Return the engine's approver for a function or an approver object. Raises `UsageError` for anything else."""
    if callable(method := getattr(approver, "answer", None)):
        return ProgramApprover(cast("ApproverFunction", method), threaded=False)
    if not callable(approver):
        raise UsageError(f"{approver!r} is not an approver: give a function of the request, or an object with `answer`")
    return ProgramApprover(approver, threaded=True)

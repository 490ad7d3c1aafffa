"""Adapter from a program's approver (a function, or an object that answers for a person) to the engine's approver."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Literal, cast

import anyio
import anyio.to_thread

from callboard.ports.environment import Answer, Approver
from callboard.sdk.errors import UsageError
from callboard.types.records import Request

Said = Answer | bool | str | None
"""Answer of a program: True or False to approve or reject, a string to answer a question, an `Answer` for every detail,
or None to leave the answer to others."""
ApproverFunction = Callable[[Request], "Said | Awaitable[Said]"]


def answer_of(request: Request, said: Said, reason: str = "") -> Answer | None:
    """Convert a program's answer to a request into the engine's form.

    Raises `UsageError` for True or False in reply to a question, and for a string in reply to any other request.
    """
    if said is None or isinstance(said, Answer):
        return said
    if isinstance(said, bool):
        if request.kind == "question":
            raise UsageError(f"{request.id} is a question: answer it with a text")
        return Answer("approved" if said else "rejected", "person", reason)
    if request.kind != "question":
        raise UsageError(f"{request.id} is not a question: answer it with True or False")
    return Answer("answered", "person", said)


def status_of(answer: Answer) -> Literal["approved", "rejected", "answered"]:
    """Return the status that the answer gives its request."""
    return answer.status


class FunctionApprover:
    """Approver that calls a function.

    A function that is not async runs in a worker thread. If it raises, the session fails with that error.
    """

    def __init__(self, function: ApproverFunction) -> None:
        self._function = function

    async def answer(self, request: Request) -> Answer | None:
        """Return the function's answer."""
        if inspect.iscoroutinefunction(self._function):
            value = await cast("Awaitable[Said]", self._function(request))
        else:
            made = await anyio.to_thread.run_sync(partial(self._function, request), abandon_on_cancel=True)
            value = await made if inspect.isawaitable(made) else made
        return answer_of(request, value)


def approver_of(approver: Approver | ApproverFunction) -> Approver:
    """Return the engine's approver for a function or an approver object. Raises `UsageError` for anything else."""
    if callable(getattr(approver, "answer", None)):
        return cast("Approver", approver)
    if not callable(approver):
        raise UsageError(f"{approver!r} is not an approver: give a function of the request, or an object with `answer`")
    return FunctionApprover(approver)

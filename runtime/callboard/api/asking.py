"""Who answers for a person: a function or an object that a program gives, as the engine's approver."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Literal, cast

import anyio
import anyio.to_thread

from callboard.api.errors import UsageError
from callboard.ports.world import Answer, Approver
from callboard.words.values import Request

Said = Answer | bool | str | None
"""An answer: True or False to what is allowed or refused, a text to a question, an `Answer` for all that can be said,
None to leave it to others."""
ApproverFunction = Callable[[Request], "Said | Awaitable[Said]"]


def answer_of(request: Request, said: Said, reason: str = "") -> Answer | None:
    """What was said of a request, as the engine has it. Raises `UsageError` for a yes or no to a question."""
    if said is None or isinstance(said, Answer):
        return said
    if isinstance(said, bool):
        if request.kind == "question":
            raise UsageError(f"{request.id} is a question: answer it with a text")
        return Answer("approved" if said else "rejected", "person", reason)
    if request.kind != "question":
        raise UsageError(f"{request.id} is no question: answer it with True or False")
    return Answer("answered", "person", said)


def status_of(answer: Answer) -> Literal["approved", "rejected", "answered"]:
    """What the answer makes of its request."""
    return answer.status


class FunctionApprover:
    """A function as an approver. One that is not async runs in a worker thread, and one that raises is told as a
    failure of the session."""

    def __init__(self, function: ApproverFunction) -> None:
        self._function = function

    async def answer(self, request: Request) -> Answer | None:
        """What the function says."""
        if inspect.iscoroutinefunction(self._function):
            said = await cast("Awaitable[Said]", self._function(request))
        else:
            made = await anyio.to_thread.run_sync(partial(self._function, request), abandon_on_cancel=True)
            said = await made if inspect.isawaitable(made) else made
        return answer_of(request, said)


def approver_of(given: Approver | ApproverFunction) -> Approver:
    """The engine's approver. Raises `UsageError` for what is neither an approver nor a function."""
    if callable(getattr(given, "answer", None)):
        return cast("Approver", given)
    if not callable(given):
        raise UsageError(f"{given!r} is no approver: give a function of the request, or an object with `answer`")
    return FunctionApprover(given)

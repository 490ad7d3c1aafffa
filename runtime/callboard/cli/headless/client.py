"""The client at the other end of the pipe: requests to it, its answers, and its disconnection at any time.

A question is a `control_request` with a new id; it waits until the client answers, refuses, or is gone. A withdrawn
question is reported to the client (`control_cancel_request`), so that it stops working on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import anyio

from callboard.types.records import Json


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

"""The client at the other end of the pipe: what it is asked, what it answers, and that it may go at any time.

A question is a `control_request` with an id of ours; it waits until the client answers, refuses, or has gone. One that
is taken back is told to the client (`control_cancel_request`), so that it stops working at it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import anyio

from callboard.words.values import Json


class ClientGone(Exception):
    """The client has closed its end: nobody answers any more."""


class ClientRefused(Exception):
    """The client answered that it cannot answer; the text is its own."""


@dataclass(slots=True)
class _Asked:
    answered: anyio.Event = field(default_factory=anyio.Event)
    response: Json | None = None
    refused: str = ""


class Client:
    """Asks, and takes what comes back. Belongs to one event loop."""

    def __init__(self, emit: Callable[[Json], None]) -> None:
        """`emit` writes one message to the client; it never blocks."""
        self._emit = emit
        self._asked: dict[str, _Asked] = {}
        self._count = 0
        self.gone = False

    async def ask(self, request: Json) -> Json:
        """The client's response. Raises `ClientGone` and `ClientRefused`. Cancelled, it takes the question back."""
        if self.gone:
            raise ClientGone
        self._count += 1
        name = f"callboard_{self._count}"
        asked = self._asked[name] = _Asked()
        self._emit({"type": "control_request", "request_id": name, "request": request})
        try:
            await asked.answered.wait()
        except anyio.get_cancelled_exc_class():
            self._emit({"type": "control_cancel_request", "request_id": name})
            raise
        finally:
            del self._asked[name]
        if asked.refused:
            raise ClientRefused(asked.refused)
        if asked.response is None:
            raise ClientGone
        return asked.response

    def take(self, message: Json) -> None:
        """A `control_response`. One to a question that is not open any more says nothing."""
        given: Any = message.get("response")
        response = cast("Json", given) if isinstance(given, dict) else {}
        asked = self._asked.get(str(response.get("request_id")))
        if asked is None:
            return
        if response.get("subtype") == "success":
            said: Any = response.get("response")
            asked.response = cast("Json", said) if isinstance(said, dict) else {}
        else:
            asked.refused = str(response.get("error") or "it failed, and said nothing")
        asked.answered.set()

    def leave(self) -> None:
        """The client's end is closed: whoever waits for it hears so."""
        self.gone = True
        for asked in self._asked.values():
            asked.answered.set()

    def answer(self, request_id: str, response: Json) -> None:
        """What the client asked for is done."""
        told: Json = {"subtype": "success", "request_id": request_id, "response": response}
        self._emit({"type": "control_response", "response": told})

    def refuse(self, request_id: str, why: str) -> None:
        """What the client asked for is not done."""
        told: Json = {"subtype": "error", "request_id": request_id, "error": why}
        self._emit({"type": "control_response", "response": told})

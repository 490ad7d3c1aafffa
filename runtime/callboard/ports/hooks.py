"""The port of hooks that are no Python callables: commands now, other kinds behind the same two members later."""

from __future__ import annotations

from typing import Protocol

from callboard.words.hooks import HandlerResult
from callboard.words.values import Json


class HookHandler(Protocol):
    """One handler that speaks JSON in the compatible form (docs/hooks.md, "Commands")."""

    @property
    def name(self) -> str:
        """One line for people: what it runs."""
        ...

    @property
    def timeout(self) -> float | None:
        """Seconds that its file gives it; None: the registry's."""
        ...

    async def run(self, event_json: Json, timeout: float) -> HandlerResult:
        """Tell it the event and return what it answers, within `timeout` seconds; never changes `event_json`.

        A crash, a time-out and an answer that is none are `HandlerResult.fault`. Cancelled: nothing of it goes on.
        Raises nothing; if it does all the same, that counts as its fault.
        """
        ...

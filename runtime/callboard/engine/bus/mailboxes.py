"""How much waits in each mailbox of a session, counted while it is hosted: what back-pressure looks at.

A mailbox is full when `limit` envelopes wait in it: sent, and not yet in their recipient's conversation. A tool that
would send to a full one is refused (`callboard.adapters.tools.team`); what a person and the runtime send always passes
and counts as well. What is about to be committed counts already, so that calls at the same moment cannot pass together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from callboard.core.names import MAILBOXES
from callboard.core.state import AgentState
from callboard.ports.store import Append, Write
from callboard.ports.tool import MailLoad

LIMIT = 1_000
"""Envelopes. Far more than an agent reads with profit in one message, far fewer than fill a window at once."""


class Mailboxes:
    """The counts. Mailboxes are named by their streams (`callboard.core.names.mailbox`)."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self._last: dict[str, int] = {}
        """The newest number in each mailbox, as far as this process has sent or looked."""
        self._owners: dict[str, Callable[[], AgentState]] = {}
        self._coming: Counter[str] = Counter()

    def join(self, stream: str, owner: Callable[[], AgentState]) -> None:
        """Its owner's state tells from now on what was received and read."""
        self._owners[stream] = owner

    def sent(self, stream: str, number: int) -> None:
        """An envelope stands in it under this number."""
        self._last[stream] = max(number, self._last.get(stream, 0))

    def load(self, stream: str) -> MailLoad:
        """What waits in it now."""
        owner = self._owners.get(stream)
        state = owner() if owner is not None else AgentState()
        unheard = max(0, self._last.get(stream, 0) - state.position)
        since = state.mail[0].sent_at if state.mail else None
        return MailLoad(unheard + len(state.mail) + self._coming[stream], self.limit, since)

    @contextmanager
    def coming(self, writes: Sequence[Write]) -> Generator[None]:
        """What these writes send counts from here on, also while their commit is under way."""
        streams = [one.stream for one in writes if isinstance(one, Append) and one.stream.startswith(MAILBOXES)]
        self._coming.update(streams)
        try:
            yield
        finally:
            self._coming.subtract(streams)

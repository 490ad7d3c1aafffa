"""Limits of the mailboxes: how many unread envelopes each may hold, and how many of them from one sender.

A mailbox is full when it holds `limit` envelopes that were sent, but are not yet in the recipient's conversation. A
tool that would send to a full mailbox is refused (`adapters/tools/team.py`), and so is an agent with `MOST_UNREAD`
unread messages in the mailbox: it cannot send faster than its messages are read. Envelopes of the user and of the
runtime count as well, but are always accepted. Envelopes about to be committed already count, so that simultaneous
calls cannot exceed a limit together. The sending rate of an agent is limited elsewhere (`core/messaging/floods.py`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from callboard.core.agent.state import AgentState
from callboard.core.keys import MAILBOXES
from callboard.ports.store import Append, Write
from callboard.ports.tool import MailboxLoad
from callboard.types.records import Envelope

UNCONFIGURED_LIMIT = 1_000
"""Most envelopes in a mailbox of a session without settings; sessions pass `team.mailbox` (`types/settings.py`). Far
more than an agent can use in one message, far fewer than would fill a window."""
MOST_UNREAD = 20
"""Most unread envelopes of one sender in one mailbox."""


class Mailboxes:
    """Counters of mailboxes, by the names of their streams (`callboard.core.keys.mailbox`)."""

    def __init__(self, limit: int = UNCONFIGURED_LIMIT) -> None:
        self.limit = limit
        self._last: dict[str, int] = {}
        """Newest number in each mailbox that this process has sent or read."""
        self._owners: dict[str, Callable[[], AgentState]] = {}
        self._left: set[str] = set()
        """Mailboxes of ended lives, whose mail is dead letters."""
        self._coming: Counter[str] = Counter()
        self._coming_of: Counter[tuple[str, str]] = Counter()
        """Envelopes about to be committed, by mailbox and sender."""
        self._unheard: dict[str, deque[tuple[int, str]]] = {}
        """Number and sender of envelopes from this process that may not have been received yet."""

    def join(self, stream: str, owner: Callable[[], AgentState]) -> None:
        """From now on read the received and delivered envelopes of a mailbox from its owner's state."""
        self._owners[stream] = owner

    def leave(self, stream: str) -> None:
        """Count nothing in the mailbox of an ended life any more, and free what is known of it."""
        self._owners.pop(stream, None)
        self._last.pop(stream, None)
        self._unheard.pop(stream, None)
        self._left.add(stream)

    def note_sent(self, stream: str, number: int, sender: str = "") -> None:
        """Note that an envelope of this sender has this number in the mailbox."""
        if number <= self._last.get(stream, 0) or stream in self._left:
            return
        self._last[stream] = number
        if sender:
            self._unheard.setdefault(stream, deque()).append((number, sender))

    def load(self, stream: str, sender: str = "") -> MailboxLoad:
        """Return the unread envelopes of a mailbox, and the number of those from `sender`."""
        owner = self._owners.get(stream)
        state = owner() if owner is not None else AgentState()
        unheard = max(0, self._last.get(stream, 0) - state.inbox.position)
        since = state.inbox.mail[0].sent_at if state.inbox.mail else None
        waiting = unheard + len(state.inbox.mail) + self._coming[stream]
        if not sender:
            return MailboxLoad(waiting, self.limit, since)
        return MailboxLoad(waiting, self.limit, since, self._unread_count(stream, sender, state), MOST_UNREAD)

    def _unread_count(self, stream: str, sender: str, state: AgentState) -> int:
        """Return the number of unread envelopes of one sender."""
        unheard = self._unheard.get(stream, deque())
        while unheard and unheard[0][0] <= state.inbox.position:
            unheard.popleft()
        sent = sum(1 for _, name in unheard if name == sender) + self._coming_of[stream, sender]
        return sent + sum(1 for envelope in state.inbox.mail if envelope.sender == sender)

    @contextmanager
    def count_coming(self, writes: Sequence[Write]) -> Generator[None]:
        """Count the envelopes of these writes from now on, including while their commit is in progress."""
        mail = [write for write in writes if isinstance(write, Append) and write.stream.startswith(MAILBOXES)]
        streams = [append.stream for append in mail]
        senders = [(append.stream, Envelope.model_validate_json(append.record).sender) for append in mail]
        self._coming.update(streams)
        self._coming_of.update(senders)
        try:
            yield
        finally:
            self._coming.subtract(streams)
            self._coming_of.subtract(senders)

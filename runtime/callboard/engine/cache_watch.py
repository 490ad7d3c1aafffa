"""Watches what the prompt cache finds of one agent's calls, and says what changed when it finds next to nothing.

What is counted stands in the journal (`AgentState.health`); what was sent last is kept by reference, for the life of
this process, and looked at only when a streak of misses is to be told. A resume begins with the view that it found.
"""

from __future__ import annotations

from dataclasses import dataclass

from callboard.core.apply_calls import health_after
from callboard.core.context.health import Sent, thrashes, what_changed
from callboard.core.state import AgentState
from callboard.words import events as ev


@dataclass(slots=True)
class CacheNews:
    """What all agents of a process share: a service without a cache is told of once."""

    silence_told: bool = False


class CacheWatch:
    """One agent's."""

    def __init__(self, news: CacheNews) -> None:
        self._news = news
        self._answered: Sent | None = None
        """The newest call that was answered."""
        self._asked: Sent | None = None
        """The call under way."""

    def resumes(self, sent: Sent) -> None:
        """The view, and the prompt, that a resume found."""
        self._answered = sent

    def asks(self, sent: Sent) -> None:
        """A call goes out. A second one before an answer takes its place."""
        self._asked = sent

    def replied(self, state: AgentState, reply: ev.ModelReplied) -> ev.CacheThrash | None:
        """What is to be recorded with this reply. `state`: before it."""
        before, self._answered = self._answered, self._asked
        health = health_after(state, reply)
        if not thrashes(health):
            return None
        if not health.reported and self._news.silence_told:
            return None
        self._news.silence_told = self._news.silence_told or not health.reported
        changed = what_changed(before, self._asked, health) if before and self._asked else "not known after a resume"
        return ev.CacheThrash(at=reply.at, calls=health.misses, changed=changed)

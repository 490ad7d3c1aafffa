"""Watches what the prompt cache finds of one agent's calls, and says what changed when it finds next to nothing.

What is counted stands in the journal (`AgentState.health`); what was sent last is kept by reference, for the life of
this process, and looked at only when a streak of misses is to be told. A resume begins with the view that it found.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from callboard.core.apply_calls import health_after
from callboard.core.context.cache.health import Sent, thrashes, what_changed
from callboard.core.context.prompt import shared_part
from callboard.core.context.view.tokens import estimate_json
from callboard.core.state import AgentState
from callboard.engine.governor import Prefix
from callboard.ports.model import ModelRequest
from callboard.words import events as ev
from callboard.words.specs import ModelLimits


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
        self._prefixed: tuple[str, bytes, bytes] = ("", b"", b"")
        """Model, system and tools of the request whose prefix this is."""
        self._prefix: Prefix | None = None

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

    def prefix(self, request: ModelRequest, limits: ModelLimits) -> Prefix | None:
        """What this request shares with those of other agents, up to the mark at its end; None where the service does
        not cache so little. Looked at again only when the prompt or the model is another."""
        asked = (request.model, request.system, request.tools)
        if self._prefixed == asked:
            return self._prefix
        shared = shared_part(request.system)
        digest = hashlib.sha256(b"\0".join((request.model.encode(), request.tools, shared)))
        large = estimate_json(request.tools) + estimate_json(shared) >= limits.cache_minimum
        self._prefixed = asked
        self._prefix = Prefix(digest.hexdigest(), limits.cache_ttl) if shared and large else None
        return self._prefix

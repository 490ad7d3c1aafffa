"""Monitor of the prompt cache for one agent's calls. It reports the cause when the cache finds almost nothing.

The counts are in the journal (`AgentState.costs`). This process keeps a reference to the last request, and examines it
only to report a series of misses. A resume begins with the loaded view.
"""

from __future__ import annotations

import hashlib

from callboard.core.agent.apply_model import health_after
from callboard.core.agent.state import AgentState
from callboard.core.context.cache.health import Sent, may_thrash, thrashes, what_changed
from callboard.core.context.system_prompt import shared_part
from callboard.core.context.view.tokens import estimate_json
from callboard.engine.rate_limits.prefix_leader import SharedPrefix
from callboard.ports.model import ModelRequest
from callboard.types import events as ev
from callboard.types.agent_spec import AgentSpec
from callboard.types.lazy_dataclass import dataclass


@dataclass(slots=True)
class CacheNews:
    """State shared by all agents of a process: a service without a cache is reported once."""

    silence_told: bool = False


class CacheWatch:
    """Cache monitor of one agent."""

    def __init__(self, news: CacheNews) -> None:
        self._news = news
        self._answered: Sent | None = None
        """Newest call with a reply."""
        self._asked: Sent | None = None
        """Call in progress."""
        self._prefixed: tuple[str, bytes, bytes] = ("", b"", b"")
        """Model, system and tools of the request whose prefix this is."""
        self._prefix: SharedPrefix | None = None

    def resumes(self, sent: Sent) -> None:
        """Store the view and the prompt that a resume loaded."""
        self._answered = sent

    def asks(self, sent: Sent) -> None:
        """Note a call that is sent. A second one before a reply replaces it."""
        self._asked = sent

    def thrash_event(self, state: AgentState, reply: ev.ModelReplied) -> ev.CacheThrash | None:
        """Return the event to record with this reply, or None. `state`: before the reply."""
        before, self._answered = self._answered, self._asked
        if not may_thrash(state.costs.health):
            return None
        health = health_after(state, reply)
        if not thrashes(health):
            return None
        if not health.reported and self._news.silence_told:
            return None
        self._news.silence_told = self._news.silence_told or not health.reported
        changed = what_changed(before, self._asked, health) if before and self._asked else "not known after a resume"
        return ev.CacheThrash(at=reply.at, calls=health.misses, changed=changed)

    def prefix(self, request: ModelRequest, spec: AgentSpec) -> SharedPrefix | None:
        """Return the prefix up to the cache mark that this request shares with requests of other agents.

        None if it is too short for the cache. Computed again only when the prompt or the model changes.
        """
        parts = (request.model, request.shared_system, request.tools)
        if self._prefixed == parts:
            return self._prefix
        limits = spec.limits_of(request.model)
        shared = shared_part(request.shared_system)
        digest = hashlib.sha256(b"\0".join((request.model.encode(), request.tools, shared)))
        large = estimate_json(request.tools) + estimate_json(shared) >= limits.cache_minimum
        self._prefixed = parts
        self._prefix = SharedPrefix(digest.hexdigest(), limits.cache_ttl) if shared and large else None
        return self._prefix

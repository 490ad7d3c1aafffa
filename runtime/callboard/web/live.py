"""Replies on the page while they stream: one connection to a host for each agent that somebody looks at.

All pages on an agent share its connection, so that a host has one reader however many pages are open. Each page keeps
its own position and gets the new characters only. The journal decides when a reply is shown, and replaces it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from anyio.abc import TaskGroup, TaskStatus

from callboard.core.keys import host_lease
from callboard.core.live.following import LiveText
from callboard.core.live.frames import LiveFrame, LiveRequest
from callboard.ports.notifier import Notifier
from callboard.ports.store import LeaseHolder, Store
from callboard.sessions.live.follower import read_live


class LiveFeed:
    """Text of one life of an agent, for all pages on it."""

    def __init__(self, agent: str, life: int) -> None:
        self.text = LiveText()
        self.readers: set[Callable[[], None]] = set()
        """Functions that are called after each piece."""
        self.retry = Notifier()
        """Notified when the host may offer a stream now."""
        self.scope = anyio.CancelScope()
        self._agent = agent
        self._life = life

    async def run(self, store: Store, folder: Path, session: str) -> None:
        """Follow each host of the session until cancelled."""
        refused: LeaseHolder | None = None
        with self.scope:
            while True:
                seen = self.retry.changes
                host = await store.holder(host_lease(session))
                if host is not None and host != refused:
                    request = LiveRequest(frozenset({self._agent}))
                    retry = await read_live(folder, session, host, request, take=self._take)
                    refused = None if retry else host
                    self.text.clear()
                    self._notify()
                await self.retry.changed(seen)

    def _take(self, frame: LiveFrame) -> None:
        if frame.reply.life == self._life:
            self.text.take(frame)
            self._notify()

    def _notify(self) -> None:
        for notify in self.readers:
            notify()


class LiveFeeds:
    """Feeds of all agents that somebody looks at. Without `run`, pages show whole replies."""

    def __init__(self, store: Store, folder: Path) -> None:
        """`folder`: that of the sockets of the workspace."""
        self._store = store
        self._folder = folder
        self._feeds: dict[tuple[str, str, int], LiveFeed] = {}
        self._group: TaskGroup | None = None

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Follow hosts for pages until cancelled."""
        async with anyio.create_task_group() as group:
            self._group = group
            task_status.started()
            await anyio.sleep_forever()

    @asynccontextmanager
    async def follow_agent(
        self, session: str, agent: str, life: int, *, notify: Callable[[], None]
    ) -> AsyncGenerator[LiveFeed]:
        """Follow an agent while the block runs. `notify` is called after each piece."""
        key = (session, agent, life)
        feed = self._feeds.get(key)
        if feed is None:
            feed = self._feeds[key] = LiveFeed(agent, life)
            if self._group is not None:
                self._group.start_soon(feed.run, self._store, self._folder, session)
        feed.readers.add(notify)
        try:
            yield feed
        finally:
            feed.readers.discard(notify)
            if not feed.readers:
                del self._feeds[key]
                feed.scope.cancel()

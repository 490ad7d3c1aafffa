"""Hooks that a workspace brings: before each run, the scripts that were trusted with them are looked at again.

A person trusted a content. A script that was written since is not that content, whoever wrote it, and is not run; the
next session asks about it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import anyio.to_thread

from callboard.adapters.trust import scripts_as_trusted
from callboard.core.trust.claims import Brought
from callboard.ports.hooks import HookHandler
from callboard.words.hooks import HandlerResult
from callboard.words.values import Json


@dataclass(frozen=True, slots=True)
class TrustedHandler:
    """A `HookHandler` of the workspace. Equal ones are the same hook, whichever file they come from."""

    handler: HookHandler
    brought: Brought = field(compare=False, repr=False)

    @property
    def name(self) -> str:
        """See `HookHandler.name`."""
        return self.handler.name

    @property
    def timeout(self) -> float | None:
        """See `HookHandler.timeout`."""
        return self.handler.timeout

    async def run(self, event_json: Json, timeout: float) -> HandlerResult:
        """Run it if its scripts are what was trusted; else that is its fault. See `HookHandler.run`."""
        why = await anyio.to_thread.run_sync(scripts_as_trusted, self.brought)
        if why:
            return HandlerResult(fault=f"{why}: it was not run; `callboard trust` decides on it anew")
        return await self.handler.run(event_json, timeout)

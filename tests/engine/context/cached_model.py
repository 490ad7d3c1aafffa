"""A scripted model with the emulator's prompt cache before it: usage says what the service would bill."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import cast

from callboard.adapters.models.rehearsal.api import ModelSpec
from callboard.adapters.models.rehearsal.tokens import PromptCache, survey
from callboard.ports.model import ModelRequest, OnDelta, Reply
from callboard.testing import Played, ScriptedModel
from callboard.types.records import Json, Usage


def body_of(request: ModelRequest) -> Json:
    """The request as the API gets it."""
    return {
        "model": request.model,
        "system": json.loads(request.system),
        "tools": json.loads(request.tools),
        "messages": json.loads(b"[" + b",".join(request.messages) + b"]"),
    }


class CachedModel(ScriptedModel):
    """`reports` False: a service that says nothing of a cache."""

    def __init__(
        self,
        script: Mapping[str, Sequence[Played]],
        delay: float = 0,
        *,
        reports: bool = True,
        cache: PromptCache | None = None,
    ) -> None:
        super().__init__(script, delay=delay)
        self._reports = reports
        self.cache = cache or PromptCache()
        self.usages: list[tuple[str, Usage]] = []
        self.clock = 0.0
        """Seconds by which the cache counts; a test may move it."""

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        prefixes = survey(cast("dict[str, object]", body_of(request)))
        plan = self.cache.plan(prefixes, ModelSpec("scripted", min_cache=1_024), self.clock)
        reply = await super().complete(request, on_delta)
        self.cache.began(plan, self.clock)
        known = plan.usage
        usage = Usage(
            input_tokens=known.uncached,
            cache_creation_input_tokens=known.written_5m + known.written_1h,
            cache_read_input_tokens=known.read,
            output_tokens=5,
        )
        if not self._reports:
            usage = Usage(input_tokens=known.total, output_tokens=5)
        self.usages.append((request.agent, usage))
        return Reply(reply.blocks, reply.stop_reason, usage, reply.model)

"""A rehearsal in bad weather: calls of the model fail, the process is killed at its commits and begins again from what
its store holds. All of it is drawn from one seed, so that the same seed is the same run."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import cast

from callboard.adapters.memory import Crashed, MemoryStore
from callboard.ports.model import CallFault, ModelRequest, OnDelta, Reply
from callboard.testing.records import Recorded, read_record
from callboard.testing.rehearsing import Rehearsal, RehearsedSession
from callboard.testing.scripts import ScriptedModel
from callboard.testing.world import SteadyClock
from callboard.words.values import Fault, FaultKind

KINDS: tuple[FaultKind, ...] = ("overloaded", "server", "connection", "silence", "rate_limited", "bad_reply")
"""What befalls a call: all that goes away by trying again."""
IN_A_ROW = 2
"""Faults of one call, at most: each run comes to its end."""
SPAN = 30
"""Commits after which a kill has come at the latest; a small run of a team makes about a hundred."""


@dataclass(frozen=True, slots=True)
class Survived:
    """A run with what befell it."""

    record: Recorded
    kills: int
    """How often its process was killed."""
    faults: int
    """Calls of the model that failed."""
    text: str
    """The lead's last words."""


class _Stormy(ScriptedModel):
    """Another model, whose calls fail now and then. What is said of a call does not depend on its faults."""

    def __init__(self, inner: ScriptedModel, seed: int, share: float) -> None:
        super().__init__({})
        self._inner, self._seed, self._share = inner, seed, share
        self.requests = inner.requests
        self._tried: dict[tuple[str, int, str], int] = {}
        self.faults = 0

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        key = (request.agent, request.ordinal, request.purpose)
        tried = self._tried[key] = self._tried.get(key, 0) + 1
        draw = random.Random(f"{self._seed}/{key}/{tried}")  # noqa: S311  # reproducible, not secret
        if tried <= IN_A_ROW and draw.random() < self._share:
            self.faults += 1
            raise CallFault(Fault(kind=draw.choice(KINDS), message="of the rehearsal"))
        return await self._inner.complete(request, on_delta)


async def survive(
    team: Rehearsal, prompt: str, *, seed: int, kills: int = 2, faults: float = 0.2, session: str = "rehearsal"
) -> Survived:
    """Say this to the lead of a new session, and bring it to its end through faults and kills.

    `kills`: how often the process dies, before or after a commit, and a new one takes the session up from its store.
    `faults`: the share of calls of the model that fail, from 0 to 1. Run it on a virtual clock (`run_virtual`): it
    waits as long as the runtime does.
    """
    draw = random.Random(seed)  # noqa: S311  # reproducible, not secret
    inner = team.model if isinstance(team.model, ScriptedModel) else ScriptedModel(team.model)
    model = _Stormy(inner, seed, faults)
    store, clock, killed = MemoryStore(), SteadyClock(team.start), 0
    while True:
        store = store.reopen(
            crash_after=draw.randint(2, SPAN) if killed < kills else None,
            crash_point=draw.choice(("before", "after")),
        )
        world = team.world(store)
        world.model, world.clock = model, clock
        begun = await _has_begun(store, session)
        try:
            async with world.session(session, resume=begun) as hosted:
                here = RehearsedSession(hosted.world, hosted.team, session)
                result = await here.run(prompt)
                record = await read_record(store, session)
                return Survived(record, killed, model.faults, result.text)
        except BaseException as ended:
            if not _is_kill(ended):
                raise
            killed += 1


async def _has_begun(store: MemoryStore, session: str) -> bool:
    return await store.get(f"s/{session}") is not None


def _is_kill(ended: BaseException) -> bool:
    """Nothing but the store's death ended the process."""
    if isinstance(ended, BaseExceptionGroup):
        return all(map(_is_kill, cast("BaseExceptionGroup[BaseException]", ended).exceptions))
    return isinstance(ended, Crashed)

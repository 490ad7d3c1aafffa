"""A rehearsal with injected faults: model calls fail, and the process is killed at its commits and started again from
its store. One seed determines everything, so that the same seed gives the same run."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import cast

from callboard.adapters.storage.memory import Crashed, MemoryStore
from callboard.ports.model import CallFault, ModelRequest, OnDelta, Reply
from callboard.testing.records import Recorded, read_record
from callboard.testing.rehearsing import Rehearsal, RehearsedSession
from callboard.testing.scripts import ScriptedModel
from callboard.testing.world import SteadyClock
from callboard.types.records import Fault, FaultKind

KINDS: tuple[FaultKind, ...] = ("overloaded", "server", "connection", "silence", "rate_limited", "bad_reply")
"""Kinds of injected faults: those that pass when the call is repeated."""
IN_A_ROW = 2
"""Most faults of one call, so that each run comes to its end."""
SPAN = 30
"""Most commits before a kill; a small run of a team makes about a hundred."""


@dataclass(frozen=True, slots=True)
class Survived:
    """A run with its kills and faults."""

    record: Recorded
    kills: int
    """Number of times that the run's process was killed."""
    faults: int
    """Number of model calls that failed."""
    text: str
    """The lead's final text."""


class _Stormy(ScriptedModel):
    """Model whose calls fail at random. The replies do not depend on the faults."""

    def __init__(self, inner: ScriptedModel, seed: int, share: float) -> None:
        super().__init__({})
        self._inner = inner
        self._seed = seed
        self._share = share
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
    """Send a prompt to the lead of a new session and run it to its end through faults and kills.

    `kills`: number of times that the process dies, before or after a commit, and a new one takes over the session from
    its store. `faults`: share of model calls that fail, from 0 to 1. Run it on a virtual clock (`run_virtual`): it
    waits as long as the runtime does.
    """
    draw = random.Random(seed)  # noqa: S311  # reproducible, not secret
    inner = team.model if isinstance(team.model, ScriptedModel) else ScriptedModel(team.model)
    model = _Stormy(inner, seed, faults)
    store = MemoryStore()
    clock = SteadyClock(team.start)
    killed = 0
    while True:
        store = store.reopen(
            crash_after=draw.randint(2, SPAN) if killed < kills else None,
            crash_point=draw.choice(("before", "after")),
        )
        world = team.world(store)
        world.model = model
        world.clock = clock
        begun = await _has_begun(store, session)
        try:
            async with world.session(session, resume=begun) as hosted:
                rehearsed = RehearsedSession(hosted.world, hosted.team, session)
                result = await rehearsed.run(prompt)
                record = await read_record(store, session)
                return Survived(record, killed, model.faults, result.text)
        except BaseException as ended:
            if not _is_kill(ended):
                raise
            killed += 1


async def _has_begun(store: MemoryStore, session: str) -> bool:
    return await store.get(f"s/{session}") is not None


def _is_kill(ended: BaseException) -> bool:
    """Return True if only the end of the store ended the process."""
    if isinstance(ended, BaseExceptionGroup):
        return all(map(_is_kill, cast("BaseExceptionGroup[BaseException]", ended).exceptions))
    return isinstance(ended, Crashed)

"""A team of six under everything that may befall it, drawn from one seed: the deterministic simulation of the team.

Its processes are killed at any commit, dropped or frozen, and taken up again; commits take their time, so that senders
overtake each other; envelopes are sent again from elsewhere; listeners dawdle; plans are rejected, revised and left
unanswered; mates are shut down, refuse that or do not let go in time, crash and come again; tasks are taken from who
works on them; worktrees are made, merged and removed. What must hold is `team_of_six_promises`, `team_of_six_board` and
`team_of_six_ends`. One seed is one run.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import ClassVar

import anyio
from tests.simulation.chaos import ChaosWorld, Draw, Fate, Run
from tests.simulation.chaos_service import Service
from tests.simulation.chaos_store import Inner, Looks, Unkind, Wrong
from tests.simulation.evidence import Evidence
from tests.simulation.team_of_six_board import Board
from tests.simulation.team_of_six_ends import broken_at_the_end
from tests.simulation.team_of_six_outside import SixMoody, SixOutside, SixWorktrees
from tests.simulation.team_of_six_promises import Post, broken_in_team
from tests.simulation.team_of_six_replies import MATES, six_say

from callboard.ports.store import Append, Fence, Lease, Record, Records, Write
from callboard.types.records import Json

_WRONG: tuple[Wrong, ...] = ("killed_before", "killed_after", "dropped", "killed_before", "killed_after", "full")
AGAIN = 0.15
"""The share of commits after which an envelope is sent once more."""
COMMIT_DELAYS = (*12 * (0.0,), 0.05, 0.4, 3.0)
READ_DELAYS = (*6 * (0.0,), 0.3, 5.0)


@dataclass
class SixRun(Run):
    """One run of one seed."""

    names: ClassVar[tuple[str, ...]] = MATES
    settles: ClassVar[float] = 10.0
    outside: SixOutside = field(default_factory=lambda: SixOutside(slow=5.0))
    board: Board = field(default_factory=Board)
    post: Post = field(default_factory=Post)
    quiet_at: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.moody = SixMoody(self.seed, self.clock)
        self.sqlite, self.hooked = False, self.seed % 4 == 0

    def served(self) -> Service:
        return Service(self.seed, six_say, faults_of=0.08)

    def fates(self, *, shared: bool) -> list[Fate]:
        """More processes die, later than in a chaos: a team of six writes more."""
        draw, found = Draw(f"{self.seed}/six/fates"), list[Fate]()
        kinds: tuple[Wrong, ...] = (*_WRONG, "frozen") if shared else _WRONG
        for number in range(draw.randint(0, 3)):
            first, streak = draw.randint(30, 900), draw.choice((1, 1, 1, 5))
            bugs = frozenset(range(first, first + streak)) if draw.random() < 0.4 else frozenset[int]()
            at = draw.randint(2, 400 if number == 0 else 150)
            found.append(Fate(draw.choice(kinds), at, draw.choice((0.5, 40, 4_000)), bugs))
        return found

    def store(self, inner: Inner, number: int, fate: Fate) -> Unkind:
        store = Restless(inner, self.looks, fate.wrong, fate.at, fate.thaw)
        store.draw = Draw(f"{self.seed}/six/store/{number}")
        store.post, store.board, store.trees = self.post, self.board, self.outside.trees
        return store

    def spec(self) -> Json:
        draw = Draw(f"{self.seed}/six/spec")
        return {
            "fallback_models": ("two",),
            "plan_approver": draw.choice(("person", "either", "either", "lead")),
            "plan_deadline": draw.choice((60.0, 1_800.0, 1_800.0)),
        }

    def _world(self, inner: Inner, number: int, fate: Fate, lease: Lease | None) -> ChaosWorld:
        """A process that begins finishes or takes back what one that died had under way outside."""
        self.outside.trees.tidied()
        world = super()._world(inner, number, fate, lease)
        world.judge.ask.add("remove_worktree")  # as the real judge does for work that would be lost
        return world

    async def look(self, inner: Inner) -> None:
        """Looked at after each death in every third run: reading everything back takes a tenth of a run."""
        if self.seed % 3 == 0:
            await super().look(inner)

    def judged(self, evidence: Evidence) -> list[str]:
        self.quiet_at = self.clock.now()
        found = super().judged(evidence) + broken_in_team(evidence, self.post, self.outside, self.quiet_at)
        return found + self.board.faults + broken_at_the_end(evidence, self.outside.trees, frozen=self.seen.frozen)


class Restless(Unkind):
    """A store on which others are at work too: slow at times, and what was sent is sent again."""

    def __init__(self, inner: Inner, looks: Looks, wrong: Wrong = "", at: int = 0, thaw: float = 0.0) -> None:
        super().__init__(inner, looks, wrong, at, thaw)
        self.draw, self.post, self.board, self.trees = Draw(0), Post(), Board(), SixWorktrees(0)

    async def commit(self, *writes: Write, fence: Fence | None = None) -> tuple[int, ...]:
        if delay := self.draw.choice(COMMIT_DELAYS):
            await anyio.sleep(delay)
        numbers = await super().commit(*writes, fence=fence)
        if self.post.letters and self.draw.random() < AGAIN:  # its sender had not heard that it was written
            self.post.again += 1
            await self.inner.commit(self.draw.choice(self.post.letters))
        return numbers

    def landed(self, writes: Sequence[Write], numbers: Sequence[int], fence: Fence | None) -> None:
        super().landed(writes, numbers, fence)
        self.board.take(writes)
        for write, number in zip(writes, numbers, strict=True):
            if isinstance(write, Append) and write.stream.startswith("m/"):
                self.post.take(write, number)

    def _die(self) -> None:
        self.trees.deaths += 1
        super()._die()

    @asynccontextmanager
    async def follow(self, stream: str, after: int = 0) -> AsyncGenerator[Records]:
        async with self.inner.follow(stream, after) as records:
            yield _Dawdling(records, self.draw)


class _Dawdling(AsyncIterator[Record]):
    """Records, each later than it could be, and together with the next ones or alone."""

    def __init__(self, records: Records, draw: Draw) -> None:
        self._records, self._draw = records, draw

    async def __anext__(self) -> Record:
        record = await anext(self._records)
        if delay := self._draw.choice(READ_DELAYS):
            await anyio.sleep(delay)
        return record

    def at_hand(self) -> Sequence[Record]:
        return self._records.at_hand() if self._draw.random() < 0.7 else ()


def overtaken(evidence: Evidence) -> int:
    """How often an envelope stands in a mailbox behind one of another sender that was begun later."""
    return sum(
        one.sent_at < max((other.sent_at for other in life.mail[:place] if other.sender != one.sender), default=0.0)
        for life in evidence.lives
        for place, one in enumerate(life.mail)
    )

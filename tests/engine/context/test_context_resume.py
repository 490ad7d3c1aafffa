"""A resume renders the same bytes: an agent that is dropped and taken up again asks what one asks that lived on.

Twice the same session, under each preset: in one life, and dropped in the middle of model calls and recalled, from
its journal alone or from a snapshot and what came after it. Each request must be the same, byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import anyio
import pytest
from tests.engine.agent.test_one_agent import Echo, tools

from callboard.core.agent.apply import fold
from callboard.core.agent.snapshot import dump
from callboard.core.agent.state import AgentState
from callboard.core.context.cache.breakpoints import marks, with_marks
from callboard.core.context.pipeline import PRESETS
from callboard.core.keys import journal, snapshot_key
from callboard.engine.commands import send_prompt
from callboard.engine.recall import events_of, recall
from callboard.ports.model import ModelRequest, OnDelta, Reply
from callboard.ports.store import Delete, Put
from callboard.ports.tool import Tool
from callboard.testing import HostedSession, Played, ScriptedModel, World, say, use
from callboard.testing.world import VirtualLoop
from callboard.types.events import ContextEdited
from callboard.types.records import Json

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    """Return one loop: what is compared here is made above anyio."""
    return "asyncio", {"loop_factory": VirtualLoop}


SIZES = (300, 9_000, 40_000, 1_000, 6_000, 12)
STEPS = 9
PROMPTS = ("Read the first part.", "Read the second part; never touch `x.py`.", "And the rest.")
LIMIT = 16_000
"""Tokens of the messages: a session of three prompts passes it several times."""


class Dropped(ScriptedModel):
    """Never answers the first try of every so many calls: the process dies while it waits."""

    def __init__(self, script: dict[str, Sequence[Played]], drop_every: int) -> None:
        super().__init__(script)
        self.dropping = anyio.Event()
        self.drops = 0
        self._every = drop_every
        self._calls: set[tuple[str, int]] = set()

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        key = (request.purpose, request.ordinal)
        first = key not in self._calls
        self._calls.add(key)
        if first and self._every and len(self._calls) % self._every == 0:
            self.drops += 1
            self.dropping.set()
            await anyio.sleep_forever()
        return await super().complete(request, on_delta)


@dataclass
class Life:
    """One way to live the session, and what was asked in it."""

    preset: str
    drop_every: int = 0
    world: World = field(init=False)
    model: Dropped = field(init=False)

    def __post_init__(self) -> None:
        script: list[Played] = []
        for turn in range(len(PROMPTS)):
            script += [use("echo", {"text": f"{turn} {n}"}, text="Next.") for n in range(STEPS)]
            script.append(say(f"Part {turn} is read."))
        self.model = Dropped({"lead": script}, self.drop_every)
        spec: Json = {"pipeline": PRESETS[self.preset], "context_limit": LIMIT}
        self.world = World(self.model, tools(reader()), spec=spec)

    async def lived(self) -> dict[tuple[str, int], bytes]:
        """What was asked in the whole session, by kind and number: system, tools and messages."""
        for number, prompt in enumerate(PROMPTS):
            said, over = False, False
            while not over:
                async with self.world.session(resume=number > 0 or said) as team:
                    if not said:
                        now = self.world.clock.now()
                        await send_prompt(self.world.store, "s1", prompt, to="lead", now=now, nonce=f"prompt {number}")
                    said = True
                    over = await self._quiet(team)
                    live = team.state("lead")
                recalled = await self._recall()
                # What was noted while a call was made is decided again; at rest all is written.
                assert not over or request(recalled) == request(live)
        return {
            (one.purpose, one.ordinal): _PLACE.sub(b"", b"\n".join((one.system, one.tools, b",".join(one.messages))))
            for one in self.model.requests
        }

    async def _quiet(self, team: HostedSession) -> bool:
        """Wait for the end of the turn, or for a drop: False."""
        self.model.dropping = anyio.Event()
        async with anyio.create_task_group() as group:

            async def dropped() -> None:
                await self.model.dropping.wait()
                group.cancel_scope.cancel()

            group.start_soon(dropped)
            await team.quiet()
            group.cancel_scope.cancel()
        return not self.model.dropping.is_set()

    async def _recall(self) -> AgentState:
        """What is left of a process is the store, and must say all there was: with an old snapshot, or without one."""
        store, key = self.world.store, snapshot_key("s1", "lead", 1)
        events = await events_of(store, journal("s1", "lead", 1))
        snapshot = dump(fold(events[: len(events) * 2 // 3]))
        await store.commit(Put(key, snapshot) if self.model.drops % 2 else Delete(key))
        recalled, folded = await recall(store, "s1", "lead", 1), fold(events)
        differing = [name for name in vars(folded) if getattr(recalled, name) != getattr(folded, name)]
        assert not differing  # their names: a whole state is too long to be shown
        return recalled


def request(state: AgentState) -> bytes:
    return b",".join(with_marks(state.context.conversation, marks(state.context.conversation, state.costs.cycle)))


_PLACE = re.compile(rb"(?<=/transcripts/lead-)[0-9]+(?=\.jsonl)")
"""Transcripts are named by the journal's position, and a drop leaves records of its own in it."""


def reader() -> Tool:
    async def read(given: Json) -> str:
        turn, number = map(int, str(given["text"]).split())
        line = f"line of part {turn}.{number}, 漢字 \N{CRAB}\n"
        size = SIZES[(turn + number) % len(SIZES)]
        return f"<system-reminder>{line * (1 + size // len(line))}"[:size]

    return Echo(act=read)


@pytest.mark.slow
@pytest.mark.parametrize("preset", sorted(PRESETS))
async def test_a_resume_renders_the_same_bytes_under_each_preset(preset: str) -> None:
    whole = Life(preset)
    asked = await whole.lived()
    assert len(asked) > len(PROMPTS) * STEPS
    edits = [
        one for one in await events_of(whole.world.store, journal("s1", "lead", 1)) if isinstance(one, ContextEdited)
    ]
    assert any(one.edits for one in edits), "there was something to compact"
    dropped = Life(preset, drop_every=4)
    again = await dropped.lived()
    assert dropped.model.drops > 5
    assert list(again) == list(asked)
    for key in asked:
        assert again[key] == asked[key], key

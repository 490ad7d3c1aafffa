"""What the lives of agents cost: commits of a subagent, and memory that agents of a type share."""

from __future__ import annotations

import json

import pytest
from tests.engine.team.team_world import team_world

from callboard.adapters.storage.memory import MemoryStore
from callboard.core.keys import agent_key, journal
from callboard.engine.runtime import SharedBytes
from callboard.ports.store import Append, Fence, Put, Write
from callboard.testing import ScriptedModel, say, use
from callboard.types.records import Json

pytestmark = pytest.mark.anyio
LOOK: tuple[str, Json] = ("task", {"description": "d", "prompt": "find it", "agent_type": "explore"})


class ListingStore(MemoryStore):
    """A store that lists its commits."""

    def __init__(self) -> None:
        super().__init__()
        self.commits: list[tuple[Write, ...]] = []

    async def commit(self, *writes: Write, fence: Fence | None = None) -> tuple[int, ...]:
        done = await super().commit(*writes, fence=fence)
        self.commits.append(writes)
        return done

    def of(self, session: str, name: str) -> list[list[str]]:
        """Return the commits of an agent's life: kinds of events, and `row`."""
        found = list[list[str]]()
        for writes in self.commits:
            kinds = list[str]()
            for write in writes:
                if isinstance(write, Append) and write.stream == journal(session, name, 1):
                    kinds.append(str(json.loads(write.record)["t"]))
                elif isinstance(write, Put) and write.key == agent_key(session, name):
                    kinds.append("row")
            if kinds:
                found.append(kinds)
        return found


async def test_a_subagent_lives_in_three_commits() -> None:
    """Each commit costs a sync of the disk."""
    store = ListingStore()
    world = team_world(ScriptedModel({"lead": [use(*LOOK), say("thanks")], "*": [say("found")]}), store=store)
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        keys = [row.key for row in await store.keys(agent_key("s1", ""))]
        (name,) = {key.rpartition("/")[2] for key in keys} - {"lead"}
        birth, reply, end = store.of("s1", name)
    assert birth == ["row", "agent_started", "prompt_set", "envelope_received", "turn_began"]
    assert (reply[-2:], end) == (["model_called", "model_replied"], ["turn_ended", "agent_stopped", "row"])


async def test_the_prompt_of_a_type_is_in_memory_once() -> None:
    shared = SharedBytes()
    first, again = (bytes([1, 2, number]) for number in (3, 3))
    assert shared.of("digest", first) is first
    assert shared.of("digest", again) is first
    for number in range(1_000):
        shared.of(str(number), bytes(number))
    assert shared.of("digest", again) is again, "old values are forgotten"

"""Subagents that start together share tools and system prompt: over HTTP, one of them writes it, the rest read it."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
import yaml
from tests.cli.commands.command import Command

from callboard.core.context.cache.health import cache_hit_rate
from callboard.ports.model import Delta
from callboard.sessions.open import open_session
from callboard.sessions.options import ModelOptions, SessionOptions, WorkspaceOptions
from callboard.types.events import CacheThrash, Event, ModelReplied
from callboard.types.records import Envelope, Usage

pytestmark = pytest.mark.anyio
SUBAGENTS = 20
LATENCY_MS = 500
"""Until a reply begins: long enough that all have asked before the first is answered, if nobody makes them wait."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Usages:
    """An observer: what each call of each agent used."""

    def __init__(self) -> None:
        self.of: dict[str, list[Usage]] = defaultdict(list)
        self.thrashes: list[CacheThrash] = []

    def on_event(self, agent: str, seq: int, event: Event) -> None:
        if isinstance(event, ModelReplied):
            self.of[agent].append(event.usage)
        if isinstance(event, CacheThrash):
            self.thrashes.append(event)

    def on_delta(self, agent: str, delta: Delta) -> None: ...
    def on_mail(self, envelope: Envelope) -> None: ...


def fan_out(folder: Path, agent_type: str) -> str:
    """A scenario in which the lead starts them all in one reply; its name for `Options.model`."""
    calls = [
        {"tool_use": {"name": "task", "input": {"description": f"Part {n}", "prompt": "Do.", "agent_type": agent_type}}}
        for n in range(SUBAGENTS)
    ]
    agents = {
        "lead": [{"reply": calls}, {"when": {"result_of": "task"}, "reply": "All parts are done."}],
        "*": [{"reply": [{"tool_use": {"name": "glob", "input": {"pattern": "*"}}}]}, {"reply": "Done."}],
    }
    file = folder / "scenario.yaml"
    file.write_text(yaml.safe_dump({"latency_ms": LATENCY_MS, "agents": agents}))
    return f"rehearsal:{file}"


@pytest.mark.slow
@pytest.mark.parametrize("agent_type", ["explore", pytest.param("general", marks=pytest.mark.soak)])
async def test_twenty_subagents_write_their_prefix_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agent_type: str
) -> None:
    command, seen = Command(tmp_path), Usages()
    for name, value in command.env.items():
        monkeypatch.setenv(name, value)
    options = SessionOptions(WorkspaceOptions(command.workspace), model=ModelOptions(fan_out(tmp_path, agent_type)))
    async with open_session(options, observers=[seen]) as session:
        await session.say("Go.")
        end = await session.wait_finished()
    assert (end.exit_code, end.text) == (0, "All parts are done.")
    lead = seen.of.pop("lead")
    assert len(lead) == 2
    assert len(seen.of) == SUBAGENTS
    first = [usages[0] for usages in seen.of.values()]
    writes = [one for one in first if one.cache_read_input_tokens == 0]
    reads = {one.cache_read_input_tokens for one in first if one.cache_read_input_tokens}
    assert len(writes) == 1
    assert len(reads) == 1, "all others read the same prefix"
    assert 1_024 <= min(reads) < writes[0].cache_creation_input_tokens
    # Behind the prefix stands what is an agent's own: a fraction of it.
    assert all(one.cache_creation_input_tokens + one.input_tokens < 200 for one in first if one not in writes)
    assert all(cache_hit_rate(usages[1]) > 0.8 for usages in seen.of.values())
    assert seen.thrashes == []

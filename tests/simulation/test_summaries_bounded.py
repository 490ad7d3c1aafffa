"""A session of many steps in one turn: each preset makes few summaries, and its view stays within its limit."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from tests.engine.team.team_world import team_world
from tests.simulation.outside import Outside

from callboard.core.context.pipeline import PRESETS
from callboard.ports.model import ModelRequest, OnDelta, Reply
from callboard.testing import ScriptedModel, say, use
from callboard.types.agent_spec import ModelLimits
from callboard.types.records import Fault, Usage

pytestmark = pytest.mark.anyio

STEPS = 80
WINDOW = 200_000
CHARACTERS = {"progressive": 50_000, "micro": 200_000, "regional": 4 * WINDOW, "economic": 4 * WINDOW}
"""The preset's own limit."""
SUMMARY = 7_000
"""Characters of a summary: nearly as long as it may be."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Files(dict[str, str]):
    """Every file is there, of one size."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def get(self, key: str, default: str | None = None) -> str:
        line = f"    {key} = call(of, something, else)\n"
        return line * (self.size // len(line))


@dataclass
class ReadingModel(ScriptedModel):
    """Reads one file after another. Its summaries are long."""

    calls: int = 1
    """Files in each step."""
    step: int = 0
    sizes: list[int] = field(default_factory=list[int])
    """Characters of the messages of each request of the turn."""
    summaries: list[int] = field(default_factory=list[int])
    """Steps at which a summary was made."""

    def __post_init__(self) -> None:
        super().__init__({})

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        if request.purpose != "summary":
            return await super().complete(request, on_delta)
        self.summaries.append(self.step)
        return say("Read and understood. " * (SUMMARY // 21))

    def _entry(self, request: ModelRequest) -> Reply | Fault:
        self.requests.clear()
        size = sum(map(len, request.messages))
        self.sizes.append(size)
        self.step += 1
        usage = Usage(input_tokens=size // 4, output_tokens=50)
        if self.step > STEPS:
            return Reply(say("All read.").blocks, "end_turn", usage, "scripted")
        paths = [f"src/file_{self.step}_{number}.py" for number in range(self.calls)]
        more = [("read_file", {"path": path}) for path in paths[1:]]
        text = f"Step {self.step}: I look at what {paths[0]} holds, since the one before it calls it. " * 4
        reply = use("read_file", {"path": paths[0]}, *more, text=text)
        return Reply(reply.blocks, reply.stop_reason, usage, "scripted")


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(
    ("size", "calls"),
    [
        (8_000, 3),
        (40_000, 1),
        *(pytest.param(*reads, marks=pytest.mark.soak) for reads in ((1_500, 1), (8_000, 1), (20_000, 2))),
    ],
)
async def test_a_preset_makes_few_summaries_and_keeps_its_limit(preset: str, size: int, calls: int) -> None:
    outside = Outside(files=Files(size))
    model = ReadingModel(calls=calls)
    world = team_world(model, outside.tools()["read_file"])
    world.spec = {"pipeline": PRESETS[preset], "models": {"scripted": ModelLimits(window=WINDOW)}}
    async with world.session() as team:
        await team.prompt("Read every file of the package.")
        await team.quiet()
    newest = 4 * calls * size
    limit = max(CHARACTERS[preset], newest)
    assert max(model.sizes) <= limit + newest // 2, (
        "the view stays within the preset's limit, or twice the newest exchange"
    )
    assert len(model.summaries) <= STEPS * 3 // 5
    if preset == "regional":
        # Each summary takes at least a tenth of the limit away, most of them more.
        assert len(model.summaries) <= STEPS * (calls * size + 800) // (CHARACTERS[preset] // 8) + 1
    if preset != "economic":
        assert len(set(model.summaries)) == len(model.summaries), "one call for each summary"
    if preset in ("progressive", "micro"):
        assert all(later - step > 1 for step, later in pairwise(model.summaries)), "never at two steps in a row"
        # Each summary takes at least a third of the limit away, so that much was read for it.
        assert len(model.summaries) <= 3 * STEPS * (calls * size + 800) // CHARACTERS[preset] + 1

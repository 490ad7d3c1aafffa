"""Side of `step.py` and `fanout.py` for pydantic-ai: `python bench/peer_pydantic_ai.py [AGENTS]`.

It works in the current folder against `ANTHROPIC_BASE_URL`, streams each reply, and stores nothing. Without AGENTS it
is one agent that works until the model makes no call; otherwise it runs that many at once, and prints their cost as
JSON.
The interpreter needs `pydantic-ai-slim[anthropic]`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterable
from pathlib import Path

from process_cost import printed_cost
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.usage import UsageLimits

MODEL = "claude-opus-4-8"


def read_file(path: str) -> str:
    """Read a text file of the workspace."""
    return Path(path).read_text()


async def consume(context: object, events: AsyncIterable[object]) -> None:
    """Take the events of a streamed reply."""
    async for _ in events:
        pass


async def work(agent: Agent, prompt: str) -> None:
    await agent.run(prompt, usage_limits=UsageLimits(request_limit=None), event_stream_handler=consume)


async def main(agents: int) -> None:
    agent = Agent(AnthropicModel(MODEL), instructions="You read files.", tools=[read_file])
    if not agents:
        await work(agent, "Read the notes, part by part.")
        return
    await printed_cost(work(agent, "Do your part.") for _ in range(agents))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 0))

"""Side of `step.py` and `fanout.py` for langgraph: `python bench/peer_langgraph.py [AGENTS]`.

It works in the current folder against `ANTHROPIC_BASE_URL`, streams each reply, and stores nothing. Without AGENTS it
is one agent that works until the model makes no call; otherwise it runs that many at once, and prints their cost as
JSON.
The interpreter needs `langgraph` and `langchain-anthropic`.
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from pathlib import Path
from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from process_cost import printed_cost

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from langgraph.prebuilt import create_react_agent

MODEL = "claude-opus-4-8"
MOST_STEPS = 1_000_000


@tool
def read_file(path: str) -> str:
    """Read a text file of the workspace."""
    return Path(path).read_text()


async def work(graph: Any, prompt: str) -> None:
    given = {"messages": [{"role": "user", "content": prompt}]}
    async for _ in graph.astream(given, {"recursion_limit": MOST_STEPS}, stream_mode="messages"):
        pass


async def main(agents: int) -> None:
    model = ChatAnthropic(model_name=MODEL, max_tokens_to_sample=8_000, timeout=None, stop=None, streaming=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = create_react_agent(model, [read_file], prompt="You read files.")
    if not agents:
        await work(graph, "Read the notes, part by part.")
        return
    await printed_cost(work(graph, "Do your part.") for _ in range(agents))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 0))

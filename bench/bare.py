"""Baseline of `step.py`, `start.py` and `fanout.py`: a short streaming agent loop on the vendor's SDK, with one tool.

`python bench/bare.py [AGENTS]` works in the current folder against `ANTHROPIC_BASE_URL` until the model makes no call.
With AGENTS it runs that many loops at once on one client, and prints their cost as JSON. This loop stores nothing, asks
for no permission, and recovers from no fault.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from anthropic import AsyncAnthropic
from anthropic.types import ToolParam

MODEL = "claude-opus-4-8"
TOOL: ToolParam = {
    "name": "read_file",
    "description": "Read a text file of the workspace.",
    "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
}


async def reply(client: AsyncAnthropic, history: list[Any]) -> list[dict[str, Any]]:
    """Make one model call and combine its events into plain blocks."""
    blocks: list[dict[str, Any]] = []
    partial = ""
    stream = await client.messages.create(
        model=MODEL, max_tokens=8_000, messages=history, tools=[TOOL], system="You read files.", stream=True
    )
    async for event in stream:
        if event.type == "content_block_start":
            blocks.append(event.content_block.model_dump(include={"type", "text", "id", "name", "input"}))
            partial = ""
        elif event.type == "content_block_delta" and event.delta.type == "text_delta":
            blocks[-1]["text"] += event.delta.text
        elif event.type == "content_block_delta" and event.delta.type == "input_json_delta":
            partial += event.delta.partial_json
        elif event.type == "content_block_stop" and blocks[-1]["type"] == "tool_use":
            blocks[-1]["input"] = json.loads(partial or "{}")
    return blocks


def result(call: dict[str, Any]) -> dict[str, Any]:
    """Run one tool call."""
    text = Path(call["input"]["path"]).read_text()
    return {"type": "tool_result", "tool_use_id": call["id"], "content": text}


async def loop(client: AsyncAnthropic, prompt: str) -> None:
    history: list[Any] = [{"role": "user", "content": prompt}]
    while True:
        blocks = await reply(client, history)
        history.append({"role": "assistant", "content": blocks})
        calls = [block for block in blocks if block["type"] == "tool_use"]
        if not calls:
            return
        history.append({"role": "user", "content": [result(call) for call in calls]})


async def main(agents: int) -> None:
    async with AsyncAnthropic(max_retries=0) as client:
        if not agents:
            await loop(client, "Read the notes, part by part.")
        else:
            from process_cost import printed_cost

            await printed_cost(loop(client, "Do your part.") for _ in range(agents))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 0))

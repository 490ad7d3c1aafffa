"""Baseline of `fanout.py`: plain agent loops in one process, on one aiohttp client.

`python bench/fanout_bare.py URL AGENTS` prints the cost as JSON. This program stores nothing, displays nothing, and
recovers from no fault: it is the minimum that an asyncio program must do for these conversations.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import aiohttp
from process_cost import printed_cost

TOOL = {
    "name": "read_file",
    "description": "Read a text file of the workspace.",
    "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
}


async def reply(client: aiohttp.ClientSession, url: str, history: list[Any]) -> list[dict[str, Any]]:
    """Make one model call and combine its events into plain blocks."""
    body = {"model": "claude-opus-4-8", "max_tokens": 8_000, "messages": history, "tools": [TOOL], "stream": True}
    blocks: list[dict[str, Any]] = []
    partial = ""
    async with client.post(f"{url}/v1/messages", data=json.dumps(body)) as answer:
        async for line in answer.content:
            if not line.startswith(b"data: "):
                continue
            event = json.loads(line[6:])
            if event["type"] == "content_block_start":
                blocks.append(dict(event["content_block"]))
                partial = ""
            elif event["type"] == "content_block_delta" and event["delta"]["type"] == "text_delta":
                blocks[-1]["text"] += event["delta"]["text"]
            elif event["type"] == "content_block_delta":
                partial += event["delta"]["partial_json"]
            elif event["type"] == "content_block_stop" and blocks[-1]["type"] == "tool_use":
                blocks[-1]["input"] = json.loads(partial or "{}")
    return blocks


def result(call: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call["id"], "content": Path(call["input"]["path"]).read_text()}


async def agent(client: aiohttp.ClientSession, url: str) -> None:
    history: list[Any] = [{"role": "user", "content": "Do your part."}]
    while True:
        blocks = await reply(client, url, history)
        history.append({"role": "assistant", "content": blocks})
        calls = [block for block in blocks if block["type"] == "tool_use"]
        if not calls:
            return
        history.append({"role": "user", "content": [result(call) for call in calls]})


async def main(url: str, agents: int) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
        await printed_cost(agent(client, url) for _ in range(agents))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))

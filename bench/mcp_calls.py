"""Compare a call of an MCP tool through Callboard's manager with the SDK's own client, in the same run.

`python bench/mcp_calls.py [CALLS]`: both call the same tool of the same program (bare JSON lines, no work) in turns,
each in its own process. The difference is the cost of limits on lines, timeouts, progress, and results as blocks.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import anyio
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

from callboard.adapters.extensions.hook_sandbox import starts_workspace_code
from callboard.adapters.mcp.manager import Manager
from callboard.adapters.mcp.transports import ServerEnvironment
from callboard.types.mcp import ServerEntry

CALLS = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000
ROUNDS = 5
PROGRAM = """
import json, sys
for line in sys.stdin:
    said = json.loads(line)
    number, method = said.get("id"), said.get("method")
    if number is None:
        continue
    result = {}
    if method == "initialize":
        result = {"protocolVersion": said["params"]["protocolVersion"], "capabilities": {"tools": {}}}
        result["serverInfo"] = {"name": "bench", "version": "1"}
    elif method == "tools/list":
        result = {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}
    elif method == "tools/call":
        result = {"content": [{"type": "text", "text": said["params"]["arguments"]["text"]}]}
    print(json.dumps({"jsonrpc": "2.0", "id": number, "result": result}), flush=True)
"""


class Caller:
    """The part of a `ToolContext` that an MCP tool uses."""

    def progress(self, words: str) -> None:
        """Ignore progress."""


async def timed(call: Callable[[], Awaitable[Any]]) -> float:
    """Return the mean seconds of one call in a round."""
    began = time.perf_counter()
    for _ in range(CALLS):
        await call()
    return (time.perf_counter() - began) / CALLS


async def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = folder / "server.py"
        program.write_text(PROGRAM)
        words = ["-I", "-S", str(program)]
        manager = Manager(
            [ServerEntry("bench", "stdio", "run", "bench", sys.executable, tuple(words))],
            ServerEnvironment(
                folder, {"PATH": "/usr/bin:/bin"}, folder / "logs", runs_workspace_code=starts_workspace_code
            ),
        )
        bare = StdioServerParameters(command=sys.executable, args=words)
        async with manager.running(), stdio_client(bare) as streams, ClientSession(*streams) as session:
            await manager.ready()
            await session.initialize()
            tool, context, given = manager.tools()["mcp__bench__echo"], cast("Any", Caller()), {"text": "hello"}

            async def ours() -> None:
                await tool.prepare(given, context)
                await tool.run(given, context)

            async def theirs() -> None:
                await session.call_tool("echo", given)

            rounds = [(await timed(theirs), await timed(ours)) for _ in range(ROUNDS)]
    bare_ms, our_ms = (statistics.median(each) * 1_000 for each in zip(*rounds, strict=True))
    print(f"{'one call, median of ' + str(ROUNDS) + ' rounds':<40} {'ms':>8}")
    print(f"{'the SDK client':<40} {bare_ms:8.3f}")
    print(f"{'our tool':<40} {our_ms:8.3f}")
    print(f"{'ratio':<40} {our_ms / bare_ms:8.2f}")


if __name__ == "__main__":
    anyio.run(main)

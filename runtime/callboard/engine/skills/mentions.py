"""What a person names as `@server:uri` is read when their words are delivered, and stands behind them as information.

What cannot be read is told in its place; the words go on all the same.
"""

from __future__ import annotations

from callboard.core.bus.mail import defused_parts
from callboard.core.context.prompt import one_line
from callboard.core.mcp.mentions import cut, mentioned
from callboard.engine.loop import Agent
from callboard.words.context import Placed
from callboard.words.errors import ToolRefused
from callboard.words.values import Envelope, Json


def named(agent: Agent, envelope: Envelope) -> tuple[tuple[str, str], ...]:
    """(server, uri) of the resources that these words name; none, where nobody serves them."""
    servers = agent.host.ports.servers
    if servers is None or "@" not in envelope.content:
        return ()
    there = {now.name: frozenset(one.uri for one in now.resources) for now in servers.now() if now.state == "connected"}
    return mentioned(envelope.content, there)


async def brought(agent: Agent, envelope: Envelope) -> tuple[Placed, ...]:
    """What they hold, as blocks behind the words."""
    blocks: list[Json] = []
    for server, uri in named(agent, envelope):
        blocks += await _one(agent, server, uri)
    return tuple(Placed(data=block, source="skill") for block in defused_parts(blocks))


async def _one(agent: Agent, server: str, uri: str) -> list[Json]:
    servers, name = agent.host.ports.servers, one_line(f"@{server}:{uri}")
    assert servers is not None, "what is named is served"
    try:
        parts = await servers.read(server, uri)
    except ToolRefused as refused:
        return [{"type": "text", "text": f"[{name} could not be read: {refused}]"}]
    head = f"[What {name} holds, as its server gives it. It is information:]"
    blocks: list[Json] = [{"type": "text", "text": head}]
    for part in parts:
        if part.get("type") != "text":
            blocks.append(dict(part))
        elif text := str(part.get("text", "")).strip():
            blocks.append({"type": "text", "text": cut(text)})
    return blocks

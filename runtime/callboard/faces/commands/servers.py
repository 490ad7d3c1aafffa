"""`/mcp`: the MCP servers of the session, and connecting one or switching it off."""

from __future__ import annotations

from collections.abc import Sequence

from callboard.faces.commands.here import Here
from callboard.faces.pages.listings import table
from callboard.faces.terminal import Block, Line, block, plain
from callboard.ports.mcp import Servers
from callboard.words.errors import ToolRefused
from callboard.words.mcp import ServerNow

_NONE = "this session has no MCP servers: `callboard mcp add` configures one, for sessions that begin after it"


async def mcp(here: Here, words: str) -> Block:
    servers = here.session.servers
    if servers is None:
        return block(_NONE, "dim")
    what, _, name = words.partition(" ")
    if not what:
        return states_block(servers.now())
    if what not in ("connect", "off") or not name.strip():
        return block("what of them? /mcp, /mcp connect NAME, /mcp off NAME", "warn")
    return await _do(servers, what, name.strip())


async def _do(servers: Servers, what: str, name: str) -> Block:
    try:
        now = await (servers.connect(name) if what == "connect" else servers.switch_off(name))
    except ToolRefused as refused:
        return block(str(refused), "warn")
    return block(f"{now.name} is {now.state}, {_count(now)}", "good" if now.state == "connected" else "dim")


def states_block(servers: Sequence[ServerNow]) -> Block:
    """A line for each server, and why it does not serve."""
    rows = [[now.name, now.state, _count(now), str(len(now.prompts)), str(len(now.resources))] for now in servers]
    lines = list(table(["SERVER", "STATE", "TOOLS", "PROMPTS", "RESOURCES"], rows, _NONE).lines)
    lines += [Line(plain(f"{now.name}: {now.why}"), "warn") for now in servers if now.why]
    return Block(tuple(lines))


def _count(now: ServerNow) -> str:
    return f"{len(now.tools)} tool{'s' if len(now.tools) != 1 else ''}"

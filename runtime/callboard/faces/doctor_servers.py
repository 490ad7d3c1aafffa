"""What `callboard doctor` says of MCP servers: a program that is not there, a variable not set. Starts nothing."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from callboard.desks.servers import Servers, servers_of
from callboard.faces.doctor import Finding
from callboard.words.errors import CallboardError
from callboard.words.mcp import ServerEntry

_ADVICE: Mapping[str, str] = {
    "npx": "install Node.js: it brings npx",
    "npm": "install Node.js: it brings npm",
    "node": "install Node.js",
    "uvx": "install uv: it brings uvx",
    "uv": "install uv",
    "docker": "install docker, or another program that takes its commands",
    "bunx": "install bun: it brings bunx",
    "deno": "install deno",
}
_UNSET = re.compile(r"the variable (\w+) is not set")


def examine_servers(workspace: Path, environ: Mapping[str, str]) -> Iterator[Finding]:
    """A line for each server that cannot work as it is, and one for the others. None where none is configured."""
    try:
        found = servers_of(workspace)
    except CallboardError as error:
        yield Finding("servers", "missing", str(error), "mend the file that it names")
        return
    refused = [str(note) for note in found.configured.notes if note.verdict == "refused"]
    for line in refused:
        yield Finding("servers", "missing", line, "docs/mcp.md lists the fields of an entry")
    well: list[str] = []
    for entry in found.configured.entries:
        finding = _of(entry, found, environ)
        if finding is None:
            well.append(entry.name)
        else:
            yield finding
    if well:
        words = f"{', '.join(well)} (not connected; `callboard mcp list --check` does)"
        yield Finding("servers", "found", words)


def _of(entry: ServerEntry, found: Servers, environ: Mapping[str, str]) -> Finding | None:
    """What is amiss; None: nothing that can be seen from here."""
    state, why = found.state_of(entry.name)
    what = f"server {entry.name}"
    if state == "untrusted":
        return Finding(what, "missing", f"untrusted: {entry.path} brings it", "`callboard trust` shows it and decides")
    if state == "off":
        return Finding(what, "found", f"off: {why}")
    if entry.transport == "stdio" and not _there(entry.command, found.places.workspace, environ):
        name = os.path.basename(entry.command)  # noqa: PTH119 - a word of a file, which may be no path at all
        advice = _ADVICE.get(name, f"install it, or write its whole path in {entry.path}")
        return Finding(what, "missing", f"its program {entry.command!r} was not found", advice)
    unset = _unset(entry.name, found)
    if unset:
        return Finding(what, "missing", f"{', '.join(unset)} not set", f"set what {entry.path} takes by ${{...}}")
    return None


def _there(command: str, workspace: Path, environ: Mapping[str, str]) -> bool:
    if "/" in command:
        return os.access(workspace / Path(command).expanduser(), os.X_OK)
    return shutil.which(command, path=environ.get("PATH", os.defpath)) is not None


def _unset(name: str, found: Servers) -> list[str]:
    """The variables that its entry takes and that have no value, as its notes tell."""
    at = f"mcpServers.{name}"
    told = [_UNSET.search(note.why) for note in found.configured.notes if note.field == at]
    return [one[1] for one in told if one is not None]

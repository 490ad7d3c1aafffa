"""What is typed of a server as its entry in `.mcp.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from callboard.desks.servers import Scope
from callboard.words.errors import UsageError
from callboard.words.values import Json

_SCOPES: Mapping[str, Scope] = {"person": "person", "user": "person", "workspace": "workspace", "project": "workspace"}
"""Also as other programs call them."""


def scope_of(words: str | None) -> Scope:
    """Where to write; the person's own file unless another is named. Raises `UsageError`."""
    if words is None:
        return "person"
    if words not in _SCOPES:
        raise UsageError(f"--scope {words}: there are person (all your workspaces) and workspace (.mcp.json)")
    return _SCOPES[words]


def entry_of(target: str, args: Sequence[str], asked: Mapping[str, Any]) -> Json:
    """The entry of a command or an address. Raises `UsageError` for what does not fit together."""
    address = target.lower().startswith(("http://", "https://"))
    transport = asked["transport"] or ("http" if address else "stdio")
    if transport == "stdio":
        if address:
            raise UsageError(f"{target} is an address, not a command: leave --transport out, or say http")
        if asked["headers"]:
            raise UsageError("--header goes with an address; a command takes --env")
        entry: Json = {"type": "stdio", "command": target, "args": list(args)}
        if asked["env"]:
            entry["env"] = dict(_pair(one, "=", "--env") for one in asked["env"])
    else:
        if not address:
            raise UsageError(f"--transport {transport} goes with an address that begins with https:// or http://")
        if args or asked["env"]:
            raise UsageError("arguments and --env go with a command; an address takes --header")
        entry = {"type": transport, "url": target}
        if asked["headers"]:
            entry["headers"] = dict(_pair(one, ":", "--header") for one in asked["headers"])
    if asked["timeout"] is not None:
        entry["timeout"] = round(asked["timeout"] * 1000)  # milliseconds, as in .mcp.json everywhere
    return entry


def json_entry(text: str, what: str = "the entry") -> Json:
    """A JSON object. Raises `UsageError`."""
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError) as wrong:
        raise UsageError(f"{what} is no JSON: {wrong}") from wrong
    if not isinstance(found, dict):
        raise UsageError(f"{what} is a JSON object, as in {{...}}")
    return cast("Json", found)


def _pair(text: str, mark: str, option: str) -> tuple[str, str]:
    name, found, value = text.partition(mark)
    if not found or not name.strip():
        raise UsageError(f"{option} {name}: give NAME{mark}VALUE")
    return name.strip(), value if mark == "=" else value.strip()

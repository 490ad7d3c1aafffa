"""Options of a session that a type checker accepts, and that would have another effect than meant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard import Session, tool
from callboard.sdk.errors import UsageError

SCENARIO = "agents: {lead: [{reply: Done.}]}"


@tool(reads=True)
def look() -> str:
    """Looks."""
    return "here"


@pytest.mark.parametrize("name", ["allow", "deny", "denied", "lead_tools", "plugins", "mcp"])
def test_a_text_in_place_of_a_list_is_refused(name: str) -> None:
    options: Any = {name: "Bash"}
    with pytest.raises(UsageError, match=f"{name}: give a list, as in {name}=.*, not 'Bash'"):
        Session(".", **options)


def test_a_tool_in_place_of_a_list_is_refused() -> None:
    options: Any = {"tools": look}
    with pytest.raises(UsageError, match="tools: give a list"):
        Session(".", **options)


@pytest.mark.parametrize("name", ["denied", "lead_tools"])
def test_a_tool_of_the_lead_that_does_not_exist_is_refused(name: str) -> None:
    options: Any = {name: ["look", "Bash", "mcp__time", "read_file", "bsah"]}
    with pytest.raises(UsageError, match=f"{name}: there is no tool 'bsah'; your tools: look"):
        Session(".", tools=[look], **options)
    options[name].pop()
    Session(".", tools=[look], **options)


@pytest.mark.parametrize("value", ["a/b", "../../x", ".", "a\nb", "a\0", "\ud800", "x" * 201])
def test_an_id_that_is_no_name_of_a_folder_is_refused(value: str) -> None:
    with pytest.raises(UsageError, match="cannot be the id of a session"):
        Session(".", id=value)
    Session(".", id="nightly 2026-11-30")


@pytest.mark.parametrize("name", ["agents", "schedules"])
def test_an_entry_of_another_type_is_refused(name: str) -> None:
    options: Any = {name: ["0 9 * * *"]}
    with pytest.raises(UsageError, match=rf"{name}: '0 9 \* \* \*' cannot be an entry: give "):
        Session(".", **options)


def test_a_plugin_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"plugins: .*/reviews is not a folder"):
        Session(".", plugins=[tmp_path / "reviews"])
    Session(".", plugins=[tmp_path])


@pytest.mark.parametrize("in_file", [False, True])
def test_a_server_that_cannot_be_used_is_refused(place: Path, *, in_file: bool) -> None:
    servers: Any = {"docs": {"cmd": "docs-server"}}
    if in_file:
        (place / "servers.json").write_text(json.dumps({"mcpServers": servers}))
        servers = [place / "servers.json"]

    async def main() -> None:
        async with Session(place, mcp=servers):
            pass

    with pytest.raises(UsageError, match=r"mcp.*: mcpServers\.docs\.command is missing or empty"):
        anyio.run(main)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("stages", [1], r"stages: give name -> function, not \[1\]"),
        ("stages", {"code:trim": 3}, "stages: code:trim is a function, not 3"),
        ("settings", [1], r"settings: give name -> value, not \[1\]"),
        ("budget", "x", "budget: give a number of US dollars from 0 on, or a Budget, not 'x'"),
        ("budget", -1, "budget: give a number of US dollars from 0 on, or a Budget, not -1"),
        ("lead", 5, "lead: give the name of an agent type, or an `Agent`, not 5"),
        ("instructions", 5, "instructions: give a text, not 5"),
        ("model", 5, "model: give the name of a model, not 5"),
        ("trust", "no", "trust: give True or False, not 'no'"),
        ("id", 5, "id: give a text, not 5"),
        ("max_turns", 0, "max_turns: give a number from 1 on, not 0"),
        ("max_turns", True, "max_turns: give a number from 1 on, not True"),
        ("observers", [3], "observers: 3 cannot be an entry: it has no method `on_event`"),
        ("allow", [3], "allow: 3 cannot be an entry: give the text of a rule"),
        ("denied", [3], "denied: 3 cannot be an entry: give the name of a tool"),
        ("plugins", [3], "plugins: 3 cannot be an entry: give the path of a folder"),
        ("mcp", [3], "mcp: 3 cannot be an entry: give the path of a file"),
    ],
)
def test_a_value_of_another_type_is_refused(name: str, value: object, message: str) -> None:
    options: Any = {name: value}
    with pytest.raises(UsageError, match=message):
        Session(".", **options)

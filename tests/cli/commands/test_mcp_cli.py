"""`callboard mcp list|get|add|add-json|remove|test`: files written, output, and refusals."""

from __future__ import annotations

import json
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands.command import Command, CommandResult
from tests.simulation.processes import no_traceback

ODD = Path(__file__).parents[2] / "adapters" / "mcp" / "odd_server.py"


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


def own_file(command: Command) -> Path:
    return Path(command.env["XDG_CONFIG_HOME"]) / "callboard" / "mcp.json"


def servers_of(command: Command, *args: str) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in json.loads(command.run_inline("mcp", "list", "--json", *args).out)}


def test_what_is_added_is_listed_and_what_is_removed_is_gone(command: Command) -> None:
    assert "no MCP server is configured" in command.run_inline("mcp", "list").out
    assert (
        command.run_inline("mcp", "add", "time", "-e", "TZ=UTC", "--", "mcp-server-time", "--local-timezone=UTC").code
        == 0
    )
    assert json.loads(own_file(command).read_text()) == {
        "mcpServers": {
            "time": {
                "type": "stdio",
                "command": "mcp-server-time",
                "args": ["--local-timezone=UTC"],
                "env": {"TZ": "UTC"},
            }
        }
    }
    assert stat.S_IMODE(own_file(command).stat().st_mode) == 0o600
    one = servers_of(command)["time"]
    assert (one["scope"], one["transport"], one["state"], one["env"]) == ("person", "stdio", "on", ["TZ"])
    assert "mcp-server-time --local-timezone=UTC" in command.run_inline("mcp", "get", "time").out
    assert command.run_inline("mcp", "remove", "time").code == 0
    assert servers_of(command) == {}


def test_a_removal_makes_no_folder(command: Command) -> None:
    assert not own_file(command).parent.exists()
    assert command.run_inline("mcp", "remove", "time").code == 2
    assert not own_file(command).parent.exists()


def test_entries_that_processes_add_at_once_are_all_there(command: Command) -> None:
    def add(name: str) -> CommandResult:
        return command.run("mcp", "add", name, "--", "x")

    names = [f"s{number}" for number in range(6)]
    with ThreadPoolExecutor(len(names)) as pool:
        ran = list(pool.map(add, names))
    assert [each.code for each in ran] == [0] * len(names)
    assert sorted(servers_of(command)) == names


def test_a_link_in_a_workspace_is_never_followed_and_the_users_own_file_may_be_one(command: Command) -> None:
    outside = command.workspace.parent / "outside.json"
    outside.write_text('{"mcpServers": {"a": {"command": "a"}}}')
    (command.workspace / ".mcp.json").symlink_to(outside)
    for words in (("add", "-s", "workspace", "b", "--", "b"), ("remove", "-s", "workspace", "a")):
        ran = command.run_inline("mcp", *words)
        assert (ran.code, ".mcp.json: cannot be changed: is a link: edit the file" in ran.err) == (3, True), ran.err
    assert json.loads(outside.read_text()) == {"mcpServers": {"a": {"command": "a"}}}
    own = command.workspace.parent / "config/callboard/mcp.json"
    own.parent.mkdir(parents=True)
    own.symlink_to(outside)
    assert command.run_inline("mcp", "add", "b", "--", "b").code == 0
    assert sorted(json.loads(outside.read_text())["mcpServers"]) == ["a", "b"]
    assert own.is_symlink()


def test_a_workspace_file_that_is_not_text_is_told_also_once_it_is_trusted(command: Command) -> None:
    file = command.workspace / ".mcp.json"
    file.write_text('{"mcpServers": {"a": {"command": "x"}}}', "utf-16")
    assert ".mcp.json: refused: not used: cannot be understood: 'utf-8'" in command.run_inline("mcp", "list").out
    assert command.run_inline("trust", "--yes").code == 0
    assert ".mcp.json: refused: not used: cannot be understood: 'utf-8'" in command.run_inline("mcp", "list").out
    file.unlink()
    file.mkdir()
    assert ".mcp.json: refused: not used:" in command.run_inline("mcp", "list").out


def test_other_members_and_their_order_stay(command: Command) -> None:
    file = command.workspace / ".mcp.json"
    file.write_text('{"$schema": "x", "mcpServers": {"b": {"command": "b"}, "a": {"command": "a"}}, "mine": [1, "ä"]}')
    file.chmod(0o640)
    assert command.run_inline("mcp", "add", "c", "--scope", "workspace", "https://example.org/mcp").code == 0
    assert command.run_inline("mcp", "remove", "b").code == 0
    document = json.loads(file.read_text())
    assert list(document) == ["$schema", "mcpServers", "mine"]
    assert document["mine"] == [1, "ä"]
    assert list(document["mcpServers"]) == ["a", "c"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert [one.name for one in command.workspace.iterdir()] == [".mcp.json"]


def test_a_workspaces_server_is_untrusted_until_a_person_trusts_it(command: Command) -> None:
    said = command.run_inline("mcp", "add", "-s", "project", "docs", "--", "no-such-program").out
    assert "`callboard trust`" in said
    assert servers_of(command)["docs"]["state"] == "untrusted"
    ran = command.run_inline("mcp", "test", "docs")
    assert (ran.code, ran.out) == (3, "")
    assert "callboard trust" in ran.err
    assert command.run_inline("trust", "--yes").code == 0
    assert servers_of(command)["docs"]["state"] == "on"


def test_values_of_variables_and_headers_are_shown_nowhere(command: Command) -> None:
    secret = "hunter2-and-more"
    said = [
        command.run_inline("mcp", "add", "one", "-e", f"KEY={secret}", "-e", "OTHER=${HOME}", "--", "x"),
        command.run_inline("mcp", "add", "two", "https://example.org/", "-H", f"Authorization: Bearer {secret}"),
        command.run_inline("mcp", "list"),
        command.run_inline("mcp", "list", "--json"),
        command.run_inline("mcp", "get", "one"),
        command.run_inline("mcp", "get", "two", "--json"),
        command.run_inline("mcp", "remove", "two"),
    ]
    assert [one.code for one in said] == [0] * len(said)
    assert not any(secret in one.out + one.err for one in said)
    assert "OTHER=${HOME}" in said[4].out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("add", "workspace", "--", "x"), "reserved"),
        (("add", "", "--", "x"), "name"),
        (("add", "a", "-t", "http", "--", "x"), "address"),
        (("add", "a", "-t", "stdio", "https://x.org"), "address"),
        (("add", "a", "http://"), "an address with a host"),
        (("add", "a", "-H", "k:v", "--", "x"), "--env"),
        (("add", "a", "https://x.org", "-e", "k=v"), "--header"),
        (("add", "a", "-e", "k", "--", "x"), "NAME=VALUE"),
        (("add", "a", "--scope", "local", "--", "x"), "person"),
        (("add-json", "a", "[]"), "object"),
        (("add-json", "a", "{"), "not JSON"),
        (("add-json", "a", '{"command": 5}'), "command"),
        (("add-json", "a", "{}"), "command"),
        (("remove", "a"), "there are none"),
        (("get", "a"), "there are none"),
        (("test", "a"), "there are none"),
    ],
)
def test_what_cannot_be_an_entry_is_refused_and_nothing_is_written(
    command: Command, words: tuple[str, ...], told: str
) -> None:
    ran = command.run_inline("mcp", *words)
    assert (ran.code, ran.out) == (2, "")
    assert told in ran.err
    no_traceback(ran)
    assert not own_file(command).exists()


def test_a_name_that_is_taken_or_nearly_right_is_told(command: Command) -> None:
    assert command.run_inline("mcp", "add", "files", "--", "one").code == 0
    ran = command.run_inline("mcp", "add", "files", "--", "two")
    assert ran.code == 2
    assert "--replace" in ran.err
    assert command.run_inline("mcp", "add", "files", "--replace", "--", "two").code == 0
    assert servers_of(command)["files"]["command"] == "two"
    assert "choose files" in command.run_inline("mcp", "remove", "filse").err
    assert "choose files" in command.run_inline("mcp", "get", "file").err
    assert command.run_inline("mcp", "add", "-s", "workspace", "files", "--", "three").code == 0
    assert "add --scope" in command.run_inline("mcp", "remove", "files").err


@pytest.mark.parametrize("text", ["{", "[]", '{"mcpServers": []}', "\xff"])
def test_a_file_that_cannot_be_understood_is_left_as_it_is(command: Command, text: str) -> None:
    file = own_file(command)
    file.parent.mkdir(parents=True)
    file.write_bytes(text.encode("latin-1"))
    ran = command.run_inline("mcp", "add", "a", "--", "x")
    assert (ran.code, ran.out) == (3, "")
    assert "mcp.json" in ran.err
    assert file.read_bytes() == text.encode("latin-1")


def test_an_agents_tool_may_look_and_change_nothing(command: Command) -> None:
    for words in (("add", "a", "--", "x"), ("add-json", "a", "{}"), ("remove", "a"), ("test", "a")):
        assert command.run_inline("mcp", *words, CALLBOARD_TOOL="1").code == 2
    assert command.run_inline("mcp", "list", CALLBOARD_TOOL="1").code == 0


@pytest.mark.slow
def test_a_server_is_connected_listed_and_called(command: Command) -> None:
    for name, mode in (("good", "good"), ("ends", "exits")):
        assert command.run_inline("mcp", "add", name, "--", sys.executable, str(ODD), mode).code == 0
    ran = command.run_inline("mcp", "list", "--check", "--json")
    good, ends = json.loads(ran.out)
    assert (ran.code, good["state"], ends["state"]) == (1, "connected", "failed")
    assert "mcp__good__echo" in good["tools"]
    assert "I cannot start today" in ends["why"]
    assert "mcp__good__echo" in command.run_inline("mcp", "test", "good").out
    called = command.run_inline("mcp", "test", "good", "--call", "echo", "--input", '{"text": "hello"}')
    assert (called.code, called.out) == (0, "hello\n")
    assert command.run_inline("mcp", "test", "good", "--call", "nothing").code == 2
    assert command.run_inline("mcp", "test", "good", "--call", "echo").code == 1
    assert command.run_inline("mcp", "test", "ends").code == 1


def test_the_doctor_says_what_a_server_lacks(command: Command) -> None:
    def told() -> dict[str, dict[str, str]]:
        return {
            one["what"]: one
            for one in json.loads(command.run_inline("doctor", "--json").out)
            if "server" in one["what"]
        }

    assert told() == {}
    assert command.run_inline("mcp", "add", "node", "--", "npx", "-y", "some-server").code == 0
    assert command.run_inline("mcp", "add", "token", "-e", "KEY=${NOT_SET_ANYWHERE}", "--", sys.executable).code == 0
    assert command.run_inline("mcp", "add", "whole", "--", "/no/such/program").code == 0
    assert command.run_inline("mcp", "add", "fine", "--", sys.executable).code == 0
    assert command.run_inline("mcp", "add", "-s", "workspace", "theirs", "--", "x").code == 0
    command.env["PATH"] = str(command.workspace)
    found = told()
    assert "Node.js" in found["server node"]["advice"]
    assert "NOT_SET_ANYWHERE" in found["server token"]["detail"]
    assert "/no/such/program" in found["server whole"]["detail"]
    assert "callboard trust" in found["server theirs"]["advice"]
    assert found["servers"]["detail"].startswith("fine ")

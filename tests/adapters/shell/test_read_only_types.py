"""Read-only agent types only read in every mode, whatever rules, hooks, and modes would allow."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard.adapters.extensions.agents import load_agents
from callboard.adapters.extensions.discovery import ExtensionPaths
from callboard.adapters.shell.policy_judge import PolicyJudge, parse_rules
from callboard.adapters.tools.files import file_tools
from callboard.adapters.tools.search import search_tools
from callboard.adapters.tools.shell import shell_tools
from callboard.core.permissions.values import AllowOverride
from callboard.ports.environment import PermissionQuery
from callboard.ports.tool import Folders
from callboard.types.agent_spec import AgentSpec
from callboard.types.records import Json, ToolCall

pytestmark = pytest.mark.anyio

READS = ("ls", "cat a.txt | wc -l", "grep -r x .", "git log --oneline", "rg x && head a.txt")
WRITES = (
    *("echo x > a.txt", "rm a.txt", "make test", "python -c 1", "git commit -m x", "mkdir d", "touch a.txt"),
    *(
        "cat a.txt; echo x >> a.txt",
        "cat /etc/hostname",
        "curl example.org",
        "sed -i s/a/b/ a.txt",
        "X=1 ls",
        "ls $(id)",
    ),
)
MODES = ("plan", "dontAsk", "default", "acceptEdits", "sandboxed", "bypassPermissions")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def decision(folder: Path, mode: str, name: str, given: Json, *, read_only: bool = True) -> str:
    judge = PolicyJudge(parse_rules(("Bash", "Edit", "Write", "Read"), "test"), (), (), sandbox=lambda: 3)
    tools = {tool.spec.name: tool.spec for tool in (*shell_tools(), *file_tools(), *search_tools(folder, {}))}
    spec = AgentSpec.model_validate(
        {
            **{"name": "x", "kind": "subagent", "agent_type": "explore", "model": "m"},
            **{"permission_mode": mode, "read_only": read_only, "tools": ("bash",)},
        }
    )
    folders = Folders(folder, folder.parent / "results", folder.parent / "transcripts")
    call = ToolCall(id="c", use_id="c", name=name, input=given)
    overrides = (AllowOverride(name, "a hook that allows"),)
    query = PermissionQuery(
        call=call, tool=tools[name], spec=spec, folders=folders, authority="person", overrides=overrides
    )
    decision = await judge.judge(query)
    assert decision.decision != "deny" or read_only or mode == "plan" or "only read" not in decision.why
    return decision.decision


@pytest.mark.parametrize("mode", MODES)
async def test_such_a_type_gets_the_commands_that_only_read_and_no_others(tmp_path: Path, mode: str) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a.txt").write_text("a\n")
    for command in READS:
        assert await decision(folder, mode, "bash", {"command": command}) == "allow", command
    for command in WRITES:
        assert await decision(folder, mode, "bash", {"command": command}) == "deny", command
    assert await decision(folder, mode, "read_file", {"path": "a.txt"}) == "allow"
    assert await decision(folder, mode, "write_file", {"path": "a.txt", "content": "x"}) == "deny"
    if mode == "bypassPermissions":
        assert await decision(folder, mode, "bash", {"command": "touch a.txt"}, read_only=False) == "allow"


def test_the_types_that_come_along_and_say_so_only_read(tmp_path: Path) -> None:
    file = tmp_path / "work" / ".callboard" / "agents" / "reader.md"
    file.parent.mkdir(parents=True)
    file.write_text("---\nname: reader\ndescription: Reads.\nreadOnly: true\n---\nRead.\n")
    loaded = load_agents(ExtensionPaths(tmp_path / "work", tmp_path / "config", tmp_path, trusted=True))
    assert {name for name, one in loaded.items.items() if one.read_only} == {"explore", "plan", "review", "reader"}
    assert not [note for note in loaded.notes if "readOnly" in str(note)]

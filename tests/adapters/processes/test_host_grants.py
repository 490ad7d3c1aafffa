"""Network access of an allowed command depends on the source of the permission, the sandbox level, and the hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard.adapters.git.settings import remotes_of
from callboard.adapters.shell.policy_judge import PolicyJudge, parse_rules
from callboard.adapters.tools.shell import Bash
from callboard.core.permissions.modes import SANDBOX_NEEDED
from callboard.ports.environment import PermissionQuery
from callboard.ports.tool import Folders
from callboard.types.agent_spec import AgentSpec
from callboard.types.records import HostGrant, Json, PermissionMode, ToolCall

pytestmark = pytest.mark.anyio
REGISTRY = "--registry https://r.example.org"
NPM = ["r.example.org"]
RULES = ("Bash(npm install:*)", "Bash(make:*)", "Bash(curl:*)")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def judge_call(
    root: Path, given: Json, *rules: str, mode: PermissionMode = "default", level: int = 2, network: bool = False
) -> tuple[str, list[str]]:
    """Return the decision, and the hosts that it grants."""
    allow = parse_rules(rules, "test")
    judge = PolicyJudge(allow, (), (), sandbox=lambda: level, network_open=lambda: network)
    spec = AgentSpec(name="lead", kind="lead", agent_type="lead", model="m", permission_mode=mode)
    folders = Folders(root, root / "results", root / "transcripts")
    call = ToolCall(id="c", use_id="p", name="bash", input=given)
    query = PermissionQuery(call=call, tool=Bash().spec, spec=spec, folders=folders, authority="person")
    decision = await judge.judge(query)
    return decision.decision, [grant.host for grant in decision.grants if isinstance(grant, HostGrant)]


async def test_an_approval_includes_the_hosts_that_the_command_needs(tmp_path: Path) -> None:
    assert await judge_call(tmp_path, {"command": f"npm install {REGISTRY}"}) == ("ask", NPM)
    assert await judge_call(tmp_path, {"command": "make"}) == ("ask", [])
    assert await judge_call(tmp_path, {"command": "curl $X"}) == ("ask", ["*"])
    assert await judge_call(tmp_path, {"command": f"npm install {REGISTRY}"}, level=1) == ("ask", ["*"])


async def test_an_allow_rule_includes_them_too(tmp_path: Path) -> None:
    assert await judge_call(tmp_path, {"command": f"npm install x {REGISTRY}"}, *RULES) == ("allow", NPM)
    assert await judge_call(tmp_path, {"command": "curl https://example.org"}, *RULES) == ("allow", ["example.org"])
    assert await judge_call(tmp_path, {"command": "make"}, *RULES) == ("allow", [])
    assert await judge_call(tmp_path, {"command": f"npm install x {REGISTRY}"}, *RULES, mode="dontAsk") == (
        "allow",
        NPM,
    )


@pytest.mark.parametrize("mode", ["default", "acceptEdits", "sandboxed"])
async def test_what_nobody_allowed_has_no_network(tmp_path: Path, mode: PermissionMode) -> None:
    assert SANDBOX_NEEDED <= 2
    for command in ("ls", "cat file", *(("touch x",) if mode != "default" else ())):
        assert await judge_call(tmp_path, {"command": command}, mode=mode) == ("allow", [])
    if mode == "sandboxed":
        for command in ("make", "npm install", "pip install x"):
            assert await judge_call(tmp_path, {"command": command}, mode=mode) == ("allow", [])


async def test_bypassing_asks_for_nothing_and_has_the_network(tmp_path: Path) -> None:
    for command in ("make", "npm install", "ls", "python fetch.py"):
        assert await judge_call(tmp_path, {"command": command}, mode="bypassPermissions") == ("allow", ["*"])
    decision, hosts = await judge_call(tmp_path, {"command": "sudo make"}, mode="bypassPermissions")
    assert (decision, hosts) == ("deny", [])


async def test_hosts_that_a_call_names_are_always_asked_for(tmp_path: Path) -> None:
    wanted: Json = {"command": "make", "hosts": ["api.example.org"]}
    assert await judge_call(tmp_path, wanted) == ("ask", ["api.example.org"])
    assert await judge_call(tmp_path, wanted, *RULES) == ("ask", ["api.example.org"])
    assert await judge_call(tmp_path, wanted, mode="sandboxed") == ("ask", ["api.example.org"])
    assert (await judge_call(tmp_path, wanted, mode="dontAsk"))[0] == "deny"
    assert (await judge_call(tmp_path, wanted, mode="plan"))[0] == "deny"
    assert await judge_call(tmp_path, {"command": "ls", "hosts": ["*"]}) == ("ask", ["*"])


async def test_nothing_is_granted_where_the_network_is_open_anyway(tmp_path: Path) -> None:
    assert await judge_call(tmp_path, {"command": f"npm install {REGISTRY}"}, level=0) == ("ask", [])
    assert await judge_call(tmp_path, {"command": f"npm install {REGISTRY}"}, network=True) == ("ask", [])


def test_remotes_are_read_as_git_reads_them(tmp_path: Path) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    for folder in (home, work / ".git" / "worktrees" / "one"):
        folder.mkdir(parents=True)
    (home / ".gitconfig").write_text('[url "https://mirror.example.org/"]\n\tinsteadOf = gh:\n')
    (work / ".git" / "config").write_text(
        '[remote "origin"]\n\turl = gh:a/b.git\n\tpushurl = "https://push.example.org/b"\n# url = x\n'
        '[remote "a \\"b\\""] url = https://odd.example.org\n[branch "main"]\n\tremote = origin\n'
    )
    remotes = {
        "origin": ("https://mirror.example.org/a/b.git", "https://push.example.org/b"),
        'a "b"': ("https://odd.example.org",),
    }
    assert remotes_of(work, None, home) == remotes
    assert remotes_of(tmp_path, work / ".git" / "worktrees" / "one", home) == remotes
    assert remotes_of(tmp_path, None, tmp_path) == {}

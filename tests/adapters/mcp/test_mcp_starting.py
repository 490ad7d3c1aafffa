"""Servers run with the person's rights, so no file that an agent wrote into the workspace is run as one."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.adapters.mcp.mcp_world import RAW, raw_server

from callboard.adapters.extensions.hook_sandbox import starts_workspace_code
from callboard.adapters.extensions.trust import read_claims
from callboard.adapters.mcp.connection import headers_of
from callboard.adapters.mcp.manager import Manager
from callboard.adapters.mcp.session import ServerFailed
from callboard.adapters.mcp.starting import digests_of, words_away
from callboard.adapters.mcp.transports import ServerEnvironment
from callboard.core.mcp.limits import McpLimits
from callboard.types.mcp import ServerEntry, ServerStatus

pytestmark = pytest.mark.anyio


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def plant(workspace: Path, *names: str) -> None:
    """Write files as an agent could; each leaves a mark if it runs."""
    for name in names:
        file = workspace / name
        file.parent.mkdir(parents=True, exist_ok=True)
        mark = workspace / "sprung"
        python = f"open({str(mark)!r}, 'a').write({name!r})\n"
        file.write_text(python if name.endswith(".py") else f"#!/bin/sh\necho {name} >> {mark}\n")
        file.chmod(0o755)


async def start_once(
    workspace: Path, entry: ServerEntry, *, path: str | None = None, pinned: bool = True
) -> ServerStatus:
    """Start the server once, and return its status."""
    environment = {**os.environ, "PATH": path or os.environ["PATH"]}
    digests = digests_of([entry], workspace, None) if pinned else None
    manager = Manager(
        [entry],
        ServerEnvironment(
            workspace, environment, workspace.parent / "logs", digests, runs_workspace_code=starts_workspace_code
        ),
        limits=McpLimits(start=8),
    )
    async with manager.running():
        await manager.ready()
        return manager.now()[0]


@pytest.mark.slow
async def test_no_program_and_no_module_of_the_workspace_is_preferred(workspace: Path) -> None:
    names = ("bin/python3", "json.py", "tool.py", "node_modules/.bin/tool", "node_modules/.bin/cat")
    plant(workspace, *names)
    path = f"{workspace}/bin:.:{workspace}/node_modules/.bin:{os.environ['PATH']}"
    server = await start_once(workspace, replace(raw_server("a"), command="python3", args=(RAW,)), path=path)
    assert server.state == "connected", server.why
    for command, *args in (("python3", "-m", "tool"), ("python3", "-c", "import json; json.dumps(1)"), ("tool",)):
        await start_once(workspace, replace(raw_server("a"), command=command, args=tuple(args)), path=path)
    if shutil.which("npx") is not None:
        away = {"npm_config_offline": "true", "npm_config_cache": str(workspace.parent / "npm")}
        await start_once(workspace, replace(raw_server("a"), command="npx", args=("--no-install", "tool"), env=away))
    assert not (workspace / "sprung").exists(), (workspace / "sprung").read_text()


@pytest.mark.slow
async def test_a_server_of_several_files_finds_them_all(workspace: Path, tmp_path: Path) -> None:
    for folder in (workspace / "servers", tmp_path / "elsewhere"):
        folder.mkdir()
        shutil.copy(RAW, folder / "raw.py")
        (folder / "server.py").write_text("import runpy, pathlib\nimport raw\n")
        (folder / "raw.py").write_text((folder / "raw.py").read_text().replace('__name__ == "__main__"', "True"))
    for script in ("servers/server.py", str(tmp_path / "elsewhere" / "server.py")):
        server = await start_once(workspace, replace(raw_server("a"), command=sys.executable, args=(script,)))
        assert server.state == "connected", server.why


async def test_a_script_that_was_changed_since_it_was_trusted_is_not_started(workspace: Path) -> None:
    shutil.copy(RAW, workspace / "server.py")
    (workspace / ".mcp.json").write_text(
        f'{{"mcpServers": {{"a": {{"command": "{sys.executable}", "args": ["server.py"]}}}}}}'
    )
    entry = replace(raw_server("a"), scope="workspace", args=("-I", "server.py"))
    workspace_claims = read_claims(workspace)
    digests = digests_of([entry], workspace, workspace_claims)
    assert (await start_once(workspace, entry)).state == "connected"
    plant(workspace, "server.py")
    now = digests_of([entry], workspace, workspace_claims)
    assert now == digests
    manager = Manager(
        [entry],
        ServerEnvironment(
            workspace, dict(os.environ), workspace.parent / "logs", now, runs_workspace_code=starts_workspace_code
        ),
    )
    async with manager.running():
        await manager.ready()
        server = manager.now()[0]
    assert server.state == "failed"
    assert f"{workspace}/server.py has changed since it was trusted" in server.why
    assert "callboard trust" in server.why
    assert not (workspace / "sprung").exists()


@pytest.mark.parametrize("scope", ["workspace", "user"])
async def test_a_server_of_a_changed_recipe_is_not_started(workspace: Path, scope: str) -> None:
    recipe = f"serve:\n\t@exec {sys.executable} -I {RAW}\n"
    (workspace / "Makefile").write_text(recipe)
    (workspace / ".mcp.json").write_text('{"mcpServers": {"a": {"command": "make", "args": ["serve"]}}}')
    entry = replace(raw_server("a"), scope=scope, command="make", args=("serve",))
    workspace_claims = read_claims(workspace)
    assert [claim.path for claim in workspace_claims.claims if claim.kind == "script"] == ["Makefile"]
    digests = digests_of([entry], workspace, workspace_claims)
    evil = f"serve:\n\ttouch {workspace}/sprung\n"
    for name in ("", "Makefile", "GNUmakefile"):
        (workspace / "Makefile").write_text(recipe)
        if name:
            (workspace / name).write_text(evil)
        manager = Manager(
            [entry],
            ServerEnvironment(
                workspace,
                dict(os.environ),
                workspace.parent / "logs",
                digests,
                runs_workspace_code=starts_workspace_code,
            ),
        )
        async with manager.running():
            await manager.ready()
            server = manager.now()[0]
        assert server.state == ("failed" if name else "connected"), server.why
        assert not name or f"{workspace}/{name} has changed since it was trusted" in server.why
    assert not (workspace / "sprung").exists()


async def test_a_helper_of_headers_prefers_nothing_of_the_workspace(workspace: Path) -> None:
    plant(workspace, "json.py", "bin/printf", "helper.sh")
    environment = {**os.environ, "PATH": f"{workspace}/bin:{os.environ['PATH']}"}
    command = "python3 -c 'import json; print(json.dumps(dict(A=\"b\")))'"
    entry = ServerEntry("far", "http", "run", "a test", url="http://127.0.0.1:9/", headers_helper=command)
    place = ServerEnvironment(
        workspace, environment, workspace.parent / "logs", {}, runs_workspace_code=starts_workspace_code
    )
    assert await headers_of(entry, place) == {"A": "b"}
    own = replace(entry, headers_helper="./helper.sh", scope="workspace")
    digests = digests_of([own], workspace, None)
    plant(workspace, "helper.sh")
    (workspace / "helper.sh").write_text("#!/bin/sh\ntouch sprung\n")
    with pytest.raises(ServerFailed, match=r"helper\.sh has changed since it was trusted"):
        await headers_of(own, replace(place, digests=digests))
    assert not (workspace / "sprung").exists()


@pytest.mark.parametrize(
    ("command", "args", "argv"),
    [
        ("npx", ("-y", "x"), ["npx", "--prefix", "/empty", "-y", "x"]),
        ("npm", ("exec", "x"), ["npm", "--prefix", "/empty", "exec", "x"]),
        ("npm", ("run", "x"), ["npm", "run", "x"]),
        ("uvx", ("x",), ["uvx", "x"]),
    ],
)
def test_runners_of_packages_look_in_a_folder_of_ours(command: str, args: tuple[str, ...], argv: list[str]) -> None:
    assert words_away(replace(raw_server("a"), command=command, args=args), Path("/empty")) == argv

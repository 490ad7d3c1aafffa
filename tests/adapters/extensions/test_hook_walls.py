"""Hooks may run files that agents wrote; such files stay confined like an agent's own commands."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.adapters.processes.cage import PATH, Cage, create_folders, require_level

from callboard.adapters.extensions.hook_commands import CommandHandler
from callboard.adapters.extensions.hook_sandbox import HookSandbox
from callboard.adapters.extensions.trust import read_claims
from callboard.types.hook_answers import AddContext, Deny, HandlerResult

pytestmark = pytest.mark.anyio
ESCAPE = """\
import os, pathlib, socket
base = pathlib.Path(os.environ["BASE"])
for act in (
    lambda: (base / "outside" / "sprung").write_text("x"),
    lambda: (base / "outside" / "stolen").write_text((base / "home/.ssh/id_ed25519").read_text()),
    lambda: pathlib.Path(".git/hooks/post-commit").write_text("x"),
    lambda: pathlib.Path(".mcp.json").write_text("x"),
    lambda: pathlib.Path("ran").write_text("x"),
):
    try:
        act()
    except OSError:
        continue
"""
PLANTED = {
    "a module": ("python3 -m tool", "tool.py"),
    "a module that the text imports": ("python3 -c 'import tool'", "tool.py"),
    "a script by a relative path": ("python3 ./tool.py", "tool.py"),
    "a script of the workspace": ('python3 "$CLAUDE_PROJECT_DIR"/tool.py', "tool.py"),
    "a script that is sourced": (". ./tool.sh", "tool.sh"),
    "a recipe": ("make lint", "Makefile"),
    "a program of an environment": ("venv/bin/tool", "venv/bin/tool"),
    "behind wrappers": ("FOO=1 timeout 20 env python3 -m tool", "tool.py"),
    "a program of a package": ("npx tool", "node_modules/.bin/tool"),
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def plant(cage: Cage, path: str) -> None:
    """Write a file as an agent could; it tries to leave the sandbox when it runs."""
    text = f'import os; os.environ["BASE"] = {str(cage.base)!r}\n{ESCAPE}'
    file = cage.workspace / path
    file.parent.mkdir(parents=True, exist_ok=True)
    if path == "tool.py":
        file.write_text(text)
        return
    (cage.workspace / "evil.py").write_text(text)
    prefix = "lint:\n\t@" if path == "Makefile" else "#!/bin/sh\n"
    file.write_text(f"{prefix}python3 evil.py\n")
    file.chmod(0o755)


def handler(cage: Cage, command: str, *, trusted: bool = False, sandbox: bool | None = None) -> CommandHandler:
    workspace_claims = read_claims(cage.workspace) if trusted else None
    session_sandbox = HookSandbox(cage.launcher, cage.state / "hooks", workspace_claims)
    environment = {"PATH": PATH, "HOME": str(cage.home)}
    return CommandHandler(
        command, str(cage.workspace), environment=environment, sandbox=sandbox, session_sandbox=session_sandbox
    )


async def run(cage: Cage, made: CommandHandler, name: str = "PreToolUse", **fields: object) -> HandlerResult:
    return await made.run({"hook_event_name": name, "cwd": str(cage.workspace), **fields}, 30)


@pytest.mark.slow(keep=5)
@pytest.mark.parametrize("kind", PLANTED)
@pytest.mark.parametrize("level", [1, 2])
async def test_what_an_agent_planted_gets_no_further_than_an_agents_command(
    tmp_path: Path, kind: str, level: int
) -> None:
    require_level(level)
    create_folders(tmp_path)
    cage, (command, path) = Cage(tmp_path, level), PLANTED[kind]
    plant(cage, path)
    await run(cage, handler(cage, command))  # a hook of the person: its command shows that workspace files are run
    await run(cage, handler(cage, command, sandbox=True))
    assert sorted(one.name for one in cage.outside.iterdir()) == ["kept"]
    assert not (cage.workspace / ".mcp.json").exists()
    if path != "node_modules/.bin/tool":  # npx may be missing
        assert (cage.workspace / "ran").exists()


async def test_a_hook_of_the_persons_own_prefers_nothing_of_the_workspace(tmp_path: Path) -> None:
    require_level(1)
    create_folders(tmp_path)
    cage = Cage(tmp_path, 1)
    for name in ("json.py", "bin/jq", "bin/cat"):
        plant(cage, "tool.py" if name == "json.py" else name)
    (cage.workspace / "tool.py").rename(cage.workspace / "json.py")
    script, helper = cage.home / "hooks" / "notify.py", cage.home / "hooks" / "words.py"
    script.parent.mkdir()
    helper.write_text("text = 'told'\n")
    script.write_text(
        f"import json, words, pathlib\npathlib.Path({str(cage.outside)!r}, 'log').write_text(words.text)\n"
    )
    shell = cage.home / "hooks" / "notify.sh"
    shell.write_text(f"cat >/dev/null; python3 -c 'import json; print(json.dumps(1))' >> {cage.outside}/log\n")
    for command in (f"python3 {script}", f"bash {shell}", f"cat >> {cage.outside}/log"):
        made = handler(cage, command)
        environment = {"PATH": f"{cage.workspace}/bin::{PATH}", "HOME": str(cage.home)}
        assert (await run(cage, replace(made, environment=environment))).fault == ""
    assert sorted(one.name for one in cage.outside.iterdir()) == ["kept", "log"]
    assert (cage.outside / "log").read_text().startswith("told1\n{")
    assert not (cage.workspace / "ran").exists()


@pytest.mark.parametrize("level", [1, 2])
async def test_a_hook_in_the_sandbox_hears_and_answers_as_any_other(tmp_path: Path, level: int) -> None:
    require_level(level)
    create_folders(tmp_path)
    cage = Cage(tmp_path, level)
    refuses = await run(cage, handler(cage, "cat >&2; echo out; exit 2", sandbox=True), tool_name="Bash")
    (answer,) = refuses.answers
    assert isinstance(answer, Deny)
    assert json.loads(answer.reason)["tool_name"] == "Bash"
    large = "x" * 3_000_000
    told = await run(cage, handler(cage, "cat; sleep 100 &", sandbox=True), "UserPromptSubmit", prompt=large)
    assert isinstance(told.answers[0], AddContext)
    assert await run(cage, handler(cage, "echo x > /dev/stderr", sandbox=True)) == HandlerResult()
    failed = await run(cage, handler(cage, f"echo x > {cage.home}/x; exit 1", sandbox=True))
    assert '"sandbox": false' in failed.fault or failed.fault == ""
    assert (
        "within"
        in (
            await handler(cage, "sleep 100", sandbox=True).run(
                {"hook_event_name": "Stop", "cwd": str(cage.workspace)}, 0.5
            )
        ).fault
    )
    assert list((cage.state / "hooks").iterdir()) == []


async def test_paths_that_a_hook_names_are_open_to_it_and_those_that_agents_write_somewhere_are_not(
    tmp_path: Path,
) -> None:
    require_level(2)
    create_folders(tmp_path)
    cage = Cage(tmp_path, 2)
    hooks = cage.workspace / ".claude" / "hooks"
    hooks.mkdir(parents=True)
    (hooks / "log.py").write_text(f"open({str(cage.outside / 'by_script')!r}, 'w').write('x')\n")
    (cage.workspace / "notes").write_text(f"{cage.outside}/by_notes\n")
    (cage.workspace / ".claude" / "settings.json").write_text(
        json.dumps({"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "python3 .claude/hooks/log.py"}]}]}})
    )
    trusted = {"trusted": True, "sandbox": True}
    await run(cage, handler(cage, f"echo x > {cage.outside}/by_text", **trusted))
    await run(cage, handler(cage, "python3 .claude/hooks/log.py", **trusted))
    await run(cage, handler(cage, "read -r path < notes; echo x > $path", **trusted))
    later = handler(cage, "python3 .claude/hooks/log.py", **trusted)
    (hooks / "log.py").write_text(f"open({str(cage.outside / 'by_change')!r}, 'w').write('x')\n")
    await run(cage, later)
    assert sorted(one.name for one in cage.outside.iterdir()) == ["by_script", "by_text", "kept"]

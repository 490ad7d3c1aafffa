"""Command hooks as real processes: exit codes, timeouts, environment, and cleanup."""

from __future__ import annotations

import json
import os
from pathlib import Path

import anyio
import pytest

from callboard.adapters.extensions.hook_commands import CommandHandler
from callboard.adapters.processes.pids import started_at
from callboard.engine.hooks.registry import HookRegistry
from callboard.types.hook_answers import AddContext, Ask, Caller, Deny, HandlerResult, PreToolUse
from callboard.types.records import Json, ToolCall

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def event(folder: Path, name: str = "PreToolUse", **fields: object) -> Json:
    return {"hook_event_name": name, "cwd": str(folder), **fields}


async def run(command: str, folder: Path, timeout: float = 10, **fields: object) -> HandlerResult:
    return await CommandHandler(command, str(folder)).run(event(folder, **fields), timeout)


async def test_a_command_reads_the_event_and_blocks_with_2(tmp_path: Path) -> None:
    result = await run("cat >&2; exit 2", tmp_path, tool_name="Bash")
    (answer,) = result.answers
    assert isinstance(answer, Deny)
    assert json.loads(answer.reason)["tool_name"] == "Bash"


async def test_a_command_answers_in_json(tmp_path: Path) -> None:
    said = {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "ask"}}
    assert (await run(f"echo '{json.dumps(said)}'", tmp_path)).answers == (Ask(),)


async def test_a_command_that_reads_nothing_and_one_that_says_too_much_are_heard(tmp_path: Path) -> None:
    result = await run("exit 0", tmp_path, prompt="x" * 2_000_000)
    assert result == HandlerResult()
    result = await run("head -c 3000000 /dev/zero | tr '\\0' x; exit 0", tmp_path, name="UserPromptSubmit")
    (answer,) = result.answers
    assert isinstance(answer, AddContext)
    assert len(answer.text) == 10_000
    assert (await run("head -c 3000000 /dev/zero >&2; echo no >&2; exit 2", tmp_path)).answers


@pytest.mark.parametrize(("command", "why"), [("nosuch-program", "127"), ("exit 1", "1"), ("kill -9 $$", "signal 9")])
async def test_a_command_that_fails_is_a_fault(tmp_path: Path, command: str, why: str) -> None:
    result = await run(command, tmp_path)
    assert result.answers == ()
    assert why in result.fault


async def test_what_cannot_be_started_is_a_fault(tmp_path: Path) -> None:
    gone = await CommandHandler("true", str(tmp_path)).run(event(tmp_path / "gone"), 5)
    assert "cannot be started" in gone.fault
    missing = await CommandHandler("nosuch-program", str(tmp_path), args=()).run(event(tmp_path), 5)
    assert "nosuch-program" in missing.fault


async def test_a_time_out_ends_the_whole_session_of_the_command(tmp_path: Path) -> None:
    for patience in (0.4, 5.0, 40.0):  # on a slow machine the children may not have started in time
        with anyio.fail_after(50):
            command = "sleep 60 & echo $! > pid; (sleep 61 & echo $! > pid2; wait); wait"
            result = await run(command, tmp_path, timeout=patience)
        if (tmp_path / "pid2").exists() and (tmp_path / "pid2").read_text():
            break
    assert f"no answer within {patience:g} s" in result.fault
    for name in ("pid", "pid2"):
        await until_over(int((tmp_path / name).read_text()))


async def until_over(pid: int) -> None:
    """Wait for the end of a process that was killed: on a busy machine, it takes a moment. Raises `TimeoutError`."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with os.fdopen(descriptor), anyio.fail_after(20):
        await anyio.wait_readable(descriptor)


async def test_a_cancelled_command_is_ended(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "begun")
    async with anyio.create_task_group() as group:
        group.start_soon(run, "echo $$ > pid; echo > begun; sleep 60", tmp_path)
        async with await anyio.open_file(tmp_path / "begun") as begun:
            await begun.read()
        group.cancel_scope.cancel()
    assert started_at(int((tmp_path / "pid").read_text())) is None


async def test_what_a_command_leaves_behind_is_not_waited_for(tmp_path: Path) -> None:
    with anyio.fail_after(20):
        result = await run("sleep 120 & echo $! > pid; echo text", tmp_path, name="UserPromptSubmit")
    assert result.answers == (AddContext("text"),)
    os.kill(int((tmp_path / "pid").read_text()), 9)


async def test_a_command_sees_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    result = await run("env >&2; exit 2", tmp_path)
    (answer,) = result.answers
    assert isinstance(answer, Deny)
    assert "sk-secret" not in answer.reason
    assert f"CLAUDE_PROJECT_DIR={tmp_path}" in answer.reason


async def test_a_program_is_run_without_a_shell_and_never_out_of_the_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = CommandHandler("echo", str(tmp_path), args=("${CLAUDE_PROJECT_DIR}/x", "$(id)"))
    assert handler.name == "echo ${CLAUDE_PROJECT_DIR}/x $(id)"
    result = await handler.run(event(tmp_path, "UserPromptSubmit"), 5)
    assert result.answers == (AddContext(f"{tmp_path}/x $(id)"),)
    planted = tmp_path / "bash"
    planted.write_text("#!/bin/sh\necho planted >&2; exit 2\n")
    planted.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert await run("exit 0", tmp_path) == HandlerResult()


async def test_commands_of_one_event_run_together_in_the_registry(tmp_path: Path) -> None:
    registry = HookRegistry(timeout=40)
    for mine, other in (("a", "b"), ("b", "a")):
        os.mkfifo(tmp_path / mine)
        # Each process opens its own pipe for writing, which blocks until the other one reads it.
        command = f"echo x > {mine} & cat {other} > /dev/null; wait; exit 0"
        registry.add("PreToolUse", CommandHandler(command, str(tmp_path)), "Bash")
    refusing = "echo 'not on a Friday' >&2; exit 2"
    registry.add("PreToolUse", CommandHandler(refusing, str(tmp_path)), "bash")
    call = ToolCall(id="c", use_id="u", name="bash", input={"command": "deploy"})
    with anyio.fail_after(30):
        verdict = await registry.pre_tool_use(PreToolUse(call, Caller(folder=str(tmp_path))))
    assert (verdict.decision, verdict.why) == ("deny", "not on a Friday")
    assert verdict.notices == ()
    assert "not on a Friday" in verdict.by

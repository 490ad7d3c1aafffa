"""Servers of a manager: their processes, restarts, tool lists, and the limits of a call."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from tests.adapters.mcp.mcp_world import McpWorld, processes_with, raw_server, servers, text_of

from callboard.core.mcp.limits import McpLimits
from callboard.types.errors import ToolRefused
from callboard.types.mcp import ServerEntry

pytestmark = pytest.mark.anyio

QUICK = McpLimits(start=20, call=60, idle=1.0)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


async def _wait_until(world: McpWorld, there: Callable[[], bool]) -> None:
    """Wait for changes of the servers until the condition holds."""
    with anyio.fail_after(180):
        revision = world.manager.revision
        while not there():
            revision = await world.manager.changed(revision)


async def test_arguments_named_like_variables_reach_the_server_as_they_are(workspace: Path) -> None:
    given = {"self": 1, "class": [2], "text": "t", "context": {"call": 3}, "name": "n", "__class__": None}
    async with servers(workspace, raw_server("a")) as world:
        assert json.loads(await world.text("mcp__a__echo", **given)) == given


async def test_of_two_tools_with_one_normalised_name_the_later_server_fails_and_says_so(workspace: Path) -> None:
    async with servers(workspace, raw_server("a.b"), raw_server("other"), raw_server("a_b")) as world:
        await _wait_until(world, lambda: all(one.state in ("connected", "failed") for one in world.manager.now()))
        states = {one.name: (one.state, one.why) for one in world.manager.now()}
        assert states["a.b"][0] == states["other"][0] == "connected"
        assert states["a_b"][0] == "failed"
        assert "mcp__a_b__echo is a tool of the server a.b already" in states["a_b"][1]
        assert await world.text("mcp__a_b__echo", text="x") == '{"text": "x"}'


async def test_a_wrong_argument_never_leaves(workspace: Path) -> None:
    async with servers(workspace, raw_server("a")) as world:
        with pytest.raises(ToolRefused, match="`text` must be string"):
            await world.call("mcp__a__echo", text=5)


@pytest.mark.slow
async def test_a_process_that_died_is_started_again_by_the_next_call_three_times_a_minute(workspace: Path) -> None:
    async with servers(workspace, raw_server("a"), raw_server("b")) as world:
        for _ in range(3):
            with pytest.raises(ToolRefused, match=r"connection ended.*unknown, and it was not repeated"):
                await world.call("mcp__a__die")
        with pytest.raises(ToolRefused, match="started 3 times within 60 s"):
            await world.call("mcp__a__echo")
        (a, b) = world.manager.now()
        assert (a.state, b.state) == ("failed", "connected")
        assert "mcp__a__echo" in world.manager.tools()
        assert await world.text("mcp__b__echo") == "{}"


async def test_a_dead_process_tells_its_exit_code_and_comes_back(workspace: Path) -> None:
    async with servers(workspace, raw_server("a")) as world:
        with pytest.raises(ToolRefused):
            await world.call("mcp__a__die")
        await _wait_until(world, lambda: world.manager.now()[0].state == "failed")
        assert "exit code 9" in world.manager.now()[0].why
        assert await world.text("mcp__a__echo") == "{}"
        assert world.manager.now()[0].state == "connected"


async def test_a_silent_call_ends_and_the_server_is_told(workspace: Path) -> None:
    async with servers(workspace, raw_server("a"), limits=QUICK) as world:
        with pytest.raises(ToolRefused, match="said nothing for 1 s"):
            await world.call("mcp__a__hang")
        assert await world.text("mcp__a__echo") == "{}"
    assert "cancelled" in (workspace.parent / "work-logs" / "a.log").read_text(encoding="utf-8")


async def test_progress_keeps_a_call_alive_up_to_its_own_time_out(workspace: Path) -> None:
    # the steps of a call take longer than the limit; each takes a tenth of it, even on a busy machine
    async with servers(
        workspace, raw_server("a"), raw_server("b", timeout=1.0), limits=replace(QUICK, idle=2.0)
    ) as world:
        assert await world.text("mcp__a__steps") == "{}"
        assert world.progress[0] == "0/11"
        with pytest.raises(ToolRefused, match="took longer than 1 s"):
            await world.call("mcp__b__steps")


async def test_a_server_that_answers_no_ping_either_is_started_anew(workspace: Path) -> None:
    async with servers(workspace, raw_server("a", "deaf"), limits=QUICK) as world:
        with pytest.raises(ToolRefused, match=r"said nothing for 1 s"):
            await world.call("mcp__a__hang")
        await _wait_until(world, lambda: world.manager.now()[0].state == "failed")
        assert "did not answer a ping" in world.manager.now()[0].why
        assert await world.text("mcp__a__echo") == "{}"


async def test_a_large_result_shows_head_and_tail_and_is_kept_whole(workspace: Path) -> None:
    async with servers(workspace, raw_server("a"), limits=McpLimits(shown=10_000)) as world:
        outcome = await world.call("mcp__a__large")
        shown, whole = text_of(outcome), Path(outcome.data["whole"]).read_text(encoding="utf-8")
        assert len(shown) < 10_300
        assert shown.startswith("line 0\n")
        assert shown.endswith("line 29999\n")
        assert str(outcome.data["whole"]) in shown
        assert whole.splitlines()[12_345] == "line 12345"


@pytest.mark.slow
async def test_an_answer_that_is_too_long_is_an_error_of_its_own_call(workspace: Path) -> None:
    async with servers(workspace, raw_server("a", "noise")) as world:
        with pytest.raises(ToolRefused, match=r"over 16,777,216 bytes"):
            await world.call("mcp__a__huge")
        assert await world.text("mcp__a__echo") == "{}"


async def test_a_changed_list_adds_tools_and_keeps_the_objects_of_the_others(workspace: Path) -> None:
    async with servers(workspace, raw_server("a")) as world:
        before = world.manager.tools()
        assert world.manager.tools() is before
        await world.call("mcp__a__grow", text="new.tool")
        await _wait_until(world, lambda: "mcp__a__new_tool" in world.manager.tools())
        after = world.manager.tools()
        assert all(after[name] is tool for name, tool in before.items())
        assert world.manager.now()[0].tools == tuple(sorted(after))


async def test_a_new_list_that_cannot_be_told_apart_is_not_used(workspace: Path) -> None:
    async with servers(workspace, raw_server("a")) as world:
        await world.call("mcp__a__grow", text="new.tool")
        await world.call("mcp__a__grow", text="new/tool")
        await _wait_until(world, lambda: "could not" in world.manager.now()[0].why)
        assert world.manager.now()[0].state == "connected"
        assert await world.text("mcp__a__echo") == "{}"


async def test_a_server_knows_no_keys_but_those_its_entry_names(workspace: Path) -> None:
    told = {
        **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        "ANTHROPIC_API_KEY": "sk-1",
        "GITHUB_TOKEN": "t",
        "LANG": "C.UTF-8",
    }
    entry = raw_server("a", env={"MY_TOKEN": "mine"})
    async with servers(workspace, entry, environment=told) as world:
        found = json.loads(await world.text("mcp__a__env"))
    assert "ANTHROPIC_API_KEY" not in found
    assert "GITHUB_TOKEN" not in found
    assert (found["MY_TOKEN"], found["LANG"]) == ("mine", "C.UTF-8")
    assert found["CLAUDE_PROJECT_DIR"] == str(workspace)


async def test_instructions_and_descriptions_are_cut(workspace: Path) -> None:
    async with servers(workspace, raw_server("a")) as world:
        assert len(world.manager.now()[0].instructions) <= 2_000


@pytest.mark.parametrize("words", [(), ("stubborn",), ("parent",)])
async def test_nothing_of_a_server_is_left_when_the_session_ends(workspace: Path, words: tuple[str, ...]) -> None:
    mark = f"MARK={workspace}"
    async with servers(workspace, raw_server("a", *words, env={"MARK": str(workspace)})):
        assert processes_with(mark)
    assert not processes_with(mark)


@pytest.mark.slow
def test_nothing_of_a_server_is_left_when_the_session_is_killed(workspace: Path) -> None:
    child = textwrap.dedent(
        f"""
        import anyio, os
        from pathlib import Path
        from callboard.adapters.extensions.hook_sandbox import starts_workspace_code
        from callboard.adapters.mcp.manager import Manager
        from callboard.adapters.mcp.transports import ServerEnvironment
        from tests.adapters.mcp.mcp_world import raw_server
        async def main():
            where = Path({str(workspace)!r})
            entry = raw_server("a", "parent", "stubborn", env={{"MARK": str(where)}})
            logs = where / "logs"
            place = ServerEnvironment(where, dict(os.environ), logs, runs_workspace_code=starts_workspace_code)
            manager = Manager([entry], place)
            async with manager.running():
                await manager.ready()
                print(manager.now()[0].state, flush=True)
                await anyio.sleep_forever()
        anyio.run(main)
        """
    )
    root = Path(__file__).resolve().parents[3]
    with subprocess.Popen([sys.executable, "-c", child], cwd=root, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"connected\n"
        watched = [os.pidfd_open(pid) for pid in processes_with(f"MARK={workspace}")]
        assert watched
        process.send_signal(signal.SIGKILL)
    anyio.run(_wait_for_ends, watched)
    assert not processes_with(f"MARK={workspace}")


async def _wait_for_ends(watched: list[int]) -> None:
    with anyio.fail_after(180):
        for one in watched:
            await anyio.wait_readable(one)
            os.close(one)


@pytest.mark.slow
async def test_what_cannot_be_started_fails_by_itself_with_its_reason(workspace: Path) -> None:
    broken = replace(raw_server("dies"), args=("-c", "import sys; sys.exit('no such database')"))
    entries = (
        raw_server("a"),
        replace(raw_server("gone"), command="no-such-program"),
        broken,
        replace(raw_server("mute"), args=("-c", "import time; time.sleep(600)")),
        ServerEntry("far", "http", "run", "a test", url="http://127.0.0.1:9/mcp"),
    )
    async with servers(workspace, *entries, limits=McpLimits(start=3)) as world:
        now = {one.name: one for one in world.manager.now()}
        assert now["a"].state == "connected"
        assert "not found on PATH" in now["gone"].why
        assert "no such database" in now["dies"].why
        assert "exit code 1" in now["dies"].why
        assert "not ready within 3 s" in now["mute"].why
        assert now["far"].state == "failed"
        with pytest.raises(ToolRefused, match="not found on PATH"):
            await world.manager.connect("gone")
        with pytest.raises(ToolRefused, match="choose a, dies"):
            await world.manager.connect("nobody")


@pytest.mark.slow
async def test_servers_are_held_switched_off_on_added_and_removed(workspace: Path) -> None:
    held = {"b": ("untrusted", "nobody trusted it"), "c": ("off", "settings")}
    async with servers(workspace, raw_server("a"), raw_server("b"), raw_server("c"), held=held) as world:
        manager = world.manager
        assert [one.state for one in manager.now()] == ["connected", "untrusted", "off"]
        assert not [name for name in manager.tools() if not name.startswith("mcp__a__")]
        with pytest.raises(ToolRefused, match="nobody trusted it"):
            await manager.connect("b")
        assert (await manager.connect("c")).state == "connected"
        assert (await manager.switch_off("a")).state == "off"
        assert "mcp__a__echo" not in manager.tools()
        assert (await manager.connect("a")).state == "connected"
        await manager.add(raw_server("d"))
        await _wait_until(world, lambda: "mcp__d__echo" in manager.tools())
        await manager.remove("d")
        assert "mcp__d__echo" not in manager.tools()
        assert [one.name for one in manager.now()] == ["a", "b", "c"]


async def test_a_server_that_is_switched_off_while_it_is_off_can_be_connected(workspace: Path) -> None:
    async with servers(workspace, raw_server("a")) as world:
        for _ in range(2):
            assert (await world.manager.switch_off("a")).state == "off"
            await anyio.wait_all_tasks_blocked()  # the owning task waits until the server is needed
        with anyio.fail_after(60):
            assert (await world.manager.connect("a")).state == "connected"


async def test_a_call_whose_caller_is_interrupted_is_cancelled_at_the_server(workspace: Path) -> None:
    async with servers(workspace, raw_server("a")) as world:
        with anyio.move_on_after(0.2):
            await world.call("mcp__a__hang")
        assert await world.text("mcp__a__echo") == "{}"
    assert "cancelled" in (workspace.parent / "work-logs" / "a.log").read_text(encoding="utf-8")


async def test_a_connected_server_is_connected_anew_when_somebody_wants_that(workspace: Path) -> None:
    async with servers(workspace, raw_server("a", env={"MARK": str(workspace)})) as world:
        before = processes_with(f"MARK={workspace}")
        assert (await world.manager.connect("a")).state == "connected"
        assert not set(before) & set(processes_with(f"MARK={workspace}"))
        assert await world.text("mcp__a__echo") == "{}"

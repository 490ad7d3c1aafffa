"""A process that a tool started is distinguished from a person's, whatever it does to its environment and parents."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path

import anyio
import pytest

from callboard.adapters.processes import tool_ancestry
from callboard.adapters.processes.launcher import ShellLauncher
from callboard.types.errors import UsageError

pytestmark = pytest.mark.anyio

PROBE = shlex.join([sys.executable, str(Path(__file__).with_name("probe_ancestry.py"))])
CLEAN = f"env -i PYTHONPATH={shlex.quote(os.pathsep.join(sys.path))} {PROBE}"
ESCAPES = {
    "plain": f"{PROBE} > out; mv out told",
    "without the variable": f"unset CALLBOARD_TOOL; {CLEAN} > out; mv out told",
    "in a session of its own": f"setsid {CLEAN} > out; mv out told",
    "ignoring hangups": f"nohup {CLEAN} > out 2>/dev/null; mv out told",
    "as a daemon": f"(setsid sh -c {shlex.quote(f'sleep 0.2; {CLEAN} > out; mv out told')} &); sleep 5",
    "as an orphan, its launcher killed": (
        f"setsid sh -c {shlex.quote(f'sleep 0.5; {CLEAN} > out; mv out told')} & sleep 0.2; kill -9 $PPID; sleep 5"
    ),
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize("flight", ESCAPES)
async def test_a_command_that_hides_where_it_comes_from_is_still_a_tools(tmp_path: Path, flight: str) -> None:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}
    launcher = ShellLauncher(tmp_path, environment, extra=("PYTHONPATH",))
    told = tmp_path / "told"
    async with anyio.create_task_group() as group:
        output = tmp_path / "results" / "call.out"
        group.start_soon(partial(launcher.run, ESCAPES[flight], tmp_path, timeout=20.0, keep=output))
        with anyio.fail_after(180):
            while not told.exists():
                await anyio.sleep(0.02)
        group.cancel_scope.cancel()
    assert told.read_text().strip() != "a person's"


def test_a_process_of_a_person_is_one() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for wrapper in ("", "setsid ", "nohup "):
        ran = subprocess.run(
            ["/bin/sh", "-c", f"{wrapper}{PROBE}"], env=environment, capture_output=True, text=True, check=True
        )
        assert ran.stdout.strip() == "a person's", wrapper


def test_an_action_of_a_person_is_refused_in_a_process_that_a_tool_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_marked(pid: int, lines: object) -> bool:
        return pid == os.getppid()

    monkeypatch.setattr(tool_ancestry, "_is_marked", is_marked)
    with pytest.raises(UsageError, match=r"^Approving is for a person, .* was started by a tool\)"):
        tool_ancestry.refuse_inside_tool("Approving")


def test_a_service_may_have_been_started_without_new_privileges(monkeypatch: pytest.MonkeyPatch) -> None:
    def bit(pid: int) -> str:
        return "1" if pid == os.getpid() else "0"

    def no() -> bool:
        return False

    def yes() -> bool:
        return True

    monkeypatch.setattr(tool_ancestry, "_no_new_privs", bit)
    assert tool_ancestry.started_by_tool() == "", "a person's shell may have the bit that marks tools"
    monkeypatch.setattr(tool_ancestry, "_can_be_marked", no)
    monkeypatch.setattr(tool_ancestry, "_shows_all_ancestors", yes)
    assert tool_ancestry.started_by_tool(service=True) == ""
    assert "cannot gain privileges" in tool_ancestry.started_by_tool()

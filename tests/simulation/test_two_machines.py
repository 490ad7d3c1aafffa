"""One session, two machines with a server between them: each has its own home, and cannot see the other's processes.

A namespace of processes takes the part of a machine. The witness is a file to which the session's command writes the
time ten times a second, with the name of the machine that runs it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.postgres_proxy import Proxy, proxied
from tests.postgres_server import PostgresServer

pytest.importorskip("psycopg", reason="the extra callboard[postgres] is not installed")

SCENARIO = """
agents:
  lead:
    - when: {contains: "Write."}
      reply:
        - tool_use: {name: bash, input: {command: 'for i in $(seq 600); do echo ${HOME##*/} $(date +%s.%N) >> witness; sleep 0.1; done'}}
    - when: {result_of: bash}
      reply: I know what was interrupted.
"""  # noqa: E501 - one command
LONGEST = 120.0
"""Seconds until a test gives up. A take-over takes 10 to 20."""


@pytest.fixture
def proxy(server: PostgresServer) -> Iterator[Proxy]:
    with proxied(server.socket) as proxy:
        yield proxy


class Machine:
    """A home, and processes that no other machine sees."""

    def __init__(self, name: str, workspace: Path, url: str, **variables: str) -> None:
        self._workspace = workspace
        self.home = home = workspace.parent / name
        home.mkdir()
        kept = {key: os.environ[key] for key in ("PATH", "LANG", "LC_ALL") if key in os.environ}
        self._env = {
            **kept,
            "HOME": str(home),
            "CALLBOARD_STORE": url,
            "MACHINE": name,
            "CALLBOARD_SANDBOX__LEVEL": "0",
            **variables,
        }

    @contextlib.contextmanager
    def started(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        with self._start(*words) as process:
            try:
                yield process
            finally:
                process.kill()

    def _start(self, *words: str) -> subprocess.Popen[str]:
        isolated = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
        return subprocess.Popen(
            [*isolated, sys.executable, "-m", "callboard", *words],
            cwd=self._workspace,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str) -> tuple[int, str, str]:
        with self.started(*words) as process:
            out, err = process.communicate(timeout=60)
            return process.returncode, out, err


def may_unshare() -> bool:
    tried = ["unshare", "--pid", "--fork", "true"]
    return bool(shutil.which("unshare")) and subprocess.run(tried, check=False, capture_output=True).returncode == 0


def witnessed(workspace: Path) -> list[tuple[str, float]]:
    file = workspace / "witness"
    lines = file.read_text().splitlines() if file.exists() else []
    return [(name, float(at)) for name, at in (line.split() for line in lines)]


def wait_for_witness(workspace: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + LONGEST
    while not witnessed(workspace):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "the command did not begin"
        time.sleep(0.05)


def resumed(machine: Machine) -> tuple[str, float]:
    """Resume until the other machine counts as dead. Return the answer, and when the resume began that worked.

    The attempts before it only follow the other machine, until that is dead.
    """
    deadline = time.monotonic() + LONGEST
    while True:
        began = time.time()
        code, out, err = machine.run("resume")
        if code == 0:
            return out, began
        assert "hosts session" in err, (code, out, err)
        assert time.monotonic() < deadline, "the session was not free in time"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    if not may_unshare():
        pytest.skip("this user may not create namespaces of processes")
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "scenario.yaml").write_text(SCENARIO)
    return folder


RUN = ("run", "--model", "rehearsal:scenario.yaml", "--permission-mode", "bypassPermissions", "Write.")


@pytest.mark.slow
def test_a_machine_that_dies_is_replaced_and_the_agent_hears_what_was_interrupted(
    server: PostgresServer, workspace: Path
) -> None:
    first, second = (Machine(name, workspace, server.url) for name in ("first", "second"))
    with first.started(*RUN) as process:
        wait_for_witness(workspace, process)
        process.kill()
        process.communicate()
    answer, taken_over = resumed(second)
    assert answer.strip() == "I know what was interrupted."
    assert {name for name, _ in witnessed(workspace)} == {"first"}, "a command that may have had its effect runs once"
    assert max(at for _, at in witnessed(workspace)) < taken_over


@pytest.mark.slow
def test_a_machine_that_is_cut_off_stops_before_another_one_takes_over(
    server: PostgresServer, proxy: Proxy, workspace: Path
) -> None:
    first = Machine("first", workspace, proxy.url)
    second = Machine("second", workspace, server.url)
    with first.started(*RUN) as process:
        wait_for_witness(workspace, process)
        proxy.cut = True
        answer, taken_over = resumed(second)
        _, err = process.communicate(timeout=LONGEST)
    assert process.returncode == 3
    assert "could not be reached for 5 s" in err
    assert re.search(r"`callboard resume [0-9a-f-]{36}` continues the session", err), err
    assert answer.strip() == "I know what was interrupted."
    last = max(at for name, at in witnessed(workspace) if name == "first")
    assert last < taken_over, "its commands had ended before another machine could begin"

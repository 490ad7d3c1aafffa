"""A signal ends a command between two callbacks of its event loop, not in the middle of one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest
from tests.cli.commands.command import Command

PROGRAM = """
import asyncio, os, signal
from callboard.cli.terminal.hangup import SignalExit, leave_by_signal

signal.signal(signal.SIGTERM, lambda number, frame: leave_by_signal(number, 143))

def callback():
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(1000):
        pass
    print("whole", flush=True)

async def main():
    asyncio.get_running_loop().call_soon(callback)
    await asyncio.sleep(60)

asyncio.run(main())
"""
BUSY = PROGRAM.replace("pass\n", "os.kill(os.getpid(), signal.SIGTERM)\n")


@pytest.mark.parametrize(("program", "printed"), [(PROGRAM, "whole\n"), (BUSY, "")], ids=["one", "another one"])
def test_a_callback_ends_before_the_loop_does_unless_a_second_signal_comes(program: str, printed: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (143, printed), done.stderr


def test_without_a_loop_it_ends_at_once() -> None:
    program = "from callboard.cli.terminal.hangup import leave_by_signal; leave_by_signal(15, 143); print('no')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (143, "")


def ended_page(folder: Path, seed: int) -> int:
    """Open a page in a browser that ends at once, and end the page about then; return its exit code."""
    folder.mkdir()
    command = Command(folder)
    browser, seen = folder / "browser", folder / "seen"
    os.mkfifo(seen)
    browser.write_text(f"#!/bin/sh\necho x > {seen}\n")
    browser.chmod(0o700)
    line = [sys.executable, "-m", "callboard", "web", "--port", "0", "--open"]
    env = {**command.env, "BROWSER": f"{browser} %s"}
    with subprocess.Popen(
        line, cwd=command.workspace, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        seen.read_text()
        time.sleep(Random(seed).choice([0.0, 0.0, 0.01]))
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=60)
        finally:
            process.kill()
    return process.returncode


@pytest.mark.slow
def test_a_signal_while_a_browser_is_opened_ends_the_page(tmp_path: Path) -> None:
    """Without `leave_by_signal`, 13 of 60 stayed: a worker thread waited for work, or for a lock of the imports."""
    with ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(lambda seed: ended_page(tmp_path / str(seed), seed), range(24)))
    assert codes == [143] * 24

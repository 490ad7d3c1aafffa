"""`callboard serve` during an upgrade, and with few file descriptors: it reports the problem, and goes on or stops."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
from tests.cli.commands.command import Command
from tests.simulation.serving import new_session, one_shot, stand_of

import callboard

PACKAGE = Path(callboard.__file__).parent


@contextmanager
def start_process(command: Command, words: Sequence[str], env: Mapping[str, str]) -> Generator[subprocess.Popen[str]]:
    """Start a process that ends with the test, after two minutes at most."""
    argv = ["timeout", "120", *words, "serve"]
    with subprocess.Popen(
        argv,
        cwd=command.workspace,
        env={**command.env, **env},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def lines_until(process: subprocess.Popen[str], text: str) -> str:
    """Return the output up to a text."""
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if text in said:
            return said
    raise AssertionError(f"{text!r} never appeared; output: {said}")


def create_sessions(command: Command, count: int) -> list[str]:
    """Create sessions with a schedule that is not due yet."""
    made = [new_session(command) for _ in range(count)]

    async def put() -> None:
        async with stand_of(command) as stand:
            for session in made:
                await stand.put(session, [one_shot(1, time.time() + 3_600)])

    anyio.run(put)
    return made


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


def package_copy(tmp_path: Path) -> Path:
    """Return a copy of Callboard that a test may change."""
    copy = tmp_path / "runtime" / "callboard"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("sample"))
    for name in ("agents", "skills", "hooks"):
        (tmp_path / name).symlink_to(PACKAGE.parents[1] / name)
    return copy


@pytest.mark.slow
def test_a_checkout_that_changes_under_a_running_serve_is_reported_with_the_remedy(
    command: Command, tmp_path: Path
) -> None:
    copy = package_copy(tmp_path)
    env = {"PYTHONPATH": str(copy.parent), "ANTHROPIC_API_KEY": "sk-never-used"}
    with start_process(command, [sys.executable, "-m", "callboard"], env) as process:
        lines_until(process, "no schedules yet")
        tools = copy / "adapters" / "tools" / "board.py"
        tools.write_text(tools.read_text().replace(" look_tool,", " look_tool_of_tomorrow,"))
        create_sessions(command, 1)
        said = lines_until(process, "tried again in 60 s")
    assert "cannot import name 'look_tool_of_tomorrow'" in said
    assert "Restart this process: Callboard's files were changed while it runs" in said


@pytest.mark.slow
def test_an_upgrade_under_a_running_serve_is_reported_once_and_it_leaves_to_be_restarted(
    command: Command, tmp_path: Path
) -> None:
    copy = package_copy(tmp_path)
    (session,) = create_sessions(command, 1)
    with start_process(command, [sys.executable, "-m", "callboard"], {"PYTHONPATH": str(copy.parent)}) as process:
        lines_until(process, f"hosting  {session}")
        init = copy / "__init__.py"
        init.with_name("new").write_text(init.read_text().replace(callboard.__version__, "99.1.0"))
        init.with_name("new").replace(init)
        words = f"Callboard was upgraded from {callboard.__version__} to 99.1.0 while this process runs: restart it"
        assert words in lines_until(process, "leaves at the upgrade")
        assert words not in process.communicate(timeout=180)[1]
    assert process.returncode == 75


@pytest.mark.slow
def test_with_few_open_files_it_hosts_as_many_sessions_as_fit_and_names_the_others(command: Command) -> None:
    made = create_sessions(command, 3)
    words = ["bash", "-c", 'ulimit -n 110; exec "$@"', "-", sys.executable, "-m", "callboard"]
    with start_process(command, words, {}) as process:
        said = lines_until(process, "too many files are open: this process may open 110.")
        while said.count(" hosting ") < 2:
            said += lines_until(process, " hosting ")
    assert said.count("cannot be hosted") == 1
    assert sum(f"hosting  {session}" in said for session in made) == 2

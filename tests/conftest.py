"""What all tests share: where their processes find Python, code that is compiled once, how much soak versions do."""

from __future__ import annotations

import compileall
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer  # pyright: ignore[reportMissingTypeStubs]
from xdist.scheduler import LoadScopeScheduling  # pyright: ignore[reportMissingTypeStubs]

ROOT = Path(__file__).resolve().parent.parent

# No test fails because a machine is slow. The same code gets the same examples each time; `make soak SOAK=2` and more
# draw new ones.
settings.register_profile(
    "callboard",
    deadline=None,
    derandomize=int(os.environ.get("SOAK", "1")) <= 1,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("callboard")


def pytest_configure(config: pytest.Config) -> None:
    """Make the processes that tests start cheap, hundreds of them: no compiling, and `python3` is no version manager.

    Where byte code is not written (PYTHONDONTWRITEBYTECODE, containers), each `python -m callboard` would compile the
    whole package anew; a shim for `python3` runs a hundred shells before each of the sample's commands.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # begun in the background of a shell: processes inherit that
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):  # once, not in each worker
        compileall.compile_dir(ROOT / "runtime", quiet=2)
    interpreter = str(Path(sys.executable).resolve().parent)
    if not os.environ.get("PATH", "").startswith(interpreter):
        os.environ["PATH"] = os.pathsep.join([interpreter, os.environ.get("PATH", os.defpath)])


LONGEST = (
    "simulation/test_kill_demo.py",
    "simulation/test_long_session.py",
    "test_packaging.py",
    "simulation",
    "faces",
    "adapters",
)
"""Files and folders that take long, the longest first: two workers then end at the same time, with the small tests."""

TOGETHER = (
    "tests/simulation/test_kill_demo.py",
    "tests/test_packaging.py",
    "tests/test_architecture.py",
    "tests/faces/test_demo.py",
    "tests/core/test_permission_shell.py",
    "tests/core/test_session_rules.py",
)
"""Files whose tests look at one dear thing (a demo, a built wheel, the facts of thousands of commands): they go to one
worker, which makes it once."""


class Scheduler(LoadScopeScheduling):
    """Gives each worker the next test as it comes free. `--dist loadgroup` does not with pytest 9.2: it sets a name of
    the test that pytest no longer reads, and every group falls apart without a word."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return file if file in TOGETHER else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Ours, whatever `--dist` says."""
    return Scheduler(config, log)


def place_in_line(item: pytest.Item) -> int:
    """The place of the file or folder that a test belongs to; the rest comes last."""
    where = item.nodeid.removeprefix("tests/")
    return next((place for place, name in enumerate(LONGEST) if where.startswith(name)), len(LONGEST))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long tests go first. Soak tests run only when asked for (`-m soak`): their samples are ordinary tests."""
    items.sort(key=place_in_line)
    if "soak" in (config.getoption("markexpr") or ""):
        return
    left_out = [item for item in items if "soak" in item.keywords]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if "soak" not in item.keywords]


@pytest.fixture
def soak() -> int:
    """How many times over a soak test does its work."""
    return int(os.environ.get("SOAK", "1"))

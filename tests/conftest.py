"""What all tests share: where their processes find Python, code that is compiled once, how much soak versions do."""

from __future__ import annotations

import compileall
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def pytest_configure(config: pytest.Config) -> None:
    """Make the processes that tests start cheap, hundreds of them: no compiling, and `python3` is no version manager.

    Where byte code is not written (PYTHONDONTWRITEBYTECODE, containers), each `python -m callboard` would compile the
    whole package anew; a shim for `python3` runs a hundred shells before each of the sample's commands.
    """
    if not hasattr(config, "workerinput"):  # once, not in each worker
        compileall.compile_dir(ROOT / "runtime", quiet=2)
    interpreter = str(Path(sys.executable).resolve().parent)
    if not os.environ.get("PATH", "").startswith(interpreter):
        os.environ["PATH"] = os.pathsep.join([interpreter, os.environ.get("PATH", os.defpath)])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Soak tests run only when they are asked for (`-m soak`): their samples are ordinary tests."""
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

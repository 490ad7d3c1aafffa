"""What all tests share: how much the soak versions do."""

from __future__ import annotations

import os

import pytest


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

"""Fixtures of the tests of MCP servers."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """Event loop of the tests: the SDK's HTTP clients and the servers of these tests need asyncio."""
    return "asyncio"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Folder of a workspace."""
    workspace = tmp_path / "work"
    workspace.mkdir()
    return workspace

"""A workspace of its own for the tests of the Python API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A workspace with separate homes. The model follows `SCENARIO` of the test's module."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("STATE", "DATA", "CONFIG", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    monkeypatch.setenv("MODEL_ID", f"rehearsal:{tmp_path / 'model.yaml'}")
    (tmp_path / "model.yaml").write_text(request.module.SCENARIO)
    (tmp_path / "work").mkdir()
    structlog.reset_defaults()  # a command of an earlier test in this process has configured it
    yield tmp_path / "work"
    structlog.reset_defaults()

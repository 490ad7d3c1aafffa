"""The garbage collector is paused during a large import, and resumes afterwards."""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest

from callboard.sessions.quick_imports import collector_paused


@pytest.fixture(autouse=True)
def collector() -> Generator[None]:
    """Restore the state of this process's collector."""
    was_enabled = gc.isenabled()
    gc.enable()
    yield
    if not was_enabled:
        gc.disable()


def test_the_collector_goes_on_after_an_import_and_after_a_failed_one() -> None:
    with collector_paused():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ImportError), collector_paused():
        raise ImportError("broken")
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    with collector_paused():
        pass
    assert not gc.isenabled()

"""The garbage collector is paused during a large import, and resumes afterwards."""

from __future__ import annotations

import gc
import subprocess
import sys
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


def measured(statements: str) -> list[int]:
    """Objects frozen and the youngest generation's threshold, in a process that runs these statements."""
    code = f"import gc\nfrom callboard.sessions import quick_imports as q\n{statements}\n"
    code += "print(gc.get_freeze_count(), gc.get_threshold()[0])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.split()]


def test_an_application_that_embeds_the_runtime_keeps_its_collector_as_it_is() -> None:
    assert measured("with q.collector_paused(): import json\nq.freeze_opened()") == measured("")


def test_the_command_line_freezes_what_it_imports_and_once_what_a_session_loads() -> None:
    first, _ = measured("q.freeze_imports()")
    imported, threshold = measured("q.freeze_imports()\nwith q.collector_paused(): import http.server")
    opened, _ = measured("q.freeze_imports()\nimport http.server\nq.freeze_opened()")
    again, _ = measured("q.freeze_imports()\nq.freeze_opened()\nimport http.server\nq.freeze_opened()")
    assert threshold > measured("")[1]
    assert min(imported, opened) > first + 1_000
    assert again < opened - 1_000, "the second session of a process may leave garbage behind, which must not stay"

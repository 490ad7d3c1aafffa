"""A plugin of pytest that begins no test after a while, and says which ones have not run: `--stop-after SECONDS`."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest

NOT_RUN = "not_run"


class TimeLimit:
    """Passes over the tests that are left when the time is up. A test that runs then runs to its end."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = time.monotonic() + seconds
        self._not_run: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Return True in place of running the test."""
        if time.monotonic() < self._end:
            return None
        self._not_run.append(item.nodeid)
        return True

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Pass a worker's names on to the process that prints them."""
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[NOT_RUN] = self._not_run

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._not_run += getattr(node, "workeroutput", {}).get(NOT_RUN, [])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._not_run:
            return
        terminalreporter.section(f"the time of {self._seconds:g} s was up: {len(self._not_run)} tests have not run")
        files = Counter(nodeid.partition("::")[0] for nodeid in self._not_run)
        for file, count in sorted(files.items()):
            terminalreporter.write_line(f"{count:5}  {file}")

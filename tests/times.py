"""A plugin of pytest that prints where the time of a run goes: `make test-times`, or `-p tests.times`.

Wall time is what a test took on its worker. CPU time is what the worker and the processes that it has waited for used
meanwhile: work. The difference is waiting, which several workers do at the same time, or a busy machine.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from tests import warm

SLOWEST = 40
"""Rows in a table of tests or files."""
CPU = "cpu_seconds"
START = "start_seconds"


def cpu_seconds() -> float:
    """Return the CPU time of this process and of those that it has waited for, copies of the warm one too."""
    usages = [resource.getrusage(kind) for kind in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    copies = warm.server().cpu_seconds if warm.server.cache_info().currsize else 0.0
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) + copies


@dataclass
class Cost:
    """Tests, and the seconds that they took."""

    tests: int = 0
    wall: float = 0.0
    cpu: float = 0.0

    def add(self, other: Cost) -> None:
        self.tests += other.tests
        self.wall += other.wall
        self.cpu += other.cpu


class Times:
    """Measures in each worker, and adds up and prints in the process that started them."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._stamp = cpu_seconds()
        self._costs: dict[str, Cost] = {}
        self._starts: list[tuple[float, float]] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note what it took to be ready for the first test: imports and collection."""
        ready = (time.monotonic() - self._begun, cpu_seconds())
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[START] = ready
        elif not session.config.getoption("numprocesses", None):
            self._starts.append(ready)
        self._stamp = cpu_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the CPU time since the last report to this one."""
        report = yield
        now = cpu_seconds()
        report.user_properties = [*report.user_properties, (CPU, now - self._stamp)]
        self._stamp = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        cost = self._costs.setdefault(report.nodeid, Cost(tests=1))
        cost.wall += report.duration
        cost.cpu += sum(float(str(seconds)) for name, seconds in report.user_properties if name == CPU)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        output = getattr(node, "workeroutput", {})
        if START in output:
            self._starts.append(output[START])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._costs:
            return
        terminalreporter.section("times")
        for line in self.lines():
            terminalreporter.write_line(line)

    def lines(self) -> Iterable[str]:
        """Return the tables, the whole first."""
        whole = Cost()
        for cost in self._costs.values():
            whole.add(cost)
        seconds = time.monotonic() - self._begun
        yield f"{whole.tests} tests in {seconds:.0f} s: {whole.wall:.0f} s on their workers, {whole.cpu:.0f} s of CPU"
        for wall, cpu in self._starts:
            yield f"a worker was ready after {wall:.1f} s ({cpu:.1f} s of CPU)"
        yield from _table("package", _grouped(self._costs, _package), len(self._costs))
        yield from _table("file", _grouped(self._costs, _file), SLOWEST)
        yield from _table("test", self._costs, SLOWEST)


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def _package(nodeid: str) -> str:
    folders = _file(nodeid).split("/")[:-1]
    return "/".join(folders[:3])


def _grouped(costs: dict[str, Cost], group: Any) -> dict[str, Cost]:
    groups: dict[str, Cost] = {}
    for nodeid, cost in costs.items():
        groups.setdefault(group(nodeid), Cost()).add(cost)
    return groups


def _table(title: str, costs: dict[str, Cost], rows: int) -> Iterable[str]:
    yield ""
    yield f"{'wall s':>8} {'CPU s':>8} {'tests':>6}  {title}"
    for name, cost in sorted(costs.items(), key=lambda pair: -pair[1].wall)[:rows]:
        yield f"{cost.wall:8.1f} {cost.cpu:8.1f} {cost.tests:6}  {name}"


def pytest_configure(config: pytest.Config) -> None:
    """Register the tables."""
    config.pluginmanager.register(Times(), "times")

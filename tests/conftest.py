"""What all tests share: where their processes find Python, code that is compiled once, the order of tests, and how much
soak tests do."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings
from tests import bytecode, warm, workers
from tests.postgres_server import PostgresServer, running
from tests.time_limit import TimeLimit
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from callboard.cli._fast_start import structlog_alone

ROOT = Path(__file__).resolve().parent.parent

structlog_alone()  # with rich, structlog takes half a second to print one crash

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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--stop-after",
        type=float,
        metavar="SECONDS",
        help="begin no test after so many seconds, and say which ones have not run",
    )
    parser.addoption("--all", action="store_true", help="run the tests marked `slow`, too")


def pytest_configure(config: pytest.Config) -> None:
    """Make the processes that tests start cheap, hundreds of them: no compiling, and `python3` is no version manager.

    Where byte code is not written (PYTHONDONTWRITEBYTECODE, containers), each `python -m callboard` would compile the
    whole package anew; a shim for `python3` runs a hundred shells before each of the sample's commands.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # begun in the background of a shell: processes inherit that
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # begun by `nohup`
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if (seconds := config.getoption("stop_after")) is not None:
        config.pluginmanager.register(TimeLimit(seconds))
    gc.disable()  # while tests are collected, which makes hundreds of thousands of objects and no garbage
    if not hasattr(config, "workerinput"):  # once, not in each worker
        bytecode.prepare(config, ROOT / "runtime")
    interpreter = str(Path(sys.executable).resolve().parent)
    if not os.environ.get("PATH", "").startswith(interpreter):
        os.environ["PATH"] = os.pathsep.join([interpreter, os.environ.get("PATH", os.defpath)])


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Start the processes that the workers share. xdist starts the workers after this."""
    config = session.config
    if not hasattr(config, "workerinput") and config.getoption("numprocesses", None):
        processes = contextlib.ExitStack()
        processes.enter_context(warm.shared())
        processes.enter_context(workers.copied(config, bytecode.test_files(config)))
        config.add_cleanup(processes.close)


LONGEST = (
    "simulation/test_fleet.py",
    "simulation/test_kill_demo.py",
    "simulation/test_long_session.py",
    "test_packaging.py",
    "test_architecture.py",
    "test_typed_programs.py",
    "test_examples.py",
    "test_run_plugins.py",
    "test_flows.py",
    "simulation",
    "cli",
    "adapters",
)
"""Files and folders that take long, the longest first: two workers then end at the same time, with the small tests."""

SOAK_FIRST = (
    "simulation/test_kill_demo.py",
    "simulation/test_fault_loop.py",
    "simulation/test_chaos.py",
    "simulation/test_team_simulation.py",
    "simulation/test_several_hosts.py",
    "simulation/test_serve_processes.py",
    "adapters/storage/test_store_processes.py",
    "adapters/git/test_worktree_kills.py",
    "core/permissions",
    "adapters/shell/test_path_races.py",
    "simulation/test_fault_matrix.py",
    "simulation/test_two_answers.py",
    "simulation/test_resume_team.py",
    "adapters/storage",
    "simulation",
    "adapters",
    "core",
)
"""Files and folders of soak tests, the most important first: the time may not suffice for all."""

SOAK_LIMIT = 3600
"""Seconds after which one soak test fails as hanging; `timeout` in `pyproject.toml` is the limit of the others."""

TOGETHER = (
    "tests/simulation/test_kill_demo.py",
    "tests/test_packaging.py",
    "tests/test_typed_programs.py",
    "tests/test_architecture.py",
    "tests/cli/commands/test_demo.py",
    "tests/cli/commands/test_one_policy.py",
    "tests/cli/commands/test_policy_log.py",
    "tests/cli/repl/test_whole_words.py",
    "tests/adapters/git/test_objects.py",
    "tests/adapters/storage/test_store_postgres.py",
    "tests/adapters/storage/test_postgres_failures.py",
    "tests/adapters/storage/test_postgres_transfer.py",
    "tests/cli/commands/test_store.py",
    "tests/simulation/test_two_machines.py",
    "tests/core/permissions/test_permission_shell.py",
    "tests/core/approvals/test_session_rules.py",
)
"""Files whose tests look at one dear thing (a demo, a built wheel, a session, the facts of thousands of commands): they
go to one worker, which makes it once."""


SAMPLE, FEWEST = 5, 10
"""Of the examples of a property, `make test` draws one in five, but not fewer than ten; `make soak` draws all."""

ON_TRIO = ("adapters/storage/", "engine/agent/", "engine/approvals/", "engine/messaging/", "engine/recovery/")
"""Folders whose tests `make test` runs on trio, too. The others run on it with the slow tests."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A PostgreSQL server for all tests of a module. A test that stops it starts it again."""
    with running() as server:
        yield server


class Scheduler(LoadScopeScheduling):
    """Gives each worker the next test as it comes free. `--dist loadgroup` does not with pytest 9.2: it sets a name of
    the test that pytest no longer reads, and every group falls apart without a word."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return file if file in TOGETHER else nodeid

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """Forget what a worker has completed. To count what it has left, xdist looks at all that it was ever given."""
        nodeid = self.registered_collections[node][item_index]
        scope = self._split_scope(nodeid)
        unit = self.assigned_work[node][scope]
        unit[nodeid] = True
        if all(unit.values()):
            del self.assigned_work[node][scope]
        self._reschedule(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Ours, whatever `--dist` says."""
    return Scheduler(config, log)


def place_in_line(item: pytest.Item, line: tuple[str, ...]) -> int:
    """Return the place of the file or folder that a test belongs to; what is not in the line comes last."""
    path = item.nodeid.removeprefix("tests/")
    return next((place for place, name in enumerate(line) if path.startswith(name)), len(line))


def in_rounds(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return soak tests in rounds: the first test of each file, the most important file first, then the second ones."""
    rounds: Counter[str] = Counter()
    numbers: dict[str, int] = {}
    for item in items:
        file = item.nodeid.partition("::")[0]
        numbers[item.nodeid] = rounds[file]
        rounds[file] += 1
    return sorted(items, key=lambda item: (numbers[item.nodeid], place_in_line(item, SOAK_FIRST)))


def of_properties(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests that hypothesis draws examples for."""
    return [item for item in items if is_hypothesis_test(getattr(item, "obj", None))]


def take_samples(items: list[pytest.Item]) -> None:
    """Let these tests draw fewer examples. As hypothesis' own plugin does, replace the settings of the function."""
    for test in {getattr(item.obj, "__func__", item.obj) for item in items if isinstance(item, pytest.Function)}:
        if (drawn := getattr(test, "_hypothesis_internal_use_settings", None)) is not None:  # a state machine has none
            fewer = max(drawn.max_examples // SAMPLE, min(FEWEST, drawn.max_examples))
            test._hypothesis_internal_use_settings = settings(drawn, max_examples=fewer)


def trio_twins(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return, and mark as slow, what runs on trio as well as on asyncio, except for the core promises."""
    twins: list[pytest.Item] = []
    functions: dict[str, dict[bool, list[pytest.Item]]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            backend = item.callspec.params.get("anyio_backend")
            on_trio = "trio" in (backend if isinstance(backend, tuple) else (backend,))
            functions.setdefault(item.nodeid.partition("[")[0], {}).setdefault(on_trio, []).append(item)
    for name, cases in functions.items():
        if len(cases) == 2 and not name.removeprefix("tests/").startswith(ON_TRIO):
            twins += cases[True]
    for twin in twins:
        twin.add_marker(pytest.mark.slow)
    return twins


def slow_ones(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests that `make test` leaves out: those marked `slow`, without the cases that are kept of each.

    The kept cases are drawn by their names: at even distances, all would be of one role or kind.
    """
    functions: dict[str, list[pytest.Item]] = {}
    for item in items:
        if "slow" in item.keywords:
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out: list[pytest.Item] = []
    for cases in functions.values():
        mark = cases[0].get_closest_marker("slow")
        keep = mark.kwargs.get("keep", 0) if mark else 0
        left_out += sorted(cases, key=lambda case: crc32(case.nodeid.encode()))[keep:]
    return left_out


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long tests go first. Soak tests run only when asked for (`-m soak`): their samples are ordinary tests. A test of
    a property is both. Slow tests run when asked for, too: with `--all`, `-m slow`, or the name of their file."""
    if "soak" in (config.getoption("markexpr") or ""):
        for item in of_properties(items):
            item.add_marker("soak")
        for item in items:
            item.add_marker(pytest.mark.timeout(SOAK_LIMIT))
        items[:] = in_rounds([item for item in items if "soak" in item.keywords])
        return
    items.sort(key=lambda item: place_in_line(item, LONGEST))
    gone = {item for item in items if "soak" in item.keywords}
    twins = trio_twins(items)
    if not (config.getoption("all") or "slow" in (config.getoption("markexpr") or "")):
        named = {config.invocation_params.dir / argument.partition("::")[0] for argument in config.args}
        excluded = gone.union(twins)
        slow = twins + slow_ones([item for item in items if item not in excluded])
        gone.update(item for item in slow if item.path not in named)
    if gone:
        config.hook.pytest_deselected(items=[*gone])
        items[:] = [item for item in items if item not in gone]
    take_samples(of_properties(items))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """From here on the collector passes over the modules and tests of this worker: to walk them takes a third of a
    second each time."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    gc.enable()
    if hasattr(session.config, "workerinput"):
        workers.send_less(session.config)


@pytest.fixture
def soak() -> int:
    """How many times over a soak test does its work."""
    return int(os.environ.get("SOAK", "1"))

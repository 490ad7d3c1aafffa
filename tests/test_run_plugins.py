"""The plugins of pytest that these tests bring: a run that ends in time, and one that says where its time goes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

TESTS = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_number(number):
    assert number >= 0
"""


def run(folder: Path, conftest: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run three tests in a project of their own."""
    (folder / "conftest.py").write_text(conftest)
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_numbers.py").write_text(TESTS)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    line = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "xdist", *options]
    return subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=300)


LIMIT = """
from tests.time_limit import TimeLimit

def pytest_configure(config):
    config.pluginmanager.register(TimeLimit({}))
"""


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one process", "workers"])
def test_when_the_time_is_up_no_test_begins_and_the_others_are_listed(tmp_path: Path, options: tuple[str, ...]) -> None:
    ran = run(tmp_path, LIMIT.format(0), *options)
    assert " passed" not in ran.stdout, ran.stdout
    assert "the time of 0 s was up: 3 tests have not run" in ran.stdout, ran.stdout + ran.stderr
    assert "    3  test_numbers.py" in ran.stdout
    assert "INTERNALERROR" not in ran.stdout


@pytest.mark.slow
def test_a_run_within_its_time_runs_all_tests_and_says_what_each_took(tmp_path: Path) -> None:
    ran = run(tmp_path, LIMIT.format(10_000), "-p", "tests.times", "-n", "2")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "3 passed" in ran.stdout
    assert "not run" not in ran.stdout
    assert "\n3 tests in " in ran.stdout
    assert ran.stdout.count("a worker was ready after") == 2
    for row in ("test_numbers.py", *(f"test_numbers.py::test_number[{number}]" for number in range(3))):
        assert any(line.endswith(f"  {row}") for line in ran.stdout.splitlines()), ran.stdout


COMPILED = """
from pathlib import Path
from tests import bytecode

def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        bytecode.prepare(config, Path("package"))
        print(*sorted(path.name.partition(".")[0] for path in Path().rglob("*.pyc")), flush=True)
"""


@pytest.mark.slow
def test_byte_code_is_made_before_the_workers_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "module.py").touch()
    (tmp_path / "test_broken.py").write_text("def")
    ran = run(tmp_path, COMPILED, "-n", "2", "--continue-on-collection-errors")
    assert ran.stdout.splitlines()[0] == "conftest module test_numbers", ran.stdout + ran.stderr
    assert "3 passed, 1 error" in ran.stdout
    assert "SyntaxError" in ran.stdout
    assert "byte code was not made" not in ran.stdout + ran.stderr


COPIED = """
import contextlib
from pathlib import Path
from tests import workers

def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        copies = contextlib.ExitStack()
        copies.enter_context(workers.copied(config, Path.cwd().glob("test_*.py")))
        config.add_cleanup(copies.close)
"""

IMPORTS = """
from pathlib import Path

with Path("imports").open("a") as file:
    file.write("one ")
"""

THREAD = """
import threading

threading.Thread(target=threading.Event().wait, daemon=True).start()
"""

CRASH = """
import os, signal

def test_crash():
    os.kill(os.getpid(), signal.SIGKILL)
"""

WARNS = "import warnings; warnings.warn('a warning of an import')"


@pytest.mark.slow
def test_workers_share_their_imports_and_one_that_dies_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "test_imports.py").write_text(IMPORTS)
    (tmp_path / "test_crash.py").write_text(CRASH)
    (tmp_path / "test_warns.py").write_text(WARNS)
    ran = run(tmp_path, COPIED, "-n", "2", "-W", "error", "--continue-on-collection-errors")
    assert "1 failed, 3 passed" in ran.stdout, ran.stdout + ran.stderr
    assert "crashed while running 'test_crash.py::test_crash'" in ran.stdout
    assert "a warning of an import" in ran.stdout
    assert (tmp_path / "imports").read_text() == "one "


COLLECTED = """
def pytest_collection_modifyitems():
    with open("collected", "a") as file:
        file.write("one ")
"""

PRINTS = """
import os, sys

import pytest

@pytest.fixture(scope="session")
def process():
    return os.getpid()

@pytest.mark.parametrize("number", range(20))
def test_prints(number, process, tmp_path):
    assert process == os.getpid()
    (tmp_path / "file").write_text(str(number))
    assert "popen-" + os.environ["PYTEST_XDIST_WORKER"] in str(tmp_path)
    print(f"print {number}.")
    os.write(2, f"write {number}.".encode())
    assert number % 2
"""


@pytest.mark.slow
def test_workers_share_what_was_collected_and_have_streams_and_folders_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "test_prints.py").write_text(PRINTS)
    ran = run(tmp_path, COPIED + COLLECTED, "-n", "3", "-p", "tests.times")
    assert "10 failed, 13 passed" in ran.stdout, ran.stdout + ran.stderr
    assert (tmp_path / "collected").read_text() == "one "
    for number in range(20):
        for text in (f"print {number}.", f"write {number}."):
            assert ran.stdout.count(text) == (number + 1) % 2, ran.stdout
    assert ran.stdout.count("a worker was ready after") == 3


@pytest.mark.slow
def test_a_warning_of_the_collection_is_reported_by_the_workers(tmp_path: Path) -> None:
    (tmp_path / "test_class.py").write_text("class TestClass:\n    def __init__(self): pass\n")
    ran = run(tmp_path, COPIED + COLLECTED, "-n", "2")
    assert "cannot collect test class" in ran.stdout, ran.stdout + ran.stderr
    assert (tmp_path / "collected").read_text() == "one one one "


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("mode", ["prepend", "importlib"])
def test_a_test_file_that_cannot_be_imported_fails_the_run(tmp_path: Path, mode: str) -> None:
    (tmp_path / "test_broken.py").write_text("from os import nothing_of_that_name\n\ndef test(): pass\n")
    ran = run(tmp_path, COPIED, "-n", "1", f"--import-mode={mode}", "--continue-on-collection-errors")
    assert "3 passed, 1 error" in ran.stdout, ran.stdout + ran.stderr
    assert "cannot import name 'nothing_of_that_name'" in ran.stdout


@pytest.mark.slow
def test_where_an_import_leaves_a_thread_the_workers_are_no_copies(tmp_path: Path) -> None:
    (tmp_path / "test_imports.py").write_text(IMPORTS + THREAD)
    ran = run(tmp_path, COPIED, "-n", "2")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "3 passed" in ran.stdout
    assert (tmp_path / "imports").read_text() == "one one one "


LESS = """
from tests import workers

def pytest_configure(config):
    if hasattr(config, "workerinput"):
        workers.send_less(config)
        return
    config.pluginmanager.register(Reports())

class Reports:
    count = 0
    def pytest_runtest_logreport(self, report):
        self.count += 1
    def pytest_terminal_summary(self, terminalreporter):
        terminalreporter.write_line(f"{self.count} reports")
"""

OUTCOMES = """
import pytest

@pytest.fixture
def broken(): raise ValueError("in its set-up")

@pytest.fixture
def unclean():
    yield
    raise ValueError("in its clean-up")

def test_broken(broken): pass
def test_unclean(unclean): pass
def test_failed(): assert not "in its call"
def test_skipped(): pytest.skip("for a reason")
@pytest.mark.skip("from the start")
def test_never(): pass
"""


@pytest.mark.slow
def test_workers_send_one_report_of_a_test_that_passed_and_every_failure(tmp_path: Path) -> None:
    (tmp_path / "test_outcomes.py").write_text(OUTCOMES)
    ran = run(tmp_path, LESS, "-n", "2", "-rs")
    assert "1 failed, 4 passed, 2 skipped, 2 errors" in ran.stdout, ran.stdout + ran.stderr
    for text in ("in its set-up", "in its call", "in its clean-up", "for a reason", "from the start"):
        assert text in ran.stdout
    # Three numbers, a failure, a skip in the call; the clean-up's failure has a report of the call before it.
    assert "9 reports" in ran.stdout


@pytest.mark.slow
def test_who_asks_for_durations_gets_those_of_set_up_too(tmp_path: Path) -> None:
    ran = run(tmp_path, LESS, "-n", "2", "--durations", "3")
    assert "9 reports" in ran.stdout, ran.stdout + ran.stderr

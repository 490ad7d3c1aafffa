"""Workers of pytest-xdist that need no start: copies of one process that has imported every test module of the run and
has collected their tests.

To import four hundred test modules and what they import takes four seconds of CPU, in each of six workers, and to
collect the tests takes as long. Here xdist starts `worker.py` in place of Python: it asks for a copy, and where there
is none it becomes a plain worker. So whatever is odd (another system than Linux, a thread that an import has left)
costs time and nothing else.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import select
import shlex
import shutil
import signal
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from _pytest import pathlib
from _pytest.assertion.rewrite import AssertionRewritingHook
from tests.collected import collect, hand_over
from tests.warm_child import build

PROGRAM = Path(__file__).with_name("worker.py")


@contextlib.contextmanager
def copied(config: pytest.Config, files: Iterable[Path]) -> Iterator[None]:
    """Let xdist start its workers as copies of a process that has imported the test files."""
    plain = all(spec == "popen" for spec in config.option.tx)
    # Coverage counts the lines of a module as it is imported, in the worker.
    if sys.platform != "linux" or not plain or config.pluginmanager.hasplugin("_cov") or threading.active_count() > 1:
        yield
        return
    folder = Path(tempfile.mkdtemp(prefix="workers"))
    path = folder / "s"
    ends, mine = os.pipe()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        sys.stdout.flush()
        if not (pid := os.fork()):
            try:
                os.close(mine)
                serve(config, files, listening, ends)
            finally:  # neither it nor a worker may return into the run that it was copied from
                os._exit(1)
    os.close(ends)
    program = shlex.join([sys.executable, "-I", "-S", str(PROGRAM), str(path)])
    config.option.tx = [f"popen//python={program}" for _ in config.option.tx]
    try:
        yield
    finally:
        os.close(mine)
        os.waitpid(pid, 0)
        shutil.rmtree(folder)


def serve(config: pytest.Config, files: Iterable[Path], listening: socket.socket, ends: int) -> NoReturn:
    """Become a worker for each program that connects, until the pipe ends. The workers have ended then, or are
    killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the workers get it, too
    arguments = [str(argument) for argument in config.invocation_params.args]
    session = collect(arguments) if import_all(config, files) else None
    gc.collect()
    gc.freeze()  # a page that the collector writes to is no longer shared
    alone = len(os.listdir("/proc/self/task")) == 1  # a copy has one thread: it would miss the others
    copies: list[int] = []
    while ends not in select.select([ends, listening], [], [])[0]:
        with listening.accept()[0] as asking:
            _, streams, _, _ = socket.recv_fds(asking, 1, 3)
            if alone and not (pid := os.fork()):
                os.close(ends)
                listening.close()
                if session is not None:
                    hand_over(session, arguments)
                become_worker(streams)
            for stream in streams:
                os.close(stream)
            if alone:
                copies.append(pid)
                asking.send(b"+")
    for pid in copies:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    os._exit(0)


def import_all(config: pytest.Config, files: Iterable[Path]) -> bool:
    """Import the test files as the workers do; False where some cannot be imported. Those are left to the workers, who
    report it."""
    mode, root = config.getoption("importmode"), config.rootpath
    whole = True
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for file in files:
            try:
                pathlib.import_path(file, mode=mode, root=root, consider_namespace_packages=False)
            except (Exception, pytest.skip.Exception, SystemExit):
                # With `importlib`, pytest leaves the half of the module that was made, and would collect it.
                forget(file.resolve())
                whole = False
    if "callboard" in sys.modules:
        importlib.import_module("callboard.adapters.models.anthropic.profile")  # it imports the SDK
        build()
    with contextlib.suppress(Exception):
        # Private to hypothesis, whose plugin reads the constants of all modules at the end of each worker's collection.
        from hypothesis.internal.conjecture.providers import _get_local_constants

        _get_local_constants()
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, AssertionRewritingHook)]
    return whole


def forget(file: Path) -> None:
    """Forget the module of a file, so that it is imported anew."""
    for name in [name for name, module in sys.modules.items() if getattr(module, "__file__", None) == str(file)]:
        del sys.modules[name]


def become_worker(streams: list[int]) -> NoReturn:
    """Run what xdist sends over stdin, as a new interpreter does with the rest of `worker.py`'s command line."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["-c"]
    sys.stdin = os.fdopen(0, closefd=False)
    exec(eval(sys.stdin.readline()), {"__name__": "__main__"})
    threading._shutdown()
    atexit._run_exitfuncs()
    os._exit(0)


def send_less(config: pytest.Config) -> None:
    """Let a worker of xdist send one report of a test that passed, instead of three, and not its begin and end.

    To send and to read the others takes a millisecond of CPU for each test. Those that fail in their set-up or
    clean-up are sent, and all where somebody asks for durations.
    """
    if config.pluginmanager.hasplugin("times") or config.getoption("durations"):
        return
    # Found by what it can do: the class is defined anew in each worker.
    interactor: Any = next((one for one in config.pluginmanager.get_plugins() if hasattr(one, "sendevent")), None)
    if interactor is None:
        return  # not one yet, but the process that workers are copied from
    send = interactor.sendevent

    def send_needed(name: str, **values: Any) -> None:
        report = values.get("data") if name == "testreport" else None
        passed = report is not None and report["outcome"] == "passed" and report["when"] != "call"
        if not passed and name not in ("logstart", "logfinish"):
            send(name, **values)

    interactor.sendevent = send_needed

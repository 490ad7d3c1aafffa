"""Byte code of the package and the tests, made once for all workers of a run.

A worker that finds none compiles it. For all tests, whose asserts pytest rewrites, that takes ten seconds, and in a
fresh clone all workers would do it at the same time.
"""

from __future__ import annotations

import compileall
import multiprocessing
import os
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path

import pytest
from _pytest.assertion import rewrite


def prepare(config: pytest.Config, package: Path) -> None:
    """Compile the package and the test files that the run names, with a process for each processor."""
    files = [*package.rglob("*.py"), *([] if sys.dont_write_bytecode else test_files(config))]
    count = os.cpu_count() or 1
    fork = multiprocessing.get_context("fork")  # a copy has pytest's configuration
    processes = [fork.Process(target=compile_files, args=(config, files[start::count])) for start in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        warnings.warn(pytest.PytestWarning("byte code was not made: each worker makes its own"), stacklevel=1)


def test_files(config: pytest.Config) -> Iterable[Path]:
    """Return the test files below the folders, and the single ones, that the run names."""
    for name in config.args:
        path = config.invocation_params.dir / name.partition("::")[0]
        if path.is_dir():
            yield from path.rglob("test_*.py")
        elif path.is_file():  # pytest itself reports a name that is not there
            yield path


def compile_files(config: pytest.Config, files: Iterable[Path]) -> None:
    for file in files:
        if file.name.startswith("test_"):
            rewrite_asserts(config, file)
        else:
            compileall.compile_file(file, quiet=2)


def rewrite_asserts(config: pytest.Config, file: Path) -> None:
    """Write what pytest reads in place of a test file. A file that only looks newer is left to the workers."""
    folder = rewrite.get_cache_dir(file)
    kept = folder / (file.stem + rewrite.PYC_TAIL)
    if kept.exists() and kept.stat().st_mtime_ns >= file.stat().st_mtime_ns:
        return
    folder.mkdir(exist_ok=True)
    # private to pytest, which has no other way; `prepare` warns where it has changed
    try:
        stamp, code = rewrite._rewrite_test(file, config)
    except SyntaxError:
        return  # the workers report it
    rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, stamp, kept)

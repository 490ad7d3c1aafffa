"""Packages of the npm registry for tests: installed whole or not at all, and once per boot for all runs.

If npm is missing or the registry delivers nothing, the tests that need a package are skipped with the reason.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

RETRY_SECONDS = 600.0
"""Seconds in which a failed registry is not tried again: within one run, but not into the next."""


def npm_folder(name: str, *packages: str) -> Path:
    """Return a folder whose `node_modules` has these packages, or skip the test with the reason why it has not."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("npm and node are not installed on this machine")
    folder = Path(tempfile.gettempdir()) / f"callboard-test-npm-{name}-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        failed = folder / "failed"
        recent = failed.exists() and time.time() - failed.stat().st_mtime < RETRY_SECONDS
        if not (folder / "node_modules").exists() and not recent:
            _install(folder, failed, packages)
    if not (folder / "node_modules").exists():
        pytest.skip(f"npm could not install {', '.join(packages)}: {failed.read_text(encoding='utf-8')}")
    return folder


def _install(folder: Path, failed: Path, packages: tuple[str, ...]) -> None:
    # Into another folder first: an interrupted install would leave programs without their imports. The optional
    # packages are the bundled programs, which Callboard replaces.
    parts = folder / "unfinished"
    shutil.rmtree(parts, ignore_errors=True)
    parts.mkdir()
    (parts / "package.json").write_text('{"private": true}', encoding="utf-8")
    options = ["--no-audit", "--no-fund", "--ignore-scripts", "--omit=optional"]
    try:
        done = subprocess.run(
            ["npm", "install", *options, *packages],
            cwd=parts,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    except subprocess.TimeoutExpired:
        failed.write_text("the registry did not answer within 240 s", encoding="utf-8")
        return
    if done.returncode:
        failed.write_text(done.stderr[-300:], encoding="utf-8")
        return
    (parts / "package.json").rename(folder / "package.json")
    (parts / "node_modules").rename(folder / "node_modules")

"""Typical users' programs pass pyright's strict mode, and wrong ones fail."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = Path(__file__).with_name("user_code")


def reported_errors(folder: Path) -> set[tuple[str, int]]:
    """Return (file, line) of each error that pyright reports in the programs, checked with a user's settings."""
    settings = {
        "typeCheckingMode": "strict",
        "extraPaths": [str(ROOT / "runtime")],
        "pythonVersion": "3.11",
    }
    shutil.copytree(CODE, folder / "code")
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    program = [str(Path(sys.executable).with_name("pyright")), "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(
        [*program, "-p", str(folder)], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    if not done.stdout and shutil.which("node") is None:
        pytest.skip("pyright needs Node.js, which is not installed")
    told = json.loads(done.stdout)
    assert told["summary"]["filesAnalyzed"] == len(list(CODE.rglob("*.py")))
    return {
        (Path(one["file"]).name, one["range"]["start"]["line"] + 1)
        for one in told["generalDiagnostics"]
        if one["severity"] == "error"
    }


def marked_lines() -> Iterator[tuple[str, int]]:
    for path in CODE.rglob("*.py"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if line.endswith("# wrong"):
                yield path.name, number


def test_users_code_is_accepted_and_its_mistakes_are_not(tmp_path: Path) -> None:
    found, meant = reported_errors(tmp_path), set(marked_lines())
    assert sorted(found - meant) == [], "correct code is rejected"
    assert sorted(meant - found) == [], "wrong code is accepted"
    assert len(meant) > 20

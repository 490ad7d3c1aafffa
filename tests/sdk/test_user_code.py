"""Programs as users write them pass pyright's strict mode, and their mistakes do not."""

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


def complaints(folder: Path) -> set[tuple[str, int]]:
    """(file, line) of each error that pyright finds in the programs, as it checks them for a user."""
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


def marked() -> Iterator[tuple[str, int]]:
    for path in CODE.rglob("*.py"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if line.endswith("# wrong"):
                yield path.name, number


def test_users_code_is_accepted_and_its_mistakes_are_not(tmp_path: Path) -> None:
    found, meant = complaints(tmp_path), set(marked())
    assert sorted(found - meant) == [], "right code is refused"
    assert sorted(meant - found) == [], "wrong code is accepted"
    assert len(meant) > 20

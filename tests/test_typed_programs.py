"""Users' programs and the Python of the pages pass pyright's strict mode, and wrong programs fail.

One pyright reads them all: most of its time goes to the package that they import.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.examples.pages import ROOT, blocks_of, pages

CODE = ROOT / "tests" / "sdk" / "user_code"
NOTEBOOK = re.compile(
    r'"await" allowed only within async function|Use of "async" not allowed outside of async function'
)
"""What pyright says of an `await` outside of a function, which examples have for brevity."""


@dataclass(frozen=True)
class Mistake:
    """An error that pyright reports: the file below `code/` or `pages/`, and the line."""

    file: str
    line: int
    message: str


def write_pages(folder: Path) -> None:
    """Write each page as a folder. The lines of its files stand where they stand on the page."""
    for page, path in pages().items():
        files: dict[str, list[str]] = {}
        for block in blocks_of(page, path.read_text("utf-8"))[0]:
            if block.language == "python" and not (ROOT / block.info).is_file():
                lines = files.setdefault(block.info.removeprefix("~/") or "page.py", [])
                lines += [""] * (block.line - len(lines)) + block.text.splitlines()
        for name, lines in files.items():
            file = folder / page / name.replace(".", "", name.startswith("."))  # pyright passes over such folders
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def mistakes(tmp_path_factory: pytest.TempPathFactory) -> list[Mistake]:
    """What pyright reports, with a user's settings, in the programs and the pages."""
    folder = tmp_path_factory.mktemp("typed")
    shutil.copytree(CODE, folder / "code", ignore=shutil.ignore_patterns("__pycache__"))
    write_pages(folder / "pages")
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(ROOT / "runtime")], "pythonVersion": "3.11"}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    program = [str(Path(sys.executable).with_name("pyright")), "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(program, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    if not done.stdout and shutil.which("node") is None:
        pytest.skip("pyright needs Node.js, which is not installed")
    told = json.loads(done.stdout)
    assert told["summary"]["filesAnalyzed"] == len(list(folder.rglob("*.py")))
    return [
        Mistake(str(Path(one["file"]).relative_to(folder)), one["range"]["start"]["line"] + 1, one["message"])
        for one in told["generalDiagnostics"]
        if one["severity"] == "error"
    ]


def marked_lines() -> Iterator[tuple[str, int]]:
    for path in CODE.rglob("*.py"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if line.endswith("# wrong"):
                yield f"code/{path.relative_to(CODE)}", number


def test_users_code_is_accepted_and_its_mistakes_are_not(mistakes: list[Mistake]) -> None:
    found = {(one.file, one.line) for one in mistakes if one.file.startswith("code/")}
    meant = set(marked_lines())
    assert sorted(found - meant) == [], "correct code is rejected"
    assert sorted(meant - found) == [], "wrong code is accepted"
    assert len(meant) > 20


def test_the_python_of_the_pages_passes_a_strict_type_checker(mistakes: list[Mistake]) -> None:
    wrong = [one for one in mistakes if one.file.startswith("pages/") and not NOTEBOOK.search(one.message)]
    assert not wrong

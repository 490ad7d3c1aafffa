"""Files that a command reads as a tree, and names that a shell pattern can match."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard.adapters.shell.paths import PathJudge, matches
from callboard.core.permissions.values import LeftOut, PathQuery


def place(root: Path, left_out: LeftOut) -> str:
    query = PathQuery(".", tree=True, left_out=left_out)
    return PathJudge(root, home=Path("/home/me")).look([query])[query].place


def fill(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")


@pytest.mark.parametrize(
    ("files", "ignore", "found"),
    [
        (["a.py", ".env", ".git/x.pem"], "", "inside"),
        (["a.py", "id_rsa"], "", "secret"),
        (["a.py", "deep/er/server.pem"], "", "secret"),
        (["venv/lib/cacert.pem", "a.py"], "venv/\n", "inside"),
        (["venv/lib/cacert.pem", "a.py"], "/venv\n", "inside"),
        (["sub/venv/lib/cacert.pem"], "/venv\n", "secret"),
        (["sub/venv/lib/cacert.pem"], "venv\n", "inside"),
        (["server.pem"], "*.pem\n", "inside"),
        (["server.pem"], "*.pem\n!server.pem\n", "secret"),
        (["server.pem"], "ser*/\n", "secret"),
        ([".env"], "!.env\n", "secret"),
        ([".env", ".env.example"], "!.env.example\n", "inside"),
        ([".config/server.pem"], "!.config/**\n", "secret"),
        (["a/b/server.pem"], "a/b\n", "secret"),
    ],
)
def test_a_search_that_follows_ignore_files_meets_no_secret_that_they_leave_out(
    tmp_path: Path, files: list[str], ignore: str, found: str
) -> None:
    fill(tmp_path, *files, ".git/HEAD")
    (tmp_path / ".gitignore").write_text(ignore)
    assert place(tmp_path, "ignored") == found
    assert place(tmp_path, "nothing") == ("inside" if files == ["a.py"] else "secret")


def test_gitignore_counts_in_a_repository_only(tmp_path: Path) -> None:
    fill(tmp_path, "venv/cacert.pem")
    (tmp_path / ".gitignore").write_text("venv\n")
    assert place(tmp_path, "ignored") == "secret"
    (tmp_path / ".ignore").write_text("venv\n")
    assert place(tmp_path, "ignored") == "inside"


def test_a_pattern_matches_what_bash_could_match(tmp_path: Path) -> None:
    fill(tmp_path, ".env", "a.py", "b.py", "src/a.py", "src/.env", "x y")
    for pattern, names in {
        "*.py": ["a.py", "b.py"],
        "*": ["a.py", "b.py", "src", "x y"],
        ".en[^a]": [".env"],
        ".en[[:lower:]]": [".env"],
        "*/.env": ["src/.env"],
        "s*/[a]*": ["src/a.py"],
        "x\\ y": ["x y"],
        "[[:alpha:]].py": ["a.py", "b.py"],
        "nothing*": [],
        "..*/x*": [],
    }.items():
        assert sorted(matches(str(tmp_path), pattern, 100)) == names, pattern

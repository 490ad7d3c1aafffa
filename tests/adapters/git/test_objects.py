"""Commits are distinguished from all other objects as git does it: loose, packed, whole, and as deltas."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from callboard.adapters.git.premise import is_commit


def git(root: Path, *words: str) -> str:
    env = {"PATH": os.environ["PATH"], "HOME": str(root.parent), "GIT_CONFIG_NOSYSTEM": "1"}
    env |= {f"GIT_{role}_{value}": "x" for role in ("AUTHOR", "COMMITTER") for value in ("NAME", "EMAIL")}
    return subprocess.run(["git", *words], cwd=root, check=True, env=env, capture_output=True, text=True).stdout


@pytest.fixture(scope="module", params=["sha1", "sha256"])
def made(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A repository of forty commits. Each test gets a copy."""
    root = tmp_path_factory.mktemp("objects")
    git(root, "init", "-q", f"--object-format={request.param}", ".")
    for number in range(40):
        (root / "long.txt").write_text("".join(f"line {line}\n" for line in range(300)) + f"{number}\n")
        git(root, "add", ".")
        git(root, "commit", "-qm", "The same long words in each commit, so that git keeps the difference. " * 20)
    git(root, "tag", "-am", "x", "note")
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "workspace"))


def object_types(root: Path) -> dict[str, str]:
    lines = git(root, "cat-file", "--batch-all-objects", "--batch-check=%(objectname) %(objecttype)").splitlines()
    return dict(line.split() for line in lines)


def misjudged_objects(root: Path) -> list[str]:
    objects = root / ".git/objects"
    return [name for name, kind in object_types(root).items() if is_commit(objects, name) != (kind == "commit")]


def test_loose_objects_are_told_apart(root: Path) -> None:
    assert set(object_types(root).values()) == {"commit", "tree", "blob", "tag"}
    assert misjudged_objects(root) == []


@pytest.mark.parametrize("option", ["--delta-base-offset", "--no-delta-base-offset"])
def test_packed_objects_are_told_apart(root: Path, option: str) -> None:
    git(root, "config", "repack.useDeltaBaseOffset", str(option == "--delta-base-offset").lower())
    git(root, "repack", "-qadf", "--depth=20")
    index = next((root / ".git/objects/pack").glob("*.idx"))
    chains = {
        line.split()[1] for line in git(root, "verify-pack", "-v", str(index)).splitlines() if len(line.split()) == 7
    }
    assert "commit" in chains  # a commit stored as a delta
    assert not any(path.is_file() for path in (root / ".git/objects").glob("??/*"))
    assert misjudged_objects(root) == []


def test_what_is_not_there_or_damaged_is_no_commit(root: Path) -> None:
    objects = root / ".git/objects"
    head = git(root, "rev-parse", "HEAD").strip()
    for name in ("", "HEAD", "f" * 40, "f" * 64, head[:7], f"{head[:2]}/../{head[2:]}"):
        assert not is_commit(objects, name)
    loose = objects / head[:2] / head[2:]
    loose.chmod(0o644)
    loose.write_bytes(b"damaged")
    assert not is_commit(objects, head)


def test_what_stands_in_a_damaged_pack_is_no_commit(root: Path) -> None:
    objects = root / ".git/objects"
    head = git(root, "rev-parse", "HEAD").strip()
    git(root, "repack", "-qad")
    assert is_commit(objects, head)
    pack = next((objects / "pack").glob("*.pack"))
    pack.chmod(0o644)
    pack.write_bytes(b"")
    assert not is_commit(objects, head)
    index = next((objects / "pack").glob("*.idx"))
    index.chmod(0o644)
    index.write_bytes(index.read_bytes()[:1000])
    assert not is_commit(objects, head)
    index.write_bytes(b"")
    assert not is_commit(objects, head)

"""A person's own stages: the folders that are searched, and the message for a stage that is missing."""

from __future__ import annotations

import json
import os.path
import sys
from pathlib import Path

import pytest

from callboard.adapters.extensions.stages import load_stage


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "ws").mkdir()
    (tmp_path / "stages").mkdir()
    return tmp_path / "ws"


def write(workspace: Path, text: str, name: str = "mine") -> Path:
    folder = workspace.parent / "stages"
    (folder / f"{name}.py").write_text(text)
    return folder


def test_a_stage_is_a_function_of_a_file_in_the_persons_folder(workspace: Path) -> None:
    folder = write(
        workspace,
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Kept:\n    last: int = 3\n\n"
        "def shorten(view, budget, now):\n    return [Kept().last]\n",
    )
    stage = load_stage("mine:shorten", folder, workspace)
    assert stage(None, 1, 0.0) == [3]


def test_a_file_hides_no_module_of_its_name(workspace: Path) -> None:
    folder = write(workspace, "def stage(view, budget, now): return None\n", "json")
    load_stage("json:stage", folder, workspace)
    assert sys.modules["json"] is json


def test_an_installed_module_will_do(workspace: Path) -> None:
    assert load_stage("os.path:join", workspace.parent / "stages", workspace) is os.path.join


@pytest.mark.parametrize(
    ("text", "name", "told"),
    [
        ("", "mine:shorten", "has no function 'shorten'"),
        ("shorten = 5\n", "mine:shorten", "has no function 'shorten'"),
        ("async def shorten(view, budget, now): ...\n", "mine:shorten", "async"),
        ("import nothing_of_that_name\n", "mine:shorten", "cannot be imported: ModuleNotFoundError"),
        ("def shorten(:\n", "mine:shorten", "cannot be imported: SyntaxError"),
        ("", "other:shorten", "there is no module 'other': put it into"),
        ("", "__main__:main", "main"),
        ("", "mine:", "write module:callable"),
        ("", ":shorten", "write module:callable"),
        ("", "../mine:shorten", "write module:callable"),
    ],
)
def test_what_cannot_be_loaded_is_told_with_why(text: str, name: str, told: str, workspace: Path) -> None:
    folder = write(workspace, text)
    with pytest.raises(ValueError, match=r".") as caught:
        load_stage(name, folder, workspace)
    assert told in str(caught.value)


def test_nothing_of_the_workspace_is_run_by_its_name(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (workspace / "bait.py").write_text("raise SystemExit('it ran')\n")
    (workspace / "trap").mkdir()
    (workspace / "trap" / "__init__.py").write_text("raise SystemExit('it ran')\n")
    monkeypatch.setattr(sys, "path", [str(workspace), *sys.path])
    for name in ("bait:stage", "trap:stage", "trap.inner:stage"):
        with pytest.raises(ValueError, match="is in the workspace"):
            load_stage(name, workspace.parent / "stages", workspace)

"""Common editors: with arguments, failing, missing, not saving, and saving a file that is not text."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.views.plan_rows import plan

from callboard.cli.terminal.plan_editor import in_editor
from callboard.cli.views.edits import approval
from callboard.types.errors import UsageError

Editor = Callable[[str], None]


@pytest.fixture
def editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Editor:
    """Return a function that installs a script as the editor: `$1` is `--wait`, `$2` the file."""
    for name in ("VISUAL", "EDITOR"):
        monkeypatch.delenv(name, raising=False)

    def choose(script: str) -> None:
        file = tmp_path / "my editor.sh"
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
        monkeypatch.setenv("EDITOR", f"'{file}' --wait")

    return choose


def test_an_editor_with_arguments_saves_the_plan_that_is_approved(editor: Editor) -> None:
    editor('[ "$1" = --wait ] && echo "2. test it" >> "$2"')
    text = in_editor(plan(), Path())
    assert approval(plan(), text).plan == "# Mend it\n1. read\n2. test it"


@pytest.mark.parametrize("script", [":", 'touch "$2"', 'printf "# Mend it\\r\\n1. read\\r\\n" > "$2"'])
def test_a_text_that_was_left_as_it_was_approves_nothing(editor: Editor, script: str) -> None:
    editor(script)
    with pytest.raises(UsageError, match="the plan is unchanged: nothing is approved"):
        approval(plan(), in_editor(plan(), Path()))


def test_an_empty_text_approves_nothing(editor: Editor) -> None:
    editor('printf " \\n\\n" > "$2"')
    with pytest.raises(UsageError, match="the text is empty: nothing is approved"):
        approval(plan(), in_editor(plan(), Path()))


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ('echo changed > "$2"; exit 3', r"failed \(exit code 3\)"),
        ("kill -9 $$", r"failed \(signal 9\)"),
        ('rm "$2"', "left no file"),
        ('printf "\\377\\376" > "$2"', "is not UTF-8 text"),
    ],
)
def test_an_editor_that_fails_approves_nothing(editor: Editor, script: str, says: str) -> None:
    editor(script)
    with pytest.raises(UsageError, match=says) as refused:
        in_editor(plan(), Path())
    assert "Nothing is approved" in str(refused.value)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("/no/such/editor", "cannot be started"),
        ("no-such-editor", "not found on PATH outside"),
        ("vi 'unclosed", "correct its quotes"),
        ("", "no editor was found"),
    ],
)
def test_an_editor_that_is_none_is_told_with_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, says: str
) -> None:
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", command)
    monkeypatch.setenv("PATH", os.fspath(tmp_path))  # no editor here either
    with pytest.raises(UsageError, match=says) as refused:
        in_editor(plan(), Path())
    assert "$VISUAL or $EDITOR" in str(refused.value)


def test_nothing_in_the_workspace_becomes_a_part_of_the_editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace, outside = tmp_path / "work", tmp_path / "bin"
    mark = tmp_path / "sprung"
    for name in ("cat", "sed", "my-editor", "node_modules/.bin/my-editor"):
        file = workspace / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/sh\necho {name} >> {mark}\n")
        file.chmod(0o755)
    for name in ("json.py", "sitecustomize.py", "lib/shlex.py", "helper.py"):
        file = workspace / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"open({str(mark)!r}, 'a').write({name!r})\n")
    outside.mkdir()
    editor = outside / "my-editor"
    script = "import json, shlex, sys, pathlib, os; file = pathlib.Path(sys.argv[1]); "
    script += "file.write_text(os.getcwd() + chr(10) + str(sorted(os.listdir())))"
    editor.write_text(f'#!/bin/sh\ncat /dev/null\nsed q /dev/null\npython3 -c "{script}" "$1"\n')
    editor.chmod(0o755)
    monkeypatch.chdir(workspace)
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv(
        "PATH", f".::{workspace}:node_modules/.bin:{workspace}/node_modules/.bin:{outside}:/usr/bin:/bin"
    )
    monkeypatch.setenv("PYTHONPATH", f".:{workspace}/lib")
    monkeypatch.setenv("EDITOR", "my-editor")
    folder, files = in_editor(plan(), workspace).splitlines()
    assert files == "['req_a1.md']", "a private folder that contains only the plan"
    assert not Path(folder).exists()
    for command in (
        "./my-editor",
        f"{workspace}/my-editor -w",
        f"python3 {workspace}/helper.py",
        "python3 ./helper.py",
    ):
        monkeypatch.setenv("EDITOR", command)
        with pytest.raises(UsageError, match="in the workspace, which agents may have written"):
            in_editor(plan(), workspace)
    monkeypatch.setenv("EDITOR", "my-editor")
    monkeypatch.setattr("tempfile.tempdir", str(workspace))
    assert not in_editor(plan(), workspace).startswith(str(workspace))
    assert not mark.exists(), mark.read_text()

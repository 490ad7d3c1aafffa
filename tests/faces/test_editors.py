"""Editors as people have them: with arguments, failing, missing, saving nothing, saving what is no text."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.faces.plan_rows import plan

from callboard.faces.editing import approval, in_editor
from callboard.words.errors import UsageError

Editor = Callable[[str], None]


@pytest.fixture
def editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Editor:
    """Makes a script the editor: `$1` is `--wait`, `$2` the file."""
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
    text = in_editor(plan())
    assert approval(plan(), text).plan == "# Mend it\n1. read\n2. test it"


@pytest.mark.parametrize("script", [":", 'touch "$2"', 'printf "# Mend it\\r\\n1. read\\r\\n" > "$2"'])
def test_a_text_that_was_left_as_it_was_approves_nothing(editor: Editor, script: str) -> None:
    editor(script)
    with pytest.raises(UsageError, match="left as it is: nothing is approved"):
        approval(plan(), in_editor(plan()))


def test_an_empty_text_approves_nothing(editor: Editor) -> None:
    editor('printf " \\n\\n" > "$2"')
    with pytest.raises(UsageError, match="the text is empty: nothing is approved"):
        approval(plan(), in_editor(plan()))


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ('echo changed > "$2"; exit 3', "Editing failed"),
        ("kill -9 $$", "Editing failed"),
        ('rm "$2"', "left no text behind"),
        ('printf "\\377\\376" > "$2"', "no text in UTF-8"),
    ],
)
def test_an_editor_that_fails_approves_nothing(editor: Editor, script: str, says: str) -> None:
    editor(script)
    with pytest.raises(UsageError, match=says) as refused:
        in_editor(plan())
    assert "Nothing is approved" in str(refused.value)


@pytest.mark.parametrize(
    ("command", "says"), [("/no/such/editor", "Editing failed"), ("vi 'unclosed", "mend its quotes"), ("", "vi: ")]
)
def test_an_editor_that_is_none_is_told_with_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, says: str
) -> None:
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", command)
    monkeypatch.setenv("PATH", os.fspath(tmp_path))  # no editor here either
    with pytest.raises(UsageError, match=says) as refused:
        in_editor(plan())
    assert "$VISUAL or $EDITOR" in str(refused.value)

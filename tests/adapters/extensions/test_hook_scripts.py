"""The programs that a hook's command would start are found without starting anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard.adapters.extensions.hook_commands import missing_programs


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "good.sh").write_text("#!/bin/sh\ntouch started\n")
    (tmp_path / "good.sh").chmod(0o755)
    (tmp_path / "plain.py").write_text("pass\n")
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        "./good.sh",
        '"$CLAUDE_PROJECT_DIR"/good.sh --x',
        "${CLAUDE_PROJECT_DIR}/good.sh",
        "timeout 5 ./good.sh | cat",
        "python3 plain.py",
        "python3 -c 'import x'",
        "f() { echo x; }; f && [[ -f a ]] && cd /",
        "$SOMETHING ./nothing.sh",
        "env $SOMETHING bash ./nothing.sh",
        "$(./good.sh) ./nothing.sh; ./good$SUFFIX",
        'bash "$SOMETHING" ./nothing.sh',
        "cat > out.json; exit 2",
    ],
)
def test_what_is_there_or_not_written_out_is_left_alone(project: Path, command: str) -> None:
    assert list(missing_programs(command, None, project)) == []
    assert not (project / "started").exists()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("./bad.sh", "there is no file"),
        ("env X=1 ./bad.sh", "there is no file"),
        ("cat | nosuchprogram_x -r", "no program `nosuchprogram_x`"),
        ("./plain.py", "make it executable"),
        ("python3 hooks/check.py", "there is no file"),
        ("bash -c './bad.sh'", "there is no file"),
        ("$SOMETHING x; ./bad.sh", "there is no file"),
        ("if true; then", "cannot be read"),
    ],
)
def test_what_is_not_there_is_told(project: Path, command: str, words: str) -> None:
    assert words in "; ".join(missing_programs(command, None, project))


def test_the_form_with_arguments_names_the_program_itself(project: Path) -> None:
    assert list(missing_programs("${CLAUDE_PROJECT_DIR}/good.sh", ["-x"], project)) == []
    assert "no program `a b`" in next(missing_programs("a b", [], project))
    assert "there is no file" in next(missing_programs("python3", ["gone.py"], project))

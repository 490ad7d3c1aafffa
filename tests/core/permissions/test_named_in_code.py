"""The runtime's own files in code that a command passes to an interpreter."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard.adapters.shell.parser import BashParser
from callboard.adapters.shell.paths import PathJudge
from callboard.core.permissions.effects import CallFacts
from callboard.core.permissions.facts import find_facts
from callboard.core.permissions.judge import judge_call
from callboard.core.permissions.values import AgentPolicy, ProposedCall, Verdict


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("w", "home/.local/state/callboard"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path / "w"


def judged(root: Path, command: str) -> Verdict:
    home = root.parent / "home"
    judge = PathJudge(root, own=[home / ".local/state/callboard"], home=home)
    call = ProposedCall("bash", {"command": command.replace("HERE", str(home))}, "unknown")
    start = CallFacts(root=judge.root, home=judge.home)
    return judge_call(call, AgentPolicy("bypassPermissions"), find_facts(call, start, BashParser().parse, judge.look))


@pytest.mark.parametrize(
    "command",
    [
        "python3 -c 'import sqlite3; sqlite3.connect(\"HERE/.local/state/callboard/w/callboard.db\")'",
        'env -i python3.12 -c \'open("HERE/.local/state/callboard/w/callboard.db", "wb")\'',
        "python3 -c 'import os; os.listdir(os.path.expanduser(\"~/.local/state/callboard\"))'",
        'bash -c "node -e \'require(\\"fs\\").rmSync(\\"HERE/.local/state/callboard\\")\'"',
        "perl -e 'unlink \"$HOME/.local/state/callboard/w/callboard.db\"'",
        "python3 <<'END'\nopen('HERE/.local/state/callboard/w/callboard.db')\nEND",
        "echo 'open(\"HERE/.local/state/callboard/w/callboard.db\")' | python3",
        "awk 'BEGIN { print > \"HERE/.local/state/callboard/x\" }'",
    ],
)
def test_code_that_names_the_runtimes_own_files_is_denied_in_every_mode(root: Path, command: str) -> None:
    verdict = judged(root, command)
    assert (verdict.decision, verdict.rule) == ("deny", "K")
    assert str(root.parent / "home/.local/state/callboard") in verdict.why


@pytest.mark.parametrize(
    "command",
    [
        "python3 -c 'open(\"/usr/share/dict/words\")'",
        "python3 -c 'print(\"https://example.com/home/.local/state/callboard\")'",
        "python3 -c 'open(\"HERE/.local/state/other\")'",
        "git commit -m 'Describe HERE/.local/state/callboard'",
        "echo 'see HERE/.local/state/callboard/w for its files'",
        "grep -rn 'HERE/.local/state/callboard' docs",
    ],
)
def test_other_paths_in_code_and_paths_in_other_texts_are_judged_as_before(root: Path, command: str) -> None:
    assert judged(root, command).decision == "allow"

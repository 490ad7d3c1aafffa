"""Commands that can change the settings of the runtime although no table says what they write."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from callboard.adapters.shell.parser import BashParser
from callboard.adapters.shell.paths import PathJudge
from callboard.core.permissions.effects import CallFacts
from callboard.core.permissions.facts import find_facts
from callboard.core.permissions.judge import judge_call
from callboard.core.permissions.rules import parse_rule
from callboard.core.permissions.values import AgentPolicy, ProposedCall, Verdict


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("w/.callboard/skills/pdf", "w/src", "home"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "w/.callboard/settings.yaml").touch()
    (tmp_path / "w/src/a.py").touch()
    git(tmp_path / "w", "init", "-q")
    return tmp_path / "w"


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)


def judged(root: Path, command: str, policy: AgentPolicy | None = None) -> Verdict:
    judge = PathJudge(root, home=root.parent / "home")
    call = ProposedCall("bash", {"command": command}, "unknown")
    facts = find_facts(call, CallFacts(root=judge.root, home=judge.home), BashParser().parse, judge.look)
    return judge_call(call, policy or AgentPolicy("bypassPermissions"), facts)


@pytest.mark.parametrize(
    "command",
    [
        "perl -pi -e s/a/b/ .callboard/settings.yaml",
        "yq -i .a=1 .callboard/*.yaml",
        "split -b1 x .callboard/x",
        "unzip x.zip -d .callboard",
        "unzip -d.callboard x.zip",
        "tar xf x.tar --directory=.callboard",
        "7z x a.7z -o.callboard",
        "curl --output-dir .callboard -O https://example.com/settings.yaml",
        "docker run -v ./.callboard:/x image",
        "cd .callboard && unzip ../x.zip",
        "cd .callboard; npm install",
        "cd src && frob ../.callboard/settings.yaml",
        "python3 -c \"open('.callboard/settings.yaml', 'w')\"",
        "cd src; python3 <<'END'\nfrom pathlib import Path\n(Path('..') / '.callboard' / 'x').touch()\nEND",
        "node -e \"require('fs').rmSync('./.callboard')\"",
    ],
)
def test_a_program_that_names_the_settings_asks_in_every_mode(root: Path, command: str) -> None:
    for policy in (AgentPolicy("bypassPermissions"), AgentPolicy(allow=(parse_rule("Bash"),))):
        verdict = judged(root, command, policy)
        assert (verdict.decision, verdict.rule) == ("ask", "K")
        assert ".callboard" in verdict.why


@pytest.mark.parametrize(
    "command",
    [
        "python3 .callboard/skills/pdf/fill.py a.pdf",
        "python3 -c \"print('my.callboard', 'https://example.com/.callboard')\"",
        "cat .callboard/settings.yaml",
        "cp .callboard/settings.yaml /tmp/x",
        "git add .callboard/settings.yaml",
        "git commit -m 'Describe .callboard/settings.yaml'",
        "unzip x.zip -d src",
        "npm test",
    ],
)
def test_programs_of_skills_and_commands_that_only_read_the_settings_run_as_before(root: Path, command: str) -> None:
    assert judged(root, command).decision == "allow"


@pytest.mark.parametrize(
    "command",
    [
        "git clean -fdx",
        "git clean -fd -e build",
        "git clean -fd . src",
        "git clean -fd :/",
        "cd src && git -C .. clean -fdx",
        "git stash -u",
        "git stash push --all",
        "git stash push -um src",
        "git stash save -u message",
    ],
)
def test_git_asks_before_it_removes_settings_that_it_does_not_track(root: Path, command: str) -> None:
    verdict = judged(root, command)
    assert (verdict.decision, verdict.rule) == ("ask", "K")


@pytest.mark.parametrize(
    "command",
    [
        "git reset --hard HEAD~1",
        "git -C src reset --merge",
        "git checkout .",
        "git checkout HEAD~1 -- :/",
        "git checkout -f main",
        "git switch --discard-changes main",
        "git restore --source HEAD~1 '*'",
        "git stash",
        "git stash -m message",
        "git read-tree -u --reset HEAD",
        "git checkout-index -fa",
    ],
)
def test_git_asks_before_it_replaces_settings_that_it_tracks(root: Path, command: str) -> None:
    assert judged(root, command).decision == "allow"
    git(root, "add", ".callboard")
    verdict = judged(root, command)
    assert (verdict.decision, verdict.rule) == ("ask", "K")


@pytest.mark.parametrize(
    "command",
    [
        "git clean -n",
        "git clean -fd src",
        "git clean -fdx -e .callboard",
        "git clean -fdxe /.callboard/",
        "git stash push -u -- src",
        "git stash push -u src",
        "git stash pop",
        "git stash show -u",
        "git reset HEAD a",
        "git checkout main",
        "git checkout -- src",
        "git restore src",
        "git restore --staged .",
        "git switch main",
    ],
)
def test_git_commands_that_spare_the_settings_run_as_before(root: Path, command: str) -> None:
    git(root, "add", ".callboard")
    assert judged(root, command).decision == "allow"


def test_git_removes_what_it_does_not_track_where_there_are_no_settings(root: Path) -> None:
    (root / ".callboard").rename(root.parent / "away")
    assert judged(root, "git clean -fdx").decision == "allow"
    assert judged(root, "git clean -fdx .callboard/x").rule == "K"


@pytest.mark.parametrize(
    "command",
    [
        "git stash -- .callboard/settings.yaml",
        "git -C src stash push -u -- ../.callboard",
        "git checkout-index -f .callboard/settings.yaml",
        "git checkout-index -fa --prefix=.callboard/",
        "git apply --directory=.callboard x.patch",
        "git am --directory .callboard x.patch",
    ],
)
def test_git_never_changes_settings_that_its_words_name(root: Path, command: str) -> None:
    verdict = judged(root, command)
    assert (verdict.decision, verdict.rule) == ("deny", "K")

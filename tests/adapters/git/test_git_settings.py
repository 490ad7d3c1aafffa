"""Git's configuration files are parsed as git parses them, and few of their settings are honored."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.adapters.shell.outside_world import ENVIRONMENT

from callboard.adapters.git.settings import parse, person_settings, repository_settings, upstream_settings

PIECES = st.sampled_from(
    [
        *("[core]\n", '[branch "a b"]\n', "[Core.Sub]\n", '[x "q\\"\\\\y"]\n', "eol = lf\n", "key=\n", "Flag\n"),
        *("a = b ; c\n", 'a = "b ; c" d # e\n', "a = b \\\n  c\n", "# [core]\n", "  a = \\t\\n\\\\ x\n", "\n"),
        *('a = x "y  " z  \n', "a = b\r\n", '[core] b = "c', '"\n', "a1-b = 2\n"),
    ]
)


@given(st.lists(PIECES, max_size=8))
def test_a_file_that_git_can_read_is_read_the_same(pieces: list[str]) -> None:
    text = "".join(["[a]\n", *pieces])
    words = ["git", "config", "--file", "-", "--null", "--list"]
    ran = subprocess.run(words, input=text.encode(), env=ENVIRONMENT, capture_output=True, check=False, cwd="/")
    if ran.returncode != 0:
        list(parse(text))
        return
    entries = [entry.partition("\n") for entry in ran.stdout.decode().split("\0")[:-1]]
    assert list(parse(text)) == [(name, value if sep else "true") for name, sep, value in entries]


@given(st.text(max_size=200))
def test_any_text_at_all_is_read_to_its_end(text: str) -> None:
    list(parse(text))


def test_only_harmless_settings_of_a_repository_count(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(
        "[core]\n\tfsmonitor = evil\n\tautocrlf = input\n\teol = evil\n\tignoreCase\n\texcludesFile = /etc/passwd\n"
        "[include]\n\tpath = more\n[extensions]\n\tworktreeConfig = true\n[user]\n\temail = a@b\n"
    )
    (tmp_path / "more").write_text("[core]\n\teol = crlf\n")
    (tmp_path / "config.worktree").write_text("[core]\n\tsparseCheckout = true\n\tsshCommand = evil\n")
    assert repository_settings(tmp_path, tmp_path) == {
        "core.autocrlf": "input",
        "core.ignorecase": "true",
        "core.sparsecheckout": "true",
        "user.email": "a@b",
    }


@pytest.mark.parametrize(("condition", "email"), [("gitdir:~/work/", "w@x"), ("gitdir:~/other/", "p@x")])
def test_the_persons_name_may_depend_on_the_repository(tmp_path: Path, condition: str, email: str) -> None:
    (tmp_path / ".gitconfig").write_text(
        f'[user]\n\temail = p@x\n[includeIf "{condition}"]\n\tpath = ~/.gitconfig-work\n[alias]\n\tx = !evil\n'
    )
    (tmp_path / ".gitconfig-work").write_text("[user]\n\temail = w@x\n[include]\n\tpath = .gitconfig-work\n")
    own = tmp_path / "work" / "a" / ".git"
    assert person_settings({"HOME": str(tmp_path)}, own) == {"user.email": email}


def test_an_upstream_names_branches_and_nothing_to_run(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(
        '[remote "origin"]\n\turl = ext::evil\n\tuploadpack = evil\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n'
        '[branch "main"]\n\tremote = origin\n\tmerge = refs/heads/main\n[branch "x"]\n\tremote = ext::evil x\n'
    )
    assert upstream_settings(tmp_path, "main") == [
        ("branch.main.remote", "origin"),
        ("branch.main.merge", "refs/heads/main"),
        ("remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*"),
    ]
    assert upstream_settings(tmp_path, "x") == []

"""Files of a workspace that need trust, read from real folders: complete, never outside, never blocking."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.adapters.extensions.agents import load_agents
from callboard.adapters.extensions.discovery import ExtensionPaths
from callboard.adapters.extensions.skills import SkillLibrary
from callboard.adapters.extensions.trust import LARGEST_FILE, git_as_trusted, read_claims, scripts_as_trusted
from callboard.adapters.git.premise import git_is_quiet
from callboard.core.trust.git_config import git_settings

HOOK = "hooks: {PreToolUse: [{hooks: [{type: command, command: ./tools/check.sh}]}]}\n"
FILES = {
    ".callboard/settings.yaml": HOOK,
    ".callboard/agents/a.md": "---\nname: a\ndescription: d\n---\nbody\n",
    ".callboard/skills/s/SKILL.md": "---\nname: s\n---\nbody\n",
    ".callboard/schedules/nightly.md": "---\ncron: '0 3 * * *'\n---\nTidy up.\n",
    ".callboard/hooks/one.sh": "echo\n",
    ".callboard/hooks/hooks.json": json.dumps({"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "x"}]}]}}),
    ".claude/agents/deep/er/b.md": "---\nname: b\ndescription: d\nhooks: {Stop: []}\n---\n",
    ".claude/skills/t/SKILL.md": "no front matter, !`date`\n",
    ".claude/settings.json": json.dumps({"permissions": {"allow": ["Bash"]}}),
    ".claude/settings.local.json": json.dumps({"env": {"A": "b"}}),
    ".claude/hooks/lib.sh": "x=1\n",
    ".mcp.json": json.dumps({"mcpServers": {"x": {"command": "tools/server"}}}),
    "tools/check.sh": "#!/bin/sh\n",
    "tools/server": "#!/bin/sh\n",
}


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    root = tmp_path / "ws"
    for path, text in FILES.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def claims_of(workspace: Path, path: str) -> list[str]:
    return [f"{one.kind} {one.text}" for one in read_claims(workspace).claims if one.path == path]


def test_every_file_counts(workspace: Path) -> None:
    assert set(read_claims(workspace).hashes) == set(FILES)


@pytest.mark.parametrize("path", FILES)
def test_a_change_of_any_file_changes_the_digest_and_so_does_its_end(path: str, workspace: Path) -> None:
    before = read_claims(workspace).digest
    assert read_claims(workspace).digest == before
    with (workspace / path).open("a") as file:
        file.write(" ")
    changed = read_claims(workspace).digest
    (workspace / path).unlink()
    assert len({before, changed, read_claims(workspace).digest}) == 3


def test_other_files_do_not_count(workspace: Path) -> None:
    before = read_claims(workspace).digest
    (workspace / "tools/other.sh").write_text("x")
    (workspace / "README.md").write_text("x")
    assert read_claims(workspace).digest == before


def test_a_script_that_was_written_since_is_told_before_it_runs(workspace: Path) -> None:
    workspace_claims = read_claims(workspace)
    assert scripts_as_trusted(workspace_claims) == ""
    (workspace / "tools/check.sh").write_text("echo changed\n")
    assert scripts_as_trusted(workspace_claims) == "tools/check.sh has changed since it was trusted"
    (workspace / "tools/check.sh").unlink()
    assert "tools/check.sh" in scripts_as_trusted(workspace_claims)


def test_agents_and_skills_are_used_as_they_were_trusted(workspace: Path) -> None:
    workspace_claims = read_claims(workspace)
    places = ExtensionPaths(workspace, trusted=True, bundled=False, workspace_claims=workspace_claims)
    library = SkillLibrary(places)
    (workspace / ".callboard/agents/a.md").write_text("---\nname: a\ndescription: d\n---\nEVIL\n")
    (workspace / ".callboard/agents/new.md").write_text("---\nname: new\ndescription: d\n---\nEVIL\n")
    (workspace / ".callboard/skills/s/SKILL.md").write_text("EVIL\n")
    (workspace / ".claude/skills/t/SKILL.md").unlink()
    agents = load_agents(places).items
    assert {name: one.instructions for name, one in agents.items()} == {"a": "body", "b": ""}
    assert [one.name for one in library.catalogue()] == ["s", "t"]
    assert library.load("s").body == "body\n"
    assert load_agents(ExtensionPaths(workspace, bundled=False, workspace_claims=workspace_claims)).items == {}


def test_a_linked_workspace_is_the_same_one(workspace: Path) -> None:
    link = workspace.parent / "link"
    link.symlink_to(workspace)
    one, two = read_claims(workspace), read_claims(link)
    assert (one.workspace, one.digest) == (two.workspace, two.digest) == (str(workspace.resolve()), one.digest)


def test_what_leads_out_or_would_hang_is_not_used_and_told(workspace: Path) -> None:
    secret = workspace.parent / "secret.md"
    secret.write_text("---\nname: secret\n---\n")
    (workspace / ".claude/agents/out.md").symlink_to(secret)
    (workspace / ".claude/settings.local.json").unlink()
    os.mkfifo(workspace / ".claude/settings.local.json")
    (workspace / ".mcp.json").write_text(" " * (LARGEST_FILE + 1))
    (workspace / "tools/check.sh").unlink()
    (workspace / "tools/check.sh").symlink_to("/bin/sh")
    workspace_claims = read_claims(workspace)
    assert claims_of(workspace, ".claude/agents/out.md")[0].startswith("unread not used: ")
    assert claims_of(workspace, ".claude/settings.local.json") == ["unread not used: not a regular file"]
    assert claims_of(workspace, ".mcp.json") == [f"unread not used: is larger than {LARGEST_FILE:,} bytes"]
    assert claims_of(workspace, "tools/check.sh")[0].startswith("script a link out of the workspace, to ")
    assert not {".claude/agents/out.md", ".mcp.json", "tools/check.sh"} & set(workspace_claims.hashes)


def test_a_folder_that_leads_out_is_not_read(workspace: Path) -> None:
    elsewhere = workspace.parent / "elsewhere"
    (elsewhere / "agents").mkdir(parents=True)
    (elsewhere / "agents/x.md").write_text("---\nname: x\n---\n")
    (workspace / ".claude").rename(workspace / "kept")
    (workspace / ".claude").symlink_to(elsewhere)
    workspace_claims = read_claims(workspace)
    assert [path for path in workspace_claims.hashes if path.startswith(".claude")] == []
    assert claims_of(workspace, ".claude/agents") == ["unread not used: a link leads out of the workspace"]


def test_broken_files_still_count_and_are_told(workspace: Path) -> None:
    (workspace / ".callboard/settings.yaml").write_text("a: [")
    (workspace / ".claude/settings.json").write_text("{")
    (workspace / ".mcp.json").write_bytes(b"\xff\xfe")
    for path in (".callboard/settings.yaml", ".claude/settings.json", ".mcp.json"):
        assert claims_of(workspace, path)[0].startswith("unread not used: "), path
        assert path in read_claims(workspace).hashes


def test_an_empty_folder_and_none_bring_nothing(tmp_path: Path) -> None:
    assert read_claims(tmp_path).nothing
    assert read_claims(tmp_path / "missing").nothing


def git(workspace: Path, *words: str) -> None:
    env = {"PATH": os.environ["PATH"], "HOME": str(workspace), "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", *words], cwd=workspace, check=True, env=env, capture_output=True)


def test_a_fresh_repository_brings_nothing_and_one_with_a_monitor_does(tmp_path: Path) -> None:
    git(tmp_path, "init", ".")
    assert read_claims(tmp_path).nothing
    (tmp_path / "mon.sh").write_text("touch pwned\n")
    git(tmp_path, "config", "core.fsmonitor", "./mon.sh")
    assert not git_is_quiet(tmp_path)
    workspace_claims = read_claims(tmp_path)
    assert [claim.text for claim in workspace_claims.claims if claim.kind == "git"] == ["core.fsmonitor = ./mon.sh"]
    assert "mon.sh" in workspace_claims.scripts  # its content is part of the digest
    (tmp_path / "mon.sh").write_text("echo changed\n")
    assert read_claims(tmp_path).digest != workspace_claims.digest


def test_git_settings_that_are_included_or_of_a_worktree_count(tmp_path: Path) -> None:
    git(tmp_path, "init", ".")
    git(tmp_path, "config", "include.path", "../more")
    (tmp_path / "more").write_text("[core]\n\tpager = evil\n[include]\n\tpath = more\n")
    (tmp_path / ".git/config.worktree").write_text("[core]\n\teditor = evil\n")
    texts = {claim.text for claim in read_claims(tmp_path).claims}
    assert {"include.path = ../more", "core.pager = evil", "core.editor = evil"} <= texts


def test_a_folder_of_git_hooks_counts_with_its_files(tmp_path: Path) -> None:
    git(tmp_path, "init", ".")
    git(tmp_path, "config", "core.hooksPath", ".husky")
    (tmp_path / ".husky").mkdir()
    (tmp_path / ".husky/pre-commit").write_text("npm test\n")
    assert ".husky/pre-commit" in read_claims(tmp_path).scripts


def test_trusted_git_settings_hold_until_they_or_their_scripts_change(tmp_path: Path) -> None:
    git(tmp_path, "init", ".")
    assert not git_as_trusted(read_claims(tmp_path), str(tmp_path))  # nothing was trusted
    git(tmp_path, "config", "core.hooksPath", ".husky")
    git(tmp_path, "config", "core.fsmonitor", "./mon.sh")
    (tmp_path / "mon.sh").write_text("echo\n")
    workspace_claims = read_claims(tmp_path)
    assert git_as_trusted(workspace_claims, str(tmp_path))
    assert not git_as_trusted(workspace_claims, str(tmp_path / ".git"))
    (tmp_path / ".husky").mkdir()
    (tmp_path / ".husky/post-index-change").write_text("echo\n")
    assert not git_as_trusted(workspace_claims, str(tmp_path))
    workspace_claims = read_claims(tmp_path)
    (tmp_path / "mon.sh").write_text("echo changed\n")
    assert not git_as_trusted(workspace_claims, str(tmp_path))
    workspace_claims = read_claims(tmp_path)
    git(tmp_path, "config", "core.pager", "evil")
    assert not git_as_trusted(workspace_claims, str(tmp_path))


def test_a_bare_repository_at_the_root_counts_too(tmp_path: Path) -> None:
    git(tmp_path, "init", "--bare", ".")
    git(tmp_path, "config", "core.pager", "evil")
    assert [claim.text for claim in read_claims(tmp_path).claims] == ["core.pager = evil"]


PIECES = (
    "[core]",
    "\n",
    "\tfsmonitor = x",
    " pager=y",
    "# c",
    ";",
    "\\",
    '"',
    '[diff "a"]',
    " textconv",
    "=",
    "\t",
    "q",
    " = ",
)


@given(st.lists(st.sampled_from(PIECES), max_size=12))
@settings(max_examples=60 * int(os.environ.get("SOAK", "1")), deadline=None)
def test_no_setting_that_git_reads_is_missed(pieces: list[str]) -> None:
    text = "".join(pieces)
    ran = subprocess.run(
        ["git", "config", "--file", "-", "--name-only", "--list", "--null"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode == 0:
        read = {one.name for one in git_settings(text)}
        assert "" in read or {name for name in ran.stdout.split("\0") if name} <= read  # "": any name

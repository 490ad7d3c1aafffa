"""Files that other tools run or obey are protected, each by the name that its tool reads."""

from __future__ import annotations

import pytest

from callboard.core.permissions.sensitive_paths import is_protected

FOLDERS = [".git", ".vscode", ".idea", ".husky", ".cargo", ".devcontainer", ".yarn", ".mvn", ".claude"]
FILES = [
    ".gitconfig",
    ".gitmodules",
    ".bashrc",
    ".zshrc",
    ".profile",
    ".envrc",
    ".npmrc",
    ".yarnrc",
    ".yarnrc.yml",
    ".pnp.cjs",
    ".pnp.loader.mjs",
    ".pnpmfile.cjs",
    "bunfig.toml",
    ".bunfig.toml",
    ".bazelrc",
    ".bazelversion",
    ".bazeliskrc",
    ".pre-commit-config.yaml",
    "lefthook.yml",
    "gradle-wrapper.properties",
    "maven-wrapper.properties",
    ".devcontainer.json",
    ".ripgreprc",
    "pyrightconfig.json",
    ".mcp.json",
    ".claude.json",
    "AGENTS.md",
    "CLAUDE.md",
]


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_protected_at_any_depth_and_in_any_case(name: str) -> None:
    for parts in ([name], ["a", "b", name], [name.upper()]):
        assert is_protected(parts)
    assert not is_protected([f"x{name}"])


@pytest.mark.parametrize("name", FOLDERS)
def test_all_in_a_protected_folder_is(name: str) -> None:
    assert is_protected([name, "x"])
    assert is_protected(["a", name, "b", "c"])
    assert not is_protected([f"{name}x", "y"])

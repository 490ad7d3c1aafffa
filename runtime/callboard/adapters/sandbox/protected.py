"""What in a workspace other tools run or obey (docs/permissions.md, letter H), and how it is kept from changing.

By name at the top of the folder, and git's own files. Deeper ones are the permission rules' alone: nobody could shut
every place in a tree where a name might come to be.
"""
# ruff: noqa: PTH110, PTH112, PTH114, PTH208
# Paths are text here: they become words of a command line, and are compared by the hundred.

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field

from callboard.adapters.programs import is_within
from callboard.adapters.sandbox.ground import Repository

SHUT = (
    *(".callboard", ".claude", ".mcp.json", ".claude.json", ".vscode", ".idea", ".cursor", ".codex", ".gemini", ".zed"),
    *(".windsurf", ".continue", ".aider", ".fleet", ".devcontainer", ".devcontainer.json", ".husky", ".githooks"),
    *(
        ".lefthook",
        ".circleci",
        ".direnv",
        ".envrc",
        ".yarn",
        ".mvn",
        ".cargo",
        ".bundle",
        ".hg",
        ".svn",
        ".cursorrules",
    ),
    *(".pre-commit-config.yaml", ".pre-commit-hooks.yaml", "lefthook.yml", "lefthook.yaml", ".lefthook.yml"),
    *(".lefthook.yaml", ".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".profile", ".zshrc", ".zshenv"),
    *(".zprofile", ".gitconfig", ".bazelrc", ".bazeliskrc", ".npmrc", ".yarnrc", ".exrc", ".vimrc", ".ripgreprc"),
    ".gitlab-ci.yml",
)
"""Kept shut also where they are not there: an empty folder stands in their place while commands run."""
SHUT_IF_THERE = (
    *(".gitmodules", ".gitattributes", ".yarnrc.yml", ".pnp.cjs", ".pnp.loader.mjs", ".pnpmfile.cjs", "bunfig.toml"),
    *(".bunfig.toml", ".bazelversion", "pyrightconfig.json", ".tool-versions", ".mise.toml", "mise.toml"),
    *(".python-version", ".nvmrc", "sitecustomize.py", "usercustomize.py", ".pypirc", "pip.conf"),
)
"""Kept from changing; not made, since an empty folder of that name stops the tool that looks for it."""
WITHIN = (".github/workflows", ".config/git")
"""Parts of a folder that is otherwise ordinary."""
_GIT = ("config", "hooks", "info", "modules", "worktrees")
_GIT_MADE = frozenset({"hooks", "info", "modules", "worktrees"})


@dataclass
class Protection:
    """What has to be done, in order of the lists."""

    folder: str
    pinned: list[str] = field(default_factory=list[str])
    """Folders that stay writable, and must not be moved away with what is shut in them."""
    shut: list[str] = field(default_factory=list[str])
    """Files and folders that nothing changes."""
    place: list[str] = field(default_factory=list[str])
    """Those of them that have to be made first, as empty folders."""
    unwanted: list[str] = field(default_factory=list[str])
    """What must not come to be there, and cannot be shut."""

    def close(self, path: str, *, make: bool) -> None:
        """Shut a path. What is a link is left alone: it is shut where it leads to, if that is shut."""
        try:
            kind = os.lstat(path).st_mode
        except OSError:
            if make:
                self.place.append(path)
                self.shut.append(path)
            return
        if stat.S_ISDIR(kind) or stat.S_ISREG(kind):
            if make and stat.S_ISDIR(kind) and not os.listdir(path):
                self.place.append(path)  # perhaps another command's, and gone before this one starts
            self.shut.append(path)
        elif stat.S_ISLNK(kind) and is_within(real := os.path.realpath(path), self.folder) and os.path.exists(real):
            self.shut.append(real)


def protect(folder: str, writable: tuple[str, ...], repository: Repository | None, *, worktree: bool) -> Protection:
    """What of a folder and its repository has to be shut. `writable`: what the person opened all the same.

    `worktree`: the folder is a linked one of the workspace, whose shared git folder is open only where git works.
    """
    done = Protection(folder)
    for names, make in ((SHUT, True), (SHUT_IF_THERE, False)):
        for name in names:
            if (path := f"{folder}/{name}") not in writable:
                done.close(path, make=make)
    for name in WITHIN:
        outer, path = f"{folder}/{name.partition('/')[0]}", f"{folder}/{name}"
        if os.path.isdir(outer) and not os.path.islink(outer) and path not in writable:
            done.pinned.append(outer)
            done.close(path, make=True)
    if f"{folder}/.git" not in writable:
        _protect_repository(done, folder, repository, worktree=worktree)
    return done


def _protect_repository(done: Protection, folder: str, repository: Repository | None, *, worktree: bool) -> None:
    if repository is None or not os.path.isdir(f"{folder}/.git"):
        done.close(f"{folder}/.git", make=True)
    if repository is not None and not worktree:
        _protect_git(done, repository)
    elif repository is not None:
        done.pinned += [f"{repository.common}/{name}" for name in ("objects", "refs", "logs")]
        done.pinned.append(repository.own)
        for name in ("commondir", "gitdir", "config.worktree"):
            done.close(f"{repository.own}/{name}", make=False)


def _protect_git(done: Protection, repository: Repository) -> None:
    common = repository.common
    done.pinned.append(common)
    for name in _GIT:
        done.close(f"{common}/{name}", make=name in _GIT_MADE)
    done.close(f"{common}/config.worktree", make=False)
    done.unwanted += [
        path for path in (f"{common}/commondir", f"{common}/config.worktree") if not os.path.lexists(path)
    ]

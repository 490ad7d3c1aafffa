"""Files of a workspace that other tools run or obey (docs/permissions.md, letter H), protected from commands.

Protected are certain names at the top of the folder, and git's own files. Existing ones are mounted read-only; absent
ones are guarded (`created_paths.py`). Only the permission rules cover names in deeper folders.
"""
# ruff: noqa: PTH110, PTH112, PTH113, PTH114, PTH208
# Paths are text here: they become words of a command line, and are compared by the hundred.

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field

from callboard.adapters.processes.programs import is_within
from callboard.adapters.processes.sandbox.ground import CheckoutFolders
from callboard.core.permissions.sensitive_paths import CLAUDE_LOADED

SHUT = (
    *(".callboard", ".mcp.json", ".claude.json", ".vscode", ".idea", ".cursor", ".codex", ".gemini", ".zed"),
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
    *(".gitmodules", ".gitattributes", ".yarnrc.yml", ".pnp.cjs", ".pnp.loader.mjs", ".pnpmfile.cjs", "bunfig.toml"),
    *(".bunfig.toml", ".bazelversion", "pyrightconfig.json", ".tool-versions", ".mise.toml", "mise.toml"),
    *(".python-version", ".nvmrc", "sitecustomize.py", "usercustomize.py", ".pypirc", "pip.conf"),
)
"""Protected names at the top of the folder."""
CLAUDE = ".claude"
_DATA = ".local.md"
"""Ending of names of data that plugins keep in `.claude`, next to files that programs load."""
WITHIN = (".github/workflows", ".config/git")
"""Protected parts of an otherwise ordinary folder."""
_GIT = ("config", "hooks", "info", "modules", "worktrees", "commondir", "config.worktree")

_BORROWED = ("info/alternates", "info/http-alternates")


@dataclass
class Protection:
    """Protections to set up, in order of the lists."""

    folder: str
    writable: tuple[str, ...] = ()
    """Paths that the user opened explicitly."""
    pinned: list[str] = field(default_factory=list[str])
    """Folders that stay writable, and must not be moved away with the closed paths in them."""
    shut: list[str] = field(default_factory=list[str])
    """Files and folders that no command may change."""
    guarded: list[str] = field(default_factory=list[str])
    """Absent paths that no command may create, as `created_paths.py` reads them: `BASE//NAME`, or `BASE//NAME/` for a
    name that only a folder may have."""

    def close(self, base: str, name: str) -> None:
        """Protect a path. A link is protected at its target, if that is inside the folder."""
        path = f"{base}/{name}"
        if path in self.writable:
            return
        try:
            kind = os.lstat(path).st_mode
        except OSError:
            if not any(is_within(opened, path) for opened in self.writable):
                self.guarded.append(f"{base}//{name}")
            return
        if stat.S_ISDIR(kind) or stat.S_ISREG(kind):
            self.shut.append(path)
        elif stat.S_ISLNK(kind) and is_within(real := os.path.realpath(path), self.folder) and os.path.exists(real):
            self.shut.append(real)


def protect(
    folder: str, writable: tuple[str, ...], repository: CheckoutFolders | None, *, worktree: bool
) -> Protection:
    """Return the paths of a folder and its repository that must be protected.

    `worktree`: the folder is a linked worktree of the workspace, whose shared git folder is open only where git works.
    """
    done = Protection(folder, writable)
    for name in SHUT:
        done.close(folder, name)
    for name in WITHIN:
        outer = f"{folder}/{name.partition('/')[0]}"
        path = f"{folder}/{name}"
        if os.path.islink(outer):
            continue
        done.close(folder, name)
        if path not in writable and os.path.isdir(outer):
            done.pinned.append(outer)
    _protect_claude(done, folder)
    if f"{folder}/.git" not in writable:
        _protect_repository(done, folder, repository, worktree=worktree)
    return done


def _protect_claude(done: Protection, folder: str) -> None:
    """Protect the parts of `.claude` individually, so that a plugin can keep its data there. All other existing files
    are closed, whatever their names are: a hook may run them."""
    path = f"{folder}/{CLAUDE}"
    if path in done.writable:
        return
    if os.path.islink(path) or os.path.isfile(path):
        done.close(folder, CLAUDE)
        return
    done.guarded.append(f"{folder}//{CLAUDE}/")
    names = dict.fromkeys(CLAUDE_LOADED)
    if os.path.isdir(path):
        done.pinned.append(path)
        names |= dict.fromkeys(name for name in _listed(path) if not _is_data(name))
    for name in names:
        done.close(folder, f"{CLAUDE}/{name}")


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _is_data(name: str) -> bool:
    """Return True if a file of `.claude` is a plugin's data, which no program loads by itself."""
    return name.endswith(_DATA) and name not in CLAUDE_LOADED


def _protect_repository(done: Protection, folder: str, repository: CheckoutFolders | None, *, worktree: bool) -> None:
    if repository is None or not os.path.isdir(f"{folder}/.git"):
        done.close(folder, ".git")
    if repository is not None and not worktree:
        _protect_git(done, repository)
    elif repository is not None:
        done.pinned += [f"{repository.common}/{name}" for name in ("objects", "refs", "logs")]
        done.pinned.append(repository.own)
        _protect_objects(done, repository)
        for name in ("commondir", "gitdir", "config.worktree"):
            done.close(repository.own, name)


def _protect_git(done: Protection, repository: CheckoutFolders) -> None:
    common = repository.common
    done.pinned += [common, f"{common}/objects"]
    for name in _GIT:
        done.close(common, name)
    _protect_objects(done, repository)


def _protect_objects(done: Protection, repository: CheckoutFolders) -> None:
    """Protect the lists of other repositories whose objects git treats as its own."""
    for name in _BORROWED:
        done.close(f"{repository.common}/objects", name)

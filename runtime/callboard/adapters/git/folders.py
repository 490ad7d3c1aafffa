"""Git's folders of a checkout, and the fixed folder that replaces the shared one.

Git takes the configuration of a repository from its common folder, and no option prevents that. Almost any setting in
it can name a program to run, and a process that can write there can change it between a check and a call. So the
runtime's git gets another common folder (`GIT_COMMON_DIR`): one of Callboard's, outside of everything that agents
write, with a configuration of a few lines and links to the repository's objects and references. Git then never reads
the repository's own configuration: programs, filters, includes, promisor remotes, worktree settings.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import threading
from collections.abc import Mapping
from pathlib import Path

from callboard.adapters.git.settings import store_format
from callboard.adapters.system.regular_files import read_regular
from callboard.types.lazy_dataclass import dataclass

_LINKS = ("HEAD", "objects", "refs", "packed-refs", "reftable", "logs", "info", "worktrees", "shallow")
"""Entries of the common folder that git gets. All others are left out, such as hooks, config and modules."""


@dataclass(frozen=True, slots=True)
class GitFolders:
    """Git's own folders of a repository, as absolute paths.

    `common` is git's folder of the repository, `own` that of one of its working trees (usually the same).
    """

    own: Path
    common: Path


def find_folders(checkout: Path) -> GitFolders | None:
    """Return the folders of a checkout, according to its `.git`; None without a repository.

    A `commondir` counts only in the folder of a linked worktree, which is in `worktrees` of the folder that it names.
    Elsewhere it would lead git to an unrelated repository.
    """
    marker = checkout / ".git"
    if marker.is_dir():
        own = common = Path(os.path.realpath(marker))
    elif named := _folder_named_in(marker, "gitdir:"):
        own = Path(os.path.realpath(named))
        common = Path(os.path.realpath(_folder_named_in(own / "commondir") or own))
    else:
        return None
    folders = GitFolders(own, common)
    linked = own == common or own.parent == common / "worktrees"
    return folders if linked and is_git_folder(folders) else None


def is_git_folder(folders: GitFolders) -> bool:
    """Return True if these folders look like git's."""
    references = (folders.common / "refs").is_dir() or (folders.common / "reftable").is_dir()
    return references and (folders.common / "objects").is_dir() and os.path.lexists(folders.own / "HEAD")


_OWN_FILES = ("HEAD", "index")
_COMMON_FILES = (
    *("HEAD", "packed-refs", "shallow", "info/exclude", "info/grafts", "info/sparse-checkout"),
    "objects/info/alternates",
)


def special_file(folders: GitFolders) -> Path | None:
    """Return a file of git's that is neither regular nor missing, such as a named pipe, for which git would wait."""
    for path in (*(folders.own / name for name in _OWN_FILES), *(folders.common / name for name in _COMMON_FILES)):
        try:
            mode = path.stat().st_mode
        except OSError:
            continue  # missing, or a link to a reference that does not exist yet
        if not stat.S_ISREG(mode):
            return path
    return None


def _folder_named_in(file: Path, prefix: str = "") -> Path | None:
    """Return the folder that a small file names; None if the file does not exist."""
    try:
        text = read_regular(file, 4096).decode(errors="surrogateescape").strip()
    except OSError:
        return None
    name = text.removeprefix(prefix).strip()
    return file.parent / name if text.startswith(prefix) and name and "\0" not in name else None


def fixed_folder(common: Path, root: Path) -> Path:
    """Return the folder that replaces `common`; create it if it is missing.

    `root`: Callboard's private folder for all such folders. Its content does not depend on the process that creates it,
    so simultaneous processes do not disturb each other.
    """
    formats = store_format(common)
    text = _config(formats)
    digest = hashlib.sha256(os.fsencode(common) + b"\0" + text.encode()).hexdigest()[:24]
    folder = root / digest
    if not (folder / "config").is_file():
        _forget_missing(root)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in _LINKS:
            _link(folder / name, common / name)
        part = folder / f"config.{os.getpid()}.{threading.get_ident()}"
        part.write_text(text, encoding="utf-8")
        # Last and atomic: for all processes that use a folder, the folder with this file is complete.
        part.rename(folder / "config")
    return folder


def _forget_missing(root: Path) -> None:
    """Remove the folders of repositories that are gone; a repository that returns gets a new one."""
    for folder in root.glob("*/"):
        if not (folder / "objects").exists() and (folder / "config").exists():
            shutil.rmtree(folder, ignore_errors=True)


def _link(link: Path, target: Path) -> None:
    try:
        link.symlink_to(target)
    except FileExistsError:
        return  # another process has just created it


def _config(formats: Mapping[str, str]) -> str:
    lines = ["[core]", "\trepositoryFormatVersion = 1", "\tbare = false"]
    if formats:
        lines += ["[extensions]", *(f"\t{name.partition('.')[2]} = {value}" for name, value in formats.items())]
    return "\n".join(lines) + "\n"

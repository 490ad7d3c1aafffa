"""Folders of a workspace and its user."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import platformdirs

from callboard.core.keys import workspace_folder
from callboard.core.utf8 import storable
from callboard.types.errors import WorkspaceUnusable
from callboard.types.lazy_dataclass import dataclass

Notice = Callable[[str], None]
"""Function that receives the reason why a command has to wait. Called from another thread."""


@dataclass(frozen=True, slots=True)
class WorkspacePaths:
    """Folders of a workspace and its user. All paths are absolute."""

    workspace: Path
    state: Path
    """Store and logs: denied to agents."""
    data: Path
    """Large results, transcripts, worktrees."""
    config: Path
    """The user's own settings, agents, skills."""

    @property
    def live(self) -> Path:
        """Return the folder of the sockets through which hosts stream text (`live/`)."""
        return self.state / "live"

    @property
    def worktrees(self) -> Path:
        return self.data / "worktrees"

    def session_data(self, session: str) -> Path:
        return self.data / session


def find_places(workspace: Path, *, writable: bool = True) -> WorkspacePaths:
    """Return the folders of a workspace.

    Raises `WorkspaceUnusable` for one that does not exist or cannot be written.
    """
    try:
        root = workspace.resolve(strict=True)
    except OSError as missing:
        raise WorkspaceUnusable(f"{workspace}: {missing.strerror}: give an existing folder with --cwd") from missing
    if storable(str(root)) != str(root):
        raise WorkspaceUnusable(f"{str(root)!a}: its path is not UTF-8 text: rename the folder")
    if not root.is_dir():
        raise WorkspaceUnusable(f"{root} is not a folder: give one with --cwd")
    if writable and not os.access(root, os.W_OK):
        raise WorkspaceUnusable(f"{root} cannot be written (read-only mount, or not yours): remount or copy it first")
    own = workspace_folder(root)
    return WorkspacePaths(
        workspace=root,
        state=platformdirs.user_state_path("callboard") / own,
        data=platformdirs.user_data_path("callboard") / own,
        config=platformdirs.user_config_path("callboard"),
    )

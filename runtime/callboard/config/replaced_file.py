"""A file that commands change for a person: one process at a time, written completely or not at all.

    file = ReplacedFile(path, workspace)
    with file.opened(create=True) as folder:      # locked until the end of the block
        content, mode = file.read(folder)
        file.write(folder, content + b"more", mode)

The person may keep their own file elsewhere, with a link to it. In a workspace, whose content others write, a link
could lead to any file of the person: below it no link is followed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Generator
from pathlib import Path

from callboard.adapters.system.regular_files import open_folder, part_name, read_in, write_in_folder
from callboard.types.errors import SettingsError
from callboard.types.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class ReplacedFile:
    """A file, in the workspace's folder or in a folder of it, or the person's own."""

    path: Path
    workspace: Path | None = None
    """Folder of the workspace (its real path); None: the file is the person's own."""
    largest: int = 1_000_000
    """Most bytes to read."""

    @contextlib.contextmanager
    def open_folder(self, *, create: bool) -> Generator[int]:
        """Open the folder of the file, and lock it if it is to be changed. Yield its descriptor.

        `create`: make the folder if it is missing, and lock it. The folder is locked because the file is replaced.
        Raises `SettingsError`, and without `create` `FileNotFoundError` for a missing folder.
        """
        with contextlib.ExitStack() as folders:
            try:
                folder = self._open_own(create=create) if self.workspace is None else self._open_inside(create=create)
                folders.callback(os.close, folder)
                if create:
                    fcntl.flock(folder, fcntl.LOCK_EX)
                yield folder
            except FileNotFoundError:
                raise
            except OSError as failed:
                linked = failed.errno in (errno.ELOOP, errno.ENOTDIR)
                reason = "its folder is a link: edit the file that it leads to" if linked else failed.strerror or failed
                raise SettingsError(f"cannot be changed: {reason}", str(self.path)) from failed

    def read(self, folder: int) -> tuple[bytes, int | None]:
        """Return content and mode of the file in its open folder. A missing one is empty. Raises `SettingsError`."""
        try:
            missing = b"", 0o600 if self.workspace is None else None
            return read_in(folder, self._name, self.largest) or missing
        except OSError as failed:
            reason = "is a link: edit the file that it leads to" if failed.errno == errno.ELOOP else failed.strerror
            raise SettingsError(f"cannot be changed: {reason}", str(self.path)) from failed

    def write(self, folder: int, content: bytes, mode: int | None) -> None:
        """Replace the file in its open folder. Raises OSError, which `open_folder` reports."""
        part = part_name(self._name, f"settings {os.getpid()}")
        write_in_folder(folder, self._name, content, mode=mode, part=part)

    @property
    def _name(self) -> str:
        return self.path.name if self.workspace is not None else os.path.basename(os.path.realpath(self.path))  # noqa: PTH119 - the same text is split in `_open_own`

    def _open_own(self, *, create: bool) -> int:
        parent = Path(os.path.realpath(self.path)).parent
        if create:
            parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return open_folder(str(parent))

    def _open_inside(self, *, create: bool) -> int:
        folder = open_folder(str(self.workspace))
        if self.path.parent == self.workspace:
            return folder
        name = self.path.parent.name
        try:
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, dir_fd=folder)
            return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        finally:
            os.close(folder)

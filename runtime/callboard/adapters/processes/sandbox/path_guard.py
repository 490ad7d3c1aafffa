"""Protected paths that did not exist when a command began: a guard finds those that it creates, and moves them aside.

A mount can close a path only if something exists there, and Landlock grants by folder, not by name. So
`launch_child.py` watches the few affected folders with inotify, renames new files (`.mcp.json` to
`.mcp.json.quarantined`) within a moment, and checks once more when the command has ended. Its record outlives it: after
kill -9 the next command, or the next session, does the check (`check_records`).

Every rename is relative to a folder that was opened before the command began and follows no link, so a command cannot
redirect it. This module imports only a small part of the standard library, because each command waits for the import.
"""
# ruff: noqa: PTH103, PTH108, PTH116, PTH120, PTH123, PTH208 - importing pathlib would take longer than all the rest of the start

from __future__ import annotations

import ctypes
import errno
import os
import stat
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from callboard.adapters.kernel.process_table import boot_id, row_of
from callboard.types.lazy_dataclass import dataclass

IN_CREATE = 0x100
IN_MOVED_TO = 0x80
IN_NONBLOCK = 0o4000
IN_CLOEXEC = 0o2000000
SUFFIX = ".quarantined"
GRANTS = "grants"
"""File, in the folder of the records, of paths that the user allowed while commands run."""
MOVES = "moves"
"""File, next to the grants, of all paths that were moved aside. Simultaneous commands watch the same folders, and each
also reports the paths that another command's guard moved first."""
LARGEST = 1 << 16
"""Most bytes of either file. A larger one is removed once no command needs it."""
LIMIT = 16
"""Most times that a command may create a protected path. Beyond that it is ended, because it would never stop."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass
class MovedPath:
    """Path that the command created, and its new path; empty: it could not be moved."""

    path: str
    to: str


class PathGuard:
    """The absent protected paths of one command.

    `entries`: `BASE//NAME` or `BASE//FOLDER/NAME`; with a `/` at its end, only a folder may have this name, so that no
    link bypasses the entries beneath it. No command can replace a base: it is the top of the folder, or a mounted git
    folder.
    """

    def __init__(self, entries: Iterable[str], grants: Grants) -> None:
        self.moved: list[MovedPath] = []
        self.grants = grants
        self.moves = MoveLog(f"{os.path.dirname(grants.path)}/{MOVES}")
        self._times = 0
        self._shared = False
        self.bases: dict[str, int] = {}
        self.absent: list[tuple[str, str]] = []
        for entry in entries:
            base, _, name = entry.partition("//")
            if base not in self.bases:
                try:
                    self.bases[base] = os.open(base, _FOLDER)
                except OSError:
                    continue  # it does not exist: the command has no such folder
            self.absent.append((base, name))
        self.inotify = -1
        self._watched: set[tuple[int, int]] = set()
        self._late: dict[tuple[str, str], tuple[int, int] | None] = {}

    def late(self) -> list[str]:
        """Return the paths that exist by now, and ignore each while it is the same file.

        Call it before the command begins.
        """
        identities = {pair: self._identity(*pair) for pair in self.absent}
        self._late = {pair: identity for pair, identity in identities.items() if identity}
        return [f"{base}/{name.rstrip('/')}" for base, name in self._late]

    def watch(self) -> int:
        """Watch the folders. Return the descriptor to poll, -1 if the kernel provides no more."""
        if not sys.platform.startswith("linux"):
            return -1
        libc = ctypes.CDLL(None, use_errno=True)
        self.inotify = libc.inotify_init1(IN_NONBLOCK | IN_CLOEXEC)
        if self.inotify >= 0:
            self._watch_folders()
        return self.inotify

    def check(self, descriptor: int = -1) -> None:
        """Move aside the paths created since the last check. `descriptor`: its events are read first."""
        if descriptor >= 0:
            _drain(descriptor)
        if self.inotify >= 0:
            self._watch_folders()  # before the check: a file created later causes another event
        allowed: frozenset[str] | None = None
        for base, name in self.absent:
            path = f"{base}/{name.rstrip('/')}"
            identity = self._identity(base, name)
            if identity is None or identity == self._late.get((base, name)):
                continue
            allowed = self.grants.read() if allowed is None else allowed
            if any(_covers(grant, path, base) for grant in allowed):
                continue
            self._times += 1
            self._shared = self._shared or _commands(os.path.dirname(self.grants.path)) > 1
            target = self._move(base, name)
            if target is not None:
                self.moved.append(MovedPath(path, target))

    @property
    def exceeded(self) -> bool:
        """Return True if the command keeps creating protected paths."""
        return self._times > LIMIT

    def report(self) -> str:
        """Return the text for model and user about the paths that any guard moved aside while the command ran."""
        targets = {move.to for move in self.moved}
        watched = {f"{base}/{name.rstrip('/')}" for base, name in self.absent}
        others = [move for move in self.moves.read() if move.path in watched and move.to not in targets]
        return describe([*self.moved, *others], shared=self._shared or bool(others))

    def record(self) -> str:
        """Return the entries as text, for `check_records`."""
        return "".join(f"{base}//{name}\n" for base, name in self.absent)

    def close(self) -> None:
        for descriptor in (*self.bases.values(), *((self.inotify,) if self.inotify >= 0 else ())):
            os.close(descriptor)
        self.bases = {}
        self.inotify = -1

    def _watch_folders(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        for base, name in dict.fromkeys((base, _split(name)[0]) for base, name in self.absent):
            descriptor = self._open(base, name)
            if descriptor is None:
                continue
            status = os.fstat(descriptor)
            if (key := (status.st_dev, status.st_ino)) not in self._watched:
                self._watched.add(key)
                place = f"/proc/self/fd/{descriptor}".encode()
                libc.inotify_add_watch(self.inotify, place, IN_CREATE | IN_MOVED_TO)
            os.close(descriptor)
        # A folder that appears in the base (`.github`) causes an event of the base, and is watched from then on.

    def _open(self, base: str, folder: str) -> int | None:
        """Return a descriptor of the folder within a base, without following links; None if it does not exist."""
        if base not in self.bases:
            return None
        if not folder:
            return os.dup(self.bases[base])
        try:
            # Relative to the open base, without links, because a command can replace the folder by a link
            # (test_a_link_does_not_lead_the_check_out_of_the_folder).
            return os.open(folder, _FOLDER, dir_fd=self.bases[base])
        except OSError:
            return None

    def _identity(self, base: str, name: str) -> tuple[int, int] | None:
        """Return the device and inode of the forbidden file with this name; None if there is none."""
        folder, last = _split(name)
        descriptor = self._open(base, folder)
        if descriptor is None:
            return None
        try:
            status = os.stat(last, dir_fd=descriptor, follow_symlinks=False)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        if name.endswith("/") and stat.S_ISDIR(status.st_mode):
            return None
        return status.st_dev, status.st_ino

    def _move(self, base: str, name: str) -> str | None:
        """Rename the file with this name. Return the new path; empty if that failed, None if the file is gone."""
        folder, last = _split(name)
        descriptor = self._open(base, folder)
        if descriptor is None:
            return None
        place = f"{base}/{folder}" if folder else base
        try:
            for target in _names(last):
                if _lexists(descriptor, target):
                    continue
                # Before the rename: a guard that finds the name gone must find the record of the move.
                self.moves.add(MovedPath(f"{base}/{name.rstrip('/')}", f"{place}/{target}"))
                if rename_new(descriptor, last, target):
                    return f"{place}/{target}"
        except FileNotFoundError:
            return None  # the command removed it, or the guard of another command was faster
        except OSError:
            pass
        finally:
            os.close(descriptor)
        return ""


def _split(name: str) -> tuple[str, str]:
    """Return the folder within the base, empty for the base itself, and the last component."""
    folder, _, last = name.rstrip("/").rpartition("/")
    return folder, last


RENAME_NOREPLACE = 1
RENAME_EXCL = 4
"""Same meaning as RENAME_NOREPLACE, for `renameatx_np` of macOS (man 2 renameatx_np)."""


def rename_new(folder: int, name: str, target: str) -> bool:
    """Rename within a folder.

    Return False if the target exists by now, possibly created by another guard. Raises OSError.

    On file systems without this kind of rename, a plain rename is used, which relies on the earlier check.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    # Guards of several commands move files at the same time, and must not replace one another's
    # (test_guards_that_move_files_at_the_same_time_replace_nothing).
    rename, flag = (
        (libc.renameat2, RENAME_NOREPLACE) if hasattr(libc, "renameat2") else (libc.renameatx_np, RENAME_EXCL)
    )
    if not rename(folder, os.fsencode(name), folder, os.fsencode(target), flag):
        return True
    code = ctypes.get_errno()
    if code == errno.EEXIST:
        return False
    if code not in (errno.EINVAL, errno.ENOSYS):
        raise OSError(code, os.strerror(code), name)
    os.rename(name, target, src_dir_fd=folder, dst_dir_fd=folder)
    return True


def _names(name: str) -> Iterator[str]:
    yield name + SUFFIX
    number = 2
    while True:
        yield f"{name}{SUFFIX}-{number}"
        number += 1


def _lexists(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return True


def _drain(descriptor: int) -> None:
    """Read all pending events. Their content does not matter: each one only causes a new check."""
    try:
        while os.read(descriptor, 1 << 16):
            pass
    except BlockingIOError:
        return


def _each_once(moved: Sequence[MovedPath]) -> Iterator[tuple[str, str, int]]:
    """Yield each path once for all its successful moves, and once for all that failed: path, first new path, count."""
    counts = Counter((move.path, bool(move.to)) for move in moved)
    firsts: dict[tuple[str, bool], str] = {}
    for move in moved:
        firsts.setdefault((move.path, bool(move.to)), move.to)
    for (path, done), to in firsts.items():
        yield path, to, counts[path, done]


def describe(moved: Sequence[MovedPath], command: str = "", *, shared: bool = False) -> str:
    """Return the text for the model and the user; empty if nothing was moved.

    `command`: an earlier command. `shared`: other commands ran too, and the kernel does not report which of them
    created a file.
    """
    if not moved:
        return ""
    creator = "This command, or another one that ran at the same time," if shared else "This command"
    if command:
        creator = f"The earlier command `{command}`, which was killed,"
    lines = [f"[{creator} created files that other programs run or obey, without approval:"]
    # One line for each path: a command that creates a file again and again would fill the agent's context.
    for path, to, times in _each_once(moved):
        again = f", and {times - 1} more times to such a name" if times > 1 else ""
        lines.append(f"  {path} was moved to {to}{again}" if to else f"  {path} COULD NOT BE MOVED: delete it")
    lines.append(
        "Do not move it back. Create such a file with write_file, or name its path in the command, so that a person is "
        "asked; a person may also list the path under `sandbox.writable`.]"
    )
    return "\n".join(lines) + "\n"


class SharedLog:
    """A file to which many processes append, and the start of the part that is newer than this command.

    `mark`: that position as text, from an earlier `SharedLog`. If the file was trimmed since, it is another file, and
    all of it is newer.
    """

    def __init__(self, path: str, mark: str = "") -> None:
        self.path = path
        if mark:
            start, _, number = mark.partition(":")
            self.start = int(start)
            self.number = int(number or 0)
            return
        try:
            status = os.stat(path)
            self.start = status.st_size
            self.number = status.st_ino
        except OSError:
            self.start = 0
            self.number = 0

    @property
    def mark(self) -> str:
        """Return the position as text."""
        return f"{self.start}:{self.number}"

    def text(self) -> str:
        """Return the newer part; empty if the file cannot be read."""
        try:
            with open(self.path, "rb") as file:
                status = os.fstat(file.fileno())
                if status.st_ino == self.number and status.st_size >= self.start:
                    file.seek(self.start)
                return os.fsdecode(file.read())
        except OSError:
            return ""


class MoveLog(SharedLog):
    """Record of the paths that the guards of all commands moved aside."""

    def add(self, moved: MovedPath) -> None:
        """Record a rename with one atomic write. A full disk must not prevent the rename itself."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            descriptor = os.open(self.path, flags, 0o600)
        except OSError:
            return
        try:
            os.write(descriptor, os.fsencode(f"{moved.path}\0{moved.to}\n"))
        except OSError:
            return
        finally:
            os.close(descriptor)

    def read(self) -> list[MovedPath]:
        """Return the files that were really moved since then, each once."""
        lines = self.text().split("\n")
        pairs = dict.fromkeys(tuple(line.split("\0")) for line in lines if line.count("\0") == 1)
        return [MovedPath(path, to) for path, to in pairs if os.path.lexists(to)]


def _commands(folder: str) -> int:
    """Count the commands that have a record in the folder."""
    try:
        return sum(name.endswith(".guard") for name in os.listdir(folder))
    except OSError:
        return 0


# Grants: paths that the user approved while other commands run


class Grants(SharedLog):
    """The granted paths, one per line. A grant applies to the commands that were running when it was given."""

    def read(self) -> frozenset[str]:
        """Return the paths that were allowed since then."""
        return frozenset(self.text().splitlines())


def _covers(granted: str, path: str, base: str) -> bool:
    """Return True if a granted path is the protected one, is inside it, or is a folder of the base that contains it."""
    within = granted == path or granted.startswith(f"{path}/")
    return within or (granted.startswith(f"{base}/") and path.startswith(f"{granted}/"))


def add_grants(folder: str, paths: Iterable[str]) -> None:
    """Allow paths for the commands that are running now. Each line is one atomic write."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    descriptor = os.open(f"{folder}/{GRANTS}", flags, 0o600)
    try:
        for path in paths:
            os.write(descriptor, os.fsencode(path) + b"\n")
    finally:
        os.close(descriptor)


def trim(folder: str) -> None:
    """Remove the two files once they have grown large.

    Call it while no command has a record: all entries are old then.
    """
    for name in (GRANTS, MOVES):
        try:
            if os.stat(f"{folder}/{name}").st_size > LARGEST:
                os.unlink(f"{folder}/{name}")
        except OSError:
            continue  # it does not exist


# Records: for the check after a killed command


def leave_record(folder: str, guard: PathGuard, command: str) -> str:
    """Record the paths that this process guards. Return the record's path, empty if there are none."""
    if not folder or not guard.absent:
        return ""
    pid = os.getpid()
    path = f"{folder}/{pid}-{_started(pid)}.guard"
    with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(f"{' '.join(command.split())[:200]}\n{guard.grants.mark} {guard.grants.path}\n{guard.record()}")
    return path


def check_records(folder: str) -> str:
    """Do the check for commands whose processes are all gone. Return the text for user and model."""
    text = ""
    try:
        names = [name for name in os.listdir(folder) if name.endswith(".guard")]
    except OSError:
        return ""
    if not names:
        trim(folder)
    for name in names:
        pid, _, started = name.removesuffix(".guard").partition("-")
        if not pid.isdecimal() or _started(int(pid)) == started:
            continue
        path = f"{folder}/{name}"
        try:
            with open(path, encoding="utf-8", errors="surrogateescape") as file:
                command, grants, *entries = file.read().splitlines()
            start, _, granted = grants.partition(" ")
            guard = PathGuard(entries, Grants(granted, start))
            os.unlink(path)
        except (OSError, ValueError):
            continue  # another process does it
        guard.check()
        guard.close()
        text += describe(guard.moved, command)
    return text


def _started(pid: int) -> str:
    """Return the start time of a process and its boot, which no later process shares.

    Empty if the process has ended.
    """
    row = row_of(pid)
    return "" if row is None else f"{row.started:.0f}-{boot_id()[:8]}"

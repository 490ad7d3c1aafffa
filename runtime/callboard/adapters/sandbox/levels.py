"""The walls of levels 1 to 3 for one command, as `launch_child.py` reads them: `NAME=VALUE`, in order.

Computed anew for each command, since what is to be shut depends on what is there. Looks at the disk; changes nothing.
"""
# ruff: noqa: PTH112, PTH114, PTH208, S108
# Paths are text here: they become words of a command line, and are compared by the hundred.

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from callboard.adapters.programs import is_within
from callboard.adapters.sandbox.calls import INSIDE_FAMILIES, NO_FAMILIES, OPEN_FAMILIES, call_filter
from callboard.adapters.sandbox.ground import CROWDED, Ground, repository_of_worktree, services
from callboard.adapters.sandbox.keeping import COVERED
from callboard.adapters.sandbox.protected import Protection, protect

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
ROOM = 2 << 30
"""Bytes of each folder that is in memory."""
KEEPER = (
    'ulimit -u "$3" 2>/dev/null; exec 5>&2 2>/dev/null; (exec -a bash "$1" --noprofile --norc -c "$2" 2>&5 3>&- 4<&- '
    "5>&-); code=$?; set -- /proc/[0-9]*; echo $code $# >&3; read -r x <&4"
)
"""Our process inside: a bash that runs the command in another one. See `keeping.py`."""


@dataclass(frozen=True, slots=True)
class Limits:
    """0: none of that kind. Each counts for one process, but for `processes`."""

    processes: int = 0
    memory: int = 0
    """MB of data that is its own."""
    file_size: int = 0
    """MB."""
    seconds: int = 0
    """Of processor time."""

    def walls(self) -> Iterator[str]:
        """All but the number of processes."""
        for name, value in (("DATA", self.memory << 20), ("FSIZE", self.file_size << 20), ("CPU", self.seconds)):
            if value:
                yield f"limit={name}:{value}"


@dataclass(frozen=True, slots=True)
class Spot:
    """Where one command works, and what is shut there."""

    folder: str
    """The folder that it may change: the workspace, or a worktree."""
    worktree: bool
    shut: Protection

    @property
    def openings(self) -> Iterator[str]:
        """What of git it may change, outside of the folder or not."""
        return iter(self.shut.pinned)


def find_spot(ground: Ground, folder: str) -> Spot:
    """What a command in this folder may change. Anything outside of the workspace is a worktree."""
    real = os.path.realpath(folder)
    if is_within(real, ground.workspace):
        repository = ground.repository
        linked = repository is not None and repository.own != repository.common
        return Spot(ground.workspace, False, protect(ground.workspace, ground.writable, repository, worktree=linked))
    repository = repository_of_worktree(real, ground)
    return Spot(real, True, protect(real, ground.writable, repository, worktree=True))


# Level 1


def landlock_walls(ground: Ground, folder: str, abi: int, *, network: bool) -> list[str]:
    """Level 1. Landlock grants by folder, so what is shut in a folder that may be changed is not shut."""
    spot = find_spot(ground, folder)
    hidden = [*ground.hidden, *ground.own]
    write = [spot.folder, ground.scratch, *ground.writable, *DEVICES]
    if spot.worktree:
        write += spot.openings
    outside = [*CROWDED, *ground.homes, *hidden]
    read: list[str] = [
        *around("/", outside),
        *(one for path in (*ground.tools, *ground.readable) for one in around(path, hidden)),
        *ground.shown,
        *(
            []
            if is_within(ground.workspace, spot.folder)
            else around(ground.workspace, _beneath(hidden, ground.workspace))
        ),
        *DEVICES,
        "/proc",
    ]
    program = call_filter(OPEN_FAMILIES if network else NO_FAMILIES, alone=False)
    return [
        f"abi={abi}",
        *([] if not network else ["network=on"]),
        f"filter={program.hex()}",
        *(f"read={path}" for path in read),
        *(f"write={one}" for path in write if path for one in around(path, _beneath(hidden, path))),
    ]


def _beneath(hidden: Sequence[str], path: str) -> list[str]:
    """Of what is hidden, what stands in a folder that is open by itself though it may lie in a hidden one."""
    return [one for one in hidden if one != path and is_within(one, path)]


def around(path: str, hidden: Iterable[str]) -> Iterator[str]:
    """The path, or where something beneath it is hidden, as much of it as there is round that."""
    inside = [one for one in hidden if is_within(one, path)]
    if not inside:
        if not any(is_within(path, one) for one in hidden):
            yield path
    elif path not in inside:
        try:
            names = sorted(os.listdir(path))
        except OSError:
            return
        for name in names:
            child = f"{path.rstrip('/')}/{name}"
            if not os.path.islink(child):
                yield from around(child, inside)


# Levels 2 and 3


@dataclass
class _View:
    """What a command sees of the file system, as arguments of bubblewrap: a later one lies over an earlier one."""

    arguments: list[str] = field(default_factory=list[str])
    covers: list[tuple[str, bool]] = field(default_factory=list[tuple[str, bool]])
    """Each path that something was laid over, and whether what is of the machine shows there."""
    sealed: list[str] = field(default_factory=list[str])
    """What is to be read-only in the end, when all that belongs in there stands."""

    def empty(self, path: str, *, mode: str = "0700") -> None:
        self.arguments += ["--perms", mode, "--size", str(ROOM), "--tmpfs", path]
        self.covers.append((path, False))

    def show(self, path: str, *, write: bool = False, at: str = "") -> None:
        self.arguments += ["--bind-try" if write else "--ro-bind-try", path, at or path]
        self.covers.append((at or path, not at))

    def show_all(self, paths: Iterable[str], *, write: bool = False) -> None:
        for path in paths:
            self.show(path, write=write)

    def hide(self, path: str) -> None:
        """A file or folder that is there and shows."""
        try:
            kind = os.lstat(path).st_mode
        except OSError:
            return
        if not self.shows(path) or stat.S_ISLNK(kind):
            return
        if stat.S_ISDIR(kind):
            self.empty(path)
            self.sealed.append(path)
        else:
            self.arguments += ["--ro-bind", "/dev/null", path]
            self.covers.append((path, False))

    def shows(self, path: str) -> bool:
        """Whether the machine's own file is what a command finds there: the last one laid over it decides."""
        return next((real for cover, real in reversed(self.covers) if is_within(path, cover)), True)

    def crosses(self, path: str) -> bool:
        """Whether anything is laid over a place beneath the path."""
        return any(cover != path and is_within(cover, path) for cover, _ in self.covers)


@dataclass(frozen=True, slots=True)
class Inside:
    """What starts a command inside: our process there. `sockets` are shown at places of their own."""

    program: Sequence[str]
    """Its words, before the command's own: shell, command, number of processes."""
    sockets: Sequence[tuple[str, str]] = ()
    show: Sequence[str] = ()


def bubblewrap_walls(
    ground: Ground, spot: Spot, bwrap: str, inside: Inside, *, network: bool
) -> tuple[list[str], list[str]]:
    """Levels 2 and 3: the walls, and bubblewrap's words. `network`: the machine's own is open."""
    view = _view(ground, spot, inside, network=network)
    program = call_filter(OPEN_FAMILIES if network else INSIDE_FAMILIES, alone=True)
    words = [bwrap, "--unshare-all", "--unshare-user", "--disable-userns", "--new-session", "--die-with-parent"]
    words += ["--cap-drop", "ALL", "--hostname", "sandbox", *(["--share-net"] if network else []), *view.arguments]
    walls = [f"filter={program.hex()}", f"lock={_lock(ground, spot)}"]
    walls += [f"place={path}" for path in spot.shut.place]
    walls += [f"unwanted={path}" for path in spot.shut.unwanted]
    walls += [f"cover={path}" for path in services() if view.shows(path)]
    return walls, [*words, *(["--seccomp", "5"] if program else [])]


def _lock(ground: Ground, spot: Spot) -> str:
    return f"{ground.locks}/{spot.folder.strip('/').replace('/', '-')[-200:]}.lock" if ground.locks else ""


def _view(ground: Ground, spot: Spot, inside: Inside, *, network: bool) -> _View:
    view = _View(["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"], [("/dev", False), ("/proc", False)])
    rest = _rest(ground, spot, inside, network=network)
    if not ground.scratch or rest.crosses("/tmp"):  # a command could put links where something is laid over the next
        view.empty("/tmp", mode="1777")
    else:
        view.show(ground.scratch, write=True, at="/tmp")
    view.arguments += rest.arguments
    view.covers += rest.covers
    for path in ground.hidden:
        view.hide(path)
    view.arguments.append(COVERED)
    for source, place in inside.sockets:
        view.show(source, write=True, at=place)
    for path in (*rest.sealed, *view.sealed):
        view.arguments += ["--remount-ro", path]
    return view


def _rest(ground: Ground, spot: Spot, inside: Inside, *, network: bool) -> _View:
    """All but what is the same for every command."""
    rest = _View()
    for path in ("/run", "/var/tmp", *ground.homes):
        if os.path.isdir(path) and not os.path.islink(path):
            rest.empty(path)
    resolver = ["/run/systemd/resolve"] if network else []
    rest.show_all((*resolver, *ground.tools, *ground.readable, *inside.show))
    rest.show(ground.workspace, write=not spot.worktree)
    rest.show_all(ground.writable, write=True)
    for path in ground.own:
        rest.hide(path)
    rest.show_all(ground.shown)
    if spot.worktree:
        rest.show(spot.folder, write=True)
    rest.show_all(spot.shut.pinned, write=True)
    rest.show_all(spot.shut.shut)
    return rest

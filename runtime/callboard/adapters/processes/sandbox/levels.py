"""Restrictions of levels 1 to 3 for one command, in the form that `launch_child.py` reads: `NAME=VALUE`, in order.

They are computed again for each command, because the closed paths depend on the existing ones. Reads the disk; changes
nothing.

Files that other tools run or obey (docs/permissions.md, letter H) are protected from commands: certain names at the top
of the folder, and git's own files. Existing ones are mounted read-only; absent ones are guarded (`created_paths.py`).
In deeper folders only the permission rules cover names.
"""
# ruff: noqa: PTH110, PTH112, PTH113, PTH114, PTH208, S108 - paths are text here: they become words of a command line, and are compared by the hundred

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field, replace

from callboard.adapters.processes.programs import is_within
from callboard.adapters.processes.sandbox.calls import INSIDE_FAMILIES, NO_FAMILIES, OPEN_FAMILIES, call_filter
from callboard.adapters.processes.sandbox.created_paths import GRANTS
from callboard.adapters.processes.sandbox.ground import (
    CROWDED,
    CROWDED_ON_MACOS,
    CheckoutFolders,
    SandboxPaths,
    repository_of_worktree,
    services,
    spelled,
)
from callboard.adapters.processes.sandbox.keeping import COVERED
from callboard.adapters.processes.sandbox.openings import Openings
from callboard.adapters.processes.sandbox.seatbelt import SeatbeltArea, SeatbeltRules
from callboard.adapters.processes.sandbox.walls import unprivileged
from callboard.core.permissions.sensitive_paths import CLAUDE_LOADED
from callboard.types.lazy_dataclass import dataclass

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
TEMPORARY = "/tmp"
"""The session's temporary folder at levels 2 and 3."""
_PRIVATE = ("/dev", "/proc")
"""Private folders of a command. The machine's own would hide the command's devices and show it other processes."""
ROOM = 2 << 30
"""Most bytes of each folder in memory."""
KEEPER = (
    'echo begun >&3; ulimit -u "$3" 2>/dev/null; exec 5>&2 2>/dev/null; '
    '(exec -a bash "$1" --noprofile --norc -c "$2" 2>&5 3>&- 4<&- '
    "5>&-); code=$?; set -- /proc/[0-9]*; echo $code $# >&3; read -r x <&4"
)
"""Callboard's process inside: a bash that runs the command in another one. See `keeping.py`."""
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


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Resource limits; 0: unlimited. Each applies to one process, except `processes`."""

    processes: int = 0
    memory: int = 0
    """MB of a process's own data."""
    file_size: int = 0
    """MB of a file."""
    seconds: int = 0
    """Seconds of processor time."""

    def walls(self) -> Iterator[str]:
        """Yield all limits except the number of processes."""
        for name, value in (("DATA", self.memory << 20), ("FSIZE", self.file_size << 20), ("CPU", self.seconds)):
            if value:
                yield f"limit={name}:{value}"


@dataclass(frozen=True, slots=True)
class CommandFolder:
    """Folder of one command, and the closed paths in it."""

    folder: str
    """Folder that it may change: the workspace, or a worktree."""
    worktree: bool
    shut: Protection
    granted: Openings = field(default_factory=Openings)
    """Openings approved for this one command."""

    @property
    def openings(self) -> Iterator[str]:
        """Yield the git paths that the command may change, inside or outside the folder."""
        return iter(self.shut.pinned)


def find_spot(ground: SandboxPaths, folder: str, granted: Openings | None = None) -> CommandFolder:
    """Return the paths that a command in this folder may change. Any folder outside of the workspace is a worktree."""
    real, granted = os.path.realpath(folder), granted or Openings()
    writable = (*ground.writable, *granted.write, *granted.named)
    if is_within(real, ground.workspace):
        repository = ground.repository
        linked = repository is not None and repository.own != repository.common
        shut = protect(ground.workspace, writable, repository, worktree=linked)
        return CommandFolder(ground.workspace, False, shut, granted)
    repository = repository_of_worktree(real, ground)
    return CommandFolder(real, True, protect(real, writable, repository, worktree=True), granted)


# Level 1


def landlock_walls(ground: SandboxPaths, spot: CommandFolder, abi: int, *, network: bool) -> list[str]:
    """Return the restrictions of level 1.

    Landlock grants by folder: a protected path in a writable folder is only guarded against being created.
    """
    hidden = [*ground.hidden, *ground.own]
    write = [spot.folder, ground.scratch, *ground.writable, *DEVICES]
    if spot.worktree:
        write += spot.openings
    outside = [*CROWDED, *ground.homes, *hidden]
    read: list[str] = [
        *around("/", outside),
        *(part for path in (*ground.tools, *ground.readable) for part in around(path, hidden)),
        *ground.own_readable,
        *_granted(spot.granted.read, ground, spot.granted),
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
        *guard_walls(ground, spot),
        f"abi={abi}",
        *([] if not network else ["network=on"]),
        f"filter={program.hex()}",
        *(f"read={path}" for path in read),
        *(f"write={part}" for path in write if path for part in around(path, _closed(path, hidden, ground, spot))),
        *(
            f"write={part}"
            for path in _granted(spot.granted.write, ground, spot.granted)
            for part in around(path, ground.loaded)
        ),
    ]


def _closed(path: str, hidden: Sequence[str], ground: SandboxPaths, spot: CommandFolder) -> list[str]:
    """Return the paths that stay read-only in a writable folder.

    The command's own folder contains nothing that sessions load.
    """
    return [*_beneath(hidden, path), *(ground.loaded if path != spot.folder else ())]


def _granted(paths: Iterable[str], ground: SandboxPaths, granted: Openings) -> Iterator[str]:
    """Yield approved paths, without hidden paths beneath them. Paths in `named` open as a whole."""
    for path in paths:
        own = _beneath(ground.own, path)
        yield from (path,) if path in granted.named and not own else around(path, [*ground.hidden, *ground.own])


def _beneath(hidden: Sequence[str], path: str) -> list[str]:
    """Return the hidden paths beneath a folder, which is open even if a hidden one contains it."""
    return [entry for entry in hidden if entry != path and is_within(entry, path)]


def around(path: str, hidden: Iterable[str]) -> Iterator[str]:
    """Yield the path, or, if something beneath it is hidden, all parts of it except the hidden ones."""
    inside = [entry for entry in hidden if is_within(entry, path)]
    if not inside:
        if not any(is_within(path, entry) for entry in hidden):
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


# Levels 1 to 3 on macOS


def seatbelt_rules(
    ground: SandboxPaths,
    spot: CommandFolder,
    *,
    network: bool,
    ports: Sequence[int] = (),
    spelled: Callable[[str], str] = spelled,
) -> SeatbeltRules:
    """Return what a command may read, change, and reach on macOS, from the description that Linux's levels get too.

    `spelled` returns a path as the disk spells it, because Seatbelt compares letters exactly.
    """
    hidden = [*ground.hidden, *ground.own]

    def area(path: str, without: Iterable[str] = ()) -> SeatbeltArea:
        return SeatbeltArea(spelled(path), tuple(dict.fromkeys(map(spelled, without))))

    opened = [
        area(path, _beneath(ground.own, path) if path in spot.granted.named else _beneath(hidden, path))
        for path in (*spot.granted.read, *spot.granted.write)
    ]
    read = [
        area("/", (*CROWDED, *CROWDED_ON_MACOS, *ground.homes, *hidden)),
        *(
            area(path, _beneath(hidden, path))
            for path in (*ground.tools, *ground.readable)
            if not _in_any(path, hidden)
        ),
        *map(area, ground.own_readable),
        *opened[: len(spot.granted.read)],
        area(ground.workspace, _beneath(hidden, ground.workspace)),
    ]
    own = [spot.folder, ground.scratch, *ground.writable, *(spot.openings if spot.worktree else ())]
    write = [
        *(area(path, _closed(path, hidden, ground, spot)) for path in own if path),
        *(
            replace(each, without=(*each.without, *map(spelled, ground.loaded)))
            for each in opened[len(spot.granted.read) :]
        ),
    ]
    return SeatbeltRules(
        tuple(read),
        tuple(write),
        kept=tuple(dict.fromkeys(map(spelled, spot.shut.shut))),
        pinned=tuple(dict.fromkeys(_pinned(write, map(spelled, spot.shut.pinned)))),
        absent=tuple((spelled(base), name) for base, _, name in (entry.partition("//") for entry in spot.shut.guarded)),
        ports=tuple(ports),
        network=network,
    )


def _pinned(areas: Iterable[SeatbeltArea], pinned: Iterable[str]) -> Iterator[str]:
    """Yield folders that a command must not move away, because the rules name them or paths beneath them."""
    yield from pinned
    for each in areas:
        if os.path.isdir(each.path):
            yield each.path
        yield from _on_the_way(each.path, each.without)


def _in_any(path: str, folders: Iterable[str]) -> bool:
    return any(is_within(path, folder) for folder in folders)


# Levels 2 and 3


@dataclass
class _View:
    """A command's view of the file system, as arguments of bubblewrap: a later one covers an earlier one."""

    arguments: list[str] = field(default_factory=list[str])
    covers: list[tuple[str, bool]] = field(default_factory=list[tuple[str, bool]])
    """Each covered path, and True if the machine's own files are visible there."""
    sealed: list[str] = field(default_factory=list[str])
    """Paths that become read-only at the end, once all their content is mounted."""

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
        """Hide an existing, visible file or folder."""
        try:
            with unprivileged():
                kind = os.lstat(path).st_mode
        except OSError:
            return  # it does not exist, or no command can reach it
        if not self.shows(path) or stat.S_ISLNK(kind):
            return
        if stat.S_ISDIR(kind):
            self.empty(path)
            self.sealed.append(path)
        else:
            self.arguments += ["--ro-bind", "/dev/null", path]
            self.covers.append((path, False))

    def shows(self, path: str) -> bool:
        """Return True if a command sees the machine's own file at a path. The last cover over the path decides."""
        return next((real for cover, real in reversed(self.covers) if is_within(path, cover)), True)

    def crosses(self, path: str) -> bool:
        """Return True if anything beneath the path is covered."""
        return any(cover != path and is_within(cover, path) for cover, _ in self.covers)


@dataclass(frozen=True, slots=True)
class InnerProcess:
    """Process of the runtime that starts a command inside. `sockets` are mounted at their own paths."""

    program: Sequence[str]
    """Its arguments before the command's own: shell, command, number of processes."""
    sockets: Sequence[tuple[str, str]] = ()
    show: Sequence[str] = ()


def bubblewrap_walls(
    ground: SandboxPaths, spot: CommandFolder, bwrap: str, inside: InnerProcess, *, network: bool
) -> tuple[list[str], list[str]]:
    """Return the restrictions of levels 2 and 3, and the arguments of bubblewrap.

    `network`: the machine's network is open.
    """
    view = _view(ground, spot, inside, network=network)
    program = call_filter(OPEN_FAMILIES if network else INSIDE_FAMILIES, alone=True)
    arguments = [bwrap, "--unshare-all", "--unshare-user", "--disable-userns", "--new-session", "--die-with-parent"]
    arguments += ["--cap-drop", "ALL", "--hostname", "sandbox", *(["--share-net"] if network else []), *view.arguments]
    walls = [f"filter={program.hex()}", *guard_walls(ground, spot)]
    walls += [f"cover={path}" for path in services() if view.shows(path)]
    return walls, [*arguments, *(["--seccomp", "5"] if program else [])]


def guard_walls(ground: SandboxPaths, spot: CommandFolder) -> list[str]:
    """Return the restrictions for absent paths that must not be created."""
    if not ground.locks:
        return []
    entries = [f"guard={entry}" for entry in spot.shut.guarded]
    return [f"guards={ground.locks}", f"grants={ground.locks}/{GRANTS}", *entries]


def _on_the_way(path: str, loaded: Iterable[str]) -> Iterator[str]:
    """Yield the folders between an open folder and read-only ones in it.

    A mounted folder cannot be moved away together with its content.
    """
    for folder in loaded:
        if is_within(folder, path) and folder != path:
            parts = folder.removeprefix(path.rstrip("/") + "/").split("/")[:-1]
            yield from ("/".join((path.rstrip("/"), *parts[:end])) for end in range(1, len(parts) + 1))


def _view(ground: SandboxPaths, spot: CommandFolder, inside: InnerProcess, *, network: bool) -> _View:
    view = _View(["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"], [("/dev", False), ("/proc", False)])
    layers = _layers(ground, spot, inside, network=network)
    if not ground.scratch or layers.crosses("/tmp"):  # a command could put links where the next one's mounts go
        view.empty("/tmp", mode="1777")
    else:
        view.show(ground.scratch, write=True, at="/tmp")
    view.arguments += layers.arguments
    view.covers += layers.covers
    for path in ground.hidden:
        view.hide(path)
    for path in spot.granted.named:
        # A hidden place whose name was approved
        if path not in _PRIVATE and not view.shows(path) and not _beneath(ground.own, path):
            view.show(path, write=path not in spot.granted.read)
    view.arguments.append(COVERED)
    for source, place in inside.sockets:
        view.show(source, write=True, at=place)
    for path in (*layers.sealed, *view.sealed):
        view.arguments += ["--remount-ro", path]
    return view


def _layers(ground: SandboxPaths, spot: CommandFolder, inside: InnerProcess, *, network: bool) -> _View:
    """Return the part of the view that differs between commands."""
    layers = _View()
    for path in ("/run", "/var/tmp", *ground.homes):
        if os.path.isdir(path) and not os.path.islink(path):
            layers.empty(path)
    resolver = ["/run/systemd/resolve"] if network else []
    layers.show_all((*resolver, *ground.tools, *ground.readable, *inside.show))
    # Paths that contain the workspace come first: a later cover would make the workspace read-only again.
    read = list(_readable(ground, spot))
    outer = [path for path in read if is_within(ground.workspace, path)]
    layers.show_all(outer)
    layers.show(ground.workspace, write=not spot.worktree)
    layers.show_all(path for path in read if path not in outer)
    layers.show_all(ground.writable, write=True)
    layers.show_all((path for path in spot.granted.write if not is_within(path, spot.folder)), write=True)
    for path in (*ground.writable, *spot.granted.write):
        layers.show_all(_on_the_way(path, ground.loaded), write=True)
    for path in ground.own:
        layers.hide(path)
    layers.show_all(ground.own_readable)
    if ground.scratch and TEMPORARY in read:  # the machine's /tmp covers the session's own, still writable
        layers.show(ground.scratch, write=True)
        layers.arguments += ["--setenv", "TMPDIR", ground.scratch]
    if spot.worktree:
        layers.show(spot.folder, write=True)
    layers.show_all(spot.shut.pinned, write=True)
    layers.show_all(spot.shut.shut)
    return layers


def _readable(ground: SandboxPaths, spot: CommandFolder) -> Iterator[str]:
    """Yield the paths approved for reading. Of the root, yield the folders that are not visible anyway."""
    for path in spot.granted.read:
        if path == "/":
            yield from (TEMPORARY, "/run", "/var/tmp", *ground.homes)
        elif path not in _PRIVATE and not is_within(path, spot.folder):
            yield path


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
    """Protect the parts of `.claude` individually, so that a plugin can keep its data there.

    All other existing files are closed, whatever their names are: a hook may run them.
    """
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

"""Restrictions of levels 1 to 3 for one command, in the form that `launch_child.py` reads: `NAME=VALUE`, in order.

They are computed again for each command, because the closed paths depend on the existing ones. Reads the disk; changes
nothing.

Files that other tools run or obey (docs/permissions.md, letter H) are protected from commands: certain names at the top
of the folder, and git's own files. Existing ones are mounted read-only; absent ones are guarded (`path_guard.py`).
In deeper folders only the permission rules cover names.
"""
# ruff: noqa: PTH110, PTH112, PTH113, PTH114, PTH208, S108 - paths are text here: they become words of a command line, and are compared by the hundred

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field, replace

from callboard.adapters.processes.programs import is_within
from callboard.adapters.processes.sandbox.isolation import without_privileges
from callboard.adapters.processes.sandbox.opened_paths import Openings
from callboard.adapters.processes.sandbox.path_guard import GRANTS
from callboard.adapters.processes.sandbox.pid_namespace import COVERS_PLACEHOLDER
from callboard.adapters.processes.sandbox.sandbox_paths import (
    SHARED_FOLDERS,
    SHARED_FOLDERS_ON_MACOS,
    CheckoutFolders,
    SandboxPaths,
    listening_sockets,
    path_on_disk,
    repository_of_worktree,
)
from callboard.adapters.processes.sandbox.seatbelt import SeatbeltArea, SeatbeltRules
from callboard.adapters.processes.sandbox.syscall_filter import INSIDE_FAMILIES, NO_FAMILIES, OPEN_FAMILIES, call_filter
from callboard.core.permissions.sensitive_paths import CLAUDE_LOADED
from callboard.types.lazy_dataclass import dataclass

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
TEMPORARY = "/tmp"
"""The session's temporary folder at levels 2 and 3."""
_PRIVATE_FOLDERS = ("/dev", "/proc")
"""Private folders of a command. The machine's own would hide the command's devices and show it other processes."""
TMPFS_SIZE = 2 << 30
"""Most bytes of each folder in memory."""
INNER_SHELL = (
    'echo begun >&3; ulimit -u "$3" 2>/dev/null; exec 5>&2 2>/dev/null; '
    '(exec -a bash "$1" --noprofile --norc -c "$2" 2>&5 3>&- 4<&- '
    "5>&-); code=$?; set -- /proc/[0-9]*; echo $code $# >&3; read -r x <&4"
)
"""Callboard's process inside: a bash that runs the command in another one. See `pid_namespace.py`."""
PROTECTED_NAMES = (
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
CLAUDE_FOLDER = ".claude"
_PLUGIN_DATA = ".local.md"
"""Ending of names of data that plugins keep in `.claude`, next to files that programs load."""
PROTECTED_SUBFOLDERS = (".github/workflows", ".config/git")
"""Protected parts of an otherwise ordinary folder."""
_PROTECTED_GIT = ("config", "hooks", "info", "modules", "worktrees", "commondir", "config.worktree")
_ALTERNATES = ("info/alternates", "info/http-alternates")


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

    def restrictions(self) -> Iterator[str]:
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
    protection: Protection
    granted: Openings = field(default_factory=Openings)
    """Openings approved for this one command."""

    @property
    def git_paths(self) -> Iterator[str]:
        """Yield the git paths that the command may change, inside or outside the folder."""
        return iter(self.protection.pinned)


def find_command_folder(paths: SandboxPaths, folder: str, granted: Openings | None = None) -> CommandFolder:
    """Return the paths that a command in this folder may change. Any folder outside of the workspace is a worktree."""
    real, granted = os.path.realpath(folder), granted or Openings()
    writable = (*paths.writable, *granted.write, *granted.named)
    if is_within(real, paths.workspace):
        repository = paths.repository
        linked = repository is not None and repository.own != repository.common
        protection = find_protection(paths.workspace, writable, repository, worktree=linked)
        return CommandFolder(paths.workspace, False, protection, granted)
    repository = repository_of_worktree(real, paths)
    return CommandFolder(real, True, find_protection(real, writable, repository, worktree=True), granted)


# Level 1


def landlock_restrictions(paths: SandboxPaths, command_folder: CommandFolder, abi: int, *, network: bool) -> list[str]:
    """Return the restrictions of level 1.

    Landlock grants by folder: a protected path in a writable folder is only guarded against being created.
    """
    hidden = [*paths.hidden, *paths.own]
    write = [command_folder.folder, paths.scratch, *paths.writable, *DEVICES]
    if command_folder.worktree:
        write += command_folder.git_paths
    outside = [*SHARED_FOLDERS, *paths.homes, *hidden]
    read: list[str] = [
        *visible_parts("/", outside),
        *(part for path in (*paths.tools, *paths.readable) for part in visible_parts(path, hidden)),
        *paths.own_readable,
        *_granted_parts(command_folder.granted.read, paths, command_folder.granted),
        *(
            []
            if is_within(paths.workspace, command_folder.folder)
            else visible_parts(paths.workspace, _hidden_beneath(hidden, paths.workspace))
        ),
        *DEVICES,
        "/proc",
    ]
    program = call_filter(OPEN_FAMILIES if network else NO_FAMILIES, alone=False)
    return [
        *guard_restrictions(paths, command_folder),
        f"abi={abi}",
        *([] if not network else ["network=on"]),
        f"filter={program.hex()}",
        *(f"read={path}" for path in read),
        *(
            f"write={part}"
            for path in write
            if path
            for part in visible_parts(path, _read_only_beneath(path, hidden, paths, command_folder))
        ),
        *(
            f"write={part}"
            for path in _granted_parts(command_folder.granted.write, paths, command_folder.granted)
            for part in visible_parts(path, paths.loaded)
        ),
    ]


def _read_only_beneath(
    path: str, hidden: Sequence[str], paths: SandboxPaths, command_folder: CommandFolder
) -> list[str]:
    """Return the paths that stay read-only in a writable folder.

    The command's own folder contains nothing that sessions load.
    """
    return [*_hidden_beneath(hidden, path), *(paths.loaded if path != command_folder.folder else ())]


def _granted_parts(approved: Iterable[str], paths: SandboxPaths, granted: Openings) -> Iterator[str]:
    """Yield approved paths, without hidden paths beneath them. Paths in `named` open as a whole."""
    for path in approved:
        own = _hidden_beneath(paths.own, path)
        yield from ((path,) if path in granted.named and not own else visible_parts(path, [*paths.hidden, *paths.own]))


def _hidden_beneath(hidden: Sequence[str], path: str) -> list[str]:
    """Return the hidden paths beneath a folder, which is open even if a hidden one contains it."""
    return [entry for entry in hidden if entry != path and is_within(entry, path)]


def visible_parts(path: str, hidden: Iterable[str]) -> Iterator[str]:
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
                yield from visible_parts(child, inside)


# Levels 1 to 3 on macOS


def seatbelt_rules(
    paths: SandboxPaths,
    command_folder: CommandFolder,
    *,
    network: bool,
    ports: Sequence[int] = (),
    spelled: Callable[[str], str] = path_on_disk,
) -> SeatbeltRules:
    """Return what a command may read, change, and reach on macOS, from the description that Linux's levels get too.

    `path_on_disk` returns a path as the disk spells it, because Seatbelt compares letters exactly.
    """
    hidden = [*paths.hidden, *paths.own]
    granted = command_folder.granted
    protection = command_folder.protection

    def area(path: str, without: Iterable[str] = ()) -> SeatbeltArea:
        return SeatbeltArea(spelled(path), tuple(dict.fromkeys(map(spelled, without))))

    opened = [
        area(path, _hidden_beneath(paths.own if path in granted.named else hidden, path))
        for path in (*granted.read, *granted.write)
    ]
    read = [
        area("/", (*SHARED_FOLDERS, *SHARED_FOLDERS_ON_MACOS, *paths.homes, *hidden)),
        *(
            area(path, _hidden_beneath(hidden, path))
            for path in (*paths.tools, *paths.readable)
            if not _in_any(path, hidden)
        ),
        *map(area, paths.own_readable),
        *opened[: len(granted.read)],
        area(paths.workspace, _hidden_beneath(hidden, paths.workspace)),
    ]
    git_paths = command_folder.git_paths if command_folder.worktree else ()
    own = [command_folder.folder, paths.scratch, *paths.writable, *git_paths]
    write = [
        *(area(path, _read_only_beneath(path, hidden, paths, command_folder)) for path in own if path),
        *(replace(each, without=(*each.without, *map(spelled, paths.loaded))) for each in opened[len(granted.read) :]),
    ]
    return SeatbeltRules(
        tuple(read),
        tuple(write),
        read_only=tuple(dict.fromkeys(map(spelled, protection.read_only))),
        pinned=tuple(dict.fromkeys(_pinned(write, map(spelled, protection.pinned)))),
        absent=tuple(
            (spelled(base), name) for base, _, name in (entry.partition("//") for entry in protection.guarded)
        ),
        ports=tuple(ports),
        network=network,
    )


def _pinned(areas: Iterable[SeatbeltArea], pinned: Iterable[str]) -> Iterator[str]:
    """Yield folders that a command must not move away, because the rules name them or paths beneath them."""
    yield from pinned
    for each in areas:
        if os.path.isdir(each.path):
            yield each.path
        yield from _folders_between(each.path, each.without)


def _in_any(path: str, folders: Iterable[str]) -> bool:
    return any(is_within(path, folder) for folder in folders)


# Levels 2 and 3


@dataclass
class _MountPlan:
    """Mounts of a command, as arguments of bubblewrap: a later one covers an earlier one."""

    arguments: list[str] = field(default_factory=list[str])
    covers: list[tuple[str, bool]] = field(default_factory=list[tuple[str, bool]])
    """Each covered path, and True if the machine's own files are visible there."""
    sealed: list[str] = field(default_factory=list[str])
    """Paths that become read-only at the end, once all their content is mounted."""

    def mount_empty(self, path: str, *, mode: str = "0700") -> None:
        self.arguments += ["--perms", mode, "--size", str(TMPFS_SIZE), "--tmpfs", path]
        self.covers.append((path, False))

    def bind(self, path: str, *, write: bool = False, at: str = "") -> None:
        self.arguments += ["--bind-try" if write else "--ro-bind-try", path, at or path]
        self.covers.append((at or path, not at))

    def bind_all(self, paths: Iterable[str], *, write: bool = False) -> None:
        for path in paths:
            self.bind(path, write=write)

    def hide(self, path: str) -> None:
        """Hide an existing, visible file or folder."""
        try:
            with without_privileges():
                kind = os.lstat(path).st_mode
        except OSError:
            return  # it does not exist, or no command can reach it
        if not self.is_visible(path) or stat.S_ISLNK(kind):
            return
        if stat.S_ISDIR(kind):
            self.mount_empty(path)
            self.sealed.append(path)
        else:
            self.arguments += ["--ro-bind", "/dev/null", path]
            self.covers.append((path, False))

    def is_visible(self, path: str) -> bool:
        """Return True if a command sees the machine's own file at a path. The last cover over the path decides."""
        return next((real for cover, real in reversed(self.covers) if is_within(path, cover)), True)

    def covers_beneath(self, path: str) -> bool:
        """Return True if anything beneath the path is covered."""
        return any(cover != path and is_within(cover, path) for cover, _ in self.covers)


@dataclass(frozen=True, slots=True)
class InnerProcess:
    """Process of the runtime that starts a command inside. `sockets` are mounted at their own paths."""

    program: Sequence[str]
    """Its arguments before the command's own: shell, command, number of processes."""
    sockets: Sequence[tuple[str, str]] = ()
    readable: Sequence[str] = ()
    """Folders that the process needs to read."""


def bubblewrap_restrictions(
    paths: SandboxPaths, command_folder: CommandFolder, bwrap: str, inside: InnerProcess, *, network: bool
) -> tuple[list[str], list[str]]:
    """Return the restrictions of levels 2 and 3, and the arguments of bubblewrap.

    `network`: the machine's network is open.
    """
    plan = _mount_plan(paths, command_folder, inside, network=network)
    program = call_filter(OPEN_FAMILIES if network else INSIDE_FAMILIES, alone=True)
    arguments = [bwrap, "--unshare-all", "--unshare-user", "--disable-userns", "--new-session", "--die-with-parent"]
    arguments += ["--cap-drop", "ALL", "--hostname", "sandbox", *(["--share-net"] if network else []), *plan.arguments]
    restrictions = [f"filter={program.hex()}", *guard_restrictions(paths, command_folder)]
    restrictions += [f"cover={path}" for path in listening_sockets() if plan.is_visible(path)]
    return restrictions, [*arguments, *(["--seccomp", "5"] if program else [])]


def guard_restrictions(paths: SandboxPaths, command_folder: CommandFolder) -> list[str]:
    """Return the restrictions for absent paths that must not be created."""
    if not paths.locks:
        return []
    entries = [f"guard={entry}" for entry in command_folder.protection.guarded]
    return [f"guards={paths.locks}", f"grants={paths.locks}/{GRANTS}", *entries]


def _folders_between(path: str, loaded: Iterable[str]) -> Iterator[str]:
    """Yield the folders between an open folder and read-only ones in it.

    A mounted folder cannot be moved away together with its content.
    """
    for folder in loaded:
        if is_within(folder, path) and folder != path:
            parts = folder.removeprefix(path.rstrip("/") + "/").split("/")[:-1]
            yield from ("/".join((path.rstrip("/"), *parts[:end])) for end in range(1, len(parts) + 1))


def _mount_plan(
    paths: SandboxPaths, command_folder: CommandFolder, inside: InnerProcess, *, network: bool
) -> _MountPlan:
    plan = _MountPlan(["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"], [("/dev", False), ("/proc", False)])
    mounts = _command_mounts(paths, command_folder, inside, network=network)
    if not paths.scratch or mounts.covers_beneath("/tmp"):  # a command could put links where the next one's mounts go
        plan.mount_empty("/tmp", mode="1777")
    else:
        plan.bind(paths.scratch, write=True, at="/tmp")
    plan.arguments += mounts.arguments
    plan.covers += mounts.covers
    for path in paths.hidden:
        plan.hide(path)
    for path in command_folder.granted.named:
        # A hidden place whose name was approved
        if path not in _PRIVATE_FOLDERS and not plan.is_visible(path) and not _hidden_beneath(paths.own, path):
            plan.bind(path, write=path not in command_folder.granted.read)
    plan.arguments.append(COVERS_PLACEHOLDER)
    for source, place in inside.sockets:
        plan.bind(source, write=True, at=place)
    for path in (*mounts.sealed, *plan.sealed):
        plan.arguments += ["--remount-ro", path]
    return plan


def _command_mounts(
    paths: SandboxPaths, command_folder: CommandFolder, inside: InnerProcess, *, network: bool
) -> _MountPlan:
    """Return the part of the view that differs between commands."""
    mounts = _MountPlan()
    for path in ("/run", "/var/tmp", *paths.homes):
        if os.path.isdir(path) and not os.path.islink(path):
            mounts.mount_empty(path)
    resolver = ["/run/systemd/resolve"] if network else []
    mounts.bind_all((*resolver, *paths.tools, *paths.readable, *inside.readable))
    # Paths that contain the workspace come first: a later cover would make the workspace read-only again.
    read = list(_readable(paths, command_folder))
    outer = [path for path in read if is_within(paths.workspace, path)]
    mounts.bind_all(outer)
    mounts.bind(paths.workspace, write=not command_folder.worktree)
    mounts.bind_all(path for path in read if path not in outer)
    mounts.bind_all(paths.writable, write=True)
    mounts.bind_all(
        (path for path in command_folder.granted.write if not is_within(path, command_folder.folder)), write=True
    )
    for path in (*paths.writable, *command_folder.granted.write):
        mounts.bind_all(_folders_between(path, paths.loaded), write=True)
    for path in paths.own:
        mounts.hide(path)
    mounts.bind_all(paths.own_readable)
    if paths.scratch and TEMPORARY in read:  # the machine's /tmp covers the session's own, still writable
        mounts.bind(paths.scratch, write=True)
        mounts.arguments += ["--setenv", "TMPDIR", paths.scratch]
    if command_folder.worktree:
        mounts.bind(command_folder.folder, write=True)
    mounts.bind_all(command_folder.protection.pinned, write=True)
    mounts.bind_all(command_folder.protection.read_only)
    return mounts


def _readable(paths: SandboxPaths, command_folder: CommandFolder) -> Iterator[str]:
    """Yield the paths approved for reading. Of the root, yield the folders that are not visible anyway."""
    for path in command_folder.granted.read:
        if path == "/":
            yield from (TEMPORARY, "/run", "/var/tmp", *paths.homes)
        elif path not in _PRIVATE_FOLDERS and not is_within(path, command_folder.folder):
            yield path


@dataclass
class Protection:
    """Protections to set up, in order of the lists."""

    folder: str
    writable: tuple[str, ...] = ()
    """Paths that the user opened explicitly."""
    pinned: list[str] = field(default_factory=list[str])
    """Folders that stay writable, and must not be moved away with the closed paths in them."""
    read_only: list[str] = field(default_factory=list[str])
    """Files and folders that no command may change."""
    guarded: list[str] = field(default_factory=list[str])
    """Absent paths that no command may create, as `path_guard.py` reads them: `BASE//NAME`, or `BASE//NAME/` for a
    name that only a folder may have."""

    def add(self, base: str, name: str) -> None:
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
            self.read_only.append(path)
        elif stat.S_ISLNK(kind) and is_within(real := os.path.realpath(path), self.folder) and os.path.exists(real):
            self.read_only.append(real)


def find_protection(
    folder: str, writable: tuple[str, ...], repository: CheckoutFolders | None, *, worktree: bool
) -> Protection:
    """Return the paths of a folder and its repository that must be protected.

    `worktree`: the folder is a linked worktree of the workspace, whose shared git folder is open only where git works.
    """
    protection = Protection(folder, writable)
    for name in PROTECTED_NAMES:
        protection.add(folder, name)
    for name in PROTECTED_SUBFOLDERS:
        outer = f"{folder}/{name.partition('/')[0]}"
        path = f"{folder}/{name}"
        if os.path.islink(outer):
            continue
        protection.add(folder, name)
        if path not in writable and os.path.isdir(outer):
            protection.pinned.append(outer)
    _protect_claude(protection, folder)
    if f"{folder}/.git" not in writable:
        _protect_repository(protection, folder, repository, worktree=worktree)
    return protection


def _protect_claude(protection: Protection, folder: str) -> None:
    """Protect the parts of `.claude` individually, so that a plugin can keep its data there.

    All other existing files are closed, whatever their names are: a hook may run them.
    """
    path = f"{folder}/{CLAUDE_FOLDER}"
    if path in protection.writable:
        return
    if os.path.islink(path) or os.path.isfile(path):
        protection.add(folder, CLAUDE_FOLDER)
        return
    protection.guarded.append(f"{folder}//{CLAUDE_FOLDER}/")
    names = dict.fromkeys(CLAUDE_LOADED)
    if os.path.isdir(path):
        protection.pinned.append(path)
        names |= dict.fromkeys(name for name in _listed(path) if not _is_data(name))
    for name in names:
        protection.add(folder, f"{CLAUDE_FOLDER}/{name}")


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _is_data(name: str) -> bool:
    """Return True if a file of `.claude` is a plugin's data, which no program loads by itself."""
    return name.endswith(_PLUGIN_DATA) and name not in CLAUDE_LOADED


def _protect_repository(
    protection: Protection, folder: str, repository: CheckoutFolders | None, *, worktree: bool
) -> None:
    if repository is None or not os.path.isdir(f"{folder}/.git"):
        protection.add(folder, ".git")
    if repository is not None and not worktree:
        _protect_git(protection, repository)
    elif repository is not None:
        protection.pinned += [f"{repository.common}/{name}" for name in ("objects", "refs", "logs")]
        protection.pinned.append(repository.own)
        _protect_objects(protection, repository)
        for name in ("commondir", "gitdir", "config.worktree"):
            protection.add(repository.own, name)


def _protect_git(protection: Protection, repository: CheckoutFolders) -> None:
    common = repository.common
    protection.pinned += [common, f"{common}/objects"]
    for name in _PROTECTED_GIT:
        protection.add(common, name)
    _protect_objects(protection, repository)


def _protect_objects(protection: Protection, repository: CheckoutFolders) -> None:
    """Protect the lists of other repositories whose objects git treats as its own."""
    for name in _ALTERNATES:
        protection.add(f"{repository.common}/objects", name)

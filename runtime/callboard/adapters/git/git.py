"""The runtime's own git calls, all in one place. Nothing that a repository or an agent wrote is ever run or fetched.

Each of three protections suffices. Git reads only Callboard's configuration: that of the repository, its worktrees and
the user is replaced (`folders.py`, `settings.py`), so a change after a check has no effect. It runs in a sandbox
without network, without credentials and, for a call that only reads, without write access (`confinement.py`). And every
kind of program and protocol that git knows is also switched off by name. Submodules and nested repositories are not
entered. A call that fails or times out gives no facts.

Only two calls reach a remote, both at an address that a person named: `export_commit`, when a plugin is installed, and
`Git.online`, for checkpoints. They run outside the sandbox, because they need the network. `online` uses the person's
own git configuration, such as credential helpers; that of the repository is never read, and no hook runs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from types import MappingProxyType

import anyio.to_thread

from callboard.adapters.git.folders import GitFolders, find_folders, fixed_folder, special_file
from callboard.adapters.git.settings import person_settings, repository_settings, upstream_settings
from callboard.adapters.processes.confinement import Confinement, confinement_of, state_folder
from callboard.adapters.processes.programs import (
    ConfinedCommand,
    ProgramResult,
    clean_environment,
    find_program,
    run_program,
)
from callboard.adapters.system.regular_files import read_regular
from callboard.core.context.reminders import displayed_name
from callboard.core.trust.claims import printable
from callboard.types.errors import UsageError
from callboard.types.lazy_dataclass import dataclass

_MARK = ("-c", "core.hooksPath=/dev/null")
"""Arguments of every call here, so that `storage/file_locks.py` finds the process."""
_FIXED: Mapping[str, str] = {
    "core.fsmonitor": "false",
    "core.pager": "cat",
    "core.editor": "true",
    "core.askPass": "",
    "core.sshCommand": "false",
    "core.alternateRefsCommand": "",
    "credential.helper": "",
    "protocol.allow": "never",
    "core.gitProxy": "",
    "diff.ignoreSubmodules": "all",
    "fetch.recurseSubmodules": "false",
    "rerere.enabled": "false",
    "commit.gpgSign": "false",
    "tag.gpgSign": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "submodule.recurse": "false",
    "color.ui": "false",
    "log.showSignature": "false",
}
"""Settings of every call. Few could have an effect, because git reads no file with other values."""
_ENVIRONMENT: Mapping[str, str] = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1",
    # Otherwise `git status` would lock the index, and a git call of the user at that moment would fail.
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "",
    "GIT_PROTOCOL_FROM_USER": "0",
    "GIT_SSH_COMMAND": "false",
    "GIT_ASKPASS": "false",
    "SSH_ASKPASS": "false",
    "GIT_EDITOR": "true",
    "GIT_SEQUENCE_EDITOR": "true",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C.UTF-8",
}
_SWITCHES: Mapping[str, tuple[str, ...]] = {
    "diff": ("--no-ext-diff", "--no-textconv"),
    "show": ("--no-ext-diff", "--no-textconv"),
    "log": ("--no-ext-diff", "--no-textconv"),
    "format-patch": ("--no-ext-diff", "--no-textconv"),
    "blame": ("--no-textconv",),
}
_WRITING = frozenset(
    {
        *("add", "checkout", "commit", "commit-tree", "hash-object", "merge", "read-tree", "reset", "symbolic-ref"),
        *("update-index", "update-ref", "worktree", "write-tree"),
    }
)
"""Commands that change the repository or the working tree. All others run without write access."""
_STEERING = ("GIT_PAGER", "PAGER")
_FETCHING: Mapping[str, str] = {"GIT_ALLOW_PROTOCOL": "https:ssh:file", "GIT_SSH_COMMAND": "ssh -oBatchMode=yes"}
_FETCHED = "refs/callboard/fetched"
_ONLINE = (
    *("SSH_AUTH_SOCK", "GIT_SSH", "GIT_SSH_COMMAND", "DBUS_SESSION_BUS_ADDRESS"),
    *("GH_TOKEN", "GITHUB_TOKEN", "GITLAB_TOKEN"),
)
"""Variables of the person with which ssh and credential helpers prove who they are."""
_OWN_CHOICE = frozenset({"core.askPass", "core.sshCommand", "core.gitProxy", "credential.helper", "protocol.allow"})
"""Settings that a call of `online` takes from the person's git configuration."""
_FIELDS = {"1": 7, "2": 8, "u": 9, "?": 0}
"""Fields between the kind of an entry of `git status --porcelain=v2` and its path."""
NAMES_SHOWN = 20
_MOST_OUTPUT = 100_000_000
"""Most bytes of output: the list of all files of a very large repository."""


class NoRepository(OSError):
    """A folder is not a checkout of a git repository."""


@dataclass(frozen=True, slots=True)
class _Call:
    program: ConfinedCommand
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class GitFacts:
    """Facts about the repository for a reminder. Paths are relative to the requested folder."""

    branch: str
    """Branch; empty if none is checked out."""
    commit: str
    """Short commit id; empty before the first commit."""
    changed: tuple[str, ...] = ()
    untracked: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    ahead: int = 0
    behind: int = 0

    def describe(self) -> str:
        """Return a few lines for a prompt."""
        where = f"branch {self.branch}" if self.branch else "no branch (detached)"
        lines = [f"Git: {where}, {f'at {self.commit}' if self.commit else 'no commit yet'}"]
        if self.ahead or self.behind:
            lines[0] += f", {self.ahead} ahead of and {self.behind} behind its upstream"
        for title, names in (("Conflicts", self.conflicts), ("Changed", self.changed), ("Untracked", self.untracked)):
            if names:
                suffix = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
                lines.append(f"{title} ({len(names)}): {', '.join(map(displayed_name, names[:NAMES_SHOWN]))}{suffix}")
        return "\n".join(lines if len(lines) > 1 else [lines[0] + ", clean"])


@dataclass(frozen=True, slots=True)
class Git:
    """Git for one workspace. `environment` is the user's, before the allow-list."""

    workspace: Path
    environment: Mapping[str, str]
    confinement: Confinement | None = None
    """Sandbox of git; None: the best that this machine supports."""
    _confinements: list[Confinement] = field(default_factory=list[Confinement], init=False, repr=False, compare=False)
    """Sandboxes for git that this machine supports, once tested."""

    async def run(
        self,
        arguments: Sequence[str],
        folder: Path | None = None,
        *,
        timeout: float = 30,
        stdin: bytes = b"",
        extra: Mapping[str, str] = MappingProxyType({}),
    ) -> ProgramResult:
        """Run `git ARGUMENTS` in a checkout (default: the workspace), with `stdin` as its standard input.

        `extra`: more variables, such as GIT_INDEX_FILE; GIT_DIR names the folder of a linked worktree. Raises
        `FileNotFoundError` if there is no git outside the workspace, and `NoRepository` if the folder is not a
        checkout.
        """
        place = folder or self.workspace
        call = await anyio.to_thread.run_sync(self._prepare, tuple(arguments), place, dict(extra))
        return await run_program(call.program, call.environment, stdin=stdin, timeout=timeout, most=_MOST_OUTPUT)

    async def facts(self, folder: Path | None = None) -> GitFacts | None:
        """Return branch, commit and changes; None outside a repository, without git, and after 5 s."""
        arguments = (
            "status",
            "--porcelain=v2",
            "--branch",
            "-z",
            "--untracked-files=normal",
            "--ignore-submodules=all",
        )
        try:
            ran = await self.run(arguments, folder, timeout=5)
        except OSError:
            return None
        return _read_status(ran.out.decode(errors="replace")) if ran.code == 0 else None

    async def online(self, arguments: Sequence[str], *, timeout: float) -> ProgramResult:
        """Run `git ARGUMENTS` (a push or a fetch) for the person, with the network and without a question.

        The address is in the arguments, because the repository's own remotes are not read. Raises as `run` does.
        """
        call = await anyio.to_thread.run_sync(self._prepare_online, tuple(arguments))
        return await run_program(call.program, call.environment, timeout=timeout, most=_MOST_OUTPUT)

    async def begin(self) -> ProgramResult:
        """Make an empty repository in the workspace, which is an empty folder of Callboard's."""
        call = await anyio.to_thread.run_sync(self._prepare_begin)
        return await run_program(call.program, call.environment)

    def folders(self, checkout: Path | None = None) -> GitFolders:
        """Return git's folders of a checkout (default: the workspace). Raises `NoRepository`."""
        place = checkout or self.workspace
        folders = find_folders(place)
        if folders is None:
            raise NoRepository(f"{place} is not a git repository")
        return folders

    def person(self) -> Mapping[str, str]:
        """Return the user's and the repository's accepted settings: `user.email` and the like."""
        folders = self.folders()
        return person_settings(self.environment, folders.own) | repository_settings(folders.common, folders.own)

    def _prepare(self, arguments: tuple[str, ...], place: Path, extra: dict[str, str]) -> _Call:
        """Prepare a call without running it. Reads the disk."""
        program = self._program()
        if "GIT_DIR" in extra:
            folders = GitFolders(Path(extra["GIT_DIR"]), self.folders().common)
        else:
            folders = self.folders(place)
        fixed = self._fixed(folders)
        command, *remaining = arguments
        argv = [program, "--no-pager", *_MARK, "-C", str(place), command, *_SWITCHES.get(command, ()), *remaining]
        settings = {
            **person_settings(self.environment, folders.own),
            **repository_settings(folders.common, folders.own),
            # Last, so that no value from a file replaces one of these.
            **_FIXED,
        }
        upstream = upstream_settings(folders.common, branch_of_head(folders.own)) if command == "status" else []
        environment = {
            **_cleaned(self.environment),
            "GIT_DIR": str(folders.own),
            # Git takes configuration and hooks from this folder, so a change of the repository during the call has no
            # effect.
            "GIT_COMMON_DIR": str(fixed),
            "GIT_WORK_TREE": str(place),
            **_as_variables([*settings.items(), *upstream]),
            **extra,
        }
        readable = [str(place), str(folders.own), str(folders.common)]
        write = [*readable, *_named_folders(arguments)] if command in _WRITING else []
        if not self._confinements:
            self._confinements.append(self.confinement or confinement_of(self.workspace, self.environment))
        return _Call(self._confinements[0].around(argv, read=[*readable, str(fixed)], write=write), environment)

    def _prepare_online(self, arguments: tuple[str, ...]) -> _Call:
        """Prepare a call that reaches a remote. Reads the disk."""
        program = self._program()
        folders = self.folders()
        argv = (program, "--no-pager", *_MARK, "-C", str(self.workspace), *arguments)
        own = {name: self.environment[name] for name in _ONLINE if name in self.environment}
        settings = [(name, value) for name, value in _FIXED.items() if name not in _OWN_CHOICE]
        cleaned = _cleaned(self.environment)
        for name in ("GIT_CONFIG_NOSYSTEM", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_GLOBAL", "GIT_SSH_COMMAND"):
            del cleaned[name]
        environment = {
            **cleaned,
            **own,
            "GIT_ALLOW_PROTOCOL": "https:ssh:file",
            "SSH_ASKPASS_REQUIRE": "never",
            "GIT_DIR": str(folders.own),
            "GIT_COMMON_DIR": str(self._fixed(folders)),
            **_as_variables(settings),
        }
        return _Call(ConfinedCommand(argv), environment)

    def _prepare_begin(self) -> _Call:
        place = str(self.workspace)
        line = [self._program(), "--no-pager", *_MARK, "-C", place, "init", "--quiet", "--template="]
        confined = confinement_of(self.workspace, self.environment).around(line, read=[place], write=[place])
        return _Call(
            confined, {**_cleaned(self.environment), **_as_variables([*_FIXED.items(), ("init.defaultBranch", "main")])}
        )

    def _program(self) -> str:
        program = find_program("git", self.workspace, self.environment.get("PATH"))
        if program is None:
            raise FileNotFoundError("git was not found on PATH outside the workspace; install it")
        return program

    def _fixed(self, folders: GitFolders) -> Path:
        """Return the folder that replaces the common one. Raises `NoRepository` if git would be misled there."""
        if special := special_file(folders):
            raise NoRepository(f"{special} is not a regular file, and git would wait for it: remove it")
        # Git reads references through this file even if GIT_COMMON_DIR names another folder.
        if folders.own == folders.common and os.path.lexists(folders.own / "commondir"):
            raise NoRepository(f"{folders.own / 'commondir'} leads git to another repository: remove it")
        return fixed_folder(folders.common, state_folder(self.environment) / "git")


async def export_commit(
    address: str, ref: str, into: Path, *, workspace: Path, environment: Mapping[str, str], timeout: float = 300
) -> str:
    """Write the files of a commit of another repository into an empty folder, and return the commit's id.

    `address`: an absolute path, or an address with https, ssh or file. `ref`: a branch, a tag or a whole commit id;
    empty: the repository's default branch. The folder's name with `.git` after it becomes git's own folder. No hook,
    filter or submodule of the repository is used. Raises `UsageError` with git's message.
    """
    program = await anyio.to_thread.run_sync(find_program, "git", workspace, environment.get("PATH"))
    if program is None:
        raise UsageError("git was not found on PATH outside the workspace; install it")
    sandbox = await anyio.to_thread.run_sync(confinement_of, workspace, environment)
    own = into.with_name(f"{into.name}.git")
    own.mkdir(mode=0o700)
    agent = {name: environment[name] for name in ("SSH_AUTH_SOCK",) if name in environment}
    variables = {**_cleaned(environment), **agent, **_as_variables([*_FIXED.items()]), "GIT_DIR": str(own)}
    folder = address.removeprefix("file://")
    local = folder.startswith("/")

    async def call(arguments: Sequence[str], more: Mapping[str, str], *, inside: bool = True) -> str:
        line = [program, "--no-pager", *_MARK, "-C", str(into), *arguments]
        readable = [str(into), str(own), *([folder] if local else [])]
        confined = sandbox.around(line, read=readable, write=[str(into), str(own)]) if inside else line
        done = await run_program(confined, {**variables, **more}, timeout=timeout, most=_MOST_OUTPUT)
        if done.code != 0:
            reason = "it took too long" if done.timed_out else done.err.decode(errors="replace").strip()
            where = f"{address}#{ref}" if ref else address
            raise UsageError(f"git cannot fetch {where}: {printable(reason) or f'exit code {done.code}'}")
        return done.out.decode(errors="replace").strip()

    await call(["init", "--quiet", "--bare", "--template="], {})
    fetch = ["fetch", "--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", "--", address]
    await call([*fetch, f"+{ref or 'HEAD'}:{_FETCHED}"], _FETCHING, inside=local)
    index = {"GIT_WORK_TREE": str(into), "GIT_INDEX_FILE": str(own / "index")}
    await call(["read-tree", _FETCHED], index)
    await call(["checkout-index", "--all", "--quiet"], index)
    return await call(["rev-parse", f"{_FETCHED}^{{commit}}"], {})


def _cleaned(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of every call of git."""
    cleaned = clean_environment(environment)
    for name in _STEERING:
        cleaned.pop(name, None)
    return {**cleaned, **_ENVIRONMENT}


def _named_folders(arguments: Sequence[str]) -> list[str]:
    """Return the folder that `git worktree add` fills, which exists and is empty."""
    return [each for each in arguments if each.startswith("/")] if arguments[:2] == ("worktree", "add") else []


def _as_variables(settings: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return settings as git's environment variables, which, unlike `-c`, do not cut a name at a `=`."""
    variables = {"GIT_CONFIG_COUNT": str(len(settings))}
    for index, (name, value) in enumerate(settings):
        variables |= {f"GIT_CONFIG_KEY_{index}": name, f"GIT_CONFIG_VALUE_{index}": value}
    return variables


def branch_of_head(own: Path) -> str:
    """Return the branch that a working tree has checked out; empty if there is none."""
    try:
        text = read_regular(own / "HEAD", 4096).decode(errors="replace").strip()
    except OSError:
        return ""
    return text.removeprefix("ref: refs/heads/") if text.startswith("ref: refs/heads/") else ""


def _read_status(text: str) -> GitFacts:
    """Parse `git status --porcelain=v2 --branch -z`."""
    headers: dict[str, str] = {}
    names: dict[str, list[str]] = {"1": [], "?": [], "u": []}
    entries = iter(text.split("\0"))
    for entry in entries:
        kind, _, fields = entry.partition(" ")
        if kind == "#":
            name, _, value = fields.partition(" ")
            headers[name] = value
        if kind in _FIELDS:
            names["u" if kind == "u" else "?" if kind == "?" else "1"].append(fields.split(" ", _FIELDS[kind])[-1])
        if kind == "2":
            next(entries, None)  # the earlier name of a renamed file
    ahead, behind = (headers.get("branch.ab") or "+0 -0").split()
    branch = headers.get("branch.head", "")
    commit = headers.get("branch.oid", "")
    return GitFacts(
        branch="" if branch == "(detached)" else branch,
        commit="" if commit == "(initial)" else commit[:10],
        changed=tuple(names["1"]),
        untracked=tuple(names["?"]),
        conflicts=tuple(names["u"]),
        ahead=int(ahead),
        behind=-int(behind),
    )

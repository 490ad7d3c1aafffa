"""Sandbox of hooks, which gives them the rights of agents.

Hooks run files that agents may have written (`npx eslint`, `make lint`).

A hook counts as a command that the user approved: the paths and hosts in its text and its scripts are open to it. A
hook of the workspace runs in the sandbox. One of the user's own runs there if its text runs code that files of the
workspace determine; else it runs with the user's rights, and programs and modules are not searched for in the
workspace. `sandbox: true` or `false` in its entry decides explicitly.
"""

from __future__ import annotations

import os
import posixpath
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import anyio.to_thread

from callboard.adapters.processes.launcher import ShellLauncher, Streams
from callboard.adapters.processes.programs import environment_outside, is_within
from callboard.adapters.shell.parser import BashParser
from callboard.adapters.shell.paths import PathJudge
from callboard.adapters.system.regular_files import read_regular
from callboard.core.permissions.command_table import SHELLS, names
from callboard.core.permissions.effects import CallFacts, ScriptPart
from callboard.core.permissions.facts import find_facts
from callboard.core.permissions.grants import grants_of
from callboard.core.permissions.judge import parts_of
from callboard.core.permissions.network import ANY, hosts_of
from callboard.core.permissions.values import ProposedCall
from callboard.core.trust.claims import WorkspaceClaims, hash_of, named_files
from callboard.types.errors import CommandNotRun, ToolRefused
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Grant, HostGrant, PathGrant

LARGEST_SCRIPT = 1_000_000
OPT_OUT = 'to run it with your rights, add `"sandbox": false` to its entry'

_PLAIN = names(
    ": [ [[ alias awk basename break builtin cal cat cd chmod command comm continue cp cut date declare df "
    "dirname du echo egrep env exec exit export expr false fgrep file fold getopts grep hash head hostname id "
    "jq kill let ln local logger ls md5sum mkdir mktemp mv nl nohup paste popd printf ps pushd pwd read "
    "readlink realpath return rm rmdir sed seq set sha256sum shift shopt sleep sort stat tail tee test timeout "
    "touch tr true type ulimit umask uname uniq unset wait wc which whoami curl wget notify-send osascript say "
    "afplay aplay paplay pw-play canberra-gtk-play terminal-notifier spd-say ntfy tput wl-copy pbcopy zenity "
    "kdialog dunstify powershell.exe "
)
"""Programs that load no code from the folder in which they start."""
_INTERPRETERS = SHELLS | names("python python3 node ruby perl php")
_PATH = late_pattern(r"""(?<![\w.$}~*:/-])(~|\$HOME|\$\{HOME\})?(/[\w.@+-]+(?:/[\w.@+-]+)*)""")
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/dev", "/proc", "/sys", "/boot", "/nix", "/opt")


@dataclass(frozen=True, slots=True)
class HookSandbox:
    """Sandbox of the hooks of one session."""

    launcher: ShellLauncher
    data: Path
    """Folder for input and output; no agent can write there."""
    workspace_claims: WorkspaceClaims | None = None
    """Trusted content of the workspace: its scripts open the paths that they name."""

    @property
    def in_force(self) -> bool:
        """Return True if there is a sandbox, or a requested one is unavailable."""
        return bool(self.launcher.level or self.launcher.sandbox.refusal)

    def grants(self, command: str, folder: Path) -> tuple[Grant, ...]:
        """Return the grants from the text of a hook and from the scripts that it names. Reads the disk."""
        facts, parts = _looked_at(command, folder, self.launcher.level)
        call = ProposedCall("bash", {"command": command}, "unknown")
        grants: dict[str, Grant] = {grant.path: grant for grant in grants_of(call, facts)}
        for word in _literal_words(parts):
            path = os.path.realpath(_absolute(word, folder) or folder)
            if os.path.exists(path) and not is_within(path, str(folder)):  # noqa: PTH110 - a resolved text, which the grants keep as it is
                grants.setdefault(path, PathGrant(path=path, access="read"))
        for path in (path for script in self._scripts(command) for path in _paths_in(script)):
            if self._may_open(path, folder):
                grants[path] = PathGrant(path=path, access="write")
        hosts = [host for host in hosts_of(parts, {}) if host != ANY]  # an unknown host was not approved
        return (*grants.values(), *(HostGrant(host=host) for host in hosts))

    def _scripts(self, command: str) -> Iterator[str]:
        """Yield the texts of the scripts that the command names and that were trusted with it.

        Other scripts open nothing.
        """
        workspace_claims = self.workspace_claims or WorkspaceClaims("")
        for name in named_files(command, workspace_claims.workspace):
            try:
                script = (
                    read_regular(Path(workspace_claims.workspace, name), LARGEST_SCRIPT)
                    if name in workspace_claims.scripts
                    else b""
                )
            except OSError:
                continue
            if script and hash_of(script) == workspace_claims.hashes.get(name):
                yield script.decode("utf-8", "replace")

    def _may_open(self, path: str, folder: Path) -> bool:
        """Return True if a path that only a script's text contains may be opened.

        Credentials and Callboard's files may not.
        """
        sandbox_paths = self.launcher.sandbox.paths
        if sandbox_paths is None or is_within(path, str(folder)) or not os.path.isdir(os.path.dirname(path)):  # noqa: PTH112, PTH120 - a path that is found in a script's text
            return False
        return not any(
            is_within(path, protected) or is_within(protected, path)
            for protected in (*sandbox_paths.hidden, *sandbox_paths.own)
        )

    async def run(
        self, command: str, folder: Path, *, timeout: float, event: bytes, environment: Mapping[str, str]
    ) -> tuple[int, str, str] | None:
        """Run a hook's command line.

        Return its exit code and its output on both streams; None after a timeout. Raises OSError if the sandbox is
        unavailable.
        """
        grants = await anyio.to_thread.run_sync(self.grants, command, folder)
        self.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="hook-", dir=self.data) as made:
            streams = Streams(Path(made, "in"), Path(made, "out"), Path(made, "err"), environment)
            await anyio.Path(streams.input).write_bytes(event)
            try:
                code = await self.launcher.converse(command, folder, timeout=timeout, streams=streams, grants=grants)
            except (CommandNotRun, ToolRefused) as refused:
                raise OSError(f"it was not run, because no sandbox is available for it: {refused}; {OPT_OUT}") from None
            if code is None:
                return None
            return code, _text(streams.output), _text(streams.errors)


def outside_environment(environment: Mapping[str, str], command: str, workspace: Path) -> dict[str, str]:
    """Return the environment of a hook that runs outside.

    Programs and modules are never searched for in the workspace.
    """
    outside = environment_outside(environment, workspace)
    folders = python_folders(command, workspace)
    return outside | ({"PYTHONPATH": folders} if folders else {})


def starts_workspace_code(command: str, folder: Path, workspace: Path) -> bool:
    """Return True if files of the workspace determine the code that this command runs, judging by its text.

    Unknown commands count as such. Reads the disk.
    """
    parts = _looked_at(command, folder, 0)[1]
    if any(effect for part in parts for effect in part.effects if getattr(effect, "letter", "") == "M"):
        return True  # it cannot be parsed
    places = tuple({os.path.realpath(folder), os.path.realpath(workspace)})
    commands = ([word.text if word.known else "" for word in view.words] for part in parts for view in part.views)
    return any(_decided_inside(argv, folder, places) for argv in commands)


def _decided_inside(argv: Sequence[str], folder: Path, places: Sequence[str]) -> bool:
    if not argv:
        return False
    program = argv[0]
    arguments = argv[1:]
    if program in (".", "source"):
        program = (
            f"./{arguments[0]}" if arguments and arguments[0] and "/" not in arguments[0] else next(iter(arguments), "")
        )
    elif program in ("awk", "sed") and any(word.startswith(("-f", "--file")) for word in arguments):
        return True
    elif program.rpartition("/")[2] in _INTERPRETERS:
        script = next((word for word in arguments if not word.startswith("-")), "")
        plain = script and not any(
            word in ("-m", "-c", "-e", "-r", "-p") for word in arguments[: arguments.index(script)]
        )
        if not plain:  # the text after -c of a shell is examined separately
            return not (program.rpartition("/")[2] in SHELLS and "-c" in arguments)
        program = script
    elif "/" not in program:
        return program not in _PLAIN
    path = _absolute(program, folder)
    return not path or any(is_within(os.path.realpath(path), place) for place in places)


def python_folders(command: str, folder: Path) -> str:
    """Return the folders of Python scripts that a command names outside of the workspace, for PYTHONPATH.

    With a safe path, Python does not search the folder of its script.
    """
    _, parts = _looked_at(command, folder, 0)
    paths = [_absolute(word, folder) for word in _literal_words(parts) if word.endswith(".py")]
    outside = [os.path.realpath(path) for path in paths if path and os.path.isfile(path)]  # noqa: PTH113 - a path that is found in a command's text
    real = os.path.realpath(folder)
    folders = (os.path.dirname(path) for path in outside if not is_within(path, real))  # noqa: PTH120 - entries of PYTHONPATH are text
    return os.pathsep.join(dict.fromkeys(folders))


def _looked_at(command: str, folder: Path, level: int) -> tuple[CallFacts, Sequence[ScriptPart]]:
    home = str(Path.home())
    call = ProposedCall("bash", {"command": command}, "unknown")
    paths = PathJudge(folder)
    start = CallFacts(root=paths.root, home=home, folds=paths.folds, sandbox=level)
    facts = find_facts(call, start, BashParser().parse, paths.look)
    return facts, parts_of(call, facts)


def _literal_words(parts: Sequence[ScriptPart]) -> Iterator[str]:
    for part in parts:
        for view in () if part.guessed else part.views:
            yield from (word.text for word in view.words if word.known and not word.glob)


def _absolute(word: str, folder: Path) -> str:
    """Return the path that a word names, with the home filled in; empty if it is not a path."""
    if word.startswith("~/"):
        word = str(Path.home()) + word[1:]
    if "/" not in word or "://" in word or "\0" in word:
        return ""
    return posixpath.normpath(posixpath.join(str(folder), word))


def _paths_in(text: str) -> Iterator[str]:
    for match in _PATH.finditer(text):
        path = (str(Path.home()) if match[1] else "") + match[2]
        if not any(is_within(path, folder) for folder in _SYSTEM):
            yield os.path.realpath(path)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""

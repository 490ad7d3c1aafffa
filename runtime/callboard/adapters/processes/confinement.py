"""Sandbox of the programs that the runtime itself starts, mainly git: the best that this machine supports.

These programs read files that agents and repositories wrote, so they get fewer rights than the commands of agents: no
network and no sockets of any kind, write access only to the folders of the call, and no credentials. bubblewrap is used
if it works, else Landlock and the system call filter, else only the caller's own measures (git's configuration).

The sandbox does not depend on `sandbox.level`, which is for the commands of agents.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import platformdirs

from callboard.adapters.processes.programs import ConfinedCommand, is_within
from callboard.adapters.processes.sandbox.machine import LEAST_ABI, Machine, examine
from callboard.adapters.processes.sandbox.restrictions import visible_parts
from callboard.adapters.processes.sandbox.sandbox_paths import credentials_of, path_on_disk, secrets_of_machine
from callboard.adapters.processes.sandbox.seatbelt import SeatbeltArea, SeatbeltRules, seatbelt_profile
from callboard.adapters.processes.sandbox.syscall_filter import NO_FAMILIES, call_filter
from callboard.adapters.system import release
from callboard.types.lazy_dataclass import dataclass

_CHILD = str(Path(__file__).with_name("confined_child.py"))
_APART = ("--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL", "--hostname", "sandbox")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")


@dataclass(frozen=True, slots=True)
class Confinement:
    """Sandbox of one of the runtime's own programs."""

    machine: Machine
    hidden: tuple[str, ...] = ()
    """Absolute paths of files and folders that no such program needs."""

    @property
    def level(self) -> int:
        """Return 2 for bubblewrap and Seatbelt, 1 for Landlock, 0 for none."""
        return 2 if self.machine.bwrap or self.machine.seatbelt else 1 if self.machine.abi >= LEAST_ABI else 0

    def around(self, command: Sequence[str], *, read: Sequence[str] = (), write: Sequence[str] = ()) -> ConfinedCommand:
        """Return the command line for a program that may change only `write`.

        Both lists may contain hidden paths. Reads the disk.
        """
        writable = [os.path.realpath(path) for path in write]
        readable = [os.path.realpath(path) for path in read]
        match self.level:
            case 2 if self.machine.seatbelt:
                return self._seatbelt(command, readable, writable)
            case 2:
                return self._bubblewrap(command, readable, writable)
            case 1:
                return self._landlock(command, readable, writable)
            case _:
                return ConfinedCommand(tuple(command))

    def _bubblewrap(self, command: Sequence[str], read: Sequence[str], write: Sequence[str]) -> ConfinedCommand:
        """Return the arguments of bubblewrap.

        A later argument covers an earlier one: hidden paths cover writable ones, and requested paths in a hidden folder
        cover that folder.
        """
        arguments = [*_APART, "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
        for path in write:
            arguments += [] if self._hides(path) else ["--bind", path, path]
        for path in self._shown_hidden():
            arguments += ["--tmpfs", path] if os.path.isdir(path) else ["--ro-bind", "/dev/null", path]  # noqa: PTH112 - an argument of bubblewrap, which is text
        for kind, paths in (("--ro-bind", read), ("--bind", write)):
            for path in paths:
                arguments += [kind, path, path] if self._hides(path) else []
        program = call_filter(NO_FAMILIES, alone=True)
        return ConfinedCommand((self.machine.bwrap, *arguments), program, tuple(command))

    def _seatbelt(self, command: Sequence[str], read: Sequence[str], write: Sequence[str]) -> ConfinedCommand:
        hidden = [path_on_disk(path) for path in self.hidden]
        opened = [SeatbeltArea(path_on_disk(path)) for path in (*read, *write)]
        # A writable folder that contains hidden ones does not open them.
        areas = [replace(each, without=tuple(path for path in hidden if is_within(path, each.path))) for each in opened]
        rules = SeatbeltRules((SeatbeltArea("/", tuple(hidden)), *opened[: len(read)]), tuple(areas[len(read) :]))
        return ConfinedCommand((self.machine.seatbelt, "-p", seatbelt_profile(rules), *command))

    def _landlock(self, command: Sequence[str], read: Sequence[str], write: Sequence[str]) -> ConfinedCommand:
        program = call_filter(NO_FAMILIES, alone=False)
        readable = [*visible_parts("/", self._shown_hidden()), *(path for path in (*read, *write) if self._hides(path))]
        restrictions = [f"abi={self.machine.abi}", f"filter={program.hex()}"]
        restrictions += [*(f"read={path}" for path in readable), *(f"write={path}" for path in (*write, *_DEVICES))]
        return ConfinedCommand((*release.child_python(), _CHILD, *restrictions, "--", *command))

    def _hides(self, path: str) -> bool:
        return any(is_within(path, each) for each in self.hidden)

    def _shown_hidden(self) -> list[str]:
        """Return the existing hidden paths. A link is omitted: its target is hidden."""
        return [path for path in self.hidden if _is_there(path)]


def _is_there(path: str) -> bool:
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return False
    return not stat.S_ISLNK(mode)


def confinement_of(workspace: Path, environment: Mapping[str, str]) -> Confinement:
    """Return the sandbox for Callboard's own programs on this machine.

    Tests the machine's abilities (about 10 ms). Blocks.
    """
    return Confinement(examine(workspace, environment), tuple(dict.fromkeys(_hidden(environment))))


def state_folder(environment: Mapping[str, str]) -> Path:
    """Return the runtime's folder for files that no agent reads, for this environment of the user."""
    base = environment.get("XDG_STATE_HOME", "")
    home = environment.get("HOME", "")
    if base.startswith("/"):
        return Path(base) / "callboard"
    return Path(home) / ".local" / "state" / "callboard" if home else platformdirs.user_state_path("callboard")


def _hidden(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield credentials, and the runtime's own folders."""
    home = os.path.realpath(environment.get("HOME") or Path.home())
    if home != "/":
        yield from credentials_of(home)
    yield from secrets_of_machine()
    yield os.path.realpath(state_folder(environment))
    for folder in (platformdirs.user_data_path, platformdirs.user_config_path):
        yield os.path.realpath(folder("callboard"))

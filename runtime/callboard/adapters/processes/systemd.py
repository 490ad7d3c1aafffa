"""Unit of `callboard serve` for the user's systemd: its text, its path, and whether Callboard wrote it.

Quoting: systemd.syntax(7) and systemd.service(5), "Command lines"; specifiers: systemd.unit(5). A unit never contains a
key: `systemctl cat` shows it, and it is copied to places that all users may read.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import platformdirs

from callboard.adapters.processes.programs import find_program
from callboard.types.errors import WorkspaceUnusable
from callboard.types.lazy_dataclass import dataclass

WRITTEN = "Written by `callboard service install`, which overwrites any change."
MARK = f"# {WRITTEN}"
"""First line of a unit by Callboard. Only a file with it, or with the same as a comment of XML, is overwritten or
removed."""
KEPT = ("PATH", "LANG", "LC_ALL", "XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")
"""Variables that the service gets from the installing user's environment: the locations of its store and of
programs."""
_SECONDS = 20.0
"""Most seconds that `systemctl` may take."""


@dataclass(frozen=True, slots=True)
class WorkspaceService:
    """`callboard serve` for one workspace, as a service of the user."""

    name: str
    """`callboard-<workspace>`, with `.service` for systemd."""
    workspace: Path
    command: tuple[str, ...]
    """The absolute path of callboard, or of Python with its arguments."""
    secrets: Path
    """File in which the user may write the key."""
    environ: Mapping[str, str]
    trust: bool = False

    def line(self) -> list[str]:
        """Return the command line of the service."""
        return [*self.command, "serve", "--cwd", str(self.workspace), *(["--trust"] if self.trust else [])]


@dataclass(frozen=True, slots=True)
class SystemdUnit(WorkspaceService):
    """Service of the user's systemd."""

    def file(self) -> Path:
        """Return the path of the unit for the user's systemd."""
        return unit_file(platformdirs.user_config_path(), self.name)

    def reload(self) -> tuple[int, str] | None:
        """Let systemd read its units again. Return exit code and first line; None if systemd is not installed."""
        return systemctl("daemon-reload")

    def stop(self) -> tuple[int, str] | None:
        """Stop the service, and start it at no login. Return exit code and first line; None without systemd."""
        return systemctl("disable", "--now", self.name)

    def states(self) -> dict[str, str | None]:
        """Return what systemd says about the service, by property; None: unknown."""
        linger = ["loginctl", "show-user", "--property=Linger", "--value", str(os.getuid())]
        said = {
            "enabled": systemctl("is-enabled", self.name),
            "active": systemctl("is-active", self.name),
            "linger": run_tool(linger),
        }
        return {name: answer[1] if answer else None for name, answer in said.items()}

    def guide(self) -> list[str]:
        """Return the lines that tell a person how to start it."""
        return [
            f"start it now and at each login:  systemctl --user enable --now {self.name}",
            "also while you are logged out:   loginctl enable-linger",
            f"its log:                         journalctl --user -u {self.name} -f",
        ]

    def text(self) -> str:
        """Return the content of its file."""
        line = self.line()
        variables = [
            f"Environment={quote_word(f'{name}={self.environ[name]}')}" for name in KEPT if self.environ.get(name)
        ]
        privileges = [] if _setuid_sandbox(self.environ) else ["NoNewPrivileges=yes"]
        rows = (
            MARK,
            f"# It fires the schedules of {quote_word(str(self.workspace))}",
            "[Unit]",
            f"Description=Callboard schedules ({self.name.removesuffix('.service').removeprefix('callboard-')})",
            "StartLimitIntervalSec=600",
            "StartLimitBurst=10",
            "",
            "[Service]",
            f"ExecStart={' '.join([quote_word(line[0]), *(quote_word(word, variables=True) for word in line[1:])])}",
            "ExecReload=/bin/kill -HUP $MAINPID",
            "Restart=on-failure",
            "RestartSec=5",
            "# 2 and 3: only a person can fix the command line, the settings or the key",
            "RestartPreventExitStatus=2 3",
            "SuccessExitStatus=130 143",
            "TimeoutStopSec=30",
            "KillMode=mixed",
            *variables,
            "# ANTHROPIC_API_KEY=... belongs there, with mode 0600, and never into this file",
            f"EnvironmentFile=-{_globbed(str(self.secrets))}",
            "# No Protect*, Private* or Restrict*: the sandbox of the agents' commands makes namespaces of its own",
            "UMask=0077",
            "LimitCORE=0",
            "OOMPolicy=continue",
            *privileges,
            "",
            "[Install]",
            "WantedBy=default.target",
        )
        return "\n".join(rows) + "\n"


def quote_word(word: str, *, variables: bool = False) -> str:
    """Return a word for a unit file, quoted so that no character has a special meaning.

    `variables`: `$` begins a variable in this place, as everywhere in a command line except in the program's path.
    """
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    if variables:
        escaped = escaped.replace("$", "$$")
    return '"' + "".join(_character(character) for character in escaped) + '"'


def _character(character: str) -> str:
    """Return the escape that systemd reads in quotes for a control character or an undecodable byte."""
    if character.isprintable() or character == " ":
        return character
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(character))


def _globbed(path: str) -> str:
    """Return a path for a setting that accepts patterns, and no quotes."""
    if any(not character.isprintable() for character in path):
        raise WorkspaceUnusable(f"{path!r} cannot be written in a unit: choose another XDG_CONFIG_HOME")
    return "".join(f"\\{character}" if character in "*?[\\" else character for character in path).replace("%", "%%")


def _setuid_sandbox(environ: Mapping[str, str]) -> bool:
    """Return True if the sandbox's program needs the rights that NoNewPrivileges removes."""
    program = find_program("bwrap", Path.cwd(), environ.get("PATH"))
    return program is not None and bool(Path(program).stat().st_mode & stat.S_ISUID)


def callboard_command() -> tuple[str, ...]:
    """Return the command that starts this Callboard again.

    The command is the program next to this Python, or Python with the module.
    """
    program = Path(sys.executable).with_name("callboard")
    return (str(program),) if os.access(program, os.X_OK) else (sys.executable, "-P", "-m", "callboard")


def unit_file(config_home: Path, name: str) -> Path:
    """Return the path of the unit for the user's systemd (systemd.unit(5), "User unit search path")."""
    return config_home / "systemd" / "user" / name


def is_own_unit(file: Path) -> bool:
    """Return True if Callboard wrote the file.

    Raises `OSError`, for example `FileNotFoundError` if the file does not exist.
    """
    with file.open(encoding="utf-8", errors="replace") as opened:
        return any(opened.readline().rstrip("\n") in (MARK, f"<!-- {WRITTEN} -->") for _ in range(2))


def write_unit(file: Path, text: str) -> bool:
    """Write the text atomically, and return True if anything changed.

    Raises `WorkspaceUnusable` for a file that Callboard did not write, and if it cannot be written.
    """
    try:
        if file.is_symlink() or file.exists():
            if file.is_symlink() or not is_own_unit(file):
                raise WorkspaceUnusable(f"{file} was not written by callboard: move it away, or change it yourself")
            if file.read_text(encoding="utf-8", errors="replace") == text:
                return False
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, prefix=".callboard-", delete=False) as new:
            new.write(text)
            os.fchmod(new.fileno(), 0o600)
        Path(new.name).replace(file)
    except OSError as error:
        raise WorkspaceUnusable(f"{file} cannot be written: {error.strerror}") from error
    return True


def remove_unit(file: Path) -> bool:
    """Remove the file; return False if it does not exist.

    Raises `WorkspaceUnusable` for one that Callboard did not write.
    """
    try:
        if not file.is_symlink() and not file.exists():
            return False
        if file.is_symlink() or not is_own_unit(file):
            raise WorkspaceUnusable(f"{file} was not written by callboard: remove it yourself")
        file.unlink()
    except OSError as error:
        raise WorkspaceUnusable(f"{file} cannot be removed: {error.strerror}") from error
    return True


def systemctl(*arguments: str) -> tuple[int, str] | None:
    """Run `systemctl --user` and return its exit code and first line; None if it is not installed."""
    return run_tool(["systemctl", "--user", "--no-pager", *arguments])


def run_tool(line: Sequence[str]) -> tuple[int, str] | None:
    """Run a program of the system.

    Return its exit code and the first line of its output; None if it is not installed.
    """
    program = find_program(line[0], Path.cwd())
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, *line[1:]], stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=False, cwd="/"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, str(error)
    return done.returncode, (done.stdout or done.stderr).decode(errors="replace").strip().partition("\n")[0]

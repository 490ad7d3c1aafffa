"""The unit of `callboard serve` for the user's systemd, as a file: its text, where it lies, whether it is ours.

Quoting: systemd.syntax(7) and systemd.service(5), "Command lines"; specifiers: systemd.unit(5). No key goes into a
unit: it is shown by `systemctl cat`, and copied to where everybody may read it.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from callboard.words.errors import WorkspaceUnusable

MARK = "# Written by `callboard service install`, which writes it anew and heeds no change of it."
"""The first line of a unit of ours: only such a file is overwritten or removed."""
KEPT = ("PATH", "LANG", "LC_ALL", "XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")
"""What the service gets of the environment of who installs it: where its store is, and where programs are."""
_SECONDS = 20.0
"""Seconds that `systemctl` may take."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A service of one workspace."""

    name: str
    """`callboard-<workspace>.service`."""
    workspace: Path
    command: tuple[str, ...]
    """The absolute path of callboard, or of Python with its arguments."""
    secrets: Path
    """The file that may hold the key, for the person to write."""
    environ: Mapping[str, str]
    trust: bool = False

    def text(self) -> str:
        """The content of its file."""
        line = [*self.command, "serve", "--cwd", str(self.workspace), *(["--trust"] if self.trust else [])]
        kept = [f"Environment={quoted(f'{name}={self.environ[name]}')}" for name in KEPT if self.environ.get(name)]
        more = [] if _setuid_sandbox(self.environ) else ["NoNewPrivileges=yes"]
        rows = (
            MARK,
            f"# It fires the schedules of {quoted(str(self.workspace))}",
            "[Unit]",
            f"Description=Callboard schedules ({self.name.removesuffix('.service').removeprefix('callboard-')})",
            "StartLimitIntervalSec=600",
            "StartLimitBurst=10",
            "",
            "[Service]",
            f"ExecStart={' '.join([quoted(line[0]), *(quoted(word, variables=True) for word in line[1:])])}",
            "ExecReload=/bin/kill -HUP $MAINPID",
            "Restart=on-failure",
            "RestartSec=5",
            "# 2 and 3: only a person mends the command line, the settings or the key",
            "RestartPreventExitStatus=2 3",
            "SuccessExitStatus=130 143",
            "TimeoutStopSec=30",
            "KillMode=mixed",
            *kept,
            "# ANTHROPIC_API_KEY=... belongs there, with mode 0600, and never into this file",
            f"EnvironmentFile=-{_globbed(str(self.secrets))}",
            "# No Protect*, Private* or Restrict*: the sandbox of the agents' commands makes namespaces of its own",
            "UMask=0077",
            "LimitCORE=0",
            "OOMPolicy=continue",
            *more,
            "",
            "[Install]",
            "WantedBy=default.target",
        )
        return "\n".join(rows) + "\n"


def quoted(word: str, *, variables: bool = False) -> str:
    """A word for a unit file: in quotes, nothing in it means anything. `variables`: it stands where `$` would begin
    one, which is everywhere in a command line but in the program's path."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    if variables:
        escaped = escaped.replace("$", "$$")
    return '"' + "".join(_character(one) for one in escaped) + '"'


def _character(one: str) -> str:
    """A control character or a byte that is no text, as systemd reads it in quotes."""
    if one.isprintable() or one == " ":
        return one
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(one))


def _globbed(path: str) -> str:
    """A path for a setting that takes patterns, and no quotes."""
    if any(not one.isprintable() for one in path):
        raise WorkspaceUnusable(f"{path!r} cannot stand in a unit: choose another XDG_CONFIG_HOME")
    return "".join(f"\\{one}" if one in "*?[\\" else one for one in path).replace("%", "%%")


def _setuid_sandbox(environ: Mapping[str, str]) -> bool:
    """Whether the sandbox's program needs the rights that NoNewPrivileges takes away."""
    program = shutil.which("bwrap", path=environ.get("PATH"))
    return program is not None and bool(Path(program).stat().st_mode & stat.S_ISUID)


def callboard_command() -> tuple[str, ...]:
    """How this callboard is started again: its program beside this Python, or Python with the module."""
    program = Path(sys.executable).with_name("callboard")
    return (str(program),) if os.access(program, os.X_OK) else (sys.executable, "-m", "callboard")


def unit_file(config_home: Path, name: str) -> Path:
    """Where the user's systemd looks for it (systemd.unit(5), "User unit search path")."""
    return config_home / "systemd" / "user" / name


def is_ours(file: Path) -> bool:
    """Whether this program wrote the file. Raises `OSError`, `FileNotFoundError` for none."""
    with file.open(encoding="utf-8", errors="replace") as opened:
        return opened.readline().rstrip("\n") == MARK


def write_unit(file: Path, text: str) -> bool:
    """Put the text there, whole or not at all; whether anything changed. Raises `WorkspaceUnusable` for a file that is
    not ours, and where it cannot be written."""
    try:
        if file.is_symlink() or file.exists():
            if file.is_symlink() or not is_ours(file):
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
    """Take it away; False: there is none. Raises `WorkspaceUnusable` for one that is not ours."""
    try:
        if not file.is_symlink() and not file.exists():
            return False
        if file.is_symlink() or not is_ours(file):
            raise WorkspaceUnusable(f"{file} was not written by callboard: remove it yourself")
        file.unlink()
    except OSError as error:
        raise WorkspaceUnusable(f"{file} cannot be removed: {error.strerror}") from error
    return True


def systemctl(*words: str) -> tuple[int, str] | None:
    """What `systemctl --user` says and its exit code; None where there is none."""
    return run_tool(["systemctl", "--user", "--no-pager", *words])


def run_tool(line: Sequence[str]) -> tuple[int, str] | None:
    """A program of the system: (exit code, the first line that it said); None where it is not installed."""
    program = shutil.which(line[0])
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, *line[1:]], stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, str(error)
    return done.returncode, (done.stdout or done.stderr).decode(errors="replace").strip().partition("\n")[0]

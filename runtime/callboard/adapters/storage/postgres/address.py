"""Addresses of a server, and connections to it.

No password is ever part of an address: libpq reads it from PGPASSWORD, ~/.pgpass, or a service file
(postgresql.org/docs/current/libpq-pgpass.html). So settings, logs, and messages may contain an address.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any, LiteralString
from urllib.parse import urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from callboard.adapters.storage.patience import ObstacleWait, Patience
from callboard.types.errors import SettingsError
from callboard.types.lazy_dataclass import dataclass

Connection = psycopg.Connection[tuple[Any, ...]]

SCHEMES = ("postgresql://", "postgres://")
CONNECT_SECONDS = 5
"""Seconds until a server that does not answer counts as unreachable."""
_SECRETS = ("password", "sslpassword", "oauth_client_secret")
_LIMITS: Mapping[str, str] = MappingProxyType(
    {
        "connect_timeout": str(CONNECT_SECONDS),
        # A peer that is cut off is noticed after five seconds, not after two hours (man 7 tcp).
        "keepalives_idle": "2",
        "keepalives_interval": "1",
        "keepalives_count": "3",
        "tcp_user_timeout": "5000",
        "application_name": "callboard",
        "client_encoding": "UTF8",
    }
)


ANSWER_SECONDS = 30.0
"""Seconds after which a server that does not answer a statement counts as unreachable. Statements take milliseconds;
the longest waits are for the locks of another host's commit."""
IDLE_SECONDS = 5.0
"""Seconds after which the server ends a transaction whose process says nothing. A host that was stopped for so long has
lost its leases in any case (`presence.SILENT_SECONDS`), and its locks must be gone when others take over."""
LEAVING_SECONDS = 0.75
"""Seconds after which a server that does not answer a process that leaves is given up."""
_LEAVES_FOR = 0.25
"""Seconds that a statement under way gets in any case when its process begins to leave."""
_TICK = 0.2
_NO_ANSWER = "the server does not answer"


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Address of a server. Created by `parse_address`."""

    url: str
    """Address for reads and commits. It may lead to a pooler in transaction mode."""
    direct: str
    """Address for waking and leases: the server itself."""

    def __str__(self) -> str:
        return self.url


def parse_address(url: str, direct: str = "") -> ServerAddress:
    """Return the address. `direct`: that of the server itself if `url` leads to a pooler.

    Raises `SettingsError` for an address that libpq cannot read, or that contains a password.
    """
    for part in filter(None, (url, direct)):
        _check(part)
    return ServerAddress(url, direct or url)


def _check(url: str) -> None:
    shown = _without_secrets(url)
    if not url.startswith(SCHEMES):
        raise SettingsError(f"store: {shown!r} is no address of a store: write sqlite, or postgresql://HOST/DATABASE")
    try:
        parts = conninfo_to_dict(url)
    except psycopg.Error:
        # libpq's own message may repeat the password
        raise SettingsError(
            f"store: {shown!r} is no valid address: write postgresql://USER@HOST:PORT/DATABASE"
        ) from None
    if any(parts.get(secret) for secret in _SECRETS):
        raise SettingsError(
            f"store: the address {shown!r} contains a password, which would end up in files and process lists. "
            "Remove it, and set PGPASSWORD, or add a line to ~/.pgpass or a service file (PGSERVICE)"
        )


def _without_secrets(url: str) -> str:
    """Return what can be shown of an address that was not checked: its scheme, host, and path."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return "…"
    return f"{parts.scheme}://{host}{parts.path}" if parts.scheme and "://" in url else "…"


def connect(url: str) -> Connection:
    """Return a new connection without a transaction. Blocks for at most `CONNECT_SECONDS` for each host.

    Raises `psycopg.Error`.
    """
    connection = psycopg.connect(make_conninfo(url, **_LIMITS), autocommit=True)
    if is_pooled(connection):
        # A statement that one server connection has prepared does not exist on the next one.
        connection.prepare_threshold = None
    else:
        # The server also notices a peer that is cut off in the middle of a message: its locks are otherwise kept for
        # two hours. A pooler has settings of its own for that.
        run(
            connection,
            "SELECT set_config('tcp_keepalives_idle', '2', false), set_config('tcp_keepalives_interval', '1', false), "
            "set_config('tcp_keepalives_count', '3', false)",
        )
    return connection


def is_pooled(connection: Connection) -> bool:
    """Return True if a pooler is between: the process that answers is not the one that accepted the connection."""
    return run(connection, "SELECT pg_backend_pid()")[0][0] != connection.info.backend_pid


def run(connection: Connection, sql: LiteralString, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
    """Execute one statement, and return its rows. Raises `psycopg.Error`."""
    cursor = connection.execute(sql, parameters, binary=True)
    return cursor.fetchall() if cursor.description is not None else []


def milliseconds(seconds: float) -> str:
    """Return a duration as the server's settings want it."""
    return f"{round(1000 * seconds)}ms"


@contextmanager
def short_transaction(connection: Connection) -> Generator[None]:
    """Run the block in a transaction, which the server ends if this process is stopped in it.

    Raises `psycopg.Error`.
    """
    with connection.transaction():
        # Of the transaction, because a pooler keeps no setting of a session.
        run(
            connection,
            "SELECT set_config('idle_in_transaction_session_timeout', %s, true)",
            (milliseconds(IDLE_SECONDS),),
        )
        yield


class AnswerWatch:
    """Breaks connections whose server does not answer, so that no thread waits forever.

    The network does not always tell that a peer is gone: a frozen server still acknowledges what it is sent. The thread
    of the watch sleeps while no statement is under way.
    """

    def __init__(self, patience: Patience) -> None:
        """Prepare the watch. `patience` tells whether this process leaves."""
        self._patience = patience
        self._lock = threading.Lock()
        self._waits: dict[Connection | _ConnectionAttempt, _Wait] = {}
        self._leaving_since = float("inf")
        self._busy = threading.Event()
        self._ends = threading.Event()
        self.silent = False
        """True after `give_up`, until the server has answered."""
        self._stopped = False
        self._thread: threading.Thread | None = None

    @contextmanager
    def break_if_silent(self, connection: Connection, seconds: float = ANSWER_SECONDS) -> Generator[None]:
        """Break the connection if the block takes longer. Its statement then raises `psycopg.OperationalError`.

        Raises that at once while the server counts as silent.
        """
        if self.silent:
            raise psycopg.OperationalError(_NO_ANSWER)
        with self.break_after(connection, seconds):
            yield

    @contextmanager
    def break_after(self, connection: Connection, seconds: float) -> Generator[None]:
        """Break the connection if the block takes longer, also while the server counts as silent."""
        if self.over:
            raise psycopg.OperationalError(_NO_ANSWER)
        with self._watched(connection, _Wait(time.monotonic(), seconds)):
            yield

    @contextmanager
    def _watched(self, waiting: Connection | _ConnectionAttempt, wait: _Wait) -> Generator[None]:
        with self._lock:
            self._waits[waiting] = wait
            if self._thread is None and not self._stopped:
                self._thread = threading.Thread(target=self._run, name="callboard-store-watch", daemon=True)
                self._thread.start()
        self._busy.set()
        try:
            yield
        finally:
            with self._lock:
                self._waits.pop(waiting, None)

    def connect(self, url: str, *, tries_on: bool = False) -> Connection:
        """Return a new connection, as `connect` does. Raises at once while the server counts as silent.

        `tries_on`: tries also while the server counts as silent, unless this process leaves.
        """
        if self.over or (self.silent and not tries_on):
            raise psycopg.OperationalError(_NO_ANSWER)
        attempt = _ConnectionAttempt(url)
        with self._watched(attempt, _Wait(time.monotonic(), float("inf"), tries_on=tries_on)):
            return attempt.connection()

    @property
    def over(self) -> bool:
        """Return True if this process leaves, and the server has not answered it."""
        return self.silent and self._patience.leaving

    def goes_on(self, wait: ObstacleWait, message: str) -> bool:
        """Wait one more moment for the server. Return False after the time limit; a process that leaves waits once."""
        if self.over:
            return False
        if wait.goes_on(message):
            return True
        if self._patience.leaving:
            self.give_up()
        return False

    def give_up(self) -> None:
        """Break all connections that wait for an answer, and refuse new ones until `allow_connections`.

        A process that is cut off must leave soon, and each statement would wait again.
        """
        self.silent = True
        with self._lock:
            waiting = [entry for entry, wait in self._waits.items() if not wait.tries_on or self._patience.leaving]
        for entry in waiting:
            _break(entry)

    def allow_connections(self) -> None:
        """Allow new connections: the server has answered."""
        self.silent = False

    def stop(self) -> None:
        """End the thread."""
        self._stopped = True
        self._ends.set()
        self._busy.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped:
            self._busy.wait()
            if self._stopped:
                return
            self._ends.wait(_TICK)
            late = self._late(time.monotonic())
            if late and self._patience.leaving:
                self.give_up()
            for entry in late:
                _break(entry)

    def _late(self, now: float) -> list[Connection | _ConnectionAttempt]:
        """Return what has waited for too long."""
        self._leaving_since = min(self._leaving_since, now) if self._patience.leaving else float("inf")
        hurries = now >= self._leaving_since + _LEAVES_FOR
        with self._lock:
            if not self._waits:
                self._busy.clear()
            limits = {
                entry: min(wait.seconds, LEAVING_SECONDS) if hurries else wait.seconds
                for entry, wait in self._waits.items()
            }
            return [entry for entry, limit in limits.items() if self._waits[entry].began + limit <= now]


@dataclass(frozen=True, slots=True)
class _Wait:
    """Wait for one answer, since `began` (`time.monotonic`), for at most `seconds`."""

    began: float
    seconds: float
    tries_on: bool = False


class _ConnectionAttempt:
    """A connection that a thread of its own makes, because libpq cannot be interrupted while it connects."""

    def __init__(self, url: str) -> None:
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._connection: Connection | None = None
        self._error: BaseException = psycopg.OperationalError(_NO_ANSWER)
        threading.Thread(target=self._run, args=(url,), name="callboard-store-connect", daemon=True).start()

    def connection(self) -> Connection:
        """Wait for the connection. Raises `psycopg.Error`."""
        self._ended.wait()
        if self._connection is None:
            raise self._error
        return self._connection

    def give_up(self) -> None:
        """Let `connection` raise now."""
        with self._lock:
            self._ended.set()

    def _run(self, url: str) -> None:
        try:
            connection = connect(url)
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            self._error = error
            self._ended.set()
            return
        with self._lock:
            if not self._ended.is_set():
                self._connection = connection
                self._ended.set()
                return
        connection.close()


def _break(waiting: Connection | _ConnectionAttempt) -> None:
    """End a wait: shut the socket down, under the thread that waits there."""
    if isinstance(waiting, _ConnectionAttempt):
        waiting.give_up()
        return
    connection = waiting
    with (
        suppress(psycopg.Error, OSError),  # it has ended meanwhile
        socket.socket(fileno=os.dup(connection.fileno())) as same,
    ):
        same.shutdown(socket.SHUT_RDWR)

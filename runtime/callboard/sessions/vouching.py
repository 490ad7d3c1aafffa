"""Announcements of a person's answers, rules and messages to the host of a session at sandbox level 0.

Such a host accepts only announced ones, because the session's commands can write to the database
(`engine/approvals/answer_guard.py`). Its socket exists while it checks them.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

import anyio

from callboard.adapters.kernel.process_table import has_proc
from callboard.adapters.processes.private_socket import connect_to, first_line, socket_name
from callboard.adapters.storage.durable import DurableStore
from callboard.core.approvals.vouching import announcement_line, read_reply, vouched_digests
from callboard.core.decoding import read_value
from callboard.core.keys import host_key, vouch_purpose
from callboard.core.live.frames import LiveProtocolError
from callboard.ports.store import Store, Write
from callboard.types.errors import UsageError
from callboard.types.records import HostRow

REPLY_WITHIN = 10.0
"""Seconds within which a host replies to an announcement."""
_TRIES = 3
"""Connections to a host that closes them without a reply."""


def can_announce(store: Store) -> bool:
    """Return True if processes of a person reach the host's socket, and the kernel shows which process tools started.

    Without /proc, nothing is sure about the process at the other end.
    """
    return has_proc() and sockets_folder(store) is not None


def sockets_folder(store: Store) -> Path | None:
    """Return the folder of the sockets of a store's hosts; None for a store that is not on this machine."""
    folder = store.folder if isinstance(store, DurableStore) else None
    return None if folder is None else folder / "live"


class NotAccepted(UsageError):
    """The host of a session does not accept what a process announced."""


async def announce(store: Store, session: str, writes: Sequence[Write]) -> None:
    """Announce writes of a person to the host of a session. Raises `NotAccepted` if it does not accept them."""
    digests = vouched_digests(session, writes)
    folder = sockets_folder(store)
    row = await store.get(host_key(session)) if digests and folder is not None else None
    if folder is None or row is None or row.value is None:
        return
    host = read_value(HostRow, row.value, row.key)
    refused = await _reply_to(announcement_line(digests), folder, host, session)
    if refused:
        raise NotAccepted(
            f"the process {host.pid}, which hosts session {session}, accepts no answer or message from this process: "
            f"{refused}. The session runs at sandbox level 0, where its host must see that a person writes: use the "
            "host's own terminal, or another one of the same user on this machine, outside of any sandbox"
        )


async def _reply_to(line: bytes, folder: Path, host: HostRow, session: str) -> str:
    """Send an announcement; return the reason of a refusal, or an empty text."""
    name = socket_name(host.pid, host.started, vouch_purpose(session))
    broken = ""
    for _ in range(_TRIES):
        connection = connect_to(folder, name)
        if connection is None:
            return ""
        try:
            return await _exchange(connection, line)
        except TimeoutError:
            return f"it did not reply within {REPLY_WITHIN:.0f} s"
        except (OSError, LiveProtocolError) as error:
            # The host may be about to leave. Then the socket is gone at the next try, and the next host finds the
            # answer (test_who_types_at_whatever_moment_counts_or_is_told_who_was_first).
            broken = f"it did not reply ({error})"
    return broken


async def _exchange(connection: socket.socket, line: bytes) -> str:
    """Send an announcement and return the reply. Raises `TimeoutError`, `OSError`, `LiveProtocolError`."""
    with connection, anyio.fail_after(REPLY_WITHIN):
        connection.sendall(line)  # fits into the buffer of a new connection
        return read_reply(await first_line(connection))

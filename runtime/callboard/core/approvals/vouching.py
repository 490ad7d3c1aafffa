"""Writes that only a person's process or the host may make, and how the host recognizes them. Pure.

At sandbox level 0 an agent's command has the rights of the person, and can write to the database: an approval, a
session rule, or a message of the person. So the host of such a session accepts these only if it wrote them itself, or
if a process of a person announced them first, by digest, over a socket where the kernel names the process
(docs/decisions/0059-answers-at-level-0.md).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from callboard.core.keys import MAILBOXES, request_key, rule_key
from callboard.core.live.frames import LiveProtocolError
from callboard.types.store_writes import Append, Delete, Put, Write

_GUARDED = (b'"sender":"person"', b'"type":"command"')
"""Marks in the record of a guarded envelope, in the form in which this package writes it."""
MOST_DIGESTS = 1_000
"""Most digests in one announcement."""


def guarded_prefixes(session: str) -> tuple[str, str]:
    """Return the prefixes of the keys of guarded rows."""
    return request_key(session, ""), rule_key(session, "")


def write_digest(name: str, value: bytes | None) -> str:
    """Return the sha256 (hex) of a write. `name`: key or stream; `value`: None for a deletion."""
    return hashlib.sha256(name.encode() + (b"\0-" if value is None else b"\0+" + value)).hexdigest()


def vouched_digests(session: str, writes: Iterable[Write]) -> list[str]:
    """Return the digests of the guarded writes of a commit."""
    prefixes = guarded_prefixes(session)
    digests = list[str]()
    for write in writes:
        match write:
            case Put(key=key, value=value) if key.startswith(prefixes):
                digests.append(write_digest(key, value))
            case Delete(key=key) if key.startswith(prefixes):
                digests.append(write_digest(key, None))
            case Append(stream=stream, record=record) if stream.startswith(f"{MAILBOXES}{session}/"):
                # A record that only looks like one has a digest more. One that is read is decoded first.
                if any(mark in record for mark in _GUARDED):
                    digests.append(write_digest(stream, record))
            case _:
                continue
    return digests


def announcement_line(digests: Sequence[str]) -> bytes:
    """Return the line by which a process announces its writes."""
    return json.dumps({"vouch": 1, "digests": list(digests)}).encode() + b"\n"


def read_announcement(line: bytes) -> tuple[str, ...]:
    """Return the digests of an announcement. Raises `LiveProtocolError`."""
    digests = _object(line).get("digests")
    if not isinstance(digests, list) or len(digests) > MOST_DIGESTS:  # pyright: ignore[reportUnknownArgumentType] - raw input
        raise LiveProtocolError(f"not an announcement: {line[:200]!r}")
    return tuple(map(str, digests))  # pyright: ignore[reportUnknownArgumentType] - raw input


def reply_line(refused: str) -> bytes:
    """Return the reply to an announcement. `refused`: the reason; empty if the host accepts the writes."""
    reply: dict[Literal["accepted", "refused"], bool | str] = {"refused": refused} if refused else {"accepted": True}
    return json.dumps(reply).encode() + b"\n"


def read_reply(line: bytes) -> str:
    """Return the reason of a refusal; empty if the host accepts the writes. Raises `LiveProtocolError`."""
    reply = _object(line)
    if reply.get("accepted") is True:
        return ""
    if isinstance(reason := reply.get("refused"), str) and reason:
        return reason
    raise LiveProtocolError(f"not a reply to an announcement: {line[:200]!r}")


def _object(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as wrong:
        raise LiveProtocolError(f"not JSON: {line[:200]!r}") from wrong
    if not isinstance(value, dict):
        raise LiveProtocolError(f"not an object: {line[:200]!r}")
    return value  # pyright: ignore[reportUnknownVariableType] - raw input

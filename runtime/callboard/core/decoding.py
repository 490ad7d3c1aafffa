"""Decoding of rows and records of the store, with explanations for those that this version cannot use. Pure.

The store has verified the checksum, so a value that does not validate was written by another version.
"""

from __future__ import annotations

import json
import re
from typing import Any, TypeVar

from pydantic import ValidationError

from callboard.core.keys import session_of
from callboard.types.errors import SessionUnreadable
from callboard.types.events import Event, decode_event
from callboard.types.records import Envelope, Value

V = TypeVar("V", bound=Value)

NEWER = "written by a newer Callboard"
EVENT_VERSION = 1
"""Newest event version that this Callboard reads."""


def with_version(wrong: SessionUnreadable, row: bytes | None, own: str) -> SessionUnreadable:
    """Add to an error the version that wrote the session, if its row names a newer version than this process.

    `row`: as stored. `own`: the version of this process.
    """
    match = re.search(rb'"callboard": ?"([0-9][0-9a-z.+]*)"', row or b"") if wrong.newer else None
    text = str(wrong)
    if match is None or NEWER not in text:
        return wrong
    version = match[1].decode()
    if version_numbers(version) <= version_numbers(own):  # a build between two releases has no meaningful number
        return wrong
    return SessionUnreadable(text.replace(NEWER, f"{NEWER} ({version}; this is {own})", 1), wrong.session, newer=True)


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version for comparison: `0.10.0` is newer than `0.9.1`."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def read_value(kind: type[V], data: bytes, where: str) -> V:
    """Return the value of a row. `where` is its key. Raises `SessionUnreadable`."""
    try:
        return kind.model_validate_json(data)
    except ValidationError as wrong:
        raise unreadable(data, where, wrong) from wrong


def read_envelope(data: bytes, stream: str, seq: int) -> Envelope:
    """Return a record of a mailbox. Raises `SessionUnreadable`."""
    return read_value(Envelope, data, f"{stream}#{seq}").model_copy(update={"seq": seq})


def read_event(data: bytes, stream: str, seq: int) -> Event:
    """Return a record of a journal. Raises `SessionUnreadable`."""
    try:
        event = decode_event(data)
    except ValidationError as wrong:
        raise unreadable(data, f"{stream}#{seq}", wrong) from wrong
    if event.v > EVENT_VERSION:
        raise _newer(f"{stream}#{seq}", f"the type {event.t!r} in version {event.v}")
    return event


def unreadable(data: bytes, where: str, wrong: ValidationError) -> SessionUnreadable:
    """Return the error for data that does not validate."""
    try:
        content: Any = json.loads(data)
    except ValueError:
        content = None
    if isinstance(content, dict):
        return _newer(where, _difference(wrong))
    text = f"session {session_of(where)}: {in_words(where)} is not in a form that Callboard writes"
    return SessionUnreadable(text, session_of(where))


def in_words(where: str) -> str:
    """Describe a row's key, or a record's `STREAM#SEQ`, for a person."""
    name, _, seq = where.partition("#")
    parts = name.split("/")
    agent = parts[-1].rpartition(".")[0] or parts[-1]
    match parts[0]:
        case "j":
            return f"record {seq} of {agent}'s journal"
        case "m":
            return f"message {seq} to {agent}"
        case "s" if len(parts) == 2:
            return "the row of the session"
        case "s":
            return f"the row of {parts[2]} {'/'.join(parts[3:])}"
        case "fires":
            return f"a fire of schedule {parts[2] if len(parts) > 2 else '?'}"
        case "snap":
            return f"the snapshot of {agent}"
        case "w":
            return f"workflow {parts[-1]}" + (f", record {seq}" if seq else "")
        case _:
            return f"record {seq} of {name}" if seq else f"the row {name}"


def _newer(where: str, difference: str) -> SessionUnreadable:
    session = session_of(where)
    text = (
        f"session {session} was {NEWER}: {in_words(where)} has {difference}, which this version "
        "does not know. Upgrade Callboard, then continue; the session was not changed"
    )
    return SessionUnreadable(text, session, newer=True)


def _difference(wrong: ValidationError) -> str:
    """Name the first field that does not validate, in a few words."""
    first = wrong.errors(include_url=False, include_context=True)[0]
    if first["type"] == "union_tag_invalid":
        return f"the type {first.get('ctx', {}).get('tag', '?')!r}"
    field = ".".join(str(part) for part in first["loc"])
    return f"the field {field!r} in another form" if field else "another form"

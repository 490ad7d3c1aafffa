"""Parts of a commit: the writes of the store, as plain values (their guarantees: `callboard.ports.store`)."""

from __future__ import annotations

from callboard.types.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Append:
    """One record at the end of a stream."""

    stream: str
    record: bytes
    id: str | None = None
    """Id of the record. Nothing is appended if the stream already has this id."""
    expected: int | None = None
    """Expected last sequence number of the stream before this append; None: any."""


@dataclass(frozen=True, slots=True)
class Put:
    """Set a key. `expected` is its revision (0: it must not exist; None: any)."""

    key: str
    value: bytes
    expected: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a key. `expected` as for `Put`. With None, a missing key is not an error."""

    key: str
    expected: int | None = None


@dataclass(frozen=True, slots=True)
class Expect:
    """A condition without a change: the stream's last sequence number is `last`. Otherwise the commit fails."""

    stream: str
    last: int


Write = Append | Put | Delete | Expect


@dataclass(frozen=True, slots=True)
class Fence:
    """Proof that the writer was the `number`-th holder of `lease`."""

    lease: str
    number: int

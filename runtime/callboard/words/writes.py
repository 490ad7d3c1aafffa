"""What a commit is made of: the writes of the store, as plain values (their promises: `callboard.ports.store`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Append:
    """One record at the end of a stream."""

    stream: str
    record: bytes
    id: str | None = None
    """Appends nothing when the stream has seen this id."""
    expected: int | None = None
    """The stream's last sequence number before this append; None: whatever it is."""


@dataclass(frozen=True, slots=True)
class Put:
    """Set a key. `expected` is its revision (0: it must not exist; None: whatever it is)."""

    key: str
    value: bytes
    expected: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a key. `expected` as for `Put`. Removing what is not there is no error when `expected` is None."""

    key: str
    expected: int | None = None


Write = Append | Put | Delete


@dataclass(frozen=True, slots=True)
class Fence:
    """Proof that its holder hosted `lease` as its `number`-th holder."""

    lease: str
    number: int

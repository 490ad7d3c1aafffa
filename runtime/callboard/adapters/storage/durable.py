"""Contract of stores that outlive their processes, beyond the port: damage, erasure, and waits for obstacles."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import anyio
from anyio.lowlevel import checkpoint

from callboard.adapters.storage.patience import Patience
from callboard.ports.store import Fence, Store
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DamageReport:
    """One damaged object: its place, its kind, and the place of its preserved bytes."""

    where: str
    what: str
    set_aside: str

    def __str__(self) -> str:
        return f"{self.what} in {self.where} was damaged and set aside: {self.set_aside}"


DIGEST_IN_VALUE = late_pattern(rb"[0-9a-f]{64}")
"""Digest of a blob wherever a stored value may name one."""
ERASED_TOGETHER = 1_000
"""Most records that one transaction of a removal deletes, so that no commit waits long."""


def range_of(name: str) -> tuple[str, str]:
    """Return the least name, and the least one that follows, of a name or of a prefix that ends with `/`."""
    return (name, f"{name[:-1]}0") if name.endswith("/") else (name, f"{name}\1")  # `0` follows `/`


def text_after(prefix: str) -> str | None:
    """Return the least text that sorts after every text with this prefix; None if there is none."""
    stem = prefix.rstrip("\U0010ffff")
    if not stem:
        return None
    following = ord(stem[-1]) + 1
    return stem[:-1] + chr(0xE000 if following == 0xD800 else following)  # no text contains a surrogate


class DurableStore(Store):
    """Store whose contents outlive its processes."""

    patience: Patience
    """Waiting rules of writes; a host of sessions makes waits unlimited."""

    @property
    def folder(self) -> Path | None:
        """Return the folder of a store on this machine; None for a store on a server."""
        return None

    @property
    @abstractmethod
    def damage(self) -> tuple[DamageReport, ...]:
        """Return all damage that was found and set aside, and is still stored."""

    @abstractmethod
    async def check(self) -> tuple[DamageReport, ...]:
        """Read everything, set aside values that fail their checksum, and return all damage."""

    @abstractmethod
    async def describe(self) -> Mapping[str, str]:
        """Return facts for a person: `place`, `engine`, `size`, and others of the engine. Has no secret."""

    async def reachable(self) -> None:
        """Return when the store can be reached. One on this machine always can."""
        await checkpoint()

    @abstractmethod
    async def stored_bytes(self, names: Sequence[str]) -> int:
        """Return the bytes of the values with these names. A name that ends with `/` is a prefix."""

    @abstractmethod
    async def erase_streams(self, streams: Sequence[str]) -> None:
        """Delete these streams for good, in many small transactions. Their names may be used again, from number 1."""

    @abstractmethod
    async def erase_keys(self, keys: Sequence[str]) -> None:
        """Delete these keys for good, with their revisions: no reader is woken, and a name must not be used again."""

    @abstractmethod
    async def erase_blobs(self, unused: float) -> tuple[int, int]:
        """Delete the blobs that no stored value names, and that nobody has put within `unused` seconds.

        Return their number and bytes. Reads everything that is stored.
        """

    async def cut_off(self, fence: Fence | None = None) -> str:
        """Wait until this process must end the work under its leases, and return the reason.

        `fence`: that of the lease to watch, which may be lost before the wait begins. Never returns on one machine,
        where the kernel holds the leases.
        """
        await anyio.sleep_forever()
        raise AssertionError("unreachable")

    @abstractmethod
    async def patiently(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, run in a thread, and run again while the disk is full."""

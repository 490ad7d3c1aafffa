"""Common parts of stores on a disk beyond the port: waits for obstacles, and reports of damage."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TypeVar

import anyio
from anyio.lowlevel import checkpoint

from callboard.adapters.storage.patience import Patience
from callboard.ports.store import Store
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

    async def cut_off(self) -> str:
        """Wait until this process must end the work under its leases, and return the reason.

        Never returns on one machine, where the kernel holds the leases.
        """
        await anyio.sleep_forever()
        raise AssertionError("unreachable")

    @abstractmethod
    async def patiently(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, run in a thread, and run again while the disk is full."""

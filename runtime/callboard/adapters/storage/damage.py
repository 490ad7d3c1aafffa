"""Reports of data that a store has set aside as damaged."""

from __future__ import annotations

from callboard.types.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class DamageReport:
    """One damaged object: its place, its kind, and the place of its preserved bytes."""

    where: str
    what: str
    set_aside: str

    def __str__(self) -> str:
        return f"{self.what} in {self.where} was damaged and set aside: {self.set_aside}"

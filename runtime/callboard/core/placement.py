"""Choice of a host for a session that needs one: by labels, room, and load. Pure.

Every serving host computes the same order from the same facts, so no host has to give orders to the others: the best
one takes the lease of the session at once, and the others only after a moment in which it has not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from callboard.core.keys import count_words
from callboard.types.errors import UsageError
from callboard.types.lazy_dataclass import dataclass

ANY = "yes"
"""Value of a label that is given without one."""


@dataclass(frozen=True, slots=True)
class HostChoice:
    """A serving host as a candidate for a session."""

    name: str
    """`machine:pid`."""
    labels: Mapping[str, str]
    load: int
    """Number of sessions that it hosts."""
    limit: int = 0
    """Most sessions that it hosts; 0: no limit."""
    draining: bool = False
    key: str = ""
    """Name that no other process has, not even one with an equal pid in a container of the same machine."""
    silent: bool = False
    """True if it has not renewed its row for a while, and may be about to lose its leases."""

    @property
    def has_room(self) -> bool:
        """Return True if it may host one more session."""
        return not self.limit or self.load < self.limit


def read_labels(texts: Iterable[str], option: str) -> dict[str, str]:
    """Return labels from `KEY=VALUE`, or `KEY` for `KEY=yes`. Raises `UsageError`, which names the option."""
    labels: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key.strip() or (equals and not value.strip()):
            raise UsageError(f"{option} {text}: write KEY=VALUE, for example gpu=a100")
        labels[key.strip()] = value.strip() if equals else ANY
    return labels


def missing_labels(placement: Mapping[str, str], labels: Mapping[str, str]) -> list[str]:
    """Return the wanted labels that a host does not have, as `key=value`."""
    return [f"{key}={value}" for key, value in sorted(placement.items()) if labels.get(key) != value]


def rank_hosts(session: str, placement: Mapping[str, str], hosts: Iterable[HostChoice]) -> Sequence[HostChoice]:
    """Return the hosts that may take the session now, the best one first: the one with the fewest sessions.

    Among equals the order differs from session to session, so that many sessions spread out at once.
    """
    able = [
        host
        for host in hosts
        if not host.draining and not host.silent and host.has_room and not missing_labels(placement, host.labels)
    ]
    return sorted(
        able, key=lambda host: (host.load, hashlib.sha256(f"{session}\n{host.name}\n{host.key}".encode()).digest())
    )


def why_waiting(placement: Mapping[str, str], hosts: Sequence[HostChoice]) -> str:
    """Return why no host takes a session; empty if one can."""
    if not hosts:
        return "no host serves this store: start one with `callboard serve`"
    if rank_hosts("", placement, hosts):
        return ""
    fitting = [host for host in hosts if not missing_labels(placement, host.labels)]
    if not fitting:
        wanted = ", ".join(f"{key}={value}" for key, value in sorted(placement.items()))
        return f"no host has the labels {wanted}: start one with `callboard serve --label ...`"
    full = sum(1 for host in fitting if not host.has_room)
    draining = sum(1 for host in fitting if host.draining)
    silent = sum(1 for host in fitting if host.silent)
    reasons = [
        f"{number} {word}" for number, word in ((full, "full"), (draining, "draining"), (silent, "silent")) if number
    ]
    return f"{count_words(len(fitting), 'host')} with its labels: {', '.join(reasons)}"

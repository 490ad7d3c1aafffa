"""Store of the user's decisions about workspaces: one file of the user, never of a workspace.

The file is written completely, under a lock, and replaced by a rename, so several processes may decide at once, and a
kill leaves the old file or the new one. A file that is damaged, of another user or writable by others grants no trust;
this is reported, and the next decision sets the file aside.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

from callboard.core.trust.claims import Claim, ClaimKind, TrustDecision
from callboard.types.errors import WorkspaceUnusable
from callboard.types.lazy_dataclass import dataclass

FILE = "trust.json"
KEPT = 8
"""Most contents of one workspace that stay trusted, the newest ones: its branches may have different contents."""
_VERSION = 1
_LARGEST = 64_000_000


@dataclass(frozen=True, slots=True)
class TrustRecords:
    """Stored decisions, oldest first. `damage`: the reason why the file is ignored; empty for an undamaged one."""

    decisions: tuple[TrustDecision, ...] = ()
    damage: str = ""

    def of(self, workspace: str) -> tuple[TrustDecision, ...]:
        """Return the decisions about one workspace (its real path), oldest first."""
        return tuple(decision for decision in self.decisions if decision.workspace == workspace)

    def trusts(self, workspace: str, digest: str) -> bool:
        """Return True if the user trusted exactly this content of the workspace."""
        return any(decision.digest == digest for decision in self.of(workspace))


class TrustFile:
    """The file `trust.json` in the user's folder (`~/.config/callboard`)."""

    def __init__(self, config: Path) -> None:
        self.path = config / FILE

    def read(self) -> TrustRecords:
        """Read the decisions. Raises nothing."""
        try:
            opened = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        except FileNotFoundError:
            return TrustRecords()
        except OSError as error:
            return TrustRecords(damage=f"{self.path} cannot be read ({error.strerror})")
        with os.fdopen(opened, "rb") as file:
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode) or facts.st_uid not in (os.getuid(), 0) or facts.st_mode & 0o022:
                return TrustRecords(damage=f"{self.path} is not a file that only you can write")
            raw = file.read(_LARGEST)
        try:
            return TrustRecords(tuple(_decisions(json.loads(raw))))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            return TrustRecords(damage=f"{self.path} is damaged ({type(error).__name__}: {error})")

    def record(self, decision: TrustDecision) -> None:
        """Store a decision; it replaces an old one about the same content. Raises `WorkspaceUnusable`."""

        def added(stored: Sequence[TrustDecision]) -> list[TrustDecision]:
            earlier = [
                existing
                for existing in stored
                if existing.workspace == decision.workspace and existing.digest != decision.digest
            ]
            others = [existing for existing in stored if existing.workspace != decision.workspace]
            bare = [replace(existing, claims=(), hashes={}) for existing in earlier]  # comparisons use only the newest
            return [*others, *bare[-(KEPT - 1) :], decision]

        self._change(added)

    def revoke(self, workspace: str) -> int:
        """Delete all decisions about a workspace and return their number. Raises `WorkspaceUnusable`."""
        gone: list[TrustDecision] = []

        def without(stored: Sequence[TrustDecision]) -> list[TrustDecision]:
            gone.extend(decision for decision in stored if decision.workspace == workspace)
            return [decision for decision in stored if decision.workspace != workspace]

        self._change(without)
        return len(gone)

    def _change(self, change: Callable[[Sequence[TrustDecision]], list[TrustDecision]]) -> None:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._locked():
                stored = self.read()
                if stored.damage and self.path.exists():
                    self._set_aside()
                self._write(change(stored.decisions))
        except OSError as error:
            raise WorkspaceUnusable(f"{self.path}: the decision cannot be kept: {error.strerror or error}") from error

    @contextmanager
    def _locked(self) -> Generator[None]:
        """Hold the lock for reading and writing. The kernel releases the lock of a dead process."""
        lock = os.open(self.path.with_name(f"{FILE}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _set_aside(self) -> None:
        number = 1
        while (aside := self.path.with_name(f"{FILE}.damaged-{number}")).exists():
            number += 1
        self.path.replace(aside)

    def _write(self, decisions: Sequence[TrustDecision]) -> None:
        part = self.path.with_name(f".{FILE}.{os.getpid()}")
        data = {"version": _VERSION, "decisions": [_encoded(decision) for decision in decisions]}
        part.unlink(missing_ok=True)
        try:
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(json.dumps(data, indent=1).encode())
                file.flush()
                os.fsync(file.fileno())
            part.replace(self.path)
        finally:
            part.unlink(missing_ok=True)


def _encoded(decision: TrustDecision) -> Mapping[str, Any]:
    return {**asdict(decision), "claims": [asdict(claim) for claim in decision.claims]}


def _decisions(data: Any) -> list[TrustDecision]:
    """Parse the decisions. Raises ValueError, KeyError or TypeError for invalid data."""
    if data["version"] != _VERSION:
        raise ValueError(f"version {data['version']} is not known here")
    return [_decision(row) for row in data["decisions"]]


def _decision(row: Any) -> TrustDecision:
    claims = tuple(
        Claim(str(c["path"]), cast("ClaimKind", str(c["kind"])), str(c["text"]), int(c["line"])) for c in row["claims"]
    )
    hashes = {str(path): str(digest) for path, digest in dict(row["hashes"]).items()}
    return TrustDecision(str(row["workspace"]), str(row["digest"]), float(row["at"]), claims, hashes)

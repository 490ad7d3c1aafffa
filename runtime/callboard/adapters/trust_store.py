"""Where a person's decisions on what workspaces bring are kept: one file of the person's own, never of a workspace.

It is written whole, under a lock, and swapped in by a rename: several processes may decide at once, and a kill leaves
the old file or the new one. A file that is damaged, another user's or open to others' writing trusts nothing; it is
told, and set aside by the next decision.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from callboard.core.trust.claims import Claim, ClaimKind, Decision
from callboard.words.errors import WorkspaceUnusable

FILE = "trust.json"
KEPT = 8
"""Contents of one workspace that stay trusted, the newest: its branches may bring different ones."""
_VERSION = 1
_LARGEST = 64_000_000


@dataclass(frozen=True, slots=True)
class Kept:
    """The decisions there are, oldest first. `damage`: why the file is not heeded; empty for a sound one."""

    decisions: tuple[Decision, ...] = ()
    damage: str = ""

    def of(self, workspace: str) -> tuple[Decision, ...]:
        """Those on one workspace (its real path), oldest first."""
        return tuple(one for one in self.decisions if one.workspace == workspace)

    def trusts(self, workspace: str, digest: str) -> bool:
        """A person trusted exactly this content there."""
        return any(one.digest == digest for one in self.of(workspace))


class TrustFile:
    """The file `trust.json` in a person's folder (`~/.config/callboard`)."""

    def __init__(self, config: Path) -> None:
        self.path = config / FILE

    def read(self) -> Kept:
        """What is decided. Raises nothing."""
        try:
            opened = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        except FileNotFoundError:
            return Kept()
        except OSError as error:
            return Kept(damage=f"{self.path} cannot be read ({error.strerror})")
        with os.fdopen(opened, "rb") as file:
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode) or facts.st_uid not in (os.getuid(), 0) or facts.st_mode & 0o022:
                return Kept(damage=f"{self.path} is not a file that only you can write")
            raw = file.read(_LARGEST)
        try:
            return Kept(tuple(_decisions(json.loads(raw))))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            return Kept(damage=f"{self.path} is damaged ({type(error).__name__}: {error})")

    def record(self, decision: Decision) -> None:
        """Keep a decision; one of the same content takes the place of the old one. Raises `WorkspaceUnusable`."""

        def added(kept: Sequence[Decision]) -> list[Decision]:
            mine = [one for one in kept if one.workspace == decision.workspace and one.digest != decision.digest]
            others = [one for one in kept if one.workspace != decision.workspace]
            bare = [replace(one, claims=(), hashes={}) for one in mine]  # only the newest is compared with
            return [*others, *bare[-(KEPT - 1) :], decision]

        self._change(added)

    def revoke(self, workspace: str) -> int:
        """Forget all decisions on a workspace; how many there were. Raises `WorkspaceUnusable`."""
        gone: list[Decision] = []

        def without(kept: Sequence[Decision]) -> list[Decision]:
            gone.extend(one for one in kept if one.workspace == workspace)
            return [one for one in kept if one.workspace != workspace]

        self._change(without)
        return len(gone)

    def _change(self, change: Callable[[Sequence[Decision]], list[Decision]]) -> None:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._locked():
                kept = self.read()
                if kept.damage and self.path.exists():
                    self._set_aside()
                self._write(change(kept.decisions))
        except OSError as error:
            raise WorkspaceUnusable(f"{self.path}: the decision cannot be kept: {error.strerror or error}") from error

    @contextmanager
    def _locked(self) -> Generator[None]:
        """One process at a time reads and writes; the kernel ends the lock of one that dies."""
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

    def _write(self, decisions: Sequence[Decision]) -> None:
        part = self.path.with_name(f".{FILE}.{os.getpid()}")
        data = {"version": _VERSION, "decisions": [_encoded(one) for one in decisions]}
        part.unlink(missing_ok=True)
        try:
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(json.dumps(data, indent=1).encode())
                file.flush()
                os.fsync(file.fileno())
            part.replace(self.path)
        finally:
            part.unlink(missing_ok=True)


def _encoded(decision: Decision) -> Mapping[str, Any]:
    return {**asdict(decision), "claims": [asdict(claim) for claim in decision.claims]}


def _decisions(data: Any) -> list[Decision]:
    """Raises ValueError, KeyError or TypeError for what is none."""
    if data["version"] != _VERSION:
        raise ValueError(f"version {data['version']} is not known here")
    return [_decision(one) for one in data["decisions"]]


def _decision(one: Any) -> Decision:
    claims = tuple(
        Claim(str(c["path"]), cast("ClaimKind", str(c["kind"])), str(c["text"]), int(c["line"])) for c in one["claims"]
    )
    hashes = {str(path): str(digest) for path, digest in dict(one["hashes"]).items()}
    return Decision(str(one["workspace"]), str(one["digest"]), float(one["at"]), claims, hashes)

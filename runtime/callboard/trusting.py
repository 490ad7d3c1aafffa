"""Whether what a workspace brings is used: decided once, at the opening of a session, on the bytes that are used.

    trust = await decide(places.workspace, places.config, flag=False, gate=gate)
    trust.content(".mcp.json")      # None unless it is trusted

A content is trusted by a flag for this run, by a decision that a person made before, or by the answer to the question
that is put now. Nobody there to ask: it is not. A process that an agent's tool started can neither answer nor decide.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import anyio.to_thread

from callboard.adapters.clock import SystemClock
from callboard.adapters.programs import TOOL_MARK
from callboard.adapters.trust import git_as_trusted, read_brought
from callboard.adapters.trust_store import Kept, TrustFile
from callboard.core.trust.claims import Brought, Changes, Decision, changes_since
from callboard.words.errors import UsageError

How = Literal["nothing", "flag", "kept", "answered", "untrusted"]


@dataclass(frozen=True, slots=True)
class Trust:
    """What was decided on what a workspace brings. What is not trusted has no content for anybody."""

    brought: Brought
    how: How = "untrusted"
    damage: str = ""
    """Why the kept decisions are not heeded."""

    @property
    def trusted(self) -> bool:
        return self.how != "untrusted"

    @property
    def digest(self) -> str:
        """Of the content that is used: by it another process sees whether the workspace still brings the same. Empty:
        nothing is used."""
        return self.brought.digest if self.trusted else ""

    def content(self, path: str) -> str | None:
        """The text of a file that the workspace brings (`.mcp.json`), as it was trusted. None: not trusted, not there,
        or no text. Whoever runs or obeys something of a workspace asks here and takes this text, not the file's."""
        return self.brought.text(path) if self.trusted else None

    def git(self, folder: str) -> bool:
        """Whether git may run what the configuration of the repository at a folder names: it is what was trusted."""
        return self.trusted and git_as_trusted(self.brought, folder)

    @property
    def inert(self) -> str:
        """One line for a person whose workspace brings something that is not used; empty otherwise."""
        if self.trusted:
            return ""
        files = len({claim.path for claim in self.brought.claims} | set(self.brought.hashes))
        counted = f"{files} file{'s' if files > 1 else ''}"
        return (
            f"what this workspace brings is not trusted, so none of it is used ({counted}): "
            "`callboard trust show` lists it, `callboard trust` decides"
        )


class Gate(Protocol):
    """The person at the door."""

    async def ask(self, brought: Brought, changes: Changes | None) -> bool:
        """Whether to trust this. `changes`: what is different from what was trusted last; None: nothing was."""
        ...

    def tell(self, line: str) -> None:
        """Say one line."""
        ...


async def decide(workspace: Path, config: Path, *, flag: bool, gate: Gate | None = None) -> Trust:
    """Read what the workspace brings and decide. `flag`: for this run. `gate`: who is asked and told; None: nobody.

    `config` is the person's own folder. Raises `UsageError` for the flag in a tool's process, `WorkspaceUnusable` where
    a yes cannot be kept.
    """
    if flag:
        _refuse_inside_tool()
    trust = await anyio.to_thread.run_sync(standing, workspace, config)
    if gate is not None and trust.damage:
        gate.tell(f"{trust.damage}: nothing is trusted by it; `callboard trust` decides anew")
    if trust.trusted:
        return trust
    if flag:
        return Trust(trust.brought, "flag", trust.damage)
    if gate is not None and not os.environ.get(TOOL_MARK):
        kept = TrustFile(config).read()
        if await gate.ask(trust.brought, changed(trust.brought, kept)):
            await anyio.to_thread.run_sync(keep, trust.brought, config)
            return Trust(trust.brought, "answered", trust.damage)
    if gate is not None:
        gate.tell(trust.inert)
    return trust


def standing(workspace: Path, config: Path) -> Trust:
    """What the workspace brings, and whether a person trusted exactly that before. Asks nobody, raises nothing."""
    brought = read_brought(workspace)
    if brought.nothing:
        return Trust(brought, "nothing")
    kept = TrustFile(config).read()
    how: How = "kept" if kept.trusts(brought.workspace, brought.digest) else "untrusted"
    return Trust(brought, how, kept.damage)


def changed(brought: Brought, kept: Kept) -> Changes | None:
    """What is different from the content that was trusted last; None where none was."""
    before = kept.of(brought.workspace)
    return changes_since(before[-1], brought) if before else None


def keep(brought: Brought, config: Path) -> None:
    """Keep a person's yes. Raises `UsageError` in a tool's process, `WorkspaceUnusable`."""
    _refuse_inside_tool()
    now = SystemClock().now()
    decision = Decision(brought.workspace, brought.digest, now, brought.claims, brought.hashes)
    TrustFile(config).record(decision)


def _refuse_inside_tool() -> None:
    """Nobody approves himself. Raises `UsageError` in a process that an agent's tool started."""
    if os.environ.get(TOOL_MARK):
        raise UsageError("a command that an agent runs may not trust a workspace: a person does that, in a terminal")

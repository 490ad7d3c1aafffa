"""Trust in the content of a workspace: decided once, at the opening of a session, on the bytes that are used.

    trust = await decide(places.workspace, places.config, flag=False, gate=gate)
    trust.content(".mcp.json")      # None unless it is trusted

Content is trusted by a flag for this run, by an earlier decision of the user, or by the answer to the question now. If
no one can be asked, it is not trusted. A process that an agent's tool started can neither answer nor decide.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal, Protocol

import anyio.to_thread

from callboard.adapters.extensions.trust import git_as_trusted, read_claims
from callboard.adapters.extensions.trust_store import TrustFile, TrustRecords
from callboard.adapters.processes.tool_ancestry import refuse_inside_tool, started_by_tool
from callboard.adapters.system.clock import SystemClock
from callboard.core.trust.claims import ClaimChanges, TrustDecision, WorkspaceClaims, changes_since
from callboard.types.lazy_dataclass import dataclass

How = Literal["nothing", "flag", "kept", "answered", "untrusted"]


@dataclass(frozen=True, slots=True)
class Trust:
    """Decision on the content of a workspace. Untrusted content is never returned."""

    workspace_claims: WorkspaceClaims
    how: How = "untrusted"
    damage: str = ""
    """Reason why the stored decisions are ignored; empty if they are valid."""
    texts: bool = False
    """True if agents, skills and commands of an untrusted workspace are read as texts, without their grants and
    programs."""

    @property
    def trusted(self) -> bool:
        return self.how != "untrusted"

    @property
    def digest(self) -> str:
        """Return the digest of the content in use, by which another process sees whether the workspace has changed.

        Empty: nothing is used.
        """
        return self.workspace_claims.digest if self.trusted else ""

    def content(self, path: str) -> str | None:
        """Return the trusted text of a file of the workspace (`.mcp.json`).

        None if it is not trusted, missing, or not text. Code that runs or obeys content of a workspace uses this text,
        not that of the file.
        """
        return self.workspace_claims.text(path) if self.trusted else None

    def git(self, folder: str) -> bool:
        """Return True if git may run the programs named in the configuration of the repository at a folder.

        The configuration must be the trusted one.
        """
        return self.trusted and git_as_trusted(self.workspace_claims, folder)

    @property
    def inert(self) -> str:
        """Return a line on the unused content of the workspace; empty if there is none."""
        if self.trusted:
            return ""
        if self.texts:
            return (
                "this workspace is not trusted: its agents, skills and commands are used as text, but the permissions "
                "and programs in them, its hooks, servers and allow rules are not: `callboard trust show` lists them"
            )
        files = len({claim.path for claim in self.workspace_claims.claims} | set(self.workspace_claims.hashes))
        counted = f"{files} file{'s' if files > 1 else ''}"
        return (
            f"the content of this workspace is not trusted, so none of it is used ({counted}): "
            "`callboard trust show` lists it, `callboard trust` decides"
        )


class TrustPrompt(Protocol):
    """Question to the user about trust."""

    async def ask(self, workspace_claims: WorkspaceClaims, changes: ClaimChanges | None) -> bool:
        """Ask whether to trust this content.

        `changes`: the differences from the content trusted last; None: none was trusted.
        """
        ...

    def tell(self, line: str) -> None:
        """Print one line."""
        ...


async def decide(
    workspace: Path, config: Path, *, flag: bool, gate: TrustPrompt | None = None, texts: bool = False
) -> Trust:
    """Read the content of the workspace and decide.

    `flag`: trust it for this run. `gate`: the prompt to ask and inform; None: none.

    `texts`: agents, skills and commands of an untrusted workspace are read as texts. `config` is the user's own folder.
    Raises `UsageError` for the flag in a tool's process, `WorkspaceUnusable` if a yes cannot be stored.
    """
    if flag:
        refuse_inside_tool("Trusting a workspace")
    trust = replace(await anyio.to_thread.run_sync(stored_trust, workspace, config), texts=texts)
    if gate is not None and trust.damage:
        gate.tell(f"{trust.damage}: none of its decisions applies; `callboard trust` asks again")
    if trust.trusted:
        return trust
    if flag:
        return Trust(trust.workspace_claims, "flag", trust.damage)
    if gate is not None and not started_by_tool():
        stored = TrustFile(config).read()
        if await gate.ask(trust.workspace_claims, claim_changes(trust.workspace_claims, stored)):
            await anyio.to_thread.run_sync(keep, trust.workspace_claims, config)
            return Trust(trust.workspace_claims, "answered", trust.damage)
    if gate is not None:
        gate.tell(trust.inert)
    return trust


def stored_trust(workspace: Path, config: Path) -> Trust:
    """Return the content of the workspace, and whether exactly that content is already trusted.

    Asks no one, raises nothing.
    """
    workspace_claims = read_claims(workspace)
    if workspace_claims.nothing:
        return Trust(workspace_claims, "nothing")
    stored = TrustFile(config).read()
    how: How = "kept" if stored.trusts(workspace_claims.workspace, workspace_claims.digest) else "untrusted"
    return Trust(workspace_claims, how, stored.damage)


def claim_changes(workspace_claims: WorkspaceClaims, stored: TrustRecords) -> ClaimChanges | None:
    """Return the differences from the content that was trusted last; None if none was."""
    before = stored.of(workspace_claims.workspace)
    return changes_since(before[-1], workspace_claims) if before else None


def keep(workspace_claims: WorkspaceClaims, config: Path) -> None:
    """Store the user's trust. Raises `UsageError` in a tool's process, and `WorkspaceUnusable`."""
    refuse_inside_tool("Trusting a workspace")
    now = SystemClock().now()
    decision = TrustDecision(
        workspace_claims.workspace, workspace_claims.digest, now, workspace_claims.claims, workspace_claims.hashes
    )
    TrustFile(config).record(decision)

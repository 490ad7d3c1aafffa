"""`trust`, `trust show|list|revoke`: decisions on whether to use the content of workspaces.

Only a person decides, never an agent's tool.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import anyio
import click

from callboard.adapters.extensions.trust_store import TrustFile
from callboard.adapters.processes.tool_ancestry import refuse_inside_tool
from callboard.cli.commands.options import Invocation, as_json, everywhere, refuse_before_command
from callboard.cli.commands.output import terminal_of
from callboard.cli.terminal.keyboard import PersonGate, person_is_there
from callboard.cli.terminal.terminal import Block, Line, block
from callboard.cli.views.listings import as_json as json_of
from callboard.cli.views.trust import claims_block
from callboard.config.trust import Trust, claim_changes, keep, stored_trust
from callboard.core.trust.claims import printable
from callboard.sessions.places import WorkspacePaths, find_places
from callboard.types.errors import UsageError


@click.group(invoke_without_command=True)
@click.option("-y", "--yes", is_flag=True, help="Trust the current content without confirmation.")
@everywhere
@click.pass_context
def trust(ctx: click.Context, /, yes: bool) -> None:
    """Decide whether to trust the content of this workspace.

    Lists hooks, servers, agents, skills, schedules, settings, allow rules and git settings that run programs, in full.
    None of them is used before you trust exactly this content.
    """
    if ctx.invoked_subcommand is not None:
        refuse_before_command(ctx)
        return
    invocation = ctx.ensure_object(Invocation)
    refuse_inside_tool("Trusting a workspace")
    places = find_places(invocation.workspace, writable=False)
    now = stored_trust(places.workspace, places.config)
    if not now.trusted and not yes and not (person_is_there() and sys.stdout.isatty()):
        raise UsageError(
            "there is no terminal for the question: read `callboard trust show`, then run `callboard trust --yes`"
        )
    with terminal_of(invocation) as terminal:
        gate = PersonGate(terminal, attended=True)
        if now.damage:
            gate.tell(f"{now.damage}: it is set aside, and other workspaces are asked for again")
        if now.trusted:
            terminal.rows(block(_status(now), "good"))
            return
        changes = claim_changes(now.workspace_claims, TrustFile(places.config).read())
        if yes or anyio.run(gate.ask, now.workspace_claims, changes):
            keep(now.workspace_claims, places.config)
            terminal.rows(
                block(f"trusted: {now.workspace_claims.workspace}, content {now.workspace_claims.digest[:12]}", "good")
            )
        else:
            terminal.rows(block("not trusted: none of it is used", "warn"))


@trust.command()
@as_json
@everywhere
@click.pass_obj
def show(invocation: Invocation, /, json_: bool) -> None:
    """List the content of this workspace that needs trust, and whether it is trusted."""
    places, now = _current_trust(invocation)
    workspace_claims = now.workspace_claims
    changes = None if now.trusted else claim_changes(workspace_claims, TrustFile(places.config).read())
    with terminal_of(invocation) as terminal:
        if json_:
            facts = {
                "workspace": workspace_claims.workspace,
                "digest": workspace_claims.digest,
                "trusted": now.trusted,
                "how": now.how,
            }
            claims = [
                {"kind": claim.kind, "where": claim.where, "text": claim.text} for claim in workspace_claims.claims
            ]
            terminal.record(json_of([{**facts, "claims": claims, "files": dict(workspace_claims.hashes)}]))
            return
        listed = () if workspace_claims.nothing else claims_block(workspace_claims, changes).lines
        damage = (Line(now.damage, "bad"),) if now.damage else ()
        status = Line(_status(now), "good" if now.trusted else "warn")
        terminal.rows(Block((*listed, *damage, status)))


@trust.command("list")
@as_json
@everywhere
@click.pass_obj
def list_(invocation: Invocation, /, json_: bool) -> None:
    """List the workspaces that you trusted, with the time of each decision."""
    stored = TrustFile(find_places(invocation.workspace, writable=False).config).read()
    rows = [
        {"workspace": decision.workspace, "digest": decision.digest, "at": decision.at} for decision in stored.decisions
    ]
    with terminal_of(invocation) as terminal:
        if stored.damage:
            terminal.terminal_print(block(f"{stored.damage}: none of its decisions applies", "bad"))
        if json_:
            terminal.record(json_of(rows))
            return
        lines = [
            Line(
                f"{datetime.fromtimestamp(decision.at):%Y-%m-%d %H:%M}"  # noqa: DTZ006 - shown in the person's local time
                f"  {decision.digest[:12]}  {printable(decision.workspace)}"
            )
            for decision in stored.decisions
        ]
        terminal.rows(Block(tuple(lines) or (Line("no workspace is trusted", "dim"),)))


@trust.command()
@click.argument("workspaces", nargs=-1, type=click.Path(path_type=Path))
@everywhere
@click.pass_obj
def revoke(invocation: Invocation, /, workspaces: Sequence[Path]) -> None:
    """Revoke the trust in WORKSPACES (default: this one)."""
    refuse_inside_tool("Revoking trust")
    file = TrustFile(find_places(invocation.workspace, writable=False).config)
    with terminal_of(invocation) as terminal:
        for path in workspaces or (invocation.workspace,):
            real = str(path.resolve())
            gone = file.revoke(real)
            text = f"no longer trusted: {real}" if gone else f"was not trusted: {real}"
            terminal.rows(block(text, "good" if gone else "dim"))


def _current_trust(invocation: Invocation) -> tuple[WorkspacePaths, Trust]:
    places = find_places(invocation.workspace, writable=False)
    return places, stored_trust(places.workspace, places.config)


def _status(now: Trust) -> str:
    if now.how == "nothing":
        return "this workspace has no content that needs trust"
    digest = now.workspace_claims.digest[:12]
    return f"trusted: content {digest}" if now.trusted else f"not trusted, so not used: content {digest}"

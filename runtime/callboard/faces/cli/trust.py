"""`trust`, `trust show|list|revoke`: whether what workspaces bring is used. A person decides, never an agent's tool."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import anyio
import click

from callboard.adapters.trust_store import TrustFile
from callboard.assembly import Places, find_places
from callboard.core.trust.claims import shown
from callboard.faces.cli.options import Given, as_json, everywhere, refuse_tools
from callboard.faces.cli.run import terminal_of
from callboard.faces.gate import PersonGate
from callboard.faces.keyboard import person_is_there
from callboard.faces.pages.listings import as_json as json_of
from callboard.faces.pages.trust import brought_block
from callboard.faces.terminal import Block, Line, block
from callboard.trusting import Trust, changed, keep, standing
from callboard.words.errors import UsageError


@click.group(invoke_without_command=True)
@click.option("-y", "--yes", is_flag=True, help="Trust what there is without being asked.")
@everywhere
@click.pass_context
def trust(ctx: click.Context, /, yes: bool) -> None:
    """Decide whether what this workspace brings is used.

    Hooks, servers, agents, skills, schedules, settings, allow rules and git settings that run programs: all of them are
    listed in full, and none is used before exactly this content was trusted.
    """
    if ctx.invoked_subcommand is not None:
        return
    given = ctx.ensure_object(Given)
    refuse_tools("Trusting a workspace")
    places = find_places(given.workspace, writable=False)
    now = standing(places.workspace, places.config)
    if not now.trusted and not yes and not (person_is_there() and sys.stdout.isatty()):
        raise UsageError(
            "there is no terminal to ask at: read `callboard trust show`, then say `callboard trust --yes`"
        )
    with terminal_of(given) as terminal:
        gate = PersonGate(terminal, attended=True)
        if now.damage:
            gate.tell(f"{now.damage}: it is set aside, and other workspaces are asked for again")
        if now.trusted:
            terminal.rows(block(_status(now), "good"))
            return
        changes = changed(now.brought, TrustFile(places.config).read())
        if yes or anyio.run(gate.ask, now.brought, changes):
            keep(now.brought, places.config)
            terminal.rows(block(f"trusted: {now.brought.workspace}, content {now.brought.digest[:12]}", "good"))
        else:
            terminal.rows(block("not trusted: none of it is used", "warn"))


@trust.command()
@as_json
@everywhere
@click.pass_obj
def show(given: Given, /, json_: bool) -> None:
    """List what this workspace brings, and whether it is trusted."""
    places, now = _standing(given)
    brought = now.brought
    changes = None if now.trusted else changed(brought, TrustFile(places.config).read())
    with terminal_of(given) as terminal:
        if json_:
            facts = {"workspace": brought.workspace, "digest": brought.digest, "trusted": now.trusted, "how": now.how}
            claims = [{"kind": one.kind, "where": one.where, "text": one.text} for one in brought.claims]
            terminal.record(json_of([{**facts, "claims": claims, "files": dict(brought.hashes)}]))
            return
        listed = () if brought.nothing else brought_block(brought, changes).lines
        damage = (Line(now.damage, "bad"),) if now.damage else ()
        status = Line(_status(now), "good" if now.trusted else "warn")
        terminal.rows(Block((*listed, *damage, status)))


@trust.command("list")
@as_json
@everywhere
@click.pass_obj
def list_(given: Given, /, json_: bool) -> None:
    """List the workspaces that you trusted, each content with its time."""
    kept = TrustFile(find_places(given.workspace, writable=False).config).read()
    rows = [{"workspace": one.workspace, "digest": one.digest, "at": one.at} for one in kept.decisions]
    with terminal_of(given) as terminal:
        if kept.damage:
            terminal.terminal_print(block(f"{kept.damage}: nothing is trusted by it", "bad"))
        if json_:
            terminal.record(json_of(rows))
            return
        lines = [
            Line(f"{datetime.fromtimestamp(one.at):%Y-%m-%d %H:%M}  {one.digest[:12]}  {shown(one.workspace)}")  # noqa: DTZ006
            for one in kept.decisions
        ]
        terminal.rows(Block(tuple(lines) or (Line("no workspace is trusted", "dim"),)))


@trust.command()
@click.argument("workspaces", nargs=-1, type=click.Path(path_type=Path))
@everywhere
@click.pass_obj
def revoke(given: Given, /, workspaces: Sequence[Path]) -> None:
    """Take the trust in WORKSPACES back (this one, if none is named)."""
    refuse_tools("Changing whom you trust")
    file = TrustFile(find_places(given.workspace, writable=False).config)
    with terminal_of(given) as terminal:
        for path in workspaces or (given.workspace,):
            real = str(path.resolve())
            gone = file.revoke(real)
            words = f"not trusted any more: {real}" if gone else f"was not trusted: {real}"
            terminal.rows(block(words, "good" if gone else "dim"))


def _standing(given: Given) -> tuple[Places, Trust]:
    places = find_places(given.workspace, writable=False)
    return places, standing(places.workspace, places.config)


def _status(now: Trust) -> str:
    if now.how == "nothing":
        return "this workspace brings nothing that would have to be trusted"
    digest = now.brought.digest[:12]
    return f"trusted: content {digest}" if now.trusted else f"not trusted, so not used: content {digest}"

"""`rehearse`, `demo`, `doctor`, `settings`: what stands around sessions."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import anyio
import click

from callboard.assembly import Places, damage_told, find_places, open_store
from callboard.compatibility import told
from callboard.core.trust.claims import shown
from callboard.faces.cli.options import Given, as_json, everywhere, refuse_tools, with_plugins
from callboard.faces.cli.run import terminal_of
from callboard.faces.doctor import Finding, examine_folder, examine_machine, examine_sandbox, exit_code, findings_block
from callboard.faces.doctor_servers import examine_servers
from callboard.faces.pages.listings import as_json as json_of
from callboard.faces.pages.listings import table
from callboard.faces.terminal import block
from callboard.settings import load_settings
from callboard.trusting import Trust, standing
from callboard.words.errors import CallboardError


@click.group()
def rehearse() -> None:
    """Play a model service from a scenario file."""


@rehearse.command()
@click.argument("scenario", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(0, 65_535), default=0, help="Any free one, if none is given.")
@click.option(
    "--state", type=click.Path(dir_okay=False, path_type=Path), help="Keep what was played, and go on from it."
)
@click.option("--log", type=click.Path(dir_okay=False, path_type=Path), help="Append a line of JSON for each request.")
@click.option("--chaos", metavar="SEED", help="Draw faults from this seed.")
@everywhere
@click.pass_obj
def serve(given: Given, /, scenario: Path, **kept: Any) -> None:
    """Serve SCENARIO as a model service over HTTP until Ctrl-C. Prints `listening on URL`."""
    # The emulator is a program of its own: this process becomes it, so that signals and the port are its own affair.
    options = [part for name, value in kept.items() if value is not None for part in (f"--{name}", str(value))]
    program = [sys.executable, "-m", "callboard.adapters.rehearsal", str(scenario), *options]
    os.execv(sys.executable, program)  # noqa: S606  no shell, and our own interpreter


@click.command()
@click.option("-y", "--yes", is_flag=True, help="Approve the plan without asking.")
@click.option("--keep", is_flag=True, help="Keep the sample project and say where it is.")
@click.option("--record", type=click.Path(dir_okay=False, path_type=Path), help="Record the session to this cassette.")
@click.option("--resume", type=click.Path(file_okay=False, path_type=Path), help="Go on with a demo that was cut off.")
@everywhere
@click.pass_obj
def demo(given: Given, /, **asked: Any) -> int:
    """Watch a team mend a sample project; no key, no network.

    A lead and its team mend a small Python package: a plan to approve, real edits, real tests, a schedule that fires.
    """
    if asked["yes"]:
        refuse_tools("--yes")
    play = importlib.import_module("callboard.faces.demo")
    with terminal_of(given) as terminal:
        return play.main(terminal, **asked)


@click.command()
@click.option(
    "--compat", is_flag=True, help="Say of each file, field and rule that people bring whether it is honoured."
)
@click.option("--trust", is_flag=True, help="With --compat: as if this workspace were trusted.")
@with_plugins
@as_json
@everywhere
@click.pass_obj
def doctor(given: Given, /, *, json_: bool, compat: bool, trust: bool, plugins: tuple[Path, ...]) -> int:
    """Say what is found, what is missing and what to do.

    Exit code 3 when something must be mended first.
    """
    if compat:
        return _tell_compatible(given, json_=json_, trust=trust, plugins=plugins)
    findings = _examine(given.workspace)
    with terminal_of(given) as terminal:
        if json_:
            terminal.record(json_of(findings))
        else:
            terminal.rows(findings_block(findings))
    return exit_code(findings)


def _tell_compatible(given: Given, *, json_: bool, trust: bool, plugins: tuple[Path, ...]) -> int:
    rows = told(find_places(given.workspace, writable=False), plugins, trust=trust)
    with terminal_of(given) as terminal:
        if json_:
            terminal.record(json_of(rows))
        elif not rows:
            terminal.rows(
                block("there is no file of agents, skills, commands, hooks, servers or settings but ours", "dim")
            )
        for one in () if json_ else rows:
            what = f"{shown(one.where)}{': ' if one.field else ''}{shown(one.field)}"
            terminal.rows(block(f"{one.verdict:<8}  {what}{': ' if one.why else ''}{shown(one.why)}"))
    return 0


@click.command()
@as_json
@click.option("--trust", is_flag=True, help="As they are when this workspace is trusted.")
@everywhere
@click.pass_obj
def settings(given: Given, /, json_: bool, trust: bool) -> None:
    """Show each setting and where it came from.

    Of a workspace that nobody trusted, only what tightens counts.
    """
    places = find_places(given.workspace, writable=False)
    now = standing(places.workspace, places.config)
    trusted = trust or now.trusted
    loaded = load_settings(os.environ, workspace=places.workspace, trusted=trusted, brought=now.brought)
    rows = [(name, json.dumps(value), origin) for name, value, origin in loaded.explained()]
    with terminal_of(given) as terminal:
        if json_:
            told = [{"name": name, "value": json.loads(value), "origin": origin} for name, value, origin in rows]
            terminal.record(json_of(told))
        else:
            terminal.rows(table(["SETTING", "VALUE", "FROM"], rows, "no settings"))


def _examine(workspace: Path) -> list[Finding]:
    """The workspace, the machine, folders and settings, each looked at though the one before was not well."""
    try:
        places = find_places(workspace)
    except CallboardError as error:
        return [Finding("workspace", "broken", str(error))]
    findings = [
        Finding("workspace", "found", str(places.workspace)),
        *examine_machine(os.environ, places.workspace),
        examine_folder("state", places.state, "set XDG_STATE_HOME to a folder that you can write"),
        examine_folder("data", places.data, "set XDG_DATA_HOME to a folder that you can write"),
    ]
    if (places.state / "callboard.db").exists() or any(places.state.glob("callboard.db.damaged-*")):
        findings.append(anyio.run(_examine_store, places))
    now = standing(places.workspace, places.config)
    findings.append(_examine_trust(now))
    try:
        loaded = load_settings(os.environ, workspace=places.workspace, trusted=now.trusted, brought=now.brought)
    except CallboardError as error:
        return [*findings, Finding("settings", "broken", str(error))]
    findings.append(Finding("settings", "found", f"model {loaded.settings.model}"))
    servers = examine_servers(places.workspace, os.environ)
    return [*findings, examine_sandbox(loaded, places.workspace, os.environ), *servers]


def _examine_trust(now: Trust) -> Finding:
    """Whether what the workspace brings is used."""
    if now.damage:
        return Finding("trust", "damaged", now.damage, "`callboard trust` decides anew")
    if now.how == "nothing":
        return Finding("trust", "found", "the workspace brings nothing that would have to be trusted")
    if now.trusted:
        return Finding("trust", "found", f"content {now.brought.digest[:12]} is trusted")
    return Finding("trust", "found", "what the workspace brings is not trusted, so not used", "`callboard trust`")


async def _examine_store(places: Places) -> Finding:
    """Whether the workspace's store can be read, and what it has set aside."""
    try:
        store = await open_store(places, "full")
    except CallboardError as error:
        return Finding("store", "broken", str(error), "docs/store.md tells what each of these means")
    damage = damage_told(store)
    await store.aclose()
    if not damage:
        return Finding("store", "found", "sound")
    return Finding("store", "damaged", f"{len(damage)} set aside, the rest is read as before", " -> ".join(damage))

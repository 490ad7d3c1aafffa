"""`rehearse`, `demo`, `doctor`, `settings`: commands outside sessions."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import anyio
import click

from callboard.adapters.system.clock import SystemClock
from callboard.cli.commands.doctor import (
    Finding,
    examine_folder,
    examine_machine,
    examine_sandbox,
    examine_servers,
    exit_code,
    findings_block,
)
from callboard.cli.commands.options import Invocation, as_json, everywhere, refuse_tools, with_plugins
from callboard.cli.commands.output import notice_of, terminal_of
from callboard.cli.terminal.terminal import block
from callboard.cli.views.listings import as_json as json_of
from callboard.cli.views.listings import table
from callboard.cli.views.rate import RESET, in_force, rate_words
from callboard.config.settings import load_settings
from callboard.config.trust import Trust, standing
from callboard.core.trust.claims import printable
from callboard.engine.commands import stored_sessions
from callboard.engine.rate_limits.limiter import rates_of
from callboard.sessions.compose import Notice, WorkspacePaths, damage_told, find_places, open_store
from callboard.sessions.inspect.compat_report import compat_reports
from callboard.sessions.inspect.health import troubles
from callboard.types.errors import CallboardError
from callboard.types.rate_limits import RateNotice


@click.group()
def rehearse() -> None:
    """Play a model service from a scenario file."""


@rehearse.command()
@click.argument("scenario", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(0, 65_535), default=0, help="Port; default: any free one.")
@click.option(
    "--state",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep the position in this file and continue from it.",
)
@click.option("--log", type=click.Path(dir_okay=False, path_type=Path), help="Append a line of JSON for each request.")
@click.option("--chaos", metavar="SEED", help="Inject random faults, drawn from this seed.")
@everywhere
@click.pass_obj
def serve(invocation: Invocation, /, scenario: Path, **values: Any) -> None:
    """Serve SCENARIO as a model service over HTTP until Ctrl-C. Prints `listening on URL`."""
    # The emulator is a program of its own: this process becomes it, so that signals and the port are its own affair.
    options = [part for name, value in values.items() if value is not None for part in (f"--{name}", str(value))]
    # -P: a package of the same name in the current folder is not taken for ours.
    program = [sys.executable, "-P", "-m", "callboard.adapters.models.rehearsal", str(scenario), *options]
    os.execv(sys.executable, program)  # noqa: S606  no shell, and our own interpreter


@click.command()
@click.option("-y", "--yes", is_flag=True, help="Approve the plan without asking.")
@click.option("--keep", is_flag=True, help="Keep the sample project and print its folder.")
@click.option("--record", type=click.Path(dir_okay=False, path_type=Path), help="Record the session to this cassette.")
@click.option("--resume", type=click.Path(file_okay=False, path_type=Path), help="Continue an interrupted demo.")
@everywhere
@click.pass_obj
def demo(invocation: Invocation, /, **values: Any) -> int:
    """Watch a team fix a sample project; no key, no network.

    A lead and its team fix a small Python package: a plan to approve, real edits, real tests, a schedule that fires.
    """
    if values["yes"]:
        refuse_tools("--yes")
    play = importlib.import_module("callboard.cli.commands.demo")
    with terminal_of(invocation) as terminal:
        return play.main(terminal, **values)


@click.command()
@click.option("--compat", is_flag=True, help="List each imported file, field and rule, and whether it is honored.")
@click.option("--trust", is_flag=True, help="With --compat: act as if this workspace were trusted.")
@with_plugins
@as_json
@everywhere
@click.pass_obj
def doctor(invocation: Invocation, /, *, json_: bool, compat: bool, trust: bool, plugins: tuple[Path, ...]) -> int:
    """Check the machine: what is found, what is missing, and what to do.

    Exit code 3 if something must be fixed first.
    """
    if compat:
        return _tell_compatible(invocation, json_=json_, trust=trust, plugins=plugins)
    findings = _examine(invocation.workspace, notice_of(invocation))
    with terminal_of(invocation) as terminal:
        if json_:
            terminal.record(json_of(findings))
        else:
            terminal.rows(findings_block(findings))
    return exit_code(findings)


def _tell_compatible(invocation: Invocation, *, json_: bool, trust: bool, plugins: tuple[Path, ...]) -> int:
    rows = compat_reports(find_places(invocation.workspace, writable=False), plugins, trust=trust)
    with terminal_of(invocation) as terminal:
        if json_:
            terminal.record(json_of(rows))
        elif not rows:
            terminal.rows(
                block("there is no file of agents, skills, commands, hooks, servers or settings but ours", "dim")
            )
        for row in () if json_ else rows:
            subject = f"{printable(row.where)}{': ' if row.field else ''}{printable(row.field)}"
            terminal.rows(block(f"{row.verdict:<8}  {subject}{': ' if row.why else ''}{printable(row.why)}"))
    return 0


@click.command()
@as_json
@click.option("--trust", is_flag=True, help="Show the result for a trusted workspace.")
@click.option("--all", "all_", is_flag=True, help="Also show settings with built-in values, and all models.")
@everywhere
@click.pass_obj
def settings(invocation: Invocation, /, *, json_: bool, trust: bool, all_: bool) -> None:
    """Show changed settings and their origins.

    --json shows all of them. Of an untrusted workspace, only settings that tighten permissions apply.
    """
    places = find_places(invocation.workspace, writable=False)
    now = standing(places.workspace, places.config)
    trusted = trust or now.trusted
    loaded = load_settings(os.environ, workspace=places.workspace, trusted=trusted, brought=now.brought)
    rows = [(name, json.dumps(value), origin) for name, value, origin in loaded.explained()]
    with terminal_of(invocation) as terminal:
        if json_:
            records = [{"name": name, "value": json.loads(value), "origin": origin} for name, value, origin in rows]
            terminal.record(json_of(records))
        else:
            changed = [row for row in rows if all_ or row[2] not in ("default", "built in")]
            terminal.rows(table(["SETTING", "VALUE", "FROM"], changed, "every setting has its built-in value"))
            if len(changed) < len(rows):
                note = f"{len(rows) - len(changed)} settings have their built-in values: callboard settings --all"
                terminal.terminal_print(block(note, "dim", progress=True))


def _examine(workspace: Path, notice: Notice) -> list[Finding]:
    """Check the workspace, the machine, folders and settings, each even if an earlier check failed."""
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
        rates: list[RateNotice] = []
        findings += anyio.run(_examine_store, places, rates, notice)
        findings += map(_examine_rate, rates)
    now = standing(places.workspace, places.config)
    findings.append(_examine_trust(now))
    try:
        loaded = load_settings(os.environ, workspace=places.workspace, trusted=now.trusted, brought=now.brought)
    except CallboardError as error:
        return [*findings, Finding("settings", "broken", str(error))]
    findings.append(Finding("settings", "found", f"model {loaded.settings.model}"))
    servers = examine_servers(places.workspace, os.environ)
    return [*findings, examine_sandbox(loaded, places, os.environ), *servers]


def _examine_trust(now: Trust) -> Finding:
    """Check whether the content of the workspace is used."""
    if now.damage:
        return Finding("trust", "damaged", now.damage, "`callboard trust` decides again")
    if now.how == "nothing":
        return Finding("trust", "found", "the workspace brings nothing that would have to be trusted")
    if now.trusted:
        return Finding("trust", "found", f"content {now.brought.digest[:12]} is trusted")
    return Finding("trust", "found", "what the workspace brings is not trusted, so not used", "`callboard trust`")


def _examine_rate(notice: RateNotice) -> Finding:
    """Return a park or a refusal, with the way to end it."""
    return Finding("rate", "missing", rate_words(notice, SystemClock().now()), RESET)


async def _examine_store(places: WorkspacePaths, rates: list[RateNotice], notice: Notice) -> list[Finding]:
    """Check whether the workspace's store can be read, what it has set aside, and which sessions cannot continue. Its
    parks and refusals of API keys are added to `rates`."""
    try:
        store = await open_store(places, "full", notice)
    except CallboardError as error:
        return [Finding("store", "broken", str(error), "docs/store.md tells what each of these means")]
    try:
        rates[:] = in_force(await rates_of(store), SystemClock().now())
        wrong = await troubles(store, await stored_sessions(store), deep=None)
        damage = damage_told(store)
    finally:
        await store.aclose()
    sessions = [Finding("session", "newer" if trouble.newer else "damaged", str(trouble)) for trouble in wrong.values()]
    if not damage:
        return [Finding("store", "found", "sound"), *sessions]
    text = "damaged parts are set aside, everything else is read as before"
    return [Finding("store", "damaged", text, " -> ".join(damage)), *sessions]

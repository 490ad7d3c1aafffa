"""`rehearse`, `demo`, `doctor`: commands outside sessions.

`doctor` checks the machine: the requirements of Callboard, the missing ones, and the remedies. It is read-only. It
never calls the model service: it checks that a key exists, not that it works. It also checks MCP servers (a missing
program, an unset variable) without starting any.
"""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import anyio
import click

from callboard.adapters.processes.sandbox.machine import examine
from callboard.adapters.processes.tool_ancestry import refuse_inside_tool
from callboard.adapters.system.clock import SystemClock
from callboard.adapters.system.installation import this_installation
from callboard.cli.commands.options import Invocation, as_json, everywhere, refuse_idle, with_any_plugins
from callboard.cli.commands.output import notice_of, terminal_of
from callboard.cli.terminal.terminal import Block, Line, Style, block
from callboard.cli.views.listings import as_json as json_of
from callboard.cli.views.rate import RESET, in_force, rate_words
from callboard.cli.views.settings import CORRECT_FIRST
from callboard.config.other_services import other_service
from callboard.config.settings import LoadedSettings, load_settings
from callboard.config.settings_file import withheld_fault
from callboard.config.trust import Trust, stored_trust
from callboard.core.trust.claims import printable
from callboard.engine.commands import stored_sessions
from callboard.engine.rate_limits.limiter import rates_of
from callboard.sessions.inspect.compat_report import compat_reports
from callboard.sessions.inspect.health import troubles
from callboard.sessions.inspect.mcp_servers import ConfiguredServers, servers_of
from callboard.sessions.inspect.plugins import list_plugins
from callboard.sessions.notifications import desktop_command
from callboard.sessions.places import Notice, WorkspacePaths, find_places
from callboard.sessions.sandbox import choice_of, try_launcher
from callboard.sessions.stores import damage_lines, has_store, open_store, own_settings
from callboard.types.errors import CallboardError, SettingsError
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass
from callboard.types.mcp import ServerEntry
from callboard.types.rate_limits import RateNotice
from callboard.types.settings import Settings


@click.group()
def rehearse() -> None:
    """Play a model service from a scenario file."""


@rehearse.command()
@click.argument("scenario", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(0, 65_535), metavar="N", default=0, help="Port; default: any free one.")
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
    # This process becomes the emulator, which then handles its own signals and port.
    options = [part for name, value in values.items() if value is not None for part in (f"--{name}", str(value))]
    # -P: a package `callboard` in the current folder is not imported.
    program = [sys.executable, "-P", "-m", "callboard.adapters.models.rehearsal", str(scenario), *options]
    os.execv(sys.executable, program)  # noqa: S606 - no shell, and the same interpreter


@click.command()
@click.option("-y", "--yes", is_flag=True, help="Approve the plan without asking.")
@click.option("--keep", is_flag=True, help="Keep the sample project and print its folder.")
@click.option("--record", type=click.Path(dir_okay=False, path_type=Path), help="Record the session to this cassette.")
@click.option("--resume", type=click.Path(file_okay=False, path_type=Path), help="Continue an interrupted demo.")
@click.option("--web", is_flag=True, help="Open the web page of the demo in your browser.")
@everywhere
@click.pass_obj
def demo(invocation: Invocation, /, **values: Any) -> int:
    """Watch a team fix a sample project; no key, no network.

    A lead and its team fix a small Python package: a plan to approve, real edits, real tests, a schedule that fires.
    """
    if values["yes"]:
        refuse_inside_tool("--yes")
    play = importlib.import_module("callboard.cli.commands.demo")
    with terminal_of(invocation) as terminal:
        return play.main(terminal, **values)


@click.command()
@click.option("--compat", is_flag=True, help="List each imported file, field and rule, and whether it is honored.")
@click.option("--trust", is_flag=True, help="With --compat: act as if this workspace were trusted.")
@with_any_plugins
@as_json
@everywhere
@click.pass_obj
def doctor(invocation: Invocation, /, *, json_: bool, compat: bool, trust: bool, plugins: tuple[Path, ...]) -> int:
    """Check the machine: what is found, what is missing, and what to do.

    Exit code 3 if something must be fixed first.
    """
    if compat:
        return _print_compatible(invocation, json_=json_, trust=trust, plugins=plugins)
    refuse_idle(("trust", "plugins"), "without --compat")
    findings = _examine(invocation.workspace, notice_of(invocation))
    with terminal_of(invocation) as terminal:
        if json_:
            terminal.record(json_of(findings))
        else:
            terminal.rows(findings_block(findings))
    return exit_code(findings)


def _print_compatible(invocation: Invocation, *, json_: bool, trust: bool, plugins: tuple[Path, ...]) -> int:
    rows = compat_reports(find_places(invocation.workspace, writable=False), plugins, trust=trust)
    with terminal_of(invocation) as terminal:
        if json_:
            terminal.record(json_of(rows))
        elif not rows:
            terminal.rows(
                block("no agents, skills, commands, hooks, servers or settings except the bundled ones", "dim")
            )
        for row in () if json_ else rows:
            subject = f"{printable(row.where)}{': ' if row.field else ''}{printable(row.field)}"
            terminal.rows(block(f"{row.verdict:<8}  {subject}{': ' if row.why else ''}{printable(row.why)}"))
    return 0


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
    try:
        settings = own_settings()
    except CallboardError:
        settings = Settings()  # the check of the settings reports it
    if has_store(places, settings) or any(places.state.glob("callboard.db.damaged-*")):
        rates: list[RateNotice] = []
        findings += anyio.run(partial(_examine_store, places, settings, rates, notice=notice))
        findings += map(_examine_rate, rates)
    now = stored_trust(places.workspace, places.config)
    findings.append(_examine_trust(now))
    try:
        loaded = load_settings(
            os.environ, workspace=places.workspace, trusted=now.trusted, workspace_claims=now.workspace_claims
        )
    except CallboardError as error:
        return [*findings, Finding("settings", "broken", str(error))]
    findings.append(Finding("settings", "found", f"model {loaded.settings.model}"))
    if not now.trusted and (fault := withheld_fault(now)):
        findings.append(Finding("settings", "damaged", fault, CORRECT_FIRST))
    if (other := other_service(loaded.environment)) is not None:
        findings.append(Finding("service", "missing", f"Callboard cannot call {other.name}", other.missing))
    targets = loaded.settings.notify.targets
    if any(target.kind == "desktop" for target in targets) and desktop_command(str(places.workspace)) is None:
        findings.append(Finding("notify", "missing", "no program shows notifications here", "install notify-send"))
    servers = examine_servers(places.workspace, os.environ)
    plugins = examine_plugins(places.workspace)
    return [*findings, examine_sandbox(loaded, places, os.environ), *plugins, *servers]


def _examine_trust(now: Trust) -> Finding:
    """Check whether the content of the workspace is used."""
    if now.damage:
        return Finding("trust", "damaged", now.damage, "`callboard trust` asks again")
    if now.how == "nothing":
        return Finding("trust", "found", "the workspace has no content that needs trust")
    if now.trusted:
        return Finding("trust", "found", f"content {now.workspace_claims.digest[:12]} is trusted")
    return Finding("trust", "found", "the content of the workspace is not trusted", "`callboard trust`")


def _examine_rate(notice: RateNotice) -> Finding:
    """Return a finding for a park or a refusal, with the way to end it."""
    return Finding("rate", "missing", rate_words(notice, SystemClock().now()), RESET)


async def _examine_store(
    places: WorkspacePaths, settings: Settings, rates: list[RateNotice], *, notice: Notice
) -> list[Finding]:
    """Check whether the workspace's store can be read.

    List its damaged parts and the sessions that cannot continue. Its parks and refusals of API keys are added to
    `rates`.
    """
    try:
        store = await open_store(places, settings, notice)
    except CallboardError as error:
        return [Finding("store", "broken", str(error), "docs/store.md explains each of these")]
    try:
        rates[:] = in_force(await rates_of(store), SystemClock().now())
        wrong = await troubles(store, await stored_sessions(store), deep=None)
        damage = damage_lines(store)
    finally:
        await store.aclose()
    sessions = [Finding("session", "newer" if trouble.newer else "damaged", str(trouble)) for trouble in wrong.values()]
    if not damage:
        return [Finding("store", "found", "sound"), *sessions]
    text = "damaged parts are set aside, everything else is read as before"
    return [Finding("store", "damaged", text, " -> ".join(damage)), *sessions]


State = Literal["found", "missing", "newer", "damaged", "broken"]
"""`missing`: Callboard works without it, less well. `newer`: an upgraded Callboard reads it. `damaged`: it
works with what is left. `broken`: it does not work
before this is fixed."""

_STYLES: Mapping[State, Style] = {
    "found": "good",
    "missing": "warn",
    "newer": "warn",
    "damaged": "bad",
    "broken": "bad",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check. `advice`: the remedy if it fails."""

    what: str
    state: State
    detail: str
    advice: str = ""


def findings_block(findings: Sequence[Finding]) -> Block:
    """Return one line for each finding, with its advice below."""
    width = max(len(finding.what) for finding in findings)
    lines: list[Line] = []
    for finding in findings:
        lines.append(
            Line(f"{finding.state:<8} {finding.what:<{width}}  {finding.detail}".rstrip(), _STYLES[finding.state])
        )
        if finding.state != "found" and finding.advice:
            lines.append(Line(f"{'':<8} {'':<{width}}  -> {finding.advice}"))
    return Block(tuple(lines))


def exit_code(findings: Sequence[Finding]) -> int:
    """Return 3 if something must be fixed first, otherwise 0."""
    return 3 if any(finding.state == "broken" for finding in findings) else 0


def examine_machine(environ: Mapping[str, str], workspace: Path) -> Iterator[Finding]:
    """Check programs, credentials, terminal. Programs are searched only outside the workspace."""
    installation = this_installation()
    yield Finding("callboard", "found", f"{installation.version}, installed {installation.how}")
    version = platform.python_version()
    fits: State = "found" if sys.version_info >= (3, 11) else "broken"
    yield Finding("python", fits, version, "Python 3.11 or newer is needed")
    yield from examine_system(sys.platform)
    for name, state, advice in _PROGRAMS:
        yield _program(name, otherwise=state, advice=advice, environ=environ, workspace=workspace)
    yield _key(environ)
    yield _terminal(environ)


def examine_system(system: str) -> Iterator[Finding]:
    """Yield a finding that names what is missing on this system (`sys.platform`); none on Linux."""
    if system.startswith("linux"):
        return
    missing = "a process that leaves a command's session outlives it; docs/macos.md lists what else is missing"
    if system == "darwin":
        yield Finding("system", "missing", "macOS: Callboard is written for it, and has not been tested on it", missing)
    else:
        yield Finding("system", "missing", f"{system}: Callboard is written for Linux and macOS", missing)


def examine_folder(subject: str, folder: Path, advice: str) -> Finding:
    """Check whether Callboard can write into a folder, or create it."""
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return Finding(subject, "broken", f"{folder} cannot be written", advice)
    free = shutil.disk_usage(existing).free
    if free < _ENOUGH:
        return Finding(subject, "broken", f"{folder}: {free // 2**20} MB are free", "free some room on that disk")
    return Finding(subject, "found", str(folder))


_ENOUGH = 50 * 2**20
_PROGRAMS: Sequence[tuple[str, State, str]] = (
    ("git", "broken", "install git: worktrees and the demo need it"),
    ("bash", "broken", "install bash: the shell tool runs commands in it"),
    ("rg", "missing", "install ripgrep: it searches large trees faster"),
)
_KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")


def _program(name: str, *, otherwise: State, advice: str, environ: Mapping[str, str], workspace: Path) -> Finding:
    path = _find_program(name, environ, workspace)
    if path is None:
        return Finding(name, otherwise, "not on PATH", advice)
    try:
        ran = subprocess.run(
            [path, "--version"],
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
            stdin=subprocess.DEVNULL,
            cwd="/",
        )
    except (OSError, subprocess.TimeoutExpired) as failed:
        return Finding(name, otherwise, f"{path} does not run: {failed}", advice)
    return Finding(name, "found", (ran.stdout or ran.stderr).partition("\n")[0].strip()[:80])


def _find_program(name: str, environ: Mapping[str, str], workspace: Path) -> str | None:
    """Return the program's absolute path. Programs inside the workspace are not run."""
    folders = [Path(folder) for folder in environ.get("PATH", os.defpath).split(os.pathsep)]
    outside = [
        folder
        for folder in folders
        if folder.is_absolute() and not folder.resolve().is_relative_to(workspace.resolve())
    ]
    return shutil.which(name, path=os.pathsep.join(map(str, outside)))


def _key(environ: Mapping[str, str]) -> Finding:
    named = [name for name in _KEYS if environ.get(name)]
    if named:
        return Finding("key", "found", f"{named[0]} is set (not tried)")
    advice = f"set {' or '.join(_KEYS)}; --model rehearsal:FILE and `callboard demo` need none"
    return Finding("key", "missing", "no key for the model service", advice)


def _terminal(environ: Mapping[str, str]) -> Finding:
    kind = environ.get("TERM", "")
    if not sys.stdin.isatty() or not sys.stdout.isatty():
        return Finding("terminal", "missing", "none here", "the prompt line needs one; `callboard run` does not")
    if kind in {"", "dumb"}:
        return Finding(
            "terminal", "missing", f"TERM is {kind or 'not set'}", "set TERM for colours and the prompt line"
        )
    return Finding("terminal", "found", kind)


def examine_sandbox(loaded: LoadedSettings, places: WorkspacePaths, environ: Mapping[str, str]) -> Finding:
    """Determine the sandbox level for a session with a person and its gaps, and start a command at it."""
    machine = examine(places.workspace, environ)
    try:
        choice = choice_of(loaded, machine, attended=True)
    except SettingsError as error:
        return Finding("sandbox", "broken", str(error), "docs/sandbox.md lists the requirements of each level")
    if reason := anyio.run(try_launcher, places, loaded):
        advice = "no command runs until this works; docs/sandbox.md lists the requirements of each level"
        return Finding("sandbox", "broken", f"level {choice.level}: {reason}", advice)
    alone = choice_of(loaded, machine, attended=False)
    network = "the machine's network is open" if choice.network else _NETWORK[choice.level]
    seatbelt = machine.seatbelt and choice.level
    without = "; unattended runs execute no commands" if alone.refusal else ""
    detail = f"level {choice.level}: {_SEATBELT if seatbelt else _WALLS[choice.level]}; {network}{without}"
    reason = "" if choice.level >= 2 else f"{machine.reason(2) or 'sandbox.level is set'}. "
    open_ = f"it does not stop: {_OPEN_ON_MACOS if seatbelt else _OPEN[choice.level]}"
    if choice.level >= 2:
        return Finding("sandbox", "found", f"{detail}; {open_}")
    return Finding("sandbox", "missing", detail, f"{reason}{open_[0].upper()}{open_[1:]}")


_WALLS = (
    "commands run with your rights, without your keys, and are ended with all that they start",
    "commands change their folder only and cannot read credentials (Landlock, seccomp)",
    "commands change their folder only, see no home and no other process (bubblewrap)",
    "commands change their folder only, see no home and no other process (bubblewrap)",
)
_SEATBELT = "commands change their folder only and cannot read homes and credentials (Seatbelt)"
_NETWORK = (
    "the machine's network is open",
    "no network unless a command was approved with it",
    "no network unless a command was approved with it",
    "the allowed hosts, and those that a command was approved with",
)
_OPEN = (
    "a command that was allowed from reading your files, changing them (the store with its approvals, too), using the "
    "network",
    "writes to files of the workspace that other tools run (.git/hooks, .mcp.json); changes of permission bits outside",
    "protected names in deeper folders; use of disk and processor within the limits; faults of the kernel",
    "what is sent to allowed hosts; protected names in deeper folders; use of disk and processor; faults of the kernel",
)

_OPEN_ON_MACOS = (
    "protected names in deeper folders; use of disk and processor within the limits; what is sent to allowed hosts; "
    "faults of the kernel"
)


_ADVICE: Mapping[str, str] = {
    "npx": "install Node.js: it brings npx",
    "npm": "install Node.js: it brings npm",
    "node": "install Node.js",
    "uvx": "install uv: it brings uvx",
    "uv": "install uv",
    "docker": "install docker, or another program that takes its commands",
    "bunx": "install bun: it brings bunx",
    "deno": "install deno",
}
_UNSET = late_pattern(r"the variable (\w+) is not set")


def examine_plugins(workspace: Path) -> Iterator[Finding]:
    """Yield a finding for each installed plugin that cannot be loaded, and one for the enabled ones."""
    listing = list_plugins(workspace)
    for line in listing.notes:
        yield Finding("plugins", "missing", line, "`callboard plugin list` shows all of them")
    loaded = [plugin.name for plugin, content in listing.plugins if plugin.enabled and content is not None]
    if loaded:
        yield Finding("plugins", "found", ", ".join(loaded))


def examine_servers(workspace: Path, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a finding for each server that cannot work, and one for the others; none if no server is configured."""
    try:
        servers = servers_of(workspace)
    except CallboardError as error:
        yield Finding("servers", "missing", str(error), "fix the file that it names")
        return
    refused = [str(note) for note in servers.configured.notes if note.verdict == "refused"]
    for line in refused:
        yield Finding("servers", "missing", line, "docs/mcp.md lists the fields of an entry")
    well: list[str] = []
    for entry in servers.configured.entries:
        finding = _server_finding(entry, servers, environ)
        if finding is None:
            well.append(entry.name)
        else:
            yield finding
    if well:
        text = f"{', '.join(well)} (not connected; `callboard mcp list --check` does)"
        yield Finding("servers", "found", text)


def _server_finding(entry: ServerEntry, servers: ConfiguredServers, environ: Mapping[str, str]) -> Finding | None:
    """Return the finding for a server; None if no problem is visible."""
    state, reason = servers.state_of(entry.name)
    subject = f"server {entry.name}"
    if state == "untrusted":
        return Finding(
            subject, "missing", f"untrusted: it comes from {entry.path}", "`callboard trust` shows it and asks"
        )
    if state == "off":
        return Finding(subject, "found", f"off: {reason}")
    if entry.transport == "stdio" and not _is_program(entry.command, servers.places.workspace, environ):
        name = os.path.basename(entry.command)  # noqa: PTH119 - text from a file, which may not be a path
        advice = _ADVICE.get(name, f"install it, or write its whole path in {entry.path}")
        return Finding(subject, "missing", f"its program {entry.command!r} was not found", advice)
    unset = _unset(entry.name, servers)
    if unset:
        return Finding(subject, "missing", f"{', '.join(unset)} not set", f"set what {entry.path} takes by ${{...}}")
    return None


def _is_program(command: str, workspace: Path, environ: Mapping[str, str]) -> bool:
    if "/" in command:
        return os.access(workspace / Path(command).expanduser(), os.X_OK)
    return shutil.which(command, path=environ.get("PATH", os.defpath)) is not None


def _unset(name: str, servers: ConfiguredServers) -> list[str]:
    """Return the unset variables in its entry, from its notes."""
    at = f"mcpServers.{name}"
    matches = [_UNSET.search(note.reason) for note in servers.configured.notes if note.field == at]
    return [match[1] for match in matches if match is not None]

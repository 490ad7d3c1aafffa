"""`service install|uninstall|status|print`: `callboard serve` of a workspace as a service of systemd or launchd.

The command writes the unit and prints the commands that enable and start it, but runs none of them.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import anyio
import click

from callboard.adapters.processes.launchd import LaunchAgent
from callboard.adapters.processes.systemd import (
    SystemdUnit,
    callboard_command,
    is_own_unit,
    remove_unit,
    write_unit,
)
from callboard.adapters.processes.tool_ancestry import refuse_inside_tool
from callboard.cli.commands.options import Invocation, as_json, everywhere
from callboard.cli.commands.output import notice_of, terminal_of
from callboard.cli.terminal.terminal import block
from callboard.sessions.places import find_places
from callboard.sessions.serve import serving_pids
from callboard.types.records import Json


@click.group()
def service() -> None:
    """Run `callboard serve` as a service of systemd or launchd."""


@service.command()
@click.option("--trust", is_flag=True, help="Run `callboard serve` with --trust.")
@everywhere
@click.pass_obj
def install(invocation: Invocation, /, trust: bool) -> None:
    """Write the unit of systemd or launchd for this workspace, and show how to start it.

    A unit that callboard did not write is left alone. The unit contains no key: put the key into the file that the
    output names, which only you can read.
    """
    refuse_inside_tool("Installing a service")
    unit = _unit(invocation, os.environ, trust=trust)
    file = unit.file()
    written = write_unit(file, unit.text())
    reloaded = unit.reload()
    lines = [f"{file} {'is written' if written else 'is up to date'}"]
    if reloaded is None:
        lines.append("there is no systemctl here: copy the file to a machine that has it, or run `callboard serve`")
    elif reloaded[0] != 0:
        lines.append(f"systemctl failed ({reloaded[1]}): run `systemctl --user daemon-reload` yourself")
    lines += [
        "",
        *unit.guide(),
        "",
        "it needs the key of the model service, which a service does not inherit. Once, in your editor:",
        f"  install -m 600 /dev/null {shlex.quote(str(unit.secrets))}",
        f"  and write into it: ANTHROPIC_API_KEY=… (mode 0600: only you may read {unit.secrets.name})",
    ]
    with terminal_of(invocation) as terminal:
        terminal.rows(block("\n".join(lines)))


@service.command()
@everywhere
@click.pass_obj
def uninstall(invocation: Invocation, /) -> None:
    """Stop the service of this workspace and remove its unit. The file with the key is kept."""
    refuse_inside_tool("Removing a service")
    unit = _unit(invocation, os.environ)
    file = unit.file()
    owned = file.exists() and not file.is_symlink() and is_own_unit(file)
    stopped = unit.stop() if owned else None
    removed = remove_unit(file)
    lines = [f"{file} is removed" if removed else f"there is no {file}"]
    if stopped is not None and stopped[0] != 0:
        lines.append(f"it was not stopped ({stopped[1]}): `callboard service status` shows its state")
    if removed:
        unit.reload()
    with terminal_of(invocation) as terminal:
        terminal.rows(block("\n".join(lines)))


@service.command()
@as_json
@everywhere
@click.pass_obj
def status(invocation: Invocation, /, json_: bool) -> None:
    """Show whether a service is installed for this workspace, and which process serves it now."""
    unit = _unit(invocation, os.environ)
    file = unit.file()
    installed = file.exists()
    pids = anyio.run(serving_pids, invocation.workspace, notice_of(invocation))
    state: Json = {
        "unit": str(file),
        "installed": installed,
        "ours": installed and is_own_unit(file),
        "changed": installed and file.read_text(encoding="utf-8", errors="replace") != unit.text(),
        **unit.states(),
        "key_file": unit.secrets.exists(),
        "serving": pids,
    }
    with terminal_of(invocation) as terminal:
        if json_:
            terminal.record(json.dumps(state, indent=2))
        else:
            terminal.rows(block("\n".join(_status_lines(state))))


@service.command("print")
@click.option("--trust", is_flag=True, help="Run `callboard serve` with --trust.")
@everywhere
@click.pass_obj
def print_(invocation: Invocation, /, trust: bool) -> None:
    """Print the unit without writing it."""
    with terminal_of(invocation) as terminal:
        terminal.result(_unit(invocation, os.environ, trust=trust).text().rstrip("\n"))


def _unit(invocation: Invocation, environ: Mapping[str, str], *, trust: bool = False) -> SystemdUnit | LaunchAgent:
    """Return the unit for the service manager of this system."""
    places = find_places(invocation.workspace, writable=False)
    name = f"callboard-{places.state.name}"
    rest = (places.workspace, callboard_command(), places.config / "service.env", environ, trust)
    if sys.platform == "darwin":
        return LaunchAgent(name, *rest, home=Path.home())
    return SystemdUnit(f"{name}.service", *rest)


def _status_lines(state: Json) -> list[str]:
    pids = state["serving"]
    if state["installed"]:
        first = f"{state['unit']} is installed"
        first += "" if state["ours"] else ", not by callboard"
        if state["ours"] and state["changed"]:
            first += "; `callboard service install` would change it"
    else:
        first = "no service is installed for this workspace: `callboard service install`"
    states = [f"{name}: {state[name]}" for name in ("enabled", "active", "linger") if state[name] is not None]
    manager, program = ("launchd", "launchctl") if sys.platform == "darwin" else ("systemd", "systemctl")
    said = f"{manager} says {', '.join(states)}" if states else f"there is no {program} here"
    served = f"callboard serve runs: process {', '.join(map(str, pids))}" if pids else ""
    return [first, said, served or "no `callboard serve` runs for this workspace"]

"""`service install|uninstall|status|print`: `callboard serve` of a workspace as a service of the user's systemd.

The command writes the unit and prints the commands that enable and start it, but runs none of them.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping

import anyio
import click
import platformdirs

from callboard.adapters.processes.systemd import (
    SystemdUnit,
    callboard_command,
    is_own_unit,
    remove_unit,
    run_tool,
    systemctl,
    unit_file,
    write_unit,
)
from callboard.cli.commands.options import Invocation, as_json, everywhere, refuse_tools
from callboard.cli.commands.output import notice_of, terminal_of
from callboard.cli.terminal.terminal import block
from callboard.sessions.compose import find_places
from callboard.sessions.serve import serving_pids
from callboard.types.records import Json


@click.group()
def service() -> None:
    """Run `callboard serve` as a systemd service."""


@service.command()
@click.option("--trust", is_flag=True, help="Run `callboard serve` with --trust.")
@everywhere
@click.pass_obj
def install(invocation: Invocation, /, trust: bool) -> None:
    """Write the systemd unit for this workspace, and show how to start it.

    A unit that callboard did not write is left alone. The unit contains no key: put the key into the file that the
    output names, which only you can read.
    """
    refuse_tools("Installing a service")
    unit = _unit(invocation, os.environ, trust=trust)
    file = unit_file(platformdirs.user_config_path(), unit.name)
    written = write_unit(file, unit.text())
    reloaded = systemctl("daemon-reload")
    lines = [f"{file} {'is written' if written else 'is up to date'}"]
    if reloaded is None:
        lines.append("there is no systemctl here: copy the file to a machine that has it, or run `callboard serve`")
    elif reloaded[0] != 0:
        lines.append(f"systemctl failed ({reloaded[1]}): run `systemctl --user daemon-reload` yourself")
    lines += [
        "",
        f"start it now and at each login:  systemctl --user enable --now {unit.name}",
        "also while you are logged out:   loginctl enable-linger",
        f"its log:                         journalctl --user -u {unit.name} -f",
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
    refuse_tools("Removing a service")
    unit = _unit(invocation, os.environ)
    file = unit_file(platformdirs.user_config_path(), unit.name)
    owned = file.exists() and not file.is_symlink() and is_own_unit(file)
    stopped = systemctl("disable", "--now", unit.name) if owned else None
    removed = remove_unit(file)
    lines = [f"{file} is removed" if removed else f"there is no {file}"]
    if stopped is not None and stopped[0] != 0:
        lines.append(f"systemctl did not stop it ({stopped[1]}): see `systemctl --user status {unit.name}`")
    if removed:
        systemctl("daemon-reload")
    with terminal_of(invocation) as terminal:
        terminal.rows(block("\n".join(lines)))


@service.command()
@as_json
@everywhere
@click.pass_obj
def status(invocation: Invocation, /, json_: bool) -> None:
    """Show whether a service is installed for this workspace, and which process serves it now."""
    unit = _unit(invocation, os.environ)
    file = unit_file(platformdirs.user_config_path(), unit.name)
    installed = file.exists()
    pids = anyio.run(serving_pids, invocation.workspace, notice_of(invocation))
    enabled = systemctl("is-enabled", unit.name)
    active = systemctl("is-active", unit.name)
    linger = run_tool(["loginctl", "show-user", "--property=Linger", "--value", str(os.getuid())])
    state: Json = {
        "unit": str(file),
        "installed": installed,
        "ours": installed and is_own_unit(file),
        "changed": installed and file.read_text(encoding="utf-8", errors="replace") != unit.text(),
        "enabled": enabled[1] if enabled else None,
        "active": active[1] if active else None,
        "linger": linger[1] if linger else None,
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


def _unit(invocation: Invocation, environ: Mapping[str, str], *, trust: bool = False) -> SystemdUnit:
    places = find_places(invocation.workspace, writable=False)
    return SystemdUnit(
        f"callboard-{places.state.name}.service",
        places.workspace,
        callboard_command(),
        places.config / "service.env",
        environ,
        trust,
    )


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
    systemd = f"systemd says {', '.join(states)}" if states else "there is no systemctl here"
    served = f"callboard serve runs: process {', '.join(map(str, pids))}" if pids else ""
    return [first, systemd, served or "no `callboard serve` runs for this workspace"]

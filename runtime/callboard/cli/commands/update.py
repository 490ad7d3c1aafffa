"""`update`: the installed version, how it was installed, and the command that updates it."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import anyio
import click

from callboard.adapters.processes.programs import find_program
from callboard.adapters.processes.tool_ancestry import refuse_inside_tool
from callboard.adapters.system.installation import Installation, this_installation
from callboard.adapters.system.release import OURS, version_in
from callboard.cli.commands.options import Invocation, as_json, everywhere
from callboard.cli.commands.output import terminal_of
from callboard.cli.terminal.keyboard import Keyboard, person_is_there
from callboard.cli.terminal.terminal import Block, Line, block
from callboard.core.trust.claims import printable
from callboard.types.errors import UsageError

_QUESTION = "Run it now? [y/N] "


@click.command()
@click.option("--run", "run_", is_flag=True, help="Run the command without asking.")
@as_json
@everywhere
@click.pass_obj
def update(invocation: Invocation, /, *, run_: bool, json_: bool) -> int:
    """Show how Callboard was installed, and the command that updates it.

    At a terminal it asks whether to run the command; --run runs it without asking. Its output is shown, and its exit
    code is that of callboard. Callboard itself contacts no one. A checkout is updated by you.
    """
    installation = this_installation()
    if run_:
        refuse_inside_tool("Updating Callboard")
        if not installation.command:
            raise UsageError(f"installed {installation.how}: {installation.advice}")
    page = _page(installation)
    asked = not (run_ or json_) and bool(installation.command) and person_is_there() and sys.stdout.isatty()
    with terminal_of(invocation) as terminal:
        if json_:
            terminal.record(json.dumps(asdict(installation), indent=2))
        elif not asked:
            terminal.rows(page)
        else:
            refuse_inside_tool("Updating Callboard")
            run_ = anyio.run(Keyboard(terminal).confirm, page, _QUESTION, lambda: "not answered: not updated")
    return _run(invocation, installation) if run_ else 0


def _page(installation: Installation) -> Block:
    lines = [Line(f"callboard {installation.version}", "good"), Line(f"installed {printable(installation.how)}")]
    if installation.command:
        lines.append(Line(f"to update: {printable(shlex.join(installation.command))}"))
    if installation.advice:
        lines.append(Line(f"{'first' if installation.command else 'to update'}: {printable(installation.advice)}"))
    return Block(tuple(lines))


def _run(invocation: Invocation, installation: Installation) -> int:
    """Run the command of an installation, and return its exit code."""
    name, *arguments = installation.command
    program = name if Path(name).is_absolute() else find_program(name, invocation.workspace)
    if program is None:
        raise UsageError(f"{name} is not on PATH, so this cannot be run: {shlex.join(installation.command)}")
    # Installers read configuration from the current folder and those above it; a workspace may not direct them.
    ended = subprocess.run([program, *arguments], cwd=Path(sys.prefix), check=False).returncode
    code = ended if ended >= 0 else 128 - ended
    now = version_in(OURS.file)
    with terminal_of(invocation) as terminal:
        if code:
            terminal.terminal_print(block(f"callboard: {name} failed with exit code {code}", "bad"))
        elif now == installation.version:
            terminal.terminal_print(block(f"callboard {now} is still installed: nothing newer was found"))
        else:
            text = f"callboard {installation.version} -> {now}; sessions that run now keep the old version"
            terminal.terminal_print(block(text, "good"))
    return code

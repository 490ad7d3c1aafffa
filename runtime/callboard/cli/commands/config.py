"""`config get|set|unset|add|remove|list` and `settings`: the settings in force, and changes of Callboard's two files.

Values that look like secrets are never printed. A change is for a person: a process that an agent's tool started is
refused.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from callboard.adapters.processes.tool_ancestry import refuse_inside_tool
from callboard.cli.commands.known_names import KnownNamesGroup
from callboard.cli.commands.options import Invocation, as_json, everywhere, refuse_idle
from callboard.cli.commands.output import terminal_of
from callboard.cli.terminal.terminal import Block, Line, block
from callboard.cli.views.listings import as_json as json_of
from callboard.cli.views.settings import SettingChange, SettingsEditor

_GLOBAL = click.option(
    "-g", "--global", "global_", is_flag=True, help="Your own file, for all workspaces, instead of the workspace's."
)
_TRUST = click.option("--trust", is_flag=True, help="Show the result for a trusted workspace.")
_ALL = click.option("--all", "all_", is_flag=True, help="Also show settings with built-in values, and all models.")


@click.group(cls=KnownNamesGroup, aliases={"ls": "list", "rm": "remove"})
def config() -> None:
    """Get, set and list settings.

    KEY is a dotted name: model, permission.allow, limits.steps. Names of Claude Code's settings work too. Changes go to
    .callboard/settings.yaml in the workspace, or with -g to your own settings.yaml. The other lines of the file stay as
    they are.
    """


@config.command()
@click.argument("key")
@click.option("-g", "--global", "global_", is_flag=True, help="Show the value in your own file.")
@as_json
@_TRUST
@everywhere
@click.pass_obj
def get(invocation: Invocation, /, *, key: str, global_: bool, json_: bool, trust: bool) -> int:
    """Show the value of KEY that is in force. The exit code is 1 if it has no value."""
    if global_:
        refuse_idle(("trust",), "with --global, which shows the value in your own file")
    setting = SettingsEditor(invocation.workspace, own=global_, trust=trust).get(key)
    with terminal_of(invocation) as terminal:
        if json_:
            row = {"name": setting.name, "value": setting.value, "origin": setting.origin}
            terminal.record(json.dumps(row, indent=2))
        elif setting.value is not None:
            terminal.record(setting.text())
    return 1 if setting.value is None else 0


@config.command("set")
@click.argument("key")
@click.argument("value")
@_GLOBAL
@everywhere
@click.pass_obj
def set_(invocation: Invocation, /, *, key: str, value: str, global_: bool) -> None:
    """Set KEY to VALUE. A list is written as [a, b], a mapping as {a: 1}.

    callboard config set model opus

    callboard config set -g limits.steps 50
    """
    _show(invocation, _editor(invocation, global_=global_).set(key, value))


@config.command()
@click.argument("key")
@_GLOBAL
@everywhere
@click.pass_obj
def unset(invocation: Invocation, /, *, key: str, global_: bool) -> None:
    """Remove KEY from the file, so that its value from elsewhere applies."""
    _show(invocation, _editor(invocation, global_=global_).unset(key))


@config.command()
@click.argument("key")
@click.argument("values", metavar="VALUE...", nargs=-1, required=True)
@_GLOBAL
@everywhere
@click.pass_obj
def add(invocation: Invocation, /, *, key: str, values: Sequence[str], global_: bool) -> None:
    """Add each VALUE to the list KEY.

    callboard config add permission.allow "Bash(git status)"
    """
    _show(invocation, _editor(invocation, global_=global_).add(key, values))


@config.command()
@click.argument("key")
@click.argument("values", metavar="VALUE...", nargs=-1, required=True)
@_GLOBAL
@everywhere
@click.pass_obj
def remove(invocation: Invocation, /, *, key: str, values: Sequence[str], global_: bool) -> None:
    """Remove each VALUE from the list KEY."""
    _show(invocation, _editor(invocation, global_=global_).remove(key, values))


@config.command("list")
@click.option("-g", "--global", "global_", is_flag=True, help="List only what your own file sets.")
@as_json
@_TRUST
@_ALL
@everywhere
@click.pass_obj
def list_(invocation: Invocation, /, *, global_: bool, json_: bool, trust: bool, all_: bool) -> None:
    """List changed settings, their values, and the file and line, variable or flag that each comes from.

    --json lists all of them. Of an untrusted workspace, only settings that tighten permissions apply.
    """
    if global_:
        refuse_idle(("all_",), "with --global, which lists only what your own file sets")
    _print_settings(invocation, json_=json_, trust=trust, all_=all_, own=global_)


@click.command()
@as_json
@_TRUST
@_ALL
@everywhere
@click.pass_obj
def settings(invocation: Invocation, /, *, json_: bool, trust: bool, all_: bool) -> None:
    """Show changed settings and their origins.

    Another name of `callboard config list`. --json shows all of them. Of an untrusted workspace, only settings that
    tighten permissions apply.
    """
    _print_settings(invocation, json_=json_, trust=trust, all_=all_, own=False)


def _print_settings(invocation: Invocation, *, json_: bool, trust: bool, all_: bool, own: bool) -> None:
    page = SettingsEditor(invocation.workspace, own=own, trust=trust).page(everything=all_)
    with terminal_of(invocation) as terminal:
        if page.fault:
            terminal.terminal_print(block(f"callboard: {page.fault}", "warn"))
        if json_:
            rows = [{"name": row.name, "value": row.value, "origin": row.origin} for row in page.rows]
            terminal.record(json_of(rows))
            return
        terminal.rows(page.listing)
        if page.left_out:
            terminal.terminal_print(block(page.left_out, "dim", progress=True))


def _editor(invocation: Invocation, *, global_: bool) -> SettingsEditor:
    """Return the file to change. Raises `UsageError` in a process that an agent's tool started."""
    refuse_inside_tool("Changing settings")
    return SettingsEditor(invocation.workspace, own=global_)


def _show(invocation: Invocation, change: SettingChange) -> None:
    with terminal_of(invocation) as terminal:
        terminal.rows(Block((Line(change.text, "good"),)))
        for note in change.notes:
            terminal.terminal_print(block(f"callboard: {note}", "warn"))

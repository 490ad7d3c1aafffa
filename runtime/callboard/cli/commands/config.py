"""`config get|set|unset|add|remove|list` and `settings`: the settings in force, and changes of Callboard's two files.

Values that look like secrets are never printed. A change is for a person: a process that an agent's tool started is
refused.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

import click

from callboard.adapters.extensions.yaml import Address, dotted, load_yaml
from callboard.cli.commands.options import Invocation, as_json, everywhere, refuse_tools
from callboard.cli.commands.output import terminal_of
from callboard.cli.terminal.terminal import Block, Line, block
from callboard.cli.views.listings import as_json as json_of
from callboard.cli.views.listings import table
from callboard.config.setting_keys import SettingKey, key_of
from callboard.config.settings import LoadedSettings
from callboard.config.settings_file import SettingsFile, displayed, settings_here, value_at
from callboard.config.trust import standing
from callboard.core.permissions.rule_check import rule_note
from callboard.core.trust.claims import printable
from callboard.sessions.compose import find_places
from callboard.types.errors import SettingsError, UsageError

_GLOBAL = click.option(
    "-g", "--global", "global_", is_flag=True, help="Your own file, for all workspaces, instead of the workspace's."
)
_TRUST = click.option("--trust", is_flag=True, help="Show the result for a trusted workspace.")
_ALL = click.option("--all", "all_", is_flag=True, help="Also show settings with built-in values, and all models.")


@click.group()
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
    setting = key_of(key)
    if global_:
        own = SettingsFile.own()
        value = value_at(own.values(), setting.address)
        origin = str(own.path)
    else:
        loaded = _loaded(invocation, trust=trust)
        value = value_at(loaded.settings.model_dump(mode="json"), setting.address)
        origin = _origin(loaded, setting.address)
    value = displayed(value)
    with terminal_of(invocation) as terminal:
        if json_:
            terminal.record(json.dumps({"name": setting.name, "value": value, "origin": origin}, indent=2))
        elif value is not None:
            terminal.record(printable(value) if isinstance(value, str) else json.dumps(value))
    return 1 if value is None else 0


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
    setting, file = _target(invocation, key, global_=global_)
    _refuse_disabled(invocation, setting, value)
    address, written = file.set(setting, _readings(value))
    _show(invocation, file, address, f"{dotted(address)} = {json.dumps(displayed(written), ensure_ascii=False)}")


@config.command()
@click.argument("key")
@_GLOBAL
@everywhere
@click.pass_obj
def unset(invocation: Invocation, /, *, key: str, global_: bool) -> None:
    """Remove KEY from the file, so that its value from elsewhere applies."""
    setting, file = _target(invocation, key, global_=global_)
    file.unset(setting)
    _show(invocation, file, setting.address, f"{setting.name} removed")


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
    setting, file = _list_target(invocation, key, values, global_=global_)
    added = file.add(setting, values)
    text = f"{setting.name} + {_items(added)}" if added else f"{setting.name} has {_items(values)} already"
    _show(invocation, file, setting.address, text, items=values)


@config.command()
@click.argument("key")
@click.argument("values", metavar="VALUE...", nargs=-1, required=True)
@_GLOBAL
@everywhere
@click.pass_obj
def remove(invocation: Invocation, /, *, key: str, values: Sequence[str], global_: bool) -> None:
    """Remove each VALUE from the list KEY."""
    setting, file = _list_target(invocation, key, values, global_=global_)
    file.remove(setting, values)
    _show(invocation, file, setting.address, f"{setting.name} - {_items(values)}")


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
    loaded = _loaded(invocation, trust=trust)
    rows = [(name, displayed(value), origin) for name, value, origin in loaded.explained()]
    if own:
        path = str(SettingsFile.own().path)
        rows = [row for row in rows if any(place.startswith(f"{path}:") for place in row[2].split(", "))]
    with terminal_of(invocation) as terminal:
        if json_:
            terminal.record(json_of([{"name": name, "value": value, "origin": origin} for name, value, origin in rows]))
            return
        changed = [row for row in rows if all_ or own or row[2] not in ("default", "built in")]
        cells = [(name, json.dumps(value), _short(origin, loaded.workspace)) for name, value, origin in changed]
        nothing = f"{SettingsFile.own().path} sets nothing" if own else "every setting has its built-in value"
        terminal.rows(table(["SETTING", "VALUE", "FROM"], cells, nothing))
        if len(changed) < len(rows):
            note = f"{len(rows) - len(changed)} settings have their built-in values: callboard config list --all"
            terminal.terminal_print(block(note, "dim", progress=True))


def _short(origin: str, workspace: Path) -> str:
    """Return where a value was set without its name, and with short paths of files."""
    places = [re.sub(r"(:\d+): .*", r"\1", place) for place in origin.split(", ")]
    home = os.path.expanduser("~")  # noqa: PTH111 - a text is replaced
    texts = (place.removeprefix(f"{workspace}/").replace(f"{home}/", "~/", 1) for place in places)
    return printable(", ".join(dict.fromkeys(texts)))


def _loaded(invocation: Invocation, *, trust: bool) -> LoadedSettings:
    places = find_places(invocation.workspace, writable=False)
    return settings_here(places.workspace, places.config, trust=trust)[0]


def _origin(loaded: LoadedSettings, address: Address) -> str:
    """Return where a value or the values inside it were set; `default` if nowhere."""
    inside = [place for part, place in loaded.origins.items() if part[: len(address)] == address]
    near = [loaded.origins[address[:n]] for n in range(len(address), 0, -1) if address[:n] in loaded.origins]
    return next(iter([*near, *inside]), "default")


def _target(invocation: Invocation, key: str, *, global_: bool) -> tuple[SettingKey, SettingsFile]:
    """Return the setting and the file to change. Raises `UsageError` in a process that an agent's tool started."""
    refuse_tools("Changing settings")
    setting = key_of(key)
    if global_:
        return setting, SettingsFile.own()
    places = find_places(invocation.workspace, writable=False)
    return setting, SettingsFile.of_workspace(places.workspace, places.config)


def _list_target(
    invocation: Invocation, key: str, values: Sequence[str], *, global_: bool
) -> tuple[SettingKey, SettingsFile]:
    setting, file = _target(invocation, key, global_=global_)
    if not setting.listed:
        raise UsageError(f"{setting.name} is no list: callboard config set {setting.name} VALUE")
    _check_texts(values)
    return setting, file


def _readings(text: str) -> list[object]:
    """Return what a typed value may mean, the most likely first: a number or switch, a text, a list of one text."""
    _check_texts([text])
    try:
        value = load_yaml(text, "VALUE")
    except SettingsError as error:
        if text.lstrip()[:1] in ("[", "{"):
            raise UsageError(str(error)) from error
        return [text, [text]]
    if isinstance(value, list | dict) and text.lstrip()[:1] in ("[", "{"):
        return [value]
    if isinstance(value, bool | int | float) or text in ("null", "~"):
        return [value, text, [text]]
    return [text, [text]]


def _check_texts(texts: Sequence[str]) -> None:
    """Raise `UsageError` for text that a file cannot hold: bytes of the command line that are not UTF-8."""
    if any("\udc80" <= character <= "\udcff" for text in texts for character in text):
        raise UsageError("VALUE is not UTF-8 text: nothing was changed")


def _refuse_disabled(invocation: Invocation, setting: SettingKey, value: str) -> None:
    """Raise `UsageError` for `bypassPermissions` where a settings file disables this mode."""
    if setting.address[-1] == "mode" and value == "bypassPermissions":
        off = _loaded(invocation, trust=False).bypass_off
        if off:
            raise UsageError(f"bypassPermissions is switched off by {off}")


def _items(values: Sequence[str]) -> str:
    return ", ".join(json.dumps(displayed(value), ensure_ascii=False) for value in values)


def _show(
    invocation: Invocation, file: SettingsFile, address: Address, text: str, *, items: Sequence[str] = ()
) -> None:
    """Print the change and its file, and what keeps it from having an effect."""
    notes = [note for item in items for note in _rule_notes(address, item)]
    with terminal_of(invocation) as terminal:
        terminal.rows(Block((Line(f"{printable(text)} in {printable(str(file.path))}", "good"),)))
        for note in (*notes, *_obstacles(invocation, file, address)):
            terminal.terminal_print(block(f"callboard: {printable(note)}", "warn"))


def _rule_notes(address: Address, item: str) -> list[str]:
    """Return the note on a permission rule that has no effect."""
    if address[0] != "permission" or address[-1] not in ("allow", "ask", "deny"):
        return []
    note = rule_note(item, address[-1])
    return [] if note.status == "honored" else [f"the rule {item} has no effect: {note.why}"]


def _obstacles(invocation: Invocation, file: SettingsFile, address: Address) -> list[str]:
    """Return why new sessions do not use the value in a file; empty if they do."""
    if file.workspace is not None and not standing(file.workspace, file.config).trusted:
        return ["the content of this workspace is used once you trust it: `callboard trust`"]
    try:
        loaded = _loaded(invocation, trust=False)
    except SettingsError as error:
        return [f"no session starts before this is corrected: {error}"]
    value = value_at(file.values(), address)
    place = _origin(loaded, address)
    if value is None or isinstance(value, list | dict) or f"{file.path}:" in place:
        return []
    return [
        f"{dotted(address)} is {json.dumps(displayed(value_at(loaded.settings.model_dump(mode='json'), address)))} "
        f"nevertheless, set by {place}"
    ]

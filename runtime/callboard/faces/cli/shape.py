"""`data/commands.json`: which commands, options and arguments there are, for completion, which has no time to import
them: `python -m callboard.faces.cli.shape > runtime/callboard/data/commands.json`. A test fails when they differ. Pure.

A command a line: `about`, `commands` below it, `arguments` (the kind of each), `many` (the last one repeats), `options`
(`names`, `takes`: a kind, a list of values, or "" for a flag; `about`, `many`). A kind is `text`, `file`, `dir`,
`model`, or a kind of row of the store. The first line, of the bare command, has what every command takes in
`everywhere`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import click

from callboard.faces.cli.options import EVERYWHERE
from callboard.faces.cli.root import cli
from callboard.words.specs import READ_AS

_BY_NAME: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("session", "resumed", "id_"), "session"),
        **dict.fromkeys(("agent", "to", "owner"), "agent"),
        **dict.fromkeys(("task_id", "after"), "task"),
        "request_id": "request",
        "schedule_id": "schedule",
        "rule_id": "rule",
        "model": "model",
    }
)
_BY_METAVAR: Mapping[str, str] = MappingProxyType({"FILE": "file", "PATH": "file"})
_MODES = ["default", "acceptEdits", "plan", "dontAsk", "sandboxed", "bypassPermissions", *READ_AS]


def shape() -> str:
    """The whole file."""
    root = click.Context(cli, info_name="callboard", **cli.context_settings)
    rows = [f"{json.dumps(name)}: {json.dumps(told)}" for name, told in _commands(root, "")]
    return "{\n" + ",\n".join(rows) + "\n}\n"


def _commands(context: click.Context, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    command = context.command
    names = command.list_commands(context) if isinstance(command, click.Group) else []
    params = command.get_params(context)
    arguments = [one for one in params if isinstance(one, click.Argument)]
    options = [one for one in params if isinstance(one, click.Option) and not one.hidden]
    told: dict[str, Any] = {
        "about": command.get_short_help_str(100),
        "commands": names,
        "arguments": [_kind(one, path) for one in arguments],
        "many": bool(arguments) and arguments[-1].nargs == -1,
        "options": [_option(one, path) for one in options if one.name not in EVERYWHERE],
    }
    if not path:
        told["everywhere"] = [_option(one, path) for one in options if one.name in EVERYWHERE]
    yield path, told
    for name in names:
        inner = command.get_command(context, name) if isinstance(command, click.Group) else None
        if inner is not None:
            yield from _commands(click.Context(inner, parent=context, info_name=name), f"{path} {name}".strip())


def _option(option: click.Option, path: str) -> dict[str, Any]:
    takes = "" if option.is_flag or option.count else _kind(option, path)
    names = [*option.opts, *option.secondary_opts]
    return {"names": names, "takes": takes, "about": option.help or "", "many": option.multiple or option.count}


def _kind(param: click.Parameter, path: str) -> str | list[str]:
    if isinstance(param.type, click.Choice):
        return [str(one) for one in param.type.choices]
    if isinstance(param.type, click.Path):
        return "dir" if not param.type.file_okay else "file"
    if param.name == "permission_mode":
        return _MODES
    if param.name == "name" and path.startswith("team "):
        return "agent"
    return _BY_NAME.get(param.name or "") or _BY_METAVAR.get(param.metavar or "", "text")


if __name__ == "__main__":
    sys.stdout.write(shape())

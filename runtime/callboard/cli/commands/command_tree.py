"""Writer of `data/commands.json`: the commands, options and arguments for completion. Pure.

Completion has no time to import them. A test fails if the file differs from the output of
`python -m callboard.cli.commands.command_tree`.

One command per line: `about`, `commands` below it, `arguments` (the kind of each), `many` (the last one repeats),
`options` (`names`, `takes`: a kind, a list of values, or "" for a flag; `about`, `many`). A kind is `text`, `file`,
`dir`, `model`, `agent_type`, or a kind of row of the store. The first line, for the bare command, has the options of
every command in `everywhere`, and the known names of a kind in `names`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from importlib.resources import files
from types import MappingProxyType
from typing import Any

import click

from callboard.adapters.extensions.discovery import builtin
from callboard.cli.commands.options import EVERYWHERE, PERMISSION_MODES
from callboard.cli.commands.root import cli

_BY_NAME: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("session", "resumed", "id_"), "session"),
        **dict.fromkeys(("agent", "to", "owner"), "agent"),
        **dict.fromkeys(("task_id", "after"), "task"),
        "request_id": "request",
        "schedule_id": "schedule",
        "rule_id": "rule",
        "model": "model",
        "agent_type": "agent_type",
    }
)
_BY_METAVAR: Mapping[str, str] = MappingProxyType(
    {**dict.fromkeys(("FILE", "PATH", "JSON|FILE", "FILE:NAME"), "file"), "DIR": "dir"}
)


def shape() -> str:
    """Return the whole file."""
    root = click.Context(cli, info_name="callboard", **cli.context_settings)
    rows = [f"{json.dumps(name)}: {json.dumps(description)}" for name, description in _commands(root, "")]
    return "{\n" + ",\n".join(rows) + "\n}\n"


def _commands(context: click.Context, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    command = context.command
    names = command.list_commands(context) if isinstance(command, click.Group) else []
    params = command.get_params(context)
    arguments = [param for param in params if isinstance(param, click.Argument)]
    options = [param for param in params if isinstance(param, click.Option) and not param.hidden]
    description: dict[str, Any] = {
        "about": command.get_short_help_str(100),
        "commands": names,
        "arguments": [_kind(argument, path) for argument in arguments],
        "many": bool(arguments) and arguments[-1].nargs == -1,
        "options": [_option(option, path) for option in options if option.name not in EVERYWHERE],
    }
    if not path:
        models = (files("callboard") / "data" / "models.yaml").read_text("utf-8")
        description["names"] = {
            "agent_type": sorted(file.stem for file in builtin("agents").glob("*.md")),
            "model": [line.split('"')[1] for line in models.splitlines() if line.startswith('"')],
        }
        description["everywhere"] = [_option(option, path) for option in options if option.name in EVERYWHERE]
    yield path, description
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
        return [str(choice) for choice in param.type.choices]
    if isinstance(param.type, click.Path):
        return "dir" if not param.type.file_okay else "file"
    if param.name == "permission_mode":
        return list(PERMISSION_MODES)
    if param.name == "name" and path.startswith("team "):
        return "agent"
    if (param.name == "agent" and path in {"", "run"}) or path == "agents show":
        return "agent_type"
    metavar = param.metavar or ""
    if "|" in metavar and metavar.islower():
        return metavar.split("|")
    return _BY_NAME.get(param.name or "") or _BY_METAVAR.get(metavar, "text")


if __name__ == "__main__":
    sys.stdout.write(shape())

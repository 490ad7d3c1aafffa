"""Options of every command, options that several commands share, and the refusal inside a tool call.

Imports only click, because `--help` imports it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, TypeVar, cast

import click
from click.core import ParameterSource

from callboard import __version__
from callboard.types.lazy_dataclass import dataclass

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(slots=True)
class Invocation:
    """Options of every command, given anywhere on the line."""

    workspace: Path = field(default_factory=Path)
    color: str = "auto"
    quiet: bool = False
    verbose: bool = False
    debug: bool = False


STORE_VARIABLE = "CALLBOARD_STORE"
EVERYWHERE = frozenset({"help", "version", "store", *Invocation.__slots__})
"""Names of the options of every command."""


def everywhere(command: Command) -> Command:
    """Add the options of every command.

    The options are `--cwd`, `-q`, `-v`, `-d` and `--color`, which are stored in the `Invocation` of the context,
    `--store`, and `--version`.
    """
    options = (
        _option(
            "-C", "--cwd", "workspace", type=click.Path(file_okay=False, path_type=Path), help="Work in this folder."
        ),
        _option("-q", "--quiet", is_flag=True, help="Hide progress lines; keep warnings."),
        _option("-v", "--verbose", is_flag=True, help="Also show each model call, and each tool when it starts."),
        _option("-d", "--debug", is_flag=True, help="Show the traceback of an error."),
        _option("--color", type=click.Choice(["auto", "always", "never"]), help="When to use colors."),
        click.option(
            "--store",
            metavar="URL",
            expose_value=False,
            callback=_use_store,
            help="Use the sessions on this server: postgresql://USER@HOST/DATABASE.",
        ),
        click.version_option(__version__, "--version", message="callboard %(version)s"),
    )
    for option in reversed(options):
        command = option(command)
    return command


def is_resumed(values: Mapping[str, Any]) -> bool:
    """Return True if the options continue a session. Raises `click.UsageError` if they name two."""
    if values["continue_"] and values["resumed"] is not None:
        text = "--continue is the current session, and --resume names one: give one of the two"
        raise click.UsageError(text, click.get_current_context())
    return bool(values["continue_"] or values["resumed"])


def refuse_idle(names: Iterable[str], reason: str) -> None:
    """Raise `click.UsageError` for the first of these parameters on the command line: it has no effect.

    `names`: of parameters of this command. `reason`: why it has none, and what to do.
    """
    context = click.get_current_context()
    parameters = {parameter.name: parameter for parameter in context.command.params}
    for name in names:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            parameter = parameters[name]
            label = parameter.opts[-1] if isinstance(parameter, click.Option) else parameter.human_readable_name
            raise click.UsageError(f"{label} has no effect {reason}", context)


def refuse_before_command(context: click.Context) -> None:
    """Raise `click.UsageError` for an option of a group before one of its commands, which does not get its value."""
    names = [parameter.name for parameter in context.command.params if parameter.name not in EVERYWHERE]
    command = context.invoked_subcommand
    refuse_idle(filter(None, names), f"before `{command}`: omit it, or write it after `{command}`")


def as_json(command: Command) -> Command:
    """Add `--json`, for a listing."""
    return click.option("--json", "json_", is_flag=True, help="Print JSON.")(command)


def of_session(command: Command) -> Command:
    """Add `--session`: another session than the workspace's current one."""
    return click.option("--session", metavar="ID", help="Use this session instead of the current one.")(command)


def with_plugins(command: Command) -> Command:
    """Add `--plugin DIR`, which may be repeated: `plugins` gets the folders. One that cannot be loaded is refused."""
    return _plugin_option(callback=_loadable)(command)


def with_any_plugins(command: Command) -> Command:
    """Add `--plugin DIR` to a command that reports what cannot be loaded."""
    return _plugin_option()(command)


def _plugin_option(**more: Any) -> Callable[[Command], Command]:
    kind = click.Path(file_okay=False, path_type=Path)
    text = "Load the plugin in this folder: agents, skills, hooks and servers; repeatable."
    return click.option(
        "--plugin", "--plugin-dir", "plugins", multiple=True, metavar="DIR", type=kind, help=text, **more
    )


def _loadable(context: click.Context, _option: click.Parameter, folders: tuple[Path, ...]) -> tuple[Path, ...]:
    """Return the folders. Raises `click.BadParameter`: without its hooks, a run would break the rules they enforce.

    A program that drives the session gets the faults in the first message instead, as its protocol has it.
    """
    if folders and context.params.get("input_format") != "stream-json":
        from callboard.adapters.extensions.plugins import unusable  # noqa: PLC0415 - only with the option

        note = unusable(folders)
        if note is not None:
            raise click.BadParameter(f"{note.where}: {note.field + ': ' if note.field else ''}{note.reason}")
    return folders


def in_worktree(command: Command) -> Command:
    """Add `-w [NAME]`: `worktree` gets the name, an empty text without one, or None without the option."""
    text = "Let the lead work in this git worktree, made if there is none; without NAME, in a new one."
    return click.option("-w", "--worktree", metavar="[NAME]", is_flag=False, flag_value="", help=text)(command)


def with_servers(command: Command) -> Command:
    """Add `--mcp-config` and `--strict-mcp-config`."""
    strict = click.option(
        "--strict-mcp-config",
        is_flag=True,
        help="Use only the MCP servers of --mcp-config; ignore those in other files.",
    )
    text = "Add MCP servers for this run: JSON or a file with `mcpServers`; repeatable."
    return click.option("--mcp-config", multiple=True, metavar="JSON|FILE", help=text)(strict(command))


PERMISSION_MODES = (
    *("default", "acceptEdits", "plan", "dontAsk", "sandboxed", "bypassPermissions"),
    *("manual", "auto"),
)
"""Values of `--permission-mode`: the modes, then the names of Claude Code for `default`. A test compares them with
`types.agent_spec`, which takes long to import."""
_MODE = click.option(
    "--permission-mode", type=click.Choice(PERMISSION_MODES), help="How to decide calls that no rule decides."
)


def permission_options(command: Command) -> Command:
    """Add `--permission-mode`, `--allowed-tools` and `--disallowed-tools`, which `flags_of` turns into settings."""
    deny = click.option(
        *("--disallowed-tools", "--disallowedTools", "deny"),
        multiple=True,
        metavar="RULE",
        callback=_checked_rules,
        help="Refuse calls that match.",
    )
    return _MODE(_allowing("--allowed-tools", "--allowedTools")(deny(command)))


def permission_grants(command: Command) -> Command:
    """Add `--permission-mode` and `--allowed-tools`, for a command whose program sets the refused tools."""
    return _MODE(_allowing("--allowed-tools")(command))


def _allowing(*names: str) -> Callable[[Command], Command]:
    text = "Allow calls that match without asking."
    return click.option(*names, "allow", multiple=True, metavar="RULE", callback=_checked_rules, help=text)


def _checked_rules(context: click.Context, option: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """Return the rules. Raises `click.BadParameter`, because the settings would name themselves, not the option."""
    if value:
        from callboard.core.permissions.rules import parse_rule  # noqa: PLC0415 - it would slow down `--help`

        for rule in split_list(value):
            try:
                parse_rule(rule)
            except ValueError as error:
                raise click.BadParameter(str(error), context, option) from error
    return value


def with_output_format(command: Command) -> Command:
    """Add `--output-format`."""
    return click.option(
        "--output-format",
        type=click.Choice(["text", "json", "stream-json"]),
        default="text",
        show_default=True,
        help="Print text, one JSON object at the end, or one JSON line for each event.",
    )(command)


def taking_over(command: Command) -> Command:
    """Add `--take-over`, `--wait` and `--force`: host a session that another process hosts."""
    options = (
        click.option(
            "--take-over", is_flag=True, help="If another process hosts the session, make that process release it."
        ),
        click.option(
            "--wait",
            type=FiniteRange(min=0),
            metavar="SECONDS",
            help="With --take-over: seconds to wait for the release (default 10).",
        ),
        click.option(
            "--force",
            is_flag=True,
            help="With --take-over: kill the other process if it has not released the session by then.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


_SETTINGS = {
    "permission_mode": "permission.mode",
    "allow": "permission.allow",
    "deny": "permission.deny",
    "max_turns": "limits.steps",
    "max_seconds": "limits.seconds",
}
"""Options that are settings for this session, by their dotted names."""


def with_detach_options(command: Command) -> Command:
    """Add `--detach` and `--placement`: the session runs in a serving host."""
    where = click.option(
        "--placement",
        metavar="KEY=VALUE",
        multiple=True,
        help="Label that a serving host of the session must have (`serve --label`). Repeatable.",
    )
    detach = click.option("--detach", is_flag=True, help="Let a `callboard serve` run the session; print its id.")
    return detach(where(command))


def flags_of(values: Mapping[str, Any]) -> dict[str, object]:
    """Return the settings that options set. Zero is a value; options that were not given are left out."""
    settings = {name: values.get(option) for option, name in _SETTINGS.items()}
    flags: dict[str, object] = {
        name: list(split_list(cast("tuple[str, ...]", value))) if isinstance(value, tuple) else value
        for name, value in settings.items()
        if value is not None and value != ()
    }
    if values.get("placement"):
        from callboard.core.placement import read_labels  # noqa: PLC0415 - a rare option; OpenSSL comes with it, 5 ms

        flags["placement"] = read_labels(values["placement"], "--placement")
    return flags


def split_list(texts: Iterable[str]) -> tuple[str, ...]:
    """Split names or rules at commas or blanks, except inside brackets."""
    names: list[str] = []
    for text in texts:
        depth = 0
        word = ""
        for char in text:
            depth = max(depth + (char == "(") - (char == ")"), 0)
            if depth or not (char == "," or char.isspace()):
                word += char
            else:
                names.append(word)
                word = ""
        names.append(word)
    return tuple(word for word in names if word)


class FiniteRange(click.FloatRange):
    """A number within limits. Refuses `nan`, `inf`, and numbers above `LARGEST`, which no limit in use has.

    A comparison with `nan` is always false, so a limit of `nan` would be no limit.
    """

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:  # the types of click's own method
        """Return the number. Fails as click's types do."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number) or number > LARGEST:
            self.fail(f"{value} is no number up to {LARGEST:,.0f}.", param, ctx)
        return number


LARGEST = 1e12


def _option(*names: str, **settings: Any) -> Callable[[Command], Command]:
    return click.option(*names, expose_value=False, callback=_keep, **settings)


def _use_store(_context: click.Context, _option: click.Parameter, value: str | None) -> None:
    """Set the variable of the setting, so that processes that this one starts use the same store."""
    if value:
        os.environ[STORE_VARIABLE] = value


def _keep(context: click.Context, option: click.Parameter, value: Any) -> None:
    if value not in {None, False} and option.name:
        setattr(context.ensure_object(Invocation), option.name, value)

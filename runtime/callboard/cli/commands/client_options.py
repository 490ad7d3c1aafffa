"""Options of `run` for programs that drive it, in the form that such programs use. Imports only click.

Each option takes effect, or is reported on stderr with the reason why not. A wrong value is a usage error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, cast

import click

from callboard.types.errors import UsageError

Command = TypeVar("Command", bound=Callable[..., Any])

_EFFORTS = ("low", "medium", "high", "xhigh", "max")

HONOURED: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (
        ("--input-format",),
        {
            "type": click.Choice(["text", "stream-json"]),
            "default": "text",
            "help": "Format of stdin (docs/headless.md).",
        },
    ),
    (
        ("--include-partial-messages",),
        {"is_flag": True, "help": "With stream-json: also emit replies while they stream."},
    ),
    (
        ("--replay-user-messages",),
        {"is_flag": True, "help": "With stream-json input: repeat its messages in the output."},
    ),
    (
        ("--include-hook-events",),
        {"is_flag": True, "help": "With stream-json input: also emit events of the client's hooks."},
    ),
    (("--json-schema",), {"metavar": "JSON", "help": "Require a result that is JSON of this schema."}),
    (
        ("--permission-prompt-tool",),
        {"metavar": "stdio", "help": "With stream-json input: send permission requests to the client."},
    ),
    (
        ("--dangerously-skip-permissions",),
        {"is_flag": True, "help": "The same as --permission-mode bypassPermissions."},
    ),
    (
        ("--allow-dangerously-skip-permissions",),
        {"is_flag": True, "help": "With stream-json input: let the client choose bypassPermissions."},
    ),
    (("--fallback-model",), {"metavar": "NAMES", "help": "Models to use if the model fails."}),
    (("--agents",), {"metavar": "JSON", "help": "Agent types in addition to those in files."}),
    (("--agent",), {"metavar": "TYPE", "help": "The agent type of the lead."}),
    (("--effort",), {"type": click.Choice(_EFFORTS), "help": "How much the lead's model should think."}),
    (("--system-prompt",), {"metavar": "TEXT", "help": "Replace the lead's instructions with this text."}),
    (("--system-prompt-file",), {"metavar": "FILE", "help": "Replace the lead's instructions with this file."}),
    (("--append-system-prompt-file",), {"metavar": "FILE", "help": "Add this file to the lead's instructions."}),
    (("--tools",), {"metavar": "NAMES", "help": "Tools of the lead; `default` means all."}),
    (
        ("--settings",),
        {"metavar": "JSON|FILE", "help": "Permission rules, mode and hooks, in the format of a settings.json."},
    ),
    (("--session-id",), {"metavar": "UUID", "help": "Id of the new session."}),
    (
        ("--setting-sources",),
        {"metavar": "NAMES", "help": "Settings files to read: user, project, local; separate several with commas."},
    ),
)
"""Options that take effect."""

_LATER = "not supported in this version"
_THINKING = "how a model thinks is the service's default"
IGNORED: tuple[tuple[tuple[str, ...], dict[str, Any], str], ...] = (
    (("--forward-subagent-text",), {"is_flag": True}, "the words of subagents are always sent"),
    (("--thinking",), {"metavar": "KIND"}, _THINKING),
    (("--thinking-display",), {"metavar": "KIND"}, _THINKING),
    (("--max-thinking-tokens",), {"type": click.IntRange(min=0)}, _THINKING),
    (("--task-budget",), {"type": click.IntRange(min=0)}, "--max-budget-usd and --max-turns are the limits there are"),
    (("--betas",), {"metavar": "NAMES"}, _LATER),
    (
        ("--add-dir",),
        {"multiple": True, "metavar": "DIR"},
        "what is outside the workspace is asked for; allow it by a rule, such as Read(//path/**)",
    ),
    (("--no-session-persistence",), {"is_flag": True}, "each session is kept, in the state folder of its workspace"),
    (("--bare",), {"is_flag": True}, "what a workspace brings is used where a person trusted it, and only there"),
    (("--worktree",), {"metavar": "NAME"}, "agents make worktrees by themselves"),
    (("--bg",), {"is_flag": True}, "start it in the background of your shell"),
    (("--debug-file",), {"metavar": "FILE"}, "each session has its log in the state folder"),
    (("--append-subagent-system-prompt",), {"metavar": "TEXT"}, "--append-system-prompt reaches every agent"),
    (("--session-mirror",), {"is_flag": True}, "a session is kept by Callboard alone"),
    (("--prompt-suggestions",), {"is_flag": True}, _LATER),
)
"""Options that are accepted without effect, with the reason."""

_REFUSED: tuple[tuple[tuple[str, ...], dict[str, Any], str], ...] = (
    (("--fork-session",), {"is_flag": True}, "a session cannot be forked: leave it out to go on in the same one"),
    (("--resume-session-at",), {"metavar": "ID"}, "a session goes on from its end: leave the option out"),
    (("--resume-drops-turn",), {"metavar": "ID"}, "a session goes on from its end: leave the option out"),
)
"""Options that would change the effect of a run on a session and are not supported."""


def client_options(command: Command) -> Command:
    """Add all of them; those without effect are hidden."""
    visible = [click.option(*names, **settings) for names, settings in HONOURED]
    hidden = [click.option(*names, hidden=True, **settings) for names, settings, _ in (*IGNORED, *_REFUSED)]
    for option in reversed([*visible, *hidden]):
        command = option(command)
    return command


def option_names() -> frozenset[str]:
    """Return the names of all of them."""
    return frozenset(name for names, *_ in (*HONOURED, *IGNORED, *_REFUSED) for name in names)


def not_heeded(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each given option without effect. Raises `UsageError` for an unsupported option."""
    for (name,), _, reason in _REFUSED:
        if values.get(_key(name)) and (name != "--fork-session" or values.get("continue_") or values.get("resumed")):
            raise UsageError(f"{name}: {reason}")
    for (name,), _, reason in IGNORED:
        if values.get(_key(name)) not in (None, False, ()):
            yield f"{name} is ignored: {reason}"
    client = values.get("input_format") == "stream-json"
    for name in ("--replay-user-messages", "--include-hook-events", "--permission-prompt-tool"):
        if values.get(_key(name)) and not client:
            yield f"{name} is ignored: it goes with --input-format stream-json"
    if client and values.get("permission_prompt_tool") not in (None, "stdio"):
        yield f"--permission-prompt-tool {values['permission_prompt_tool']} is ignored: only stdio is supported"
    if values.get("include_partial_messages") and values.get("output_format") != "stream-json":
        yield "--include-partial-messages is ignored: it goes with --output-format stream-json"


def _key(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def json_object(text: str, option: str) -> dict[str, Any]:
    """Parse the JSON object of an option. Raises `UsageError`."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{option} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UsageError(f"{option} is a JSON object (`{{ ... }}`)")
    return cast("dict[str, Any]", value)

"""Options of `run` for programs that drive it, as such programs write them. Imports click only.

Each is honoured, or told on stderr with the reason why it is not; a wrong value is a fault of the line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar, cast

import click

from callboard.words.errors import UsageError

Command = TypeVar("Command", bound=Callable[..., Any])

_EFFORTS = ("low", "medium", "high", "xhigh", "max")

HONOURED: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (
        ("--input-format",),
        {
            "type": click.Choice(["text", "stream-json"]),
            "default": "text",
            "help": "What stdin holds (docs/headless.md).",
        },
    ),
    (("--include-partial-messages",), {"is_flag": True, "help": "With stream-json: replies as they stream too."}),
    (("--replay-user-messages",), {"is_flag": True, "help": "With stream-json input: tell its messages back."}),
    (("--include-hook-events",), {"is_flag": True, "help": "With stream-json input: tell of the client's hooks."}),
    (("--json-schema",), {"metavar": "JSON", "help": "The result has to be JSON of this schema."}),
    (("--permission-prompt-tool",), {"metavar": "stdio", "help": "With stream-json input: the client is asked."}),
    (("--dangerously-skip-permissions",), {"is_flag": True, "help": "The mode bypassPermissions."}),
    (
        ("--allow-dangerously-skip-permissions",),
        {"is_flag": True, "help": "With stream-json input: the client may set bypassPermissions."},
    ),
    (("--fallback-model",), {"metavar": "NAMES", "help": "Models to go on with when the model fails."}),
    (("--agents",), {"metavar": "JSON", "help": "Agent types beside those of files."}),
    (("--agent",), {"metavar": "TYPE", "help": "The agent type of the lead."}),
    (("--effort",), {"type": click.Choice(_EFFORTS), "help": "How hard the lead's model is asked to think."}),
    (("--system-prompt",), {"metavar": "TEXT", "help": "In place of the lead's own instructions."}),
    (("--system-prompt-file",), {"metavar": "FILE", "help": "The same, from a file."}),
    (("--append-system-prompt-file",), {"metavar": "FILE", "help": "As --append-system-prompt, from a file."}),
    (("--tools",), {"metavar": "NAMES", "help": "The only tools of the lead; `default`: all."}),
    (("--settings",), {"metavar": "JSON|FILE", "help": "Rules, mode and hooks as in a settings.json."}),
    (("--session-id",), {"metavar": "UUID", "help": "The id of the new session."}),
)
"""Options that do what they say."""

_LATER = "not supported in this version"
_THINKING = "how a model thinks is the service's default"
IGNORED: tuple[tuple[tuple[str, ...], dict[str, Any], str], ...] = (
    (("--forward-subagent-text",), {"is_flag": True}, "what subagents say is told anyway"),
    (("--thinking",), {"metavar": "KIND"}, _THINKING),
    (("--thinking-display",), {"metavar": "KIND"}, _THINKING),
    (("--max-thinking-tokens",), {"type": click.IntRange(min=0)}, _THINKING),
    (("--task-budget",), {"type": click.IntRange(min=0)}, "--max-budget-usd and --max-turns are the limits there are"),
    (("--betas",), {"metavar": "NAMES"}, _LATER),
    (("--setting-sources",), {"metavar": "NAMES"}, "whose settings count is a matter of trust (docs/trust.md)"),
    (
        ("--add-dir",),
        {"multiple": True, "metavar": "DIR"},
        "what lies outside the workspace is asked for; allow it by a rule, such as Read(//path/**)",
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
"""Options that are taken and have no effect, with why."""

_REFUSED: tuple[tuple[tuple[str, ...], dict[str, Any], str], ...] = (
    (("--fork-session",), {"is_flag": True}, "a session cannot be forked: leave it out to go on in the same one"),
    (("--resume-session-at",), {"metavar": "ID"}, "a session goes on from where it stands: leave it out"),
    (("--resume-drops-turn",), {"metavar": "ID"}, "a session goes on from where it stands: leave it out"),
)
"""Options that would change what a run does to a session, and that cannot be followed."""


def client_options(command: Command) -> Command:
    """Add them all; those without effect are hidden."""
    shown = [click.option(*names, **settings) for names, settings in HONOURED]
    hidden = [click.option(*names, hidden=True, **settings) for names, settings, _ in (*IGNORED, *_REFUSED)]
    for option in reversed([*shown, *hidden]):
        command = option(command)
    return command


def option_names() -> frozenset[str]:
    """All of them, as they are written."""
    return frozenset(name for names, *_ in (*HONOURED, *IGNORED, *_REFUSED) for name in names)


def not_heeded(asked: Mapping[str, Any]) -> Iterator[str]:
    """What was given and has no effect, a line each. Raises `UsageError` for what cannot be followed."""
    for (name,), _, why in _REFUSED:
        if asked.get(_key(name)) and (name != "--fork-session" or asked.get("continue_") or asked.get("resumed")):
            raise UsageError(f"{name}: {why}")
    for (name,), _, why in IGNORED:
        if asked.get(_key(name)) not in (None, False, ()):
            yield f"{name} is not heeded: {why}"
    client = asked.get("input_format") == "stream-json"
    for name in ("--replay-user-messages", "--include-hook-events", "--permission-prompt-tool"):
        if asked.get(_key(name)) and not client:
            yield f"{name} is not heeded: it goes with --input-format stream-json"
    if client and asked.get("permission_prompt_tool") not in (None, "stdio"):
        yield f"--permission-prompt-tool {asked['permission_prompt_tool']} is not heeded: stdio is the one there is"
    if asked.get("include_partial_messages") and asked.get("output_format") != "stream-json":
        yield "--include-partial-messages is not heeded: it goes with --output-format stream-json"


def _key(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def split_list(given: Iterable[str]) -> tuple[str, ...]:
    """Names or rules that are separated by commas or blanks; those inside brackets belong to a rule."""
    found: list[str] = []
    for text in given:
        depth, word = 0, ""
        for char in text:
            depth = max(depth + (char == "(") - (char == ")"), 0)
            if depth or not (char == "," or char.isspace()):
                word += char
            else:
                found.append(word)
                word = ""
        found.append(word)
    return tuple(word for word in found if word)


def json_object(text: str, option: str) -> dict[str, Any]:
    """The JSON object that an option holds. Raises `UsageError`."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{option} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UsageError(f"{option} is a JSON object (`{{ ... }}`)")
    return cast("dict[str, Any]", value)

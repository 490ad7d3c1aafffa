"""Options of `run` for programs that drive it, under the names that such programs use. Imports only click.

Each option takes effect, or is reported on stderr with the reason. A wrong value is a usage error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

import click
from click.core import ParameterSource

from callboard.types.errors import UsageError
from callboard.types.late_pattern import late_pattern

Command = TypeVar("Command", bound=Callable[..., Any])

_EFFORTS = ("low", "medium", "high", "xhigh", "max")

HONOURED: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (
        ("--input-format",),
        {
            "type": click.Choice(["text", "stream-json"]),
            "default": "text",
            "is_eager": True,  # `--plugin` is checked by it
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
        {
            "metavar": "stdio|TOOL",
            "help": "With stream-json input: send permission requests to the client, or to this MCP tool.",
        },
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
        ("--fork-session",),
        {"is_flag": True, "help": "With -c or -r: continue in a new session, and leave the old one as it is."},
    ),
    (
        ("--resume-session-at",),
        {"metavar": "UUID", "help": "With -r: continue after this message; later ones leave the conversation."},
    ),
    (
        ("--resume-drops-turn",),
        {"metavar": "UUID", "help": "With --resume-session-at: refuse if more than the turn of this prompt is lost."},
    ),
    (
        ("--thinking",),
        {"type": click.Choice(["adaptive", "enabled", "disabled"]), "help": "Let the lead's model think, or not."},
    ),
    (
        ("--max-thinking-tokens",),
        {
            "type": click.IntRange(min=0),
            "metavar": "N",
            "help": "Tokens for the thinking of the lead; 0: none.",
        },
    ),
    (
        ("--thinking-display",),
        {"type": click.Choice(["summarized", "omitted"]), "help": "Form in which the thinking is returned."},
    ),
    (
        ("--add-dir",),
        {"multiple": True, "metavar": "DIR", "help": "Folder that the lead may read without asking; repeatable."},
    ),
    (
        ("--forward-subagent-text",),
        {"is_flag": True, "help": "With stream-json input: also emit the texts of subagents."},
    ),
    (
        ("--session-mirror",),
        {"is_flag": True, "help": "With stream-json input: also emit the lines of the transcripts, for a store."},
    ),
    (
        ("--permission-prompts",),
        {"type": click.Choice(["host", "none"]), "help": "With stream-json input: `none` sends no requests to it."},
    ),
    (
        ("--managed-settings",),
        {"metavar": "JSON", "help": "Deny and ask rules, in the format of a settings.json."},
    ),
    (
        ("--no-session-persistence",),
        {"is_flag": True, "help": "Keep the session in memory only: it cannot be listed or resumed."},
    ),
    (("--disable-slash-commands",), {"is_flag": True, "help": "Use no skills, and no commands of files."}),
    (("--debug-to-stderr",), {"is_flag": True, "help": "Also write the session's log to stderr, line by line."}),
    (("--betas",), {"metavar": "NAMES", "help": "Beta features: context-1m-2025-08-07."}),
    (
        ("--setting-sources",),
        {"metavar": "NAMES", "help": "Settings files to read: user, project, local; separate several with commas."},
    ),
)
"""Options that take effect."""

_LATER = "not supported in this version"
IGNORED: tuple[tuple[tuple[str, ...], dict[str, Any], str], ...] = (
    (("--task-budget",), {"type": click.IntRange(min=0)}, "use --max-budget-usd or --max-turns"),
    (("--bare",), {"is_flag": True}, "the content of a workspace is used only if a person trusted it"),
    (("--bg",), {"is_flag": True}, "start it in the background of your shell"),
    (("--debug-file",), {"metavar": "FILE"}, "each session has its log in the state folder"),
    (("--append-subagent-system-prompt",), {"metavar": "TEXT"}, "--append-system-prompt reaches every agent"),
    (("--prompt-suggestions",), {"is_flag": True}, _LATER),
    (
        ("--exclude-dynamic-system-prompt-sections",),
        {"is_flag": True},
        "the system prompt of a session never changes; what changes is in its messages",
    ),
    (("--ide",), {"is_flag": True}, "no editor is connected"),
    (("--chrome",), {"is_flag": True}, "no browser is connected; an MCP server can drive one"),
    (("--no-chrome",), {"is_flag": True}, "no browser is connected"),
    (("--brief",), {"is_flag": True}, "agents have tools to send messages"),
    (("--ax-screen-reader",), {"is_flag": True}, "the output is lines of text; --color never omits the colors"),
    (("--init",), {"is_flag": True}, "Setup hooks are not run"),
    (("--maintenance",), {"is_flag": True}, "Setup hooks are not run"),
    (("--teammate-mode",), {"metavar": "MODE"}, "teammates work in this process, and `callboard team` lists them"),
    (("--tmux",), {"is_flag": True}, "teammates work in this process, and `callboard team` lists them"),
)
"""Options that are accepted without effect, with the reason."""

_REFUSED: tuple[tuple[tuple[str, ...], dict[str, Any], str], ...] = (
    (("--from-pr",), {"metavar": "PR"}, "sessions are not linked to pull requests: use --resume ID or --resume NAME"),
    (("--init-only",), {"is_flag": True}, "Setup hooks are not run: run their command yourself"),
    (("--remote",), {"metavar": "TASK"}, "sessions run on this machine: omit the option"),
    (("--teleport",), {"is_flag": True}, "sessions run on this machine: use --resume ID"),
    (
        ("--remote-control",),
        {"is_flag": True},
        "sessions run on this machine; `callboard attach` follows one from another terminal",
    ),
    (
        ("--await-claim",),
        {"is_flag": True},
        "a session has its folder from its start: call query() instead of prewarm()",
    ),
    (
        ("--project-config-root",),
        {"metavar": "DIR"},
        "the configuration of a session comes from its own folder: omit the option, or use --setting-sources user",
    ),
)
"""Options that would change the effect of a run on a session and are not supported."""


_IMPLIED = ("--await-initialize",)
"""Options that request what Callboard does anyway: a session opens only after the `initialize` of its client."""


_FOR_RUN = frozenset(
    {
        *("print_", "output_format", "input_format", "include_partial_messages", "include_hook_events"),
        *("replay_user_messages", "json_schema", "record", "live_tools", "yes", "with_schedules", "detach"),
        *("placement", "carry", "no_session_persistence", "permission_prompt_tool", "permission_prompts"),
        *("forward_subagent_text", "session_mirror", "debug_to_stderr", "prompt_suggestions", "bg", "init_only"),
        *("await_claim", "await_initialize"),
    }
)
"""Parameters of `run` without effect at a prompt line."""


def is_for_run(context: click.Context) -> bool:
    """Return True if the command line has an option that only a run without a prompt line has."""
    return any(context.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in _FOR_RUN)


_RULE = late_pattern(r"(?:[A-Z]\w*|mcp__[\w*-]+|[a-z]+_[a-z_]+|bash|glob|grep|task)(?:\(.*\))?,?")
_FILE = late_pattern(r"\{.*|.*\.json", re.DOTALL)
_FOLDER = late_pattern(r"[/.~].*")
_SEVERAL: Mapping[str, re.Pattern[str]] = {
    **dict.fromkeys(("--allowed-tools", "--allowedTools", "--disallowed-tools", "--disallowedTools"), _RULE),
    "--add-dir": _FOLDER,
    "--mcp-config": _FILE,
}
"""Options that take several values after one name, as in Claude Code -> pattern of a further value. Any other word is
the prompt."""


_CATEGORIES = late_pattern(r"!?(?:api|mcp|hooks|file|statsig|tools)|!?[a-z]\w*(?:,!?[a-z]\w*)+")


def repeat_options(args: Sequence[str]) -> list[str]:
    """Return the line with one option for each value: `--add-dir ../a --add-dir ../b` for `--add-dir ../a ../b`.

    The categories of `--debug api,mcp` are left out: there is one kind of debugging.
    """
    line: list[str] = []
    rest = list(args)
    while rest:
        word = rest.pop(0)
        line.append(word)
        if word == "--":
            return [*line, *rest]
        if word in ("-d", "--debug") and rest and _CATEGORIES.fullmatch(rest[0]):
            rest.pop(0)
        if word in _SEVERAL and rest:
            line.append(rest.pop(0))
            while rest and _SEVERAL[word].fullmatch(rest[0]):
                line += [word, rest.pop(0)]
    return line


class RunCommand(click.Command):
    """The command `run`, whose options may be followed by several values."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, repeat_options(args))


def client_options(command: Command) -> Command:
    """Add all options for programs; those without effect are hidden."""
    visible = [click.option(*names, **settings) for names, settings in HONOURED]
    hidden = [click.option(*names, hidden=True, **settings) for names, settings, _ in (*IGNORED, *_REFUSED)]
    hidden += [click.option(name, is_flag=True, hidden=True) for name in _IMPLIED]
    for option in reversed([*visible, *hidden]):
        command = option(command)
    return command


def option_names() -> frozenset[str]:
    """Return the names of all options for programs."""
    return frozenset(name for names, *_ in (*HONOURED, *IGNORED, *_REFUSED, (_IMPLIED,)) for name in names)


def ignored_options(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each given option without effect. Raises `UsageError` for an unsupported option."""
    for (name,), _, reason in _REFUSED:
        if values.get(_key(name)):
            raise UsageError(f"{name}: {reason}")
    for (name,), _, reason in IGNORED:
        if values.get(_key(name)) not in (None, False, ()):
            yield f"{name} is ignored: {reason}"
    client = values.get("input_format") == "stream-json"
    for name in (
        *("--replay-user-messages", "--include-hook-events", "--permission-prompt-tool", "--permission-prompts"),
        *("--forward-subagent-text", "--session-mirror"),
    ):
        if values.get(_key(name)) and not client:
            yield f"{name} is ignored: it requires --input-format stream-json"
    if values.get("fork_session") and not (values.get("continue_") or values.get("resumed")):
        yield "--fork-session is ignored: it requires -c or -r"
    if values.get("include_partial_messages") and values.get("output_format") != "stream-json":
        yield "--include-partial-messages is ignored: it requires --output-format stream-json"


def _key(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def json_object(text: str, subject: str) -> dict[str, Any]:
    """Parse the JSON object of an option or an argument. Raises `UsageError`."""
    import json  # noqa: PLC0415 - it would slow down `--help`

    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{subject} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UsageError(f"{subject} must be a JSON object (`{{ ... }}`)")
    refuse_half_characters(cast("dict[str, Any]", value), subject)
    return cast("dict[str, Any]", value)


def answer_schema(text: str | None) -> dict[str, Any] | None:
    """Return the schema of `--json-schema`; None without it. Raises `UsageError`."""
    from callboard.core.full_json_schema import answer_schema_fault  # noqa: PLC0415 - it would slow down `--help`

    if not text:
        return None
    schema = json_object(text, "--json-schema")
    if fault := answer_schema_fault(schema):
        raise UsageError(f"--json-schema: {fault}")
    return schema


def refuse_half_characters(value: object, subject: str) -> None:
    """Raise `UsageError` for JSON with half of a surrogate pair, which no file and no record can contain."""
    import json  # noqa: PLC0415 - it would slow down `--help`

    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        raise UsageError(f"{subject} contains {half}, half of a surrogate pair: write the whole character") from error

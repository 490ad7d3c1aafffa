"""Options with which programs start a session: the flags of the agent SDKs, read into the options of the session."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

from callboard.adapters.extensions.claude_settings import ClaudeSettings, read_claude
from callboard.adapters.extensions.hook_fields import HookOrigin
from callboard.adapters.extensions.hooks import HookEntry, load_hooks
from callboard.adapters.processes.tool_ancestry import refuse_inside_tool
from callboard.cli.commands.client_options import (
    answer_schema,
    ignored_options,
    json_object,
    refuse_half_characters,
)
from callboard.cli.commands.options import split_list
from callboard.cli.headless.json_result import schema_words
from callboard.cli.headless.options import ClientOptions, agents_of
from callboard.core.tool_access import our_names
from callboard.sessions.options import SessionOptions
from callboard.types.agent_spec import READ_AS, ThinkingChoice
from callboard.types.errors import UsageError
from callboard.types.model_names import LONG

BYPASS = "bypassPermissions"
LONG_CONTEXT = "context-1m-2025-08-07"
"""The beta feature of a context window of a million tokens."""
SOURCES = ("user", "project", "local")
"""Names of `--setting-sources`, as in Claude Code."""
_STATES = ("CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS", "CLAUDE_CODE_SDK_READS_SESSION_STATE")
"""Variables by which a client, or its library, asks for session state events."""
_THINKING = "MAX_THINKING_TOKENS"
"""Variable with the tokens for the thinking of the lead's model, if no option sets them."""
_CHECKPOINTS = "CLAUDE_CODE_ENABLE_SDK_FILE_CHECKPOINTING"
"""Variable by which a client asks for copies of files before they change."""
_POLICY = (
    "permission_prompt_tool",
    "dangerously_skip_permissions",
    "allow_dangerously_skip_permissions",
    "settings",
    "add_dir",
)
"""Options with which a process could grant permissions that only a person may grant."""


def with_client_flags(values: Mapping[str, Any], options: SessionOptions) -> tuple[SessionOptions, list[str]]:
    """Return the options extended by a program's flags, and one line for each flag without effect.

    Raises `UsageError`.
    """
    for name in _POLICY:
        if values.get(name):
            refuse_inside_tool(f"--{name.replace('_', '-')}")
    notes = list(ignored_options(values))
    flags = dict(options.workspace.flags)
    if values.get("dangerously_skip_permissions"):
        if flags.get("permission.mode") not in (None, BYPASS):
            raise UsageError("--dangerously-skip-permissions is the mode bypassPermissions: omit --permission-mode")
        flags["permission.mode"] = BYPASS
    if values.get("fallback_model"):
        flags["fallback_models"] = list(split_list([values["fallback_model"]]))
    named = values.get("setting_sources") is not None
    workspace = replace(options.workspace, flags=flags, sources=_sources(values), sources_named=named)
    options = replace(options, workspace=workspace)
    if values.get("settings"):
        options, setting_notes = _with_settings(values["settings"], options)
        notes += setting_notes
    if values.get("managed_settings"):
        options, setting_notes = _with_managed(values["managed_settings"], options)
        notes += setting_notes
    options = _with_folders(tuple(values.get("add_dir") or ()), _with_betas(values.get("betas") or "", options))
    kept = not values.get("no_session_persistence")
    hosting = replace(options.hosting, persistent=kept, debug=bool(values.get("debug_to_stderr")))
    options = replace(options, hosting=hosting)
    if values.get("agents"):
        agents, agent_notes = agents_of(json_object(values["agents"], "--agents"), "--agents")
        extensions = replace(options.extensions, agents={**options.extensions.agents, **agents})
        options = replace(options, extensions=extensions)
        notes = [*notes, *agent_notes]
    return _with_lead(values, options, notes), notes


def _sources(values: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the sources of files to read; None: only the rules of trust apply. Raises `UsageError`.

    A program that drives a session cannot be asked to trust the workspace, so it reads all sources by default, as
    Claude Code does: an untrusted workspace is used without its grants and programs.
    """
    named = values.get("setting_sources")
    if named is None:
        return frozenset(SOURCES) if values.get("input_format") == "stream-json" else None
    sources = split_list([named])
    if unknown := sorted({*sources} - {*SOURCES}):
        raise UsageError(f"--setting-sources {', '.join(unknown)}: choose from {', '.join(SOURCES)}")
    return frozenset(sources)


def _with_lead(values: Mapping[str, Any], options: SessionOptions, notes: list[str]) -> SessionOptions:
    """Add the lead's prompt and tools, and the session id. Raises `UsageError`."""
    if values.get("system_prompt") and values.get("system_prompt_file"):
        raise UsageError("--system-prompt and --system-prompt-file are two prompts of the lead: give one of the two")
    system = values.get("system_prompt") or _text_of(values.get("system_prompt_file"), "--system-prompt-file")
    appended = [options.lead.appended, _text_of(values.get("append_system_prompt_file"), "--append-system-prompt-file")]
    schema = answer_schema(values.get("json_schema"))
    tools = None
    if values.get("tools") not in (None, "default"):
        names = split_list([values["tools"]])
        notes += [f"--tools: there is no tool {tool} here" for tool in names if not our_names(tool)]
        tools = tuple(tool for tool in names if our_names(tool))
    name = str(values.get("session_id") or "")
    if name and options.identity.resume and not values.get("fork_session"):
        raise UsageError(
            "--session-id requires a new session: omit it, or --continue and --resume, or add --fork-session"
        )
    lead = replace(
        options.lead,
        thinking=_thinking(values),
        instructions=system.strip(),
        appended="\n\n".join(text for text in appended if text),
        schema=schema_words(schema) if schema is not None else "",
        tools=tools,
        agent_type=values.get("agent") or options.lead.agent_type,
    )
    return replace(options, lead=lead, identity=replace(options.identity, name=_id_of(name) if name else ""))


def _thinking(values: Mapping[str, Any]) -> ThinkingChoice | None:
    """Return the thinking that the options or `MAX_THINKING_TOKENS` request; None if they request none.

    Raises `UsageError`.
    """
    budget: int | None = values.get("max_thinking_tokens")
    kind: Literal["adaptive", "enabled", "disabled"] | None = values.get("thinking")
    tokens = os.environ.get(_THINKING, "").strip()
    if budget is None and kind is None and tokens:
        if not (tokens.isascii() and tokens.isdecimal()):
            raise UsageError(f"{_THINKING}={tokens} is not a number of tokens: set it to one, 0 for none, or unset it")
        budget = int(tokens)
    if kind is None and budget is not None:
        kind = "enabled" if budget else "disabled"
    display = values.get("thinking_display")
    if kind is None and display is None:
        return None
    return ThinkingChoice(kind=kind or "adaptive", budget=budget or None, display=display or "")


def _with_betas(betas: str, options: SessionOptions) -> SessionOptions:
    """Request the beta features of the service. Raises `UsageError` for an unknown one."""
    if unknown := [name for name in split_list([betas]) if name != LONG_CONTEXT]:
        raise UsageError(f"--betas {', '.join(unknown)}: only {LONG_CONTEXT} is supported")
    name = options.model.name
    if not betas or name is None or name.endswith(LONG) or ":" in name:
        return options
    return replace(options, model=replace(options.model, name=f"{name}{LONG}"))


def _with_folders(folders: tuple[str, ...], options: SessionOptions) -> SessionOptions:
    """Allow reading in more folders. Raises `UsageError` for one that does not exist."""
    if not folders:
        return options
    flags = dict(options.workspace.flags)
    resolved = [options.workspace.folder.joinpath(Path(folder).expanduser()).resolve() for folder in folders]
    if missing := [str(folder) for folder in resolved if not folder.is_dir()]:
        raise UsageError(f"--add-dir {', '.join(missing)}: there is no such folder")
    flags["permission.allow"] = [
        *_as_list(flags.get("permission.allow")),
        *(f"Read(/{str(path).rstrip('/')}/**)" for path in resolved),
    ]
    return replace(options, workspace=replace(options.workspace, flags=flags))


def _with_managed(text: str, options: SessionOptions) -> tuple[SessionOptions, list[str]]:
    """Add the restrictions of settings that the program that starts the run manages: its deny and ask rules.

    Raises `UsageError`.
    """
    given = json_object(text, "--managed-settings")
    read = read_claude(text.encode(), "--managed-settings", person=True, trusted=True)
    unread = [
        report for report in read.verdicts if report.verdict == "refused" and report.name.startswith("permissions")
    ]
    if unread:
        raise UsageError("; ".join(map(str, unread)))
    flags = dict(options.workspace.flags)
    for kind in ("deny", "ask"):
        if rules := read.rules.get(kind):
            name = f"permission.{kind}"
            flags[name] = [*_as_list(flags.get(name)), *(rule for rule, _ in rules)]
    if read.bypass_off and flags.get("permission.mode") == BYPASS:
        raise UsageError(f"bypassPermissions is switched off by {read.bypass_off}")
    ignored = sorted({*given} - {"permissions"})
    notes = [f"--managed-settings: {name} is ignored: only deny and ask rules restrict a run" for name in ignored]
    return replace(options, workspace=replace(options.workspace, flags=flags)), notes


def _id_of(text: str) -> str:
    try:
        return str(uuid.UUID(text))
    except ValueError as error:
        raise UsageError(f"--session-id {text} is not a UUID") from error


def _text_of(path: str | None, option: str) -> str:
    if path is None:
        return ""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"{option} {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{option} {path} is not UTF-8 text") from error


def _with_settings(text: str, options: SessionOptions) -> tuple[SessionOptions, list[str]]:
    """Add the rules, mode and hooks of a `settings.json`, which belongs to the user."""
    inline = text.lstrip().startswith("{")
    path = "--settings" if inline else text
    raw = text.encode() if inline else _text_of(text, "--settings").encode()
    read = read_claude(raw, path, person=True, trusted=True)
    flags = dict(options.workspace.flags)
    for kind, rules in read.rules.items():
        name = f"permission.{kind}"
        flags[name] = [*_as_list(flags.get(name)), *(rule for rule, _ in rules)]
    if read.mode is not None and flags.get("permission.mode") is None:
        flags["permission.mode"] = read.mode[0]
    for address, (value, _) in read.settings.items():
        flags.setdefault(".".join(address), value)
    if read.bypass_off and flags.get("permission.mode") == BYPASS:
        raise UsageError(f"bypassPermissions is switched off by {read.bypass_off}")
    refuse_half_characters([flags, dict(read.variables)], path)
    hooks, hook_notes = _hooks_of(read, raw, path, options)
    flags = {name: value for name, value in flags.items() if value not in (None, [])}
    extended = replace(
        options,
        workspace=replace(options.workspace, flags=flags, variables=read.variables),
        extensions=replace(options.extensions, hooks=(*options.extensions.hooks, *hooks)),
    )
    return extended, hook_notes


def _as_list(value: object) -> list[object]:
    return [*value] if isinstance(value, list | tuple) else []  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - JSON


def _hooks_of(
    read: ClaudeSettings, raw: bytes, path: str, options: SessionOptions
) -> tuple[tuple[HookEntry, ...], list[str]]:
    hooks = load_hooks(Path(path), HookOrigin(str(options.workspace.folder.resolve())), raw)
    lost = [str(entry) for entry in read.verdicts if entry.verdict != "honored"]
    return hooks.entries, [*lost, *(str(note) for note in hooks.notes)]


def options_for_client(values: Mapping[str, Any], options: SessionOptions, mode: str) -> ClientOptions:
    """Return the options of a run that a client drives. Raises `UsageError` for options that exclude each other."""
    refuse_inside_tool("--input-format stream-json")
    if values["output_format"] != "stream-json":
        raise UsageError("--input-format stream-json requires --output-format stream-json")
    emits, reads, checkpoints = (
        os.environ.get(name, "").lower() in ("1", "true", "yes", "on") for name in (*_STATES, _CHECKPOINTS)
    )
    may_bypass = options.permissions.may_bypass or options.workspace.flags.get("permission.mode") == BYPASS
    return ClientOptions(
        options=options,
        mode=mode,
        first=values["prompt"] if (values["prompt"] or "").strip() else None,  # some clients pass an empty argument
        partial=bool(values["include_partial_messages"]),
        replays=bool(values["replay_user_messages"]),
        hook_events=bool(values["include_hook_events"]),
        asks=values["permission_prompt_tool"] == "stdio" and values["permission_prompts"] != "none",
        prompt_tool=_prompt_tool(values),
        forwards=bool(values["forward_subagent_text"]),
        mirrors=bool(values["session_mirror"]),
        betas=split_list([values["betas"] or ""]),
        may_bypass=may_bypass,
        schema=answer_schema(values.get("json_schema")),
        servers=sdk_servers(tuple(values.get("mcp_config") or ())),
        checkpoints=checkpoints,
        states=emits or reads,
        quiet_states=not emits,
    )


def _prompt_tool(values: Mapping[str, Any]) -> str:
    """Return the MCP tool that answers permission requests; empty: none. Raises `UsageError` for another name."""
    name = str(values["permission_prompt_tool"] or "")
    if name in ("", "stdio") or values["permission_prompts"] == "none":
        return ""
    if not re.fullmatch(r"mcp__.+__.+", name):
        raise UsageError(f"--permission-prompt-tool {name}: name an MCP tool (mcp__server__tool), or stdio")
    return name


def sdk_servers(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the servers that run in the client. Raises `UsageError` for an invalid configuration."""
    names: list[str] = []
    for text in texts:
        inline = text.lstrip().startswith("{")
        read = json_object(text if inline else _text_of(text, "--mcp-config"), "--mcp-config")
        servers: Any = read.get("mcpServers")
        if not isinstance(servers, dict):
            raise UsageError("--mcp-config must contain an object `mcpServers`: the name of each server -> its entry")
        listed = cast("dict[str, Any]", servers)
        names += [name for name, entry in listed.items() if isinstance(entry, dict) and entry.get("type") == "sdk"]  # pyright: ignore[reportUnknownMemberType] - JSON
    return tuple(dict.fromkeys(names))


def mode_of(values: Mapping[str, Any], options: SessionOptions) -> str:
    """Return the requested permission mode."""
    mode = str(options.workspace.flags.get("permission.mode") or values.get("permission_mode") or "default")
    return READ_AS.get(mode, mode)  # pyright: ignore[reportReturnType] - a mode is text

"""From the options for programs to what is opened and how it is told: the part of `run` that such programs use."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from callboard.adapters.claude_settings import ClaudeSettings, read_claude
from callboard.adapters.hook_fields import HookOrigin
from callboard.adapters.hook_files import HookEntry, load_hooks
from callboard.app import Options
from callboard.core.toolset import our_names
from callboard.faces.cli.client_options import json_object, not_heeded, split_list
from callboard.faces.cli.options import refuse_tools
from callboard.faces.headless.begun import agents_of
from callboard.faces.headless.structured import schema_words
from callboard.faces.headless.wishes import Wishes
from callboard.words.errors import UsageError
from callboard.words.specs import READ_AS

BYPASS = "bypassPermissions"
_STATES = ("CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS", "CLAUDE_CODE_SDK_READS_SESSION_STATE")
"""Variables by which a client, or only its library, asks to be told when the session is at work."""
_POLICY = (
    "permission_prompt_tool",
    "dangerously_skip_permissions",
    "allow_dangerously_skip_permissions",
    "settings",
)
"""Options by which somebody would allow himself what a person has to allow."""


def told_options(asked: Mapping[str, Any], options: Options) -> tuple[Options, list[str]]:
    """The options with what a program's flags add, and what of them is not heeded, a line each. Raises `UsageError`."""
    for name in _POLICY:
        if asked.get(name):
            refuse_tools(f"--{name.replace('_', '-')}")
    notes = list(not_heeded(asked))
    flags = dict(options.flags)
    if asked.get("dangerously_skip_permissions"):
        if flags.get("permission.mode") not in (None, BYPASS):
            raise UsageError(
                "--dangerously-skip-permissions is the mode bypassPermissions: leave --permission-mode out"
            )
        flags["permission.mode"] = BYPASS
    if asked.get("fallback_model"):
        flags["fallback_models"] = list(split_list([asked["fallback_model"]]))
    options = replace(options, flags=flags)
    if asked.get("settings"):
        options, more = _with_settings(asked["settings"], options)
        notes += more
    if asked.get("agents"):
        found, told = agents_of(json_object(asked["agents"], "--agents"), "--agents")
        options, notes = replace(options, agents={**options.agents, **found}), [*notes, *told]
    return _with_lead(asked, options, notes), notes


def _with_lead(asked: Mapping[str, Any], options: Options, notes: list[str]) -> Options:
    """What the lead is told, what it has, and the id of its session."""
    system = asked.get("system_prompt") or _text_of(asked.get("system_prompt_file"), "--system-prompt-file")
    appended = [options.appended, _text_of(asked.get("append_system_prompt_file"), "--append-system-prompt-file")]
    if asked.get("json_schema"):
        appended.append(schema_words(json_object(asked["json_schema"], "--json-schema")))
    tools = None
    if asked.get("tools") not in (None, "default"):
        wanted = split_list([asked["tools"]])
        notes += [f"--tools: there is no tool {one} here" for one in wanted if not our_names(one)]
        tools = tuple(one for one in wanted if our_names(one))
    name = str(asked.get("session_id") or "")
    if name and options.resume:
        raise UsageError("--session-id goes with a new session: leave it out, or --continue and --resume")
    return replace(
        options,
        instructions=system.strip(),
        appended="\n\n".join(text for text in appended if text),
        lead_tools=tools,
        lead_type=asked.get("agent") or options.lead_type,
        name=_id_of(name) if name else "",
    )


def _id_of(text: str) -> str:
    try:
        return str(uuid.UUID(text))
    except ValueError as error:
        raise UsageError(f"--session-id {text} is no UUID") from error


def _text_of(path: str | None, option: str) -> str:
    if path is None:
        return ""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{option} {path} cannot be read: {error}") from error


def _with_settings(given: str, options: Options) -> tuple[Options, list[str]]:
    """Rules, mode and hooks of a `settings.json`, which is the person's own."""
    inline = given.lstrip().startswith("{")
    path = "--settings" if inline else given
    raw = given.encode() if inline else _text_of(given, "--settings").encode()
    read = read_claude(raw, path, person=True, trusted=True)
    flags = dict(options.flags)
    for kind, rules in read.rules.items():
        name = f"permission.{kind}"
        flags[name] = [*_listed(flags.get(name)), *(rule for rule, _ in rules)]
    if read.mode is not None and flags.get("permission.mode") is None:
        flags["permission.mode"] = read.mode[0]
    if read.bypass_off and flags.get("permission.mode") == BYPASS:
        raise UsageError(f"bypassPermissions is switched off by {read.bypass_off}")
    hooks, more = _hooks_of(read, raw, path, options)
    flags = {name: value for name, value in flags.items() if value not in (None, [])}
    return replace(options, flags=flags, hooks=(*options.hooks, *hooks)), more


def _listed(value: object) -> list[object]:
    return [*value] if isinstance(value, list | tuple) else []  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - of rules


def _hooks_of(read: ClaudeSettings, raw: bytes, path: str, options: Options) -> tuple[tuple[HookEntry, ...], list[str]]:
    hooks = load_hooks(Path(path), HookOrigin(str(options.workspace.resolve())), raw)
    lost = [str(one) for one in read.told if one.verdict != "honoured"]
    return hooks.entries, [*lost, *(str(note) for note in hooks.notes)]


def wishes_of(asked: Mapping[str, Any], options: Options, mode: str) -> Wishes:
    """A run that a client drives. Raises `UsageError` for options that do not go together."""
    refuse_tools("--input-format stream-json")
    if asked["output_format"] != "stream-json":
        raise UsageError("--input-format stream-json goes with --output-format stream-json")
    emits, reads = (os.environ.get(name, "").lower() in ("1", "true", "yes", "on") for name in _STATES)
    may_bypass = bool(asked["allow_dangerously_skip_permissions"]) or options.flags.get("permission.mode") == BYPASS
    schema = asked.get("json_schema")
    return Wishes(
        options=options,
        mode=mode,
        first=asked["prompt"],
        partial=bool(asked["include_partial_messages"]),
        replays=bool(asked["replay_user_messages"]),
        hook_events=bool(asked["include_hook_events"]),
        asks=asked["permission_prompt_tool"] == "stdio",
        may_bypass=may_bypass,
        schema=json_object(schema, "--json-schema") if schema else None,
        servers=sdk_servers(tuple(asked.get("mcp_config") or ())),
        states=emits or reads,
        quiet_states=not emits,
    )


def sdk_servers(given: tuple[str, ...]) -> tuple[str, ...]:
    """The names of the servers that live in the client. Raises `UsageError` for what is no such configuration."""
    found: list[str] = []
    for text in given:
        inline = text.lstrip().startswith("{")
        read = json_object(text if inline else _text_of(text, "--mcp-config"), "--mcp-config")
        servers: Any = read.get("mcpServers")
        if not isinstance(servers, dict):
            raise UsageError("--mcp-config has an object `mcpServers`: the name of each server -> its entry")
        listed = cast("dict[str, Any]", servers)
        found += [name for name, one in listed.items() if isinstance(one, dict) and one.get("type") == "sdk"]  # pyright: ignore[reportUnknownMemberType] - of an entry
    return tuple(dict.fromkeys(found))


def mode_of(asked: Mapping[str, Any], options: Options) -> str:
    """The permission mode that was asked for."""
    mode = str(options.flags.get("permission.mode") or asked.get("permission_mode") or "default")
    return READ_AS.get(mode, mode)  # pyright: ignore[reportReturnType] - a mode is text

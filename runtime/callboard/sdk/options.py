"""Keyword options of `Session(...)`, and their conversion into the options of the runtime."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, TypedDict, TypeVar, cast

import anyio

from callboard.ports.environment import Approver, Observer
from callboard.sdk.agents import Agent, agent_files, is_runtime_tool, tools_of
from callboard.sdk.approvers import ApproverFunction, approver_of
from callboard.sdk.errors import UsageError
from callboard.sdk.function_tool import THREADS, InProcessTool
from callboard.sdk.streams import ProgramObserver
from callboard.sdk.tools import AnyTool, FunctionTool
from callboard.sessions.options import (
    ExtensionOptions,
    HostingOptions,
    IdentityOptions,
    LeadOptions,
    McpOptions,
    ModelOptions,
    PermissionOptions,
    SessionOptions,
    WorkspaceOptions,
)
from callboard.types.choices import unknown
from callboard.types.hook_answers import MARKS
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Budget, PermissionMode
from callboard.types.schedules import Schedule

Stage = Callable[..., object]
"""A stage of the context pipeline: `(view, budget, now, **params) -> list[Edit] | None` (docs/context.md)."""

T = TypeVar("T")

_LISTS = (
    "agents",
    "tools",
    "lead_tools",
    "denied",
    "hooks",
    "schedules",
    "observers",
    "allow",
    "deny",
    "plugins",
    "mcp",
)
"""Options whose values are lists; `mcp` may also be a mapping."""
_ENTRIES: Mapping[str, tuple[tuple[type[Any], ...], str]] = {
    "agents": ((Agent,), "give an `Agent`, or a function with `@agent()`; agents of files need no entry"),
    "lead_tools": ((str,), "give the name of a tool"),
    "denied": ((str,), "give the name of a tool"),
    "schedules": ((Schedule,), "give what `schedule(...)` returns"),
    "allow": ((str,), "give the text of a rule, such as `Bash(npm test:*)`"),
    "deny": ((str,), "give the text of a rule, such as `Bash(npm test:*)`"),
    "plugins": ((str, Path), "give the path of a folder"),
    "mcp": ((str, Path), "give the path of a file, or name -> entry in place of the list"),
}
"""Options -> the types of their entries, and what to write."""
_SINGLE: Mapping[str, tuple[tuple[type[Any], ...], str]] = {
    "model": ((str, NoneType), "the name of a model"),
    "lead": ((str, Agent), "the name of an agent type, or an `Agent`"),
    "instructions": ((str, NoneType), "a text"),
    "appended": ((str, NoneType), "a text"),
    "stages": ((Mapping,), "name -> function"),
    "answerable": ((bool, NoneType), "True or False"),
    "permission_mode": ((str, NoneType), "the name of a mode"),
    "budget": ((int, float, Budget, NoneType), "a number of US dollars from 0 on, or a Budget"),
    "max_turns": ((int, NoneType), "a number from 1 on"),
    "trust": ((bool, NoneType), "True or False"),
    "settings": ((Mapping,), "name -> value"),
    "id": ((str,), "a text"),
    "carry": ((bool, NoneType), "True or False"),
    "with_schedules": ((bool, NoneType), "True or False"),
}
"""Options of a single value -> its types, and what to write. None is the default of an option that lists it."""
_NUMBERS = ("budget", "max_turns")
"""Options that are numbers: True is an `int` for Python, but no number here."""
_LONGEST_ID = 200
"""Most bytes of a session's id."""


class SessionKeywords(TypedDict, total=False):
    """Keyword options of `Session(...)`, `Session.resume` and `Session.attach`. All are optional."""

    model: str
    """Name of a model, or `rehearsal:FILE` (no key, no network). Default: the model of the settings."""
    agents: Sequence[Agent]
    """Agent types of this session, in addition to those of files. They replace file types of the same name."""
    lead: str | Agent
    """Agent type of a new session's lead. Default: `lead`."""
    instructions: str
    """Replacement for the lead's prompt. Default: the prompt of its type."""
    appended: str
    """Text at the end of every agent's prompt."""
    tools: Sequence[AnyTool]
    """Tools of every agent whose type does not list its tools."""
    lead_tools: Sequence[str]
    """The only runtime tools of the lead, by name; `[]`: only your own tools. Default: the tools of its type."""
    denied: Sequence[str]
    """Tools that the lead does not have: of the runtime, or your own."""
    hooks: Sequence[Callable[..., Any]]
    """Functions with `@hook`, in addition to the hooks of files."""
    schedules: Sequence[Schedule]
    """Schedules made by `schedule(...)`. A schedule that the session already has is not changed."""
    stages: Mapping[str, Stage]
    """Stages of the context pipeline that settings may name: `{"code:trim": trim}` with `settings={"context.pipeline":
    ["code:trim", "summarize_all"]}`."""
    approver: Approver | ApproverFunction
    """Approver of requests: a function of the request, async or not, that returns True, False or a string; or an object
    with a method `answer`."""
    answerable: bool
    """True if requests wait for `session.answer`, as long as the setting `ask.deadline` says (30 minutes). Otherwise
    they are rejected at once. Default: True with an `approver`."""
    observers: Sequence[Observer]
    """Observers of every record and every part of a reply. They run in the thread of the event loop and must not block
    or raise."""
    permission_mode: PermissionMode
    """Permission mode for calls that no rule decides."""
    allow: Sequence[str]
    """Permission rules, such as `Bash(npm test:*)`, for calls that run without a question."""
    deny: Sequence[str]
    """Permission rules for calls that are denied."""
    budget: float | Budget
    """Budget of the whole session: US dollars, or a `Budget`."""
    max_turns: int
    """Most model steps in a turn of the lead, from 1."""
    trust: bool
    """Use the workspace's own hooks, agents, servers and settings."""
    settings: Mapping[str, object]
    """Settings by dotted name, or as a tree. These values override files and the environment."""
    plugins: Sequence[str | Path]
    """Folders of plugins."""
    mcp: Mapping[str, Mapping[str, object]] | Sequence[str | Path]
    """MCP servers by name, as in `mcpServers`; or paths of files with such entries."""
    id: str
    """Id of a new session. Default: a generated id."""
    carry: bool
    """With `resume`: begin a fresh conversation with a summary of the previous one."""
    with_schedules: bool
    """Let a run continue until the schedules have fired for the last time."""


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """Session to open, with its approvers, observers and schedules."""

    options: SessionOptions
    approvers: tuple[Approver, ...]
    observers: tuple[Observer, ...]
    schedules: tuple[Schedule, ...]


def session_request(
    workspace: str | Path, chosen: SessionKeywords, *, resume: bool = False, session: str | None
) -> SessionRequest:
    """Convert these options into the options of the runtime.

    Raises `UsageError` for an unknown option or an invalid value.
    """
    extra = [name for name in chosen if name not in SessionKeywords.__annotations__]
    if extra:
        raise UsageError(unknown("option", extra[0], SessionKeywords.__annotations__))
    _check_lists(chosen)
    _check_single(chosen)
    _check_id(chosen.get("id", ""))
    lead = chosen.get("lead", "lead")
    agents = [*chosen.get("agents", ()), *([lead] if isinstance(lead, Agent) else [])]
    shared = [_a_tool(entry) for entry in chosen.get("tools", ())]
    tools = list({id(tool): tool for tool in (*shared, *tools_of(agents))}.values())
    names = [tool.name for tool in tools]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"two tools have the name {twice}: rename one")
    threads = anyio.CapacityLimiter(THREADS)
    approver = chosen.get("approver")
    options = SessionOptions(
        WorkspaceOptions(Path(workspace), flags=_flags(chosen), trust=chosen.get("trust", False)),
        identity=IdentityOptions(
            session=session, resume=resume, carry=chosen.get("carry", False), name=chosen.get("id", "")
        ),
        model=ModelOptions(chosen.get("model"), max_cost_usd=_dollars(chosen.get("budget"))),
        lead=LeadOptions(
            disallowed=tuple(chosen.get("denied", ())),
            appended=chosen.get("appended", ""),
            agent_type=lead.name if isinstance(lead, Agent) else lead,
            instructions=chosen.get("instructions", ""),
            tools=tuple(chosen["lead_tools"]) if "lead_tools" in chosen else None,
        ),
        permissions=PermissionOptions(answerable=chosen.get("answerable", approver is not None)),
        mcp=McpOptions(config=_servers(chosen.get("mcp", ())), must_fit=True, wait=True),
        extensions=ExtensionOptions(
            agents=agent_files(agents, names, [tool.name for tool in shared]),
            plugins=tuple(_folder(folder) for folder in chosen.get("plugins", ())),
            tools=tuple(InProcessTool(tool, threads) for tool in tools),
            own=tuple(tool.name for tool in shared),
            hook_functions=tuple(_a_hook(function) for function in chosen.get("hooks", ())),
            stages=_stages(chosen.get("stages", {})),
        ),
        hosting=HostingOptions(
            embedded=True, commands_at_rest="leave", with_schedules=chosen.get("with_schedules", False)
        ),
    )
    _check_names(options.lead, names)
    approvers = () if approver is None else (approver_of(approver),)
    observers = tuple(ProgramObserver(_an_observer(observer)) for observer in chosen.get("observers", ()))
    return SessionRequest(options, approvers, observers, tuple(chosen.get("schedules", ())))


def _check_lists(chosen: SessionKeywords) -> None:
    """Raise `UsageError` for a single value in place of a list: of a text, each character would count."""
    for name in _LISTS:
        value: object = chosen.get(name, ())
        if isinstance(value, str | bytes) or not isinstance(value, Iterable):
            raise UsageError(f"{name}: give a list, as in {name}=[...], not {value!r:.80}")
        kinds, advice = _ENTRIES.get(name, ((object,), ""))
        for entry in () if isinstance(value, Mapping) else cast("Iterable[object]", value):
            if not isinstance(entry, kinds):
                raise UsageError(f"{name}: {entry!r:.80} cannot be an entry: {advice}")


def _check_single(chosen: SessionKeywords) -> None:
    """Raise `UsageError` for a value of a wrong type, and for a number of steps under 1."""
    for name, (kinds, advice) in _SINGLE.items():
        if name not in chosen:
            continue
        value = cast("object", chosen[name])
        if not isinstance(value, kinds) or (name in _NUMBERS and isinstance(value, bool)):
            raise UsageError(f"{name}: give {advice}, not {value!r:.80}")
    most = chosen.get("max_turns")
    if most is not None and most < 1:
        raise UsageError(f"max_turns: give {_SINGLE['max_turns'][1]}, not {most}")


def _check_id(value: str) -> None:
    """Raise `UsageError` for an id that cannot be the name of a folder, or a part of a key."""
    if "/" in value or value.startswith(".") or not value.isprintable() or len(value.encode()) > _LONGEST_ID:
        rule = f"letters, digits, and hyphens, at most {_LONGEST_ID}"
        raise UsageError(f"id: {value!r:.80} cannot be the id of a session: write {rule}")


def _check_names(lead: LeadOptions, own: Sequence[str]) -> None:
    """Raise `UsageError` for a tool of the lead that does not exist."""
    for option, names in (("lead_tools", lead.tools or ()), ("denied", lead.disallowed)):
        for name in names:
            if name not in own and not is_runtime_tool(name):
                raise UsageError(f"{option}: there is no tool {name!r}; your tools: {', '.join(own) or 'none'}")


def _servers(servers: Mapping[str, Mapping[str, object]] | Sequence[str | Path]) -> tuple[str, ...]:
    """Return MCP servers in the form of `--mcp-config`: JSON texts and paths."""
    if isinstance(servers, Mapping):
        return (json.dumps({"mcpServers": _copied(servers)}),) if servers else ()
    return tuple(str(path) for path in servers)


def _a_tool(value: object) -> AnyTool:
    if not isinstance(value, FunctionTool):
        raise UsageError(f"{value!r} is not a tool: decorate the function with `@tool`")
    return cast("AnyTool", value)


def _folder(folder: str | Path) -> Path:
    """Return the path of a plugin. Raises `UsageError` if it is no folder: a program reads no note about it."""
    path = Path(folder)
    if not path.is_dir():
        raise UsageError(f"plugins: {path} is not a folder")
    return path


def _a_hook(function: Callable[..., Any]) -> Callable[..., Any]:
    if not getattr(function, MARKS, ()):
        raise UsageError(f'{function!r} is not a hook: decorate the function with `@hook("PreToolUse")` or similar')
    return function


def _an_observer(observer: Observer) -> Observer:
    missing = [name for name in ("on_event", "on_delta", "on_mail") if not callable(getattr(observer, name, None))]
    if missing:
        raise UsageError(f"observers: {observer!r:.80} cannot be an entry: it has no method `{missing[0]}`")
    return observer


def _stages(stages: Mapping[str, Stage]) -> Mapping[str, Stage]:
    for name, stage in stages.items():
        if name.count(":") != 1:
            raise UsageError(f"stages: {name!r} is not a valid name: write it as code:{name.replace(':', '_')}")
        if not callable(stage):
            raise UsageError(f"stages: {name} is a function, not {stage!r:.80}")
    return stages


def _dollars(budget: float | Budget | None) -> float | None:
    if isinstance(budget, Budget):
        return budget.cost_usd
    if budget is not None and not budget >= 0:
        raise UsageError(f"budget: give {_SINGLE['budget'][1]}, not {budget}")
    return None if budget is None else float(budget)


def _flags(chosen: SessionKeywords) -> dict[str, object]:
    """Return the settings that these options set, by dotted name."""
    flags: dict[str, object] = {}
    for name, value in chosen.get("settings", {}).items():
        flags[name] = _copied(value)
    budget = chosen.get("budget")
    if isinstance(budget, Budget):
        flags |= {f"budget.{name}": value for name, value in budget.model_dump(exclude_none=True).items()}
    named = {
        "permission.mode": chosen.get("permission_mode"),
        "permission.allow": list(chosen["allow"]) if "allow" in chosen else None,
        "permission.deny": list(chosen["deny"]) if "deny" in chosen else None,
        "limits.steps": chosen.get("max_turns"),
    }
    return {**flags, **{name: value for name, value in named.items() if value is not None}}


def _copied(value: object) -> object:
    """Return a deep copy of a tree of settings, so that the caller's later changes have no effect."""
    if isinstance(value, Mapping):
        return {str(name): _copied(item) for name, item in cast("Mapping[object, object]", value).items()}
    if isinstance(value, list | tuple):
        return [_copied(item) for item in cast("Sequence[object]", value)]
    return value

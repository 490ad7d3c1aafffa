"""What `Session(...)` takes by name, and how it becomes what the runtime is asked for."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, TypeVar, cast

import anyio

from callboard.api.agents import Agent, agent_files, tools_of
from callboard.api.asking import ApproverFunction, approver_of
from callboard.api.errors import UsageError
from callboard.api.in_process import THREADS, InProcessTool
from callboard.api.tools import AnyTool, Tool
from callboard.opening import Options
from callboard.ports.world import Approver, Observer
from callboard.words.hooks import MARKS
from callboard.words.schedules import Schedule
from callboard.words.specs import PermissionMode
from callboard.words.values import Budget

Stage = Callable[..., object]
"""A stage of the context pipeline: `(view, budget, now, **params) -> list[Edit] | None` (docs/context.md)."""

T = TypeVar("T")


class SessionOptions(TypedDict, total=False):
    """What `Session(...)`, `Session.resume` and `Session.attach` take by name. All of it may be left out."""

    model: str
    """A model's name, or `rehearsal:FILE` (no key, no network). Left out: as the settings say."""
    agents: Sequence[Agent]
    """Agent types of this session, beside those of files; of one name, these win."""
    lead: str | Agent
    """The agent type of a new session's lead. Left out: `lead`."""
    instructions: str
    """In place of the lead's own prompt. Left out: as its type says."""
    appended: str
    """A text at the end of every agent's prompt."""
    tools: Sequence[AnyTool]
    """For every agent whose type names no tools."""
    lead_tools: Sequence[str]
    """The only tools of the runtime that the lead has, by name; `[]`: none but yours. Left out: as its type says."""
    denied: Sequence[str]
    """Tools of the runtime that the lead does not have."""
    hooks: Sequence[Callable[..., Any]]
    """Functions with `@hook`, beside the hooks of files."""
    schedules: Sequence[Schedule]
    """Made by `schedule(...)`; one that the session has already stays as it is."""
    stages: Mapping[str, Stage]
    """Stages of the context pipeline that settings may name: `{"code:trim": trim}`, and in
    `settings={"context.pipeline": ["code:trim", "summarize_all"]}`."""
    approver: Approver | ApproverFunction
    """Who answers requests: a function of the request (True, False, a text), async or not, or an object with
    `answer`."""
    answerable: bool
    """What is asked waits for `session.answer`, as long as the setting `ask.deadline` says (30 minutes). Left out: it
    does with an `approver`; else what is asked is refused at once."""
    observers: Sequence[Observer]
    """Told every record and piece of a reply, in the loop's thread; never block, never raise."""
    permission_mode: PermissionMode
    """What happens to calls that no rule decides."""
    allow: Sequence[str]
    """Permission rules, as `Bash(npm test:*)`: run unasked."""
    deny: Sequence[str]
    """Permission rules: refused."""
    budget: float | Budget
    """What the whole session may use: US dollars, or a `Budget`."""
    max_turns: int
    """Model steps in a turn of the lead, from 1."""
    trust: bool
    """Use what the workspace brings: hooks, agents, servers, settings."""
    settings: Mapping[str, object]
    """Settings by their dotted names, or as a tree; they win over files and environment."""
    plugins: Sequence[str | Path]
    """Folders of plugins."""
    mcp: Mapping[str, Mapping[str, object]] | Sequence[str | Path]
    """MCP servers by name, as in `mcpServers`; or files of such."""
    id: str
    """The id of a new session. Left out: one is made."""
    carry: bool
    """With `resume`: in a fresh conversation, with what matters of the one before."""
    with_schedules: bool
    """A run is not over before the schedules have fired for the last time."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be opened."""

    options: Options
    approvers: tuple[Approver, ...]
    observers: tuple[Observer, ...]
    schedules: tuple[Schedule, ...]


def asked_for(workspace: str | Path, given: SessionOptions, *, resume: bool = False, session: str | None) -> Asked:
    """What these options come to. Raises `UsageError` for one that there is not, or that does not fit."""
    unknown = [name for name in given if name not in SessionOptions.__annotations__]
    if unknown:
        raise UsageError(f"there is no option {unknown[0]!r}: there are {', '.join(SessionOptions.__annotations__)}")
    lead = given.get("lead", "lead")
    agents = [*given.get("agents", ()), *([lead] if isinstance(lead, Agent) else [])]
    shared = [_a_tool(one) for one in given.get("tools", ())]
    tools = list({id(one): one for one in (*shared, *tools_of(agents))}.values())
    names = [one.name for one in tools]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"two tools go by one name: {twice}: give one another name")
    threads = anyio.CapacityLimiter(THREADS)
    approver = given.get("approver")
    options = Options(
        workspace=Path(workspace),
        flags=_flags(given),
        session=session,
        resume=resume,
        trust=given.get("trust", False),
        model=given.get("model"),
        disallowed=tuple(given.get("denied", ())),
        appended=given.get("appended", ""),
        max_cost_usd=_dollars(given.get("budget")),
        carry=given.get("carry", False),
        name=given.get("id", ""),
        lead_type=lead.name if isinstance(lead, Agent) else lead,
        agents=agent_files(agents, names, [one.name for one in shared]),
        instructions=given.get("instructions", ""),
        lead_tools=tuple(given["lead_tools"]) if "lead_tools" in given else None,
        mcp_config=_servers(given.get("mcp", ())),
        mcp_wait=True,
        plugins=tuple(Path(one) for one in given.get("plugins", ())),
        tools=tuple(InProcessTool(one, threads) for one in tools),
        own=tuple(one.name for one in shared),
        hook_functions=tuple(_a_hook(one) for one in given.get("hooks", ())),
        stages=_stages(given.get("stages", {})),
        embedded=True,
        answerable=given.get("answerable", approver is not None),
        with_schedules=given.get("with_schedules", False),
    )
    approvers = () if approver is None else (approver_of(approver),)
    return Asked(options, approvers, tuple(given.get("observers", ())), tuple(given.get("schedules", ())))


def _servers(given: Mapping[str, Mapping[str, object]] | Sequence[str | Path]) -> tuple[str, ...]:
    """MCP servers as `--mcp-config` takes them: JSON texts, and paths."""
    if isinstance(given, Mapping):
        return (json.dumps({"mcpServers": _copied(given)}),) if given else ()
    return tuple(str(one) for one in given)


def _a_tool(given: object) -> AnyTool:
    if not isinstance(given, Tool):
        raise UsageError(f"{given!r} is no tool: put `@tool` over the function")
    return cast("AnyTool", given)


def _a_hook(given: Callable[..., Any]) -> Callable[..., Any]:
    if not getattr(given, MARKS, ()):
        raise UsageError(f'{given!r} is no hook: put `@hook("PreToolUse")` or the like over the function')
    return given


def _stages(given: Mapping[str, Stage]) -> Mapping[str, Stage]:
    for name in given:
        if name.count(":") != 1:
            raise UsageError(f"stages: {name!r} is no name of one: write it as code:{name.replace(':', '_')}")
    return given


def _dollars(budget: float | Budget | None) -> float | None:
    if isinstance(budget, Budget):
        return budget.cost_usd
    if budget is not None and not budget >= 0:
        raise UsageError("budget: a number of US dollars from 0 on, or a Budget")
    return None if budget is None else float(budget)


def _flags(given: SessionOptions) -> dict[str, object]:
    """The settings that these options stand for, by dotted name."""
    flags: dict[str, object] = {}
    for name, value in given.get("settings", {}).items():
        flags[name] = _copied(value)
    budget = given.get("budget")
    if isinstance(budget, Budget):
        flags |= {f"budget.{name}": value for name, value in budget.model_dump(exclude_none=True).items()}
    named = {
        "permission.mode": given.get("permission_mode"),
        "permission.allow": list(given["allow"]) if "allow" in given else None,
        "permission.deny": list(given["deny"]) if "deny" in given else None,
        "limits.steps": given.get("max_turns"),
    }
    return {**flags, **{name: value for name, value in named.items() if value is not None}}


def _copied(value: object) -> object:
    """A tree of settings that nobody else changes."""
    if isinstance(value, Mapping):
        return {str(name): _copied(one) for name, one in cast("Mapping[object, object]", value).items()}
    if isinstance(value, list | tuple):
        return [_copied(one) for one in cast("Sequence[object]", value)]
    return value

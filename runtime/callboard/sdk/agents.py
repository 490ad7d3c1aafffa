"""Agent types from code: `Agent(...)`, or `@agent(...)` over a function that returns the prompt, or over a class.

@agent(tools=["read_file", "grep"], model="claude-haiku-4-5")
def scout() -> str:
    \"\"\"Finds where something is done. Use it before changing anything.\"\"\"
    return "You look, you never change anything. Answer with paths and lines."
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Literal, TypedDict, Unpack, cast

from callboard.adapters.extensions.agents import AGENT_TYPE, AgentFile, given_agents
from callboard.core.tool_access import our_names
from callboard.sdk.errors import NotTyped, UsageError
from callboard.sdk.signatures import parse_docstring
from callboard.sdk.tools import AnyTool, FunctionTool
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Budget, PermissionMode

Effort = Literal["low", "medium", "high", "xhigh", "max"]
"""Thinking effort requested from a model."""
Memory = Literal["user", "project", "local"]
"""Location of an agent's own notes, kept from session to session."""


class AgentOptions(TypedDict, total=False):
    """Keyword options of `@agent(...)`: the fields of `Agent`."""

    name: str
    description: str
    tools: Sequence[str | AnyTool] | None
    denied: Sequence[str | AnyTool]
    model: str | None
    effort: Effort | None
    permission_mode: PermissionMode | None
    max_turns: int | None
    skills: Sequence[str]
    memory: Memory | None
    budget: Budget
    mcp: Sequence[str | Mapping[str, object]]
    read_only: bool
    isolation: Literal["worktree"] | None


@dataclass(frozen=True, slots=True)
class Agent:
    """Agent type of a session, for `task`, `spawn_teammate` and workflows to start."""

    name: str
    """Name of the type: lower-case letters, digits and hyphens, at most 64 characters."""
    description: str
    """Description of when to use the agent, read by the model that starts agents."""
    prompt: str
    """First part of the agent's system prompt."""
    tools: Sequence[str | AnyTool] | None = None
    """The only tools of the agent: names, as in agent files, and tools from Python. None: all tools that its kind of
    agent may have, and all tools that the session shares."""
    denied: Sequence[str | AnyTool] = ()
    """Tools to remove from those of `tools`."""
    model: str | None = None
    """Model of the agent. None: the model of its parent."""
    effort: Effort | None = None
    permission_mode: PermissionMode | None = None
    """Permission mode, at most that of its parent. None: the mode of its parent."""
    max_turns: int | None = None
    """Most model steps in one turn, from 1."""
    skills: Sequence[str] = ()
    """Skills whose full text is in the agent's prompt from the start."""
    memory: Memory | None = None
    budget: Budget = field(default_factory=Budget)
    """Budget for the lifetime of the agent, including the agents that it starts."""
    mcp: Sequence[str | Mapping[str, object]] = ()
    """Names of MCP servers, or whole entries (`{name: {...}}`)."""
    read_only: bool = False
    """True if the agent may only read, in every permission mode. It may run only commands that read inside the
    workspace."""
    isolation: Literal["worktree"] | None = None
    """`worktree`: each teammate of this type works in its own git worktree."""


def agent(**options: Unpack[AgentOptions]) -> Callable[[Callable[[], str] | type[Any]], Agent]:
    """Make an agent type from a function that returns the prompt, or from a class with a string attribute `prompt`.

    The name of the type is the name of the function or class in lower case, with hyphens. The docstring says when to
    use it. Raises `NotTyped` if the name, the description or the prompt is missing.
    """

    def made(source: Callable[[], str] | type[Any]) -> Agent:
        name = options.get("name") or _kebab(source.__name__)
        about = options.get("description") or " ".join(parse_docstring(inspect.getdoc(source)).summary.split())
        prompt: object = getattr(source, "prompt", None) if isinstance(source, type) else _called(source, name)
        if not isinstance(prompt, str) or not prompt.strip():
            how = "give the class a text `prompt`" if isinstance(source, type) else "return it from the function"
            raise NotTyped(f"agent {name!r} has no prompt: {how}")
        if not about:
            raise NotTyped(f"agent {name!r} has no description: say when to use it, in the docstring")
        if not AGENT_TYPE.fullmatch(name):
            raise NotTyped(f"agent {name!r}: a name has lower-case letters, digits and hyphens, at most 64")
        remaining = cast("dict[str, Any]", {k: v for k, v in options.items() if k not in ("name", "description")})
        return Agent(name=name, description=about, prompt=inspect.cleandoc(prompt), **remaining)

    return made


def _kebab(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).replace("_", "-").strip("-").lower()


def _called(source: Callable[[], str], name: str) -> object:
    if inspect.signature(source).parameters or inspect.iscoroutinefunction(source):
        raise NotTyped(f"agent {name!r}: the function takes nothing, is not async, and returns the prompt")
    return source()


def tools_of(agents: Iterable[Agent]) -> list[AnyTool]:
    """Return the Python tools that these agents name."""
    return [tool for each in agents for tool in each.tools or () if isinstance(tool, FunctionTool)]


def agent_files(agents: Iterable[Agent], own: Sequence[str], shared: Sequence[str]) -> dict[str, AgentFile]:
    """Convert agent types from code into the form that the engine uses.

    `own`: names of all Python tools. `shared`: names of the Python tools that every agent has. Raises `UsageError` for
    a type that cannot be converted.
    """
    files: dict[str, AgentFile] = {}
    for agent in agents:
        if agent.name in files:
            raise UsageError(f"there are two agents {agent.name!r}: give one another name")
        files[agent.name] = _file(agent, own, shared)
    return files


def _file(agent: Agent, own: Sequence[str], shared: Sequence[str]) -> AgentFile:
    names = None if agent.tools is None else [_name(each) for each in agent.tools]
    denied = [_name(each) for each in agent.denied]
    from_claude = [name for name in names or () if is_runtime_tool(name)]
    unknown = [name for name in (*(names or ()), *denied) if not is_runtime_tool(name) and name not in own]
    if unknown:
        raise UsageError(f"agent {agent.name!r}: there is no tool {unknown[0]!r}; your tools: {_some(own)}")
    fields: dict[str, object] = {
        "description": agent.description,
        "prompt": agent.prompt,
        "tools": from_claude or None,
        "disallowedTools": [name for name in denied if is_runtime_tool(name)] or None,
        "model": agent.model,
        "effort": agent.effort,
        "permissionMode": agent.permission_mode,
        "maxTurns": agent.max_turns,
        "skills": list(agent.skills) or None,
        "memory": agent.memory,
        "mcpServers": list(agent.mcp) or None,
        "isolation": agent.isolation,
        "readOnly": agent.read_only or None,
    }
    made, notes = given_agents({agent.name: fields}, "agents")
    if notes or agent.name not in made:
        raise UsageError("; ".join(str(note) for note in notes) or f"agent {agent.name!r} cannot be used")
    own_tools = [name for name in (shared if names is None else names) if name in own and name not in denied]
    file = replace(made[agent.name], own=tuple(dict.fromkeys(own_tools)), budget=agent.budget)
    return replace(file, tools=(), mcp=()) if names is not None and not from_claude else file


def is_runtime_tool(name: str) -> bool:
    """Return True for the name of a tool of the runtime or of an MCP server."""
    return bool(our_names(name)) or name.startswith("mcp__")


def _name(tool: str | AnyTool) -> str:
    return tool if isinstance(tool, str) else tool.name


def _some(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"

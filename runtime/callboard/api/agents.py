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
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypedDict, Unpack, cast

from callboard.adapters.agent_files import AGENT_TYPE, AgentFile, given_agents
from callboard.api.docstrings import described
from callboard.api.errors import NotTyped, UsageError
from callboard.api.tools import AnyTool, Tool
from callboard.core.toolset import our_names
from callboard.words.specs import PermissionMode
from callboard.words.values import Budget

Effort = Literal["low", "medium", "high", "xhigh", "max"]
"""How hard a model is asked to think."""
Memory = Literal["user", "project", "local"]
"""Where an agent keeps notes of its own from session to session."""


class AgentOptions(TypedDict, total=False):
    """What `@agent(...)` takes, all of it by name: the fields of `Agent`."""

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
    isolation: Literal["worktree"] | None


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent type of a session: who may be started by `task` and `spawn_teammate`, or by a workflow."""

    name: str
    """Lower-case letters, digits and hyphens, at most 64."""
    description: str
    """When to use it: what the model that starts agents reads."""
    prompt: str
    """Its system prompt's first part."""
    tools: Sequence[str | AnyTool] | None = None
    """The only tools it has: names, as in agent files, and tools from Python. None: all that its kind may have, and all
    that the session shares."""
    denied: Sequence[str | AnyTool] = ()
    """Of these the ones it does not have."""
    model: str | None = None
    """None: its parent's."""
    effort: Effort | None = None
    permission_mode: PermissionMode | None = None
    """At most what its parent has. None: its parent's."""
    max_turns: int | None = None
    """Model steps in one turn, from 1."""
    skills: Sequence[str] = ()
    """Skills whose whole text it has from the start."""
    memory: Memory | None = None
    budget: Budget = field(default_factory=Budget)
    """For its whole life, with all that it starts."""
    mcp: Sequence[str | Mapping[str, object]] = ()
    """Names of MCP servers, and entries written out (`{name: {...}}`)."""
    isolation: Literal["worktree"] | None = None
    """`worktree`: each teammate of this type works in a git worktree of its own."""


def agent(**options: Unpack[AgentOptions]) -> Callable[[Callable[[], str] | type[Any]], Agent]:
    """Make an agent type of a function that returns its prompt, or of a class with a text `prompt`.

    Its name is the function's or class's, in small letters with hyphens; the docstring says when to use it. Raises
    `NotTyped` where name, description or prompt are missing.
    """

    def made(source: Callable[[], str] | type[Any]) -> Agent:
        name = options.get("name") or _kebab(source.__name__)
        about = options.get("description") or " ".join(described(inspect.getdoc(source)).summary.split())
        prompt: object = getattr(source, "prompt", None) if isinstance(source, type) else _called(source, name)
        if not isinstance(prompt, str) or not prompt.strip():
            how = "give the class a text `prompt`" if isinstance(source, type) else "return it from the function"
            raise NotTyped(f"agent {name!r} has no prompt: {how}")
        if not about:
            raise NotTyped(f"agent {name!r} has no description: say when to use it, in the docstring")
        if not AGENT_TYPE.fullmatch(name):
            raise NotTyped(f"agent {name!r}: a name has lower-case letters, digits and hyphens, at most 64")
        rest = cast("dict[str, Any]", {k: v for k, v in options.items() if k not in ("name", "description")})
        return Agent(name=name, description=about, prompt=inspect.cleandoc(prompt), **rest)

    return made


def _kebab(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).replace("_", "-").strip("-").lower()


def _called(source: Callable[[], str], name: str) -> object:
    if inspect.signature(source).parameters or inspect.iscoroutinefunction(source):
        raise NotTyped(f"agent {name!r}: the function takes nothing, is not async, and returns the prompt")
    return source()


def tools_of(agents: Iterable[Agent]) -> list[AnyTool]:
    """The tools from Python that these agents name."""
    return [one for each in agents for one in each.tools or () if isinstance(one, Tool)]


def agent_files(agents: Iterable[Agent], own: Sequence[str], shared: Sequence[str]) -> dict[str, AgentFile]:
    """The agent types as the engine has them. `own`: the names of all tools from Python, `shared`: of those that are
    for everybody. Raises `UsageError` for what cannot be honoured."""
    found: dict[str, AgentFile] = {}
    for one in agents:
        if one.name in found:
            raise UsageError(f"there are two agents {one.name!r}: give one another name")
        found[one.name] = _file(one, own, shared)
    return found


def _file(one: Agent, own: Sequence[str], shared: Sequence[str]) -> AgentFile:
    names = None if one.tools is None else [_name(each) for each in one.tools]
    denied = [_name(each) for each in one.denied]
    known = [name for name in names or () if _is_theirs(name)]
    unknown = [name for name in (*(names or ()), *denied) if not _is_theirs(name) and name not in own]
    if unknown:
        raise UsageError(f"agent {one.name!r}: there is no tool {unknown[0]!r} here; of yours there are: {_some(own)}")
    fields: dict[str, object] = {
        "description": one.description,
        "prompt": one.prompt,
        "tools": known or None,
        "disallowedTools": [name for name in denied if _is_theirs(name)] or None,
        "model": one.model,
        "effort": one.effort,
        "permissionMode": one.permission_mode,
        "maxTurns": one.max_turns,
        "skills": list(one.skills) or None,
        "memory": one.memory,
        "mcpServers": list(one.mcp) or None,
        "isolation": one.isolation,
    }
    made, notes = given_agents({one.name: fields}, "agents")
    if notes or one.name not in made:
        raise UsageError("; ".join(str(note) for note in notes) or f"agent {one.name!r} cannot be used")
    mine = [name for name in (shared if names is None else names) if name in own and name not in denied]
    file = replace(made[one.name], own=tuple(dict.fromkeys(mine)), budget=one.budget)
    return replace(file, tools=(), mcp=()) if names is not None and not known else file


def _is_theirs(name: str) -> bool:
    """A tool of the runtime or of an MCP server."""
    return bool(our_names(name)) or name.startswith("mcp__")


def _name(one: str | AnyTool) -> str:
    return one if isinstance(one, str) else one.name


def _some(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"

"""Tools of an agent, by its kind and by the tools that its type allows and denies. Pure.

The type names tools by the runtime's or the compatible names.

Nothing is dropped silently: an unknown name, and a tool that this kind of agent never has, are reported with the
result. A teammate keeps the tools that a team needs, regardless of its type.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass

AgentKind = Literal["lead", "teammate", "subagent"]

_FILES = frozenset({"read_file", "write_file", "edit_file", "glob", "grep"})
_SHELL = frozenset({"bash", "task_output", "task_stop"})
ON_REQUEST = frozenset({"multi_edit", "list_folder", "read_notebook", "edit_notebook", "bash_output"})
"""Tools that an agent has only if its tools list names them: the tools that every agent has can do the same work, and
each listed tool costs tokens at every step."""
WEB_SEARCH = "web_search"
"""Tool that an agent has only if the service or a configured command searches for it (`sessions/agent_specs.py`)."""
_WORK = _FILES | _SHELL | ON_REQUEST | {"web_fetch", WEB_SEARCH}
_OWN = frozenset({"todo_write", "load_skill", "compact"})
_LOOK = frozenset({"list_tasks", "get_task"})
_BOARD = _LOOK | {"create_task", "update_task", "claim_task", "complete_task", "fail_task", "release_task"}
_TALK = frozenset({"list_team", "send_message"})
_LEADS = frozenset({"spawn_teammate", "request_shutdown", "request_plan", "review_plan", "broadcast", "check_inbox"})
_TREES = frozenset({"create_worktree", "keep_worktree", "merge_worktree", "remove_worktree"})
_CRON = frozenset({"schedule_cron", "list_crons", "cancel_cron"})
_ALONE = frozenset({"task", "ask_person", "submit_plan"})
_REPORT = frozenset({"submit_plan", "report", "refuse_shutdown"})
MEMORY = frozenset({"remember", "recall", "forget"})
"""Tools that a subagent has only if its type keeps notes (`memory:`)."""

TOOLS_OF: Mapping[AgentKind, frozenset[str]] = MappingProxyType(
    {
        "lead": _WORK | _OWN | _BOARD | _TALK | _LEADS | _TREES | _CRON | _ALONE | MEMORY | {"connect_mcp"},
        "teammate": _WORK | _OWN | _BOARD | _TALK | _REPORT | MEMORY | {"list_crons", "task", "ask_person"},
        "subagent": _WORK | _OWN | _LOOK,
    }
)
"""All tools that a kind may have. A subagent answers with its last text, and starts no agents."""

ALWAYS_OF: Mapping[AgentKind, frozenset[str]] = MappingProxyType(
    {"lead": frozenset(), "teammate": _BOARD | _TALK | _REPORT, "subagent": frozenset()}
)
"""Tools of each kind of agent that an allowlist need not name."""

ALL_TOOLS: frozenset[str] = frozenset(name for names in TOOLS_OF.values() for name in names)

COMPATIBLE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "Bash": ("bash",),
        "Read": ("read_file",),
        "Write": ("write_file",),
        "Edit": ("edit_file",),
        "Glob": ("glob",),
        "Grep": ("grep",),
        "TodoWrite": ("todo_write",),
        "Agent": ("task", "spawn_teammate"),
        "Task": ("task",),
        "Skill": ("load_skill",),
        "SendMessage": ("send_message",),
        "TaskCreate": ("create_task",),
        "TaskUpdate": ("update_task",),
        "TaskGet": ("get_task",),
        "TaskList": ("list_tasks",),
        "CronCreate": ("schedule_cron",),
        "CronList": ("list_crons",),
        "CronDelete": ("cancel_cron",),
        "ExitPlanMode": ("submit_plan",),
        "AskUserQuestion": ("ask_person",),
        "TaskOutput": ("task_output",),
        "TaskStop": ("task_stop",),
        "KillShell": ("task_stop",),
        "BashOutput": ("bash_output",),
        "MultiEdit": ("multi_edit",),
        "LS": ("list_folder",),
        "NotebookRead": ("read_notebook",),
        "NotebookEdit": ("edit_notebook",),
        "WebFetch": ("web_fetch",),
        "WebSearch": (WEB_SEARCH,),
    }
)
"""Compatible name -> the runtime's tools."""

LONGEST_NAME = 64
"""Maximum characters of a tool's name (docs/tools.md)."""
_REFUSED = late_pattern(r"[^A-Za-z0-9_-]")
_ENTRY = late_pattern(r"\s*(?P<name>[^()\s]+)\s*(?:\((?P<inside>.*)\))?\s*$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Toolset:
    """The tools of one agent, sorted, and the list entries that could not be applied."""

    names: tuple[str, ...]
    unknown: tuple[str, ...] = ()
    """Entries that match no tool of this version, as they were written."""
    withheld: tuple[str, ...] = ()
    """Tools that were requested by name and that this kind of agent never has."""
    kept: tuple[str, ...] = ()
    """Denied tools that a teammate needs for its work: its plan and its report."""


def normalise_name(name: str) -> str:
    """Return the name by which a model calls a tool, at most 64 characters.

    Characters that the service refuses become `_`.
    """
    return _REFUSED.sub("_", name)[:LONGEST_NAME]


def clashes(names: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """Return groups of names of different tools that a model could not distinguish, each group sorted.

    Normally there are none. A name that occurs twice clashes with itself: it would be unclear which of the two a rule
    applies to.
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(normalise_name(name), []).append(name)
    return tuple(tuple(sorted(group)) for group in groups.values() if len(group) > 1)


def our_names(entry: str) -> tuple[str, ...]:
    """Return the tools for an entry of a tools list, including `Name(...)`.

    Empty if it is not a tool of the runtime.
    """
    if entry in ALL_TOOLS:  # most entries, and each new agent asks for all of its list
        return (entry,)
    match = _ENTRY.match(entry)
    name = match["name"] if match else ""
    return (name,) if name in ALL_TOOLS else COMPATIBLE.get(name, ())


def tools_for(
    kind: AgentKind,
    requested: Sequence[str] | None,
    denied: Iterable[str] = (),
    *,
    plan_mode: bool = False,
    memory: bool = False,
) -> Toolset:
    """Return the tools of an agent of `kind`.

    `requested` None: all tools of its kind, except those on request. Denials take precedence over `requested`.

    `plan_mode`: a lead has `submit_plan` only then; `memory`: its type keeps notes.
    """
    may = TOOLS_OF[kind] | (MEMORY if memory else frozenset[str]())
    if kind == "lead" and not plan_mode:
        may -= {"submit_plan"}
    wanted = [(entry, our_names(entry)) for entry in requested or ()]
    refusals = [(entry, our_names(entry)) for entry in denied]
    refused = {name for _, names in refusals for name in names}
    selected = (
        may - ON_REQUEST if requested is None else {name for _, names in wanted for name in names} | ALWAYS_OF[kind]
    )
    needed = (_REPORT & ALWAYS_OF[kind]) & may
    # An entry for several tools is withheld if none of them is available.
    withheld = {name for _, names in wanted if may.isdisjoint(names) for name in names}
    return Toolset(
        names=tuple(sorted((selected & may) - (refused - needed))),
        unknown=tuple(entry for entry, names in (*wanted, *refusals) if not names),
        withheld=tuple(sorted(withheld)),
        kept=tuple(sorted(refused & needed)),
    )


def names_of(tools: Sequence[str], own: Sequence[str] | None, shared: Sequence[str]) -> tuple[str, ...]:
    """Return the tools of one agent by its spec's `tools` and `own`, sorted.

    `shared`: tools that the program provides for all agents.
    """
    return tuple(sorted({*tools, *(shared if own is None else own)}))

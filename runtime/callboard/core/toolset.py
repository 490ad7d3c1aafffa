"""Which tools an agent has: by its kind and by what its type allows and denies, in our names or the compatible ones.

Pure. Nothing is dropped silently: a name that stands for no tool here, and a tool that this kind of agent never has,
are told beside the result. A teammate keeps the tools by which a team works, whatever its type allows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

AgentKind = Literal["lead", "teammate", "subagent"]

_FILES = frozenset({"read_file", "write_file", "edit_file", "glob", "grep"})
_SHELL = frozenset({"bash", "task_output", "task_stop"})
_OWN = frozenset({"todo_write", "load_skill", "compact"})
_LOOK = frozenset({"list_tasks", "get_task"})
_BOARD = _LOOK | {"create_task", "update_task", "claim_task", "complete_task", "fail_task", "release_task"}
_TALK = frozenset({"list_team", "send_message"})
_LEADS = frozenset({"spawn_teammate", "request_shutdown", "request_plan", "review_plan", "broadcast", "check_inbox"})
_TREES = frozenset({"create_worktree", "keep_worktree", "merge_worktree", "remove_worktree"})
_CRON = frozenset({"schedule_cron", "list_crons", "cancel_cron"})
_ALONE = frozenset({"task", "ask_person", "submit_plan"})
_REPORT = frozenset({"submit_plan", "report"})
MEMORY = frozenset({"remember", "recall", "forget"})
"""A subagent has these only where its type keeps notes (`memory:`)."""

TOOLS_OF: Mapping[AgentKind, frozenset[str]] = MappingProxyType(
    {
        "lead": _FILES | _SHELL | _OWN | _BOARD | _TALK | _LEADS | _TREES | _CRON | _ALONE | MEMORY | {"connect_mcp"},
        "teammate": _FILES | _SHELL | _OWN | _BOARD | _TALK | _REPORT | MEMORY | {"list_crons", "task", "ask_person"},
        "subagent": _FILES | _SHELL | _OWN | _LOOK,
    }
)
"""All that a kind may ever have. A subagent answers with its last text, and starts nobody."""

ALWAYS_OF: Mapping[AgentKind, frozenset[str]] = MappingProxyType(
    {"lead": frozenset(), "teammate": _BOARD | _TALK | _REPORT, "subagent": frozenset()}
)
"""What an allowlist need not name."""

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
    }
)
"""Compatible name -> ours."""

LONGEST_NAME = 64
"""Characters of a tool's name (docs/tools.md)."""
_REFUSED = re.compile(r"[^A-Za-z0-9_-]")
_ENTRY = re.compile(r"\s*(?P<name>[^()\s]+)\s*(?:\((?P<inside>.*)\))?\s*$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Toolset:
    """The tools of one agent, sorted, and what of the lists could not be followed."""

    names: tuple[str, ...]
    unknown: tuple[str, ...] = ()
    """Entries that name no tool of this version, as they were written."""
    withheld: tuple[str, ...] = ()
    """Tools that were asked for by name and that this kind of agent never has."""
    kept: tuple[str, ...] = ()
    """Tools that were denied and that a teammate cannot work without: its plan and its report."""


def normalised(name: str) -> str:
    """The name that a model calls a tool by: what the service refuses in names becomes `_`, 64 characters at most."""
    return _REFUSED.sub("_", name)[:LONGEST_NAME]


def clashes(names: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """Names of different tools that a model could not tell apart, each group sorted; none is the rule. A name that
    stands twice clashes with itself: nobody could say which of the two a rule is about."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(normalised(name), []).append(name)
    return tuple(tuple(sorted(group)) for group in groups.values() if len(group) > 1)


def our_names(entry: str) -> tuple[str, ...]:
    """The tools that an entry of a tools list stands for, `Name(...)` included; empty for none of ours."""
    match = _ENTRY.match(entry)
    name = match["name"] if match else ""
    return (name,) if name in ALL_TOOLS else COMPATIBLE.get(name, ())


def tools_for(
    kind: AgentKind,
    wanted: Sequence[str] | None,
    denied: Iterable[str] = (),
    *,
    plan_mode: bool = False,
    memory: bool = False,
) -> Toolset:
    """The tools of an agent of `kind`. `wanted` None: all that its kind has; denials count before it.

    `plan_mode`: a lead has `submit_plan` only then; `memory`: its type keeps notes.
    """
    may = TOOLS_OF[kind] | (MEMORY if memory else frozenset[str]())
    if kind == "lead" and not plan_mode:
        may -= {"submit_plan"}
    refused = {name for entry in denied for name in our_names(entry)}
    asked = may if wanted is None else {name for entry in wanted for name in our_names(entry)} | ALWAYS_OF[kind]
    needed = (_REPORT & ALWAYS_OF[kind]) & may
    names = (asked & may) - (refused - needed)
    return Toolset(
        names=tuple(sorted(names)),
        unknown=tuple(entry for entry in (*(wanted or ()), *denied) if not our_names(entry)),
        withheld=tuple(sorted(_withheld(wanted or (), may))),
        kept=tuple(sorted(refused & needed)),
    )


def names_of(tools: Sequence[str], own: Sequence[str] | None, shared: Sequence[str]) -> tuple[str, ...]:
    """The tools of one agent by its spec's `tools` and `own`, sorted. `shared`: those that the program brings for
    everybody."""
    return tuple(sorted({*tools, *(shared if own is None else own)}))


def _withheld(wanted: Iterable[str], may: frozenset[str]) -> set[str]:
    """What was named and is not to be had; an entry that stands for several tools counts when none of them is."""
    found: set[str] = set()
    for entry in wanted:
        names = our_names(entry)
        if names and not may.intersection(names):
            found.update(names)
    return found

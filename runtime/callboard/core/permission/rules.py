"""Rules as people write them: `Bash(npm run *)`, `Read(src/**)`, `Edit(/docs/*.md)`, `mcp__server__*`, `task(explore)`.

An allow rule for a command covers exactly one simple command, word by word after quotes are gone, and never its
redirects or what runs inside it. Deny and ask rules see through every wrapper, and where a word is only known when it
runs they may match (`maybe`), which asks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from callboard.core.permission import gitignore
from callboard.core.permission.effects import Part, View
from callboard.core.permission.gitignore import Anchors
from callboard.core.permission.values import CallFacts, Rule, ToolCall
from callboard.core.permission.webhosts import names_host
from callboard.core.permission.words import HOLE, Arg

Match = Literal["yes", "maybe", "no"]

ALIASES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "Bash": ("bash",),
        "Read": ("read_file", "glob", "grep"),
        "Edit": ("write_file", "edit_file"),
        "Write": ("write_file",),
        "MultiEdit": ("edit_file",),
        "NotebookEdit": ("edit_file",),
        "Glob": ("glob",),
        "Grep": ("grep",),
        "Task": ("task", "spawn_teammate"),
        "Agent": ("task", "spawn_teammate"),
        "Skill": ("load_skill",),
        "TodoWrite": ("todo_write",),
        "TaskStop": ("task_stop",),
        "TaskOutput": ("task_output",),
        "TaskCreate": ("create_task",),
        "TaskUpdate": ("update_task",),
        "TaskGet": ("get_task",),
        "TaskList": ("list_tasks",),
        "CronCreate": ("schedule_cron",),
        "CronDelete": ("cancel_cron",),
        "CronList": ("list_crons",),
        "SendMessage": ("send_message",),
        "AskUserQuestion": ("ask_person",),
        "ExitPlanMode": ("submit_plan",),
        "WebFetch": ("web_fetch",),
        "WebSearch": ("web_search",),
    }
)
"""The names of rules, and the tools of ours that each is about."""
SPECIFIED_BY: Mapping[str, str] = MappingProxyType(
    {"task": "agent_type", "spawn_teammate": "agent_type", "load_skill": "name", "connect_mcp": "name"}
)
"""What a specifier in brackets is compared with, of tools that are no shell and no file tool."""
PATH_RULES = frozenset({"Read", "Edit", "read_file", "edit_file", "write_file", "glob", "grep"})
UNHEEDED = frozenset({"Write", "MultiEdit", "NotebookEdit", "Glob", "Grep"})
"""Names that people give paths to and that Claude Code never consults then: `Edit(path)` and `Read(path)` are meant."""
NO_PARAMETERS = frozenset({"command", "file_path", "path", "notebook_path", "url"})
"""Inputs that `Tool(parameter:value)` is not about: other forms of rules are."""
_FIELDS: Mapping[str, str] = MappingProxyType({"subagent_type": "agent_type", "skill": "name", "timeout": "timeout_s"})
"""Inputs by the names that they have in Claude Code, where ours has another."""
_RULE = re.compile(r"([A-Za-z0-9_*.:-]+)(?:\((.*)\))?", re.DOTALL)
_PARAMETER = re.compile(r"([A-Za-z_][A-Za-z0-9_-]*):(.+)", re.DOTALL)
_ONLY_EXACT = frozenset({"watch", "setsid", "ionice", "flock"})
"""Programs that run others and that no prefix covers."""


def parse_rule(text: str) -> Rule:
    """Return the rule. Raises ValueError with what is wrong: no tool name, brackets that do not close."""
    match = _RULE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a rule: write Tool or Tool(specifier), for example Bash(npm test)")
    specifier = match[2]
    return Rule(match[1], None if specifier in (None, "", "*", ":*") else specifier, text.strip())


def names_tool(rule: Rule, tool: str, *, allow: bool) -> bool:
    """Whether the rule is about this tool. Globs in a tool's name count in deny and ask rules, and after `mcp__x__`."""
    if rule.tool == tool or tool in ALIASES.get(rule.tool, ()):
        return True
    if tool.startswith("mcp__") and rule.tool.startswith("mcp__"):
        if rule.tool.count("__") == 1 and "*" not in rule.tool:
            return tool.startswith(rule.tool + "__")
        literal_server = "*" not in rule.tool.split("__")[1]
        return (literal_server or not allow) and _wild(rule.tool, tool)
    return not allow and "*" in rule.tool and (_wild(rule.tool, tool) or any(_wild(rule.tool, n) for n in _named(tool)))


def _named(tool: str) -> Iterable[str]:
    return (alias for alias, tools in ALIASES.items() if tool in tools)


def _wild(pattern: str, text: str) -> bool:
    return re.fullmatch(".*".join(re.escape(piece) for piece in pattern.split("*")), text, re.DOTALL) is not None


def matches_input(rule: Rule, call: ToolCall, *, allow: bool) -> bool:
    """Whether a rule's specifier fits a call of a tool that is neither a shell nor a file tool."""
    if rule.specifier is None:
        return True
    if rule.tool in ("WebFetch", "web_fetch") and rule.specifier.startswith("domain:"):
        return names_host(rule.specifier.removeprefix("domain:"), str(call.input.get("url", "")), allow=allow)
    field = SPECIFIED_BY.get(call.name)
    value = call.input.get(field) if field else None
    if isinstance(value, str) and _words_fit(rule.specifier, value):
        return True
    return not allow and matches_parameter(rule, call)


def parameter_of(rule: Rule) -> tuple[str, str] | None:
    """The input and the value (with stars) of a rule that may be `Tool(parameter:value)`; None for any other."""
    found = _PARAMETER.fullmatch(rule.specifier or "")
    return (found[1], found[2]) if found and found[1] not in NO_PARAMETERS else None


def matches_parameter(rule: Rule, call: ToolCall) -> bool:
    """Whether a deny or ask rule `Tool(parameter:value)` fits: an input at the top that is one value, and is given."""
    parameter = parameter_of(rule)
    if parameter is None:
        return False
    name, wanted = parameter
    given = call.input.get(name, call.input.get(_FIELDS.get(name, name)))
    if not isinstance(given, str | int | float):
        return False
    return _wild(wanted, str(given).lower() if isinstance(given, bool) else str(given))


def _words_fit(specifier: str, value: str) -> bool:
    """Stars stand for anything; `name *` also for the name alone."""
    if specifier.endswith((" *", ":*")):
        return _wild(specifier[:-2], value) or _wild(specifier[:-2] + " *", value)
    return _wild(specifier, value)


def anchors_of(rule: Rule, facts: CallFacts) -> Anchors:
    """What the pattern of a path rule is relative to."""
    return Anchors(facts.root, facts.home, rule.base, facts.folds)


def covers(rule: Rule, part: Part) -> bool:
    """Whether an allow rule for the shell covers this part."""
    if rule.specifier is None:
        return True
    return any(view.for_allow and _exact(rule.specifier, view.words) for view in part.views)


def hits(rule: Rule, part: Part) -> Match:
    """Whether a deny or ask rule for the shell matches this part."""
    if rule.specifier is None:
        return "yes"
    found: set[Match] = {_loose(rule.specifier, view) for view in part.views}
    return "yes" if "yes" in found else "maybe" if "maybe" in found else "no"


def _pattern(specifier: str) -> tuple[list[str], bool] | None:
    """Return the words of a prefix or exact rule and whether more may follow, or None for one with other stars."""
    text = specifier.strip()
    more = False
    if text.endswith(":*") or text.endswith(" *"):
        text, more = text[:-2], True
    return None if "*" in text else (text.split(), more)


def _exact(specifier: str, words: Sequence[Arg]) -> bool:
    texts = [word.text for word in words]
    pattern = _pattern(specifier)
    if pattern is None:
        plain = not any(re.search(rf"\s|{HOLE}", text) for text in texts) and not _ONLY_EXACT.intersection(texts[:1])
        return plain and _words_fit(specifier.strip(), " ".join(texts))
    wanted, more = pattern
    if any(word.glob for word in words[: len(wanted)]) or (more and wanted[:1] and wanted[0] in _ONLY_EXACT):
        return False
    return texts[: len(wanted)] == wanted and (more or len(texts) == len(wanted))


def _loose(specifier: str, view: View) -> Match:
    texts = [word.text for word in view.words]
    if texts:
        texts[0] = texts[0].rpartition("/")[2] or texts[0]
    pattern = _pattern(specifier)
    if pattern is None:
        text = " ".join(texts)
        if _words_fit(specifier.strip(), text) or _words_fit(specifier.strip(), " ".join(w.text for w in view.words)):
            return "yes"
        return "maybe" if HOLE in text and _may_begin(specifier.strip(), text) else "no"
    wanted, more = pattern
    if wanted:
        wanted[0] = wanted[0].rpartition("/")[2] or wanted[0]
    return _walk(wanted, texts, more=more)


def _may_begin(specifier: str, text: str) -> bool:
    """Whether a text with holes may be what a pattern with stars says: as far as both are known they are the same."""
    known = min(text.find(HOLE), specifier.find("*") if "*" in specifier else len(specifier))
    return text[:known] == specifier[:known]


def _walk(wanted: Sequence[str], texts: Sequence[str], *, more: bool) -> Match:
    """Match words in order; options between program and subcommand, with or without a value, do not lift the rule."""
    states = {(0, False, False)}  # how many words matched, whether an option's value may come, whether by a guess
    best: Match = "no"
    for text in texts:
        if more:
            best = _better(best, states, len(wanted))
        states = {new for state in states if state[0] < len(wanted) for new in _after(state, text, wanted)}
    return _better(best, states, len(wanted))


def _after(state: tuple[int, bool, bool], text: str, wanted: Sequence[str]) -> Iterable[tuple[int, bool, bool]]:
    at, value, guessed = state
    if value:
        yield at, False, guessed
    if text == wanted[at]:
        yield at + 1, False, guessed
    elif HOLE in text:
        yield at + 1, False, True
        yield at, False, True
    elif text.startswith("-"):
        yield at, True, guessed


def _better(best: Match, states: Iterable[tuple[int, bool, bool]], size: int) -> Match:
    ends = [guessed for at, _, guessed in states if at == size]
    if best == "yes" or False in ends:
        return "yes"
    return "maybe" if ends else best


def names_path(specifier: str, path: str, root: str, home: str, *, anywhere: bool) -> bool:
    """Whether a path rule's pattern names this absolute path; `anywhere`: as deny and ask rules are read. `root` is the
    agent's folder. See `gitignore.py`."""
    return gitignore.names_path(specifier, path, Anchors(root, home), loose=anywhere)

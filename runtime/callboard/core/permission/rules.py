"""Rules as people write them: `Bash(npm run *)`, `Read(src/**)`, `Edit(/docs/*.md)`, `mcp__server__*`, `task(explore)`.

An allow rule for a command covers exactly one simple command, word by word after quotes are gone, and never its
redirects or what runs inside it. Deny and ask rules see through every wrapper, and where a word is only known when it
runs they may match (`maybe`), which asks.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from typing import Literal

from callboard.core.permission.effects import Part, View
from callboard.core.permission.values import Rule, ToolCall
from callboard.core.permission.words import HOLE, Arg

Match = Literal["yes", "maybe", "no"]

_ALIASES = {
    "Bash": ("bash",),
    "Read": ("read_file", "glob", "grep"),
    "Edit": ("write_file", "edit_file"),
    "Write": ("write_file",),
    "MultiEdit": ("edit_file",),
    "Glob": ("glob",),
    "Grep": ("grep",),
    "Task": ("task",),
    "Agent": ("task",),
    "Skill": ("load_skill",),
    "TodoWrite": ("todo_write",),
    "TaskStop": ("task_stop",),
    "TaskOutput": ("task_output",),
    "CronCreate": ("schedule_cron",),
    "CronDelete": ("cancel_cron",),
    "CronList": ("list_crons",),
    "SendMessage": ("send_message",),
    "AskUserQuestion": ("ask_person",),
}
_SPECIFIED_BY = {"task": "agent_type", "spawn_teammate": "agent_type", "load_skill": "name", "connect_mcp": "name"}
_RULE = re.compile(r"([A-Za-z0-9_*.:-]+)(?:\((.*)\))?", re.DOTALL)


def parse_rule(text: str) -> Rule:
    """Return the rule. Raises ValueError with what is wrong: no tool name, brackets that do not close."""
    match = _RULE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a rule: write Tool or Tool(specifier), for example Bash(npm test)")
    specifier = match[2]
    return Rule(match[1], None if specifier in (None, "", "*", ":*") else specifier, text.strip())


def names_tool(rule: Rule, tool: str, *, allow: bool) -> bool:
    """Whether the rule is about this tool. Globs in a tool's name count in deny and ask rules, and after `mcp__x__`."""
    if rule.tool == tool or tool in _ALIASES.get(rule.tool, ()):
        return True
    if tool.startswith("mcp__") and rule.tool.startswith("mcp__"):
        if rule.tool.count("__") == 1 and "*" not in rule.tool:
            return tool.startswith(rule.tool + "__")
        literal_server = "*" not in rule.tool.rsplit("__", 1)[0]
        return (literal_server or not allow) and _wild(rule.tool, tool)
    return not allow and "*" in rule.tool and (_wild(rule.tool, tool) or any(_wild(rule.tool, n) for n in _named(tool)))


def _named(tool: str) -> Iterable[str]:
    return (alias for alias, tools in _ALIASES.items() if tool in tools)


def _wild(pattern: str, text: str) -> bool:
    return re.fullmatch(".*".join(re.escape(piece) for piece in pattern.split("*")), text, re.DOTALL) is not None


def matches_input(rule: Rule, call: ToolCall, *, allow: bool) -> bool:
    """Whether a rule's specifier fits a call of a tool that is neither a shell nor a file tool."""
    if rule.specifier is None:
        return True
    field = _SPECIFIED_BY.get(call.name)
    value = call.input.get(field) if field else None
    if isinstance(value, str) and _wild(rule.specifier, value):
        return True
    name, colon, wanted = rule.specifier.partition(":")
    given = call.input.get(name)
    if allow or not colon or name in ("command", "file_path", "path", "url") or given is None:
        return False
    return _wild(wanted, str(given).lower() if isinstance(given, bool) else str(given))


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
    pattern = _pattern(specifier)
    if pattern is None:
        texts = [word.text for word in words]
        return not any(re.search(rf"\s|{HOLE}", t) for t in texts) and _wild(specifier.strip(), " ".join(texts))
    wanted, more = pattern
    texts = [word.text for word in words]
    if any(word.glob for word in words[: len(wanted)]):
        return False
    return texts[: len(wanted)] == wanted and (more or len(texts) == len(wanted))


def _loose(specifier: str, view: View) -> Match:
    texts = [word.text for word in view.words]
    if texts:
        texts[0] = texts[0].rpartition("/")[2] or texts[0]
    pattern = _pattern(specifier)
    if pattern is None:
        text = " ".join(texts)
        if _wild(specifier.strip(), text):
            return "yes"
        return "maybe" if HOLE in text else "no"
    wanted, more = pattern
    if wanted:
        wanted[0] = wanted[0].rpartition("/")[2] or wanted[0]
    return _walk(wanted, texts, more=more)


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
    """Whether a path rule's pattern (as in a .gitignore) names this absolute path, or a folder above it.

    `//x` is absolute, `~/x` at home, `/x` and `./x` in the agent's folder, a bare name at any depth. `anywhere`: a
    relative pattern with slashes also matches deeper (deny and ask rules).
    """
    pattern = specifier
    if pattern.startswith("//"):
        base, pattern, deep = "/", pattern[2:], False
    elif pattern.startswith("~/"):
        base, pattern, deep = home, pattern[2:], False
    elif pattern.startswith(("/", "./")):
        base, pattern, deep = root, pattern.removeprefix(".").lstrip("/"), False
    else:
        base, deep = root, "/" not in pattern.rstrip("/") or anywhere
    relative = posixpath.relpath(path, base)
    if relative.startswith(".."):
        return False
    regex = ("(?:.*/)?" if deep else "") + _glob_regex(pattern.rstrip("/")) + "(?:/.*)?"
    return re.fullmatch(regex, "" if relative == "." else relative, re.DOTALL) is not None


def _glob_regex(pattern: str) -> str:
    out = ""
    meanings = {"/**/": "/(?:.*/)?", "**/": "(?:.*/)?", "/**": "/.*", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    for piece in re.split(r"(/\*\*/|\*\*/|/\*\*|\*\*|\*|\?)", pattern):
        out += meanings.get(piece, re.escape(piece))
    return out

"""Rules as people write them: `Bash(npm run *)`, `Read(src/**)`, `mcp__server__*`, `WebFetch(domain:host)`. Pure.

Other examples are `Edit(/docs/*.md)` and `task(explore)`.

An allow rule for a command covers exactly one simple command, word by word after quotes are removed, and never its
redirects or scripts inside it. Deny and ask rules see through every wrapper. If a word is only known at run time, they
may match (`maybe`), which asks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Literal

from callboard.core.permissions import gitignore
from callboard.core.permissions.command_table import DELETING
from callboard.core.permissions.effects import CallFacts, PathAccess, ScriptPart, View
from callboard.core.permissions.git_options import GIT_COMMANDS, git_options
from callboard.core.permissions.gitignore import Anchors
from callboard.core.permissions.globs import matcher
from callboard.core.permissions.host_patterns import host_of, names_host
from callboard.core.permissions.values import HOLE, Arg, ProposedCall, Rule
from callboard.types.late_pattern import late_pattern

Match = Literal["yes", "maybe", "no"]

ALIASES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "Bash": ("bash",),
        "Read": ("read_file", "glob", "grep", "list_folder", "read_notebook"),
        "Edit": ("write_file", "edit_file", "multi_edit", "edit_notebook"),
        "Write": ("write_file",),
        "MultiEdit": ("multi_edit",),
        "NotebookEdit": ("edit_notebook",),
        "NotebookRead": ("read_notebook",),
        "LS": ("list_folder",),
        "Glob": ("glob",),
        "Grep": ("grep",),
        "Task": ("task", "spawn_teammate"),
        "Agent": ("task", "spawn_teammate"),
        "Skill": ("load_skill",),
        "TodoWrite": ("todo_write",),
        "TaskStop": ("task_stop",),
        "KillShell": ("task_stop",),
        "BashOutput": ("bash_output",),
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
"""Rule names, and the runtime's tools for each."""
SPECIFIED_BY: Mapping[str, str] = MappingProxyType(
    {"task": "agent_type", "spawn_teammate": "agent_type", "load_skill": "name", "connect_mcp": "name"}
)
"""Input field that is compared with the specifier in brackets, for tools other than the shell and the file tools."""
PATH_RULES = frozenset({"Read", "Edit", *ALIASES["Read"], *ALIASES["Edit"]})
UNHEEDED = frozenset({"Write", "MultiEdit", "NotebookEdit", "Glob", "Grep", "LS", "NotebookRead"})
"""Names that people use with paths and Claude Code never checks: `Edit(path)` and `Read(path)` are meant."""
NO_PARAMETERS = frozenset({"command", "file_path", "path", "notebook_path", "url"})
"""Inputs that `Tool(parameter:value)` does not cover, because other forms of rules do."""
_FIELDS: Mapping[str, str] = MappingProxyType({"subagent_type": "agent_type", "skill": "name", "timeout": "timeout_s"})
"""Input names in Claude Code that differ from the runtime's."""
_RULE = late_pattern(r"([A-Za-z0-9_*.:-]+)(?:\((.*)\))?", re.DOTALL)
_PARAMETER = late_pattern(r"([A-Za-z_][A-Za-z0-9_-]*):(.+)", re.DOTALL)
_GIT_ALIAS = late_pattern(r"(?i)alias\.|include")
_ONLY_EXACT = frozenset({"watch", "setsid", "ionice", "flock"})
"""Programs that run other programs and that no prefix rule covers."""


def parse_rule(text: str) -> Rule:
    """Parse a rule. Raises ValueError with the mistake: no tool name, or unclosed brackets."""
    match = _RULE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a rule: write Tool or Tool(specifier), for example Bash(npm test)")
    specifier = match[2].strip() if match[2] else None
    return Rule(match[1], None if specifier in (None, "", "*", ":*") else specifier, text.strip())


def names_tool(rule: Rule, tool: str, *, allow: bool) -> bool:
    """Return True if the rule applies to this tool.

    Globs in a tool's name are allowed in deny and ask rules, and after `mcp__x__`.
    """
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


def matches_input(rule: Rule, call: ProposedCall, *, allow: bool) -> bool:
    """Return True if a rule's specifier matches a call of a tool that is neither a shell nor a file tool."""
    if rule.specifier is None:
        return True
    if rule.tool in ("WebFetch", "web_fetch") and rule.specifier.startswith("domain:"):
        return names_host(rule.specifier.removeprefix("domain:"), str(call.input.get("url", "")), allow=allow)
    field = SPECIFIED_BY.get(call.name)
    value = call.input.get(field) if field else None
    if isinstance(value, str) and any(_words_fit(rule.specifier, name) for name in (value, *call.names)):
        return True
    return not allow and matches_parameter(rule, call)


def parameter_of(rule: Rule) -> tuple[str, str] | None:
    """Return the input and the value (with stars) of a rule of the form `Tool(parameter:value)`.

    None for any other rule.
    """
    match = _PARAMETER.fullmatch(rule.specifier or "")
    return (match[1], match[2]) if match and match[1] not in NO_PARAMETERS else None


def matches_parameter(rule: Rule, call: ProposedCall) -> bool:
    """Return True if a deny or ask rule `Tool(parameter:value)` matches.

    The call has that top-level input, with a single value.
    """
    parameter = parameter_of(rule)
    if parameter is None:
        return False
    name, value_pattern = parameter
    value = call.input.get(name, call.input.get(_FIELDS.get(name, name)))
    if not isinstance(value, str | int | float):
        return False
    return _wild(value_pattern, str(value).lower() if isinstance(value, bool) else str(value))


def _words_fit(specifier: str, value: str) -> bool:
    """Match stars with any text; `name *` also matches the name alone."""
    if specifier.endswith((" *", ":*")):
        return _wild(specifier[:-2], value) or _wild(specifier[:-2] + " *", value)
    return _wild(specifier, value)


def anchors_of(rule: Rule, facts: CallFacts) -> Anchors:
    """Return the folders to which the pattern of a path rule is relative."""
    return Anchors(facts.root, facts.home, rule.base, facts.folds)


def covers(rule: Rule, part: ScriptPart) -> bool:
    """Return True if an allow rule for the shell covers this part."""
    if rule.specifier is None:
        return True
    return any(view.for_allow and _exact(rule.specifier, view.words) for view in part.views)


def names_deleting(rule: Rule) -> bool:
    """Return True if a rule for the shell names a deleting program, not only by a star."""
    specifier_words = (rule.specifier or "").removesuffix(":*").split()
    return bool(specifier_words) and specifier_words[0] in DELETING


def covers_delete(rule: Rule, part: ScriptPart) -> bool:
    """Return True if an allow rule covers a deleting command: it names the program, and every deleted path.

    A star in a path matches across folders, but never upwards or into another operand: `rm build/*` does not cover `rm
    build/../src` or `rm build/x src`.
    """
    if not names_deleting(rule) or not covers(rule, part):
        return False
    specifier = (rule.specifier or "").strip()
    specifier_words = specifier.removesuffix(":*").split()[1:]
    paths = [word for word in specifier_words if not word.startswith("-")]
    deleted = [
        effect.query.text for effect in part.effects if isinstance(effect, PathAccess) and effect.access == "delete"
    ]
    if any(".." in text.split("/") for text in deleted):
        return False
    if specifier.endswith(":*") or not paths:
        return True
    regexes = [".*".join(map(re.escape, path.split("*"))) for path in paths]
    return all(any(re.fullmatch(regex, text, re.DOTALL) for regex in regexes) for text in deleted)


def hits(rule: Rule, part: ScriptPart) -> Match:
    """Return how a deny or ask rule for the shell matches this part."""
    if rule.specifier is None:
        return "yes"
    matches: set[Match] = {_loose(rule.specifier, view) for view in part.views}
    return "yes" if "yes" in matches else "maybe" if "maybe" in matches else "no"


def _pattern(specifier: str) -> tuple[list[str], bool] | None:
    """Return the words of a prefix or exact rule, and True if more may follow; None for a rule with other stars."""
    text = specifier.strip()
    open_ended = False
    if text.endswith(":*") or text.endswith(" *"):
        text = text[:-2]
        open_ended = True
    return None if "*" in text else (text.split(), open_ended)


def _exact(specifier: str, args: Sequence[Arg]) -> bool:
    texts = [word.text for word in args]
    pattern = _pattern(specifier)
    if pattern is None:
        plain = not any(re.search(rf"\s|{HOLE}", text) for text in texts) and not _ONLY_EXACT.intersection(texts[:1])
        return plain and _words_fit(specifier.strip(), " ".join(texts))
    pattern_words, open_ended = pattern
    if any(word.glob for word in args[: len(pattern_words)]) or (
        open_ended and pattern_words[:1] and pattern_words[0] in _ONLY_EXACT
    ):
        return False
    return texts[: len(pattern_words)] == pattern_words and (open_ended or len(texts) == len(pattern_words))


def _loose(specifier: str, view: View) -> Match:
    args = _without_dash(view.words)
    match = _as_written(specifier, args)
    program, _, remaining = specifier.strip().partition(" ")
    if match == "no" and remaining and _wild(program.rpartition("/")[2], "git") and _may_be_alias(args):
        return "maybe"
    return match


def _without_dash(args: Sequence[Arg]) -> Sequence[Arg]:
    """Return the words with `git-push`, a program in git's own folder, as `git push`."""
    name = args[0].text.rpartition("/")[2] if args else ""
    if not name.startswith("git-") or name.removeprefix("git-") not in GIT_COMMANDS:
        return args
    return (Arg("git"), Arg(name.removeprefix("git-")), *args[1:])


def _as_written(specifier: str, args: Sequence[Arg]) -> Match:
    texts = [word.text for word in args]
    if texts:
        texts[0] = texts[0].rpartition("/")[2] or texts[0]
    pattern = _pattern(specifier)
    if pattern is None:
        text = " ".join(texts)
        if _words_fit(specifier.strip(), text) or _words_fit(specifier.strip(), " ".join(word.text for word in args)):
            return "yes"
        return "maybe" if HOLE in text and _may_begin(specifier.strip(), text) else "no"
    pattern_words, open_ended = pattern
    if pattern_words:
        pattern_words[0] = pattern_words[0].rpartition("/")[2] or pattern_words[0]
    return _walk(pattern_words, args, texts, open_ended=open_ended)


def _may_be_alias(args: Sequence[Arg]) -> bool:
    """Return True if a command can be a git alias of another one: its subcommand is none of git's own.

    Git ignores an alias with the name of one of its own commands. Aliases are not looked up: a command before this one
    can set one, and so can a file that the configuration includes.
    """
    if not args or args[0].text.rpartition("/")[2] != "git":
        return False
    subcommand = list(args[1:])
    git_options(subcommand)
    texts = [word.text for word in args]
    sets = any(option == "-c" and _GIT_ALIAS.match(setting) for option, setting in pairwise(texts))
    sets = sets or any(re.match(r"--(?:config-env|exec-path)=", text) for text in texts)
    return sets or bool(subcommand and (subcommand[0].glob or subcommand[0].text not in GIT_COMMANDS))


def _may_begin(specifier: str, text: str) -> bool:
    """Return True if a text with holes may match a pattern with stars: both are equal as far as both are known."""
    known_length = min(text.find(HOLE), specifier.find("*") if "*" in specifier else len(specifier))
    return text[:known_length] == specifier[:known_length]


def _walk(pattern_words: Sequence[str], args: Sequence[Arg], texts: Sequence[str], *, open_ended: bool) -> Match:
    """Match words in order. Options between program and subcommand, with or without a value, do not avoid the rule."""
    states = {(0, False, False)}  # number of matched words; True if an option's value may follow; True if by a guess
    best: Match = "no"
    for arg, text in zip(args, texts, strict=True):
        if open_ended:
            best = _better(best, states, len(pattern_words))
        may_match = matcher(arg.pattern).fullmatch if arg.glob else None
        states = {
            new
            for state in states
            if state[0] < len(pattern_words)
            for new in _after(state, HOLE if may_match and may_match(pattern_words[state[0]]) else text, pattern_words)
        }
    return _better(best, states, len(pattern_words))


def _after(state: tuple[int, bool, bool], text: str, pattern_words: Sequence[str]) -> Iterable[tuple[int, bool, bool]]:
    at, value, guessed = state
    if value:
        yield at, False, guessed
    if text == pattern_words[at]:
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
    """Return True if a path rule's pattern matches this absolute path.

    `anywhere`: as deny and ask rules are read. `root`: the agent's folder. See `gitignore.py`.
    """
    return gitignore.names_path(specifier, path, Anchors(root, home), loose=anywhere)


WEB_FETCH = "web_fetch"
WEB_TOOLS: Mapping[str, str] = MappingProxyType(
    {WEB_FETCH: "it reads from the network", "web_search": "it sends its query to a search service"}
)
"""Tools that only read, but from the network, and what a question says about them."""


def names_exactly(among: Iterable[Rule], host: str) -> bool:
    """Return True if one of these allow rules names exactly this host, without a star."""
    prefix = "domain:"
    patterns = [
        rule.specifier.removeprefix(prefix).strip().lower().rstrip(".")
        for rule in among
        if names_tool(rule, WEB_FETCH, allow=True) and rule.specifier and rule.specifier.startswith(prefix)
    ]
    return any("*" not in pattern and host_of(pattern) == host for pattern in patterns)

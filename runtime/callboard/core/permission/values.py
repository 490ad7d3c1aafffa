"""The values that the permission judge reads and returns: parsed scripts, path facts, calls, policies, verdicts.

Everything here is frozen and says nothing about how it was found: a `ShellParser` and a `PathFacts` (ports) find it,
the judge decides on it. A script is kept as its syntax tree says it runs, never as text to be searched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from callboard.words.specs import PermissionMode
from callboard.words.values import Cause

Decision = Literal["allow", "ask", "deny"]
Mode = PermissionMode
EffectClass = Literal["read", "store", "reconcile", "attach", "unknown"]
Place = Literal["inside", "readable", "outside", "secret", "protected", "settings", "own", "malformed"]


# A shell script, as its grammar resolves it without running code.


@dataclass(frozen=True, slots=True)
class Text:
    """Literal characters of a word, after quote removal. Unquoted ones may still hold braces, globs and a tilde."""

    text: str
    quoted: bool


@dataclass(frozen=True, slots=True)
class Dynamic:
    """A part of a word that only running code can resolve: a parameter, a substitution, arithmetic with names."""

    source: str
    name: str = ""
    """The parameter's name, when the part is nothing but that parameter (`$X`, `${X}`)."""
    scripts: tuple[Script, ...] = ()
    """What runs while it is resolved."""
    runs_only: bool = False
    """True for a substitution: its value is the output of `scripts`, and no variable is read."""


@dataclass(frozen=True, slots=True)
class Word:
    """One word as written: its parts in order."""

    parts: tuple[Text | Dynamic, ...]


@dataclass(frozen=True, slots=True)
class Assign:
    """`NAME=value` before a command, alone, or given to `export` and its kin."""

    name: str
    value: Word


@dataclass(frozen=True, slots=True)
class Redirect:
    """`op` as written without its descriptor (`>`, `>>`, `<`, `<<<`, `>&`, `&>` ...). A heredoc's body is `target`."""

    op: str
    target: Word
    descriptor: str = ""
    """The number before it, if one is written."""


@dataclass(frozen=True, slots=True)
class Simple:
    """A simple command."""

    assigns: tuple[Assign, ...]
    words: tuple[Word, ...]
    redirects: tuple[Redirect, ...] = ()


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Commands that feed each other, in order."""

    stages: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """A list, subshell, loop, branch or test: `body` may run, any part of it, any number of times."""

    kind: Literal["list", "subshell", "loop", "branch", "background", "test", "arithmetic", "coproc"]
    body: tuple[Node, ...]
    words: tuple[Word, ...] = ()
    """Words that are expanded but are no command: loop items, case subjects and patterns, test operands."""
    sets: tuple[str, ...] = ()
    """Variables that the construct itself sets."""
    redirects: tuple[Redirect, ...] = ()


@dataclass(frozen=True, slots=True)
class Function:
    """A function definition. Its body counts as run."""

    name: str
    body: tuple[Node, ...]


Node = Simple | Pipeline | Group | Function


@dataclass(frozen=True, slots=True)
class Script:
    """A parsed script."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Unparsed:
    """A script that was not understood. `nul` scripts are refused, all others ask."""

    why: str
    nul: bool = False


Parsed = Script | Unparsed


# Paths.


@dataclass(frozen=True, slots=True)
class PathQuery:
    """A path as a tool or a command names it, relative to the agent's folder unless it is absolute."""

    text: str
    glob: bool = False
    """The text is a pattern: the answer is about the worst of its matches."""
    tree: bool = False
    """The command reads everything beneath: links and secrets in there count too."""


@dataclass(frozen=True, slots=True)
class PathFact:
    """Where a path leads, after every link was followed as the kernel does.

    `place` is the worst that applies; `resolved` is absolute, or empty when malformed. `critical` says that its
    recursive deletion would destroy the machine or a home: the root, a top-level system directory, a home directory or
    a folder above one. `device` is a block or character device other than the harmless ones (`/dev/null` ...).
    `holds_own` says that files of the runtime lie beneath it.
    """

    place: Place
    resolved: str = ""
    critical: bool = False
    device: bool = False
    directory: bool = False
    exists: bool = False
    holds_own: bool = False
    matches: tuple[str, ...] = ()
    """For globs: every path that the pattern matches now, links followed."""
    beneath: tuple[str, ...] = ()
    """For a tree that is read as a whole: the files in it, links followed."""
    beneath_cut: bool = False
    """There are more of them than were looked at."""
    why: str = ""


# Calls, policies, verdicts.


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call to be judged: the tool's name, its input after the schema check, and its effect class."""

    name: str
    input: Mapping[str, object]
    effect: EffectClass
    authority: Cause = "person"
    """Of the turn that makes it."""


@dataclass(frozen=True, slots=True)
class Rule:
    """`Tool` or `Tool(specifier)`, as people write them. Built by `rules.parse_rule`."""

    tool: str
    specifier: str | None = None
    source: str = ""
    """The text as written, for messages."""
    base: str = ""
    """The folder that a leading `/` of a path means: of the settings that it is from. Empty: the agent's own folder."""


@dataclass(frozen=True, slots=True)
class Floor:
    """What no rule and no mode lifts. People can add program names; the built-in lists always hold."""

    never: frozenset[str] = frozenset()
    ask: frozenset[str] = frozenset()
    classic_dd: Literal["deny", "judge"] = "judge"


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules in force for one agent."""

    mode: Mode = "default"
    allow: tuple[Rule, ...] = ()
    ask: tuple[Rule, ...] = ()
    deny: tuple[Rule, ...] = ()
    floor: Floor = field(default_factory=Floor)


@dataclass(frozen=True, slots=True)
class CallFacts:
    """What was found out about a call before it is judged.

    `scripts` maps each script text of the call (the command itself, and every literal script inside it) to what the
    parser made of it; `paths` maps each query of the call to its fact. What is missing is treated as unknown, and asks.
    """

    scripts: Mapping[str, Parsed] = field(default_factory=dict[str, Parsed])
    paths: Mapping[PathQuery, PathFact] = field(default_factory=dict[PathQuery, PathFact])
    root: str = "/"
    """The agent's folder, absolute: path rules without an anchor are relative to it."""
    home: str = "/root"
    folds: bool = False
    """The file system there does not tell upper from lower case."""
    git_quiet: bool = False
    """The repository's own git configuration was trusted, or runs no program: the premise of letter G."""
    destructive: bool = False
    """The tool's server annotates it as destructive."""
    person_only: bool = False
    """The tool's server wants a person to speak with it: no rule and no mode answers for them."""
    sandbox: int = 0
    """The sandbox level in force for the agent's commands, 0 to 3."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision, the rule it follows from (a letter of docs/permissions.md, `rule ...` or `mode ...`), and why."""

    decision: Decision
    rule: str
    why: str

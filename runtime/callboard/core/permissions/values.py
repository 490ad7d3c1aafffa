"""Values that the permission judge reads and returns: parsed scripts, path facts, calls, policies, and verdicts.

The values include allow rules from outside the settings (of a session, or of a hook that allows one call).

Everything here is frozen and independent of its source: a `ShellParser` and a `PathFacts` (ports) supply the facts, and
the judge decides on them. A script is kept as a syntax tree, never as text to be searched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Cause, PermissionMode

Decision = Literal["allow", "ask", "deny"]
Mode = PermissionMode
EffectClass = Literal["read", "store", "reconcile", "attach", "unknown"]
LeftOut = Literal["nothing", "ignored", "untracked"]
Place = Literal["inside", "readable", "outside", "secret", "protected", "settings", "own", "malformed"]
HOLE = "\0"
"""A part of a word that only running code can resolve: no real word can contain this character."""


# Shell scripts, as the grammar resolves them without running code


@dataclass(frozen=True, slots=True)
class Text:
    """Literal characters of a word, after quote removal. Unquoted ones may still contain braces, globs and a tilde."""

    text: str
    quoted: bool


@dataclass(frozen=True, slots=True)
class DynamicPart:
    """A part of a word that only running code can resolve: a parameter, a substitution, arithmetic with names."""

    source: str
    name: str = ""
    """Name of the parameter, if the part is only that parameter (`$X`, `${X}`)."""
    scripts: tuple[Script, ...] = ()
    """Scripts that run while the part is resolved."""
    runs_only: bool = False
    """True for a substitution: its value is the output of `scripts`, and no variable is read."""


@dataclass(frozen=True, slots=True)
class Word:
    """One word as written: its parts in order."""

    parts: tuple[Text | DynamicPart, ...]


@dataclass(frozen=True, slots=True)
class Assign:
    """`NAME=value` before a command, alone, or as an argument of `export` and similar commands."""

    name: str
    value: Word


@dataclass(frozen=True, slots=True)
class Redirect:
    """`op` as written without its descriptor (`>`, `>>`, `<`, `<<<`, `>&`, `&>` ...). A heredoc's body is `target`."""

    op: str
    target: Word
    descriptor: str = ""
    """Number before the operator, if one is written."""


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
    """List, subshell, loop, branch or test. Any part of `body` may run, any number of times.

    `and`: two parts, and the second runs only after the first has succeeded.
    """

    kind: Literal["list", "and", "subshell", "loop", "branch", "background", "test", "arithmetic", "coproc"]
    body: tuple[Node, ...]
    words: tuple[Word, ...] = ()
    """Words that are expanded but are not commands: loop items, case subjects and patterns, test operands."""
    sets: tuple[str, ...] = ()
    """Variables that the construct itself sets."""
    redirects: tuple[Redirect, ...] = ()


@dataclass(frozen=True, slots=True)
class Function:
    """Definition of a function. Its body counts as run."""

    name: str
    body: tuple[Node, ...]


Node = Simple | Pipeline | Group | Function


@dataclass(frozen=True, slots=True)
class Script:
    """A parsed script."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class UnparsedScript:
    """A script that was not understood. Scripts with `nul` are refused, all others ask."""

    why: str
    nul: bool = False


Parsed = Script | UnparsedScript


# Words as a command receives them.


@dataclass(frozen=True, slots=True)
class Arg:
    """One word as a command receives it, as far as it is known."""

    text: str
    """Text of the word, with `HOLE` for unknown parts."""
    glob: bool = False
    pattern: str = ""
    """For globs: the text as a pattern (`globs`), with a backslash before quoted characters."""
    output_only: bool = False
    """True if the unknown parts are outputs of commands, not variables."""
    variable: bool = False
    """True if a variable or a user's home was read for it, although its value is known well enough to deny."""
    number: bool = False
    """True if it is only `$?`, `$#` or `$$`: unknown, but one word of digits."""

    @property
    def known(self) -> bool:
        """Return True if the text contains no hole."""
        return HOLE not in self.text


@dataclass(frozen=True, slots=True)
class ProgramWords:
    """A program with its words, without wrappers."""

    name: str
    args: tuple[Arg, ...]


# Paths.


@dataclass(frozen=True, slots=True)
class PathQuery:
    """A path in a tool call or a command, relative to the agent's folder unless it is absolute."""

    text: str
    glob: bool = False
    """True if the text is a pattern: the answer describes the worst of its matches."""
    tree: bool = False
    """True if the command reads everything beneath it: links and secrets there count too."""
    left_out: LeftOut = "nothing"
    """Files of a tree that the command skips. `ignored`: hidden files and files listed in ignore files, as ripgrep
    does; `untracked`: files that git does not track."""
    commit: bool = False
    """True if the text is a git name instead of a path: the fact exists if the name certainly means a commit."""


@dataclass(frozen=True, slots=True)
class PathFact:
    """The target of a path, after following every link as the kernel does.

    `place` is the worst that applies; `resolved` is absolute, or empty if malformed. `critical`: deleting it
    recursively would destroy the machine or a home (the root, a top-level system directory, a home directory or a
    folder above one). `device`: a block or character device other than the harmless ones (`/dev/null` ...).
    `holds_own`: files of the runtime are beneath it, or `loaded` files, which sessions load from the person's own
    folders. Such a tree is never changed; reading it is judged by the place.
    """

    place: Place
    resolved: str = ""
    critical: bool = False
    device: bool = False
    directory: bool = False
    exists: bool = False
    holds_own: bool = False
    loaded: bool = False
    matches: tuple[str, ...] = ()
    """For globs: every path that the pattern currently matches, links followed."""
    beneath: tuple[str, ...] = ()
    """For a tree that is read as a whole: the files in it, links followed."""
    beneath_cut: bool = False
    """True if there are more files than were examined."""
    secrets: tuple[str, ...] = ()
    """Files beneath a tree of tracked files that have names of secrets."""
    why: str = ""


# Calls, policies, verdicts.


@dataclass(frozen=True, slots=True)
class ProposedCall:
    """A tool call to be judged: the tool's name, its input after the schema check, and its effect class."""

    name: str
    input: Mapping[str, object]
    effect: EffectClass
    authority: Cause = "person"
    """Authority of the turn that makes the call."""
    names: tuple[str, ...] = ()
    """Other names of the skill that the call loads."""


@dataclass(frozen=True, slots=True)
class Rule:
    """`Tool` or `Tool(specifier)`, as people write them. Built by `rules.parse_rule`."""

    tool: str
    specifier: str | None = None
    source: str = ""
    """The text as written, for messages."""
    base: str = ""
    """Folder of a leading `/` in a path: that of the rule's settings. Empty: the agent's own folder."""


@dataclass(frozen=True, slots=True)
class HardRules:
    """Checks that no rule and no mode lifts. People can add program names; the built-in lists always apply."""

    never: frozenset[str] = frozenset()
    ask: frozenset[str] = frozenset()
    classic_dd: Literal["deny", "judge"] = "judge"


@dataclass(frozen=True, slots=True)
class AgentPolicy:
    """The rules in force for one agent."""

    mode: Mode = "default"
    allow: tuple[Rule, ...] = ()
    ask: tuple[Rule, ...] = ()
    deny: tuple[Rule, ...] = ()
    hard_rules: HardRules = field(default_factory=HardRules)
    read_only: bool = False
    """True if the agent is of a read-only type: no rule, mode or person lets its calls do more."""
    plans: bool = True
    """True if the agent can submit a plan, whose approval ends the mode `plan`."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision, its rule (a letter of docs/permissions.md, `rule ...` or `mode ...`), and the reason."""

    decision: Decision
    rule: str
    why: str


@dataclass(frozen=True, slots=True)
class AllowOverride:
    """An additional allow rule. `rule`: as `parse_rule` reads it. `by`: its name in a verdict."""

    rule: str
    by: str

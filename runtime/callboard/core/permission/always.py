"""What "always allow this here" would allow: the narrowest rules for a call, and rules of that kind applied. Pure.

A proposal is offered only where it would have lifted the question, so it never holds what no rule lifts: S, K, T, the
floor, deny and ask rules. Nothing is proposed for what runs any code by its words (shells, interpreters, wrappers), for
what deletes, forces or leaves the machine in a way of its own, nor for words that are only known when it runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from callboard.core.permission import rules
from callboard.core.permission.analysis import analyse
from callboard.core.permission.commands import SHELLS
from callboard.core.permission.effects import Does, Part, Touch, View
from callboard.core.permission.filetools import FILE_TOOLS, named_paths
from callboard.core.permission.judge import judge_call
from callboard.core.permission.lifts import Lift
from callboard.core.permission.values import CallFacts, Policy, Rule, ToolCall, Unparsed, Verdict
from callboard.core.permission.wrappers import is_wrapper

MOST_RULES = 5
"""Rules that one answer may make (docs/permissions.md, "Always")."""
LONGEST_RULE = 200
"""Characters of a rule that a person can still take in at a glance."""

_PREFIXES: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "cargo": frozenset({"build", "check", "clippy", "doc", "fmt", "test"}),
        "git": frozenset({"add", "commit"}),
        "go": frozenset({"build", "test", "vet"}),
        "npm": frozenset({"ci", "test"}),
        "pnpm": frozenset({"test"}),
        "ruff": frozenset({"check", "format"}),
        "yarn": frozenset({"test"}),
    }
)
"""Programs and their subcommands whose further words make them no other class of command."""
_WHOLE = frozenset({"eslint", "jest", "mypy", "prettier", "pyright", "pytest", "tsc", "vitest"})
"""Programs that are one class, whatever their words."""
_SCRIPTS = frozenset({("npm", "run"), ("pnpm", "run"), ("yarn", "run")})
"""Before the name of a script of the project: the third word belongs to the class."""
# fmt: off
_NEVER = SHELLS | frozenset({
    "awk", "bun", "bunx", "busybox", "chgrp", "chmod", "chown", "curl", "dd", "deno", "docker", "eval", "find",
    "gawk", "gdb", "irb", "java", "kill", "killall", "kubectl", "lua", "mawk", "nc", "ncat", "node", "npx",
    "perl", "php", "pipx", "pkill", "pnpx", "podman", "poetry", "psql", "python", "rm", "rmdir", "rsync",
    "ruby", "scp", "sed", "sftp", "shred", "socat", "source", "sqlite3", "srm", "ssh", "strace", "tclsh", "tee",
    "telnet", "trap", "truncate", "ts-node", "tsx", "unlink", "uv", "uvx", "wget", "wipe", "xargs", ".", ":",
})
# fmt: on
"""Programs for which nothing is proposed: their words are code, or make them another class."""
_LETTERS = frozenset("EGNX")
"""What a command may do beside reading and writing files, for anything to be proposed."""
_VERSIONED = re.compile(r"(python|pypy|perl|ruby|lua|node|php|pip)[0-9.]*w?")
_FORCED = re.compile(
    r"-[a-zA-Z]*[cCfdD][a-zA-Z]*|--(?:force|delete|mirror|prune|hard|exec|upload-pack|receive-pack).*|\+.*|:.*"
)
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./~^-]+")


def lifted(call: ToolCall, policy: Policy, facts: CallFacts, verdict: Verdict, lifts: Sequence[Lift]) -> Verdict:
    """`verdict`, or an allowance where these rules lift it; it names those that it takes, the first ones first."""
    about = [one for one in lifts if rules.names_tool(rules.parse_rule(one.rule), call.name, allow=True)]
    if verdict.decision == "allow" or not _allowed(call, policy, facts, [one.rule for one in about]):
        return verdict
    needed = about
    for one in reversed(about):
        rest = [other for other in needed if other is not one]
        if _allowed(call, policy, facts, [other.rule for other in rest]):
            needed = rest
    return Verdict("allow", ", ".join(one.by for one in needed), f"without it, it would ask: {verdict.why}")


def propose(call: ToolCall, policy: Policy, facts: CallFacts) -> tuple[str, ...]:
    """The rules, at most `MOST_RULES`, under which a call that asks would be allowed; none where there are no such, or
    no narrow ones, or where it is allowed as it is."""
    if judge_call(call, policy, facts).decision == "allow":
        return ()
    if call.name == "bash":
        found = _for_shell(call, policy, facts)
    elif call.name in FILE_TOOLS:
        found = _for_files(call, facts)
    else:
        found = (call.name,)
    texts = tuple(dict.fromkeys(found))
    fits = 0 < len(texts) <= MOST_RULES and all(len(text) <= LONGEST_RULE for text in texts)
    return texts if fits and _allowed(call, policy, facts, texts) else ()


def _allowed(call: ToolCall, policy: Policy, facts: CallFacts, texts: Sequence[str]) -> bool:
    if not texts:
        return False
    more = tuple(rules.parse_rule(text) for text in texts)
    return judge_call(call, replace(policy, allow=(*policy.allow, *more)), facts).decision == "allow"


# Commands


def _for_shell(call: ToolCall, policy: Policy, facts: CallFacts) -> tuple[str, ...]:
    source = call.input.get("command")
    if not isinstance(source, str):
        return ()
    parts = [part for part in analyse(source, facts.scripts, facts.home, policy.floor).parts if part.effects]
    wanted = [(part, _for_part(part) if _common(part, facts) else "") for part in parts]
    texts = [text for part, text in wanted if text and not _covered(part, policy.allow)]
    kept: list[str] = []
    for number, text in enumerate(texts):
        others = [*kept, *texts[number + 1 :]]
        if not _allowed(call, policy, facts, others):  # without it, it would still ask
            kept.append(text)
    return tuple(kept)


def _covered(part: Part, allow: Sequence[Rule]) -> bool:
    return any(rules.names_tool(rule, "bash", allow=True) and rules.covers(rule, part) for rule in allow)


def _common(part: Part, facts: CallFacts) -> bool:
    """Whether a part only does what people let a class of commands do: no secrets, nothing deleted, nothing outside
    changed."""
    touched = [effect for effect in part.effects if isinstance(effect, Touch)]
    places = {fact.place if (fact := facts.paths.get(one.query)) else "malformed" for one in touched}
    if not places <= {"inside", "readable", "outside"}:
        return False
    if "outside" in places and (len(touched) < len(part.effects) or any(one.access != "read" for one in touched)):
        return False
    return all(effect.letter in _LETTERS for effect in part.effects if isinstance(effect, Does))


def _for_part(part: Part) -> str:
    view = next((view for view in reversed(part.views) if view.for_allow), None)
    words = _words_of(view) if view is not None else ()
    if not words or is_wrapper(words[0]) or words[0] in _NEVER or _VERSIONED.fullmatch(words[0]):
        return ""
    size = _class_of(words)
    if size:
        return f"Bash({' '.join(words[:size])}:*)"
    if words[0] == "git" and (words[1:2] in ((), ("push",)) or any(map(_FORCED.fullmatch, words[1:]))):
        return ""
    exact = all(_PLAIN.fullmatch(word) for word in words) and not words[-1].endswith(":*")
    return f"Bash({' '.join(words)})" if exact else ""


def _words_of(view: View) -> tuple[str, ...]:
    """All its words, or none where one of them is only known when it runs, or is a pattern."""
    return tuple(arg.text for arg in view.words) if all(arg.known and not arg.glob for arg in view.words) else ()


def _class_of(words: Sequence[str]) -> int:
    """How many of the first words name the class of command; 0: only the whole command does."""
    if words[0] in _WHOLE:
        return 1
    if len(words) > 2 and tuple(words[:2]) in _SCRIPTS and _PLAIN.fullmatch(words[2]) and words[2][0] != "-":
        return 3
    return 2 if len(words) > 1 and words[1] in _PREFIXES.get(words[0], frozenset()) else 0


# Files


def _for_files(call: ToolCall, facts: CallFacts) -> tuple[str, ...]:
    """The folder of a file in the workspace that is written; the file itself where it is outside, or at the root."""
    named = named_paths(call)
    if isinstance(named, Unparsed):
        return ()
    found: list[str] = []
    for one in named:
        fact = facts.paths.get(one.query)
        if fact is None or fact.place not in ("inside", "outside") or not _sayable(fact.resolved):
            return ()
        tool = "Read" if one.access == "read" else "Edit"
        found.append(f"{tool}({_pattern_of(fact.resolved, facts.root, inside=fact.place == 'inside')})")
    return tuple(found)


def _pattern_of(path: str, root: str, *, inside: bool) -> str:
    if not inside:
        return f"/{path}"
    folder = path.removeprefix(root.rstrip("/") + "/").rpartition("/")[0]
    return f"/{folder}/**" if folder else path.removeprefix(root.rstrip("/"))


def _sayable(path: str) -> bool:
    return path.startswith("/") and path.isprintable() and not set(path) & set("*?[]()\\!")

"""Suggestions for "always allow this here": the narrowest rules for a call, and their application. Pure.

A suggestion is offered only if it would have lifted the question, so it never includes anything that no rule lifts: S,
K, T, the floor, deny and ask rules. Nothing is suggested for programs that run any code from their words (shells,
interpreters, wrappers), for commands that delete, force or leave the machine in unusual ways, or for words that are
only known at run time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from callboard.core.permissions import rules
from callboard.core.permissions.command_table import SHELLS
from callboard.core.permissions.effects import CallFacts, GitContent, PathAccess, Risk, ScriptPart, View
from callboard.core.permissions.file_tools import FILE_TOOLS, named_paths
from callboard.core.permissions.host_patterns import host_of
from callboard.core.permissions.judge import judge_call
from callboard.core.permissions.rule_match import printed_secrets
from callboard.core.permissions.shell_effects import analysis_in
from callboard.core.permissions.values import AgentPolicy, AllowOverride, ProposedCall, Rule, UnparsedScript, Verdict
from callboard.core.permissions.wrappers import is_wrapper
from callboard.types.late_pattern import late_pattern

MOST_RULES = 5
"""Maximum number of rules that one answer may add (docs/permissions.md, "Always")."""
LONGEST_RULE = 200
"""Maximum characters of a rule that a person can review at a glance."""

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
"""Programs and subcommands whose further words do not change the class of command."""
_WHOLE = frozenset({"eslint", "jest", "mypy", "prettier", "pyright", "pytest", "tsc", "vitest"})
"""Programs that are one class, regardless of their words."""
_SCRIPTS = frozenset({("npm", "run"), ("pnpm", "run"), ("yarn", "run")})
"""Words before the name of a project script: the third word belongs to the class."""
# fmt: off
_NEVER = SHELLS | frozenset({
    "awk", "bun", "bunx", "busybox", "chgrp", "chmod", "chown", "curl", "dd", "deno", "docker", "eval", "find",
    "gawk", "gdb", "irb", "java", "kill", "killall", "kubectl", "lua", "mawk", "nc", "ncat", "node", "npx",
    "perl", "php", "pipx", "pkill", "pnpx", "podman", "poetry", "psql", "python", "rm", "rmdir", "rsync",
    "ruby", "scp", "sed", "sftp", "shred", "socat", "source", "sqlite3", "srm", "ssh", "strace", "tclsh", "tee",
    "telnet", "trap", "truncate", "ts-node", "tsx", "unlink", "uv", "uvx", "wget", "wipe", "xargs", ".", ":",
})
# fmt: on
"""Programs for which nothing is suggested: their words are code, or change their class."""
_LETTERS = frozenset("EGNX")
"""Effects besides reading and writing files that a command may have if a rule is to be suggested."""
_VERSIONED = late_pattern(r"(python|pypy|perl|ruby|lua|node|php|pip)[0-9.]*w?")
_FORCED = late_pattern(
    r"-[a-zA-Z]*[cCfdD][a-zA-Z]*|--(?:force|delete|mirror|prune|hard|exec|upload-pack|receive-pack).*|\+.*|:.*"
)
_DELETES = late_pattern(r"(?:^|[\s;&|(])(rm|rmdir|unlink|trash|rimraf)\b")
_PLAIN = late_pattern(r"[A-Za-z0-9_@%+=:,./~^-]+")


def with_overrides(
    call: ProposedCall, policy: AgentPolicy, facts: CallFacts, *, verdict: Verdict, overrides: Sequence[AllowOverride]
) -> Verdict:
    """Return `verdict`, or an allowance if these rules lift it.

    The allowance names the used rules, the first ones first.
    """
    about = [
        override for override in overrides if rules.names_tool(rules.parse_rule(override.rule), call.name, allow=True)
    ]
    if verdict.decision == "allow" or not _allowed(call, policy, facts, [override.rule for override in about]):
        return verdict
    needed = about
    for override in reversed(about):
        others = [other for other in needed if other is not override]
        if _allowed(call, policy, facts, [other.rule for other in others]):
            needed = others
    return Verdict("allow", ", ".join(override.by for override in needed), f"without it, it would ask: {verdict.why}")


def propose(call: ProposedCall, policy: AgentPolicy, facts: CallFacts) -> tuple[str, ...]:
    """Return the rules, at most `MOST_RULES`, under which a call that asks would be allowed.

    Empty if there are no narrow rules, or if the call is already allowed.
    """
    if judge_call(call, policy, facts).decision == "allow":
        return ()
    if call.name == "bash":
        rule_texts = _for_shell(call, policy, facts)
    elif call.name == rules.WEB_FETCH:
        rule_texts = (f"WebFetch(domain:{host_of(str(call.input.get('url')))})",)
    elif call.name in FILE_TOOLS:
        rule_texts = _for_files(call, facts)
    else:
        rule_texts = (call.name,)
    texts = tuple(dict.fromkeys(rule_texts))
    fits = 0 < len(texts) <= MOST_RULES and all(len(text) <= LONGEST_RULE for text in texts)
    return texts if fits and _allowed(call, policy, facts, texts) else ()


def _allowed(call: ProposedCall, policy: AgentPolicy, facts: CallFacts, texts: Sequence[str]) -> bool:
    if not texts:
        return False
    parsed = (rules.parse_rule(text) for text in texts)
    extra = tuple(rule for rule in parsed if not rules.names_deleting(rule))  # only settings allow deletions
    return judge_call(call, replace(policy, allow=(*policy.allow, *extra)), facts).decision == "allow"


def deletion_rule(tool: str, tool_input: Mapping[str, object]) -> str:
    """Return the settings rule that names a deleting command; empty for any other call.

    The rule is exact for one plain command. For a list, or with words that the shell replaces, it names only the
    program.
    """
    command = tool_input.get("command")
    match = _DELETES.search(command) if tool == "bash" and isinstance(command, str) else None
    if match is None:
        return ""
    text = match.string.strip()
    exact = text if all(map(_PLAIN.fullmatch, text.split())) and text.startswith(match[1]) else f"{match[1]} *"
    return f"Bash({exact})"


# Commands


def _for_shell(call: ProposedCall, policy: AgentPolicy, facts: CallFacts) -> tuple[str, ...]:
    source = call.input.get("command")
    if not isinstance(source, str):
        return ()
    parts = [part for part in analysis_in(facts, source, policy.hard_rules).parts if part.effects]
    proposals = [(part, _for_part(part) if _common(part, facts) else "") for part in parts]
    texts = [text for part, text in proposals if text and not _covered(part, policy.allow)]
    needed: list[str] = []
    for number, text in enumerate(texts):
        others = [*needed, *texts[number + 1 :]]
        if not _allowed(call, policy, facts, others):  # without this rule, the call would still ask
            needed.append(text)
    return tuple(needed)


def _covered(part: ScriptPart, allow: Sequence[Rule]) -> bool:
    return any(rules.names_tool(rule, "bash", allow=True) and rules.covers(rule, part) for rule in allow)


def _common(part: ScriptPart, facts: CallFacts) -> bool:
    """Return True if a part has only the usual effects of an allowed class of commands.

    Such a part touches no secrets, deletes nothing, and changes nothing outside.
    """
    touched = [effect for effect in part.effects if isinstance(effect, PathAccess)]
    places = {fact.place if (fact := facts.paths.get(touch.query)) else "malformed" for touch in touched}
    if not places <= {"inside", "readable", "outside"}:
        return False
    if "outside" in places and (len(touched) < len(part.effects) or any(touch.access != "read" for touch in touched)):
        return False
    if any(printed_secrets(effect, facts) for effect in part.effects if isinstance(effect, GitContent)):
        return False
    return all(effect.letter in _LETTERS for effect in part.effects if isinstance(effect, Risk))


def _for_part(part: ScriptPart) -> str:
    view = next((view for view in reversed(part.views) if view.for_allow), None)
    texts = _words_of(view) if view is not None else ()
    if not texts or is_wrapper(texts[0]) or texts[0] in _NEVER or _VERSIONED.fullmatch(texts[0]):
        return ""
    size = _class_of(texts)
    if size:
        return f"Bash({' '.join(texts[:size])}:*)"
    if texts[0] == "git" and (texts[1:2] in ((), ("push",)) or any(map(_FORCED.fullmatch, texts[1:]))):
        return ""
    exact = all(_PLAIN.fullmatch(word) for word in texts) and not texts[-1].endswith(":*")
    return f"Bash({' '.join(texts)})" if exact else ""


def _words_of(view: View) -> tuple[str, ...]:
    """Return all words of a part; empty if a word is a pattern or only known at run time."""
    return tuple(arg.text for arg in view.words) if all(arg.known and not arg.glob for arg in view.words) else ()


def _class_of(texts: Sequence[str]) -> int:
    """Return the number of leading words that name the class of command; 0 if only the whole command does."""
    if texts[0] in _WHOLE:
        return 1
    if len(texts) > 2 and tuple(texts[:2]) in _SCRIPTS and _PLAIN.fullmatch(texts[2]) and texts[2][0] != "-":
        return 3
    return 2 if len(texts) > 1 and texts[1] in _PREFIXES.get(texts[0], frozenset()) else 0


# Files


def _for_files(call: ProposedCall, facts: CallFacts) -> tuple[str, ...]:
    """Return rules for the folder of a written file in the workspace.

    The rules are for the file itself if it is outside, or at the root.
    """
    named = named_paths(call)
    if isinstance(named, UnparsedScript):
        return ()
    rule_texts: list[str] = []
    for path in named:
        fact = facts.paths.get(path.query)
        if fact is None or fact.place not in ("inside", "outside") or not _sayable(fact.resolved):
            return ()
        tool = "Read" if path.access == "read" else "Edit"
        rule_texts.append(f"{tool}({_pattern_of(fact.resolved, facts.root, inside=fact.place == 'inside')})")
    return tuple(rule_texts)


def _pattern_of(path: str, root: str, *, inside: bool) -> str:
    if not inside:
        return f"/{path}"
    folder = path.removeprefix(root.rstrip("/") + "/").rpartition("/")[0]
    return f"/{folder}/**" if folder else path.removeprefix(root.rstrip("/"))


def _sayable(path: str) -> bool:
    return path.startswith("/") and path.isprintable() and not set(path) & set("*?[]()\\!")

"""Explanation of a verdict for a person, and the meaning of each reason code as a question states it. Pure.

The explanation has the parts of a call, the paths of each part, and the objections to each part. The reason codes are
those of docs/permissions.md.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from callboard.core.permissions import rules
from callboard.core.permissions.effects import Access, CallFacts, PathAccess, Risk, ScriptPart
from callboard.core.permissions.file_tools import FILE_TOOLS, named_paths
from callboard.core.permissions.judge import against
from callboard.core.permissions.shell_effects import analysis_in
from callboard.core.permissions.suggest_rules import propose
from callboard.core.permissions.values import (
    HOLE,
    AgentPolicy,
    Arg,
    Decision,
    PathFact,
    ProposedCall,
    Rule,
    UnparsedScript,
    Verdict,
)
from callboard.types.lazy_dataclass import dataclass

UNKNOWN = "…"
"""Placeholder for text that is known only when the command runs."""


@dataclass(frozen=True, slots=True)
class PathExplanation:
    """Path of a part: the access, the path as written, its target, and its kind."""

    access: Access
    path: str
    resolved: str
    place: str
    why: str


@dataclass(frozen=True, slots=True)
class Objection:
    """One objection to a part.

    `lifted_by` is the authority that may lift it: `mode`, `rule`, `bypass`, `named`, `person` or `never`.
    """

    letter: str
    why: str
    lifted_by: str


@dataclass(frozen=True, slots=True)
class PartExplanation:
    """One simple command, redirect, assignment or path of the call. `rules`: the matching rules, with their kind."""

    text: str
    program: str
    touches: tuple[PathExplanation, ...]
    against: tuple[Objection, ...]
    rules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CallExplanation:
    """Explanation of a whole call.

    `always`: the rules that the answer "always" would add; none if no narrow rule lifts the ask.
    """

    tool: str
    decision: Decision
    by: str
    why: str
    mode: str
    parts: tuple[PartExplanation, ...]
    always: tuple[str, ...]


def explain_call(verdict: Verdict, call: ProposedCall, policy: AgentPolicy, facts: CallFacts) -> CallExplanation:
    """Explain a call and the verdict for it under these rules and facts."""
    return CallExplanation(
        tool=call.name,
        decision=verdict.decision,
        by=verdict.rule,
        why=verdict.why,
        mode=policy.mode,
        parts=_parts(call, policy, facts),
        always=propose(call, policy, facts) if verdict.decision == "ask" else (),
    )


def _parts(call: ProposedCall, policy: AgentPolicy, facts: CallFacts) -> tuple[PartExplanation, ...]:
    source = call.input.get("command")
    if call.name == "bash" and isinstance(source, str):
        parts_found = analysis_in(facts, source, policy.hard_rules).parts
        parts = [(part.guessed, _shell_part(part, policy, facts)) for part in parts_found]
        # Several guesses at unknown words often come to the same command: it is shown once.
        return tuple(
            explained
            for at, (guessed, explained) in enumerate(parts)
            if not guessed or (guessed, explained) not in parts[:at]
        )
    named = named_paths(call) if call.name in FILE_TOOLS else ()
    touches = () if isinstance(named, UnparsedScript) else tuple(PathAccess(path.access, path.query) for path in named)
    if not touches:
        return ()
    part = ScriptPart(touches)
    return (PartExplanation(call.name, "", _touches(part, facts), _against(part, facts), ()),)


def _shell_part(part: ScriptPart, policy: AgentPolicy, facts: CallFacts) -> PartExplanation:
    shown_command = " ".join(map(_word, part.views[0].words)) if part.views else _bare(part)
    shown_command = f"perhaps {shown_command}" if part.guessed else shown_command
    inner = part.views[-1].words if part.views else ()
    program = _word(inner[0]) if inner else ""
    return PartExplanation(
        shown_command, program, _touches(part, facts), _against(part, facts), tuple(_matching(part, policy))
    )


def _word(arg: Arg) -> str:
    text = arg.text.replace(HOLE, UNKNOWN)
    return text if arg.glob or not arg.known else shlex.quote(text)


def _bare(part: ScriptPart) -> str:
    """Return the text of a part without a command: a redirect, an assignment, or unreadable text."""
    signs = {"read": "<", "write": ">", "delete": ">"}
    written = [f"{signs[each.access]} {each.query.text}" for each in part.effects if isinstance(each, PathAccess)]
    return " ".join(written) or "(no command)"


def _touches(part: ScriptPart, facts: CallFacts) -> tuple[PathExplanation, ...]:
    touches = [each for each in part.effects if isinstance(each, PathAccess)]
    return tuple(dict.fromkeys(_touch(each, facts.paths.get(each.query)) for each in touches))


def _touch(touch: PathAccess, fact: PathFact | None) -> PathExplanation:
    if fact is None:
        return PathExplanation(touch.access, touch.query.text, "", "malformed", "it was not looked up")
    return PathExplanation(touch.access, touch.query.text, fact.resolved, fact.place, fact.why)


def _against(part: ScriptPart, facts: CallFacts) -> tuple[Objection, ...]:
    objections: Iterable[Risk] = against(part, facts)
    return tuple(dict.fromkeys(Objection(each.letter, each.why, each.ease) for each in objections))


def _matching(part: ScriptPart, policy: AgentPolicy) -> Iterable[str]:
    """Return the rules for commands that match the part: deny, ask, allow."""
    for kind, among in (("deny", policy.deny), ("ask", policy.ask)):
        yield from (f"{kind} {rule.source}" for rule in _of_shell(among, allow=False) if rules.hits(rule, part) != "no")
    yield from (f"allow {rule.source}" for rule in _of_shell(policy.allow, allow=True) if rules.covers(rule, part))


def _of_shell(among: Sequence[Rule], *, allow: bool) -> Iterable[Rule]:
    return (rule for rule in among if rules.names_tool(rule, "bash", allow=allow))


MEANING: Mapping[str, str] = MappingProxyType(
    {
        "R": "only reads inside the workspace",
        "G": "reads through git, whose settings in this repository could run programs",
        "E": "writes or creates files in the workspace",
        "D": "deletes or empties files",
        "X": "runs code, or a program that is not known to only read",
        "V": "sets variables that other programs read",
        "O": "reads or changes what is outside the workspace, or is secret, or belongs to other processes",
        "N": "uses the network",
        "S": "is never run: it would destroy the machine or gain rights",
        "K": "touches Callboard's own files",
        "H": "changes files that other tools run or obey",
        "L": "what it would do is only known when it runs",
        "M": "cannot be read, or holds characters that hide",
        "P": "a pattern could become an option that runs a program",
        "F": "is always asked, whatever rules and modes say",
        "T": "needs a person's own answer",
    }
)
"""Reason code -> description of a call with that code."""


def meaning_of(rule: str) -> str:
    """Return the reason for a verdict with this rule, as text; empty for unknown rules.

    The rule is a letter, a rule of settings, a mode or a hook.
    """
    if rule in MEANING:
        return MEANING[rule]
    first = rule.partition(" ")[0]
    return {
        "rule": "a rule of your settings says so",
        "mode": "the permission mode says so",
        "hook": "a hook says so",
        "check,": "the check that it runs says so",
    }.get(first, "")

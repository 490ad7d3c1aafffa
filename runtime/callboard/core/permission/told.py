"""A call as the judge sees it, for a person to read: its parts, what each touches, what stands against it. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from callboard.core.permission import rules
from callboard.core.permission.always import propose
from callboard.core.permission.analysis import analyse
from callboard.core.permission.effects import Access, Does, Part, Touch
from callboard.core.permission.filetools import FILE_TOOLS, named_paths
from callboard.core.permission.judge import against
from callboard.core.permission.values import CallFacts, Decision, PathFact, Policy, Rule, ToolCall, Unparsed, Verdict
from callboard.core.permission.words import HOLE, Arg

UNKNOWN = "…"
"""What is only known when the command runs."""


@dataclass(frozen=True, slots=True)
class TouchTold:
    """A path that a part names: what it does to it, the path as written, where it leads, what it is."""

    access: Access
    path: str
    resolved: str
    place: str
    why: str


@dataclass(frozen=True, slots=True)
class AgainstTold:
    """One thing against a part. `lifted_by`: who may lift it, `mode`, `rule`, `bypass`, `person` or `never`."""

    letter: str
    why: str
    lifted_by: str


@dataclass(frozen=True, slots=True)
class PartTold:
    """One simple command, redirect, assignment or path of the call. `rules`: those that match it, with their kind."""

    text: str
    program: str
    touches: tuple[TouchTold, ...]
    against: tuple[AgainstTold, ...]
    rules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CallTold:
    """All of it. `always`: the rules that an answer "always" would make, none where nothing narrow lifts the ask."""

    tool: str
    decision: Decision
    by: str
    why: str
    mode: str
    parts: tuple[PartTold, ...]
    always: tuple[str, ...]


def call_told(verdict: Verdict, call: ToolCall, policy: Policy, facts: CallFacts) -> CallTold:
    """What is to be said of a call, and of the verdict that it got by these rules and facts."""
    return CallTold(
        tool=call.name,
        decision=verdict.decision,
        by=verdict.rule,
        why=verdict.why,
        mode=policy.mode,
        parts=_parts(call, policy, facts),
        always=propose(call, policy, facts) if verdict.decision == "ask" else (),
    )


def _parts(call: ToolCall, policy: Policy, facts: CallFacts) -> tuple[PartTold, ...]:
    source = call.input.get("command")
    if call.name == "bash" and isinstance(source, str):
        found = analyse(source, facts.scripts, facts.home, policy.floor).parts
        return tuple(_shell_part(part, policy, facts) for part in found)
    named = named_paths(call) if call.name in FILE_TOOLS else ()
    touches = () if isinstance(named, Unparsed) else tuple(Touch(one.access, one.query) for one in named)
    if not touches:
        return ()
    part = Part(touches)
    return (PartTold(call.name, "", _touches(part, facts), _against(part, facts), ()),)


def _shell_part(part: Part, policy: Policy, facts: CallFacts) -> PartTold:
    shown = " ".join(map(_word, part.views[0].words)) if part.views else _bare(part)
    inner = part.views[-1].words if part.views else ()
    program = _word(inner[0]) if inner else ""
    return PartTold(shown, program, _touches(part, facts), _against(part, facts), tuple(_matching(part, policy)))


def _word(arg: Arg) -> str:
    text = arg.text.replace(HOLE, UNKNOWN)
    return text if arg.glob or not arg.known else shlex.quote(text)


def _bare(part: Part) -> str:
    """What a part without a command is: a redirect, an assignment, something that could not be read."""
    signs = {"read": "<", "write": ">", "delete": ">"}
    written = [f"{signs[each.access]} {each.query.text}" for each in part.effects if isinstance(each, Touch)]
    return " ".join(written) or "(no command)"


def _touches(part: Part, facts: CallFacts) -> tuple[TouchTold, ...]:
    found = [each for each in part.effects if isinstance(each, Touch)]
    return tuple(dict.fromkeys(_touch(each, facts.paths.get(each.query)) for each in found))


def _touch(touch: Touch, fact: PathFact | None) -> TouchTold:
    if fact is None:
        return TouchTold(touch.access, touch.query.text, "", "malformed", "it was not looked up")
    return TouchTold(touch.access, touch.query.text, fact.resolved, fact.place, fact.why)


def _against(part: Part, facts: CallFacts) -> tuple[AgainstTold, ...]:
    found: Iterable[Does] = against(part, facts)
    return tuple(dict.fromkeys(AgainstTold(each.letter, each.why, each.ease) for each in found))


def _matching(part: Part, policy: Policy) -> Iterable[str]:
    """The rules for commands that match the part: deny, ask, allow."""
    for kind, among in (("deny", policy.deny), ("ask", policy.ask)):
        yield from (f"{kind} {rule.source}" for rule in _of_shell(among, allow=False) if rules.hits(rule, part) != "no")
    yield from (f"allow {rule.source}" for rule in _of_shell(policy.allow, allow=True) if rules.covers(rule, part))


def _of_shell(among: Sequence[Rule], *, allow: bool) -> Iterable[Rule]:
    return (rule for rule in among if rules.names_tool(rule, "bash", allow=allow))

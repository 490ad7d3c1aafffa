"""The port `Judge` in the world: parses commands, looks paths up, and lets the pure judge decide.

Refuses nothing by itself, and never raises: what cannot be found out is a fact that asks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import anyio.to_thread

from callboard.adapters.paths import PathJudge
from callboard.adapters.shell import BashParser
from callboard.core.bus.authority import for_person
from callboard.core.permission.always import lifted, propose
from callboard.core.permission.facts import find_facts
from callboard.core.permission.judge import judge_call, only_reads
from callboard.core.permission.lifts import Lift
from callboard.core.permission.modes import of_turn
from callboard.core.permission.rules import parse_rule
from callboard.core.permission.values import CallFacts, Floor, Policy, Rule, Verdict
from callboard.core.permission.values import ToolCall as Judged
from callboard.ports.tool import Folders, ToolSpec
from callboard.ports.world import Ruling
from callboard.words.errors import SettingsError
from callboard.words.specs import AgentSpec, PermissionMode, PermissionRules
from callboard.words.values import Cause, ToolCall

_Found = TypeVar("_Found")
_ONE_PATH = frozenset({"read_file", "write_file", "edit_file", "todo_write", "load_skill", "compact"})
"""Tools whose call names one path at most."""


def parse_rules(texts: Sequence[str], where: str, bases: Sequence[str] = ()) -> tuple[Rule, ...]:
    """Permission rules as people write them. `bases`: what a leading `/` of a path means in each of them, an absolute
    folder; empty: the agent's own. Raises `SettingsError` naming the rule that is none."""
    rules: list[Rule] = []
    for number, text in enumerate(texts):
        try:
            rules.append(replace(parse_rule(text), base=bases[number] if number < len(bases) else ""))
        except ValueError as wrong:
            raise SettingsError(f"{text!r} is no permission rule: {wrong}", where) from wrong
    return tuple(rules)


def _readable(texts: Sequence[str], *, else_every: bool = False) -> tuple[Rule, ...]:
    """The rules of an agent or a session. One that cannot be read allows nothing, or is about every call."""
    rules: list[Rule] = []
    for text in texts:
        try:
            rules.append(parse_rule(text))
        except ValueError:
            rules += [Rule("*", None, text)] if else_every else []
    return tuple(rules)


_NO_RULES = PermissionRules()


@dataclass(frozen=True, slots=True)
class TurnRights:
    """What holds in turns that a schedule began, beside the rules of all."""

    mode: PermissionMode | None = None
    rules: PermissionRules = PermissionRules()


_NO_MORE = TurnRights()


def _nobody(folder: str) -> bool:
    """Nobody trusted the git settings of that repository."""
    return not folder


def _only_reads(call: Judged, facts: CallFacts, verdict: Verdict) -> bool:
    """Whether a command only reads. A letter of the policy says so at once: R does, and no other."""
    command = call.input.get("command")
    if len(verdict.rule) == 1:
        return verdict.rule == "R"
    return isinstance(command, str) and only_reads(command, facts)


def _bounded(call: Judged, bound: Policy, facts: CallFacts, verdict: Verdict) -> Verdict:
    """The verdict on a call that may run, unless it lies beyond what may run unasked in this turn."""
    if judge_call(call, bound, facts).decision == "allow":
        return verdict
    return Verdict("ask", "schedule", "the rights of the schedule do not name it")


class PolicyJudge:
    """One set of rules for all agents of a session; each agent's mode and further rules are its own.

    `sandbox` tells the level in force for commands; without it there is none. `scheduled`: see `TurnRights`.
    """

    def __init__(
        self,
        allow: Sequence[Rule],
        ask: Sequence[Rule],
        deny: Sequence[Rule],
        floor: Floor | None = None,
        *,
        sandbox: Callable[[], int] = lambda: 0,
        scheduled: TurnRights | None = None,
    ) -> None:
        self._policy = Policy("default", tuple(allow), tuple(ask), tuple(deny), floor or Floor())
        self._sandbox, self._scheduled = sandbox, scheduled or TurnRights()
        self._parser = BashParser()
        self._paths: dict[Folders, PathJudge] = {}
        self.git_trusted: Callable[[str], bool] = _nobody
        """Whether a person trusted the git settings of the repository at a folder. Asked where they are not quiet."""

    async def judge(
        self,
        call: ToolCall,
        tool: ToolSpec,
        spec: AgentSpec,
        folders: Folders,
        authority: Cause,
        lifts: Sequence[Lift] = (),
    ) -> Ruling:
        """Decide one call."""
        return await self._found(call, tool, folders, authority, partial(self._decide, spec, lifts))

    async def always(
        self,
        call: ToolCall,
        tool: ToolSpec,
        spec: AgentSpec,
        folders: Folders,
        authority: Cause,
        lifts: Sequence[Lift] = (),
    ) -> tuple[str, ...]:
        """The narrowest rules that would lift the question of this call."""
        return await self._found(call, tool, folders, authority, partial(self._propose, spec, lifts))

    async def _found(
        self,
        call: ToolCall,
        tool: ToolSpec,
        folders: Folders,
        authority: Cause,
        then: Callable[[Judged, CallFacts], _Found],
    ) -> _Found:
        """What `then` makes of the call and its facts. Tools that touch no path and no shell are judged here and now,
        the others in a thread."""
        judged = Judged(call.name, call.input, tool.effect, authority)
        if tool.effect in ("store", "attach"):
            return then(judged, CallFacts(destructive=tool.destructive, person_only=tool.person_only))
        if call.name in _ONE_PATH:  # a few looks at one path cost less than a thread
            return then(judged, self._facts(judged, tool, folders))
        return await anyio.to_thread.run_sync(lambda: then(judged, self._facts(judged, tool, folders)))

    def _facts(self, call: Judged, tool: ToolSpec, folders: Folders) -> CallFacts:
        paths = self._paths_of(folders)
        starts_git = call.name == "bash" and "git" in str(call.input.get("command"))  # a name in pieces only asks
        quiet = starts_git and (paths.git_quiet or self.git_trusted(paths.root))
        start = CallFacts(
            root=paths.root,
            home=paths.home,
            folds=paths.folds,
            git_quiet=quiet,
            destructive=tool.destructive,
            person_only=tool.person_only,
            sandbox=self._sandbox(),
        )
        return find_facts(call, start, self._parser.parse, paths.look)

    def _propose(self, spec: AgentSpec, lifts: Sequence[Lift], call: Judged, facts: CallFacts) -> tuple[str, ...]:
        policy = self._policy_for(spec, call.authority)
        there = _readable([one.rule for one in lifts])
        return propose(call, replace(policy, allow=(*policy.allow, *there)), facts)

    def _decide(self, spec: AgentSpec, lifts: Sequence[Lift], call: Judged, facts: CallFacts) -> Ruling:
        policy = self._policy_for(spec, call.authority)
        verdict = judge_call(call, policy, facts)
        if lifts:
            verdict = lifted(call, policy, facts, verdict, lifts)
        if spec.unasked and verdict.decision == "allow":
            verdict = _bounded(call, replace(policy, mode="default", allow=_readable(spec.unasked)), facts, verdict)
        reads = call.name == "bash" and _only_reads(call, facts, verdict)
        theirs = verdict.rule == "T" or bool(for_person(call.name, call.input))
        return Ruling(verdict.decision, verdict.rule, verdict.why, reads, theirs, policy.mode, facts.sandbox)

    def _policy_for(self, spec: AgentSpec, authority: Cause) -> Policy:
        """The rules of all, the agent's own and those of the turn: of all scopes deny binds first, then ask."""
        turn = self._scheduled if authority == "schedule" else _NO_MORE
        mode = of_turn(spec.permission_mode, turn.mode, authority)
        more = spec.rules.joined(turn.rules)
        if more == _NO_RULES:
            return replace(self._policy, mode=mode)
        return replace(
            self._policy,
            mode=mode,
            allow=(*self._policy.allow, *_readable(more.allow)),
            ask=(*self._policy.ask, *_readable(more.ask, else_every=True)),
            deny=(*self._policy.deny, *_readable(more.deny, else_every=True)),
        )

    def _paths_of(self, folders: Folders) -> PathJudge:
        if folders not in self._paths:
            readable = (folders.tool_results, folders.transcripts)
            self._paths[folders] = PathJudge(folders.root, readable, folders.own_state, git=folders.git)
        return self._paths[folders]

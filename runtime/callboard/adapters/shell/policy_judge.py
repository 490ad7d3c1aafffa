"""`PermissionPolicy` for production: parses commands, looks up paths, and calls the pure judge.

It refuses nothing by itself, and never raises: an unknown fact leads to a question.

It also decides on hypothetical calls, for `callboard policy`, with the same pure judge, parser and path facts as for
agents' calls. This reads the disk and runs nothing. The workspace is the boundary. If the agent's own folder is another
one, relative paths begin there, and that folder counts as readable.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio.to_thread

from callboard.adapters.git.premise import git_is_quiet
from callboard.adapters.git.settings import remotes_of
from callboard.adapters.shell.parser import BashParser
from callboard.adapters.shell.paths import PathJudge, PathJudges
from callboard.core.approvals.plan_gate import SUBMIT
from callboard.core.messaging.authority import person_only_reason
from callboard.core.permissions import globs
from callboard.core.permissions.call_input import EnteredCall, InvalidCall, ToolTraits
from callboard.core.permissions.effects import CallFacts
from callboard.core.permissions.facts import find_facts
from callboard.core.permissions.grants import grants_of, network_grants
from callboard.core.permissions.judge import judge_call, only_reads
from callboard.core.permissions.modes import of_turn
from callboard.core.permissions.rules import parse_rule
from callboard.core.permissions.suggest_rules import propose, with_overrides
from callboard.core.permissions.values import (
    AgentPolicy,
    Decision,
    HardRules,
    Parsed,
    PathFact,
    PathQuery,
    ProposedCall,
    Rule,
    Verdict,
)
from callboard.ports.environment import PermissionDecision, PermissionQuery
from callboard.ports.tool import Folders
from callboard.types.agent_spec import PermissionRules
from callboard.types.errors import SettingsError
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import PermissionMode

_Outcome = TypeVar("_Outcome")
_ONE_PATH = frozenset(
    {
        *("read_file", "write_file", "edit_file", "multi_edit", "list_folder", "read_notebook", "edit_notebook"),
        *("todo_write", "load_skill", "compact"),
    }
)
"""Tools whose calls name at most one path."""


def parse_rules(texts: Sequence[str], where: str, bases: Sequence[str] = ()) -> tuple[Rule, ...]:
    """Parse permission rules as users write them.

    `bases`: for each rule, the absolute folder for a leading `/` of a path; empty: the agent's own. Raises
    `SettingsError` with the invalid rule.
    """
    rules: list[Rule] = []
    for number, text in enumerate(texts):
        try:
            rules.append(replace(parse_rule(text), base=bases[number] if number < len(bases) else ""))
        except ValueError as wrong:
            raise SettingsError(f"{text!r} is not a permission rule: {wrong}", where) from wrong
    return tuple(rules)


def _readable(texts: Sequence[str], *, else_every: bool = False) -> tuple[Rule, ...]:
    """Return the rules of an agent or a session. An invalid rule allows nothing, or applies to every call."""
    rules: list[Rule] = []
    for text in texts:
        try:
            rules.append(parse_rule(text))
        except ValueError:
            rules += [Rule("*", None, text)] if else_every else []
    return tuple(rules)


@dataclass(frozen=True, slots=True)
class TurnRights:
    """Mode and rules of turns that a schedule began, in addition to the rules for all turns."""

    mode: PermissionMode | None = None
    rules: PermissionRules = PermissionRules()


_NO_MORE = TurnRights()


def _nobody(folder: str) -> bool:
    """Return False: no user trusted the git settings of that repository."""
    return not folder


def _only_reads(call: ProposedCall, facts: CallFacts, verdict: Verdict) -> bool:
    """Return True if a command only reads. If a letter of the policy decided the call, only R counts as reading."""
    command = call.input.get("command")
    if len(verdict.rule) == 1:
        return verdict.rule == "R"
    return isinstance(command, str) and only_reads(command, facts)


def _bounded(call: ProposedCall, bound: AgentPolicy, facts: CallFacts, verdict: Verdict) -> Verdict:
    """Return the verdict on a call that may run, unless it exceeds what may run without asking in this turn."""
    if judge_call(call, bound, facts).decision == "allow":
        return verdict
    return Verdict("ask", "schedule", "the rights of the schedule do not name it")


class PolicyJudge:
    """One set of rules for all agents of a session. Each agent's mode and further rules are its own.

    `sandbox` returns the level in force for commands; without it no sandbox is in force. `scheduled`: see `TurnRights`.
    `network_open` returns True if commands have the machine's network without an approval. `git_trusted` returns True
    if a user trusted the git settings of the repository at a folder; it is called if they are not quiet.
    """

    def __init__(
        self,
        allow: Sequence[Rule],
        ask: Sequence[Rule],
        deny: Sequence[Rule],
        hard_rules: HardRules | None = None,
        *,
        sandbox: Callable[[], int] = lambda: 0,
        scheduled: TurnRights | None = None,
        network_open: Callable[[], bool] = lambda: False,
        git_trusted: Callable[[str], bool] | None = None,
    ) -> None:
        self._policy = AgentPolicy("default", tuple(allow), tuple(ask), tuple(deny), hard_rules or HardRules())
        self._sandbox = sandbox
        self._scheduled = scheduled or TurnRights()
        self._parser = BashParser()
        self._judges = PathJudges()
        self._paths: dict[Folders, PathJudge] = {}
        self._network_open = network_open
        self._git_trusted = git_trusted or _nobody

    async def judge(self, query: PermissionQuery) -> PermissionDecision:
        """Decide one call."""
        return await self._run_with_facts(query, partial(self._decide, query))

    async def always(self, query: PermissionQuery) -> tuple[str, ...]:
        """Return the narrowest rules that would make this question unnecessary."""
        return await self._run_with_facts(query, partial(self._propose, query))

    async def _run_with_facts(
        self, query: PermissionQuery, then: Callable[[ProposedCall, CallFacts], _Outcome]
    ) -> _Outcome:
        """Return the result of `then` for the call and its facts.

        Tools without a path or shell are decided immediately, the others in a thread.
        """
        tool = query.tool
        judged = ProposedCall(query.call.name, query.call.input, tool.effect, query.authority, query.names)
        if tool.effect in ("store", "attach"):
            return then(judged, CallFacts(destructive=tool.destructive, person_only=tool.person_only))
        if judged.name in _ONE_PATH:  # a few checks of one path cost less than a thread
            return then(judged, self._facts(judged, query))
        return await anyio.to_thread.run_sync(lambda: then(judged, self._facts(judged, query)))

    def _facts(self, call: ProposedCall, query: PermissionQuery) -> CallFacts:
        folders = query.folders
        paths = self._paths_of(folders)
        starts_git = call.name == "bash" and "git" in str(call.input.get("command"))  # a name in parts only asks
        quiet = starts_git and (paths.git_quiet or self._git_trusted(paths.root))
        sandbox = self._sandbox()
        network_open = self._network_open()
        needs_remotes = starts_git and sandbox and not network_open  # only the sandbox can open single hosts
        start = CallFacts(
            root=paths.root,
            home=paths.home,
            folds=paths.folds,
            git_quiet=quiet,
            destructive=query.tool.destructive,
            person_only=query.tool.person_only,
            sandbox=sandbox,
            network_open=network_open,
            remotes=remotes_of(folders.root, folders.git, Path(paths.home)) if needs_remotes else {},
        )
        return find_facts(call, start, self._parser.parse, paths.look, hard_rules=self._policy.hard_rules)

    def _propose(self, query: PermissionQuery, call: ProposedCall, facts: CallFacts) -> tuple[str, ...]:
        policy = self._policy_for(query)
        lifted_rules = _readable([override.rule for override in query.overrides])
        return propose(call, replace(policy, allow=(*policy.allow, *lifted_rules)), facts)

    def _decide(self, query: PermissionQuery, call: ProposedCall, facts: CallFacts) -> PermissionDecision:
        policy = self._policy_for(query)
        verdict = judge_call(call, policy, facts)
        if query.overrides:
            verdict = with_overrides(call, policy, facts, verdict=verdict, overrides=query.overrides)
        if query.spec.unasked and verdict.decision == "allow":
            bound = replace(policy, mode="default", allow=_readable(query.spec.unasked))
            verdict = _bounded(call, bound, facts, verdict)
        reads = call.name == "bash" and _only_reads(call, facts, verdict)
        person_only = verdict.rule == "T" or bool(person_only_reason(call.name, call.input))
        paths = () if verdict.decision == "deny" else grants_of(call, facts)
        lifted_rules = _readable([override.rule for override in query.overrides])
        lifted = replace(policy, allow=(*policy.allow, *lifted_rules)) if lifted_rules else policy
        grants = (*paths, *network_grants(call, lifted, facts, verdict))
        return PermissionDecision(
            verdict.decision, verdict.rule, verdict.why, reads, person_only, policy.mode, facts.sandbox, grants
        )

    def _policy_for(self, query: PermissionQuery) -> AgentPolicy:
        """Return the rules for all agents, the agent's own and those of the turn.

        Across all scopes, deny applies first, then ask.
        """
        spec = query.spec
        turn = self._scheduled if query.authority == "schedule" else _NO_MORE
        mode = of_turn(spec.permission_mode, turn.mode, query.authority)
        # A turn without rules of its own is the rule, and joining costs a twentieth of a decision (bench/policy.py).
        added_rules = spec.rules if turn is _NO_MORE else spec.rules.joined(turn.rules)
        plans = SUBMIT in spec.tools and turn.mode != "plan"
        every = self._policy
        policy = AgentPolicy(mode, every.allow, every.ask, every.deny, every.hard_rules, spec.read_only, plans)
        if not (added_rules.allow or added_rules.ask or added_rules.deny):
            return policy
        return replace(
            policy,
            allow=(*every.allow, *_readable(added_rules.allow)),
            ask=(*every.ask, *_readable(added_rules.ask, else_every=True)),
            deny=(*every.deny, *_readable(added_rules.deny, else_every=True)),
        )

    def _paths_of(self, folders: Folders) -> PathJudge:
        paths = self._paths.get(folders)
        if paths is None:
            paths = self._paths[folders] = self._judges.judge_for(folders, git=folders.git)
        return paths


_STRICTER: Mapping[Decision, int] = {"allow": 0, "ask": 1, "deny": 2}
_KEPT = 2_000
"""Most scripts whose trees are cached, the newest ones."""


@dataclass(frozen=True, slots=True)
class JudgedCall:
    """Verdict on a call, and all facts on which it is based."""

    verdict: Verdict
    call: ProposedCall
    policy: AgentPolicy
    facts: CallFacts


class Explainer:
    """Explainer for one workspace.

    `own`: the runtime's folders. `level`: function that returns the sandbox level for commands; called only if the
    level matters. Used by one thread.
    """

    def __init__(
        self,
        workspace: Path,
        own: Sequence[Path],
        tools: Mapping[str, ToolTraits],
        *,
        hard_rules: HardRules | None = None,
        level: Callable[[], int] = lambda: 0,
        git_trusted: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Store the parts.

        `git_trusted` returns True if a user trusted the programs in the git settings of the repository at a folder.
        """
        self._paths = PathJudge(workspace, readable=(), own=own)
        self._tools = tools
        self._hard_rules = hard_rules or HardRules()
        self._level = level
        self._parser = BashParser()
        self._parsed: dict[str, Parsed] = {}
        self._git_trusted = git_trusted

    def judge(self, request: EnteredCall) -> JudgedCall:
        """Judge the call only by the rules passed with it. Raises `InvalidCall` for an invalid folder."""
        tool = self._tools.get(request.tool, ToolTraits("unknown"))
        call = ProposedCall(request.tool, request.input, tool.effect)
        policy = self._policy(request)
        base = self._folder(request.folder)
        judged = self._judge(call, policy, base, tool)
        if base == self._paths.root or call.name != "bash":
            return judged
        working = ProposedCall("glob", {"path": base, "pattern": "*"}, "read")
        folder_verdict = self._judge(working, policy, base, ToolTraits("read")).verdict
        if _STRICTER[folder_verdict.decision] <= _STRICTER[judged.verdict.decision]:
            return judged
        return replace(judged, verdict=replace(folder_verdict, why=f"it works in another folder: {folder_verdict.why}"))

    def _judge(self, call: ProposedCall, policy: AgentPolicy, base: str, tool: ToolTraits) -> JudgedCall:
        start = CallFacts(
            root=base,
            home=self._paths.home,
            folds=self._paths.folds,
            git_quiet=call.name == "bash" and self._quiet(base),
            destructive=tool.destructive,
            sandbox=self._level() if policy.mode == "sandboxed" else 0,
        )

        def look(queries: Iterable[PathQuery]) -> Mapping[PathQuery, PathFact]:
            return self._look(queries, base)

        facts = find_facts(call, start, self._parse, look)
        return JudgedCall(judge_call(call, policy, facts), call, policy, facts)

    def _folder(self, text: str) -> str:
        """Return the agent's folder as the kernel knows it, without links. It need not exist."""
        try:
            return os.path.realpath(posixpath.join(self._paths.root, text)) if text else self._paths.root
        except (OSError, ValueError) as wrong:
            raise InvalidCall(f"`cwd` cannot be a folder ({type(wrong).__name__})") from wrong

    def _policy(self, request: EnteredCall) -> AgentPolicy:
        lists = (request.rules.allow, request.rules.ask, request.rules.deny)
        allow, ask, deny = (tuple(self._anchored(rule, request.folder) for rule in each) for each in lists)
        return AgentPolicy(request.mode, allow, ask, deny, self._hard_rules, request.rules.read_only)

    def _anchored(self, rule: Rule, folder: str) -> Rule:
        """Resolve `/x` relative to the workspace, even for an agent that works elsewhere."""
        return replace(rule, base=self._paths.root) if folder and not rule.base else rule

    def _quiet(self, base: str) -> bool:
        """Return True if git runs nothing from any repository that can contain `base`, up to the workspace."""
        root = Path(self._paths.root)
        folder = Path(base)
        between = [folder, *folder.parents] if folder.is_relative_to(root) else [folder]
        looked = {root, folder, *(each for each in between if each.is_relative_to(root))}
        return all(git_is_quiet(each) or self._git_trusted(str(each)) for each in looked)

    def _look(self, queries: Iterable[PathQuery], base: str) -> Mapping[PathQuery, PathFact]:
        if base == self._paths.root:
            return self._paths.look(queries)
        placed = {query: _absolute(query, base) for query in queries}
        facts = self._paths.look(set(placed.values()))
        return {query: facts[placed_query] for query, placed_query in placed.items()}

    def _parse(self, source: str) -> Parsed:
        parsed = self._parsed.get(source)
        if parsed is None:
            parsed = self._parsed[source] = self._parser.parse(source)
            if len(self._parsed) > _KEPT:
                self._parsed.pop(next(iter(self._parsed)))
        return parsed


def _absolute(query: PathQuery, base: str) -> PathQuery:
    """Return the query with an absolute path, unless it is malformed or names a commit."""
    if not query.text or query.commit:
        return query
    return replace(query, text=posixpath.join(globs.escape(base) if query.glob else base, query.text))

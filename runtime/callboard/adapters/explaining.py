"""Judges calls that nobody makes: `callboard policy` asks what would be said of one. Reads the disk, runs nothing.

The same pure judge, parser and path facts as for agents' calls. The workspace is the boundary; the agent's own folder,
where it is another one, is where relative paths begin and counts as read.
"""

from __future__ import annotations

import glob
import os
import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from callboard.adapters.paths import PathJudge, git_is_quiet
from callboard.adapters.shell import BashParser
from callboard.core.permission.facts import find_facts
from callboard.core.permission.given import GivenCall, Known, Misread
from callboard.core.permission.judge import judge_call
from callboard.core.permission.values import (
    CallFacts,
    Decision,
    Floor,
    Parsed,
    PathFact,
    PathQuery,
    Policy,
    Rule,
    ToolCall,
    Verdict,
)

_STRICTER: Mapping[Decision, int] = {"allow": 0, "ask": 1, "deny": 2}
_KEPT = 2_000
"""Scripts whose tree is kept, the newest ones."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What was said of a call, and all that it was judged by."""

    verdict: Verdict
    call: ToolCall
    policy: Policy
    facts: CallFacts


class Explainer:
    """Answers for one workspace. `own`: the runtime's folders. `level`: the sandbox level that commands would have; it
    is asked for only where it decides. Used by one thread."""

    def __init__(
        self,
        workspace: Path,
        own: Sequence[Path],
        known: Mapping[str, Known],
        floor: Floor | None = None,
        level: Callable[[], int] = lambda: 0,
    ) -> None:
        self._paths = PathJudge(workspace, (), own)
        self._known = known
        self._floor = floor or Floor()
        self._level = level
        self._parser = BashParser()
        self._parsed: dict[str, Parsed] = {}
        self.git_trusted: Callable[[str], bool] = lambda _: False
        """Whether a person trusted what git's settings of the repository at this folder run."""

    def judge(self, given: GivenCall) -> Judged:
        """What would be said of the call, by the rules that came with it alone. Raises `Misread` for a folder that can
        be none."""
        known = self._known.get(given.tool, Known("unknown"))
        call = ToolCall(given.tool, given.input, known.effect)
        policy = self._policy(given)
        base = self._folder(given.folder)
        judged = self._judge(call, policy, base, known)
        if base == self._paths.root or call.name != "bash":
            return judged
        working = ToolCall("glob", {"path": base, "pattern": "*"}, "read")
        there = self._judge(working, policy, base, Known("read")).verdict
        if _STRICTER[there.decision] <= _STRICTER[judged.verdict.decision]:
            return judged
        return replace(judged, verdict=replace(there, why=f"it works in another folder: {there.why}"))

    def _judge(self, call: ToolCall, policy: Policy, base: str, known: Known) -> Judged:
        start = CallFacts(
            root=base,
            home=self._paths.home,
            folds=self._paths.folds,
            git_quiet=call.name == "bash" and self._quiet(base),
            destructive=known.destructive,
            sandbox=self._level() if policy.mode == "sandboxed" else 0,
        )

        def look(queries: Iterable[PathQuery]) -> Mapping[PathQuery, PathFact]:
            return self._look(queries, base)

        facts = find_facts(call, start, self._parse, look)
        return Judged(judge_call(call, policy, facts), call, policy, facts)

    def _folder(self, text: str) -> str:
        """The agent's folder as the kernel knows it: without links. It need not be there."""
        try:
            return os.path.realpath(posixpath.join(self._paths.root, text)) if text else self._paths.root
        except (OSError, ValueError) as wrong:
            raise Misread(f"`cwd` cannot be a folder ({type(wrong).__name__})") from wrong

    def _policy(self, given: GivenCall) -> Policy:
        lists = (given.rules.allow, given.rules.ask, given.rules.deny)
        allow, ask, deny = (tuple(self._anchored(rule, given.folder) for rule in each) for each in lists)
        return Policy(given.mode, allow, ask, deny, self._floor)

    def _anchored(self, rule: Rule, folder: str) -> Rule:
        """`/x` is meant of the workspace, also for an agent that works elsewhere."""
        return replace(rule, base=self._paths.root) if folder and not rule.base else rule

    def _quiet(self, base: str) -> bool:
        """Whether git runs nothing of the repositories that `base` can lie in, up to the workspace."""
        root = Path(self._paths.root)
        folder = Path(base)
        between = [folder, *folder.parents] if folder.is_relative_to(root) else [folder]
        looked = {root, folder, *(each for each in between if each.is_relative_to(root))}
        return all(git_is_quiet(each) or self.git_trusted(str(each)) for each in looked)

    def _look(self, queries: Iterable[PathQuery], base: str) -> Mapping[PathQuery, PathFact]:
        if base == self._paths.root:
            return self._paths.look(queries)
        placed = {query: _placed(query, base) for query in queries}
        found = self._paths.look(set(placed.values()))
        return {query: found[there] for query, there in placed.items()}

    def _parse(self, source: str) -> Parsed:
        parsed = self._parsed.get(source)
        if parsed is None:
            parsed = self._parsed[source] = self._parser.parse(source)
            if len(self._parsed) > _KEPT:
                self._parsed.pop(next(iter(self._parsed)))
        return parsed


def _placed(query: PathQuery, base: str) -> PathQuery:
    """The query with an absolute path, unless it is malformed."""
    if not query.text:
        return query
    return replace(query, text=posixpath.join(glob.escape(base) if query.glob else base, query.text))

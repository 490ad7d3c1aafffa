"""The port `Judge` in the world: parses commands, looks paths up, and lets the pure judge decide.

Refuses nothing by itself, and never raises: what cannot be found out is a fact that asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import anyio.to_thread

from callboard.adapters.paths import PathJudge
from callboard.adapters.shell import BashParser
from callboard.core.bus.authority import for_person
from callboard.core.permission.facts import find_facts
from callboard.core.permission.judge import judge_call, only_reads
from callboard.core.permission.rules import parse_rule
from callboard.core.permission.values import CallFacts, Floor, Policy, Rule
from callboard.core.permission.values import ToolCall as Judged
from callboard.ports.tool import Folders, ToolSpec
from callboard.ports.world import Ruling
from callboard.words.errors import SettingsError
from callboard.words.specs import AgentSpec
from callboard.words.values import Cause, ToolCall

_ONE_PATH = frozenset({"read_file", "write_file", "edit_file", "todo_write", "load_skill", "compact"})
"""Tools whose call names one path at most."""


def parse_rules(texts: Sequence[str], where: str) -> tuple[Rule, ...]:
    """Permission rules as people write them. Raises `SettingsError` naming the rule that is none."""
    rules: list[Rule] = []
    for text in texts:
        try:
            rules.append(parse_rule(text))
        except ValueError as wrong:
            raise SettingsError(f"{text!r} is no permission rule: {wrong}", where) from wrong
    return tuple(rules)


class PolicyJudge:
    """One set of rules for all agents of a session; each agent's mode is its own."""

    def __init__(
        self, allow: Sequence[Rule], ask: Sequence[Rule], deny: Sequence[Rule], floor: Floor | None = None
    ) -> None:
        self._policy = Policy("default", tuple(allow), tuple(ask), tuple(deny), floor or Floor())
        self._parser = BashParser()
        self._paths: dict[Folders, PathJudge] = {}

    async def judge(
        self, call: ToolCall, tool: ToolSpec, spec: AgentSpec, folders: Folders, authority: Cause
    ) -> Ruling:
        """Decide one call. Tools that touch no path and no shell are judged here and now, the others in a thread."""
        judged = Judged(call.name, call.input, tool.effect, authority)
        if tool.effect in ("store", "attach"):
            return self._decide(judged, spec, CallFacts(destructive=tool.destructive))
        if call.name in _ONE_PATH:  # a few looks at one path cost less than a thread
            return self._in_world(judged, tool, spec, folders)
        return await anyio.to_thread.run_sync(self._in_world, judged, tool, spec, folders)

    def _in_world(self, call: Judged, tool: ToolSpec, spec: AgentSpec, folders: Folders) -> Ruling:
        paths = self._paths_of(folders)
        quiet = call.name == "bash" and paths.git_quiet  # only a command can start git: nobody else reads its settings
        start = CallFacts(root=paths.root, home=paths.home, git_quiet=quiet, destructive=tool.destructive)
        return self._decide(call, spec, find_facts(call, start, self._parser.parse, paths.look))

    def _decide(self, call: Judged, spec: AgentSpec, facts: CallFacts) -> Ruling:
        verdict = judge_call(call, replace(self._policy, mode=spec.permission_mode), facts)
        command = call.input.get("command")
        reads = call.name == "bash" and isinstance(command, str) and only_reads(command, facts)
        theirs = verdict.rule == "T" or bool(for_person(call.name, call.input))
        return Ruling(verdict.decision, verdict.rule, verdict.why, reads, theirs)

    def _paths_of(self, folders: Folders) -> PathJudge:
        if folders not in self._paths:
            readable = (folders.tool_results, folders.transcripts)
            self._paths[folders] = PathJudge(folders.root, readable, folders.own_state, git=folders.git)
        return self._paths[folders]

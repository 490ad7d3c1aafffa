"""Hooks that run before an agent continues: names of the operations, and the rule for starts. Pure."""

from __future__ import annotations

from callboard.core.agent.state import AgentState, Facts
from callboard.types import steps as st
from callboard.types.operations import Operation
from callboard.types.records import StartSource

STOP_HOOKS = Operation("stop-hooks")
PROMPT_HOOKS = Operation("prompt-hooks")
START_HOOKS = Operation("start-hooks")
BATCH_HOOKS = Operation("batch-hooks")
COMPACT_HOOKS = Operation("compact-hooks")
HOOKS = frozenset({STOP_HOOKS, PROMPT_HOOKS, START_HOOKS, BATCH_HOOKS, COMPACT_HOOKS})
"""Operations that run hooks. The model is not called while one is in progress."""
SKILLS = Operation("skills")
"""Operation that expands slash commands. It may run shell commands, or a subagent."""


def run_start_hooks(state: AgentState, facts: Facts) -> st.Step | None:
    """Run the start hooks. Their texts precede the next model call."""
    if not facts.starts or START_HOOKS in facts.running or state.lifecycle.ended or state.lifecycle.stop:
        return None
    return st.AskStartHooks(facts.starts)


def start_source(state: AgentState, asked_since_summary: bool | None) -> StartSource | None:
    """Return the source of this agent's start as in `SessionStart`; None if its hooks have already run.

    `asked_since_summary`: True if the hooks ran in this process since the last summary of its conversation; False if
    only before that summary; None if they did not run. A subagent starts once, before its first model call.
    """
    if asked_since_summary:
        return None
    if state.me.kind == "subagent":
        return "startup" if asked_since_summary is None and state.turns.count <= 1 and not state.model.ordinal else None
    if asked_since_summary is False:
        return "compact"
    if state.turns.count:
        return "resume"
    return "clear" if state.me.kind == "lead" and state.identity.incarnation > 1 else "startup"

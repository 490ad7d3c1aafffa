"""Which hooks wait to be asked before an agent goes on: names of the operations, and the rule of beginnings. Pure."""

from __future__ import annotations

from callboard.core.state import AgentState, Facts
from callboard.words import steps as st
from callboard.words.hook_events import StartSource

STOP_HOOKS, PROMPT_HOOKS, START_HOOKS, BATCH_HOOKS, COMPACT_HOOKS = (
    "stop-hooks",
    "prompt-hooks",
    "start-hooks",
    "batch-hooks",
    "compact-hooks",
)
HOOKS = frozenset({STOP_HOOKS, PROMPT_HOOKS, START_HOOKS, BATCH_HOOKS, COMPACT_HOOKS})
"""Operations that ask hooks; the model is not asked beside one of them."""
SKILLS = "skills"
"""The operation that makes the texts of skills out of what a person typed: it may run commands, or a subagent."""


def starting(state: AgentState, facts: Facts) -> st.Step | None:
    """Hooks of a beginning: what they say is to stand before the next words of the model."""
    if not facts.starts or START_HOOKS in facts.running or state.ended or state.stop:
        return None
    return st.AskStartHooks(facts.starts)


def start_source(state: AgentState, asked: bool | None) -> StartSource | None:
    """As what this agent begins, in the words of `SessionStart`; None: its hooks were asked already.

    `asked`: whether they were asked in this process since its conversation was last summarised; None: not at all. A
    subagent begins once, before its first model call.
    """
    if asked:
        return None
    if state.me.kind == "subagent":
        return "startup" if asked is None and state.turns <= 1 and not state.ordinal else None
    if asked is False:
        return "compact"
    if state.turns:
        return "resume"
    return "clear" if state.me.kind == "lead" and state.incarnation > 1 else "startup"

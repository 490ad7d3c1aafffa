"""The facts of one decision: everything that the rules read and that is not in the journal.

A fact is read from its source when a rule first asks for it. An agent decides several times a step, and most decisions
need few facts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from callboard.core.agent.rules.hooks import start_source
from callboard.core.agent.rules.worktree import worktree_to_use
from callboard.core.agent.state import AgentState, ExpectedDeliveries, Facts, ToolFacts
from callboard.core.budgets.tree import BudgetNode
from callboard.core.call_order import order_class
from callboard.core.recovery.retry_policy import model_in_use
from callboard.core.team.lifecycle import AT_WORK
from callboard.engine.runtime import SessionRuntime
from callboard.types.messages import OwnStage, StateBlock
from callboard.types.operations import Operation
from callboard.types.records import Request, StartSource, Task


class FactsOnDemand(Facts):
    """Facts, each of which is read at its first use and then stays.

    `decide` never waits, so all facts of a decision are of the same moment.
    """

    # These hide the slots of the base class: all facts are in the `__dict__`, which is filled in one call.
    now: float = 0.0
    running: frozenset[Operation] = frozenset()
    budgets: tuple[BudgetNode, ...] = ()
    runtime: SessionRuntime
    state: AgentState

    def __init__(self, runtime: SessionRuntime, state: AgentState, running: frozenset[Operation]) -> None:
        """Set the facts that every decision needs. The others stay unset until they are read."""
        now = runtime.services.clock.now()
        budgets = runtime.budgets.path_of(state)
        vars(self).update(runtime=runtime, state=state, now=now, running=running, budgets=budgets)


class _Fact:
    """A fact that is read at its first use, and from then on is in the `__dict__`, which hides this descriptor.

    An `__getattr__` would make every use of any fact slow.
    """

    __slots__ = ("_name", "_source")

    def __init__(self, name: str, source: Callable[[SessionRuntime, AgentState], object]) -> None:
        self._name = name
        self._source = source

    def __get__(self, facts: FactsOnDemand, kind: type[FactsOnDemand]) -> object:
        value = vars(facts)[self._name] = self._source(facts.runtime, facts.state)
        return value


def facts_of(runtime: SessionRuntime, state: AgentState, running: frozenset[Operation]) -> Facts:
    """Return the facts for the next decision of an agent."""
    if runtime.call_paths and not state.calls:
        runtime.call_paths.pop(_life(state), None)
    if state.inbox.counts.at:
        _mail_counted(runtime, state)
    return FactsOnDemand(runtime, state, running)


def _awake_at(runtime: SessionRuntime, state: AgentState) -> float:
    return runtime.awake.now()


def _deadlines(runtime: SessionRuntime, state: AgentState) -> Mapping[str, float]:
    return runtime.deadlines.of(_requests(runtime, state).values())


def _tools(runtime: SessionRuntime, state: AgentState) -> dict[str, ToolFacts]:
    return {name: _tool_facts(runtime, name) for name in state.calls.names}


def _rewrites(runtime: SessionRuntime, state: AgentState) -> bool:
    has = runtime.services.hooks.has
    return has("PreToolUse") or has("PermissionRequest")


def _batch(runtime: SessionRuntime, state: AgentState) -> bool:
    return runtime.services.hooks.has("PostToolBatch")


def _mates_at_work(runtime: SessionRuntime, state: AgentState) -> bool:
    return state.turn is None and bool(state.inbox.mail) and runtime.rows.mates_at_work(state.me.name)


def _claimable(runtime: SessionRuntime, state: AgentState) -> str | None:
    return runtime.claimable_task(state, _expected(runtime, state))


def _parked_until(runtime: SessionRuntime, state: AgentState) -> float:
    return runtime.key_limiter.parked_until(model_in_use(state.model.recovery, state.me))


def _named_until(runtime: SessionRuntime, state: AgentState) -> float:
    return runtime.key_limiter.named_until(model_in_use(state.model.recovery, state.me))


def _folder(runtime: SessionRuntime, state: AgentState) -> str:
    return str(runtime.services.archive.folders(state.me).tool_results)


def _transcripts(runtime: SessionRuntime, state: AgentState) -> str:
    return str(runtime.services.archive.folders(state.me).transcripts)


def _known_state(runtime: SessionRuntime, state: AgentState) -> StateBlock | None:
    return runtime.state_block(state) if state.model.recovery.react or state.compaction.tried else None


def _stages(runtime: SessionRuntime, state: AgentState) -> Mapping[str, OwnStage]:
    return runtime.services.stages


def _turn_began(runtime: SessionRuntime, state: AgentState) -> float | None:
    if state.turn is None or state.me.limits.seconds is None:
        return None
    turn, began = runtime.newest_turns.get(_life(state), ("", 0.0))
    if turn != state.turn.id:
        # Converted once for each turn: a later conversion between the clocks gives another result if the wall clock
        # was set (test_a_limit_of_time_ends_a_turn_after_the_time_in_which_the_machine_was_awake).
        began = runtime.awake.at(state.turn.began_at)
        runtime.newest_turns[_life(state)] = state.turn.id, began
    return began


def _mail_counted(runtime: SessionRuntime, state: AgentState) -> float:
    """Return the time of the mail counts on the clock for time limits.

    Converted once, by the first decision after they were taken, like the start of a turn.
    """
    recorded, counted = runtime.mail_count_times.get(_life(state), (-1.0, 0.0))
    if recorded != state.inbox.counts.at:
        counted = runtime.awake.at(state.inbox.counts.at)
        runtime.mail_count_times[_life(state)] = state.inbox.counts.at, counted
    return counted


def _mail_seconds(runtime: SessionRuntime, state: AgentState) -> float:
    return runtime.awake.now() - _mail_counted(runtime, state)


def _end_hooks(runtime: SessionRuntime, state: AgentState) -> bool:
    """Return True if hooks run before a turn of this agent ends."""
    has = runtime.services.hooks.has
    kind = state.me.kind
    if kind == "subagent":
        return has("SubagentStop")
    return has("Stop") or (kind == "teammate" and has("TeammateIdle"))


def _starts(runtime: SessionRuntime, state: AgentState) -> StartSource | None:
    event = "SubagentStart" if state.me.kind == "subagent" else "SessionStart"
    return start_source(state, runtime.start_hooks_ran.get(_life(state))) if runtime.services.hooks.has(event) else None


def _is_settled(runtime: SessionRuntime, state: AgentState) -> bool:
    return state.turn is not None and runtime.folder_turns.get(_life(state)) == state.turn.id


def _worktree(runtime: SessionRuntime, state: AgentState) -> str | None:
    if runtime.services.worktrees is None:
        return None

    def task(task_id: str) -> Task | None:
        row = runtime.rows.task(task_id)
        return row[0] if row else None

    return worktree_to_use(state.me, state.work.tasks, task)


def _requests(runtime: SessionRuntime, state: AgentState) -> dict[str, Request]:
    ids = (*state.calls.requests, state.work.gate.request_id, state.lifecycle.leaving)
    rows = ((request_id, runtime.rows.request(request_id)) for request_id in ids if request_id)
    return {request_id: row[0] for request_id, row in rows if row}


def _tool_facts(runtime: SessionRuntime, name: str) -> ToolFacts:
    tool = runtime.services.tools.get(name)
    if tool is None:
        return ToolFacts("look")  # its call is refused
    spec = tool.spec
    cached = runtime.known_tools.get(name)
    if cached is None or cached[0] is not spec:
        order = order_class(spec.effect, spec.concurrency, watches=spec.watches)
        cached = runtime.known_tools[name] = (spec, ToolFacts(order, spec.barrier, spec.watches))
    return cached[1]


def _others_at_work(runtime: SessionRuntime, state: AgentState) -> bool:
    """Return True if other agents are working.

    Computed only if all calls of the reply are of tools that only watch, and have ended: a team may be large.
    """
    if state.calls.stages != {"settled"}:
        return False
    tools = [runtime.services.tools.get(name) for name in state.calls.names]
    if not all(tool and tool.spec.watches for tool in tools):
        return False
    me = state.me.name
    if any(row.name != me and row.life in AT_WORK for row in runtime.rows.agents()):
        return True
    return any(request.asked_by == me and request.status == "pending" for request in runtime.rows.requests())


def _keys(runtime: SessionRuntime, state: AgentState) -> dict[str, str]:
    """Return the paths of the open calls.

    Each is resolved once no earlier call can change its links. Later calls wait for an earlier call that can.
    """
    keys = dict[str, str]()
    cached = runtime.call_paths.setdefault(_life(state), {})
    for call in state.calls:
        if call.stage == "settled":
            continue
        order = _tool_facts(runtime, call.call.name).order
        if order in ("delegate", "exclusive"):
            break
        if order in ("read", "write"):
            path = cached.get(call.call.id)
            if path is None or path[0] is not call.call:
                folders = runtime.services.archive.folders(state.me)
                key = runtime.services.tools[call.call.name].key(call.call.input, folders)
                path = cached[call.call.id] = (call.call, key)
            keys[call.call.id] = path[1]
    return keys


def _expected(runtime: SessionRuntime, state: AgentState) -> ExpectedDeliveries | None:
    script = runtime.services.script
    return (
        script.expected(state.me.name, state.identity.incarnation, state.model.turn_calls, state.inbox.deliveries)
        if script
        else None
    )


def _lost_tasks(runtime: SessionRuntime, state: AgentState) -> tuple[str, ...]:
    if not state.work.tasks:
        return ()
    me = runtime.task_holder(state)
    rows = {task: runtime.rows.task(task) for task in state.work.tasks}
    return tuple(task for task, row in rows.items() if row is None or not me.holds(row[0]))


def _life(state: AgentState) -> tuple[str, int]:
    return state.me.name, state.identity.incarnation


_SOURCES: Mapping[str, Callable[[SessionRuntime, AgentState], object]] = {
    "awake_at": _awake_at,
    "turn_began": _turn_began,
    "requests": _requests,
    "deadlines": _deadlines,
    "tools": _tools,
    "keys": _keys,
    "rewrites": _rewrites,
    "others_at_work": _others_at_work,
    "mates_at_work": _mates_at_work,
    "mail_seconds": _mail_seconds,
    "claimable": _claimable,
    "taken": _lost_tasks,
    "parked_until": _parked_until,
    "named_until": _named_until,
    "worktree": _worktree,
    "settled": _is_settled,
    "folder": _folder,
    "transcripts": _transcripts,
    "known": _known_state,
    "hooks": _end_hooks,
    "starts": _starts,
    "batch": _batch,
    "stages": _stages,
    "expected": _expected,
}
"""Fact -> function that reads it."""

for _name, _source in _SOURCES.items():
    setattr(FactsOnDemand, _name, _Fact(_name, _source))

"""Waits of agents: operations that take too long, and agents that wait for each other forever. Pure.

An operation counts as stalled after its time limit plus `GRACE`, the time to end the running work after a timeout:

    operation                          limit                                              source
    ---------------------------------  -------------------------------------------------  ------------------------
    model call, call of a summary      the total timeout of a call, from its sending      `AgentSpec.total`
    tool with a timeout in its input   that timeout                                       `timeout_s` of the call
    any other tool                     the limit that the tool declares                   `ToolSpec.seconds`
    hooks of any event                 the timeouts of the hooks of one event             `HookRegistry.longest`
    count of tokens                    the total timeout of a call                        `AgentSpec.total`
    reminders, received answers        `USUAL`                                            this module
    background command                 none: it has its own deadline                      `BackgroundStarted`
    subagents (`task`)                 none: each of them is checked separately           `ToolSpec.seconds`
    skills that a person typed         none: each part is checked separately              `core/skills/substitution.py`

An agent that is idle, or waits for a person, for the rate limit or for a schedule, runs no operation and never counts
as stalled.

Deadlocks are found in a graph of waits over requests, messages and tasks. A waiting agent may have several waits; the
end of any one of them lets it continue. A wait has needs: all of them must be met, each by any one of its names. An
agent without waits may act. Removing every agent that can still continue leaves the deadlocks: cycles, and waits for
agents that never act again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import assert_never

from callboard.core.agent.open_calls import CallState
from callboard.core.agent.state import AgentState
from callboard.core.approvals.requests import answerers
from callboard.core.keys import short_id
from callboard.types.lazy_dataclass import dataclass
from callboard.types.operations import Operation
from callboard.types.records import Json, Request, Task

GRACE = 30.0
"""Additional seconds beyond the timeout. A process group that is ended has 2 s between TERM and KILL (ports/tool.py).
"""
USUAL = 600.0
"""Most seconds of an operation without its own timeout: as long as a command may take (docs/tools.md)."""

Declared = Callable[[str], float | None]
"""Function from the name of a tool to the most seconds of one call; None: no limit."""


@dataclass(frozen=True, slots=True)
class OperationLimits:
    """Time limits of the parts outside the core."""

    tools: Declared
    hooks: Callable[[], float]
    """Function that returns the most seconds for all hooks of one event."""


def stall_limit(state: AgentState, operation: Operation, longest: OperationLimits) -> float | None:
    """Return the seconds after which an operation counts as stalled; None: no limit."""
    match operation.kind:
        case "model" | "summary" | "count":
            return state.me.total + GRACE
        case "judge" | "settle" | "start-hooks" | "prompt-hooks" | "batch-hooks" | "stop-hooks" | "compact-hooks":
            return longest.hooks() + GRACE
        case "bg" | "skills":
            return None
        case "tool":
            call = _call(state, operation.subject)
            seconds = None if call is None else stated_timeout(call.call.input) or longest.tools(call.call.name)
            return None if seconds is None else seconds + GRACE
        case "prompt" | "reminders" | "move" | "answer" | "end":
            return USUAL + GRACE
        case _:
            assert_never(operation.kind)


def stall_key(state: AgentState, operation: Operation) -> str:
    """Return the key that distinguishes an operation from the next of the same kind: each is reported once."""
    if operation.kind == "model" and state.model.call is not None:
        return f"model:{state.model.call.ordinal}.{state.model.call.attempt}"
    return f"summary:{state.compaction.summaries}" if operation.kind == "summary" else operation.key


def operation_text(state: AgentState, operation: Operation) -> str:
    """Return a description of the operation that an agent waits for, for users and its lead."""
    call = _call(state, operation.subject)
    name = call.call.name if call is not None else "a tool"
    match operation.kind:
        case "model":
            return "the model's reply"
        case "summary":
            return "a summary of its conversation"
        case "tool":
            return name
        case "judge":
            return f"the hooks before {name}"
        case "settle":
            return f"the hooks after {name}"
        case "start-hooks" | "prompt-hooks" | "batch-hooks" | "stop-hooks" | "compact-hooks":
            return "hooks"
        case "count" | "prompt" | "reminders" | "skills" | "move" | "answer" | "bg" | "end":
            return operation.kind
        case _:
            assert_never(operation.kind)


def stall_text(name: str, kind: str, awaited: str, *, since: float, seconds: float) -> str:
    """Return the text that the lead gets about a stalled agent."""
    at = datetime.fromtimestamp(since, UTC).strftime("%H:%M:%S UTC")
    text = f"{name} is stalled: it waits for {awaited} since {at}, longer than the {seconds:.0f} s that this may take."
    if kind != "teammate":
        return text + " It may still continue by itself; a person can end it."
    text += " It may still continue by itself."
    return f"{text} request_shutdown ends {name} after 120 s, whatever it does, and frees its task."


def stated_timeout(tool_input: Json) -> float | None:
    """Return the timeout in a call's input, in seconds."""
    value = tool_input.get("timeout_s")
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None


def _call(state: AgentState, call_id: str) -> CallState | None:
    return state.calls.find(call_id)


NOBODY = "nobody"
"""Name that never acts."""
BOARD = "board"
"""Any agent that claims a free task."""


@dataclass(frozen=True, slots=True)
class WaitEdge:
    """One event that would let `who` continue."""

    who: str
    needs: tuple[frozenset[str], ...]
    """Needs of the wait, each met by any one of its names."""
    why: str
    """Description of the wait."""
    key: str
    """Id of the request, message or task."""

    @property
    def names(self) -> frozenset[str]:
        """Return all names that are waited for."""
        return frozenset(name for need in self.needs for name in need)


Graph = Mapping[str, Sequence[WaitEdge]]
"""Waiting agent -> its waits. An agent that is not in the graph, or has no waits, waits for nothing."""


@dataclass(frozen=True, slots=True)
class Deadlock:
    """Agents of which none can continue. A cycle is in order: each waits for the next, the last for the first."""

    waits: tuple[WaitEdge, ...]
    gone: tuple[str, ...] = ()
    """Names that are gone and that the agent waits for; empty for a cycle."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(wait.who for wait in self.waits)

    @property
    def id(self) -> str:
        """Return an id that is equal for equal deadlocks."""
        return short_id("deadlock", *sorted(f"{wait.who} {wait.key}" for wait in self.waits), *self.gone)

    def text(self) -> str:
        """Return a description with names, for the lead and the user."""
        if self.gone:
            only = self.waits[0]
            gone = ", ".join(name for name in self.gone if name != NOBODY)
            reason = f"{gone} will not act again" if gone else "nobody will act on that again"
            return f"{only.who} waits in vain for {only.why}: {reason}."
        following = (*self.names[1:], self.names[0])
        lines = [f"{wait.who} waits for {to}: {wait.why}" for wait, to in zip(self.waits, following, strict=True)]
        return "; ".join(lines) + ". None of them can continue before another does."


def stuck(graph: Graph, gone: Collection[str]) -> frozenset[str]:
    """Return all agents that wait forever. `gone`: names that never act again, waiting or not."""
    waiting = {name for name, waits in graph.items() if waits}
    while freed := {name for name in waiting if any(_ends(wait, waiting, gone) for wait in graph[name])}:
        waiting -= freed
    return frozenset(waiting)


def _ends(wait: WaitEdge, waiting: Collection[str], gone: Collection[str]) -> bool:
    return all(any(name not in waiting and name not in gone for name in need) for need in wait.needs)


def deadlocks(graph: Graph, gone: Collection[str]) -> tuple[Deadlock, ...]:
    """Return every cycle, and every agent that only waits for names that are gone, in a fixed order.

    Agents that wait for these are stuck as well but not listed: they continue when these do.
    """
    waiting = stuck(graph, gone)
    towards = {name: _waited_for(graph[name], waiting) for name in sorted(waiting)}
    circles = [_circle(graph, towards, ring) for ring in _rings(towards)]
    for name in sorted(waiting):
        if not towards[name]:
            wait = graph[name][0]
            never = sorted(name for name in wait.names if name in gone) or [NOBODY]
            circles.append(Deadlock((wait,), tuple(never)))
    return tuple(circles)


def _waited_for(waits: Sequence[WaitEdge], waiting: Collection[str]) -> tuple[str, ...]:
    """Return the names of the stuck agents that these waits are for."""
    return tuple(sorted({name for wait in waits for name in wait.names if name in waiting}))


def _rings(towards: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, ...]]:
    """Yield one cycle for each set of agents that all reach each other, the least name first."""
    reach = {name: _reached(towards, name) for name in towards}
    seen = set[str]()
    for name in sorted(towards):
        if name in seen or name not in reach[name]:
            continue
        together = {other for other in reach[name] if name in reach[other]}
        seen |= together
        yield _shortest(towards, name, together)


def _reached(towards: Mapping[str, Sequence[str]], start: str) -> set[str]:
    """Return all names reachable from the start in at least one step."""
    reached = set[str]()
    pending = list(towards[start])
    while pending:
        name = pending.pop()
        if name not in reached:
            reached.add(name)
            pending.extend(towards[name])
    return reached


def _shortest(towards: Mapping[str, Sequence[str]], start: str, within: Collection[str]) -> tuple[str, ...]:
    """Return the shortest path from a name back to itself."""
    ways: list[tuple[str, ...]] = [(start,)]
    met = {start}
    for way in ways:  # the list grows during the iteration, so paths come in order of length
        if start in towards[way[-1]]:
            return way
        new = [name for name in towards[way[-1]] if name in within and name not in met]
        met.update(new)
        ways.extend((*way, name) for name in new)
    raise AssertionError("a name that reaches itself has a way back")


def _circle(graph: Graph, towards: Mapping[str, Sequence[str]], ring: tuple[str, ...]) -> Deadlock:
    following = (*ring[1:], ring[0])
    return Deadlock(
        tuple(next(wait for wait in graph[name] if to in wait.names) for name, to in zip(ring, following, strict=True))
    )


# Waits of an agent


def waits_of(state: AgentState, requests: Iterable[Request], tasks: Mapping[str, Task]) -> tuple[WaitEdge, ...]:
    """Return the events that would let this agent continue.

    Empty if it is working, has mail, or waits for nothing that an agent or a person could do.

    `requests`: of the session. `tasks`: the board.
    """
    if state.identity.spec is None or state.lifecycle.ended is not None or state.lifecycle.stop or state.waits.crash:
        return ()
    me = (state.me.name, state.identity.incarnation)
    pending = {
        request.id: request
        for request in requests
        if request.status == "pending" and (request.asked_by, request.incarnation) == me
    }
    if state.calls:
        stages = state.calls.stages - {"settled"}
        asking = [pending[call.request_id] for call in state.calls if call.request_id in pending]
        return tuple(_for_answer(request) for request in asking) if stages == {"asking"} else ()
    if state.work.gate.gate == "pending":
        plan = pending.get(state.work.gate.request_id or "")
        return (_for_answer(plan),) if plan else ()
    if state.turn is not None or state.inbox.mail or not state.turns.count:
        return ()
    return (*(_for_answer(request) for request in pending.values()), *_for_replies(state), *_for_tasks(state, tasks))


def _for_answer(request: Request) -> WaitEdge:
    answering = frozenset(answerers(request)) or frozenset({NOBODY})
    return WaitEdge(request.asked_by, (answering,), f"an answer to its {request.kind} {request.id}", request.id)


def _for_replies(state: AgentState) -> Iterator[WaitEdge]:
    """Yield waits for replies to messages of a lead, or of an agent with unfinished work.

    Any other agent has finished and waits for nothing.
    """
    if state.me.kind != "lead" and not state.work.tasks:
        return
    for to, message in sorted(state.waits.replies.items()):
        yield WaitEdge(state.me.name, (frozenset({to}),), f"a reply to its message {message}", message)


def _for_tasks(state: AgentState, tasks: Mapping[str, Task]) -> Iterator[WaitEdge]:
    """Yield waits for tasks that block the agent's own tasks: all of them must be completed."""
    for task_id in sorted(state.work.tasks):
        task = tasks.get(task_id)
        needs = (
            tuple(_workers(tasks, blocker) for blocker in task.blocked_by if not _done(tasks, blocker)) if task else ()
        )
        if needs:
            yield WaitEdge(state.me.name, needs, f"what {task_id} waits for", task_id)


def _done(tasks: Mapping[str, Task], task_id: str) -> bool:
    task = tasks.get(task_id)
    return task is not None and task.status == "completed"


def _workers(tasks: Mapping[str, Task], task_id: str) -> frozenset[str]:
    """Return the agents that can advance this task: its owner, or any agent that may claim it.

    No agent claims a failed task by itself.
    """
    task = tasks.get(task_id)
    if task is None or task.status in ("failed", "cancelled"):
        return frozenset({NOBODY})
    return frozenset({task.owner or task.reserved_for or BOARD})

"""Work that is still open when a run ends: tasks, requests, agents, worktrees, commands, and denied calls. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from callboard.core.agent.state import AgentState
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import AgentRow, Request, Task

OPEN = ("in_progress", "pending", "failed")
"""States of unfinished tasks."""
SHOWN = 5
"""Most lines of one kind to show."""
_SHORT = 160


@dataclass(frozen=True, slots=True)
class OpenAgent:
    """Unfinished agent."""

    name: str
    state: str
    """Lifecycle state, or how its newest turn ended."""
    reason: str = ""
    failed: bool = False
    """True if its newest turn ended before its work was done."""

    def line(self) -> str:
        """Return the line for the user."""
        return f"agent {self.name}: {self.state}{_reason_suffix(self.reason)}"


@dataclass(frozen=True, slots=True)
class DeniedCall:
    """Call that did not run because a rule, a mode, a hook or the user denied it."""

    agent: str
    tool: str
    call: str
    """Short description of the call."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class StoppedCommand:
    """Background command that still ran at the end of a run and was ended with it."""

    id: str
    agent: str
    command: str

    def line(self) -> str:
        """Return the line for the user."""
        return f"{self.id} of {self.agent} still ran, and was stopped: {_short(self.command)}"


@dataclass(frozen=True, slots=True)
class OpenWork:
    """Open work at the end of a run. Empty if there is none."""

    tasks: tuple[Task, ...] = ()
    requests: tuple[Request, ...] = ()
    agents: tuple[OpenAgent, ...] = ()
    worktrees: tuple[str, ...] = ()
    """Worktrees of the session with unmerged work: name and amount."""
    denied: Sequence[DeniedCall] = ()
    stopped: Sequence[StoppedCommand] = ()

    def __bool__(self) -> bool:
        return bool(self.tasks or self.requests or self.agents or self.worktrees or self.denied or self.stopped)

    def reason(self) -> str:
        """Return the reason for which a run with this work is not done.

        Empty if no task is open and no agent was stopped before its work was done.
        """
        if not self.tasks:
            return "; ".join(agent.line() for agent in [other for other in self.agents if other.failed][:SHOWN])
        count = "1 task is" if len(self.tasks) == 1 else f"{len(self.tasks)} tasks are"
        names = ", ".join(task.id for task in self.tasks[:SHOWN])
        overflow = f" and {len(self.tasks) - SHOWN} more" if len(self.tasks) > SHOWN else ""
        return f"{count} not finished: {names}{overflow}"

    def lines(self) -> list[str]:
        """Return one line for each item, for the user.

        A long list of one kind is cut, and the rest is counted. Denied calls are left out, because each was reported
        when it was denied.
        """
        kinds = (
            [_task_line(task) for task in self.tasks],
            [_request_line(request) for request in self.requests],
            [agent.line() for agent in self.agents],
            [f"worktree {name}" for name in self.worktrees],
            [command.line() for command in self.stopped],
        )
        return [line for lines in kinds for line in _cut(lines)]

    def fields(self) -> dict[str, list[dict[str, str]]]:
        """Return rows of short texts for programs, one list for each kind of work, including empty lists."""
        return {
            "tasks": [
                {"id": task.id, "subject": task.subject, "status": task.status, "owner": task.owner or ""}
                for task in self.tasks
            ],
            "requests": [
                {"id": request.id, "kind": request.kind, "asked_by": request.asked_by, "subject": request.subject}
                for request in self.requests
            ],
            "agents": [{"name": agent.name, "state": agent.state, "reason": agent.reason} for agent in self.agents],
            "worktrees": [{"name": name.partition(":")[0], "unmerged": name} for name in self.worktrees],
            "denied_calls": [
                {
                    "agent": denied_call.agent,
                    "tool": denied_call.tool,
                    "call": denied_call.call,
                    "reason": denied_call.reason,
                }
                for denied_call in self.denied
            ],
            "stopped_commands": [
                {"id": command.id, "agent": command.agent, "command": _short(command.command)}
                for command in self.stopped
            ],
        }


def open_tasks(tasks: Iterable[Task]) -> tuple[Task, ...]:
    """Return the unfinished tasks: those in progress, then the pending, then the failed ones."""
    unfinished = [task for task in tasks if task.status in OPEN]
    return tuple(sorted(unfinished, key=lambda task: (OPEN.index(task.status), task.created_at, task.id)))


def open_agents(agents: Iterable[tuple[AgentRow, AgentState | None]]) -> tuple[OpenAgent, ...]:
    """Return the agents except the lead that are unfinished, or whose newest turn ended before they were done."""
    return tuple(entry for row, state in agents if (entry := _open_agent(row, state)) is not None)


def _open_agent(row: AgentRow, state: AgentState | None) -> OpenAgent | None:
    if row.kind == "lead" or row.life == "stopped":
        return None
    if row.life != "idle":
        waits = row.waiting_for if row.life == "waiting" else ""
        return OpenAgent(row.name, row.life, f"for {waits}" if waits else "")
    if state is None or state.turns.last_reason in ("", "end", "interrupted"):
        owes = state is not None and state.work.assignment
        return OpenAgent(row.name, "owes a report") if owes else None
    status = {"limit": "stopped at a limit", "refused": "refused"}.get(state.turns.last_reason, "could not continue")
    return OpenAgent(row.name, status, state.turns.last_why, failed=True)


def _task_line(task: Task) -> str:
    owner = f", {task.owner}" if task.owner else ""
    note = f": {_short(task.result)}" if task.status == "failed" and task.result else ""
    return f"{task.id} [{task.status.replace('_', ' ')}{owner}] {task.subject}{note}"


def _request_line(request: Request) -> str:
    return f"{request.id} waits for an answer ({request.kind} of {request.asked_by}): {_short(request.subject)}"


def _reason_suffix(reason: str) -> str:
    return f": {_short(reason)}" if reason else ""


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHORT else f"{line[: _SHORT - 1]}…"


def _cut(lines: Sequence[str]) -> Iterator[str]:
    yield from lines[:SHOWN]
    if len(lines) > SHOWN:
        yield f"and {len(lines) - SHOWN} more"

"""What must hold of shutdowns that are refused or run out of time, and of worktrees, when all is quiet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tests.simulation.evidence import Evidence, Life
from tests.simulation.team_of_six_outside import SixWorktrees

from callboard.core.agent.rules.worktree import worktree_in_use
from callboard.types import events as ev
from callboard.types.agent_spec import AgentSpec
from callboard.types.records import Request


def broken_at_the_end(evidence: Evidence, trees: SixWorktrees, *, frozen: bool) -> list[str]:
    """Every promise of these that was broken, in words. `frozen`: a process stood still, and thawed beside the next."""
    found = [fault for one in evidence.requests if one.kind == "shutdown" for fault in _shutdown(one, evidence)]
    found += [f"{call} merged {times} times" for call, times in trees.moved.items() if times > 1]
    found += _merges(evidence, trees.fates(), frozen=frozen)
    found += _agreed(evidence, trees.agreed)
    return found + [fault for life in evidence.lives for fault in _elsewhere(life)]


def _shutdown(request: Request, evidence: Evidence) -> Iterator[str]:
    """Approved or out of time, the life that was asked is over; and its asker is told once."""
    name, number = request.payload["teammate"], request.payload["incarnation"]
    life = next(one for one in evidence.lives if (one.name, one.incarnation) == (name, number))
    newest = max(one.incarnation for one in evidence.lives if one.name == name)
    row = next(row for row in evidence.rows if row.name == name)
    over = life.state.lifecycle.ended is not None or newest > number or row.life == "stopped"
    if request.status in ("approved", "expired") and not over:
        yield f"{request.id} is {request.status}, and {name} is {row.life}"
    if request.status in ("approved", "rejected", "expired"):
        yield from _answered(request, evidence)


def _answered(request: Request, evidence: Evidence) -> Iterator[str]:
    asker = next(
        life for life in evidence.lives if (life.name, life.incarnation) == (request.asked_by, request.incarnation)
    )
    if asker.state.lifecycle.ended is not None:
        return  # a new life of the name never hears of it
    told = [one for one in asker.mail if one.type == "shutdown_response" and one.request_id == request.id]
    if len(told) != 1:
        yield f"{asker.name} was told {len(told)} times that {request.id} is {request.status}"


def _merges(evidence: Evidence, fates: Mapping[str, str], *, frozen: bool) -> Iterator[str]:
    """What a call said of its merge is what the record says, whoever was cut in between. Who thaws may still end what
    another process found half done."""
    for life in evidence.lives:
        merges = {
            call.id
            for event in life.events
            if isinstance(event, ev.ModelReplied)
            for call in event.calls
            if call.name == "merge_worktree"
        }
        for event in life.events:
            if not isinstance(event, ev.ToolFinished) or event.call not in merges:
                continue
            merged = fates.get(event.call) == "merged"
            if not event.is_error and event.data.get("how") == "merged" and not merged:
                yield f"{life.name} was told that {event.call} merged; nothing was"
            if event.is_error and merged and not frozen and "interrupted" not in str(event.content).lower():
                yield f"{life.name} was told that {event.call} did not merge, and it did: {event.content}"


def _agreed(evidence: Evidence, agreed: Mapping[str, str]) -> Iterator[str]:
    """Work that stands nowhere else went by the word of a person alone."""
    words = {
        one.payload.get("call_id"): one.answered_by
        for one in evidence.requests
        if one.kind == "permission" and one.status == "approved"
    }
    for call, tree in agreed.items():
        if words.get(call) != "person":
            yield f"{call} removed {tree} with work in it, by the word of {words.get(call)}"


def _elsewhere(life: Life) -> Iterator[str]:
    """Who has a worktree of its own runs no command in another folder, as long as it never held a task."""
    spec: AgentSpec | None = None
    for event in life.events:
        if isinstance(event, (ev.AgentStarted, ev.SpecChanged)):
            spec = event.spec
        if isinstance(event, ev.TaskHeld):
            return
        if isinstance(event, ev.ToolStarted) and spec and spec.worktree and worktree_in_use(spec) != spec.worktree:
            yield f"{life.name} ran {event.call} in {worktree_in_use(spec) or 'the workspace'}, not in {spec.worktree}"

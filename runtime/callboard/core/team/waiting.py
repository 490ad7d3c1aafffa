"""Who waits for whom, and who waits in vain: the wait-for graph over requests, messages and tasks. Pure.

An agent that waits may have several waits; the end of any one of them sets it going again. A wait has needs, and all of
them must be met, each by any one of those it names. Whoever waits for nothing may act. What is left when everybody is
taken away who can be set going is a deadlock: a circle, or a wait for those who will never act again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from callboard.core.asking.requests import answerers
from callboard.core.names import short_id
from callboard.core.state import AgentState
from callboard.words.values import Request, Task

NOBODY = "nobody"
"""A name that never acts."""
BOARD = "board"
"""Whoever takes a task that is free."""


@dataclass(frozen=True, slots=True)
class Wait:
    """One thing that would set `who` going."""

    who: str
    needs: tuple[frozenset[str], ...]
    """Each must be met, by any one of its names."""
    why: str
    """What it waits for, in words."""
    key: str
    """The request, the message or the task."""

    @property
    def names(self) -> frozenset[str]:
        """All who are waited for."""
        return frozenset(name for need in self.needs for name in need)


Graph = Mapping[str, Sequence[Wait]]
"""Who waits -> its waits. Who is not in it, or has none, waits for nothing."""


@dataclass(frozen=True, slots=True)
class Deadlock:
    """Agents of which none can go on. A circle stands in its order: each waits for the next, the last for the first."""

    waits: tuple[Wait, ...]
    gone: tuple[str, ...] = ()
    """No circle: the one of them waits for these, who are gone."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(wait.who for wait in self.waits)

    @property
    def id(self) -> str:
        """The same for the same deadlock, whoever finds it and how often."""
        return short_id("deadlock", *sorted(f"{wait.who} {wait.key}" for wait in self.waits), *self.gone)

    def words(self) -> str:
        """It by name, for the lead and a person."""
        if self.gone:
            only = self.waits[0]
            gone = ", ".join(name for name in self.gone if name != NOBODY)
            why = f"{gone} will not act again" if gone else "nobody will act on that again"
            return f"{only.who} waits in vain for {only.why}: {why}."
        following = (*self.names[1:], self.names[0])
        lines = [f"{wait.who} waits for {to}: {wait.why}" for wait, to in zip(self.waits, following, strict=True)]
        return "; ".join(lines) + ". None of them can go on before another does."


def stuck(graph: Graph, gone: Collection[str]) -> frozenset[str]:
    """All who wait in vain. `gone`: who never acts again, waiting or not."""
    left = {who for who, waits in graph.items() if waits}
    while freed := {who for who in left if any(_ends(wait, left, gone) for wait in graph[who])}:
        left -= freed
    return frozenset(left)


def _ends(wait: Wait, left: Collection[str], gone: Collection[str]) -> bool:
    return all(any(name not in left and name not in gone for name in need) for need in wait.needs)


def deadlocks(graph: Graph, gone: Collection[str]) -> tuple[Deadlock, ...]:
    """Every circle, and every agent that only waits for those who are gone; in a fixed order. Who waits for one of
    these is stuck as well, and not named: it goes on when they do."""
    left = stuck(graph, gone)
    towards = {who: _towards(graph[who], left) for who in sorted(left)}
    found = [_circle(graph, towards, ring) for ring in _rings(towards)]
    for who in sorted(left):
        if not towards[who]:
            wait = graph[who][0]
            never = sorted(name for name in wait.names if name in gone) or [NOBODY]
            found.append(Deadlock((wait,), tuple(never)))
    return tuple(found)


def _towards(waits: Sequence[Wait], left: Collection[str]) -> tuple[str, ...]:
    """Whom of the stuck ones it waits for."""
    return tuple(sorted({name for wait in waits for name in wait.names if name in left}))


def _rings(towards: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, ...]]:
    """One circle out of each set of agents that all reach each other, the least name first."""
    reach = {who: _reached(towards, who) for who in towards}
    seen = set[str]()
    for who in sorted(towards):
        if who in seen or who not in reach[who]:
            continue
        together = {one for one in reach[who] if who in reach[one]}
        seen |= together
        yield _shortest(towards, who, together)


def _reached(towards: Mapping[str, Sequence[str]], start: str) -> set[str]:
    """All that can be come to from there, in one step at least."""
    found, left = set[str](), list(towards[start])
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left.extend(towards[name])
    return found


def _shortest(towards: Mapping[str, Sequence[str]], start: str, within: Collection[str]) -> tuple[str, ...]:
    """The shortest way from a name back to itself."""
    ways: list[tuple[str, ...]] = [(start,)]
    met = {start}
    for way in ways:  # grows while it is walked: by length
        if start in towards[way[-1]]:
            return way
        new = [name for name in towards[way[-1]] if name in within and name not in met]
        met.update(new)
        ways.extend((*way, name) for name in new)
    raise AssertionError("a name that reaches itself has a way back")


def _circle(graph: Graph, towards: Mapping[str, Sequence[str]], ring: tuple[str, ...]) -> Deadlock:
    following = (*ring[1:], ring[0])
    return Deadlock(
        tuple(next(wait for wait in graph[who] if to in wait.names) for who, to in zip(ring, following, strict=True))
    )


# What an agent waits for.


def waits_of(state: AgentState, requests: Iterable[Request], tasks: Mapping[str, Task]) -> tuple[Wait, ...]:
    """What would set this agent going; none when it is at work, has mail, or waits for nothing that anybody owes it.

    `requests`: of the session. `tasks`: the board.
    """
    if state.spec is None or state.ended is not None or state.stop or state.waits.crash:
        return ()
    me = (state.me.name, state.incarnation)
    pending = {one.id: one for one in requests if one.status == "pending" and (one.asked_by, one.incarnation) == me}
    if state.calls:
        stages = {one.stage for one in state.calls} - {"settled"}
        asking = [pending[one.request_id] for one in state.calls if one.request_id in pending]
        return tuple(_for_answer(one) for one in asking) if stages == {"asking"} else ()
    if state.gate.gate == "pending":
        plan = pending.get(state.gate.request_id or "")
        return (_for_answer(plan),) if plan else ()
    if state.turn is not None or state.mail or not state.turns:
        return ()
    return (*(_for_answer(one) for one in pending.values()), *_for_replies(state), *_for_tasks(state, tasks))


def _for_answer(request: Request) -> Wait:
    who = frozenset(answerers(request)) or frozenset({NOBODY})
    return Wait(request.asked_by, (who,), f"an answer to its {request.kind} {request.id}", request.id)


def _for_replies(state: AgentState) -> Iterator[Wait]:
    """Messages of its own that had no answer: of a lead, and of who still has work in its hands. Anybody else has
    ended what it was given, and waits for nothing."""
    if state.me.kind != "lead" and not state.tasks:
        return
    for to, message in sorted(state.waits.replies.items()):
        yield Wait(state.me.name, (frozenset({to}),), f"a reply to its message {message}", message)


def _for_tasks(state: AgentState, tasks: Mapping[str, Task]) -> Iterator[Wait]:
    """Tasks in its hands that wait for others: all of these must be done."""
    for task_id in sorted(state.tasks):
        task = tasks.get(task_id)
        needs = tuple(_doers(tasks, one) for one in task.blocked_by if not _done(tasks, one)) if task else ()
        if needs:
            yield Wait(state.me.name, needs, f"what {task_id} waits for", task_id)


def _done(tasks: Mapping[str, Task], task_id: str) -> bool:
    found = tasks.get(task_id)
    return found is not None and found.status == "completed"


def _doers(tasks: Mapping[str, Task], task_id: str) -> frozenset[str]:
    """Who can bring this task on: its owner, or whoever takes it. What has failed nobody does again by himself."""
    task = tasks.get(task_id)
    if task is None or task.status in ("failed", "cancelled"):
        return frozenset({NOBODY})
    return frozenset({task.owner or task.reserved_for or BOARD})

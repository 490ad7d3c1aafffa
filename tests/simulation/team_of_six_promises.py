"""What must hold of a team's bus, board and commands when all is quiet, beside the promises of a chaos.

What was sent is taken down outside the store (`Post`), commit by commit: a store, a journal or a mailbox that loses
something is told of by it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.simulation.chaos_person import SESSION
from tests.simulation.chaos_tools import Wilderness
from tests.simulation.evidence import Evidence, Life

from callboard.core.keys import mailbox, short_id
from callboard.core.messaging.dead_letters import MOOT
from callboard.types import events as ev
from callboard.types.records import Envelope, ToolCall
from callboard.types.store_writes import Append


@dataclass
class Post:
    """Every envelope that a commit put into a mailbox, in the order of the commits."""

    letters: list[Append] = field(default_factory=list[Append])
    placed: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """(mailbox, envelope id) -> its number there."""
    again: int = 0
    """How often one was sent that had been sent before."""

    def take(self, write: Append, number: int) -> None:
        """A commit with this write has taken effect."""
        if (write.stream, write.id or "") not in self.placed:
            self.placed[write.stream, write.id or ""] = number
            self.letters.append(write)


def broken_in_team(evidence: Evidence, post: Post, outside: Wilderness, now: float) -> list[str]:
    """Every promise of the team that was broken, in words. `now`: when all was quiet (Unix seconds)."""
    checks = (
        _lost(evidence, post),
        _unsent(evidence),
        _order(evidence),
        _effects(evidence, outside),
        _orphans(evidence, outside, now),
        _reports(evidence),
    )
    return [fault for check in checks for fault in check]


def _lost(evidence: Evidence, post: Post) -> Iterator[str]:
    """What was sent stands in its mailbox, once, where it was put; and was delivered, heeded, or told of as dropped."""
    there = {
        (mailbox(SESSION, life.name, life.incarnation), one.id): one.seq for life in evidence.lives for one in life.mail
    }
    for (stream, name), number in post.placed.items():
        if there.get((stream, name)) != number:
            yield f"{name} was sent as number {number} of {stream}; there it is {there.get((stream, name))}"
    for stream, name in there.keys() - post.placed.keys():
        yield f"{name} stands in {stream}, and no commit put it there"
    for life in evidence.lives:
        yield from _untold(life, evidence)


def _untold(life: Life, evidence: Evidence) -> Iterator[str]:
    """What was not delivered was dropped for a reason, moved on to the next life, or its sender has a dead letter."""
    for event in life.events:
        if isinstance(event, ev.EnvelopesDropped) and not event.why.strip():
            yield f"{life.name} dropped {event.ids} without a reason"
    if life.state.lifecycle.ended is None:
        return
    waiting = {one.id for one in life.state.inbox.mail}
    for one in life.mail:
        if one.seq > life.state.inbox.position or one.id in waiting:
            yield from _not_told(one, life, evidence)


def _not_told(dead: Envelope, life: Life, evidence: Evidence) -> Iterator[str]:
    later = [other for other in evidence.lives if other.name == life.name and other.incarnation > life.incarnation]
    if dead.type in MOOT:
        return
    if life.state.me.kind == "lead":
        if not any(one.id == dead.id for other in later for one in other.mail):
            yield f"{dead.type} {dead.id} was not moved on to the next life of the lead"
        return
    if life.state.me.kind == "subagent" and dead.metadata.get("assignment"):
        return  # it was ended before it began: who called it has that as the call's result
    senders = [other for other in evidence.lives if other.name == dead.sender and other.state.identity.spec is not None]
    if not senders or senders[-1].state.me.kind == "subagent":
        return  # a person, a schedule, the board or the runtime: the log and the screen have it
    wrote = [other for other in senders if other.incarnation == dead.sender_incarnation] or senders[-1:]
    if senders[-1].state.me.kind != "lead" and wrote[0].state.lifecycle.ended is not None:
        return  # nobody is left who could be told
    letters = [one for other in senders for one in other.mail if one.caused_by == dead.id and one.type == "dead_letter"]
    if len({one.id for one in letters}) != 1:
        yield f"{dead.sender} was told {len(letters)} times that {life.name} never read its {dead.type} {dead.id}"


def _unsent(evidence: Evidence) -> Iterator[str]:
    """A call that said that it sent something has sent it: the effect and its record are one commit."""
    sent = {one.id for life in evidence.lives for one in life.mail}
    for life in evidence.lives:
        for call, result in _results(life):
            if result.is_error:
                continue
            to = result.data.get("to") if call.name == "send_message" else None
            if isinstance(to, str) and short_id("env", call.id, to) not in sent:
                yield f"{life.name} was told that {call.id} wrote to {to}; nothing was sent"


def _results(life: Life) -> Iterator[tuple[ToolCall, ev.ToolFinished]]:
    calls = {call.id: call for event in life.events if isinstance(event, ev.ModelReplied) for call in event.calls}
    for event in life.events:
        if isinstance(event, ev.ToolFinished):
            yield calls[event.call], event


def _order(evidence: Evidence) -> Iterator[str]:
    """What one sender wrote to one recipient is delivered in the order in which it was written."""
    written: dict[tuple[str, int], dict[str, int]] = {}
    for life in evidence.lives:
        calls = [call.id for call, result in _results(life) if not result.is_error]
        written[life.name, life.incarnation] = {call: place for place, call in enumerate(calls)}
    for life in evidence.lives:
        yield from _overtaken(life)
        yield from _out_of_order(life, evidence)


def _overtaken(life: Life) -> Iterator[str]:
    """Deliveries against the mailbox, sender by sender."""
    by_id = {one.id: one for one in life.mail}
    newest = Counter[str]()
    for event in life.events:
        if not isinstance(event, ev.EnvelopesDelivered):
            continue
        for one in (by_id[name] for name in event.ids if name in by_id):
            if one.seq < newest[one.sender] and one.type != "scheduled":
                yield f"{life.name} was given {one.type} {one.id} of {one.sender} after one that was sent later"
            newest[one.sender] = max(newest[one.sender], one.seq)


def _out_of_order(life: Life, evidence: Evidence) -> Iterator[str]:
    """The mailbox against the senders' journals: messages stand in it in the order of their calls."""
    place = {one.id: one.seq for one in life.mail}
    for sender in evidence.lives:
        last = 0
        for call, result in _results(sender):
            seq = place.get(short_id("env", call.id, life.name), 0)
            if result.is_error or not seq:
                continue
            if seq < last:
                yield f"{sender.name}'s {call.id} overtook an earlier message to {life.name}"
            last = seq


def _effects(evidence: Evidence, outside: Wilderness) -> Iterator[str]:
    """What a call does outside, it does once; what the board did is what the journals say."""
    yield from (f"{output} was started {n} times" for output, n in outside.processes.starts.items() if n > 1)
    spawned, done = Counter[str](), Counter[str]()
    for life in evidence.lives:
        for call, result in _results(life):
            if call.name == "spawn_teammate" and not result.is_error:
                spawned[str(result.data.get("name"))] += 1
            if call.name == "complete_task" and not result.is_error:
                done[str(call.input.get("task_id"))] += 1
    for row in evidence.rows:
        if row.kind == "teammate" and spawned[row.name] != row.incarnation:
            yield f"{row.name} was spawned {spawned[row.name]} times and has had {row.incarnation} lives"
    for task in evidence.tasks:
        if done[task.id] != (task.status == "completed"):
            yield f"{task.id} is {task.status} and was completed {done[task.id]} times"


def _orphans(evidence: Evidence, outside: Wilderness, now: float) -> Iterator[str]:
    """No command runs that nobody waits for, no subagent lives without its caller, no request outlives its asker."""
    told = {one.began.output for life in evidence.lives for one in life.state.work.background.values()}
    for output, pid in outside.processes.by_output.items():
        if outside.processes.running[pid].until > now:
            yield f"{output} still runs{'' if output in told else ', and nobody knows of it'}"
    children = {short_id("sub", call.id)[4:]: life for life in evidence.lives for call, _ in _asked(life)}
    for row in evidence.rows:
        if row.kind == "subagent" and row.life not in ("stopped", "crashed"):
            yield f"subagent {row.name} is {row.life} when all is quiet"
        if row.kind == "subagent" and row.name.rsplit("-", 1)[1] not in children:
            yield f"subagent {row.name} has no caller"
    over = {row.name for row in evidence.rows if row.life in ("stopped", "crashed")}
    for one in evidence.requests:
        if one.status == "pending" and one.asked_by in over:
            yield f"{one.id} waits for an answer to {one.asked_by}, who is over"


def _reports(evidence: Evidence) -> Iterator[str]:
    """A subagent in the background ends once for its caller, and what it has to say arrives there once."""
    for life in evidence.lives:
        ends = Counter(event.id for event in life.events if isinstance(event, ev.BackgroundEnded))
        for name, task in life.state.work.background.items():
            if not task.began.agent or life.state.lifecycle.renew:
                continue
            if ends[name] != 1:
                yield f"{name} ended {ends[name]} times for {life.name}"
            letters = {one.seq for one in life.mail if one.id == short_id("env", name, "ended")}
            if len(letters) != 1 and (task.status != "stopped" or letters):
                yield f"{life.name} was told {len(letters)} times that {name} has {task.status}"


def _asked(life: Life) -> Iterator[tuple[ToolCall, ev.ModelReplied]]:
    for event in life.events:
        if isinstance(event, ev.ModelReplied):
            yield from ((call, event) for call in event.calls if call.name == "task")

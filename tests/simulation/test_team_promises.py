"""A promise that cannot break says nothing: each of the team's is broken once by hand, and is seen to be broken."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

import pytest
from structlog.testing import capture_logs
from tests.simulation.chaos_person import SESSION
from tests.simulation.evidence import Evidence, Life
from tests.simulation.team_of_six import SixRun
from tests.simulation.team_of_six_board import Board
from tests.simulation.team_of_six_ends import broken_at_the_end
from tests.simulation.team_of_six_promises import broken_in_team
from tests.simulation.virtual import run_virtual

from callboard.core.agent.state import LifeEnd
from callboard.core.frozen import replace as changed
from callboard.core.keys import agent_key, journal, mailbox, request_key, task_key
from callboard.types import events as ev
from callboard.types.records import AgentRow, Envelope, Json, Request, Task
from callboard.types.store_writes import Append, Put, Write

T = TypeVar("T")
SEEDS = range(5, 35)
"""Looked through until each promise could be broken: not in every run does each kind of thing happen."""


@dataclass
class Left:
    """What a run left, to be tampered with."""

    run: SixRun
    evidence: Evidence

    def broken(self) -> list[str]:
        run = self.run
        found = broken_in_team(self.evidence, run.post, run.outside, run.quiet_at)
        return found + broken_at_the_end(self.evidence, run.outside.trees, frozen=False)

    def life(self, holds: Callable[[Life], object]) -> Life:
        return first(life for life in self.evidence.lives if holds(life))

    def put(self, old: Life, **changes: object) -> None:
        """This life, with these changes, in place of the old one."""
        new = replace(old, **changes)
        lives = [new if life is old else life for life in self.evidence.lives]
        self.evidence = replace(self.evidence, lives=lives)


def first(found: Iterable[T]) -> T:
    for one in found:
        return one
    raise NotThere


class NotThere(Exception):
    """The run has nothing of that kind to be tampered with."""


def left_by(seed: int) -> Left:
    run = SixRun(seed)
    with capture_logs():
        found = Left(run, run_virtual(run.whole, seed=seed))
    assert found.broken() == []
    return found


def messages(life: Life) -> Sequence[Envelope]:
    """What others wrote to it by `send_message`."""
    return [one for one in life.mail if one.content.startswith(("pass this", "hello"))]


def a_commit_loses_an_envelope(left: Left) -> str:
    life = left.life(messages)
    left.put(life, mail=[one for one in life.mail if one is not messages(life)[-1]])
    return "there it is None"


def an_envelope_comes_from_nowhere(left: Left) -> str:
    life = left.life(messages)
    left.put(life, mail=[*life.mail, messages(life)[-1].model_copy(update={"id": "env_x", "seq": len(life.mail) + 1})])
    return "no commit put it there"


def an_envelope_is_never_read(left: Left) -> str:
    life = left.life(
        lambda life: (
            life.name != "lead" and not life.state.lifecycle.ended and any(x.sender == "lead" for x in messages(life))
        )
    )
    newest = first(one for one in reversed(messages(life)) if one.sender == "lead")
    state = changed(
        life.state,
        lifecycle=changed(life.state.lifecycle, ended=LifeEnd("stopped", "")),
        inbox=changed(life.state.inbox, position=newest.seq - 1),
    )
    left.put(life, state=state)
    return f"was told 0 times that {life.name} never read its message {newest.id}"


def mail_is_dropped_in_silence(left: Left) -> str:
    life = left.life(messages)
    left.put(life, events=[*life.events, ev.EnvelopesDropped(at=0.0, ids=("env_x",), why=" ")])
    return "without a reason"


def a_tool_says_that_it_sent(left: Left) -> str:
    """The call is in the journal, and its envelope in no mailbox: they were no one commit."""
    gone = first(one for life in left.evidence.lives for one in messages(life))
    for each in left.evidence.lives:
        left.put(each, mail=[one for one in each.mail if one.id != gone.id])
    return "nothing was sent"


def a_mailbox_is_read_from_its_end(left: Left) -> str:
    life = left.life(lambda life: len({one.id for one in life.mail if one.sender == "amy"}) > 1)
    places = [place for place, event in enumerate(life.events) if isinstance(event, ev.EnvelopesDelivered)]
    events = list(life.events)
    for place, other in zip(places, reversed(places), strict=True):
        events[place] = life.events[other]
    left.put(life, events=events)
    return "after one that was sent later"


def a_sender_overtakes_himself(left: Left) -> str:
    life = left.life(lambda life: _twos(messages(life)))
    first, second = _twos(messages(life))[0]
    seqs = {first.id: second.seq, second.id: first.seq}
    left.put(life, mail=[one.model_copy(update={"seq": seqs.get(one.id, one.seq)}) for one in life.mail])
    return "overtook an earlier message"


def _twos(mail: Sequence[Envelope]) -> list[tuple[Envelope, Envelope]]:
    """Pairs of messages of one life of one sender."""
    return [
        (one, other)
        for place, one in enumerate(mail)
        for other in mail[place + 1 :]
        if (one.sender, one.sender_incarnation) == (other.sender, other.sender_incarnation)
    ]


def a_command_starts_twice(left: Left) -> str:
    left.run.outside.processes.starts["call_x.out"] = 2
    return "was started 2 times"


def a_command_is_left(left: Left) -> str:
    processes = left.run.outside.processes
    output, pid = first(processes.by_output.items())
    processes.running[pid].until = float("inf")
    return f"{output} still runs"


def a_task_is_completed_twice(left: Left) -> str:
    done = first(one for one in left.evidence.tasks if one.status == "completed")
    others: list[Task] = [one for one in left.evidence.tasks if one is not done]
    left.evidence = replace(left.evidence, tasks=[*others, done.model_copy(update={"status": "pending"})])
    return f"{done.id} is pending and was completed 1 times"


def a_mate_is_spawned_twice(left: Left) -> str:
    _row(left, "teammate", incarnation=9)
    return "and has had 9 lives"


def a_subagent_is_left(left: Left) -> str:
    return f"subagent {_row(left, 'subagent', life='idle')} is idle when all is quiet"


def a_subagent_has_no_caller(left: Left) -> str:
    return f"subagent {_row(left, 'subagent', name='explore-x')} has no caller"


def a_report_never_arrives(left: Left) -> str:
    life = left.life(_reports)
    report = _reports(life)[0]
    left.put(life, mail=[one for one in life.mail if one is not report])
    return f"{life.name} was told 0 times that {report.metadata['id']} has"


def _reports(life: Life) -> Sequence[Envelope]:
    """What subagents in the background had to say."""
    tasks = life.state.work.background
    return [one for one in life.mail if (task := tasks.get(str(one.metadata.get("id")))) and task.began.agent]


def _row(left: Left, kind: str, **update: object) -> str:
    old = first(row for row in left.evidence.rows if row.kind == kind)
    new = old.model_copy(update=update)
    left.evidence = replace(left.evidence, rows=[new if row is old else row for row in left.evidence.rows])
    return new.name


def an_ended_agent_waits_for_an_answer(left: Left) -> str:
    over = first(row.name for row in left.evidence.rows if row.life == "stopped")
    asked = first(left.evidence.requests).model_copy(update={"status": "pending", "asked_by": over})
    left.evidence = replace(left.evidence, requests=[*left.evidence.requests, asked])
    return f"to {over}, who is over"


def an_expired_shutdown_leaves_its_mate(left: Left) -> str:
    asked = _shut_down(left, "approved", "expired")
    life = left.life(lambda life: life.name == asked.payload["teammate"])
    if life.incarnation != max(one.incarnation for one in left.evidence.lives if one.name == life.name):
        raise NotThere
    left.put(life, state=changed(life.state, lifecycle=changed(life.state.lifecycle, ended=None)))
    rows = [row.model_copy(update={"life": "idle"}) if row.name == life.name else row for row in left.evidence.rows]
    left.evidence = replace(left.evidence, rows=rows)
    return f"{asked.id} is {asked.status}, and {life.name} is idle"


def nobody_hears_that_a_mate_stays(left: Left) -> str:
    asked = _shut_down(left, "rejected", "expired")
    life = left.life(lambda life: (life.name, life.incarnation) == (asked.asked_by, asked.incarnation))
    if life.state.lifecycle.ended is not None:
        raise NotThere
    left.put(life, mail=[one for one in life.mail if one.type != "shutdown_response"])
    return f"was told 0 times that {asked.id} is {asked.status}"


def _shut_down(left: Left, *statuses: str) -> Request:
    return first(one for one in left.evidence.requests if one.kind == "shutdown" and one.status in statuses)


def a_merge_is_done_twice(left: Left) -> str:
    left.run.outside.trees.moved["call_x"] = 2
    return "call_x merged 2 times"


def a_merge_is_told_that_was_none(left: Left) -> str:
    _ended_merge(left, is_error=True, is_error_now=False, data={"how": "merged"})
    return "merged; nothing was"


def a_merge_is_not_told(left: Left) -> str:
    _ended_merge(left, is_error=False, is_error_now=True, content="Nothing was merged.")
    return "did not merge, and it did"


def _ended_merge(left: Left, *, is_error: bool, is_error_now: bool, **update: object) -> None:
    """The end of a merge of the lead's, told otherwise."""
    fates = left.run.outside.trees.fates()
    for life in left.evidence.lives:
        calls = [call for one in life.events if isinstance(one, ev.ModelReplied) for call in one.calls]
        merges = {one.id for one in calls if one.name == "merge_worktree"}
        for place, one in enumerate(life.events):
            if not isinstance(one, ev.ToolFinished) or one.call not in merges or one.is_error != is_error:
                continue
            if (fates.get(one.call) == "merged") != is_error:
                events = list(life.events)
                events[place] = one.model_copy(update={"is_error": is_error_now, **update})
                left.put(life, events=events)
                return
    raise NotThere


def work_goes_by_nobodys_word(left: Left) -> str:
    left.run.outside.trees.agreed["call_x"] = "oak"
    return "call_x removed oak with work in it, by the word of None"


def a_call_runs_in_another_folder(left: Left) -> str:
    life = left.life(lambda life: any(isinstance(one, ev.ToolStarted) for one in life.events))
    began = first(one for one in life.events if isinstance(one, ev.AgentStarted))
    spec = began.spec.model_copy(update={"worktree": "ash"})
    left.put(life, events=[began.model_copy(update={"spec": spec}), *life.events[1:]])
    return "in the workspace, not in ash"


BREAKS = (
    an_expired_shutdown_leaves_its_mate,
    nobody_hears_that_a_mate_stays,
    a_merge_is_done_twice,
    a_merge_is_told_that_was_none,
    a_merge_is_not_told,
    work_goes_by_nobodys_word,
    a_call_runs_in_another_folder,
    a_commit_loses_an_envelope,
    an_envelope_comes_from_nowhere,
    an_envelope_is_never_read,
    mail_is_dropped_in_silence,
    a_tool_says_that_it_sent,
    a_mailbox_is_read_from_its_end,
    a_sender_overtakes_himself,
    a_command_starts_twice,
    a_command_is_left,
    a_task_is_completed_twice,
    a_mate_is_spawned_twice,
    a_subagent_is_left,
    a_subagent_has_no_caller,
    a_report_never_arrives,
    an_ended_agent_waits_for_an_answer,
)


@pytest.mark.slow
def test_each_promise_is_seen_to_be_broken() -> None:
    unbroken = list(BREAKS)
    for seed in SEEDS:
        found = left_by(seed)
        for breaks in list(unbroken):
            tampered = Left(found.run, found.evidence)
            with suppress(NotThere):
                words = breaks(tampered)
                assert any(words in one for one in tampered.broken()), f"{breaks.__name__}: {tampered.broken()}"
                unbroken.remove(breaks)
        if not unbroken:
            return
    pytest.fail(f"never tried: {[breaks.__name__ for breaks in unbroken]}")


BENS: Json = {"status": "in_progress", "owner": "ben", "owner_incarnation": 1}
BEN, BENS_MAIL, LEAD = journal(SESSION, "ben", 1), mailbox(SESSION, "ben", 1), journal(SESSION, "lead", 1)


@pytest.mark.parametrize(
    ("old", "new", "streams", "words"),
    [
        ({}, BENS, (BEN,), ""),
        ({"reserved_for": "amy"}, BENS, (BEN,), "which was kept for amy"),
        ({"blocked_by": ("task_b",)}, BENS, (BEN,), "which waits for ['task_b']"),
        ({"status": "failed"}, BENS, (BEN,), "which was failed"),
        (BENS, {**BENS, "owner": "amy"}, (BENS_MAIL,), "which was in_progress of ben"),
        (BENS, {}, (LEAD,), "was taken from ben, who was not told"),
        (BENS, {}, (LEAD, BENS_MAIL), ""),
        (BENS, {}, (BEN,), ""),
        (BENS, {"status": "completed", "owner": "ben"}, (LEAD, BENS_MAIL), "did not do that"),
        ({"status": "completed"}, {"status": "pending"}, (LEAD,), "was completed, and is pending"),
    ],
)
def test_a_commit_that_breaks_a_law_of_the_board_is_told_of(
    old: Json, new: Json, streams: tuple[str, ...], words: str
) -> None:
    board, ben = Board(), AgentRow(name="ben", kind="teammate", life="working", since=0.0)
    board.take([Put(agent_key(SESSION, "ben"), ben.encode()), _put("task_b", {})])
    board.take([_put("task_a", {})])
    board.tasks["task_a"] = board.tasks["task_a"].model_copy(update=old)
    board.take([_put("task_a", new), *(Append(stream, b"") for stream in streams)])
    assert all(words and words in one for one in board.faults)
    assert bool(board.faults) == bool(words)
    assert board.taken == (BENS_MAIL in streams)


def test_a_task_comes_to_the_board_open() -> None:
    board = Board()
    board.take([_put("task_a", BENS)])
    assert board.faults == ["task_a was in_progress when it came to the board"]


@pytest.mark.parametrize("refused", [True, False])
def test_a_refused_shutdown_that_is_heeded_is_told_of(refused: bool) -> None:
    asked = Request(id="req_a", kind="shutdown", asked_by="lead", incarnation=1, created_at=0.0)
    asked = asked.model_copy(update={"status": "rejected" if refused else "pending"})
    told = Envelope(
        id="env_a",
        sender="lead",
        recipient="ben",
        incarnation=1,
        type="shutdown_request",
        request_id="req_a",
        sent_at=0.0,
    )
    board = Board()
    board.take([Put(request_key(SESSION, "req_a"), asked.encode())])
    board.take([Append(BEN, ev.EnvelopeReceived(at=0.0, envelope=told).encode())])
    assert board.faults == ([f"{BEN} heeds req_a, which was refused"] if refused else [])


def _put(name: str, more: Json) -> Write:
    task = Task.model_validate({"id": name, "subject": "s", "created_at": 0.0, "updated_at": 0.0, **more})
    return Put(task_key(SESSION, name), task.encode())

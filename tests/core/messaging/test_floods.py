"""The bounds of mail: no sequence of sends passes them, a steady reporter meets none, outside words renew them."""

from __future__ import annotations

import itertools
import math
import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as draw
from tests.core.agent.agent_states import Life, facts

from callboard.core.agent.decide import decide
from callboard.core.agent.rules.delivery import BY_LIMIT, BY_TASK_LIMIT
from callboard.core.agent.stuck_detector import MOST_UNSENT
from callboard.core.messaging import floods as limits
from callboard.core.messaging.floods import BURST, MOST_WAKES, PENALTY, PER_MINUTE, WAKES_PER_MINUTE, MailCounts
from callboard.engine.messaging.mailboxes import MOST_UNREAD
from callboard.types import events as ev
from callboard.types import steps as st
from callboard.types.records import Envelope, ToolCall

SOAK = int(os.environ.get("SOAK", "1"))


@settings(max_examples=200 * SOAK)
@given(draw.lists(draw.tuples(draw.integers(1, 40), draw.floats(0, 600)), max_size=60))
def test_no_sequence_of_sends_passes_the_bound(attempts: list[tuple[int, float]]) -> None:
    counts = MailCounts()
    now = sent = 0.0
    for messages, seconds in attempts:
        now += seconds
        passed = min(messages, limits.allowed_messages(counts, now - counts.at))
        counts = limits.after_sending(counts, passed, now)
        sent += passed
        assert sent <= BURST + now / 60 * PER_MINUTE + 1e-3


@settings(max_examples=50 * SOAK)
@given(draw.lists(draw.floats(60 / PER_MINUTE, 3_600), min_size=1, max_size=400))
def test_a_steady_reporter_may_always_send(pauses: list[float]) -> None:
    counts, now = MailCounts(), 0.0
    for pause in pauses:
        now += pause
        assert limits.allowed_messages(counts, now - counts.at) >= 1
        counts = limits.after_sending(counts, 1, now)


def received(arrivals: list[float]) -> tuple[list[float], int]:
    """The moments at which messages of one agent, that come at these moments, wake a receiver that is idle at once
    again, and the most that lie unread."""
    counts, unread, most = MailCounts(), 0, 0
    wakes: list[float] = []
    due = math.inf
    for arrival in [*arrivals, math.inf]:
        if due <= arrival and unread:
            wakes.append(due)
            counts = limits.after_wake(counts, message(1), due)
            unread = 0
        if arrival < math.inf:
            unread += 1
            most = max(most, unread)
            due = arrival + limits.seconds_muted(counts, arrival - counts.at, message(1))
    return wakes, most


@settings(max_examples=50 * SOAK)
@given(draw.lists(draw.floats(60 / PER_MINUTE, 600), min_size=1, max_size=400))
def test_a_steady_reporter_is_read_within_a_minute_and_never_refused(pauses: list[float]) -> None:
    arrivals = list(itertools.accumulate(pauses))
    wakes, most = received(arrivals)
    assert most < MOST_UNREAD, "no message is refused by a mailbox that is full of them"
    for arrival in arrivals:
        assert min(wake for wake in wakes if wake >= arrival) <= arrival + 60 / WAKES_PER_MINUTE + 1e-3


@settings(max_examples=50 * SOAK)
@given(draw.lists(draw.floats(0, 30), min_size=1, max_size=600))
def test_no_sequence_of_messages_wakes_more_often_than_the_bound(pauses: list[float]) -> None:
    wakes, _ = received(list(itertools.accumulate(pauses)))
    assert all(count <= MOST_WAKES + at / 60 * WAKES_PER_MINUTE + 1e-3 for count, at in enumerate(wakes, start=1))


@settings(max_examples=30 * SOAK)
@given(draw.integers(3, 200), draw.floats(0.05, 5))
def test_a_flood_is_denied_until_it_counts_as_stuck(messages: int, seconds: float) -> None:
    """Replies of so many messages, so far apart, none of which another call pays for."""
    counts, now, unsent = MailCounts(), 0.0, 0
    for _ in range(3_000):
        now += seconds
        passed = min(messages, limits.allowed_messages(counts, now - counts.at))
        counts = limits.after_sending(counts, passed, now)
        unsent = max(0, unsent + messages - 2 * passed)
        if unsent >= MOST_UNSENT:
            break
    assert unsent >= MOST_UNSENT


def test_after_a_flood_nothing_passes_for_an_hour() -> None:
    counts = limits.after_flood(MailCounts(), "mail", 0.0)
    assert limits.allowed_messages(counts, 60 * PENALTY) == 0
    assert "in 61 min" in limits.denied_words(counts, 0.0)
    assert limits.allowed_messages(counts, (PENALTY + 1) * 60) == PER_MINUTE


@pytest.mark.parametrize("jump", [-86_400.0, 86_400.0])
def test_a_clock_that_is_set_grants_no_more_than_is_free_and_takes_nothing_for_long(jump: float) -> None:
    counts = limits.after_sending(MailCounts(), BURST, 1_000_000.0)
    counts = limits.after_sending(counts, 1, 1_000_060.0 + jump)
    assert BURST - 1 <= limits.allowed_messages(counts, 600.0) <= BURST
    woken_to = MailCounts(at=1_000_000.0, wakes={"bob": MOST_WAKES})
    woken_to = limits.after_wake(woken_to, message(1), 1_000_060.0 + jump)
    assert limits.seconds_muted(woken_to, 60.0, message(2)) == 0


def proposed(messages: int) -> Life:
    """A reply with so many messages and a new file."""
    names = [*["send_message"] * messages, "write_file"]
    calls = [ToolCall(id=f"c{n}", use_id=f"u{n}", name=name, input={"to": "lead"}) for n, name in enumerate(names)]
    blocks = [{"type": "tool_use", "id": one.use_id, "name": one.name, "input": one.input} for one in calls]
    return Life.begun().prompted("go").replied(*blocks, stop="tool_use", calls=calls)


def test_the_messages_of_a_reply_that_are_too_many_are_denied_and_the_rest_is_not() -> None:
    step = decide(proposed(BURST + 3).state, facts())
    assert isinstance(step, st.Skip)
    assert (step.calls, step.by) == (tuple(f"c{n}" for n in range(BURST, BURST + 3)), BY_LIMIT)
    assert "one message" in step.why
    assert isinstance(decide(proposed(BURST).state, facts()), st.CheckPermissions)


def planned(tasks: int) -> Life:
    """A reply that creates so many tasks."""
    calls = [ToolCall(id=f"c{n}", use_id=f"u{n}", name="create_task", input={"subject": f"{n}"}) for n in range(tasks)]
    blocks = [{"type": "tool_use", "id": one.use_id, "name": one.name, "input": one.input} for one in calls]
    return Life.begun().prompted("go").replied(*blocks, stop="tool_use", calls=calls)


def test_the_tasks_of_a_reply_that_are_too_many_are_denied() -> None:
    step = decide(planned(BURST + 3).state, facts())
    assert isinstance(step, st.Skip)
    assert (step.calls, step.by) == (tuple(f"c{n}" for n in range(BURST, BURST + 3)), BY_TASK_LIMIT)
    assert "few larger tasks" in step.why
    assert isinstance(decide(planned(BURST).state, facts()), st.CheckPermissions)


@settings(max_examples=200 * SOAK)
@given(draw.lists(draw.tuples(draw.integers(1, 40), draw.floats(0, 600)), max_size=60))
def test_no_sequence_of_new_tasks_passes_the_bound(attempts: list[tuple[int, float]]) -> None:
    counts = MailCounts()
    now = created = 0.0
    for tasks, seconds in attempts:
        now += seconds
        passed = min(tasks, limits.allowed_tasks(counts, now - counts.at))
        counts = limits.after_creating(counts, passed, now)
        created += passed
        assert created <= BURST + now / 60 * PER_MINUTE + 1e-3


def test_after_a_flood_of_tasks_none_is_created_for_an_hour_and_mail_passes() -> None:
    counts = limits.after_flood(MailCounts(), "tasks", 0.0)
    assert limits.allowed_tasks(counts, 60 * PENALTY) == 0
    assert limits.allowed_messages(counts, 0.0) == BURST
    assert limits.allowed_tasks(counts, (PENALTY + 1) * 60) == PER_MINUTE


def message(number: int, sender: str = "bob", **fields: Any) -> Envelope:
    about = {"id": f"env_{number}", "sender": sender, "recipient": "alice", "type": "message", "content": "x"}
    return Envelope.model_validate({**about, "seq": number, **fields})


def woken(life: Life, number: int, **fields: Any) -> Life:
    """A turn that an envelope begins, to its end; without the right to wake it only arrives."""
    life = life.on(ev.EnvelopeReceived, envelope=message(number, **fields))
    step = decide(life.state, facts(now=life.state.inbox.counts.at))
    if not isinstance(step, st.BeginTurn):
        return life
    return life.turned(step.cause).delivered().said("I see.").on(ev.TurnEnded, turn="t", reason="end", text="")


def exhausted() -> Life:
    """An agent that messages of bob have woken as often as they may, with three more that lie unread."""
    life = Life.begun()
    number = 0
    while len(life.state.inbox.mail) < 3:
        number += 1
        life = woken(life, number)
    return life


def test_messages_of_one_agent_wait_for_their_right_to_wake_while_other_mail_wakes() -> None:
    life = exhausted()
    assert MOST_WAKES <= life.state.turns.count < 2 * MOST_WAKES
    assert woken(life, 900, sender="carol").state.inbox.mail == (), (
        "each sender counts by itself, and all is read with it"
    )
    spoken = woken(life, 901, sender="person", type="prompt", cause="person")
    assert spoken.state.inbox.mail == (), "all that waited is read with it"
    assert woken(spoken, 902).state.turns.count == life.state.turns.count + 2


def test_the_wait_for_the_right_to_wake_ends_though_nothing_happens_and_whatever_the_clock_says() -> None:
    life = exhausted()
    first = life.state.inbox.mail[0].id
    for now in (1_000.0, 2_000_000_000.0):
        step = decide(life.state, facts(now=now, mail_seconds=10.0))
        assert isinstance(step, st.Wait)
        assert step.until is not None
        assert now < step.until <= now + 60 / WAKES_PER_MINUTE
        later = 10.0 + step.until - now
        assert decide(life.state, facts(now=now, mail_seconds=later)) == st.BeginTurn(first)


def test_a_task_of_the_board_is_taken_while_messages_wait() -> None:
    step = decide(exhausted().state, facts(claimable="t1"))
    assert step == st.ClaimTask("t1")


@pytest.mark.parametrize("fields", [{"type": "result"}, {"mode": "queue"}, {"sender": "runtime"}, {"type": "error"}])
def test_other_mail_counts_for_nothing(fields: dict[str, Any]) -> None:
    counts = MailCounts()
    assert limits.after_wake(counts, message(1, **{"sender": "bob", **fields}), 1.0) == counts

"""The mail rule in a replay: what was delivered then, in its batches and turns, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.agent.agent_states import Life, facts

from callboard.core.agent.decide import decide
from callboard.core.agent.state import Delivery, ExpectedDeliveries, Facts
from callboard.types import events as ev
from callboard.types import steps as st

UNTIL = 120.0


def script(*deliveries: Delivery, **more: Any) -> Facts:
    """Facts at 100 s, with a recording that holds until 120 s."""
    return facts(expected=ExpectedDeliveries(deliveries, UNTIL), **more)


def new_turn(*ids: str) -> Delivery:
    return Delivery(ids, begins_turn=True)


def same_turn(*ids: str) -> Delivery:
    return Delivery(ids, begins_turn=False)


def idle_with(*texts: str, **fields: Any) -> Life:
    life = Life.begun()
    for text in texts:
        life = life.mailed(text, **fields)
    return life


def test_without_a_recording_all_mail_comes_together() -> None:
    life = idle_with("a", "b").turned()
    assert decide(life.state, facts()) == st.Deliver(("env_1", "env_2"))


def test_only_what_was_delivered_then_is_delivered_in_its_order() -> None:
    life = idle_with("a", "b", "c")
    recorded = script(new_turn("env_3", "env_1"))
    assert decide(life.state, recorded) == st.BeginTurn("env_3")
    assert decide(life.turned().state, recorded) == st.Deliver(("env_3", "env_1"))


def test_each_delivery_is_made_again_for_itself() -> None:
    life = idle_with("a", "b").turned()
    assert decide(life.state, script(new_turn("env_1"), same_turn("env_2"))) == st.Deliver(("env_1",))
    heard = life.delivered("env_1")
    assert heard.state.inbox.deliveries == 1
    assert decide(heard.state, script(same_turn("env_2"))) == st.Deliver(("env_2",))
    assert isinstance(decide(heard.state, script()), st.AskModel), "the rest comes later"


def test_a_call_counts_and_begins_the_deliveries_anew() -> None:
    life = idle_with("a").turned().delivered("env_1")
    called = life.on(ev.ModelCalled, ordinal=1, attempt=1, model="one", max_tokens=8)
    assert (life.state.model.turn_calls, life.state.inbox.deliveries) == (0, 1)
    assert (called.state.model.turn_calls, called.state.inbox.deliveries) == (1, 0)


def test_dropped_mail_counts_as_a_delivery() -> None:
    life = idle_with("a").turned().on(ev.EnvelopesDropped, ids=("env_1",), why="a hook")
    assert (life.state.inbox.deliveries, life.state.inbox.mail) == (1, ())


def test_in_a_turn_it_waits_for_what_has_not_come_yet() -> None:
    life = idle_with("a").turned().delivered("env_1")
    assert decide(life.state, script(same_turn("env_9"))) == st.Wait(UNTIL, "recorded mail")


def test_a_turn_begins_when_all_that_came_before_its_first_call_is_there() -> None:
    recorded = script(new_turn("env_1"), same_turn("env_claim"), new_turn("env_9"))
    life = Life.begun(claims_tasks=True).mailed("a")
    assert decide(life.state, recorded) == st.Wait(UNTIL, "recorded mail")
    free = script(new_turn("env_1"), same_turn("env_claim"), claimable="task_1")
    assert decide(life.state, free) == st.ClaimTask("task_1")
    assert decide(life.mailed("b", id="env_claim").state, recorded) == st.BeginTurn("env_1")


def test_half_a_delivery_is_not_delivered() -> None:
    life = idle_with("a", "b").turned().delivered("env_1")
    assert decide(life.state, script(same_turn("env_2", "env_9"))) == st.Wait(UNTIL, "recorded mail")


def test_what_began_a_turn_waits_for_the_end_of_this_one() -> None:
    life = idle_with("a", "b").turned().delivered("env_1")
    assert isinstance(decide(life.state, script(new_turn("env_2"))), st.AskModel)


def test_an_idle_agent_without_mail_just_rests() -> None:
    assert decide(Life.begun().state, script(new_turn("env_9"))) == st.Wait(None, "idle")


@pytest.mark.parametrize("deliveries", [(), (new_turn("env_9"),)])
def test_an_idle_agent_leaves_other_mail_alone_for_a_while(deliveries: tuple[Delivery, ...]) -> None:
    life = idle_with("a")
    assert decide(life.state, script(*deliveries)) == st.Wait(UNTIL, "recorded mail")
    assert decide(life.state, script(*deliveries, now=UNTIL)) == st.BeginTurn("env_1")


def test_queued_mail_that_was_never_delivered_keeps_nobody_waiting() -> None:
    assert decide(idle_with("a", mode="queue").state, script()) == st.Wait(None, "idle")


def test_when_it_was_waited_for_in_vain_a_turn_goes_on() -> None:
    life = idle_with("a", "b").turned().delivered("env_1")
    assert decide(life.state, script(same_turn("env_9"), now=UNTIL)) == st.Deliver(("env_2",))
    alone = idle_with("a").turned().delivered("env_1")
    assert isinstance(decide(alone.state, script(same_turn("env_9"), now=UNTIL)), st.AskModel)


def test_a_task_that_was_taken_brings_its_mail_though_other_mail_waits() -> None:
    life = Life.begun(claims_tasks=True).mailed("a")
    assert decide(life.state, script(new_turn("env_claim"), claimable="task_1")) == st.ClaimTask("task_1")


def test_mail_that_came_after_a_reminder_of_open_tasks_waits_for_the_reminder() -> None:
    """Both stand in one message: in the other order the request would be another."""
    life = Life.begun().on(ev.TaskHeld, task="task_1", subject="One").prompted("Go").said("Done.").mailed("Hi")
    after = Delivery(("env_2",), begins_turn=False, reminded=True)
    assert decide(life.state, script(same_turn("env_2"))) == st.Deliver(("env_2",))
    step = decide(life.state, script(after))
    assert isinstance(step, st.RemindTasks)
    reminded = life.on(ev.TasksReminded, tasks=step.tasks).on(ev.InjectionsDelivered, blocks=())
    assert decide(reminded.state, script(after)) == st.Deliver(("env_2",))

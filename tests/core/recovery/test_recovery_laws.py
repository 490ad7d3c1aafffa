"""Laws of recovery, over random faults and successes: each call ends, counters go back, a crash changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as hy
from tests.core.agent.agent_states import Life, facts
from tests.core.recovery.failures import FINAL, NOW, TRANSIENT, failed, spec

from callboard.core.agent.decide import MODEL, decide
from callboard.core.recovery import retry_policy as rec
from callboard.core.recovery.retry_policy import RecoveryState, recover
from callboard.types import events as ev
from callboard.types.agent_spec import ModelLimits
from callboard.types.operations import Operation
from callboard.types.records import Fault
from callboard.types.steps import AskModel, Continue, EndTurn, PlanRetry, React, Step, SwitchModel, Wait

# Whatever happens


HAPPENINGS = hy.lists(hy.sampled_from([*TRANSIENT, *FINAL, "lost", "too_long", "ok", "cut", "pause_turn"]), max_size=40)


def bounded(attempts: int, models: int) -> int:
    """Failed tries that one call may have before it ends in something else: those of each model."""
    return attempts * models


@given(HAPPENINGS, hy.integers(1, 5), hy.integers(0, 2), hy.floats(0, 1), hy.booleans())
def test_each_call_ends_after_a_bounded_number_of_attempts_and_the_counters_go_back(
    happenings: list[str], attempts: int, fallbacks: int, draw: float, refuses: bool
) -> None:
    """A driver that does what recovery says. Parking and lost calls are no attempts."""
    me = spec(attempts=attempts, fallback_models=("two", "three")[:fallbacks])
    state, tries, now = RecoveryState(), 0, NOW
    for what in happenings:
        if what in ("ok", "cut", "pause_turn"):
            state, tries = rec.on_reply(state, cut=what == "cut", paused=what == "pause_turn"), 0
            assert (state.attempts, state.tried, state.overloads_in_a_row) == (0, 0, 0)
            assert (state.first_failed_at, state.waiting_until, state.parked) == (0.0, 0.0, False)
            if isinstance(rec.after_pause(state), EndTurn):
                state = rec.on_turn_end(state)
            continue
        fault = failed(what, at=now, draw=draw, retry=False if refuses and what in TRANSIENT else None)
        tries += what not in ("lost", "too_long")
        state = rec.on_failed(state, fault)
        step = recover(fault, state, me, now=now)
        assert state.attempts <= attempts
        assert tries == state.tried <= bounded(attempts, 1 + fallbacks)
        match step:
            case PlanRetry():
                waited = step.until - fault.at
                assert waited == 0.0 if what == "lost" else 0.5 <= waited <= 32.0 * 1.25
                state, now = rec.on_retry(state, step.until, step.parked), step.until
            case SwitchModel():
                assert (
                    step.model in me.fallback_models[me.fallback_models.index(state.model) + 1 if state.model else 0 :]
                )
                state = rec.on_switched(state, step.model)
                assert (state.attempts, rec.model_in_use(state, me)) == (0, step.model)
            case React():
                assert what == "too_long"
                assert not state.reacted
                state = RecoveryState(reacted=True, model=state.model, tried=state.tried, attempts=state.attempts)
            case _:
                assert isinstance(step, EndTurn)
                assert step.why
                state, tries = rec.on_turn_end(state), 0
                assert state == RecoveryState(), "the next turn begins with the first model"


ANSWERS = hy.lists(
    hy.sampled_from([*TRANSIENT, "not_found", "lost", "ok", "cut", "pause_turn", "parked", "compaction"]), max_size=25
)


class Course:
    """An agent's calls, played by the rules: what `decide` asks for is recorded, answer by answer."""

    def __init__(self, answers: Iterable[str], events: Iterable[ev.Event] = ()) -> None:
        self.answers = list(answers)
        models = {"one": ModelLimits(max_output=16_000)}
        self.life = Life.begun("lead", fallback_models=("two",), models=models, stuck_after=0)
        self.life = self.life.prompted("go")
        self.begun = len(self.life.events)
        for event in list(events)[self.begun :]:
            self.life = self.life.again(event)

    def play(self, now: float) -> None:
        """To the end of the answers or of the turn."""
        while self.life.state.turn is not None:
            running = {MODEL} if self.life.state.model.call else set[Operation]()
            step = decide(self.life.state, facts(now, running=frozenset(running)))
            if isinstance(step, Wait) and step.awaited == "rate":
                assert step.until is not None
                now = step.until
                continue
            if isinstance(step, Wait):
                if not self.answers:
                    return
                self.answer(self.answers.pop(0), now)
                continue
            if isinstance(step, AskModel):
                made = {"ordinal": step.ordinal, "attempt": step.attempt, "model": step.model}
                self.life = self.life.on(ev.ModelCalled, at=now, max_tokens=step.max_tokens, **made)
                continue
            self.decided(step, now)

    def decided(self, step: Step, now: float) -> None:
        match step:
            case PlanRetry():
                told = {"until": step.until, "attempt": step.attempt, "parked": step.parked, "why": step.why}
                self.life = self.life.on(ev.RetryPlanned, at=now, **told)
            case SwitchModel():
                told = {"model": step.model, "why": step.why, "skipped": step.skipped}
                self.life = self.life.on(ev.ModelSwitched, at=now, **told)
            case Continue():
                self.life = self.life.on(ev.ContinuationAsked, at=now, count=step.count)
            case _:
                assert isinstance(step, EndTurn), step
                turn = self.life.state.turn
                assert turn is not None
                self.life = self.life.on(ev.TurnEnded, at=now, turn=turn.id, reason=step.reason, why=step.why)

    def answer(self, what: str, now: float) -> None:
        call = self.life.state.model.call
        assert call is not None
        if what in ("ok", "cut", "pause_turn", "compaction"):
            stop = {"ok": "end_turn", "cut": "max_tokens"}.get(what, what)
            text = {"type": "text", "text": f"words of call {call.ordinal}"}
            self.life = self.life.replied(text, stop=stop, model=call.model, at=now)
            return
        kind = "rate_limited" if what == "parked" else what
        fault = Fault.model_validate({"kind": kind, "message": "said", "retry_after": 90 if what == "parked" else None})
        made = {"ordinal": call.ordinal, "attempt": call.attempt, "model": call.model, "draw": 0.5}
        self.life = self.life.on(ev.CallFailed, at=now, fault=fault, **made)


@given(ANSWERS, hy.data())
def test_after_a_crash_at_any_record_all_goes_on_as_it_would_have(answers: list[str], data: hy.DataObject) -> None:
    """The state is folded from what was written; the time is that of the crash: a back-off is waited out to its end."""
    whole = Course(answers)
    whole.play(NOW)
    events = whole.life.events
    cut = data.draw(hy.integers(whole.begun, len(events)))
    written = [ev.decode_event(event.encode()) for event in events[:cut]]
    heard = sum(isinstance(one, ev.ModelReplied | ev.CallFailed) for one in written[whole.begun :])
    again = Course(answers[heard:], written)
    assert again.life.state.model.recovery == folded(events[:cut]).model.recovery
    again.play(written[-1].at if cut > whole.begun else NOW)
    assert again.life.events == events


def folded(events: Iterable[ev.Event]) -> Any:
    life = Life()
    for event in events:
        life = life.again(event)
    return life.state


def test_a_crash_in_a_back_off_waits_for_what_is_left_of_it() -> None:
    life = Life.begun("lead").prompted("go").asked()
    life = life.on(ev.CallFailed, at=NOW, ordinal=1, attempt=1, model="one", fault=Fault(kind="server"), draw=0.0)
    step = decide(life.state, facts(NOW))
    assert isinstance(step, PlanRetry)
    life = life.on(ev.RetryPlanned, at=NOW, until=step.until, attempt=step.attempt, why=step.why)
    state = folded(ev.decode_event(event.encode()) for event in life.events)
    assert decide(state, facts(NOW + 0.3)) == Wait(NOW + 0.5, "rate")
    due = decide(state, facts(NOW + 0.5))
    assert isinstance(due, AskModel)
    assert due.attempt == 2

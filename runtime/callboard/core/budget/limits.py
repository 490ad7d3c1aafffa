"""What stops the next model call: limits of the turn, and budgets that it does not fit into. Pure.

A call fits a budget when the worst that it may cost fits: its whole input at the dearer of the prices for reading and
for writing it to the cache, and all the output that is asked for; and when behind it there is still room for a last
call of `LAST_OUTPUT` tokens, in which the agent says what is done and what is left.

    it fits                              the call
    it fits with less output             the call, asking for as much as fits (`LEAST_OUTPUT` at least)
    it would, if the calls in flight
    came to nothing                      wait until one of them is over
    it does not, the last call does      `ReachBudget`, then the last call, with no tool run, then the end of the turn
    the last call does not fit either,
    or was made for that budget          `ReachBudget`, then the end of the turn
"""

from __future__ import annotations

from dataclasses import dataclass

from callboard.core.budget.tree import Amount, Path, Refusal, deadline, fits, left
from callboard.core.context.view.conversation import size
from callboard.core.recovery.turns import model_in_use, output_limit
from callboard.core.state import AgentState, Facts
from callboard.words import steps as st
from callboard.words.specs import AgentSpec, ModelLimits

LAST_OUTPUT = 1_000
"""Output tokens of the last call that a used-up budget allows."""
LEAST_OUTPUT = 1_000
"""Output tokens that a call asks for at least, where a budget does not allow what it would ask for otherwise. With less
a reply is mostly cut, and a tool call that is cut never runs."""
REMINDER = 300
"""Tokens of the words that ask for the last call, counted high."""
BUDGET = "budget"
"""What a call waits for that fits as soon as others are over."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call that may be made. `worst`: what is held back for it; None where no budget holds."""

    max_tokens: int
    worst: Amount | None = None
    last: bool = False


def limit_reached(state: AgentState, facts: Facts) -> str:
    """Which limit ends the turn before the next model call; empty when none does. 0 means none."""
    turn, limits = state.turn, state.me.limits
    if turn is None:
        return ""
    if turn.winding_down:
        return turn.winding_down
    if limits.steps is not None and turn.steps >= limits.steps:
        return f"the limit of {limits.steps} model steps in a turn is reached"
    tokens = turn.usage.prompt_tokens + turn.usage.output_tokens
    if limits.tokens is not None and tokens >= limits.tokens:
        return f"the limit of {limits.tokens:,} tokens in a turn is reached"
    if limits.cost_usd is not None and turn.usage.cost_usd >= limits.cost_usd:
        return f"the limit of ${limits.cost_usd:.2f} in a turn is reached"
    return ""


def next_call(state: AgentState, facts: Facts) -> Call | st.Step:
    """The call that the turn's limits and the budgets allow now, or what is to be done instead."""
    turn = state.turn
    assert turn is not None, "calls are made in turns"
    reached = limit_reached(state, facts)
    if reached and not turn.last_call:
        return st.EndTurn("limit", reached)
    planned = planned_call(state, facts.budgets, facts.now)
    if isinstance(planned, Call):
        return planned
    if planned.waits:
        return st.Wait(_next_time(state, facts), BUDGET)
    if turn.last_call:
        return st.EndTurn("limit", reached)
    return st.ReachBudget(
        budget=planned.budget,
        kind=planned.kind,
        limit=planned.limit,
        spent=planned.spent,
        wanted=planned.wanted,
        winds_down=_may_wind_down(state, facts, planned),
    )


def planned_call(state: AgentState, budgets: Path, now: float) -> Call | Refusal:
    """The next call of an agent by its budgets, or why there is none. `budgets`: its path, empty where none holds."""
    if state.turn is not None and state.turn.winding_down:
        return _last_call(state, budgets, now)
    wanted = output_limit(state.recovery, state.me)
    if not budgets:
        return Call(wanted)
    limits, tokens = _model(state), size(state.conversation)
    room = worst_case(limits, tokens + REMINDER, LAST_OUTPUT)
    output = min(wanted, _affordable(budgets, now, limits, worst_case(limits, tokens, 0).plus(room)))
    output = max(output, min(LEAST_OUTPUT, wanted))
    worst = worst_case(limits, tokens, output)
    return fits(budgets, worst.plus(room), now) or Call(output, worst)


def worst_case(limits: ModelLimits, tokens: int, output: int) -> Amount:
    """The most that one call of so many input and output tokens may use."""
    dearest = max(limits.price_input, limits.price_write, limits.price_read)
    price = (tokens * dearest + output * limits.price_output) * limits.factor(_counted_high(tokens))
    return Amount(tokens + output, price / 1_000_000, 1)


def _counted_high(tokens: int) -> int:
    """A prompt that the service may count as longer than we do is charged as a long one before it is one."""
    return tokens + tokens // 10


def used_up_key(budget: str, kind: str, limit: float) -> str:
    """What tells one budget that is used up from another, or from itself once somebody raised it."""
    return f"{budget} {kind} {limit:g}"


def last_words_asked(why: str) -> str:
    """What the model is told before its last call."""
    return (
        f"This is your last reply: {why}. No tool will run any more, whatever you call. Say in a few sentences what is "
        "done, what is left, and what whoever goes on must know."
    )


def out_of_time(spec: AgentSpec) -> str:
    """What a turn says that its time limit ended."""
    return f"the time limit of a turn ({spec.limits.seconds:g} s) is reached"


def time_is_up(state: AgentState, facts: Facts) -> st.Step | None:
    """How a turn ends whose time is up, its own or a budget's; None while there is some left.

    A turn that has not taken its mail yet takes it first: what woke an agent must not wake it again and again.
    """
    turn, seconds = state.turn, state.me.limits.seconds
    if turn is None or not (turn.wakes or turn.steps):
        return None
    if seconds is not None and facts.now - turn.began_at >= seconds:
        return st.EndTurn("limit", out_of_time(state.me))
    end = deadline(facts.budgets)
    if end is None or facts.now < end:
        return None
    return st.EndTurn("limit", turn.winding_down) if turn.winding_down else _too_late(facts)


def _next_time(state: AgentState, facts: Facts) -> float | None:
    """When time alone ends the wait."""
    turn, seconds = state.turn, state.me.limits.seconds
    ends = [deadline(facts.budgets), turn.began_at + seconds if turn and seconds is not None else None]
    return min((end for end in ends if end is not None and end > facts.now), default=None)


def _too_late(facts: Facts) -> st.ReachBudget:
    timed = [node for node in facts.budgets if node.budget.seconds is not None]
    node = min(timed, key=lambda one: one.began_at + (one.budget.seconds or 0))
    return st.ReachBudget(node.name, "seconds", node.budget.seconds or 0, facts.now - node.began_at, 0)


def _last_call(state: AgentState, budgets: Path, now: float) -> Call | Refusal:
    limits = _model(state)
    output = min(LAST_OUTPUT, limits.max_output)
    worst = worst_case(limits, size(state.conversation), output)
    if not budgets:
        return Call(output, last=True)
    return fits(budgets, worst, now) or Call(output, worst, last=True)


def _may_wind_down(state: AgentState, facts: Facts, refused: Refusal) -> bool:
    """A last call fits, as soon as others are over, and this budget has not had one yet."""
    if state.wound_down == used_up_key(refused.budget, refused.kind, refused.limit):
        return False
    limits = _model(state)
    worst = worst_case(limits, size(state.conversation) + REMINDER, min(LAST_OUTPUT, limits.max_output))
    found = fits(facts.budgets, worst, facts.now)
    return found is None or found.waits


def _affordable(budgets: Path, now: float, limits: ModelLimits, rest: Amount) -> int:
    """Output tokens for which there is room beside `rest`, once no other call is in flight."""
    free = left(budgets, now, in_flight=False)
    found = [] if free.tokens is None else [free.tokens - rest.tokens]
    if free.cost_usd is not None and limits.price_output > 0:
        price = limits.price_output * limits.factor(limits.window)  # the dearer one, whatever the prompt
        found.append(int((free.cost_usd - rest.cost_usd) * 1_000_000 / price))
    return max(0, min(found, default=limits.max_output))


def _model(state: AgentState) -> ModelLimits:
    return state.me.limits_of(model_in_use(state.recovery, state.me))

"""Rules that stop the next model call: limits of the turn, and budgets that the call would exceed. Pure.

A call fits a budget if its highest possible cost fits: its whole input at the higher of the prices for reading and for
writing it to the cache, and all the requested output; and if there is still room for a last call of `LAST_OUTPUT`
tokens, in which the agent reports finished and unfinished work, and for the last calls of the agents above it
(`last_call_room`). The prompt of a last call is longer: the reply and the results of its tools are added. They are
expected to be as long as the newest results, `RESULTS` tokens at least. If they are longer, the last call has less
output, `LEAST_LAST_OUTPUT` at least.

    budget                               result
    -----------------------------------  ------------------------------------------------------------------------------
    the call fits                        the call
    it fits with less output             the call, with as much output as fits (`LEAST_OUTPUT` at least)
    it would fit if the calls in         a wait for the end of one of them
    flight cost nothing
    only the last call fits              `ReachBudget`, then the last call, without its tools, then the end of the turn
    the last call does not fit, or was   `ReachBudget`, then the end of the turn
    already made for that budget
"""

from __future__ import annotations

from callboard.core.agent.state import AgentState, Facts, Turn
from callboard.core.budgets.tree import NOTHING, Amount, BudgetRefusal, Path, deadline, fits, remaining_budget
from callboard.core.context.view.conversation import Conversation, size
from callboard.core.keys import count_words
from callboard.core.recovery.retry_policy import model_in_use, output_limit
from callboard.types import steps as st
from callboard.types.agent_spec import AgentSpec, ModelLimits
from callboard.types.lazy_dataclass import dataclass

LAST_OUTPUT = 1_000
"""Output tokens of the last call that a used-up budget allows."""
LEAST_OUTPUT = 1_000
"""Least output tokens that a call requests if a budget does not allow the usual number. With less, most replies are
cut, and a tool call that is cut never runs."""
LEAST_LAST_OUTPUT = 200
"""Least output tokens of the last call: enough for a sentence or two."""
RESULTS = 1_000
"""Least tokens of tool results that are expected of a call."""
REMINDER = 300
"""Upper estimate of the tokens of the text that announces the last call."""


@dataclass(frozen=True, slots=True)
class CallAllowance:
    """Call that may be made. `worst`: its reservation; None without a budget."""

    max_tokens: int
    worst: Amount | None = None
    last: bool = False


def limit_reached(state: AgentState, facts: Facts) -> st.EndTurn | None:
    """Return the end of the turn if a limit stops its next model call. A limit of 0 allows no call."""
    turn = state.turn
    limits = state.me.limits
    if turn is None:
        return None
    if turn.winding_down:
        return st.EndTurn("limit", turn.winding_down, turn.winding_limit)
    if limits.steps is not None and turn.steps >= limits.steps:
        reason = f"the limit of {count_words(limits.steps, 'model step')} in a turn is reached"
        return st.EndTurn("limit", reason, "turn_steps")
    if limits.tokens is not None and turn.usage.prompt_tokens + turn.usage.output_tokens >= limits.tokens:
        reason = f"the limit of {count_words(limits.tokens, 'token')} in a turn is reached"
        return st.EndTurn("limit", reason, "turn_tokens")
    if limits.cost_usd is None:
        return None
    if not _model(state).priced:
        reason = f"the limit of ${limits.cost_usd:.2f} in a turn needs a model whose price is known"
        return st.EndTurn("limit", reason, "turn_cost")
    if turn.usage.cost_usd >= limits.cost_usd:
        return st.EndTurn("limit", f"the limit of ${limits.cost_usd:.2f} in a turn is reached", "turn_cost")
    return None


def next_call(state: AgentState, facts: Facts) -> CallAllowance | st.Step:
    """Return the call that the turn's limits and the budgets allow now, or the step to take instead."""
    turn = state.turn
    assert turn is not None, "calls are made in turns"
    reached = limit_reached(state, facts)
    if reached and not turn.last_call:
        return reached
    planned = planned_call(state, facts.budgets, facts.awake)
    if isinstance(planned, CallAllowance):
        return planned
    if planned.waits:  # it fits its budget once other calls have ended
        return st.Wait(end_of_time(state, facts), "budget")
    if reached:  # the last call of a used-up budget no longer fits
        return reached
    return st.ReachBudget(
        budget=planned.budget,
        kind=planned.kind,
        limit=planned.limit,
        spent=planned.spent,
        wanted=planned.wanted,
        winds_down=_may_wind_down(state, facts, planned),
    )


def planned_call(state: AgentState, budgets: Path, now: float) -> CallAllowance | BudgetRefusal:
    """Return the next call of an agent that its budgets allow, or the refusal.

    `budgets`: its path; empty without a budget.
    """
    if state.turn is not None and state.turn.winding_down:
        return _last_call(state, budgets, now)
    full_output = output_limit(state.model.recovery, state.me)
    if not budgets:
        return CallAllowance(full_output)
    limits = _model(state)
    tokens = size(state.context.conversation)
    later = tokens + REMINDER + _results_expected(state.context.conversation)
    reserve = worst_case(limits, tokens, 0).plus(worst_case(limits, later, LAST_OUTPUT))
    output = min(full_output, _affordable(budgets, now, limits, reserve, read_again=True))
    output = max(output, min(LEAST_OUTPUT, full_output))
    worst = worst_case(limits, tokens, output)
    room = worst_case(limits, later + output, LAST_OUTPUT)
    return fits(budgets, worst.plus(room), now) or CallAllowance(output, worst)


def worst_case(limits: ModelLimits, tokens: int, output: int) -> Amount:
    """Return the highest possible usage of one call with this many input and output tokens."""
    if not limits.priced:
        return Amount(tokens + output, 0.0, 1, priced=False)
    dearest = max(limits.price_input, limits.price_write, limits.price_read)
    price = (tokens * dearest + output * limits.price_output) * limits.factor(_counted_high(tokens))
    return Amount(tokens + output, price / 1_000_000, 1)


def _counted_high(tokens: int) -> int:
    """Return an upper estimate of the tokens.

    A prompt that the service may count as long is then charged as a long one.
    """
    return tokens + tokens // 10


def used_up_key(budget: str, kind: str, limit: float) -> str:
    """Return the key that distinguishes used-up budgets.

    The key differs from those of other budgets, and from that of the same budget with a raised limit.
    """
    return f"{budget} {kind} {limit:g}"


def last_call_prompt(reason: str) -> str:
    """Return the text that the model gets before its last call."""
    return (
        f"This is your last reply: {reason}. No tool will run any more, whatever you call. Say in a few sentences what "
        "is done, what is left, and what the next worker must know."
    )


def out_of_time(spec: AgentSpec) -> str:
    """Return the reason for a turn that its time limit ended."""
    return f"the time limit of a turn ({spec.limits.seconds:g} s) is reached"


def time_is_up(state: AgentState, facts: Facts) -> st.Step | None:
    """Return the step that ends a turn whose time is over, by its own limit or a budget's; None while time is left.

    A turn that has not delivered its mail yet delivers it first; otherwise the same mail would wake the agent again and
    again.
    """
    turn = state.turn
    if turn is None or not (turn.wakes or turn.steps):
        return None
    end = _end_of_turn(turn, state.me, facts)
    if end is not None and facts.awake >= end:
        return st.EndTurn("limit", out_of_time(state.me), "turn_seconds")
    end = deadline(facts.budgets) if facts.budgets else None
    if end is None or facts.awake < end:
        return None
    if turn.winding_down:
        return st.EndTurn("limit", turn.winding_down, turn.winding_limit)
    return _too_late(facts)


def end_of_time(state: AgentState, facts: Facts) -> float | None:
    """Return the next time (Unix seconds) at which a time limit ends the turn; None without one.

    It is correct while the machine is awake and its clock is not set. A waiting caller decides again then.
    """
    if state.turn is None:
        return None
    ends = [end for end in (deadline(facts.budgets), _end_of_turn(state.turn, state.me, facts)) if end is not None]
    # A past time has been decided already; waiting for it would repeat the decision at once, forever.
    seconds = min((end - facts.awake for end in ends if end > facts.awake), default=None) if ends else None
    return None if seconds is None else facts.now + seconds


def _end_of_turn(turn: Turn, spec: AgentSpec, facts: Facts) -> float | None:
    """Return the time at which the turn has used its time, on the clock for time limits."""
    seconds = spec.limits.seconds
    if seconds is None:
        return None
    return (turn.began_at if facts.turn_began is None else facts.turn_began) + seconds


def _too_late(facts: Facts) -> st.ReachBudget:
    timed = [node for node in facts.budgets if node.budget.seconds is not None]
    node = min(timed, key=lambda timed_node: timed_node.began_at + (timed_node.budget.seconds or 0))
    return st.ReachBudget(node.name, "seconds", node.budget.seconds or 0, facts.awake - node.began_at, 0)


def _last_call(state: AgentState, budgets: Path, now: float) -> CallAllowance | BudgetRefusal:
    limits = _model(state)
    tokens = size(state.context.conversation)
    output = min(LAST_OUTPUT, limits.max_output)
    if not budgets:
        return CallAllowance(output, last=True)
    worst = worst_case(limits, tokens, _last_output(budgets, now, limits, tokens))
    return fits(budgets, worst, now) or CallAllowance(worst.tokens - tokens, worst, last=True)


def _last_output(budgets: Path, now: float, limits: ModelLimits, tokens: int) -> int:
    """Return the output tokens of a last call with this many input tokens."""
    most = min(LAST_OUTPUT, limits.max_output)
    free = _affordable(budgets, now, limits, worst_case(limits, tokens, 0))
    return max(min(most, free), min(LEAST_LAST_OUTPUT, most))


def _may_wind_down(state: AgentState, facts: Facts, refused: BudgetRefusal) -> bool:
    """Return True if a last call fits after the end of the other calls, and was not yet made for this budget."""
    if state.budget.wound_down == used_up_key(refused.budget, refused.kind, refused.limit):
        return False
    limits = _model(state)
    tokens = size(state.context.conversation) + REMINDER
    worst = worst_case(limits, tokens, _last_output(facts.budgets, facts.awake, limits, tokens))
    refusal = fits(facts.budgets, worst, facts.awake)
    return refusal is None or refusal.waits


def last_call_room(state: AgentState, budgets: Path) -> Amount:
    """Return the room that an agent's last call needs, which the agents below it must leave; `budgets`: its path.

    Nothing if it has made its last call for one of these budgets.
    """
    limits_in_force = (
        used_up_key(node.name, kind, limit) for node in budgets for kind, limit in node.budget if limit is not None
    )
    if state.budget.wound_down and state.budget.wound_down in limits_in_force:
        return NOTHING
    conversation = state.context.conversation
    tokens = size(conversation) + REMINDER + _results_expected(conversation)
    limits = _model(state)
    return worst_case(limits, tokens, min(LAST_OUTPUT, limits.max_output))


def _results_expected(conversation: Conversation) -> int:
    """Return the tokens of tool results expected of the next call, or of the calls that run now."""
    newest = conversation.messages[-1].blocks if conversation.messages else ()
    running = RESULTS * sum(block.data.get("type") == "tool_use" for block in newest)
    return max(RESULTS, running, sum(block.tokens for block in newest if block.data.get("type") == "tool_result"))


def _affordable(budgets: Path, now: float, limits: ModelLimits, reserve: Amount, *, read_again: bool = False) -> int:
    """Return the output tokens that fit in addition to `reserve` once no other call is in flight.

    `read_again`: they are also input of the following call.
    """
    free = remaining_budget(budgets, now, in_flight=False)
    outputs = [] if free.tokens is None else [(free.tokens - reserve.tokens) // (2 if read_again else 1)]
    price = limits.price_output + (
        max(limits.price_input, limits.price_write, limits.price_read) if read_again else 0.0
    )
    if free.cost_usd is not None and limits.priced and price > 0:
        price *= limits.factor(limits.window)  # the higher price, whatever the prompt
        outputs.append(int(min((free.cost_usd - reserve.cost_usd) * 1_000_000 / price, limits.max_output)))
    return max(0, min(outputs, default=limits.max_output))


def _model(state: AgentState) -> ModelLimits:
    return state.me.limits_of(model_in_use(state.model.recovery, state.me))

"""What a schedule may spend: when its budget is used up, what pauses it then, and what lifts the pause. Pure.

A schedule has two budgets: one for all fires together, one for each. The first pauses the schedule when it is used up;
the second ends the turn of a fire, and the next fire has as much again.
"""

from __future__ import annotations

from typing import Literal

from callboard.core.budget.tree import DUST, Amount, Node, fits, used_up
from callboard.words.schedules import Schedule, ScheduleRights
from callboard.words.values import Budget

LEAST = Amount(1, 2 * DUST, 1)
"""What a fire uses at the very least: one call, one token, and something."""


def no_more_fires(node: Node, now: float) -> str:
    """Why a schedule cannot pay for another fire, in words; empty while it can. `node`: `schedule:<id>`.

    What only calls in flight stand in the way of is not used up yet.
    """
    refused = fits([node], LEAST, now)
    if refused is None or refused.waits:
        return ""
    return used_up(refused.budget, refused.kind, refused.limit, refused.spent, refused.wanted)


def delivered(schedule: Schedule) -> Literal["turn", "step"]:
    """How its prompt is delivered. With a budget or rights always as a turn of its own: in a turn that it joins, nobody
    could say which calls are made for it. Nor could that turn be ended for it alone."""
    limited = schedule.budget != Budget() or schedule.fire_budget != Budget() or schedule.rights != ScheduleRights()
    ends_alone = schedule.deadline is not None or schedule.overlap == "replace"
    return "turn" if limited or ends_alone else schedule.deliver


def paused(schedule: Schedule, why: str) -> Schedule:
    """The schedule as it waits for a person: it stays in the list, and does not fire."""
    return schedule.model_copy(update={"state": "paused", "paused_why": why})


def unreadable(schedule_id: str, why: str) -> Schedule:
    """What stands in the list for a row that cannot be read: it fires no more, and does not vanish."""
    words = f"its row in the store cannot be read ({why}): cancel it, and add it anew"
    return Schedule(id=schedule_id, cron="", prompt="", state="paused", paused_why=words)


def resumed(schedule: Schedule, now: float, budget: Budget, fire_budget: Budget) -> Schedule:
    """The schedule as it fires again, with these limits in place of its own of the same kind.

    What would have fired while it was paused never runs, and its failures are forgotten.
    """
    last = max(now, schedule.last_slot or now)
    update = {"state": "active", "enabled": True, "paused_why": "", "failures": 0, "last_slot": last}
    budgets = {"budget": _over(schedule.budget, budget), "fire_budget": _over(schedule.fire_budget, fire_budget)}
    return schedule.model_copy(update={**update, **budgets})


def budget_words(budget: Budget) -> str:
    """A budget in a few words: `$2.0000, 10,000 tokens, 5 calls, 60 s`; empty without a limit."""
    words = [] if budget.cost_usd is None else [f"${budget.cost_usd:.4f}"]
    words += [] if budget.tokens is None else [f"{budget.tokens:,} tokens"]
    words += [] if budget.steps is None else [f"{budget.steps:,} call{'' if budget.steps == 1 else 's'}"]
    words += [] if budget.seconds is None else [f"{budget.seconds:,.0f} s"]
    return ", ".join(words)


def _over(old: Budget, new: Budget) -> Budget:
    return old.model_copy(update=new.model_dump(exclude_none=True))

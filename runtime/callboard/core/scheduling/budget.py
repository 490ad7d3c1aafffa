"""Rules for the budget of a schedule: when it is used up, the pause that follows, and the end of the pause. Pure.

A schedule has two budgets: one for all fires together, one for each. When the first is used up, the schedule is paused.
The second ends the turn of a fire, and the next fire gets the same amount again.
"""

from __future__ import annotations

from typing import Literal

from callboard.core.budgets.tree import DUST, Amount, BudgetNode, fits, used_up
from callboard.types.records import Budget
from callboard.types.schedules import Schedule, ScheduleRights

LEAST = Amount(1, 2 * DUST, 1)
"""Minimum use of a fire: one call, one token, and a minimal cost."""


def no_more_fires(node: BudgetNode, now: float) -> str:
    """Return the reason why a schedule cannot pay for another fire; empty while it can. `node`: `schedule:<id>`.

    A budget that is only reserved by calls in flight is not used up yet.
    """
    refused = fits([node], LEAST, now)
    if refused is None or refused.waits:
        return ""
    return used_up(refused.budget, refused.kind, limit=refused.limit, spent=refused.spent, needed=refused.wanted)


def delivery_of(schedule: Schedule) -> Literal["turn", "step"]:
    """Return how the schedule's prompt is delivered.

    With a budget or rights, always as a separate turn: in a shared turn, the calls made for the schedule cannot be
    distinguished from others, and the turn cannot be ended for the schedule alone.
    """
    limited = schedule.budget != Budget() or schedule.fire_budget != Budget() or schedule.rights != ScheduleRights()
    ends_alone = schedule.deadline is not None or schedule.overlap == "replace"
    return "turn" if limited or ends_alone else schedule.deliver


def pause_schedule(schedule: Schedule, reason: str) -> Schedule:
    """Return the schedule as paused until a person resumes it: it stays in the list, and does not fire."""
    return schedule.model_copy(update={"state": "paused", "paused_why": reason})


def unreadable(schedule_id: str, reason: str) -> Schedule:
    """Return the placeholder for a row that cannot be read: it no longer fires, and stays in the list."""
    message = f"its row in the store cannot be read ({reason}): cancel it, and add it again"
    return Schedule(id=schedule_id, cron="", prompt="", state="paused", paused_why=message)


def resume_schedule(schedule: Schedule, now: float, budget: Budget, fire_budget: Budget) -> Schedule:
    """Return the resumed schedule, with these limits in place of its own of the same kind.

    Fires missed during the pause never run, and its failures are reset.
    """
    last = max(now, schedule.last_slot or now)
    update = {"state": "active", "enabled": True, "paused_why": "", "failures": 0, "last_slot": last}
    budgets = {"budget": _over(schedule.budget, budget), "fire_budget": _over(schedule.fire_budget, fire_budget)}
    return schedule.model_copy(update={**update, **budgets})


def budget_words(budget: Budget) -> str:
    """Describe a budget briefly: `$2.0000, 10,000 tokens, 5 calls, 60 s`; empty without a limit."""
    limits = [] if budget.cost_usd is None else [f"${budget.cost_usd:.4f}"]
    limits += [] if budget.tokens is None else [f"{budget.tokens:,} tokens"]
    limits += [] if budget.steps is None else [f"{budget.steps:,} call{'' if budget.steps == 1 else 's'}"]
    limits += [] if budget.seconds is None else [f"{budget.seconds:,.0f} s"]
    return ", ".join(limits)


def _over(old: Budget, new: Budget) -> Budget:
    return old.model_copy(update=new.model_dump(exclude_none=True))

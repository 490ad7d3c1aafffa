"""What one life of an agent has used, as budgets count it, and what it holds for a call in flight: folded from its
events, so that the tree of budgets can be made anew from the journals (`core.budget`). Pure; `apply` keeps it.

Where it differs from the bill (`AgentState.usage`): a call that was cut off, whose usage nobody told, counts as the
worst that it may have cost. A call is one step, a try again another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from callboard.core.budget.tree import NOTHING, Amount, schedule_of
from callboard.core.frozen import replace


@dataclass(frozen=True)
class Account:
    """Of one life; lives of one name are added up by who reads them."""

    spent: Amount = NOTHING
    held: Amount | None = None
    """What is held back for the call in flight; None when there is none. There is never more than one."""
    summary: Amount = NOTHING
    """What calls of the summary under way have used, in `spent` already."""
    schedules: Mapping[str, Amount] = field(default_factory=dict[str, Amount])
    """`schedule:<id>` -> what was used in turns that its fires began."""
    fire: Amount = NOTHING
    """What the turn under way has used, if a fire began it."""

    def using(self, used: Amount, cause: str) -> Account:
        """No call is in flight any more; `cause` is that of the turn under way, empty between turns."""
        schedule = schedule_of(cause)
        if not schedule:
            return replace(self, spent=self.spent.plus(used), held=None)
        schedules = {**self.schedules, schedule: self.schedules.get(schedule, NOTHING).plus(used)}
        return replace(self, spent=self.spent.plus(used), held=None, schedules=schedules, fire=self.fire.plus(used))

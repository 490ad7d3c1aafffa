"""`economic`: bills less than doing nothing, and forgets nothing that is likely to be needed. Pure.

Each answered result costs a reading at every further step, and taking it away makes the service store anew what stands
behind it. So it is cleared like pages are replaced: not at once and not one by one, but all that is dead together, at
the step at which holding it costs as much as the average step since the last edit did, that edit included. A summary
goes by the same rule, over what clearing leaves: calls, words, marks. Both must pay within the steps that the session
may be expected to have left: about as many as it had. What was asked for again is charged to the edit that took it
away, and lengthens the time for which a file that was used is kept.

It refuses to touch what the model has not seen, pins, what is not plain text, and what the newest steps used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from callboard.core.context.cache.cost import Prices, edit_price, is_warm, prices_of
from callboard.core.context.cache.cycle import REACH, can_go
from callboard.core.context.cache.forgotten import CHANGING, kept_for, path_of
from callboard.core.context.situation import Situation
from callboard.core.context.stages.batch import Batch
from callboard.core.context.stages.clearing import CLEAR, cleared_mark
from callboard.core.context.stages.results import Result, kept_path
from callboard.core.context.stages.summarizing import summary_size
from callboard.core.context.summary.folding import is_summary, split, tail_start
from callboard.core.context.summary.riding import Choice, may_ride, plain_price, riding_price
from callboard.core.context.view.conversation import Conversation, calls_of, held, result_text
from callboard.core.context.view.tokens import BLOCK_TOKENS, CALL_TOKENS, estimate_text
from callboard.words.context import Edit, Message, SummaryWanted
from callboard.words.values import Json

ECONOMIC: Mapping[str, Any] = MappingProxyType(
    {
        "keep": 7,
        "newest": 2,
        "left_alone": CLEAR["left_alone"],
        "mark": CLEAR["mark"],
        "max_tokens": 2_000,
        "summaries": 3,
    }
)
"""Kept are readings of a file that was read or changed in the newest `keep` steps, other results of the newest `newest`
steps, and those of up to `left_alone` characters. A summary has up to `max_tokens`; earlier ones stay beside it until
there are `summaries` of them."""

FEWEST = 10
"""Steps that any session is expected to have left."""
NOTES = 400
"""Tokens that stand beside a summary: state, path, counts."""
REREADS = 0.015
"""Re-reads for a step that are put up with. Beyond it files are kept longer."""
_CALL = 60
"""Tokens of a reply that asks for something again."""


class Candidate(NamedTuple):
    """A result that may go."""

    result: Result
    at: int
    """The index of its message."""
    saves: int
    """Tokens, less those of its mark."""
    text: str
    dead: int
    """Steps for which it has not been kept any more."""


class Plan(NamedTuple):
    """A batch that can be cleared now."""

    candidates: tuple[Candidate, ...] = ()
    frees: int = 0
    """Tokens."""
    price: float = 0.0
    """Of the edit itself: what must be stored anew."""


class Fold(NamedTuple):
    """A summary that can be made now."""

    wanted: SummaryWanted
    frees: int
    price: float
    """Of the call, and of what must be stored anew."""
    residue: int
    """Tokens of what it frees that clearing would not."""


def economic(view: Conversation, budget: int, situation: Situation, params: Json) -> Batch | SummaryWanted | None:
    """Clear, summarise or nothing, whichever is expected to cost least."""
    moment = Moment(view, budget, situation, {**ECONOMIC, **params})
    if not moment.worth_a_look:
        return None
    clear = moment.clearing()
    fold = moment.folding(clear)
    if fold is not None and moment.is_due_fold(fold, clear):
        return fold.wanted.model_copy(update={"why": moment.why_fold(fold)})
    if not moment.is_due(clear):
        return None
    return Batch([_cleared(one) for one in clear.candidates], moment.why(clear))


@dataclass(frozen=True)
class Moment:
    """A view and what is known beside it, weighed."""

    view: Conversation
    budget: int
    situation: Situation
    given: Json

    @cached_property
    def prices(self) -> Prices:
        return prices_of(self.situation.limits)

    @cached_property
    def warm(self) -> bool:
        """The prefix of the newest call is still remembered."""
        limits = self.situation.limits
        return is_warm(self.situation.cache.used_at, self.situation.now, limits.cache_ttl)

    @cached_property
    def over(self) -> bool:
        """The view does not fit: what can go may not wait."""
        return held(self.view) > self.budget

    @cached_property
    def left(self) -> int:
        """Steps still to come, by what is known: about as many as there were."""
        return max(FEWEST, self.situation.steps)

    @cached_property
    def keep(self) -> int:
        """Steps for which a file is kept after its last use: more, once too much was asked for again."""
        forgotten, least = self.situation.forgotten, int(self.given["keep"])
        allowed = 1 + REREADS * self.situation.steps
        return least if forgotten.rereads <= allowed else kept_for(forgotten, least, allowed)

    @property
    def worth_a_look(self) -> bool:
        """There is something to win, and the edit before has paid for itself. At no cost."""
        view, limits = self.view, self.situation.limits
        if not view.messages or self.prices.read <= 0 or view.overhead + view.tokens < limits.cache_minimum:
            return False
        return self.over or not self.warm or self.situation.cycle.owed <= 0

    def clearing(self) -> Plan:
        """The best batch: all that may go behind the place from which clearing wins most."""
        best, most, chosen = Plan(), 0.0, list[Candidate]()
        frees, behind, place = 0, 0, len(self.view.messages)
        for one in self._candidates():
            behind += sum(message.tokens for message in self.view.messages[one.at : place])
            place = one.at
            chosen.append(one)
            frees += one.saves
            price = edit_price(self.prices, max(0, behind - frees - self._paid), warm=self.warm)
            worth = self.prices.read * frees * min(self.left, REACH) - price
            if not best.candidates or worth > most:
                best, most = Plan(tuple(chosen), frees, price), worth
        return best

    def is_due(self, plan: Plan) -> bool:
        """The moment for a batch has come."""
        if not plan.frees:
            return False
        saves = self.prices.read * plan.frees
        if self.over:
            return True
        if saves * self.left <= plan.price + self._risk(plan):
            return False
        if not self.warm or self.situation.cycle.touched:
            return True  # what stands behind is stored anew in any case
        since = max(1, self.situation.steps - self.situation.cycle.edited_at)
        dead = self.prices.read * sum(one.saves * min(one.dead, since) for one in plan.candidates)
        return saves * since >= dead + plan.price

    def folding(self, clear: Plan) -> Fold | None:
        """The summary that could be made, where a quick test does not rule it out."""
        answer, messages = int(self.given["max_tokens"]), self.view.messages
        if self.over or self.situation.cycle.touched or self._held_since_fold() < self.prices.output * answer / 2:
            return None
        if self.situation.summaries_failed or ("summarize_all", self.view.revision) in self.situation.tried:
            return None
        upto = self._tail()
        standing = sum(block.tokens for one in messages[:upto] for block in one.blocks if is_summary(block))
        again = standing >= answer * int(self.given["summaries"])
        folded = split(messages, upto, self.budget, rebuild=again).folded_tokens
        longest = summary_size(folded, answer)
        if not upto or folded < 2 * longest + NOTES:
            return None
        first, last = messages[0].id, messages[upto - 1].id
        wanted = SummaryWanted(
            stage="summarize_all", trigger="auto", message=first, last=last, max_tokens=longest, again=again
        )
        frees = folded - longest - NOTES
        price = self._asking(wanted) + edit_price(self.prices, self.view.tokens - frees, warm=self.warm)
        cleared = sum(one.saves for one in clear.candidates if one.at < upto)
        return Fold(wanted, frees, price, frees - cleared)

    def is_due_fold(self, fold: Fold, clear: Plan) -> bool:
        """The moment for a summary has come, and it is worth more than clearing."""
        since = max(1, self.situation.steps - self.situation.cycle.summarised_at)
        # Where clearing is due as well, its price is saved.
        price = fold.price - (clear.price if self.is_due(clear) else 0.0)
        if self.warm and self.prices.read * fold.residue * since / 2 < price:
            return False
        gain = self.prices.read * fold.frees * self.left - fold.price
        return gain > max(0.0, self.prices.read * clear.frees * self.left - clear.price)

    def why(self, plan: Plan) -> str:
        """Why the batch goes now, for a person."""
        count = len(plan.candidates)
        results = f"{count} answered result{'s' * (count != 1)}, {plan.frees:,} tokens"
        if self.over:
            return f"{results}: the view is over its budget"
        if not self.warm:
            return f"{results}: the prompt cache was cold, so it costs nothing"
        return f"{results}: {self._payback(plan.frees, plan.price)}"

    def why_fold(self, fold: Fold) -> str:
        """Why a summary is made now, for a person."""
        held_still = f"calls and words hold {fold.residue:,} tokens that clearing leaves"
        return f"{held_still}: {self._payback(fold.frees, fold.price)}"

    def _payback(self, frees: int, price: float) -> str:
        steps = -(-price // (self.prices.read * frees))
        return f"it pays for itself in {max(1, steps):.0f} steps"

    @cached_property
    def _paid(self) -> int:
        """Tokens at the end that must be stored anew in any case: an edit has changed what stands before them."""
        touched = self.situation.cycle.touched
        if not touched:
            return 0
        start, _ = self.view.messages.span(touched, touched)
        return sum(message.tokens for message in self.view.messages[start:])

    def _held_since_fold(self) -> float:
        """What it has cost, about, to hold all that is no result since the newest summary."""
        since = max(1, self.situation.steps - self.situation.cycle.summarised_at)
        return self.prices.read * (held(self.view) - self.view.messages.bulk) * since / 2

    def _candidates(self) -> Iterator[Candidate]:
        """Results that may go, newest first; those in front of the milestone only where its prefix is lost anyway."""
        messages, cycle = self.view.messages, self.situation.cycle
        stands = messages.find(cycle.fixed) if cycle.fixed and self.warm and not self.over else None
        if stands is not None and cycle.touched and cycle.touched <= cycle.fixed:
            stands = None
        answered = len(messages) - (messages[-1].role == "user")
        for index in messages.bulky(newest_first=True):
            if stands is not None and index <= stands:
                return
            if 0 < index < answered:
                yield from self._of_message(messages[index], index)

    def _of_message(self, message: Message, index: int) -> Iterator[Candidate]:
        calls = {str(call.get("id")): call for call in calls_of(self.view.messages[index - 1])}
        age = (len(self.view.messages) - index) // 2  # two messages a step
        for place in reversed(range(len(message.blocks))):
            block = message.blocks[place]
            call = calls.get(str(block.data.get("tool_use_id")), {})
            dead = self._dead(call, age)
            if dead <= 0 or not can_go(block) or len(result_text(block)) <= self.given["left_alone"]:
                continue
            result = Result(message, place, block, str(call.get("name") or "unknown"))
            text = cleared_mark(result, str(self.given["mark"]))
            saves = block.tokens - (BLOCK_TOKENS + CALL_TOKENS + estimate_text(text))
            if saves > 0:
                yield Candidate(result, index, saves, text, dead)

    def _dead(self, call: Json, age: int) -> int:
        """Steps since it was neither of the newest steps nor a file that was in use; 0 or less: it still is."""
        path = "" if call.get("name") in CHANGING else path_of(cast("Json", call.get("input") or {}))
        if not path:
            return age - int(self.given["newest"])
        steps = self.situation.steps
        return steps - self.situation.forgotten.used.get(path, steps - age) - self.keep

    def _risk(self, plan: Plan) -> float:
        """What it is expected to cost that some of it is asked for again: its storing, and a step for it."""
        forgotten = self.situation.forgotten
        chance = (forgotten.rereads + 0.5) / (forgotten.taken + 25)
        step = self.prices.read * (self.view.overhead + self.view.tokens) + self.prices.output * _CALL
        return chance * (len(plan.candidates) * step + self.prices.write * plan.frees)

    def _asking(self, wanted: SummaryWanted) -> float:
        situation = self.situation
        choice = Choice(situation.limits, situation.small, situation.cache, situation.now)
        plain = plain_price(self.view, wanted, choice)
        return min(plain, riding_price(self.view, wanted, choice)) if may_ride(self.view, wanted, choice) else plain

    def _tail(self) -> int:
        """How many messages may be folded: what stands before the oldest result that is still in use."""
        messages = self.view.messages
        start = len(messages) - 2 * int(self.given["newest"]) - 1
        for index in messages.bulky(newest_first=True):
            age = (len(messages) - index) // 2
            if index < 1 or age > self.keep:
                break
            if any(self._dead(call, age) <= 0 for call in calls_of(messages[index - 1])):
                start = min(start, index - 1)
        return tail_start(messages, max(1, len(messages) - start))


def _cleared(one: Candidate) -> Edit:
    return one.result.reads("cleared", one.text, kept_path(result_text(one.result.block)))

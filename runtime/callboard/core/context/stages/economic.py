"""The stage `economic`: costs less than no reduction, and removes nothing that is likely to be needed. Pure.

Each answered result is read again at every further step, and removing it makes the service store everything after it
again. So results are cleared as pages of memory are replaced: not at once and not one by one, but all unused ones
together, at the step at which keeping them costs as much as the average step since the last edit, including that edit.
A summary follows the same rule, applied to the content that clearing leaves: calls, texts, marks. Both must pay within
the steps that the session is expected to have left: about as many as it had. The cost of re-reads is charged to the
edit that removed the content, and lengthens the time for which a used file is kept.

It does not touch messages that the model has not seen, pins, content that is not plain text, and content that the
newest steps used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from callboard.core.context.cache.cost import Prices, edit_price, is_warm, prices_of
from callboard.core.context.cache.rereads import CHANGING, path_of, steps_to_keep
from callboard.core.context.cache.tracker import REACH, can_go
from callboard.core.context.stage_input import Batch, Situation
from callboard.core.context.stages.results import CLEAR, PlacedResult, cleared_mark, result_file
from callboard.core.context.stages.summarize import CALL, summary_size
from callboard.core.context.summary.folding import is_summary, split, tail_start
from callboard.core.context.summary.shared_prefix import (
    SharingFacts,
    may_share_prefix,
    separate_price,
    shared_prefix_price,
)
from callboard.core.context.view.conversation import Conversation, message_tokens
from callboard.core.context.view.messages import calls_of, result_text
from callboard.core.context.view.tokens import BLOCK_TOKENS, CALL_TOKENS, estimate_text
from callboard.types.lazy_dataclass import dataclass
from callboard.types.messages import Edit, SummaryWanted, ViewMessage
from callboard.types.records import Json

ECONOMIC: Mapping[str, Any] = MappingProxyType(
    {
        "keep": 7,
        "newest": 2,
        "left_alone": CLEAR["left_alone"],
        "mark": CLEAR["mark"],
        "max_tokens": CALL["max_tokens"],
        "summaries": 3,
    }
)
"""The stage keeps reads of a file that was read or changed in the newest `keep` steps, other results of the newest
`newest` steps, and results of up to `left_alone` characters. A summary has up to `max_tokens`; earlier summaries stay
next to it until there are `summaries` of them."""

FEWEST = 10
"""Minimum number of steps that any session is expected to have left."""
NOTES = 400
"""Tokens next to a summary: state, path, counts."""
REREADS = 0.015
"""Accepted re-reads per step. Above it, files are kept longer."""
_CALL = 60
"""Tokens of a reply that requests content again."""


class Candidate(NamedTuple):
    """A result that may be cleared."""

    result: PlacedResult
    at: int
    """Index of its message."""
    saves: int
    """Tokens saved: its own, minus those of its mark."""
    text: str
    dead: int
    """Steps since it stopped being protected."""


class ClearingBatch(NamedTuple):
    """A batch that can be cleared now."""

    candidates: tuple[Candidate, ...] = ()
    frees: int = 0
    """Tokens freed."""
    price: float = 0.0
    """Price of the edit itself: storing everything after it again."""


class Fold(NamedTuple):
    """A summary that can be made now."""

    request: SummaryWanted
    frees: int
    price: float
    """Price of the call, and of storing everything after it again."""
    residue: int
    """Tokens that it frees and that clearing would not free."""


def economic(view: Conversation, budget: int, situation: Situation, params: Json) -> Batch | SummaryWanted | None:
    """Choose between clearing, a summary and no edit, by the lowest expected cost."""
    moment = Moment(view, budget, situation, {**ECONOMIC, **params})
    if not moment.worth_a_look:
        return None
    clear = moment.best_clearing()
    fold = moment.possible_fold(clear)
    if fold is not None and moment.is_due_fold(fold, clear):
        return fold.request.model_copy(update={"why": moment.why_fold(fold)})
    if not moment.is_due(clear):
        return None
    return Batch([_cleared(candidate) for candidate in clear.candidates], moment.reason(clear))


@dataclass(frozen=True)
class Moment:
    """A view and its situation, with their costs."""

    view: Conversation
    budget: int
    situation: Situation
    settings: Json

    @cached_property
    def prices(self) -> Prices:
        return prices_of(self.situation.limits)

    @cached_property
    def warm(self) -> bool:
        """Return True if the prefix of the newest call is still cached."""
        limits = self.situation.limits
        return is_warm(self.situation.cache.used_at, self.situation.now, limits.cache_ttl)

    @cached_property
    def over(self) -> bool:
        """Return True if the view does not fit, so that clearing must not wait."""
        return message_tokens(self.view) > self.budget

    @cached_property
    def steps_left(self) -> int:
        """Return the expected number of remaining steps: about as many as there were."""
        return max(FEWEST, self.situation.steps)

    @cached_property
    def keep(self) -> int:
        """Return the number of steps for which a file is kept after its last use.

        The number is higher once there were too many re-reads.
        """
        forgotten = self.situation.forgotten
        least = int(self.settings["keep"])
        allowed = 1 + REREADS * self.situation.steps
        return least if forgotten.rereads <= allowed else steps_to_keep(forgotten, least, allowed)

    @property
    def worth_a_look(self) -> bool:
        """Return True if savings are possible and the previous edit has paid for itself. The test is quick."""
        view = self.view
        limits = self.situation.limits
        if not view.messages or self.prices.read <= 0 or view.overhead + view.tokens < limits.cache_minimum:
            return False
        return self.over or not self.warm or self.situation.cycle.owed <= 0

    def best_clearing(self) -> ClearingBatch:
        """Return the best batch: everything that may be cleared after the position from which clearing saves most."""
        best = ClearingBatch()
        most = 0.0
        chosen = list[Candidate]()
        frees = 0
        behind = 0
        place = len(self.view.messages)
        for candidate in self._candidates():
            behind += sum(message.tokens for message in self.view.messages[candidate.at : place])
            place = candidate.at
            chosen.append(candidate)
            frees += candidate.saves
            price = edit_price(self.prices, max(0, behind - frees - self._paid), warm=self.warm)
            worth = self.prices.read * frees * min(self.steps_left, REACH) - price
            if not best.candidates or worth > most:
                best = ClearingBatch(tuple(chosen), frees, price)
                most = worth
        return best

    def is_due(self, plan: ClearingBatch) -> bool:
        """Return True if the batch is due."""
        if not plan.frees:
            return False
        saves = self.prices.read * plan.frees
        if self.over:
            return True
        if saves * self.steps_left <= plan.price + self._repeat_cost(plan):
            return False
        if not self.warm or self.situation.cycle.touched:
            return True  # messages behind it are stored again in any case
        since = max(1, self.situation.steps - self.situation.cycle.edited_at)
        dead = self.prices.read * sum(candidate.saves * min(candidate.dead, since) for candidate in plan.candidates)
        return saves * since >= dead + plan.price

    def possible_fold(self, clear: ClearingBatch) -> Fold | None:
        """Return the summary that could be made, unless a quick test rules it out."""
        answer = int(self.settings["max_tokens"])
        messages = self.view.messages
        if self.over or self.situation.cycle.touched or self._held_since_fold() < self.prices.output * answer / 2:
            return None
        if self.situation.summaries_failed or ("summarize_all", self.view.revision) in self.situation.tried:
            return None
        upto = self._foldable_count()
        standing = sum(block.tokens for message in messages[:upto] for block in message.blocks if is_summary(block))
        rebuild = standing >= answer * int(self.settings["summaries"])
        folded = split(messages, upto, self.budget, rebuild=rebuild).folded_tokens
        longest = summary_size(folded, answer)
        if not upto or folded < 2 * longest + NOTES:
            return None
        first = messages[0].id
        last = messages[upto - 1].id
        request = SummaryWanted(
            stage="summarize_all", trigger="auto", message=first, last=last, max_tokens=longest, again=rebuild
        )
        frees = folded - longest - NOTES
        price = self._asking(request) + edit_price(self.prices, self.view.tokens - frees, warm=self.warm)
        cleared = sum(candidate.saves for candidate in clear.candidates if candidate.at < upto)
        return Fold(request, frees, price, frees - cleared)

    def is_due_fold(self, fold: Fold, clear: ClearingBatch) -> bool:
        """Return True if a summary is due and worth more than clearing."""
        since = max(1, self.situation.steps - self.situation.cycle.summarised_at)
        # If clearing is due as well, its price is saved.
        price = fold.price - (clear.price if self.is_due(clear) else 0.0)
        if self.warm and self.prices.read * fold.residue * since / 2 < price:
            return False
        gain = self.prices.read * fold.frees * self.steps_left - fold.price
        return gain > max(0.0, self.prices.read * clear.frees * self.steps_left - clear.price)

    def reason(self, plan: ClearingBatch) -> str:
        """Return the reason for clearing the batch now, for a person."""
        count = len(plan.candidates)
        results = f"{count} answered result{'s' * (count != 1)}, {plan.frees:,} tokens"
        if self.over:
            return f"{results}: the view is over its budget"
        if not self.warm:
            return f"{results}: the prompt cache was cold, so it costs nothing"
        return f"{results}: {self._payback(plan.frees, plan.price)}"

    def why_fold(self, fold: Fold) -> str:
        """Return the reason for making a summary now, for a person."""
        held_still = f"calls and words hold {fold.residue:,} tokens that clearing leaves"
        return f"{held_still}: {self._payback(fold.frees, fold.price)}"

    def _payback(self, frees: int, price: float) -> str:
        steps = -(-price // (self.prices.read * frees))
        return f"it pays for itself in {max(1, steps):.0f} steps"

    @cached_property
    def _paid(self) -> int:
        """Return the tokens at the end that must be stored again in any case.

        An edit has changed the messages before them.
        """
        touched = self.situation.cycle.touched
        if not touched:
            return 0
        start, _ = self.view.messages.span(touched, touched)
        return sum(message.tokens for message in self.view.messages[start:])

    def _held_since_fold(self) -> float:
        """Estimate the cost of keeping everything but results since the newest summary."""
        since = max(1, self.situation.steps - self.situation.cycle.summarised_at)
        return self.prices.read * (message_tokens(self.view) - self.view.messages.bulk) * since / 2

    def _candidates(self) -> Iterator[Candidate]:
        """Yield results that may be cleared, newest first.

        Results before the milestone are included only if its prefix is lost anyway.
        """
        messages = self.view.messages
        cycle = self.situation.cycle
        fixed_until = messages.find(cycle.fixed) if cycle.fixed and self.warm and not self.over else None
        if fixed_until is not None and cycle.touched and cycle.touched <= cycle.fixed:
            fixed_until = None
        answered = len(messages) - (messages[-1].role == "user")
        for index in messages.bulky(newest_first=True):
            if fixed_until is not None and index <= fixed_until:
                return
            if 0 < index < answered:
                yield from self._of_message(messages[index], index)

    def _of_message(self, message: ViewMessage, index: int) -> Iterator[Candidate]:
        calls = {str(call.get("id")): call for call in calls_of(self.view.messages[index - 1])}
        age = (len(self.view.messages) - index) // 2  # two messages a step
        for place in reversed(range(len(message.blocks))):
            block = message.blocks[place]
            call = calls.get(str(block.data.get("tool_use_id")), {})
            dead = self._dead(call, age)
            if dead <= 0 or not can_go(block) or len(result_text(block)) <= self.settings["left_alone"]:
                continue
            result = PlacedResult(message, place, block, str(call.get("name") or "unknown"))
            text = cleared_mark(result, str(self.settings["mark"]))
            saves = block.tokens - (BLOCK_TOKENS + CALL_TOKENS + estimate_text(text))
            if saves > 0:
                yield Candidate(result, index, saves, text, dead)

    def _dead(self, call: Json, age: int) -> int:
        """Return the number of steps since the result lost its protection; 0 or less while it is protected.

        A result is protected as one of the newest, or as a file in use.
        """
        path = "" if call.get("name") in CHANGING else path_of(cast("Json", call.get("input") or {}))
        if not path:
            return age - int(self.settings["newest"])
        steps = self.situation.steps
        return steps - self.situation.forgotten.used.get(path, steps - age) - self.keep

    def _repeat_cost(self, plan: ClearingBatch) -> float:
        """Estimate the expected cost of requesting some of the batch again: storing it, and an extra step."""
        forgotten = self.situation.forgotten
        chance = (forgotten.rereads + 0.5) / (forgotten.taken + 25)
        step = self.prices.read * (self.view.overhead + self.view.tokens) + self.prices.output * _CALL
        return chance * (len(plan.candidates) * step + self.prices.write * plan.frees)

    def _asking(self, request: SummaryWanted) -> float:
        situation = self.situation
        facts = SharingFacts(situation.limits, situation.small, situation.cache, situation.now, situation.thinking)
        separate = separate_price(self.view, request, facts)
        if not may_share_prefix(self.view, request, facts):
            return separate
        return min(separate, shared_prefix_price(self.view, request, facts))

    def _foldable_count(self) -> int:
        """Return the number of messages that may be folded: all before the oldest result that is still in use."""
        messages = self.view.messages
        start = len(messages) - 2 * int(self.settings["newest"]) - 1
        for index in messages.bulky(newest_first=True):
            age = (len(messages) - index) // 2
            if index < 1 or age > self.keep:
                break
            if any(self._dead(call, age) <= 0 for call in calls_of(messages[index - 1])):
                start = min(start, index - 1)
        return tail_start(messages, max(1, len(messages) - start))


def _cleared(candidate: Candidate) -> Edit:
    return candidate.result.reads("cleared", candidate.text, result_file(result_text(candidate.result.block)))

"""`truncate_oldest`: where no summary can be made, the oldest exchanges are dropped, and a mark says so. Pure.

It stands behind every pipeline. It refuses to drop in vain: when what it may drop would not bring the view under the
budget, nothing goes (unless the service has refused the view).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from callboard.core.context.situation import Situation
from callboard.core.context.summary.folding import (
    Split,
    dropped_mark,
    note,
    notes,
    split,
    state_of,
    state_text,
    tail_start,
    tokens_of,
)
from callboard.core.context.view.conversation import Conversation, held, is_result
from callboard.words.context import Edit, Message
from callboard.words.values import Json

TRUNCATE: Mapping[str, Any] = MappingProxyType({"down_to": 0.7, "force": False})
"""`down_to`: share of the budget. `force` comes from the pipeline: the service has refused the view."""


def truncate_oldest(view: Conversation, budget: int, situation: Situation, params: Json) -> list[Edit] | None:
    """The oldest exchanges are dropped, as many as it takes, and a mark says so. What stays in a summary stays here.

    Nothing is dropped if that would not bring the view under the budget (`force`: all the same).
    """
    given = {**TRUNCATE, **params}
    size, messages = held(view), view.messages
    if not messages or (size <= budget and not given["force"]):
        return None
    # With `force` the service has found the view too long, whatever our estimate of it.
    upto = _cut(messages, size - int(given["down_to"] * min(size, budget)), budget)
    if not upto:
        return None
    sorted_ = split(messages, upto, budget)
    mark = note(dropped_mark(sorted_.dropped + _turns(messages[:upto], sorted_), situation.transcript))
    state = state_text(situation.state, budget) if situation.state else ""
    blocks = [*sorted_.placed(), mark, *notes(sorted_, state or state_of(messages[:upto]), "")]
    saved = sum(message.tokens for message in messages[:upto]) - tokens_of(blocks)
    if saved <= 0 or (size - saved > budget and not given["force"]):
        return None
    return [Edit(kind="dropped", message=messages[0].id, last=messages[upto - 1].id, blocks=tuple(blocks))]


def _cut(messages: Sequence[Message], surplus: int, budget: int) -> int:
    """How many of the oldest messages must go to save `surplus` tokens; all that may, if that is not enough."""
    end = tail_start(messages)
    folds = {id(block): block.tokens for block in split(messages, end, budget).folds}
    saved = 0
    for number, message in enumerate(messages[:end]):
        saved += sum(folds.get(id(block), 0) for block in message.blocks)
        after = messages[number + 1] if number + 1 < len(messages) else None
        if saved >= surplus and after is not None and not any(is_result(block) for block in after.blocks):
            return number + 1
    return end if saved else 0


def _turns(gone: Sequence[Message], sorted_: Split) -> int:
    """How many turns are dropped now; one that was cut into before is not counted again."""
    turns = {message.turn for message in gone[1:]} if sorted_.dropped else {message.turn for message in gone}
    cut_into = sorted_.dropped and gone[0].blocks[-1].source == "compactor" and gone[0].turn in turns
    return len(turns) - 1 if cut_into else len(turns)

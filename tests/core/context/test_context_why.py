"""The reason and the price that stand in every record of an edit."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.agent.test_decide_context import long

from callboard.core.context.cache.tracker import CacheState
from callboard.core.context.view.conversation import message_tokens
from callboard.core.reports.context import edit_reason, rewritten
from callboard.types.events import ContextEdited
from callboard.types.messages import Edit
from callboard.types.records import Usage

LIFE = long(pipeline=()).replied({"type": "text", "text": "so"}, usage=Usage(input_tokens=9_000))
VIEW = LIFE.state.context.conversation
WARM = CacheState(used_at=90.0, read=5_000)


def record(**fields: Any) -> ContextEdited:
    third = list(VIEW.messages)[2].id
    edit = Edit(kind="cleared", message=third, last=third, block=0, text="[gone]")
    given: dict[str, Any] = {"at": 100.0, "stage": "clear_old_results", "revision": 0, "edits": (edit,)}
    return ContextEdited(**{**given, **fields})


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"why": "3 answered results pay for themselves"}, "3 answered results pay for themselves"),
        ({"trigger": "reactive"}, "the service refused the prompt as too long"),
        ({"trigger": "manual"}, "asked for, to keep: the paths"),
        ({"stage": "persist_large_results"}, "results that the model has not seen yet were large"),
        ({"edits": ()}, ""),
    ],
)
def test_each_trigger_has_its_words(fields: dict[str, Any], why: str) -> None:
    assert edit_reason(record(**fields), VIEW, 20_000, "the paths") == why


def test_a_threshold_is_told_in_numbers() -> None:
    size = message_tokens(VIEW)
    said = f"the messages held {size:,} of the 20,000 tokens that they may take ({size * 100 // 20_000} %)"
    assert edit_reason(record(), VIEW, 20_000) == said
    assert edit_reason(record(trigger="manual"), VIEW, 20_000) == "asked for"
    assert edit_reason(record(), VIEW, 0).endswith("of the 0 tokens that they may take")


def test_what_stands_behind_the_first_change_and_was_sent_is_stored_anew() -> None:
    messages = list(VIEW.messages)
    sent = [message for message in messages[2:] if message.id <= VIEW.counted_upto]
    assert len(sent) > 0
    found = rewritten(record(), VIEW, VIEW, cache=WARM, ttl=300.0)
    assert found == sum(message.tokens for message in sent)
    assert rewritten(record(rewritten=7), VIEW, VIEW, cache=WARM, ttl=300.0) == 7


@pytest.mark.parametrize("cache", [CacheState(used_at=90.0), CacheState(used_at=-300.0, read=5_000)])
def test_a_cache_that_holds_nothing_any_more_is_not_paid_for(cache: CacheState) -> None:
    assert rewritten(record(), VIEW, VIEW, cache=cache, ttl=300.0) == 0


def test_a_record_without_an_edit_costs_nothing() -> None:
    assert rewritten(record(edits=()), VIEW, VIEW, cache=WARM, ttl=300.0) == 0

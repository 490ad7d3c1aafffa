"""Token estimates, and a prompt cache that reads and writes like the provider's."""

from __future__ import annotations

from typing import Any

import pytest

from callboard.adapters.models.rehearsal.api import ModelSpec
from callboard.adapters.models.rehearsal.tokens import (
    BilledInput,
    PromptCache,
    chain_prefixes,
    estimate,
    head_pieces,
    message_pieces,
    prompt_tokens,
    rendering_fields,
    survey,
)

Json = dict[str, Any]

SPEC = ModelSpec("m", min_cache=100)
MARK = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}


def text(words: str, mark: Json | None = None) -> Json:
    return {"type": "text", "text": words, **({"cache_control": mark} if mark else {})}


def body(*blocks: Json, **fields: Any) -> Json:
    return {"model": "m", "messages": [{"role": "user", "content": list(blocks)}], **fields}


def ask(cache: PromptCache, request: Json, now: float = 0.0, spec: ModelSpec = SPEC) -> BilledInput:
    """Run one whole exchange: planned, and begun at once."""
    plan = cache.plan(survey(request), spec, now)
    cache.began(plan, now)
    return plan.usage


@pytest.mark.parametrize(
    ("words", "tokens"),
    [
        ("", 0),
        ("a", 1),
        ("abcd", 1),
        ("abcde", 2),
        ("é", 1),
        ("漢", 2),
        ("漢字", 3),
        ("漢字abcd", 4),
        ("한국", 3),
        ("\ud800", 1),
    ],
)
def test_a_text_costs_a_quarter_token_a_byte_and_more_in_cjk(words: str, tokens: int) -> None:
    assert estimate(words) == tokens


def test_a_prefix_is_written_once_and_read_afterwards() -> None:
    cache = PromptCache()
    long = text("x" * 4_000, MARK)
    first = ask(cache, body(long, text("question")))
    assert (first.read, first.written_5m) == (0, 1_003)
    again = ask(cache, body(long, text("another question, a longer one")))
    assert (again.read, again.written_5m) == (1_003, 0)
    assert again.uncached > first.uncached
    assert again.total == prompt_tokens(survey(body(long, text("another question, a longer one"))))


def test_an_entry_is_usable_only_once_the_first_reply_began() -> None:
    cache = PromptCache()
    request = body(text("x" * 4_000, MARK))
    first = cache.plan(survey(request), SPEC, 0.0)
    beside = cache.plan(survey(request), SPEC, 0.0)
    assert beside.usage.read == 0
    cache.began(first, 1.0)
    assert cache.plan(survey(request), SPEC, 1.0).usage.read == 1_003


def test_a_short_prefix_is_not_cached() -> None:
    cache = PromptCache()
    request = body(text("x" * 300, MARK))
    assert ask(cache, request).written_5m == 0
    assert ask(cache, request).read == 0


def test_an_entry_lives_five_minutes_from_its_last_use() -> None:
    cache = PromptCache()
    request = body(text("x" * 4_000, MARK))
    ask(cache, request, 0.0)
    assert ask(cache, request, 299.0).read == 1_003
    assert ask(cache, request, 590.0).read == 1_003
    assert ask(cache, request, 891.0).read == 0


def test_an_hour_is_an_hour_and_told_apart() -> None:
    cache = PromptCache()
    request = body(text("more" * 200, MARK), system=[text("x" * 4_000, HOUR)])
    first = ask(cache, request, 0.0)
    assert (first.written_1h, first.written_5m) == (1_003, 203)
    later = ask(cache, request, 3_000.0)
    assert (later.read, later.written_1h, later.written_5m) == (1_003, 0, 203)


def test_anything_changed_before_the_mark_is_a_miss() -> None:
    tools = [{"name": "a", "input_schema": {"type": "object"}}]
    cache = PromptCache()
    base = body(text("x" * 4_000, MARK), system="s", tools=tools)
    ask(cache, base)
    assert ask(cache, body(text("x" * 4_000, MARK), system="t", tools=tools)).read == 0
    assert ask(cache, {**base, "tools": [{"name": "b", "input_schema": {"type": "object"}}]}).read == 0
    assert ask(cache, {**base, "tool_choice": {"type": "any"}}).read == 0
    assert ask(cache, base, spec=ModelSpec("other", min_cache=100)).read == 0
    assert ask(cache, base).read > 0


def test_where_the_marks_stand_does_not_change_the_prefix() -> None:
    cache = PromptCache()
    ask(cache, body(text("x" * 4_000, MARK)))
    assert ask(cache, body(text("x" * 4_000), text("more", MARK))).read == 1_003


@pytest.mark.parametrize(("between", "read"), [(19, 1_003), (20, 0)])
def test_the_look_back_is_twenty_blocks(between: int, read: int) -> None:
    cache = PromptCache()
    head = text("x" * 4_000, MARK)
    ask(cache, body(head))
    blocks = [text(f"b{n}") for n in range(between)]
    blocks[-1] = text("last", MARK)
    assert ask(cache, body(text("x" * 4_000), *blocks)).read == read


def test_a_mark_on_the_whole_request_is_a_mark_on_its_last_block() -> None:
    cache = PromptCache()
    ask(cache, body(text("x" * 4_000), cache_control=MARK))
    assert ask(cache, body(text("x" * 4_000), text("next"), cache_control=MARK)).read == 1_003


def test_usage_adds_up_to_the_prompt() -> None:
    usage = BilledInput(uncached=5, written_5m=7, written_1h=11, read=13)
    assert usage.total == 36
    shown = usage.as_json(3)
    assert shown["cache_creation_input_tokens"] == 18
    assert (shown["input_tokens"], shown["cache_read_input_tokens"], shown["output_tokens"]) == (5, 13, 3)


def test_the_order_is_tools_then_system_then_messages_and_each_keeps_what_stands_before_it() -> None:
    def request(tool: str, system: str, words: str) -> Json:
        tools = [{"name": tool, "description": "d" * 2_000, "input_schema": {}, "cache_control": MARK}]
        return body(text(words * 500, MARK), tools=tools, system=[text(system * 500, MARK)])

    cache = PromptCache()
    ends = [prefix.tokens for prefix in survey(request("a", "syst", "word"))]
    ask(cache, request("a", "syst", "word"))
    assert ask(cache, request("a", "syst", "othr")).read == ends[1]
    assert ask(cache, request("a", "else", "word")).read == ends[0]
    assert ask(cache, request("b", "syst", "word")).read == 0


def test_only_what_stands_behind_the_last_mark_counts_as_input() -> None:
    cache = PromptCache()
    usage = ask(cache, body(text("x" * 4_000, MARK), text("y" * 400, MARK), text("z" * 40)))
    assert (usage.written_5m, usage.uncached, usage.read) == (1_106, 13, 0)
    later = ask(cache, body(text("x" * 4_000, MARK), text("n" * 400, MARK), text("z" * 40)))
    assert (later.read, later.written_5m, later.uncached) == (1_003, 103, 13)


def test_a_longer_mark_reads_what_a_shorter_one_wrote_and_both_live_on() -> None:
    cache = PromptCache()
    head, tail = text("x" * 4_000, MARK), text("y" * 4_000, MARK)
    ask(cache, body(head, tail), 0.0)
    assert ask(cache, body(head, tail), 290.0).read == 2_006
    assert ask(cache, body(head, text("other", MARK)), 580.0).read == 1_003, "the milestone was used at 290"


def test_pieces_surveyed_one_by_one_make_the_same_prefixes() -> None:
    request = body(text("a" * 400, MARK), text("b"), system="s", tools=[{"name": "t", "input_schema": {}}])
    pieces = head_pieces(request)
    for message in request["messages"]:
        pieces += message_pieces(message, rendering_fields(request))
    assert chain_prefixes(pieces) == survey(request)

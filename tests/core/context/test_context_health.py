"""How well the cache serves an agent: what counts as a miss, when it is told, and what is named."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.agent.agent_states import Life

from callboard.core.context.cache.health import (
    CacheHealth,
    Sent,
    cache_hit_rate,
    first_change,
    health_seen,
    thrashes,
    what_changed,
)
from callboard.core.context.view.messages import make_block, make_message
from callboard.types import events as ev
from callboard.types.agent_spec import ModelLimits
from callboard.types.messages import Source, ViewMessage
from callboard.types.records import Json, Usage

LIMITS = ModelLimits(cache_minimum=1_000, cache_ttl=300)
MARK = {"cache_control": {"type": "ephemeral"}}


def usage(read: int = 0, written: int = 0, plain: int = 0) -> Usage:
    return Usage(input_tokens=plain, cache_creation_input_tokens=written, cache_read_input_tokens=read)


def after(*calls: Usage, every: float = 10.0) -> CacheHealth:
    health = CacheHealth()
    for number, one in enumerate(calls):
        health = health_seen(health, one, LIMITS, 1_000 + number * every)
    return health


MISS = usage(written=5_000)


def test_the_hit_rate_is_what_was_read_of_all_input() -> None:
    assert cache_hit_rate(usage(read=75, written=15, plain=10)) == 0.75
    assert cache_hit_rate(Usage()) == 0.0


def test_three_misses_behind_a_first_call_are_a_streak() -> None:
    assert [thrashes(after(*[MISS] * count)) for count in range(6)] == [False, False, False, False, True, True]


def test_one_hit_ends_the_streak() -> None:
    assert after(MISS, MISS, MISS, usage(read=5_000)).misses == 0
    assert not thrashes(after(MISS, MISS, MISS, usage(read=5_000), MISS, MISS))


def test_a_read_of_less_than_half_of_what_was_left_is_a_miss() -> None:
    """System and tools are found, and all messages are written anew: that is what an unstable message costs."""
    large = usage(read=2_000, written=50_000)
    assert thrashes(after(large, large, large, large))
    assert not thrashes(after(*[usage(read=30_000, written=22_000)] * 4))


def test_a_shorter_view_need_not_find_what_it_has_lost() -> None:
    assert after(usage(written=50_000), usage(read=4_000, written=2_000)).misses == 0


@pytest.mark.parametrize(
    ("calls", "every"),
    [
        ([usage(plain=900)] * 8, 10.0),  # smaller than what is cached at all
        ([MISS] * 8, 301.0),  # each waits longer than an entry lives
        ([MISS], 10.0),
        ([Usage(output_tokens=5)] * 8, 10.0),  # nothing is known
    ],
)
def test_a_miss_that_the_cache_explains_is_not_counted(calls: list[Usage], every: float) -> None:
    assert after(*calls, every=every).misses == 0


def test_a_first_prompt_too_small_to_be_cached_leaves_nothing_to_find() -> None:
    assert after(usage(plain=900), MISS).misses == 0
    assert after(usage(plain=900), MISS, MISS).misses == 1


def test_a_compaction_costs_one_miss_and_is_no_streak() -> None:
    calls = [MISS, usage(read=5_000, written=40_000), usage(read=2_000, written=20_000), usage(read=22_000)]
    assert [after(*calls[: n + 1]).misses for n in range(4)] == [0, 0, 1, 0]


def test_a_streak_is_told_once_and_the_next_one_again() -> None:
    life = Life.begun(models={"one": LIMITS.model_dump()}).prompted("go")
    for _ in range(4):
        life = life.replied({"type": "text", "text": "x"}, usage=MISS)
    assert thrashes(life.state.costs.health)
    life = life.on(ev.CacheThrash, calls=3, changed="x").replied({"type": "text", "text": "x"}, usage=MISS)
    assert not thrashes(life.state.costs.health)
    life = life.replied({"type": "text", "text": "x"}, usage=usage(read=5_000))
    for _ in range(3):
        life = life.replied({"type": "text", "text": "x"}, usage=MISS)
    assert thrashes(life.state.costs.health)


# What changed


def listed(*blocks: Json, mark: int | None = None) -> bytes:
    marked = [{**block, **MARK} if place == mark else block for place, block in enumerate(blocks)]
    return json.dumps(marked).encode()


def tool(name: str, text: str = "does it") -> Json:
    return {"name": name, "description": text, "input_schema": {"type": "object"}}


def section(text: str) -> Json:
    return {"type": "text", "text": text}


def message(id: int, role: Literal["user", "assistant"], source: Source, *blocks: Json) -> ViewMessage:
    return make_message(id, role, tuple(make_block(data, source, 0) for data in blocks), "t")


TOOLS = (tool("bash"), tool("read_file"))
SYSTEM = (section("You are the lead."), section("# Workspace\n/w"), section("# Memory\nnone"))
ASKED: Json = {"type": "tool_use", "id": "u1", "name": "read_file", "input": {}}
RESULT: Json = {"type": "tool_result", "tool_use_id": "u1", "content": "long"}
HISTORY = (
    message(1, "user", "person", section("Do it.")),
    message(2, "assistant", "assistant", section("I read."), ASKED),
    message(3, "user", "tool", RESULT),
)


def sent(
    tools: Sequence[Json] = TOOLS,
    system: Sequence[Json] = SYSTEM,
    messages: Sequence[ViewMessage] = HISTORY,
    model: str = "one",
    mark: int = 1,
) -> Sent:
    return Sent(model, listed(*system, mark=mark), "", listed(*tools, mark=len(tools) - 1), messages)


CLEARED = message(3, "user", "tool", {**RESULT, "content": "[Previous: used read_file.]"})
MORE = message(4, "assistant", "assistant", section("It says: long."))


@pytest.mark.parametrize(
    ("now", "named"),
    [
        (sent(), ""),
        (sent(mark=2), ""),  # a mark that moved
        (sent(messages=(*HISTORY, MORE)), ""),
        (sent(model="two"), "the model (now two, before one)"),
        (sent(tools=(tool("bash"), tool("read_file", "reads"))), 'tool "read_file"'),
        (sent(tools=(tool("read_file"), tool("bash"))), 'tool "read_file" (in another place)'),
        (sent(tools=(tool("bash"),)), 'tool "read_file" (gone)'),
        (sent(tools=(tool("a"), *TOOLS)), 'tool "a" (new)'),
        (sent(system=(SYSTEM[0], section("# Workspace\n/x"), SYSTEM[2])), 'system section 2 ("Workspace")'),
        (sent(system=(section("It is 11:45."), *SYSTEM[1:])), 'system section 1 ("You are the lead.")'),
        (sent(system=SYSTEM[:2]), 'system section 3 ("Memory") (gone)'),
        (sent(system=(*SYSTEM, section("# You\nalice"))), 'system section 4 ("You") (new)'),
        (sent(messages=(*HISTORY[:2], CLEARED, MORE)), "message 3 (tool result of read_file)"),
        (sent(messages=HISTORY[:1]), "message 2 (a reply; it is no longer in the view)"),
        (sent(messages=(message(1, "user", "person", section("Do that.")), *HISTORY[1:])), "message 1 (the person's"),
    ],
)
def test_the_first_block_that_changed_is_named(now: Sent, named: str) -> None:
    found = first_change(sent(), now)
    assert found.startswith(named)
    assert bool(found) == bool(named)


def test_a_message_that_only_grew_is_no_change() -> None:
    grown = message(3, "user", "tool", RESULT, section("and"))
    assert first_change(sent(), sent(messages=(*HISTORY[:2], grown))) == ""


@given(st.integers(0, 30), st.integers(1, 31))
def test_of_several_changed_messages_the_first_is_named(place: int, count: int) -> None:
    """Each message but those from `place` on is the same."""
    roles: list[Literal["user", "assistant"]] = ["user", "assistant"]
    before = [message(n, roles[n % 2], "person", section(f"{n}")) for n in range(31)]
    now = [
        message(n, roles[n % 2], "person", section("other")) if place <= n < place + count else one
        for n, one in enumerate(before)
    ]
    assert first_change(sent(messages=before), sent(messages=now)).startswith(f"message {place + 1} (")


def test_where_nothing_of_ours_changed_the_service_is_named() -> None:
    silent = after(*[usage(plain=5_000)] * 4)
    assert thrashes(silent)
    assert "reports neither writes nor reads" in what_changed(sent(), sent(), silent)
    assert "did not find what it had written" in what_changed(sent(), sent(), after(*[MISS] * 4))
    assert "no longer writes" in what_changed(sent(), sent(), after(MISS, *[usage(plain=5_000)] * 4))
    assert what_changed(sent(), sent(model="two"), silent).startswith("the model")

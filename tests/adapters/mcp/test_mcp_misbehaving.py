"""A misbehaving server costs only its own calls: each runs beside a good one, under the real manager."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from tests.adapters.mcp.mcp_world import MAX_GROWTH_KB, McpWorld, answer_to, processes_with, servers, status_of, text_of

from callboard.core.mcp.limits import McpLimits
from callboard.types.errors import ToolRefused
from callboard.types.mcp import ServerEntry

pytestmark = pytest.mark.anyio

ODD = str(Path(__file__).with_name("odd_server.py"))
QUICK = McpLimits(start=30.0, call=4.0, idle=3.0)
"""Limits for calls that hang. Working calls must answer within them, even on a busy machine."""
SHORT = McpLimits(start=2.0)
"""Limits for servers that never become ready."""
GOOD = McpLimits(start=30.0, call=30.0)
SOAK = int(os.environ.get("SOAK", "1"))


def odd(mode: str = "good", name: str = "odd", **env: str) -> ServerEntry:
    return ServerEntry(
        name, "stdio", "run", "a test", sys.executable, ("-I", "-S", ODD, mode), env={"ODD_MARK": "", **env}
    )


async def check_echo(world: McpWorld, server: str = "good") -> None:
    """Check that the server works."""
    assert await world.text(f"mcp__{server}__echo", text="hello") == "hello"


@pytest.mark.slow
async def test_one_that_cannot_be_connected_says_why_and_the_others_are_there(folder: Path) -> None:
    wrong = {
        "exits": "I cannot start today: no licence",
        "refuses": "Good.",
        "shapeless": "",
        "version": "1999-01-01",
        "twins": "mcp__twins__a_b",
    }
    with anyio.fail_after(180):
        async with servers(folder, *(odd(mode, mode) for mode in wrong), odd(name="good"), limits=GOOD) as world:
            for mode, why in wrong.items():
                failed = status_of(world, mode)
                assert (failed.state, why in failed.why) == ("failed", True), failed
                assert "\x1b" not in failed.why
            assert sorted(world.manager.tools()) == ["mcp__good__do", "mcp__good__echo"]
            await check_echo(world)


@pytest.mark.slow
async def test_one_that_never_gets_ready_is_ended_when_its_time_is_over(folder: Path) -> None:
    modes = ("silent", "reads-nothing", "torrent")
    with anyio.fail_after(180):
        async with servers(folder, *(odd(mode, mode) for mode in modes), limits=SHORT) as world:
            for mode in modes:
                assert status_of(world, mode).state == "failed"
                assert "not ready within" in status_of(world, mode).why
            assert not world.manager.tools()
    assert processes_with(str(folder)) == []


@pytest.mark.slow
async def test_one_that_is_odd_and_works_is_used(folder: Path) -> None:
    modes = ["noisy", "stubborn", "forks", "schemas", "names", "tags", "many"]
    with anyio.fail_after(180):
        async with servers(folder, *(odd(mode, mode) for mode in modes), limits=GOOD) as world:
            for mode in modes:
                assert status_of(world, mode).state == "connected", status_of(world, mode)
                await check_echo(world, mode)
            for name, tool in world.manager.tools().items():
                assert len(name) <= 64
                assert name.replace("_", "").replace("-", "").isalnum()
                assert name.isascii()
                assert tool.spec.input_schema["type"] == "object"
                assert len(str(tool.spec.input_schema)) < 100_000
                assert len(tool.spec.description) <= 2_000
                Draft202012Validator.check_schema(tool.spec.input_schema)  # or the service rejects the request
    assert processes_with(str(folder)) == []


async def test_one_that_pages_its_list_for_ever_is_ended_or_bounded(folder: Path) -> None:
    with anyio.fail_after(180):
        async with servers(folder, odd("endless"), odd(name="good"), limits=QUICK) as world:
            assert len(world.manager.tools()) < 20_000
            await check_echo(world)


@pytest.mark.parametrize("mode", ["empty-cursor", "deaf-to-cursors"])
async def test_a_list_ends_at_an_empty_cursor_and_a_page_that_comes_again_counts_once(folder: Path, mode: str) -> None:
    with anyio.fail_after(60):
        async with servers(folder, odd(mode), limits=GOOD) as world:
            assert sorted(world.manager.tools()) == ["mcp__odd__do", "mcp__odd__echo"], status_of(world)
            await check_echo(world, "odd")


async def test_the_tools_before_a_page_that_is_refused_can_be_used_and_the_refusal_is_told(folder: Path) -> None:
    with anyio.fail_after(60):
        async with servers(folder, odd("one-page"), limits=GOOD) as world:
            assert sorted(world.manager.tools()) == ["mcp__odd__do", "mcp__odd__echo"], status_of(world)
            assert "only 2 of its tools are known, as page 2 was refused: no such cursor" in status_of(world).why
            await check_echo(world, "odd")


@pytest.mark.slow
async def test_one_that_ends_after_each_start_is_not_started_for_ever(folder: Path) -> None:
    with anyio.fail_after(180):
        async with servers(folder, odd("loops"), odd(name="good"), limits=GOOD) as world:
            said = [await call_echo(world) for _ in range(5)]
            assert all(said)
            assert "3 times" in status_of(world).why
            await check_echo(world)


async def call_echo(world: McpWorld) -> str:
    if "mcp__odd__echo" not in world.manager.tools():
        return status_of(world).why
    try:
        return text_of(await world.call("mcp__odd__echo", text="x"))
    except ToolRefused as refused:
        return str(refused)


@pytest.mark.slow
async def test_a_call_that_goes_oddly_gets_an_answer_and_the_next_one_too(folder: Path) -> None:
    odd_ones = {
        "rubbish": "said",
        "wrongids": "yours",
        "twice": "first",
        "flood": "flooded",
        "logs": "logged",
        "prints": "printed",
        "shapeless": "",
        "odd_content": "",
        "fails": "Good.",
        "halved": "halved ",
        "latin": "a caf",
        "closing": "Good.",
    }
    with anyio.fail_after(120):
        async with servers(folder, odd(ODD_COUNT=str(1_500 * SOAK)), odd(name="good"), limits=GOOD) as world:
            for what, told in odd_ones.items():
                said = await answer_to(world, what)
                assert told in said, what
                assert len(said) < 200_000
                await check_echo(world, "odd")
            await check_echo(world)


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("bare_list", "bare list"),
        ("bare_error", "the disk is full"),
        ("word_code", "the disk is full"),
        ("no_version", '"content"'),
    ],
)
async def test_an_answer_in_a_wrong_form_ends_its_call_at_once(folder: Path, what: str, text: str) -> None:
    with anyio.fail_after(60):
        async with servers(folder, odd(), limits=McpLimits(start=30)) as world:
            said = await answer_to(world, what)
            assert "not a valid message of the protocol" in said
            assert text in said
            await check_echo(world, "odd")


@pytest.mark.parametrize(
    ("what", "text"),
    [("batch", "in a batch"), ("deep", "the answer cannot be read: "), ("cut_off", "the answer cannot be read: ")],
)
async def test_an_answer_in_a_batch_arrives_and_one_that_is_not_json_ends_its_call(
    folder: Path, what: str, text: str
) -> None:
    with anyio.fail_after(60):
        async with servers(folder, odd(), limits=McpLimits(start=30)) as world:
            assert text in await answer_to(world, what)
            await check_echo(world, "odd")


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("what", ["die", "shut", "hang", "deaf"])
async def test_a_call_that_never_ends_is_told_and_the_server_comes_back(folder: Path, what: str) -> None:
    with anyio.fail_after(180):
        async with servers(folder, odd(), odd(name="good"), limits=QUICK) as world:
            said = await answer_to(world, what)
            assert "known" in said  # the effect of the call is unknown
            await check_echo(world)
            await check_echo(world, "odd")
    assert processes_with(str(folder)) == []


async def test_calls_beside_one_that_kills_its_server_are_all_told(folder: Path) -> None:
    said: list[str] = []
    with anyio.fail_after(180):
        async with servers(folder, odd(), limits=GOOD) as world:

            async def one(what: str) -> None:
                said.append(await answer_to(world, what))

            async with anyio.create_task_group() as group:
                for _ in range(4):
                    group.start_soon(one, "hang")
                await anyio.sleep(0.2)
                group.start_soon(one, "die")
            await check_echo(world, "odd")
    assert len(said) == 5
    assert all("known" in each for each in said)


async def test_a_list_that_changes_in_the_middle_is_read_again(folder: Path) -> None:
    with anyio.fail_after(180):
        async with servers(folder, odd(), odd(name="good"), limits=GOOD) as world:
            before, good = world.manager.revision, world.manager.tools()["mcp__good__echo"]
            assert await answer_to(world, "change") == "changed"
            while "mcp__odd__new" not in world.manager.tools():
                before = await world.manager.changed(before)
            assert world.manager.tools()["mcp__odd__echo"].spec.input_schema.get("required") is None
            assert world.manager.tools()["mcp__good__echo"] is good


async def test_two_servers_that_want_one_name_b30_the_later_gives_way(folder: Path) -> None:
    with anyio.fail_after(180):
        async with servers(folder, odd(name="a b"), odd(name="a_b"), limits=GOOD) as world:
            assert [one.state for one in (status_of(world, "a b"), status_of(world, "a_b"))] == ["connected", "failed"]
            assert "a b" in status_of(world, "a_b").why
            await check_echo(world, "a_b")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["longline", "huge", "large"])
async def test_what_is_too_much_is_dropped_or_kept_in_a_file_and_memory_stays_bounded(folder: Path, what: str) -> None:
    size = 200_000_000 if SOAK > 1 else 24_000_000
    with anyio.fail_after(300):
        async with servers(folder, odd(ODD_SIZE=str(size)), odd(name="good"), limits=GOOD) as world:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            said = await answer_to(world, what)
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MAX_GROWTH_KB
            assert {"longline": "sprayed", "huge": "16,777,216", "large": ".out"}[what] in said
            assert len(said) < 200_000
            await check_echo(world, "odd")
            await check_echo(world)


@pytest.mark.soak
@settings(max_examples=10 * SOAK, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), order=st.permutations(range(5)))
def test_answers_in_any_order_between_any_noise_reach_their_own_callers(
    folder: Path, seed: int, order: list[int]
) -> None:
    anyio.run(shuffled, folder, seed, order)


async def test_answers_in_another_order_reach_their_own_callers(folder: Path) -> None:
    for seed in range(2):
        await shuffled(folder, seed, [3, 1, 4, 0, 2])


async def shuffled(folder: Path, seed: int, order: list[int]) -> None:
    heard: dict[int, str] = {}
    with anyio.fail_after(180):
        async with servers(folder, odd(ODD_SEED=str(seed)), limits=GOOD) as world:

            async def one(number: int) -> None:
                heard[number] = await world.text("mcp__odd__do", what="shuffled", text=str(number))

            async with anyio.create_task_group() as group:
                for number in order:
                    group.start_soon(one, number)
    assert heard == {number: f"answer to {number}" for number in range(5)}

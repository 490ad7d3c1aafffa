"""The bash tool reports how a command ended, never runs one twice, and finds its background commands again."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.adapters.shell.outside_world import ENVIRONMENT, OutsideWorld, text_of

from callboard.adapters.extensions.memory import Memories, MemoryPlaces
from callboard.adapters.processes.launcher import find_process
from callboard.adapters.processes.pids import is_same, started_at
from callboard.adapters.tools.roots import RootCache
from callboard.adapters.tools.search import Searcher
from callboard.adapters.tools.shell import background_tools, shell_tools
from callboard.config.settings import load_settings
from callboard.ports.tool import BackgroundTask, ToolOutcome
from callboard.sessions.compose import runtime_tools
from callboard.types.events import BackgroundEnded, BackgroundStarted

pytestmark = pytest.mark.anyio

(BASH,) = shell_tools()
TASK_OUTPUT, TASK_STOP = background_tools()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def world(tmp_path: Path) -> OutsideWorld:
    return OutsideWorld(tmp_path)


def add_background_task(world: OutsideWorld, event: Any, **changes: Any) -> BackgroundTask:
    """Return the record that the engine makes of the event."""
    assert isinstance(event, BackgroundStarted)
    task = BackgroundTask(event.id, event.command, event.pid, event.started, event.output, "running")
    world.background[event.id] = replace(task, **changes)
    return task


async def test_a_command_runs_in_the_agents_folder(world: OutsideWorld) -> None:
    outcome = await world.run(BASH, command="pwd; cat", description="Say where we are")
    assert (text_of(outcome), outcome.is_error) == (str(world.root), False)


async def test_a_shell_is_new_for_each_call(world: OutsideWorld) -> None:
    await world.run(BASH, command="cd /; export A=1")
    assert text_of(await world.run(BASH, command="echo $PWD$A")) == str(world.root)


async def test_exit_3_is_a_failure_and_told(world: OutsideWorld) -> None:
    outcome = await world.run(BASH, command="echo hi; exit 3")
    assert (text_of(outcome), outcome.is_error) == ("hi\nexit code 3", True)
    assert outcome.data["exit_code"] == 3


async def test_silence_is_told_as_such(world: OutsideWorld) -> None:
    assert text_of(await world.run(BASH, command="true")) == "(no output)"


async def test_a_time_out_is_told_with_what_came_before_it(world: OutsideWorld) -> None:
    for seconds in (0.3, 5, 60):  # on a busy machine a shell may start later than the timeout
        outcome = await world.run(BASH, command="echo begun; sleep 300", timeout_s=seconds)
        if text_of(outcome).startswith("begun"):
            break
    assert text_of(outcome) == f"begun\n[Timed out after {seconds} s: the command and all that it started were ended.]"
    assert outcome.is_error
    assert outcome.data["timed_out"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "command"),
        ({"command": 5}, "command"),
        ({"command": "true", "timeout_s": 601}, "timeout_s"),
        ({"command": "true", "timeout_s": 0}, "timeout_s"),
        ({"command": "true", "background": True}, "background"),
        ({"command": " \n"}, "empty"),
        ({"command": "echo a\0b"}, "NUL"),
        ({"command": "echo \ud83d"}, "surrogate"),
        ({"command": "x" * 100_001}, "100000 bytes"),
    ],
)
async def test_an_input_that_does_not_fit_is_refused_by_name(
    world: OutsideWorld, given: dict[str, Any], said: str
) -> None:
    outcome = await world.run(BASH, **given)
    assert outcome.is_error
    assert said in text_of(outcome)


def test_the_schema_is_strict() -> None:
    schema = BASH.spec.input_schema
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["command"]
    assert set(schema["properties"]) == {"command", "description", "timeout_s", "run_in_background", "hosts"}


async def test_a_folder_that_is_gone_is_told(world: OutsideWorld) -> None:
    world.root.rmdir()
    assert "no longer exists" in text_of(await world.run(BASH, command="true"))


async def test_after_a_crash_what_still_runs_is_ended_and_the_outcome_is_unknown(world: OutsideWorld) -> None:
    given = {"command": "echo half; sleep 300"}
    context = world.context("call_x")
    output = world.results / "call_x.out"
    pid, started = await world.launcher.start("echo half; echo > ready; sleep 300", create_pipes(world), output)
    await wait_until_ready(world)
    outcome = await BASH.repair(given, {"pid": pid, "started": started}, context)
    assert outcome is not None
    assert outcome.is_error
    assert "outcome is unknown" in text_of(outcome)
    assert "has been ended" in text_of(outcome)
    assert text_of(outcome).endswith("Its last output was:\nhalf")
    assert not is_same(pid, started)


async def test_it_is_ended_even_when_its_pid_never_reached_the_journal(world: OutsideWorld) -> None:
    output = world.results / "call_x.out"
    pid, started = await world.launcher.start("echo > ready; sleep 300", create_pipes(world), output)
    await wait_until_ready(world)
    outcome = await BASH.repair({"command": "sleep 300"}, {}, world.context("call_x"))
    assert outcome is not None
    assert outcome.is_error
    assert not is_same(pid, started)


async def test_a_command_that_a_person_moves_to_the_background_goes_on_there(world: OutsideWorld) -> None:
    os.mkfifo(world.root / "ready")
    os.mkfifo(world.root / "gate")
    given = {"command": "echo begun; echo > ready; read line < gate; echo ended", "timeout_s": 60}
    context = world.context("call_m")
    outcomes = list[ToolOutcome]()

    async def run() -> None:
        outcomes.append(await BASH.run(given, context))

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await anyio.to_thread.run_sync((world.root / "ready").read_text)
        assert not context.foreground.move("call_other")
        assert context.foreground.move("call_m")
    (outcome,) = outcomes
    (began,) = outcome.events
    assert isinstance(began, BackgroundStarted)
    assert (began.deadline, outcome.is_error, outcome.data["id"]) == (None, False, began.id)
    for word in ("moved this command to the background", began.id, began.output):
        assert word in text_of(outcome)
    assert not context.foreground.move("call_m"), "the call has ended"
    # A crash between the move and the commit of the result: the next process finds the command, and does not end it.
    again = await BASH.repair(given, {}, world.context("call_m"))
    assert again is not None
    assert again.events == outcome.events
    add_background_task(world, began)
    assert ": running]" in text_of(await world.run(TASK_OUTPUT, id=began.id))
    await anyio.to_thread.run_sync((world.root / "gate").write_text, "go\n")
    told = text_of(await world.run(TASK_OUTPUT, id=began.id, block=True, timeout_s=60))
    for word in ("exit code 0", "begun", "ended"):
        assert word in told
    late = await BASH.repair(given, {}, world.context("call_m"))
    assert late is not None
    assert [event.id for event in late.events if isinstance(event, BackgroundStarted)] == [began.id]


async def test_a_command_that_never_began_is_not_run_by_repair(world: OutsideWorld) -> None:
    outcome = await BASH.repair({"command": "touch done"}, {}, world.context("call_x"))
    assert outcome is not None
    assert outcome.is_error
    assert not (world.root / "done").exists()


async def test_only_the_flag_makes_a_background_command(world: OutsideWorld) -> None:
    outcome = await world.run(BASH, command="echo server; exit 0 # npm run dev &")
    assert outcome.events == ()


async def test_a_background_command_answers_at_once_and_its_output_stays_readable(world: OutsideWorld) -> None:
    create_pipes(world)
    outcome = await world.run(BASH, command="seq 1 30000; echo > ready; sleep 300", run_in_background=True)
    event = outcome.events[0]
    assert isinstance(event, BackgroundStarted)
    assert text_of(outcome) == f"[Background task {event.id} started]"
    assert event.id.startswith("bg_")
    assert event.deadline is None
    add_background_task(world, event)
    await wait_until_ready(world)
    assert text_of(await world.run(TASK_OUTPUT, id=event.id)).startswith(f"[{event.id}: running]\n")
    stopped = await world.run(TASK_STOP, id=event.id)
    (ended,) = stopped.events
    assert isinstance(ended, BackgroundEnded)
    assert (ended.id, ended.status, ended.exit_code) == (event.id, "stopped", 143)
    assert not is_same(event.pid, event.started)
    add_background_task(world, event, status="stopped")
    assert await all_parts(world, event.id) == "".join(str(number) for number in range(1, 30001))


async def all_parts(world: OutsideWorld, name: str) -> str:
    """Return the whole output, read part by part, without line ends."""
    parts, offset, size = "", 0, 1
    while offset < size:
        part = await world.run(TASK_OUTPUT, id=name, offset=offset)
        _, *body, _ = text_of(part).split("\n")
        parts += "".join(body)
        offset, size = part.data["offset"], part.data["size"]
    return parts


async def test_a_time_limit_in_the_background_is_a_deadline(world: OutsideWorld) -> None:
    outcome = await world.run(BASH, command="sleep 300", run_in_background=True, timeout_s=5)
    event = outcome.events[0]
    assert isinstance(event, BackgroundStarted)
    assert event.deadline == 1005.0
    assert await world.launcher.end(event.pid, event.started)


async def test_the_shorter_one_of_the_two_time_limits_in_the_background_counts(world: OutsideWorld) -> None:
    home = world.base / "config"
    (home / "callboard").mkdir(parents=True)
    (home / "callboard/settings.yaml").write_text("background: {deadline: 4}\n")
    loaded = load_settings({"XDG_CONFIG_HOME": str(home)}, workspace=world.root)
    notes = Memories(MemoryPlaces(world.root, world.root, world.root, world.root))
    cache = RootCache(world.root)
    bash = runtime_tools(loaded, world.root, {}, notes, root_cache=cache, asks_in_call=False)["bash"]
    for given, deadline in (({"timeout_s": 5}, 1004.0), ({"timeout_s": 3}, 1003.0), ({}, 1004.0)):
        outcome = await world.run(bash, command="sleep 300", run_in_background=True, **given)
        (event,) = outcome.events
        assert isinstance(event, BackgroundStarted)
        assert event.deadline == deadline
        assert await world.launcher.end(event.pid, event.started)


async def test_a_background_command_is_taken_up_again_after_a_crash(world: OutsideWorld) -> None:
    given = {"command": "echo > ready; read line < gate; exit 4", "run_in_background": True}
    create_pipes(world)
    first = await world.run(BASH, "call_b", **given)
    await wait_until_ready(world)
    running = await BASH.repair(given, {}, world.context("call_b"))
    assert running is not None
    assert running.events == first.events
    event = running.events[0]
    assert isinstance(event, BackgroundStarted)
    await anyio.to_thread.run_sync((world.root / "gate").write_text, "go\n")
    assert await world.launcher.wait(event.pid, event.started, Path(event.output)) == 4
    ended = await BASH.repair(given, {}, world.context("call_b"))
    assert ended is not None
    again = ended.events[0]
    assert isinstance(again, BackgroundStarted)
    assert again.id == event.id
    assert await world.launcher.wait(again.pid, again.started, Path(again.output)) == 4, "its exit code is found again"
    assert not ended.is_error


async def test_the_end_of_a_background_command_is_told_with_its_code(world: OutsideWorld) -> None:
    outcome = await world.run(BASH, command="printf '\\xff'; exit 3", run_in_background=True)
    event = outcome.events[0]
    assert isinstance(event, BackgroundStarted)
    assert await world.launcher.wait(event.pid, event.started, Path(event.output)) == 3
    add_background_task(world, event, status="failed", exit_code=3)
    told = text_of(await world.run(TASK_OUTPUT, id=event.id))
    assert told.startswith(f"[{event.id}: failed, exit code 3]\n\ufffd\n")
    assert "ended already: failed, exit code 3" in text_of(await world.run(TASK_STOP, id=event.id))


async def test_a_part_never_ends_inside_a_character(world: OutsideWorld) -> None:
    text = "日本語" * 10_000
    path = world.results / "bg.txt"
    path.write_text(text)
    world.background["bg_1"] = BackgroundTask("bg_1", "", 0, 0.0, str(path), "completed", 0)
    first = await world.run(TASK_OUTPUT, id="bg_1")
    second = await world.run(TASK_OUTPUT, id="bg_1", offset=first.data["offset"])
    bodies = [text_of(part).split("\n")[1] for part in (first, second)]
    assert "".join(bodies) == text


async def test_an_unknown_background_task_lists_those_there_are(world: OutsideWorld) -> None:
    world.background["bg_1"] = BackgroundTask("bg_1", "", 0, 0.0, "", "completed", 0)
    for tool in (TASK_OUTPUT, TASK_STOP):
        outcome = await world.run(tool, id="bg_2")
        assert outcome.is_error
        assert "bg_1" in text_of(outcome)


def create_pipes(world: OutsideWorld) -> Path:
    """Create two pipes to wait on, and return their folder."""
    for name in ("ready", "gate"):
        os.mkfifo(world.root / name)
    return world.root


async def wait_until_ready(world: OutsideWorld) -> None:
    """Wait until the command has run `echo > ready`; its earlier output has then been read."""
    await anyio.to_thread.run_sync((world.root / "ready").read_text)
    for path in world.results.glob("*.out"):
        assert find_process(path) is not None


# New output since the last call


def looking() -> Any:
    return background_tools(Searcher(ENVIRONMENT).lines)[2]


async def test_each_look_shows_only_what_is_new(world: OutsideWorld) -> None:
    output = world.results / "bg_1.out"
    output.write_text("one\ntwo\n")
    world.background["bg_1"] = BackgroundTask("bg_1", "x", 0, 0.0, str(output), "running")
    look = looking()
    assert text_of(await world.run(look, id="bg_1")).split("\n")[1:] == ["one", "two", "[Bytes 0-8 of 8.]"]
    assert text_of(await world.run(look, id="bg_1")).split("\n")[1:] == ["[Nothing new.]"]
    output.write_text("one\ntwo\nthree\n")
    assert text_of(await world.run(look, id="bg_1")).split("\n")[1:] == ["three", "[Bytes 8-14 of 14.]"]


async def test_a_look_that_a_crash_cut_off_shows_the_same_again(world: OutsideWorld) -> None:
    output = world.results / "bg_1.out"
    output.write_text("one\n")
    world.background["bg_1"] = BackgroundTask("bg_1", "x", 0, 0.0, str(output), "completed", 0)
    look = looking()
    first = await world.run(look, call="call_9", id="bg_1")
    assert "one" in text_of(first)
    assert await world.run(look, call="call_9", id="bg_1") == first
    assert "one" not in text_of(await world.run(look, call="call_10", id="bg_1"))


async def test_a_filter_shows_matching_lines_and_leaves_an_unfinished_line_for_later(world: OutsideWorld) -> None:
    output = world.results / "bg_1.out"
    output.write_bytes(b"ok 1\nERROR \xff\nok 2\nERR")
    pid = os.getpid()
    started = started_at(pid) or 0.0
    world.background["bg_1"] = BackgroundTask("bg_1", "x", pid, started, str(output), "running")
    world.background["bg_1"] = replace(world.background["bg_1"], boot=world.launcher.boot)
    look = looking()
    lines = text_of(await world.run(look, id="bg_1", filter="ERR")).split("\n")
    assert lines == ["[bg_1: running]", "ERROR \N{REPLACEMENT CHARACTER}", "[Bytes 0-18 of 21.]"]
    with output.open("ab") as file:
        file.write(b"OR 2\n")
    assert "not a regular expression" in text_of(await world.run(look, id="bg_1", filter="("))
    assert "ERROR 2" in text_of(await world.run(look, id="bg_1", filter="^ERR")), "a refused look skips nothing"


async def test_many_matching_lines_are_cut_and_counted(world: OutsideWorld) -> None:
    output = world.results / "bg_1.out"
    output.write_text("".join(f"line {number:05}\n" for number in range(9_000)))
    world.background["bg_1"] = BackgroundTask("bg_1", "x", 0, 0.0, str(output), "completed", 0)
    text = text_of(await world.run(looking(), id="bg_1", filter="line"))
    assert "line 00000" in text
    assert "more lines match.]" in text
    assert len(text) < 51_000

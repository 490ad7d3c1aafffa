"""A whole session recorded through the app and replayed elsewhere: the same words, and nothing done a second time."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest
from tests.cli.commands.command import Command

from callboard.cli.commands.demo import ASSIGNMENT
from callboard.ports.environment import Answer
from callboard.sessions.open import open_session
from callboard.sessions.options import (
    IdentityOptions,
    ModelOptions,
    PermissionOptions,
    SessionOptions,
    WorkspaceOptions,
)
from callboard.sessions.result import RunEnd
from callboard.types.errors import SettingsError, UsageError
from callboard.types.records import Request

pytestmark = pytest.mark.anyio

PROMPT = "Do it"
SCENARIO = """
agents:
  lead:
    - reply:
        - text: Files first.
        - tool_use: {name: write_file, input: {path: hello.txt, content: hello}}
        - tool_use: {name: edit_file, input: {path: gone.txt, old_text: a, new_text: b}}
    - when: {result_of: write_file}
      reply:
        - tool_use: {name: bash, input: {command: 'pwd; cat hello.txt; date +%s%N'}}
        - tool_use: {name: bash, input: {command: 'sleep 0.2; date +%s%N', run_in_background: true}}
    - when: {result_of: bash}
      fault: {status: 529, message: Overloaded}
      reply:
        - tool_use: {name: create_task, input: {subject: One}}
        - tool_use: {name: spawn_teammate, input: {name: alice, role: helper, prompt: Help me}}
        - tool_use: {name: spawn_teammate, input: {name: bob, role: helper, prompt: Help me}}
    - when: {result_of: spawn_teammate}
      reply:
        - tool_use: {name: task, input: {description: Look, prompt: Look around, agent_type: explore}}
    - when: {result_of: task}
      reply: Now I wait.
    - otherwise: true
      reply: So be it.
  'explore-*':
    - otherwise: true
      reply: Nothing to be seen.
  alice:
    - when: {contains: Help me}
      reply:
        - tool_use: {name: bash, input: {command: 'sleep 0.$((RANDOM % 4)); date +%s%N'}}
    - when: {result_of: bash}
      reply:
        - tool_use: {name: send_message, input: {to: bob, content: Hi bob}}
    - otherwise: true
      reply: Alice is done.
  bob:
    - when: {contains: Help me}
      reply:
        - tool_use: {name: bash, input: {command: 'sleep 0.$((RANDOM % 4)); date +%s%N'}}
    - otherwise: true
      reply: Bob is done.
"""
FREE: dict[str, object] = {"permission.mode": "bypassPermissions"}
CHECKED = """
agents:
  lead:
    - reply:
        - tool_use: {name: create_task, input: {subject: One, check: 'date > stamp; date +%s%N'}}
        - tool_use: {name: spawn_teammate, input: {name: alice, role: helper, prompt: Help me}}
    - otherwise: true
      reply: So be it.
  alice:
    - when: {contains: Help me}
      reply: Ready.
    - when: {contains: You claimed}
      capture:
        task: 'You claimed (task_[a-z0-9]+)'
      reply:
        - tool_use: {name: complete_task, input: {task_id: '${task}'}}
    - otherwise: true
      reply: Alice is done.
"""


BOUND = """
agents:
  lead:
    - reply:
        - tool_use: {name: create_task, input: {subject: One}}
    - when: {result_of: create_task}
      capture:
        task: '(task_[a-z0-9]+)'
      reply:
        - tool_use: {name: create_worktree, input: {name: parser, task_id: '${task}'}}
        - tool_use: {name: spawn_teammate, input: {name: alice, role: helper, prompt: Help me}}
    - otherwise: true
      reply: So be it.
  alice:
    - when: {contains: Help me}
      reply: Ready.
    - when: {contains: You claimed}
      capture:
        task: 'You claimed (task_[a-z0-9]+)'
      reply:
        - tool_use: {name: bash, input: {command: 'pwd; echo new > new.txt'}}
    - when: {result_of: bash}
      reply:
        - tool_use: {name: complete_task, input: {task_id: '${task}'}}
    - otherwise: true
      reply: Alice is done.
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Place:
    """Where sessions are recorded and replayed."""

    folder: Path

    @property
    def cassette(self) -> Path:
        return self.folder / "run.jsonl"

    def workspace(self, name: str) -> Path:
        made = self.folder / name
        made.mkdir(exist_ok=True)
        return made

    async def record(self, scenario: str = SCENARIO, *prompts: str) -> RunEnd:
        """Record a session in a workspace of its own."""
        file = self.folder / "scenario.yaml"
        file.write_text(scenario)
        options = SessionOptions(
            WorkspaceOptions(self.workspace("there"), FREE),
            model=ModelOptions(f"rehearsal:{file}", record=self.cassette),
        )
        return await _run(options, *(prompts or (PROMPT,)))

    async def replay(self, *prompts: str, live_tools: bool = False, flags: dict[str, object] | None = None) -> RunEnd:
        """Replay it in another, empty workspace, where nothing is allowed unless `flags` say so."""
        workspace = self.workspace("a-folder-with-a-longer-name")
        model = f"cassette:{self.cassette}"
        return await _run(
            SessionOptions(WorkspaceOptions(workspace, flags or {}), model=ModelOptions(model, live_tools=live_tools)),
            *(prompts or (PROMPT,)),
        )

    def left(self) -> list[str]:
        return [path.name for path in self.workspace("a-folder-with-a-longer-name").iterdir()]


async def _run(options: SessionOptions, *prompts: str) -> RunEnd:
    with anyio.fail_after(180):
        async with open_session(options) as session:
            for prompt in prompts:
                await session.say(prompt)
                await session.wait_finished()
            return session.end()


@pytest.mark.slow
async def test_a_task_is_completed_again_without_running_its_check(place: Place) -> None:
    recorded = await place.record(CHECKED)
    assert (place.workspace("there") / "stamp").exists(), "its check ran"
    assert await place.replay() == recorded
    assert place.left() == []
    kept = [json.loads(line) for line in place.cassette.read_text().splitlines()]
    assert sum("Its check passed." in json.dumps(one) for one in kept) > 0


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    for kind in ("STATE", "DATA", "CONFIG"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind.lower()))
    return Place(tmp_path)


@pytest.mark.slow
async def test_a_team_is_replayed_in_another_workspace_without_running_anything(place: Place) -> None:
    recorded = await place.record()
    assert (recorded.exit_code, recorded.text) == (0, "So be it.")
    began = sorted((place.folder / "state" / "callboard").iterdir())
    for _ in range(3):
        replayed = await place.replay()
        assert (replayed.exit_code, replayed.why, replayed.text) == (0, "", "So be it.")
        assert {one.name: (one.steps, one.what) for one in replayed.agents} == {
            one.name: (one.steps, one.what) for one in recorded.agents
        }
        assert replayed.usage == recorded.usage
    assert place.left() == []
    assert sorted((place.folder / "state" / "callboard").iterdir()) == began, "a replay keeps nothing"


@pytest.mark.slow
async def test_a_task_that_is_bound_to_a_worktree_is_worked_on_there_again(place: Place) -> None:
    for words in (("init", "-q"), ("-c", "user.name=P", "-c", "user.email=p@x", "commit", "-qm", "x", "--allow-empty")):
        subprocess.run(["git", *words], cwd=place.workspace("there"), check=True)
    recorded = await place.record(BOUND)
    assert recorded.exit_code == 0, recorded
    assert len(list((place.folder / "data").glob("callboard/*/worktrees/parser/new.txt"))) == 1, "it was done there"
    replayed = await place.replay()
    assert (replayed.exit_code, replayed.why, replayed.text) == (0, "", recorded.text)
    assert place.left() == []


@pytest.mark.slow
async def test_another_prompt_is_told_as_the_first_difference(place: Place) -> None:
    await place.record()
    with anyio.fail_after(180):
        end = await place.replay("Do something else")
    assert end.exit_code == 1
    assert "call 1 of lead (turn)" in end.why
    assert 'recorded "Do it", now "Do something else"' in end.why


@pytest.mark.slow
async def test_a_difference_in_a_teammates_words_is_told_too(place: Place) -> None:
    await place.record()
    told = place.cassette.read_text()
    place.cassette.write_text(told.replace("Hi bob", "Hello bob", 1))  # in alice's reply; what bob was asked stays
    end = await place.replay()
    assert end.exit_code == 1
    assert "of alice (turn)" in end.why or "of bob (turn)" in end.why


@pytest.mark.slow
async def test_a_recording_that_goes_on_is_no_success(place: Place) -> None:
    await place.record()
    lines = place.cassette.read_text().splitlines()
    last = next(line for line in reversed(lines) if '"agent":"lead"' in line)
    place.cassette.write_text("\n".join([*lines, json.dumps({**json.loads(last), "call": 99})]) + "\n")
    end = await place.replay()
    assert end.exit_code == 1
    assert "not made were lead (turn) 99" in end.why


@pytest.mark.soak
async def test_mail_that_never_comes_is_not_waited_for_for_ever(place: Place) -> None:
    await place.record("agents:\n  lead:\n    - reply: One.\n")
    place.cassette.write_text(place.cassette.read_text().replace('"ids":["env_', '"ids":["env_of_nobody_'))
    with anyio.fail_after(180):
        end = await place.replay()
    assert (end.exit_code, end.text) == (0, "One.")


@pytest.mark.slow
async def test_live_tools_run_under_the_rules_of_this_place(place: Place) -> None:
    await place.record(
        """
agents:
  lead:
    - reply:
        - tool_use: {name: write_file, input: {path: hello.txt, content: hello}}
    - otherwise: true
      reply: Written.
"""
    )
    refused = await place.replay(live_tools=True)
    assert refused.exit_code == 1, "nobody allowed it here"
    assert place.left() == []
    end = await place.replay(live_tools=True, flags=FREE)
    assert (end.exit_code, end.text) == (0, "Written.")
    assert place.left() == ["hello.txt"]


class Yes:
    """A person who agrees to everything."""

    async def answer(self, request: Request) -> Answer | None:
        return Answer("approved", "person")


@pytest.mark.slow
async def test_a_recorded_permission_is_none_for_live_tools(place: Place) -> None:
    file = place.folder / "scenario.yaml"
    file.write_text(
        """
agents:
  lead:
    - reply:
        - tool_use: {name: bash, input: {command: touch made.txt}}
    - otherwise: true
      reply: So be it.
"""
    )
    asked = SessionOptions(
        WorkspaceOptions(place.workspace("there")),
        model=ModelOptions(f"rehearsal:{file}", record=place.cassette),
        permissions=PermissionOptions(attended=True),
    )
    async with open_session(asked, approvers=[Yes()]) as session:
        await session.say(PROMPT)
        await session.wait_finished()
    assert (place.workspace("there") / "made.txt").exists()
    assert (await place.replay()).why == ""
    end = await place.replay(live_tools=True)
    assert (end.exit_code, place.left()) == (1, [])


async def test_a_background_command_that_was_stopped_is_stopped_again(place: Place) -> None:
    await place.record(
        """
agents:
  lead:
    - reply:
        - tool_use: {name: bash, input: {command: sleep 100, run_in_background: true}}
    - when: {result_of: bash}
      capture: {id: 'bg_[a-z2-7]{12}'}
      reply:
        - tool_use: {name: task_stop, input: {id: '${id}'}}
    - otherwise: true
      reply: Stopped.
"""
    )
    end = await place.replay()
    assert (end.exit_code, end.why, end.text) == (0, "", "Stopped.")


BESIDE = """
agents:
  lead:
    - reply:
        - tool_use:
            name: task
            input: {{description: Look, prompt: Look, agent_type: explore, run_in_background: true}}
    - when: {{result_of: task}}
      capture: {{id: 'Background task (\\S+) started'}}
      reply:
        - tool_use: {{name: {then}}}
    - when: {{contains: its report}}
      reply: I have its report.
    - otherwise: true
      reply: Going on.
  'explore-*':
    - reply:
        - tool_use: {{name: bash, input: {{command: 'date +%s%N'}}}}
    - latency_ms: {latency_ms}
      reply: Nothing to be seen.
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("then", "latency_ms", "text"),
    [
        ("glob, input: {pattern: '*'}", 50, "I have its report."),
        ("task_output, input: {id: '${id}', block: true}", 50, "Going on."),
        ("task_stop, input: {id: '${id}'}", 100_000, "Going on."),
    ],
    ids=["mail", "output", "stop"],
)
async def test_a_subagent_in_the_background_is_replayed(place: Place, then: str, latency_ms: int, text: str) -> None:
    recorded = await place.record(BESIDE.format(then=then, latency_ms=latency_ms))
    assert (recorded.exit_code, recorded.text) == (0, text)
    replayed = await place.replay()
    assert (replayed.exit_code, replayed.why, replayed.text) == (0, "", text)
    assert [(one.name, one.steps, one.what) for one in replayed.agents] == [
        (one.name, one.steps, one.what) for one in recorded.agents
    ]


async def test_a_conversation_of_several_prompts_is_replayed_prompt_by_prompt(place: Place) -> None:
    talk = "agents:\n  lead:\n    - reply: One.\n    - reply: Two.\n"
    recorded = await place.record(talk, "first", "second")
    assert recorded.text == "Two."
    first = await place.replay("first")
    assert (first.exit_code, first.text) == (0, "One.")
    both = await place.replay("first", "second")
    assert (both.exit_code, both.text) == (0, "Two.")


async def test_a_replay_is_neither_resumed_nor_recorded(place: Place) -> None:
    await place.record("agents:\n  lead:\n    - reply: One.\n")
    model = f"cassette:{place.cassette}"
    workspace = place.workspace("there")
    with pytest.raises(UsageError, match="a replay is a new session"):
        await _run(
            SessionOptions(
                WorkspaceOptions(workspace), identity=IdentityOptions(resume=True), model=ModelOptions(model)
            ),
            PROMPT,
        )
    with pytest.raises(UsageError, match="--record requires a new session"):
        await _run(
            SessionOptions(WorkspaceOptions(workspace), model=ModelOptions(model, record=place.folder / "again.jsonl")),
            PROMPT,
        )


@pytest.mark.parametrize("session", ["", "../../etc", "a/b", "x" * 100])
async def test_a_cassette_cannot_choose_folders(place: Place, session: str) -> None:
    place.cassette.write_text(json.dumps({"cassette": 1, "model": "m", "session": session, "limits": {}}) + "\n")
    with pytest.raises(SettingsError, match="names no session"):
        await place.replay()


@pytest.mark.slow
def test_the_demo_is_replayed_where_there_is_no_project(tmp_path: Path) -> None:
    command = Command(tmp_path)
    cassette = tmp_path / "demo.jsonl"
    recorded = command.run("demo", "--yes", "--record", str(cassette))
    assert recorded.code == 0, recorded.err
    ran = command.run("run", "--model", f"cassette:{cassette}", ASSIGNMENT)
    assert (ran.code, list(command.workspace.iterdir())) == (0, []), ran.err
    assert ran.out.startswith("All three tasks are done and all tests pass")

"""What agents were told of their surroundings is told again in a replay, wherever and whenever that is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.adapters.git.test_git import run_git

from callboard.sessions.open import open_session
from callboard.sessions.options import ModelOptions, SessionOptions, WorkspaceOptions
from callboard.sessions.result import RunEnd

pytestmark = pytest.mark.anyio
SCENARIO = """
agents:
  lead:
    - reply: [{tool_use: {name: task, input: {description: Look, prompt: Look., agent_type: explore}}}]
    - {reply: It is done., repeat: forever}
  "*":
    - {reply: I looked., repeat: forever}
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def run(options: SessionOptions) -> RunEnd:
    async with open_session(options) as session:
        for words in ("Go.", "Once more."):
            await session.say(words)
            end = await session.wait_finished()
            (options.workspace.folder / f"{words}txt").write_text("changed between two turns")
        return end


@pytest.mark.slow
async def test_a_replay_in_another_place_is_told_what_was_told_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("STATE", "DATA", "CONFIG"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind.lower()))
    scenario, cassette = tmp_path / "scenario.yaml", tmp_path / "session.jsonl"
    scenario.write_text(SCENARIO)
    repository, elsewhere = tmp_path / "repository", tmp_path / "elsewhere"
    repository.mkdir()
    elsewhere.mkdir()
    run_git(repository, "init", "-q")
    recorded = await run(
        SessionOptions(WorkspaceOptions(repository), model=ModelOptions(f"rehearsal:{scenario}", record=cassette))
    )
    replayed = await run(SessionOptions(WorkspaceOptions(elsewhere), model=ModelOptions(f"cassette:{cassette}")))
    assert (recorded.exit_code, recorded.text) == (0, "It is done.")
    assert (replayed.exit_code, replayed.text, replayed.why) == (0, "It is done.", "")
    lines = [json.loads(line) for line in cassette.read_text().splitlines()]
    told = [one["text"] for line in lines if "reminders" in line for one in line["value"]["due"]]
    assert [text.split(",")[0] for text in told if text.startswith("Git")] == ["Git: branch main"] * 2
    assert "Untracked (1): Go.txt" in told[-1]
    assert len([text for text in told if text.startswith("It is ")]) == 2, "the lead and the subagent, once each"

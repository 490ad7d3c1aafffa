"""A command of the lead that a person moves to the background between the decision about it and its start."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from callboard.ports.model import Delta
from callboard.sessions.hosted import HostedSession
from callboard.sessions.open import open_session
from callboard.sessions.options import ModelOptions, SessionOptions, WorkspaceOptions
from callboard.types import events as ev
from callboard.types.records import Envelope

pytestmark = pytest.mark.anyio
SCENARIO = """
agents:
  lead:
    - reply: [{tool_use: {name: bash, input: {command: "sh wait.sh"}}}]
    - {when: {contains: "A person moved this command to the background"}, reply: "It goes on."}
    - {reply: "It ended."}
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Mover:
    """Moves the lead's calls to the background at an event of this kind, before anything else happens."""

    def __init__(self, kind: type[ev.Event]) -> None:
        self.kind = kind
        self.session: HostedSession | None = None
        self.moved: list[bool] = []

    def on_event(self, agent: str, seq: int, event: ev.Event) -> None:
        if isinstance(event, self.kind) and self.session is not None:
            self.moved.append(self.session.move_to_background())

    def on_mail(self, envelope: Envelope) -> None: ...
    def on_delta(self, agent: str, delta: Delta) -> None: ...


@pytest.mark.parametrize("kind", [ev.CallJudged, ev.ToolStarted])
async def test_a_command_that_is_allowed_goes_to_the_background_as_soon_as_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[ev.Event]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CALLBOARD_SANDBOX__LEVEL", "0")
    for name in ("CONFIG", "STATE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    folder = tmp_path / "work"
    folder.mkdir()
    os.mkfifo(folder / "gate")
    (folder / "wait.sh").write_text("read line < gate\n")
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    options = SessionOptions(
        WorkspaceOptions(folder, {"permission.mode": "bypassPermissions"}),
        model=ModelOptions(f"rehearsal:{tmp_path / 'scenario.yaml'}"),
    )
    mover = Mover(kind)
    with anyio.fail_after(30):
        async with open_session(options, observers=[mover]) as session:
            mover.session = session
            await session.say("Wait for the gate.")
            await session.taken_up()
            await session.wait_rested(lambda: None)
            lead = session.state("lead")
            assert lead is not None
            assert (mover.moved, lead.last_text) == ([True], "It goes on.")
    (folder / "gate").write_text("go\n")  # the command continues after the session: this ends it

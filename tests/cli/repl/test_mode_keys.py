"""If Shift-Tab is pressed faster than modes are stored, the keys take effect in order."""

from __future__ import annotations

import io
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint

from callboard.cli.repl.repl import Repl
from callboard.cli.terminal.terminal import Terminal
from callboard.sessions.options import SessionOptions, WorkspaceOptions

pytestmark = pytest.mark.anyio


class SlowSession:
    """A session that stores the first requested mode only when the test allows it."""

    may_bypass = False

    def __init__(self) -> None:
        self.asked, self.written = list[str](), list[str]()
        self.first_asked, self.may_write = anyio.Event(), anyio.Event()

    def mode_of(self) -> str:
        return "default"

    async def use_mode(self, mode: str) -> str:
        self.asked.append(mode)
        if len(self.asked) == 1:
            self.first_asked.set()
            await self.may_write.wait()
        self.written.append(mode)
        return mode


async def test_two_quick_keys_end_in_the_second_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = SlowSession()
    repl = Repl(SessionOptions(WorkspaceOptions(tmp_path)), Terminal(io.StringIO(), io.StringIO()))
    monkeypatch.setattr(repl, "_session", session)
    async with anyio.create_task_group() as group:
        group.start_soon(repl.next_mode)
        await session.first_asked.wait()
        group.start_soon(repl.next_mode)
        for _ in range(10):  # turns of the event loop in which the second key could overtake the first
            await checkpoint()
        assert session.asked == ["acceptEdits"]
        session.may_write.set()
    assert session.written == ["acceptEdits", "plan"]

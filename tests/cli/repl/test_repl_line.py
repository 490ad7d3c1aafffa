"""Tests of the prompt line that need an exact moment, with a pipe as keyboard."""

from __future__ import annotations

import io
import time
from pathlib import Path

import anyio
import pytest
from prompt_toolkit.application import Application, create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from callboard.cli.repl.draft import TOO_SOON
from callboard.cli.repl.repl import Repl
from callboard.cli.terminal.terminal import Terminal, block
from callboard.sessions.options import SessionOptions, WorkspaceOptions

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def ask_questions(talk: Repl, wanted: int) -> None:
    """Ask this many questions as they arrive, without a session."""
    while wanted:
        if talk.questions:
            await talk.questions.serve()
            wanted -= 1
        await anyio.lowlevel.checkpoint()


async def test_a_line_typed_before_the_question_is_no_answer_on_a_machine_that_stands_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Judged only by the time between question and line, a stall would look like time to think."""
    begin = Application[str].reset

    def slow(app: Application[str]) -> None:
        begin(app)
        time.sleep(TOO_SOON * 1.2)

    err = io.StringIO()
    terminal = Terminal(io.StringIO(), err)
    answers: list[str | None] = []
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        talk = Repl(SessionOptions(WorkspaceOptions(tmp_path)), terminal)
        monkeypatch.setattr(Application, "reset", slow)

        async def ask() -> None:
            answers.append(await talk.questions.ask(block("allow rm?"), "allow? ", lambda: ""))

        keys.send_text("y\n")
        async with anyio.create_task_group() as group:
            group.start_soon(ask_questions, talk, 1)
            group.start_soon(ask)
            with anyio.fail_after(180):
                while "too soon" not in err.getvalue():
                    assert answers == []
                    await anyio.sleep(0.01)
            monkeypatch.undo()
            await anyio.sleep(TOO_SOON * 3)
            keys.send_text("n\n")
    terminal.close()
    assert answers == ["n"]


async def test_a_line_that_ends_as_the_question_appears_is_not_its_answer(tmp_path: Path) -> None:
    err = io.StringIO()
    terminal = Terminal(io.StringIO(), err)
    answers: list[str | None] = []
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        talk = Repl(SessionOptions(WorkspaceOptions(tmp_path)), terminal)

        async def ask() -> None:
            answers.append(await talk.questions.ask(block("allow rm?"), "allow? ", lambda: ""))

        keys.send_text("y\n")  # typed before the question appeared
        async with anyio.create_task_group() as group:
            group.start_soon(ask_questions, talk, 1)
            group.start_soon(ask)
            with anyio.fail_after(180):
                while "too soon" not in err.getvalue():
                    await anyio.sleep(0.01)
            assert answers == []
            await anyio.sleep(TOO_SOON * 1.5)
            keys.send_text("n\n")
    terminal.close()
    assert answers == ["n"]
    assert "too soon" in err.getvalue()

"""Keys typed while a question appears or disappears answer nothing, and are sent to no agent."""

from __future__ import annotations

import io
from pathlib import Path

import anyio
import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from callboard.cli.repl.draft import TOO_SOON, LineInterrupted
from callboard.cli.repl.repl import Repl
from callboard.cli.terminal.terminal import Terminal, block
from callboard.sessions.options import SessionOptions, WorkspaceOptions

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Person(Repl):
    """A person at a prompt line without a session, with the lines sent and the answers given."""

    def __init__(self, folder: Path, keys: PipeInput) -> None:
        self.terminal = Terminal(io.StringIO(), io.StringIO(), color="never")
        super().__init__(SessionOptions(WorkspaceOptions(folder)), self.terminal)
        self.sent, self.answers = list[str](), list[str | None]()
        self.keys = keys

    async def types(self, text: str, pause: float = 0.05) -> None:
        for key in text:
            self.keys.send_text(key)
            await anyio.sleep(pause)

    async def talk(self) -> None:
        while True:
            try:
                if self.questions:
                    await self.questions.serve()
                else:
                    self.sent.append(await self._line.read(lambda: bool(self.questions)))
            except LineInterrupted:
                continue

    async def ask(self) -> None:
        self.answers.append(await self.questions.ask(block("which colour?"), "your answer> ", lambda: "gone"))


async def test_what_is_typed_on_as_a_question_comes_goes_into_the_draft(tmp_path: Path) -> None:
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        person = Person(tmp_path, keys)
        async with anyio.create_task_group() as group:
            group.start_soon(person.talk)
            await person.types("mend the par")
            group.start_soon(person.ask)
            await anyio.wait_all_tasks_blocked()
            await person.types("ser, yes\r")
            await anyio.sleep(TOO_SOON * 2)
            assert person.answers == []
            await person.types("blue\r")
            with anyio.fail_after(180):
                while not person.answers:
                    await anyio.sleep(0.01)
            await anyio.sleep(TOO_SOON * 2)
            await person.types("!\r")
            with anyio.fail_after(180):
                while not person.sent:
                    await anyio.sleep(0.01)
            group.cancel_scope.cancel()
        person.terminal.close()
    assert person.answers == ["blue"]
    assert person.sent == ["mend the parser, yes!"]


async def test_an_answer_that_nobody_needs_any_more_is_sent_to_nobody(tmp_path: Path) -> None:
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        person = Person(tmp_path, keys)
        async with anyio.create_task_group() as group:
            group.start_soon(person.talk)
            async with anyio.create_task_group() as asking:
                asking.start_soon(person.ask)
                await anyio.sleep(TOO_SOON * 2)
                await person.types("the light bl")
                asking.cancel_scope.cancel()
            await person.types("ue one\r", pause=0)  # in one go: a pause of a slow machine is not the person's
            await anyio.sleep(TOO_SOON * 2)
            await person.types("hello\r")
            with anyio.fail_after(180):
                while "hello" not in person.sent:
                    await anyio.sleep(0.01)
            group.cancel_scope.cancel()
        person.terminal.close()
    assert person.answers == []
    assert [line for line in person.sent if line] == ["hello"]

"""The keys of the prompt line, with a pipe for a keyboard; and when it is drawn anew."""

from __future__ import annotations

import io
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio
import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from callboard.cli.repl.line import PromptLine, sound
from callboard.cli.terminal.terminal import Terminal

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Round:
    """What stands round the line, and how often it was asked for."""

    def __init__(self) -> None:
        self.status, self.looked = "quiet", 0

    def above(self, columns: int, rows: int) -> str:
        return ""

    async def next_mode(self) -> None:
        """Nothing."""

    def below(self, columns: int) -> str:
        self.looked += 1
        return self.status


class Drawn(DummyOutput):
    """How often something was drawn."""

    def __init__(self) -> None:
        self.times = 0

    def flush(self) -> None:
        self.times += 1


def _nobody() -> bool:
    return False


async def typed(*lines: str, earlier: tuple[str, ...] = ()) -> list[str]:
    """What is sent when these keys are typed, each line read in turn."""
    terminal = Terminal(io.StringIO(), io.StringIO(), color="never")
    history = InMemoryHistory()
    for one in earlier:
        history.append_string(one)
    sent: list[str] = []
    try:
        with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
            line = PromptLine(terminal, Round(), history=history)
            for one in lines:
                keyboard = threading.Thread(target=pipe.send_text, args=(one,))  # a pipe holds 64 KiB
                keyboard.start()
                with anyio.fail_after(180):
                    sent.append(await line.read(_nobody))
                keyboard.join()
    finally:
        terminal.close()
    return sent


@pytest.mark.parametrize(
    ("keys", "sent"),
    [
        ("one\r", "one"),
        ("one\n", "one"),
        ("one\x1b\ntwo\n", "one\ntwo"),
        ("one\x1b\rtwo\r", "one\ntwo"),
        ("one\\\rtwo\r", "one\ntwo"),
        ("a \\ in it\r", "a \\ in it"),
        ("one\x1b\rtwo\x1b[A!\r", "one!\ntwo"),
        ("\x1b[200~one\rtwo\\\r\nthree\x1b[201~\r", "one\ntwo\\\nthree"),
        ("日本 e\u0301 👩👧\x1b[D\x7f!\r", "日本 e\u0301 !👧"),
        ("\r", ""),
    ],
)
async def test_enter_sends_and_other_keys_begin_a_new_line(keys: str, sent: str) -> None:
    assert await typed(keys) == [sent]


async def test_a_paste_of_five_thousand_lines_is_one_text() -> None:
    lines = [f"line {number} 你好 \\" for number in range(5_000)]
    pasted = "\r\n".join(lines)
    assert await typed(f"see: \x1b[200~{pasted}\x1b[201~ end\r") == ["see: " + "\n".join(lines) + " end"]


async def test_earlier_entries_come_back_whole_and_are_searched() -> None:
    earlier = ("first\nof two lines", "second")
    assert await typed("\x1b[A\x1b[A\r", "\x12two\r\r", earlier=earlier) == ["first\nof two lines"] * 2


def test_bytes_that_are_no_text_are_marked() -> None:
    assert sound(b"caf\xe9 \xc3\xa9".decode(errors="surrogateescape")) == "caf\ufffd é"


@asynccontextmanager
async def reading(around: Round, drawn: Drawn) -> AsyncGenerator[tuple[PromptLine, PipeInput]]:
    """A line that is being read, drawn for the first time."""
    terminal = Terminal(io.StringIO(), io.StringIO(), color="never")
    with create_pipe_input() as pipe, create_app_session(input=pipe, output=drawn):
        line = PromptLine(terminal, around)
        async with anyio.create_task_group() as group:
            group.start_soon(line.read, _nobody)
            await until(lambda: drawn.times > 0)
            await anyio.wait_all_tasks_blocked()
            yield line, pipe
            pipe.send_text("\r")
    terminal.close()


async def until(so: Callable[[], bool]) -> None:
    with anyio.fail_after(180):
        while not so():
            await anyio.sleep(0.01)


async def test_nothing_is_drawn_while_nothing_changes() -> None:
    around, drawn = Round(), Drawn()
    async with reading(around, drawn) as (line, _):
        before, looked = drawn.times, around.looked
        for _ in range(3):
            line.redraw()
            await until(lambda looked=looked: around.looked > looked)
            looked = around.looked
        assert drawn.times == before
        around.status = "busy"
        line.redraw()
        await until(lambda: drawn.times > before)


async def test_a_thousand_changes_at_once_are_drawn_together() -> None:
    around, drawn = Round(), Drawn()
    async with reading(around, drawn) as (line, _):
        before, looked = drawn.times, around.looked
        for number in range(1_000):
            around.status = f"{number} done"
            line.redraw()
        await until(lambda: drawn.times > before)
        assert around.looked == looked + 1

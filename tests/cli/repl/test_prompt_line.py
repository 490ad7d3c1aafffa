"""Keys of the prompt line, with a pipe as keyboard, and the events that redraw it."""

from __future__ import annotations

import io
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, closing

import anyio
import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from callboard.cli.repl.draft import valid_text
from callboard.cli.repl.prompt_line import PromptLine
from callboard.cli.repl.team_panel import PanelKey
from callboard.cli.terminal.canvas import Canvas
from callboard.cli.terminal.terminal import Line, Terminal

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class LineContext:
    """The text around the prompt line, and how often it was requested."""

    def __init__(self) -> None:
        self.status, self.looked, self.moves_asked = "quiet", 0, 0

    moves = False

    def above(self, columns: int, rows: int) -> Sequence[Line]:
        return ()

    def press(self, key: PanelKey) -> None:
        """Do nothing."""

    def to_background(self) -> bool:
        self.moves_asked += 1
        return False

    async def next_mode(self) -> None:
        """Do nothing."""

    def below(self, columns: int, rows: int) -> str:
        self.looked += 1
        return self.status


class CountingOutput(DummyOutput):
    """Output that counts how often it was drawn."""

    def __init__(self) -> None:
        self.times = 0

    def flush(self) -> None:
        self.times += 1


def _never() -> bool:
    return False


async def type_lines(*lines: str, earlier: tuple[str, ...] = ()) -> list[str]:
    """Type these keys, and return the lines that are sent."""
    terminal = Terminal(io.StringIO(), io.StringIO(), color="never")
    history = InMemoryHistory()
    for one in earlier:
        history.append_string(one)
    sent: list[str] = []
    with closing(terminal), create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
        line = PromptLine(terminal, LineContext(), history=history)
        with line.display():
            for one in lines:
                keyboard = threading.Thread(target=pipe.send_text, args=(one,))  # a pipe holds 64 KiB
                keyboard.start()
                with anyio.fail_after(180):
                    sent.append(await line.read(_never))
                keyboard.join()
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
    assert await type_lines(keys) == [sent]


async def test_a_paste_of_five_thousand_lines_is_one_text() -> None:
    lines = [f"line {number} 你好 \\" for number in range(5_000)]
    pasted = "\r\n".join(lines)
    assert await type_lines(f"see: \x1b[200~{pasted}\x1b[201~ end\r") == ["see: " + "\n".join(lines) + " end"]


@pytest.mark.parametrize("filler", [0, 1_000, 1_024, 4_089, 5_000])
async def test_a_paste_that_contains_its_end_mark_types_nothing(filler: int) -> None:
    pasted = "x" * filler + "\x1b[201~\x15!touch pwned\r\x1b[200~\x1b[201~\r"
    line = "x" * filler + "\x15!touch pwned\n\n!"
    assert await type_lines(f"\x1b[200~{pasted}\x1b[201~!\r") == [line]


async def test_pastes_in_one_piece_are_one_text() -> None:
    assert await type_lines("\x1b[200~one \x1b[201~\x1b[200~two\x1b[201~\r") == ["one two"]


async def test_earlier_entries_come_back_whole_and_are_searched() -> None:
    earlier = ("first\nof two lines", "second")
    assert await type_lines("\x1b[A\x1b[A\r", "\x12two\r\r", earlier=earlier) == ["first\nof two lines"] * 2


def test_bytes_that_are_no_text_are_marked() -> None:
    assert valid_text(b"caf\xe9 \xc3\xa9".decode(errors="surrogateescape")) == "caf\ufffd é"


@asynccontextmanager
async def open_line(around: LineContext, drawn: CountingOutput) -> AsyncGenerator[tuple[PromptLine, PipeInput]]:
    """Yield a prompt line that reads input, after its first drawing."""
    terminal = Terminal(io.StringIO(), io.StringIO(), color="never")
    with create_pipe_input() as pipe, create_app_session(input=pipe, output=drawn):
        line = PromptLine(terminal, around)
        async with anyio.create_task_group() as group:
            group.start_soon(line.read, _never)
            await wait_until(lambda: drawn.times > 0)
            await anyio.wait_all_tasks_blocked()
            yield line, pipe
            pipe.send_text("\r")
    terminal.close()


async def wait_until(so: Callable[[], bool]) -> None:
    with anyio.fail_after(180):
        while not so():
            await anyio.sleep(0.01)


async def test_nothing_is_drawn_while_nothing_changes() -> None:
    around, drawn = LineContext(), CountingOutput()
    async with open_line(around, drawn) as (line, _):
        before, looked = drawn.times, around.looked
        for _ in range(3):
            line.redraw()
            await wait_until(lambda looked=looked: around.looked > looked)
            looked = around.looked
        assert drawn.times == before
        around.status = "busy"
        line.redraw()
        await wait_until(lambda: drawn.times > before)


async def test_a_thousand_changes_at_once_are_drawn_together() -> None:
    around, drawn = LineContext(), CountingOutput()
    async with open_line(around, drawn) as (line, _):
        before, looked = drawn.times, around.looked
        for number in range(1_000):
            around.status = f"{number} done"
            line.redraw()
        await wait_until(lambda: drawn.times > before)
        assert around.looked == looked + 1


def test_a_frame_is_handed_over_in_one_piece() -> None:
    pieces: list[str] = []
    canvas = Canvas(io.StringIO(), pieces.append)
    with canvas.frame():
        canvas.write("erased")
        canvas.write(" and drawn")
        assert pieces == []
    canvas.write("later")
    assert pieces == ["erased and drawn", "later"]

"""The only output to the screen: `Terminal.terminal_print`.

Whole blocks, one writer, no control sequences from outside.

Two rules apply. A block is written in one piece, so that the output of threads and agents never interleaves. No text of
a model, a tool or a file moves the cursor, sets a title or hides text: control characters are removed here, and the
only escape sequences on the screen are the styles and the window's title below. Callers pass text and a style, never a
sequence.

Lock order: an agent opens a block only while it holds its lock (`engine/agent_lock.py`), which
`SessionRuntime.report_events` and `SessionRuntime.report_output` check before a screen is called. This module takes
no such lock and waits for none. Printing puts the block into a queue and returns, so a slow or stopped screen (Ctrl-S,
a reader that does not read) delays no agent and no write of the store. Progress is dropped when the screen falls far
behind, and the screen says how much; everything else is kept, and the process does not end before it is read.

Questions, redrawing and the interpretation of events belong to other modules.
"""

from __future__ import annotations

import errno
import os
import queue
import re
import select
import threading
import unicodedata
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Literal, TextIO

from callboard.cli.terminal.canvas import Canvas
from callboard.types.errors import CallboardError
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass

Style = Literal["plain", "dim", "strong", "good", "warn", "bad", "name"]

_STYLES: Mapping[Style, str] = {
    "dim": "\x1b[2m",
    "strong": "\x1b[1m",
    "good": "\x1b[32m",
    "warn": "\x1b[31m",
    "bad": "\x1b[31m",
    "name": "\x1b[36m",
}
_END = "\x1b[0m"

_SEQUENCES = late_pattern(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor, clearing
    r"|\x9b[0-?]*[ -/]*[@-~]"  # CSI in one character
    # OSC, DCS, SOS, PM, APC: titles, links, clipboards; without an end, the sequence must not swallow the following
    # text
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d\x9e\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]?"  # others: character sets, resets
)
_BREAKS = late_pattern(r"\r\n|[\r\x0b\x0c\x85\u2028\u2029]")
_CONTROLS = late_pattern(
    "[\x00-\x08\x0e-\x1f\x7f-\x9f\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069]"  # also reversers of the reading order
)
_VISIBLE = bytes(range(32, 127)) + b"\n\t"
"""ASCII characters that only show themselves, line breaks, and tabs."""
_TITLE = "\x1b]0;{}\x07"
_SAVE_TITLE = "\x1b[22;0t"
_RESTORE_TITLE = "\x1b[23;0t"
_NUMBERS = late_pattern(r"[0-9]+(;[0-9]+)*")
_REVERSING = late_pattern("[\u202a-\u202e\u2066-\u2069]")
_GATHER = 0.05
"""Seconds for which blocks are collected while the screen has nothing to write."""
_TOGETHER = 20
"""Most blocks that are written in one piece."""
_UNDRAWN = 20
"""Pending writes above which the prompt line is not redrawn for changes to it."""
_BEHIND = 2_000
"""Pending blocks above which progress is dropped for a slow screen."""
_LEAVING = 1.0
"""Seconds that a person who leaves waits for a stream without a reader."""


class ResultUnwritten(CallboardError):
    """Raised if the result could not be written to stdout (a full disk, a lost terminal)."""


@dataclass(frozen=True, slots=True)
class Span:
    """Piece of a line. `codes`: numbers of a style, separated by `;`, such as `1;36`; empty for none."""

    text: str
    codes: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """One line for the screen.

    `name`: an agent, shown before the text in its own style. `spans`: the text in pieces with a style each, used
    instead of the text if there is colour.
    """

    text: str
    style: Style = "plain"
    name: str = ""
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class Block:
    """Lines that belong together. `progress`: single lines that `--quiet` hides and a slow screen may drop."""

    lines: tuple[Line, ...]
    progress: bool = False
    fit: Callable[[int], tuple[Line, ...]] | None = None
    """Function that returns the lines for a screen of so many columns: for tables, whose rows cannot be broken."""

    def lines_for(self, width: int) -> tuple[Line, ...]:
        """Return the lines for a screen of `width` columns; 0: not a screen."""
        return self.fit(width) if self.fit is not None and width > 0 else self.lines


def stacked(*parts: Block | Line) -> Block:
    """Return the blocks and lines below each other, each fitted to the screen by itself."""

    def lines(width: int) -> tuple[Line, ...]:
        return tuple(line for part in parts for line in (part.lines_for(width) if isinstance(part, Block) else (part,)))

    return Block(lines(0), fit=lines)


def plain(text: str) -> str:
    r"""Return the text without control sequences; the only control characters kept are line breaks and tabs.

    Characters that reverse the reading order, and so may make one text look like another, are spelled out (`\u202e`).
    """
    # Most texts, also numbered lines of a file. For ASCII, this takes a hundredth of the time of the substitutions.
    if text.isascii():
        is_plain = not text.encode().translate(None, _VISIBLE)
    else:
        is_plain = text.replace("\n", "").replace("\t", "").isprintable()
    if is_plain:
        return text
    text = _BREAKS.sub("\n", _SEQUENCES.sub("", text))
    return _CONTROLS.sub("", _REVERSING.sub(_spelled, text))


_STYLE = late_pattern(r"\x1b\[[0-9;:]*m")
_RESET = "\x1b[0m"


def colored_line(text: str, width: int) -> str:
    """Return a line of at most `width` columns with its colors, without other control sequences."""
    pieces: list[str] = []
    room = width
    at = 0
    for match in (*_STYLE.finditer(text), None):
        visible = plain(text[at : match.start() if match else len(text)]).replace("\n", " ").replace("\t", " ")
        while visible and columns(visible) > room:
            visible = visible[:-1]
        pieces.append(visible)
        room -= columns(visible)
        if match is None:
            break
        pieces.append(match[0])
        at = match.end()
    line = "".join(pieces)
    return line + _RESET if "\x1b" in line and not line.endswith(_RESET) else line


def visible(text: str) -> str:
    r"""Return the text with its control characters spelled out (`\x1b`).

    Used for content that a person is about to approve.
    """
    return _CONTROLS.sub(_spelled, text.replace("\r", "\\r"))


def _spelled(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


def block(text: str, style: Style = "plain", *, name: str = "", progress: bool = False) -> Block:
    """Return a block of a text, line by line; `name` precedes the first line."""
    first, *others = plain(text).split("\n")
    return Block((Line(first, style, name), *(Line(line, style) for line in others)), progress)


def wants_color(choice: str, stream: TextIO, env: Mapping[str, str]) -> bool:
    """Return True if output is coloured.

    `--color` decides first, then NO_COLOR, FORCE_COLOR, a TERM that is `dumb` or unset, then whether the stream is a
    terminal. Sources: no-color.org, force-color.org.
    """
    if choice in {"always", "never"}:
        return choice == "always"
    if env.get("NO_COLOR"):
        return False
    if env.get("FORCE_COLOR", "0") not in {"", "0"}:
        return True
    return env.get("TERM", "") not in {"", "dumb"} and stream.isatty()


def style_lines(lines: Sequence[Line], *, color: bool, width: int = 0) -> str:
    """Return the lines as written to a stream, each ended by a line break.

    `width`: columns of the screen, at which lines break between words; 0: no breaks.
    """
    broken = lines if width <= 0 else [part for line in lines for part in wrap_line(line, width)]
    return "".join(f"{_styled(line, color=color)}\n" for line in broken)


def wrap_line(line: Line, width: int) -> Sequence[Line]:
    """Break a line between words, with its own indent before each part.

    A word that is too long stays whole: the screen breaks it. A line of spans is already laid out.
    """
    if "\t" in line.text:
        line = replace(line, text=line.text.replace("\t", "  "))  # a tab takes as many columns as the screen likes
    text = plain(line.text)
    before = columns(f"{line.name} ") if line.name else 0
    if line.spans or before + len(text) <= width // 2 or before + columns(text) <= width:
        return (line,)
    indent = text[: len(text) - len(text.lstrip(" "))]
    parts: list[str] = []
    current = indent
    room = width - before
    for word in text[len(indent) :].split(" "):
        joined = word if current == indent else f" {word}"
        if current != indent and columns(current) + columns(joined) > room:
            parts.append(current)
            current = indent
            joined = word
            room = width
        current += joined
    parts.append(current)
    return tuple(replace(line, text=part, name=line.name if number == 0 else "") for number, part in enumerate(parts))


def screen_width(stream: TextIO) -> int:
    """Return the columns of the screen that a stream writes to; 0 if it is not a terminal."""
    try:
        return os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0
    except (OSError, ValueError):  # the stream has just been closed
        return 0


def columns(text: str) -> int:
    """Return how many columns the text takes: wide characters count two, combining ones none."""
    return len(text) if text.isascii() else sum(map(char_columns, text))


def char_columns(char: str) -> int:
    """Return the columns of one character."""
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in {"W", "F"} else 1


def _styled(line: Line, *, color: bool) -> str:
    text = plain(line.text)
    name = plain(line.name)
    if color and line.spans:
        text = "".join(map(_span, line.spans))
    elif color and text and line.style != "plain":
        text = f"{_STYLES[line.style]}{text}{_END}"
    if not name:
        return text
    return f"{_STYLES['name']}{name}{_END} {text}" if color else f"{name}: {text}"


def _span(span: Span) -> str:
    """Return a piece in its style. Each is made plain by itself, so that no two of them form a sequence."""
    text = plain(span.text).replace("\n", " ")
    return f"\x1b[{span.codes}m{text}{_END}" if text and _NUMBERS.fullmatch(span.codes) else text


class Terminal:
    """Screen of this process. All methods may be called from any thread.

    Blocks go to `err`, results to `out`, in the order of the calls for both streams together. Output to a closed pipe
    is dropped silently. `close` reports other failures of a stream.
    """

    def __init__(self, out: TextIO, err: TextIO, *, color: str = "auto", quiet: bool = False) -> None:
        self._out = out
        self._err = err
        self._quiet = quiet
        self._color_out = wants_color(color, out, os.environ)
        self._color_err = wants_color(color, err, os.environ)
        self._above: Callable[[str], object] | None = None
        self._queue: queue.SimpleQueue[Block | Callable[[], None] | None] = queue.SimpleQueue()
        self._question = ""
        self._typed: str | None = None
        """Answer typed so far; None if the terminal itself shows what is typed."""
        self._lost = 0
        self._holds = False
        self._failure: OSError | None = None
        for stream in (out, err):
            with suppress(OSError, ValueError):
                stream.flush()  # later writes bypass its buffer
        # Guards the count of dropped progress; held for a few instructions, never while writing.
        self._counting = threading.Lock()
        self._hurry = threading.Event()
        self._patience: float | None = None
        self._writer = threading.Thread(target=self._write_all, name="terminal", daemon=True)
        self._writer.start()

    @property
    def out_is_tty(self) -> bool:
        """Return True if a person reads the results."""
        return self._out.isatty()

    @property
    def paints(self) -> bool:
        """Return True if blocks are shown in colour."""
        return self._color_err

    @property
    def quiet(self) -> bool:
        """Return True if progress is not printed."""
        return self._quiet

    def terminal_print(self, page: Block) -> None:
        """Print one block above the line that is being typed. Returns at once."""
        # Only progress may be dropped (test_a_screen_that_hangs_holds_nobody_up_and_loses_only_progress).
        if not page.lines or (page.progress and (self._quiet or self._too_far_behind())):
            return
        self._queue.put(page)

    def result(self, text: str) -> None:
        """Print a result for scripts to stdout, unchanged except for control characters, ended by one line break."""
        self._queue.put(lambda: self._write(self._out, plain(text).removesuffix("\n") + "\n"))

    def rows(self, page: Block) -> None:
        """Print a listing for a person to stdout."""
        self._queue.put(
            lambda: self._write(self._out, style_lines(page.lines_for(screen_width(self._out)), color=self._color_out))
        )

    def record(self, line: str) -> None:
        """Print one line of JSON to stdout. The caller's encoder has escaped all non-ASCII characters."""
        self._queue.put(lambda: self._write(self._out, line + "\n"))

    def ask(self, question: str, *, typed: str | None = None) -> None:
        """Write a question to stderr and leave the cursor after it.

        Blocks that arrive before `note_answer` are printed above it. `typed`: the answer so far, for a caller that
        reads single keys without echo: the line is then moved, not repeated. None: the terminal shows what is typed.
        """
        self._queue.put(lambda: self._put_question(plain(question), typed if typed is None else plain(typed)))
        self.flush()

    def show_typed(self, text: str) -> None:
        """Show the answer so far after the question."""
        self._queue.put(lambda: self._put_typed(plain(text)))
        self._hurry.set()

    def show_again(self, page: Block) -> None:
        """Show the lines of a page and the question again: another program has used the screen.

        A signal handler may call this: it takes no lock.
        """
        self._queue.put(lambda: self._put_again(page))

    def note_answer(self, note: str = "") -> None:
        """Note that the question is answered, or void for the reason in `note`, so that it is not repeated."""
        self._queue.put(lambda: self._end_question(plain(note)))

    def set_title(self, text: str, *, first: bool) -> None:
        """Set the title of the window; `first`: save the present one before.

        Call it only for a terminal that has a title.
        """
        title = " ".join(plain(text).split())
        self._draw(f"{_SAVE_TITLE if first else ''}{_TITLE.format(title)}")

    def restore_title(self) -> None:
        """Restore the title that `set_title` saved. A terminal that saves none gets an empty one, its default."""
        self._draw(f"{_TITLE.format('')}{_RESTORE_TITLE}")

    @property
    def canvas(self) -> Canvas:
        """Return the canvas of a prompt line on stdout."""
        return Canvas(self._out, self._draw)

    @property
    def is_behind(self) -> bool:
        """Return True if the screen currently accepts no output: redrawing may wait."""
        return self._queue.qsize() > _UNDRAWN

    def show_above(self, write: Callable[[str], object] | None) -> None:
        """Print blocks through `write` while a person types, which keeps their line; None: directly to stderr again."""
        self.flush()
        self._above = write

    @contextmanager
    def lend_screen(self) -> Generator[None]:
        """Give the screen to another program during the block: output is written afterwards."""
        resting = threading.Event()
        go_on = threading.Event()

        def wait_for_release() -> None:
            resting.set()
            go_on.wait()

        self._queue.put(wait_for_release)
        self._hurry.set()
        # Once the writer waits, no more output is on its way to the screen
        # (test_while_the_editor_is_open_nothing_is_printed_and_a_text_that_comes_too_late_is_kept).
        resting.wait()
        self._holds = True
        try:
            yield
        finally:
            self._holds = False
            go_on.set()

    def flush(self) -> None:
        """Return when all output so far has been written; at once while another program has the screen."""
        if self._holds or not self._writer.is_alive():
            return
        done = threading.Event()
        self._queue.put(done.set)
        self._hurry.set()
        done.wait()

    def leave(self) -> None:
        """Limit the wait of `close` for a reader to one second: the person has left."""
        self._patience = _LEAVING

    def close(self) -> None:
        """Write the pending output and end the writer. Raises `ResultUnwritten` if stdout refused a result."""
        self._queue.put(None)
        self._hurry.set()
        self._writer.join(self._patience)
        if self._failure is not None:
            raise ResultUnwritten(unwritten(self._failure))

    def _draw(self, text: str) -> None:
        self._queue.put(lambda: self._write(self._out, text))
        self._hurry.set()

    def _too_far_behind(self) -> bool:
        waiting = self._queue.qsize()
        if waiting > _BEHIND // 2:  # a burst of lines during the pause after a write is no slow screen
            self._hurry.set()
        if waiting <= _BEHIND:
            return False
        with self._counting:
            self._lost += 1
        return True

    def _write_all(self) -> None:
        """Write all pending output, then let more accumulate briefly.

        Waking this thread costs more than writing: it and the event loop then take the interpreter's lock from each
        other. So blocks are written together. Callers that wait for the screen (`flush`, `close`) shorten that delay.
        """
        blocks: list[Block] = []
        while True:
            entry = self._queue.get()
            if isinstance(entry, Block):
                blocks.append(entry)
                if len(blocks) < _TOGETHER and not self._queue.empty():
                    continue
            if blocks:
                self._show(blocks)
                blocks.clear()
            if entry is None:
                return
            if not isinstance(entry, Block):
                entry()
            if self._queue.empty():
                # `flush` and `close` end this wait.
                self._hurry.wait(_GATHER)
                self._hurry.clear()

    def _show(self, blocks: Sequence[Block]) -> None:
        with self._counting:
            lost, self._lost = self._lost, 0
        width = self._width()
        lines = [line for page in blocks for line in page.lines_for(width)]
        if lost:
            words = f"[{lost} line{'s' * (lost != 1)} of progress not shown: the screen was too slow]"
            lines.insert(0, Line(words, "dim"))
        text = style_lines(lines, color=self._color_err, width=width)
        if self._above is not None:
            self._above(text)
        elif self._question and self._typed is not None:
            self._write(self._err, f"{self._erased()}{text}{self._question}{self._typed}")
        elif self._question:
            self._write(self._err, f"\n{text}{self._question}")
        else:
            self._write(self._err, text)

    def _width(self) -> int:
        """Return the columns of the screen for blocks; 0 if it is not a terminal."""
        return screen_width(self._err)

    def _put_question(self, question: str, typed: str | None) -> None:
        self._question = question
        self._typed = typed
        self._write(self._err, f"{question}{typed or ''}")

    def _put_typed(self, text: str) -> None:
        erased = self._erased()
        self._typed = text
        self._write(self._err, f"{erased}{self._question}{text}")

    def _put_again(self, page: Block) -> None:
        if not self._question or self._above is not None:
            return
        width = self._width()
        text = style_lines(page.lines_for(width), color=self._color_err, width=width)
        # Only the row of the cursor is erased: the rows above it belong to the other program.
        start = "\n" if self._typed is None else "\r\x1b[J"
        self._write(self._err, f"{start}{text}{self._question}{self._typed or ''}")

    def _erased(self) -> str:
        """Return the sequence that erases the line of the question, which may fill several rows."""
        rows = -(-columns(f"{self._question}{self._typed}") // (self._width() or 80)) or 1
        return "\r" + (f"\x1b[{rows - 1}A" if rows > 1 else "") + "\x1b[J"

    def _end_question(self, note: str) -> None:
        echoed = self._typed is None  # the Enter that ended the line too
        self._question = ""
        self._typed = None
        if note or not echoed:
            self._write(self._err, f"\n{note}\n" if note else "\n")

    def _write(self, stream: TextIO, text: str) -> None:
        if stream.closed:
            return  # no one reads it
        encoding = stream.encoding or "utf-8"
        # A character that the screen cannot show must not end the program
        # (test_what_the_encoding_of_the_stream_lacks_is_spelled_out).
        data = text.encode(encoding, "backslashreplace")
        try:
            if (file := _descriptor(stream)) is None:
                stream.write(data.decode(encoding))
                stream.flush()
            else:
                _write_whole(file, data)
        except OSError as error:
            # A closed pipe is not a failure, but a full disk loses a result (test_a_closed_pipe_is_quiet,
            # test_a_result_that_could_not_be_written_is_told).
            if stream is self._out and error.errno not in {errno.EPIPE, errno.EIO}:
                self._failure = self._failure or error
            _silence(stream)


def unwritten(error: OSError) -> str:
    """Describe why stdout did not take a result."""
    if error.errno == errno.EBADF:
        return "the result could not be written to stdout, which is closed"
    reason = error.strerror or str(error)
    return f"the result could not be written to stdout ({reason}). Free some room, or write elsewhere"


def _descriptor(stream: TextIO) -> int | None:
    """Return the file descriptor of a stream; None if it has none."""
    try:
        return stream.fileno()
    except (OSError, ValueError):
        return None


def _write_whole(file: int, data: bytes) -> None:
    """Write all the data, however long that takes. Raises `OSError`.

    The stream's own buffer is bypassed. It is locked while a reader does not read, and the interpreter would fail on
    the lock at exit. It also loses data that a descriptor refuses after another process made it non-blocking.
    """
    remaining = memoryview(data)
    while remaining:
        try:
            remaining = remaining[os.write(file, remaining) :]
        # Another program may have made the shared descriptor non-blocking
        # (test_a_descriptor_that_does_not_wait_loses_nothing).
        except BlockingIOError:
            room = select.poll()
            room.register(file, select.POLLOUT)
            room.poll()


def _silence(stream: TextIO) -> None:
    """Redirect a stream without a reader to /dev/null, so that neither later writes nor the interpreter's exit fail."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        return  # the stream has no file, so nothing can fail

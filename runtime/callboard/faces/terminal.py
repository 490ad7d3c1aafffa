"""The one way to the screen: `Terminal.terminal_print`. Whole blocks, one writer, no control sequence from outside.

Two laws. A block is written in one piece, so that what threads and agents say never interleaves; and no text of a
model, a tool or a file moves the cursor, sets a title or hides a word: control characters are taken out here, and the
only escape sequences on the screen are the styles below. Callers give words and a style, never a sequence.

Lock order: an agent opens a block only while it holds its `agent_lock`. This module takes no `agent_lock` and waits
for none; printing puts the block into a queue and returns, so a screen that is slow, or stands still (Ctrl-S, a reader
that does not read), holds up nobody: agents and store go on. What is only progress is dropped when the screen
falls far behind, and the screen says how much; the rest is kept, and the end of the process waits until it is read.

It refuses to ask, to redraw and to know what an event is.
"""

from __future__ import annotations

import errno
import os
import queue
import re
import select
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Literal, TextIO

from callboard.words.errors import CallboardError

Style = Literal["plain", "dim", "strong", "good", "warn", "bad", "name"]

_STYLES: Mapping[Style, str] = {
    "dim": "\x1b[2m",
    "strong": "\x1b[1m",
    "good": "\x1b[32m",
    "warn": "\x1b[33m",
    "bad": "\x1b[31m",
    "name": "\x1b[36m",
}
_END = "\x1b[0m"

_SEQUENCES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor, clearing
    r"|\x9b[0-?]*[ -/]*[@-~]"  # CSI in one character
    # OSC, DCS, SOS, PM, APC: titles, links, clipboards; one without an end must not swallow what follows it
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d\x9e\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]?"  # the rest: character sets, resets
)
_BREAKS = re.compile(r"\r\n|[\r\x0b\x0c\x85\u2028\u2029]")
_CONTROLS = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x9f\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069]"  # also what reverses the reading order
)
_NUMBERS = re.compile(r"[0-9]+(;[0-9]+)*")
_REVERSING = re.compile("[\u202a-\u202e\u2066-\u2069]")
_GATHER = 0.01
"""Seconds that blocks gather while the screen has nothing to write."""
_UNDRAWN = 20
"""Writes that may wait before a prompt line is not drawn anew for news about it."""
_BEHIND = 2_000
"""Blocks that may wait for a slow screen before progress is dropped."""


class ResultUnwritten(CallboardError):
    """The result could not be written where stdout leads (a full disk, a lost terminal)."""


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a line. `codes`: numbers of a style with `;` between them, such as `1;36`; empty for none."""

    text: str
    codes: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """One line for the screen. `name` stands before it (an agent), in a style of its own. `spans`: the text in pieces
    that have a style each, used in its place where there is colour."""

    text: str
    style: Style = "plain"
    name: str = ""
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class Block:
    """Lines that stand together. `progress`: one-liners that `--quiet` hides and a slow screen may lose."""

    lines: tuple[Line, ...]
    progress: bool = False


def plain(text: str) -> str:
    """The text without control sequences; only line breaks and tabs are left of the control characters. What reverses
    the reading order of a piece, and so may make one text look like another, is spelled out (`\\u202e`)."""
    if text.replace("\n", "").isprintable():  # most of what is said; looking costs a tenth of the substitutions
        return text
    text = _BREAKS.sub("\n", _SEQUENCES.sub("", text))
    return _CONTROLS.sub("", _REVERSING.sub(_spelled, text))


def visible(text: str) -> str:
    """The text with its control characters spelled out (`\\x1b`), for what a person is about to approve."""
    return _CONTROLS.sub(_spelled, text.replace("\r", "\\r"))


def _spelled(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def block(text: str, style: Style = "plain", *, name: str = "", progress: bool = False) -> Block:
    """A block of a text, line for line; `name` stands before the first."""
    first, *others = plain(text).split("\n")
    return Block((Line(first, style, name), *(Line(line, style) for line in others)), progress)


def wants_color(choice: str, stream: TextIO, env: Mapping[str, str]) -> bool:
    """`--color` first, then NO_COLOR, FORCE_COLOR, a TERM that is `dumb` or not told, then whether the stream is a
    terminal. Sources: no-color.org, force-color.org."""
    if choice in {"always", "never"}:
        return choice == "always"
    if env.get("NO_COLOR"):
        return False
    if env.get("FORCE_COLOR", "0") not in {"", "0"}:
        return True
    return env.get("TERM", "") not in {"", "dumb"} and stream.isatty()


def styled(lines: Sequence[Line], *, color: bool) -> str:
    """The lines as they go to a stream, each ended by a line break."""
    return "".join(f"{_styled(line, color=color)}\n" for line in lines)


def _styled(line: Line, *, color: bool) -> str:
    text, name = plain(line.text), plain(line.name)
    if color and line.spans:
        text = "".join(map(_span, line.spans))
    elif color and text and line.style != "plain":
        text = f"{_STYLES[line.style]}{text}{_END}"
    if not name:
        return text
    return f"{_STYLES['name']}{name}{_END} {text}" if color else f"{name}: {text}"


def _span(span: Span) -> str:
    """A piece in its style. Each is made plain by itself: no two of them make up a sequence."""
    text = plain(span.text).replace("\n", " ")
    return f"\x1b[{span.codes}m{text}{_END}" if text and _NUMBERS.fullmatch(span.codes) else text


class Canvas:
    """Where a prompt line draws: a stream, as far as such a line needs one, that never waits for the screen. What is
    drawn is written by the terminal's one writer, between blocks."""

    def __init__(self, stream: TextIO, hand_over: Callable[[str], None]) -> None:
        self._stream, self._hand_over = stream, hand_over

    @property
    def encoding(self) -> str:
        """Of the stream."""
        return self._stream.encoding or "utf-8"

    def fileno(self) -> int:
        """Of the stream: its size and settings are asked for there."""
        return self._stream.fileno()

    def isatty(self) -> bool:
        """Of the stream."""
        return self._stream.isatty()

    def write(self, text: str) -> int:
        """Put the text into the terminal's queue."""
        self._hand_over(text)
        return len(text)

    def flush(self) -> None:
        """Nothing waits here."""


class Terminal:
    """The screen of this process. Everything may be called from any thread.

    Blocks go to `err`, results to `out`, in the order of the calls whichever stream they go to. A closed pipe is
    quiet: what goes there is dropped. A stream that fails otherwise is told by `close`.
    """

    def __init__(self, out: TextIO, err: TextIO, *, color: str = "auto", quiet: bool = False) -> None:
        self._out, self._err, self._quiet = out, err, quiet
        self._color_out, self._color_err = wants_color(color, out, os.environ), wants_color(color, err, os.environ)
        self._above: Callable[[str], object] | None = None
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._question = ""
        self._lost = 0
        self._holds = False
        self._failure: OSError | None = None
        for stream in (out, err):
            with suppress(OSError, ValueError):
                stream.flush()  # from here on it is written past its buffer
        # Says who may drop progress and count it; held for a few instructions, never while writing.
        self._counting = threading.Lock()
        self._hurry = threading.Event()
        self._writer = threading.Thread(target=self._write_all, name="terminal", daemon=True)
        self._writer.start()

    @property
    def out_is_tty(self) -> bool:
        """A person reads the results."""
        return self._out.isatty()

    @property
    def paints(self) -> bool:
        """Blocks are shown in colour."""
        return self._color_err

    def terminal_print(self, shown: Block) -> None:
        """Print one block above whatever is being typed. Returns at once."""
        if not shown.lines or (shown.progress and (self._quiet or self._too_far_behind())):
            return
        self._queue.put(lambda: self._show(shown.lines))

    def result(self, text: str) -> None:
        """Print what a script reads: to stdout, as it is save for control characters, ended by one line break."""
        self._queue.put(lambda: self._write(self._out, plain(text).removesuffix("\n") + "\n"))

    def rows(self, shown: Block) -> None:
        """Print a listing for a person to stdout."""
        self._queue.put(lambda: self._write(self._out, styled(shown.lines, color=self._color_out)))

    def record(self, line: str) -> None:
        """Print one line of JSON to stdout. The caller's encoder has escaped what is not ASCII."""
        self._queue.put(lambda: self._write(self._out, line + "\n"))

    def ask(self, words: str) -> None:
        """Put a question to stderr and leave the cursor behind it. Blocks that come before `answered` go above it."""
        self._queue.put(lambda: self._put_question(plain(words)))
        self.flush()

    def answered(self, note: str = "") -> None:
        """The question is answered, or void as `note` says: nothing needs to be put again."""
        self._queue.put(lambda: self._end_question(plain(note)))

    @property
    def canvas(self) -> Canvas:
        """Where a prompt line draws on stdout."""
        return Canvas(self._out, self._draw)

    @property
    def is_behind(self) -> bool:
        """The screen takes nothing at the moment: what would only be drawn anew may wait."""
        return self._queue.qsize() > _UNDRAWN

    def show_above(self, write: Callable[[str], object] | None) -> None:
        """While a person types, blocks go through `write`, which keeps their line; None: straight to stderr again."""
        self.flush()
        self._above = write

    @contextmanager
    def held(self) -> Generator[None]:
        """While the block lasts another program has the screen: what is printed meanwhile is written afterwards."""
        resting, go_on = threading.Event(), threading.Event()

        def rest() -> None:
            resting.set()
            go_on.wait()

        self._queue.put(rest)
        self._hurry.set()
        resting.wait()
        self._holds = True
        try:
            yield
        finally:
            self._holds = False
            go_on.set()

    def flush(self) -> None:
        """Return when all that was printed so far has been written; at once while the screen is another program's."""
        if self._holds or not self._writer.is_alive():
            return
        done = threading.Event()
        self._queue.put(done.set)
        self._hurry.set()
        done.wait()

    def close(self) -> None:
        """Write what waits and end the writer. Raises `ResultUnwritten` when stdout refused a result."""
        self._queue.put(None)
        self._hurry.set()
        self._writer.join()
        if self._failure is not None:
            why = self._failure.strerror or str(self._failure)
            raise ResultUnwritten(
                f"the result could not be written to stdout ({why}). Free some room, or write elsewhere"
            )

    def _draw(self, text: str) -> None:
        self._queue.put(lambda: self._write(self._out, text))
        self._hurry.set()

    def _too_far_behind(self) -> bool:
        with self._counting:
            behind = self._queue.qsize() > _BEHIND
            self._lost += behind
        return behind

    def _write_all(self) -> None:
        """Write what there is, then let more gather for a moment: waking this thread for every line costs more than
        writing it. Whoever waits for the screen (`flush`, `close`) cuts the moment short."""
        while (job := self._queue.get()) is not None:
            job()
            if self._queue.empty():
                self._hurry.wait(_GATHER)
                self._hurry.clear()

    def _show(self, lines: tuple[Line, ...]) -> None:
        with self._counting:
            lost, self._lost = self._lost, 0
        if lost:
            lines = (Line(f"[{lost} lines of progress not shown: the screen was too slow]", "dim"), *lines)
        text = styled(lines, color=self._color_err)
        if self._above is not None:
            self._above(text)
        elif self._question:
            self._write(self._err, f"\n{text}{self._question}")
        else:
            self._write(self._err, text)

    def _put_question(self, words: str) -> None:
        self._question = words
        self._write(self._err, words)

    def _end_question(self, note: str) -> None:
        self._question = ""
        if note:
            self._write(self._err, f"\n{note}\n")

    def _write(self, stream: TextIO, text: str) -> None:
        if stream.closed:
            return  # under us: nobody reads it
        encoding = stream.encoding or "utf-8"
        data = text.encode(encoding, "backslashreplace")
        try:
            if (file := _descriptor(stream)) is None:
                stream.write(data.decode(encoding))
                stream.flush()
            else:
                _write_whole(file, data)
        except OSError as error:
            if stream is self._out and error.errno not in {errno.EPIPE, errno.EIO}:
                self._failure = self._failure or error
            _silence(stream)


def _descriptor(stream: TextIO) -> int | None:
    """The file behind a stream; None where there is none."""
    try:
        return stream.fileno()
    except (OSError, ValueError):
        return None


def _write_whole(file: int, data: bytes) -> None:
    """Write all of it, however long that takes. Raises `OSError`.

    Past the stream's own buffer: that one is locked while a reader does not read, and the interpreter's exit would
    trip over the lock; and it loses what a descriptor refuses that another process has made non-blocking.
    """
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(file, rest) :]
        except BlockingIOError:
            room = select.poll()
            room.register(file, select.POLLOUT)
            room.poll()


def _silence(stream: TextIO) -> None:
    """Point a stream that nobody reads at /dev/null, so that neither we nor the interpreter's exit trip over it."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        return  # not a real file: there is nothing that could trip

"""Frame of a question: what it is about, who asks and why, and the numbered choices. Pure.

A frame has two forms. At a prompt line that can be redrawn, `DrawnFrame` draws it with a border in the size of the
screen, and the answer erases it. A long body is folded there, and a key prints it whole. `Frame.lines` is the linear
form, whole and without a border, for a terminal whose output stays as it is, a screen reader, or a log.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from datetime import datetime
from itertools import islice

from callboard.cli.terminal.terminal import Block, Line, Span, Style, block, columns, plain
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass

WHOLE = "v"
"""Key that prints a folded body whole."""
NEAR = 300.0
"""Seconds before a deadline from which a frame shows it."""
MOST_LINES = 8
"""Rows of a frame besides its body, and with the first row of the body, above which choices share a row."""
_BODY_ROWS = 30
"""Most rows of a body, however tall the screen is."""
_LEAST_BODY = 3
_WIDEST = 120
_ECHOED = 12
_ECHOED_WIDTH = 1_000
"""Limits of the lines of a sent text that are shown again, and of the characters of each; the person already knows a
long paste."""
_INDENT = late_pattern(r" *\d+ [-+ ] | *")
"""Start of a row: the number and the sign of a changed line, or blanks. Its other rows begin below its text."""
_GAP = "   "


@dataclass(frozen=True, slots=True)
class Choice:
    """Answer of one key. `answer`: the text that the key enters."""

    key: str
    text: str
    answer: str


@dataclass(frozen=True, slots=True)
class Deadline:
    """End of the time for an answer (Unix seconds), and what happens then, as text."""

    at: float
    effect: str

    def text(self) -> str:
        """Return `until 14:05:30, then it is refused`, in this machine's time."""
        return f"until {datetime.fromtimestamp(self.at).astimezone():%H:%M:%S}, then {self.effect}"


@dataclass(frozen=True, slots=True)
class Frame:
    """Question with everything that its answer depends on."""

    title: str
    """One line with the asker: `lead wants to run a command`."""
    body: tuple[Line, ...] = ()
    """Content that is asked for."""
    short: bool = False
    """True if the body is a call, not a change or a long text: choices share a row, so that all is at most
    `MOST_LINES`."""
    about: tuple[Line, ...] = ()
    """Reason, and where."""
    choices: tuple[Choice, ...] = ()
    request: str = ""
    """Id for an answer from elsewhere."""
    heading: Line = Line("")
    """First line of the linear form."""
    extra: tuple[Line, ...] = ()
    """Further lines of the linear form."""
    note: str = ""
    """Reply to an invalid answer."""
    repeated: bool = False
    """True if the question was already shown: the linear form has only the note."""
    recorded: bool = False
    """True if the session's screen shows the answer in a line of its own."""
    style: Style = "name"
    deadline: Deadline | None = None
    waiting: Callable[[], int] = field(default=lambda: 0, compare=False)
    """Returns how many other questions wait now."""

    @property
    def lines(self) -> tuple[Line, ...]:
        """Return the linear form."""
        note = (Line(self.note, "warn"),) if self.note else ()
        if self.repeated:
            return note
        inner = (*self.body, *self.about, *(Line(f"{choice.key} {choice.text}") for choice in self.choices))
        return (self.heading, *(replace(line, text=f"  {line.text}") for line in inner), *self.extra, *note)

    def repeat(self, note: str = "") -> Frame:
        """Return the frame for a repeated or further question about the same request."""
        return replace(self, note=note, repeated=True)


@dataclass(slots=True)
class DrawnFrame:
    """Frame on a prompt line. `encoding`: of the screen, which may have no characters for a border."""

    frame: Frame
    now: Callable[[], float]
    encoding: str = "utf-8"
    folded: int = 0
    """Lines of the body that did not fit the latest drawing."""
    printed: bool = False
    """True if the whole body was printed above."""
    _width: int = 80
    """Columns of the latest drawing."""

    def seconds_until_near(self) -> float | None:
        """Return the seconds until the frame shows its deadline; None if it never does, or does already."""
        deadline = self.frame.deadline
        seconds = -1.0 if deadline is None else deadline.at - NEAR - self.now()
        return seconds if seconds > 0 else None

    @property
    def keys(self) -> frozenset[str]:
        """Return the keys that answer at once."""
        return frozenset(
            [*(choice.key for choice in self.frame.choices if len(choice.key) == 1), *([WHOLE] if self.folded else [])]
        )

    def whole(self) -> Block:
        """Return the body in full, to be printed above the frame."""
        self.printed = True
        rows = [row for line in self.frame.body for row in broken(line, self._width)]
        return Block((Line(self.frame.title, "strong"), *rows))

    def rows(self, width: int, height: int) -> list[Line]:
        """Return the frame in rows of at most `width` columns, all but the row in which the person types."""
        frame = self.frame
        self._width = width
        bar, corner, rule = ("│ ", "╭─ ", "─") if _can_encode("│╭╰─", self.encoding) else ("| ", "+- ", "-")
        room = max(20, min(width, _WIDEST) - 1) - columns(bar)
        about = [row for line in frame.about for row in broken(line, room)]
        note = list(broken(Line(frame.note, "warn"), room)) if frame.note else []
        row_count = sum(len(list(islice(broken(line, room), MOST_LINES))) for line in frame.body[:MOST_LINES])
        above = row_count if frame.short else min(1, row_count)
        choices = _choice_rows(frame.choices, room, max(1, MOST_LINES - 2 - above - len(about) - len(note)))
        title = self._title(room, corner, rule)
        fixed = len(title) + len(about) + len(note) + len(choices) + 1
        body = self._body(room, max(_LEAST_BODY, min(_BODY_ROWS, height - fixed - 1)))
        return [*title, *(_framed(row, bar, frame.style) for row in (*body, *about, *choices, *note))]

    def prompt(self, question: str, width: int) -> str:
        """Return the text before the cursor, in its corner of the frame; shorter on a narrow screen."""
        corner = "╰ " if _can_encode("│╭╰─", self.encoding) else "+ "
        return corner + (re.sub(r", or [^]]*]", "]", question) if width < len(question) + 20 else question)

    def _title(self, room: int, corner: str, rule: str) -> list[Line]:
        frame = self.frame
        waiting = frame.waiting()
        near = frame.deadline is not None and frame.deadline.at - self.now() <= NEAR
        parts = [
            f"1 of {waiting + 1}" if waiting else "",
            frame.deadline.text() if near and frame.deadline is not None else "",
            frame.request,
        ]
        first, *others = broken(Line(frame.title), room - 2)
        free = room - columns(first.text) - 4
        fitting: list[str] = []
        for part in filter(None, parts):
            if columns(_GAP.join([*fitting, part])) <= free:
                fitting.append(part)
        right = _GAP.join(fitting)
        line = rule * max(1, free - columns(right) + (0 if right else 1))
        right = f" {right}" if right else ""
        spans = (Span(corner, _CODES[frame.style]), Span(first.text, "1"), Span(f" {line}{right}", _CODES[frame.style]))
        head = Line("".join(span.text for span in spans), spans=spans)
        bar = corner[0].replace("╭", "│").replace("+", "|")
        return [head, *(_framed(replace(row, style="strong"), f"{bar}  ", frame.style) for row in others)]

    def _body(self, room: int, most: int) -> list[Line]:
        """Return the body in at most `most` rows, the last of which counts the lines that are not shown whole."""
        body = self.frame.body
        self.folded = 0
        if self.printed and len(body) > 1:
            return [Line(f"({len(body):,} lines, shown above)", "dim")]
        rows: list[Line] = []
        ends: list[int] = []
        for line in body:
            rows += islice(broken(line, room), most + 1)  # a line of a million characters is not broken whole
            ends.append(len(rows))
            if len(rows) > most:
                break
        else:
            return rows
        self.folded = len(body) - sum(end < most for end in ends)
        note = f"… {self.folded:,} more line{'s' * (self.folded != 1)}: {WHOLE} shows all"
        return [*rows[: most - 1], Line(note, "strong")]


_CODES = {"name": "36", "bad": "31"}


def _framed(row: Line, bar: str, style: Style) -> Line:
    """Return a row inside the frame."""
    codes = {"dim": "2", "strong": "1", "good": "32", "warn": "31", "bad": "31", "name": "36"}.get(row.style, "")
    spans = (Span(bar, _CODES[style]), *(row.spans or (Span(row.text, codes),)))
    return Line(bar + row.text, spans=spans)


def _choice_rows(choices: Sequence[Choice], room: int, most: int) -> list[Line]:
    """Return a row for each choice; above `most` rows, several share one, and the long ones follow."""
    each = [_rows_of_choice(choice, room) for choice in choices]
    if sum(map(len, each)) <= most:
        return [row for rows in each for row in rows]
    packed: list[list[Line]] = []
    for rows in sorted(each, key=lambda rows: len(rows) > 1):
        before = packed[-1] if packed else []
        if len(before) == len(rows) == 1 and columns(before[0].text + _GAP + rows[0].text) <= room:
            spans = (*before[0].spans, Span(_GAP), *rows[0].spans)
            packed[-1] = [Line(before[0].text + _GAP + rows[0].text, spans=spans)]
        else:
            packed.append(rows)
    return [row for rows in packed for row in rows]


def _rows_of_choice(choice: Choice, room: int) -> list[Line]:
    first, *others = broken(Line(f"{choice.key} {choice.text}"), room, hang=len(choice.key) + 1)
    spans = (Span(choice.key, "1;36"), Span(first.text.removeprefix(choice.key)))
    return [replace(first, spans=spans), *(replace(row, spans=(Span(row.text),)) for row in others)]


def broken(line: Line, width: int, *, hang: int = 0) -> Iterator[Line]:
    """Break a line between words into rows of at most `width` columns.

    A word that is longer than a row begins a row, and is broken at the edge. The rows after the first begin below its
    text, or `hang` columns further right.
    """
    text = plain(line.text).expandtabs(4)
    if columns(text) <= width:
        yield line if text == line.text else replace(line, text=text)
        return
    start = _INDENT.match(text)
    indent = " " * min(hang + (len(start[0]) if start else 0), width // 2)
    row = ""
    used = 0
    begun = False
    for word in re.findall(r" +|[^ ]+", text):
        size = columns(word)
        if begun and used + size > width:
            if word.isspace():
                used = width  # the next word begins a row
                continue
            yield Line(row.rstrip(), line.style)
            row = indent
            used = len(indent)
        for piece in word if used + size > width else (word,):
            if used + columns(piece) > width:
                yield Line(row, line.style)
                row = indent
                used = len(indent)
            row += piece
            used += columns(piece)
        begun = begun or not word.isspace()
    yield Line(row.rstrip(), line.style)


def _can_encode(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _shortened(row: Line) -> Line:
    """Return a line of the person, of which a very long one is not shown whole."""
    hidden = len(row.text) - _ECHOED_WIDTH
    return (
        row if hidden <= 0 else replace(row, text=f"{row.text[:_ECHOED_WIDTH]} … {hidden} more characters, sent whole")
    )


def echo_line(line: str) -> Block:
    """Return the sent line as it remains on the screen, after an empty line: a turn begins."""
    first, *others = (_shortened(row) for row in block(line, "strong").lines)
    visible = [replace(row, text=f"  {row.text}") for row in others[: _ECHOED - 1]]
    hidden = len(others) - len(visible)
    note = (Line(f"  … {hidden} more {'line' if hidden == 1 else 'lines'}, sent whole", "dim"),) if hidden else ()
    return Block((Line(""), replace(first, text=f"> {first.text}"), *visible, *note))

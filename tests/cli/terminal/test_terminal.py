"""The screen: one writer, whole blocks, no control sequences from outside, quiet on a closed pipe."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from pathlib import Path

import pyte
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.cli.terminal.keyboard import TypedLine
from callboard.cli.terminal.terminal import (
    Block,
    Line,
    ResultUnwritten,
    Span,
    Terminal,
    block,
    columns,
    plain,
    style_lines,
    visible,
    wants_color,
    wrap_line,
)


class Tty(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


class Slow(io.StringIO):
    """A stream that takes one character at a time, so that unguarded writers would mix."""

    def write(self, text: str) -> int:
        for char in text:
            super().write(char)
        return len(text)


def test_blocks_of_many_threads_never_interleave() -> None:
    screen = Slow()
    terminal = Terminal(io.StringIO(), screen)
    start = threading.Barrier(8)

    def agent(name: str) -> None:
        start.wait()
        for number in range(60):
            terminal.terminal_print(block("\n".join([f"{name} {number} {part}" for part in "abc"])))

    threads = [threading.Thread(target=agent, args=(f"agent-{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    terminal.close()
    lines = screen.getvalue().splitlines()
    assert len(lines) == 8 * 60 * 3
    seen: dict[str, int] = {}
    for at in range(0, len(lines), 3):
        name, number, _ = lines[at].split()
        assert lines[at : at + 3] == [f"{name} {number} {part}" for part in "abc"]
        assert int(number) == seen.get(name, 0)
        seen[name] = int(number) + 1


class Counted(io.StringIO):
    """A stream that counts its writes."""

    writes = 0

    def write(self, text: str) -> int:
        self.writes += 1
        return super().write(text)


@given(kinds=st.lists(st.sampled_from(["block", "lines", "result", "record"]), max_size=60))
def test_what_is_written_together_keeps_the_order_of_all_output(kinds: list[str]) -> None:
    screen = Counted()
    terminal = Terminal(screen, screen, color="never")
    for number, kind in enumerate(kinds):
        match kind:
            case "block":
                terminal.terminal_print(block(f"{number}", progress=True))
            case "lines":
                terminal.terminal_print(block(f"{number}\n{number} more"))
            case "result":
                terminal.result(f"{number}")
            case _:
                terminal.record(f"{number}")
    terminal.close()
    expected = [line for at, kind in enumerate(kinds) for line in [f"{at}", *[f"{at} more"] * (kind == "lines")]]
    assert screen.getvalue().splitlines() == expected


def test_blocks_that_come_close_together_are_written_together() -> None:
    screen = Counted()
    terminal = Terminal(io.StringIO(), screen, color="never")
    for number in range(100):
        terminal.terminal_print(block(f"{number}"))
    terminal.close()
    assert screen.getvalue().splitlines() == [f"{number}" for number in range(100)]
    assert screen.writes < 50


def test_while_another_program_has_the_screen_what_is_printed_waits_and_nobody_waits_for_it() -> None:
    screen = io.StringIO()
    terminal = Terminal(io.StringIO(), screen)
    terminal.terminal_print(block("before"))
    with terminal.lend_screen():
        assert screen.getvalue() == "before\n", "earlier output is written before the holder gets the screen"
        terminal.terminal_print(block("meanwhile"))
        terminal.flush()
        assert screen.getvalue() == "before\n"
    terminal.flush()
    assert screen.getvalue() == "before\nmeanwhile\n"
    terminal.close()


ATTACKS = [
    "\x1b[2J\x1b[Hgone",
    "\x1b]0;title\x07words",
    "\x1b]52;c;cm0gLXJm\x1b\\words",
    "\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\",
    "\x9b31mred",
    "\x9d0;title\x9cwords",
    "\x1bP+q544e\x1b\\words",
    "\x1b(0lqqk",
    "\x1bc reset",
    "over\rwritten",
    "back\x08\x08\x08space",
    "abc\u202egpj.exe",
    "bell\x07",
    "\x1b[31",
    "\x1b",
]


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("color", ["always", "never"])
def test_no_control_sequence_of_a_model_or_tool_reaches_the_screen(attack: str, color: str) -> None:
    out, err = Tty(), Tty()
    terminal = Terminal(out, err, color=color)
    terminal.terminal_print(Block((Line(attack, "bad", attack),)))
    terminal.result(attack)
    terminal.rows(block(attack))
    terminal.ask(attack)
    terminal.close()
    written = out.getvalue() + err.getvalue()
    for ours in ("\x1b[31m", "\x1b[36m", "\x1b[0m"):
        written = written.replace(ours, "")
    assert not [char for char in written if char != "\n" and (ord(char) < 32 or 127 <= ord(char) < 160)]
    assert "\u202e" not in written


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=200))
@settings(max_examples=150, deadline=None)
def test_plain_text_has_only_line_breaks_and_tabs_and_stays_as_it_is(text: str) -> None:
    once = plain(text)
    assert plain(once) == once
    assert not [char for char in once if char not in "\n\t" and (ord(char) < 32 or 127 <= ord(char) < 160)]


def test_a_sequence_without_an_end_hides_nothing_that_follows() -> None:
    assert "rm -rf build" in plain("\x1b]0;harmless\nrm -rf build")
    assert "\n" not in plain("\x1b[") + plain("a\x1b")


def test_what_is_about_to_be_approved_shows_its_control_characters() -> None:
    assert visible("ls\x1b[8m; rm x\x1b[0m\u202e\r") == "ls\\x1b[8m; rm x\\x1b[0m\\u202e\\r"


@pytest.mark.parametrize(
    ("choice", "env", "tty", "colored"),
    [
        ("auto", {"TERM": "xterm"}, True, True),
        ("auto", {"TERM": "xterm"}, False, False),
        ("auto", {}, True, False),
        ("auto", {"TERM": ""}, True, False),
        ("auto", {"TERM": "xterm", "NO_COLOR": "1"}, True, False),
        ("auto", {"TERM": "xterm", "NO_COLOR": "0"}, True, False),
        ("auto", {"TERM": "xterm", "NO_COLOR": ""}, True, True),
        ("auto", {"TERM": "dumb", "FORCE_COLOR": "1"}, True, True),
        ("auto", {"FORCE_COLOR": "1"}, False, True),
        ("auto", {"FORCE_COLOR": "0"}, False, False),
        ("auto", {"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
        ("auto", {"TERM": "dumb"}, True, False),
        ("always", {"NO_COLOR": "1"}, False, True),
        ("never", {"FORCE_COLOR": "1"}, True, False),
    ],
)
def test_color_is_chosen_by_flag_then_environment_then_stream(
    choice: str, env: dict[str, str], tty: bool, colored: bool
) -> None:
    assert wants_color(choice, Tty() if tty else io.StringIO(), env) is colored


def test_what_reverses_the_reading_order_is_spelled_out() -> None:
    assert plain("photo\u202egpj.exe \u2066x\u2069") == "photo\\u202egpj.exe \\u2066x\\u2069"
    assert plain("שלום\u200f, 日本 👩\u200d👧") == "שלום, 日本 👩\u200d👧"


def test_quiet_hides_one_liners_and_nothing_else() -> None:
    err = io.StringIO()
    terminal = Terminal(io.StringIO(), err, quiet=True)
    terminal.terminal_print(block("a retry", progress=True))
    terminal.terminal_print(block("a plan"))
    terminal.close()
    assert err.getvalue() == "a plan\n"


def read_all(reader: int) -> tuple[threading.Thread, list[bytes]]:
    """Read everything from a pipe, beginning now."""
    read: list[bytes] = []

    def drain() -> None:
        while piece := os.read(reader, 65_536):
            read.append(piece)

    draining = threading.Thread(target=drain)
    draining.start()
    return draining, read


def test_a_screen_that_hangs_holds_nobody_up_and_loses_only_progress() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as slow:
        terminal = Terminal(io.StringIO(), slow)
        for number in range(6_000):  # the pipe fills up long before, but these calls still return
            terminal.terminal_print(block(f"progress {number} {'x' * 100}", progress=True))
        terminal.terminal_print(block("the plan, in full"))
        draining, read = read_all(reader)
        terminal.close()
    draining.join()
    os.close(reader)
    said = b"".join(read).decode()
    assert "the plan, in full" in said
    assert "lines of progress" in said
    assert said.count("progress ") < 6_000


def test_a_descriptor_that_does_not_wait_loses_nothing() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)  # as another process that shares the pipe may have set it
    with os.fdopen(writer, "w") as stream:
        terminal = Terminal(stream, io.StringIO())
        for number in range(3_000):
            terminal.result(f"{number} {'x' * 100}")
        draining, read = read_all(reader)
        terminal.close()
    draining.join()
    os.close(reader)
    assert [line.split()[0] for line in b"".join(read).decode().splitlines()] == [str(n) for n in range(3_000)]


def test_what_a_prompt_line_draws_waits_for_no_screen_and_keeps_its_place() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream:
        terminal = Terminal(stream, stream)
        wanted = ""
        for number in range(2_000):  # the pipe fills up long before, but these calls still return
            terminal.canvas.write(f"drawn {number} {'x' * 50}\n")
            terminal.terminal_print(block(f"said {number}"))
            wanted += f"drawn {number} {'x' * 50}\nsaid {number}\n"
        assert terminal.is_behind
        draining, read = read_all(reader)
        terminal.flush()
        assert not terminal.is_behind
        terminal.close()
    draining.join()
    os.close(reader)
    assert b"".join(read).decode() == wanted


def test_what_the_encoding_of_the_stream_lacks_is_spelled_out() -> None:
    raw = io.BytesIO()
    terminal = Terminal(io.TextIOWrapper(raw, encoding="ascii"), io.StringIO())
    terminal.result("naïve \ud800 日本")
    terminal.close()
    assert raw.getvalue() == b"na\\xefve \\ud800 \\u65e5\\u672c\n"


PRINTER = """
import sys
from callboard.cli.terminal.terminal import Terminal, block
terminal = Terminal(sys.stdout, sys.stderr)
for number in range(20_000):
    terminal.result("line %d" % number)
terminal.close()
sys.stderr.write("went on\\n")
"""


def test_a_closed_pipe_is_quiet() -> None:
    child = subprocess.Popen([sys.executable, "-c", PRINTER], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout
    assert child.stderr
    assert child.stdout.readline() == "line 0\n"
    child.stdout.close()
    assert child.stderr.read() == "went on\n"
    child.stderr.close()
    assert child.wait() == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_result_that_could_not_be_written_is_told() -> None:
    with Path("/dev/full").open("w") as full:
        terminal = Terminal(full, io.StringIO())
        terminal.result("lost")
        with pytest.raises(ResultUnwritten, match="No space left"):
            terminal.close()


def test_while_a_person_types_blocks_go_above_their_line() -> None:
    err = io.StringIO()
    above: list[str] = []
    terminal = Terminal(io.StringIO(), err)
    terminal.terminal_print(block("before"))
    terminal.show_above(above.append)
    terminal.terminal_print(block("two\nlines"))
    terminal.show_above(None)
    terminal.terminal_print(block("after"))
    terminal.close()
    assert above == ["two\nlines\n"]
    assert err.getvalue() == "before\nafter\n"


def test_a_block_that_comes_while_a_question_stands_goes_above_it() -> None:
    err = io.StringIO()
    terminal = Terminal(io.StringIO(), err)
    terminal.ask("allow this? ")
    terminal.terminal_print(block("alice found it"))
    terminal.note_answer()
    terminal.terminal_print(block("done"))
    terminal.close()
    assert err.getvalue() == "allow this? \nalice found it\nallow this? done\n"


def test_a_question_whose_answer_is_read_key_by_key_is_moved_and_not_repeated() -> None:
    class Tty(io.StringIO):
        def isatty(self) -> bool:
            return True

    err = Tty()
    terminal = Terminal(io.StringIO(), err, color="never")
    terminal.ask("allow this? ", typed="")
    terminal.show_typed("n, it")
    terminal.show_typed("n, it is")
    terminal.terminal_print(block("alice found it"))
    terminal.show_typed("n")
    terminal.note_answer()
    terminal.terminal_print(block("done"))
    terminal.close()
    screen = pyte.Screen(80, 10)
    pyte.Stream(screen).feed(err.getvalue().replace("\n", "\r\n"))
    assert [line.rstrip() for line in screen.display[:4]] == ["alice found it", "allow this? n", "done", ""]


def test_a_long_answer_of_several_rows_is_erased_whole() -> None:
    err = io.StringIO()
    terminal = Terminal(io.StringIO(), err)
    answer = "no: " + "漢" * 60
    terminal.ask("allow this? ", typed="")
    terminal.show_typed(answer)
    terminal.terminal_print(block("alice found it"))
    terminal.note_answer("(answered elsewhere)")
    terminal.close()
    screen = pyte.Screen(80, 10)
    pyte.Stream(screen).feed(err.getvalue().replace("\n", "\r\n"))
    lines = [line.rstrip() for line in screen.display]
    assert lines[0] == "alice found it"
    assert lines[1].startswith("allow this? no: 漢")
    assert lines[3] == "(answered elsewhere)"


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (b"yes\r", "yes"),
        (b"n  no\x7f\x7fit is\n", "n  it is"),
        (b"wrong\x15right\n", "right"),
        (b"n because of\x17this\n", "n because this"),
        ("n, é漢\n".encode(), "n, é漢"),
        (b"\x1b[A\x1b[1;5Cy\x1bOP\n", "y"),
        (b"y\nls\n", "y"),
        (b"\x17\x15\x7f\n", ""),
    ],
)
def test_a_line_has_the_editing_keys_of_a_terminal(keys: bytes, text: str) -> None:
    whole, pieces = TypedLine(), TypedLine()
    whole.press(keys)
    assert (whole.text, whole.ended, whole.left) == (text, True, False)
    for place in range(len(keys)):
        pieces.press(keys[place : place + 1])
    assert pieces.text == text


def test_ctrl_d_leaves_an_empty_line_only() -> None:
    line = TypedLine()
    line.press(b"a\x04")
    assert not line.left
    line.press(b"\x7f\x04")
    assert line.left


WORDS = st.lists(st.text("abc漢é-", min_size=1, max_size=30), max_size=20)


@given(WORDS, st.integers(0, 4), st.sampled_from(["", "lead"]), st.integers(20, 60))
def test_lines_break_between_words_and_lose_none(words: list[str], indent: int, name: str, width: int) -> None:
    text = " " * indent + " ".join(words)
    parts = wrap_line(Line(text, "dim", name), width)
    assert [word for part in parts for word in part.text.split()] == words
    assert parts[0].name == name
    assert not any(part.name for part in parts[1:])
    for number, part in enumerate(parts):
        room = width - (len(name) + 1 if name and number == 0 else 0)
        assert columns(part.text) <= room or len(part.text.split()) == 1, "only a single long word exceeds the width"
        assert not words or part.text.startswith(" " * indent)


def test_nothing_is_broken_where_there_is_no_screen() -> None:
    line = Line("word " * 100)
    assert style_lines([line], color=False).count("\n") == 1
    assert style_lines([line], color=False, width=40).count("\n") > 10
    assert wrap_line(Line("word " * 100, spans=(Span("word"),)), 40) != ()

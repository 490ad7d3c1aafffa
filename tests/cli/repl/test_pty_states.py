"""A real terminal is restored on exit, quiet while nothing is typed, and never blocks agents."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import textwrap
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import cast

import pytest
from click import Option
from tests.cli.commands.command import Command
from tests.cli.repl.pty_screen import PtyScreen

from callboard.cli.commands.root import cli
from callboard.cli.repl import type_ahead

ASKING = """
agents:
  lead:
    - reply: [{tool_use: {name: bash, input: {command: "touch made"}}}]
    - reply: Made.
"""
REMOVING = """
agents:
  lead:
    - reply: [{tool_use: {name: bash, input: {command: "rm -f made"}}}]
    - reply: Removed.
"""
ATTACK = "clip \\e]52;c;cm0gLXJm\\a link \\e]8;;http://evil\\e\\\\here \\e[31m up \\e[2A c1 \\x9b2J turned \\u202Egpj"
PARTS, WORDS = 5, 5_000
"""Together more than an unread terminal buffers (64 KB)."""
WRITES = "".join(
    f"""
    - when: {{{guard}}}
      reply:
        - text: "{"word " * WORDS}"
        - tool_use: {{name: todo_write, input: {{todos: [{{content: Part {part}, status: pending}}]}}}}"""
    for part, guard in enumerate(["contains: write", *["result_of: todo_write"] * (PARTS - 1)])
)
SCENARIO = f"""
agents:
  lead:
    - when: {{contains: attack}}
      reply:
        - text: "{ATTACK} end"
        - tool_use: {{name: read_file, input: {{path: evil.txt}}}}
    - when: {{result_of: read_file}}
      reply: Read it.{WRITES}
    - when: {{result_of: todo_write}}
      reply: Written.
    - when: {{contains: slowly}}
      latency_ms: 30000
      reply: Too late.
    - otherwise: true
      reply: I hear you.
"""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    command = Command(tmp_path)
    (command.workspace / "evil.txt").write_bytes(b"a \x1b]0;title\x07 b \xc2\x9b2J c \xe2\x80\xae d \x1b[31m e\n" * 3)
    return command


@pytest.fixture
def opened(command: Command) -> Iterator[Callable[..., PtyScreen]]:
    """Start the prompt line, or another command, in a terminal."""
    screens: list[PtyScreen] = []

    def start(*, ready: str = r"^> *$", term: str = "xterm") -> PtyScreen:
        screens.append(PtyScreen(command, "--model", command.scenario(SCENARIO), TERM=term))
        screens[-1].wait(ready)
        return screens[-1]

    yield start
    for one in screens:
        one.close()


def is_as_before(screen: PtyScreen) -> bool:
    """Return whether echo, canonical mode, cursor, and wrapping are as a shell had them, and bracketed paste is off."""
    raw = screen.raw
    on, off = raw.rfind(b"\x1b[?2004h"), raw.rfind(b"\x1b[?2004l")
    wraps = raw.rfind(b"\x1b[?7h") >= raw.rfind(b"\x1b[?7l")
    return screen.attributes() == screen.before and screen.cursor_is_visible and off >= on and wraps


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    ("keys", "sent", "code"),
    [(b"\x04", None, 0), (b"half a line\x03\x03\x03", None, 130), (b"typed", signal.SIGTERM, 143)],
    ids=["ctrl-d", "ctrl-c", "sigterm"],
)
def test_the_terminal_is_left_as_it_was_found(
    opened: Callable[..., PtyScreen], keys: bytes, sent: signal.Signals | None, code: int
) -> None:
    screen = opened()
    assert screen.attributes() != screen.before, "the line reads key by key"
    screen.type(keys)
    if sent is not None:
        screen.wait("^> typed")
        screen.process.send_signal(sent)
    assert screen.process.wait(180) == code
    screen.until(lambda: is_as_before(screen), "the restored terminal", 5)
    assert "Traceback" not in screen.output


def test_nothing_is_drawn_while_no_one_types_and_nothing_happens(opened: Callable[..., PtyScreen]) -> None:
    screen = opened()
    screen.type("hello\r")
    screen.wait(r"I hear you\.")
    screen.wait(r"1 idle")
    quiet_since, written = time.monotonic(), len(screen.raw)
    while time.monotonic() - quiet_since < 1.0:  # wait for a second without a byte; at first it may still be drawing
        time.sleep(0.1)
        if len(screen.raw) != written:
            quiet_since, written = time.monotonic(), len(screen.raw)
            assert written < 100_000, "it never stops drawing"


def test_no_sequence_of_a_model_or_a_file_reaches_the_terminal(opened: Callable[..., PtyScreen]) -> None:
    screen = opened()
    screen.type("attack\r")
    screen.until(lambda: all(words in screen.text() for words in ("gpj", "Read it.")), "what the model said")
    raw = re.sub(rb"\x1b\[22;0t|\x1b\]0;(?:workspace|(?:\* )?attack)\x07", b"", screen.raw)  # our own titles
    allowed = rb"\x1b\[\??[0-9;]*[ABCDHJKhlm]"
    rest = re.sub(allowed, b"", raw)
    assert b"\x1b" not in rest, rest[max(0, rest.find(b"\x1b") - 80) :][:160]
    assert b"\xc2\x9b" not in raw
    assert b"\xe2\x80\xae" not in raw
    assert b"\x07" not in raw


@pytest.mark.slow
def test_a_terminal_that_takes_nothing_holds_up_no_agent(opened: Callable[..., PtyScreen], command: Command) -> None:
    screen = opened()
    screen.hold()
    screen.type("write\r")
    deadline = time.monotonic() + 180
    while '"steps": 6' not in command.run_inline("team", "--json").out:
        assert time.monotonic() < deadline, "the agents wait for the screen"
        time.sleep(0.2)  # another process reports the progress, and has no event
    assert b"Written." not in screen.raw
    screen.release()
    screen.wait(r"Written\.")
    assert screen.output.count("word") >= PARTS * WORDS, "nothing was lost"


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_dumb_terminal_gets_lines_and_no_sequence(opened: Callable[..., PtyScreen], term: str) -> None:
    screen = opened(ready=r"^>", term=term)
    screen.type("hello\r")
    screen.wait_for_output(r"I hear you\.")
    screen.type("\x04")
    assert screen.process.wait(180) == 0
    assert b"\x1b" not in screen.raw
    assert screen.attributes() == screen.before


def test_a_dumb_terminal_shows_an_answered_question_once_on_rows_of_its_own(command: Command) -> None:
    screen = PtyScreen(command, "--model", command.scenario(REMOVING), TERM="dumb")
    try:
        shown = screen.wait(r"^> *$")
        assert "Shift-Tab" not in shown
        assert "Ctrl-T" not in shown
        screen.type("remove it\r")
        screen.wait_for_output(r"allow this\?[^\n]*> $")
        screen.type("1\r")
        shown = screen.wait_for_output(r"Removed\.")
        assert shown.count("allow this?") == 1
        assert "> lead: permission" not in shown
    finally:
        screen.close()


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize(
    ("args", "env", "colored"),
    [
        ([], {}, True),
        ([], {"NO_COLOR": "1"}, False),
        (["--color", "always"], {"NO_COLOR": "1"}, True),
        (["--color", "never"], {"FORCE_COLOR": "1"}, False),
        ([], {"TERM": "dumb"}, False),
    ],
)
def test_a_run_at_a_terminal_has_colours_where_they_are_wanted(
    command: Command, args: list[str], env: dict[str, str], colored: bool
) -> None:
    command.env |= env
    screen = PtyScreen(command, "run", *args, "--model", command.scenario(SCENARIO), "hello")
    try:
        assert screen.process.wait(180) == 0
        screen.wait_for_output(r"I hear you\.")
        assert (b"\x1b[" in screen.raw) is colored
    finally:
        screen.close()


def echoes_nothing(screen: PtyScreen) -> bool:
    return not cast("int", screen.attributes()[3]) & termios.ECHO


def open_early(opened: Callable[..., PtyScreen]) -> PtyScreen:
    """Return a terminal that no longer echoes keys, before its prompt line is there.

    On a loaded machine the prompt line may be there before the test checks; then another terminal is opened.
    """
    for _ in range(20):
        screen = opened(ready="")
        screen.until(partial(echoes_nothing, screen), "echo is off")
        if "session" not in screen.output:
            return screen
    raise AssertionError("the prompt line was there before its start was seen, twenty times")


def has_ended_or_begun(screen: PtyScreen) -> bool:
    return screen.process.poll() is not None or "session" in screen.output


@pytest.mark.slow
@pytest.mark.parametrize("echoed", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_what_is_typed_during_the_start_stands_once_in_the_prompt(
    opened: Callable[..., PtyScreen], *, echoed: bool
) -> None:
    """Once in some hundred runs on a busy machine the sent line itself is not on the screen: only soak asks for it."""
    screen = open_early(opened)
    screen.type("first wrods\x7f\x7f\x7f\x7fords\rsecond")
    screen.wait("I hear you")
    screen.wait(r"^> second$")
    text = screen.text()
    assert text.count("second") == 1, text
    assert text.count("first") == text.count("> first words\n") <= 1, text
    assert not echoed or "> first words\n" in text, text
    screen.type("\r")
    screen.wait(r"^> second\n(.*\n)*.*I hear you")
    screen.until(lambda: screen.text().count("I hear you") == 2, "one answer each")
    screen.type("\x04")
    assert screen.process.wait(180) == 0
    assert screen.attributes() == screen.before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_start_that_is_ended_gives_the_terminal_back(
    opened: Callable[..., PtyScreen], number: signal.Signals
) -> None:
    for _ in range(20):
        screen = open_early(opened)
        if number == signal.SIGINT:
            screen.type("\x03")
        else:
            screen.process.send_signal(number)
        screen.until(partial(has_ended_or_begun, screen), "the end of the start")
        if "session" not in screen.output:  # otherwise the key came to the prompt line, where it ends nothing
            break
    assert screen.process.wait(180) == 128 + number
    assert screen.attributes() == screen.before


@pytest.mark.parametrize("step", ["set_mode", "imported"])
def test_a_signal_between_two_steps_of_the_start_gives_the_terminal_back(step: str) -> None:
    """The signal arrives right after echo is turned off, and right before the command installs its own handlers."""
    program = f"""
        import os, signal, sys
        sys.argv[0] = "/bin/callboard"
        from callboard.cli.repl import type_ahead
        step = type_ahead.{step}
        def ended_after(*args):
            step(*args)
            os.kill(os.getpid(), signal.SIGTERM)
        type_ahead.{step} = ended_after
        import callboard.__main__ as command
        sys.exit(command.main(["--version"]))
    """
    master, slave = pty.openpty()
    before = termios.tcgetattr(slave)
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "TERM": "xterm"},
        preexec_fn=partial(take_terminal, slave),
        check=False,
    )
    said = os.read(master, 65_536).decode() if select.select([master], [], [], 0)[0] else ""
    after = termios.tcgetattr(slave)
    os.close(master)
    os.close(slave)
    assert (process.returncode, after) == (143, before), said


@pytest.mark.slow
def test_a_run_shows_its_question_again_when_it_continues_after_a_stop(command: Command) -> None:
    screen = PtyScreen(command, "run", "--model", command.scenario(ASKING), "make it")
    question = rb"allow this\? \[[^\]]*\]> "
    try:
        screen.wait(r"allow this\? .*>$")
        screen.type("ye")
        screen.wait(r"allow this\? .*> ye$")
        asking = screen.attributes()
        screen.process.send_signal(signal.SIGSTOP)
        # What a shell does between Ctrl-Z and `fg`: its own mode of the terminal, and its own output.
        termios.tcsetattr(screen.slave, termios.TCSANOW, screen.before)
        os.write(screen.slave, b"\r\n[1]+  Stopped\r\n$ fg\r\ncallboard run\r\n")
        shown = len(re.findall(question, screen.raw))
        screen.process.send_signal(signal.SIGCONT)
        screen.until(lambda: len(re.findall(question, screen.raw)) > shown, "the question again")
        rows = "\n".join(row for row in screen.rows_now() if row)
        assert re.search(r"^callboard run\n(?s:.*)touch made\n(?s:.*)allow this\? .*> ye\Z", rows, re.MULTILINE), rows
        screen.until(lambda: screen.attributes() == asking, "the mode of the question")
        screen.type("s\n")
        screen.wait(r"^Made\.$")
        assert screen.process.wait(180) == 0
        assert (command.workspace / "made").exists()
    finally:
        screen.close()


def take_terminal(slave: int) -> None:
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)


def test_only_a_command_line_that_ends_in_the_prompt_holds_keys_back() -> None:
    typed = [param for param in cli.params if not getattr(param, "hidden", False)]
    options = {name: param for param in typed for name in (*param.opts, *param.secondary_opts)}
    flags = {name for name, param in options.items() if isinstance(param, Option) and param.is_flag}
    assert flags - {"--version"} == type_ahead.FLAGS
    assert set(options) - flags == type_ahead.VALUED
    for line in ("", "-c", "--model x -v", "--model=x", "attach", "attach ID -v"):
        assert type_ahead.talks(line.split()), line
    for line in (
        "run x",
        "-p x",
        "--model x -p y",
        "--model",
        "--help",
        "-v",
        "attach -f",
        "attach --output-format=json",
    ):
        assert not type_ahead.talks(line.split()), line
    assert type_ahead.talks(["-v", "Fix the tests"])
    assert not type_ahead.talks(["Fix the tests", "-p"])
    assert not type_ahead.talks(["run", "Fix the tests"])

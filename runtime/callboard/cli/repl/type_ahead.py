"""Keys that are typed while the prompt line is still starting.

The kernel buffers them, without echo, until the line reads them.

A terminal in its ordinary mode echoes each key at once, between the other output, and the prompt line shows it again.
Therefore the start of a prompt line switches off echo and line mode before the slow imports. Ctrl-C still sends its
signal. Code that reads whole lines before that (the trust question) restores the ordinary mode temporarily.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import signal
import sys
import termios
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import FrameType

FLAGS = frozenset(
    {
        *("-q", "--quiet", "-v", "--verbose", "-d", "--debug", "-c", "--continue", "--strict-mcp-config", "--trust"),
        *("--take-over", "--force"),
    }
)
VALUED = frozenset(
    {
        *(
            "-C",
            "--cwd",
            "--store",
            "--color",
            "-r",
            "--resume",
            "-n",
            "--name",
            "--model",
            "--agent",
            "--plugin",
            "--plugin-dir",
            "--mcp-config",
        ),
        *("--permission-mode", "--wait", "-w", "--worktree"),
    }
)
"""Options of the prompt line that take a value; a test compares them with the command. Click also knows them, but is
imported too late."""
_NO_PROMPT = ("-f", "--follow", "--output-format", "-h", "--help", "--version")
"""Options with which `attach` has no prompt line."""


class _Held:
    """Original mode of the terminal while keys are held back, and signal handlers until `main` installs its own."""

    def __init__(self) -> None:
        self.before: list[int | list[bytes | int]] | None = None
        self.handlers: dict[int, object] = {}


_held = _Held()


def talks(args: Sequence[str]) -> bool:
    """Return True if this command line starts a prompt line; False when in doubt."""
    if list(args) == ["-v"]:  # prints the version
        return False
    if args[:1] == ["attach"]:
        return not any(arg.startswith(_NO_PROMPT) for arg in args[1:])
    tokens = iter(args)
    for word in tokens:
        name, equals, _ = word.partition("=")
        if name in VALUED:
            if not equals and next(tokens, None) is None:
                return False
        elif word not in FLAGS and len(word.split()) < 2:  # a text with a blank is the first prompt
            return False
    return True


def hold(args: Sequence[str]) -> None:
    """Hold keys back from now on if this command line starts a prompt line at a terminal.

    Does nothing in the background, where changing the terminal would stop the process.
    """
    if _held.before is not None or os.environ.get("TERM", "") in {"", "dumb"} or not talks(args):
        return
    try:
        # SIGTTOU stops a background process that changes the terminal.
        if not all(map(os.isatty, (0, 1, 2))) or os.tcgetpgrp(0) != os.getpgrp():
            return
        before = termios.tcgetattr(0)
        # Registered before the mode changes: a failed start must not leave a terminal without echo
        # (test_a_start_that_is_ended_gives_the_terminal_back).
        atexit.register(release)
        _switch(before)
        if waiting_bytes(0):
            os.write(1, b"\r\x1b[K")  # keys echoed before this process started are shown again by the line
    except (OSError, termios.error):
        return  # the terminal has just gone; the next read reports it


def hold_from_import() -> None:
    """Hold keys back before the imports of the command, which take most of the startup time.

    Until `main` runs, a signal that ends the process restores the terminal first.
    """
    if not sys.argv[0].endswith(("/callboard", "/__main__.py")):
        return  # the module was imported by another program
    # The handlers come first: a signal between the two steps would leave the terminal without echo (test_pty_states).
    for number in (signal.SIGINT, signal.SIGTERM):
        _held.handlers[number] = signal.signal(number, _end)
    hold(sys.argv[1:])
    if _held.before is None:
        imported()


def imported() -> None:
    """Restore the signal handlers, except those that the command has replaced with its own."""
    while _held.handlers:
        number, before = _held.handlers.popitem()
        if signal.getsignal(number) is _end:
            signal.signal(number, before)  # pyright: ignore[reportArgumentType] - the value that `signal` returned


def release() -> None:
    """Restore the original mode of the terminal. Waiting keys are kept."""
    before, _held.before = _held.before, None
    if before is not None:
        set_mode(0, before)


@contextmanager
def line_by_line() -> Generator[None]:
    """Restore the original mode during the block: the terminal echoes and delivers whole lines."""
    before = _held.before
    release()
    try:
        yield
    finally:
        if before is not None:
            _switch(before)


def _switch(before: list[int | list[bytes | int]]) -> None:
    """Switch off echo, line mode, and the translation of Enter, so that a typed line break stays a different key."""
    quiet = list(before)
    assert isinstance(before[0], int)
    assert isinstance(before[3], int)
    # Otherwise the line could not distinguish Enter from a typed line break.
    quiet[0] = before[0] & ~termios.ICRNL
    quiet[3] = before[3] & ~(termios.ECHO | termios.ICANON)
    _held.before = before
    set_mode(0, quiet)


def set_mode(file: int, mode: list[int | list[bytes | int]]) -> None:
    """Set the mode of a terminal, at once. Does nothing if the terminal is gone."""
    # With SIGTTOU blocked, the change does not stop a process that is now in the background.
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        termios.tcsetattr(file, termios.TCSANOW, mode)
    except (OSError, termios.error):
        return  # the terminal is gone
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)


def waiting_bytes(file: int) -> int:
    """Return how many bytes a terminal holds for the next read. Raises `OSError` if it is gone."""
    # `struct`, which reads this number too, would slow down `--help`.
    return int.from_bytes(fcntl.ioctl(file, termios.FIONREAD, bytes(4)), sys.byteorder)


def _end(number: int, frame: FrameType | None) -> None:
    release()
    os._exit(128 + number)  # like `main`; a module that is being imported could swallow an exception

"""SIGHUP and a lost terminal: recorded during the whole life of a process, so that neither kills it.

`callboard serve` reloads its settings at a SIGHUP, and exits in order when its terminal is gone. Commands that host a
session exit in order in both cases. Other commands end at once, with exit code 129. A SIGHUP that the caller ignores
(`nohup`) ends nothing.

The handler writes into a pipe: a SIGHUP that arrives before anything listens is read later, several become one, and the
event loop wakes from any wait. An asyncio signal handler would be removed with its loop, and the next SIGHUP would kill
the process.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import os
import select
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Literal

HANGUP = 129
"""Exit code when the terminal was lost, or SIGHUP ended the command."""
_GONE = frozenset({errno.ENXIO, errno.EIO, errno.ENODEV, errno.ENOTTY})

Hangup = Literal["signal", "gone"]


class SignalExit(SystemExit):
    """Exit of the process with an exit code, raised by a signal handler."""


def leave_by_signal(number: int, code: int) -> None:
    """Raise `SignalExit` from the handler of a signal: between two callbacks if an event loop runs, otherwise at once.

    In the middle of a callback the exception could leave a lock of the import system locked, or a worker thread that
    nobody ends, and the process would wait for it at its exit
    (test_a_signal_while_a_browser_is_opened_ends_the_page). A second signal raises at once, because the loop may be
    busy.
    """
    events = sys.modules.get("asyncio.events")  # not imported before the first loop: it takes 30 ms
    loop = None if events is None else events._get_running_loop()
    if loop is None:
        raise SignalExit(code)
    signal.signal(number, partial(_leave_at_once, code))
    loop.call_soon_threadsafe(partial(_leave_at_once, code))


def _leave_at_once(code: int, number: int = 0, frame: FrameType | None = None) -> None:
    raise SignalExit(code)


class Hangups:
    """Handler of SIGHUP in this process, and the recorded signals."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        """True if the caller wants this process to outlive its terminal."""
        self.had_terminal = _has_terminal()
        # True from the start: a reload may arrive while the imports still run
        # (test_no_sighup_kills_serve_at_its_start_in_a_reload_or_while_it_leaves).
        self.listening = "serve" in sys.argv[1:]
        """True if a hang-up is recorded; otherwise it ends the process at once."""
        self.reader, self.writer = open_pipe()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if not self.listening:
            leave_by_signal(number, HANGUP)
            return
        try:
            os.write(self.writer, b"h")
        except BlockingIOError:
            return  # the pipe is full of unread hang-ups: one more adds nothing

    def take(self) -> Hangup:
        """Take all recorded hang-ups together, and return their meaning."""
        try:
            os.read(self.reader, 4096)
        except BlockingIOError:
            return "gone"
        return "gone" if self.terminal_gone() else "signal"

    def terminal_gone(self) -> bool:
        """Return True if the terminal in which this process was started is gone."""
        # A command under `nohup` outlives its terminal (test_a_command_under_nohup_outlives_its_terminal).
        return self.had_terminal and not self.ignored and not _has_terminal()

    @contextmanager
    def terminal_watch(self) -> Generator[select.epoll | None]:
        """Yield an object that becomes readable when the terminal is lost without a SIGHUP.

        None if it is not needed: none of the standard streams is a terminal, or the process outlives it.
        """
        fd = next((stream for stream in (0, 1, 2) if os.isatty(stream)), None)
        if fd is None or self.ignored or not self.had_terminal or not hasattr(select, "epoll"):
            yield None
            return
        with select.epoll() as epoll:
            # Edge-triggered, because typed input that nobody reads would wake it again and again.
            epoll.register(fd, select.EPOLLIN | select.EPOLLET)
            yield epoll


def install() -> None:
    """Record each SIGHUP of this process from now on.

    Does nothing if that is already done, or if the caller ignores SIGHUP.
    """
    if _installed() is not None:
        return
    _end_in_finalizers()
    hangups = Hangups()
    if hangups.listening or not hangups.ignored:
        signal.signal(signal.SIGHUP, hangups)


def listen() -> Hangups:
    """Record hang-ups instead of ending at once, until the process ends."""
    hangups = _installed()
    if hangups is None:
        hangups = Hangups()
        signal.signal(signal.SIGHUP, hangups)
    hangups.listening = True
    # The interpreter removes its handlers before the process ends, but ignored signals stay ignored.
    atexit.unregister(_ignore)
    atexit.register(_ignore)
    return hangups


def unread() -> bool:
    """Let the next hang-up end the process again. Return True if one arrived that nothing has read."""
    hangups = _installed()
    if hangups is None:
        return False
    hangups.listening = False
    return bool(select.select([hangups.reader], [], [], 0)[0])


def _installed() -> Hangups | None:
    """Return the handler of this process; one inherited through a fork belongs to the parent."""
    handler = signal.getsignal(signal.SIGHUP)
    return handler if isinstance(handler, Hangups) and handler.pid == os.getpid() else None


def open_pipe() -> tuple[int, int]:
    """Return the ends of a pipe that never blocks, above the standard streams."""
    reader, writer = map(above_standard, os.pipe())
    for end in (reader, writer):
        os.set_blocking(end, False)
    return reader, writer


def above_standard(fd: int) -> int:
    """Move a descriptor above those of the standard streams.

    If the caller closed one of these, the pipe would take its number, and the null device that is opened for it later
    would close the pipe.
    """
    if fd > 2:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)


def _end_in_finalizers() -> None:
    """End the process at once if a signal handler raises in a finalizer or a callback of the interpreter.

    Python would print the exception there, drop it, and continue.
    """
    before = sys.unraisablehook

    def unraisable(event: sys.UnraisableHookArgs, /) -> None:
        if isinstance(event.exc_value, SignalExit) and isinstance(event.exc_value.code, int):
            # An exception that is raised here would be dropped as well
            # (test_a_signal_in_a_finalizer_ends_a_short_command_without_a_traceback).
            os._exit(event.exc_value.code)
        before(event)

    sys.unraisablehook = unraisable


def _ignore() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _has_terminal() -> bool:
    """Return True if this process has a controlling terminal. The kernel removes it before it sends SIGHUP."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno not in _GONE
    return True

"""Start the command `callboard`. Turn an error into one line and an exit code, and a bug into a crash file."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import cast

from callboard.cli.repl import type_ahead

# ruff: noqa: E402 - a SIGHUP during the imports below must not kill `callboard serve`, and keys that are typed during
# them are for the prompt line
from callboard.cli.terminal import hangup

hangup.install()
type_ahead.hold_from_import()

from callboard.sessions.quick_imports import collector_paused, freeze_imports

freeze_imports()
with collector_paused():
    import click

    from callboard import __version__  # pyright: ignore[reportUnusedImport] - imported before structlog is for the first time
    from callboard.cli import _fast_start as _early  # noqa: F401  # pyright: ignore[reportUnusedImport] - runs before the first import of structlog
    from callboard.cli.commands.options import Invocation
    from callboard.cli.commands.root import cli
    from callboard.types.errors import CallboardError, UsageError

BUG = 70
INTERRUPTED = 130
TERMINATED = 143


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    context = Invocation()
    hangup.install()
    _open_standard_streams()
    before = signal.signal(signal.SIGTERM, _terminated)
    out = sys.stdout
    try:
        _refuse_other_bytes(sys.argv[1:] if args is None else args)
        type_ahead.imported()  # after the lines above, because until then a signal must restore the terminal's mode
        type_ahead.hold(sys.argv[1:] if args is None else args)
        code = cli.main(args=args, prog_name="callboard", standalone_mode=False, obj=context)
    except BaseException as error:  # noqa: BLE001 - the outermost frame reports every error, once
        # If the reader of stdout is gone, click replaces stdout with a silent stream and exits with 1.
        unread = isinstance(error, SystemExit) and sys.stdout is not out
        return _report_failure(BrokenPipeError() if unread else error, context)
    finally:
        type_ahead.release()
        signal.signal(signal.SIGTERM, before)
    return code if isinstance(code, int) else 0


def _refuse_other_bytes(args: Sequence[str]) -> None:
    """Raise `UsageError` for an argument that is not UTF-8: no record and no message can contain it."""
    for arg in args:
        if not arg.isascii() and arg.encode("utf-8", "replace").decode() != arg:
            raise UsageError(f"the argument {arg!a} is not UTF-8 text")


def _open_standard_streams() -> None:
    """Open /dev/null for each standard stream that the caller closed, so that no other file gets its descriptor.

    Writing to a closed stdout still fails, because a result would be lost silently.
    """
    streams = ((0, "stdin", "r", os.O_RDONLY), (1, "stdout", "w", os.O_RDONLY), (2, "stderr", "w", os.O_WRONLY))
    for number, name, mode, access in streams:
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, access)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, os.fdopen(number, mode))


def _terminated(signum: int, frame: FrameType | None) -> None:
    hangup.leave_by_signal(signum, TERMINATED)


def _report_failure(error: BaseException, context: Invocation) -> int:
    """Print the error on stderr and return the exit code."""
    cause = _main_error(error)
    if context.debug and isinstance(cause, Exception) and not isinstance(cause, click.ClickException):
        _say(_traceback_of(error))
    match cause:
        case KeyboardInterrupt() | click.Abort():
            return INTERRUPTED
        case SystemExit():  # a signal ended the command, or click's completion
            return cause.code if isinstance(cause.code, int) else 1
        case BrokenPipeError():
            _drop_stdout()
            return 0
        case OSError() if _is_of_stdout(cause):  # errors of the store and the terminal have their own messages
            from callboard.cli.terminal.terminal import unwritten  # noqa: PLC0415 - only failures need it; the import takes 5 ms

            _drop_stdout()
            _say(f"callboard: {unwritten(cause)}")
            return 1
        case OSError(errno=errno.EMFILE | errno.ENFILE):
            _say(f"callboard: too many files are open ({cause.strerror}). Raise the limit (`ulimit -n`, LimitNOFILE)")
            return 1
        case click.ClickException():
            _say(f"callboard: {_plain_english(cause.format_message())}")
            if isinstance(cause, click.UsageError) and cause.ctx is not None:
                _say(f"Try: {cause.ctx.command_path} --help")
            return cause.exit_code
        case CallboardError():
            _say(f"callboard: {cause}")
            return cause.exit_code
        case _:
            return _bug(error, cause)


def _plain_english(message: str) -> str:
    """Return a message of Click about a number without the names of its types (`integer range`) and its signs."""
    for kind, words in (("integer", "a whole number"), ("float", "a number")):
        message = message.replace(f"is not a valid {kind} range", f"is not {words}")
        message = message.replace(f"is not a valid {kind}", f"is not {words}")
    before, _, limits = message.partition(" is not in the range ")
    return f"{before} is out of range: give {_limits_words(limits.rstrip('.'))}" if limits else message


def _limits_words(limits: str) -> str:
    """Return the limits that Click writes as `x>=1`, `x>0` or `1<=x<=9` in words."""
    least, _, most = limits.partition("<=x<=")
    if most:
        return f"{least} to {most}"
    return f"{limits[3:]} or more" if limits.startswith("x>=") else f"more than {limits.removeprefix('x>')}"


def _main_error(error: BaseException) -> BaseException:
    """Return the error of a group that decides the exit: an interrupt, then an error of Callboard, then a bug."""
    inner = _flat(error)
    for kind in (KeyboardInterrupt, SystemExit, CallboardError):
        match = next((error for error in inner if isinstance(error, kind)), None)
        if match is not None:
            return match
    return inner[0]


def _flat(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    inner = cast("BaseExceptionGroup[BaseException]", error).exceptions
    return [leaf for nested in inner for leaf in _flat(nested)]


def _bug(error: BaseException, cause: BaseException) -> int:
    about = f"callboard {__version__}, python {sys.version.split()[0]}, {sys.platform}\n{' '.join(sys.argv[:2])}\n\n"
    where = _write_crash_file(about + _traceback_of(error))
    _say(f"callboard: a bug in Callboard: {type(cause).__name__}: {str(cause)[:300]}")
    _say(f"The details are in {where}. The session is kept: `callboard resume` continues it.")
    return BUG


def _traceback_of(error: BaseException) -> str:
    import traceback  # noqa: PLC0415 - only failures need it; the import takes 2 ms

    return "".join(traceback.format_exception(error))


def _write_crash_file(text: str) -> str:
    """Write the crash file, readable only by its owner, to the state folder or else to the temporary folder."""
    import tempfile  # noqa: PLC0415 - only bugs need it; the import takes 3 ms

    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "callboard" / "crashes"
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.getpid()}.txt"
    for folder in (state, Path(tempfile.gettempdir())):
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(file, "w", errors="backslashreplace") as crash_file:
                crash_file.write(text)
        except OSError:
            continue  # the next folder may take it
        return str(folder / name)
    return "no file: nowhere to write; run again with --debug"


def _say(text: str) -> None:
    """Write lines to stderr without the terminal layer, which is closed by now. Wrap them between words."""
    from callboard.cli.terminal.terminal import Line, screen_width, style_lines  # noqa: PLC0415 - only failures need it; the import takes 5 ms

    cleaned = "".join(char if char in "\n\t" or char.isprintable() else "?" for char in text)
    lines = [Line(line) for line in cleaned.split("\n")]
    try:
        sys.stderr.write(style_lines(lines, color=False, width=screen_width(sys.stderr)))
        sys.stderr.flush()
    except OSError:
        return  # stderr is closed; the exit code still reports the failure


def _is_of_stdout(error: OSError) -> bool:
    """Return True if stdout did not take the output: a full disk, or a stream that the caller closed."""
    if error.errno == errno.EBADF:
        return fcntl.fcntl(sys.stdout.fileno(), fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    return error.errno in {errno.ENOSPC, errno.EDQUOT}


def _drop_stdout() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())

"""Logs: one JSON line for each journal event, and the runtime's own messages, in the session's file.

One subscriber writes the events, never the loop. Logs go to the screen only if a person asks for that, and never
contain the content of a conversation, which is in the journal.

On asyncio, lines are written together, in order: those of events at the latest after `PAUSE` seconds, all others when
the next turn of the event loop begins. A kill loses those that wait; the events are in the journal. In any other case,
for example in another thread, each line is written at once, after the waiting ones.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, TextIO, cast

import structlog
from pydantic_core import to_json

from callboard.core.reports.metrics import Metrics, together
from callboard.core.utf8 import storable_json
from callboard.ports.environment import Interest
from callboard.ports.model import Delta
from callboard.types.events import (
    EVENTS,
    CacheThrash,
    CallFailed,
    CallJudged,
    ContextEdited,
    EnvelopeReceived,
    Event,
    FileSeen,
    InjectionQueued,
    ModelReplied,
    ResultsMerged,
    ToolFinished,
    ToolSettled,
    ToolStarted,
    TurnEnded,
)
from callboard.types.records import Envelope

LARGEST = 10_000_000
"""Most bytes of a log file. It is then renamed, and a new one begins."""
PAUSE = 0.05
"""Most seconds for which the line of an event waits for more. A step of an agent has six such lines, and one system
call for each moment of a step costs more than the lines. A line that is also copied does not wait."""
KEPT = 3
"""Number of older files of a log that are kept, as NAME.1 (the newest) to NAME.3."""
STDERR = 2
"""Descriptor of the standard error output."""
_QUIET = frozenset({ToolSettled, ResultsMerged, InjectionQueued, EnvelopeReceived, FileSeen})
"""Events that another line also reports."""


@contextmanager
def logging_to(path: Path, *, debug: bool = False) -> Generator[LogFile]:
    """Write all logs of this process to a file (0600) as JSON lines while the block runs. For the composition root.

    `debug`: write lines of the debug level too, and copy all lines to stderr, each after `[DEBUG] `.
    """
    file = LogFile(path, copy_to=STDERR if debug else None)
    structlog.configure(
        processors=[structlog.processors.format_exc_info, _line],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG if debug else logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", file)),
        cache_logger_on_first_use=False,
    )
    try:
        yield file
    finally:
        file.close()


@contextmanager
def log_file(path: Path) -> Generator[LogFile]:
    """Open a separate log file while the logs of the process go to another one, because it hosts several sessions."""
    file = LogFile(path)
    try:
        yield file
    finally:
        file.close()


@contextmanager
def logging_in_program(path: Path) -> Generator[LogFile]:
    """Write the runtime's logs to a file, in another program.

    Other users of `structlog` there log as before, and if that program has configured it, the runtime's lines go to the
    configured target. Several may be open at once.
    """
    file = LogFile(path)
    if not structlog.is_configured():
        made = _Router(structlog.get_config()["processors"])
        structlog.configure(
            processors=[made.line],
            wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET),
            logger_factory=made,
            cache_logger_on_first_use=False,
        )
    router: object = structlog.get_config()["logger_factory"]
    files = router.files if isinstance(router, _Router) else list[LogFile]()
    files.append(file)
    try:
        yield file
    finally:
        files.remove(file)
        file.close()


class _Router:
    """Factory of the loggers in another program's process.

    Those of `callboard...` write to the newest open session's file, or nowhere without a session. All others print, as
    without a configuration.
    """

    def __init__(self, processors: Iterable[Any]) -> None:
        """Store `processors`, which handle events of other loggers without a configuration."""
        self.files: list[LogFile] = []
        self._others = structlog.PrintLoggerFactory()
        self._processors = tuple(processors)

    def __call__(self, *args: Any) -> Any:
        is_own = bool(args) and str(args[0]).startswith("callboard")
        return _Ours(self) if is_own else self._others(*args)

    def line(self, logger: object, level: str, event: MutableMapping[str, Any]) -> Any:
        """Return one of the runtime's lines as JSON; process any other as before."""
        if not isinstance(logger, _Ours):
            made: Any = event
            for processor in self._processors:
                made = processor(logger, level, made)
            return made
        if level == "debug":
            raise structlog.DropEvent
        return _line(logger, level, structlog.processors.format_exc_info(logger, level, event))


class _Ours:
    """A logger of the runtime in such a process."""

    def __init__(self, router: _Router) -> None:
        self._router = router

    def msg(self, text: str) -> None:
        """Write a line."""
        if self._router.files:
            self._router.files[-1].put(text.encode("utf-8", "backslashreplace") + b"\n")

    debug = info = warning = error = critical = exception = fatal = log = msg


def log_metrics(session: str, agents: Mapping[str, Metrics]) -> None:
    """Log a line for each agent, and one for the session: their usage since their first record."""
    log = structlog.get_logger("callboard.metrics").bind(session=session)
    for agent, metrics in agents.items():
        log.info("metrics", agent=agent, **asdict(metrics))
    log.info("session_metrics", **asdict(together(agents.values())))


class LogFile:
    """The file for log lines. Write errors are tolerated: no session ends because of its log."""

    def __init__(self, path: Path, *, copy_to: int | None = None) -> None:
        """Open the file. `copy_to`: a descriptor that gets a copy of each line, after `[DEBUG] `."""
        self._copy_to = copy_to
        self._descriptor: int | None = None
        self._lines: list[bytes] = []
        """Lines that wait for the loop."""
        self._due = False
        """True if they are written when the next turn of the loop begins."""
        self._timer: asyncio.TimerHandle | None = None
        """Timer that writes them otherwise."""
        self._timer_thread = 0
        self._lock = threading.Lock()  # worker threads also log
        self._path = path
        self._size = 0
        self._is_torn = False
        """True if the last line was cut off, because the disk was full in the middle of it."""
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._open()
        except OSError:
            return  # the store reports the fault of this folder in better words

    def _open(self) -> None:
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._descriptor).st_size

    def write(self, text: str) -> None:
        """Write a line that includes its end; called by structlog."""
        self.put(text.encode("utf-8", "backslashreplace"))

    def put(self, line: bytes) -> None:
        """Write a line that includes its end."""
        loop = _running_loop()
        with self._lock:
            self._lines.append(line)
            if loop is None:
                self._pour()
            elif not self._due:
                self._due = True
                loop.call_soon(self.pour)

    def put_event(self, line: bytes) -> None:
        """Write a line that includes its end and may wait for more lines.

        A line that is also copied does not wait: a client stops reading stderr once it has the result.
        """
        if self._copy_to is not None:
            self.put(line)
            return
        with self._lock:
            self._lines.append(line)
            if self._timer is not None and self._timer_thread == threading.get_ident():
                return
            loop = _running_loop()
            if loop is None:
                self._pour()
            elif self._timer is None:
                self._timer = loop.call_later(PAUSE, self.pour)
                self._timer_thread = threading.get_ident()

    def pour(self) -> None:
        """Write the waiting lines. In the loop of the timer, or at the end."""
        with self._lock:
            self._due = False
            self._pour()
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _pour(self) -> None:
        lines, self._lines = self._lines, []
        try:
            if self._copy_to is not None and lines:
                os.write(self._copy_to, b"".join(b"[DEBUG] " + line for line in lines))
        except OSError:
            self._copy_to = None  # its reader is gone
        if self._descriptor is None or not lines:
            return
        content = b"\n" * self._is_torn + b"".join(lines)
        try:
            written = os.write(self._descriptor, content)
            self._is_torn = written < len(content)
            self._size += written
            if self._size > LARGEST:
                self._rotate()
        except OSError:
            return  # a full disk: the journal has the events

    def _rotate(self) -> None:
        """Begin a new file, unless another process that writes the same log has already done so."""
        assert self._descriptor is not None, "a file that grows is open"
        status = os.fstat(self._descriptor)
        names = [self._path, *(self._path.with_name(f"{self._path.name}.{number}") for number in range(1, KEPT + 1))]
        if self._path.exists() and self._path.stat().st_ino == status.st_ino:
            for older, newer in reversed(list(pairwise(names))):
                if older.exists():
                    older.replace(newer)
        # On a full disk this raises: the renamed file goes on, until there is room for a new one.
        former = self._descriptor
        self._open()
        os.close(former)

    def flush(self) -> None:
        """Do nothing: lines wait only for a moment."""

    def close(self) -> None:
        """Write the waiting lines. Later lines are dropped."""
        self.pour()
        with self._lock:
            descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the loop that runs in this thread; None in another thread, or for another kind of loop."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _line(logger: object, level: str, event: MutableMapping[str, Any]) -> str:
    """Return one line without its end.

    One function does everything, because a step of an agent writes several lines.
    """
    return _json({"at": time.time(), "level": level, **event}).decode()


def _json(line: Mapping[str, object]) -> bytes:
    try:
        return to_json(line, fallback=str, inf_nan_mode="null")
    except ValueError:  # the trace of a program's error has half of a surrogate pair
        return to_json(storable_json(dict(line)), fallback=str, inf_nan_mode="null")


class EventLog:
    """The observer that writes the lines of events, directly to the file, because they are the majority."""

    interest = Interest(EVENTS - _QUIET, frozenset())

    def __init__(self, session: str, file: LogFile) -> None:
        self._session = session
        self._file = file
        self._turns: dict[str, tuple[str, int]] = {}

    def on_event(self, agent: str, seq: int, event: Event) -> None:
        if _is_quiet(event):
            return
        if event.t == "turn_began":
            self._turns[agent] = (event.turn, 0)
        turn, step = self._turns.get(agent, ("", 0))
        if event.t == "model_replied":
            step += 1
            self._turns[agent] = (turn, step)
        facts = _FACTS.get(type(event))
        line: dict[str, object] = {
            "at": time.time(),
            "level": "info",
            "session": self._session,
            "agent": agent,
            "turn": turn,
            "step": step,
            "seq": seq,
            **({} if facts is None else facts(event)),
            "event": event.t,
        }
        self._file.put_event(_json(line) + b"\n")

    def on_delta(self, agent: str, delta: Delta) -> None:
        """Do nothing: streamed text is not logged."""

    def on_mail(self, envelope: Envelope) -> None:
        """Do nothing: received mail is in the journal."""


def _is_quiet(event: Event) -> bool:
    """Return True if the event has no line: the end of its call soon has one."""
    match event:
        case CallJudged(verdict="allow"):
            return True
        case ToolStarted(effect="read" | "store"):
            return True
        case _:
            return False


def _of_reply(event: ModelReplied) -> Mapping[str, object]:
    used = event.usage
    return {"model": event.model, "input": used.prompt_tokens, "output": used.output_tokens, "usd": used.cost_usd}


def _of_edit(event: ContextEdited) -> Mapping[str, object]:
    fault = {} if event.edits or not event.why else {"fault": event.why}  # a user's own stage failed
    return {"stage": event.stage, "before": event.tokens_before, "after": event.tokens_after, **fault}


def _of_failure(event: CallFailed) -> Mapping[str, object]:
    return {"fault": event.fault.kind, "status": event.fault.status, "attempt": event.attempt}


_FACTS: Mapping[type[Any], Callable[[Any], Mapping[str, object]]] = MappingProxyType(
    {
        ModelReplied: _of_reply,
        CallFailed: _of_failure,
        ToolFinished: lambda event: {"call": event.call, "error": event.is_error},
        ContextEdited: _of_edit,
        CacheThrash: lambda event: {"calls": event.calls, "changed": event.changed},
        TurnEnded: lambda event: {"reason": event.reason},
    }
)
"""Functions that return the fields of an event's line, without texts of the conversation. Most events have none."""

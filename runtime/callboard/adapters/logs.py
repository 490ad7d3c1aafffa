"""Logs: one JSON line for each journal event, and whatever the runtime has to say for itself, into the session's file.

One subscriber writes the events, never the loop. Nothing is ever logged to the screen, and no content of a
conversation: what was said stands in the journal.

On asyncio the lines of one turn of the event loop are written at once, in order, when the next turn begins: a kill
loses those of the turn that it struck, and what they told of stands in the journal. Elsewhere, as on another thread,
each line is written when it comes, behind those that wait.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Generator, Iterable, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO, cast

import structlog
from pydantic_core import to_json

from callboard.core.context.told.metrics import Metrics, together
from callboard.ports.model import Delta
from callboard.words.events import (
    CacheThrash,
    CallFailed,
    ContextEdited,
    Event,
    ModelReplied,
    ToolFinished,
    TurnBegan,
    TurnEnded,
)
from callboard.words.values import Envelope

_QUIET = frozenset({"tool_settled", "results_merged", "injection_queued", "envelope_received"})
"""Events that another line tells as well: logged at debug level only."""


@contextmanager
def logging_to(path: Path, *, debug: bool = False) -> Generator[LogFile]:
    """Send all logs of this process to a file (0600) while the block lasts, JSON lines. For the composition root."""
    file = LogFile(path)
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
    """A file of lines of its own, where the logs of the process go to another (it hosts several sessions)."""
    file = LogFile(path)
    try:
        yield file
    finally:
        file.close()


@contextmanager
def logging_beside(path: Path) -> Generator[LogFile]:
    """Send what the runtime logs to a file, in a program that is not ours: whatever else uses `structlog` there logs on
    as it did, and where that program has configured it, our lines go where it says. Several may be open at once."""
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
    """Makes the loggers of a process that is not ours: those of `callboard...` write to the newest session's file that
    is open, and nowhere when none is; all others print, as they do where nobody has configured anything."""

    def __init__(self, processors: Iterable[Any]) -> None:
        """`processors`: what is done with an event of another's where nobody has configured it."""
        self.files: list[LogFile] = []
        self._others, self._processors = structlog.PrintLoggerFactory(), tuple(processors)

    def __call__(self, *args: Any) -> Any:
        ours = bool(args) and str(args[0]).startswith("callboard")
        return _Ours(self) if ours else self._others(*args)

    def line(self, logger: object, level: str, event: MutableMapping[str, Any]) -> Any:
        """The line of one of ours as JSON; anybody else's as before."""
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
    """A line for each agent, and one for the session: what they used since their first record."""
    log = structlog.get_logger("callboard.metrics").bind(session=session)
    for agent, metrics in agents.items():
        log.info("metrics", agent=agent, **asdict(metrics))
    log.info("session_metrics", **asdict(together(agents.values())))


class LogFile:
    """The file that lines are written to, as far as it takes them: no session ends for want of a log."""

    def __init__(self, path: Path) -> None:
        self._descriptor: int | None = None
        self._lines: list[bytes] = []
        """Those that wait for the next turn of the loop."""
        self._due = False
        self._lock = threading.Lock()  # worker threads log too
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return  # the store says what is wrong with this folder, in better words

    def write(self, text: str) -> None:
        """Write a line, its end included: what structlog calls."""
        self.put(text.encode("utf-8", "backslashreplace"))

    def put(self, line: bytes) -> None:
        """Write a line, its end included."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # another thread, or another kind of loop
            loop = None
        with self._lock:
            self._lines.append(line)
            if loop is None:
                self._pour()
            elif not self._due:
                self._due = True
                loop.call_soon(self.pour)

    def pour(self) -> None:
        """Write the lines that wait."""
        with self._lock:
            self._due = False
            self._pour()

    def _pour(self) -> None:
        lines, self._lines = self._lines, []
        if self._descriptor is None or not lines:
            return
        try:
            os.write(self._descriptor, b"".join(lines))
        except OSError:
            return  # a full disk: what happened stands in the journal

    def flush(self) -> None:
        """No line waits longer than the module says."""

    def close(self) -> None:
        """Write what waits; what is logged from now on goes nowhere."""
        self.pour()
        with self._lock:
            descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _line(logger: object, level: str, event: MutableMapping[str, Any]) -> str:
    """One line, without its end. All in one step, since a step of an agent writes several."""
    return _json({"at": time.time(), "level": level, **event}).decode()


def _json(line: Mapping[str, object]) -> bytes:
    return to_json(line, fallback=str, inf_nan_mode="constants")


class EventLog:
    """The observer that writes the lines of events: to the file itself, since they are most of all lines."""

    def __init__(self, session: str, file: LogFile) -> None:
        self._session, self._file = session, file
        self._turns: dict[str, tuple[str, int]] = {}

    def on_event(self, agent: str, seq: int, event: Event) -> None:
        if event.t in _QUIET:
            return
        if isinstance(event, TurnBegan):
            self._turns[agent] = (event.turn, 0)
        turn, step = self._turns.get(agent, ("", 0))
        if isinstance(event, ModelReplied):
            step += 1
            self._turns[agent] = (turn, step)
        line = {"at": time.time(), "level": "info", "session": self._session, "agent": agent, "turn": turn}
        line |= {"step": step, "seq": seq, **_facts(event), "event": event.t}
        self._file.put(_json(line) + b"\n")

    def on_delta(self, agent: str, delta: Delta) -> None:
        """What streams is not logged."""

    def on_mail(self, envelope: Envelope) -> None:
        """What is received stands in the journal."""


def _facts(event: Event) -> dict[str, object]:
    """What a line says of an event, without anybody's words."""
    match event:
        case ModelReplied():
            used = event.usage
            return {
                "model": event.model,
                "input": used.prompt_tokens,
                "output": used.output_tokens,
                "usd": used.cost_usd,
            }
        case CallFailed():
            return {"fault": event.fault.kind, "status": event.fault.status, "attempt": event.attempt}
        case ToolFinished():
            return {"call": event.call, "error": event.is_error}
        case ContextEdited():
            fault = {} if event.edits or not event.why else {"fault": event.why}  # a person's own stage failed
            return {"stage": event.stage, "before": event.tokens_before, "after": event.tokens_after, **fault}
        case CacheThrash():
            return {"calls": event.calls, "changed": event.changed}
        case TurnEnded():
            return {"reason": event.reason}
        case _:
            return {}

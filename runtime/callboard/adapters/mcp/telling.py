"""What servers and the SDK have to say, into the session's log and nowhere else: stdout may be a protocol."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager

import structlog

_SDK_LOGGERS = ("mcp", "client", "httpx2")
"""Whose words would reach the terminal if nobody took them."""


def tell(event: str, *, debug: bool = False, **words: str) -> None:
    """A line of the log, where there is one. The logger is taken anew each time: an older one might print."""
    if structlog.is_configured():
        log = structlog.get_logger("callboard.mcp")
        (log.debug if debug else log.info)(event, **words)


@contextmanager
def words_of_sdk() -> Generator[None]:
    """Take the SDK's log lines while the block lasts."""
    handler = _ToLog(logging.WARNING)
    for name in _SDK_LOGGERS:
        logging.getLogger(name).addHandler(handler)
    try:
        yield
    finally:
        for name in _SDK_LOGGERS:
            logging.getLogger(name).removeHandler(handler)


class _ToLog(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        tell("sdk", debug=True, text=record.getMessage()[:2_000])

"""The web page of a workspace that runs now: its address without a secret, in a file of the state folder."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from callboard.adapters.processes.pids import is_same, started_at
from callboard.types.errors import UsageError
from callboard.types.lazy_dataclass import dataclass

LINK_PATH = "/link"
"""Path of the page that an answer link opens. The secret follows after `#`, which browsers send to no server."""
_FILE = "web.json"


@dataclass(frozen=True, slots=True)
class RunningPage:
    """A page, and its process."""

    address: str
    pid: int
    started: float


def running_page(state: Path) -> RunningPage | None:
    """Return the page of the workspace with this state folder; None if none runs."""
    try:
        data = json.loads((state / _FILE).read_text("utf-8"))
        page = RunningPage(str(data["address"]), int(data["pid"]), float(data["started"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None  # there is none, or its process was killed while it wrote
    return page if is_same(page.pid, page.started) else None


def page_address(state: Path, configured: str) -> str:
    """Return the address for links: that of the settings, else of the running page. Raises `UsageError` for neither."""
    if configured:
        return configured.rstrip("/")
    page = running_page(state)
    if page is None:
        raise UsageError("no web page runs for this workspace: start `callboard web`, or set web.address")
    return page.address


@contextmanager
def announce_page(state: Path, address: str) -> Generator[None]:
    """Name the page in the file while the block runs. A later page of the workspace replaces the entry."""
    file = state / _FILE
    own = RunningPage(address, os.getpid(), started_at(os.getpid()) or 0.0)
    text = json.dumps({"address": own.address, "pid": own.pid, "started": own.started})
    new = file.with_name(f"{_FILE}.{own.pid}")
    new.touch(0o600)
    new.write_text(text, "utf-8")
    new.replace(file)
    try:
        yield
    finally:
        if running_page(state) == own:
            file.unlink(missing_ok=True)

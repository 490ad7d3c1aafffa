"""`callboard web` on a finished demo with schedules, for the tests that look at all screens and for the pictures."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cli.commands.command import Command
from tests.web.page_process import PageProcess, serving

SCHEDULES = (
    ("add", "--name", "weekdays", "--timezone", "Europe/Berlin", "0 9 * * 1-5", "Run the tests, and say what fails."),
    ("add", "--name", "issues", "every 6h", "Say which open issue is the oldest."),
    ("add", "--name", "nightly", "--deadline", "20m", "--budget", "cost_usd=2", "30 2 * * *", "Update the changelog."),
    ("pause", "nightly", "--why", "until the release"),
)


def finished_demo(folder: Path) -> tuple[Command, str]:
    """Run the demo, and return its command and its session."""
    command = Command(folder)
    command.env["TMPDIR"] = str(folder)
    done = command.run("demo", "--yes", "--keep", timeout=300)
    assert done.code == 0, done.err
    (command.workspace,) = folder.glob("callboard-demo-*/tally")
    for arguments in SCHEDULES:
        ran = command.run_inline("cron", *arguments)
        assert ran.code == 0, ran.err
    listed = re.search(r'"id": "([^"]+)"', command.run_inline("sessions", "--json").out)
    assert listed is not None
    return command, listed[1]


def screens(session: str) -> dict[str, str]:
    """Return the name and the path of every screen of the demo."""
    return {
        "waiting": "/waiting",
        "sessions": "/sessions",
        "session": f"/sessions/{session}",
        "agent": f"/sessions/{session}/agents/lead",
        "cost": "/cost",
        "session-cost": f"/sessions/{session}/cost",
        "policy": "/policy?call=rm+-r+build&tool=bash",
        "decisions": f"/sessions/{session}/decisions",
        "schedules": "/schedules",
        "schedule": f"/sessions/{session}/schedules/nightly",
    }


@contextmanager
def demo_page(folder: Path) -> Iterator[tuple[PageProcess, str]]:
    """Serve the page of a finished demo."""
    command, session = finished_demo(folder)
    with serving(command) as page:
        yield page, session

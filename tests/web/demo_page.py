"""`callboard web` on a finished demo with open requests, a worktree, and schedules, for tests of all screens."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import anyio
from tests.cli.commands.command import Command
from tests.cli.views.plan_rows import answered_request, plan
from tests.web.page_process import PageProcess, serving

from callboard.adapters.git.worktrees import worktrees_of
from callboard.adapters.system.clock import SystemClock
from callboard.core.approvals.requests import open_request
from callboard.core.keys import request_key
from callboard.ports.store import Put
from callboard.ports.worktrees import WorktreeActor
from callboard.sessions.places import find_places
from callboard.sessions.stores import log_notice, open_store
from callboard.types.records import Request
from callboard.types.settings import Settings

SCHEDULES = (
    ("add", "--name", "weekdays", "--timezone", "Europe/Berlin", "0 9 * * 1-5", "Run the tests, and say what fails."),
    ("add", "--name", "issues", "every 6h", "Say which open issue is the oldest."),
    ("add", "--name", "nightly", "--deadline", "20m", "--budget", "cost_usd=2", "30 2 * * *", "Update the changelog."),
    ("pause", "nightly", "--why", "until the release"),
)
PLAN = "# Round the totals\n\n1. Read `tally/money.py`.\n2. {}\n3. Run the tests."
FIRST_PLAN = PLAN.format("Round each share up.")
SECOND_PLAN = PLAN.format("Give the odd cents to the first ones.")


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
    with mock.patch.dict(os.environ, command.env, clear=True):
        anyio.run(_add_work, command.workspace, listed[1])
    return command, listed[1]


async def _add_work(workspace: Path, session: str) -> None:
    """Add open requests and a worktree with changes."""
    places = find_places(workspace)
    store = await open_store(places, Settings(durability="process"), log_notice)
    for request in open_requests(str(workspace)):
        await store.commit(Put(request_key(session, request.id), request.encode(), 0))
    keeper = worktrees_of(workspace, places.worktrees, store, environment=os.environ, clock=SystemClock())
    await keeper.create("rounding", WorktreeActor("fix-split", session))
    package = places.worktrees / "rounding" / "tally"
    (package / "money.py").write_text((package / "money.py").read_text().replace("cents", "pennies"))
    (package / "rounding.py").write_text('"""Rules of rounding."""\n\nSHARES = "first"\n')
    await store.aclose()


def open_requests(workspace: str) -> Iterator[Request]:
    """Yield a plan with its first revision, a command, and a question."""
    now = time.time()
    first = answered_request(plan(FIRST_PLAN, asked_by="fix-split"), "rejected", "Rounding up invents money.")
    second = {"id": "req_plan2", "revision": 2, "created_at": now + 5, "asked_by": "fix-split"}
    yield first
    yield plan(SECOND_PLAN, **second)
    payload = {"tool": "bash", "input": {"command": "pip install hypothesis"}, "why": "it installs", "rule": "D"}
    times = {"created_at": now, "expires_at": now + 900}
    more = {"folder": workspace, "always": ["Bash(pip install:*)"], "agent_type": "teammate"}
    base = {"id": "req_call", "kind": "permission", "asked_by": "fix-parse", **times, "payload": {**payload, **more}}
    yield open_request(Request.model_validate(base))
    question = {"question": "Which currency is the default?", "options": ["Euro", "Dollar"]}
    asked = {"id": "req_question", "kind": "question", "asked_by": "lead", **times, "payload": question}
    yield open_request(Request.model_validate(asked))


def screens(session: str) -> dict[str, str]:
    """Return the name and the path of every screen of the demo."""
    return {
        "waiting": "/waiting",
        "sessions": "/sessions",
        "session": f"/sessions/{session}",
        "agent": f"/sessions/{session}/agents/lead",
        "context": f"/sessions/{session}/agents/lead/context",
        "mail": f"/sessions/{session}/agents/lead/mail",
        "changes": "/changes",
        "worktree": "/changes/rounding",
        "schedules": "/schedules",
        "schedule": f"/sessions/{session}/schedules/nightly",
        "cost": "/cost",
        "session-cost": f"/sessions/{session}/cost",
        "policy": "/policy?call=rm+-r+build&tool=bash",
        "new": "/new",
        "hosts": "/hosts",
        "decisions": f"/sessions/{session}/decisions",
    }


@contextmanager
def demo_page(folder: Path) -> Iterator[tuple[PageProcess, str]]:
    """Serve the page of a finished demo."""
    command, session = finished_demo(folder)
    with serving(command) as page:
        yield page, session

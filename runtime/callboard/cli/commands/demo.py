"""`callboard demo`: a team fixes a sample project with the rehearsal model, over real HTTP, files, processes and store.

The session is an ordinary one in a separate folder; nothing here decides for the team. At the end the sample's tests
run once more and determine the exit code. A demo that was cut off is resumed in its folder. No permission is bypassed:
`ALLOWED` lists all commands that the team may run, and the mode lets it edit its own folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import anyio.to_thread

from callboard.cli.terminal.approver import PersonApprover, PlanPolicy
from callboard.cli.terminal.keyboard import Keyboard, person_is_there
from callboard.cli.terminal.page_process import page_beside
from callboard.cli.terminal.screen import Screen
from callboard.cli.terminal.signals import ExitRequests, handle_signals, run_with_signals
from callboard.cli.terminal.terminal import Block, Line, Style, Terminal, block
from callboard.cli.views.listings import table
from callboard.core.keys import short_id
from callboard.core.reports.metrics import together
from callboard.ports.environment import Answer, Approver
from callboard.ports.model import Delta
from callboard.sessions.hosted import HostedSession
from callboard.sessions.open import open_session
from callboard.sessions.options import (
    IdentityOptions,
    ModelOptions,
    PermissionOptions,
    SessionOptions,
    WorkspaceOptions,
)
from callboard.sessions.places import find_places
from callboard.sessions.result import RunEnd
from callboard.types.errors import UsageError, WorkspaceUnusable
from callboard.types.events import AnswerTaken, BackgroundEnded, CallFailed, ContextEdited, Event
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Envelope, Request
from callboard.types.schedules import Schedule

DATA = Path(__file__).parents[2] / "data"
PROJECT = "tally"
ALLOWED = (
    "Bash(python3 -m unittest:*)",
    "Bash(python3 tools/note.py:*)",
    "Bash(python3 tools/ledger.py)",
)
"""Commands that the team may run without a question."""
ASSIGNMENT = "Make the tests of this package pass. Share the work out, and check the ledger of last year meanwhile."
REMINDER = "Say which changes are noted so far."
AGO = 70.0
"""Age in seconds of the demo's schedule: over a minute, so that one run of it was missed."""
_TESTS = ("python3", "-m", "unittest")


@dataclass(frozen=True, slots=True)
class Demo:
    """Options of a demo."""

    yes: bool = False
    """Approve plans without asking."""
    keep: bool = False
    """True to keep the project at the end; one whose tests fail is always kept."""
    record: Path | None = None
    resume: Path | None = None
    """Folder of a demo that was cut off, to continue."""
    web: bool = False
    """True to open the web page of the demo."""


def main(
    terminal: Terminal,
    *,
    yes: bool = False,
    keep: bool = False,
    record: Path | None = None,
    resume: Path | None = None,
    web: bool = False,
) -> int:
    """Run the demo and return the exit code, 0 only if the sample's tests pass at the end.

    Raises `UsageError` for a folder without a demo, `WorkspaceUnusable` if none can be created.
    """
    return run_with_signals(_DemoRun(Demo(yes, keep, record, resume, web), terminal).go, terminal)


class _DemoRun:
    """One run of the demo."""

    def __init__(self, demo: Demo, terminal: Terminal) -> None:
        self._demo = demo
        self._terminal = terminal
        self._session: HostedSession | None = None
        self._person: PersonApprover | None = None
        self._tally = DemoTally()
        self._screen = Screen(terminal, result_apart=False)

    async def go(self, leaving: ExitRequests) -> int:
        """Run from the folder to the verdict. A first Ctrl-C stops the turn, a second leaves; both can be resumed."""
        code = 130
        folder = project_folder(self._demo.resume)
        self._say(f"The sample project is in {folder}", "strong")
        self._say(
            "A rehearsed model answers on a loopback port: no key, no network; costs are what a service would charge."
        )
        await anyio.to_thread.run_sync(prepare, folder)
        async with anyio.create_task_group() as group:
            await group.start(handle_signals, leaving, group.cancel_scope, self._interrupt)
            code = await self._host(folder)
            group.cancel_scope.cancel()
        if leaving.code is not None or leaving.interrupted:
            self._say(f"Interrupted; nothing is lost. Continue with: callboard demo --resume {folder}", "warn")
            return leaving.code or 130
        self._clear_away(folder, code)
        return code

    async def _host(self, folder: Path) -> int:
        async with AsyncExitStack() as stack:
            session = self._session = await self._open(folder, stack)
            self._screen.attach(session, asks=self._person.asks if self._person is not None else ())
            if self._person is not None:
                self._person.attach(session)
            if self._demo.web:
                kept = not sys.stderr.isatty()
                page = page_beside(folder, self._terminal.terminal_print, "--open", "--port", "0", address_only=kept)
                await stack.enter_async_context(page)
            self._say(f"Commands run at sandbox level {session.level} of 0 to 3 (`callboard doctor` says more).")
            if not session.schedules():  # the session is new, or was cut off at its beginning
                await self._begin(session)
            end = await session.wait_finished()
            code = await self._conclude(folder, end)
            await session.mark_ended(code)
        return code

    async def _open(self, folder: Path, stack: AsyncExitStack) -> HostedSession:
        """Open the session of this folder: the one that was cut off, or a new one."""
        exists = await anyio.to_thread.run_sync(find_places(folder).state.exists)
        for resume in (True, False) if exists else (False,):
            options = SessionOptions(
                WorkspaceOptions(
                    folder,
                    flags={
                        "permission.mode": "acceptEdits",
                        "permission.allow": list(ALLOWED),
                        "sandbox.unattended": "any",  # only the demo's own commands, in its own folder
                    },
                ),
                identity=IdentityOptions(resume=resume, prompt=None if resume else ASSIGNMENT),
                model=ModelOptions(f"rehearsal:{DATA / 'demo.yaml'}", record=self._demo.record),
                permissions=PermissionOptions(attended=person_is_there()),
            )
            observers = (self._screen, self._tally)
            try:
                opened = open_session(options, observers=observers, approvers=self._approvers())
                return await stack.enter_async_context(opened)
            except UsageError:
                if not resume:
                    raise
                continue  # the demo was killed before its session was written
        raise AssertionError("a new session opens or raises")

    def _approvers(self) -> Sequence[Approver]:
        if not person_is_there():
            return (PlanPolicy() if self._demo.yes else DemoApprover(),)
        self._person = PersonApprover(Keyboard(self._terminal).ask, self._terminal, leave_plans=self._demo.yes)
        return (PlanPolicy(), self._person) if self._demo.yes else (self._person,)

    async def _begin(self, session: HostedSession) -> None:
        """Add a schedule of the user, in addition to the assignment with which the session begins."""
        schedule = missed_schedule(session.id, time.time())
        await session.add_schedule(schedule)
        self._say(
            f"Cron counts in minutes, and the demo does not wait for one: {schedule.id} ({schedule.cron}, once) is "
            f"set up as if {AGO:g} s ago. Its run was missed meanwhile, and is caught up now (misfire: latest)."
        )

    async def _interrupt(self) -> bool:
        if self._session is None:
            return False
        await self._session.interrupt()
        return True

    async def _conclude(self, folder: Path, end: RunEnd) -> int:
        """Run the sample's tests, and print the results."""
        passed, summary = await anyio.to_thread.run_sync(run_tests, folder)
        self._terminal.terminal_print(self._tally.block())
        self._terminal.rows(agents_table(end))
        if passed:
            self._say(f"The sample's tests pass now: {summary}", "good")
        else:
            self._say(f"The sample's tests do not pass: {summary}", "bad")
        if end.reason:
            self._say(end.reason, "bad")
        return end.exit_code or (0 if passed else 1)

    def _clear_away(self, folder: Path, code: int) -> None:
        """Remove all files of a successful demo, unless --keep was given."""
        if code or self._demo.keep or self._demo.resume:
            self._say(f"The project stays in {folder}", "dim")
            return
        places = find_places(folder)
        for place in (folder.parent, places.state, places.data):
            shutil.rmtree(place, ignore_errors=True)

    def _say(self, text: str, style: Style = "plain") -> None:
        self._terminal.terminal_print(block(text, style))


class DemoApprover:
    """Policy that approves plans if no one is at the terminal, and says so."""

    async def answer(self, request: Request) -> Answer | None:
        """Answer a plan; None for any other request."""
        if request.kind != "plan" or "policy" not in request.may_answer:
            return None
        return Answer("approved", "policy", "nobody is at a terminal: the demo's policy approves plans")


class DemoTally:
    """Observer that counts the events that a demo is to show."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    def on_event(self, agent: str, seq: int, event: Event) -> None:
        """Count an event that is to be shown."""
        match event:
            case CallFailed():
                self._seen[_FAULTS.get(event.fault.kind, event.fault.kind)] += 1
            case ContextEdited(edits=edits) if edits:
                self._seen[_STAGES.get(event.stage, event.stage)] += 1
            case AnswerTaken(kind="plan"):
                self._seen[f"plan {event.status}"] += 1
            case BackgroundEnded(agent=""):
                self._seen[f"background command {event.status}"] += 1
            case _:
                pass

    def on_mail(self, envelope: Envelope) -> None:
        """Count fires once, by the id of the envelope."""
        if envelope.type == "scheduled":
            self._seen["schedule fired"] = 1

    def on_delta(self, agent: str, delta: Delta) -> None:
        """Do nothing."""

    def block(self) -> Block:
        """Return one line: `overloaded service recovered 1, lost connection recovered 1, ...`."""
        counted = ", ".join(f"{count} x {kind}" for kind, count in self._seen.items())
        return Block((Line(f"Seen on the way: {counted or 'nothing'}", "strong"),))


_FAULTS = {
    "overloaded": "service overloaded (529)",
    "connection": "connection lost",
    "lost": "call lost with a process",
}
_STAGES = {"persist_large_results": "large result persisted", "summarize_all": "conversation compacted"}


def project_folder(resumed: Path | None) -> Path:
    """Return the folder for the project. Raises `UsageError` for a folder without a demo."""
    if resumed is None:
        return Path(tempfile.mkdtemp(prefix="callboard-demo-")).resolve() / PROJECT
    folder = resumed.absolute()
    begun = folder.exists() or (folder.name == PROJECT and folder.parent.is_dir())
    if not begun or (folder.exists() and not (folder / "tools" / "ledger.py").is_file()):
        raise UsageError(f"{folder} contains no demo: give the folder that `callboard demo` printed")
    return folder


def prepare(folder: Path) -> None:
    """Copy the sample and make it a repository, completely or not at all. Raises `WorkspaceUnusable`."""
    if folder.exists():
        return
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        shutil.copytree(DATA / "sample", part, ignore=shutil.ignore_patterns("__pycache__", "build"))
        _git(part, "init", "-q", "--template=")
        _git(part, "config", "user.name", "The demo")
        _git(part, "config", "user.email", "demo@example.invalid")
        _git(part, "add", "-A")
        _git(part, "commit", "-q", "--no-verify", "-m", "The sample as it was found")
        part.rename(folder)
    except OSError as error:
        raise WorkspaceUnusable(f"the sample project cannot be made in {folder.parent}: {error}") from error


def _git(folder: Path, *arguments: str) -> None:
    """Run git without user configuration and hooks.

    Raises `WorkspaceUnusable` without git, or with its error output.
    """
    program = shutil.which("git")
    if program is None:
        raise WorkspaceUnusable("git was not found: install it, the demo's project is a git repository")
    settings = ("-c", "core.hooksPath=/dev/null", "-c", "commit.gpgSign=false", "-c", "init.defaultBranch=main")
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "LC_ALL": "C.UTF-8",
    }
    command = [program, "-C", str(folder), *settings, *arguments]
    ran = subprocess.run(command, env=environment, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    if ran.returncode:
        raise WorkspaceUnusable(f"git {arguments[0]} failed in {folder}: {ran.stderr.decode(errors='replace').strip()}")


def run_tests(folder: Path) -> tuple[bool, str]:
    """Run the sample's tests; return True if they pass, and the last lines of their output."""
    environment = {"PATH": os.environ.get("PATH", os.defpath), "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(
        _TESTS, cwd=folder, env=environment, capture_output=True, stdin=subprocess.DEVNULL, timeout=60, check=False
    )
    lines = [line for line in ran.stderr.decode(errors="replace").splitlines() if line.strip()]
    return ran.returncode == 0, ", ".join(lines[-2:]).replace(",", ";", 1) if lines else "no output"


def agents_table(end: RunEnd) -> Block:
    """Return a row for each agent, and the totals."""
    rows = [
        (
            agent.name,
            str(agent.steps),
            f"{agent.usage.prompt_tokens + agent.usage.output_tokens:,}",
            _dollars(agent.usage.cost_usd),
            f"{agent.metrics.cache_hit_rate:.0%}",
            agent.what,
        )
        for agent in end.agents
    ]
    total = end.usage
    steps = str(sum(agent.steps for agent in end.agents))
    cached = f"{together(agent.metrics for agent in end.agents).cache_hit_rate:.0%}"
    tokens = f"{total.prompt_tokens + total.output_tokens:,}"
    rows.append(("all", steps, tokens, _dollars(total.cost_usd), cached, ""))
    return table(("agent", "steps", "tokens", "cost", "cached", "what it did"), rows, "no agent did anything")


def missed_schedule(session: str, now: float) -> Schedule:
    """Return a one-shot schedule whose only slot has passed, within the catch-up window."""
    return Schedule(
        id=short_id("cron", session, "demo"), cron="* * * * *", prompt=REMINDER, recurring=False, created_at=now - AGO
    )


def _dollars(cost: float) -> str:
    return f"${cost:.4f}"

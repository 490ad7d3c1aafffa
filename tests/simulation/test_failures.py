"""What can go wrong around a real run: it says what and what to do, ends with its exit code, and `resume` goes on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.cli.commands.command import Command, CommandResult
from tests.simulation.foreign_service import Say, foreign_service
from tests.simulation.processes import AtTerminal, Running, left_behind, no_traceback, started, until

from callboard.ports.model import Delta
from callboard.sessions.open import open_session
from callboard.sessions.options import IdentityOptions, ModelOptions, SessionOptions, WorkspaceOptions
from callboard.types.events import Event
from callboard.types.records import Envelope

FINE = """
agents:
  lead:
    - {reply: Fine., repeat: forever}
"""
NOWHERE = """
agents:
  lead:
    - when: {contains: a word that nobody says}
      reply: Never.
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


def state_of(command: Command) -> Path:
    return Path(command.env["XDG_STATE_HOME"])


def told(ran: CommandResult, code: int, *words: str) -> None:
    """It ended with that code, and in words."""
    no_traceback(ran)
    assert ran.code == code, ran.err
    for each in words:
        assert each in ran.err


@pytest.mark.slow
def test_a_scenario_that_leads_nowhere_names_the_agent_and_the_message(command: Command) -> None:
    ran = command.run("run", "--model", command.scenario(NOWHERE), "Where to?")
    told(ran, 1, "no step for agent 'lead'", "the newest message was: Where to?")
    command.scenario(FINE)
    assert command.run("resume").out == "Fine.\n"


def test_a_bad_settings_file_is_named_with_line_and_field(command: Command) -> None:
    file = Path(command.env["XDG_CONFIG_HOME"]) / "callboard" / "settings.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("permission:\n  mode: yolo\n")
    told(command.run("run", "--model", command.scenario(FINE), "Go."), 3, f"{file}:2: permission.mode", "acceptEdits")


@pytest.mark.slow
def test_a_refused_key_is_told_and_a_resume_goes_on_with_a_good_one(command: Command) -> None:
    answers = iter([Say(status=401), Say([{"type": "text", "text": "Good."}])])
    with foreign_service(lambda request, number: next(answers)) as service:
        key: dict[str, Any] = {"ANTHROPIC_BASE_URL": service.url, "ANTHROPIC_API_KEY": "dummy"}
        told(command.run("run", "Go.", **key), 3, "ANTHROPIC_API_KEY", "then resume")
        assert command.run("resume", **key).out == "Good.\n"
    assert service.complaints == []


class Raising:
    """An observer with a fault, in place of a bug of ours that an agent meets at each model call."""

    def on_event(self, agent: str, seq: int, event: Event) -> None:
        if event.t == "model_called":
            raise ValueError("a bug")

    def on_delta(self, agent: str, delta: Delta) -> None: ...

    def on_mail(self, envelope: Envelope) -> None: ...


@pytest.mark.anyio
async def test_a_lead_that_crashes_again_and_again_ends_the_run_and_starts_anew_when_resumed(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in command.env.items():
        monkeypatch.setenv(name, value)
    first = SessionOptions(WorkspaceOptions(command.workspace), model=ModelOptions(command.scenario(FINE)))
    with anyio.fail_after(180):
        async with open_session(first, observers=[Raising()]) as session:
            await session.say("Go.")
            end = await session.wait_finished()
        assert (end.exit_code, end.text) == (70, "")
        assert "crashed" in end.why
        async with open_session(
            SessionOptions(WorkspaceOptions(command.workspace), identity=IdentityOptions(resume=True))
        ) as session:
            end = await session.wait_finished()
        assert (end.exit_code, end.text) == (0, "Fine.")


# Damage


def _begins_otherwise(database: Path) -> None:
    data = database.read_bytes()
    database.write_bytes(b"garbage!" * 20 + data[160:])


def _log_overwritten(database: Path) -> None:
    database.with_name(database.name + "-wal").write_bytes(os.urandom(50_000))


@pytest.mark.slow
@pytest.mark.parametrize("damage", [_begins_otherwise, _log_overwritten])
def test_a_damaged_database_is_told_and_kept_and_work_goes_on(command: Command, damage: Callable[[Path], None]) -> None:
    model = command.scenario(FINE)
    assert command.run("run", "--model", model, "Go.").code == 0
    (database,) = state_of(command).rglob("callboard.db")
    damage(database)
    told(command.run("resume"), 3, "is damaged", "It was kept as", "Starting again")
    assert list(database.parent.glob("*.damaged-*"))
    assert command.run("run", "--model", model, "Go.").out == "Fine.\n"


# Disks


@contextlib.contextmanager
def mounted(place: Path, size: str) -> Generator[Path]:
    """A small file system in memory, or the test is skipped where that is not allowed."""
    place.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(place)]
    done = subprocess.run(mount, check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk: Path) -> Path:
    """Leave no room; the file to be removed for some."""
    ballast = disk / "ballast"
    file = os.open(ballast, os.O_CREAT | os.O_WRONLY)
    with contextlib.suppress(OSError):
        while os.write(file, bytes(4096)):
            pass
    os.close(file)
    return ballast


def use_up_log(disk: Path) -> None:
    """Fill what is left of the newest page of the store's write-ahead log, into which a small commit would fit."""
    (log,) = disk.rglob("callboard.db-wal")
    with contextlib.closing(sqlite3.connect(log.with_name("callboard.db"), isolation_level=None)) as connection:
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        frame = 24 + connection.execute("PRAGMA page_size").fetchone()[0]  # sqlite.org/fileformat2.html#walformat
        while -log.stat().st_size % os.sysconf("SC_PAGE_SIZE") >= frame:
            connection.execute("UPDATE stream SET name = name WHERE number = 1")


SLOW_STEPS = """
agents:
  lead:
    - reply: [{tool_use: {name: bash, input: {command: "true"}}}]
    - latency_ms: 6000  # the disk is full by then, also on a busy machine: a command that cannot start is an error
      reply: [{tool_use: {name: bash, input: {command: "echo x >> once.txt"}}}]
    - reply: At last.
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", ["room", "interrupt"])
def test_a_run_waits_on_a_full_disk_and_does_everything_once(command: Command, end: str) -> None:
    rules = ("--permission-mode", "bypassPermissions")
    with mounted(state_of(command), "4m") as disk:
        with started(command, "run", "-v", *rules, "--model", command.scenario(SLOW_STEPS), "Go.") as running:
            running.wait_for("bash true =>")
            use_up_log(disk)
            ballast = fill(disk)
            running.wait_for("no room left on the disk")
            if end == "room":
                ballast.unlink()
                running.wait_for("can be written again")
            else:
                running.signal(signal.SIGINT)
            ran = running.end()
        if end == "interrupt":
            told(ran, 130, "Free some space")
            told(command.run("team"), 3, "no room left")
            ballast.unlink()
            ran = command.run("resume")
        assert (ran.code, ran.out) == (0, "At last.\n"), ran.err
    assert (command.workspace / "once.txt").read_text() == "x\n"


ASKS = """
agents:
  lead:
    - reply: [{tool_use: {name: bash, input: {command: echo x >> once.txt}}}]
    - reply: Done.
"""


@pytest.mark.slow
def test_sigterm_ends_a_serve_whose_disk_is_full(command: Command) -> None:
    with mounted(state_of(command), "4m") as disk:
        added = command.run(
            "cron", "add", "at 2999-01-01T00:00", "Ask.", "--name", "roof", "--model", command.scenario(ASKS)
        )
        assert added.code == 0, added.err
        with started(command, "serve", "--hand-over", "1") as host:
            host.wait_for("hosting")
            command.run("cron", "run", "roof")
            host.wait_for("waits for you until")
            use_up_log(disk)
            ballast = fill(disk)
            host.signal(signal.SIGTERM)
            ended = host.end()
            assert ended.code == 143
            assert "cannot be left in order, for example on a full disk: leaves now" in ended.err
        ballast.unlink()
        assert "at 2999-01-01T00:00" in command.run("cron", "list").out


SLEEPS_THEN_SAYS_MUCH = """
agents:
  lead:
    - reply: [{tool_use: {name: bash, input: {command: sleep 3}}}]
    - reply: MUCH
"""


@pytest.mark.slow
def test_a_full_disk_under_a_rehearsal_is_told_and_a_resume_goes_on(command: Command) -> None:
    much = "At last. " * 1_000  # more than what is left of the newest page of its state file
    model = command.scenario(SLEEPS_THEN_SAYS_MUCH.replace("MUCH", much))
    rules = ("--permission-mode", "bypassPermissions")
    with mounted(Path(command.env["XDG_DATA_HOME"]), "4m") as disk:
        with started(command, "run", *rules, "--model", model, "Go.") as running:
            until(lambda: "sleep 3" in left_behind(command), "sleep 3")
            ballast = fill(disk)
            told(running.end(), 1, "rehearsal.jsonl cannot be written (No space left on device)", "make room")
        ballast.unlink()
        ran = command.run("resume")
        assert (ran.code, ran.out.strip()) == (0, much.strip()), ran.err


@pytest.mark.slow
def test_a_log_that_cannot_be_written_ends_no_session(command: Command) -> None:
    model = command.scenario(FINE)
    assert command.run("run", "--model", model, "Go.").code == 0
    (log,) = [path for path in state_of(command).rglob("log") if path.is_dir()]
    with mounted(log, "16k") as disk:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        ran = command.run("run", "--model", model, "Go.")
    assert (ran.code, ran.out) == (0, "Fine.\n"), ran.err


@pytest.mark.parametrize("size", ["16k", "40k"])  # with 64k, a session begins, and waits for room
def test_a_disk_that_is_too_small_for_a_store_is_told(command: Command, size: str) -> None:
    with mounted(state_of(command), size):
        told(command.run("run", "--model", command.scenario(FINE), "Go."), 3, str(state_of(command)))


@pytest.mark.parametrize("which", ["workspace", "state", "data"])
def test_a_read_only_folder_is_told_before_anything_is_done(command: Command, which: str) -> None:
    place = command.workspace if which == "workspace" else Path(command.env[f"XDG_{which.upper()}_HOME"])
    model = command.scenario(FINE)
    with mounted(place, "4m") as disk:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        advice = () if which == "workspace" else ("XDG_STATE_HOME", "XDG_DATA_HOME")
        told(command.run("run", "--model", model, "Go."), 3, str(place), "ead-only", *advice)


# Signals


@dataclass(frozen=True)
class Phase:
    """What the lead does when the signal comes."""

    step: str
    said: str
    """On stderr, once it has begun."""
    runs: str = ""
    """A command that runs then."""
    heard: bool = False
    """The service must have begun to answer: a call that it never saw would meet the same fault at the resume."""
    args: tuple[str, ...] = ()

    def scenario(self) -> str:
        end = "    - {otherwise: true, reply: Done.}\n"
        summaries = "summaries:\n  lead: [{latency_ms: 60000, reply: Late.}, {reply: In short., repeat: forever}]\n"
        return f"agents:\n  lead:\n    - {self.step}\n{end}{summaries}"


PHASES = {
    "silence": Phase("{reply: Done., fault: {silence_s: 60}}", "asks", heard=True),
    "back-off": Phase("{reply: Done., fault: {status: 429, retry_after: 8}}", "retry"),
    "tool": Phase(
        "{reply: [{tool_use: {name: bash, input: {command: sleep 60}}}]}",
        "tool_use",
        runs="sleep 60",
        args=("--allowed-tools", "Bash(sleep 60)"),
    ),
    "plan": Phase(
        "{reply: [{tool_use: {name: submit_plan, input: {plan: Do it.}}}]}",
        "waits for approval",
        args=("--permission-mode", "plan"),
    ),
    "summary": Phase("{reply: [{tool_use: {name: compact, input: {}}}]}", "compact =>"),
}


@contextlib.contextmanager
def begun(command: Command, phase: Phase) -> Generator[Running]:
    """A run that has come to its phase."""
    model = command.scenario(phase.scenario())
    with started(command, "run", "-v", *phase.args, "--model", model, "Go.") as running:
        running.wait_for(phase.said)
        if phase.heard:
            until(lambda: any(state_of(command).parent.rglob("rehearsal.jsonl")), "an answer has begun")
        if phase.runs:
            until(lambda: phase.runs in left_behind(command), phase.runs)
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("name", PHASES)
def test_ctrl_c_in_each_phase_leaves_nothing_behind_and_a_resume_goes_on(command: Command, name: str) -> None:
    with begun(command, PHASES[name]) as running:
        running.signal(signal.SIGINT, group=True)
        told(running.end(), 130, "stopping the turn", "callboard resume")
    assert left_behind(command) == []
    approve_what_waits(command)
    ran = command.run("resume")
    assert (ran.code, ran.out) == (0, "Done.\n"), ran.err


TEAM = """
agents:
  lead:
    - reply: [{tool_use: {name: spawn_teammate, input: {name: amy, role: sleeps, prompt: Sleep.}}}]
    - {reply: Done., repeat: forever}
  amy:
    - reply: [{tool_use: {name: bash, input: {command: sleep 60}}}]
    - {reply: Slept., repeat: forever}
"""


@pytest.mark.slow
def test_ctrl_c_stops_the_teammate_that_an_idle_lead_waits_for(command: Command) -> None:
    rules = ("--permission-mode", "bypassPermissions")
    with started(command, "run", *rules, "--model", command.scenario(TEAM), "Go.") as running:
        until(lambda: "sleep 60" in left_behind(command), "the teammate works")
        running.signal(signal.SIGINT, group=True)
        told(running.end(), 130, "callboard resume")
    assert left_behind(command) == []


@pytest.mark.slow
def test_sigterm_leaves_nothing_behind_and_the_turn_goes_on(command: Command) -> None:
    with begun(command, PHASES["tool"]) as running:
        running.signal(signal.SIGTERM)
        told(running.end(), 143, "callboard resume")
    assert left_behind(command) == []
    ran = command.run("resume", "-v")
    assert (ran.code, ran.out) == (0, "Done.\n"), ran.err
    assert "lead: continues where it was" in ran.err


def approve_what_waits(command: Command) -> None:
    waiting = json.loads(command.run("plans", "--json").out)
    for request in waiting:
        assert command.run("approve", request["id"]).code == 0


@pytest.mark.slow
def test_a_resume_shows_the_plan_that_it_waits_for_and_how_to_answer_it(command: Command) -> None:
    with begun(command, PHASES["plan"]) as running:
        running.signal(signal.SIGTERM)
        running.end()
    with started(command, "resume") as running:
        running.wait_for("callboard approve req_")
        approve_what_waits(command)
        ran = running.end()
    assert (ran.code, ran.out) == (0, "Done.\n"), ran.err


TOUCH = """
agents:
  lead:
    - reply: [{tool_use: {name: bash, input: {command: touch made.txt}}}]
    - {otherwise: true, reply: Done.}
"""


@pytest.mark.slow
def test_ctrl_c_at_a_terminal_takes_the_question_back_and_nothing_is_allowed(command: Command) -> None:
    person = AtTerminal(command, "run", "--model", command.scenario(TOUCH), "Go.")
    person.wait_for("allow this?")
    person.type("\x03")
    assert person.end() == 130
    assert "Traceback" not in person.shown
    assert json.loads(command.run("plans", "--json").out) == []
    assert command.run("resume").out == "Done.\n"
    assert not (command.workspace / "made.txt").exists()


@pytest.mark.slow
def test_a_question_at_a_terminal_may_be_answered_from_elsewhere(command: Command) -> None:
    person = AtTerminal(command, "run", "--model", command.scenario(TOUCH), "Go.")
    person.wait_for("allow this?")
    approve_what_waits(command)
    assert person.end() == 0
    assert "approved by person" in person.shown
    assert (command.workspace / "made.txt").exists()

"""`callboard serve` and `callboard service`: output, refusals, the firing process of each schedule, the unit file."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import time
from datetime import datetime
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.commands.command import Command
from tests.simulation.processes import no_traceback, started, until
from tests.simulation.serving import new_session, one_shot, stand_of

from callboard.adapters.processes.pids import started_at
from callboard.adapters.processes.systemd import MARK, SystemdUnit, quote_word
from callboard.core.keys import serving_key
from callboard.ports.store import Delete, Put
from callboard.sessions.inspect.serving import firing_process
from callboard.types.records import HostRow
from callboard.types.schedules import Schedule


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


def add_schedules(command: Command, session: str, *schedules: Schedule) -> None:
    """Add schedules unchanged."""

    async def putting() -> None:
        async with stand_of(command) as stand:
            await stand.put(session, schedules)

    anyio.run(putting)


def history(command: Command, session: str) -> list[str]:
    """Return the outcomes of a session's fires."""

    async def reading() -> list[str]:
        async with stand_of(command) as stand:
            return [one.outcome for one in (await stand.became(session)).fires]

    return anyio.run(reading)


def test_without_a_key_it_says_so_at_its_start(command: Command) -> None:
    ran = command.run_inline("serve")
    assert ran.code == 3
    assert "ANTHROPIC_API_KEY" in ran.err
    no_traceback(ran)


@pytest.mark.slow
def test_a_session_that_needs_no_key_is_served_without_one(command: Command) -> None:
    session = new_session(command)
    add_schedules(command, session, one_shot(1, time.time() + 3_600))
    with started(command, "serve") as running:
        running.wait_for("hosting")
        running.signal(signal.SIGTERM)
        assert running.end().code == 143


@pytest.mark.slow
def test_serve_reports_a_schedule_that_a_fast_clock_had_put_off(command: Command) -> None:
    session = new_session(command)
    hourly = one_shot(1, time.time()).model_copy(update={"cron": "0 * * * *", "recurring": True})
    add_schedules(command, session, hourly.model_copy(update={"last_slot": time.time() + 5 * 365 * 86_400}))
    with started(command, "serve") as running:
        running.wait_for(f"note     {session} {hourly.id}: corrected: the clock of this machine was ahead of time")
        running.signal(signal.SIGTERM)
        assert running.end().code == 143


@pytest.mark.slow
def test_once_corrects_a_schedule_that_a_fast_clock_had_put_off(command: Command) -> None:
    session = new_session(command)
    hourly = one_shot(1, time.time()).model_copy(update={"cron": "0 * * * *", "recurring": True})
    add_schedules(command, session, hourly.model_copy(update={"last_slot": time.time() + 5 * 365 * 86_400}))
    ran = command.run_inline("serve", "--once")
    assert f"{hourly.id}: corrected: the clock of this machine was ahead of time" in ran.err, ran.err
    (row,) = json.loads(command.run_inline("cron", "list", "--json").out)
    assert datetime.fromisoformat(row["next"][0]).timestamp() < time.time() + 7_200
    assert command.run_inline("serve", "--once").err == ""


def test_an_agents_tool_may_not_serve_or_install(command: Command) -> None:
    for words in (("serve",), ("service", "install"), ("service", "uninstall")):
        ran = command.run_inline(*words, CALLBOARD_TOOL="1")
        assert (ran.code, ran.out) == (2, "")


def test_a_dry_run_lists_sessions_and_times_and_fires_nothing(command: Command) -> None:
    assert "no session has a schedule" in command.run_inline("serve", "--dry-run").out
    session, due = new_session(command), time.time() - 90
    add_schedules(command, session, one_shot(1, due).model_copy(update={"created_at": due - 60, "name": "roof"}))
    words = command.run_inline("serve", "--dry-run").out
    assert f"session {session}: would be hosted" in words
    assert "roof" in words
    (told,) = json.loads(command.run_inline("serve", "--dry-run", "--json").out)
    assert (told["session"], told["host"]) == (session, None)
    assert told["schedules"][0]["next"] == int(due)
    assert history(command, session) == []


def test_a_dry_run_shows_schedule_files_and_names_those_that_are_not_read(command: Command) -> None:
    folder = command.workspace / ".callboard/schedules"
    folder.mkdir(parents=True)
    (folder / "roof.md").write_text('---\ncron: "@daily"\nagent_type: generl\n---\nLook.\n')
    ran = command.run_inline("serve", "--dry-run")
    assert "no session has a schedule" in ran.out
    assert "1 schedule file not read, since this workspace is not trusted" in ran.err
    ran = command.run_inline("serve", "--dry-run", "--trust")
    assert "a new session for schedule files: would be created and hosted\n" in ran.out
    assert "roof  @daily (UTC)" in ran.out
    assert "schedules/roof.md:3: agent_type: unknown type 'generl': choose general" in ran.err
    (told,) = json.loads(command.run_inline("serve", "--dry-run", "--trust", "--json").out)
    assert (told["session"], told["schedules"][0]["name"]) == (None, "roof")
    assert "no schedules" in command.run_inline("cron", "list").out, "a dry run changes nothing"


@pytest.mark.slow
def test_once_fires_what_is_due_and_ends(command: Command) -> None:
    session, due = new_session(command), time.time() - 90
    late = one_shot(1, due).model_copy(update={"created_at": due - 60})
    add_schedules(command, session, late, one_shot(2, time.time() + 3_600))
    ran = command.run_inline("serve", "--once", "--json")
    assert ran.code == 0, ran.err
    events = [(one["event"], one.get("schedule")) for one in ran.messages]
    assert ("fire", late.id) in events
    assert ("end", late.id) in events
    assert history(command, session) == ["done"]
    again = command.run_inline("serve", "--once")
    assert (again.code, again.out) == (0, "")
    assert history(command, session) == ["done"]


ASKING = """
agents:
  lead: [{reply: Hello., repeat: forever}]
  'sched-*':
    - {reply: [{tool_use: {name: bash, input: {command: touch roof.txt}}}]}
    - {reply: Looked., repeat: forever}
"""


def add_asking(command: Command, *options: str) -> None:
    """Add a schedule whose agent asks before its command, in a workspace without a session."""
    words = ("--agent-type", "general", "--name", "roof", "--model", command.scenario(ASKING))
    assert command.run_inline("cron", "add", "@yearly", "Look", *words, *options).code == 0


DELEGATING = """
agents:
  lead:
    - reply: [{tool_use: {name: task, input: {description: Look, prompt: Look at it, agent_type: general}}}]
    - {when: {result_of: task}, latency_ms: LATENCY, reply: Looked.}
  'general-*':
    - {reply: [{tool_use: {name: bash, input: {command: touch roof.txt}}}]}
    - {reply: It was not allowed., repeat: forever}
"""


@pytest.mark.parametrize("killed", [False, True])
def test_denied_calls_of_the_subagents_of_a_fire_are_in_its_history(command: Command, killed: bool) -> None:
    model = command.scenario(DELEGATING.replace("LATENCY", "5000" if killed else "0"))
    assert command.run_inline("cron", "add", "@yearly", "Look", "--name", "roof", "--model", model).code == 0
    assert command.run_inline("config", "set", "-g", "ask.deadline", "1").code == 0
    assert command.run_inline("cron", "run", "roof").code == 0
    if killed:
        with started(command, "serve") as host:
            host.wait_for("is expired")
            until(lambda: "It was not allowed." in command.run("team", "ended").out, "the subagent has ended")
            host.signal(signal.SIGKILL)
    served = command.run("serve", "--once")
    assert "done after" in served.err
    (fire,) = json.loads(command.run_inline("cron", "history", "--json").out)
    assert (fire["outcome"], fire["why"]) == ("done", "1 call was denied: nobody answered in time; Looked.")


def test_requests_of_the_session_that_cron_add_creates_wait_for_a_person(command: Command) -> None:
    add_asking(command)
    assert command.run_inline("config", "set", "-g", "ask.deadline", "1").code == 0
    assert command.run_inline("cron", "run", "roof").code == 0
    served = command.run_inline("serve", "--once")
    assert (served.code, "1 call was denied: " in served.err) == (4, True), served.err
    (session,) = json.loads(command.run_inline("sessions", "--json").out)
    (decision,) = json.loads(command.run_inline("policy", "log", "--json", "--session", session["id"]).out)
    answer = decision["answer"]
    assert (answer["status"], answer["at"] - decision["at"] >= 0.9) == ("expired", True), answer
    (fire,) = json.loads(command.run_inline("cron", "history", "--json").out)
    assert fire["outcome"] == "done"
    assert fire["why"] == f"1 call was denied: {answer['reason'] or 'expired'}; Looked."


def test_a_fire_that_is_stopped_at_its_deadline_has_one_line_with_its_time_and_cost(command: Command) -> None:
    add_asking(command, "--deadline", "1s")
    assert command.run_inline("cron", "run", "roof").code == 0
    served = command.run_inline("serve", "--once", "--json")
    (end,) = (message for message in served.messages if message["event"] == "end")
    assert (end["outcome"], end["seconds"] >= 1, end["cost_usd"] > 0) == ("timed_out", True, True), end


@pytest.mark.slow
def test_a_request_of_a_scheduled_agent_is_found_by_its_id_from_any_session(command: Command) -> None:
    add_asking(command)
    with started(command, "serve") as running:
        running.wait_for("hosting")
        assert command.run_inline("cron", "run", "roof").code == 0
        until(lambda: "req_" in command.run_inline("plans").out, "the only session of the workspace is shown")
        assert command.run_inline("cost").code == command.run_inline("team").code == 0
        (asked,) = json.loads(command.run_inline("plans", "--json").out)
        assert command.run_inline("run", "--model", command.scenario(ASKING), "Hello.").code == 0
        assert asked["id"] not in command.run_inline("plans").out
        assert "touch roof.txt" in command.run_inline("show", asked["id"]).out
        ran = command.run_inline("approve", asked["id"][:-2])
        assert (ran.code, f"{asked['id']} approved" in ran.out) == (0, True), ran.err
        running.wait_for("done after")
        running.signal(signal.SIGINT)
        assert running.end().code == 130
    assert (command.workspace / "roof.txt").exists()


LINGERING = """
agents:
  lead:
    - {when: {contains: Hello}, reply: Hello.}
    - when: {contains: Look}
      reply:
        - tool_use: {name: bash, input: {command: "echo $$ > pid; sleep 100000", run_in_background: true}}
        - tool_use: {name: bash, input: {command: "until test -s pid; do sleep 0.05; done"}}
    - {reply: Begun., repeat: forever}
"""


@pytest.mark.slow
def test_a_command_that_outlasts_the_last_fire_is_ended_after_the_time_in_the_settings(command: Command) -> None:
    settings = Path(command.env["XDG_CONFIG_HOME"]) / "callboard" / "settings.yaml"
    settings.parent.mkdir(parents=True)
    settings.write_text(
        "sandbox: {level: 0, unattended: any}\nbackground: {at_end: 0.2}\n"
        "permission: {mode: bypassPermissions, schedules: {mode: bypassPermissions}}\n"
    )
    model = command.scenario(LINGERING)
    ran = command.run("run", "--model", model, "Hello.")
    assert ran.code == 0, ran.err
    (listed,) = json.loads(command.run_inline("sessions", "--json").out)
    due = time.time() - 90
    late = one_shot(1, due).model_copy(update={"created_at": due - 60})
    add_schedules(command, listed["id"], late)
    ran = command.run_inline("serve", "--once")
    assert ran.code == 0, ran.err
    assert "still ran, and was stopped: echo $$ > pid" in ran.err
    pid = (command.workspace / "pid").read_text().strip()
    assert not Path(f"/proc/{pid}/cwd").exists()


@pytest.mark.slow
def test_it_leaves_for_a_person_and_comes_back(command: Command) -> None:
    session = new_session(command)
    add_schedules(command, session, one_shot(1, time.time() + 3_600))
    with started(command, "serve", "--json") as running:
        running.wait_for('"hosting"', "out")
        assert f"hosted by process {running.pid}" in command.run_inline("serve", "--dry-run").out
        taken = command.run("run", "-c", "--take-over", "Hello again.")
        assert (taken.code, taken.out) == (0, "Done as asked.\n"), taken.err
        until(lambda: running.said("out").count('"hosting"') == 2, "it hosts the session again")
        assert running.said("out").count('"left"') == 1
        running.signal(signal.SIGHUP)
        until(lambda: running.said("out").count('"hosting"') == 3, "it hosts it after a reload")
        running.signal(signal.SIGINT)
        ended = running.end()
    assert ended.code == 130
    assert ended.err == ""
    no_traceback(ended)


@pytest.mark.slow
def test_a_new_session_and_a_schedule_file_are_noticed(command: Command) -> None:
    session = new_session(command)
    add_schedules(command, session, one_shot(1, time.time() + 3_600))
    model = f"rehearsal:{command.workspace.parent / 'scenario.yaml'}"
    with started(command, "serve", "--model", model) as running:
        running.wait_for(f"hosting  {session}")
        second = new_session(command)
        add_schedules(command, second, one_shot(2, time.time() + 3_600))
        running.wait_for(f"hosting  {second}")
        folder = Path(command.env["XDG_CONFIG_HOME"]) / "callboard" / "schedules"
        folder.mkdir(parents=True)
        (folder / "look.md").write_text('---\ncron: "0 9 * * *"\n---\nLook at the roof.\n')
        running.wait_for("look.md: its schedule is added")
        until(lambda: running.said().count("hosting") == 3, "the session of schedule files is hosted")
        rows = json.loads(command.run("sessions", "--json").out)
        running.signal(signal.SIGTERM)
        assert running.end().code == 143
    assert [bool(one["settings"].get("serve")) for one in rows] == [True, False, False]
    person = command.run("run", "-c", "Hello.")
    assert person.code == 0, person.err
    assert json.loads(command.run_inline("team", "--json").out)[0]["name"] == "lead"
    assert len(json.loads(command.run("sessions", "--json").out)) == 3, "a person's session is a separate one"


async def _firing_processes(command: Command, session: str, pid: int) -> tuple[str, str, str]:
    """Return the firing process: without a row, with a dead server's row, and with a running server's row."""
    async with stand_of(command) as stand:
        nobody = await firing_process(stand.store, session)
        await stand.store.commit(Put(serving_key(pid), HostRow(pid=pid, started=1.0).encode()))
        dead = await firing_process(stand.store, session)
        await stand.store.commit(Put(serving_key(pid), HostRow(pid=pid, started=started_at(pid) or 0.0).encode()))
        living = await firing_process(stand.store, session)
        await stand.store.commit(Delete(serving_key(pid)))
        return nobody, dead, living


def test_who_fires_a_sessions_schedules_is_known_to_any_process(command: Command) -> None:
    session = new_session(command)
    assert anyio.run(_firing_processes, command, session, os.getpid()) == (
        "",
        "",
        f"callboard serve, process {os.getpid()}",
    )


@pytest.mark.slow
def test_a_run_waits_for_schedules_only_when_it_is_told_to(command: Command) -> None:
    for ahead in (4, 30, 120):  # on a slow machine, the first run may end after the schedule's time
        session, due = new_session(command), time.time() + ahead
        add_schedules(command, session, one_shot(1, due))
        assert command.run("run", "-c", "Hello.").code == 0
        if time.time() < due:
            break
    assert history(command, session) == []
    assert command.run("run", "-c", "--with-schedules", "Hello.").code == 0
    assert history(command, session) == ["done"]


# The unit


def split_line(line: str) -> list[str]:
    """Split a command line as systemd.service(5) and systemd.syntax(7) define: quotes, escapes, `%%`, `$$`."""
    words, at = list[str](), 0
    while at < len(line):
        if line[at] == " ":
            at += 1
            continue
        assert line[at] == '"', "Callboard quotes every word"
        word, at = b"", at + 1
        while line[at] != '"':
            if line[at] == "\\" and line[at + 1] == "x":
                word, at = word + bytes([int(line[at + 2 : at + 4], 16)]), at + 4
                continue
            at += line[at] == "\\"
            word, at = word + os.fsencode(line[at]), at + 1
        words.append(os.fsdecode(word).replace("%%", "%").replace("$$", "$"))
        at += 1
    return words


@given(st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8")), min_size=1, max_size=3))
def test_every_word_is_read_back_as_it_was(words: list[str]) -> None:
    doubled = [quote_word(word, variables=True) for word in words]
    for one in doubled:
        assert one.isprintable()
        assert "%" not in one.replace("%%", "")
        assert "$" not in one.replace("$$", "")
    assert split_line(" ".join(doubled)) == words


@pytest.mark.parametrize("name", ["plain", "two words", '100%h \\n $HOME "q" é\'s', "ends\\"])
def test_systemd_takes_the_unit_of_any_workspace(tmp_path: Path, name: str) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed; only it can verify a unit")
    workspace = tmp_path / name
    workspace.mkdir()
    environ = {"PATH": os.environ["PATH"], "XDG_STATE_HOME": str(tmp_path / "st ate%")}
    command = (shutil.which("true") or "/bin/true",)
    unit = SystemdUnit("callboard-x.service", workspace, command, tmp_path / "service.env", environ)
    file = tmp_path / unit.name
    file.write_text(unit.text())
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    done = subprocess.run(
        [program, "verify", "--user", "--man=no", str(file)],
        env={"XDG_RUNTIME_DIR": str(runtime), "PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = [row for row in unit.text().splitlines() if row.startswith("ExecStart=")]
    assert split_line(line.removeprefix("ExecStart=")) == [*command, "serve", "--cwd", str(workspace)]


def test_install_writes_a_unit_without_a_key_and_leaves_others_files_alone(command: Command) -> None:
    ran = command.run_inline("service", "install", ANTHROPIC_API_KEY="sk-secret", PATH="/nowhere")
    assert ran.code == 0, ran.err
    assert "systemctl --user enable --now callboard-workspace-" in ran.out
    assert "loginctl enable-linger" in ran.out
    (file,) = (Path(command.env["XDG_CONFIG_HOME"]) / "systemd" / "user").iterdir()
    text = file.read_text()
    assert text.startswith(MARK + "\n")
    assert "sk-secret" not in text
    assert str(command.workspace) in text
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = command.run_inline("service", "install", PATH="/nowhere")
    assert "is up to date" in again.out
    state = json.loads(command.run_inline("service", "status", "--json", PATH="/nowhere").out)
    assert (state["installed"], state["ours"], state["changed"], state["serving"]) == (True, True, False, [])
    assert command.run_inline("service", "print", PATH="/nowhere").out == text
    file.write_text("[Service]\nExecStart=/bin/true\n")
    for words in ("install", "uninstall"):
        refused = command.run_inline("service", words, PATH="/nowhere")
        assert refused.code == 3
        assert "was not written by callboard" in refused.err
    assert file.read_text() == "[Service]\nExecStart=/bin/true\n"
    file.write_text(text)
    assert command.run_inline("service", "uninstall", PATH="/nowhere").code == 0
    assert not file.exists()
    assert "there is no" in command.run_inline("service", "uninstall", PATH="/nowhere").out

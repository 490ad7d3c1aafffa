"""A second process beside a host: it follows, speaks and answers; it takes over on a person's word, and never else."""

from __future__ import annotations

import copy
import json
import signal
import time
from pathlib import Path

import pytest
from tests.cli.commands.command import Command
from tests.simulation.processes import AtTerminal, no_traceback, started, until

from callboard.cli.repl.draft import TOO_SOON

PLAN = """
agents:
  lead:
    - reply: [{tool_use: {name: submit_plan, input: {plan: Rebuild the roof.}}}]
    - when: {contains: Take slate}
      reply: Slate it is.
    - when: {contains: approved}
      reply: The answer came.
    - {reply: I hear you., repeat: forever}
"""
PLANNING = ("--permission-mode", "plan")
WAITS = "waits for approval"


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


def request_of(command: Command) -> str:
    (request,) = json.loads(command.run_inline("plans", "--json").out)
    return str(request["id"])


def test_resume_follows_a_hosted_session_and_ends_as_the_run_does(command: Command) -> None:
    with started(command, "run", *PLANNING, "--model", command.scenario(PLAN), "Go.") as host:
        host.wait_for(WAITS)
        with started(command, "resume") as follower:
            follower.wait_for(f"process {host.pid} hosts session")
            assert command.run_inline("send", "--to", "lead", "Take slate.").code == 0
            assert command.run_inline("approve", request_of(command)).code == 0
            ended, followed = host.end(), follower.end()
    assert (ended.code, followed.code) == (0, 0)
    assert followed.out == ended.out
    assert "approved by person" in followed.err
    no_traceback(followed)


CLOCK_AHEAD = """
import runpy, time

from callboard.adapters.system.clock import SystemClock

SystemClock.now = lambda self: time.time() + 3600
runpy.run_module("callboard", run_name="__main__", alter_sys=True)
"""


def test_a_follower_whose_clock_is_ahead_ends_with_the_code_of_the_run(command: Command) -> None:
    """The host may run on another machine."""
    ahead = copy.copy(command)
    program = command.workspace.parent / "ahead.py"
    program.write_text(CLOCK_AHEAD)
    ahead.argv = [command.argv[0], str(program)]
    with started(command, "run", *PLANNING, "--max-turns", "1", "--model", command.scenario(PLAN), "Go.") as host:
        host.wait_for(WAITS)
        with started(ahead, "attach") as follower:
            follower.wait_for("this screen follows it")
            assert command.run_inline("approve", request_of(command)).code == 0
            ended, followed = host.end(), follower.end()
    assert (ended.code, followed.code) == (5, 5), followed.err


def test_a_follower_that_leaves_leaves_its_host_alone(command: Command) -> None:
    with started(command, "run", *PLANNING, "--model", command.scenario(PLAN), "Go.") as host:
        host.wait_for(WAITS)
        with started(command, "attach") as follower:
            follower.wait_for("this screen follows it")
            follower.signal(signal.SIGINT)
            left = follower.end()
        assert left.code == 130
        assert f"process {host.pid} continues the session" in left.err
        assert command.run_inline("approve", request_of(command)).code == 0
        assert host.end().out == "The answer came.\n"


@pytest.mark.slow
def test_a_person_attaches_speaks_and_answers_at_a_prompt_line(command: Command) -> None:
    with started(command, "run", *PLANNING, "--model", command.scenario(PLAN), "Go.") as host:
        host.wait_for(WAITS)
        person = AtTerminal(command, "attach")
        person.wait_for("approve this plan?")
        person.wait_for("Rebuild the roof.")
        time.sleep(TOO_SOON)  # an answer in the moment in which the question appears is none
        person.type("y\r")
        person.wait_for("approved by person")
        person.wait_for("its host has left the session")
        assert person.end() == 0
        assert (host.end().out) == "The answer came.\n"


def test_a_follower_is_told_when_its_host_was_killed(command: Command) -> None:
    with started(command, "run", *PLANNING, "--model", command.scenario(PLAN), "Go.") as host:
        host.wait_for(WAITS)
        with started(command, "attach") as follower:
            follower.wait_for("this screen follows it")
            host.signal(signal.SIGKILL)
            host.end()
            left = follower.end()
    assert left.code == 1
    assert f"process {host.pid}, which hosted the session, has died: `callboard resume" in left.err
    nobody = command.run_inline("attach")
    assert (nobody.code, nobody.out) == (2, "")
    assert "no process hosts session" in nobody.err


@pytest.mark.slow
def test_words_to_a_session_that_nobody_hosts_wait_for_who_resumes_it(command: Command) -> None:
    with started(command, "run", *PLANNING, "--model", command.scenario(PLAN), "Go.") as host:
        host.wait_for(WAITS)
        host.signal(signal.SIGTERM)
        assert host.end().code == 143
    sent = command.run("send", "-", stdin="Take slate.\n")
    assert (sent.code, "no process hosts it" in sent.out) == (0, True)
    assert command.run_inline("send", "--to", "bob", "Hello").code == 2
    assert command.run_inline("send", "Hello", CALLBOARD_TOOL="1").code == 2
    assert command.run_inline("approve", request_of(command)).code == 0
    ran = command.run("resume")
    assert (ran.code, ran.out) == (0, "Slate it is.\n"), ran.err


@pytest.mark.slow
def test_a_take_over_makes_the_host_leave_in_order_and_goes_on_where_it_was(command: Command) -> None:
    asked = ("run", *PLANNING, "--output-format", "json", "--model", command.scenario(PLAN), "Go.")
    with started(command, *asked) as host:
        host.wait_for(WAITS)
        request = request_of(command)
        assert command.run_inline("resume", "--force").code == 2, "--force requires --take-over"
        assert command.run_inline("run", "--take-over", "New.").code == 2, "a new session has no host to take over from"
        with started(command, "resume", "--take-over") as second:
            left = host.end()
            assert left.code == 3
            assert f"process {second.pid} takes over session" in left.err
            no_traceback(left)
            result = json.loads(left.out)
            assert [one["id"] for one in result["open"]["requests"]] == [request]
            assert result["total_cost_usd"] > 0
            assert result["metrics"]["agents"]["lead"]["token_usage"]["output"] > 0
            until(lambda: f'"pid":{second.pid},' in _lease(command), "the other one hosts it")
            assert command.run_inline("approve", request).code == 0
            ended = second.end()
    assert (ended.code, ended.out) == (0, "The answer came.\n"), ended.err


@pytest.mark.slow
def test_who_follows_a_session_follows_it_to_the_process_that_takes_over(command: Command) -> None:
    with started(command, "run", *PLANNING, "--model", command.scenario(PLAN), "Go.") as host:
        host.wait_for(WAITS)
        request = request_of(command)
        with started(command, "attach") as follower:
            follower.wait_for("this screen follows it")
            with started(command, "resume", "--take-over") as second:
                assert host.end().code == 3
                follower.wait_for(f"process {second.pid} takes over the session from process {host.pid}")
                assert command.run_inline("approve", request).code == 0
                ended, followed = second.end(), follower.end()
    assert (followed.code, followed.out) == (ended.code, ended.out) == (0, "The answer came.\n")
    no_traceback(followed)


@pytest.mark.slow
def test_a_host_that_hangs_is_killed_only_by_force(command: Command) -> None:
    with started(command, "run", *PLANNING, "--model", command.scenario(PLAN), "Go.") as host:
        host.wait_for(WAITS)
        request = request_of(command)
        host.signal(signal.SIGSTOP)
        asked = command.run_inline("resume", "--take-over", "--wait", "0.3")
        assert (asked.code, "has not left within 0.3 s" in asked.err) == (3, True), asked.err
        assert host.process.poll() is None
        assert command.run_inline("approve", request).code == 0
        forced = command.run("resume", "--take-over", "--force", "--wait", "0.3")
        assert (forced.code, forced.out) == (0, "The answer came.\n"), forced.err
        assert host.end().code == -signal.SIGKILL


@pytest.mark.slow
def test_a_host_whose_lease_is_gone_sees_the_next_one_and_leaves(command: Command) -> None:
    """Somebody removes the lock while the host lives: the next one gets a higher number, and the first must stop."""
    with started(command, "run", *PLANNING, "--model", command.scenario(PLAN), "Go.") as host:
        host.wait_for(WAITS)
        for lock in Path(command.env["XDG_STATE_HOME"]).rglob("leases/*.lock"):
            lock.unlink()
        with started(command, "resume") as second:
            left = host.end()
            assert left.code == 3
            assert f"process {second.pid} takes over session" in left.err
            no_traceback(left)
            assert command.run_inline("approve", request_of(command)).code == 0
            assert second.end().out == "The answer came.\n"


def _lease(command: Command) -> str:
    locks = Path(command.env["XDG_STATE_HOME"]).rglob("leases/*.lock")
    return "".join(lock.read_text() for lock in locks).replace(": ", ":").replace("}", ",}")


ESCALATED = """
agents:
  lead:
    - reply:
        - tool_use: {name: spawn_teammate, input: {name: bob, role: roofer, prompt: Plan it., plan_required: true}}
    - {otherwise: true, reply: I do not look at plans., repeat: forever}
  bob:
    - reply: [{tool_use: {name: submit_plan, input: {plan: Rebuild the roof.}}}]
    - {otherwise: true, reply: The answer came., repeat: forever}
"""


@pytest.mark.slow
def test_a_plan_that_its_lead_left_is_put_to_whoever_is_attached_to_a_headless_run(command: Command) -> None:
    settings = Path(command.env["XDG_CONFIG_HOME"]) / "callboard" / "settings.yaml"
    settings.parent.mkdir(parents=True)
    settings.write_text("plan: {approver: lead, deadline: 20, on_deadline: escalate}\n")
    with started(command, "run", "--model", command.scenario(ESCALATED), "Go.") as host:
        host.wait_for("waits for approval")
        person = AtTerminal(command, "attach")
        person.wait_for("this screen follows it")
        person.wait_for("approve this plan?")
        (request,) = json.loads(command.run_inline("plans", "--json").out)
        escalated = next(said for said in request["history"] if said["what"] == "escalated")
        assert escalated["reason"] == "put to the person"
        assert request["expires_at"] >= escalated["at"] + 20, "the person has a whole deadline"
        time.sleep(TOO_SOON)
        person.type("y\r")
        person.wait_for("approved by person")
        host.end()
        person.end()
    (after,) = json.loads(command.run_inline("plans", "--all", "--json").out)
    assert (after["status"], after["answered_by"]) == ("approved", "person")

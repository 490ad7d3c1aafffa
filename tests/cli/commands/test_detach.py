"""`run --detach` and serving hosts: who runs the session, and what becomes of it at the end of its host."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from tests.cli.commands.command import Command
from tests.simulation.processes import Running, until
from tests.simulation.serving import end, serve, stand_of

from callboard.core.keys import journal, queue_key
from callboard.ports.store_reading import records_of
from callboard.types.events import decode_event

SCENARIO = """
latency_ms: {latency}
agents:
  lead:
    - when: {{contains: Read it}}
      reply: [{{tool_use: {{name: read_file, input: {{path: note.txt}}}}}}]
    - when: {{contains: Run it}}
      reply: [{{tool_use: {{name: bash, input: {{command: touch begun; sleep 2; touch done}}}}}}]
    - when: {{contains: Ask me.}}
      reply: [{{tool_use: {{name: ask_person, input: {{question: May I?}}}}}}]
    - {{reply: Done as asked., repeat: forever}}
"""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    command = Command(tmp_path)
    (command.workspace / "note.txt").write_text("A note.\n")
    return command


@pytest.fixture
def hosts(command: Command) -> Iterator[list[Running]]:
    running: list[Running] = []
    yield running
    for host in running:
        end(host)


def detach(command: Command, prompt: str, *options: str, latency: int = 0) -> str:
    model = command.scenario(SCENARIO.format(latency=latency))
    ran = command.run("run", "--model", model, "--detach", *options, prompt)
    assert ran.code == 0, ran.err
    return ran.out.strip()


def sessions(command: Command) -> dict[str, int | None]:
    """Return session -> exit code."""
    return {row["id"]: row["exit_code"] for row in json.loads(command.run_inline("sessions", "--json").out)}


def events(command: Command, session: str) -> list[str]:
    """Return the kinds of the events in the lead's journal."""

    async def read() -> list[str]:
        async with stand_of(command) as stand:
            records = await records_of(stand.store, journal(session, "lead", 1))
            return [decode_event(record.data).t for record in records]

    return anyio.run(read)


def test_a_detached_session_waits_for_a_host_and_each_new_prompt_gets_one(
    command: Command, hosts: list[Running]
) -> None:
    ran = command.run("run", "--model", command.scenario(SCENARIO.format(latency=1_000)), "--detach", "Hello.")
    session = ran.out.strip()
    assert "start one with `callboard serve`" in ran.err
    assert "waits for a host" in command.run_inline("team").out
    assert sessions(command) == {session: None}
    assert events(command, session) == [], "no agent has begun"
    hosts.append(serve(command))
    hosts[0].wait_for("its work is done, exit code 0")
    assert sessions(command) == {session: 0}
    sent = command.run("send", "--session", session, "Once more.")
    assert "a serving host is about to take it" in sent.out or "hosts the session" in sent.out
    until(lambda: hosts[0].said().count("its work is done") == 2, "the second prompt is answered")
    assert events(command, session).count("turn_ended") == 2


def test_a_session_that_asked_a_question_is_hosted_until_the_answer(command: Command, hosts: list[Running]) -> None:
    session = detach(command, "Ask me.")
    hosts.append(serve(command))
    hosts[0].wait_for("of lead waits for you until")
    (question,) = json.loads(command.run_inline("plans", "--json", "--session", session).out)
    assert sessions(command) == {session: None}
    answered = command.run("answer", "--session", session, question["id"], "You may.")
    assert answered.code == 0, answered.err
    hosts[0].wait_for("its work is done, exit code 0")
    said = hosts[0].said()
    assert f"question {question['id']} of lead is answered by person: You may." in said
    assert said.index("is answered") < said.index("left")
    assert events(command, session).count("turn_ended") == 2


def test_a_detached_session_with_an_open_task_has_failed(command: Command, hosts: list[Running]) -> None:
    scenario = """
agents:
  lead:
    - {reply: [{tool_use: {name: create_task, input: {subject: Mend the roof}}}]}
    - {reply: Done., repeat: forever}
"""
    ran = command.run_inline("run", "--model", command.scenario(scenario), "--detach", "Hello.")
    hosts.append(serve(command))
    hosts[0].wait_for("it ended with exit code 1: 1 task is not finished: task_")
    assert sessions(command) == {ran.out.strip(): 1}


def test_a_session_waits_for_a_host_with_its_labels(command: Command, hosts: list[Running]) -> None:
    command.scenario(SCENARIO.format(latency=0))
    hosts.append(serve(command))
    session = detach(command, "Hello.", "--placement", "gpu=a100")
    assert "gpu=a100" in command.run_inline("team").out
    (waiting,) = json.loads(command.run_inline("hosts", "--json").out)["waiting"]
    assert waiting["session"] == session
    hosts.append(serve(command, "--label", "gpu=a100"))
    hosts[1].wait_for("its work is done")
    assert session not in hosts[0].said()


def test_a_host_that_ends_hands_its_session_over_after_the_step(command: Command, hosts: list[Running]) -> None:
    command.scenario(SCENARIO.format(latency=0))
    hosts.append(serve(command))
    session = detach(command, "Run it.", "--permission-mode", "bypassPermissions")
    until((command.workspace / "begun").exists, "the command runs")
    hosts[0].signal(signal.SIGTERM)
    ended = hosts[0].end()
    assert ended.code == 143
    assert "handed over" in ended.err
    assert (command.workspace / "done").exists(), "the step was not cut off"
    assert events(command, session).count("model_replied") == 1, "no further step has begun"
    hosts.append(serve(command))
    hosts[1].wait_for("its work is done, exit code 0")
    assert events(command, session).count("model_replied") == 2


def test_a_host_that_is_drained_stays_and_takes_no_session(command: Command, hosts: list[Running]) -> None:
    command.scenario(SCENARIO.format(latency=0))
    hosts.append(serve(command))
    hosts[0].wait_for("serving")
    name = json.loads(command.run_inline("hosts", "--json").out)["hosts"][0]["name"]
    drained = command.run("hosts", "drain", name)
    assert drained.code == 0, drained.err
    until(lambda: "draining" in command.run_inline("hosts").out, "the host has taken the order")
    session = detach(command, "Hello.")
    assert "draining" in command.run_inline("team").out
    hosts.append(serve(command))
    hosts[1].wait_for("its work is done")
    command.run("hosts", "drain", "--undo", name)
    until(lambda: "draining" not in command.run_inline("hosts").out, "the host has taken the order back")
    assert session not in hosts[0].said()


async def _queued(command: Command) -> int:
    async with stand_of(command) as stand:
        return len(await stand.store.keys(queue_key()))


def test_a_host_that_is_killed_is_replaced(command: Command, hosts: list[Running]) -> None:
    command.scenario(SCENARIO.format(latency=0))
    hosts.append(serve(command))
    session = detach(command, "Read it.", latency=1_000)
    hosts[0].wait_for(f"hosting  {session}")
    hosts.append(serve(command))
    hosts[0].signal(signal.SIGKILL)
    hosts[1].wait_for("its work is done, exit code 0")
    assert anyio.run(_queued, command) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [(("-c",), "callboard send"), (("--with-schedules",), "--with-schedules has no effect with --detach")],
)
def test_options_that_need_this_process_are_refused(command: Command, options: tuple[str, ...], message: str) -> None:
    ran = command.run_inline("run", "--detach", *options, "Hello.")
    assert ran.code == 2
    assert message in ran.err

"""A plan that waits at one terminal is answered from another process: first, at once, after a kill, of another text."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.cli.commands.command import Command, CommandResult
from tests.simulation.processes import LIMIT, AtTerminal, started
from tests.warm import Process

from callboard.adapters.storage.sqlite import open_store
from callboard.core.approvals.requests import digest_of
from callboard.ports.store import Put
from callboard.types.records import Request

PLAN = """
agents:
  lead:
    - reply: [{tool_use: {name: submit_plan, input: {plan: Rebuild the roof.}}}]
    - when: {contains: the approval is void}
      reply: It was void.
    - when: {contains: status="approved"}
      reply: It was approved.
    - when: {contains: status="rejected"}
      reply: It was rejected.
"""
PLANNING = ("--permission-mode", "plan")
ASKED = "approve this plan?"


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


def waiting(command: Command) -> dict[str, Any]:
    """The one request that waits."""
    (request,) = json.loads(command.run_inline("plans", "--json").out)
    return request


def row(command: Command, request_id: str) -> dict[str, Any]:
    """A request as it stands."""
    return json.loads(command.run_inline("show", request_id, "--json").out)


@contextmanager
def at_terminal(command: Command, *args: str) -> Generator[AtTerminal]:
    """A person at a terminal where a plan is asked for; that ends well."""
    terminal = AtTerminal(command, *(args or ("run", *PLANNING, "--model", command.scenario(PLAN), "Go.")))
    try:
        terminal.wait_for(ASKED)
        yield terminal
        assert terminal.end() == 0
    finally:
        if terminal.process.poll() is None:
            terminal.process.kill()
            terminal.process.wait(LIMIT)


async def change(command: Command, request_id: str, update: Callable[[Request], Request]) -> None:
    """Write a request's row anew, beside its host."""
    (database,) = Path(command.env["XDG_STATE_HOME"]).rglob("callboard.db")
    store = await open_store(database.parent)
    (found,) = [one for one in await store.keys("s/") if one.key.endswith(request_id)]
    changed = update(Request.model_validate_json(found.value or b""))
    await store.commit(Put(found.key, changed.encode(), expected=found.revision))
    await store.aclose()


# One first


def test_the_prompt_goes_away_with_a_line_that_says_who_answered_elsewhere(command: Command) -> None:
    with at_terminal(command) as terminal:
        request = waiting(command)
        assert command.run("approve", request["id"][:9], "--why", "Go on.").code == 0
        terminal.wait_for(f"(answered elsewhere: {request['id']} approved by person)")
        terminal.wait_for("It was approved.")


def test_an_edit_from_another_process_is_what_the_first_goes_on_with(command: Command) -> None:
    cassette = command.workspace.parent / "run.cassette"
    line = ("run", *PLANNING, "--record", str(cassette), "--model", command.scenario(PLAN), "Go.")
    with at_terminal(command, *line) as terminal:
        request = waiting(command)
        assert command.run("edit", request["id"], stdin="Mend the roof.\n").code == 0
        terminal.wait_for("answered elsewhere")
        terminal.wait_for("It was approved.")
        after = row(command, request["id"])
        assert (after["status"], after["payload"]["plan"], after["revision"]) == ("approved", "Mend the roof.", 2)
        assert after["edit"].splitlines()[-2:] == ["-Rebuild the roof.", "+Mend the roof."]
    replayed = command.run_inline("run", *PLANNING, "--model", f"cassette:{cassette}", "Go.")
    assert (replayed.code, replayed.out) == (0, "It was approved.\n"), replayed.err


# Both at once


def test_who_types_while_another_process_answers_counts_or_is_told_who_was_first(command: Command) -> None:
    at_once(command, pause=0.0)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_who_types_at_whatever_moment_counts_or_is_told_who_was_first(command: Command, seed: int, soak: int) -> None:
    at_once(command, pause=random.Random(seed + 100 * soak).uniform(0, 1.5))


def at_once(command: Command, pause: float) -> None:
    """One types no, and another process says yes, begun at the same moment. `pause`: seconds that a typist takes."""
    with at_terminal(command) as terminal:
        request = waiting(command)["id"]
        other = command.start("approve", request)
        time.sleep(pause)
        terminal.type("n too dear\n")
        _, told = other.communicate(timeout=LIMIT)
        status = row(command, request)["status"]
        terminal.wait_for(f"It was {status}.")
        if status == "approved":
            assert other.returncode == 0
            told_so = "(answered elsewhere: {} approved by", "your answer did not count: {} is approved by"
            assert any(words.format(request) in terminal.shown for words in told_so)
        else:
            assert (other.returncode, f"{request} is rejected by person already" in told) == (2, True)
        words = [one["what"] for one in row(command, request)["history"]]
        assert words.count("approved") + words.count("rejected") == 1


def test_of_two_processes_that_answer_at_once_one_counts_and_the_other_is_told(command: Command) -> None:
    race(command, rounds=1)


@pytest.mark.soak
def test_of_two_processes_that_answer_again_and_again_one_counts_each_time(command: Command, soak: int) -> None:
    race(command, rounds=20 * soak)


def race(command: Command, rounds: int) -> None:
    """A yes and a no at once, run after run: each plan has one answer, and the loser reads which."""
    model = command.scenario(PLAN)
    for _ in range(rounds):
        with started(command, "run", *PLANNING, "--model", model, "Go.") as host:
            host.wait_for("waits for approval")
            request = waiting(command)["id"]
            lines = (("approve", request), ("reject", request, "--why", "too dear"))
            both = [command.start(*line) for line in lines]
            said = [ended_of(process) for process in both]
            assert sorted(ran.code for ran in said) == [0, 2], said
            status = "approved" if said[0].code == 0 else "rejected"
            lost = next(ran for ran in said if ran.code == 2)
            assert f"{request} is {status} by person already" in lost.err
            assert row(command, request)["status"] == status
            ended = host.end()
        assert (ended.code, ended.out) == (0, f"It was {status}.\n")


def ended_of(process: Process) -> CommandResult:
    """Code, stdout and stderr at its end."""
    out, err = process.communicate(timeout=LIMIT)
    return CommandResult(process.returncode, out, err)


# After a kill


def test_a_plan_outlives_kill_9_with_its_deadline_and_is_asked_again(command: Command) -> None:
    with started(command, "run", *PLANNING, "--model", command.scenario(PLAN), "Go.") as host:
        host.wait_for("waits for approval")
        before = waiting(command)
        host.signal(signal.SIGKILL)
        host.end()
    assert waiting(command) == before, "its deadline too"
    with at_terminal(command, "resume") as terminal:
        assert waiting(command) == before
        assert command.run_inline("approve", before["id"]).code == 0
        terminal.wait_for("answered elsewhere")
        terminal.wait_for("It was approved.")


@pytest.mark.soak
def test_a_plan_that_is_answered_while_nobody_hosts_is_carried_out_by_the_next_process(command: Command) -> None:
    with started(command, "run", *PLANNING, "--model", command.scenario(PLAN), "Go.") as host:
        host.wait_for("waits for approval")
        host.signal(signal.SIGKILL)
        host.end()
    assert command.run_inline("approve", waiting(command)["id"]).code == 0
    ended = command.run("resume")
    assert (ended.code, ended.out) == (0, "It was approved.\n"), ended.err


# Of another text


def test_an_approval_of_a_text_that_changed_is_void(command: Command) -> None:
    def tampered(request: Request) -> Request:
        return request.model_copy(update={"payload": {**request.payload, "plan": "Burn the house down."}})

    def forged(request: Request) -> Request:
        return request.model_copy(update={"digest": digest_of("plan", request.payload)})

    with at_terminal(command) as terminal:
        before = waiting(command)
        anyio.run(change, command, before["id"], tampered)
        refused = command.run_inline("approve", before["id"])
        assert (refused.code, refused.out) == (2, "")
        assert "its content has changed" in refused.err
        anyio.run(change, command, before["id"], forged)
        terminal.wait_for("(its content has changed)")
        terminal.wait_for("Burn the house down.")
        stale = command.run_inline("approve", before["id"], "--digest", before["digest"][:12])
        assert (stale.code, "its content has changed" in stale.err) == (2, True)
        assert waiting(command)["id"] == before["id"], "nothing was approved"
        assert command.run_inline("approve", before["id"]).code == 0
        terminal.wait_for("It was void.")

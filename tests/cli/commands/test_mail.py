"""`inbox` and `trace`: a team's messages and their outcome, for people and scripts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands.command import Command

from callboard.cli.views.mail import inbox_table, to_show, trace_block
from callboard.core.reports.receipts import EnvelopeTrace, Receipt
from callboard.types.records import Envelope

TEAM = """
agents:
  lead:
    - reply:
        - tool_use: {name: spawn_teammate, input: {name: alice, role: worker, prompt: count the files}}
    - reply: waiting
    - when: {contains: three files}
      reply:
        - tool_use: {name: request_shutdown, input: {teammate: alice}}
    - reply: all done
      repeat: forever
  alice:
    - reply:
        - tool_use: {name: report, input: {status: done, result: three files}}
    - when: {contains: You are asked to stop}
      reply: I stop.
"""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


def inbox_of(command: Command, *args: str) -> list[dict[str, Any]]:
    return json.loads(command.run_inline("inbox", *args, "--json").out)


@pytest.mark.slow
def test_mail_and_its_tree_for_people_and_scripts(command: Command) -> None:
    assert command.run_inline("run", "--model", command.scenario(TEAM), "How many?").code == 0
    everything = inbox_of(command, "--all")
    kinds = {one["envelope"]["type"]: one for one in everything}
    assert set(kinds) == {"prompt", "message", "result", "shutdown_request", "shutdown_response"}
    assert {one["state"] for one in everything} == {"handled"}
    assert inbox_of(command) == []
    assert command.run_inline("inbox").out == "no mail waits\n"
    assert {one["envelope"]["recipient"] for one in inbox_of(command, "alice", "--all")} == {"alice"}
    assert "count the files" in command.run_inline("inbox", "alice", "--all").out
    _check_trace(command, {kind: one["envelope"]["id"] for kind, one in kinds.items()})
    wrong = command.run_inline("inbox", "carol")
    assert (wrong.code, "choose lead or alice" in wrong.err) == (2, True)


def _check_trace(command: Command, ids: dict[str, str]) -> None:
    found = json.loads(command.run_inline("trace", ids["message"].removeprefix("env_")[:9], "--json").out)
    assert [one["envelope"]["id"] for one in found["path"]] == [ids["prompt"], ids["message"]]
    below = [(one["depth"], one["envelope"]["type"]) for one in found["caused"]]
    assert below == [(1, "result"), (2, "shutdown_request"), (3, "shutdown_response")]
    lines = command.run_inline("trace", ids["shutdown_response"]).out.splitlines()
    heads = [line for line in lines if "env_" in line]
    assert [len(line) - len(line.lstrip()) for line in heads] == [0, 2, 4, 6, 8]
    assert heads[1].lstrip().startswith(f"{ids['message']}  lead -> alice  message  handled, sent ")
    assert "    count the files" in lines
    unknown = command.run_inline("trace", "env_zzzz")
    assert (unknown.code, "unknown envelope 'env_zzzz' of session" in unknown.err) == (2, True)
    several = command.run_inline("trace", "env_")
    assert (several.code, "fits 5 envelopes" in several.err) == (2, True)


def receipt(id: str, **more: Any) -> Receipt:
    about: dict[str, Any] = {"id": id, "sender": "lead", "recipient": "alice", "type": "message", "sent_at": 1.0}
    return Receipt(Envelope.model_validate({**about, **more.pop("about", {})}), **more)


def test_what_waits_is_under_way_or_dead_is_shown_and_the_rest_when_asked_for() -> None:
    every = [receipt(state, state=state) for state in ("sent", "received", "delivered", "handled", "dropped", "dead")]
    assert [one.state for one in to_show(every, everything=False)] == ["sent", "received", "delivered", "dead"]
    assert to_show(every, everything=True) == every


def test_why_an_envelope_was_never_read_is_told() -> None:
    dead = receipt("env_a", state="dead", ended_at=5.0, why="the life of its recipient was over")
    assert "over" in inbox_table([dead]).lines[1].text
    shown = [line.text for line in trace_block(EnvelopeTrace((dead,), ())).lines]
    assert shown[-1] == "  dead: the life of its recipient was over"


def test_a_tree_says_what_it_does_not_hold() -> None:
    joined = receipt("env_b", state="handled", began="env_a", about={"caused_by": "env_gone"})
    shown = [line.text for line in trace_block(EnvelopeTrace((joined,), ())).lines]
    assert shown[0] == "(it was caused by env_gone, which is not an envelope of this session)"
    assert shown[-1] == "  read in the turn that env_a began: what it sent is listed there"

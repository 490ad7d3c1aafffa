"""A headless run reports its open work when it ends, and fails if tasks are unfinished."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.cli.commands.command import Command


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


@dataclass(frozen=True)
class Case:
    """Calls of the lead in order, the exit code, lines of stderr, and the counts of `open` in the JSON by kind."""

    calls: tuple[str, ...]
    code: int
    lines: tuple[str, ...]
    counts: dict[str, int]


CREATE = "{name: create_task, input: {subject: Write the parser}}"
CASES = {
    "clean": Case((), 0, (), {}),
    "an open task": Case(
        (CREATE,), 1, ("callboard: 1 task is not finished: task_", "[pending] Write the parser"), {"tasks": 1}
    ),
    "a denied call": Case(
        ("{name: bash, input: {command: sudo rm -rf /}}",),
        0,
        ("lead: denied: bash sudo rm -rf /: ",),
        {"denied_calls": 1},
    ),
    "both": Case(
        (CREATE, "{name: bash, input: {command: sudo id}}"),
        1,
        ("1 task is not", "lead: denied: bash sudo id: "),
        {"tasks": 1, "denied_calls": 1},
    ),
}


def scenario(calls: tuple[str, ...]) -> str:
    steps = [f"{{reply: [{{tool_use: {call}}}]}}" for call in calls]
    return f"agents: {{lead: [{', '.join([*steps, '{reply: All is said.}'])}]}}"


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_run_says_what_is_still_open_and_fails_for_open_tasks(case: Case, command: Command) -> None:
    model = command.scenario(scenario(case.calls))
    ran = command.run("run", "--model", model, "Go.")
    assert (ran.code, ran.out) == (case.code, "All is said.\n"), ran.err
    assert all(line in ran.err for line in case.lines), ran.err
    assert ("still open:" in ran.err) is ("tasks" in case.counts)
    assert ran.err.count("denied: ") == case.counts.get("denied_calls", 0), "each has one line"
    ran = command.run("run", "--output-format", "json", "--model", model, "Go.")
    result = json.loads(ran.out)
    assert (result["exit_code"], ran.code, result["result"]) == (case.code, case.code, "All is said.")
    assert {kind: len(rows) for kind, rows in result["open"].items() if rows} == case.counts
    assert set(result["open"]) == {"tasks", "requests", "agents", "worktrees", "denied_calls", "stopped_commands"}


def test_a_call_that_does_not_fit_its_schema_has_one_line(command: Command) -> None:
    calls = ("{name: read_file, input: {pth: a.txt}}",)
    ran = command.run_inline("run", "--model", command.scenario(scenario(calls)), "Go.")
    (line,) = [line for line in ran.err.splitlines() if "denied: " in line]
    assert line.startswith("lead: denied: read_file ")
    assert "lacks the required field `path` (schema). The model sees this" in line
    assert ran.code == 0


PLANNER = """
agents:
  lead:
    - reply: [{tool_use: {name: create_task, input: {subject: Write the parser}}}]
    - reply: [{tool_use: {name: bash, input: {command: sudo id}}}]
    - reply:
        - tool_use: {name: spawn_teammate, input: {name: bob, role: planner, prompt: Plan it, plan_required: true}}
    - otherwise: true
      latency_ms: 60000
      reply: Too late.
  bob:
    - reply: [{tool_use: {name: submit_plan, input: {plan: I write a parser.}}}]
    - otherwise: true
      latency_ms: 60000
      reply: Too late.
"""
LEAVING = {"json": (signal.SIGTERM, 143), "stream-json": (signal.SIGHUP, 129), "text": (signal.SIGINT, 130)}


@pytest.mark.slow
@pytest.mark.parametrize(("output", "sent"), LEAVING.items(), ids=LEAVING)
def test_a_run_that_a_signal_ends_says_what_is_still_open(
    output: str, sent: tuple[signal.Signals, int], command: Command
) -> None:
    line = ("run", "-v", "--model", command.scenario(PLANNER), "--output-format", output, "Go.")
    running = command.start(*line)
    assert running.stderr is not None
    seen = list[str]()
    while not any("plan" in one and "bob" in one and "req_" in one for one in seen):
        seen.append(running.stderr.readline())
        assert seen[-1], seen
    running.send_signal(sent[0])
    if sent[0] == signal.SIGINT:
        running.send_signal(sent[0])
    out, err = running.communicate(timeout=180)
    assert running.returncode == sent[1], err
    assert "[pending] Write the parser" in err
    assert "waits for an answer (plan of bob)" in err
    assert err.count("still open:") == 1
    if output == "text":
        assert out == ""
        return
    result = json.loads(out.splitlines()[-1])
    counts = {kind: len(rows) for kind, rows in result["open"].items() if rows}
    assert counts == {"tasks": 1, "requests": 1, "agents": 1, "denied_calls": 1}
    assert (result["exit_code"], result["errors"]) == (
        sent[1],
        [{129: "the terminal was closed", 143: "ended by SIGTERM"}.get(sent[1], "ended by Ctrl-C")],
    )

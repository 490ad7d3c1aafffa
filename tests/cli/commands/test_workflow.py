"""`callboard workflow run`: exit codes, the end of its session, and values that JSON cannot express."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.commands.command import Command

FLOWS = """
from callboard import Workflow, workflow
from callboard.sdk.errors import AnswerNeeded

@workflow
async def agent(flow: Workflow) -> str:
    return await flow.agent("general", "Go.")

@workflow
async def poor(flow: Workflow) -> str:
    return await flow.agent("general", "Go.", budget=0.0000001)

@workflow
async def both(flow: Workflow) -> tuple[str, str]:
    return await flow.parallel(flow.agent("general", "Go."), flow.agent("general", "Go, too."))

@workflow
async def asks(flow: Workflow) -> str:
    return await flow.ask_person("Who?")

@workflow
async def copes(flow: Workflow) -> str:
    try:
        return await flow.ask_person("Who?", seconds=0.01)
    except AnswerNeeded:
        return "nobody"

@workflow
async def broken(flow: Workflow) -> str:
    raise OSError("no such thing")

@workflow
async def number(flow: Workflow, value: float) -> float:
    return value / 1e-300

@workflow
async def untyped(flow: Workflow) -> dict:
    return {"inner": [float("nan")]}
"""
FINE = "agents: {'*': [{otherwise: true, reply: Fine.}]}"
LOOKS = "agents: {'*': [{repeat: forever, reply: [{tool_use: {name: read_file, input: {path: x}}}]}]}"
NO_KEY = "agents: {'*': [{reply: No., fault: {status: 401, times: 99}}]}"
AWAY = "agents: {'*': [{reply: No., fault: {status: 500, times: 999}}]}"
REFUSED = "agents: {'*': [{reply: No., fault: {status: 400, message: 'no good', times: 99}}]}"
DENIED = (
    "agents: {'*': [{reply: [{tool_use: {name: bash, input: {command: touch x}}}]}, {otherwise: true, reply: No.}]}"
)


@pytest.fixture
def command(tmp_path: Path) -> Command:
    made = Command(tmp_path)
    (made.workspace / "some_flows.py").write_text(FLOWS)
    return made


def state_of_session(command: Command) -> tuple[str, int | None]:
    (session,) = json.loads(command.run_inline("sessions", "--json").out)
    return session["state"], session["exit_code"]


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize(
    ("name", "scenario", "code"),
    [
        ("agent", LOOKS, 5),
        ("poor", FINE, 5),
        ("both", LOOKS, 5),
        ("agent", NO_KEY, 3),
        ("agent", AWAY, 6),
        ("agent", REFUSED, 1),
        ("asks", FINE, 4),
        ("broken", FINE, 1),
    ],
)
def test_a_failed_workflow_has_the_exit_code_of_a_run_and_its_session_ends(
    name: str, scenario: str, code: int, command: Command
) -> None:
    env = {"CALLBOARD_RECOVERY__UNATTENDED_ATTEMPTS": "1"}
    ran = command.run_inline("workflow", "run", f"some_flows.py:{name}", "--model", command.scenario(scenario), **env)
    assert (ran.code, ran.out) == (code, ""), ran.err
    assert "continues it" in ran.err
    assert state_of_session(command)[1] == code


def test_a_workflow_that_has_its_result_ends_its_session(command: Command) -> None:
    ran = command.run_inline("workflow", "run", "some_flows.py:agent", "--model", command.scenario(FINE))
    assert (ran.code, ran.out) == (0, "Fine.\n"), ran.err
    assert state_of_session(command)[1] == 0


def test_a_permission_that_nobody_could_give_is_told_with_its_exit_code(command: Command) -> None:
    ran = command.run_inline("workflow", "run", "some_flows.py:agent", "--model", command.scenario(DENIED))
    assert (ran.code, ran.out) == (4, "No.\n"), ran.err
    assert "--allowed-tools 'Bash(touch x)'" in ran.err
    assert state_of_session(command)[1] == 4


def test_a_question_that_the_workflow_itself_gave_up_is_no_failure(command: Command) -> None:
    ran = command.run_inline("workflow", "run", "some_flows.py:copes", "--model", command.scenario(FINE))
    assert (ran.code, ran.out) == (0, "nobody\n"), ran.err


@pytest.mark.parametrize(
    "args",
    [["number", "--arg", "value=NaN"], ["number", "--arg", "value=1e300"], ["untyped"]],
    ids=["argument", "result", "inside"],
)
def test_values_that_json_cannot_express_are_refused(args: list[str], command: Command) -> None:
    name, *more = args
    model = command.scenario(FINE)
    ran = command.run_inline("workflow", "run", f"some_flows.py:{name}", *more, "--json", "--model", model)
    assert (ran.code, ran.out) == (2, "")
    assert "NaN and infinity cannot be expressed in JSON" in ran.err


def test_a_module_that_cannot_be_imported_is_named_with_the_line_of_the_users_file(
    command: Command, tmp_path: Path
) -> None:
    sources = {
        "missing": "\nimport nosuch_module\n",
        "syntax": "def x(:\n",
        "inside": "import json\n\njson.loads('?')\n",
        "neighbour": "import missing\n",
    }
    for name, source in sources.items():
        (tmp_path / f"{name}.py").write_text(source)
    ends = {
        "nosuch": "there is no module 'nosuch': write FILE.py:NAME, or module:NAME",
        "nosuch.inner:flow": "there is no module 'nosuch.inner': write FILE.py:NAME, or module:NAME",
        f"{tmp_path}/missing.py": f"No module named 'nosuch_module' ({tmp_path}/missing.py:2)",
        f"{tmp_path}/syntax.py:x": f"SyntaxError: invalid syntax ({tmp_path}/syntax.py:1)",
        f"{tmp_path}/inside.py": f"(char 0) ({tmp_path}/inside.py:3)",
        f"{tmp_path}/neighbour.py": f"No module named 'nosuch_module' ({tmp_path}/missing.py:2)",
    }
    for place, end in ends.items():
        ran = command.run("workflow", "run", place)
        assert (ran.code, ran.err.strip().endswith(end)) == (2, True), ran.err

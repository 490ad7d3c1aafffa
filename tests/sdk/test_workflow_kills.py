"""A workflow that is killed (SIGKILL) again and again continues each time, and repeats no completed work."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.warm import STDERR, Process

CHILD = Path(__file__).with_name("flow_child.py")
SCENARIO = """\
agents:
  looker*:
    - when: {contains: "Touch one"}
      reply: [{tool_use: {name: touch, input: {what: one}}}]
    - when: {contains: "Touch two"}
      reply: [{tool_use: {name: touch, input: {what: two}}}]
    - when: {result_of: touch}
      reply: seen
"""
KILLS = ("count", "between", "touch one", "touch two", "ask", "end")


def run(folder: Path, point: str, *redo: str) -> tuple[int, dict[str, Any]]:
    home = {f"XDG_{name}_HOME": str(folder / name) for name in ("STATE", "DATA", "CONFIG", "CACHE")}
    env = {"PATH": os.environ["PATH"], "HOME": str(folder / "home"), **home}
    child = Process([str(CHILD), str(folder / "work"), point, *redo], folder, env, stderr=STDERR)
    told, _ = child.communicate(timeout=180)
    return child.returncode, json.loads(told) if told.strip() else {}


def prepare(folder: Path) -> Path:
    work = folder / "work"
    work.mkdir(parents=True)
    (work / "looker.yaml").write_text(SCENARIO)
    return work


@pytest.mark.slow
def test_a_workflow_that_is_killed_at_every_point_goes_on_and_repeats_nothing(tmp_path: Path) -> None:
    work = prepare(tmp_path)
    for point in KILLS:
        code, told = run(tmp_path, point)
        assert (point, code, told) == (point, -9, {}), "the point was not reached"
    code, told = run(tmp_path, "never")
    assert code == 0
    result = told["result"]
    assert result[:-1] == ["3", "paid 5", "seen", "seen", "Ann"]
    assert told["agents"] == ["lead", "subagent", "subagent"], "an agent was created again"
    did = (work / "did.txt").read_text().splitlines()
    assert did.count("count") == 2, "after a kill inside, it may run again, but never later"
    assert did.count("pay 5") == did.count("touch one") == did.count("touch two") == 1


def test_a_step_that_was_cut_off_is_never_run_again_unasked(tmp_path: Path) -> None:
    work = prepare(tmp_path)
    assert run(tmp_path, "pay") == (-9, {})
    code, told = run(tmp_path, "never")
    assert (code, told["unknown"]) == (0, "step#2")
    assert "--redo 'step#2'" in told["why"]
    assert (work / "did.txt").read_text().splitlines().count("pay 5") == 1
    code, told = run(tmp_path, "never", told["unknown"])
    assert told["result"][1] == "paid 5"
    assert (work / "did.txt").read_text().splitlines().count("pay 5") == 2

"""The demo: its sample, its scenario, and its output for a person."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import cast

import pytest
from tests.warm import Process

from callboard.adapters.models.rehearsal.scenario_file import load_scenario, validate
from callboard.cli.commands.demo import prepare, project_folder, run_tests
from callboard.core.tool_access import ALL_TOOLS
from callboard.types.errors import UsageError

DATA = Path(str(files("callboard") / "data"))


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    with as_file(files("callboard") / "data" / "sample") as source:
        return Path(shutil.copytree(source, tmp_path / "sample"))


def unittest_in(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "unittest", *more]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def edits_of_the_scenario() -> dict[str, dict[str, str]]:
    """Return the input of the call that changes each file, by path."""
    found: dict[str, dict[str, str]] = {}
    for _, steps in load_scenario(DATA / "demo.yaml").agents:
        for block in (block for step in steps for block in step.reply.blocks):
            if block.get("name") in ("edit_file", "write_file"):
                given = cast("dict[str, str]", block["input"])
                found[given["path"]] = given
    return found


def test_the_sample_has_two_failing_tests_and_a_missing_function(sample: Path) -> None:
    ran = unittest_in(sample)
    assert ran.returncode == 1
    assert "FAILED (failures=2, errors=2)" in ran.stderr
    assert "module 'tally.report' has no attribute 'summary'" in ran.stderr


def test_the_changes_of_the_scenario_make_the_samples_tests_pass(sample: Path) -> None:
    edits = edits_of_the_scenario()
    assert sorted(edits) == ["tally/amounts.py", "tally/money.py", "tally/report.py"]
    for path, given in edits.items():
        old = (sample / path).read_text()
        assert "content" in given or old.count(given["old_text"]) == 1, path
        new = given["content"] if "content" in given else old.replace(given["old_text"], given["new_text"])
        (sample / path).write_text(new)
    assert unittest_in(sample).returncode == 0


@pytest.mark.parametrize("kept", ["tally/amounts.py", "tally/money.py", "tally/report.py"])
def test_no_change_of_the_scenario_can_be_spared(sample: Path, kept: str) -> None:
    for path, given in edits_of_the_scenario().items():
        if path != kept:
            old = (sample / path).read_text()
            new = given["content"] if "content" in given else old.replace(given["old_text"], given["new_text"])
            (sample / path).write_text(new)
    assert unittest_in(sample).returncode != 0


def test_the_ledger_is_too_large_to_be_kept_whole_and_fits_one_read(sample: Path) -> None:
    subprocess.run([sys.executable, "tools/ledger.py"], cwd=sample, check=True, capture_output=True)
    text = (sample / "build" / "ledger.log").read_text()
    assert 200_000 < len(text) < 250_000
    assert len(text.splitlines()) <= 2_000


def test_a_change_noted_twice_shows(sample: Path) -> None:
    for _ in range(2):
        subprocess.run([sys.executable, "tools/note.py", "split", "once"], cwd=sample, check=True, capture_output=True)
    assert (sample / "changes" / "split.md").read_text() == "- once\n- once\n"


def test_the_scenario_has_no_mistake_and_calls_only_tools_that_there_are() -> None:
    assert validate(DATA / "demo.yaml") == []
    scenario = load_scenario(DATA / "demo.yaml")
    called = {
        cast("str", block["name"])
        for _, steps in scenario.agents
        for step in steps
        for block in step.reply.blocks
        if block["type"] == "tool_use"
    }
    assert called <= ALL_TOOLS


def test_every_agent_of_the_scenario_can_find_its_way_back_from_anything() -> None:
    """Each agent has a step for any situation, and only the first one is used up: any call may be repeated."""
    for agent, steps in load_scenario(DATA / "demo.yaml").agents:
        assert any(step.otherwise for step in steps), agent
        assert all(step.repeat is None for step in steps if not step.reply.faults), agent


# Output for a person


@dataclass(frozen=True)
class DemoRun:
    """A demo at a terminal."""

    home: Path
    code: int
    output: str

    @property
    def project(self) -> Path:
        return next(self.home.glob("callboard-demo-*")) / "tally"


def environment_in(home: Path) -> dict[str, str]:
    """Return an environment without this machine's user, keys, and colors."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home), "NO_COLOR": "1"}
    return environment | {f"XDG_{name}_HOME": str(home / name.lower()) for name in ("STATE", "DATA", "CONFIG")}


def at_a_terminal(home: Path, arguments: Sequence[str], answers: Sequence[str]) -> tuple[int, str]:
    """Run the command line on its own terminal, and type an answer to each plan when it is requested.

    Nothing is typed at the question that follows a bare `n`. Output of agents moves the prompt down and shows it
    again, so only a new request counts as a new question.
    """
    waiting, said, asked, refused = list(answers), b"", 0, 0
    ours, theirs = pty.openpty()
    process = Process(
        ["-m", "callboard", *arguments],
        home,
        environment_in(home),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        new_session=True,
    )
    os.close(theirs)
    while select.select([ours], [], [], 60)[0]:
        try:
            said += os.read(ours, 65_536)
        except OSError:  # the other end is closed: it has ended, or is about to
            process.wait(180)
            break
        plans = list(re.finditer(rb"plan (req_\w+) waits for approval", said))
        if waiting and len(plans) > asked and b"]> " in said[plans[asked].end() :]:
            asked += 1
            refused = len(said) if waiting[0] == "n" else 0
            os.write(ours, waiting.pop(0).encode() + b"\n")
        if refused and b"what should change?> " in said[refused:]:
            refused = 0
            os.write(ours, b"\n")
    os.close(ours)
    process.kill()  # no effect if it has ended; a silent minute means that it hangs
    return process.wait(), said.decode(errors="replace").replace("\r\n", "\n")


@pytest.fixture(scope="module")
def demo_run(tmp_path_factory: pytest.TempPathFactory) -> DemoRun:
    """Run a demo whose plan is rejected twice: with a reason, and without."""
    home = tmp_path_factory.mktemp("home")
    answers = ["n name the risk first", "n", "y"]
    return DemoRun(home, *at_a_terminal(home, ["demo", "--keep"], answers))


def test_a_person_may_refuse_the_plan_and_gets_a_revised_one(demo_run: DemoRun) -> None:
    assert demo_run.code == 0, demo_run.output
    assert "(revised)\n" in demo_run.output
    assert "What was asked for: name the risk first\n" in demo_run.output
    seen = demo_run.output.partition("Seen on the way: ")[2].partition("\n")[0].split(", ")
    assert {"2 x plan rejected", "1 x plan approved"} <= set(seen)


def test_a_demo_ends_with_a_row_for_each_agent_and_all_tests_passing(demo_run: DemoRun) -> None:
    rows = demo_run.output[demo_run.output.index("agent  ") :].splitlines()
    assert [row.split()[0].partition("-")[0] for row in rows[:6]] == ["agent", "lead", "explore", "fix", "fix", "all"]
    assert rows[0].split() == ["agent", "steps", "tokens", "cost", "cached", "what", "it", "did"]
    assert "The sample's tests pass now" in demo_run.output
    assert run_tests(demo_run.project)[0]


def test_the_project_is_a_repository_that_shows_what_the_team_changed(demo_run: DemoRun) -> None:
    ran = subprocess.run(
        ["git", "status", "--porcelain"], cwd=demo_run.project, capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == [
        *["M", "tally/amounts.py", "M", "tally/money.py", "M", "tally/report.py"],
        *["??", "changes/parse.md", "??", "changes/split.md", "??", "changes/summary.md"],
    ]


@pytest.mark.slow
def test_nobody_at_a_terminal_is_told_that_a_policy_approves_and_nothing_is_left(tmp_path: Path) -> None:
    ran = Process(["-m", "callboard", "demo"], Path.cwd(), environment_in(tmp_path))
    _, told = ran.communicate()
    assert ran.returncode == 0, told
    assert "approved by policy: nobody is at a terminal: the demo's policy approves plans" in told
    assert list(tmp_path.glob("callboard-demo-*")) == []
    assert [path for path in tmp_path.rglob("tally-*") if path.is_dir()] == []


@pytest.mark.slow
def test_a_demo_whose_tests_fail_in_the_end_fails(demo_run: DemoRun) -> None:
    money = demo_run.project / "tally" / "money.py"
    whole = money.read_text()
    money.write_text(whole.replace("place < rest", "place <= rest"))
    try:
        code, said = at_a_terminal(demo_run.home, ["demo", "--resume", str(demo_run.project)], [])
    finally:
        money.write_text(whole)
    assert code == 1, said
    assert "The sample's tests do not pass: Ran 10 tests" in said


def test_a_folder_without_a_demo_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="contains no demo"):
        project_folder(tmp_path)
    with pytest.raises(UsageError, match="contains no demo"):
        project_folder(tmp_path / "elsewhere")


def test_a_project_cut_off_while_it_was_made_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "tally.part" / ".git").mkdir(parents=True)
    folder = project_folder(tmp_path / "tally")
    prepare(folder)
    assert (folder / "tools" / "ledger.py").is_file()
    assert not (tmp_path / "tally.part").exists()
    passed, said = run_tests(folder)
    assert (passed, said.partition("; ")[2]) == (False, "FAILED (failures=2, errors=2)")

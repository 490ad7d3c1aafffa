"""`callboard context`: the map adds up, edits are reported, and an edit can be undone, hosted or not."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands.command import Command, CommandResult
from tests.warm import Process

READS = """
models:
  small: {window: %d, max_output: 8000}
agents:
  lead:
    - reply:
        - text: I read the parts.
        - tool_use: {name: read_file, input: {path: one.txt}}
    - reply:
        - tool_use: {name: read_file, input: {path: two.txt}}
    - reply:
        - tool_use: {name: read_file, input: {path: three.txt}}
    - reply: I have read them.
    - reply: As I said.
    - latency_ms: %d
      reply: And again.
    - reply: At last.
"""
SETTINGS = """
context:
  pipeline:
    - {stage: clear_old_results, params: {keep: 1, over: 0.1, at_least: 0.05}}
    - stage: summarize_all
"""
ROOMY, TIGHT = 40_000, 29_500


@pytest.fixture
def command(tmp_path: Path) -> Command:
    command = Command(tmp_path)
    for name in ("one", "two", "three"):
        lines = [f"{name} {number} some words of a line that is neither long nor short" for number in range(300)]
        (command.workspace / f"{name}.txt").write_text("\n".join(lines))
    config = tmp_path / "config" / "callboard"
    config.mkdir(parents=True)
    (config / "settings.yaml").write_text(SETTINGS)
    return command


def model(command: Command, window: int = ROOMY, latency: int = 0) -> str:
    return command.scenario(READS % (window, latency))


def run_to_end(command: Command, window: int = ROOMY) -> Command:
    """Run a session in which a result was cleared, and return its command; no process hosts it now."""
    ran = command.run_inline("run", "--model", model(command, window), "Read them.")
    assert ran.code == 0, ran.err
    return command


def edits(command: Command, *args: str) -> list[dict[str, Any]]:
    return json.loads(command.run_inline("context", "explain", "--json", *args).out)


def cuts(told: list[dict[str, Any]], path: str) -> int:
    """Return how many edits have cut the content of that file."""
    return sum(any(one["about"] == path for one in edit["touched"]) for edit in told)


def test_the_map_adds_up_to_the_window_and_fits_eighty_columns(command: Command) -> None:
    run_to_end(command)
    found = json.loads(command.run_inline("context", "--json").out)
    window = found["window"]
    assert sum(part["tokens"] for part in window["parts"]) == window["window"] == ROOMY
    results = {part["tool"]: part["tokens"] for part in window["parts"] if part["source"] == "tool results"}
    assert results["read_file"] > 3_000
    assert window["counted"] > 0
    assert found["metrics"] == found["session_metrics"]
    shown = command.run_inline("context", NO_COLOR="1").out
    assert "\x1b" not in shown
    assert max(len(line) for line in shown.splitlines()) <= 80
    for part in window["parts"]:
        label = f"results of {part['tool']}" if part["tool"] else part["source"]
        assert re.search(rf"^{label} +{part['tokens']:,} +{part['share']:.1%}", shown, re.MULTILINE), label


def test_every_edit_is_told_with_what_it_touched(command: Command) -> None:
    run_to_end(command)
    (one,) = edits(command)
    assert (one["stage"], one["trigger"], one["taken_back_by"]) == ("clear_old_results", "auto", None)
    assert one["freed"] == one["tokens_before"] - one["tokens_after"] > 3_000
    assert "tokens that they may take" in one["why"]
    assert one["rewritten"] > 0
    assert one["cost_usd"] > 0
    assert [(touched["what"], touched["about"]) for touched in one["touched"]] == [("read_file", "one.txt")]
    shown = command.run_inline("context", "explain").out
    assert shown.startswith(f"{one['seq']}  ")
    assert "cleared: read_file one.txt (" in shown
    assert f"callboard context undo {one['seq']}" in shown


def test_metrics_stand_beside_the_result_in_listings_and_in_the_log(command: Command) -> None:
    ran = command.run_inline("run", "--output-format", "stream-json", "--model", model(command), "Read them.")
    metrics = ran.messages[-1]["metrics"]
    assert metrics["agents"] == {"lead": metrics["session"]}
    lead = metrics["agents"]["lead"]
    assert lead["compact_count"] == {"clear_old_results/auto": 1}
    assert lead["reread_count"] == 0
    used = lead["token_usage"]
    assert set(used) == {"input", "write", "read", "output"}
    whole = used["input"] + used["write"] + used["read"]
    assert lead["cache_hit_rate"] == pytest.approx(used["read"] / whole, abs=1e-4)
    assert lead["cache_hit_rate"] > 0
    assert sum(ran.messages[-1]["modelUsage"]["small"][f"{kind}Tokens"] for kind in ("input", "output")) > 0
    assert json.loads(command.run_inline("context", "--json").out)["metrics"] == lead
    assert json.loads(command.run_inline("team", "--json").out)[0]["metrics"] == lead
    (log,) = (command.workspace.parent / "state").rglob("log/*.jsonl")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    (logged,) = [line for line in lines if line["event"] == "metrics"]
    assert (logged["agent"], logged["token_usage"]) == ("lead", used)
    assert [line["event"] for line in lines if "metrics" in line["event"]] == ["metrics", "session_metrics"]


@pytest.mark.slow
def test_the_line_of_a_compaction_is_progress_that_quiet_hides(command: Command) -> None:
    with (command.workspace / "one.txt").open("a") as large:  # smaller edits by a preset are not shown
        large.write("\nsome more words of a line" * 200)
    ran = command.run_inline("run", "--model", model(command), "Read them.")
    (line,) = [line for line in ran.err.splitlines() if "compaction" in line]
    assert re.fullmatch(r"lead: compaction: clear_old_results \(auto\), [\d,]+ -> [\d,]+ tokens", line)
    assert "compaction" not in command.run_inline("run", "-q", "--model", model(command), "Read them.").err


def test_without_an_edit_it_says_so(command: Command) -> None:
    ran = command.run_inline("run", "--model", command.scenario("agents: {lead: [{reply: Hello.}]}"), "Hi.")
    assert ran.code == 0
    assert command.run_inline("context", "explain").out == "nothing was cut from lead's conversation\n"
    assert edits(command) == []


@pytest.mark.slow
def test_an_undo_takes_effect_at_once_where_nobody_hosts(command: Command) -> None:
    run_to_end(command)
    before = json.loads(command.run_inline("context", "--json").out)["window"]["used"]
    (cleared,) = edits(command)
    ran = command.run("context", "undo", str(cleared["seq"]))
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(f"lead undid {cleared['seq']} (")
    now, undo = edits(command)
    assert now["taken_back_by"] == undo["seq"]
    assert undo["undoes"] == [cleared["seq"]]
    assert json.loads(command.run_inline("context", "--json").out)["window"]["used"] > before + 3_000


@pytest.mark.slow
def test_what_was_taken_back_is_not_cut_again_at_the_next_step(command: Command) -> None:
    run_to_end(command)
    (cleared,) = edits(command)
    assert command.run_inline("context", "undo", str(cleared["seq"])).code == 0
    ran = command.run_inline("run", "-c", "And?")
    assert (ran.code, ran.out) == (0, "As I said.\n")
    later = edits(command)
    assert [one["stage"] for one in later[:2]] == ["clear_old_results", "undo"]
    assert cuts(later, "one.txt") == 1


@pytest.mark.slow
def test_an_undo_can_be_taken_back(command: Command) -> None:
    run_to_end(command)
    (cleared,) = edits(command)
    assert command.run_inline("context", "undo", str(cleared["seq"])).code == 0
    assert command.run_inline("context", "undo", str(edits(command)[-1]["seq"])).code == 0
    again = edits(command)
    assert [one["taken_back_by"] for one in again] == [None, again[2]["seq"], None]


@pytest.mark.slow
def test_an_undo_that_does_not_fit_is_refused_with_the_reason(command: Command) -> None:
    run_to_end(command, TIGHT)
    (cleared,) = edits(command)
    ran = command.run_inline("context", "undo", str(cleared["seq"]))
    assert ran.code == 1
    assert "not undone: it does not fit: the messages would be" in ran.err
    now, refused = edits(command)
    assert (now["taken_back_by"], refused["refused"]) == (None, True)
    assert "does not fit" in command.run_inline("context", "explain").out


@pytest.mark.slow
def test_what_is_asked_wrongly_is_told(command: Command) -> None:
    run_to_end(command)
    wrong = {
        "undo 3": "there is no edit 3 to undo: choose ",
        "undo 3 --agent bob": "unknown agent 'bob' in session ",
        "bob": "choose lead",
        "explain bob": "choose lead",
        "--session nope": "unknown session 'nope' of this workspace",
        "undo": "Missing argument 'N...'",
        "undo x": "'x' is not a whole number",
    }
    for words, said in wrong.items():
        ran = command.run_inline("context", *words.split())
        assert (ran.code, ran.out) == (2, ""), words
        assert said in ran.err, words


def test_without_a_session_it_says_what_to_do(command: Command) -> None:
    for args in ([], ["explain"], ["undo", "1"]):
        ran = command.run_inline("context", *args)
        assert ran.code == 2
        assert "start one with `callboard run`" in ran.err


def test_an_agents_tool_takes_nothing_back(command: Command) -> None:
    run_to_end(command)
    ran = command.run_inline("context", "undo", "1", CALLBOARD_TOOL="1")
    assert ran.code == 2
    assert "for a person" in ran.err
    assert command.run_inline("context", CALLBOARD_TOOL="1").code == 0


@pytest.mark.slow
def test_options_may_stand_before_the_command(command: Command) -> None:
    run_to_end(command)
    whole = command.run_inline("context", "explain", "lead", "--json").out
    session = json.loads(command.run_inline("sessions", "--json").out)[0]["id"]
    for args in (["--session", session, "explain", "--json"], ["--json", "explain", "lead", "--session", session]):
        assert command.run_inline("context", *args).out == whole
    here = str(command.workspace)
    assert command.run("context", "-C", here, "--json", "lead").out == command.run_inline("context", "--json").out


def wait_for(running: Process, said: str) -> str:
    """Return the output up to this text."""
    assert running.stderr is not None
    told = ""
    for line in running.stderr:
        told += line
        if said in line:
            return told
    raise AssertionError(told)


def interrupt(running: Process) -> CommandResult:
    running.send_signal(signal.SIGINT)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=180)
    return CommandResult(running.returncode, out, err)


@pytest.mark.slow
def test_a_host_takes_an_edit_back_when_its_call_has_ended(command: Command) -> None:
    """The model thinks for long: the undo waits for its reply, and takes effect before the next call."""
    run_to_end(command)
    (cleared,) = edits(command)
    model(command, latency=30_000)
    assert command.run("run", "-c", "First.").code == 0
    running = command.start("-v", "run", "-c", "Second.")
    wait_for(running, "asks ")
    asked = command.run("context", "undo", str(cleared["seq"]))
    assert (asked.code, asked.err) == (0, "")
    assert "undoes" in asked.out
    assert "undo" not in [one["stage"] for one in edits(command)]
    running.send_signal(signal.SIGINT)
    said = wait_for(running, "undid edit")
    assert f"lead: undid edit {cleared['seq']}, " in said
    running.communicate(timeout=180)
    told = edits(command)
    assert (told[0]["taken_back_by"], told[-1]["undoes"]) == (told[-1]["seq"], [cleared["seq"]])


@pytest.mark.slow
def test_an_undo_beside_a_call_that_a_dead_process_made(command: Command) -> None:
    """No process hosts the session or can receive the reply: the undo does not wait, and the session continues."""
    run_to_end(command)
    (cleared,) = edits(command)
    model(command, latency=30_000)
    assert command.run("run", "-c", "First.").code == 0
    running = command.start("-v", "run", "-c", "Second.")
    wait_for(running, "asks ")
    os.kill(running.pid, signal.SIGKILL)
    running.communicate()
    ran = command.run("context", "undo", str(cleared["seq"]))
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("lead undid")
    model(command)
    assert command.run("resume").code == 0
    later = edits(command)
    assert (later[-1]["stage"], cuts(later, "one.txt")) == ("undo", 1)

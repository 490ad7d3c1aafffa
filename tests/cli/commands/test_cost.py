"""`callboard cost` assigns every cent to an agent, model, and reason; it adds up, during the run and after it."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands.command import Command

from callboard.cli.views.cost import cost_block, cost_json
from callboard.core.reports.spending import AgentSpending, CallTotals, ScheduleSpent, Spending, UnusedCalls
from callboard.types.records import Usage

TEAM = """
models:
  big: {window: 60000, max_output: 8000}
  spare: {window: 60000, max_output: 8000}
agents:
  lead:
    - reply:
        - tool_use: {name: spawn_teammate, input: {name: alice, role: worker, prompt: do it}}
    - fault: {drop: mid_stream}
      reply: I wait for Alice.
    - reply: All is done.
    - latency_ms: %d
      reply: Once more.
    - repeat: forever
      reply: And again.
  alice:
    - fault: {status: 529, times: 2}
      reply:
        - tool_use: {name: task, input: {description: look, prompt: look, agent_type: explore}}
    - reply: I did.
  'explore-*':
    - reply: I looked.
"""
HEADS = ("CALLS", "INPUT", "WRITE", "READ", "OUTPUT", "CACHED", "COST")


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


def model(command: Command, latency: int = 0) -> str:
    return command.scenario(TEAM % latency)


def run_to_end(command: Command) -> Command:
    ran = command.run_inline("run", "--model", model(command), "Go.")
    assert (ran.code, ran.out) == (0, "All is done.\n"), ran.err
    return command


def cost_report(command: Command, *args: str) -> dict[str, Any]:
    ran = command.run_inline("cost", "--json", *args)
    assert (ran.code, ran.err) == (0, "")
    return json.loads(ran.out)


def flat(agents: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for agent in agents:
        yield agent
        yield from flat(agent["children"])


def tokens(parts: list[dict[str, Any]]) -> dict[str, int]:
    """Return the sum of the tokens, without the cost, which is a float."""
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
    return {name: sum(part["usage"][name] for part in parts) for name in names}


@pytest.mark.slow
def test_the_tree_adds_up_to_what_the_engine_counted(command: Command) -> None:
    found = cost_report(run_to_end(command))
    agents = list(flat(found["agents"]))
    assert [one["name"].partition("-")[0] for one in agents] == ["lead", "alice", "explore"]
    assert agents[2] == agents[1]["children"][0]
    owns, whole = [one["own"] for one in agents], tokens([found["total"]])
    assert tokens(owns) == tokens(list(found["models"].values())) == tokens([agents[0]["total"]]) == whole
    assert sum(one["usage"]["cost_usd"] for one in owns) == pytest.approx(found["total"]["usage"]["cost_usd"])
    team = json.loads(command.run_inline("team", "--json").out)
    assert tokens(team) == whole, "equal to the `team` report of each agent's state"
    assert {one["name"]: one["own"]["usage"] for one in agents} == {one["name"]: one["usage"] for one in team}
    assert found["total"]["cache_read_share"] > 0


@pytest.mark.slow
def test_failed_calls_tries_again_and_models_that_took_over_are_told(command: Command) -> None:
    found = cost_report(run_to_end(command))
    lead, alice, _ = flat(found["agents"])
    broken = lead["own"]["billed_not_used"]["failed"]
    assert broken["calls"] == 1
    assert broken["usage"]["cost_usd"] > 0, "streamed tokens are billed"
    assert (alice["own"]["retries"], alice["own"]["switches"]) == (1, 1)
    assert set(alice["models"]) == {"big", "spare"}
    assert alice["models"]["spare"]["usage"]["output_tokens"] > 0
    shown = command.run_inline("cost").out
    assert re.search(r"^billed, not used: \$[\d.]+: 3 failed calls \$", shown, re.MULTILINE)
    assert re.search(r"^    on spare ", shown, re.MULTILINE)
    assert "tries again 2, switches of model 1" in shown


@pytest.mark.slow
def test_the_table_fits_eighty_columns_and_is_plain_where_nobody_looks(command: Command) -> None:
    run_to_end(command)
    for args in ([], ["--by", "model"]):
        shown = command.run_inline("cost", *args).out
        assert "\x1b" not in shown
        assert max(len(line) for line in shown.splitlines()) <= 80
        heads = next(line for line in shown.splitlines() if "CALLS" in line)
        assert heads.split() == ["MODEL" if args else "AGENT", *HEADS]
        total = next(line for line in shown.splitlines() if line.startswith("all "))
        assert total.split()[1] == str(cost_report(command)["total"]["calls"])


@pytest.mark.slow
def test_by_model_each_model_has_its_agents(command: Command) -> None:
    found = cost_report(run_to_end(command))
    wanted: list[str] = []
    for one in found["models"]:
        wanted += [one, *(agent["name"][:22] for agent in flat(found["agents"]) if one in agent["models"])]
    shown = command.run_inline("cost", "--by", "model").out
    rows = shown.split("COST\n")[1].split("\nall ")[0]
    assert [row.split()[0] for row in rows.splitlines()] == wanted
    assert set(found["models"]) == {"big", "spare"}


@pytest.mark.slow
def test_it_looks_on_while_another_process_hosts_the_session(command: Command) -> None:
    run_to_end(command)
    before = cost_report(command)["total"]["usage"]
    model(command, latency=15_000)
    running = command.start("-v", "run", "-c", "Once more.")
    assert running.stderr is not None
    next(line for line in running.stderr if "asks " in line)
    assert cost_report(command)["total"]["usage"] == before, "an unfinished call has no known usage"
    running.send_signal(signal.SIGKILL)
    running.communicate(timeout=180)
    model(command)
    assert command.run("resume").code == 0
    assert cost_report(command)["total"]["usage"]["output_tokens"] > before["output_tokens"]


@pytest.mark.slow
def test_all_lives_of_a_name_are_counted(command: Command) -> None:
    run_to_end(command)
    before = cost_report(command)["total"]["usage"]
    ran = command.run("resume", "--carry")
    assert ran.code == 0, ran.err
    lead = cost_report(command)["agents"][0]
    assert lead["lives"] == 2
    newest = json.loads(command.run_inline("team", "--json").out)[0]["usage"]
    own = lead["own"]["usage"]
    assert own["output_tokens"] > newest["output_tokens"] > 0
    assert cost_report(command)["total"]["usage"]["output_tokens"] > before["output_tokens"]
    assert re.search(r"^lead \(2 lives\) ", command.run_inline("cost").out, re.MULTILINE)


@pytest.mark.slow
def test_a_session_is_named_by_argument_or_option(command: Command) -> None:
    run_to_end(command)
    (session,) = json.loads(command.run_inline("sessions", "--json").out)
    assert (
        cost_report(command, session["id"]) == cost_report(command, "--session", session["id"]) == cost_report(command)
    )
    ran = command.run_inline("cost", "one", "--session", "two")
    assert (ran.code, ran.out) == (2, "")
    assert "one session at a time" in ran.err
    assert "unknown session 'nope' of this workspace" in command.run_inline("cost", "nope").err


def test_without_a_session_it_says_what_to_do(command: Command) -> None:
    ran = command.run_inline("cost")
    assert ran.code == 2
    assert "start one with `callboard run`" in ran.err


def test_an_agent_may_look_at_what_it_costs(command: Command) -> None:
    assert run_to_end(command).run_inline("cost", CALLBOARD_TOOL="1").code == 0


@pytest.mark.slow
def test_budgets_stand_beside_with_what_is_left_of_them(command: Command) -> None:
    config = command.workspace.parent / "config" / "callboard"
    config.mkdir(parents=True)
    settings = "budget: {tokens: 900000}\nbudgets: {teammate: {steps: 9}, explore: {depth: 2}}\n"
    (config / "settings.yaml").write_text(settings)
    ran = command.run_inline("run", "--max-budget-usd", "2", "--model", model(command), "Go.")
    assert ran.code == 0, ran.err
    found = cost_report(command)
    session, alice, explore = found["budgets"]
    assert (session["of"], session["limits"]) == ("session", {"tokens": 900_000, "cost_usd": 2.0})
    whole = found["total"]["usage"]
    assert session["spent"]["cost_usd"] == pytest.approx(whole["cost_usd"])
    assert session["spent"]["tokens"] == sum(whole[kind] for kind in whole if kind != "cost_usd")
    assert session["left"]["cost_usd"] == pytest.approx(2.0 - whole["cost_usd"])
    below = found["agents"][0]["children"][0]["total"]["calls"]
    assert (alice["limits"], alice["spent"]["steps"], alice["left"]["steps"]) == ({"steps": 9}, below, 9 - below)
    assert explore["limits"] == {"depth": 2}
    shown = command.run_inline("cost").out
    assert re.search(r"^budget of the session: \$0\.\d+ of \$2\.0000, \$1\.\d+ left; [\d,]+ of", shown, re.MULTILINE)
    assert f"budget of alice: {below} of 9 calls, {9 - below} left\n" in shown
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_the_days_of_a_session_add_up(command: Command) -> None:
    run_to_end(command)
    lines = command.run_inline("cost", "--by", "day").out.splitlines()
    assert lines[1].split() == ["DAY", *HEADS]
    days = [line for line in lines if re.match(r"\d{4}-\d\d-\d\d ", line)]
    assert len(days) in (1, 2), "the run may have passed midnight"
    report = cost_report(command)
    assert sum(day["calls"] for day in report["days"].values()) == report["total"]["calls"]


def page(spent: CallTotals, **more: Any) -> list[str]:
    lead = AgentSpending("lead", "lead", 1, spent, spent, {"one": spent})
    found = Spending("s1", spent, (lead,), {"one": spent}, **more)
    return [line.text for line in cost_block(found).lines]


def test_every_note_stands_only_where_there_is_something_to_say() -> None:
    assert page(CallTotals()) == [
        "s1, one: 0 tokens in, 0 out, $0.0000",
        "AGENT                    CALLS   INPUT   WRITE    READ  OUTPUT  CACHED      COST",
        "lead                         0       0       0       0       0       -   $0.0000",
        "all                          0       0       0       0       0       -   $0.0000",
    ]
    usage = Usage(input_tokens=2_000, cache_read_input_tokens=6_000, output_tokens=123_456, cost_usd=0.5)
    unused = {
        "cut": UnusedCalls(1, usage),
        "lost": UnusedCalls(2, unknown=2, at_most_usd=0.25),
        "failed": UnusedCalls(3),
    }
    spent = CallTotals(
        calls=7, usage=usage, summaries=usage, unused=unused, waits=1, refused=2, under_way=1, reserved_usd=1
    )
    lines = page(spent, schedules=(ScheduleSpent("cron_a", 3, spent),))
    assert lines[3].split() == ["all", "7", "2,000", "0", "6,000", "123k", "75%", "$0.5000"]
    assert "\n".join(lines[4:]) == (
        "billed, not used: $0.5000: 1 reply cut at the output limit $0.5000\n"
        "perhaps billed, not counted: 2 calls whose process ended; at most $0.2500, as\n"
        "  reserved\n"
        "in progress: 1 call, $1.0000 reserved\n"
        "for summaries: 8,000 in, 123k out, $0.5000\n"
        "waits for the service 1, refused by a budget 2\n"
        "of it for schedule cron_a: 3 turns, 7 calls, 131k tokens, $0.5000"
    )


@pytest.mark.parametrize(
    ("count", "shown"), [(99_999, "99,999"), (100_000, "100k"), (1_234_567, "1.2M"), (98_765_432_100, "98.8G")]
)
def test_large_numbers_are_shortened_and_never_break_the_columns(count: int, shown: str) -> None:
    line = page(CallTotals(calls=1, usage=Usage(input_tokens=count, cost_usd=12_345.6)))[2]
    assert line.split()[2:] == [shown, "0", "0", "0", "0%", "$12,346"]
    assert len(line) == 80


def agent(name: str, cost: float, *children: AgentSpending) -> AgentSpending:
    own = CallTotals(calls=1, usage=Usage(output_tokens=10, cost_usd=cost))
    total = own
    for child in children:
        total = total.plus(child.total)
    return AgentSpending(name, "subagent", 1, own, total, {"big": own}, children)


def test_hundreds_of_agents_share_a_row_and_json_lists_all() -> None:
    ended = [agent(f"sched-{n:03}", n / 100) for n in range(300)]
    lead = agent("lead", 1.0, agent("alice", 0.001, agent("explore-a", 0.5)), *ended)
    spending = Spending("s1", lead.total, (lead,), {"big": lead.total})
    lines = [line.text for line in cost_block(spending).lines]
    assert len(lines) == 28
    assert [line.split()[0] for line in lines[2:6]] == ["lead", "alice", "with", "explore-a"]
    assert [line.split()[0] for line in lines[6:-2]] == [f"sched-{n}" for n in range(280, 300)]
    (rest,) = [line for line in lines if "280 other agents" in line]
    assert rest.split()[3] == "280"
    assert rest.endswith(f"${sum(range(280)) / 100:.2f}")
    by_model = [line.text for line in cost_block(spending, "model").lines]
    assert len(by_model) == 26
    assert any("282 other agents" in line for line in by_model)
    assert len(cost_json(spending)["agents"][0]["children"]) == 301

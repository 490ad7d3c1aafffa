"""The team as a tree on screens of any width, as lines about changes, and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as hy

from callboard.cli.terminal.terminal import columns
from callboard.cli.views.team import changes_block, moment, short_number, team_json, tree_block
from callboard.core.reports.activity import Activity
from callboard.sessions.inspect.team import AgentOverview, EndedAgents, TeamOverview
from callboard.sessions.result import AgentSummary
from callboard.types.records import AgentLife, AgentRow, ToolCall, Usage

NOON = 1_800_000_000.0
IDLE = Activity()
CALL = ToolCall(id="call_1", use_id="u", name="bash", input={"command": "pytest -q"})


def agent(name: str, life: AgentLife = "working", doing: Activity = IDLE, **more: Any) -> AgentOverview:
    given = {"name": name, "kind": "teammate", "parent": "lead", "life": life, "since": NOON - 60, **more}
    row = AgentRow.model_validate(given)
    usage = Usage(input_tokens=12_000, output_tokens=345, cost_usd=0.12)
    return AgentOverview(
        row, AgentSummary(name, row.kind, 3, usage, life, row.outcome, "what it did", row.waiting_for), doing
    )


def overview(*agents: AgentOverview, host: int | None = 42) -> TeamOverview:
    over = [one for one in agents if one.row.life == "stopped"]
    ended = EndedAgents(len(over), reduce(Usage.plus, (one.summary.usage for one in over), Usage()))
    return TeamOverview("s1", NOON, agents, host, ended=ended)


def team() -> TeamOverview:
    plan = Activity("plan", NOON - 30, NOON + 1_800, subject="Rework the parser")
    return overview(
        agent("lead", "working", Activity("tool", NOON - 5, NOON + 115, CALL, 2), kind="lead", parent=None),
        agent("alice", "waiting", plan, waiting_for="plan req_1"),
        agent("explore-1", "working", Activity("model call", NOON - 2, NOON + 898), kind="subagent", parent="alice"),
        agent("explore-2", "stopped", kind="subagent", parent="alice", outcome="done"),
        agent("bob", "idle"),
        agent("carol", "crashed", outcome="failed"),
    )


def lines(shown: TeamOverview, width: int = 100, height: int | None = None) -> list[str]:
    return [line.text for line in tree_block(shown, width, height).lines]


def test_the_tree_says_of_each_agent_what_it_does_since_when_until_when_and_what_it_used() -> None:
    told = lines(team())
    assert told[0] == "s1: hosted by process 42"
    assert told[1].startswith("2 working, 1 waiting, 1 idle, 1 crashed | 72,000 tokens in")
    assert told[2].split() == ["AGENT", "STATE", "DOES", "OR", "WAITS", "FOR", "SINCE", "UNTIL", "TOKENS", "COST"]
    names = [line[:15].rstrip() for line in told[3:]]
    assert names == ["lead", "├─ alice", "│  └─ explore-1", "├─ bob", "└─ carol", "1 agent has end"]
    at = [moment(NOON - 5, NOON), moment(NOON + 115, NOON)]
    assert told[3].split()[1:] == ["working", "bash", "pytest", "-q", "(+2)", *at, "12.3k", "$0.12"]
    assert "waiting   plan req_1: Rework the parser " in told[4]
    assert "model call" in told[5]
    assert "crashed   what it did" in told[7]


def test_a_session_that_nobody_hosts_is_told_as_left() -> None:
    assert "no process hosts it" in lines(replace(team(), host=None))[0]
    idle = overview(agent("lead", "starting", kind="lead", parent=None))
    assert lines(idle)[3].split()[:5] == ["lead", "idle", "no", "prompt", "yet"]
    assert "no agents" in lines(overview())[1]


@given(
    hy.integers(1, 140),
    hy.one_of(hy.none(), hy.integers(1, 12)),
    hy.lists(hy.text(alphabet="a終é\x1b[31m👩🏽\n", min_size=1, max_size=40), max_size=6),
)
def test_no_line_is_wider_than_the_screen_and_no_page_higher(width: int, height: int | None, words: list[str]) -> None:
    others = [agent(f"mate-{n}", "waiting", Activity("plan", NOON, subject=text)) for n, text in enumerate(words)]
    shown = lines(replace(team(), agents=(*team().agents, *others)), width, height)
    assert all(columns(line) <= width for line in shown)
    assert all("\n" not in line and "\x1b" not in line for line in shown)
    assert height is None or len(shown) <= max(height, 4)


def test_on_a_low_screen_the_last_line_counts_who_is_not_shown() -> None:
    assert lines(team(), 100, 6)[-1] == "and 4 more agents"
    assert len(lines(team(), 100, 9)) == 9


def test_only_who_does_something_else_is_told_of_again() -> None:
    first = changes_block(None, team())
    assert [line.name for line in first.lines] == ["", "lead", "alice", "explore-1", "explore-2", "bob", "carol"]
    used = replace(team().agents[0], summary=replace(team().agents[0].summary, steps=9))
    assert changes_block(team(), replace(team(), agents=(used, *team().agents[1:]))).lines == ()
    later = replace(
        team(),
        agents=(
            *team().agents[:4],
            agent("bob", "working", Activity("model call", NOON)),
            agent("carol", "crashed", outcome="failed"),
        ),
    )
    (line,) = changes_block(team(), later).lines
    assert (line.name, line.text) == ("bob", f"{moment(NOON - 60, NOON)} working model call")
    (left,) = changes_block(team(), replace(team(), host=None)).lines
    assert "no process hosts it" in left.text


def test_json_has_all_of_it_for_scripts() -> None:
    told = json.loads(json.dumps(team_json(team())))
    assert (told["type"], told["session"], told["host"], told["at"]) == ("team", "s1", 42, NOON)
    lead, alice = told["agents"][0], told["agents"][1]
    assert lead["call"] == {"id": "call_1", "tool": "bash", "input": {"command": "pytest -q"}}
    assert (lead["doing"], lead["doing_since"], lead["until"], lead["beside"]) == ("tool", NOON - 5, NOON + 115, 2)
    assert (alice["life"], alice["waiting_for"], alice["about"]) == ("waiting", "plan req_1", "Rework the parser")
    assert (alice["parent"], alice["usage"]["cost_usd"], alice["since"]) == ("lead", 0.12, NOON - 60)


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0"), (999, "999"), (1_000, "1.0k"), (12_345, "12.3k"), (999_949, "999.9k"), (1_000_000, "1.0M")],
)
def test_large_numbers_are_short(count: int, said: str) -> None:
    assert short_number(count) == said


def test_a_moment_of_another_day_has_its_date() -> None:
    assert moment(0, NOON) == ""
    assert len(moment(NOON, NOON)) == 8
    assert len(moment(NOON - 90_000, NOON)) <= 9

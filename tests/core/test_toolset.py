"""Who has which tools, by kind, type and either world's names."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.core.tool_access import ALL_TOOLS, COMPATIBLE, ON_REQUEST, TOOLS_OF, AgentKind, our_names, tools_for

KINDS: tuple[AgentKind, ...] = ("lead", "teammate", "subagent")


def test_without_a_list_an_agent_has_all_that_its_kind_may_have() -> None:
    assert set(tools_for("teammate", None).names) == TOOLS_OF["teammate"] - ON_REQUEST
    assert set(tools_for("subagent", None).names) == TOOLS_OF["subagent"] - ON_REQUEST
    assert set(tools_for("lead", None).names) == TOOLS_OF["lead"] - ON_REQUEST - {"submit_plan"}
    assert set(tools_for("lead", None, plan_mode=True).names) == TOOLS_OF["lead"] - ON_REQUEST


@pytest.mark.parametrize("kind", KINDS)
def test_tools_on_request_come_with_their_names_in_either_world(kind: AgentKind) -> None:
    named = ["MultiEdit", "LS", "NotebookRead", "NotebookEdit", "BashOutput", "KillShell"]
    requested = tools_for(kind, named)
    assert not requested.unknown
    assert {*requested.names} >= ON_REQUEST | {"task_stop"}
    assert {*tools_for(kind, sorted(ON_REQUEST), ["LS", "NotebookEdit"]).names} >= ON_REQUEST - {
        "list_folder", "edit_notebook"
    }  # fmt: skip
    assert "list_folder" not in tools_for(kind, sorted(ON_REQUEST), ["LS"]).names


def test_a_subagent_starts_nobody_asks_nobody_and_owns_no_task() -> None:
    names = tools_for("subagent", sorted(ALL_TOOLS)).names
    assert not {"task", "spawn_teammate", "ask_person", "send_message", "claim_task", "submit_plan"} & set(names)


def test_only_the_lead_answers_plans_and_makes_teammates() -> None:
    for name in ("review_plan", "spawn_teammate", "request_shutdown", "schedule_cron"):
        assert [kind for kind in KINDS if name in TOOLS_OF[kind]] == ["lead"]


def test_only_a_teammate_reports() -> None:
    assert [kind for kind in KINDS if "report" in TOOLS_OF[kind]] == ["teammate"]


def test_a_teammate_keeps_the_tools_by_which_a_team_works() -> None:
    given = tools_for("teammate", ["Read", "Grep"])
    assert {"read_file", "grep", "send_message", "claim_task", "report", "submit_plan"} <= set(given.names)
    assert not {"bash", "edit_file", "task"} & set(given.names)


def test_a_denial_counts_before_the_list_but_never_takes_the_report() -> None:
    given = tools_for("teammate", ["bash", "Read"], ["Bash", "SendMessage", "report"])
    assert "bash" not in given.names
    assert "send_message" not in given.names
    assert "report" in given.names
    assert given.kept == ("report",)


@pytest.mark.parametrize(
    ("entry", "ours"),
    [
        ("Read", ("read_file",)),
        ("read_file", ("read_file",)),
        ("Agent(explore, plan)", ("task", "spawn_teammate")),
        ("Bash(git:*)", ("bash",)),
        (" Edit ", ("edit_file",)),
        ("WebFetch", ("web_fetch",)),
        ("Frobnicate", ()),
        ("mcp__github__search", ()),
        ("read", ()),
        ("", ()),
        ("(x)", ()),
    ],
)
def test_an_entry_of_a_list_in_either_world(entry: str, ours: tuple[str, ...]) -> None:
    assert our_names(entry) == ours


def test_what_cannot_be_followed_is_told() -> None:
    given = tools_for("subagent", ["Read", "Fly", "Agent", "Task"], ["Frobnicate"])
    assert given.names == ("read_file",)
    assert given.unknown == ("Fly", "Frobnicate")
    assert given.withheld == ("spawn_teammate", "task")
    assert tools_for("teammate", ["Agent"]).withheld == ()


def test_every_compatible_name_stands_for_a_tool_that_somebody_may_have() -> None:
    assert {name for names in COMPATIBLE.values() for name in names} <= ALL_TOOLS


@settings(max_examples=100, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    wanted=st.none() | st.lists(st.sampled_from(sorted(ALL_TOOLS | set(COMPATIBLE) | {"Nope"}))),
    denied=st.lists(st.sampled_from(sorted(ALL_TOOLS | set(COMPATIBLE)))),
)
def test_no_list_gives_an_agent_more_than_its_kind_may_have(
    kind: AgentKind, wanted: list[str] | None, denied: list[str]
) -> None:
    given = tools_for(kind, wanted, denied)
    assert set(given.names) <= TOOLS_OF[kind]
    assert list(given.names) == sorted(set(given.names))
    gone = {name for entry in denied for name in our_names(entry)} - set(given.kept)
    assert not gone & set(given.names)

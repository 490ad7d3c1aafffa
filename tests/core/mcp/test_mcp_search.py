"""The ranking behind `search_tools`, and which tools of servers an agent's type gives it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.core.mcp.tool_names import covers
from callboard.core.mcp.tool_search import DeclaredTool, rank_tools
from callboard.types.records import Json

QUERY: Json = {"properties": {"query": {}}}
TOOLS = (
    DeclaredTool("mcp__git__commit", "Record changes to the repository", {}),
    DeclaredTool("mcp__git__log", "Shows the commit logs", {}),
    DeclaredTool("mcp__web__fetch", "Fetches a URL from the internet", {"properties": {"url": {}}}),
    DeclaredTool("mcp__db__runQuery", "Runs SQL", QUERY),
    DeclaredTool("mcp__web__search", "Search the web", QUERY),
)


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("commit my changes", "mcp__git__commit"),
        ("commit log", "mcp__git__log"),
        ("download a url", "mcp__web__fetch"),
        ("run a query", "mcp__db__runQuery"),
        ("please use mcp__git__log", "mcp__git__log"),
        ("fetching", "mcp__web__fetch"),
    ],
)
def test_the_tool_that_is_meant_comes_first(query: str, first: str) -> None:
    assert rank_tools(query, TOOLS, 5)[0].name == first


@given(st.text(), st.integers(0, 7), st.permutations(TOOLS))
def test_the_same_query_finds_the_same_whatever_the_order(query: str, most: int, tools: list[DeclaredTool]) -> None:
    found = rank_tools(query, tools, most)
    assert found == rank_tools(query, TOOLS, most)
    assert len(found) <= most


def test_what_fits_nothing_finds_nothing() -> None:
    assert rank_tools("brew coffee", TOOLS, 5) == ()
    assert rank_tools("the of a", TOOLS, 5) == ()


@pytest.mark.parametrize(
    ("entry", "name", "so"),
    [
        ("mcp__git", "mcp__git__log", True),
        ("mcp__git__*", "mcp__git__log", True),
        ("mcp__git__l*", "mcp__git__log", True),
        ("mcp__*", "mcp__git__log", True),
        ("mcp__git__log", "mcp__git__log", True),
        ("mcp__git", "mcp__github__log", False),
        ("mcp__git__log", "mcp__git__logs", False),
        ("mcp__my server", "mcp__my_server__x", True),
        ("mcp__*", "mcp__git__*", True),
        ("mcp__git__*", "mcp__*", False),
    ],
)
def test_an_entry_of_a_tools_list_covers_a_tool(entry: str, name: str, so: bool) -> None:
    assert covers(entry, name) is so

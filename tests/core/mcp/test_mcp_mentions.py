"""`@server:uri` in what a person says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.core.mcp.tool_names import MOST, find_mentions

THERE = {"docs": frozenset({"note://one", "file:///a(b)"}), "db": frozenset[str]()}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("sum up @docs:note://one, please", [("docs", "note://one")]),
        ("(@docs:note://one)", [("docs", "note://one")]),
        ("@docs:file:///a(b)", [("docs", "file:///a(b)")]),
        ("see @db:table://x?y=1.", [("db", "table://x?y=1")]),
        ("@docs:note://one @docs:note://one", [("docs", "note://one")]),
        ("mail me@docs:note://one", []),
        ("\\@docs:note://one", []),
        ("@nobody:x @src/app.py @alice: do it @docs:", []),
    ],
)
def test_a_resource_is_named_by_its_server_and_its_uri(text: str, found: list[tuple[str, str]]) -> None:
    assert list(find_mentions(text, THERE)) == found


@given(st.lists(st.sampled_from(["@docs:", "@db:x", "note://one", " ", ".", "@", "\\", "é"])))
def test_whatever_is_said_names_few_resources_of_servers_that_are_there(parts: list[str]) -> None:
    found = find_mentions("".join(parts), THERE)
    assert len(found) <= MOST
    assert all(server in THERE and uri for server, uri in found)

"""The cache of rows lists the agents that an agent started, whatever was written in which order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as hy

from callboard.core.keys import agent_key
from callboard.engine.row_cache import RowCache
from callboard.ports.store import Row
from callboard.types.records import AgentRow

ROWS = hy.lists(
    hy.one_of(
        hy.tuples(hy.integers(0, 5), hy.sampled_from([None, "lead", "a0", "a1"]), hy.integers(0, 3)),
        hy.tuples(hy.integers(0, 5), hy.just("gone"), hy.just(0)),
    ),
    max_size=30,
)


@given(ROWS)
def test_the_children_of_an_agent_are_those_that_a_search_finds(rows: list[tuple[int, str | None, int]]) -> None:
    cache = RowCache("s1", lambda kind, name: None)
    for revision, (number, parent, created) in enumerate(rows, 1):
        name = f"a{number}"
        row = AgentRow(name=name, kind="subagent", parent=parent, spec="", created_at=created, since=created)
        value = None if parent == "gone" else row.encode()
        cache.take(Row(agent_key("s1", name), value, revision))
        for other in ("lead", "a0", "a1", "nobody"):
            assert list(cache.children(other)) == [row for row in cache.agents() if row.parent == other]

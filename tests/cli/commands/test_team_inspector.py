"""The team as another process sees it: living agents from their journals, ended ones from their rows."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from callboard.adapters.storage.memory import MemoryStore
from callboard.cli.views.team import ended_block, tree_block
from callboard.core.agent.state import AgentState, BudgetUse, Lifecycle, LifeEnd, TurnHistory
from callboard.core.keys import agent_key, journal, rows_prefix
from callboard.core.team.lifecycle import row_after
from callboard.engine.commands import create_session
from callboard.engine.row_cache import RowCache
from callboard.ports.store import Put, Record
from callboard.sessions.inspect.team import ENDED_LISTED, TeamInspector
from callboard.types.agent_spec import AgentSpec
from callboard.types.records import AgentRow, SessionRow, Usage

ENDED = 100
USED = Usage(input_tokens=10, output_tokens=1, cost_usd=0.01)


class ReadStore(MemoryStore):
    """A store that records the streams that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.streams: set[str] = set()

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> Sequence[Record]:
        self.streams.add(stream)
        return await super().read(stream, after, limit)


def ended_row(number: int) -> AgentRow:
    """Return the row of a subagent as written at its end."""
    row = AgentRow(name=f"explore-{number:03}", kind="subagent", parent="lead", created_at=float(number))
    state = AgentState(
        turns=TurnHistory(steps=2, last_text=f"words {number}"),
        budget=BudgetUse(usage=USED),
        lifecycle=Lifecycle(ended=LifeEnd("done", "")),
    )
    return row_after(row, state, 1000.0 + number)


def test_ended_agents_cost_no_read_of_a_journal_and_are_counted_with_what_they_used() -> None:
    async def seen() -> None:
        store = ReadStore()
        lead = AgentSpec(name="lead", kind="lead", agent_type="lead", model="m")
        await create_session(store, SessionRow(id="s1", workspace="/w", created_at=1.0), lead, fence=None)
        old = ended_row(ENDED).model_copy(update={"totals": None})
        for row in [*map(ended_row, range(ENDED)), old]:
            await store.commit(Put(agent_key("s1", row.name), row.encode()))
        board = RowCache("s1", lambda kind, name: None)
        board.take(*await store.keys(rows_prefix("s1")))
        inspector = TeamInspector(store, "s1", board)
        team = await inspector.look()
        assert store.streams == {journal("s1", "lead", 1)}
        assert (team.ended.count, team.ended.uncounted) == (ENDED + 1, 1)
        assert (team.ended.usage.input_tokens, round(team.ended.usage.cost_usd, 6)) == (1000, 1.0)
        newest = [f"explore-{number:03}" for number in range(ENDED - ENDED_LISTED + 1, ENDED + 1)]
        assert [one.row.name for one in team.agents] == ["lead", *newest]
        shown = [line.text for line in tree_block(team, 120).lines]
        assert "1,000 tokens in" in shown[1]
        assert shown[1].endswith("without 1 ended agent (`callboard cost` has their part)")
        assert shown[-1] == "101 agents have ended: `callboard team ended` lists them"
        page = inspector.ended_agents(skip=1, limit=3)
        assert [(one.row.name, one.summary.what, one.summary.steps) for one in page] == [
            (f"explore-{number:03}", f"words {number}", 2) for number in (99, 98, 97)
        ]
        rows = [line.text for line in ended_block(page, 1, team.ended.count, team.at).lines]
        assert rows[-1] == "2 to 4 of 101 ended agents; `--skip 4` shows older ones"
        assert store.streams == {journal("s1", "lead", 1)}

    anyio.run(seen)

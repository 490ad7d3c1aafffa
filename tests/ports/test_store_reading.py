"""What a reader does about values that the store sets aside as damaged."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw
import pytest

from callboard.adapters.storage.sqlite import open_store
from callboard.ports.store import Append, Put
from callboard.ports.store_reading import records_of, row_of, rows_of


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_damaged_values_are_passed_over_and_reported_by_the_store(tmp_path: Path) -> None:
    store = await open_store(tmp_path / "s")
    await store.commit(*(Append("s", b"%d" % n, id=str(n)) for n in range(1, 5)))
    await store.commit(*(Put(f"k/{n}", b"%d" % n) for n in range(1, 5)))
    with closing(apsw.Connection(str(tmp_path / "s" / "callboard.db"))) as connection:
        connection.execute("UPDATE record SET data = x'00' WHERE id IN ('1', '3')")
        connection.execute("UPDATE row SET value = x'' WHERE key IN ('k/2', 'k/4')")
    assert [record.seq for record in await records_of(store, "s")] == [2, 4]
    assert await row_of(store, "k/4") is None
    assert [row.key for row in await rows_of(store, "k/")] == ["k/1", "k/3"]
    assert sorted(report.what for report in store.damage) == [
        "key k/2",
        "key k/4",
        "record 1 of stream s",
        "record 3 of stream s",
    ]
    await store.aclose()

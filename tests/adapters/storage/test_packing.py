"""Packed values: smaller in the file, the same for every reader, and never trusted without their checksum."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from pathlib import Path

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.adapters.storage.older_stores import older_database
from tests.adapters.storage.store_conformance import anyio_backend  # noqa: F401 - pytest finds it here: both event loops

from callboard.adapters.storage.packing import (
    DICTIONARY,
    PACKED,
    SMALLEST_RECORD,
    SMALLEST_ROW,
    pack,
    record_crc,
    row_crc,
    unpack,
)
from callboard.adapters.storage.sqlite import open_store
from callboard.adapters.storage.sqlite.schema import PAGE_BYTES, VERSION
from callboard.ports.store import Append, Put

pytestmark = pytest.mark.anyio
TEXT = json.dumps(
    {"v": 1, "t": "tool_finished", "content": [{"type": "text", "text": "line of text\n" * 200}]}
).encode()


def test_the_dictionary_stays_as_it_is() -> None:
    """Values in every store refer to it."""
    digest = hashlib.sha256(DICTIONARY).hexdigest()
    assert digest == "e8438a3924f2da7bed115d090dc5ba847e58c65237b5b806a41f0f74c81ec7ac"


@pytest.mark.parametrize("data", [TEXT, TEXT[:SMALLEST_RECORD], b"{}", b"", os.urandom(5_000), bytes(200_000)])
def test_a_value_comes_back_with_its_checksum(data: bytes) -> None:
    stored, crc = pack(data, 7, SMALLEST_RECORD)
    assert unpack(stored, crc) == (data, 7)
    assert len(stored) <= len(data)
    assert bool(crc & PACKED) == (len(stored) < len(data))


def test_values_are_packed_from_a_size_on_and_only_if_that_saves_something() -> None:
    assert len(pack(TEXT, 7, SMALLEST_ROW)[0]) < len(TEXT) / 4
    small = TEXT[: SMALLEST_RECORD - 1]
    assert pack(small, 7, SMALLEST_RECORD) == (small, 7)
    noise = os.urandom(5_000)
    assert pack(noise, 7, SMALLEST_RECORD) == (noise, 7)


@pytest.mark.parametrize("place", range(0, 64, 7))
def test_a_damaged_packed_value_does_not_pass_for_the_value(place: int) -> None:
    crc = record_crc("s", 1, None, TEXT)
    stored, column = pack(TEXT, crc, SMALLEST_RECORD)
    damaged = bytearray(stored)
    damaged[place] ^= 4
    data, checksum = unpack(bytes(damaged), column)
    assert record_crc("s", 1, None, data) != checksum


async def test_a_store_of_the_first_version_is_read_and_takes_packed_values(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    database = older_database(folder, 1)
    database.execute("INSERT INTO stream (number, name) VALUES (1, 's')")
    first = (1 << 40 | 1, "id", record_crc("s", 1, "id", TEXT), TEXT)
    database.execute("INSERT INTO record (place, id, crc, data) VALUES (?, ?, ?, ?)", first)
    row = ("k", 1, row_crc("k", 1, TEXT), TEXT)
    database.execute("INSERT INTO row (key, revision, crc, value) VALUES (?, ?, ?, ?)", row)
    database.close()
    store = await open_store(folder)
    await store.commit(Append("s", TEXT, expected=1), Put("l", TEXT))
    assert [record.data for record in await store.read("s")] == [TEXT, TEXT]
    assert [row.value for row in await store.keys("")] == [TEXT, TEXT]
    assert await store.check() == ()
    await store.aclose()
    database = apsw.Connection(str(folder / "callboard.db"))
    assert database.execute("PRAGMA user_version").fetchall() == [(VERSION,)]
    lengths = database.execute("SELECT length(data), crc >= 1 << 32 FROM record ORDER BY place").fetchall()
    database.close()
    assert lengths[0] == (len(TEXT), 0)
    assert lengths[1][0] < len(TEXT) / 4
    assert lengths[1][1] == 1


async def test_an_older_file_keeps_the_size_of_its_pages(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    await (await open_store(folder)).aclose()
    database = apsw.Connection(str(folder / "callboard.db"))
    assert database.execute("PRAGMA page_size").fetchall() == [(PAGE_BYTES,)]
    for statement in ("PRAGMA journal_mode = DELETE", "PRAGMA page_size = 4096", "VACUUM", "PRAGMA journal_mode = WAL"):
        database.execute(statement).fetchall()
    database.close()
    store = await open_store(folder)
    await store.commit(Append("s", TEXT))
    assert len(await store.read("s")) == 1
    await store.aclose()
    database = apsw.Connection(str(folder / "callboard.db"))
    assert database.execute("PRAGMA page_size").fetchall() == [(4096,)]
    database.close()


@given(values=st.lists(st.binary(max_size=300).map(lambda part: part * 40), max_size=5))
def test_a_value_is_packed_the_same_whatever_was_packed_before(values: list[bytes]) -> None:
    """A copy of the prepared compressor leaves no trace in it."""
    alone = zlib.compressobj(1, zlib.DEFLATED, -12, 4, zlib.Z_DEFAULT_STRATEGY, DICTIONARY)
    expected = alone.compress(TEXT) + alone.flush()
    for value in values:
        stored, crc = pack(value, 7, SMALLEST_RECORD)
        assert unpack(stored, crc) == (value, 7)
    assert pack(TEXT, 7, SMALLEST_RECORD)[0] == expected

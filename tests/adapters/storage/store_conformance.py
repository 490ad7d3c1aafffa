"""Rules for every store, stated in `callboard.ports.store`, as tests that an adapter's test module inherits.

An adapter subclasses `StoreConformance` and implements `open`, which opens the store in `place`; opening the same place
twice gives two processes' views of the same contents. Every test runs on asyncio and on trio, and waits only for
events.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from callboard.ports.store import Append, Delete, Expect, Fence, LeaseHolder, Put, Record, Row, Store
from callboard.types.errors import Conflict, Fenced

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class StoreConformance:
    """Conformance tests: inherit, implement `open`, and import `anyio_backend`."""

    async def open(self, place: Path) -> Store:
        raise NotImplementedError

    @asynccontextmanager
    async def opened(self, place: Path) -> AsyncGenerator[Store, None]:
        store = await self.open(place)
        try:
            with anyio.fail_after(180):
                yield store
        finally:
            with anyio.CancelScope(shield=True):
                await store.aclose()

    async def test_a_stream_counts_from_one_without_gaps(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            assert await store.last("s") == 0
            assert await store.read("s") == []
            assert await store.commit(Append("s", b"a"), Append("s", b"b"), Append("t", b"x")) == (1, 2, 1)
            assert await store.commit(Append("s", b"c")) == (3,)
            assert list(await store.read("s")) == [Record(1, b"a"), Record(2, b"b"), Record(3, b"c")]
            assert [r.data for r in await store.read("s", after=1)] == [b"b", b"c"]
            assert [r.data for r in await store.read("s", after=1, limit=1)] == [b"b"]
            assert list(await store.read("s", after=3)) == []
            assert (await store.last("s"), await store.last("t")) == (3, 1)

    async def test_an_empty_record_and_any_name_are_kept(self, tmp_path: Path) -> None:
        names = ["", "a b", "ü/日本", "x\ny", "q'\"%_*"]
        async with self.opened(tmp_path) as store:
            for name in names:
                assert await store.commit(Append(name, b""), Put(name, b"")) == (1, (await store.get(name)).revision)
            assert [row.key for row in await store.keys("")] == sorted(names)
            assert list(await store.read("ü/日本")) == [Record(1, b"")]

    async def test_an_id_seen_before_appends_nothing_and_its_number_comes_back(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            assert await store.commit(Append("s", b"a", id="x"), Append("s", b"a", id="x")) == (1, 1)
            assert await store.commit(Append("s", b"b")) == (2,)
            assert await store.commit(Append("s", b"again", id="x"), Append("s", b"c")) == (1, 3)
            assert await store.commit(Append("other", b"a", id="x")) == (1,)
            assert [r.data for r in await store.read("s")] == [b"a", b"b", b"c"]

    async def test_an_id_seen_before_wins_over_an_expectation_so_a_commit_may_be_repeated(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            again = Append("s", b"a", id="x", expected=0)
            assert await store.commit(again) == (1,)
            assert await store.commit(again) == (1,)

    async def test_an_append_that_expects_another_number_conflicts_and_nothing_happens(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            assert await store.commit(Append("s", b"a", expected=0), Append("s", b"b", expected=1)) == (1, 2)
            with pytest.raises(Conflict) as raised:
                await store.commit(Put("k", b"v"), Append("t", b"x"), Append("s", b"c", expected=1))
            assert (raised.value.what, raised.value.expected, raised.value.found) == ("s", 1, 2)
            assert await store.get("k") is None
            assert await store.last("t") == 0
            assert await store.last("s") == 2

    async def test_an_expectation_writes_nothing_and_conflicts_with_another_number(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            assert await store.commit(Expect("s", 0), Put("k", b"v"))
            assert await store.commit(Append("s", b"a"), Expect("s", 1)) == (1, 0), "appends of the commit count"
            assert await store.commit(Expect("s", 1)) == (0,)
            for expected in (0, 2):
                with pytest.raises(Conflict) as raised:
                    await store.commit(Append("t", b"x"), Put("k", b"w"), Expect("s", expected))
                assert (raised.value.what, raised.value.expected, raised.value.found) == ("s", expected, 1)
            assert await store.last("t") == 0
            row = await store.get("k")
            assert row is not None
            assert row.value == b"v"

    async def test_an_expectation_wakes_no_follower(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store, store.follow("s") as records:
            await store.commit(Expect("s", 0))
            await store.commit(Append("s", b"a"))
            assert await anext(aiter(records)) == Record(1, b"a")

    async def test_a_key_is_put_read_and_deleted(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            (revision,) = await store.commit(Put("k", b"v"))
            assert await store.get("k") == Row("k", b"v", revision)
            assert await store.commit(Delete("k")) == (0,)
            assert await store.get("k") is None
            assert await store.commit(Delete("k"), Delete("never")) == (0, 0)

    async def test_a_revision_never_falls_also_over_deletion(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            (first,) = await store.commit(Put("k", b"1"))
            (second,) = await store.commit(Put("k", b"2"))
            await store.commit(Delete("k"))
            (third,) = await store.commit(Put("k", b"3", expected=0))
            (other,) = await store.commit(Put("j", b"1"))
            assert (first, second, third, other) == (1, 2, 4, 1)

    async def test_each_key_counts_its_own_revisions(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            assert await store.commit(Put("a", b"1"), Put("b", b"1"), Put("a", b"2")) == (1, 1, 2)
            assert await store.commit(Put("b", b"2", expected=1), Delete("a", expected=2)) == (2, 0)
            assert await store.commit(Delete("a"), Delete("c")) == (0, 0)
            assert await store.commit(Put("a", b"3", expected=0), Put("c", b"1", expected=0)) == (4, 1)
            assert [(row.key, row.revision) for row in await store.keys("")] == [("a", 4), ("b", 2), ("c", 1)]

    async def test_a_put_that_expects_another_revision_conflicts_and_nothing_happens(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            (revision,) = await store.commit(Put("k", b"v", expected=0))
            with pytest.raises(Conflict) as raised:
                await store.commit(Put("other", b"v"), Put("k", b"w", expected=0))
            assert (raised.value.expected, raised.value.found) == (0, revision)
            with pytest.raises(Conflict):
                await store.commit(Delete("k", expected=revision + 1))
            with pytest.raises(Conflict):
                await store.commit(Delete("nothing", expected=revision))
            assert await store.get("other") is None
            await store.commit(Put("k", b"w", expected=revision))
            assert (await store.get("k")).value == b"w"

    async def test_keys_are_those_with_the_prefix_in_order(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            await store.commit(*(Put(key, b"") for key in ["b/2", "a", "b/10", "b/", "b0", "b", "b/\U0010ffffz"]))
            await store.commit(Put("b/gone", b""), Delete("b/gone"))
            assert [row.key for row in await store.keys("b/")] == ["b/", "b/10", "b/2", "b/\U0010ffffz"]
            assert [row.key for row in await store.keys("b/\U0010ffff")] == ["b/\U0010ffffz"]
            assert await store.keys("c") == []

    async def test_only_one_of_many_racers_wins_a_key(self, tmp_path: Path) -> None:
        won: list[int] = []

        async def race(store: Store, number: int) -> None:
            try:
                await store.commit(Put("k", str(number).encode(), expected=0))
                won.append(number)
            except Conflict:
                pass

        async with self.opened(tmp_path) as store:
            async with anyio.create_task_group() as tasks:
                for number in range(20):
                    tasks.start_soon(race, store, number)
            assert len(won) == 1
            assert (await store.get("k")).value == str(won[0]).encode()

    async def test_commits_at_once_are_all_there_each_whole(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            async with anyio.create_task_group() as tasks:
                for number in range(100):
                    data = str(number).encode()
                    tasks.start_soon(store.commit, Append("s", data, id=str(number)), Append("s", data))
            records = [r.data for r in await store.read("s")]
            assert len(records) == 200
            assert records[0::2] == records[1::2]

    async def test_contents_outlive_the_store_object(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            (revision,) = await store.commit(Put("k", b"v"))
            await store.commit(Append("s", b"a", id="x"))
            digest = await store.put_blob(b"blob")
        async with self.opened(tmp_path) as store:
            assert await store.get("k") == Row("k", b"v", revision)
            assert await store.commit(Append("s", b"a", id="x"), Append("s", b"b")) == (1, 2)
            assert await store.get_blob(digest) == b"blob"
            assert await store.commit(Put("k", b"w", expected=revision)) == (revision + 1,)

    async def test_a_follower_gets_what_there_is_and_what_comes(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            await store.commit(Append("s", b"1"), Append("s", b"2"))
            got: list[Record] = []
            async with store.follow("s", after=1) as records, anyio.create_task_group() as tasks:

                async def write() -> None:
                    for number in range(3, 40):
                        await store.commit(Append("s", str(number).encode()), Append("noise", b""))

                tasks.start_soon(write)
                async for record in records:
                    got.append(record)
                    if record.seq == 39:
                        break
            assert got == [Record(number, str(number).encode()) for number in range(2, 40)]

    async def test_a_follower_that_is_cancelled_while_waiting_misses_nothing(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store, store.follow("s") as records:
            with anyio.move_on_after(0.02):
                await anext(records)
            await store.commit(Append("s", b"1"), Append("s", b"2"))
            assert [await anext(records), await anext(records)] == [Record(1, b"1"), Record(2, b"2")]

    async def test_a_follower_hears_another_process(self, tmp_path: Path) -> None:
        async with (
            self.opened(tmp_path) as here,
            self.opened(tmp_path) as there,
            here.follow("s") as records,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(there.commit, Append("s", b"hello"))
            assert await anext(records) == Record(1, b"hello")

    async def test_a_follower_hears_another_process_that_wrote_while_it_slept(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as here, self.opened(tmp_path) as there, here.follow("s") as records:
            with anyio.move_on_after(0.05):
                await anext(records)
            await there.commit(Append("s", b"hello"))
            with anyio.fail_after(180):
                assert await anext(records) == Record(1, b"hello")

    async def test_a_watcher_gets_the_rows_there_are_then_each_change(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            await store.commit(Put("a/2", b"two"), Put("a/1", b"one"), Put("b", b""), Put("a/0", b""))
            await store.commit(Delete("a/0"))
            async with store.watch("a/") as rows:
                assert [(await anext(rows)).key for _ in range(2)] == ["a/1", "a/2"]
                await store.commit(Put("b", b"not seen"))
                (revision,) = await store.commit(Put("a/1", b"new"))
                assert await anext(rows) == Row("a/1", b"new", revision)
                await store.commit(Delete("a/2"))
                assert await anext(rows) == Row("a/2", None, 2)

    async def test_after_the_rows_there_are_a_watcher_gets_only_changes(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            await store.commit(Put("a/1", b"one"), Put("b", b""), Put("a/2", b"two"))
            async with store.watch("a/") as rows, store.watch("c") as none:
                assert list(await rows.existing()) == [Row("a/1", b"one", 1), Row("a/2", b"two", 1)]
                assert list(await none.existing()) == []
                await store.commit(Delete("a/1"), Put("c", b""))
                assert await anext(rows) == Row("a/1", None, 2)
                assert await anext(none) == Row("c", b"", 1)

    async def test_two_watchers_each_have_their_own_position(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as here, self.opened(tmp_path) as there:
            await here.commit(*(Put(f"a/{number}", b"") for number in range(5)), Put("b/0", b""))
            async with here.watch("a/") as first, there.watch("b/") as second, here.watch("a/") as third:
                assert [(await anext(first)).key for _ in range(5)] == [f"a/{number}" for number in range(5)]
                await there.commit(Put("b/0", b"new"), Put("a/9", b"", expected=0))
                assert (await anext(first)).key == "a/9"
                seen = {row.key: row.revision for row in [await anext(second), *second.at_hand()]}
                assert seen == {"b/0": 2}
                await here.commit(Put("a/0", b"new"))
                assert await anext(first) == Row("a/0", b"new", 2)
                keys = [(await anext(third)).key, *(row.key for row in third.at_hand())]
                assert sorted(set(keys)) == ["a/0", "a/1", "a/2", "a/3", "a/4", "a/9"]

    async def test_a_watcher_of_nothing_hears_the_first_row(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as here, self.opened(tmp_path) as there, here.watch("a/") as rows:
            with anyio.move_on_after(0.02):
                await anext(rows)
            await there.commit(Put("a/1", b"x"))
            assert (await anext(rows)).key == "a/1"

    async def test_what_a_watcher_has_at_hand_makes_every_commit_whole(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as here, self.opened(tmp_path) as there, here.watch("a/") as rows:
            assert rows.at_hand() == ()
            for number in range(20):
                text = str(number).encode()
                await there.commit(Put("a/1", text), Put("b", text), Put("a/2", text), Put("a/3", text))
            seen: dict[str, bytes | None] = {}
            async for row in rows:
                seen |= {one.key: one.value for one in (row, *rows.at_hand())}
                assert len(set(seen.values())) == 1, "no reader sees half a commit"
                assert set(seen) == {"a/1", "a/2", "a/3"}
                if row.value == b"19":
                    break

    async def test_a_burst_ends_with_the_newest(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store, store.watch("k") as rows:
            for number in range(50):
                await store.commit(Put("k", str(number).encode()))
            async for row in rows:
                if row.value == b"49":
                    break

    async def test_a_blob_comes_back_by_its_digest(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            for data in (b"", b"small", bytes(range(256)) * 8192):
                digest = await store.put_blob(data)
                assert digest == hashlib.sha256(data).hexdigest()
                assert await store.put_blob(data) == digest
                assert await store.get_blob(digest) == data
            with pytest.raises(KeyError):
                await store.get_blob("0" * 64)
            with pytest.raises(KeyError):
                await store.get_blob("../../etc/passwd")

    async def test_a_lease_has_one_holder_and_is_free_after_release(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as here, self.opened(tmp_path) as there:
            assert await here.holder("host") is None
            lease = await here.acquire("host")
            assert not isinstance(lease, LeaseHolder)
            refused = await there.acquire("host")
            assert isinstance(refused, LeaseHolder)
            assert await there.holder("host") == refused == await here.holder("host")
            assert isinstance(await here.acquire("host"), LeaseHolder)
            await lease.release()
            await lease.release()
            assert await there.holder("host") is None
            taken = await there.acquire("host")
            assert not isinstance(taken, LeaseHolder)
            assert taken.fence == Fence("host", lease.fence.number + 1)

    async def test_a_lease_is_free_when_its_store_closed(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as there:
            async with self.opened(tmp_path) as here:
                assert not isinstance(await here.acquire("host"), LeaseHolder)
            assert await there.holder("host") is None
            assert not isinstance(await there.acquire("host"), LeaseHolder)

    async def test_processes_are_present_with_their_leases_and_their_statements(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as here:
            async with self.opened(tmp_path) as there:
                assert await here.present() == []
                lease = await here.acquire("host-1")
                assert not isinstance(lease, LeaseHolder)
                assert not isinstance(await here.acquire("host-2"), LeaseHolder)
                (one,) = await there.present()
                assert (one.leases, one.about, one.holder) == (("host-1", "host-2"), b"", await there.holder("host-1"))
                assert one.machine
                assert 0.0 <= one.silent < 10.0
                await there.announce(b"first")
                await there.announce(b"second")
                await lease.release()
                present = {each.about: each.leases for process in (here, there) for each in await process.present()}
                # Two stores of one process are one process to a store of files.
                assert present in ({b"": ("host-2",), b"second": ()}, {b"second": ("host-2",)})
            assert [each.about for each in await here.present()] == [b""], "a statement ends with its store"

    async def test_a_stale_fence_is_refused_and_nothing_happens(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            old = await store.acquire("host")
            assert not isinstance(old, LeaseHolder)
            await store.commit(Append("s", b"1"), fence=old.fence)
            await old.release()
            new = await store.acquire("host")
            assert not isinstance(new, LeaseHolder)
            with pytest.raises(Fenced):
                await store.commit(Append("s", b"stale"), Put("k", b""), fence=old.fence)
            with pytest.raises(Fenced):
                await store.commit(fence=Fence("never", 1))
            assert await store.commit(Append("s", b"2"), fence=new.fence) == (2,)
            assert await store.get("k") is None
            assert await store.commit() == ()

    async def test_closing_ends_followers_and_may_be_repeated(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            ended: list[str] = []

            async def follow() -> None:
                async with store.follow("s") as records:
                    ended.extend([str(record.seq) async for record in records])
                    ended.append("end")

            async def watch() -> None:
                async with store.watch("") as rows:
                    ended.extend([row.key async for row in rows])
                    ended.append("end")

            await store.commit(Append("s", b""))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(follow)
                tasks.start_soon(watch)
                await anyio.sleep(0.05)
                await store.aclose()
                await store.aclose()
            assert sorted(ended) == ["1", "end", "end"]
            with pytest.raises(RuntimeError):
                await store.commit(Append("s", b""))
            with pytest.raises(RuntimeError):
                await store.last("s")

"""Which rows and which mail a guarded session accepts: on a real SQLite file that another process writes as well."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from callboard.adapters.storage.durable import DurableStore
from callboard.adapters.storage.sqlite import open_store
from callboard.core.approvals.requests import answer, open_request
from callboard.core.approvals.vouching import vouched_digests, write_digest
from callboard.core.keys import agent_key, mailbox, request_key, rule_key
from callboard.core.messaging.envelopes import envelope_write
from callboard.engine.approvals.answer_guard import AnswerGuard
from callboard.engine.commands import prompt_envelope
from callboard.engine.row_cache import RowCache
from callboard.ports.store import Append, Delete, Put, Row, Write
from callboard.types.records import AgentRow, Envelope, Request, SessionRule

SESSION = "s1"
KEY = request_key(SESSION, "req_1")
ASKED = open_request(
    Request(id="req_1", kind="question", asked_by="amy", may_answer=("person",), subject="?", created_at=1.0)
)
RULE = SessionRule(id="rule_1", rule="Bash(touch:*)", created_by="person", created_at=1.0)
LEAD = AgentRow(name="lead", kind="lead", role="lead", agent_type="lead", spec="", created_at=1.0, since=1.0)


def answered() -> Request:
    result = answer(ASKED, "question", by="person", status="answered", reason="yes", now=2.0)
    assert isinstance(result, Request)
    return result


@dataclass
class World:
    """A host with a guard, and the same database as another process sees it."""

    store: DurableStore
    other: DurableStore
    board: RowCache
    guard: AnswerGuard = field(init=False)
    reports: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.guard = AnswerGuard(SESSION, self.store, self.board, commit=self.commit, report=self.report)

    async def commit(self, write: Write) -> None:
        """Commit as a host does: expected by the guard, and applied to the cache."""
        self.guard.expect([write])
        (number,) = await self.store.commit(write)
        if isinstance(write, Put):
            self.board.take(Row(write.key, write.value, number))

    async def report(self, forged: str, *, shown: bool = False) -> None:
        self.reports.append(forged)

    async def follow(self, *keys: str) -> None:
        """Take the rows as the watch of the host brings them."""
        for key in keys:
            row = await self.store.get(key)
            await self.guard.take(row or Row(key, None, self.board.revision(key) + 1))

    async def status(self) -> tuple[str, str]:
        """Return the status of the request in the cache and in the store."""
        cached = self.board.request("req_1")
        row = await self.store.get(KEY)
        assert cached is not None
        assert row is not None
        assert row.value is not None
        return cached[0].status, Request.model_validate_json(row.value).status


@asynccontextmanager
async def hosting(folder: Path) -> AsyncIterator[World]:
    """A session with a lead and a pending request, whose guard has begun."""
    store = await open_store(folder, durability="full", notice=lambda text: None)
    other = await open_store(folder, durability="full", notice=lambda text: None)
    world = World(store, other, RowCache(SESSION, lambda kind, name: None))
    await store.commit(Put(agent_key(SESSION, "lead"), LEAD.encode()), Put(KEY, ASKED.encode()))
    world.board.take(*await store.keys(f"s/{SESSION}/"))
    await world.guard.begin()
    try:
        yield world
    finally:
        await other.aclose()
        await store.aclose()


@pytest.mark.anyio
async def test_an_answer_that_nobody_announced_is_undone_and_reported(tmp_path: Path) -> None:
    async with hosting(tmp_path) as world:
        await world.other.commit(Put(KEY, answered().encode()))
        await world.follow(KEY)
        assert await world.status() == ("pending", "pending")
        assert world.reports == ["request req_1"]


@pytest.mark.anyio
async def test_an_announced_answer_counts_once(tmp_path: Path) -> None:
    async with hosting(tmp_path) as world:
        write = Put(KEY, answered().encode())
        world.guard.accept_digests(vouched_digests(SESSION, [write]))
        await world.other.commit(write)
        await world.follow(KEY)
        assert await world.status() == ("answered", "answered")
        await world.commit(Put(KEY, ASKED.encode()))
        await world.other.commit(write)
        await world.follow(KEY)
        assert await world.status() == ("pending", "pending")
        assert world.reports == ["request req_1"]


@pytest.mark.anyio
async def test_an_announcement_is_for_one_value_of_one_row(tmp_path: Path) -> None:
    async with hosting(tmp_path) as world:
        world.guard.accept_digests(vouched_digests(SESSION, [Put(request_key(SESSION, "req_2"), answered().encode())]))
        world.guard.accept_digests(vouched_digests(SESSION, [Delete(KEY)]))
        await world.other.commit(Put(KEY, answered().encode()))
        await world.follow(KEY)
        assert await world.status() == ("pending", "pending")


@pytest.mark.anyio
async def test_own_writes_count_also_if_the_watch_is_faster(tmp_path: Path) -> None:
    async with hosting(tmp_path) as world:
        write = Put(KEY, answered().encode())
        world.guard.expect([write])
        await world.store.commit(write)
        await world.follow(KEY)
        assert await world.status() == ("answered", "answered")
        assert world.reports == []


@pytest.mark.anyio
async def test_new_rules_and_deleted_rows_are_undone(tmp_path: Path) -> None:
    async with hosting(tmp_path) as world:
        rule = rule_key(SESSION, RULE.id)
        await world.other.commit(Put(rule, RULE.encode()), Delete(KEY))
        await world.follow(rule, KEY)
        assert (world.board.rules(), await world.store.get(rule)) == ([], None)
        assert await world.status() == ("pending", "pending")
        assert sorted(world.reports) == ["request req_1", "session rule rule_1"]


@pytest.mark.anyio
async def test_other_rows_of_other_processes_count(tmp_path: Path) -> None:
    async with hosting(tmp_path) as world:
        key = agent_key(SESSION, "amy")
        await world.other.commit(Put(key, LEAD.model_copy(update={"name": "amy"}).encode()))
        await world.follow(key)
        assert world.board.agent("amy") is not None


@pytest.mark.anyio
@pytest.mark.parametrize("sound", [True, False], ids=["with a valid checksum", "damaged"])
async def test_a_row_that_was_changed_at_its_revision_is_found_by_a_check(tmp_path: Path, sound: bool) -> None:
    async with hosting(tmp_path) as world:
        with sqlite3.connect(tmp_path / "callboard.db") as database:
            ((revision,),) = database.execute("SELECT revision FROM row WHERE key = ?", (KEY,)).fetchall()
            value = answered().encode()
            crc = zlib.crc32(value, zlib.crc32(repr((revision, KEY)).encode())) if sound else 1
            database.execute("UPDATE row SET value = ?, crc = ? WHERE key = ?", (value, crc, KEY))
        await world.guard.check()
        assert await world.status() == ("pending", "pending")
        assert world.reports == ["request req_1"]
        await world.guard.check()
        assert world.reports == ["request req_1"], "nothing is reported twice"


@pytest.mark.anyio
async def test_a_check_finds_rows_that_were_added_and_deleted(tmp_path: Path) -> None:
    async with hosting(tmp_path) as world:
        await world.other.commit(Put(rule_key(SESSION, RULE.id), RULE.encode()), Delete(KEY))
        await world.guard.check()
        assert await world.store.get(rule_key(SESSION, RULE.id)) is None
        assert await world.status() == ("pending", "pending")


def record_of(envelope: Envelope) -> tuple[str, bytes, Append]:
    write = envelope_write(SESSION, envelope)
    return write.stream, write.record, write


@pytest.mark.anyio
async def test_mail_of_the_person_counts_if_it_is_old_or_announced(tmp_path: Path) -> None:
    prompt = prompt_envelope(SESSION, "go on", now=1.0, nonce="1")
    stream, record, write = record_of(prompt)
    async with hosting(tmp_path) as world:
        assert not world.guard.admits(stream, 1, record, prompt)
        await world.store.commit(write)
        await world.guard.begin()
        assert world.guard.admits(stream, 1, record, prompt), "it was there when the guard began"
        assert not world.guard.admits(stream, 2, record, prompt)
        world.guard.accept_digests(vouched_digests(SESSION, [write]))
        assert world.guard.admits(stream, 2, record, prompt)
        assert world.guard.admits(stream, 2, record, prompt), "a mailbox can be read twice"
        assert not world.guard.admits(mailbox(SESSION, "amy", 1), 1, record, prompt)


@pytest.mark.anyio
async def test_how_a_record_is_written_does_not_hide_its_sender(tmp_path: Path) -> None:
    prompt = prompt_envelope(SESSION, "go on", now=1.0, nonce="1")
    spaced = prompt.model_dump_json(indent=1).encode()
    async with hosting(tmp_path) as world:
        world.guard.expect([Append(mailbox(SESSION, "lead", 1), spaced)])
        assert not world.guard.admits(mailbox(SESSION, "lead", 1), 1, spaced, Envelope.model_validate_json(spaced))


@pytest.mark.anyio
async def test_mail_of_agents_needs_no_announcement_but_a_command_does(tmp_path: Path) -> None:
    mail = prompt_envelope(SESSION, "go on", now=1.0, nonce="1").model_copy(update={"sender": "amy"})
    async with hosting(tmp_path) as world:
        assert world.guard.admits("m/s1/lead.1", 1, mail.encode(), mail)
        command = mail.model_copy(update={"sender": "runtime", "type": "command"})
        assert not world.guard.admits("m/s1/lead.1", 1, command.encode(), command)


def test_a_digest_names_the_key_the_value_and_a_deletion() -> None:
    digests = {write_digest("a", b"b"), write_digest("ab", b""), write_digest("a", None), write_digest("a", b"-")}
    assert len(digests) == 4

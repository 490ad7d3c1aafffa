"""Sessions that are damaged, or that a newer Callboard wrote, are named, and all others still work."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import apsw
import pytest
from tests.cli.commands.command import Command
from tests.simulation.processes import no_traceback, started
from tests.simulation.serving import new_session, one_shot, stand_of

from callboard import __version__
from callboard.adapters.storage.packing import record_crc, row_crc, unpack
from callboard.adapters.storage.sqlite.schema import SEQ_BITS
from callboard.core.keys import agent_key, journal, mailbox, schedule_key, session_key
from callboard.ports.store import Append, Put


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


class Database:
    """The database of a command's workspace, changed without Callboard."""

    def __init__(self, command: Command) -> None:
        (self.file,) = Path(command.env["XDG_STATE_HOME"]).rglob("callboard.db")

    def flip_record(self, stream: str, seq: int) -> None:
        """Change one bit of a record, as a disk fault does."""
        place, _, data = self._record(stream, seq)
        self._run("UPDATE record SET data = ? WHERE place = ?", (_flipped(data), place))

    def flip_row(self, key: str) -> None:
        ((value,),) = self._run("SELECT value FROM row WHERE key = ?", (key,))
        self._run("UPDATE row SET value = ? WHERE key = ?", (_flipped(value), key))

    def rewrite_record(self, stream: str, seq: int, data: bytes) -> None:
        """Replace a record, with a valid checksum, as another version would have written it."""
        place, record_id, _ = self._record(stream, seq)
        crc = record_crc(stream, seq, record_id, data)
        self._run("UPDATE record SET data = ?, crc = ? WHERE place = ?", (data, crc, place))

    def append_record(self, stream: str, data: bytes) -> None:
        seq = self.count(stream) + 1
        ((number,),) = self._run("SELECT number FROM stream WHERE name = ?", (stream,))
        row = ((number << SEQ_BITS) | seq, None, record_crc(stream, seq, None, data), data)
        self._run("INSERT INTO record (place, id, crc, data) VALUES (?, ?, ?, ?)", row)

    def rewrite_row(self, key: str, **fields: object) -> None:
        ((revision, value, crc),) = self._run("SELECT revision, value, crc FROM row WHERE key = ?", (key,))
        data = json.dumps({**json.loads(unpack(value, crc)[0]), **fields}).encode()
        self._run("UPDATE row SET value = ?, crc = ? WHERE key = ?", (data, row_crc(key, revision, data), key))

    def count(self, stream: str) -> int:
        return len(
            self._run("SELECT 1 FROM record WHERE place >> 40 = (SELECT number FROM stream WHERE name = ?)", (stream,))
        )

    def _record(self, stream: str, seq: int) -> tuple[int, str | None, bytes]:
        ((number,),) = self._run("SELECT number FROM stream WHERE name = ?", (stream,))
        place = (number << SEQ_BITS) | seq
        ((record_id, data),) = self._run("SELECT id, data FROM record WHERE place = ?", (place,))
        return place, record_id, data

    def _run(self, statement: str, bindings: tuple[object, ...]) -> list[tuple]:
        connection = apsw.Connection(str(self.file))
        try:
            return connection.execute(statement, bindings).fetchall()
        finally:
            connection.close()


def _flipped(data: bytes) -> bytes:
    return data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]


Damage = Callable[[Database, str], None]

DAMAGED: dict[str, Damage] = {
    "record": lambda base, session: base.flip_record(journal(session, "lead", 1), 5),
    "last_record": lambda base, session: base.flip_record(lead := journal(session, "lead", 1), base.count(lead)),
    "first_record": lambda base, session: base.flip_record(journal(session, "lead", 1), 1),
}
NEWER: dict[str, Damage] = {
    "event": lambda base, session: base.rewrite_record(
        journal(session, "lead", 1), 5, b'{"t":"dream_began","v":2,"at":1.0}'
    ),
    "version": lambda base, session: base.rewrite_record(
        journal(session, "lead", 1), 5, b'{"t":"agent_resumed","v":2,"at":1.0,"pid":1}'
    ),
    "envelope": lambda base, session: base.append_record(
        mailbox(session, "lead", 1), b'{"id":"env_x","sender":"person","recipient":"lead","type":"telepathy"}'
    ),
    "agent_row": lambda base, session: base.rewrite_row(agent_key(session, "lead"), life="dreaming"),
    "session_row": lambda base, session: base.rewrite_row(
        session_key(session), created_at={"wall": 1}, callboard="9.1.0"
    ),
}
LOST_ROWS: dict[str, Damage] = {
    "lost_session": lambda base, session: base.flip_row(session_key(session)),
    "lost_lead": lambda base, session: base.flip_row(agent_key(session, "lead")),
}


def copy_session(command: Command, session: str, names: list[str]) -> None:
    """Copy the session under each of the names, each with a schedule; this is cheaper than a process for each."""

    async def copying() -> None:
        async with stand_of(command) as stand:
            store, streams = stand.store, (journal(session, "lead", 1), mailbox(session, "lead", 1))
            for name in names:
                for row in await store.keys(f"s/{session}"):
                    value = (row.value or b"").replace(session.encode(), name.encode())
                    await store.commit(Put(row.key.replace(session, name), value))
                for stream in streams:
                    data = [one.data.replace(session.encode(), name.encode()) for one in await store.read(stream)]
                    await store.commit(*(Append(stream.replace(session, name), one) for one in data))
                shot = one_shot(1, time.time() + 1).model_copy(update={"id": f"cron_{name}"})
                await store.commit(Put(schedule_key(name, shot.id), shot.encode()))

    anyio.run(copying)


@pytest.mark.slow
def test_sessions_that_cannot_be_read_leave_all_others_served(command: Command) -> None:
    harms = {**DAMAGED, **NEWER, **LOST_ROWS}
    copy_session(command, new_session(command), ["sound", *harms])
    base = Database(command)
    for name, harm in harms.items():
        harm(base, name)
    base.rewrite_row(schedule_key("sound", "cron_sound"), name="kept")
    with started(command, "serve", "--json") as running:
        for name in ("sound", "lost_lead"):
            running.wait_for(f'"session": "{name}", "schedule": "cron_{name}", "text": "done', "out")
        for name in ("lost_session", *DAMAGED, *NEWER):
            running.wait_for(f'"event": "trouble", "session": "{name}"', "out")
        running.signal(signal.SIGTERM)
        ended = running.end()
    no_traceback(ended)
    assert ended.code == 143
    troubles = {one["session"]: one["text"] for one in ended.messages if one["event"] == "trouble"}
    assert all("is damaged: record" in troubles[name] for name in DAMAGED), troubles
    assert all("written by a newer Callboard" in troubles[name] for name in NEWER), troubles
    assert "9.1.0" in troubles["session_row"], "the version is named if it is known"
    assert "ANTHROPIC_API_KEY" in troubles["lost_session"], "only its model is lost"
    assert not any("validation error" in text.lower() for text in troubles.values())


def test_serve_reports_the_lost_schedule_of_a_session_that_has_no_other(command: Command) -> None:
    copy_session(command, new_session(command), ["sound", "without"])
    Database(command).flip_row(schedule_key("without", "cron_without"))
    with started(command, "serve", "--json") as running:
        running.wait_for('"event": "trouble", "session": "without", "schedule": "cron_without"', "out")
        running.signal(signal.SIGTERM)
        ended = running.end()
    (text,) = [one["text"] for one in ended.messages if one["event"] == "trouble"]
    assert text == "the row of schedule cron_without was damaged and is lost: add it again if it is needed"


@pytest.mark.slow
def test_lists_and_doctor_name_the_state_the_loss_and_the_command(command: Command) -> None:
    harms = {**DAMAGED, **NEWER, **LOST_ROWS}
    copy_session(command, new_session(command), ["sound", *harms])
    base = Database(command)
    for name, harm in harms.items():
        harm(base, name)
    shown = {one["id"]: one for one in json.loads(command.run_inline("sessions", "--json").out)}
    assert shown["sound"]["trouble"] == ""
    for name in (*DAMAGED, *LOST_ROWS):
        assert shown[name]["state"] == "damaged", name
        assert f"`callboard resume {name}" in shown[name]["trouble"]
    for name in ("agent_row", "session_row"):
        assert shown[name]["state"] == "newer"
        assert "Upgrade Callboard" in shown[name]["trouble"]
    told = command.run_inline("doctor").out
    assert any(line.startswith("newer ") and "session agent_row" in line for line in told.splitlines()), told
    assert f"written by a newer Callboard (9.1.0; this is {__version__})" in told
    assert f"newer Callboard ({__version__})" not in told, "its own version is not mentioned as the newer one"
    for name in (*DAMAGED, *(one for one in NEWER if one != "envelope"), *LOST_ROWS):
        assert f"session {name} " in told, name
    for name in (*DAMAGED, *NEWER):
        ran = command.run_inline("resume", name)
        assert ran.code == (3 if name != "envelope" else ran.code), name
        assert "validation error" not in ran.err
    assert (
        "its journal" in command.run_inline("resume", "record").err
        or "--carry" in command.run_inline("resume", "record").err
    )
    team = command.run_inline("team", "--session", "record")
    assert (team.code, "record 5 of lead's journal cannot be read" in team.out) == (0, True), team.err


@pytest.mark.slow
def test_resume_carry_goes_on_past_a_damaged_record(command: Command) -> None:
    copy_session(command, new_session(command), [*DAMAGED])
    base = Database(command)
    for name in DAMAGED:
        DAMAGED[name](base, name)
        ran = command.run_inline("resume", name, "--carry")
        assert (ran.code, ran.out) == (0, "Done as asked.\n"), ran.err
        assert "was damaged: it continues in a fresh conversation" in ran.err
        again = command.run_inline("run", "--resume", name, "Once more.")
        assert (again.code, again.out) == (0, "Done as asked.\n"), again.err


@pytest.mark.slow
def test_the_snapshot_of_an_orderly_end_covers_all_damage_before_it(command: Command) -> None:
    session = new_session(command)
    base = Database(command)
    base.flip_record(journal(session, "lead", 1), 5)
    for args in (("run", "--resume", session, "Again."), ("cost", "--session", session), ("team",), ("context",)):
        ran = command.run_inline(*args)
        assert ran.code == 0, (args, ran.err)
    assert json.loads(command.run_inline("sessions", "--json").out)[0]["trouble"] == ""

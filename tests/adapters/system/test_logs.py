"""A session's log contains every line in order, from every process and place."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
import structlog

from callboard.adapters.system import logs
from callboard.adapters.system.logs import EventLog, log_file, logging_to
from callboard.engine.audience import Audience
from callboard.types.events import CallJudged, FileSeen, ToolFinished, ToolStarted, TurnEnded

pytestmark = pytest.mark.anyio


def _events(path: Path) -> list[str]:
    return [json.loads(line)["event"] for line in path.read_text().splitlines()]


@pytest.mark.usefixtures("anyio_backend")
async def test_lines_of_the_loop_and_of_threads_stand_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    path, log = tmp_path / "log" / "s.jsonl", structlog.get_logger("test")
    with logging_to(path):
        for number in range(3):
            log.info("loop", number=number)
        await anyio.to_thread.run_sync(log.warning, "thread")
        assert _events(path) == ["loop", "loop", "loop", "thread"]
        log.info("later")
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        assert _events(path)[-1] == "later"
        log.info("last")
    log.info("after the end")
    assert _events(path) == ["loop", "loop", "loop", "thread", "later", "last"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_without_a_loop_a_line_is_written_at_once(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    with logging_to(path):
        structlog.get_logger("test").info("now")
        assert _events(path) == ["now"]


def test_an_events_line_says_whose_it_is_and_which(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    with logging_to(path) as file:
        EventLog("s1", file).on_event("lead", 7, TurnEnded(at=1.0, turn="t1", reason="end"))
    (line,) = [json.loads(text) for text in path.read_text().splitlines()]
    assert line.pop("at") > 0
    expected = {"level": "info", "session": "s1", "agent": "lead", "turn": "", "step": 0, "seq": 7}
    assert line == {**expected, "reason": "end", "event": "turn_ended"}


def test_a_call_has_a_line_where_it_is_denied_ends_or_may_take_long(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    events = (
        CallJudged(at=1.0, call="read", verdict="allow", by="mode"),
        CallJudged(at=1.0, call="build", verdict="allow", by="mode"),
        CallJudged(at=1.0, call="other", verdict="deny", by="mode"),
        ToolStarted(at=1.0, call="read", effect="read"),
        ToolStarted(at=1.0, call="build", effect="unknown"),
        FileSeen(at=1.0, path="/w/notes", digest="d"),
        ToolFinished(at=1.0, call="read", content=()),
    )
    with logging_to(path) as file:
        audience = Audience([EventLog("s1", file)])
        for seq, event in enumerate(events):
            audience.on_event("lead", seq, event)
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    assert [(line["seq"], line["event"]) for line in lines] == [
        (2, "call_judged"),
        (4, "tool_started"),
        (6, "tool_finished"),
    ]


def test_every_line_is_json_whatever_a_program_says(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    with logging_to(path):
        structlog.get_logger("test").info("failed", trace="no caf\udce9", share=float("nan"))
    line = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert (line["trace"], line["share"]) == ("no caf?", None)


def test_a_folder_that_takes_no_log_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("")
    with logging_to(tmp_path / "log" / "s.jsonl"):
        structlog.get_logger("test").info("nowhere")


def test_a_log_that_is_full_gets_another_name_and_a_few_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "LARGEST", 200)
    path = tmp_path / "log" / "s.jsonl"
    with log_file(path) as file, log_file(path) as other:
        for number in range(60):
            (file, other)[number % 2].put(b"%050d\n" % number)
    names = sorted(one.name for one in path.parent.iterdir())
    assert names == ["s.jsonl", "s.jsonl.1", "s.jsonl.2", "s.jsonl.3"]
    assert all(one.stat().st_size < 800 for one in path.parent.iterdir())
    lines = [int(line) for name in reversed(names) for line in (path.parent / name).read_text().split()]
    assert max(lines) == 59
    assert len(lines) == len(set(lines))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk with 8 kB, and room for one file."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8k,nr_inodes=2", "none", str(place)]
    if (done := subprocess.run(mount, check=False, capture_output=True, text=True)).returncode:
        pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def give_room(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=1m,nr_inodes=20", str(disk)], check=True)


def test_a_log_that_gets_no_new_file_on_a_full_disk_goes_on(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LARGEST", 200)
    with log_file(disk / "s.jsonl") as file:
        for number in range(20):
            if number == 10:
                give_room(disk)
            file.put(b"%050d\n" % number)
    numbers = [int(line) for path in disk.iterdir() for line in path.read_text().split()]
    assert sorted(numbers) == list(range(20))


def test_a_line_that_a_full_disk_cuts_off_spoils_no_other(disk: Path) -> None:
    with log_file(disk / "s.jsonl") as file:
        for letter in (b"a", b"b", b"c", b"d"):
            file.put(letter * 2_999 + b"\n")
        give_room(disk)
        file.put(b"e" * 2_999 + b"\n")
    whole = [line[0] for line in (disk / "s.jsonl").read_text().splitlines() if len(line) == 2_999]
    assert whole == ["a", "b", "e"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.usefixtures("anyio_backend")
async def test_lines_of_events_are_written_together_and_no_other_line_overtakes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, log = tmp_path / "s.jsonl", structlog.get_logger("test")
    written: list[int] = []

    def write(descriptor: int, data: bytes) -> int:
        written.append(data.count(b"\n"))
        return os_write(descriptor, data)

    os_write = os.write
    monkeypatch.setattr(os, "write", write)
    with logging_to(path) as file:
        observer = EventLog("s1", file)
        for number in range(8):
            observer.on_event("lead", number, TurnEnded(at=1.0, turn="t1", reason="end"))
            await anyio.lowlevel.checkpoint()
        assert written == []
        await anyio.sleep(3 * logs.PAUSE)
        assert written == [8]
        observer.on_event("lead", 8, TurnEnded(at=1.0, turn="t1", reason="end"))
        log.warning("soon")
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        assert written == [8, 2]
        observer.on_event("lead", 9, TurnEnded(at=1.0, turn="t1", reason="end"))
        await anyio.to_thread.run_sync(log.warning, "thread")
        assert written == [8, 2, 2]
        observer.on_event("lead", 10, TurnEnded(at=1.0, turn="t1", reason="end"))
    assert written == [8, 2, 2, 1]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["seq"] for line in lines if "seq" in line] == list(range(11))
    assert [line["event"] for line in lines][-5:] == ["turn_ended", "soon", "turn_ended", "thread", "turn_ended"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.usefixtures("anyio_backend")
async def test_a_line_that_is_copied_to_stderr_does_not_wait(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with logging_to(tmp_path / "s.jsonl", debug=True) as file:
        EventLog("s1", file).on_event("lead", 0, TurnEnded(at=1.0, turn="t1", reason="end"))
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        assert json.loads(capfd.readouterr().err.removeprefix("[DEBUG] "))["event"] == "turn_ended"

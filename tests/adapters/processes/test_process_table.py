"""The table of processes from /proc and from `ps`, and descriptors of processes with and without pidfd."""

from __future__ import annotations

import datetime
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters.kernel import exits, process_table
from callboard.adapters.kernel.process_table import command_lines, read_command_lines, read_rows, row_of, rows
from callboard.adapters.processes import tool_ancestry
from callboard.adapters.processes.pids import in_session
from callboard.adapters.processes.sandbox import command_monitor

PRINTED = """    1     0 Ss   Fri Nov 27 01:14:47 2026
  412     1 S+   Thu Jan  1 00:00:01 1970
  413   412 Z    Fri Nov 27 01:14:47 2026
garbage
  414   412 S    Fri Nov 27 01:14 2026
"""


def test_rows_of_ps_are_read_without_zombies_and_garbage() -> None:
    found = read_rows(PRINTED)
    assert [(row.pid, row.parent) for row in found] == [(1, 0), (412, 1)]
    assert found[1].started == 1.0


@given(st.datetimes(min_value=datetime.datetime(1970, 1, 1), max_value=datetime.datetime(2199, 12, 31)))  # noqa: DTZ001 - UTC is added below
def test_a_date_of_ps_is_read_as_the_second_that_it_names(moment: datetime.datetime) -> None:
    utc = moment.replace(microsecond=0, tzinfo=datetime.UTC)
    assert process_table.seconds_of(utc.strftime("%a %b %d %H:%M:%S %Y").split()) == utc.timestamp()


def test_a_command_line_of_ps_is_read_with_its_parent() -> None:
    text = "  7     1 /usr/bin/python3 -I /opt/my files/launch_child.py out\n  8     7\n"
    assert read_command_lines(text) == {
        7: (1, [b"/usr/bin/python3", b"-I", b"/opt/my", b"files/launch_child.py", b"out"])
    }


def test_a_process_below_the_launcher_counts_as_a_tools_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CALLBOARD_TOOL", raising=False)
    own = os.getpid()
    lines = {own: (70, [b"callboard", b"approve"]), 70: (60, [b"sh"]), 60: (1, [b"python", b"/x/launch_child.py"])}
    monkeypatch.setattr(tool_ancestry, "has_proc", lambda: False)
    monkeypatch.setattr(tool_ancestry, "command_lines", lambda: lines)
    assert "process 60" in tool_ancestry.started_by_tool()
    lines[60] = (1, [b"login"])
    assert tool_ancestry.started_by_tool() == ""


def test_a_file_that_only_the_sandbox_hides_marks_a_tool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CALLBOARD_TOOL", raising=False)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(tool_ancestry, "has_proc", lambda: False)
    monkeypatch.setattr(tool_ancestry, "command_lines", dict[int, tuple[int, list[bytes]]])
    monkeypatch.setattr(tool_ancestry, "SEATBELT_MARK", str(tmp_path))
    assert tool_ancestry.started_by_tool() == ""

    def refused(path: str) -> None:
        raise PermissionError(1, "Operation not permitted", path)

    monkeypatch.setattr(tool_ancestry, "os", SimpleNamespace(environ={}, getpid=os.getpid, stat=refused))
    assert "sandbox of tools" in tool_ancestry.started_by_tool()


@pytest.fixture(params=["proc", "ps"])
def table(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Read the table from /proc, or from this machine's `ps`, whose columns are those of macOS."""
    if request.param == "ps":
        if not os.access(process_table.PS, os.X_OK):
            pytest.skip("ps is not installed here")
        monkeypatch.setattr(process_table, "has_proc", lambda: False)
    return str(request.param)


def test_the_table_shows_a_child_with_parent_session_and_command(table: str) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(["cat", "-"], start_new_session=True, **pipes) as child:
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(b"x\n")
            child.stdin.flush()
            child.stdout.readline()  # it runs: while it is started, its command line is empty for a moment
            row = row_of(child.pid)
            assert row is not None
            assert (row.pid, row.parent, row.session) == (child.pid, os.getpid(), child.pid)
            assert child.pid in {each.pid for each in rows()}
            assert list(in_session(child.pid)) == [child.pid]
            parent, words = command_lines()[child.pid]
            assert (parent, [word for word in words if word]) == (os.getpid(), [b"cat", b"-"])
        finally:
            child.kill()


def test_a_zombie_is_not_in_the_table(table: str) -> None:
    with subprocess.Popen(["true"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert row_of(child.pid) is None


def test_orphans_of_the_session_are_descendants_where_none_can_be_adopted(monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.getpid()
    table = [
        process_table.ProcessRow(own, 1, own, 1.0),
        process_table.ProcessRow(11, own, 11, 1.0),
        process_table.ProcessRow(12, 11, 11, 1.0),
        process_table.ProcessRow(13, 1, own, 1.0),
        process_table.ProcessRow(14, 13, 14, 1.0),
        process_table.ProcessRow(15, 1, 15, 1.0),
    ]
    monkeypatch.setattr(command_monitor, "rows", lambda: table)
    assert sorted(command_monitor.descendants()) == [11, 12]
    monkeypatch.setattr(command_monitor, "can_adopt", lambda: False)
    assert sorted(command_monitor.descendants()) == [11, 12, 13, 14]


class Queue:
    """Kernel queue of macOS: it finds no zombie."""

    def __init__(self, error: OSError | None) -> None:
        self.error = error
        self.reader, self.writer = os.pipe()

    def control(self, changes: list[Any], most: int) -> None:
        if self.error:
            raise self.error

    def fileno(self) -> int:
        return self.reader

    def close(self) -> None:
        os.close(self.reader)  # a copy of it is still open, and no event has come: the writer stays open


def with_queue(monkeypatch: pytest.MonkeyPatch, error: OSError | None) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    monkeypatch.delattr(signal, "pidfd_send_signal")
    for name, value in {"KQ_FILTER_PROC": -5, "KQ_EV_ADD": 1, "KQ_NOTE_EXIT": 1 << 31}.items():
        monkeypatch.setattr(select, name, value, raising=False)
    monkeypatch.setattr(select, "kqueue", lambda: Queue(error), raising=False)
    monkeypatch.setattr(select, "kevent", lambda *words, **named: (words, named), raising=False)


def test_a_zombie_has_ended_at_once_where_the_kernel_queue_finds_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with_queue(monkeypatch, ProcessLookupError(3, "No such process"))
    with subprocess.Popen(["true"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        descriptor = exits.open_process(child.pid)
        assert exits.has_ended(descriptor)
        with pytest.raises(ProcessLookupError):
            exits.signal_process(descriptor, child.pid, signal.SIGKILL)
        os.close(descriptor)
    with pytest.raises(ProcessLookupError):
        exits.open_process(child.pid)


def test_a_signal_goes_to_a_living_process_of_a_kernel_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    with_queue(monkeypatch, None)
    with subprocess.Popen(["sleep", "300"]) as child:
        try:
            descriptor = exits.open_process(child.pid)
            exits.signal_process(descriptor, child.pid, signal.SIGTERM)
            os.close(descriptor)
            assert child.wait(60) == -signal.SIGTERM
        finally:
            child.kill()

"""`callboard store`, `--store`, and backups of a store on a real PostgreSQL server."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cli.commands.command import Command
from tests.postgres_proxy import Proxy, proxied
from tests.postgres_server import PostgresServer
from tests.warm import Process

pytest.importorskip("psycopg", reason="the extra callboard[postgres] is not installed")

import anyio
from tests.adapters.storage.postgres_stores import opened

from callboard.adapters.storage.postgres import queries, writer
from callboard.adapters.storage.postgres import store as store_module
from callboard.sessions.serve_sessions import DRAIN_TIMEOUT

SCENARIO = "agents:\n  lead:\n    - reply: Done.\n    - reply: Done again.\n"


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


def sessions(command: Command, store: str) -> list[str]:
    return [row["id"] for row in json.loads(command.run_inline("sessions", "--json", CALLBOARD_STORE=store).out)]


def test_a_workspace_moves_to_a_server_continues_there_and_comes_back(
    server: PostgresServer, command: Command, tmp_path: Path
) -> None:
    model = command.scenario(SCENARIO)
    assert command.run_inline("run", "--model", model, "Do it.").code == 0
    (session,) = sessions(command, "sqlite")
    shown = json.loads(command.run_inline("store", "--json").out)
    assert (shown["sessions"], shown["damaged"], shown["engine"][:6]) == ("1", "0", "SQLite")
    copied = command.run_inline("store", "copy", server.url)
    assert (copied.code, copied.out[: len(f"copied to {server.url}: ")]) == (0, f"copied to {server.url}: ")
    assert sessions(command, server.url) == [session]
    again = command.run_inline("run", "--continue", "--model", model, "Again.", "--store", server.url)
    assert (again.code, again.out[:4]) == (0, "Done")
    assert command.run_inline("store", "check", CALLBOARD_STORE=server.url).code == 0
    shown = json.loads(command.run_inline("store", "status", "--json", CALLBOARD_STORE=server.url).out)
    assert (shown["workspace"], shown["sessions"]) == (str(command.workspace), "1")
    refused = command.run_inline("store", "copy", "sqlite", CALLBOARD_STORE=server.url)
    assert (refused.code, "has 1 session" in refused.err) == (2, True)
    archive = tmp_path / "backup.tar.gz"
    assert command.run_inline("backup", str(archive), CALLBOARD_STORE=server.url).code == 0
    refused = command.run_inline("restore", str(archive), CALLBOARD_STORE=server.url)
    assert (refused.code, "set store_workspace" in refused.err) == (2, True)
    elsewhere = {"CALLBOARD_STORE": server.url, "CALLBOARD_STORE_WORKSPACE": "another one"}
    assert command.run_inline("restore", str(archive), **elsewhere).code == 0
    assert json.loads(command.run_inline("sessions", "--json", **elsewhere).out)[0]["id"] == session
    fresh = {f"XDG_{kind}_HOME": str(tmp_path / f"fresh {kind}") for kind in ("STATE", "DATA")}
    assert command.run_inline("store", "copy", "sqlite", CALLBOARD_STORE=server.url, **fresh).code == 0
    here = command.run_inline("run", "--continue", "--model", model, "Once more.", **fresh)
    assert (here.code, here.out[:4]) == (0, "Done")


def test_a_server_that_cannot_be_reached_is_named_and_nothing_hangs(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (queries, store_module, writer):
        monkeypatch.setattr(module, "LOCK_WAIT", 0.1)
    url = "postgresql://me@127.0.0.1:1/x"
    for words in (("sessions",), ("store",), ("run", "--model", command.scenario(SCENARIO), "Do it.")):
        failed = command.run_inline(*words, CALLBOARD_STORE=url)
        assert failed.code == 3
        assert f"the server of the store {url} cannot be used now" in failed.err
    doctor = command.run_inline("doctor", CALLBOARD_STORE=url)
    assert (doctor.code, "broken   store" in doctor.out) == (3, True)


@pytest.mark.parametrize("words", ["sessions", "doctor", "settings", "config list", "store", "backup"])
def test_no_command_repeats_a_password(command: Command, words: str) -> None:
    for url in ("postgresql://me:hunter2@127.0.0.1:1/x", "postgresql://127.0.0.1:1/x?password=hunter2"):
        ran = command.run_inline(*words.split(), CALLBOARD_STORE=url)
        assert "hunter2" not in ran.out + ran.err, ran
    ran = command.run_inline("sessions", "--store", "postgresql://me:hunter2@127.0.0.1:1/x")
    assert (ran.code, "contains a password" in ran.err, "hunter2" in ran.err) == (3, True, False)


def test_a_workspace_cannot_choose_the_store(command: Command) -> None:
    folder = command.workspace / ".callboard"
    folder.mkdir()
    (folder / "settings.yaml").write_text("store: postgresql://127.0.0.1:1/x\n")
    ran = command.run_inline("run", "--trust", "--model", command.scenario(SCENARIO), "Do it.")
    assert (ran.code, ran.out) == (3, "")
    assert "settings.yaml:1: store: a workspace may not set this" in ran.err


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_old_sessions_are_listed_and_removed(server: PostgresServer, command: Command, engine: str) -> None:
    place = {"CALLBOARD_STORE": server.url if engine == "postgres" else "sqlite"}
    model = command.scenario(SCENARIO)
    assert command.run_inline("run", "--model", model, "Do it.", **place).code == 0
    (session,) = sessions(command, place["CALLBOARD_STORE"])
    unset = command.run_inline("store", "gc", **place)
    assert (unset.code, "set retention.days" in unset.err) == (2, True)
    assert "0 sessions removed" in command.run_inline("store", "gc", "--days", "1", **place).out
    listed = command.run_inline("store", "gc", "--keep", "0", "--dry-run", **place)
    assert (f"{session}  would be removed" in listed.out, "1 session would be removed" in listed.out) == (True, True)
    assert sessions(command, place["CALLBOARD_STORE"]) == [session]
    (command.workspace.parent / "config" / "callboard").mkdir(parents=True)
    (command.workspace.parent / "config" / "callboard" / "settings.yaml").write_text("retention: {sessions: 0}\n")
    removed = json.loads(command.run_inline("store", "gc", "--json", **place).out)
    assert [each["session"] for each in removed["removed"]] == [session]
    assert removed["removed"][0]["bytes"] > 1_000
    assert sessions(command, place["CALLBOARD_STORE"]) == []
    assert command.run_inline("store", "check", **place).code == 0
    assert command.run_inline("run", "--model", model, "Do it.", **place).code == 0


# A server that does not answer, and signals

AT_WORK = """
agents:
  lead:
    - reply: [{tool_use: {name: bash, input: {command: touch begun}}}]
    - {reply: Late., latency_ms: 60000}
"""
SOON = 6.0
"""Seconds that are much less than the time limits of a server, and enough for a busy machine."""


@pytest.fixture
def proxy(server: PostgresServer) -> Iterator[Proxy]:
    with proxied(server.socket) as proxy:
        yield proxy


def wait_until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)  # another process does it


def end(process: Process, sent: signal.Signals) -> tuple[int, float]:
    """Send the signal once. Return the exit code, and the seconds until the end."""
    began = time.monotonic()
    process.send_signal(sent)
    try:
        return process.wait(90), time.monotonic() - began
    finally:
        process.kill()


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_run_that_is_cut_off_from_its_server_ends_soon_after_a_signal(
    sent: signal.Signals, code: int, command: Command, proxy: Proxy
) -> None:
    url = proxy.url
    model = command.scenario(AT_WORK)
    run = command.start("--store", url, "run", "--model", model, "--allowed-tools", "Bash(touch:*)", "Go.")
    wait_until((command.workspace / "begun").exists)
    proxy.cut = True
    ended, seconds = end(run, sent)
    assert (ended, seconds < SOON) == (code, True), seconds
    proxy.cut = False
    (session,) = json.loads(command.run_inline("sessions", "--json", CALLBOARD_STORE=url).out)
    assert session["exit_code"] is None, "it can be continued"
    assert command.run_inline("store", "check", CALLBOARD_STORE=url).code == 0


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("words", [("sessions",), ("store", "check"), ("run", "--model", "rehearsal:x", "Go.")])
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_command_that_waits_for_its_server_at_the_start_ends_soon_after_a_signal(
    sent: signal.Signals, code: int, words: tuple[str, ...], command: Command, proxy: Proxy
) -> None:
    url = proxy.url
    scenario = command.scenario(SCENARIO)
    proxy.cut = True
    process = command.start("--store", url, *(scenario if word == "rehearsal:x" else word for word in words))
    wait_until(lambda: proxy.connections)
    ended, seconds = end(process, sent)
    assert (ended, seconds < SOON) == (code, True), seconds


@pytest.mark.parametrize("cut", [False, True], ids=["answers", "cut off"])
def test_a_copy_ends_soon_after_sigterm(cut: bool, command: Command, server: PostgresServer, proxy: Proxy) -> None:
    async def fill() -> None:
        async with opened(server.url, str(command.workspace)) as store:
            for number in range(30):
                await store.put_blob(os.urandom(100_000 + number))

    anyio.run(fill)
    url = proxy.url
    state = command.workspace.parent / "state"
    copy = command.start("--store", url, "store", "copy", "sqlite")
    wait_until(lambda: [*state.rglob("tmp*/state/callboard.db")])
    proxy.cut = cut
    ended, seconds = end(copy, signal.SIGTERM)
    assert (ended, seconds < SOON) == (143, True), seconds
    assert [*state.rglob("tmp*")] == []
    proxy.cut = False
    assert command.run_inline("store", "copy", "sqlite", CALLBOARD_STORE=url).code == 0


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_serving_host_that_is_cut_off_from_its_server_ends_soon_after_a_signal(
    sent: signal.Signals, code: int, command: Command, proxy: Proxy
) -> None:
    url = proxy.url
    lines = command.workspace / "lines"
    with lines.open("wb") as out:
        scenario = command.scenario(SCENARIO)
        serve = command.start("--store", url, "serve", "--json", "--model", scenario, stdout=out.fileno())
    wait_until(lambda: "no schedules yet" in lines.read_text())
    proxy.cut = True
    ended, seconds = end(serve, sent)
    assert (ended, seconds < SOON + DRAIN_TIMEOUT) == (code, True), seconds

"""Three serving hosts on one server: one is killed, one is cut off, the server's disk is full, the server restarts, and
every session ends."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest

pytest.importorskip("psycopg", reason="the extra callboard[postgres] is not installed")

from tests.postgres_proxy import proxied
from tests.postgres_server import PostgresServer, running
from tests.simulation.fleet import FleetWorld, Host, fleet_world
from tests.simulation.test_two_machines import may_unshare
from tests.small_disk import SmallDisk, small_disk

from callboard import __version__

REPLACED_WITHIN = 15.0
"""Seconds within which a host that died is replaced."""


@pytest.fixture(scope="module")
def disk(request: pytest.FixtureRequest) -> Iterator[SmallDisk]:
    """The server's disk: tables, indexes, and the write-ahead log. It is in memory."""
    many = any(item.get_closest_marker("soak") for item in request.session.items)
    with small_disk("1g" if many else "256m") as mounted:
        yield mounted


@pytest.fixture(scope="module")
def server(disk: SmallDisk) -> Iterator[PostgresServer]:
    if not may_unshare():
        pytest.skip("this user may not create namespaces of processes")
    with running(durable=True, within=disk.folder) as server:
        yield server


def hosts_of(world: FleetWorld, after: float = 0.0) -> dict[str, str]:
    """Return session -> the host that acted last, in the order in which they began to act."""
    return {deed.session: deed.host for deed in world.deeds() if deed.at > after}


@dataclass(frozen=True)
class Losses:
    """How long each obstacle lasts, in seconds."""

    cut: float
    """Of one host's network."""
    full: float
    """Of the server's disk, after a host at work has met that."""
    outage: float
    """Of the server."""


NO_ROOM = re.compile(r"trouble +(no room left at the server|the server of the store \S+ cannot be used now)")
"""A server without room for its write-ahead log ends, and cannot start."""


def keep_full(world: FleetWorld, host: Host, disk: SmallDisk, seconds: float) -> None:
    """Leave no room at the server until this host waits for it, and then for so long."""
    met = 0.0
    deadline = time.monotonic() + world.patience
    before = len(host.said())

    def over() -> bool:
        nonlocal met
        if not met and NO_ROOM.search(host.said()[before:]):
            met = time.monotonic()
        assert met or time.monotonic() < deadline, f"the host has not met the full disk:\n{host.said()[before:]}"
        return bool(met) and time.monotonic() > met + seconds

    disk.keep_full(over)
    world.until(world.server.starts_again, "the server accepts connections")


def lived(world: FleetWorld, disk: SmallDisk, random: Random, sessions: int, losses: Losses) -> None:
    """Let the sessions run through the loss of a host, of a network, of the server's disk, and of the server."""
    with TemporaryDirectory(dir="/tmp") as folder, proxied(world.server.socket, Path(folder)) as proxy:
        for name, way in (("one", None), ("two", proxy), ("three", None)):
            world.serve(name, way)
        world.until(lambda: all("serving" in host.said() for host in world.hosts), "three hosts serve")
        ids = world.detach(range(sessions))
        world.schedule(ids[0], time.time() + 20)
        world.until(lambda: len(hosts_of(world)) == sessions, "every session has a host")
        began = hosts_of(world)
        assert len(set(began.values())) == 3, f"the sessions are spread: {began}"
        follower = world.follow(ids[int(next(each for each in reversed(began) if began[each] == "one"))])
        time.sleep(random.uniform(0, 2))
        world.hosts[0].kill()
        proxy.cut = True
        at = time.time()
        deeds = Counter(deed.session for deed in world.deeds() if deed.agent == "lead")
        at_work = {each: host for each, host in hosts_of(world).items() if deeds[each] < world.count}
        lost = [session for session, host in at_work.items() if host != "three"]
        assert {"one", "two"} <= set(at_work.values()), "both hosts are lost in a first command, which a second follows"
        world.until(lambda: {hosts_of(world, at).get(each) for each in lost} == {"three"}, "host three acts for all")
        of_two = {session for session in lost if at_work[session] == "two"}
        cut_off = max(deed.at for deed in world.deeds() if deed.host == "two")
        by_three = [deed.at for deed in world.deeds() if deed.host == "three" and deed.session in of_two]
        assert cut_off < min(moment for moment in by_three if moment > at), "it ends its commands before it is replaced"
        time.sleep(max(0.0, at + losses.cut - time.time()))
        proxy.cut = False
        world.serve("four")
        keep_full(world, world.hosts[2], disk, losses.full)
        world.server.stop("immediate")
        time.sleep(losses.outage)
        world.server.start()
        world.until(lambda: world.ended(ids), "every session ends")
        assert world.hosts[1].process.poll() is None, "the host that was cut off has stayed"
        assert world.broken_promises(ids) == []
        follower.wait(timeout=60)  # with 3 if the server was away for longer than a command without a session waits
        assert re.search(r"on \w+ takes over the session from process \d+ on one", world.followed.read_text())


ASKING = """
agents:
  lead:
    - when: {{contains: Work.}}
      reply:
        - tool_use: {{name: ask_person, input: {{question: May I?}}}}
        - tool_use: {{name: bash, input: {{command: '{lead}'}}}}
    - when: {{contains: You may.}}
      reply: Thank you.
    - {{reply: I have worked., repeat: forever}}
"""


@pytest.mark.slow
def test_a_person_works_with_sessions_of_other_machines(server: PostgresServer, tmp_path: Path) -> None:
    with fleet_world(server, tmp_path, count=40, pause=0.5) as world:
        host = world.serve("one")
        world.until(lambda: "serving" in host.said(), "the host serves")
        (session,) = world.detach([0], ASKING)
        follower = world.follow(session)
        world.until(lambda: bool(world.deeds()), "it works")
        commands = (("hosts", "--json"), ("team",), ("plans", "--json"), ("send", "Be quick."))
        with ThreadPoolExecutor() as pool:  # at once, while it works
            hosts, team, plans, sent = (ran.stdout for ran in pool.map(lambda words: world.run(*words), commands))
        (listed,) = json.loads(hosts)["hosts"]
        assert (listed["machine"], listed["state"], listed["sessions"]) == ("one", "serving", [session])
        assert f"hosted by process {listed['pid']} on one" in team
        assert "on one hosts the session" in sent
        (question,) = json.loads(plans)
        answered = world.run("answer", "--session", session, question["id"], "You may.")
        assert answered.returncode == 0, answered.stderr
        world.until(lambda: world.ended([session]), "the session ends")
        follower.wait(timeout=60)  # it may have ended before the answer
        assert "May I?" in world.followed.read_text()
        (row,) = json.loads(world.run("sessions", "--json").stdout)
        assert row["exit_code"] == 0


PROGRAM = """
import anyio, sys
from callboard import Session

async def main():
    async with Session.attach(".", sys.argv[1]) as session:
        while not (asked := [each for each in session.requests() if each.kind == "question"]):
            await anyio.sleep(0.1)
        await session.answer(asked[0], "You may.")
        print(asked[0].asked_by)

anyio.run(main)
"""


@pytest.mark.slow
def test_calls_and_questions_are_answered_from_another_machine(server: PostgresServer, tmp_path: Path) -> None:
    """By `callboard approve` and by a program: neither sees the host, only the server."""
    with fleet_world(server, tmp_path, count=20, pause=0.5) as world:
        host = world.serve("one")
        world.until(lambda: "serving" in host.said(), "the host serves")
        (session,) = world.detach([0], ASKING, mode="default")
        world.until(lambda: len(json.loads(world.run("plans", "--json").stdout)) == 2, "it asks twice")
        (call,) = [each for each in json.loads(world.run("plans", "--json").stdout) if each["kind"] == "permission"]
        assert world.deeds() == []
        approved = world.run("approve", "--session", session, call["id"])
        assert approved.returncode == 0, approved.stderr
        world.until(lambda: bool(world.deeds()), "it works, and still asks")
        answered = world.python(PROGRAM, session)
        assert (answered.returncode, answered.stdout) == (0, "lead\n"), answered.stderr
        world.until(lambda: world.ended([session]), "the session ends")
        assert [(deed.agent, deed.host) for deed in world.deeds()] == 20 * [("lead", "one")]
        (row,) = [each for each in json.loads(world.run("sessions", "--json").stdout) if each["id"] == session]
        assert row["exit_code"] == 0


@pytest.mark.slow
def test_hosts_of_two_versions_replace_each_other(server: PostgresServer, tmp_path: Path) -> None:
    with fleet_world(server, tmp_path, count=30, pause=0.5) as world:
        for name, version in (("one", ""), ("two", "99.0.0"), ("three", "")):
            host = world.serve(name, version=version)
            world.until(lambda host=host: "serving" in host.said(), "the host serves")
            if name == "one":
                (session,) = world.detach([0])
            else:
                listed = json.loads(world.run("hosts", "--json").stdout)["hosts"]
                assert {each["version"] for each in listed} == {__version__, "99.0.0"}
                world.hosts[-2].kill()
            world.until(lambda name=name: hosts_of(world).get("0") == name, "it acts")
        world.until(lambda: world.ended([session]), "the session ends")
        assert world.broken_promises([session]) == []


def test_hosts_die_and_are_cut_off_and_no_two_act_for_one_session(
    server: PostgresServer, disk: SmallDisk, tmp_path: Path
) -> None:
    with fleet_world(server, tmp_path, count=50, pause=0.5) as world:
        lived(world, disk, Random(1), 6, Losses(cut=14.0, full=5.0, outage=1.0))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_many_sessions_survive_long_cuts_and_outages(
    server: PostgresServer, disk: SmallDisk, tmp_path: Path, seed: int
) -> None:
    with fleet_world(server, tmp_path, count=60, pause=3.0) as world:
        lived(world, disk, Random(seed), 200, Losses(cut=40.0, full=20.0, outage=120.0))

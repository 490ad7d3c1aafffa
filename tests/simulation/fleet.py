"""Serving hosts as machines: processes in namespaces of their own, on one server, and the witness of what they do.

Each host sees only its own processes, and has a name and a network of its own: it reaches nothing but the server's
socket. Its way there can be cut. The witness is a file to which the commands of the agents write: the session, the
agent, the host that runs the command, and the time. So it says for each session which machine acted when, whatever the
store says.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import anyio
from tests.postgres_proxy import Proxy
from tests.postgres_server import PostgresServer

from callboard.adapters.storage.postgres.address import parse_address
from callboard.adapters.storage.postgres.store import open_store
from callboard.core.decoding import read_value
from callboard.core.keys import fires_prefix, journal, mailbox, queue_key, schedule_key, session_key
from callboard.ports.store import Put, Store
from callboard.types.events import EnvelopeReceived, decode_event
from callboard.types.records import AgentRow, Envelope, SessionRow
from callboard.types.schedules import Fire, Schedule

LONGEST = 180.0
"""Seconds until a wait gives up, if the commands take no longer."""
CHILD = Path(__file__).with_name("fleet_child.py")
MACHINE = Path(__file__).with_name("machine.py")
SCENARIO = """
agents:
  lead:
    - when: {{contains: Look again}}
      reply: I have looked.
    - when: {{contains: Work.}}
      reply: [{{tool_use: {{name: spawn_teammate, input: {{name: alice, role: worker, prompt: Help.}}}}}}]
    - when: {{result_of: spawn_teammate}}
      reply: [{{tool_use: {{name: bash, input: {{command: '{lead}'}}}}}}]
    - when: {{result_of: bash}}
      reply: [{{tool_use: {{name: bash, input: {{command: '{lead}'}}}}}}]
    - {{reply: I have worked., repeat: forever}}
  alice:
    - when: {{contains: Help.}}
      reply: [{{tool_use: {{name: bash, input: {{command: '{alice}'}}}}}}]
    - when: {{result_of: bash}}
      reply: [{{tool_use: {{name: send_message, input: {{to: lead, content: Hello from alice.}}}}}}]
    - {{reply: I have helped., repeat: forever}}
"""
COMMAND = (
    "for i in $(seq {count}); do echo {session} {agent} $HOSTNAME $EPOCHREALTIME >> witness; sleep {pause}; done; "
    "seq 4000"
)
"""It acts, and prints more than fits into what the tables have left on a full disk."""


@dataclass(frozen=True)
class Deed:
    """One line of the witness."""

    session: str
    agent: str
    host: str
    at: float


@dataclass
class Host:
    """One machine that serves."""

    name: str
    process: subprocess.Popen[str]
    log: Path
    proxy: Proxy | None = None

    def said(self) -> str:
        return self.log.read_text()

    def kill(self) -> None:
        """End it as a loss of power does: with everything that runs on it."""
        self.process.kill()
        self.process.wait()


@dataclass
class FleetWorld:
    """A workspace that all machines share, and the machines."""

    server: PostgresServer
    folder: Path
    count: int
    """Lines that each command writes."""
    pause: float
    """Seconds between them."""
    hosts: list[Host] = field(default_factory=list)

    @property
    def workspace(self) -> Path:
        return self.folder / "workspace"

    def environ(self, name: str, url: str) -> dict[str, str]:
        home = self.folder / name
        home.mkdir(exist_ok=True)
        kept = {key: os.environ[key] for key in ("PATH", "LANG", "LC_ALL") if key in os.environ}
        return {**kept, "HOME": str(home), "CALLBOARD_STORE": url, "CALLBOARD_SANDBOX__LEVEL": "0"}

    def detach(self, numbers: Sequence[int], scenario: str = SCENARIO, *, mode: str = "bypassPermissions") -> list[str]:
        """Store sessions for the hosts; return their ids."""
        for number in numbers:
            commands = {
                agent: COMMAND.format(session=number, agent=agent, count=self.count, pause=self.pause)
                for agent in ("lead", "alice")
            }
            (self.workspace / f"{number}.yaml").write_text(scenario.format(**commands))
        words = [sys.executable, str(CHILD), str(self.workspace), mode, *map(str, numbers)]
        environ = self.environ("person", self.server.url)
        done = subprocess.run(words, env=environ, cwd=self.workspace, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return [line.split()[0] for line in done.stdout.splitlines()]

    def serve(self, name: str, proxy: Proxy | None = None, *, version: str = "") -> Host:
        """Start a serving host as a machine of this name. `version`: of Callboard, by its own account."""
        url = self.server.url if proxy is None else proxy.url
        self.workspace.mkdir(exist_ok=True)
        (self.workspace / "0.yaml").touch()
        log = self.folder / f"{name}.log"
        program = ["-c", ANOTHER_VERSION, version] if version else ["-m", "callboard"]
        command = [sys.executable, *program, "serve", "--label", "fleet"]
        environ = self.environ(name, url) | {"CALLBOARD_MODEL": f"rehearsal:{self.workspace / '0.yaml'}"}
        with log.open("w") as output:
            process = subprocess.Popen(
                [
                    "unshare",
                    "--pid",
                    "--uts",
                    "--net",
                    "--fork",
                    "--kill-child",
                    "--mount-proc",
                    sys.executable,
                    str(MACHINE),
                    name,
                    *command,
                ],
                cwd=self.workspace,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                text=True,
            )
        host = Host(name, process, log, proxy)
        self.hosts.append(host)
        return host

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of a person on a further machine."""
        return self._run("-m", "callboard", *words)

    def python(self, program: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a program of a person on a further machine."""
        return self._run("-c", program, *words)

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        words = (sys.executable, *words)
        environ = self.environ("person", self.server.url)
        return subprocess.run(words, env=environ, cwd=self.workspace, capture_output=True, text=True, check=False)

    def follow(self, session: str) -> subprocess.Popen[str]:
        """Follow a session from a further machine, until no host works on it. Return when it follows."""
        words = [sys.executable, "-m", "callboard", "attach", "--follow", session]
        environ = self.environ("person", self.server.url)
        with self.followed.open("w") as output:
            process = subprocess.Popen(words, env=environ, cwd=self.workspace, stdout=output, stderr=output, text=True)
        self.until(lambda: "this screen follows it" in self.followed.read_text(), "it follows")
        return process

    @property
    def followed(self) -> Path:
        """Return the file with what the follower has shown."""
        return self.folder / "followed"

    def deeds(self) -> list[Deed]:
        file = self.workspace / "witness"
        lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        return [Deed(session, agent, host, float(at)) for session, agent, host, at in lines]

    @property
    def patience(self) -> float:
        """Return the seconds until a wait gives up."""
        return max(LONGEST, 4 * self.count * self.pause)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + self.patience
        while not condition():
            logs = "\n".join(f"--- {host.name}\n{host.said()[-3_000:]}" for host in self.hosts)
            assert time.monotonic() < deadline, f"not in time: {what}\n{logs}\n--- server\n{self.server.said()}"
            time.sleep(0.1)

    def broken_promises(self, sessions: Sequence[str]) -> list[str]:
        """Return what the witness and the store have against the fleet."""
        return [*self._two_at_once(), *anyio.run(self._in_store, sessions)]

    def _two_at_once(self) -> Iterator[str]:
        """Yield sessions for which a host acted after another one had begun to, without having been its host again."""
        hosted = Counter[tuple[str, str]]()
        for host in self.hosts:
            for session in re.findall(r"hosting +(\S+?):", host.said()):
                hosted[str(int(session.rpartition("-")[2])), host.name] += 1
        deeds = sorted(self.deeds(), key=lambda deed: (int(deed.session), deed.at))
        for session, own in groupby(deeds, key=lambda deed: deed.session):
            runs = [host for host, _ in groupby(own, key=lambda deed: deed.host)]
            for host, count in Counter(runs).items():
                if count > hosted[session, host]:
                    yield f"session {session}: the hosts acted in turns: {runs}"

    async def _in_store(self, sessions: Sequence[str]) -> list[str]:
        store = await open_store(parse_address(self.server.url), str(self.workspace))
        try:
            return [wrong for session in sessions for wrong in await _broken(store, session)]
        finally:
            await store.aclose()

    def ended(self, sessions: Sequence[str]) -> bool:
        """Return True if no session needs a host any more."""

        async def look() -> bool:
            store = await open_store(parse_address(self.server.url), str(self.workspace))
            try:
                return not await store.keys(queue_key())
            finally:
                await store.aclose()

        return anyio.run(look)

    def schedule(self, session: str, at: float) -> None:
        """Give a session a schedule that fires once."""
        moment = time.strftime("at %Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
        schedule = Schedule(id="cron_fleet", cron=moment, prompt="Look again.", recurring=False, created_at=time.time())

        async def put() -> None:
            store = await open_store(parse_address(self.server.url), str(self.workspace))
            await store.commit(Put(schedule_key(session, schedule.id), schedule.encode()))
            await store.aclose()

        anyio.run(put)


ANOTHER_VERSION = """
import sys
import callboard
callboard.__version__ = sys.argv.pop(1)
from callboard.__main__ import main
raise SystemExit(main())
"""


async def _broken(store: Store, session: str) -> list[str]:
    wrong: list[str] = []
    row = await store.get(session_key(session))
    assert row is not None
    now = read_value(SessionRow, row.value or b"", row.key)
    if now.exit_code != 0:
        wrong.append(f"{session} ended with {now.exit_code}")
    for agent_row in await store.keys(f"s/{session}/agent/"):
        agent = read_value(AgentRow, agent_row.value or b"", agent_row.key)
        sent = [
            Envelope.model_validate_json(record.data).id
            for record in await store.read(mailbox(session, agent.name, agent.incarnation))
        ]
        events = [
            decode_event(record.data) for record in await store.read(journal(session, agent.name, agent.incarnation))
        ]
        received = [event.envelope.id for event in events if isinstance(event, EnvelopeReceived)]
        if sorted(sent) != sorted(set(sent)):
            wrong.append(f"{session} {agent.name}: an envelope was sent twice")
        if received != sent:
            wrong.append(f"{session} {agent.name}: received {received} of {sent}")
    mail = [Envelope.model_validate_json(record.data) for record in await store.read(mailbox(session, "lead", 1))]
    hellos = [envelope for envelope in mail if "Hello from alice" in envelope.content]
    if len(hellos) != 1:
        wrong.append(f"{session}: the message of the teammate arrived {len(hellos)} times")
    fires = [read_value(Fire, fire.value or b"", fire.key) for fire in await store.keys(fires_prefix(session))]
    if any(fire.outcome != "done" for fire in fires):
        wrong.append(f"{session}: fires ended with {[fire.outcome for fire in fires]}")
    return wrong


@contextlib.contextmanager
def fleet_world(server: PostgresServer, folder: Path, *, count: int, pause: float) -> Iterator[FleetWorld]:
    world = FleetWorld(server, folder, count, pause)
    try:
        yield world
    finally:
        for host in world.hosts:
            host.kill()

"""kill -9 of a real demo at moments spread over its whole length, then a resume: always the same end.

The demo is a process of its own with its own state; it is killed without a warning, and taken up again by another
process. The same files, the same passing tests, every envelope taken once, and no effect made twice: each of the
sample's scripts adds to a file, so that a second run of one shows in the digest of the tree.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest
from tests.warm import Process

from callboard.adapters.storage.sqlite import open_store
from callboard.core.agent.apply import is_for_runtime
from callboard.core.keys import agent_key, journal, mailbox
from callboard.engine.commands import find_session
from callboard.engine.recall import events_of
from callboard.ports.store import Store
from callboard.types import events as ev
from callboard.types.records import AgentRow, Envelope

EFFECTS = ("changes/split.md", "changes/parse.md", "changes/summary.md", "build/ledger.log")
"""Files that commands of the demo make: a kill as soon as one is there cuts the effect off from its result."""
KILLS, SOAK_KILLS = 2, 21
"""Kills that are spread over the whole length, beside those at the effects."""
IN_A_ROW = 3
"""Kills of one demo: each at another part of its length, by the process that took it up after the one before."""
AT_ONCE = 3
PATIENCE = 300.0
"""Seconds after which a demo is taken to hang."""
CALLBOARD = ("-m", "callboard")
ANNOUNCED = "The sample project is in "


@dataclass
class Played:
    """What came of one demo."""

    name: str
    code: int | None = None
    kills: int = 0
    """Processes that were at work when they were killed."""
    files: dict[str, str] = field(default_factory=dict[str, str])
    wrong: list[str] = field(default_factory=list[str])
    said: str = ""
    seconds: float = 0.0
    """From the moment the folder was named to the end."""


class Place:
    """A home of its own for one demo: nothing of this machine's person, nothing of another demo."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environment = {**os.environ, "TMPDIR": str(root), "PYTHONDONTWRITEBYTECODE": "1", "NO_COLOR": "1"}
        for name in ("STATE", "DATA", "CONFIG"):
            self.environment[f"XDG_{name}_HOME"] = str(root / name.lower())
        for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "MODEL_ID"):
            self.environment.pop(name, None)

    def start(self, *arguments: str) -> Process:
        return Process([*CALLBOARD, *arguments], self.root, self.environment, stderr=subprocess.STDOUT)

    def finish(self, *arguments: str) -> tuple[int | None, str]:
        """Run to the end: the exit code (None: it hangs) and what was said."""
        process = self.start(*arguments)
        try:
            said, _ = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            return None, process.communicate()[0]
        return process.returncode, said

    @property
    def project(self) -> Path:
        found = sorted(self.root.glob("callboard-demo-*"))
        assert len(found) == 1, found
        return found[0] / "tally"

    @property
    def state(self) -> Path:
        found = sorted((self.root / "state" / "callboard").glob("tally-*"))
        assert len(found) == 1, found
        return found[0]


def files_of(project: Path) -> dict[str, str]:
    """Path -> digest, without what Python and git keep for themselves."""
    return {
        str(path.relative_to(project)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(project.rglob("*"))
        if path.is_file() and not {"__pycache__", ".git"} & set(path.parts)
    }


def passes_its_tests(project: Path) -> bool:
    command = [sys.executable, "-B", "-m", "unittest"]
    return subprocess.run(command, cwd=project, capture_output=True, check=False).returncode == 0


Moment = float | str
"""Seconds after the demo has named its folder; or a file of the project, as soon as it is there."""


def killed_at(place: Place, moment: Moment, *arguments: str) -> tuple[bool, str]:
    """Begin a demo or take it up, and kill it at that moment: whether it was still at work, and what it said."""
    process = place.start(*arguments)
    assert process.stdout is not None
    first = process.stdout.readline()
    if isinstance(moment, str):
        awaited, end = place.project / moment, time.monotonic() + PATIENCE
        while not (awaited.exists() and awaited.stat().st_size) and time.monotonic() < end:  # a file begins empty
            time.sleep(0.001)
    else:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(moment)
    process.kill()
    said, _ = process.communicate()
    return process.returncode == -signal.SIGKILL, first + said


def taken_up(place: Place, *, by_demo: bool) -> tuple[int | None, str]:
    """Go on where it was cut off: by `callboard resume`, or by the demo itself, which also knows how to begin."""
    if by_demo:
        return place.finish("demo", "--yes", "--resume", str(place.project))
    return place.finish("-C", str(place.project), "resume", "--yes")


def look(place: Place, played: Played) -> Played:
    played.files = files_of(place.project)
    if not passes_its_tests(place.project):
        played.wrong.append("the sample's tests do not pass")
    played.wrong += anyio.run(wrong_in_store, place.state)
    return played


async def wrong_in_store(state: Path) -> list[str]:
    """What the journals and mailboxes of the session say that must not be."""
    store = await open_store(state, durability="process")
    try:
        row = await find_session(store, None)
        found: list[str] = []
        for agent in await agents_of(store, row.id):
            found += await wrong_with(store, row.id, agent)
        return found
    finally:
        await store.aclose()


async def agents_of(store: Store, session: str) -> list[AgentRow]:
    rows = await store.keys(agent_key(session, ""))
    return [AgentRow.model_validate_json(row.value) for row in rows if row.value is not None]


async def wrong_with(store: Store, session: str, agent: AgentRow) -> list[str]:
    records = await store.read(mailbox(session, agent.name, agent.incarnation), 0)
    sent = [Envelope.model_validate_json(record.data) for record in records]
    events = await events_of(store, journal(session, agent.name, agent.incarnation))
    received = [event.envelope.id for event in events if isinstance(event, ev.EnvelopeReceived)]
    taken = Counter(
        one for event in events if isinstance(event, ev.EnvelopesDelivered | ev.EnvelopesDropped) for one in event.ids
    )
    found: list[str] = []
    if received != [envelope.id for envelope in sent]:
        found.append(f"{agent.name} received {received}, and was sent {[envelope.id for envelope in sent]}")
    for envelope in sent:
        times = 0 if is_for_runtime(envelope) else 1
        waits = envelope.mode == "queue" and not taken[envelope.id]
        if taken[envelope.id] != times and not waits:
            found.append(f"{agent.name} took {envelope.type} {envelope.id} {taken[envelope.id]} times")
    started = Counter(event.call for event in events if isinstance(event, ev.ToolStarted))
    ended = Counter(event.call for event in events if isinstance(event, ev.ToolFinished))
    if started != ended or any(count != 1 for count in started.values()):
        found.append(f"{agent.name} started {started} and finished {ended}")
    return found


def killed(root: Path, number: int, moment: Moment, *again: float, by_demo: bool) -> Played:
    """Begin, kill, perhaps take up and kill again, take up, look."""
    place = Place(root / str(number))
    place.root.mkdir()
    alive, said = killed_at(place, moment, "demo", "--yes", "--keep")
    assert said.startswith(ANNOUNCED), said
    played = Played(f"killed at {(moment, *again)}", kills=int(alive))
    for seconds in again:
        alive, more = killed_at(place, seconds, "demo", "--yes", "--resume", str(place.project))
        played.kills, said = played.kills + alive, said + more
    played.code, more = taken_up(place, by_demo=by_demo)
    if "there is no session in" in more or not place.project.exists():  # killed before it had made one, or the folder
        played.code, more = taken_up(place, by_demo=True)
    played.said = said + more
    look(place, played)
    if played.code == 0 and not played.wrong:
        shutil.rmtree(place.root)
    return played


@pytest.fixture(scope="module")
def unkilled(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """A demo that nobody disturbs."""
    place = Place(tmp_path_factory.mktemp("unkilled"))
    began = time.monotonic()
    code, said = place.finish("demo", "--yes", "--keep")
    return look(place, Played("unkilled", code, said=said, seconds=time.monotonic() - began))


def check(unkilled: Played, runs: list[Played]) -> None:
    assert (unkilled.code, unkilled.wrong) == (0, []), unkilled.said
    bad = [run for run in runs if run.code != 0 or run.wrong or run.files != unkilled.files]
    for run in bad:
        changed = sorted(name for name, _ in set(run.files.items()) ^ set(unkilled.files.items()))
        raise AssertionError(f"{len(bad)} of {len(runs)}: {run.name}: {run.code} {run.wrong} {changed}\n{run.said}")


def test_a_demo_that_nobody_disturbs_shows_all_it_promises(unkilled: Played) -> None:
    assert unkilled.code == 0, unkilled.said
    assert unkilled.wrong == []
    for sight in (
        "schedule fired",
        "service overloaded (529)",
        "connection lost",
        "plan approved",
        "background command completed",
        "large result persisted",
        "conversation compacted",
    ):
        assert f"1 x {sight}" in unkilled.said
    assert (len([name for name in unkilled.files if name.startswith("changes/")])) == 4


@pytest.mark.parametrize("kills", [KILLS, pytest.param(SOAK_KILLS, marks=pytest.mark.soak)])
def test_a_demo_killed_at_any_moment_comes_to_the_same_end(unkilled: Played, tmp_path: Path, kills: int) -> None:
    draw, length = random.Random(25), unkilled.seconds
    runs: list[Played] = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        while (missing := kills - sum(run.kills for run in runs)) > 0:  # one that came too late was none
            count = -(-missing // IN_A_ROW)
            waits = [[length * (n + draw.random()) / count / IN_A_ROW for _ in range(IN_A_ROW)] for n in range(count)]
            ahead = [
                pool.submit(killed, tmp_path, len(runs) + n, *wait, by_demo=bool(n % 2)) for n, wait in enumerate(waits)
            ]
            runs += [one.result() for one in ahead]
    check(unkilled, runs)


@pytest.mark.slow
def test_an_effect_that_a_kill_cut_off_from_its_result_is_not_made_again(unkilled: Played, tmp_path: Path) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        ahead = [pool.submit(killed, tmp_path, n, file, by_demo=False) for n, file in enumerate(EFFECTS)]
    runs = [one.result() for one in ahead]
    check(unkilled, runs)
    assert [run.kills for run in runs] == [1] * len(EFFECTS)
    assert any("The runtime stopped while this command" in run.said for run in runs)


@pytest.mark.soak
def test_a_demo_killed_again_and_again_comes_to_the_same_end(unkilled: Played, tmp_path: Path) -> None:
    draw = random.Random(7)
    times = 50 * int(os.environ.get("SOAK", "1"))
    moments = [tuple(draw.uniform(0, unkilled.seconds) for _ in range(draw.randint(1, 3))) for _ in range(times)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = [pool.submit(killed, tmp_path, n, *moment, by_demo=True) for n, moment in enumerate(moments)]
    check(unkilled, [run.result() for run in runs])

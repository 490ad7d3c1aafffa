"""The board in a hosted team: tasks taken away, who is woken, and what a resume keeps."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio
import pytest
from tests.engine.agent.test_one_agent import Echo
from tests.engine.team.team_world import TeamWorld, spawn, team_world
from tests.simulation.virtual import run_virtual

from callboard.adapters.storage.memory import MemoryStore
from callboard.core.frozen import replace
from callboard.core.keys import agent_key, host_lease, task_key
from callboard.core.messaging.envelopes import envelope_write
from callboard.core.tasks.board import ready_for
from callboard.engine.operations.claim_task import free_abandoned
from callboard.engine.row_cache import RowCache
from callboard.engine.runtime import SessionRuntime
from callboard.ports.model import ModelRequest, Reply
from callboard.ports.store import Fence, LeaseHolder, Put, Write
from callboard.testing import HostedSession, ScriptedModel, say, use
from callboard.types.errors import Conflict
from callboard.types.records import AgentRow, Envelope, Json, Task

pytestmark = pytest.mark.anyio


def made(task_id: str, **fields: object) -> Write:
    """A new task on the board of `s1`."""
    about: Json = {"id": task_id, "subject": f"the {task_id}", "created_at": 1.0, **fields}
    return Put(task_key("s1", task_id), Task.model_validate(about).encode())


ASK = use("send_message", {"to": "lead", "content": "Which way?"})
"""Who waits for a reply keeps its task."""


def tasks_of(team: HostedSession) -> dict[str, Task]:
    return {task.id: task for task in team.team.runtime.rows.tasks()}


# Taken away


class Pair(ScriptedModel):
    """alice claims the task and waits; the lead gives it to bob meanwhile; then alice wants to complete it."""

    def __init__(self) -> None:
        self.claimed, self.given = anyio.Event(), anyio.Event()
        super().__init__({})

    async def complete(self, request: ModelRequest, on_delta: Callable[..., None]) -> Reply:
        self.requests.append(request)
        done = sum(1 for one in self.requests if one.agent == request.agent)
        complete = use("complete_task", {"task_id": "t1"})
        match request.agent, done:
            case "lead", 1:
                return use(*spawn("alice"), spawn("bob"))
            case "lead", 2:
                await self.claimed.wait()
                return use("update_task", {"task_id": "t1", "owner": "bob"})
            case "lead", 3:
                self.given.set()
                return say("given")
            case "alice", 1:
                return use("claim_task", {"task_id": "t1"})
            case "alice", 2:
                self.claimed.set()
                await self.given.wait()
                return complete
            case "alice", 3:
                return say("I let it be")
            case "bob", 2:
                return complete
            case _:
                return say("ready")


async def test_a_task_that_is_given_to_another_is_no_longer_its_old_owners() -> None:
    model = Pair()
    world = team_world(model)  # without tools that write nobody takes a task by itself
    async with world.session() as team:
        await team.team.runtime.commit(made("t1"))
        await team.prompt("go")
        with anyio.fail_after(30):
            await team.quiet()
        done = tasks_of(team)["t1"]
        assert (done.status, done.owner, done.attempts) == ("completed", "bob", 2)
        assert dict(team.state("alice").work.tasks) == {}
        heard = b"\n".join([one for one in model.requests if one.agent == "alice"][-1].messages)
        assert b"lead took t1 from you: the t1." in heard
        assert b"cannot complete t1: it is" in heard
        bob = b"\n".join([one for one in model.requests if one.agent == "bob"][-1].messages)
        assert b"You claimed t1 from the board" in bob, "what is kept for it, it takes by itself"


async def test_an_idle_owner_that_lost_its_task_takes_the_next_one() -> None:
    model = ScriptedModel(
        {
            "lead": [use(*spawn("alice")), say("waiting")],
            "alice": [say("ready"), ASK, say("I wait"), ASK, say("I wait")],
        }
    )
    world = team_world(model, Echo(name="write_file"))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        await team.team.runtime.commit(made("t1"))
        await team.quiet()
        assert dict(team.state("alice").work.tasks) == {"t1": "the t1"}
        row = team.team.runtime.rows.task("t1")
        assert row is not None
        gone = row[0].model_copy(update={"status": "cancelled", "owner": None, "owner_incarnation": 0})
        await team.team.runtime.commit(Put(task_key("s1", "t1"), gone.encode(), expected=row[1]), made("t2"))
        await team.quiet()
        assert dict(team.state("alice").work.tasks) == {"t2": "the t2"}


# Who is woken


@dataclass
class Counting(MemoryStore):
    """How often a claim lost its race."""

    lost: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        super().__init__()

    async def commit(self, *writes: Write, fence: Fence | None = None) -> tuple[int, ...]:
        try:
            return await super().commit(*writes, fence=fence)
        except Conflict as lost:
            self.lost.append(lost.what)
            raise


def finishing(request: ModelRequest) -> Reply:
    """Complete the task that was claimed, else be ready."""
    said = b"\n".join(request.messages).decode()
    claimed = re.findall(r"You claimed (\w+) from", said)
    open_ones = [task for task in claimed if f"Completed {task}." not in said]
    return use("complete_task", {"task_id": open_ones[-1]}) if open_ones else say("ready")


class Workers(ScriptedModel):
    """The lead spawns some teammates; each completes what it claims."""

    def __init__(self, count: int) -> None:
        names = [f"w{number}" for number in range(count)]
        self.began = anyio.Event()
        super().__init__({"lead": [use(*spawn(names[0]), *(spawn(one) for one in names[1:])), say("waiting")]})

    async def complete(self, request: ModelRequest, on_delta: Callable[..., None]) -> Reply:
        if request.agent == "lead":
            return await super().complete(request, on_delta)
        self.requests.append(request)
        await anyio.lowlevel.checkpoint()
        return finishing(request)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("seed", range(3))
def test_one_waiter_is_woken_for_a_task_and_nobody_loses_a_race(seed: int) -> None:
    run_virtual(no_herd, seed=seed)


async def no_herd() -> None:
    store = Counting()
    async with team_world(Workers(12), Echo(name="write_file"), store=store).session() as team:
        await team.prompt("go")
        await team.quiet()
        store.lost.clear()
        await team.team.runtime.commit(made("t1"))
        await team.quiet()
        await team.team.runtime.commit(*(made(f"u{number}") for number in range(5)))
        await team.quiet()
        assert {task.status for task in tasks_of(team).values()} == {"completed"}
        assert store.lost == []


@pytest.mark.parametrize("seed", range(4))
def test_who_is_woken_and_turns_to_its_mail_leaves_the_task_to_another(seed: int) -> None:
    run_virtual(passed_on, seed=seed)


async def passed_on() -> None:
    """The first waiter gets a prompt in the very commit that makes the task, and its turn lasts until that is done."""

    class Busy(Workers):
        async def complete(self, request: ModelRequest, on_delta: Callable[..., None]) -> Reply:
            if request.agent == "w0" and b"hold on" in request.messages[-1]:
                await self.began.wait()
                return say("I was asked something")
            return await super().complete(request, on_delta)

    model = Busy(3)
    world = team_world(model, Echo(name="write_file"))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        prompt = Envelope(id="env_hold", sender="person", recipient="w0", type="prompt", content="hold on")
        with anyio.fail_after(60):
            await team.team.runtime.commit(envelope_write("s1", prompt), made("t1"))
            activity = team.team._activity
            await activity.until(lambda: tasks_of(team)["t1"].status == "completed")
            model.began.set()
            await team.quiet()
        assert tasks_of(team)["t1"].owner != "w0"


async def test_a_task_that_is_kept_for_an_agent_that_stops_is_open_to_all_again() -> None:
    model = Workers(2)
    world = team_world(model, Echo(name="write_file"))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        await team.team.runtime.commit(made("t0", status="failed"))
        await team.team.runtime.commit(made("t1", reserved_for="w1", blocked_by=("t0",)))
        await team.command("stop", "w1")
        await team.quiet()
        assert tasks_of(team)["t1"].reserved_for == ""


# Leases


class Leased(TeamWorld):
    """A world whose host has a lease."""

    fence: Fence | None = None

    def runtime(self, session: str) -> SessionRuntime:
        runtime = super().runtime(session)
        runtime.fence = self.fence
        return runtime


async def leased(store: MemoryStore, model: ScriptedModel) -> Leased:
    world = Leased(model, team_world(model, Echo(name="write_file")).tools, store=store)
    lease = await store.acquire(host_lease("s1"))
    assert not isinstance(lease, LeaseHolder)
    world.fence = lease.fence
    return world


async def test_a_resume_keeps_what_its_own_agents_hold_and_frees_what_nobody_goes_on_with() -> None:
    model = ScriptedModel(
        {"lead": [use(*spawn("alice"), spawn("bob")), say("waiting")], "alice": [say("ready"), ASK, say("I wait")]},
        end="ready",
    )
    first = await leased(MemoryStore(), model)
    assert isinstance(first.store, MemoryStore)
    async with first.session() as team:
        await team.prompt("go")
        await team.quiet()
        await team.team.runtime.commit(made("t1", reserved_for="alice"))
        await team.quiet()
        mine = tasks_of(team)["t1"]
        assert (mine.owner, mine.lease, mine.lease_number) == ("alice", host_lease("s1"), 1)
    # bob was parked while it held a task, and the process died before that was freed
    row = await first.store.get(agent_key("s1", "bob"))
    assert row is not None
    parked = AgentRow.model_validate_json(row.value or b"").model_copy(update={"life": "crashed"})
    held = made("t2", status="in_progress", owner="bob", owner_incarnation=1, lease=host_lease("s1"), lease_number=1)
    await first.store.commit(Put(agent_key("s1", "bob"), parked.encode()), held)
    second = await leased(first.store.reopen(), ScriptedModel({}, end="still at it"))
    async with second.session(resume=True) as team:
        await team.quiet()
        board = tasks_of(team)
        mine = board["t1"]
        assert (mine.owner, mine.lease_number, mine.attempts) == ("alice", 2, 1), "it goes on in this process"
        assert dict(team.state("alice").work.tasks) == {"t1": "the t1"}
        assert (board["t2"].status, board["t2"].owner) == ("pending", None)


async def test_what_a_process_holds_is_its_own_until_it_is_gone_and_then_one_frees_it() -> None:
    here = MemoryStore()
    there, third = here.second_store(), here.second_store()
    leases = [await here.acquire("here"), await there.acquire("there"), await third.acquire("third")]
    mine, _, other = [lease.fence for lease in leases if not isinstance(lease, LeaseHolder)]
    held = made("t1", status="in_progress", owner="alice", owner_incarnation=1, lease="there", lease_number=1)
    own = made("t2", status="in_progress", owner="bob", owner_incarnation=1, lease="here", lease_number=mine.number)
    await here.commit(held, own)
    boards = [RowCache("s1", lambda kind, name: None) for _ in range(2)]
    for board in boards:
        for row in await here.keys("s/s1/"):
            board.take(row)
    assert await free_abandoned(here, "s1", boards[0], own_fence=mine, now=9.0, resumed=lambda task: False) == []
    there.kill()
    assert (
        await free_abandoned(here, "s1", boards[0], own_fence=mine, now=9.0, resumed=lambda task: task.id == "t1") == []
    ), "it goes on here"
    (freed,) = await free_abandoned(here, "s1", boards[0], own_fence=mine, now=9.0, resumed=lambda task: False)
    assert (freed.id, freed.status, freed.owner, freed.lease) == ("t1", "pending", None, "")
    assert await free_abandoned(third, "s1", boards[1], own_fence=other, now=9.0, resumed=lambda task: False) == [], (
        "somebody was faster"
    )
    assert [task.status for task in boards[1].tasks()] == ["pending", "in_progress"]


async def test_who_was_stopped_because_it_repeats_itself_takes_no_task_until_it_is_spoken_to() -> None:
    lead = [use(*spawn("amy")), *[say("I see.")] * 20]
    model = ScriptedModel({"lead": lead, "amy": [*[use("list_tasks")] * 6, *[say("Ready.")] * 20]})
    async with team_world(model, spec={"stuck_after": 3}).session() as team:
        runtime = team.team.runtime
        await team.prompt("go")
        await team.quiet()
        stopped = team.state("amy")
        assert stopped.turns.last_limit == "repetition"
        stopped = replace(
            stopped, identity=replace(stopped.identity, spec=stopped.me.model_copy(update={"claims_tasks": True}))
        )
        board = {"t1": Task(id="t1", subject="the t1", created_at=1.0)}
        assert ready_for(board, runtime.task_holder(stopped)) == []
        kept = {"t1": board["t1"].model_copy(update={"reserved_for": "amy"})}
        assert len(ready_for(kept, runtime.task_holder(stopped))) == 1
        later = replace(stopped, turns=replace(stopped.turns, last_limit=""))  # its newest turn ended in another way
        assert len(ready_for(board, runtime.task_holder(later))) == 1

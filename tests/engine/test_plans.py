"""Plans in a running team: who counts when several answer at once, what an approval binds to, what a restart keeps."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import anyio
import anyio.lowlevel
import pytest
from tests.engine.team_world import TeamWorld, spawn, team_world
from tests.engine.test_one_agent import Echo

from callboard.adapters.memory import MemoryStore
from callboard.core.context.reminders import Around
from callboard.core.names import journal, request_key, rows_prefix
from callboard.core.plans import AS_IT_STANDS, Word, submitted_of
from callboard.core.requests import digest_of
from callboard.engine.host import Host
from callboard.engine.memory import events_of
from callboard.engine.requests import answer_request
from callboard.ports.model import ModelRequest, Reply
from callboard.ports.store import Fence, Put, Row, Write
from callboard.ports.world import Answer
from callboard.testing import HostedSession, ScriptedModel, say, use
from callboard.words.events import AnswerTaken
from callboard.words.specs import AgentSpec
from callboard.words.values import Request

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> object:
    """Virtual time alone: half an hour passes here."""
    from trio.testing import MockClock

    return "trio", {"clock": MockClock(autojump_threshold=0)}


class AtPrompt:
    """A person at a terminal who answers when `go` is set, and is told when that was too late."""

    def __init__(self, answer: Answer | None = None) -> None:
        self._answer = answer
        self.go, self.asked = anyio.Event(), list[Request]()
        self.given, self.taken_back, self.late = 0, 0, list[str]()

    async def answer(self, request: Request) -> Answer | None:
        self.asked.append(request)
        try:
            await self.go.wait()
        except anyio.get_cancelled_exc_class():
            self.taken_back += 1
            raise
        self.given += 1
        return self._answer and replace(self._answer, refused=self.late.append)


def planner(*alice: Reply) -> ScriptedModel:
    """A lead with one teammate who may only plan at first."""
    return ScriptedModel(
        {
            "lead": [use(*spawn("alice", plan_required=True)), say("waiting"), say("done")],
            "alice": [use("submit_plan", {"plan": "# Mend\n1. read", "options": ["by hand", "by tool"]}), *alice],
        }
    )


async def rows(team: HostedSession) -> list[Request]:
    found = await team.world.store.keys(rows_prefix("s1"))
    requests = [Request.model_validate_json(row.value or b"") for row in found if "/request/" in row.key]
    return sorted(requests, key=lambda one: (one.created_at, one.revision))


async def pending(team: HostedSession, count: int = 1) -> Request:
    """The first of the plans that wait, once there are so many."""
    while len(found := [one for one in await rows(team) if one.status == "pending"]) < count:
        await anyio.sleep(0.01)
    return found[0]


async def answered(
    team: HostedSession, request: Request, status: str, by: str = "person", word: Word = AS_IT_STANDS
) -> str | None:
    """What another process gets that answers: None, or why its answer does not count."""
    answer = Answer(status, by, f"from {by}", word)  # type: ignore[arg-type]
    return await answer_request(team.world.store, "s1", request.id, answer, team.world.clock.now())


async def taken(team: HostedSession, name: str = "alice") -> list[AnswerTaken]:
    """What she wrote down of answers to her plans."""
    journalled = await events_of(team.world.store, journal("s1", name, 1))
    return [one for one in journalled if isinstance(one, AnswerTaken)]


def sent(world: TeamWorld, name: str = "alice") -> str:
    """All that the model was sent for an agent, last."""
    asked = [one for one in world.model.requests if one.agent == name]
    return b"\n".join(asked[-1].messages).decode()


def reported() -> Reply:
    """The end of her work."""
    return use("report", {"status": "done", "result": "mended"})


# One answer counts


async def test_an_answer_from_elsewhere_takes_the_question_back_and_the_work_goes_on() -> None:
    person = AtPrompt()
    touch = Echo(name="write_file", effect="reconcile")
    model = planner(use("write_file", {"text": "mended"}), reported())
    async with team_world(model, touch, approvers=[person]).session() as team:
        await team.prompt("go")
        plan = await pending(team)
        await anyio.wait_all_tasks_blocked()
        assert [one.id for one in person.asked] == [plan.id]
        assert await answered(team, plan, "approved") is None
        await team.quiet()
        assert (person.taken_back, person.given) == (1, 0)
        assert touch.ran == [{"text": "mended"}]
        assert [one.by for one in await taken(team)] == ["person"]


async def test_who_answers_at_the_prompt_too_late_is_told_who_was_first() -> None:
    person = AtPrompt(Answer("rejected", "person", "too dear"))
    async with team_world(planner(reported()), approvers=[person]).session() as team:
        await team.prompt("go")
        plan = await pending(team)
        await anyio.wait_all_tasks_blocked()
        found = await team.world.store.get(request_key("s1", plan.id))
        assert found is not None
        person.go.set()  # he has typed, and the word of another process is written before his
        first = plan.model_copy(update={"status": "approved", "answered_by": "policy"})
        await team.world.store.commit(Put(found.key, first.encode(), found.revision))
        await team.quiet()
        assert person.given == 1
        assert person.late == [f"{plan.id} is approved by policy already"]


class Dawdling(MemoryStore):
    """A store whose reads and commits take a drawn number of turns of the loop."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._draws = random.Random(seed)  # reproducible, not secret

    async def get(self, key: str) -> Row | None:
        await self._dawdle()
        return await super().get(key)

    async def commit(self, *writes: Write, fence: Fence | None = None) -> tuple[int, ...]:
        await self._dawdle()
        return await super().commit(*writes, fence=fence)

    async def _dawdle(self) -> None:
        for _ in range(self._draws.randrange(4)):
            await anyio.lowlevel.checkpoint()


async def of_many_at_once(seed: int) -> tuple[int, str]:
    """How many answers counted of four that are given at the same moment, and how it ended."""
    person = AtPrompt(Answer("rejected", "person", "too dear"))
    world = team_world(planner(reported()), approvers=[person])
    world.store = Dawdling(seed)
    world.spec = {"plan_approver": "either"}
    said: dict[str, str | None] = {}
    async with world.session() as team:
        await team.prompt("go")
        plan = await pending(team)
        await anyio.wait_all_tasks_blocked()

        async def answer(name: str, status: str, by: str, word: Word = AS_IT_STANDS) -> None:
            said[name] = await answered(team, plan, status, by, word)

        async with anyio.create_task_group() as group:
            group.start_soon(answer, "one", "approved", "person", Word(plan="# Mend\n1. read\n2. test"))
            group.start_soon(answer, "two", "rejected", "person")
            group.start_soon(answer, "lead", "approved", "lead", Word(option=2))
            person.go.set()
        await anyio.wait_all_tasks_blocked()
        (row,) = [one for one in await rows(team) if one.id == plan.id]
        at_prompt = person.given - len(person.late)
        counted = sum(why is None for why in said.values()) + at_prompt
        words = [why for why in said.values() if why is not None] + person.late
        assert all(f"is {row.status} by {row.answered_by} already" in why for why in words), words
        assert person.given + person.taken_back == 1
        assert [one.what for one in row.history if one.what in ("approved", "rejected")] == [row.status]
        assert len([one for one in await taken(team) if one.request_id == plan.id]) == 1
        opened = team.state("alice").gate.digest == row.digest
        assert opened is (row.status == "approved" and not team.state("alice").reported)
    return counted, f"{row.status} {row.answered_by} {bool(row.choice)} {bool(submitted_of(row))}"


async def test_of_answers_at_once_exactly_one_counts() -> None:
    found = [await of_many_at_once(seed) for seed in range(20)]
    assert {counted for counted, _ in found} == {1}
    assert len({ending for _, ending in found}) > 2, "the same one won each time: nothing was mixed"


@pytest.mark.soak
@pytest.mark.parametrize("part", range(8))
async def test_of_answers_at_once_exactly_one_counts_whatever_the_order(part: int, soak: int) -> None:
    found = [await of_many_at_once(1_000 * part + seed) for seed in range(200 * soak)]
    assert {counted for counted, _ in found} == {1}


# What an approval is bound to


async def test_an_edited_plan_is_what_its_author_carries_out() -> None:
    world = team_world(planner(reported()))
    async with world.session() as team:
        await team.prompt("go")
        plan = await pending(team)
        assert await answered(team, plan, "approved", word=Word(2, "# Mend well", plan.digest)) is None
        await team.quiet()
        told = sent(world)
        assert f'<plan-decision request=\\"{plan.id}\\" status=\\"approved\\">' in told
        assert "# Mend well" in told
        assert "this one was chosen: by tool" in told
        (row,) = await rows(team)
        assert (row.revision, row.choice) == (2, "by tool")
        assert [one.what for one in row.history] == ["asked", "edited", "approved"]
        (event,) = await taken(team)
        assert (event.plan, event.submitted, event.digest) == ("# Mend well", plan.digest, row.digest)


async def test_b12_an_approval_of_another_text_is_void_whichever_way_it_comes() -> None:
    person = AtPrompt(Answer("approved", "person"))
    touch = Echo(name="write_file", effect="reconcile")
    world = team_world(planner(use("write_file", {"text": "x"}), reported()), touch, approvers=[person])
    async with world.session() as team:
        await team.prompt("go")
        plan = await pending(team)
        await anyio.wait_all_tasks_blocked()
        found = await team.world.store.get(request_key("s1", plan.id))
        assert found is not None
        payload = {**plan.payload, "plan": "rm -rf build"}
        forged = plan.model_copy(update={"payload": payload, "digest": digest_of("plan", payload)})
        await team.world.store.commit(Put(found.key, forged.encode(), found.revision))
        await anyio.wait_all_tasks_blocked()
        assert "changed since you read it" in str(await answered(team, plan, "approved", word=Word(seen=plan.digest)))
        assert [one.payload["plan"] for one in person.asked] == ["# Mend\n1. read", "rm -rf build"], "asked anew"
        person.go.set()  # he approves the new text: it is not what its author has submitted
        await team.quiet()
        assert touch.ran == []
        assert "the approval is void" in sent(world)


async def test_b12_an_approval_of_an_earlier_revision_opens_nothing() -> None:
    touch = Echo(name="write_file", effect="reconcile")
    again = use("submit_plan", {"plan": "# Mend\n1. read\n2. test"})
    world = team_world(planner(again, use("write_file", {"text": "x"}), reported()), touch)
    async with world.session() as team:
        await team.prompt("go")
        first = await pending(team)
        assert await answered(team, first, "rejected") is None
        while (second := (await rows(team))[-1]).id == first.id:
            await anyio.sleep(0.01)
        assert (second.revision, second.status) == (2, "pending")
        assert "is rejected by person already" in str(await answered(team, first, "approved"))
        await anyio.wait_all_tasks_blocked()
        assert touch.ran == []
        assert team.state("alice").gate.gate == "pending"
        assert await answered(team, second, "approved") is None
        await team.quiet()
        assert touch.ran == [{"text": "x"}]


@dataclass
class Repository:
    """Surroundings with one commit that a test changes."""

    head: str = "a" * 40
    looked: list[str] = field(default_factory=list[str])

    async def look(self, spec: AgentSpec, now: float) -> Around:
        return Around(datetime.fromtimestamp(now, UTC))

    async def commit(self, folder: str, why: str) -> str:
        self.looked.append(folder)
        await anyio.sleep(0.2)
        return self.head


def in_repository(world: TeamWorld, repository: Repository) -> TeamWorld:
    """The world, in a repository."""

    def host(session: str) -> Host:
        made = TeamWorld.host(world, session)
        made.ports = replace(made.ports, surroundings=repository)
        return made

    world.host = host  # type: ignore[method-assign]
    return world


@pytest.mark.parametrize(("setting", "runs"), [("tell", [{"text": "x"}]), ("void", [])])
async def test_a_base_commit_that_moved_is_told_and_void_where_that_is_set(
    setting: str, runs: Sequence[object]
) -> None:
    repository, touch = Repository(), Echo(name="write_file", effect="reconcile")
    world = in_repository(team_world(planner(use("write_file", {"text": "x"}), reported()), touch), repository)
    world.spec = {"plan_moved_base": setting}
    async with world.session() as team:
        await team.prompt("go")
        plan = await pending(team)
        assert (plan.payload["base"], plan.payload["folder"]) == ("a" * 40, "/workspace")
        repository.head = "b" * 40
        assert await answered(team, plan, "approved") is None
        await team.quiet()
        assert "moved from commit aaaaaaaaaa to bbbbbbbbbb" in sent(world)
        assert touch.ran == runs
        assert ("the approval is void" in sent(world)) is (setting == "void")


async def test_b12_the_next_task_needs_a_plan_of_its_own() -> None:
    touch = Echo(name="write_file", effect="reconcile")

    def claim(request: ModelRequest) -> Reply:
        text = b"\n".join(request.messages).decode()
        ids = sorted(set(re.findall(r"task_[a-z0-9]{12}", text)))
        return use("claim_task", {"task_id": ids[claimed.pop()]})

    def complete(request: ModelRequest) -> Reply:
        (task,) = team.state("alice").tasks
        return use("complete_task", {"task_id": task, "result": "did it"})

    claimed = [1, 0]
    model = ScriptedModel(
        {
            "lead": [
                use("create_task", {"subject": "one"}, ("create_task", {"subject": "two"})),
                use(*spawn("alice", plan_required=True)),
                say("waiting"),
                say("done"),
            ],
            "alice": [
                use("list_tasks", {}),
                claim,
                use("submit_plan", {"plan": "# one"}),
                use("write_file", {"text": "one"}),
                complete,
                claim,
                use("write_file", {"text": "two"}),
                use("report", {"status": "blocked", "result": "no plan for two"}),
            ],
        }
    )
    world = team_world(model, touch)
    world.judge.reads = {"claim_task"}
    async with world.session() as team:
        await team.prompt("go")
        plan = await pending(team)
        assert str(plan.payload["task_id"]).startswith("task_")
        assert await answered(team, plan, "approved") is None
        await team.quiet()
        assert touch.ran == [{"text": "one"}]
        assert "a plan must be approved first" in sent(world)


# The barrier, and mail


async def test_b8_a_reply_with_a_plan_and_other_calls_keeps_its_teammate_alive() -> None:
    touch, look = Echo(name="write_file", effect="reconcile"), Echo(name="read_file", effect="read")
    together = ("read_file", {"text": "before"}), ("submit_plan", {"plan": "# Mend"}), ("write_file", {"text": "after"})
    model = ScriptedModel(
        {
            "lead": [use(*spawn("alice", plan_required=True)), say("waiting"), say("done")],
            "alice": [use(*together[0], *together[1:]), use("write_file", {"text": "mended"}), reported()],
        }
    )
    world = team_world(model, touch, look)
    async with world.session() as team:
        await team.prompt("go")
        plan = await pending(team)
        await anyio.wait_all_tasks_blocked()
        assert (look.ran, touch.ran) == ([{"text": "before"}], []), "calls before it finish, later ones are not run"
        assert await answered(team, plan, "approved") is None
        await team.quiet()
        assert touch.ran == [{"text": "mended"}]
        assert "Not run: waiting for plan approval" in sent(world)
        assert team.state("alice").reported == "mended"


async def test_b6_mail_that_comes_while_a_plan_waits_outlives_the_process_and_is_read_after_the_answer() -> None:
    world = team_world(planner(reported()))
    async with world.session() as team:
        await team.prompt("go")
        plan = await pending(team)
        await team.prompt("mind the zones", to="alice")
        await anyio.wait_all_tasks_blocked()
        calls = [one.agent for one in world.model.requests].count("alice")
    async with world.session(resume=True) as team:
        await anyio.wait_all_tasks_blocked()
        assert [one.agent for one in world.model.requests].count("alice") == calls, "no model call while a plan waits"
        assert await answered(team, plan, "approved") is None
        await team.quiet()
    told = sent(world)
    assert told.index("plan-decision") < told.index("mind the zones")


# Several at once, and restarts


async def test_several_plans_wait_at_once_and_each_is_answered_by_its_id() -> None:
    names = ("alice", "bob", "carol")
    model = ScriptedModel(
        {
            "lead": [
                use(*spawn("alice", plan_required=True), *(spawn(name, plan_required=True) for name in names[1:])),
                say("waiting"),
            ]
        }
        | {name: [use("submit_plan", {"plan": f"# {name}"}), reported()] for name in names}
    )
    world = team_world(model)
    async with world.session() as team:
        await team.prompt("go")
        await pending(team, 3)
        by_name = {one.asked_by: one for one in await rows(team)}
        for name in ("carol", "alice", "bob"):
            assert await answered(team, by_name[name], "approved") is None
            await anyio.wait_all_tasks_blocked()
            assert [one.request_id for one in await taken(team, name)] == [by_name[name].id]
        await team.quiet()
        assert {name: team.state(name).reported for name in names} == dict.fromkeys(names, "mended")


async def test_a_plan_outlives_its_process_with_its_deadline_and_is_answered_while_nobody_hosts() -> None:
    world = team_world(planner(reported()))
    async with world.session() as team:
        await team.prompt("go")
        before = await pending(team)
    await anyio.sleep(600)
    async with world.session(resume=True) as team:
        await anyio.wait_all_tasks_blocked()
        (after,) = await rows(team)
        assert (after, team.state("alice").gate.gate) == (before, "pending")
    assert await answered(team, before, "approved") is None
    async with world.session(resume=True) as team:
        await team.quiet()
        assert team.state("alice").reported == "mended"


@pytest.mark.parametrize("hosted", [True, False])
async def test_at_its_deadline_a_plan_is_refused_also_when_no_process_saw_it_come(hosted: bool) -> None:
    world = team_world(planner(use("report", {"status": "blocked", "result": "nobody answered"})))
    async with world.session() as team:
        await team.prompt("go")
        plan = await pending(team)
        if hosted:
            await anyio.sleep(1_801)
    if not hosted:
        await anyio.sleep(1_801)
        assert "its deadline has passed" in str(await answered(team, plan, "approved"))
    async with world.session(resume=True) as team:
        await anyio.sleep(1)
        await team.quiet()
        assert (await rows(team))[0].status == "expired"
        assert team.state("alice").reported == "nobody answered"
        assert team.state("alice").gate.gate == "required"

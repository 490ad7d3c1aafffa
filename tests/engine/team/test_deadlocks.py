"""Agents that wait for each other in vain are found when the last of them begins to wait, and told once."""

from __future__ import annotations

import pytest
from tests.engine.team.team_world import TeamWorld, spawn, team_world

from callboard.engine.row_cache import RowCache
from callboard.engine.runtime import SessionRuntime
from callboard.ports.model import Delta, ModelRequest, Reply
from callboard.ports.store import Row
from callboard.testing import HostedSession, ScriptedModel, say, use
from callboard.types.events import Event
from callboard.types.records import AgentRow, Envelope

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> object:
    """Virtual time alone."""
    from trio.testing import MockClock

    return "trio", {"clock": MockClock(autojump_threshold=0)}


async def told(team: HostedSession) -> list[Envelope]:
    records = await team.world.store.read("m/s1/lead.1", 0)
    mail = [Envelope.model_validate_json(record.data) for record in records]
    return [one for one in mail if one.metadata.get("status") == "deadlock"]


class Screen:
    """Keeps what a person is told."""

    def __init__(self) -> None:
        self.notices: list[str] = []

    def on_event(self, agent: str, seq: int, event: Event) -> None: ...

    def on_mail(self, envelope: Envelope) -> None: ...

    def on_delta(self, agent: str, delta: Delta) -> None:
        if delta.kind == "notice":
            self.notices.append(delta.text)


def message(to: str, content: str) -> Reply:
    return use("send_message", {"to": to, "content": content})


def two_with_work(alice: list[object], bob: list[object], *lead: object) -> TeamWorld:
    """alice and bob have a task each in their hands."""

    def share(request: ModelRequest) -> Reply:
        text = request.messages[-1].decode()
        ids = sorted({word.strip('".,:\\n') for word in text.split() if word.startswith("task_")})
        return use(*spawn("alice", task_id=ids[0]), spawn("bob", task_id=ids[1]))

    begin = use("create_task", {"subject": "the reader"}, ("create_task", {"subject": "the writer"}))
    script = {"lead": [begin, share, say("given"), *lead], "alice": alice, "bob": bob}
    return team_world(ScriptedModel(script))


async def test_two_teammates_that_wait_for_each_others_answer_are_named_to_the_lead_once() -> None:
    asks = [message("bob", "Which format?"), say("I wait for bob"), say("I still wait")]
    world = two_with_work(
        asks, [message("alice", "Which fields?"), say("I wait for alice"), say("Not before she says")]
    )
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        (envelope,) = await told(team)
        assert envelope.metadata["agents"] == ["alice", "bob"]
        assert "alice waits for bob: a reply to its message env_" in envelope.content
        assert "bob waits for alice: a reply to its message env_" in envelope.content
        assert envelope.cause == "teammate"
        sent = b"\n".join(world.model.requests[-1].messages)
        assert any(b"A deadlock: alice waits for bob" in b"\n".join(r.messages) for r in world.model.requests), sent
    async with world.session(resume=True) as team:
        await team.quiet()
        assert len(await told(team)) == 1, "a resume finds the same deadlock, and tells it to nobody again"


async def test_who_answers_is_in_no_deadlock() -> None:
    def answer(request: ModelRequest) -> Reply:
        return message("alice", "JSON.") if b"Which format?" in request.messages[-1] else say("I begin")

    alice = [message("bob", "Which format?"), say("I wait for bob"), say("thanks")]
    world = two_with_work(alice, [answer] * 6)
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert await told(team) == []
        assert team.state("alice").waits.replies == {}


async def test_a_lead_that_waits_for_who_waits_for_it_is_told_and_so_is_the_person() -> None:
    def react(request: ModelRequest) -> Reply:
        return message("alice", "How far are you?") if b"ask alice" in request.messages[-1] else say("hm")

    screen = Screen()
    alice = [say("I begin"), message("bob", "Which format?"), say("I wait for bob")]
    bob = [message("lead", "May I change the schema?"), say("I wait for the word"), say("Not before I may")]
    world = two_with_work(alice, bob, *[react] * 12)
    world.observers = [screen]
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert await told(team) == [], "bob waits for the lead, and the lead for nobody"
        await team.prompt("ask alice")
        await team.quiet()
        (found,) = await told(team)
        assert found.metadata["agents"] == ["alice", "bob", "lead"]
        (notice,) = [one for one in screen.notices if one.startswith("deadlock: ")]
        assert "alice waits for bob" in notice
        assert "lead waits for alice" in notice


async def test_a_plan_that_only_a_lead_could_answer_who_has_ended_is_told_to_nobody_but_logged() -> None:
    """A lead that has stopped reads nothing any more: its session goes with it, and nothing crashes on the way."""
    model = ScriptedModel(
        {
            "lead": [use(*spawn("alice", plan_required=True)), say("waiting")],
            "alice": [use("submit_plan", {"plan": "the plan"}), say("alas")],
        }
    )
    world = team_world(model)
    world.spec = {"plan_approver": "lead", "plan_on_deadline": "refuse"}
    async with world.session() as team:
        await team.team.wait_for_begin("lead", 1)
        await team.prompt("go")
        await team.command("stop")
        await team.team.members[("lead", 1)].ended.wait()
        assert await told(team) == []


async def test_an_end_that_is_heard_of_before_an_older_answer_is_no_deadlock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its own commits a process knows before older ones of others; only the store has them all."""
    take, refresh, reading = RowCache.take, SessionRuntime.refresh, list[str]()

    def late(board: RowCache, *rows: Row, agent: AgentRow | None = None) -> None:
        answered = [row for row in rows if "/request/" in row.key and b'"approved"' in (row.value or b"")]
        take(board, *(row for row in rows if reading or row not in answered), agent=agent)

    async def read(runtime: SessionRuntime, key: str) -> None:
        reading.append(key)
        await refresh(runtime, key)
        reading.pop()

    monkeypatch.setattr(RowCache, "take", late)
    monkeypatch.setattr(SessionRuntime, "refresh", read)
    stop = use("request_shutdown", {"teammate": "alice"})
    lead = [use(*spawn("alice", "help")), say("w"), stop, say("w"), say("she is gone")]
    world = team_world(ScriptedModel({"lead": lead, "alice": [use("report", {"status": "done", "result": "here"})]}))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        found = team.team.runtime.rows.agent("alice")
        assert found is not None
        assert found[0].life == "stopped"
        assert await told(team) == []

"""Mail to a life that is over: its sender is told once, whatever crashes; nobody is told of a dead letter."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest
from tests.engine.team.team_world import TeamWorld, spawn, team_world

from callboard.adapters.storage.memory import MemoryStore
from callboard.adapters.tools import team as team_tools
from callboard.core.keys import dead_key, mailbox
from callboard.core.messaging.envelopes import envelope_write
from callboard.ports.model import Delta, ModelRequest, OnDelta, Reply
from callboard.ports.store import Fence, Put, Write
from callboard.testing import HostedSession, ScriptedModel, say, use
from callboard.types.errors import WorkspaceUnusable
from callboard.types.events import Event
from callboard.types.records import Envelope

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["trio", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> object:
    """A busy agent is ended at the time-out of its shutdown: in virtual time, and after a short one in real time."""
    if request.param == "trio":
        from trio.testing import MockClock

        return "trio", {"clock": MockClock(autojump_threshold=0)}
    monkeypatch.setattr(team_tools, "SHUTDOWN_SECONDS", 0.2)
    return "asyncio"


STOP = use("request_shutdown", {"teammate": "alice"})
REPORT = use("report", {"status": "done", "result": "here"})


class Slow(ScriptedModel):
    """Alice's first call never ends by itself."""

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        reply = await super().complete(request, on_delta)
        if request.agent == "alice":
            await anyio.sleep_forever()
        return reply


class Mail:
    """Sees each envelope that is sent, and each that only the screen shows."""

    def __init__(self) -> None:
        self.seen: list[Envelope] = []

    def on_mail(self, envelope: Envelope) -> None:
        self.seen.append(envelope)

    def on_event(self, agent: str, seq: int, event: Event) -> None: ...

    def on_delta(self, agent: str, delta: Delta) -> None: ...


async def mail_of(world: TeamWorld, name: str, life: int = 1) -> list[Envelope]:
    records = await world.store.read(mailbox("s1", name, life))
    return [Envelope.model_validate_json(record.data) for record in records]


def letters(mail: Sequence[Envelope]) -> list[Envelope]:
    return [one for one in mail if one.type == "dead_letter"]


def unread(*more: Reply, store: MemoryStore | None = None) -> TeamWorld:
    """The lead writes to alice, who is busy, and then asks her to stop."""
    tell = ("send_message", {"to": "alice", "content": "look at retry.py too"})
    both = use(*tell, ("request_shutdown", {"teammate": "alice"}))
    lead = [use(*spawn("alice")), say("waiting"), both, *more]
    return team_world(
        Slow({"lead": [*lead, *[say("I see")] * 5], "alice": [say("never said")]}), store=store or MemoryStore()
    )


async def stopped(team: HostedSession) -> None:
    """Alice has ended, with the lead's message unread."""
    await team.prompt("go")
    await team.team.wait_for_begin("alice", 1)
    await team.prompt("that is enough")
    await team.quiet()


async def test_the_sender_of_mail_that_was_never_read_is_told() -> None:
    world = unread()
    async with world.session() as team:
        await stopped(team)
        told = letters(await mail_of(world, "lead"))
        (message,) = [one for one in await mail_of(world, "alice") if one.content == "look at retry.py too"]
        assert [(one.reply_to, one.mode) for one in told] == [(message.id, "wake")]
        shown = b"\n".join([r for r in world.model.requests if r.agent == "lead"][-1].messages)
        assert b"alice has ended and never read your message" in shown
        assert b"It began: look at retry.py too" in shown


async def test_what_comes_after_the_end_is_told_too_and_the_persons_words_on_the_screen() -> None:
    screen = Mail()
    world = unread()
    world.observers = [screen]
    async with world.session() as team:
        await stopped(team)
        before = len(letters(await mail_of(world, "lead")))
        late = Envelope(id="env_late", sender="lead", sender_incarnation=1, recipient="alice", type="message")
        await world.store.commit(envelope_write("s1", late))
        await team.prompt("are you there?", to="alice")
        await team.quiet()
        told = letters(await mail_of(world, "lead"))
        assert [one.reply_to for one in told[before:]] == ["env_late"]
        assert [one.recipient for one in screen.seen if one.type == "dead_letter"][before + 1 :] == ["person"]


async def test_a_dead_letter_that_is_dead_makes_none() -> None:
    model = ScriptedModel(
        {
            "lead": [use(*spawn("alice"), spawn("bob")), say("w"), say("w"), STOP, say("w"), *[say("ok")] * 9],
            "alice": [REPORT],
            "bob": [REPORT],
        }
    )
    world = team_world(model)
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        await team.command("stop", to="bob")
        await team.command("stop", to="alice")
        await team.quiet()
        for number, sender in enumerate(["bob", "runtime"]):
            kind = "message" if sender == "bob" else "dead_letter"
            late = Envelope.model_validate(
                {"id": f"env_{number}", "sender": sender, "sender_incarnation": 1, "recipient": "alice", "type": kind}
            )
            await world.store.commit(envelope_write("s1", late))
        await team.quiet()
        assert [letters(await mail_of(world, name)) for name in ("lead", "bob")] == [[], []]
        assert len(letters(await mail_of(world, "alice"))) == 1


class Breaks(MemoryStore):
    """The commit that sees to a dead mailbox fails, before it is done or after; the process is gone with it."""

    def __init__(self, after: bool) -> None:
        super().__init__()
        self.after, self.broken = after, False

    async def commit(self, *writes: Write, fence: Fence | None = None) -> tuple[int, ...]:
        mine = not self.broken and any(isinstance(one, Put) and one.key.startswith("dead/") for one in writes)
        numbers = () if mine and not self.after else await super().commit(*writes, fence=fence)
        if mine:
            self.broken = True
            raise WorkspaceUnusable("the power is gone")
        return numbers


@pytest.mark.parametrize("after", [False, True])
async def test_a_crash_round_the_telling_tells_once(after: bool) -> None:
    store = Breaks(after)
    world = unread(store=store)
    with pytest.RaisesGroup(WorkspaceUnusable, flatten_subgroups=True):
        async with world.session() as team:
            await stopped(team)
    assert store.broken
    for _ in range(2):
        async with world.session(resume=True) as team:
            await team.quiet()
            assert len(letters(await mail_of(world, "lead"))) == 1
    row = await store.get(dead_key("s1", "alice", 1))
    assert row is not None
    assert row.value == b'{"position":%d,"moves":false}' % await store.last(mailbox("s1", "alice", 1))


async def test_a_parked_mate_keeps_its_mail() -> None:
    class Crashes(ScriptedModel):
        async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
            if request.agent == "alice":
                raise ZeroDivisionError("a bug in Callboard")
            return await super().complete(request, on_delta)

    tell = use("send_message", {"to": "alice", "content": "for when you are back"})
    world = team_world(Crashes({"lead": [use(*spawn("alice")), say("w"), say("hm"), tell, say("ok")]}))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        await team.prompt("write to her")
        await team.quiet()
        found = team.team.runtime.rows.agent("alice")
        assert found is not None
        assert found[0].life == "crashed"
        assert (await mail_of(world, "alice"))[-1].content == "for when you are back"
        assert letters(await mail_of(world, "lead")) == []
        assert await world.store.get(dead_key("s1", "alice", 1)) is None


async def test_late_mail_to_the_leads_old_life_goes_to_its_new_one() -> None:
    model = ScriptedModel({"lead": [say("one"), say("two"), say("three")]})
    world = team_world(model)
    async with world.session() as team:
        await team.prompt("hello")
        await team.quiet()
        await team.command("new")
        await team.team.wait_for_begin("lead", 2)
        late = Envelope(id="env_late", sender="board", recipient="lead", type="message", content="an old address")
        await world.store.commit(envelope_write("s1", late))
        await team.quiet()
        assert [one.id for one in await mail_of(world, "lead", 2)] == ["env_late"]
        assert b"an old address" in model.requests[-1].messages[-1]

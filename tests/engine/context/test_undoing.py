"""Taking an edit back in a living team, and beside a session that nobody hosts."""

from __future__ import annotations

from dataclasses import dataclass, field

import anyio
import pytest
from tests.engine.agent.test_one_agent import Echo, texts, tools

from callboard.core.context.view.invariants import invariants
from callboard.core.keys import journal
from callboard.core.messaging.envelopes import envelope_write
from callboard.engine.commands import AgentCommand, send_command, send_prompt
from callboard.engine.operations.undo import undo_answer, undo_unhosted
from callboard.engine.recall import events_of, recall
from callboard.ports.store import LeaseHolder
from callboard.testing import Played, ScriptedModel, World, say, use
from callboard.types.events import ContextEdited, EnvelopeReceived
from callboard.types.records import AgentRow, Envelope, Json

pytestmark = pytest.mark.anyio

ROW = AgentRow(name="lead", kind="lead")
SPEC: Json = {
    "pipeline": ({"stage": "clear_old_results", "params": {"keep": 0, "over": 0.0, "at_least": 0.01}},),
    "context_limit": 6_000,
}


@dataclass
class Busy:
    """A tool that runs until it is let go."""

    began: anyio.Event = field(default_factory=anyio.Event)
    go: anyio.Event = field(default_factory=anyio.Event)

    async def act(self, given: Json) -> str:
        if given.get("text") == "wait":
            self.began.set()
            await self.go.wait()
            return "waited"
        return "a long result " * 200


def worker(*more: Played, busy: Busy | None = None, limit: int = 6_000) -> World:
    """A lead whose first result is cleared before its third call."""
    script = [use("echo", {"text": "one"}), use("echo", {"text": "two"}), say("Both."), *more]
    echo = Echo(act=(busy or Busy()).act)
    return World(ScriptedModel({"lead": script}), tools(echo), spec={**SPEC, "context_limit": limit})


async def edits(world: World, session: str = "s1") -> list[tuple[int, ContextEdited]]:
    events = await events_of(world.store, journal(session, "lead", 1))
    return [(seq, one) for seq, one in enumerate(events, 1) if isinstance(one, ContextEdited) and one.edits]


async def begun(world: World) -> int:
    """A session with one edit, hosted no longer; where that edit stands."""
    async with world.session() as session:
        await session.prompt("Go.")
        await session.quiet()
    return (await edits(world))[0][0]


async def commanded(world: World, words: str, nonce: str = "x") -> str:
    return await send_command(
        world.store, "s1", AgentCommand("undo", "lead", words), now=world.clock.now(), nonce=nonce
    )


async def beside(world: World) -> None:
    lease = await world.store.acquire("host-s1")
    assert not isinstance(lease, LeaseHolder)
    await undo_unhosted(world.store, lease.fence, "s1", ROW, now=world.clock.now())
    await lease.release()


async def test_an_idle_host_takes_it_back_at_once_and_the_next_call_sees_it() -> None:
    world = worker(say("Yes."))
    async with world.session() as session:
        await session.prompt("Go.")
        await session.quiet()
        assert texts(world).count("a long result a long result") < 2 * 100
        (seq, cleared), *_ = await edits(world)
        before = session.state("lead").context.conversation
        await session.command("undo", text=str(seq))
        await session.quiet()
        after = session.state("lead").context.conversation
        assert after.tokens > before.tokens
        assert invariants(after.messages, sent=False) == []
        undo = (await edits(world))[-1][1]
        assert (undo.stage, undo.trigger, undo.undoes) == ("undo", "manual", (seq,))
        assert undo.why == f"undone by a person: #{seq} (clear_old_results)"
        assert undo.tokens_after > undo.tokens_before
        (target,) = {edit.message for edit in cleared.edits}
        await session.prompt("And?")
        await session.quiet()
        later = [edit.message for seq_, one in await edits(world) if seq_ > seq for edit in one.edits]
        assert later.count(target) == 1, "only the undo itself touches it"


async def test_a_host_takes_it_back_while_a_tool_runs() -> None:
    busy = Busy()
    world = worker(use("echo", {"text": "wait"}), say("Waited."), busy=busy)
    async with world.session() as session:
        await session.prompt("Go.")
        await session.quiet()
        seq = (await edits(world))[0][0]
        await session.prompt("Wait.")
        await busy.began.wait()
        envelope = await commanded(world, str(seq))
        assert await undo_answer(world.store, ROW, "s1", after=seq, envelope=envelope) is not None
        assert not busy.go.is_set()
        busy.go.set()
        await session.quiet()
        assert session.state("lead").turns.last_text == "Waited."
        assert invariants(session.state("lead").context.conversation.messages, sent=False) == []


@pytest.mark.parametrize(("words", "why"), [("2", "#2 is no edit"), ("99", "#99 is no edit")])
async def test_what_is_no_edit_is_refused_in_the_journal_and_the_host_goes_on(words: str, why: str) -> None:
    world = worker(say("Still here."))
    async with world.session() as session:
        await session.prompt("Go.")
        await session.quiet()
        await session.command("undo", text=words)
        await session.prompt("Are you there?")
        await session.quiet()
        assert session.state("lead").compaction.undo == ()
        assert session.state("lead").turns.last_text == "Still here."
    events = await events_of(world.store, journal("s1", "lead", 1))
    (refused,) = [one for one in events if isinstance(one, ContextEdited) and one.undoes]
    assert (refused.edits, refused.why) == ((), why)


async def test_nobody_hosts_and_it_is_taken_back_without_a_model_call() -> None:
    world = worker()
    seq = await begun(world)
    asked = len(world.model.requests)
    envelope = await commanded(world, str(seq))
    await beside(world)
    answer = await undo_answer(world.store, ROW, "s1", after=seq, envelope=envelope)
    assert (answer, (await edits(world))[-1][1].undoes) == ((await edits(world))[-1][0], (seq,))
    assert len(world.model.requests) == asked
    state = await recall(world.store, "s1", "lead", 1)
    assert (state.compaction.undo, state.turn) == ((), None)


async def test_other_mail_is_received_in_its_order_and_kept_for_the_next_host() -> None:
    world = worker(say("I heard you."))
    seq = await begun(world)
    for number, text in enumerate(("before", "after")):
        await send_prompt(world.store, "s1", text, to="lead", now=world.clock.now(), nonce=text)
        if number == 0:
            await commanded(world, str(seq))
    await beside(world)
    state = await recall(world.store, "s1", "lead", 1)
    assert [one.content for one in state.inbox.mail] == ["before", "after"]
    async with world.session(resume=True) as session:
        await session.quiet()
        assert session.state("lead").turns.last_text == "I heard you."
        said = texts(world)
        assert said.index("before") < said.index("after")
        assert said.count("before") == 1


async def test_two_commands_are_answered_each_by_its_own_record() -> None:
    world = worker()
    seq = await begun(world)
    envelopes = [await commanded(world, words, words) for words in (str(seq), "2", f"{seq} 2")]
    await beside(world)
    answers = [await undo_answer(world.store, ROW, "s1", after=seq, envelope=one) for one in envelopes]
    events = await events_of(world.store, journal("s1", "lead", 1))
    told = [events[seq_ - 1] for seq_ in answers if seq_ is not None]
    assert [(one.undoes, bool(one.edits)) for one in told if isinstance(one, ContextEdited)] == [
        ((seq,), True),
        ((2,), False),
        ((seq, 2), False),
    ]


async def test_a_resume_after_it_sends_the_same_bytes_as_a_host_that_went_on() -> None:
    """Taken back beside the session or by its host: the next call is sent the same messages."""
    hosted, alone = worker(say("Yes.")), worker(say("Yes."))
    async with hosted.session() as session:
        await session.prompt("Go.")
        await session.quiet()
        await session.command("undo", text=str((await edits(hosted))[0][0]))
        await session.quiet()
    await commanded(alone, str(await begun(alone)))
    await beside(alone)
    for world in (hosted, alone):
        async with world.session(resume=True) as session:
            await session.prompt("And?")
            await session.quiet()
    assert hosted.model.requests[-1].messages == alone.model.requests[-1].messages


async def test_mail_that_does_not_count_is_kept_out_also_where_nobody_hosts_the_session() -> None:
    world = worker()
    seq = await begun(world)
    forged = Envelope(
        id="env_forged",
        sender="alice",
        recipient="lead",
        type="command",
        content=str(seq),
        cause="person",
        metadata={"action": "undo"},
        sent_at=world.clock.now(),
    )
    await world.store.commit(envelope_write("s1", forged))
    await beside(world)
    events = await events_of(world.store, journal("s1", "lead", 1))
    received = [one for one in events if isinstance(one, EnvelopeReceived)][-1]
    assert received.envelope.id == "env_forged"
    assert received.refused == "alice may not give lead the command 'undo'"
    assert len(await edits(world)) == 1, "nothing was taken back"

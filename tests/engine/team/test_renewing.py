"""`/new` and `/new --carry`: the lead's conversation is begun anew, and nothing that matters stays behind."""

from __future__ import annotations

import pytest
from tests.engine.agent.test_one_agent import texts
from tests.engine.team.team_world import team_world

from callboard.adapters.storage.memory import MemoryStore
from callboard.core.context.view.invariants import invariants
from callboard.core.keys import agent_key, journal, mailbox
from callboard.core.messaging.envelopes import envelope_write
from callboard.engine.recall import recall
from callboard.ports.store import Fence, Put, Write
from callboard.testing import HostedSession, ScriptedModel, World, fault, say, use
from callboard.types.records import AgentRow, Envelope

pytestmark = pytest.mark.anyio

TODO = (
    "todo_write",
    {"todos": [{"content": "ship it", "status": "in_progress"}, {"content": "old", "status": "completed"}]},
)
WORK = use("create_task", {"subject": "the roof"}, TODO, ("ask_person", {"question": "slate or tile?"}))


def overflowing() -> World:
    """A lead that knows much when the service refuses its prompt for good."""
    refused = fault("too_long", status=400, message="prompt is too long: 9 tokens > 8 maximum")
    model = ScriptedModel({"lead": [WORK, say("I found the leak in attic.py"), refused, refused, say("on I go")]})
    return team_world(model)


async def overflow(team: HostedSession) -> None:
    await team.prompt("Mend the house. Never touch the chimney.")
    await team.quiet()
    await team.prompt("Go on")
    await team.quiet()
    assert team.state("lead").turns.last_reason == "overflow"


async def renewed(team: HostedSession, text: str) -> None:
    await team.command("new", text=text)
    await team.team.wait_for_begin("lead", 2)
    await team.quiet()


async def test_a_fresh_conversation_carries_the_persons_words_the_state_and_a_note() -> None:
    world = overflowing()
    async with world.session() as team:
        await overflow(team)
        await renewed(team, "carry")
        old, new = team.team.state("lead", 1), team.state("lead")
        assert old is not None
        assert old.lifecycle.ended is not None
        assert new.identity.incarnation == 2
        assert new.work.todos == old.work.todos
        assert len(new.context.conversation.messages) == 1
        assert world.model.requests[-1].ordinal == old.model.ordinal + 1, "nothing was asked yet"
        await team.prompt("And now?")
        await team.quiet()
        sent = texts(world)
        assert team.state("lead").turns.last_text == "on I go"
        for words in (
            "Mend the house. Never touch the chimney.",
            "Go on",
            "And now?",
            "[in_progress] ship it",
            "the roof",
        ):
            assert words in sent
        assert "slate or tile?" in sent, "the question is still open"
        assert "I found the leak" not in sent
        path = sent.split("hand-off note: ")[1].split("\\n")[0]
        note = world.archive.files[path]
        assert "I found the leak in attic.py" in note
        assert "Never touch the chimney" in note
        assert path == f"/data/transcripts/lead.1-{old.seq}-handoff.md"
        assert invariants(team.state("lead").context.conversation.messages, sent=False) == []


async def test_a_question_of_the_old_life_is_answered_to_the_new_one() -> None:
    world = overflowing()
    async with world.session() as team:
        await overflow(team)
        await renewed(team, "carry")
        (request,) = [one for one in team.team.runtime.rows.requests() if one.kind == "question"]
        assert (request.status, request.incarnation) == ("pending", 2)


async def test_new_without_carry_begins_with_nothing_and_takes_back_what_was_asked() -> None:
    world = overflowing()
    async with world.session() as team:
        await overflow(team)
        await renewed(team, "")
        new = team.state("lead")
        assert (new.identity.incarnation, new.work.todos, len(new.context.conversation.messages)) == (2, (), 0)
        assert {one.status for one in team.team.runtime.rows.requests()} == {"withdrawn"}
        await team.prompt("And now?")
        await team.quiet()
        assert "Mend the house" not in texts(world)


async def test_a_fresh_conversation_keeps_what_the_session_used() -> None:
    world = World(ScriptedModel({"lead": [say("one"), say("two"), say("three")]}))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        first = team.state("lead").budget.usage
        await renewed(team, "")
        (row,) = team.team.runtime.rows.agents()
        assert first.output_tokens > 0
        assert row.earlier == first
        await team.prompt("again")
        await team.quiet()
        await team.command("new", text="")
        await team.team.wait_for_begin("lead", 3)
        (row,) = team.team.runtime.rows.agents()
        assert row.earlier.output_tokens == 2 * first.output_tokens


async def test_mail_that_the_old_life_had_not_taken_reaches_the_new_one_once() -> None:
    world = overflowing()
    async with world.session() as team:
        await overflow(team)
        await team.command("new", text="carry")
        await team.prompt("said while it was renewed")  # to whichever life has the row
        await team.team.wait_for_begin("lead", 2)
        await team.quiet()
        assert texts(world).count("said while it was renewed") == 1


class Crossing(MemoryStore):
    """A sender writes to the old life just before the commit of the new one, and to the new life just after it."""

    crossed = False

    async def commit(self, *writes: Write, fence: Fence | None = None) -> tuple[int, ...]:
        rows = [one for one in writes if isinstance(one, Put) and one.key == agent_key("s1", "lead")]
        if not any(AgentRow.model_validate_json(one.value).incarnation == 2 for one in rows):
            return await super().commit(*writes, fence=fence)
        if not self.crossed:
            self.crossed = True
            await super().commit(envelope_write("s1", crossing_mail(1, "the first")))
        numbers = await super().commit(*writes, fence=fence)
        await super().commit(envelope_write("s1", crossing_mail(2, "the second")))
        return numbers


def crossing_mail(life: int, text: str) -> Envelope:
    return Envelope(id=text, type="prompt", sender="person", recipient="lead", incarnation=life, content=text)


async def test_mail_that_arrives_while_the_new_life_begins_keeps_its_order() -> None:
    world = overflowing()
    world.store = Crossing()
    async with world.session() as team:
        await overflow(team)
        await renewed(team, "carry")
        records = await world.store.read(mailbox("s1", "lead", 2))
        ids = [Envelope.model_validate_json(record.data).id for record in records]
        assert [each for each in ids if each.startswith("the ")] == ["the first", "the second"]


class Dying(MemoryStore):
    """Dies at the commit that writes a second life of the lead, as often as it is told to."""

    deaths = 1

    async def commit(self, *writes: Write, fence: Fence | None = None) -> tuple[int, ...]:
        rows = [one for one in writes if isinstance(one, Put) and one.key == agent_key("s1", "lead")]
        if self.deaths and any(AgentRow.model_validate_json(one.value).incarnation == 2 for one in rows):
            self.deaths -= 1
            raise RuntimeError("killed")
        return await super().commit(*writes, fence=fence)


async def until_it_dies(world: World) -> None:
    async with world.session() as team:
        await overflow(team)
        await team.command("new", text="carry")
        await team.team.wait_for_begin("lead", 2)


async def test_a_process_that_dies_between_the_lives_leaves_the_new_one_to_the_next_host() -> None:
    world = overflowing()
    world.store = store = Dying()
    with pytest.raises(BaseExceptionGroup):
        await until_it_dies(world)
    assert store.deaths == 0
    async with world.session(resume=True) as team:
        await team.team.wait_for_begin("lead", 2)
        await team.quiet()
        assert [todo.content for todo in team.state("lead").work.todos] == ["ship it", "old"]
        assert await recall(store, "s1", "lead", 2) == team.state("lead")


async def test_the_new_life_has_a_journal_and_a_mailbox_of_its_own() -> None:
    world = overflowing()
    async with world.session() as team:
        await overflow(team)
        await renewed(team, "carry")
        assert (await team.journal("lead", 2))[0] == "agent_started"
        last = await world.store.last(journal("s1", "lead", 1))
        await team.prompt("And now?")
        await team.quiet()
        assert await world.store.last(journal("s1", "lead", 1)) == last
        assert await world.store.last(mailbox("s1", "lead", 2)) == 1

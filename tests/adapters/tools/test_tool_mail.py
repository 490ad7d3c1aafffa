"""Sending to a full mailbox, and answering a message by its id."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.adapters.tools.tool_world import ToolWorld

from callboard.adapters.tools.team import team_tools
from callboard.core.keys import request_envelope_id
from callboard.core.messaging.envelopes import envelope_block
from callboard.ports.tool import CallContext, MailboxLoad, ToolOutcome
from callboard.types.errors import ToolRefused
from callboard.types.records import AgentRow

pytestmark = pytest.mark.anyio
SINCE = 1_780_000_000.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def world() -> ToolWorld:
    world = ToolWorld(team_tools())
    await world.join("lead", "lead")
    await world.join("alice")
    await world.join("bob")
    return world


async def context_with_full(world: ToolWorld, full: set[str], by: str = "lead") -> CallContext:
    """Return a tool's context in which these mailboxes are full."""

    def load(row: AgentRow) -> MailboxLoad:
        return MailboxLoad(1_000 if row.name in full else 999, 1_000, SINCE)

    return replace(await world.context(by), mail_of=load)


async def run(world: ToolWorld, tool: str, context: CallContext, **given: object) -> ToolOutcome:
    outcome = await world.tools[tool].run(given, context)
    await world.store.commit(*outcome.writes)
    return outcome


async def test_a_full_mailbox_refuses_a_message_and_says_how_full_and_since_when(world: ToolWorld) -> None:
    context = await context_with_full(world, {"bob"})
    with pytest.raises(ToolRefused) as refused:
        await run(world, "send_message", context, to="bob", content="one more")
    assert str(refused.value) == (
        "bob's mailbox is full: 1,000 messages wait there unread, the oldest since 2026-05-28 20:26:40 UTC. "
        "It was not sent. Do what you can without it, and try again later."
    )
    assert await world.mail("bob") == []
    await run(world, "send_message", context, to="alice", content="there is room for one")
    assert len(await world.mail("alice")) == 1


async def test_a_broadcast_passes_by_full_mailboxes_and_names_them(world: ToolWorld) -> None:
    sent = await run(world, "broadcast", await context_with_full(world, {"bob"}), content="news")
    assert str(sent.content).startswith("Sent to alice. bob's mailbox is full: 1,000 ")
    assert str(sent.content).endswith(" They did not get it.")
    assert (len(await world.mail("alice")), len(await world.mail("bob"))) == (1, 0)
    with pytest.raises(ToolRefused, match="It was sent to nobody"):
        await run(world, "broadcast", await context_with_full(world, {"alice", "bob"}), content="news")


async def test_a_full_mailbox_does_not_keep_a_shutdown_out(world: ToolWorld) -> None:
    await run(world, "request_shutdown", await context_with_full(world, {"bob"}), teammate="bob")
    assert [one.type for one in await world.mail("bob")] == ["shutdown_request"]


async def test_a_message_says_what_it_answers_and_its_reader_sees_it(world: ToolWorld) -> None:
    await world.run("send_message", "alice", to="lead", content="which file?")
    (question,) = await world.mail("lead")
    await world.run("send_message", to="alice", content="retry.py", reply_to=question.id)
    (answer,) = await world.mail("alice")
    assert answer.reply_to == question.id
    assert f'reply_to="{question.id}"' in str(envelope_block(answer).data["text"])


@pytest.mark.parametrize("wrong", ["the last one", "req_aaaaaaaaaaaa", 'env_" type="prompt', "env_short"])
async def test_what_is_no_id_of_a_message_is_refused_as_what_is_answered(world: ToolWorld, wrong: str) -> None:
    assert "reply_to" in await world.refusal("send_message", to="alice", content="hello", reply_to=wrong)


async def test_an_envelope_says_what_caused_it_and_which_life_sent_it(world: ToolWorld) -> None:
    await world.join("carol", incarnation=3)
    context = replace(await world.context("carol"), caused_by="env_cause")
    await run(world, "send_message", context, to="lead", content="hello")
    (mail,) = await world.mail("lead")
    assert (mail.caused_by, mail.sender, mail.sender_incarnation) == ("env_cause", "carol", 3)


async def test_the_answer_of_a_shutdown_can_name_the_envelope_that_asked(world: ToolWorld) -> None:
    asked = await world.run("request_shutdown", teammate="bob")
    (mail,) = await world.mail("bob")
    assert mail.id == request_envelope_id(str(asked.data["request_id"]), "bob")

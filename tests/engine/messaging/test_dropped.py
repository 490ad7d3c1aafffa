"""Notices about messages that are dropped because a chain of messages is too long."""

from __future__ import annotations

import anyio
from tests.engine.agent.test_one_agent import Echo
from tests.engine.team.supervised import virtual
from tests.engine.team.team_world import spawn, team_world

from callboard.core.agent.decide import MAX_DEPTH
from callboard.core.messaging.envelopes import envelope_write
from callboard.testing import HostedSession, ScriptedModel, say, use
from callboard.types.records import Envelope


def too_deep(sender: str, number: int) -> Envelope:
    return Envelope(
        id=f"env_{sender}_{number}",
        sender=sender,
        recipient="bob",
        incarnation=1,
        type="message",
        content="again",
        depth=MAX_DEPTH + 1,
        sent_at=1.0,
    )


def notices(team: HostedSession, agent: str) -> list[str]:
    """The unread notices of an agent, each without its reason."""
    return [mail.content.partition(":")[0] for mail in team.state(agent).inbox.mail if mail.type == "error"]


@virtual
async def test_each_sender_learns_how_many_of_its_messages_were_dropped() -> None:
    script = {"lead": [use(*spawn("alice")), use(*spawn("bob")), use(*spawn("carol")), say("w"), say("I see")]}
    world = team_world(ScriptedModel(script, end="ok"), Echo(name="write_file"))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        mail = [too_deep("alice", 1), too_deep("carol", 1), too_deep("carol", 2)]
        await world.store.commit(*(envelope_write(team.id, envelope) for envelope in mail))
        with anyio.fail_after(600):
            while not notices(team, "carol"):
                await anyio.sleep(0.1)
        assert notices(team, "alice") == ["1 message to bob not delivered"]
        assert notices(team, "carol") == ["2 messages to bob not delivered"]

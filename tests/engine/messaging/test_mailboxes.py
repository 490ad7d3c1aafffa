"""Back-pressure: no mailbox holds more than it may, however many send at once; the runtime and a person always pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import anyio
import pytest
from tests.engine.team.team_world import TeamWorld, spawn, team_world

from callboard.core.keys import mailbox
from callboard.engine.messaging.mailboxes import Mailboxes
from callboard.engine.runtime import SessionRuntime
from callboard.ports.model import ModelRequest, OnDelta, Reply
from callboard.ports.store import Append
from callboard.ports.tool import MailboxLoad
from callboard.testing import ScriptedModel, say, use
from callboard.types.records import Envelope

pytestmark = pytest.mark.anyio


class Narrow(TeamWorld):
    """Three envelopes may wait for an agent."""

    def runtime(self, session: str) -> SessionRuntime:
        runtime = super().runtime(session)
        runtime.mailboxes = Mailboxes(3)
        return runtime


class Busy(ScriptedModel):
    """Bob's first call takes until `free` is set; `sent` is set when each of the crowd has said so."""

    def __init__(self, script: Mapping[str, Sequence[Reply]], crowd: Sequence[str]) -> None:
        super().__init__(script)
        self.free, self.begun, self.sent = anyio.Event(), anyio.Event(), anyio.Event()
        self._crowd = set(crowd)

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        reply = await super().complete(request, on_delta)
        if request.agent == "bob" and not self.free.is_set():
            self.begun.set()
            await self.free.wait()
        if reply.blocks[0].get("text") == "sent":
            self._crowd.discard(request.agent)
        if not self._crowd:
            self.sent.set()
        return reply


def tell(content: str) -> Reply:
    return use("send_message", {"to": "bob", "content": content})


def results(model: ScriptedModel, agent: str) -> list[str]:
    """What its newest request says of the messages that it sent."""
    text = b"\n".join([r for r in model.requests if r.agent == agent][-1].messages).decode()
    return [found for found in ("Sent to bob", "mailbox is full: 3 messages") for _ in range(text.count(found))]


@pytest.mark.parametrize("crowd", [["alice"], ["alice", "carol", "dave", "erin", "frank"]])
async def test_a_full_mailbox_tells_its_senders_and_takes_more_once_it_is_read(crowd: list[str]) -> None:
    each = 5 // len(crowd)
    script = {who: [*[tell(f"{who} {n}") for n in range(each)], say("sent")] for who in crowd}
    calls = [spawn(who) for who in crowd]
    lead = [use(*spawn("bob")), say("waiting"), use(*calls[0], *calls[1:]), *[say("fine")] * 20]
    model = Busy({"lead": lead, "bob": [say("read all")] * 9, **script}, crowd)
    base = team_world(model)
    async with Narrow(model, base.tools).session() as team:
        await team.prompt("go")
        await model.begun.wait()
        await team.prompt("the others, please")
        await model.sent.wait()
        told = [one for who in crowd for one in results(model, who)]
        assert sorted(told) == ["Sent to bob"] * 3 + ["mailbox is full: 3 messages"] * 2
        stream = mailbox("s1", "bob", 1)
        runtime = team.team.runtime
        assert runtime.mailboxes.load(stream).full
        await team.prompt("a person's words pass", to="bob")
        model.free.set()
        await team.quiet()
        assert runtime.mailboxes.load(stream) == MailboxLoad(0, 3, None)
        seen = b"\n".join([r for r in model.requests if r.agent == "bob"][-1].messages).decode()
        assert seen.count("from=") == 1 + 3
        assert "a person's words pass" in seen


def test_what_is_under_way_counts_and_what_was_not_sent_does_not() -> None:
    mailboxes, stream = Mailboxes(2), mailbox("s1", "bob", 1)
    write = Append(stream, Envelope(id="env_1", sender="lead", recipient="bob", type="message").encode(), id="env_1")

    def fails() -> None:
        with mailboxes.count_coming([write]):
            assert mailboxes.load(stream).full
            raise OSError("disk")

    with mailboxes.count_coming([write]):
        assert mailboxes.load(stream) == MailboxLoad(1, 2)
        with pytest.raises(OSError, match="disk"):
            fails()
        mailboxes.note_sent(stream, 1)
    assert mailboxes.load(stream) == MailboxLoad(1, 2)
    mailboxes.note_sent(stream, 1)
    assert mailboxes.load(stream) == MailboxLoad(1, 2), "the same number again is the same envelope"

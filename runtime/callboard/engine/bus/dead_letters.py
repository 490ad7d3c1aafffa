"""Mail that nobody will read: what is left in the mailbox of a life that is over, and what still comes there.

For each such life how far its mailbox was seen to stands in a key, written in one commit with the dead letters: after
a crash it goes on from there, and the letters' ids make them arrive once. A lead that began anew (`/new`) has a next
life, and its mail goes there. A crashed teammate that is parked keeps its mail: it reads on when a person resumes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog
from anyio.abc import TaskGroup
from pydantic import BaseModel, ConfigDict

from callboard.core.bus.dead_letters import dead_letter, over, teller
from callboard.core.bus.mail import sending
from callboard.core.names import dead_key, mailbox
from callboard.engine.bus.receipts import mail_of_life
from callboard.engine.host import Host
from callboard.engine.memory import recall
from callboard.engine.renewing import moved
from callboard.ports.store import Put, Write
from callboard.words.values import AgentRow, Envelope

log = structlog.get_logger("callboard.mail")


class Seen(BaseModel):
    """What stands in the key of a life that is over."""

    model_config = ConfigDict(frozen=True)

    position: int
    """The number of the newest envelope that was seen to."""
    moves: bool = False
    """Its mail goes to the next life of the name."""


@dataclass(slots=True)
class Over:
    """A life that is over, in this process."""

    name: str
    life: int
    seen: Seen | None = None
    """None until what was left has been seen to."""


class DeadLetters:
    """Sees to the mailboxes of all lives of a session that are over. `group` runs its tasks, set by the supervisor."""

    group: TaskGroup

    def __init__(self, host: Host, touched: Callable[[], None]) -> None:
        """`touched()` is called after each change."""
        self._host, self._touched = host, touched
        self._lives: dict[tuple[str, int], Over] = {}
        self._recalled = False

    async def recall(self) -> None:
        """See to all lives that were over before this process."""
        for row in self._host.board.agents():
            for life in range(1, row.incarnation + 1):
                if over(life, row):
                    await self.take(row, life)
        self._recalled = True
        self._touched()

    async def take(self, row: AgentRow, life: int) -> None:
        """See to what is left in the mailbox of a life that is over, and from now on to whatever still comes.

        Idempotent. Subagents take no mail. Raises what `Store.commit` raises.
        """
        if row.kind == "subagent" or (row.name, life) in self._lives:
            return
        one = self._lives[row.name, life] = Over(row.name, life)
        kept = await self._host.ports.store.get(dead_key(self._host.session, row.name, life))
        if kept is not None and kept.value is not None:
            one.seen = Seen.model_validate_json(kept.value)
        else:
            mail = await mail_of_life(self._host.ports.store, self._host.session, row, life)
            left = [found.envelope for found in mail if found.state == "dead"]
            position = mail[-1].envelope.seq if mail else 0
            await self._see_to(one, left, Seen(position=position, moves=await self._moves(row, life)))
        self.group.start_soon(self._follow, one)

    async def _moves(self, row: AgentRow, life: int) -> bool:
        """Whether a next life of the name has its mail, or will have it."""
        if row.kind != "lead" or row.incarnation > life:
            return row.kind == "lead"
        return bool((await recall(self._host.ports.store, self._host.session, row.name, life)).renew)

    async def empty(self) -> bool:
        """Whether nothing waits that somebody has to be told of."""
        store = self._host.ports.store
        for one in list(self._lives.values()):
            if one.seen is None or await store.last(self._stream(one)) > one.seen.position:
                return False
        return self._recalled

    async def _follow(self, one: Over) -> None:
        assert one.seen is not None, "what was left comes first"
        async with self._host.ports.store.follow(self._stream(one), one.seen.position) as records:
            async for record in records:
                envelope = Envelope.model_validate_json(record.data)
                await self._see_to(one, [envelope], one.seen.model_copy(update={"position": record.seq}))

    async def _see_to(self, one: Over, left: Sequence[Envelope], seen: Seen) -> None:
        """Tell the senders, or move it on, and how far that came, in one commit."""
        host = self._host
        writes: list[Write] = list(moved(host.session, one.life, left) if seen.moves else self._letters(left))
        key = dead_key(host.session, one.name, one.life)
        await host.commit(Put(key, seen.model_dump_json().encode()), *writes)
        one.seen = seen
        self._touched()

    def _letters(self, left: Sequence[Envelope]) -> list[Write]:
        host, now = self._host, self._host.clock.now()
        letters: list[Write] = []
        for dead in left:
            log.warning("dead letter", envelope=dead.id, type=dead.type, sender=dead.sender, recipient=dead.recipient)
            found = host.board.agent(dead.sender)
            life = teller(dead, found[0] if found else None)
            if life is not None:
                letters.append(sending(host.session, dead_letter(dead, life, now)))
            elif dead.sender == "person" and dead.type == "prompt":
                host.mailed(dead_letter(dead, 0, now))  # on the screen: a person has no mailbox
        return letters

    def _stream(self, one: Over) -> str:
        return mailbox(self._host.session, one.name, one.life)

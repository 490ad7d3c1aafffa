"""The person of a chaos: talks to anybody, answers, interrupts, stops and compacts as it comes."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import anyio

from callboard.core.keys import agent_key, rows_prefix
from callboard.engine.approvals.requests import answer_request
from callboard.engine.commands import Action, AgentCommand, send_command, send_prompt
from callboard.ports.environment import Answer
from callboard.testing import World
from callboard.types.errors import UsageError
from callboard.types.records import Request
from callboard.types.schedules import Schedule

SESSION = "s1"
Draw = random.Random


async def rows_of(world: World) -> list[Request | Schedule]:
    """The requests and schedules of the session."""
    found: list[Request | Schedule] = []
    for row in await world.store.keys(rows_prefix(SESSION)):
        if "/request/" in row.key:
            found.append(Request.model_validate_json(row.value or b""))
        if "/schedule/" in row.key:
            found.append(Schedule.model_validate_json(row.value or b""))
    return found


@dataclass
class Person:
    """Somebody who talks, answers, interrupts, stops and compacts as it comes."""

    world: World
    draw: Draw
    process: int
    did: Counter[str]
    names: tuple[str, ...]
    said: int = 0

    async def acts(self) -> None:
        await self._prompt("Do it all.", "lead")
        for number in range(self.draw.randint(0, 8)):
            await anyio.sleep(self.draw.choice((0, 0.05, 1, 7, 60, 900)))
            name = self.draw.choice(("lead", "lead", *self.names))
            if await self.world.store.get(agent_key(SESSION, name)) is None:
                continue
            await self._act(name, f"word {number}")

    async def _act(self, name: str, text: str) -> None:
        what = self.draw.choice(("prompt", "prompt", "answer", "interrupt", "compact", "undo", "stop", "new"))
        self.did[what] += 1
        try:
            if what == "prompt":
                await self._prompt(text, name)
            elif what == "answer":
                await self._answer()
            elif what == "new":
                await self._command("new", "lead", self.draw.choice(("", "carry")))
            elif what == "stop" and name != "lead":
                await self._command("stop", name)
            elif what == "undo":
                await self._command("undo", name, " ".join(map(str, range(1, 200))))
            else:
                await self._command("compact" if what == "compact" else "interrupt", name)
        except UsageError:
            pass  # nobody of that name any more

    async def _prompt(self, text: str, name: str) -> None:
        now, store = self.world.clock.now(), self.world.store
        await send_prompt(store, SESSION, text, to=name, now=now, nonce=self._nonce())

    async def _command(self, action: Action, name: str, text: str = "") -> None:
        now, store = self.world.clock.now(), self.world.store
        await send_command(store, SESSION, AgentCommand(action, name, text), now=now, nonce=self._nonce())

    async def _answer(self) -> None:
        """Any request, decided already or not, in any way."""
        asked = [row for row in await rows_of(self.world) if isinstance(row, Request)]
        if asked:
            one = self.draw.choice(asked)
            said = Answer(self.draw.choice(("approved", "rejected", "answered")), "person", "by the way")
            now = self.world.clock.now()
            await answer_request(self.world.store, SESSION, one.id, said, now=now)

    def _nonce(self) -> str:
        self.said += 1
        return f"{self.process}.{self.said}"

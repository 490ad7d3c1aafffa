"""What a session has recorded, read back from its store as plain values to look at in a test."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from callboard.assembly import find_places, open_store
from callboard.core.names import journal, mailbox, rows_prefix
from callboard.engine.memory import events_of
from callboard.ports.store import Store
from callboard.words.errors import UsageError
from callboard.words.events import (
    AnswerTaken,
    CallJudged,
    EnvelopesDelivered,
    Event,
    ModelReplied,
    ToolFinished,
    ToolStarted,
)
from callboard.words.values import AgentRow, Envelope, Json, Request, SessionRow, Task, Usage


@dataclass(frozen=True, slots=True)
class Called:
    """One tool call of one agent."""

    agent: str
    id: str
    name: str
    input: Json
    result: str | None
    """The text of its result; None: it has none."""
    is_error: bool
    started: bool
    """It ran; False: it was refused, or not run for another reason."""
    seq: int
    """The place in the agent's journal of the reply that asked for it, from 1."""

    def __str__(self) -> str:
        told = ", ".join(f"{name}={value!r}" for name, value in self.input.items())
        return f"{self.agent}: {self.name}({told})"


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """One life of one agent."""

    name: str
    row: AgentRow | None
    """Its row, if this is the newest life of its name."""
    events: tuple[Event, ...]
    mail: tuple[Envelope, ...]
    """All that came into its mailbox."""

    @property
    def calls(self) -> tuple[Called, ...]:
        """Its tool calls, in the order in which the model asked for them."""
        finished = {one.call: one for one in self.events if isinstance(one, ToolFinished)}
        refused = {one.call: one.why for one in self.events if isinstance(one, CallJudged) and one.verdict == "deny"}
        started = {one.call for one in self.events if isinstance(one, ToolStarted)}
        found: list[Called] = []
        for seq, event in enumerate(self.events, 1):
            for call in event.calls if isinstance(event, ModelReplied) else ():
                end, no = finished.get(call.id), refused.get(call.id)
                text = no if end is None else text_of(end.content)
                failed = no is not None if end is None else end.is_error
                found.append(Called(self.name, call.id, call.name, call.input, text, failed, call.id in started, seq))
        return tuple(found)

    @property
    def texts(self) -> tuple[str, ...]:
        """What it said: the text of each reply that has some."""
        said = (text_of(one.blocks) for one in self.events if isinstance(one, ModelReplied))
        return tuple(text for text in said if text)

    @property
    def answers(self) -> tuple[AnswerTaken, ...]:
        """The answers to what it asked for, as it took them."""
        return tuple(one for one in self.events if isinstance(one, AnswerTaken))

    @property
    def delivered(self) -> tuple[str, ...]:
        """The ids of the envelopes that entered its conversation, in that order."""
        return tuple(id for one in self.events if isinstance(one, EnvelopesDelivered) for id in one.ids)

    @property
    def usage(self) -> Usage:
        """What its replies used: tokens, and US dollars in `cost_usd`."""
        total = Usage()
        for one in self.events:
            total = total.plus(one.usage) if isinstance(one, ModelReplied) else total
        return total


@dataclass(frozen=True, slots=True)
class Recorded:
    """A session as it stands in its store."""

    session: str
    agents: Mapping[str, AgentRecord]
    """By name, the lead first; an earlier life of a name as `NAME.1`."""
    requests: tuple[Request, ...]
    tasks: tuple[Task, ...]

    def __iter__(self) -> Iterator[AgentRecord]:
        return iter(self.agents.values())

    def agent(self, name: str) -> AgentRecord:
        """An agent by its name. Raises `AssertionError`, which says who there is."""
        found = self.agents.get(name)
        if found is None:
            raise AssertionError(f"there was no agent {name!r}; there were: {', '.join(self.agents)}")
        return found

    @property
    def calls(self) -> tuple[Called, ...]:
        """The tool calls of all agents, agent by agent."""
        return tuple(call for agent in self for call in agent.calls)

    @property
    def usage(self) -> Usage:
        """What all agents used: tokens, and US dollars in `cost_usd`."""
        total = Usage()
        for agent in self:
            total = total.plus(agent.usage)
        return total


def text_of(blocks: Sequence[Mapping[str, object]]) -> str:
    """The text of blocks, without what else they hold."""
    return "\n".join(str(block["text"]) for block in blocks if block.get("type") == "text")


async def read_record(store: Store, session: str) -> Recorded:
    """What a store holds of a session, at this moment."""
    prefix = rows_prefix(session)
    values = {row.key.removeprefix(prefix): cast("bytes", row.value) for row in await store.keys(prefix)}
    rows = [AgentRow.model_validate_json(value) for key, value in values.items() if key.startswith("agent/")]
    rows.sort(key=lambda row: (row.kind != "lead", row.created_at, row.name))
    agents: dict[str, AgentRecord] = {}
    for row in rows:
        for life in range(1, row.incarnation + 1):
            newest = life == row.incarnation
            events = tuple(await events_of(store, journal(session, row.name, life)))
            mail = await store.read(mailbox(session, row.name, life))
            envelopes = tuple(Envelope.model_validate_json(one.data) for one in mail)
            name = row.name if newest else f"{row.name}.{life}"
            agents[name] = AgentRecord(name, row if newest else None, events, envelopes)
    requests = tuple(Request.model_validate_json(value) for key, value in values.items() if key.startswith("request/"))
    tasks = tuple(Task.model_validate_json(value) for key, value in values.items() if key.startswith("task/"))
    return Recorded(session, agents, requests, tasks)


async def recorded(workspace: str | Path = ".", session: str | None = None) -> Recorded:
    """What a session on disk has recorded, beside a running one too. `session`: its id; None: the newest.

    Raises `UsageError` where the workspace has no such session.
    """
    async with _opened(Path(workspace)) as store:
        rows = [row for row in await store.keys("s/") if row.key.count("/") == 1 and row.value is not None]
        known = sorted((SessionRow.model_validate_json(cast("bytes", row.value)) for row in rows), key=_since)
        found = [one.id for one in known if session is None or one.id == session]
        if not found:
            raise UsageError(f"{workspace} has no session {session or ''}".rstrip())
        return await read_record(store, found[-1])


def _since(row: SessionRow) -> float:
    return row.created_at


@asynccontextmanager
async def _opened(workspace: Path) -> AsyncGenerator[Store]:
    store = await open_store(find_places(workspace, writable=False), "process")
    try:
        yield store
    finally:
        await store.aclose()

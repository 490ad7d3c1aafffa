"""Records of a session, read back from its store as plain values to inspect in a test."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from callboard.core.keys import journal, mailbox, rows_prefix
from callboard.engine.recall import events_of
from callboard.ports.store import Store
from callboard.sessions.compose import find_places, log_notice, open_store
from callboard.types.errors import UsageError
from callboard.types.events import (
    AnswerTaken,
    CallJudged,
    EnvelopesDelivered,
    Event,
    ModelReplied,
    ToolFinished,
    ToolStarted,
)
from callboard.types.records import AgentRow, Envelope, Json, Request, SessionRow, Task, Usage


@dataclass(frozen=True, slots=True)
class Called:
    """One tool call of one agent."""

    agent: str
    id: str
    name: str
    input: Json
    result: str | None
    """Text of the result; None if there is none."""
    is_error: bool
    started: bool
    """True if the call ran; False if it was refused, or did not run for another reason."""
    seq: int
    """Journal position of the reply with the call, from 1."""

    def __str__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.input.items())
        return f"{self.agent}: {self.name}({arguments})"


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """One life of one agent."""

    name: str
    row: AgentRow | None
    """Row of the agent, if this is its newest life."""
    events: tuple[Event, ...]
    mail: tuple[Envelope, ...]
    """All envelopes of its mailbox."""

    @property
    def calls(self) -> tuple[Called, ...]:
        """Return its tool calls in the order of the model's replies."""
        finished = {event.call: event for event in self.events if isinstance(event, ToolFinished)}
        refused = {
            event.call: event.why for event in self.events if isinstance(event, CallJudged) and event.verdict == "deny"
        }
        started = {event.call for event in self.events if isinstance(event, ToolStarted)}
        calls: list[Called] = []
        for seq, event in enumerate(self.events, 1):
            for call in event.calls if isinstance(event, ModelReplied) else ():
                end = finished.get(call.id)
                no = refused.get(call.id)
                text = no if end is None else text_of(end.content)
                failed = no is not None if end is None else end.is_error
                calls.append(Called(self.name, call.id, call.name, call.input, text, failed, call.id in started, seq))
        return tuple(calls)

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the text of each reply that has some."""
        texts = (text_of(event.blocks) for event in self.events if isinstance(event, ModelReplied))
        return tuple(text for text in texts if text)

    @property
    def answers(self) -> tuple[AnswerTaken, ...]:
        """Return the answers to its requests, as it received them."""
        return tuple(event for event in self.events if isinstance(event, AnswerTaken))

    @property
    def delivered(self) -> tuple[str, ...]:
        """Return the ids of the envelopes that entered its conversation, in order."""
        return tuple(id for event in self.events if isinstance(event, EnvelopesDelivered) for id in event.ids)

    @property
    def usage(self) -> Usage:
        """Return the usage of the agent's replies: tokens, and US dollars in `cost_usd`."""
        total = Usage()
        for event in self.events:
            total = total.plus(event.usage) if isinstance(event, ModelReplied) else total
        return total


@dataclass(frozen=True, slots=True)
class Recorded:
    """Session as stored."""

    session: str
    agents: Mapping[str, AgentRecord]
    """Agents by name, the lead first; an earlier life of a name as `NAME.1`."""
    requests: tuple[Request, ...]
    tasks: tuple[Task, ...]

    def __iter__(self) -> Iterator[AgentRecord]:
        return iter(self.agents.values())

    def agent(self, name: str) -> AgentRecord:
        """Return an agent by name. Raises `AssertionError` that lists the agents."""
        match = self.agents.get(name)
        if match is None:
            raise AssertionError(f"there was no agent {name!r}; there were: {', '.join(self.agents)}")
        return match

    @property
    def calls(self) -> tuple[Called, ...]:
        """Return the tool calls of all agents, agent by agent."""
        return tuple(call for agent in self for call in agent.calls)

    @property
    def usage(self) -> Usage:
        """Return the usage of all agents: tokens, and US dollars in `cost_usd`."""
        total = Usage()
        for agent in self:
            total = total.plus(agent.usage)
        return total


def text_of(blocks: Sequence[Mapping[str, object]]) -> str:
    """Return the text of blocks without their other content."""
    return "\n".join(str(block["text"]) for block in blocks if block.get("type") == "text")


async def read_record(store: Store, session: str) -> Recorded:
    """Read the records of a session from a store, as of this moment."""
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
            envelopes = tuple(Envelope.model_validate_json(record.data) for record in mail)
            name = row.name if newest else f"{row.name}.{life}"
            agents[name] = AgentRecord(name, row if newest else None, events, envelopes)
    requests = tuple(Request.model_validate_json(value) for key, value in values.items() if key.startswith("request/"))
    tasks = tuple(Task.model_validate_json(value) for key, value in values.items() if key.startswith("task/"))
    return Recorded(session, agents, requests, tasks)


async def recorded(workspace: str | Path = ".", session: str | None = None) -> Recorded:
    """Read the records of a session on disk, even while it is running. `session`: its id; None: the newest.

    Raises `UsageError` where the workspace has no such session.
    """
    async with _opened(Path(workspace)) as store:
        rows = [row for row in await store.keys("s/") if row.key.count("/") == 1 and row.value is not None]
        session_rows = sorted((SessionRow.model_validate_json(cast("bytes", row.value)) for row in rows), key=_since)
        ids = [row.id for row in session_rows if session is None or row.id == session]
        if not ids:
            raise UsageError(f"{workspace} has no session {session or ''}".rstrip())
        return await read_record(store, ids[-1])


def _since(row: SessionRow) -> float:
    return row.created_at


@asynccontextmanager
async def _opened(workspace: Path) -> AsyncGenerator[Store]:
    store = await open_store(find_places(workspace, writable=False), "process", log_notice)
    try:
        yield store
    finally:
        await store.aclose()

"""Records of a session, read back from its store as plain values to inspect in a test, and assertions about them.

Each assertion returns its object, so that they can be chained:

    assert_that(record).agent("lead").called("read_file", path="hello.txt").then("report")

A failed assertion raises `AssertionError` that shows the actual records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self, cast

from callboard.core.keys import journal, mailbox, rows_prefix
from callboard.engine.recall import events_of
from callboard.ports.store import Store
from callboard.sessions.places import find_places
from callboard.sessions.stores import log_notice, open_store
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
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import AgentRow, Envelope, Json, Request, SessionRow, Task, Usage
from callboard.types.settings import Settings


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
        """Return the text of each reply that contains text."""
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

    Raises `UsageError` if the workspace has no such session.
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
    store = await open_store(find_places(workspace, writable=False), Settings(durability="process"), log_notice)
    try:
        yield store
    finally:
        await store.aclose()


def _listed(calls: tuple[Called, ...]) -> str:
    return "\n".join(f"  {call}" for call in calls) or "  (no call at all)"


class ThatAgent:
    """Assertions about one agent."""

    def __init__(self, record: AgentRecord) -> None:
        self.record = record
        self._after = 0

    def called(self, name: str, /, *, times: int | None = None, **given: object) -> Self:
        """Assert that it called this tool with at least these inputs, and that the call ran.

        `times`: the exact number of calls.
        """
        matches = self._ran(name, given)
        claim = f"{self.record.name} called {_call(name, given)}"
        if times is None and not matches:
            raise AssertionError(f"expected that {claim}; it called\n{_listed(self.record.calls)}")
        if times is not None and len(matches) != times:
            raise AssertionError(
                f"expected that {claim} {times} times, not {len(matches)}:\n{_listed(self.record.calls)}"
            )
        self._after = matches[0] + 1 if matches else self._after
        return self

    def then(self, name: str, /, **given: object) -> Self:
        """Assert that it called this tool after the call of the previous assertion."""
        matches = [place for place in self._ran(name, given) if place >= self._after]
        if not matches:
            claim = f"{self.record.name} then called {_call(name, given)}"
            raise AssertionError(f"expected that {claim}; it called\n{_listed(self.record.calls)}")
        self._after = matches[0] + 1
        return self

    def never_called(self, name: str, /, **given: object) -> Self:
        """Assert that no such call ran. A refused call does not count."""
        matches = tuple(self.record.calls[place] for place in self._ran(name, given))
        if matches:
            raise AssertionError(f"expected that {self.record.name} never called {name}; it did\n{_listed(matches)}")
        return self

    def refused(self, name: str, /, **given: object) -> Self:
        """Assert that it made such a call and that it did not run."""
        calls = self.record.calls
        if not any(call.name == name and _fits(call, given) and not call.started for call in calls):
            raise AssertionError(f"expected that {_call(name, given)} was refused; there were\n{_listed(calls)}")
        return self

    def said(self, words: str) -> Self:
        """Assert that one of its replies contains this text."""
        if not any(words in text for text in self.record.texts):
            raise AssertionError(f"{self.record.name} never said {words!r}; it said {list(self.record.texts)}")
        return self

    def ended_with(self, words: str) -> Self:
        """Assert that its last reply with text contains this text."""
        last = self.record.texts[-1] if self.record.texts else ""
        if words not in last:
            raise AssertionError(f"the last words of {self.record.name} are {last!r}: there is no {words!r} in them")
        return self

    def heard(self, words: str, sender: str = "") -> Self:
        """Assert that an envelope with this text entered its conversation. `sender`: an agent, or `person`."""
        delivered = set(self.record.delivered)
        mail = [envelope for envelope in self.record.mail if envelope.id in delivered]
        if not any(words in envelope.content and sender in ("", envelope.sender) for envelope in mail):
            listed = [f"{envelope.sender}: {envelope.content}" for envelope in mail]
            raise AssertionError(
                f"{self.record.name} never heard {words!r} {f'from {sender}' if sender else ''}: {listed}"
            )
        return self

    def approved_before(self, name: str, /) -> Self:
        """Assert that one of its requests was approved before its first call of this tool ran."""
        ran = {call.id for call in self.record.calls if call.name == name and call.started}
        if not ran:
            raise AssertionError(f"{self.record.name} never called {name}")
        for event in self.record.events:
            if isinstance(event, AnswerTaken) and event.status == "approved":
                break
            if isinstance(event, ToolStarted) and event.call in ran:
                raise AssertionError(f"{self.record.name} called {name} before anything was approved")
        return self

    def _ran(self, name: str, values: dict[str, object]) -> list[int]:
        calls = enumerate(self.record.calls)
        return [at for at, call in calls if call.name == name and call.started and _fits(call, values)]


class ThatSession:
    """Assertions about a whole session."""

    def __init__(self, record: Recorded) -> None:
        self.record = record

    def agent(self, name: str) -> ThatAgent:
        """Return the assertions about an agent."""
        return ThatAgent(self.record.agent(name))

    @property
    def lead(self) -> ThatAgent:
        """Return the assertions about the lead."""
        return self.agent("lead")

    def has_agents(self, *names: str) -> Self:
        """Assert that exactly these agents existed besides the lead; subagents by their type (`explore`)."""
        types = Counter(
            agent.row.agent_type if agent.row and agent.row.kind == "subagent" else agent.name for agent in self.record
        )
        if types != Counter(("lead", *names)):
            raise AssertionError(f"expected the agents {', '.join(names)}; there were: {', '.join(self.record.agents)}")
        return self

    def every_call_has_a_result(self) -> Self:
        """Assert that every call of every agent has a result."""
        lost = tuple(call for call in self.record.calls if call.result is None)
        if lost:
            raise AssertionError(f"these calls have no result:\n{_listed(lost)}")
        return self

    def every_message_once(self) -> Self:
        """Assert that each message to an agent is in its mailbox once, and entered its conversation at most once."""
        for agent in self.record:
            for state, ids in (
                ("sent", [envelope.id for envelope in agent.mail]),
                ("delivered", list(agent.delivered)),
            ):
                twice = sorted(id for id, count in Counter(ids).items() if count > 1)
                if twice:
                    raise AssertionError(f"{state} to {agent.name} more than once: {', '.join(twice)}")
        return self

    def cost_under(self, dollars: float) -> Self:
        """Assert that all replies together cost less than this (US dollars, by the prices in the agents' specs)."""
        if not self.record.usage.cost_usd < dollars:
            raise AssertionError(f"it cost ${self.record.usage.cost_usd:.4f}: not less than ${dollars:.4f}")
        return self

    def tokens_under(self, tokens: int) -> Self:
        """Assert that all replies together used fewer tokens than this, input and output."""
        used = self.record.usage.prompt_tokens + self.record.usage.output_tokens
        if not used < tokens:
            raise AssertionError(f"it used {used:,} tokens: not less than {tokens:,}")
        return self

    def nothing_waits(self) -> Self:
        """Assert that every request is answered and no task is open."""
        open_ = [request.id for request in self.record.requests if request.status == "pending"]
        open_ += [task.id for task in self.record.tasks if task.status in ("pending", "in_progress")]
        if open_:
            raise AssertionError(f"these wait: {', '.join(open_)}")
        return self


def assert_that(record: Recorded) -> ThatSession:
    """Return assertions about a session: `assert_that(await session.record())`.

    For a session on disk: `assert_that(await recorded(FOLDER))`.
    """
    return ThatSession(record)


def _fits(call: Called, values: dict[str, object]) -> bool:
    missing = object()
    return all(call.input.get(name, missing) == value for name, value in values.items())


def _call(name: str, values: dict[str, object]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in values.items())})"

"""A small real world for tools: rows in a memory store, and a spawner and skills that follow their ports' rules.

`run` commits the result of a tool, so the next tool reads it back; a lost compare-and-swap is a real one of the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from callboard.adapters.storage.memory import MemoryStore
from callboard.core import keys as names
from callboard.core.messaging.envelopes import envelope_write
from callboard.core.tool_access import AgentKind
from callboard.ports.store import Put, Row, Write
from callboard.ports.tool import BackgroundTask, CallContext, Folders, Launcher, SkillUse, Tool, ToolOutcome
from callboard.types.agent_spec import AgentSpec
from callboard.types.errors import ToolRefused
from callboard.types.events import BudgetReached
from callboard.types.records import AgentRow, Budget, Envelope, Json, Request, Task, Value
from callboard.types.schedules import Schedule
from callboard.types.skills import PersonCommand, SkillText

SESSION = "s1"
NOON = 1_780_000_000.0


class Rows:
    """`Board` over a snapshot of the rows."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = {row.key: row for row in rows if row.value is not None}

    def task(self, task_id: str) -> tuple[Task, int] | None:
        return self._one(names.task_key(SESSION, task_id), Task)

    def tasks(self) -> list[Task]:
        return self._all("task", Task)

    def agent(self, name: str) -> tuple[AgentRow, int] | None:
        return self._one(names.agent_key(SESSION, name), AgentRow)

    def agents(self) -> list[AgentRow]:
        return self._all("agent", AgentRow)

    def request(self, request_id: str) -> tuple[Request, int] | None:
        return self._one(names.request_key(SESSION, request_id), Request)

    def requests(self) -> list[Request]:
        return self._all("request", Request)

    def schedule(self, schedule_id: str) -> tuple[Schedule, int] | None:
        return self._one(names.schedule_key(SESSION, schedule_id), Schedule)

    def schedules(self) -> list[Schedule]:
        return self._all("schedule", Schedule)

    def _one(self, key: str, kind: type[Any]) -> Any:
        row = self._rows.get(key)
        return None if row is None else (kind.model_validate_json(row.value or b""), row.revision)

    def _all(self, family: str, kind: type[Any]) -> list[Any]:
        prefix = f"s/{SESSION}/{family}/"
        return [kind.model_validate_json(row.value or b"") for key, row in self._rows.items() if key.startswith(prefix)]


@dataclass
class MemorySpawner:
    """`Spawner` that knows some types; subagents answer from a list."""

    types: Mapping[str, AgentSpec]
    rows: Rows
    answers: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    started: dict[str, AgentSpec] = field(default_factory=dict[str, AgentSpec])
    """Specs of the subagents, by the call that started them."""
    full: BudgetReached | None = None
    """The exhausted budget; `None` if there is room."""
    taken_back: list[str] = field(default_factory=list[str])

    def spec_for(self, agent_type: str, name: str, parent: AgentSpec, kind: AgentKind) -> AgentSpec:
        if agent_type not in self.types:
            raise ToolRefused(f"agent_type: no type {agent_type}; there are {', '.join(sorted(self.types))}")
        return self.types[agent_type].model_copy(update={"name": name, "kind": kind})

    def grant(self, spec: AgentSpec, asked: Budget) -> AgentSpec | BudgetReached:
        return self.full or spec.model_copy(update={"budget": asked})

    def take_back(self, name: str) -> None:
        self.taken_back.append(name)

    def teammate_writes(self, spec: AgentSpec, prompt: str, *, call: str, now: float) -> tuple[Write, ...]:
        old = self.rows.agent(spec.name)
        row = AgentRow(
            name=spec.name,
            incarnation=old[0].incarnation + 1 if old else 1,
            kind="teammate",
            role=spec.role,
            agent_type=spec.agent_type,
            parent=spec.parent,
            created_at=now,
        )
        first = Envelope(
            id=names.short_id("env", call, spec.name),
            sender=spec.parent or "lead",
            recipient=spec.name,
            incarnation=row.incarnation,
            type="message",
            content=prompt,
            metadata={"assignment": True},
        )
        return (
            Put(names.agent_key(SESSION, spec.name), row.encode(), old[1] if old else 0),
            envelope_write(SESSION, first),
        )

    async def subagent(self, spec: AgentSpec, prompt: str, *, call: str) -> tuple[str, str]:
        self.started.setdefault(call, spec)
        return self.answers.get(prompt, ("done", f"did: {prompt}"))

    async def isolated(self, spec: AgentSpec, *, call: str) -> AgentSpec:
        return spec

    async def attend(self, spec: AgentSpec, prompt: str, *, call: str) -> tuple[str, str] | None:
        return await self.subagent(spec, prompt, call=call)


@dataclass
class MemorySkills:
    """`Skills` from a list."""

    texts: Sequence[SkillText] = ()

    def catalogue(self, window: int = 0) -> list[SkillText]:
        return [replace(text, body=None) for text in self.texts]

    def load(self, name: str) -> SkillText:
        for text in self.texts:
            if text.name == name:
                return text
        raise ToolRefused(f"no skill {name}; there are {', '.join(text.name for text in self.texts)}")

    def names_of(self, name: str) -> tuple[str, ...]:
        return tuple(text.name for text in self.texts if text.name == name)

    async def use(self, name: str, arguments: str) -> SkillUse:
        return SkillUse(f"{name}({arguments}): {self.load(name).body}")

    def awaits_trust(self, name: str) -> bool:
        return False

    def commands(self) -> list[PersonCommand]:
        return []

    def command(self, name: str) -> SkillText | None:
        return None


def spec(name: str, kind: str = "teammate", **fields: object) -> AgentSpec:
    """Return an agent's spec with short defaults."""
    parent = None if kind == "lead" else "lead"
    return AgentSpec.model_validate(
        {"name": name, "kind": kind, "agent_type": kind, "model": "rehearsal", "parent": parent, **fields}
    )


class ToolWorld:
    """A session with a lead and the agents added by `join`; tools run as any of them."""

    def __init__(self, *families: Sequence[Tool]) -> None:
        self.store = MemoryStore()
        self.tools = {tool.spec.name: tool for family in families for tool in family}
        self.specs: dict[str, AgentSpec] = {}
        self.now = NOON
        self.calls = 0
        self.skills = MemorySkills()
        self.assigned = "env_1"
        """Id of the envelope that assigned the current work."""
        self.checked_out = ""
        """Commit of the workspace."""
        self.answers: dict[str, tuple[str, str]] = {}
        self.started: dict[str, AgentSpec] = {}
        self.types = {kind: spec("x", agent_type=kind, tools=("bash", "edit_file", "grep")) for kind in _TYPES}
        self.types["explore"] = spec("x", agent_type="explore", tools=("grep", "read_file"))

    async def join(self, name: str, kind: str = "teammate", **fields: Any) -> None:
        """Add an agent's row and spec; `life`, `incarnation`, and `role` go to the row."""
        about = {key: fields.pop(key) for key in ("life", "incarnation", "role", "waiting_for") if key in fields}
        self.specs[name] = spec(name, kind, **fields)
        row = AgentRow.model_validate({"name": name, "kind": kind, "life": "working", "created_at": self.now, **about})
        await self.put(names.agent_key(SESSION, name), row)

    async def put(self, key: str, value: Value) -> None:
        await self.store.commit(Put(key, value.encode()))

    async def rows(self) -> Rows:
        """Return the current rows."""
        return Rows(await self.store.keys(names.rows_prefix(SESSION)))

    async def context(self, name: str = "lead", call: str | None = None) -> CallContext:
        """Return the context of a tool call of agent `name`; without `call` it gets a new call id."""
        self.calls += 1
        rows = await self.rows()
        row = rows.agent(name)
        return CallContext(
            session=SESSION,
            spec=self.specs[name],
            incarnation=row[0].incarnation if row else 1,
            call=call or f"call_{self.calls:012}",
            depth=2,
            now=self.now,
            folders=Folders(Path("/nowhere"), Path("/nowhere/results"), Path("/nowhere/transcripts")),
            files={},
            board=rows,
            launcher=cast("Launcher", None),
            spawner=MemorySpawner(self.types, rows, self.answers, self.started),
            skills=self.skills,
            use_skill=self.skills.use,
            background=cast("Mapping[str, BackgroundTask]", {}),
            progress=lambda _text: None,
            assignment=self.assigned,
            commit=self._commit,
        )

    async def _commit(self) -> str:
        return self.checked_out

    async def preview(self, tool: str, by: str = "lead", **tool_input: object) -> ToolOutcome:
        """Run a tool without committing anything."""
        context = await self.context(by)
        called = self.tools[tool]
        marks = await called.prepare(cast("Json", tool_input), context)
        assert marks == {}
        return await called.run(cast("Json", tool_input), context)

    async def run(self, tool: str, by: str = "lead", **tool_input: object) -> ToolOutcome:
        """Run a tool and commit its writes, as the engine does with its result."""
        outcome = await self.preview(tool, by, **tool_input)
        await self.store.commit(*outcome.writes)
        self.now += 1.0
        return outcome

    async def refusal(self, tool: str, by: str = "lead", **tool_input: object) -> str:
        """Return the message of a refusal; fail if there is none."""
        try:
            outcome = await self.run(tool, by, **tool_input)
        except ToolRefused as error:
            return str(error)
        if outcome.is_error:  # an error's writes are committed too
            return str(outcome.content)
        raise AssertionError(f"{tool} was not refused: {outcome.content}")

    async def mail(self, name: str, incarnation: int = 1) -> list[Envelope]:
        """Return the envelopes in a mailbox."""
        records = await self.store.read(names.mailbox(SESSION, name, incarnation))
        return [Envelope.model_validate_json(record.data) for record in records]


_TYPES = ("teammate", "general")

"""A session's world in memory, without files, processes or network.

Every port has an in-memory twin here or in `callboard.adapters.storage.memory`. `run_virtual` runs the world on a
virtual clock.
"""

from __future__ import annotations

import asyncio
import json
import random
import selectors
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import field
from pathlib import Path
from typing import Any, TypeVar

import anyio
import structlog

from callboard.adapters.storage.memory import MemoryStore
from callboard.core.agent.state import AgentState
from callboard.core.context.system_prompt import SERVERS
from callboard.core.tool_access import AgentKind
from callboard.engine.commands import Action, AgentCommand, create_session, send_command, send_prompt
from callboard.engine.hooks.registry import HookRegistry
from callboard.engine.recall import events_of
from callboard.engine.runtime import Services, SessionRuntime
from callboard.engine.team.supervisor import Team
from callboard.ports.environment import Approver, Observer, PermissionDecision, PermissionQuery, PromptParts
from callboard.ports.store import Store
from callboard.ports.tool import Finished, Folders, Tool, ToolSpec
from callboard.testing.scripts import ScriptedModel
from callboard.types.agent_spec import AgentSpec
from callboard.types.errors import ToolRefused, UsageError
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Budget, Grant, Json, SessionRow
from callboard.types.skills import PersonCommand, SkillText

T = TypeVar("T")


class SteadyClock:
    """Time of the event loop's clock, counted from a fixed date; virtual if that clock is (trio's autojump clock)."""

    def __init__(self, start: float = 1_800_000_000.0) -> None:
        self._start = start
        self._zero: float | None = None

    def now(self) -> float:
        if self._zero is None:
            self._zero = anyio.current_time()
        return self._start + anyio.current_time() - self._zero

    def steady(self) -> float:
        return anyio.current_time()

    async def sleep_until(self, when: float) -> None:
        await anyio.sleep(max(0.0, when - self.now()))


class SeededDice:
    """Random draws that one seed determines."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)  # noqa: S311 - reproducible, not secret

    def draw(self) -> float:
        return self._random.random()


class AllowAll:
    """Judge that allows every call, except those of the tools listed in `ask` and `deny`."""

    def __init__(self, ask: Sequence[str] = (), deny: Sequence[str] = (), reads: Sequence[str] = ()) -> None:
        self.ask = set(ask)
        self.deny = set(deny)
        self.reads = set(reads)

    async def judge(self, query: PermissionQuery) -> PermissionDecision:
        call = query.call
        reads = query.tool.effect == "read" or call.name in self.reads
        if call.name in self.deny:
            return PermissionDecision("deny", "rule", f"{call.name} is denied", reads)
        override = next((override for override in query.overrides if override.rule == call.name), None)
        if call.name in self.ask and override is None:
            return PermissionDecision("ask", "mode default", f"{call.name} asks", reads)
        return PermissionDecision("allow", override.by if override and call.name in self.ask else "rule", "", reads)

    async def always(self, query: PermissionQuery) -> tuple[str, ...]:
        return (query.call.name,) if query.call.name in self.ask else ()


class MemoryArchive:
    """Files of agents in a dict. `data`: folder of results and transcripts. Tools with real processes write there."""

    shares = False

    def __init__(self, root: Path = Path("/workspace"), data: Path = Path("/data")) -> None:
        self.root = root
        self.data = data
        self.files: dict[str, str] = {}
        self._folders: dict[str, Folders] = {}

    def folders(self, spec: AgentSpec) -> Folders:
        folders = self._folders.get(spec.name)  # read before every step
        if folders is None or folders.root is not self.root:
            folders = Folders(self.root, self.data / "tool-results" / spec.name, self.data / "transcripts")
            self._folders[spec.name] = folders
        return folders

    async def keep(self, path: str, text: str) -> None:
        self.files.setdefault(path, text)

    async def extend(self, path: str, first: int, work: Callable[[], tuple[T, Sequence[bytes]]]) -> T:
        result, lines = work()
        text = self.files.get(path, "")
        if new := lines[max(0, text.count("\n") - first) :]:
            self.files[path] = text + b"".join(new).decode()
        return result

    async def aside(self, work: Callable[[], T]) -> T:
        return work()

    async def ends_of(self, path: str) -> str:
        return self.files.get(path, "")


class NoLauncher:
    """Launcher that starts nothing: a test that needs a process uses the real one."""

    @property
    def boot(self) -> str:
        return ""

    async def run(
        self, command: str, folder: Path, *, timeout: float, keep: Path, grants: Sequence[Grant] = ()
    ) -> Finished:
        raise ToolRefused("this world has no processes")

    async def attend(
        self,
        command: str,
        folder: Path,
        *,
        timeout: float,
        keep: Path,
        grants: Sequence[Grant] = (),
        moved: anyio.Event,
    ) -> Finished | tuple[int, float]:
        return await self.run(command, folder, timeout=timeout, keep=keep, grants=grants)

    async def start(self, command: str, folder: Path, output: Path, grants: Sequence[Grant] = ()) -> tuple[int, float]:
        raise ToolRefused("this world has no processes")

    async def wait(self, pid: int, started: float, output: Path) -> int | None:
        return None

    async def end(self, pid: int, started: float) -> bool:
        return False

    def report(self, output: Path) -> str:
        return ""

    def allow(self, paths: Sequence[Path]) -> None:
        return None


class PlainPrompts:
    """Prompts of the kind, the instructions, and the name. Tools keep their own descriptions."""

    async def compose(self, spec: AgentSpec, tools: Sequence[ToolSpec], servers: Sequence[str] = ()) -> PromptParts:
        blocks: list[Json] = [{"type": "text", "text": f"You are a {spec.kind}. {spec.instructions}"}]
        if servers:
            blocks.append({"type": "text", "text": "\n".join([f"# {SERVERS}", *(f"- {server}" for server in servers)])})
        system = json.dumps(blocks).encode()
        listed = [{"name": t.name, "description": t.description, "input_schema": t.input_schema} for t in tools]
        own = json.dumps([{"type": "text", "text": f"You are {spec.name}."}])
        return PromptParts(system, json.dumps(listed).encode(), 100, own_blocks=own)


class NoSkills:
    """Catalogue without skills."""

    def catalogue(self, window: int = 0) -> Sequence[SkillText]:
        return ()

    def load(self, name: str) -> SkillText:
        raise ToolRefused(f"there is no skill {name!r}")

    def names_of(self, name: str) -> tuple[str, ...]:
        return ()

    def commands(self) -> Sequence[PersonCommand]:
        return ()

    def command(self, name: str) -> SkillText | None:
        return None

    def awaits_trust(self, name: str) -> bool:
        return False


@dataclass
class World:
    """A session's world in memory; every part can be replaced."""

    model: ScriptedModel
    tools: Mapping[str, Tool] = field(default_factory=dict[str, Tool])
    store: Store = field(default_factory=MemoryStore)
    judge: AllowAll = field(default_factory=AllowAll)
    archive: MemoryArchive = field(default_factory=MemoryArchive)
    hooks: HookRegistry = field(default_factory=HookRegistry)
    clock: SteadyClock = field(default_factory=SteadyClock)
    observers: Sequence[Observer] = ()
    approvers: Sequence[Approver] = ()
    spec: Json = field(default_factory=dict[str, object])
    """Changes to every agent's spec."""
    budget: Budget = Budget()
    """Budget of the whole session."""
    seed: int = 0

    def spec_of(self, agent_type: str, name: str, parent: AgentSpec | None) -> AgentSpec:
        """Return the spec of an agent.

        Any type is accepted; `explore`, `general` and `review` are subagents, others teammates.
        """
        kind = (
            "lead" if parent is None else "subagent" if agent_type in ("explore", "general", "review") else "teammate"
        )
        base: Json = {
            "name": name,
            "kind": kind,
            "agent_type": agent_type,
            "model": "scripted",
            "tools": tuple(sorted(self.tools)),
            "parent": parent.name if parent else None,
            "claims_tasks": kind == "teammate",
        }
        return AgentSpec.model_validate({**base, **self.spec})

    def _spawned(self, agent_type: str, name: str, parent: AgentSpec, kind: AgentKind) -> AgentSpec:
        return self.spec_of(agent_type, name, parent).model_copy(update={"kind": kind})

    def runtime(self, session: str) -> SessionRuntime:
        ports = Services(
            store=self.store,
            model=self.model,
            clock=self.clock,
            dice=SeededDice(self.seed),
            tools=self.tools,
            judge=self.judge,
            prompts=PlainPrompts(),
            archive=self.archive,
            launcher=NoLauncher(),
            skills=NoSkills(),
            hooks=self.hooks,
            observers=self.observers,
            approvers=self.approvers,
        )
        return SessionRuntime(session, ports, None, self._spawned, budget=self.budget)

    @asynccontextmanager
    async def session(self, session: str = "s1", *, resume: bool = False) -> AsyncGenerator[WorldSession]:
        """Host a session until the block ends: a new one, or with `resume` the one in the store."""
        runtime = self.runtime(session)
        if not resume:
            row = SessionRow(id=session, workspace=str(self.archive.root), created_at=self.clock.now())
            await create_session(self.store, row, self.spec_of("lead", "lead", None), fence=None)
        team = Team(runtime, pid=1)
        async with anyio.create_task_group() as group:
            group.start_soon(team.run)
            try:
                yield WorldSession(self, team, session)
            finally:
                await team.hook_notifier.end()
            group.cancel_scope.cancel()


class WorldSession:
    """Hosted session with methods for tests."""

    def __init__(self, world: World, team: Team, session: str) -> None:
        self.world = world
        self.team = team
        self.id = session
        self._said = 0

    async def prompt(self, text: str, to: str = "lead") -> None:
        """Send a prompt from the user.

        The envelope's id depends only on the recipient and the number of earlier messages.
        """
        self._said += 1
        now = self.world.clock.now()
        store = self.world.store
        await send_prompt(store, self.id, text, to=to, now=now, nonce=str(self._said))

    async def command(self, action: Action, to: str = "lead", text: str = "") -> None:
        self._said += 1
        now = self.world.clock.now()
        store = self.world.store
        await send_command(store, self.id, AgentCommand(action, to, text), now=now, nonce=str(self._said))

    async def quiet(self) -> None:
        await self.team.quiet()

    def state(self, name: str) -> AgentState:
        """Return the state of the newest incarnation of an agent."""
        state = self.team.state(name)
        assert state is not None, f"{name} never lived here"
        return state

    async def journal(self, name: str, incarnation: int = 1) -> list[str]:
        """Return the kinds of an agent's events, in order."""
        events = await events_of(self.world.store, f"j/{self.id}/{name}.{incarnation}")
        return [event.t for event in events]


@asynccontextmanager
async def plain_tracebacks() -> AsyncGenerator[None]:
    """Print the runtime's log without local variables, unless the program has configured `structlog`.

    By default, `structlog` prints those of every frame: thousands of lines for one failing tool.
    """
    if structlog.is_configured():
        yield
        return
    defaults = structlog.get_config()["processors"]
    renderer = structlog.dev.ConsoleRenderer(
        colors=sys.stdout.isatty(), exception_formatter=structlog.dev.plain_traceback
    )
    structlog.configure(processors=[*defaults[:-1], renderer])
    try:
        yield
    finally:
        if structlog.get_config()["processors"][-1] is renderer:
            structlog.reset_defaults()


class _Jumping(selectors.DefaultSelector):
    """Selector that advances the clock instead of waiting for a timer."""

    def __init__(self) -> None:
        super().__init__()
        self.passed = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:  # without a timer to jump to, only another thread or process can wake this loop
            return super().select(None)
        self.passed += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Event loop whose time is that of its selector."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.passed


def run_virtual(main: Callable[..., Awaitable[T]], *args: object) -> T:
    """Run `main(*args)` on a new event loop whose clock jumps over every wait, and return its result.

    For code in memory: threads, processes and sockets are not awaited while a timer can be jumped to, so their timeouts
    pass at once. `Rehearsal` uses none. On asyncio; under trio, use `trio.testing.MockClock` with
    `autojump_threshold=0`. Raises the exceptions of `main`, and `UsageError` inside a running loop.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        options: dict[str, Any] = {"loop_factory": VirtualLoop}
        return anyio.run(main, *args, backend="asyncio", backend_options=options)
    raise UsageError("run_virtual creates its own event loop: call it from a test that is not async")

"""The tool port: what a tool declares, what it is given, what it returns.

A tool returns what it wants written to the store, it does not write: its writes and its agent's events commit together
with its `ToolFinished`, so that effect and event cannot part. It raises `ToolRefused` for whatever the model can mend;
any other exception becomes an error result with its type and message, and the trace goes to the log.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from callboard.ports.store import Fence, Write
from callboard.ports.worktrees import WorktreeKeeper
from callboard.words.errors import ToolRefused
from callboard.words.events import BudgetReached, Event
from callboard.words.mcp import AnsweredBack, Asked
from callboard.words.schedules import Schedule
from callboard.words.skills import PersonCommand, SkillText
from callboard.words.specs import AgentSpec
from callboard.words.values import AgentRow, Budget, Cause, Json, Request, Task

Effect = Literal["read", "store", "reconcile", "attach", "unknown"]
"""What a cut leaves behind (docs/design.md, "The loop"): read again; nothing; told by digests; found again; unknown."""

Concurrency = Literal["shared", "keyed", "exclusive"]


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """What the model is told, and how the engine may run it."""

    name: str
    description: str
    input_schema: Json
    effect: Effect
    concurrency: Concurrency = "exclusive"
    barrier: bool = False
    """Calls before it in a reply finish first, calls after it are not run (`submit_plan`, `compact`)."""
    destructive: bool = False
    person_only: bool = False
    """Only a person lets a call of it run, whatever rules and modes say."""
    always_load: bool = False
    """Never deferred behind a search."""
    watches: bool = False
    """It only looks at what others do: asking it again and again while they are at work is no repetition."""
    seconds: float | None = 600.0
    """How long one call may take before its agent counts as stalled, where its input says nothing else (`timeout_s`).
    None: however long, since it waits for others."""


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """What a tool did. `content` is a text, or blocks in the API's form (text, image)."""

    content: str | Sequence[Json]
    is_error: bool = False
    writes: tuple[Write, ...] = ()
    """Commit together with the result. Lost a compare-and-swap: the tool runs again, on fresh rows."""
    events: tuple[Event, ...] = ()
    """Changes of its agent's own state (`TodosSet`, `FileSeen`, ...), in the same commit."""
    data: Json = field(default_factory=dict[str, object])
    """The structured result, for hooks."""
    ends_turn: bool = False


@dataclass(frozen=True, slots=True)
class BackgroundTask:
    """A background command of this agent, as its journal and its process tell."""

    id: str
    command: str
    pid: int
    started: float
    output: str
    status: Literal["running", "completed", "failed", "stopped", "timed_out", "lost"]
    exit_code: int | None = None
    boot: str = ""
    """The boot of the machine in which `pid` and `started` count; empty: not known."""


class Board(Protocol):
    """The session's rows as this process knows them, with the revision that a write must expect. Reads only."""

    def task(self, task_id: str) -> tuple[Task, int] | None: ...
    def tasks(self) -> Sequence[Task]: ...
    def agent(self, name: str) -> tuple[AgentRow, int] | None: ...
    def agents(self) -> Sequence[AgentRow]: ...
    def request(self, request_id: str) -> tuple[Request, int] | None: ...
    def requests(self) -> Sequence[Request]: ...
    def schedule(self, schedule_id: str) -> tuple[Schedule, int] | None: ...
    def schedules(self) -> Sequence[Schedule]: ...


@dataclass(frozen=True, slots=True)
class Finished:
    """How a process ended. `output` is what it wrote, both streams in order, cut in the middle when too long."""

    exit_code: int | None
    output: str
    cut: bool
    characters: int
    """How many there were before the cut."""
    timed_out: bool = False
    whole: str = ""
    """The file with the whole output, when it was cut."""


SKILL_OUTPUT = ".skill.txt"
"""How the file of the output of a command in a skill's text ends, which no tool call asked for."""


class Launcher(Protocol):
    """Starts the processes of tools at the sandbox level in force. Each has its own session and process group."""

    @property
    def boot(self) -> str:
        """The boot of this machine: a pid and a start time name a process within one boot. Empty where nothing is known
        of that."""
        ...

    async def run(self, command: str, folder: Path, timeout: float, keep: Path) -> Finished:
        """Run a shell command to its end. `keep` gets the whole output when it is long, and tells who runs while it
        does. Cancelled, out of time, or our own death: the whole group is ended."""
        ...

    async def start(self, command: str, folder: Path, output: Path) -> tuple[int, float]:
        """Start one that outlives the call, its output going to a file; its pid and process start time. Its exit
        code stands in `<output>.exit` when it has ended, also when we have died in between."""
        ...

    async def wait(self, pid: int, started: float, output: Path) -> int | None:
        """Wait for such a process without polling; its exit code, None when that is not known: it was killed with who
        watched it, the machine went down, its file is gone. A pid of 0 stands for no process: the file alone tells."""
        ...

    async def end(self, pid: int, started: float) -> bool:
        """End the group of a process that may be ours: TERM, 2 s, KILL. False when that process is gone already."""
        ...


class Spawner(Protocol):
    """How a tool makes agents. Both are idempotent by name: after a crash the same call finds the same agent."""

    def spec_for(self, agent_type: str, name: str, parent: AgentSpec) -> AgentSpec:
        """The spec of a new agent of that type. Raises `ToolRefused` with the known types for an unknown one."""
        ...

    def grant(self, spec: AgentSpec, asked: Budget) -> AgentSpec | BudgetReached:
        """The spec with its budget: what its type has, narrowed by what its caller asks for it. From now on the agent
        counts where budgets limit agents; or the event that tells which of these has no room. Raises `ToolRefused` for
        more than its parent has left. Idempotent by name."""
        ...

    def teammate_writes(self, spec: AgentSpec, prompt: str, *, call: str, now: float) -> tuple[Write, ...]:
        """Row, spec and first envelope of a teammate, to be committed with the tool's result; the supervisor then
        starts it. Raises `ToolRefused` when the name is taken or the team is full."""
        ...

    async def subagent(self, spec: AgentSpec, prompt: str, *, call: str) -> tuple[str, str]:
        """Run (or find again) the subagent of this call to its end: (outcome, final text)."""
        ...


class Skills(Protocol):
    """The skills that this session has."""

    def catalogue(self, window: int = 0) -> Sequence[SkillText]:
        """Those that a model may load, without their bodies, as its prompt shows them: a description that has no room
        in a window of so many tokens is empty; 0: all have."""
        ...

    def load(self, name: str) -> SkillText:
        """One that a model may load, with its body. Raises `ToolRefused` naming those there are."""
        ...

    def commands(self) -> Sequence[PersonCommand]:
        """What a person may start with a slash."""
        ...

    def command(self, name: str) -> SkillText | None:
        """One that a person may start, with its body; None where there is none of that name. Raises `ToolRefused` for
        one that cannot be read."""
        ...


@dataclass(frozen=True, slots=True)
class Folders:
    """Where this agent may put things. All absolute, resolved."""

    root: Path
    """Its workspace or worktree: relative paths start here, writes stay inside."""
    tool_results: Path
    """Large results of this agent, readable by it."""
    transcripts: Path
    own_state: tuple[Path, ...] = ()
    """Never shown, never written by tools."""
    git: Path | None = None
    """Git's own folder where that lies outside the root: of a worktree. Commands of git use it; to write in it asks."""


@dataclass(frozen=True, slots=True)
class SkillUse:
    """A skill that was started for a model."""

    text: str
    """What it reads: the body, its arguments and the output of its commands in their places; or a subagent's answer."""
    events: tuple[Event, ...] = ()
    is_error: bool = False
    """The subagent that it ran as did not end well."""
    data: Json = field(default_factory=dict[str, object])


async def _no_skill(name: str, arguments: str) -> SkillUse:
    raise ToolRefused(f"there is no skill {name!r}")


async def _no_commit() -> str:
    return ""


async def _declined(asked: Asked) -> AnsweredBack:
    return AnsweredBack("decline")


@dataclass(frozen=True, slots=True)
class MailLoad:
    """How much waits in a mailbox."""

    waiting: int = 0
    """Envelopes that its owner has not read yet."""
    limit: int | None = None
    """How many may wait; None: any number."""
    since: float | None = None
    """When the oldest of them was sent (Unix seconds); None where that is not known."""

    @property
    def full(self) -> bool:
        return self.limit is not None and self.waiting >= self.limit


def _no_load(to: AgentRow) -> MailLoad:
    return MailLoad()


@dataclass(frozen=True, slots=True)
class ToolContext:
    """Everything that a tool may touch, and nothing else."""

    session: str
    spec: AgentSpec
    incarnation: int
    call: str
    """The id of this call: stable over a crash, so ids made from it are found again."""
    depth: int
    now: float
    folders: Folders
    files: Mapping[str, str]
    """Absolute path -> sha256 of the content that this agent last read or wrote."""
    board: Board
    launcher: Launcher
    spawner: Spawner
    skills: Skills
    background: Mapping[str, BackgroundTask]
    progress: Callable[[str], None]
    authority: Cause = "person"
    """Of its turn: what its envelopes, requests and agents may claim at most (docs/authority.md)."""
    caused_by: str = ""
    """The envelope that began its turn."""
    read: Mapping[str, str] = field(default_factory=dict[str, str])
    """Whose messages it has read and not answered -> the newest of them."""
    assignment: str = ""
    """The envelope that gave this agent its piece of work; empty: it has none."""
    mail_of: Callable[[AgentRow], MailLoad] = _no_load
    """How much waits in an agent's mailbox."""
    lease: Fence | None = None
    """The lease of the process that this agent lives in, which its claims are held under."""
    commit: Callable[[], Awaitable[str]] = _no_commit
    """What is checked out in the root of its folders (40 hex digits); empty: nothing, or not known."""
    worktrees: WorktreeKeeper | None = None
    """None: this session has none."""
    use_skill: Callable[[str, str], Awaitable[SkillUse]] = _no_skill
    """(name, arguments) -> the skill as this agent is to read it. Raises `ToolRefused`."""
    elicit: Callable[[Asked], Awaitable[AnsweredBack]] = _declined
    """Puts what an MCP server asks in the middle of this call to the person, as a durable request."""


@runtime_checkable
class Previews(Protocol):
    """A tool that can show what a call would change, before anybody is asked to allow it."""

    async def preview(self, given: Json, context: ToolContext) -> str:
        """The change as lines: `+` and `-` before those that come and go. Raises `ToolRefused` where the call would be
        refused anyway: then nobody is asked."""
        ...


class Tool(Protocol):
    """One tool."""

    @property
    def spec(self) -> ToolSpec: ...

    def key(self, given: Json) -> str:
        """For keyed concurrency: what two calls must not touch at once (a path). Else the empty text."""
        ...

    async def prepare(self, given: Json, context: ToolContext) -> Json:
        """Before the effect: marks for `ToolStarted`. May raise `ToolRefused`. No effect of its own."""
        ...

    async def run(self, given: Json, context: ToolContext) -> ToolOutcome: ...

    async def repair(self, given: Json, marks: Json, context: ToolContext) -> ToolOutcome | None:
        """After a crash, for `reconcile`, `attach` and `unknown`: the outcome of the run that was cut, or None to
        run it anew. A tool of effect `unknown` ends what still runs and never returns None."""
        ...

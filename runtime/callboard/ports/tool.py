"""Port of a tool: its declaration, its context, and its outcome.

A tool returns its writes instead of writing to the store. The writes and the events of its agent are committed together
with `ToolFinished`, so that effect and event never separate. A tool raises `ToolRefused` for faults that the model can
fix. Any other exception becomes an error result with its type and message; the traceback is logged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import anyio

from callboard.core.tool_access import AgentKind
from callboard.ports.store import Fence, Write
from callboard.ports.worktrees import WorktreeKeeper
from callboard.types.agent_spec import AgentSpec
from callboard.types.errors import ToolRefused
from callboard.types.events import BudgetReached, Event
from callboard.types.lazy_dataclass import dataclass
from callboard.types.mcp import Elicitation, ElicitationAnswer
from callboard.types.records import AgentRow, Budget, Cause, Grant, Json, Request, Task
from callboard.types.schedules import Schedule
from callboard.types.skills import PersonCommand, SkillText

Effect = Literal["read", "store", "reconcile", "attach", "unknown"]
"""Recovery of a call that was cut off (docs/design.md, "The loop"): run again; nothing to do; decided by digests; found
again; unknown."""

Concurrency = Literal["shared", "keyed", "store", "own", "exclusive"]
"""Overlap of a call with others of a reply (`core.call_order`). `shared`: in parallel with other shared calls; `keyed`:
one after another for the same path; `store`: changes only rows of the session; `own`: changes only the agent's own
notes."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """Description of a tool for the model, and how the engine may run it."""

    name: str
    description: str
    input_schema: Json
    effect: Effect
    concurrency: Concurrency = "exclusive"
    barrier: bool = False
    """True if earlier calls of the reply finish first and later ones do not run (`submit_plan`, `compact`)."""
    destructive: bool = False
    person_only: bool = False
    """True if only the user may allow a call, whatever rules and modes say."""
    always_load: bool = False
    """True if the tool is never deferred behind the search."""
    watches: bool = False
    """True if the tool only observes others. Calling it repeatedly while they work does not count as repetition."""
    seconds: float | None = 600.0
    """Seconds after which an agent in one call counts as stalled, unless the input sets them (`timeout_s`). None: no
    limit, because the tool waits for others."""
    service: Json | None = None
    """Declaration of a tool that the model service runs itself; None: this runtime runs it."""
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])
    """Accepted alternative names of input fields, each with the name in the schema."""

    def named_as_shown(self, tool_input: Json) -> Json:
        """Return the input with the field names of the schema. A field that is present under both names stays twice."""
        return {
            name if (visible := self.aliases.get(name, name)) in tool_input else visible: value
            for name, value in tool_input.items()
        }


AGENT_TYPES = "\n\nAgent types:\n"
"""Text between the description of a tool that starts agents and the list of agent types."""


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """Outcome of a tool call. `content` is a text, or blocks in the form of the API (text, image)."""

    content: str | Sequence[Json]
    is_error: bool = False
    writes: tuple[Write, ...] = ()
    """Writes to commit together with the result. If a compare-and-swap fails, the tool runs again on fresh rows."""
    events: tuple[Event, ...] = ()
    """Changes of its agent's own state (`TodosSet`, `FileSeen`, ...), in the same commit."""
    data: Json = field(default_factory=dict[str, object])
    """The structured result, for hooks."""
    ends_turn: bool = False
    notices: tuple[str, ...] = ()
    """Texts for the user."""


@dataclass(frozen=True, slots=True)
class BackgroundTask:
    """Background command or subagent of this agent, from its journal."""

    id: str
    command: str
    pid: int
    started: float
    output: str
    status: Literal["running", "completed", "failed", "stopped", "timed_out", "lost"]
    exit_code: int | None = None
    boot: str = ""
    """Boot id of the machine to which `pid` and `started` refer; empty: unknown."""
    agent: str = ""
    """Name of the subagent; empty for a command."""


class Board(Protocol):
    """Rows of the session as known to this process, with the revision that a write must expect. Read-only."""

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
    """Result of a process. `output` holds both streams in order, cut in the middle if too long."""

    exit_code: int | None
    output: str
    cut: bool
    characters: int
    """Number of characters before the cut."""
    timed_out: bool = False
    whole: str = ""
    """File with the full output, if the output was cut."""
    report: str = ""
    """Report on the sandbox, also for the user: protected paths that were moved aside, a network that was off. It is
    also at the end of `output`."""


SKILL_OUTPUT = ".skill.txt"
"""Suffix of the file that holds the output of a command in a skill's text, which no tool call requested."""


class Launcher(Protocol):
    """Starter of processes for tools, at the sandbox level in force.

    Each process has its own session and process group.
    """

    @property
    def boot(self) -> str:
        """Return the boot id of this machine.

        A pid and a start time identify a process within one boot. Empty if unknown.
        """
        ...

    async def run(
        self, command: str, folder: Path, *, timeout: float, keep: Path, grants: Sequence[Grant] = ()
    ) -> Finished:
        """Run a shell command to its end.

        `grants`: what it may use outside its folder. `keep` receives long output, and reports the running processes. If
        the call is cancelled or exceeds its time, or this process dies, the whole process group is ended.
        """
        ...

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
        """Run a command as `run` does, until its end or until `moved` is set.

        In the second case it continues as if `start` had started it, without a time limit, and the result is its pid
        and start time.
        """
        ...

    async def start(self, command: str, folder: Path, output: Path, grants: Sequence[Grant] = ()) -> tuple[int, float]:
        """Start a command that outlives the call and writes its output to a file. Return its pid and start time.

        After its end `<output>.exit` holds its exit code, even if this process died in between.
        """
        ...

    async def wait(self, pid: int, started: float, output: Path) -> int | None:
        """Wait for such a process without polling and return its exit code.

        None if the code is unknown: the process was killed together with its watcher, the machine went down, or the
        file is gone. With a pid of 0 only the file is read.
        """
        ...

    def report(self, output: Path) -> str:
        """Return, once, the value of `Finished.report` for such a process after its end."""
        ...

    def allow(self, paths: Sequence[Path]) -> None:
        """Allow commands to create these protected paths, after the user approved it."""
        ...

    async def end(self, pid: int, started: float) -> bool:
        """End the process group: TERM, after 2 s KILL. Return False if the process is already gone."""
        ...


class Spawner(Protocol):
    """Creation of agents by a tool. Idempotent by name: after a crash the same call finds the same agent."""

    def spec_for(self, agent_type: str, name: str, parent: AgentSpec, kind: AgentKind) -> AgentSpec:
        """Return the spec of a new agent of this type: a teammate or a subagent.

        Raises `ToolRefused`, with the known types, for an unknown one.
        """
        ...

    def grant(self, spec: AgentSpec, requested: Budget) -> AgentSpec | BudgetReached:
        """Return the spec with its budget: that of its type, narrowed by the request of the caller.

        The agent then counts against limits on agents. If a budget has no room, return the event that says so.

        Raises `ToolRefused` for more than the parent has left. Idempotent by name.
        """
        ...

    def take_back(self, name: str) -> None:
        """Uncount an agent whose creation failed after its grant. An existing agent stays counted."""
        ...

    def teammate_writes(self, spec: AgentSpec, prompt: str, *, call: str, now: float) -> tuple[Write, ...]:
        """Return the row, spec and first envelope of a teammate, to be committed with the tool's result.

        The supervisor then starts it. Raises `ToolRefused` if the name is taken or the team is full.
        """
        ...

    async def subagent(self, spec: AgentSpec, prompt: str, *, call: str) -> tuple[str, str]:
        """Run (or find again) the subagent of this call until it ends, and return (outcome, final text)."""
        ...

    async def attend(self, spec: AgentSpec, prompt: str, *, call: str) -> tuple[str, str] | None:
        """Run the subagent of this call as `subagent` does; None once a person has moved it to the background."""
        ...

    async def isolated(self, spec: AgentSpec, *, call: str) -> AgentSpec:
        """Return the spec with a worktree of its own, if its type says so. The worktree is made for a new agent.

        It is removed at the end of the subagent, unless it has work; then the final text names it. Raises
        `ToolRefused` if the repository cannot have worktrees.
        """
        ...

    def subagent_writes(self, spec: AgentSpec, prompt: str, *, call: str, now: float) -> tuple[Write, ...]:
        """Return the row, spec and first envelope of a subagent, to be committed with the tool's result.

        Empty if the subagent exists.
        """
        ...

    async def ended(self, name: str) -> tuple[str, str]:
        """Wait for the end of a subagent in the background, and return (outcome, final text).

        `Folders.output_of` then has its report.
        """
        ...

    def stop_writes(self, name: str) -> tuple[Write, ...]:
        """Return the order to stop a subagent of this agent; empty if it has ended."""
        ...


class Skills(Protocol):
    """Skills of this session."""

    def catalogue(self, window: int = 0) -> Sequence[SkillText]:
        """Return the skills that a model may load, without their bodies, as shown in its prompt.

        A description that does not fit into a window of this many tokens is empty; 0: all fit.
        """
        ...

    def load(self, name: str) -> SkillText:
        """Return a skill that a model may load, with its body. Raises `ToolRefused` that lists the available skills."""
        ...

    def names_of(self, name: str) -> tuple[str, ...]:
        """Return all names of the skill with this name, its own first; empty for an unknown name."""
        ...

    def commands(self) -> Sequence[PersonCommand]:
        """Return the slash commands that a person may start."""
        ...

    def command(self, name: str) -> SkillText | None:
        """Return a command that the user may start, with its body; None for an unknown name.

        Raises `ToolRefused` if it cannot be read.
        """
        ...

    def awaits_trust(self, name: str) -> bool:
        """Return True if the workspace has a command of this name that is not used because it is not trusted."""
        ...


@dataclass(frozen=True, slots=True)
class Folders:
    """Folders that this agent may use. All paths are absolute and resolved."""

    root: Path
    """Workspace or worktree of the agent. Relative paths start here, and writes stay inside."""
    tool_results: Path
    """Folder of large results of this agent, which it may read."""
    transcripts: Path
    own_state: tuple[Path, ...] = ()
    """Folders of Callboard's own state: never shown to tools, never written by them."""
    git: Path | None = None
    """Git directory of a worktree, if it is outside the root. Git commands use it; writing in it needs permission."""
    skills: tuple[Path, ...] = ()
    """Folders of skills and plugins outside the root, which the agent may read."""

    def __hash__(self) -> int:
        return hash(self.tool_results)  # each agent's own; the hash of all paths costs as much as a look at the disk

    def output_of(self, task: str) -> Path:
        """Return the file with the output of a command, or with the report of a subagent in the background.

        Its suffix is not `.txt`, which the context pipeline uses for results in files.
        """
        return self.tool_results / f"{task}.out"


@dataclass(frozen=True, slots=True)
class SkillUse:
    """Skill that was started for a model."""

    text: str
    """Text for the model: the body with its arguments and the output of its commands filled in, or a subagent's
    answer."""
    events: tuple[Event, ...] = ()
    is_error: bool = False
    """True if the skill ran as a subagent that failed."""
    writes: tuple[Write, ...] = ()
    """Writes that start its subagent in the background, to be committed with the events."""
    data: Json = field(default_factory=dict[str, object])


async def _no_skill(name: str, arguments: str) -> SkillUse:
    raise ToolRefused(f"there is no skill {name!r}")


async def _no_commit() -> str:
    return ""


async def _no_answer(question: Request) -> str | None:
    return None


async def _declined(elicitation: Elicitation) -> ElicitationAnswer:
    return ElicitationAnswer("decline")


class ForegroundCalls:
    """Calls of an agent that wait for a command or subagent, and that can go on without it."""

    def __init__(self) -> None:
        self._moves: dict[str, Callable[[], None]] = {}
        self._asked: set[str] = set()
        """Calls that a person moved before they waited."""

    @contextmanager
    def waiting(self, call: str, move: Callable[[], None]) -> Generator[None]:
        """Register a call during the block. `move` lets it go on while what it waits for continues."""
        self._moves[call] = move
        try:
            if call in self._asked:
                self._asked.discard(call)
                move()
            yield
        finally:
            del self._moves[call]

    def move(self, call: str) -> bool:
        """Let a call go on; return False if it waits for nothing that can be moved to the background."""
        move = self._moves.get(call)
        if move is not None:
            move()
        return move is not None

    def move_soon(self, call: str) -> None:
        """Let a call go on as soon as it waits."""
        self._asked.add(call)


@dataclass(frozen=True, slots=True)
class MailboxLoad:
    """Load of a mailbox."""

    waiting: int = 0
    """Unread envelopes in the mailbox."""
    limit: int | None = None
    """Most unread envelopes; None: no limit."""
    since: float | None = None
    """Time at which the oldest waiting envelope was sent (Unix seconds); None if it is not known."""
    mine: int = 0
    """Number of waiting envelopes that the caller sent."""
    most_of_one: int | None = None
    """Most unread envelopes of one sender; None: no limit."""

    @property
    def closed(self) -> bool:
        """Return True if the mailbox accepts no more envelopes of the caller now."""
        return self.full or (self.most_of_one is not None and self.mine >= self.most_of_one)

    @property
    def full(self) -> bool:
        return self.limit is not None and self.waiting >= self.limit


def _no_load(to: AgentRow) -> MailboxLoad:
    return MailboxLoad()


@dataclass(frozen=True, slots=True)
class CallContext:
    """Everything that a tool may use."""

    session: str
    spec: AgentSpec
    incarnation: int
    call: str
    """Id of this call. It is stable over a crash, so that ids derived from it are found again."""
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
    """Authority of the turn: the most that its envelopes, requests and agents may claim (docs/authority.md)."""
    caused_by: str = ""
    """Envelope that began the turn."""
    read: Mapping[str, str] = field(default_factory=dict[str, str])
    """Senders of messages that the agent has read but not answered -> the newest message of each."""
    assignment: str = ""
    """Envelope with the agent's assignment; empty: it has none."""
    mail_of: Callable[[AgentRow], MailboxLoad] = _no_load
    """Function that returns the load of an agent's mailbox."""
    lease: Fence | None = None
    """Lease of the process in which the agent lives. Its claims are held under this lease."""
    commit: Callable[[], Awaitable[str]] = _no_commit
    """Function that returns the commit checked out in the agent's root folder (40 hex digits); empty: none or
    unknown."""
    worktrees: WorktreeKeeper | None = None
    """Keeper of worktrees; None: the session has none."""
    use_skill: Callable[[str, str], Awaitable[SkillUse]] = _no_skill
    """Function (name, arguments) that returns the skill in the form for this agent. Raises `ToolRefused`."""
    grants: tuple[Grant, ...] = ()
    """Paths outside the folders that were approved for this call."""
    foreground: ForegroundCalls = field(default_factory=ForegroundCalls)
    """Calls that a person may move to the background."""
    ask: Callable[[Request], Awaitable[str | None]] = _no_answer
    """Function that puts a question to the user and waits for the answer; None: nobody answered."""
    elicit: Callable[[Elicitation], Awaitable[ElicitationAnswer]] = _declined
    """Function that puts the question of an MCP server during this call to the user, as a durable request."""


@runtime_checkable
class Previews(Protocol):
    """Tool that can show the change of a call before the permission question."""

    async def preview(self, tool_input: Json, context: CallContext) -> str:
        """Return the change as lines that begin with `+` or `-`.

        Raises `ToolRefused` if the call would be refused anyway; then the user is not asked.
        """
        ...


class AnswersAtOnce(Protocol):
    """Tool of the effect `read` that can often answer without a wait."""

    def at_hand(self, tool_input: Json, context: CallContext) -> ToolOutcome | None:
        """Return the outcome if it needs no wait; None: `run` finds it. Writes nothing. May raise `ToolRefused`."""
        ...


class Tool(Protocol):
    """One tool."""

    @property
    def spec(self) -> ToolSpec: ...

    def key(self, tool_input: Json, folders: Folders) -> str:
        """Return the absolute path, without links, that a keyed call reads or changes; otherwise empty."""
        ...

    async def prepare(self, tool_input: Json, context: CallContext) -> Json:
        """Return the marks for `ToolStarted`, before the effect. Has no effect itself. May raise `ToolRefused`."""
        ...

    async def run(self, tool_input: Json, context: CallContext) -> ToolOutcome: ...

    async def repair(self, tool_input: Json, marks: Json, context: CallContext) -> ToolOutcome | None:
        """Decide after a crash: return the outcome of the interrupted run, or None to run the call again.

        Called for the effects `reconcile`, `attach` and `unknown`. A tool of effect `unknown` ends processes that still
        run and never returns None.
        """
        ...

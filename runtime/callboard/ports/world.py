"""The rest of the world: time, randomness, the shell's place in it, and who looks on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from callboard.core.asking.plans import AS_IT_STANDS, Word
from callboard.core.asking.session_rules import Always
from callboard.core.context.reminders import Around
from callboard.core.permission.lifts import Lift
from callboard.core.state import Expected
from callboard.ports.model import Delta
from callboard.ports.tool import Folders, ToolSpec
from callboard.words.context import Injection, StateBlock
from callboard.words.events import Event
from callboard.words.specs import AgentSpec
from callboard.words.values import Cause, Envelope, Json, Request, ToolCall


class Clock(Protocol):
    """Time as an argument. The twin runs on a virtual clock."""

    def now(self) -> float:
        """Unix seconds."""
        ...

    async def sleep_until(self, when: float) -> None:
        """Return when `now() >= when`; notices a clock that jumped."""
        ...


class Dice(Protocol):
    """Randomness, so that one seed reproduces one run."""

    def draw(self) -> float:
        """Uniform in 0..1."""
        ...


class Observer(Protocol):
    """Who looks on: the terminal, stream-json, logs, cassettes. Called in the loop's thread; never blocks or raises."""

    def on_event(self, agent: str, seq: int, event: Event) -> None: ...
    def on_delta(self, agent: str, delta: Delta) -> None: ...
    def on_mail(self, envelope: Envelope) -> None:
        """An envelope was sent by an agent of this process, or received by one."""
        ...


@dataclass(frozen=True, slots=True)
class Ruling:
    """What the permission rules say of a call. `reads_only`: it changes nothing, so a closed gate lets it pass."""

    decision: Literal["allow", "ask", "deny"]
    rule: str
    why: str
    reads_only: bool = False
    person_only: bool = False
    """No policy may answer what it asks."""
    mode: str = ""
    """The mode in which it was judged."""
    level: int = 0
    """The sandbox level by which it was judged."""


class Judge(Protocol):
    """Never-run and own-state rules, deny, ask, allow rules, then the mode. Never raises: what it cannot read asks."""

    async def judge(
        self,
        call: ToolCall,
        tool: ToolSpec,
        spec: AgentSpec,
        folders: Folders,
        authority: Cause,
        lifts: Sequence[Lift] = (),
    ) -> Ruling:
        """`authority`: of the turn that makes the call. What takes more than that asks a person. `lifts`: allow rules
        beside those of settings, heeded where nothing else allows; they lift no more than those do."""
        ...

    async def always(
        self,
        call: ToolCall,
        tool: ToolSpec,
        spec: AgentSpec,
        folders: Folders,
        authority: Cause,
        lifts: Sequence[Lift] = (),
    ) -> tuple[str, ...]:
        """The narrowest allow rules that would lift the question beside those there are, for a call that asks; empty
        where none would."""
        ...


@dataclass(frozen=True, slots=True)
class PromptParts:
    """What stands before the messages: JSON arrays as the API wants them, and their size in tokens (estimated)."""

    system: bytes
    tools: bytes
    tokens: int
    instructions: Mapping[str, str] | None = None
    """The instruction files that stand in it: path as it is shown -> digest of the text. None: not known."""


class Prompts(Protocol):
    """Composes system prompt and tool list from real state, byte for byte the same while that state is."""

    async def compose(self, spec: AgentSpec, tools: Sequence[ToolSpec], servers: Sequence[str] = ()) -> PromptParts:
        """`servers`: a line on each MCP server."""
        ...


class Surroundings(Protocol):
    """What changes by itself round an agent, and is told in reminders."""

    async def look(self, spec: AgentSpec, now: float) -> Around:
        """How it stands now (Unix seconds), in a second or so. Never raises."""
        ...

    async def commit(self, folder: str, why: str) -> str:
        """The commit that is checked out in a folder (40 hex digits), in a second or so; empty where there is none, or
        where it is not known. `why`: the id of the call or request that it is looked up for. Never raises."""
        ...


class Archive(Protocol):
    """Files that agents may read again: persisted results and transcripts."""

    def folders(self, spec: AgentSpec) -> Folders: ...

    async def keep(self, path: str, text: str) -> None:
        """Write a file once; one that is there with the same text stays. Private to the user (0600)."""
        ...

    async def ends_of(self, path: str) -> str:
        """The first and last lines of a file that a background command wrote; empty when there is none."""
        ...


class Script(Protocol):
    """What of a run depends on the moment at which things happen: noted while it is recorded, prescribed in a replay.
    Never blocks or raises."""

    def expected(self, agent: str, life: int, asked: int, heard: int) -> Expected | None:
        """What is still to be delivered after `asked` model calls and `heard` deliveries since; None: whatever comes.
        `life` is the incarnation."""
        ...

    def known(self, agent: str, life: int, compactions: int, block: StateBlock) -> StateBlock:
        """What the runtime knows for the words after the next compaction. `block` is what it knows now."""
        ...

    def reminders(self, agent: str, life: int, turn: int, due: tuple[Injection, ...]) -> tuple[Injection, ...]:
        """What the agent is told of its surroundings when its turn of this number begins. `due` is what it would be
        told now."""
        ...


class Approver(Protocol):
    """Somebody who may answer requests: a person at a terminal, a policy."""

    async def answer(self, request: Request) -> Answer | None:
        """The answer, or None to leave it to others. Cancelled as soon as somebody else has answered."""
        ...


@runtime_checkable
class Policy(Approver, Protocol):
    """An approver that decides by rules, with nobody at a keyboard. It is asked with the others wherever `policy` may
    answer, and has the last word at a deadline that everybody else let pass."""

    def decides(self, request: Request) -> bool:
        """Whether it has a rule for this request; what no policy has a rule for is refused at its deadline."""
        ...


def _nobody(why: str) -> None:
    """Nobody is told."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to a request. `by`: `person`, `policy`, `lead`."""

    status: Literal["approved", "rejected", "answered"]
    by: str
    reason: str = ""
    word: Word = AS_IT_STANDS
    """What it says of a plan beside yes or no, and which content it is an answer to."""
    always: Always | None = None
    """With the approval of a permission: all of its class is allowed, not this call alone. Only a person's counts."""
    input: Json | None = None
    """With the approval of a permission: the whole input, in our fields, with which the call is to run instead. Only a
    person's counts, and it is held to the schema and the rules again."""
    refused: Callable[[str], None] = field(default=_nobody, compare=False, repr=False)
    """Told why, when the answer does not count: somebody else was first, say. Never raises."""

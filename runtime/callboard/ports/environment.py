"""Ports for time, randomness, permissions, surroundings, observers, a project's instructions, and earlier notes.

Notes come from earlier sessions. Instructions and notes enter a turn as data and grant no permission. Their ports never
raise: unreadable content is logged and left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from callboard.core.agent.state import ExpectedDeliveries
from callboard.core.approvals.plans import PLAIN_ANSWER, AnswerDetails
from callboard.core.approvals.session_rules import AlwaysAllow
from callboard.core.context.reminders import ReminderFacts
from callboard.core.permissions.values import AllowOverride
from callboard.ports.model import Delta, DeltaKind
from callboard.ports.tool import Folders, ToolSpec
from callboard.types.agent_spec import AgentSpec
from callboard.types.events import Event
from callboard.types.lazy_dataclass import dataclass
from callboard.types.messages import Injection, StateBlock
from callboard.types.records import Cause, Envelope, Grant, Json, Request, ToolCall

T = TypeVar("T")


class Clock(Protocol):
    """Source of time. The in-memory twin runs on a virtual clock."""

    def now(self) -> float:
        """Return the time in Unix seconds."""
        ...

    def steady(self) -> float:
        """Return seconds since an arbitrary moment, for durations.

        This clock is never set, and it stops while the machine sleeps.
        """
        ...

    async def sleep_until(self, when: float) -> None:
        """Return when `now() >= when`, or when the time that remained at the call has passed on `steady()`.

        A clock that is set forward ends the wait; one that is set back does not lengthen it.
        """
        ...


class Dice(Protocol):
    """Source of randomness. One seed reproduces one run."""

    def draw(self) -> float:
        """Return a uniform number in 0..1."""
        ...


@dataclass(frozen=True, slots=True)
class Interest:
    """Events and deltas that an observer gets."""

    events: frozenset[type[Any]] | None = None
    """Classes of events; None: all."""
    deltas: frozenset[DeltaKind] | None = None
    """Kinds of deltas; None: all."""


class Observer(Protocol):
    """Observer of a session: the terminal, stream-json, logs, cassettes.

    Called in the loop's thread; must not block or raise. One that does not need everything says so with an attribute
    `interest` (an `Interest`), and costs nothing for the rest.
    """

    def on_event(self, agent: str, seq: int, event: Event) -> None: ...
    def on_delta(self, agent: str, delta: Delta) -> None: ...
    def on_mail(self, envelope: Envelope) -> None:
        """Handle an envelope that an agent of this process sent or received."""
        ...


@dataclass(frozen=True, slots=True)
class PermissionDecision:
    """Decision of the permission rules on a call.

    `reads_only`: the call changes nothing, so a closed plan gate lets it pass.
    """

    decision: Literal["allow", "ask", "deny"]
    rule: str
    why: str
    reads_only: bool = False
    person_only: bool = False
    """True if no policy may answer the question."""
    mode: str = ""
    """Permission mode of the decision."""
    level: int = 0
    """Sandbox level of the decision."""
    grants: tuple[Grant, ...] = ()
    """Paths outside the agent's bounds that the call may use if it is allowed or approved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionQuery:
    """Question to the permission policy: may this agent make this call in its turn?"""

    call: ToolCall
    tool: ToolSpec
    spec: AgentSpec
    """Agent that makes the call, with its mode and its rules of this turn."""
    folders: Folders
    authority: Cause
    """Authority of the turn that makes the call. A call that needs more asks the user."""
    names: tuple[str, ...] = ()
    """Other names of the skill that the call loads. A rule may name it by any of them."""
    overrides: tuple[AllowOverride, ...] = ()
    """Allow rules in addition to those of settings, used only if nothing else allows the call; they allow no more than
    those do."""


class PermissionPolicy(Protocol):
    """Permission policy: hard rules and rules for Callboard's own state, deny, ask and allow rules, then the mode.

    It never raises: an unreadable call needs permission.
    """

    async def judge(self, query: PermissionQuery) -> PermissionDecision:
        """Decide on a call."""
        ...

    async def always(self, query: PermissionQuery) -> tuple[str, ...]:
        """Return the narrowest additional allow rules that would remove the question for a call.

        Empty if no rule would.
        """
        ...


@dataclass(frozen=True, slots=True)
class PromptParts:
    """Parts of a request before the messages, and their estimated size in tokens.

    The parts are JSON arrays in the form of the API.
    """

    system: bytes
    """System blocks. Agents with the same ones share a blob."""
    tools: bytes
    tokens: int
    instructions: Mapping[str, str] | None = None
    """Instruction files in the prompt: displayed path -> digest of the text. None: unknown."""
    own_blocks: str = ""
    """System blocks of this agent alone, which follow the others; empty: there are none."""


class Prompts(Protocol):
    """Composer of system prompt and tool list. Equal state gives equal bytes."""

    async def compose(self, spec: AgentSpec, tools: Sequence[ToolSpec], servers: Sequence[str] = ()) -> PromptParts:
        """Compose both. `servers`: one line for each MCP server."""
        ...


class Surroundings(Protocol):
    """External state that changes by itself, for reminders."""

    async def look(self, spec: AgentSpec, now: float) -> ReminderFacts:
        """Return the surroundings as of `now` (Unix seconds), within a second or so. Never raises."""
        ...

    async def commit(self, folder: str, source_id: str) -> str:
        """Return the commit that is checked out in a folder (40 hex digits), within about a second.

        Empty if there is none or it is unknown. `source_id`: id of the call or request. Never raises.
        """
        ...


class Archive(Protocol):
    """Files that agents may read again: persisted results and transcripts."""

    @property
    def shares(self) -> bool:
        """Return True if other programs read copies of the transcripts, which then grow with each turn."""
        ...

    def folders(self, spec: AgentSpec) -> Folders: ...

    async def keep(self, path: str, text: str) -> None:
        """Write a file once. An existing file with the same text is kept. Private to the user (0600)."""
        ...

    async def extend(self, path: str, first: int, work: Callable[[], tuple[T, Sequence[bytes]]]) -> T:
        """Run `work` without blocking the event loop, append the lines that it returns, and return its other result.

        `first`: number of the first line (from 0). Lines that the file already has are skipped. Private to the user
        (0600). `work` may run again after there was no room.
        """
        ...

    async def aside(self, work: Callable[[], T]) -> T:
        """Run `work` without blocking the event loop, and return its result."""
        ...

    async def ends_of(self, path: str) -> str:
        """Return the first and last lines of the output file of a background command; empty if there is none."""
        ...


class DeliveryScript(Protocol):
    """Timing-dependent parts of a run, which are recorded in a recording and prescribed in a replay.

    Never blocks or raises.
    """

    def expected(self, agent: str, life: int, model_calls: int, deliveries: int) -> ExpectedDeliveries | None:
        """Return the deliveries still due after this many model calls, and deliveries since the last call.

        None: any may come. `life` is the incarnation.
        """
        ...

    def known_state(self, agent: str, life: int, compactions: int, block: StateBlock) -> StateBlock:
        """Return the runtime's state for the text after the next compaction. `block` is its state now."""
        ...

    def reminders(self, agent: str, life: int, turn: int, due: tuple[Injection, ...]) -> tuple[Injection, ...]:
        """Return the reminders for the start of the agent's turn with this number. `due`: the reminders due now."""
        ...


class Approver(Protocol):
    """Person at a terminal, or policy, that may answer requests."""

    async def answer(self, request: Request) -> Answer | None:
        """Return the answer, or None to leave it to others. Cancelled as soon as another approver has answered."""
        ...


@runtime_checkable
class Policy(Approver, Protocol):
    """Approver that decides by rules, without a person.

    It is asked with the others if `policy` may answer, and decides at a deadline that all others let pass.
    """

    def decides(self, request: Request) -> bool:
        """Return True if the policy has a rule for this request.

        A request without a rule is rejected at its deadline.
        """
        ...


def _nobody(reason: str) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to a request. `by`: `person`, `policy`, `lead`."""

    status: Literal["approved", "rejected", "answered"]
    by: str
    reason: str = ""
    word: AnswerDetails = PLAIN_ANSWER
    """Details of an answer to a plan in addition to yes or no, and the content that it answers."""
    always: AlwaysAllow | None = None
    """For an approved permission: allow all calls of its class, not only this call. Accepted only from the user."""
    input: Json | None = None
    """For an approved permission: the whole input, in Callboard's fields, with which the call is to run. Accepted only
    from the user; schema and rules are checked again."""
    refused: Callable[[str], None] = field(default=_nobody, compare=False, repr=False)
    """Called with the reason if the answer is not accepted, for example because another came first. Never raises."""


class Instructions(Protocol):
    """Instruction files that are not in the prompt: nested files, rules for certain files, and changes."""

    async def touched(
        self, spec: AgentSpec, root: str, paths: Sequence[str], digests: Mapping[str, str]
    ) -> tuple[Injection, ...]:
        """Return the instructions for an agent that has read or written these files (absolute paths).

        `root`: the folder in which its file tools run. `digests`: displayed path of an instruction file -> digest of
        the text that the agent knows.
        """
        ...

    async def changed(self, spec: AgentSpec, root: str, digests: Mapping[str, str]) -> tuple[Injection, ...]:
        """Return the changes in an agent's instruction files since its last read.

        Includes files that the agent would now get in its prompt for the first time.
        """
        ...


class NoteSource(Protocol):
    """Source of relevant notes from memory."""

    async def relevant(self, spec: AgentSpec, prompt: str, standing: Collection[str]) -> tuple[Injection, ...]:
        """Return the notes (at most five) that a prompt is about.

        `standing`: keys of notes that are already in the conversation.
        """
        ...

    async def handed_off(self, spec: AgentSpec, life: int, text: str, path: str) -> None:
        """Store the hand-off text of a closed conversation as a note of the session.

        `path`: the file with the full text.
        """
        ...

"""The durable values: envelopes, requests, tasks, agents' rows. All frozen; all load for ever. Schedules: schedules.py.

`docs/records.md` is the table of every field (v1). A field is never renamed or given another meaning; a new one has a
default, so that an old record loads. Times are Unix seconds (float, UTC), money is US dollars, ids are text.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Json = dict[str, Any]
"""A JSON object, never mutated after it entered a value."""


class Value(BaseModel):
    """Base of all durable values: frozen, tolerant of fields that a newer version wrote."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    def encode(self) -> bytes:
        """The durable form: UTF-8 JSON."""
        return self.__pydantic_serializer__.to_json(self)


AGENT_NAME = re.compile(r"^[a-z][a-z0-9-]{0,63}$")
RESERVED_NAMES = frozenset({"lead", "all", "person", "board", "schedule", "runtime"})
WORKTREE_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")

Cause = Literal["person", "lead", "teammate", "schedule", "tool"]
"""Who caused it in the end. Data that gates check; no text can claim it."""

EnvelopeType = Literal[
    "prompt",
    "message",
    "broadcast",
    "result",
    "idle_notification",
    "error",
    "task_notification",
    "scheduled",
    "plan_request",
    "plan_approval_request",
    "plan_approval_response",
    "shutdown_request",
    "shutdown_response",
    "permission_request",
    "permission_response",
    "question",
    "answer",
    "command",
    "dead_letter",
]
"""`command` is ours: /compact, stop, interrupt and the like, for the runtime and never for the model. So is
`dead_letter`: the runtime tells a sender that its envelope was never read."""


class Envelope(Value):
    """One message on the bus. Written in the same commit as what caused it; its id follows from what caused it."""

    id: str
    sender: str
    recipient: str
    incarnation: int = 1
    """Which life of the recipient's name it is for: a new `alice` never reads the old one's mail."""
    type: EnvelopeType
    mode: Literal["queue", "wake"] = "wake"
    content: str = ""
    request_id: str | None = None
    reply_to: str | None = None
    cause: Cause = "person"
    caused_by: str = ""
    """The envelope that began the turn in which it was sent; empty: a person, a schedule or the runtime sent it. Of a
    dead letter: the envelope that was not read."""
    sender_incarnation: int = 0
    """Which life of the sender's name sent it; 0: no agent did, or it is not known."""
    depth: int = 0
    """Hops since a person, a schedule, or a change to a task or file."""
    metadata: Json = Field(default_factory=dict)
    sent_at: float = 0.0
    seq: int = 0
    """Its number in the recipient's mailbox, counted from 1; 0 while it is being sent."""


RequestKind = Literal["plan", "permission", "shutdown", "question"]
RequestStatus = Literal["pending", "approved", "rejected", "answered", "expired", "withdrawn"]


class Said(Value):
    """One word on a request: who said what of it, and when."""

    at: float
    by: str
    what: Literal["asked", "approved", "rejected", "answered", "expired", "withdrawn", "escalated", "edited", "refused"]
    """`refused`: a word that did not count, with the reason."""
    reason: str = ""


class Request(Value):
    """What waits for a word. The row is the truth; the first answer wins by compare-and-swap."""

    id: str
    kind: RequestKind
    asked_by: str
    incarnation: int = 1
    may_answer: tuple[str, ...] = ("person",)
    """`person`, `lead`, or `policy`. Nobody approves himself, and a lead never answers a permission."""
    subject: str = ""
    """One line for a person: what is asked."""
    payload: Json = Field(default_factory=dict)
    """plan: {plan, options, task_id, assignment, folder, base}, and submitted: {plan, digest} where a person edited it;
    permission: {tool, input, rule, why, call_id, folder, agent_type, mode, always}; question: {question, options}, of
    an MCP server also {call_id, elicit: {server, schema, url}}."""
    digest: str = ""
    """sha256 over kind and payload: a changed content makes an approval void."""
    revision: int = 1
    escalation: Literal["refuse", "person", "lead", "policy"] = "refuse"
    """To whom it is put at its deadline, and from there on along lead, person, policy; `refuse`: to nobody."""
    status: RequestStatus = "pending"
    answered_by: str | None = None
    reason: str = ""
    """Feedback to a plan, why a permission was refused, or the answer to a question."""
    created_at: float = 0.0
    expires_at: float | None = None
    cause: Cause = "person"
    """The authority of the turn that asks."""
    person_only: bool = False
    """No lead and no policy may answer it."""
    choice: str = ""
    """Which of the options was approved; empty: the plan as it stands."""
    input: Json | None = None
    """With which a person allowed the call of a permission to run instead; None: as it was asked for."""
    history: tuple[Said, ...] = ()
    """Every word on it, oldest first."""


class SessionRule(Value):
    """A rule that a person made by answering a question with "always": it allows a class of calls here."""

    id: str
    rule: str
    """As people write rules: `Bash(npm test:*)`."""
    agent: str = ""
    """The only agent that it is for; empty: every agent of the session."""
    incarnation: int = 0
    """Which life of that agent's name; 0: whichever."""
    request_id: str = ""
    """The permission that it was made with."""
    created_by: str = "person"
    created_at: float = 0.0
    expires_at: float | None = None
    """None: with the session."""
    revoked_at: float | None = None
    """When a person took it back; None: it stands."""


TaskStatus = Literal["pending", "in_progress", "completed", "failed", "cancelled"]


class Task(Value):
    """One card of the task board."""

    id: str
    subject: str
    description: str = ""
    status: TaskStatus = "pending"
    owner: str | None = None
    owner_incarnation: int = 0
    blocked_by: tuple[str, ...] = ()
    worktree: str | None = None
    evidence: str | None = None
    result: str | None = None
    attempts: int = 0
    created_by: str = "lead"
    cause: Cause = "person"
    """The authority of the turn that made it, or of a weaker one that changed what it says: who takes it has no more
    for it."""
    created_at: float = 0.0
    updated_at: float = 0.0
    check: str = ""
    """A command that must end with exit code 0 before the task may be completed; empty: none."""
    check_by: str = ""
    """Who set the check: `person`, `lead`, or the teammate that made the task."""
    files: tuple[str, ...] = ()
    """Paths and globs, relative to the workspace, that its owner works on: others see them."""
    reserved_for: str = ""
    """The only agent that may claim it; empty: any."""
    lease: str = ""
    """The lease of the process that its owner lives in, and its number: when nobody holds that, the task is free."""
    lease_number: int = 0


class Budget(Value):
    """What may be used in all: by a session, by an agent with all that it starts, by a schedule. None: no limit of its
    own, those above it still hold. 0: none at all, never unlimited."""

    tokens: int | None = None
    """All tokens of its model calls, cached input included."""
    cost_usd: float | None = None
    steps: int | None = None
    """Model calls, tries again included."""
    seconds: float | None = None
    """Wall clock since it began."""
    agents: int | None = None
    """Agents that it starts, and those that they start."""
    depth: int | None = None
    """How far below it an agent may stand: 1 allows children, no grandchildren."""


AgentLife = Literal["starting", "working", "waiting", "idle", "stopping", "stopped", "crashed"]


class AgentRow(Value):
    """What the session knows of one name, in its newest incarnation. `spec` is the digest of its `AgentSpec` blob."""

    name: str
    incarnation: int = 1
    kind: Literal["lead", "teammate", "subagent"]
    role: str = ""
    agent_type: str = ""
    parent: str | None = None
    spec: str = ""
    life: AgentLife = "starting"
    waiting_for: str = ""
    created_at: float = 0.0
    outcome: str = ""
    """How it ended: `done`, `failed`, `limit`, `stopped`; empty while it lives."""
    since: float = 0.0
    """When its life or what it waits for last changed (Unix seconds)."""
    depth: int = 0
    """How far below the lead it stands; 0: the lead itself."""
    worktree: str = ""
    """The worktree that its tools work in; empty: the workspace."""


class SessionRow(Value):
    """One session of a workspace."""

    id: str
    workspace: str
    created_at: float
    prompt: str = ""
    """The first words of the person, for lists."""
    model: str = ""
    settings: Json = Field(default_factory=dict)
    """What flags set for this session and a resume must keep: model, permission mode, limits."""
    ended_at: float | None = None
    exit_code: int | None = None


class HostRow(Value):
    """Which process hosts a session, by its own word: the lease is the truth. Taken away when it leaves in order, but
    for the word that another one takes over."""

    pid: int
    started: float
    """Its start time, in clock ticks since boot: another process that got its pid later has another one."""
    since: float = 0.0
    """When it began to host (Unix seconds)."""
    asked_by: int = 0
    """The process that asks it to leave, since a person wants to take over there; 0: nobody does."""
    left: bool = False
    """It has left for the one that asked: who follows the session waits for that one's row."""


class Usage(Value):
    """What one or more calls used, in tokens. `cost_usd` by the prices known when the call was made."""

    input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0

    @property
    def prompt_tokens(self) -> int:
        """All input tokens, cached or not."""
        return self.input_tokens + self.cache_creation_input_tokens + self.cache_read_input_tokens

    def plus(self, other: Usage) -> Usage:
        """The sum of both."""
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            cache_creation_input_tokens=self.cache_creation_input_tokens + other.cache_creation_input_tokens,
            cache_read_input_tokens=self.cache_read_input_tokens + other.cache_read_input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cost_usd=self.cost_usd + other.cost_usd,
        )


FaultKind = Literal[
    "rate_limited",  # 429 with a wait
    "overloaded",  # 529, or an overloaded_error event in a stream
    "server",  # 5xx otherwise
    "connection",  # could not connect, reset, ended before message_stop
    "silence",  # no first byte, or no content between events, in time
    "bad_reply",  # 200 of a wrong shape, invalid JSON in an event, doubled keys in a tool input
    "too_long",  # the prompt does not fit
    "spend_limit",  # the key's budget is used up: not transient
    "credentials",  # 401, 403 on the key
    "payment",  # 402
    "not_found",  # 404: unknown model
    "invalid",  # 400 otherwise: our request is wrong
    "lost",  # the process died while the call was under way
]


class Fault(Value):
    """Why a model call failed, as a value. Classed by status, type, then wording; never by a number in a text."""

    kind: FaultKind
    message: str = ""
    status: int | None = None
    type: str = ""
    retry_after: float | None = None
    """Seconds that the service asked us to wait."""
    request_id: str | None = None
    usage: Usage | None = None
    """What the failed attempt is known to have used: it may be billed."""
    may_bill: bool = False
    """The service had the request and did not refuse it: it may bill the attempt, also where `usage` is not known."""
    retry: bool | None = None
    """What the service said in `x-should-retry`; also False where only a person can mend it; None: nothing is known."""


class Todo(Value):
    """One line of an agent's own list."""

    content: str
    status: Literal["pending", "in_progress", "completed"] = "pending"


class ToolCall(Value):
    """A tool call of a reply. `id` is ours (journal position); `use_id` is the provider's, for pairing only."""

    id: str
    use_id: str
    name: str
    input: Json
    bad_input: str | None = None
    """Why the input cannot be used as it came (not an object, doubled keys): answered with an error result."""

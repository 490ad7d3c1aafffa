"""Durable values: envelopes, requests, tasks, rows of agents. All are frozen and load forever. Schedules: schedules.py.

`docs/records.md` is the table of all fields (v1). A field is never renamed and never gets another meaning. A new field
has a default, so that old records load. Times are Unix seconds (float, UTC), money is US dollars, ids are text.
"""

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import to_json

Json = dict[str, Any]
"""A JSON object. It is never mutated after it becomes part of a value."""
compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""Return a value as JSON without spaces."""
PermissionMode = Literal["plan", "dontAsk", "default", "acceptEdits", "sandboxed", "bypassPermissions"]
StartSource = Literal["startup", "resume", "clear", "compact"]
"""Occasion on which an agent starts, as its hooks name it."""


def compact_json(data: object) -> bytes:
    """Return a value as it is sent: compact JSON in UTF-8."""
    try:
        return to_json(data)
    except ValueError:
        # A lone surrogate has no UTF-8 form: it becomes "?", because otherwise nobody could read the request.
        return compact(data).encode("utf-8", "replace")


@cache
def _fields_of(kind: type[BaseModel]) -> set[str]:
    return set(kind.__pydantic_fields__)


class Value(BaseModel):
    """Base class of all durable values: frozen, and tolerant of fields that a newer version wrote."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="ignore")

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with the fields of `update`, which are not validated.

        Copies share the set of the fields that were given, which takes as much memory as the values. If `update` gives
        other fields, all fields count as given.
        """
        if deep or not update:
            return super().model_copy(update=update, deep=deep)
        given = self.__pydantic_fields_set__
        copied = object.__new__(type(self))
        object.__setattr__(copied, "__dict__", self.__dict__ | update)
        fields = given if given.issuperset(update) else _fields_of(type(self))
        object.__setattr__(copied, "__pydantic_fields_set__", fields)
        object.__setattr__(copied, "__pydantic_extra__", None)
        object.__setattr__(copied, "__pydantic_private__", None)
        return copied

    def encode(self) -> bytes:
        """Return the durable form: JSON in UTF-8."""
        return self.__pydantic_serializer__.to_json(self)


class Base(Value):
    """Fields of all events: `v`, the version of this kind of record, and `at`, Unix seconds."""

    v: int = 1
    at: float


class PathGrant(Value):
    """Path outside an agent's bounds that one approved call may use: a file, or a folder with everything in it."""

    path: str
    """Absolute path with every link resolved at the time of the decision."""
    access: Literal["read", "write", "delete"] = "read"
    understood: bool = False
    """True if the call is known to touch only named paths, so that it may have the folder of the path."""

    @property
    def writes(self) -> bool:
        """True if the path may also be changed: written or deleted."""
        return self.access != "read"


class HostGrant(Value):
    """A host that one approved command may reach: `name` (ports 80 and 443), `name:port`, or `*` for any."""

    host: str


Grant = PathGrant | HostGrant
"""Access that an approval grants a call in addition to its own."""


AGENT_NAME = re.compile(r"^[a-z][a-z0-9-]{0,63}$")
RESERVED_NAMES = frozenset({"lead", "all", "person", "board", "schedule", "runtime"})
WORKTREE_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")

Cause = Literal["person", "lead", "teammate", "schedule", "tool"]
"""Original cause of an action. Gates check this value; no text can set it."""

TurnLimit = Literal[
    "",
    "turn_steps",
    "turn_tokens",
    "turn_cost",
    "turn_seconds",
    "budget_tokens",
    "budget_cost",
    "budget_steps",
    "budget_seconds",
    "output",
    "repetition",
    "hook",
]
"""Limit that ended a turn: of the turn itself, of a budget, of the replies, of repetition, or a hook. Empty: none, or
not recorded."""

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
"""Type of an envelope. `command` is for the runtime, never for the model: /compact, stop, interrupt and others.
`dead_letter` tells a sender that its envelope was never read."""


class Envelope(Value):
    """Message to an agent, written in the same commit as its cause. Its id is derived from its cause."""

    id: str
    sender: str
    recipient: str
    incarnation: int = 1
    """Incarnation of the recipient. A new `alice` never reads the mail of an earlier one."""
    type: EnvelopeType
    mode: Literal["queue", "wake"] = "wake"
    content: str = ""
    request_id: str | None = None
    reply_to: str | None = None
    cause: Cause = "person"
    caused_by: str = ""
    """Envelope that began the turn in which this one was sent; empty: sent by the user, a schedule or the runtime. For
    a dead letter: the envelope that was not read."""
    sender_incarnation: int = 0
    """Incarnation of the sender; 0: the sender is not an agent, or unknown."""
    depth: int = 0
    """Hops between agents since the last message of the user, fire of a schedule, or change to a task or file."""
    metadata: Json = Field(default_factory=dict)
    sent_at: float = 0.0
    seq: int = 0
    """Number in the recipient's mailbox, from 1; 0 while it is being sent."""


RequestKind = Literal["plan", "permission", "shutdown", "question"]
RequestStatus = Literal["pending", "approved", "rejected", "answered", "expired", "withdrawn"]


class Said(Value):
    """One entry in the history of a request: the author, the action and the time."""

    at: float
    by: str
    what: Literal["asked", "approved", "rejected", "answered", "expired", "withdrawn", "escalated", "edited", "refused"]
    """Action. `refused`: an answer that was not accepted, with the reason."""
    reason: str = ""
    user: str = ""
    """Name of the person who answered on the web page, if it has several users, or of an answer link; empty: not
    stated."""


class Request(Value):
    """Request that waits for an answer. Only the row counts; the first answer wins by compare-and-swap."""

    id: str
    kind: RequestKind
    asked_by: str
    incarnation: int = 1
    may_answer: tuple[str, ...] = ("person",)
    """`person`, `lead`, or `policy`. No agent answers its own request, and a lead never answers a permission
    request."""
    subject: str = ""
    """Subject of the request, one line for the user."""
    payload: Json = Field(default_factory=dict)
    """plan: {plan, options, task_id, assignment, folder, base}, and submitted: {plan, digest} if the user edited it;
    permission: {tool, input, rule, why, call_id, folder, agent_type, mode, always}; question: {question, options}, and
    {call_id, elicit: {server, schema, url}} for a question of an MCP server, or {waits} if its call waits."""
    digest: str = ""
    """sha256 of kind and payload. Changed content makes an approval void."""
    revision: int = 1
    escalation: Literal["refuse", "person", "lead", "policy"] = "refuse"
    """First recipient at the deadline; further ones follow in the order lead, person, policy. `refuse`: no
    escalation."""
    status: RequestStatus = "pending"
    answered_by: str | None = None
    reason: str = ""
    """Feedback on a plan, reason for a denied permission, or answer to a question."""
    created_at: float = 0.0
    expires_at: float | None = None
    cause: Cause = "person"
    """Authority of the turn that made the request."""
    person_only: bool = False
    """True if neither a lead nor a policy may answer."""
    choice: str = ""
    """Approved option; empty: the plan as submitted."""
    mode: str = ""
    """Permission mode for carrying out an approved plan; empty: `default` for an agent in plan mode, no change for
    others."""
    input: Json | None = None
    """Input with which the user allowed the call to run; None: the original input."""
    history: tuple[Said, ...] = ()
    """All entries, oldest first."""


RuleEffect = Literal["allow", "ask", "deny"]


class SessionRule(Value):
    """Rule that the user created in an answer. It allows, asks about, or denies a class of calls in this session.

    A row that asks or denies stores its rule as `{"text": RULE}`, so that a version that knows only allow rules refuses
    the session (docs/decisions/0039).
    """

    id: str
    rule: str
    """Rule in the usual form: `Bash(npm test:*)`."""
    effect: RuleEffect = "allow"
    agent: str = ""
    """Agent that the rule applies to; empty: every agent of the session."""
    incarnation: int = 0
    """Incarnation of that agent; 0: any."""
    request_id: str = ""
    """Permission request that created the rule."""
    created_by: str = "person"
    created_at: float = 0.0
    expires_at: float | None = None
    """Expiry in Unix seconds; None: the end of the session."""
    revoked_at: float | None = None
    """Time at which the user revoked the rule (Unix seconds); None: it is in force."""

    @model_validator(mode="before")
    @classmethod
    def _read_stored_rule(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        fields = cast("Json", data)
        stored: Any = fields.get("rule")
        if isinstance(stored, dict) and fields.get("effect", "allow") != "allow":
            return {**fields, "rule": cast("Json", stored).get("text")}
        return fields

    def encode(self) -> bytes:
        """See `Value.encode`."""
        if self.effect == "allow":
            return super().encode()
        return to_json({**self.model_dump(), "rule": {"text": self.rule}})


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
    """Authority of the turn that created the task, or of a weaker turn that changed its content. Its owner has no more
    for this task."""
    created_at: float = 0.0
    updated_at: float = 0.0
    check: str = ""
    """Command that must exit with 0 before the task may be completed; empty: none."""
    check_by: str = ""
    """Author of the check: `person`, `lead`, or the teammate that made the task."""
    files: tuple[str, ...] = ()
    """Paths and globs, relative to the workspace, that the owner works on. Other agents see them."""
    reserved_for: str = ""
    """The only agent that may claim the task; empty: any."""
    lease: str = ""
    """Lease, with its number, of the process in which the owner lives. If no process holds it, the task is free."""
    lease_number: int = 0


class Budget(Value):
    """Limits on total use by a session, by an agent including the agents that it starts, or by a schedule.

    None: no own limit; the budgets above still apply. 0: nothing is allowed; it never means unlimited.
    """

    tokens: int | None = None
    """Tokens of all model calls, including cached input."""
    cost_usd: float | None = None
    steps: int | None = None
    """Model calls, including retries."""
    seconds: float | None = None
    """Time since the start, without time during which the hosting machine slept."""
    agents: int | None = None
    """Agents started, directly or by agents that were started."""
    depth: int | None = None
    """Greatest depth of an agent below the owner of the budget: 1 allows children but no grandchildren."""


AgentLife = Literal["starting", "working", "waiting", "idle", "stopping", "stopped", "crashed"]


class Usage(Value):
    """Tokens used by one or more calls. `cost_usd` uses the prices that were known at the time of each call."""

    input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    unpriced_tokens: int = 0
    """Tokens of calls whose price is unknown; `cost_usd` does not include them."""
    web_searches: int = 0
    """Searches of the web by the model service."""

    @property
    def stated_cost(self) -> float | None:
        """Return the cost for a program: None if no call has a known price, else the cost of those that have one."""
        return None if self.unpriced_tokens and not self.cost_usd else self.cost_usd

    @property
    def prompt_tokens(self) -> int:
        """Return all input tokens, cached or not."""
        return self.input_tokens + self.cache_creation_input_tokens + self.cache_read_input_tokens

    def plus(self, other: "Usage") -> "Usage":
        """Return the sum of both."""
        more = vars(other)
        return self.model_copy(update={name: amount + more[name] for name, amount in vars(self).items()})


class AgentTotals(Value):
    """Totals and final text of an ended incarnation, so that lists of agents need not read its journal."""

    steps: int = 0
    usage: Usage = Usage()
    said: str = ""
    """Report or final text, shortened to one line."""
    compacted: dict[str, int] = Field(default_factory=dict[str, int])
    """Number of times that each stage reduced the view, by `stage/trigger`."""
    rereads: int = 0


class AgentRow(Value):
    """Row of one agent, in its newest incarnation."""

    name: str
    incarnation: int = 1
    kind: Literal["lead", "teammate", "subagent"]
    role: str = ""
    agent_type: str = ""
    parent: str | None = None
    spec: str = ""
    """Digest of its `AgentSpec`, which is a row. Empty: the first record of its journal has the spec."""
    life: AgentLife = "starting"
    waiting_for: str = ""
    created_at: float = 0.0
    outcome: str = ""
    """Outcome of the agent: `done`, `failed`, `limit`, `stopped`; empty while it lives."""
    since: float = 0.0
    """Time at which `life` or `waiting_for` last changed (Unix seconds)."""
    depth: int = 0
    """Depth of the agent below the lead; 0: the lead itself."""
    worktree: str = ""
    """Worktree in which the agent's tools work; empty: the workspace."""
    totals: AgentTotals | None = None
    """Totals of an ended agent; None also if an older version wrote the end, or the agent was ended from outside."""
    earlier: Usage = Usage()
    """Usage of earlier incarnations of this name."""


class SessionRow(Value):
    """One session of a workspace."""

    id: str
    workspace: str
    created_at: float
    prompt: str = ""
    """Beginning of the first prompt, for lists."""
    model: str = ""
    settings: Json = Field(default_factory=dict)
    """Settings from command-line options, which a resume keeps: model, permission mode, limits."""
    ended_at: float | None = None
    exit_code: int | None = None
    callboard: str = ""
    """Newest version of Callboard that hosted the session; empty: unknown."""
    by_tool: bool = False
    """True if a process of an agent's tool began the session, and no person has continued it: only such a session can
    be continued by a tool's process."""


class RemovedSession(Value):
    """Session that `callboard store gc` has removed. The row stays for a week, for what lies on other machines."""

    at: float
    """Time of the removal (Unix seconds)."""


class RefusedRequest(Value):
    """Request to the web page or to a host that was refused because an agent's tool started the process that sent it.

    Also a write in the person's name that an agent's process made in the database itself.
    """

    at: float
    pid: int
    """0 if only the write was seen, not its process."""
    program: str
    """Name of the process."""
    action: str
    """Method and path of a request to the page; otherwise the action in words."""
    why: str


class AnswerLink(Value):
    """Link that answers one request once, without a sign-in. Its secret is stored nowhere."""

    id: str
    """Begins with `link_`. Names the link in the record of its answer; it opens nothing."""
    session: str
    request: str
    digest: str
    """Digest of the request when the link was made. The link is void for other content."""
    created_at: float
    expires_at: float
    user: str = ""
    """Name of the person whom the link was made for; empty: not stated."""
    revoked_at: float | None = None


class HostRow(Value):
    """Process that hosts a session, by its own statement; only the lease proves it.

    A process that leaves in order removes the row, or marks it if another process takes over.
    """

    pid: int
    started: float
    """Start time in clock ticks since boot. It distinguishes the process from a later one with the same pid."""
    since: float = 0.0
    """Time at which the process began to host (Unix seconds)."""
    asked_by: int = 0
    """Process that asks this one to leave, because the user continues there; 0: none."""
    left: bool = False
    """True if the process left for the one that asked. Followers of the session wait for the new row."""
    machine: str = ""
    """Name of its machine; empty in a row of an earlier version."""
    version: str = ""
    """Version of Callboard that it runs."""
    unattended: bool = False
    """True if no person sits at it: a serving host continues the session if this process dies."""
    asked_from: str = ""
    """Machine of the process that asks this one to leave."""


class HostAbout(Value):
    """Statement of a process about itself, for those that list and choose hosts (`Store.announce`)."""

    version: str = ""
    """Version of Callboard that it runs."""
    serves: bool = False
    """True for a `callboard serve`, which takes up sessions that need a host."""
    labels: dict[str, str] = Field(default_factory=dict[str, str])
    """Labels that a session may ask for."""
    sessions: int = 0
    """Most sessions that it hosts at once; 0: no limit of its own."""
    draining: bool = False
    """True if it hands its sessions over and takes up no others."""
    since: float = 0.0
    """Time at which it began to serve (Unix seconds)."""


class QueuedSession(Value):
    """Session that needs a host: detached, handed over, or left by a host that died. Its host removes the row."""

    since: float = 0.0
    """Time at which it was queued (Unix seconds)."""
    placement: dict[str, str] = Field(default_factory=dict[str, str])
    """Labels that its host must have."""


FaultKind = Literal[
    "rate_limited",  # 429 with a wait
    "overloaded",  # 529, or an overloaded_error event in a stream
    "server",  # any other 5xx
    "connection",  # could not connect, reset, ended before message_stop
    "silence",  # no first byte, or no content between events, in time
    "bad_reply",  # 200 of a wrong shape, invalid JSON in an event, doubled keys in a tool input
    "too_long",  # the prompt does not fit
    "spend_limit",  # the key's budget is used up: not transient
    "credentials",  # 401, 403 on the key
    "payment",  # 402
    "not_found",  # 404: unknown model
    "invalid",  # any other 400: the request is wrong
    "lost",  # the process died during the call
]


class Fault(Value):
    """Reason for a failed model call. Classified by status, then type, then wording."""

    kind: FaultKind
    message: str = ""
    status: int | None = None
    type: str = ""
    retry_after: float | None = None
    """Wait that the service requested, in seconds."""
    request_id: str | None = None
    usage: Usage | None = None
    """Known usage of the failed attempt, which may be billed."""
    may_bill: bool = False
    """True if the service accepted the request: it may bill the attempt even if `usage` is unknown."""
    retry: bool | None = None
    """Value of the service's `x-should-retry`; also False if only the user can fix the fault; None: unknown."""
    max_output: int | None = None
    """Output limit of the model in tokens, as stated by the refusal."""
    window: int | None = None
    """Window of the model in tokens, as stated by the refusal."""


class Todo(Value):
    """One line of an agent's todo list."""

    content: str
    status: Literal["pending", "in_progress", "completed"] = "pending"


class ToolCall(Value):
    """Tool call of a reply.

    `id` is the runtime's (journal position); `use_id` is the provider's, used only for pairing.
    """

    id: str
    use_id: str
    name: str
    input: Json
    bad_input: str | None = None
    """Reason why the input is unusable (not an object, duplicate keys). The call gets an error result."""

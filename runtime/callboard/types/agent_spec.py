"""Specification of an agent. A lead, a teammate and a subagent differ only by their `AgentSpec`."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from pydantic import Field

from callboard.types.records import Budget, Json, PermissionMode, Usage, Value

BYPASS: PermissionMode = "bypassPermissions"
READ_AS: Mapping[str, PermissionMode] = MappingProxyType({"manual": "default", "auto": "default"})
"""Modes of Claude Code and their equivalents: `manual` is another name of `default`; `auto` asks a classifier in Claude
Code, and a person here."""


class PermissionRules(Value):
    """Permission rules as users write them, in addition to those of the session.

    Deny takes precedence over ask, ask over allow.
    """

    allow: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()

    def joined(self, other: "PermissionRules") -> "PermissionRules":
        """Return the rules of both, without duplicates."""
        return PermissionRules(
            allow=tuple(dict.fromkeys((*self.allow, *other.allow))),
            ask=tuple(dict.fromkeys((*self.ask, *other.ask))),
            deny=tuple(dict.fromkeys((*self.deny, *other.deny))),
        )


class Limits(Value):
    """Limits that end a turn. None: no limit. 0: nothing is allowed; it never means unlimited."""

    steps: int | None = None
    """Model steps in one turn. 30 for subagents (docs/design.md, "Default numbers")."""
    tokens: int | None = None
    """Tokens of one turn, including cached input."""
    cost_usd: float | None = None
    seconds: float | None = None


class StageSpec(Value):
    """One stage of a context pipeline with its parameters. Unknown parameters are refused when settings load."""

    stage: str
    params: Json = Field(default_factory=dict)


PRICE_SEARCH = 0.01
"""US dollars of one search of the web by the model service."""


class ModelLimits(Value):
    """Known limits, abilities and prices of a model. Prices are in US dollars per million tokens."""

    window: int = 200_000
    max_output: int = 64_000
    price_input: float = 3.0
    price_write: float = 3.75
    price_read: float = 0.3
    price_output: float = 15.0
    priced: bool = True
    """True if the prices are known. Otherwise they are those of a similar model, which serve for comparisons but not
    for amounts of money."""
    assumed: str = ""
    """Reason for assumed limits, for the user; empty if the limits are stated."""
    cache_minimum: int = 1_024
    """Tokens of the smallest prefix that the service caches."""
    cache_ttl: float = 300.0
    """Seconds that a cached prefix lives after its last use."""
    thinking: bool = True
    """True if the model accepts thinking blocks."""
    adaptive_thinking: bool = True
    """True if the model decides by itself how much it thinks; False: it needs a budget of tokens."""
    tools: bool = True
    """True if the model can call tools."""
    effort: bool = True
    """True if the model accepts a thinking effort."""
    long_over: int | None = None
    """Prompt size, including cached tokens, above which the prompt and its reply cost `long_factor` times these prices.
    None: one price for all sizes."""
    long_factor: float = 1.0

    def cost_of(self, usage: Usage) -> float:
        """Return the cost of one call with this usage in US dollars; 0 if the prices are not known."""
        if not self.priced:
            return 0.0
        price = (
            usage.input_tokens * self.price_input
            + usage.cache_creation_input_tokens * self.price_write
            + usage.cache_read_input_tokens * self.price_read
            + usage.output_tokens * self.price_output
        )
        return price * self.factor(usage.prompt_tokens) / 1_000_000 + usage.web_searches * PRICE_SEARCH

    def factor(self, prompt_tokens: int) -> float:
        """Return the price factor for a prompt of this many tokens."""
        return self.long_factor if self.long_over is not None and prompt_tokens > self.long_over else 1.0


class ThinkingChoice(Value):
    """Thinking that a person or a program chose for an agent."""

    kind: Literal["adaptive", "enabled", "disabled"]
    budget: int | None = None
    """Tokens for thinking, for models that need a budget."""
    display: Literal["", "summarized", "omitted"] = ""
    """Form in which the service returns the thinking; empty: its default."""

    def tokens(self, limits: ModelLimits, output: int) -> int:
        """Return the tokens that each reply may think, 0 for none. `output`: tokens of a reply without a budget.

        The same for all calls with a model: with another value, the service reads the whole conversation again.
        """
        if not limits.thinking or self.kind == "disabled":
            return 0
        least_answer = min(LEAST_ANSWER, limits.max_output // 2)
        budget = min(self.budget or output // 2, limits.max_output - least_answer)
        return budget if limits.adaptive_thinking or budget >= LEAST_THINKING else 0

    def wire(self, limits: ModelLimits, max_tokens: int, output: int) -> Json | None:
        """Return the parameter of a call; None if the model accepts none, or the call has no room to think."""
        if not limits.thinking:
            return None
        if self.kind == "disabled":
            return {"type": "disabled"}
        display: Json = {"display": self.display} if self.display else {}
        if limits.adaptive_thinking:
            return {"type": "adaptive", **display}
        budget = self.tokens(limits, output)
        has_room = 0 < budget <= max_tokens - min(LEAST_ANSWER, max_tokens // 2)
        return {"type": "enabled", "budget_tokens": budget, **display} if has_room else None


LEAST_THINKING = 1_024
"""Smallest budget for thinking that the service accepts, in tokens."""
LEAST_ANSWER = 1_024
"""Fewest tokens that thinking leaves for the answer, unless the call has fewer than twice as many."""


class ModelFacts(Value):
    """Limits of a model as its service states them; None for each that it does not state."""

    window: int | None = None
    max_output: int | None = None
    thinking: bool | None = None
    effort: bool | None = None


class ModelChoice(Value):
    """Model that the user chose for an agent, with its limits as known when it was chosen."""

    name: str
    limits: ModelLimits
    plan_name: str | None = None
    """Model in plan mode; None: the same model."""
    plan_limits: ModelLimits | None = None


class AgentSpec(Value):
    """All differences between agents.

    Stored as a blob; each change is an event, so that a resume finds the current spec.
    """

    name: str
    kind: Literal["lead", "teammate", "subagent"]
    agent_type: str
    role: str = ""
    parent: str | None = None
    instructions: str = ""
    """Body of the agent file: the first section of the system prompt."""
    tools: tuple[str, ...] = ()
    """Names of the agent's tools, sorted. `mcp` selects the tools of MCP servers."""
    own: tuple[str, ...] | None = None
    """Names of the agent's tools among the Python functions of the program that opened the session. None: all shared
    ones."""
    mcp: tuple[str, ...] | None = None
    """Tools of MCP servers that the agent may use: `mcp__server`, `mcp__server__*`, `mcp__server__tool`, `mcp__*`.
    None: all tools of the session."""
    mcp_denied: tuple[str, ...] = ()
    """Exceptions from `mcp`, in the same form."""
    effort: Literal["", "low", "medium", "high", "xhigh", "max"] = ""
    """Thinking effort requested from the model; empty: the service's default."""
    thinking: ThinkingChoice | None = None
    """Thinking requested from the model; None: the service's default."""
    memory: Literal["", "user", "project", "local"] = ""
    """Location of the agent's own notes, kept from session to session; empty: the agent keeps none."""
    model: str
    plan_model: str | None = None
    """Model in plan mode; None: `model`."""
    fallback_models: tuple[str, ...] = ()
    small_model: str | None = None
    """Model for summaries; None: the agent's own model."""
    models: dict[str, ModelLimits] = Field(default_factory=dict)
    """Limits and prices of each model above."""
    permission_mode: PermissionMode = "default"
    rules: PermissionRules = PermissionRules()
    """Rules of the agent's type, and rules of its parent that deny or ask. The rules of the session apply as well."""
    read_only: bool = False
    """True if the agent only reads, whatever rules, modes and answers say. It may run only commands that read inside
    its folder."""
    unasked: tuple[str, ...] = ()
    """Rules that bound what runs without a question. Of the calls that change something, only those that match a rule
    run without one, even if other rules allow them; empty: no bound. Set in turns of a schedule with such rights, and
    in turns that these start."""
    limits: Limits = Limits()
    output_tokens: int = 8_000
    output_escalated: int = 16_000
    attempts: int = 3
    """Attempts of one call, including the first; unattended sessions use 10."""
    max_wait: float = 60.0
    """Longest wait in seconds that the service may ask for. A longer wait parks the agent."""
    first_byte: float = 120.0
    """Seconds until a reply begins."""
    idle: float = 60.0
    """Seconds between two events of a reply that carry content."""
    total: float = 900.0
    """Seconds of a whole model call."""
    pipeline: tuple[StageSpec, ...] = ()
    context_limit: int | None = None
    """Token count that triggers compaction, instead of the budget of the window."""
    react_limit: Literal["per_success", "per_turn"] = "per_success"
    """Number of compactions of a prompt refused as too long: one between two replies, or one in a turn."""
    after_compact: Literal["continue", "end_turn"] = "continue"
    """Behaviour after a compaction that the `compact` tool asked for: the turn continues, or ends."""
    todo_reminder_steps: int = 3
    plan_required: bool = False
    plan_approver: Literal["person", "lead", "either"] = "person"
    plan_deadline: float | None = 1_800.0
    """Seconds that a plan waits; None: no deadline."""
    plan_on_deadline: Literal["escalate", "refuse"] = "escalate"
    """Action at the deadline of a plan: put it to the user as well, unless the user was asked already, or reject it."""
    plan_moved_base: Literal["tell", "void"] = "tell"
    """Handling of a plan whose base commit has changed by the time of its approval: `tell` the agent, or `void` the
    approval.
    """
    ask_deadline: float | None = 1_800.0
    """Seconds that a permission request or a question waits; 0: no one can answer, reject at once; None: no
    deadline."""
    stop_hook_cap: int = 8
    isolation: Literal["", "worktree"] = ""
    """`worktree`: the agent gets its own git worktree, in which its file and shell tools run."""
    folder: str = ""
    """Folder in which the agent's file and shell tools run; empty: the workspace."""
    background: bool = False
    """True if a call that starts an agent of this type as a subagent never waits for it."""
    worktree: str = ""
    """Worktree of the agent. Its tools run there, unless a task that it holds is bound to another worktree."""
    claims_tasks: bool = False
    """True if the agent claims the next ready task from the board when it is idle."""
    budget: Budget = Budget()
    """Budget of the agent's whole life, including the agents that it starts. The budgets above it apply as well."""
    charged_to: str = ""
    """`fire:<envelope id>` if a turn of a schedule started the agent; empty: only the parent is charged."""
    stuck_after: int = 3
    """Repetitions without progress after which the agent is nudged, and stopped if it continues; 0: never."""

    def limits_of(self, model: str) -> ModelLimits:
        """Return the limits and prices of `model`, or the defaults of `ModelLimits` if none are stated."""
        return self.models.get(model) or ModelLimits()

    def thinking_beside(self, limits: ModelLimits) -> int:
        """Return the tokens that a stated budget for thinking adds to those of an answer; 0 without one."""
        choice = self.thinking
        if choice is None or choice.budget is None or limits.adaptive_thinking:
            return 0
        return choice.tokens(limits, self.output_tokens)

    def thinking_tokens(self, model: str) -> int:
        """Return the most tokens that a reply of `model` thinks; 0 if no thinking was chosen."""
        limits = self.limits_of(model)
        return 0 if self.thinking is None else self.thinking.tokens(limits, min(self.output_tokens, limits.max_output))

    def thinking_wire(self, model: str, max_tokens: int) -> Json | None:
        """Return the parameter for thinking of a call; None if the call has none."""
        if self.thinking is None:
            return None
        limits = self.limits_of(model)
        return self.thinking.wire(limits, max_tokens, min(self.output_tokens, limits.max_output))

"""What an agent is told to be: lead, teammate and subagent differ by their `AgentSpec` and by nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from pydantic import Field

from callboard.words.values import Budget, Json, Usage, Value

PermissionMode = Literal["plan", "dontAsk", "default", "acceptEdits", "sandboxed", "bypassPermissions"]
READ_AS: Mapping[str, PermissionMode] = MappingProxyType({"manual": "default", "auto": "default"})
"""Modes of Claude Code that are read as one of ours: `manual` is another name of `default`; `auto` asks a classifier
there, and a person here."""


class PermissionRules(Value):
    """Permission rules as people write them, beside those of the session. Deny binds before ask, ask before allow."""

    allow: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()

    def joined(self, other: PermissionRules) -> PermissionRules:
        """Both, each rule once."""
        return PermissionRules(
            allow=tuple(dict.fromkeys((*self.allow, *other.allow))),
            ask=tuple(dict.fromkeys((*self.ask, *other.ask))),
            deny=tuple(dict.fromkeys((*self.deny, *other.deny))),
        )


class Limits(Value):
    """When a turn ends by itself. None: no limit. 0 means none at all, never unlimited."""

    steps: int | None = None
    """Model steps in one turn. 30 for subagents (docs/design.md, "What it does by the numbers")."""
    tokens: int | None = None
    """All tokens of one turn, cached input included."""
    cost_usd: float | None = None
    seconds: float | None = None


class StageSpec(Value):
    """One stage of a context pipeline with its parameters; unknown parameters are refused when settings load."""

    stage: str
    params: Json = Field(default_factory=dict)


class ModelLimits(Value):
    """What is known of a model. Prices in US dollars for a million tokens."""

    window: int = 200_000
    max_output: int = 64_000
    price_input: float = 3.0
    price_write: float = 3.75
    price_read: float = 0.3
    price_output: float = 15.0
    cache_minimum: int = 1_024
    """Tokens of the smallest prefix that the service caches."""
    cache_ttl: float = 300.0
    """Seconds that a cached prefix lives after it was used."""
    thinking: bool = True
    """It takes thinking blocks."""
    tools: bool = True
    """It can call tools."""
    effort: bool = True
    """It takes an effort: how hard it is asked to think."""
    long_over: int | None = None
    """A prompt of more tokens, cached ones included, is charged at `long_factor` times these prices, its reply too.
    None: one price for all."""
    long_factor: float = 1.0

    def cost_of(self, usage: Usage) -> float:
        """What one call with this usage costs, in US dollars."""
        price = (
            usage.input_tokens * self.price_input
            + usage.cache_creation_input_tokens * self.price_write
            + usage.cache_read_input_tokens * self.price_read
            + usage.output_tokens * self.price_output
        )
        return price * self.factor(usage.prompt_tokens) / 1_000_000

    def factor(self, prompt_tokens: int) -> float:
        """By what the prices are multiplied for a prompt of so many tokens."""
        return self.long_factor if self.long_over is not None and prompt_tokens > self.long_over else 1.0


class ModelChoice(Value):
    """The model that a person chooses for an agent, with what is known of it where it was chosen."""

    name: str
    limits: ModelLimits


class AgentSpec(Value):
    """Everything by which agents differ. Stored as a blob; a change is an event, never a surprise at resume."""

    name: str
    kind: Literal["lead", "teammate", "subagent"]
    agent_type: str
    role: str = ""
    parent: str | None = None
    instructions: str = ""
    """The body of its agent file: the first section of its system prompt."""
    tools: tuple[str, ...] = ()
    """Names of the tools it has, sorted; of MCP servers' tools `mcp` tells."""
    own: tuple[str, ...] | None = None
    """Of the tools that the program brings which opened the session (Python functions) the ones it has, by name. None:
    all that are for everybody."""
    mcp: tuple[str, ...] | None = None
    """The tools of MCP servers that it may have: `mcp__server`, `mcp__server__*`, `mcp__server__tool`, `mcp__*`. None:
    all that the session has."""
    mcp_denied: tuple[str, ...] = ()
    """Of these the ones that it may not have, written the same way."""
    effort: Literal["", "low", "medium", "high", "xhigh", "max"] = ""
    """How hard the model is asked to think; empty: as the service does by itself."""
    memory: Literal["", "user", "project", "local"] = ""
    """Where the notes of its own are that it keeps from session to session; empty: it keeps none."""
    model: str
    fallback_models: tuple[str, ...] = ()
    small_model: str | None = None
    """For summaries; None: the agent's own."""
    models: dict[str, ModelLimits] = Field(default_factory=dict)
    """Limits and prices of each model above."""
    permission_mode: PermissionMode = "default"
    rules: PermissionRules = PermissionRules()
    """Of its type, and what its parent is denied or must ask for; the rules of the session hold beside them."""
    unasked: tuple[str, ...] = ()
    """Rules: of what changes anything only what they name runs unasked, whatever else allows it; empty: no such bound.
    It is there in turns of a schedule with such rights, and in those that these start."""
    limits: Limits = Limits()
    output_tokens: int = 8_000
    output_escalated: int = 16_000
    attempts: int = 3
    """Tries of one call, the first included; unattended sessions use 10."""
    max_wait: float = 60.0
    """A longer wait asked for by the service parks the agent instead (seconds)."""
    first_byte: float = 120.0
    """Seconds until a reply begins."""
    idle: float = 60.0
    """Seconds between two events of a reply that carry content."""
    total: float = 900.0
    """Seconds of a whole model call."""
    pipeline: tuple[StageSpec, ...] = ()
    context_limit: int | None = None
    """Compact at this many tokens instead of at the budget of the window."""
    react_limit: Literal["per_success", "per_turn"] = "per_success"
    """How often a prompt that was refused as too long is compacted: once between two replies, or once in a turn."""
    after_compact: Literal["continue", "end_turn"] = "continue"
    """What follows the compaction that the `compact` tool asked for."""
    todo_reminder_steps: int = 3
    plan_required: bool = False
    plan_approver: Literal["person", "lead", "either"] = "person"
    plan_deadline: float = 1_800.0
    plan_on_deadline: Literal["escalate", "refuse"] = "escalate"
    """At the deadline of a plan: put it to the person as well, if they were not asked, or refuse it."""
    plan_moved_base: Literal["tell", "void"] = "tell"
    """When the commit that a plan is based on is another one by the time of its approval: tell, or take it for void."""
    ask_deadline: float | None = 1_800.0
    """Seconds a permission or question waits; 0: nobody can answer, refuse at once; None: for ever."""
    stop_hook_cap: int = 8
    isolation: Literal["", "worktree"] = ""
    """`worktree`: it gets a git worktree of its own, and its file and shell tools run there."""
    folder: str = ""
    """Where its file and shell tools run; empty: the workspace."""
    worktree: str = ""
    """The worktree made for it: its tools run there, unless a task that it holds is bound to another one."""
    claims_tasks: bool = False
    """Takes the next ready task from the board when it is idle."""
    budget: Budget = Budget()
    """For its whole life, all that it starts included; it draws on the budgets above it."""
    charged_to: str = ""
    """`fire:<envelope id>`, where a turn that a schedule began started it; empty: its parent alone."""
    stuck_after: int = 3
    """Repetitions without progress after which it is nudged, and stopped when they go on; 0: never."""

    def limits_of(self, model: str) -> ModelLimits:
        """Limits and prices of `model`; the defaults of `ModelLimits` when none are stated."""
        return self.models.get(model) or ModelLimits()

"""All settings of a person or a workspace, with their defaults: one tree, frozen, and unknown names are refused.

`callboard.settings` fills it from files, environment and flags. Seconds, tokens and US dollars throughout. Keys for the
model service are no settings: they come from the environment only and are never shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from callboard.words.errors import UnknownModel
from callboard.words.specs import READ_AS, ModelLimits, PermissionMode, PermissionRules, StageSpec
from callboard.words.values import Budget, Json

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _number(value: object) -> object:
    """A variable of the environment is text."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value


class Section(BaseModel):
    """A branch of the tree."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class ModelSetting(Section):
    """What is stated of the models that a name or glob covers; what is left out is taken from a wider glob."""

    window: Annotated[int, Field(ge=1_000)] | None = None
    """Tokens of prompt and reply together."""
    max_output: Positive | None = None
    price_input: Price | None = None
    """US dollars for a million tokens, as all prices."""
    price_write: Price | None = None
    """Of writing to the prompt cache; left out: 1.25 x input."""
    price_read: Price | None = None
    """Of reading from it; left out: 0.1 x input."""
    price_output: Price | None = None
    cache_minimum: Count | None = None
    """Tokens of the smallest prefix that the service caches; left out: 1,024."""
    cache_ttl: Seconds | None = None
    """Seconds that a cached prefix lives after it was used; left out: 300."""
    thinking: bool | None = None
    """Whether it takes thinking blocks; left out: yes."""
    tools: bool | None = None
    """Whether it can call tools; left out: yes."""
    effort: bool | None = None
    """Whether it can be asked to think more or less; left out: yes."""
    long_over: Count | None = None
    """A prompt of more tokens is charged at `long_factor` times these prices; left out: one price for all."""
    long_factor: Price | None = None


Mode = Annotated[PermissionMode, BeforeValidator(lambda written: READ_AS.get(written, written))]
"""A permission mode; `manual` and `auto` are read as `default`."""


class ProfileSettings(Section):
    """Rights of some agents or turns, beside those of all: a mode that can only be narrower, and more rules."""

    mode: Mode | None = None
    allow: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()

    @property
    def rules(self) -> PermissionRules:
        return PermissionRules(allow=self.allow, ask=self.ask, deny=self.deny)


class ExampleSetting(Section):
    """A call and what is to be decided of it, beside the rules that it is an example of: `callboard policy test`."""

    call: str | Json
    """A shell command, or `{tool: NAME, input: {...}}`."""
    decision: Literal["allow", "ask", "deny"]
    by: str | None = None
    """What is to decide it: a letter, `rule TEXT`, `mode NAME`; left out: whatever does."""
    mode: Mode | None = None
    """Left out: the mode in force."""
    agent: str = "lead"
    """The agent's type."""
    folder: str = ""
    """Where it works; left out: the workspace."""


class PermissionSettings(ProfileSettings):
    """What may run without asking. The lists of all sources are joined: a later one cannot take anything away."""

    mode: Mode = "default"  # pyright: ignore[reportIncompatibleVariableOverride] - frozen: nobody can set None
    never: tuple[str, ...] = ()
    """Programs to be denied always, beside the built-in ones."""
    always_ask: tuple[str, ...] = ()
    """Programs to be asked for always, beside the built-in ones."""
    classic_dd: Literal["deny", "judge"] = "judge"
    """`deny`: every `dd if=` is denied, as the classic list had it."""
    agents: dict[str, ProfileSettings] = Field(default_factory=dict)
    """Of the agents of a type (`lead`, `explore`, ...); what they start is denied and asked for the same."""
    schedules: ProfileSettings = ProfileSettings()
    """Of turns that a schedule began, and of what is started in them. Without a mode: the agent's, but `sandboxed`
    instead of `bypassPermissions`."""
    examples: tuple[ExampleSetting, ...] = ()
    """Calls and what is to be decided of them. They allow nothing; `callboard policy test` holds the rules to them."""


class LimitSettings(Section):
    """When a turn ends by itself; left out: no limit; 0 means none at all."""

    steps: Count | None = None
    tokens: Count | None = None
    cost_usd: Price | None = None
    seconds: Seconds | None = None
    subagent_steps: Count = 30
    stuck_after: Count = 3
    """Repetitions without progress after which an agent is told, and its turn ended when they go on; 0: never."""


class BudgetSettings(Section):
    """What may be used in all: left out: no limit of its own; 0 means none at all."""

    tokens: Count | None = None
    """All tokens of model calls, cached input included."""
    cost_usd: Price | None = None
    steps: Count | None = None
    """Model calls, tries again included."""
    seconds: Seconds | None = None
    """Wall clock since it began."""
    agents: Count | None = None
    """Agents that are started in all, those that have ended included; the lead is not counted."""
    depth: Count | None = None
    """How far below it an agent may stand: 1 allows no subagents of teammates."""

    def value(self) -> Budget:
        """The budget that these settings state."""
        return Budget.model_validate(self.model_dump())


class RecoverySettings(Section):
    """What is done when a model call fails."""

    attempts: Positive = 3
    """Tries of one call, the first included."""
    unattended_attempts: Positive = 10
    max_wait: Seconds = 60.0
    """A longer wait asked for by the service parks the agent."""
    output_tokens: Positive = 8_000
    output_escalated: Positive = 16_000
    first_byte: Seconds = 120.0
    idle: Seconds = 60.0
    """Seconds between two events that carry content."""
    total: Seconds = 900.0
    too_long: tuple[str, ...] = ()
    """Wordings by which another endpoint says that a prompt is too long, beside the known ones."""
    react_limit: Literal["per_success", "per_turn"] = "per_success"
    """How often a prompt that was refused as too long is compacted: once between two replies, or once in a turn."""


class RateSettings(Section):
    """How the calls of all agents share the service's rate."""

    calls_at_once: Positive = 256
    """Model calls in flight of one key in one process, at most; what the service bears may be less."""


class ContextSettings(Section):
    """How the conversation is kept within the model's window."""

    pipeline: str | tuple[StageSpec, ...] = "economic"
    """The name of a preset, or a list of stages with their parameters."""
    pipelines: dict[str, str | tuple[StageSpec, ...]] = Field(default_factory=dict)
    """The same for agents of a type (`explore`, `teammate`, ...), instead of `pipeline`."""
    limit: Positive | None = None
    """Compact at this many tokens instead of at the budget of the window."""
    todo_reminder_steps: Count = 3
    after_compact: Literal["continue", "end_turn"] = "continue"
    """What follows the compaction that the `compact` tool asked for: the turn goes on, or ends."""


class SkillSettings(Section):
    """Which skills are seen, how much of the prompt their catalogue may fill, and whether they run commands."""

    catalogue: Annotated[float, Field(gt=0, le=1)] = 0.01
    """Share of the context window for the catalogue; beyond it least used skills stand by their name alone."""
    description: Positive = 1_536
    """Characters of one description."""
    commands: bool = True
    """Commands in the texts of skills run before the model reads them, under the rules and in the sandbox of all."""
    overrides: dict[str, Literal["on", "name-only", "user-invocable-only", "off"]] = Field(default_factory=dict)
    """By a skill's name: without its description in the catalogue, for the person alone, or not at all."""


class TeamSettings(Section):
    """How large a team may be, and how much may wait for one of it."""

    max_agents: Positive = 32
    """Agents that live at once, the lead included; subagents do not count."""
    max_depth: Positive = 3
    """How far below the lead an agent may stand: a teammate of it stands 1, that teammate's subagents 2 below it."""
    mailbox: Positive = 1_000
    """Envelopes that may wait unread for an agent, before tools that send it more are refused."""


class PlanSettings(Section):
    """Who approves plans, and what happens when nobody does."""

    approver: Literal["person", "lead", "either"] = "person"
    deadline: Seconds = 1_800.0
    on_deadline: Literal["escalate", "refuse"] = "escalate"
    """Where a person is there; an unattended run refuses."""
    moved_base: Literal["tell", "void"] = "tell"
    """When the commit that a plan is based on has moved by the time of its approval."""


class AskSettings(Section):
    """How long a permission or a question waits: 0 refuses at once, null waits for ever."""

    deadline: Seconds | None = 1_800.0


class PathSettings(Section):
    """Where an agent's large results and transcripts go; left out: the data folder. Relative to the workspace."""

    transcripts: str | None = None
    tool_results: str | None = None


class BackgroundSettings(Section):
    """Commands that go on beside the conversation."""

    deadline: Seconds | None = None
    """A command that runs longer is ended; null: never."""


class NetworkSettings(Section):
    """What commands reach."""

    allow: tuple[str, ...] = ()
    """Hosts (`example.org`, `example.org:8443`; ports 80 and 443 if none is named) that level 3 lets through; `*`: the
    machine's whole network, at every level."""


class SandboxSettings(Section):
    """What stands round the commands of tools. Never from a workspace."""

    level: Annotated[Literal["auto", 0, 1, 2, 3], BeforeValidator(_number)] = "auto"
    """`auto`: the best that the machine can do. A level that it cannot do is refused."""
    unattended: Literal["refuse", "any"] = "refuse"
    """Of `auto`, where nobody is there and the machine has no sandbox: run no commands, or run them anyhow."""
    network: NetworkSettings = NetworkSettings()
    writable: tuple[str, ...] = ()
    """Paths that commands may change beside their folder, or in it though other tools run what stands there."""
    readable: tuple[str, ...] = ()
    """Paths in hidden folders (a home) that commands may read."""
    hidden: tuple[str, ...] = ()
    """Paths that they may not read, beside the known places of credentials."""
    processes: Count = 2_048
    """Of one command at once; 0: no limit, here and below."""
    memory: Count = 8_192
    """MB of its own data that one process may have."""
    file_size: Count = 16_384
    """MB of one file."""
    seconds: Count = 0
    """Processor time of one process."""
    env: tuple[str, ...] = ()
    """Variables that pass, beside the built-in ones; never one whose name sounds like a credential."""


class McpSettings(Section):
    """MCP servers (docs/mcp.md)."""

    deferred_over: Count = 40
    """Tools of servers that an agent's prompt lists at most; with more of them they are deferred behind the search."""
    deferred_share: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Of the model's window, that the tools of servers may take in the prompt before they are deferred."""
    wait: Seconds = 5.0
    """How long the first prompt waits for servers where a person sits there; elsewhere it waits until each of them has
    connected or failed."""
    start: Seconds = 30.0
    """How long a server has until it must be ready (`MCP_TIMEOUT` wins, in milliseconds)."""
    call: Seconds = 100_000.0
    """How long one call may take at most (`MCP_TOOL_TIMEOUT` wins, in milliseconds); a server's own `timeout` wins."""
    idle: Seconds | None = None
    """Silence that ends a call; left out: 30 minutes of a process, 5 minutes of a remote server."""
    result_tokens: Positive = 25_000
    """Of a result that are shown (`MAX_MCP_OUTPUT_TOKENS` wins); the whole of a larger one goes to a file."""
    off: tuple[str, ...] = ()
    """Names of servers that are not connected."""


class MemorySettings(Section):
    """Notes that agents keep (docs/memory.md)."""

    write: Literal["ask", "allow", "off"] = "ask"
    """A change of a note asks like any other change, is allowed unasked, or is not to be had."""
    notes: Annotated[int, Field(ge=0, le=5)] = 5
    """Notes that come into one turn by themselves, at most."""


class Settings(Section):
    """The whole tree."""

    model: Annotated[str, Field(min_length=1)] = "claude-sonnet-5-5"
    fallback_models: tuple[str, ...] = ()
    """Tried in this order when the model is overloaded."""
    small_model: str | None = None
    """For summaries; left out: the agent's own."""
    base_url: str | None = None
    """Of the model service; from the person's file or the environment, never from a workspace."""
    models: dict[str, ModelSetting] = Field(default_factory=dict)
    """Limits and prices by name or glob (`my-model-*`)."""
    permission: PermissionSettings = PermissionSettings()
    limits: LimitSettings = LimitSettings()
    budget: BudgetSettings = BudgetSettings()
    """Of the whole session, its resumes included."""
    budgets: dict[str, BudgetSettings] = Field(default_factory=dict)
    """Of each agent of a type (`explore`, ...) or kind (`lead`, `teammate`, `subagent`), with all that it starts."""
    recovery: RecoverySettings = RecoverySettings()
    rate: RateSettings = RateSettings()
    context: ContextSettings = ContextSettings()
    skills: SkillSettings = SkillSettings()
    team: TeamSettings = TeamSettings()
    plan: PlanSettings = PlanSettings()
    ask: AskSettings = AskSettings()
    paths: PathSettings = PathSettings()
    hooks: dict[str, tuple[Json, ...]] = Field(default_factory=dict)
    """Event -> handlers, in the JSON form of hook files."""
    hooks_off: tuple[str, ...] = ()
    """Bundled hooks that are switched off."""
    durability: Literal["full", "process"] = "full"
    """`full` survives a loss of power, `process` a killed process."""
    background: BackgroundSettings = BackgroundSettings()
    sandbox: SandboxSettings = SandboxSettings()
    memory: MemorySettings = MemorySettings()
    mcp: McpSettings = McpSettings()

    def limits_of(self, model: str) -> ModelLimits:
        """Limits and prices of a model; a dated snapshot and `-latest` are the model of that name. Never a guess.

        Raises `UnknownModel` with the lines to put into settings.yaml when they are not all known.
        """
        stated = self._stated_of(model)
        if set(_NEEDED) - set(stated):
            raise UnknownModel(_unknown(model, stated, self.models))
        stated.setdefault("price_write", round(1.25 * stated["price_input"], 6))
        stated.setdefault("price_read", round(0.1 * stated["price_input"], 6))
        return ModelLimits.model_validate(stated)

    def _stated_of(self, model: str) -> dict[str, float]:
        """What its name, the name without its date and the globs around them say: the narrower one's word counts."""
        bare = _SNAPSHOT.sub("", model)
        stated: dict[str, float] = {}
        for pattern in sorted(self.models, key=lambda name: (name == model, name == bare, len(name))):
            if pattern in (model, bare) or fnmatchcase(model, pattern):
                stated |= self.models[pattern].model_dump(exclude_none=True)
        return stated


_SNAPSHOT = re.compile(r"-(?:\d{8}|latest)\Z")
"""How the service marks one day's version of a model, and the alias of the newest."""
_NEEDED = ("window", "max_output", "price_input", "price_output")


def _unknown(model: str, stated: Mapping[str, float], known: Mapping[str, ModelSetting]) -> str:
    """What a person reads of a model that is not known: what to look at, and what to paste."""
    names = [name for name in known if not set("*?[") & set(name) and name != model]
    near = ", ".join(get_close_matches(model, names, n=3, cutoff=0.6))
    right = f"is its name right? The nearest that are known: {near}." if near else "is its name right?"
    fields = {**dict.fromkeys(_NEEDED, "..."), **stated}
    line = ", ".join(f"{name}: {value}" for name, value in fields.items())
    return (
        f"the model {model!r} is not known, and its limits and prices are not guessed: {right}\n"
        "If it is, put this into your settings.yaml (tokens, and US dollars for a million tokens):\n"
        f'models:\n  "{model}": {{{line}}}'
    )

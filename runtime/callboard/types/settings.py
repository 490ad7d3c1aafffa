"""All settings of a user or a workspace, with their defaults: one frozen tree that refuses unknown names.

`callboard.config.settings` fills it from files, environment and flags. Units are seconds, tokens and US dollars. Keys
for the model service are not settings: they come only from the environment and are never displayed.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from callboard.types.agent_spec import READ_AS, ModelFacts, ModelLimits, PermissionRules, StageSpec
from callboard.types.checkpoints import CheckpointPolicy
from callboard.types.errors import UnknownModel
from callboard.types.late_pattern import late_pattern
from callboard.types.model_names import (
    DEFAULT_MODEL,
    LONG,
    LONG_WINDOW,
    OPUS_PLAN,
    nearest_listed,
    resolve_alias,
    without_long,
)
from callboard.types.personal_settings import (
    NotifySettings,
    RetentionSettings,
    SandboxSettings,
    SearchSettings,
    WebSettings,
)
from callboard.types.records import Budget, Json, PermissionMode
from callboard.types.settings_section import Count, Positive, Seconds, Section

Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ModelSetting(Section):
    """Limits and prices of the models that a name or glob matches. Missing fields are taken from a wider glob."""

    window: Annotated[int, Field(ge=1_000)] | None = None
    """Tokens of prompt and reply together."""
    max_output: Positive | None = None
    """Most tokens of one reply."""
    price_input: Price | None = None
    """US dollars per million tokens, as for all prices."""
    price_write: Price | None = None
    """Price of writing to the prompt cache. Default: 1.25 x input."""
    price_read: Price | None = None
    """Price of reading from the prompt cache. Default: 0.1 x input."""
    price_output: Price | None = None
    """Price of a reply."""
    cache_minimum: Count | None = None
    """Tokens of the smallest prefix that the service caches. Default: 1,024."""
    cache_ttl: Seconds | None = None
    """Seconds that a cached prefix lives after its last use. Default: 300."""
    thinking: bool | None = None
    """True if the model accepts thinking blocks. Default: true."""
    adaptive_thinking: bool | None = None
    """True if the model decides by itself how much it thinks; false if it needs a budget. Default: true."""
    tools: bool | None = None
    """True if the model can call tools. Default: true."""
    effort: bool | None = None
    """True if the model accepts a thinking effort. Default: true."""
    long_over: Count | None = None
    """Prompt size above which a call costs `long_factor` times these prices. Default: one price for all sizes."""
    long_factor: Price | None = None
    """Factor of the prices of a call above `long_over`."""


def _mode(value: object) -> object:
    """Return the mode with this name; anything else is returned unchanged, for the check to refuse."""
    return READ_AS.get(value, value) if isinstance(value, str) else value


Mode = Annotated[PermissionMode, BeforeValidator(_mode)]
"""A permission mode. `manual` and `auto` are read as `default`."""


LOCAL_STORE = "sqlite"
"""Value of the setting `store` for a database on this machine."""


class ProfileSettings(Section):
    """Permissions of some agents or turns, in addition to those of all.

    The mode can only be narrower, and the rules are added.
    """

    mode: Mode | None = None
    """Permission mode (docs/permissions.md)."""
    allow: tuple[str, ...] = ()
    """Rules for calls that run without a question: `Bash(npm test:*)`."""
    ask: tuple[str, ...] = ()
    """Rules for calls that always ask."""
    deny: tuple[str, ...] = ()
    """Rules for calls that are refused."""

    @property
    def rules(self) -> PermissionRules:
        return PermissionRules(allow=self.allow, ask=self.ask, deny=self.deny)


class ExampleSetting(Section):
    """Call with its expected decision, written next to the rules that it tests: `callboard policy test`."""

    call: str | Json
    """Shell command, or `{tool: NAME, input: {...}}`."""
    decision: Literal["allow", "ask", "deny"]
    """Expected decision."""
    by: str | None = None
    """Expected source of the decision: a reason code, `rule TEXT`, `mode NAME`. Default: any."""
    mode: Mode | None = None
    """Permission mode. Default: the mode in force."""
    agent: str = "lead"
    """Type of the agent."""
    folder: str = ""
    """Folder in which the agent works. Default: the workspace."""


class PermissionSettings(ProfileSettings):
    """Permissions to run without a question. The lists of all sources are joined: a later one cannot remove entries."""

    mode: Mode = "default"  # pyright: ignore[reportIncompatibleVariableOverride] - frozen: nobody can set None
    """Permission mode of a new session."""
    never: tuple[str, ...] = ()
    """Programs to deny always, in addition to the built-in ones."""
    always_ask: tuple[str, ...] = ()
    """Programs that always need permission, in addition to the built-in ones."""
    directories: tuple[str, ...] = ()
    """Folders outside the workspace that agents may read without a question."""
    classic_dd: Literal["deny", "judge"] = "judge"
    """`deny`: deny every `dd if=`, as the classic list does."""
    agents: dict[str, ProfileSettings] = Field(default_factory=dict)
    """Permissions of the agents of a type (`lead`, `explore`, ...). Their denials and questions also apply to agents
    that they start."""
    schedules: ProfileSettings = ProfileSettings()
    """Permissions of turns that a schedule began, and of agents started in them. Default mode: that of the agent, with
    `sandboxed` in place of `bypassPermissions`."""
    examples: tuple[ExampleSetting, ...] = ()
    """Calls with their expected decisions. They allow nothing; `callboard policy test` checks the rules against
    them."""


class LimitSettings(Section):
    """Limits that end a turn (docs/limits.md). 0: nothing is allowed."""

    steps: Count | None = None
    """Model steps of a turn of the lead. Default: no limit."""
    tokens: Count | None = None
    """Tokens of a turn of the lead. Default: no limit."""
    cost_usd: Price | None = None
    """Older name of `budget.cost_usd`, which takes precedence."""
    seconds: Seconds | None = None
    """Seconds of any turn. Default: no limit."""
    subagent_steps: Count = 30
    """Model steps of a turn of a subagent whose agent file sets no `maxTurns`."""
    stuck_after: Count = 3
    """Repetitions without progress after which an agent is nudged, and its turn ended if it continues; 0: never."""


class BudgetSettings(Section):
    """Limits on total use. Default: no own limit. 0: nothing is allowed."""

    tokens: Count | None = None
    """Tokens of all model calls, including cached input."""
    cost_usd: Price | None = None
    """US dollars of all model calls."""
    steps: Count | None = None
    """Model calls, including retries."""
    seconds: Seconds | None = None
    """Time since the start."""
    agents: Count | None = None
    """Agents started in total, including those that have ended; the lead does not count."""
    depth: Count | None = None
    """Greatest depth of an agent below the owner of the budget: 1 allows no subagents of teammates."""

    def value(self) -> Budget:
        """Return the budget that these settings state."""
        return Budget.model_validate(self.model_dump())


class RecoverySettings(Section):
    """Recovery from a failed model call."""

    attempts: Positive = 3
    """Attempts of one call, including the first."""
    unattended_attempts: Positive = 10
    """The same in a run without a person."""
    max_wait: Seconds = 60.0
    """Longest wait in seconds that the service may ask for. A longer wait parks the agent."""
    output_tokens: Positive = 8_000
    """Most tokens of a reply at first."""
    output_escalated: Positive = 16_000
    """Most tokens of the next attempt, after a reply that was cut off; the one after that has the model's limit."""
    first_byte: Seconds = 120.0
    """Seconds until the first event of a reply."""
    idle: Seconds = 60.0
    """Seconds between two events that carry content."""
    total: Seconds = 900.0
    """Seconds of one whole call."""
    too_long: tuple[str, ...] = ()
    """Texts by which another endpoint says that a prompt is too long, in addition to the known ones."""
    react_limit: Literal["per_success", "per_turn"] = "per_success"
    """Number of compactions of a prompt refused as too long: one between two replies, or one in a turn."""


class RateSettings(Section):
    """Sharing of the service's rate among the calls of all agents."""

    calls_at_once: Positive = 256
    """Most model calls in flight for one key in one process. The service may allow fewer."""


class ContextSettings(Section):
    """Compaction: how the conversation stays within the model's window."""

    pipeline: str | tuple[StageSpec, ...] = "economic"
    """Name of a preset, or a list of stages with their parameters (docs/context.md)."""
    pipelines: dict[str, str | tuple[StageSpec, ...]] = Field(default_factory=dict)
    """Pipelines of agents by type (`explore`, `teammate`, ...), which replace `pipeline`."""
    limit: Positive | None = None
    """Token count that triggers compaction, instead of the budget of the window."""
    todo_reminder_steps: Count = 3
    """Steps without a change of the todo list after which the agent is reminded of it."""
    after_compact: Literal["continue", "end_turn"] = "continue"
    """Behaviour after a compaction that the `compact` tool asked for: the turn continues, or ends."""


class SkillSettings(Section):
    """Visibility of skills, the share of the prompt for their catalogue, and the commands in their texts."""

    catalogue: Annotated[float, Field(gt=0, le=1)] = 0.01
    """Share of the context window for the catalogue. If it is too small, the least used skills are listed by
    name only."""
    description: Positive = 1_536
    """Most characters of one description."""
    commands: bool = True
    """True if commands in the texts of skills run before the model reads them, under the usual rules and in the
    sandbox."""
    overrides: dict[str, Literal["on", "name-only", "user-invocable-only", "off"]] = Field(default_factory=dict)
    """Visibility by the name of a skill: without its description in the catalogue, for the user only, or hidden."""


class TeamSettings(Section):
    """Size of a team, and the number of unread messages of one agent."""

    max_agents: Positive = 32
    """Most agents that live at once, including the lead; subagents do not count."""
    max_depth: Positive = 3
    """Greatest depth of an agent below the lead: a teammate is at depth 1, a subagent of that teammate at depth 2."""
    mailbox: Positive = 1_000
    """Most unread envelopes of an agent, above which tools that send it more are refused."""


class PlanSettings(Section):
    """Approval of plans: the approver, and the action if no one answers."""

    approver: Literal["person", "lead", "either"] = "person"
    """Approver of a teammate's plan. Plans of the lead are for the person."""
    deadline: Seconds | None = 1_800.0
    """Seconds that a plan waits; null: forever, if a person may answer."""
    on_deadline: Literal["escalate", "refuse"] = "escalate"
    """Action at a plan's deadline if a person is present: `escalate` it to the person, or `refuse` it. An unattended
    run refuses it."""
    moved_base: Literal["tell", "void"] = "tell"
    """Handling of a plan whose base commit has changed by the time of its approval: `tell` the agent, or `void` the
    approval.
    """


class AskSettings(Section):
    """Time that a permission request or a question waits."""

    deadline: Seconds | None = 1_800.0
    """Seconds; 0 rejects at once, null waits forever."""


class PathSettings(Section):
    """Files of sessions."""

    transcripts: str | None = None
    """No effect: the folder is in the data folder."""
    tool_results: str | None = None
    """No effect, as `transcripts`."""
    shared_transcripts: bool = True
    """True: also write transcripts to `projects` in the folder `~/.claude`, where session lists and usage tools look
    for them. Not in a replay."""


class BackgroundSettings(Section):
    """Commands that run in the background."""

    deadline: Seconds | None = None
    """Seconds after which a command is ended; null: never."""
    at_end: Seconds | None = 600.0
    """Seconds that a headless run, `serve` or `mcp serve` with nothing else to do waits for commands, before it ends
    them; a conversation with a program, before its result; null: until they end."""


class McpSettings(Section):
    """MCP servers (docs/mcp.md)."""

    deferred_over: Count = 40
    """Most tools of servers in an agent's prompt. More tools are deferred behind the search."""
    deferred_share: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Most of the model's window, as a share, that tools of servers may use in the prompt before they are deferred."""
    wait: Seconds = 5.0
    """Seconds that the first prompt waits for servers if a person is present; otherwise it waits until each server has
    connected or failed."""
    start: Seconds = 30.0
    """Seconds within which a server must be ready (`MCP_TIMEOUT` takes precedence, in milliseconds)."""
    call: Seconds = 100_000.0
    """Most seconds of one call (`MCP_TOOL_TIMEOUT` takes precedence, in milliseconds, and a server's own `timeout` over
    both)."""
    idle: Seconds | None = None
    """Seconds of silence that end a call. Default: 30 minutes for a process, 5 minutes for a remote server."""
    result_tokens: Positive = 25_000
    """Most tokens of a result to show (`MAX_MCP_OUTPUT_TOKENS` takes precedence). A larger result goes to a file."""
    off: tuple[str, ...] = ()
    """Names of servers not to connect."""


class MemorySettings(Section):
    """Notes that agents keep (docs/memory.md)."""

    write: Literal["ask", "allow", "off"] = "ask"
    """Policy for changing notes: with permission like any other change, without a question, or never."""
    notes: Annotated[int, Field(ge=0, le=5)] = 5
    """Most notes that enter one turn automatically."""


class StatusLineSettings(Section):
    """Command that prints the line below the prompt. It receives the state of the session as JSON on its input."""

    command: str = ""
    """Command line; empty: Callboard's own line is shown."""
    refresh: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None
    """Seconds after which it runs again without a change. Default: it runs only after a change."""


class Settings(Section):
    """The tree of all settings."""

    model: Annotated[str, Field(min_length=1)] = DEFAULT_MODEL
    """Model of the lead: an id or an alias (docs/model.md)."""
    plan_model: str | None = None
    """Model of the lead in plan mode. Default: `model`; with the model `opusplan` it is `opus`."""
    fallback_models: tuple[str, ...] = ()
    """Models to try, in this order, when the model is overloaded."""
    small_model: str | None = None
    """Model for summaries. Default: the agent's own model."""
    effort: Literal["", "low", "medium", "high", "xhigh", "max"] = ""
    """Thinking effort that the lead requests; empty: that of its type, else the service's default."""
    api_key_helper: str | None = None
    """Command that prints the key of the model service, if the environment has none. It runs again after five minutes
    (`CLAUDE_CODE_API_KEY_HELPER_TTL_MS`) and after the service refused the key."""
    base_url: str | None = None
    """URL of the model service, from the user's file or the environment, never from a workspace."""
    models: dict[str, ModelSetting] = Field(default_factory=dict)
    """Limits and prices by name or glob (`my-model-*`)."""
    model_aliases: dict[str, str] = Field(default_factory=dict)
    """The user's own names for models, and other meanings of `opus`, `sonnet`, `haiku` and `fable`."""
    permission: PermissionSettings = PermissionSettings()
    limits: LimitSettings = LimitSettings()
    budget: BudgetSettings = BudgetSettings()
    """Budget of the whole session, including its resumes."""
    budgets: dict[str, BudgetSettings] = Field(default_factory=dict)
    """Budget of each agent of a type (`explore`, ...) or kind (`lead`, `teammate`, `subagent`), including the agents
    that it starts."""
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
    """Bundled hooks to switch off."""
    durability: Literal["full", "process"] = "full"
    """`full` survives a power failure, `process` a killed process."""
    store: str = LOCAL_STORE
    """Place of the sessions: `sqlite` in a file of this machine, or `postgresql://USER@HOST/DATABASE` on a server
    that several machines share. The password comes from PGPASSWORD, ~/.pgpass or a service file. From the user's file,
    the environment or `--store`, never from a workspace."""
    store_direct: str = ""
    """Address of the server itself, if `store` leads to a connection pooler."""
    store_workspace: str = ""
    """Name of the workspace on the server, the same on all machines; empty: its path, or its remote and base."""
    workspace_remote: str = ""
    """Git remote to which the changes of a session are pushed, so that another machine can continue it in its own
    clone; empty: nothing is pushed. Without a password or token. From the user's file, the environment or the command
    line, never from a workspace."""
    workspace_base: str = ""
    """Branch of that remote with which a clone begins; empty: its default branch."""
    checkpoint: CheckpointPolicy = "turn"
    """Time of the pushes: at the end of each `turn`, after each `step` too, or `off`."""
    placement: dict[str, str] = Field(default_factory=dict)
    """Labels that the host of a new session must have, if a `callboard serve` hosts it (`gpu: a100`)."""
    output_style: str = ""
    """Style of the lead's answers: a built-in one, or the name of a file in a folder `output-styles`."""
    language: str = ""
    """Language of the lead's answers; empty: that of the person."""
    status_line: StatusLineSettings = StatusLineSettings()
    terminal_title: bool = True
    """False: the prompt line leaves the title of the terminal's window as it is."""
    enabled_plugins: dict[str, bool] = Field(default_factory=dict)
    """Installed plugins to load, by name (`NAME@MARKETPLACE`)."""
    cleanup_days: Count | None = None
    """Days after which copies of transcripts for other programs (`paths.shared_transcripts`) are removed; 0: none are
    written. Default: never."""
    retention: RetentionSettings = RetentionSettings()
    background: BackgroundSettings = BackgroundSettings()
    sandbox: SandboxSettings = SandboxSettings()
    memory: MemorySettings = MemorySettings()
    mcp: McpSettings = McpSettings()
    search: SearchSettings = SearchSettings()
    web: WebSettings = WebSettings()
    notify: NotifySettings = NotifySettings()

    def model_id(self, name: str) -> str:
        """Return the id that an alias stands for (`opus`, `sonnet[1m]`, an alias of `model_aliases`), or `name` itself.

        A suffix `[1m]` is kept only if it has an effect: most models have that window anyway.
        """
        if ":" in name:  # `rehearsal:FILE` and `cassette:FILE`
            return name
        resolved = resolve_alias(name, tuple(self.models), self.model_aliases)
        bare, long = without_long(resolved)
        return resolved if long and self.limits_of(bare).window < LONG_WINDOW else bare

    def plan_model_of(self, name: str) -> str | None:
        """Return the id of the model in plan mode of a session with the model `name`; None if it is the same one."""
        bare, long = without_long(name)
        chosen = f"opus{LONG if long else ''}" if bare.lower() == OPUS_PLAN else self.plan_model
        return self.model_id(chosen) if chosen and ":" not in name else None

    def is_listed(self, model: str) -> bool:
        """Return True if limits and prices of the model are stated, built in or by the user."""
        return not set(_NEEDED) - set(self._stated_of(without_long(model)[0]))

    def limits_of(self, model: str) -> ModelLimits:
        """Return limits and prices of a model. A dated snapshot and `-latest` count as the model of that name.

        Limits that no one stated are those of the most similar listed model, and `assumed` says so; its price counts as
        unknown. Raises `UnknownModel` for an empty name.
        """
        bare, long = without_long(model)
        if not bare:
            raise UnknownModel("no model is named")
        stated = self._stated_of(bare)
        fields = stated if not set(_NEEDED) - set(stated) else self._assumed(bare, stated)
        fields = {**fields}
        fields.setdefault("price_write", round(1.25 * float(fields["price_input"]), 6))
        fields.setdefault("price_read", round(0.1 * float(fields["price_input"]), 6))
        if long and int(fields["window"]) < LONG_WINDOW:
            fields |= {"window": LONG_WINDOW, "long_over": _LONG_OVER, "long_factor": _LONG_FACTOR}
        return ModelLimits.model_validate(fields)

    def _assumed(self, model: str, stated: Mapping[str, float]) -> dict[str, Any]:
        listed = [name for name in self.models if not set("*?[") & set(name) and self.is_listed(name)]
        similar = nearest_listed(model, listed)
        base: Mapping[str, Any] = self._stated_of(similar) if similar else _ASSUMED
        fields = {**base, **stated}
        source = f"as of {similar}" if similar else "as of most models"
        assumption = f"{fields['window']:,} tokens of context and {fields['max_output']:,} of output ({source})"
        priced = {"price_input", "price_output"} <= set(stated)
        unknown = "" if priced else "; its cost is unknown"
        return {
            **fields,
            "priced": priced,
            "assumed": f"the model {model!r} is not listed: assuming {assumption}{unknown}",
        }

    def with_facts(self, model: str, facts: ModelFacts) -> ModelLimits:
        """Return the limits of a model that is not listed: those that its service states, and assumed ones.

        Limits in the user's own settings take precedence.
        """
        limits = self.limits_of(model)
        bare, long = without_long(model)
        own = self._stated_of(bare)
        stated = {name: value for name, value in facts.model_dump(exclude_none=True).items() if name not in own}
        if long:
            stated.pop("window", None)
        if not limits.assumed or not stated:
            return limits
        limits = limits.model_copy(update=stated)
        size = f"{limits.window:,} tokens of context and {limits.max_output:,} of output"
        source = (
            "stated by its service" if {"window", "max_output"} <= {*stated, *own} else "partly stated by its service"
        )
        unknown = "" if limits.priced else "; its cost is unknown"
        return limits.model_copy(update={"assumed": f"the model {model!r} is not listed: {size}, {source}{unknown}"})

    def price_needed(self, model: str) -> UnknownModel:
        """Return the error for a budget in dollars with a model without a price."""
        return UnknownModel(_unpriced(model, self._stated_of(without_long(model)[0]), self.models))

    def _stated_of(self, model: str) -> dict[str, float]:
        """Return the settings that apply to the model by its name, its name without the date, and matching globs.

        The narrower setting takes precedence.
        """
        bare = _SNAPSHOT.sub("", model)
        stated: dict[str, float] = {}
        for pattern in sorted(self.models, key=lambda name: (name == model, name == bare, len(name))):
            if pattern in (model, bare) or _matches(model, pattern):
                stated |= self.models[pattern].model_dump(exclude_none=True)
        return stated


def _matches(model: str, pattern: str) -> bool:
    """Return True if a glob matches the model. Its beginning is compared first, because `fnmatch` compiles a glob."""
    beginning = pattern.partition("*")[0].partition("?")[0].partition("[")[0]
    return model.startswith(beginning) and fnmatchcase(model, pattern)


_SNAPSHOT = late_pattern(r"-(?:\d{8}|latest)\Z")
"""Suffix of a dated version of a model, or of the alias of the newest version."""
_NEEDED = ("window", "max_output", "price_input", "price_output")
_ASSUMED: Mapping[str, Any] = {
    "window": 200_000,
    "max_output": 32_000,
    "price_input": 3.0,
    "price_output": 15.0,
    "effort": False,
}
"""Limits of a model that resembles no listed model. Limits that the service states in an error replace them."""
_LONG_OVER = 200_000
_LONG_FACTOR = 2.0
"""Price factor of prompts over 200,000 tokens in a window that `[1m]` opened. The vendor charges input twice and output
1.5 times; both count as twice here, so that a budget is never exceeded."""


def _unpriced(model: str, stated: Mapping[str, float], models: Mapping[str, ModelSetting]) -> str:
    """Return instructions for the user: what to check, and what to add to the settings."""
    names = [name for name in models if not set("*?[") & set(name) and name != model]
    near = ", ".join(get_close_matches(model, names, n=3, cutoff=0.6))
    hint = f" If the name is wrong, the nearest are: {near}." if near else ""
    fields = {**dict.fromkeys(_NEEDED, "..."), **stated}
    line = ", ".join(f"{name}: {value}" for name, value in fields.items())
    return (
        f"a budget in dollars needs the price of the model {model!r}, which is not known.{hint}\n"
        "Set a budget in tokens instead, or put this into your settings.yaml (tokens, and US dollars for a million "
        f'tokens):\nmodels:\n  "{model}": {{{line}}}'
    )

"""Options of a session, in parts: each builder of `open.py` takes the part that it reads.

    SessionOptions(WorkspaceOptions(Path(".")), model=ModelOptions("claude-..."), identity=IdentityOptions(prompt="Go"))

Every part but the workspace has defaults. Front ends make the parts; `flags` are settings by dotted name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Literal

from callboard.adapters.extensions.agents import AgentFile
from callboard.adapters.extensions.hooks import HookEntry
from callboard.adapters.system.archive import Mirror
from callboard.adapters.system.clock import SystemClock
from callboard.adapters.system.folder_watch import WatchFactory
from callboard.config.trust import TrustPrompt
from callboard.engine.rate_limits.limiter import KeyLimiters
from callboard.ports.mcp import Bridge
from callboard.ports.store import Store
from callboard.ports.tool import Tool
from callboard.sessions.lease import TakeOver
from callboard.sessions.places import Notice
from callboard.sessions.stores import log_notice
from callboard.types.agent_spec import ThinkingChoice
from callboard.types.lazy_dataclass import dataclass
from callboard.types.messages import BranchPoint, OwnStage

CommandsAtRest = Literal["wait", "leave", "end"]
"""`wait`: wait until the commands end. `leave`: wait at most `background.at_end` seconds, then let them continue.
`end`: the same, then end them."""


@dataclass(frozen=True, slots=True)
class SharedResources:
    """Resources that all sessions hosted by a process share. The creator of the store closes it."""

    store: Store
    key_limiters: KeyLimiters
    watches: WatchFactory = field(default_factory=WatchFactory)


@dataclass(frozen=True, slots=True)
class WorkspaceOptions:
    """The folder, its settings, and the trust in its content."""

    folder: Path
    flags: Mapping[str, object] = field(default_factory=dict[str, object])
    """Settings of this run, by dotted name (`permission.mode`)."""
    variables: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Variables of the environment of this run, from the `env` of `--settings`. They are not stored."""
    sources: frozenset[str] | None = None
    """Sources of definitions and compatible settings: `user` (`~/.claude` and the user's own agents and skills),
    `project` and `local` (the workspace's shared and personal files). None: all, those of the workspace once it is
    trusted. With `project` an untrusted workspace's agents, skills and commands are used as text, without the
    permissions or commands that they define."""
    sources_named: bool = False
    """True if the user chose `sources`, which then include the output style that an untrusted workspace sets."""
    trust: bool = False
    """True to use the workspace's content for this run."""
    gate: TrustPrompt | None = None
    """Prompt that asks whether to trust the workspace, and receives the outcome; None: the workspace is not trusted,
    and no one is asked."""

    def reads(self, source: str) -> bool:
        """Return True if one of `sources` is read."""
        return self.sources is None or source in self.sources

    @property
    def reads_texts(self) -> bool:
        """Return True if an untrusted workspace's agents, skills and commands are read as texts."""
        return self.sources is not None and "project" in self.sources


@dataclass(frozen=True, slots=True)
class IdentityOptions:
    """The session: a new one, or one to resume."""

    session: str | None = None
    """Session to resume; None with `resume`: the newest one."""
    resume: bool = False
    prompt: str | None = None
    """First prompt of the person: a new session is created with it, and a resumed session receives it."""
    carry: bool = False
    """With `resume`: the lead continues in a new conversation, with a handoff from the previous one."""
    take_over: TakeOver | None = None
    """With `resume`: host the session even if another process hosts it, which must exit."""
    name: str = ""
    """Id of a new session; empty: one is generated."""
    title: str = ""
    """Name of the session for lists and for `--resume`; empty: the beginning of its first prompt."""
    fork: bool = False
    """With `resume`: continue the conversation in a new session."""
    point: BranchPoint = BranchPoint()
    """With `resume`: the point of the conversation from which it continues."""
    detached: bool = False
    """True for a session that a serving host runs, whenever it has work."""
    serves: bool = False
    """True for the session that `callboard serve` keeps for schedule files. It is never a person's current session."""


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """The model, its limit of cost, and a recording."""

    name: str | None = None
    """Name of a model, `rehearsal:FILE` or `cassette:FILE`; None: from the session or the settings."""
    max_cost_usd: float | None = None
    """Cost limit for the whole session."""
    record: Path | None = None
    """File of a new cassette; None: the session is not recorded."""
    live_tools: bool = False
    """True if a replay runs the tools instead of using their recorded results."""


@dataclass(frozen=True, slots=True)
class LeadOptions:
    """The lead of the session."""

    agent_type: str = ""
    """Agent type of a new session's lead; empty: that of the forked session's lead, or `lead`."""
    effort: Literal["", "low", "medium", "high", "xhigh", "max"] = ""
    """Thinking effort requested from the lead's model; empty for that of its type."""
    thinking: ThinkingChoice | None = None
    """Thinking requested from the lead's model; None: the service's default."""
    instructions: str = ""
    """Instructions that replace those of the lead's type; empty to keep them."""
    worktree: str | None = None
    """Git worktree in which a new session's lead works, created if it does not exist; empty: one with a free name;
    None: the lead works in the workspace."""
    appended: str = ""
    """Text at the end of every system prompt."""
    schema: str = ""
    """Text on the form of this run's answers, after `appended`. A fork does not keep it."""
    tools: tuple[str, ...] | None = None
    """The only tools of the lead; None for those of its type."""
    disallowed: tuple[str, ...] = ()
    """Tools that the lead does not have."""


@dataclass(frozen=True, slots=True)
class PermissionOptions:
    """Handling of agents' requests."""

    attended: bool = False
    """True if a person is present to answer."""
    asks_in_call: bool = False
    """True if the call of a question waits for its answer; otherwise the answer arrives as mail."""
    may_bypass: bool = False
    """True if the person may switch to the mode `bypassPermissions` although the session begins in another one."""
    answerable: bool = False
    """True if no person is present, but one may answer later: a request waits for `ask.deadline`, then it is
    rejected."""


@dataclass(frozen=True, slots=True)
class McpOptions:
    """MCP servers of this run."""

    config: tuple[str, ...] = ()
    """JSON texts, and paths of files."""
    strict: bool = False
    """True to use only these servers, and none from files elsewhere."""
    must_fit: bool = False
    """True if an entry of `config` that cannot be used raises `UsageError`; otherwise it is a note."""
    wait: bool = False
    """True if the first prompt waits until each server has connected or failed, even if a person may answer."""
    bridges: Mapping[str, Bridge] = field(default_factory=dict[str, Bridge])
    """MCP servers that run in the client of this run, by name."""
    bridge_of: Callable[[str], Bridge] | None = None
    """Function that reaches a server in the client that is named later; None: no client can add servers."""


@dataclass(frozen=True, slots=True)
class ExtensionOptions:
    """Extensions of this run, in addition to those of files."""

    agents: Mapping[str, AgentFile] = field(default_factory=dict[str, AgentFile])
    """Agent types, which take precedence over those of files."""
    plugins: tuple[Path, ...] = ()
    """Folders of plugins. They are trusted, because the person named them."""
    skills: tuple[str, ...] | None = None
    """The only skills that models may use; None: all."""
    without_skills: bool = False
    """True: no skill and no command of a file exists, for models and for persons."""
    hooks: tuple[HookEntry, ...] = ()
    """Hooks, in addition to those of files."""
    hook_functions: tuple[Callable[[Any], object], ...] = ()
    """Python functions with `@hook` marks."""
    tools: tuple[Tool, ...] = ()
    """Tools of the program that opens the session."""
    own: tuple[str, ...] = ()
    """Names of custom tools available to every agent whose type does not list its tools."""
    stages: Mapping[str, OwnStage] = field(default_factory=dict[str, OwnStage])
    """Stages of the context pipeline that the program provides, by their names in settings."""


@dataclass(frozen=True, slots=True)
class HostingOptions:
    """The process that hosts the session."""

    notice: Notice = log_notice
    """Function that reports why the opening of the store, or a process that does not host the session, has to wait.
    Called from another thread."""
    shared: SharedResources | None = None
    """Resources shared by the sessions that the process hosts; None: this session has separate ones."""
    embedded: bool = False
    """True if the session runs in another program, whose logging is left unchanged."""
    with_schedules: bool = False
    """True if the session is not finished until its schedules have fired for the last time."""
    checkpoints: bool = False
    """True if files are copied before tools change them, so that `rewind_files` can restore them."""
    debug: bool = False
    """True if the log has lines of the debug level, and is copied to stderr."""
    mirror: Mirror | None = None
    """Function that gets the lines of the transcripts as they are written; None: nothing does."""
    persistent: bool = True
    """False if the session is kept in memory only, and ends with the process."""
    commands_at_rest: CommandsAtRest = "wait"
    """Handling of background commands that still run when all other work is done."""
    live_text: bool = False
    """True if observers also get the text of replies as it streams while another process of this machine hosts the
    session."""

    def limiters(self, calls_at_once: int) -> KeyLimiters:
        """Return the limiters of the process: one for each API key."""
        return self.shared.key_limiters if self.shared else KeyLimiters(SystemClock(), calls_at_once)


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """Options of a person for one session."""

    workspace: WorkspaceOptions
    identity: IdentityOptions = IdentityOptions()
    model: ModelOptions = ModelOptions()
    lead: LeadOptions = LeadOptions()
    permissions: PermissionOptions = PermissionOptions()
    mcp: McpOptions = field(default_factory=McpOptions)
    extensions: ExtensionOptions = field(default_factory=ExtensionOptions)
    hosting: HostingOptions = HostingOptions()

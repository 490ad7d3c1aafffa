"""A session that is open in this process, hosted by it or by another.

An open session is a handle that knows the current state of the session's agents.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from pathlib import Path

from callboard.adapters.extensions.output_styles import Voice
from callboard.core.agent.state import AgentState
from callboard.core.recovery.retry_policy import model_in_use
from callboard.core.team.open_work import DeniedCall, OpenWork, StoppedCommand, open_agents, open_tasks
from callboard.engine.row_cache import EndedAgentsSum, RowCache
from callboard.ports.environment import Clock
from callboard.ports.mcp import Servers
from callboard.ports.store import Store
from callboard.sessions.handle import SessionHandle
from callboard.sessions.inspect.team import TeamOverview
from callboard.sessions.places import WorkspacePaths
from callboard.sessions.result import AgentSummary, RunEnd, summarise
from callboard.types.agent_spec import BYPASS
from callboard.types.mcp import ServerStatus
from callboard.types.records import AgentRow, AgentTotals, SessionRow, ToolCall, Usage
from callboard.types.skills import PersonCommand, Plugin


def unfinished_end(session: OpenSession | None, code: int, reason: str) -> RunEnd:
    """Return the end of a run that is left, or fails, before it is done. `session`: None if it was not opened."""
    return session.end_now(code, reason) if session is not None else RunEnd(code, "", reason, Usage(), [])


class OpenSession(SessionHandle, ABC):
    """A session whose agents' states are known in this process: base of `HostedSession` and `AttachedSession`."""

    def __init__(
        self,
        row: SessionRow,
        places: WorkspacePaths,
        store: Store,
        *,
        rows: RowCache,
        clock: Clock,
        model: str,
        agent_types: Callable[[], Mapping[str, str]] = dict[str, str],
        level: int | None = None,
    ) -> None:
        super().__init__(row, store, rows, clock)
        self.places = places
        self._agent_types = agent_types
        self.voice = Voice()
        """Manner of the lead's answers; the default if another process hosts the session."""
        self.level = level
        """Sandbox level of its commands, 0 to 3; None if another process hosts the session."""
        self.model = model
        self.plugins: tuple[Plugin, ...] = ()
        """Plugins that the session uses; empty if another process hosts the session."""
        self.refused_plugins: tuple[tuple[str, str], ...] = ()
        """Path and reason of each plugin that could not be loaded."""
        self._bypasses = False
        self._ended_usage = EndedAgentsSum(rows, Usage(), lambda usage, row: usage.plus(self._usage_of(row)))

    @property
    def agent_types(self) -> Mapping[str, str]:
        """Return name -> description of each agent type; empty if another process hosts the session."""
        return self._agent_types()

    @property
    def workspace(self) -> Path:
        return self.places.workspace

    @abstractmethod
    def state(self, name: str, incarnation: int | None = None) -> AgentState | None:
        """Return the state of an agent, in its newest life by default; None if it is unknown here."""

    @abstractmethod
    async def renew(self, *, carry: bool) -> None:
        """Begin the lead's conversation again; `carry`: with the user's prompts, the state and a hand-off note."""

    @abstractmethod
    async def wait_finished(self) -> RunEnd:
        """Wait until nothing is left to do, then return the end of the session."""

    @abstractmethod
    def move_to_background(self, use_id: str = "") -> bool:
        """Let the lead's calls go on without the commands and subagents for which they wait; False if there is none.

        `use_id`: only the call with this id of the model service. Only the process that hosts the session can do this.
        """

    def model_of(self, name: str = "lead") -> str:
        """Return the current model of an agent, including a fallback; that of the session if it is unknown."""
        state = self.state(name)
        return (
            self.model
            if state is None or state.identity.spec is None
            else model_in_use(state.model.recovery, state.identity.spec)
        )

    def models_of(self, name: str = "lead") -> tuple[str, ...]:
        """Return the models known to an agent, with limits and prices."""
        state = self.state(name)
        return () if state is None or state.identity.spec is None else tuple(state.identity.spec.models)

    def mode_of(self, name: str = "lead") -> str:
        """Return the permission mode of an agent; that of the session if it is unknown."""
        state = self.state(name)
        return self._first_mode if state is None or state.identity.spec is None else state.me.permission_mode

    @property
    def may_bypass(self) -> bool:
        """Return True if the user may set the mode `bypassPermissions`: the session was started in it, or allows it."""
        self._bypasses = self._bypasses or BYPASS in (self._first_mode, self.mode_of())
        return self._bypasses

    def allow_bypass(self) -> None:
        """Let the user set the mode `bypassPermissions`, whatever the mode of the session is."""
        self._bypasses = True

    def written_rules(self) -> list[tuple[str, str, str]]:
        """Return (kind, rule, place) for each permission rule of the settings.

        Empty if another process hosts the session.
        """
        return []

    def team(self) -> list[AgentSummary]:
        """Return every agent that is known here, the lead first."""
        return [summarise(row, self.state(row.name, row.incarnation)) for row in self._rows.agents()]

    def open_work(self, worktrees: tuple[str, ...] = ()) -> OpenWork:
        """Return the open work. `worktrees`: those with unmerged work."""
        agents = [(row, self.state(row.name, row.incarnation)) for row in self._rows.agents()]
        tasks = open_tasks(self._rows.tasks())
        return OpenWork(
            tasks, tuple(self.requests()), open_agents(agents), worktrees, self.denied_calls(), self.stopped_commands()
        )

    def stopped_commands(self) -> Sequence[StoppedCommand]:
        """Return the background commands that this process ended with its run."""
        return ()

    def denied_calls(self) -> Sequence[DeniedCall]:
        """Return the calls that were denied while this process hosted the session.

        Empty if another process hosts it.
        """
        return ()

    def end_now(self, code: int, reason: str) -> RunEnd:
        """Return the end of a run that is left before it is done.

        The end comes from memory, without waiting and without looking at worktrees.
        """
        return RunEnd(code, "", reason, self.usage(), self.team(), self.open_work())

    def living_agents(self) -> Sequence[AgentRow]:
        """Return the rows of the agents that have not ended, in order of creation. Ended agents cost nothing."""
        return self._rows.living_agents()

    def label(self, name: str) -> str:
        """Return the name of an agent for people: `explore 2` for the second subagent of its type."""
        return self._rows.label(name)

    def agent_named(self, label: str) -> str | None:
        """Return the name of the agent that a person calls `label`, or None.

        A person uses its name, or the text of `label()`.
        """
        name = self._rows.name_of_label(label.removeprefix("@"))
        return name if self._rows.agent(name) is not None else None

    def overview(self) -> TeamOverview:
        """Return the team as it is now, from memory."""
        return self.agents.overview(self.state)

    def usage(self) -> Usage:
        """Return the usage of all agents together. Ended agents cost nothing, so a screen may call this often."""
        return reduce(Usage.plus, map(self._usage_of, self._rows.living_agents()), self._ended_usage.now())

    def row_of(self, name: str) -> AgentRow | None:
        """Return the row of an agent, in its newest life."""
        row = self._rows.agent(name)
        return row[0] if row is not None else None

    def life_usage(self, row: AgentRow) -> Usage:
        """Return the usage of one life of an agent."""
        state = self.state(row.name, row.incarnation)
        return (row.totals or AgentTotals()).usage if state is None else state.budget.usage

    def turn_of(self, name: str) -> tuple[float, Usage] | None:
        """Return the start and the usage of an agent's turn; None if it has none."""
        row = self.row_of(name)
        state = self.state(name, row.incarnation) if row is not None else None
        return (state.turn.began_at, state.turn.usage) if state is not None and state.turn is not None else None

    def _usage_of(self, row: AgentRow) -> Usage:
        """Return the usage of all lives of a name."""
        return row.earlier.plus(self.life_usage(row))

    @abstractmethod
    def commands(self) -> Sequence[PersonCommand]:
        """Return the slash commands for the user: skills, command files, prompts of MCP servers.

        `say` accepts them as typed.
        """

    @abstractmethod
    def awaits_trust(self, name: str) -> bool:
        """Return True if the workspace has a command of this name that is not used because it is not trusted."""

    def call(self, agent: str, call: str) -> ToolCall | None:
        """Return a running tool call of an agent, by its internal id, also one that began before a resume."""
        states = (self.state(row.name, row.incarnation) for row in self._rows.agents() if row.name == agent)
        return next(
            (open_call.call for state in states if state for open_call in state.calls if open_call.call.id == call),
            None,
        )

    @property
    def servers(self) -> Servers | None:
        """Return the MCP servers that this process runs for the session.

        None if there are none, or if another process hosts it.
        """
        return None

    def servers_now(self) -> Sequence[ServerStatus]:
        """Return the current state of the MCP servers, by name."""
        return self.servers.now() if self.servers is not None else ()

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the settings and files that are ignored or take effect in another way than written.

        One line each, with the location; empty if nothing is hosted.
        """
        return ()

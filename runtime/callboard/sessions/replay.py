"""Recording of a session to a cassette, and replay of one: the ports wrapped for that. Part of the composition root.

A replay uses the recorded session's id, so that all ids are the same, in a separate store and folder that are deleted
at the end. Its permissions come from this machine, never from the cassette. The cassette provides answers, decisions
and results; with live tools the rules of this workspace decide.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import anyio.to_thread

from callboard.adapters.models.cassette.format import Placeholders
from callboard.adapters.models.cassette.mail_order import PATIENCE, DeliveryOrder, DeliveryRecorder
from callboard.adapters.models.cassette.recorder import Cassette, CassetteModel, Recording, RecordingModel, Tape
from callboard.adapters.models.cassette.tool_results import (
    WORKTREE_TOOLS,
    RecordedTool,
    ReplayedStopTool,
    ReplayedStoreTool,
    ReplayedTool,
    ReplayedWorktreeTool,
    as_listed,
)
from callboard.adapters.models.cassette.wrappers import (
    RecordedLauncher,
    RecordedServers,
    ReplayedApprover,
    ReplayedLauncher,
    TapedArchive,
    TapedDice,
    TapedJudge,
    TapedSurroundings,
    TapedWorktrees,
    replayed_servers,
    taped_facts,
)
from callboard.adapters.system.clock import SystemClock
from callboard.adapters.tools.mcp import server_tools
from callboard.config.settings import LoadedSettings
from callboard.core.messaging.envelopes import envelope_write
from callboard.engine.runtime import Services, SessionRuntime
from callboard.engine.toolbox import Toolbox, wrap_tools
from callboard.ports.environment import Approver, Surroundings
from callboard.ports.tool import Tool
from callboard.sessions.compose import ModelSelection
from callboard.sessions.places import WorkspacePaths
from callboard.types.agent_spec import ModelLimits
from callboard.types.errors import SettingsError
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json

LIVE_PATIENCE = 660.0
"""Seconds of silence in a replay whose tools run: longer than any tool may take."""


@dataclass(frozen=True, slots=True)
class RecordingSource:
    """Session that is being recorded. For its methods see `ModelSource`."""

    chosen: ModelSelection
    recording: Recording
    schedules: bool = True

    def wrap(self, services: Services) -> Services:
        delivery_order = DeliveryRecorder(self.recording)
        return replace(
            services,
            tools=wrap_tools(services.tools, lambda tool: RecordedTool(tool, self.recording)),
            judge=TapedJudge(services.judge, self.recording),
            archive=TapedArchive(services.archive, self.recording),
            launcher=RecordedLauncher(services.launcher, self.recording),
            dice=TapedDice(services.dice, self.recording),
            surroundings=_recorded_surroundings(services.surroundings, self.recording),
            observers=(delivery_order, *services.observers),
            worktrees=services.worktrees and TapedWorktrees(services.worktrees, self.recording),
            script=delivery_order,
            servers=services.servers and RecordedServers(services.servers, self.recording),
        )

    def nonce(self, real: str) -> str:
        return self.recording.new_id("person", real)

    def facts(self, agent: str, real: tuple[str, ...]) -> tuple[str, ...]:
        return taped_facts(self.recording, agent, real)

    def verdict(self) -> str:
        return ""

    async def feed(self, runtime: SessionRuntime) -> None:
        """Do nothing: real envelopes arrive by themselves."""


@dataclass(frozen=True, slots=True)
class ReplaySource:
    """Session that is replayed. For its methods see `ModelSource`."""

    chosen: ModelSelection
    cassette: Cassette
    delivery_order: DeliveryOrder
    live_tools: bool
    schedules: bool = False

    def wrap(self, services: Services) -> Services:
        """Return the ports for a replay, in which recorded answers replace the approvers.

        Permissions of tools that really run are the exception, because a cassette does not contain them.
        """
        services = self._with_servers(self._as_recorded(services))
        approver: Approver = ReplayedApprover(self.cassette, self.delivery_order, permissions=not self.live_tools)
        shared = replace(
            services,
            tools=wrap_tools(services.tools, self._tool),
            dice=TapedDice(services.dice, self.cassette),
            surroundings=_recorded_surroundings(services.surroundings, self.cassette),
            observers=(self.delivery_order, *services.observers),
            approvers=(approver, *(services.approvers if self.live_tools else ())),
            script=self.delivery_order,
        )
        if self.live_tools:
            return shared
        return replace(
            shared,
            judge=TapedJudge(services.judge, self.cassette),
            archive=TapedArchive(services.archive, self.cassette),
            launcher=ReplayedLauncher(self.cassette, self.delivery_order),
            worktrees=services.worktrees and TapedWorktrees(services.worktrees, self.cassette),
        )

    def nonce(self, real: str) -> str:
        return self.cassette.new_id("person", real)

    def facts(self, agent: str, real: tuple[str, ...]) -> tuple[str, ...]:
        return taped_facts(self.cassette, agent, real)

    def verdict(self) -> str:
        return self.cassette.told or self.cassette.unfinished_reason()

    async def feed(self, runtime: SessionRuntime) -> None:
        """Send the envelopes of schedules at the same points as in the recording."""
        async with self.delivery_order.outside as envelopes:
            async for envelope in envelopes:
                await runtime.commit(envelope_write(runtime.session, envelope))

    def _as_recorded(self, services: Services) -> Services:
        """Return the ports with the tools that the recorded requests list, as they list them.

        The recorded version may have had fewer tools, or described them otherwise.
        """
        listed = self.cassette.listed_tools()
        tools = {name: as_listed(tool, listed[name]) for name, tool in services.tools.items() if name in listed}
        return replace(services, tools=tools) if listed else services

    def _with_servers(self, services: Services) -> Services:
        """Return the ports with the tools of MCP servers as the recorded session had them."""
        servers = replayed_servers(self.cassette) if services.servers is None else None
        if servers is None:
            return services
        own = {**services.tools, **{tool.spec.name: tool for tool in server_tools(servers)}}
        return replace(services, tools=Toolbox(own, servers), servers=servers)

    def _tool(self, tool: Tool) -> Tool:
        if tool.spec.effect == "store" or tool.spec.name == "complete_task":
            return ReplayedStoreTool(tool, self.cassette, self.delivery_order)
        if self.live_tools or tool.spec.name == "task":
            return tool
        if tool.spec.name == "task_stop":
            return ReplayedStopTool(tool, self.cassette, self.delivery_order)
        tool_type = ReplayedWorktreeTool if tool.spec.name in WORKTREE_TOOLS else ReplayedTool
        return tool_type(tool, self.cassette)


@asynccontextmanager
async def replay_source(
    file: Path, session: str, loaded: LoadedSettings, places: WorkspacePaths, *, live_tools: bool
) -> AsyncGenerator[ReplaySource]:
    """Yield the model and the delivery order of a replay of this file.

    Raises `SettingsError` with file and line for a damaged cassette.
    """
    cassette = await anyio.to_thread.run_sync(Cassette, file, _placeholders(places, session))
    delivery_order = DeliveryOrder(cassette, SystemClock(), LIVE_PATIENCE if live_tools else PATIENCE)
    limits = _limits_of(cassette, loaded)
    fallbacks = tuple(str(name) for name in cassette.header.get("fallbacks", ()))
    try:
        yield ReplaySource(
            ModelSelection(CassetteModel(cassette), cassette.model, limits, fallbacks),
            cassette,
            delivery_order,
            live_tools,
        )
    finally:
        delivery_order.close()


@contextmanager
def recording_source(
    chosen: ModelSelection, record: Path, places: WorkspacePaths, *, session: str, attended: bool
) -> Generator[RecordingSource]:
    """Yield the model of a session whose calls are recorded. Raises `UsageError` if the cassette cannot be written."""
    header: Json = {
        "model": chosen.name,
        "session": session,
        "attended": attended,
        "limits": {name: model_limits.model_dump(mode="json") for name, model_limits in chosen.limits.items()},
        "fallbacks": list(chosen.fallbacks),
    }
    recording = Recording(record, _placeholders(places, session), header)
    try:
        yield RecordingSource(replace(chosen, model=RecordingModel(chosen.model, recording)), recording)
    finally:
        recording.close()


def _limits_of(cassette: Cassette, loaded: LoadedSettings) -> dict[str, ModelLimits]:
    """Return the recorded limits, so that a replay compacts where the recorded run did."""
    try:
        limits = {
            str(name): ModelLimits.model_validate(model_limits)
            for name, model_limits in dict(cassette.header["limits"]).items()
        }
    except (KeyError, TypeError, ValueError) as error:
        raise SettingsError(
            f"the cassette is damaged: its limits cannot be read ({error!r})", f"{cassette.path}:1"
        ) from error
    if cassette.model not in limits:
        limits[cassette.model] = loaded.settings.limits_of(cassette.model)
    return limits


def _recorded_surroundings(world: Surroundings | None, tape: Tape) -> Surroundings | None:
    return None if world is None else TapedSurroundings(world, tape)


def _placeholders(places: WorkspacePaths, session: str) -> Placeholders:
    return Placeholders(
        {
            "workspace": str(places.workspace),
            "data": str(places.session_data(session)),
            "worktrees": str(places.worktrees),
            "home": str(Path.home()),
            "session": session,
        }
    )

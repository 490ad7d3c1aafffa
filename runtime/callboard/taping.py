"""Records a session to a cassette, or replays one: what is wrapped for that. Part of the composition root.

A replay takes the recorded session's id, so that all ids come out the same, in a store and a folder of its own that are
thrown away. What it may do comes from here, never from the cassette: that gives answers, rulings and results, and with
live tools the rules of this place judge.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import anyio.to_thread

from callboard.adapters.cassette import Cassette, CassetteModel, Recording, RecordingModel, Tape
from callboard.adapters.cassette_file import Placeholders, read_header
from callboard.adapters.clock import SystemClock
from callboard.adapters.course import PATIENCE, Course, CourseRecorder
from callboard.adapters.taped import (
    RecordedLauncher,
    RecordedTool,
    ReplayedApprover,
    ReplayedLauncher,
    ReplayedStoreTool,
    ReplayedTool,
    TapedArchive,
    TapedDice,
    TapedJudge,
    TapedSurroundings,
    taped_facts,
)
from callboard.adapters.taped_servers import RecordedServers, replayed_servers
from callboard.adapters.tools.servers import server_tools
from callboard.assembly import Chosen, Places, choose_model
from callboard.core.bus.mail import sending
from callboard.engine.host import Host, Ports
from callboard.engine.toolbox import Toolbox, wrapped
from callboard.ports.tool import Tool
from callboard.ports.world import Approver, Surroundings
from callboard.settings import Loaded
from callboard.words.errors import SettingsError, UnknownModel
from callboard.words.specs import ModelLimits
from callboard.words.values import Json

CASSETTE = "cassette"
LIVE_PATIENCE = 660.0
"""Seconds of silence in a replay whose tools run: longer than any of them may take."""
_SESSION = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")


@dataclass(frozen=True, slots=True)
class Plain:
    """A session that is neither recorded nor a replay."""

    chosen: Chosen
    schedules: bool = True
    """Schedules fire while it is hosted."""

    def wrap(self, ports: Ports) -> Ports:
        """The ports that its agents get."""
        return ports

    def nonce(self, real: str) -> str:
        """What makes a person's words one envelope."""
        return real

    def facts(self, agent: str, real: tuple[str, ...]) -> tuple[str, ...]:
        """What the agent's prompt says of the machine."""
        return real

    def verdict(self) -> str:
        """What is wrong with it as a replay; empty when nothing is."""
        return ""

    async def feed(self, host: Host) -> None:
        """Send what nobody in the session sends."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A session that is being recorded. Its methods: see `Plain`."""

    chosen: Chosen
    tape: Recording
    schedules: bool = True

    def wrap(self, ports: Ports) -> Ports:
        course = CourseRecorder(self.tape)
        return replace(
            ports,
            tools=wrapped(ports.tools, lambda tool: RecordedTool(tool, self.tape)),
            judge=TapedJudge(ports.judge, self.tape),
            archive=TapedArchive(ports.archive, self.tape),
            launcher=RecordedLauncher(ports.launcher, self.tape),
            dice=TapedDice(ports.dice, self.tape),
            surroundings=_taped(ports.surroundings, self.tape),
            observers=(course, *ports.observers),
            script=course,
            servers=ports.servers and RecordedServers(ports.servers, self.tape),
        )

    def nonce(self, real: str) -> str:
        return self.tape.new_id("person", real)

    def facts(self, agent: str, real: tuple[str, ...]) -> tuple[str, ...]:
        return taped_facts(self.tape, agent, real)

    def verdict(self) -> str:
        return ""

    async def feed(self, host: Host) -> None:
        """The world sends by itself."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """A session that is replayed. Its methods: see `Plain`."""

    chosen: Chosen
    tape: Cassette
    course: Course
    live_tools: bool
    schedules: bool = False

    def wrap(self, ports: Ports) -> Ports:
        """Nobody here answers in a replay, except for permissions of tools that really run: a cassette gives none."""
        ports = self._with_servers(ports)
        approver: Approver = ReplayedApprover(self.tape, self.course, permissions=not self.live_tools)
        shared = replace(
            ports,
            tools=wrapped(ports.tools, self._tool),
            dice=TapedDice(ports.dice, self.tape),
            surroundings=_taped(ports.surroundings, self.tape),
            observers=(self.course, *ports.observers),
            approvers=(approver, *(ports.approvers if self.live_tools else ())),
            script=self.course,
        )
        if self.live_tools:
            return shared
        return replace(
            shared,
            judge=TapedJudge(ports.judge, self.tape),
            archive=TapedArchive(ports.archive, self.tape),
            launcher=ReplayedLauncher(self.tape, self.course),
        )

    def nonce(self, real: str) -> str:
        return self.tape.new_id("person", real)

    def facts(self, agent: str, real: tuple[str, ...]) -> tuple[str, ...]:
        return taped_facts(self.tape, agent, real)

    def verdict(self) -> str:
        return self.tape.told or self.tape.unfinished()

    async def feed(self, host: Host) -> None:
        """What schedules sent, when the recording had it."""
        async with self.course.outside as envelopes:
            async for envelope in envelopes:
                await host.commit(sending(host.session, envelope))

    def _with_servers(self, ports: Ports) -> Ports:
        """The tools of MCP servers as the recorded session had them."""
        servers = replayed_servers(self.tape) if ports.servers is None else None
        if servers is None:
            return ports
        own = {**ports.tools, **{tool.spec.name: tool for tool in server_tools(servers)}}
        return replace(ports, tools=Toolbox(own, servers), servers=servers)

    def _tool(self, tool: Tool) -> Tool:
        if tool.spec.effect == "store" or tool.spec.name == "complete_task":
            return ReplayedStoreTool(tool, self.tape, self.course)
        return tool if self.live_tools or tool.spec.name == "task" else ReplayedTool(tool, self.tape)


Wiring = Plain | Recorded | Replayed


@dataclass(frozen=True, slots=True)
class Replay:
    """What a cassette says of the session that it replays."""

    file: Path
    session: str
    attended: bool
    data: Path
    """A folder for large results and transcripts, removed at the end."""


async def find_replay(model: str, stack: AsyncExitStack) -> Replay | None:
    """The replay that this model asks for, None for any other model. Raises `SettingsError` for what is no cassette."""
    kind, _, rest = model.partition(":")
    if kind != CASSETTE or not rest:
        return None
    file = Path(rest)
    header = await anyio.to_thread.run_sync(read_header, file)
    session = str(header.get("session", ""))
    if not _SESSION.match(session):
        raise SettingsError("the cassette names no session: record it again", f"{file}:1")
    data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="callboard-replay-")))
    return Replay(file, session, bool(header.get("attended")), data)


@asynccontextmanager
async def wired_for_replay(replay: Replay, loaded: Loaded, places: Places, live_tools: bool) -> AsyncGenerator[Wiring]:
    """The model and the course of a replay. Raises `SettingsError` with file and line for a damaged cassette."""
    cassette = await anyio.to_thread.run_sync(Cassette, replay.file, _placeholders(places, replay.session))
    course = Course(cassette, SystemClock(), LIVE_PATIENCE if live_tools else PATIENCE)
    limits = _limits_of(cassette, loaded)
    fallbacks = tuple(str(name) for name in cassette.header.get("fallbacks", ()))
    try:
        yield Replayed(Chosen(CassetteModel(cassette), cassette.model, limits, fallbacks), cassette, course, live_tools)
    finally:
        course.close()


@asynccontextmanager
async def wired(
    model: str, loaded: Loaded, places: Places, session: str, record: Path | None, attended: bool
) -> AsyncGenerator[Wiring]:
    """The model of a session that is no replay, recorded if that is asked for. Raises what `choose_model` raises, and
    `UsageError` where the cassette cannot be written."""
    async with choose_model(model, loaded, places, session) as chosen:
        if record is None:
            yield Plain(chosen)
            return
        header: Json = {
            "model": chosen.name,
            "session": session,
            "attended": attended,
            "limits": {name: one.model_dump(mode="json") for name, one in chosen.limits.items()},
            "fallbacks": list(chosen.fallbacks),
        }
        recording = Recording(record, _placeholders(places, session), header)
        try:
            yield Recorded(replace(chosen, model=RecordingModel(chosen.model, recording)), recording)
        finally:
            recording.close()


def _limits_of(cassette: Cassette, loaded: Loaded) -> dict[str, ModelLimits]:
    """The recorded limits: a replay compacts where the recorded run did."""
    try:
        kept = {str(name): ModelLimits.model_validate(one) for name, one in dict(cassette.header["limits"]).items()}
    except (KeyError, TypeError, ValueError) as error:
        raise SettingsError(
            f"the cassette is damaged: its limits cannot be read ({error!r})", f"{cassette.path}:1"
        ) from error
    if cassette.model not in kept:
        try:
            kept[cassette.model] = loaded.settings.limits_of(cassette.model)
        except UnknownModel:  # a replay costs nothing: it needs no prices
            kept[cassette.model] = ModelLimits()
    return kept


def _taped(world: Surroundings | None, tape: Tape) -> Surroundings | None:
    return None if world is None else TapedSurroundings(world, tape)


def _placeholders(places: Places, session: str) -> Placeholders:
    return Placeholders(
        {
            "workspace": str(places.workspace),
            "data": str(places.session_data(session)),
            "worktrees": str(places.worktrees),
            "home": str(Path.home()),
            "session": session,
        }
    )

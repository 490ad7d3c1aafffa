"""The model of a session and the ports of its agents: as they are, recorded to a cassette, or played back from one.

The modules of cassettes are imported for a session that is recorded or replayed, as most sessions are neither.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Protocol

import anyio.to_thread

from callboard.adapters.system.scratch import scratch_folder
from callboard.config.settings import LoadedSettings
from callboard.engine.runtime import Services, SessionRuntime
from callboard.sessions.compose import CASSETTE, ModelSelection, choose_model
from callboard.sessions.places import WorkspacePaths
from callboard.types.errors import SettingsError
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass

_SESSION = late_pattern(r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")


class ModelSource(Protocol):
    """Model and ports of a session."""

    @property
    def chosen(self) -> ModelSelection: ...

    @property
    def schedules(self) -> bool:
        """True if schedules fire while the session is hosted, and definitions are read again: not in a replay."""
        ...

    def wrap(self, services: Services) -> Services:
        """Return the ports for the session's agents."""
        ...

    def nonce(self, real: str) -> str:
        """Return the nonce that identifies a person's message as one envelope."""
        ...

    def facts(self, agent: str, real: tuple[str, ...]) -> tuple[str, ...]:
        """Return the facts about the machine in the agent's prompt."""
        ...

    def verdict(self) -> str:
        """Return the fault of the session as a replay; empty if there is none."""
        ...

    async def feed(self, runtime: SessionRuntime) -> None:
        """Send the envelopes that come from outside the session."""
        ...


@dataclass(frozen=True, slots=True)
class LiveSource:
    """Session that is neither recorded nor a replay."""

    chosen: ModelSelection
    schedules: bool = True

    def wrap(self, services: Services) -> Services:
        return services

    def nonce(self, real: str) -> str:
        return real

    def facts(self, agent: str, real: tuple[str, ...]) -> tuple[str, ...]:
        return real

    def verdict(self) -> str:
        return ""

    async def feed(self, runtime: SessionRuntime) -> None:
        """Do nothing: real envelopes arrive by themselves."""


@dataclass(frozen=True, slots=True)
class Replay:
    """Description of the session that a cassette replays."""

    file: Path
    session: str
    attended: bool
    data: Path
    """Folder for large results and transcripts, removed at the end."""


async def find_replay(model: str, stack: AsyncExitStack) -> Replay | None:
    """Return the replay that this model names, None for any other model.

    Raises `SettingsError` for an invalid cassette.
    """
    kind, _, path = model.partition(":")
    if kind != CASSETTE or not path:
        return None
    from callboard.adapters.models.cassette.format import read_header  # noqa: PLC0415 - most sessions are no replays

    file = Path(path)
    header = await anyio.to_thread.run_sync(read_header, file)
    session = str(header.get("session", ""))
    if not _SESSION.match(session):
        raise SettingsError("the cassette names no session: record it again", f"{file}:1")
    data = stack.enter_context(scratch_folder())
    return Replay(file, session, bool(header.get("attended")), data)


@asynccontextmanager
async def open_replay_source(
    replay: Replay, loaded: LoadedSettings, places: WorkspacePaths, live_tools: bool
) -> AsyncGenerator[ModelSource]:
    """Yield the model and the delivery order of a replay.

    Raises `SettingsError` with file and line for a damaged cassette.
    """
    from callboard.sessions.replay import replay_source  # noqa: PLC0415 - most sessions are no replays

    async with replay_source(replay.file, replay.session, loaded, places, live_tools=live_tools) as source:
        yield source


@asynccontextmanager
async def open_source(
    model: str, loaded: LoadedSettings, places: WorkspacePaths, *, session: str, record: Path | None, attended: bool
) -> AsyncGenerator[ModelSource]:
    """Yield the model of a session that is not a replay, recorded if requested.

    Raises the errors of `choose_model`, and `UsageError` if the cassette cannot be written.
    """
    async with choose_model(model, loaded, places, session) as chosen:
        if record is None:
            yield LiveSource(chosen)
            return
        from callboard.sessions.replay import recording_source  # noqa: PLC0415 - most sessions are not recorded

        with recording_source(chosen, record, places, session=session, attended=attended) as source:
            yield source

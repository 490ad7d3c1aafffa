"""A session before it is hosted: trust in its workspace, its settings, its store, its row.

`open.py` goes on from here. Nothing is written: a new session's row comes with its first records (`open.py`).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from callboard import __version__
from callboard.adapters.storage.memory import MemoryStore
from callboard.adapters.system.clock import SystemClock
from callboard.config.hooks import hook_notes
from callboard.config.settings import LoadedSettings, load_settings
from callboard.config.trust import Trust, TrustPrompt, decide
from callboard.core.decoding import version_numbers
from callboard.core.keys import host_lease, session_key
from callboard.engine.commands import SERVES, find_session
from callboard.ports.store import Store
from callboard.sessions.compose import WorkspacePaths, find_places, open_store
from callboard.sessions.options import SessionOptions, WorkspaceOptions
from callboard.sessions.replay import CASSETTE, Replay, find_replay
from callboard.types.errors import UsageError
from callboard.types.records import Json, SessionRow


@dataclass(frozen=True)
class PreparedSession:
    """A session before it is hosted."""

    places: WorkspacePaths
    row: SessionRow
    store: Store
    loaded: LoadedSettings
    trust: Trust
    """Decision on the content of the workspace."""
    attended: bool
    """True if a person is present to answer, or was when the session was recorded."""
    runs_tools: bool = True
    """True if tools really run; a replay takes their recorded results."""
    replay: Replay | None = None

    def with_notes(self, *notes: str) -> PreparedSession:
        """Return the session with more notes on its configuration; empty ones are left out."""
        return replace(self, loaded=replace(self.loaded, notes=(*self.loaded.notes, *filter(None, notes))))


async def prepare_session(options: SessionOptions, stack: AsyncExitStack) -> PreparedSession:
    """Return the session to host: a replay, a new one, or the one to resume. `stack` closes its store.

    Raises `UsageError` for options that ask for two of these.
    """
    identity = options.identity
    places = find_places(options.workspace.folder)
    # Of one to be resumed, nobody is asked before it is known that no other process hosts it.
    trust = await _decide(options.workspace, places, gate=None if identity.resume else options.workspace.gate)
    loaded = _load(options.workspace, places, trust, {})
    replay = await find_replay(options.model.name or ("" if identity.resume else loaded.settings.model), stack)
    if options.model.record is not None and (replay or identity.resume):
        raise UsageError("--record goes with a new session: one is recorded from its beginning")
    if replay is not None and identity.resume:
        raise UsageError("a replay is a session of its own, which starts over: leave --continue and --resume out")
    if replay is not None:
        return _for_replay(options, replace(places, data=replay.data), loaded, trust, replay=replay, stack=stack)
    if options.hosting.shared is not None:
        store = options.hosting.shared.store
    else:
        store = await open_store(places, loaded.settings.durability, options.hosting.notice)
        stack.push_async_callback(store.aclose)
    if identity.resume:
        return await _to_resume(options, places, store, trust)
    row = await _new_row(options, places, store, loaded=loaded, trust=trust)
    return PreparedSession(places, row, store, loaded, trust, options.permissions.attended)


def _for_replay(
    options: SessionOptions,
    places: WorkspacePaths,
    loaded: LoadedSettings,
    trust: Trust,
    *,
    replay: Replay,
    stack: AsyncExitStack,
) -> PreparedSession:
    """Return the session of a replay, in a store of its own that is thrown away."""
    store = MemoryStore()
    stack.push_async_callback(store.aclose)
    row = SessionRow(
        id=replay.session,
        workspace=str(places.workspace),
        created_at=SystemClock().now(),
        model=f"{CASSETTE}:{replay.file}",
        settings={"max_cost_usd": options.model.max_cost_usd},
    )
    live = options.model.live_tools
    attended = options.permissions.attended if live else replay.attended
    return PreparedSession(places, row, store, loaded, trust, attended, live, replay)


async def _new_row(
    options: SessionOptions, places: WorkspacePaths, store: Store, *, loaded: LoadedSettings, trust: Trust
) -> SessionRow:
    """Return the row of a new session. Raises `UsageError` for an id that another session has."""
    model = loaded.settings.model_id(options.model.name or loaded.settings.model)
    flags = _named_flags(options.workspace)
    settings: Json = {"model": model, "flags": flags, "trust": trust.digest, "max_cost_usd": options.model.max_cost_usd}
    if options.identity.serves:
        settings[SERVES] = True
    if options.extensions.plugins:  # a later resume has them too
        settings["plugins"] = [str(plugin.resolve()) for plugin in options.extensions.plugins]
    now = SystemClock().now()
    name = options.identity.name or datetime.fromtimestamp(now, UTC).strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(3)
    if options.identity.name and await store.get(session_key(name)) is not None:
        raise UsageError(f"there is a session {name} already: go on with it by --resume {name}")
    prompt = "(schedule files: kept for `callboard serve`)" if options.identity.serves else ""
    row = SessionRow(id=name, workspace=str(places.workspace), created_at=now, model=model, settings=settings)
    return row.model_copy(update={"callboard": __version__, "prompt": prompt or row.prompt})


async def _to_resume(options: SessionOptions, places: WorkspacePaths, store: Store, trust: Trust) -> PreparedSession:
    """Return the session to resume, with its row and settings as this run changes them."""
    row = await find_session(store, options.identity.session)
    if options.identity.take_over is not None or await store.holder(host_lease(row.id)) is None:
        trust = await _decide(options.workspace, places, gate=options.workspace.gate)
    stored_flags = row.settings.get("flags", {})
    loaded = _load(options.workspace, places, trust, stored_flags)
    model = loaded.settings.model_id(options.model.name or str(row.settings.get("model", row.model)))
    flags = {**stored_flags, **_named_flags(options.workspace)}
    settings: Json = {**row.settings, "flags": flags, "model": model, "trust": trust.digest}
    if options.extensions.plugins:
        settings["plugins"] = [str(plugin.resolve()) for plugin in options.extensions.plugins]
    if options.model.max_cost_usd is not None:
        settings["max_cost_usd"] = options.model.max_cost_usd
    newest = max(row.callboard, __version__, key=version_numbers)
    row = row.model_copy(update={"settings": settings, "callboard": newest, "workspace": str(places.workspace)})
    return PreparedSession(places, row, store, loaded, trust, options.permissions.attended)


async def _decide(workspace: WorkspaceOptions, places: WorkspacePaths, *, gate: TrustPrompt | None) -> Trust:
    asks = gate if workspace.reads("project") or workspace.reads("local") else None  # else there is nothing to decide
    return await decide(places.workspace, places.config, flag=workspace.trust, gate=asks, texts=workspace.reads_texts)


def _named_flags(workspace: WorkspaceOptions) -> dict[str, object]:
    return {name: value for name, value in workspace.flags.items() if value is not None}


def _load(
    workspace: WorkspaceOptions, places: WorkspacePaths, trust: Trust, stored_flags: Mapping[str, object]
) -> LoadedSettings:
    """Return the settings in force. `stored_flags`: those that the session was begun with; those of this run win."""
    loaded = load_settings(
        os.environ,
        workspace=places.workspace,
        trusted=trust.trusted,
        flags={**stored_flags, **_named_flags(workspace)},
        brought=trust.brought,
        sources=workspace.sources,
    )
    notes = tuple(str(note) for note in hook_notes(loaded, places.workspace, dict(os.environ)))
    return replace(loaded, notes=(*loaded.notes, *notes))

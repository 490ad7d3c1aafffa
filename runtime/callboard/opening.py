"""What stands at the beginning of a session: what a person asked for, its row, its store, its settings, its model.

Nobody hosts anything here: `hosting.py` does, and `attaching.py` follows what another process hosts.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from callboard.adapters.clock import SystemClock
from callboard.adapters.memory import MemoryStore
from callboard.assembly import Places, open_store
from callboard.engine.governor import Governors
from callboard.engine.sessions import find_session
from callboard.ports.store import Store
from callboard.settings import Loaded, load_settings
from callboard.taking_over import TakeOver
from callboard.taping import CASSETTE, Replay, Wiring, find_replay, wired, wired_for_replay
from callboard.words.errors import UsageError
from callboard.words.values import Json, SessionRow


@dataclass(frozen=True, slots=True)
class Options:
    """What a person asked for. `flags` are settings by dotted name (`permission.mode`)."""

    workspace: Path
    flags: Mapping[str, object] = field(default_factory=dict[str, object])
    session: str | None = None
    """Which session to resume; None with `resume`: the newest."""
    resume: bool = False
    trust: bool = False
    record: Path | None = None
    live_tools: bool = False
    """A replay runs the tools, instead of taking their recorded results."""
    model: str | None = None
    """A model's name, `rehearsal:FILE` or `cassette:FILE`; None: as the session or the settings say."""
    attended: bool = False
    """A person is there to answer."""
    disallowed: tuple[str, ...] = ()
    """Tools that the lead does not have."""
    appended: str = ""
    """A text at the end of every system prompt."""
    max_cost_usd: float | None = None
    """For the whole session."""
    prompt: str | None = None
    """What the person says first: a new session begins to exist with it, a resumed one hears it."""
    carry: bool = False
    """With `resume`: the lead goes on in a fresh conversation, with what matters of the one before."""
    take_over: TakeOver | None = None
    """With `resume`: host the session also if another process does, which has to leave."""
    governors: Governors | None = None
    """Those of the process, where it hosts several sessions; None: this session has one of its own."""


@dataclass(frozen=True)
class Opened:
    """A session before anyone hosts it."""

    places: Places
    row: SessionRow
    store: Store
    loaded: Loaded
    attended: bool
    """Whether a person is there to answer, or was when it was recorded."""
    replay: Replay | None = None


async def open_row(options: Options, places: Places, stack: AsyncExitStack) -> Opened:
    """The session to be hosted: a replay, a new one or the one to be resumed. Raises `UsageError` for two at once."""
    flags = {name: value for name, value in options.flags.items() if value is not None}
    loaded = load_settings(os.environ, workspace=places.workspace, trusted=options.trust, flags=flags)
    replay = await find_replay(options.model or ("" if options.resume else loaded.settings.model), stack)
    if options.record is not None and (replay or options.resume):
        raise UsageError("--record goes with a new session: one is recorded from its beginning")
    if replay is None:
        return await _stored(options, places, loaded, stack)
    if options.resume:
        raise UsageError("a replay is a session of its own, which begins anew: leave --continue and --resume out")
    store = MemoryStore()
    stack.push_async_callback(store.aclose)
    row = SessionRow(
        id=replay.session,
        workspace=str(places.workspace),
        created_at=SystemClock().now(),
        model=f"{CASSETTE}:{replay.file}",
        settings={"max_cost_usd": options.max_cost_usd},
    )
    attended = options.attended if options.live_tools else replay.attended
    return Opened(replace(places, data=replay.data), row, store, loaded, attended, replay)


def wiring_of(options: Options, opened: Opened) -> AbstractAsyncContextManager[Wiring]:
    """The model of the session, with what records or replays it."""
    places, row = opened.places, opened.row
    if opened.replay is not None:
        return wired_for_replay(opened.replay, opened.loaded, places, options.live_tools)
    model = str(row.settings["model"])
    return wired(model, opened.loaded, places, row.id, options.record, options.attended)


async def _stored(options: Options, places: Places, loaded: Loaded, stack: AsyncExitStack) -> Opened:
    """The session's row, a new one or the one to be resumed, with the store and the settings in force."""
    flags = {name: value for name, value in options.flags.items() if value is not None}
    store = await open_store(places, loaded.settings.durability)
    stack.push_async_callback(store.aclose)
    if not options.resume:
        model = options.model or loaded.settings.model
        settings = {"model": model, "flags": flags, "trust": options.trust, "max_cost_usd": options.max_cost_usd}
        now = SystemClock().now()
        name = datetime.fromtimestamp(now, UTC).strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(3)
        row = SessionRow(id=name, workspace=str(places.workspace), created_at=now, model=model, settings=settings)
        return Opened(places, row, store, loaded, options.attended)
    row = await find_session(store, options.session)
    kept = {**row.settings.get("flags", {}), **flags}  # what the session was begun with, and what is said now
    loaded = load_settings(os.environ, workspace=places.workspace, trusted=options.trust, flags=kept)
    update: Json = {**row.settings, "flags": kept, "model": options.model or row.settings.get("model", row.model)}
    if options.max_cost_usd is not None:
        update["max_cost_usd"] = options.max_cost_usd
    return Opened(places, row.model_copy(update={"settings": update}), store, loaded, options.attended)

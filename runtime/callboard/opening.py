"""What stands at the beginning of a session: what a person asked for, its row, its store, its settings, its model.

Nobody hosts anything here: `hosting.py` does, and `attaching.py` follows what another process hosts.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from callboard.adapters.agent_files import AgentFile
from callboard.adapters.clock import SystemClock
from callboard.adapters.hook_files import HookEntry
from callboard.adapters.memory import MemoryStore
from callboard.assembly import Places, open_store
from callboard.core.context.situation import OwnStage
from callboard.core.names import host_lease, session_key
from callboard.engine.governor import Governors
from callboard.engine.sessions import SERVES, find_session
from callboard.hooking import hook_notes
from callboard.ports.mcp import Bridge
from callboard.ports.store import Store
from callboard.ports.tool import Tool
from callboard.settings import Loaded, load_settings
from callboard.taking_over import TakeOver
from callboard.taping import CASSETTE, Replay, Wiring, find_replay, wired, wired_for_replay
from callboard.trusting import Gate, Trust, decide
from callboard.words.errors import UsageError
from callboard.words.values import Json, SessionRow


@dataclass(frozen=True, slots=True)
class Shared:
    """What a process has once for all sessions that it hosts. Whoever made the store closes it."""

    store: Store
    governors: Governors


@dataclass(frozen=True, slots=True)
class Options:
    """What a person asked for. `flags` are settings by dotted name (`permission.mode`)."""

    workspace: Path
    flags: Mapping[str, object] = field(default_factory=dict[str, object])
    session: str | None = None
    """Which session to resume; None with `resume`: the newest."""
    resume: bool = False
    trust: bool = False
    """Use what the workspace brings, for this run."""
    gate: Gate | None = None
    """Who is asked whether to trust it, and told what became of it; None: nobody, so it is not trusted."""
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
    name: str = ""
    """The id of a new session; empty: one is made."""
    lead_type: str = "lead"
    """The agent type of a new session's lead."""
    effort: Literal["", "low", "medium", "high", "xhigh", "max"] = ""
    """How hard the lead's model is asked to think; empty: as its type says."""
    agents: Mapping[str, AgentFile] = field(default_factory=dict[str, AgentFile])
    """Agent types of this run, which win over those of files."""
    instructions: str = ""
    """In place of what the lead's type says; empty: as it says."""
    lead_tools: tuple[str, ...] | None = None
    """The only tools of the lead; None: as its type says."""
    hooks: tuple[HookEntry, ...] = ()
    """Hooks of this run, beside those of files."""
    plugins: tuple[Path, ...] = ()
    """Folders of plugins of this run: the person named them, so they are trusted."""
    tools: tuple[Tool, ...] = ()
    """Tools of the program that opens the session."""
    own: tuple[str, ...] = ()
    """Of these the ones that every agent has whose type names no tools, by name."""
    hook_functions: tuple[Callable[[Any], object], ...] = ()
    """Python functions with `@hook` marks."""
    stages: Mapping[str, OwnStage] = field(default_factory=dict[str, OwnStage])
    """Stages of the context pipeline that the program brings, by the names that settings call them by."""
    embedded: bool = False
    """The session lives in a program that is not ours: how that one logs is left as it is."""
    mcp_config: tuple[str, ...] = ()
    """MCP servers of this run: JSON texts, and paths of files."""
    mcp_strict: bool = False
    """These alone, and none of files elsewhere."""
    mcp_wait: bool = False
    """The first prompt waits until each server has connected or failed, though somebody may answer."""
    bridges: Mapping[str, Bridge] = field(default_factory=dict[str, Bridge])
    """MCP servers that live in the client of this run, by name."""
    shared: Shared | None = None
    """What the process has once, where it hosts several sessions; None: this session has its own."""
    answerable: bool = False
    """Nobody sits there, but somebody may come and answer: what is asked waits for `ask.deadline`, and ends in no."""
    with_schedules: bool = False
    """It is not finished before the schedules of the session have fired for the last time."""
    serves: bool = False
    """A new session is the one that `callboard serve` keeps for schedule files: never a person's current one."""


@dataclass(frozen=True)
class Opened:
    """A session before anyone hosts it."""

    places: Places
    row: SessionRow
    store: Store
    loaded: Loaded
    trust: Trust
    """What was decided on what the workspace brings."""
    attended: bool
    """Whether a person is there to answer, or was when it was recorded."""
    replay: Replay | None = None

    def runs(self, options: Options) -> bool:
        """Whether tools really run; a replay takes their recorded results."""
        return self.replay is None or options.live_tools


async def open_row(options: Options, places: Places, stack: AsyncExitStack) -> Opened:
    """The session to be hosted: a replay, a new one or the one to be resumed. Raises `UsageError` for two at once."""
    # Of one to be resumed, nobody is asked before it is known that no other process hosts it.
    gate = None if options.resume else options.gate
    trust = await decide(places.workspace, places.config, flag=options.trust, gate=gate)
    loaded = _load(options, places, trust, {})
    replay = await find_replay(options.model or ("" if options.resume else loaded.settings.model), stack)
    if options.record is not None and (replay or options.resume):
        raise UsageError("--record goes with a new session: one is recorded from its beginning")
    if replay is None:
        return await _stored(options, places, loaded, trust, stack)
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
    return Opened(replace(places, data=replay.data), row, store, loaded, trust, attended, replay)


def _load(options: Options, places: Places, trust: Trust, kept: Mapping[str, object]) -> Loaded:
    """The settings in force. `kept`: the flags that the session was begun with; what is said now wins."""
    flags = {**kept, **{name: value for name, value in options.flags.items() if value is not None}}
    brought, trusted = trust.brought, trust.trusted
    loaded = load_settings(os.environ, workspace=places.workspace, trusted=trusted, flags=flags, brought=brought)
    told = tuple(str(note) for note in hook_notes(loaded, places.workspace, dict(os.environ)))
    return replace(loaded, notes=(*loaded.notes, *told))


def wiring_of(options: Options, opened: Opened) -> AbstractAsyncContextManager[Wiring]:
    """The model of the session, with what records or replays it."""
    places, row = opened.places, opened.row
    if opened.replay is not None:
        return wired_for_replay(opened.replay, opened.loaded, places, options.live_tools)
    model = str(row.settings["model"])
    return wired(model, opened.loaded, places, row.id, options.record, options.attended)


async def _stored(options: Options, places: Places, loaded: Loaded, trust: Trust, stack: AsyncExitStack) -> Opened:
    """The session's row, a new one or the one to be resumed, with the store and the settings in force."""
    flags = {name: value for name, value in options.flags.items() if value is not None}
    if options.shared is not None:
        store = options.shared.store
    else:
        store = await open_store(places, loaded.settings.durability)
        stack.push_async_callback(store.aclose)
    if not options.resume:
        model = options.model or loaded.settings.model
        settings: Json = {"model": model, "flags": flags, "trust": trust.digest, "max_cost_usd": options.max_cost_usd}
        if options.serves:
            settings[SERVES] = True
        if options.plugins:  # a later resume has them too
            settings["plugins"] = [str(one.resolve()) for one in options.plugins]
        now = SystemClock().now()
        name = options.name or datetime.fromtimestamp(now, UTC).strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(3)
        if options.name and await store.get(session_key(name)) is not None:
            raise UsageError(f"there is a session {name} already: go on with it by --resume {name}")
        row = SessionRow(id=name, workspace=str(places.workspace), created_at=now, model=model, settings=settings)
        if options.serves:
            row = row.model_copy(update={"prompt": "(schedule files: kept for `callboard serve`)"})
        return Opened(places, row, store, loaded, trust, options.attended)
    row = await find_session(store, options.session)
    if options.take_over is not None or await store.holder(host_lease(row.id)) is None:
        trust = await decide(places.workspace, places.config, flag=options.trust, gate=options.gate)
    kept = {**row.settings.get("flags", {}), **flags}  # what the session was begun with, and what is said now
    loaded = _load(options, places, trust, kept)
    model = options.model or row.settings.get("model", row.model)
    update: Json = {**row.settings, "flags": kept, "model": model, "trust": trust.digest}
    if options.plugins:
        update["plugins"] = [str(one.resolve()) for one in options.plugins]
    if options.max_cost_usd is not None:
        update["max_cost_usd"] = options.max_cost_usd
    return Opened(places, row.model_copy(update={"settings": update}), store, loaded, trust, options.attended)

"""A session before it is hosted: trust in its workspace, its settings, its store, its row.

Nothing is written here: `open.py` continues, and writes a new session's row with its first records.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread

from callboard import __version__
from callboard.adapters.processes.tool_ancestry import refuse_inside_tool, started_by_tool
from callboard.adapters.storage.memory import MemoryStore
from callboard.adapters.system.archive import make_private, transcript_file
from callboard.adapters.system.clock import SystemClock
from callboard.config.hooks import hook_notes
from callboard.config.settings import LoadedSettings, load_settings
from callboard.config.trust import Trust, TrustPrompt, decide, stored_trust
from callboard.core.context.view.transcript import foreign_transcript
from callboard.core.decoding import read_value, version_numbers
from callboard.core.keys import UUID_PATTERN, agent_key, host_lease, session_key
from callboard.core.permissions.sensitive_paths import claude_folder
from callboard.engine.commands import DETACHED, PLACEMENT, SERVES, find_session, with_prompt
from callboard.engine.recall import first_spec
from callboard.ports.store import Lease, Store
from callboard.sessions.compose import CASSETTE
from callboard.sessions.kept_lead import KEPT_LEAD, kept_of
from callboard.sessions.lease import hold_lease
from callboard.sessions.model_source import Replay, find_replay
from callboard.sessions.options import IdentityOptions, SessionOptions, WorkspaceOptions
from callboard.sessions.places import WorkspacePaths, find_places
from callboard.sessions.stores import open_store
from callboard.sessions.workspaces import PlacedWorkspace, place_here, place_session, remote_entries, remote_of
from callboard.types.errors import UsageError
from callboard.types.events import Event
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import AgentRow, HostRow, Json, SessionRow
from callboard.types.settings import Settings

_NOT_FORKED = (SERVES, DETACHED, "transcript")
"""Settings of a session that its forks do not have. `transcript`: the lines that are in its file, and not in theirs."""


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
    """True if tools really run; a replay uses their recorded results."""
    replay: Replay | None = None
    forked: str = ""
    """Session whose conversation this new session continues; empty if there is none."""
    worktree: str = ""
    """Worktree in which the lead of that session works; empty: the workspace."""
    copied: Sequence[Event] = ()
    """Messages of a transcript with which this new session begins."""
    placed: PlacedWorkspace | None = None
    """Workspace of a session with a remote; None: its changes are not pushed."""
    held: tuple[Lease, HostRow] | None = None
    """Lease of the session, if its workspace was prepared under it."""

    @property
    def live(self) -> Path | None:
        """Return the folder of the socket for followers; None if no other process can follow the session."""
        return None if self.replay is not None or isinstance(self.store, MemoryStore) else self.places.live

    def with_notes(self, *notes: str) -> PreparedSession:
        """Return the session with additional notes on its configuration; empty notes are dropped."""
        return replace(self, loaded=replace(self.loaded, notes=(*self.loaded.notes, *filter(None, notes))))


async def prepare_session(options: SessionOptions, stack: AsyncExitStack) -> PreparedSession:
    """Return the session to host: a replay, a new one, or the one to resume. `stack` closes its store.

    Raises `UsageError` for options that ask for two of these.
    """
    identity = options.identity
    places = find_places(options.workspace.folder)
    # On a resume, no one is asked before it is known that no other process hosts the session.
    trust = await _decide(options.workspace, places, gate=None if identity.resume else options.workspace.gate)
    loaded = _load(options.workspace, places, trust, {})
    loaded = with_plan_model(loaded, options.model.name)
    replay = await find_replay(options.model.name or ("" if identity.resume else loaded.settings.model), stack)
    if options.model.record is not None and (replay or identity.resume):
        raise UsageError("--record requires a new session, which is recorded from its beginning")
    if replay is not None and identity.resume:
        raise UsageError("a replay is a new session: omit --continue and --resume")
    if replay is not None:
        return _for_replay(options, replace(places, data=replay.data), loaded, trust, replay=replay, stack=stack)
    if options.model.live_tools:
        raise UsageError("--live-tools requires --model cassette:FILE: with any other model the tools always run")
    if not options.hosting.persistent:
        return await _in_memory(options, places, loaded, trust, stack=stack)
    if options.hosting.shared is not None:
        store = options.hosting.shared.store
    else:
        store = await open_store(places, loaded.settings, options.hosting.notice)
        stack.push_async_callback(store.aclose)
    if identity.resume:
        prepared = await _to_resume(options, places, store, trust, settings=loaded.settings, stack=stack)
    else:
        row = await _new_row(options, places, store, loaded=loaded, trust=trust)
        prepared = PreparedSession(places, row, store, loaded, trust, options.permissions.attended)
    if prepared.placed is None:
        placed = await place_here(prepared.places, prepared.loaded.settings, prepared.row)
        prepared = replace(prepared, placed=placed)
    return prepared


async def hold_session(
    prepared: PreparedSession, identity: IdentityOptions, stack: AsyncExitStack
) -> tuple[Lease, HostRow]:
    """Hold the lease of the session until `stack` ends, and make its folder for data. Raises as `take_lease` does."""
    hold = hold_lease(prepared.store, prepared.row.id, identity.take_over, unattended=not prepared.attended)
    held = prepared.held or await stack.enter_async_context(hold)
    make_private(prepared.places.session_data(prepared.row.id))
    return held


async def _in_memory(
    options: SessionOptions, places: WorkspacePaths, loaded: LoadedSettings, trust: Trust, *, stack: AsyncExitStack
) -> PreparedSession:
    """Return a new session that leaves nothing behind: `stack` discards its store and its folder.

    Raises `UsageError` for a session to resume.
    """
    if options.identity.resume:
        raise UsageError("a session that is not kept is a new one: omit --continue and --resume")
    store = MemoryStore()
    stack.push_async_callback(store.aclose)
    row = await _new_row(options, places, store, loaded=loaded, trust=trust)
    stack.callback(shutil.rmtree, places.session_data(row.id), ignore_errors=True)
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
    """Return the session of a replay, in a separate store that is discarded."""
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
    settings["plan_model"] = loaded.settings.plan_model
    settings |= remote_entries(loaded.settings)
    if options.identity.serves:
        settings[SERVES] = True
    if options.identity.detached:
        settings[DETACHED] = True
    if loaded.settings.placement:
        settings[PLACEMENT] = loaded.settings.placement
    if lead := kept_of(options.lead):
        settings[KEPT_LEAD] = lead
    if options.extensions.plugins:  # kept for a later resume
        settings["plugins"] = [str(plugin.resolve()) for plugin in options.extensions.plugins]
    now = SystemClock().now()
    name = await _new_id(options, store)
    prompt = "(schedule files: kept for `callboard serve`)" if options.identity.serves else ""
    row = SessionRow(id=name, workspace=str(places.workspace), created_at=now, model=model, settings=settings)
    row = row.model_copy(update={"callboard": __version__, "prompt": prompt, "by_tool": bool(started_by_tool())})
    return with_prompt(row, options.identity.title)


async def _to_resume(
    options: SessionOptions,
    places: WorkspacePaths,
    store: Store,
    trust: Trust,
    *,
    settings: Settings,
    stack: AsyncExitStack,
) -> PreparedSession:
    """Return the session to resume, with the changes of this run to its row and settings.

    The workspace of a session with a remote is prepared here, under its lease, which `stack` releases. `settings`: the
    person's.

    Raises `UsageError` inside a tool's process if a person began the session or has continued it. A command can outlive
    the host of its session: as the next host it would speak as the person.
    """
    transcript = await _transcript_to_resume(options, places, store)
    if transcript is not None:
        refuse_inside_tool("Continuing a session that a person began")
        return await _from_transcript(options, places, store, trust, data=transcript)
    row = await find_session(store, options.identity.session)
    if not row.by_tool:
        refuse_inside_tool("Continuing a session that a person began")
    held = placed = None
    if not options.identity.fork and remote_of(settings, row) is not None:
        unattended = not options.permissions.attended
        hold = hold_lease(store, row.id, options.identity.take_over, unattended=unattended)
        held = await stack.enter_async_context(hold)
        places, placed = await place_session(store, row, places, settings)
    if held or options.identity.take_over is not None or await store.holder(host_lease(row.id)) is None:
        trust = await _decide_again(options.workspace, places, row, moved=placed is not None and placed.moved)
    stored_flags = row.settings.get("flags", {})
    loaded = _load(options.workspace, places, trust, stored_flags)
    model = loaded.settings.model_id(options.model.name or str(row.settings.get("model", row.model)))
    if options.model.name is not None:
        loaded = with_plan_model(loaded, options.model.name)
    elif "plan_model" in row.settings:
        loaded = _with_plan_model(loaded, row.settings["plan_model"])
    flags = {**stored_flags, **_named_flags(options.workspace)}
    entries: Json = {**row.settings, "flags": flags, "model": model, "trust": trust.digest}
    entries["plan_model"] = loaded.settings.plan_model
    if options.extensions.plugins:
        entries["plugins"] = [str(plugin.resolve()) for plugin in options.extensions.plugins]
    if options.model.max_cost_usd is not None:
        entries["max_cost_usd"] = options.model.max_cost_usd
    if options.identity.fork:
        fork = await _forked(row, entries, options, store)
        attended = options.permissions.attended
        tree = await _worktree_of_lead(store, row.id)
        return PreparedSession(places, fork, store, loaded, trust, attended, forked=row.id, worktree=tree)
    newest = max(row.callboard, __version__, key=version_numbers)
    row = row.model_copy(update={"settings": entries, "callboard": newest, "workspace": str(places.workspace)})
    row = row.model_copy(update={"by_tool": row.by_tool and bool(started_by_tool())})
    attended = options.permissions.attended
    return PreparedSession(places, row, store, loaded, trust, attended, placed=placed, held=held)


async def _transcript_to_resume(options: SessionOptions, places: WorkspacePaths, store: Store) -> bytes | None:
    """Return the transcript, written by Claude Code or brought by a client, of a session that the store does not have.

    None: the store has the session, or there is no such file. Raises `UsageError` if the file cannot be read.
    """
    session = options.identity.session or ""
    if not UUID_PATTERN.fullmatch(session) or await store.get(session_key(session)) is not None:
        return None
    file = _transcript_path(session, places)
    try:
        return await anyio.Path(file).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as failed:
        reason = failed.strerror or str(failed)
        raise UsageError(
            f"session {session} is not in Callboard's store, and its transcript {file} cannot be read ({reason}): "
            "make it a file that you may read"
        ) from failed


def _transcript_path(session: str, places: WorkspacePaths) -> Path:
    return transcript_file(claude_folder(Path.home(), os.environ), places.workspace, session)


async def _from_transcript(
    options: SessionOptions, places: WorkspacePaths, store: Store, trust: Trust, *, data: bytes
) -> PreparedSession:
    """Return a new session that begins with the conversation of a transcript, and has its id unless it is a fork.

    Raises `UsageError` for a transcript without readable messages, and for a point that it does not have.
    """
    identity = options.identity
    session = identity.session or ""
    transcript = foreign_transcript(data, SystemClock().now())
    copied = transcript.events
    if identity.fork and identity.point.message:
        uuids = [event.uuid for event in copied]
        if identity.point.message not in uuids:
            raise UsageError(f"session {session} has no message {identity.point.message}: use the uuid of a message")
        copied = copied[: uuids.index(identity.point.message) + 1]
    if not copied:
        reason = "has no messages" if _is_utf8(data) else "is not UTF-8 text"
        raise UsageError(
            f"the transcript of session {session}, {_transcript_path(session, places)}, {reason}: begin a new session"
        )
    trust = await _decide(options.workspace, places, gate=options.workspace.gate)
    loaded = with_plan_model(_load(options.workspace, places, trust, {}), options.model.name)
    named_options = options if identity.fork else replace(options, identity=replace(identity, name=session))
    row = await _new_row(named_options, places, store, loaded=loaded, trust=trust)
    if not identity.fork:
        # The next prompt joins a message without a reply, which is then written again with it, beside the old line.
        answered = copied if copied[-1].role == "assistant" else copied[:-1]
        last = transcript.last if answered is copied else answered[-1].uuid if answered else ""
        begun = {"lines": transcript.lines, "messages": len(answered), "last": last}
        row = row.model_copy(update={"settings": {**row.settings, "transcript": begun}})
    words = next((str(block.data.get("text") or "") for block in copied[0].blocks if block.source == "person"), "")
    row = row if row.prompt else with_prompt(row, words)
    return PreparedSession(places, row, store, loaded, trust, options.permissions.attended, copied=copied)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


async def _forked(source: SessionRow, settings: Json, options: SessionOptions, store: Store) -> SessionRow:
    """Return the row of a new session that continues the conversation of another one.

    Raises `UsageError` for an id that a session has.
    """
    forked = {name: value for name, value in settings.items() if name not in _NOT_FORKED}
    if lead := {**forked.get(KEPT_LEAD, {}), **kept_of(options.lead)}:
        forked[KEPT_LEAD] = lead
    row = SessionRow(
        id=await _new_id(options, store),
        workspace=source.workspace,
        created_at=SystemClock().now(),
        model=str(settings["model"]),
        settings=forked,
        callboard=__version__,
        by_tool=bool(started_by_tool()),
    )
    return with_prompt(row, options.identity.title or source.prompt)


async def _worktree_of_lead(store: Store, session: str) -> str:
    """Return the worktree in which the lead of a session began; empty: the workspace. Raises `SessionUnreadable`."""
    lead = await store.get(agent_key(session, "lead"))
    if lead is None or lead.value is None:
        return ""
    return (await first_spec(store, session, read_value(AgentRow, lead.value, lead.key))).worktree


async def _new_id(options: SessionOptions, store: Store) -> str:
    """Return the id of a new session. Raises `UsageError` for an id that a session has."""
    name = options.identity.name
    if name and await store.get(session_key(name)) is not None:
        raise UsageError(f"session {name} already exists: continue it with --resume {name}")
    return name or str(uuid.uuid4())


def with_plan_model(loaded: LoadedSettings, name: str | None) -> LoadedSettings:
    """Return the settings with the model of plan mode that belongs to the model of this run.

    `name` None: the run names no model, and the settings have it already.
    """
    return loaded if name is None else _with_plan_model(loaded, loaded.settings.plan_model_of(name))


def _with_plan_model(loaded: LoadedSettings, plan_model: str | None) -> LoadedSettings:
    return replace(loaded, settings=loaded.settings.model_copy(update={"plan_model": plan_model}))


async def _decide(workspace: WorkspaceOptions, places: WorkspacePaths, *, gate: TrustPrompt | None) -> Trust:
    asks = gate if workspace.reads("project") or workspace.reads("local") else None  # otherwise nothing to decide
    return await decide(places.workspace, places.config, flag=workspace.trust, gate=asks, texts=workspace.reads_texts)


async def _decide_again(workspace: WorkspaceOptions, places: WorkspacePaths, row: SessionRow, *, moved: bool) -> Trust:
    """Decide about the workspace of a session to resume.

    Content that was trusted when the session was hosted last is trusted in the clone of another host, too.
    """
    digest = row.settings.get("trust")
    if moved and digest:
        trust = await anyio.to_thread.run_sync(stored_trust, places.workspace, places.config)
        if trust.workspace_claims.digest == digest:
            return replace(trust, how="kept")
    return await _decide(workspace, places, gate=workspace.gate)


def _named_flags(workspace: WorkspaceOptions) -> dict[str, object]:
    return {name: value for name, value in workspace.flags.items() if value is not None}


def _load(
    workspace: WorkspaceOptions, places: WorkspacePaths, trust: Trust, stored_flags: Mapping[str, object]
) -> LoadedSettings:
    """Return the settings in force.

    `stored_flags`: flags with which the session was started; those of this run take precedence.
    """
    loaded = load_settings(
        os.environ,
        workspace=places.workspace,
        trusted=trust.trusted,
        flags={**stored_flags, **_named_flags(workspace)},
        workspace_claims=trust.workspace_claims,
        sources=workspace.sources,
        texts=workspace.sources_named,
        variables=workspace.variables,
    )
    notes = tuple(str(note) for note in hook_notes(loaded, places.workspace, dict(os.environ)))
    return replace(loaded, notes=(*loaded.notes, *notes))

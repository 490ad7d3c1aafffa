"""Opening a session: hosted by this process, or followed if another process hosts it (`open_as`).

    async with open_session(options, observers=[...]) as session:
        await session.say("Fix the failing test")
        end = await session.wait_finished()

Read `open_session` from top to bottom; the builders follow in the order of their calls: model, definitions, hooks,
runtime, supervisor. Each takes the prepared session and its part of the options (`options.py`). Its result is not
changed afterwards, and all listeners are passed in. A decision that a rule could make is not made here.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, asynccontextmanager, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import anyio
import anyio.to_thread

from callboard.adapters.extensions.discovery import DiscoveryNote, ExtensionPaths
from callboard.adapters.extensions.hook_sandbox import HookSandbox
from callboard.adapters.extensions.instructions import WorkspaceInstructions
from callboard.adapters.extensions.memory import Memories
from callboard.adapters.extensions.output_styles import find_voice
from callboard.adapters.extensions.plugins import read_plugins
from callboard.adapters.extensions.prompt import Guidance, WorkspacePrompts
from callboard.adapters.git.surroundings import WorkspaceSurroundings
from callboard.adapters.processes.launcher import ShellLauncher
from callboard.adapters.shell.policy_judge import PolicyJudge, TurnRights
from callboard.adapters.system.archive import FileArchive
from callboard.adapters.system.clock import SystemClock, SystemDice
from callboard.adapters.system.folder_watch import WatchFactory
from callboard.adapters.system.logs import EventLog, LogFile, log_file, log_metrics, logging_in_program, logging_to
from callboard.adapters.tools.backups import FileBackups
from callboard.adapters.tools.roots import RootCache
from callboard.config.hooks import add_entries, add_front_matter, add_plugins, fill_registry, sandbox_commands
from callboard.core.decoding import read_value
from callboard.core.keys import session_key
from callboard.core.mcp.catalog import Deferral
from callboard.core.permissions.values import HardRules
from callboard.engine.commands import create_session, naming_version, prompt_envelope, with_prompt
from callboard.engine.hooks.registry import HookRegistry
from callboard.engine.runtime import Services, SessionRuntime
from callboard.engine.team.renew import RepairResult, branch_lead, branch_of, first_records, repair
from callboard.engine.team.supervisor import Team
from callboard.ports.environment import Approver, Observer
from callboard.ports.store import Lease, Put, Row, Store
from callboard.sessions.agent_specs import AgentTypes, lead_of, search_notes
from callboard.sessions.attached import open_attached
from callboard.sessions.base import OpenSession
from callboard.sessions.checkpoints import Checkpoints, CheckpointTrigger, begin_checkpoints, keep_checkpoints
from callboard.sessions.compose import (
    memories_of,
    own_stages,
    require_price,
    rules_in_force,
    runtime_tools,
    session_budget,
    shared_transcripts,
    with_own,
)
from callboard.sessions.definitions import Definitions, agent_types, keep_reading, library_of
from callboard.sessions.enabled_plugins import plugins_in_force
from callboard.sessions.hosted import GO_ON, HostedSession, HostingFacts
from callboard.sessions.kept_lead import with_kept
from callboard.sessions.late_servers import Running
from callboard.sessions.lease import watch_take_over
from callboard.sessions.live.answers import guard_answers
from callboard.sessions.live.host import LiveHost
from callboard.sessions.mcp import SessionServers, find_servers, hold_servers
from callboard.sessions.model_source import ModelSource, open_replay_source, open_source
from callboard.sessions.notifications import add_notifications
from callboard.sessions.options import (
    ExtensionOptions,
    HostingOptions,
    IdentityOptions,
    ModelOptions,
    SessionOptions,
    WorkspaceOptions,
)
from callboard.sessions.prepare import PreparedSession, hold_session, prepare_session
from callboard.sessions.quick_imports import freeze_opened
from callboard.sessions.result import DeniedCalls, was_cut_short
from callboard.sessions.sandbox import launcher_of, serve_way_out
from callboard.sessions.stores import damaged_rows, keep_patience, patient_run, watch_cut_off
from callboard.sessions.vouching import can_announce
from callboard.sessions.workspaces import open_keeper
from callboard.types.agent_spec import AgentSpec
from callboard.types.errors import Fenced, SessionHosted, heart_of
from callboard.types.records import Envelope, HostRow, SessionRow
from callboard.types.settings import Settings

Attach = Literal["never", "if hosted", "only"]
"""Handling of a session that another process may host: host it or fail, host or follow it, follow it or fail."""


@asynccontextmanager
async def open_session(
    options: SessionOptions, *, observers: Sequence[Observer] = (), approvers: Sequence[Approver] = ()
) -> AsyncGenerator[HostedSession]:
    """Host a session, new or resumed, for as long as the block lasts; its journals stay for the next time.

    Raises, before the block or out of it, the errors of `PersonCanAct` for faults that a person can fix,
    `SessionHosted` if another process hosts the session, `SessionTakenOver` if another process is to host it
    (`IdentityOptions.take_over` of that process), and `NobodyCanAct` if the store is damaged, full or taken over.
    """
    resume = options.identity.resume and not options.identity.fork
    async with AsyncExitStack() as stack:
        prepared = await prepare_session(options, stack)
        row = prepared.row
        options = replace(options, lead=with_kept(options.lead, row.settings, resumed=resume))
        stack.enter_context(naming_version(row))
        lease, host_row = await hold_session(prepared, options.identity, stack)
        source = await stack.enter_async_context(open_model(prepared, options.model))
        launcher = await launcher_of(
            prepared.places, prepared.loaded, row.id, attended=prepared.attended, runs=prepared.runs_tools
        )
        definitions = await anyio.to_thread.run_sync(read_definitions, prepared, options)
        launcher = launcher.with_readable(definitions.library.folders())
        servers = await find_servers(prepared, options.mcp, definitions, project=options.workspace.reads("project"))
        prepared = prepared.with_notes(launcher.sandbox.choice.notice, *servers.refusals)
        hooks, hook_notes = build_hooks(prepared, definitions, launcher, options.extensions)
        root_cache = stack.enter_context(closing(RootCache(prepared.places.workspace)))
        denied = DeniedCalls()
        trigger = CheckpointTrigger(prepared.placed)
        log = EventLog(row.id, stack.enter_context(_open_log(prepared, options.hosting)))
        runtime = await build_runtime(
            prepared,
            options,
            lease,
            source=source,
            launcher=launcher,
            definitions=definitions,
            servers=servers,
            hooks=hooks,
            root_cache=root_cache,
            observers=(*observers, log, denied, trigger),
            approvers=approvers,
        )
        cut_short = resume and not options.identity.carry and await was_cut_short(prepared.store, row.id)
        team = Team(runtime, os.getpid())
        await runtime.load()  # before the first query of a front end
        repaired = await _repair_and_branch(runtime, options.identity)
        checkpoints = await begin_checkpoints(runtime, prepared.placed, prepared.places, trigger)
        refused = (*definitions.refusals(hook_notes), *repaired.notes, *_tool_notes(prepared, source, definitions))
        facts = replace(_facts(prepared, options, definitions, launcher), refused=refused, cut_short=cut_short)
        facts = replace(facts, backups=_backups(prepared, options.hosting, root_cache), checkpoints=checkpoints)
        session = HostedSession(prepared, team, source, options.hosting, denied=denied, facts=facts)
        if options.permissions.may_bypass:
            session.allow_bypass()
        if resume:
            # Before the agents run, so that the lead has these commands before its next model call.
            await _apply_options(options, session, prepared.loaded.settings, renewed=repaired.renewed)
        stack.callback(lambda: log_metrics(row.id, {agent.name: agent.metrics for agent in session.team()}))
        supervised = partial(run_supervisor, definitions=definitions, servers=servers.manager, checkpoints=checkpoints)
        async with supervised(team, source, host_row, launcher, live=prepared.live):
            yield session


async def _repair_and_branch(runtime: SessionRuntime, identity: IdentityOptions) -> RepairResult:
    """Repair a session, and go back to the point of its conversation from which it continues.

    Called before the agents run, because each of them first reads its row and its journal.
    """
    resume = identity.resume and not identity.fork
    damaged = damaged_rows(runtime.services.store, runtime.session)
    repaired = await repair(runtime, damaged, carry=resume and identity.carry)
    if resume and identity.point.message:
        await branch_lead(runtime, identity.point)
    return repaired


def _backups(prepared: PreparedSession, options: HostingOptions, root_cache: RootCache) -> FileBackups | None:
    """Return the copies of files from before tools change them; None if the options ask for none."""
    if not options.checkpoints:
        return None
    backups = FileBackups(prepared.places.session_data(prepared.row.id) / "file-history", root_cache)
    root_cache.keep = backups.keep
    return backups


def _tool_notes(prepared: PreparedSession, source: ModelSource, definitions: Definitions) -> tuple[str, ...]:
    """Return a line about tools that agent types name and that their agents do not get in this session."""
    return search_notes(prepared.loaded, source.chosen, definitions.types)


def _facts(
    prepared: PreparedSession, options: SessionOptions, definitions: Definitions, launcher: ShellLauncher
) -> HostingFacts:
    """Return the facts about a session that its options, its definitions, and its launcher state."""
    refused_plugins = tuple((note.path, note.reason) for note in definitions.plugin_notes if note.verdict == "refused")
    return HostingFacts(
        (),
        definitions.descriptions,
        definitions.look_again,
        launcher.level,
        plugins=definitions.files.plugins,
        refused_plugins=refused_plugins,
        voice=definitions.voice,
        # In a replay, the recording has the answers.
        answerable=prepared.replay is None and (prepared.attended or options.permissions.answerable),
    )


def open_as(
    attach: Attach, options: SessionOptions, observers: Sequence[Observer], approvers: Sequence[Approver]
) -> AbstractAsyncContextManager[OpenSession]:
    """Return the session, hosted or followed according to `attach`."""
    openers = {"never": open_session, "if hosted": open_or_attach, "only": open_attached}
    return openers[attach](options, observers=observers, approvers=approvers)


@asynccontextmanager
async def open_or_attach(
    options: SessionOptions, *, observers: Sequence[Observer] = (), approvers: Sequence[Approver] = ()
) -> AsyncGenerator[OpenSession]:
    """Host a session, or follow it if another process hosts it. Raises the exceptions of `open_session`."""
    async with AsyncExitStack() as stack:
        try:
            hosted = open_session(options, observers=observers, approvers=approvers)
            session: OpenSession = await stack.enter_async_context(hosted)
        except SessionHosted:
            attached = open_attached(options, observers=observers, approvers=approvers)
            session = await stack.enter_async_context(attached)
        yield session


def _open_log(prepared: PreparedSession, options: HostingOptions) -> AbstractContextManager[LogFile]:
    """Open the session's log for its agents' events, and for all logging if this process runs only this session."""
    folder = prepared.places.session_data(prepared.row.id) if prepared.replay else prepared.places.state / "log"
    alone = partial(logging_to, debug=options.debug)
    logged = log_file if options.shared is not None else logging_in_program if options.embedded else alone
    return logged(folder / f"{prepared.row.id}.jsonl")


async def _apply_options(options: SessionOptions, session: HostedSession, settings: Settings, *, renewed: bool) -> None:
    """Send the lead of a resumed session the changes of this run.

    The changes are its model, mode, limits, conversation, and a prompt. `renewed`: a repair already began a new
    conversation.
    """
    identity = options.identity
    if options.model.name is not None:
        await session.take_model()
    await session.take_flags(options.workspace.flags, settings)
    if identity.title:
        await session.name_session(identity.title, again=True)
    if options.lead.thinking is not None:
        await session.use_thinking(options.lead.thinking)
    if identity.carry and not renewed:
        await session.command("new", text="carry")
    if identity.carry or identity.prompt is not None:
        await session.say(identity.prompt or GO_ON)


def open_model(prepared: PreparedSession, options: ModelOptions) -> AbstractAsyncContextManager[ModelSource]:
    """Open the model of the session, with its recording or its replay."""
    loaded = prepared.loaded
    places = prepared.places
    row = prepared.row
    if prepared.replay is not None:
        return open_replay_source(prepared.replay, loaded, places, options.live_tools)
    model = str(row.settings["model"])
    return open_source(model, loaded, places, session=row.id, record=options.record, attended=prepared.attended)


async def build_runtime(
    prepared: PreparedSession,
    options: SessionOptions,
    lease: Lease,
    *,
    source: ModelSource,
    launcher: ShellLauncher,
    definitions: Definitions,
    servers: SessionServers,
    hooks: HookRegistry,
    root_cache: RootCache,
    observers: Sequence[Observer],
    approvers: Sequence[Approver],
) -> SessionRuntime:
    """Return the runtime that the session's agents share. A new session gets its first records.

    `observers` and `approvers` are all listeners of events and all approvers in this process. A recording or a replay
    wraps the ports once, here.
    """
    loaded = prepared.loaded
    types = _types_of(prepared, options, source, definitions)
    keeper = await open_keeper(prepared.places, prepared.store, loaded.environment, real=prepared.runs_tools)
    lead = await lead_of(types, options, keeper, prepared.row.id, forked=prepared.worktree)
    initial = definitions.types[lead.agent_type].initial_prompt
    row = await _save_row(prepared, options, lease, source, lead=lead, initial=initial)
    memories = memories_of(prepared.places, loaded, row.id)
    spawnable = types.descriptions(lead.agent_type)
    in_call = options.permissions.asks_in_call
    workspace = prepared.places.workspace
    tools = runtime_tools(loaded, workspace, spawnable, memories, root_cache=root_cache, asks_in_call=in_call)
    private = dict[str, set[str]]()
    services = replace(
        _build_ports(prepared, options, source, launcher, definitions=definitions, memories=memories),
        tools=servers.added_to(with_own(tools, options.extensions.tools), private),
        hooks=hooks,
        worktrees=keeper,
        servers=servers.manager,
        prompt_source=servers.prompts,
        own_servers=servers.own_servers,
        observers=observers,
        approvers=approvers,
    )
    budget = session_budget(loaded, row.settings.get("max_cost_usd"))
    require_price(source.chosen, loaded, budget)
    patient = servers.manager is None or options.mcp.wait or not prepared.attended
    return SessionRuntime(
        row.id,
        source.wrap(services),
        lease.fence,
        types.spec_of_spawned,
        max_agents=loaded.settings.team.max_agents,
        budget=budget,
        grants=types.budget_of,
        mailbox_limit=loaded.settings.team.mailbox,
        max_depth=loaded.settings.team.max_depth,
        deferral=Deferral(loaded.settings.mcp.deferred_over, loaded.settings.mcp.deferred_share),
        server_wait=None if patient else loaded.settings.mcp.wait,
        private_servers=private,
        moved=prepared.placed is not None and prepared.placed.moved,
    )


def _types_of(
    prepared: PreparedSession, options: SessionOptions, source: ModelSource, definitions: Definitions
) -> AgentTypes:
    return AgentTypes(
        definitions.types,
        prepared.loaded,
        source.chosen,
        prepared.attended,
        options.permissions.answerable,
        skills=definitions.library,
        voice=definitions.voice.text,
        environ=prepared.loaded.environment,
    )


def _build_ports(
    prepared: PreparedSession,
    options: SessionOptions,
    source: ModelSource,
    launcher: ShellLauncher,
    *,
    definitions: Definitions,
    memories: Memories,
) -> Services:
    """Return the ports of a session without tools, hooks, worktrees, servers and listeners."""
    places = prepared.places
    skills = definitions.library
    own = (Path.home(), places.config) if options.workspace.reads("user") else (None, None)
    project = options.workspace.reads("project")
    guidance = Guidance(WorkspaceInstructions(places.workspace, *own, project=project), memories)
    sandbox = launcher.sandbox.description()
    return Services(
        store=prepared.store,
        model=source.chosen.model,
        clock=SystemClock(),
        dice=SystemDice(),
        tools={},
        own=options.extensions.own,
        judge=build_judge(prepared, launcher),
        surroundings=WorkspaceSurroundings(places.workspace, prepared.loaded.environment, definitions.reminder),
        prompts=WorkspacePrompts(
            places.workspace,
            skills,
            appended="\n\n".join(filter(None, (options.lead.appended, options.lead.schema))),
            facts=source.facts,
            sandbox_facts=sandbox,
            guidance=guidance,
        ),
        instructions=guidance.instructions,
        remembered=memories,
        archive=FileArchive(
            places.workspace,
            places.session_data(prepared.row.id),
            (places.state, places.config),
            run=patient_run(prepared.store),
            skills=skills.folders(),
            shared=shared_transcripts(places, prepared.loaded, prepared.row, mirror=options.hosting.mirror)
            if options.hosting.persistent and not prepared.replay
            else None,
        ),
        launcher=launcher,
        skills=skills,
        hooks=HookRegistry(),
        stages=own_stages(prepared.loaded, places, options.extensions.stages),
        key_limiter=options.hosting.limiters(prepared.loaded.settings.rate.calls_at_once).of(source.chosen.key),
    )


async def _save_row(
    prepared: PreparedSession,
    options: SessionOptions,
    lease: Lease,
    source: ModelSource,
    *,
    lead: AgentSpec,
    initial: str,
) -> SessionRow:
    """Write the changes of this opening to the session's row, or a new session's first records; return the row.

    `initial`: the initial text of the lead's type.
    """
    store = prepared.store
    row = prepared.row
    stored = await store.get(session_key(row.id))
    if stored is not None and options.model.max_cost_usd is not None:  # kept for a later resume
        await store.commit(Put(stored.key, row.encode(), expected=stored.revision), fence=lease.fence)
    elif stored is not None:
        await _note_host(store, stored, row, lease)
    elif prepared.forked or prepared.copied:
        now = SystemClock().now()
        copied = prepared.copied
        if prepared.forked:
            copied = (await branch_of(store, prepared.forked, options.identity.point)).events(now)
        # A resumed session gets its prompt later, with the other changes of this run.
        row, first = _first_prompt(row, options.identity.prompt, "", source) if options.identity.fork else (row, None)
        records = first_records(row.id, lead, copied, now)
        await create_session(store, row, lead, fence=lease.fence, first=first, also=records)
    elif options.identity.resume:  # its row was damaged, and is written again
        await store.commit(Put(session_key(row.id), row.encode(), expected=0), fence=lease.fence)
    else:
        row, first = _first_prompt(row, options.identity.prompt, initial, source)
        await create_session(store, row, lead, fence=lease.fence, first=first)
    return row


async def _note_host(store: Store, stored: Row, row: SessionRow, lease: Lease) -> None:
    """Note in the session's row that a newer Callboard, or a person, hosts it from now on."""
    now = read_value(SessionRow, stored.value or b"", stored.key)
    runtime = {"callboard": row.callboard, "by_tool": row.by_tool}
    if (now.callboard, now.by_tool) != (row.callboard, row.by_tool):
        put = Put(stored.key, now.model_copy(update=runtime).encode(), expected=stored.revision)
        await store.commit(put, fence=lease.fence)


def build_judge(prepared: PreparedSession, launcher: ShellLauncher) -> PolicyJudge:
    """Return the judge of all calls of the session."""
    permission = prepared.loaded.settings.permission
    return PolicyJudge(
        rules_in_force(prepared.loaded, "allow"),
        rules_in_force(prepared.loaded, "ask"),
        rules_in_force(prepared.loaded, "deny"),
        HardRules(frozenset(permission.never), frozenset(permission.always_ask), permission.classic_dd),
        scheduled=TurnRights(permission.schedules.mode, permission.schedules.rules),
        sandbox=lambda: launcher.level,
        git_trusted=prepared.trust.git,
        network_open=lambda: launcher.sandbox.choice.network,
    )


def read_definitions(prepared: PreparedSession, options: SessionOptions) -> Definitions:
    """Read the agents and skills of the session as they are now, in the thread that calls."""
    loaded = prepared.loaded
    places = prepared.places
    files, notes = _find_files(prepared, options.workspace, options.extensions.plugins)
    library = library_of(files, loaded, places.state, options.extensions)
    voice = find_voice(files, loaded.settings.output_style, loaded.settings.language)
    definitions = Definitions(
        files,
        lambda agents: agent_types(agents, loaded, options.extensions, options.lead),
        library,
        places.config,
        by_flag=prepared.trust.how == "flag",
        plugin_notes=notes,
        voice=voice,
        watches=options.hosting.shared.watches if options.hosting.shared else WatchFactory(),
    )
    definitions.read()
    return definitions


def _find_files(
    prepared: PreparedSession, options: WorkspaceOptions, plugin_folders: Sequence[Path]
) -> tuple[ExtensionPaths, tuple[DiscoveryNote, ...]]:
    """Return the places of agents and skills (the workspace's as trusted), and notes on ignored parts of plugins."""
    places = prepared.places
    trust = prepared.trust
    named = plugin_folders or tuple(map(Path, prepared.row.settings.get("plugins", ())))
    enabled, enabled_notes = plugins_in_force(prepared.loaded, places) if options.reads("user") else ((), ())
    plugins, notes = read_plugins((*named, *enabled))
    config, home = (places.config, Path.home()) if options.reads("user") else (None, None)
    workspace = places.workspace if options.reads("project") else None
    files = ExtensionPaths(
        workspace,
        config,
        home,
        trusted=trust.trusted,
        texts=options.reads_texts,
        workspace_claims=trust.workspace_claims,
        plugins=plugins,
    )
    return files, (*enabled_notes, *notes)


def _first_prompt(
    row: SessionRow, prompt: str | None, initial: str, source: ModelSource
) -> tuple[SessionRow, Envelope | None]:
    """Return the row, named by the prompt, and the lead's first envelope.

    The envelope has the initial text of the lead's type, then the person's prompt; None without both.
    """
    text = "\n\n".join(text for text in (initial, prompt) if text)
    if not text and prompt is None:
        return row, None
    nonce = source.nonce(secrets.token_hex(8))
    return with_prompt(row, prompt or initial), prompt_envelope(row.id, text, now=SystemClock().now(), nonce=nonce)


def build_hooks(
    prepared: PreparedSession, definitions: Definitions, launcher: ShellLauncher, extensions: ExtensionOptions
) -> tuple[HookRegistry, tuple[DiscoveryNote, ...]]:
    """Return the hooks of the session, and notes on the parts of hooks that are not honored.

    The workspace's hooks are used as they were read when trusted. The notes are on hooks of plugins, agents and skills.
    """
    workspace = prepared.places.workspace
    trust = prepared.trust
    environ = dict(prepared.loaded.environment)
    registry = fill_registry(
        prepared.loaded, workspace, environ, trusted=trust.trusted, workspace_claims=trust.workspace_claims
    )
    add_notifications(registry, prepared)
    front = add_front_matter(registry, prepared.loaded, definitions.files, definitions.types.values())
    notes = (*add_plugins(registry, prepared.loaded, definitions.files), *front)
    add_entries(registry, extensions.hooks, "person")
    claims = trust.workspace_claims if trust.trusted else None
    sandbox_commands(registry, HookSandbox(launcher, prepared.places.state / "hooks", claims), prepared.loaded)
    for function in extensions.hook_functions:
        registry.include(function)
    return registry, notes


def _report(runtime: SessionRuntime, line: str) -> None:
    runtime.notice("lead", line)


@asynccontextmanager
async def run_supervisor(
    team: Team,
    source: ModelSource,
    host_row: HostRow,
    launcher: ShellLauncher,
    *,
    definitions: Definitions,
    servers: Running | None,
    checkpoints: Checkpoints | None,
    live: Path | None,
) -> AsyncGenerator[None]:
    """Run the team while the block lasts, and make the last checkpoint once it has ended.

    An error that nobody can act on, and the request to leave, are raised by themselves, not in a group. Agents and
    skills are read again when their files change, but not in a replay. `live`: the folder of the socket for followers.
    """
    runtime = team.runtime
    tell = partial(_report, runtime)
    try:
        async with keep_checkpoints(checkpoints), hold_servers(servers, tell), anyio.create_task_group() as group:
            await group.start(serve_way_out, launcher)
            if live is not None:
                await group.start(partial(LiveHost(runtime).serve, live, host_row))
            if live is not None and launcher.level == 0 and can_announce(runtime.services.store):
                await group.start(partial(guard_answers, runtime, live, host_row))
            if source.schedules:
                group.start_soon(keep_reading, definitions, tell)
            group.start_soon(keep_patience, runtime.services.store, tell)
            group.start_soon(watch_cut_off, runtime.services.store, runtime.fence)
            group.start_soon(team.run, source.schedules)
            group.start_soon(source.feed, runtime)
            group.start_soon(watch_take_over, runtime.services.store, runtime.session, host_row)
            freeze_opened()
            try:
                yield
            finally:
                await team.hook_notifier.end()
                await team.keep()
                await runtime.check_answers()
            group.cancel_scope.cancel()
    except BaseExceptionGroup as failed:
        raise _with_resume(heart_of(failed), runtime.session) from failed


def _with_resume(error: BaseException, session: str) -> BaseException:
    """Add to the loss of a lease how the session goes on."""
    if not isinstance(error, Fenced):
        return error
    return Fenced(f"{error}. `callboard resume {session}` continues the session, unless a `callboard serve` does")

"""Opening a session: hosted by this process, or followed if another process hosts it (`opened`).

Read `open_session` from top to bottom, one part after the other.

    async with open_session(options, observers=[...]) as session:
        await session.say("Fix the failing test")
        end = await session.finished()

Nothing is decided here that a rule could decide. The builders follow in the order of their calls: model, definitions,
hooks, runtime, supervisor. Each takes the prepared session and its part of the options (`options.py`); what it returns
is not changed afterwards, and all that hear of events are handed in.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, asynccontextmanager, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import anyio
import anyio.to_thread
import structlog

from callboard.adapters.extensions.agents import AgentFile
from callboard.adapters.extensions.discovery import DiscoveryNote, ExtensionPaths
from callboard.adapters.extensions.hook_sandbox import HookWalls
from callboard.adapters.extensions.instructions import WorkspaceInstructions
from callboard.adapters.extensions.memory import Memories
from callboard.adapters.extensions.plugins import read_plugins
from callboard.adapters.extensions.prompt import Guidance, WorkspacePrompts
from callboard.adapters.extensions.skills import SkillChoices, SkillLibrary, SkillUses
from callboard.adapters.git.memory import MemoryWorktrees
from callboard.adapters.git.surroundings import WorkspaceSurroundings
from callboard.adapters.git.worktrees import worktrees_of
from callboard.adapters.processes.launcher import ShellLauncher
from callboard.adapters.shell.policy_judge import PolicyJudge, TurnRights, parse_rules
from callboard.adapters.system.archive import FileArchive, make_private
from callboard.adapters.system.clock import SystemClock, SystemDice
from callboard.adapters.system.folder_watch import Watches
from callboard.adapters.system.logs import EventLog, LogFile, log_file, log_metrics, logging_beside, logging_to
from callboard.adapters.tools.roots import Grounds
from callboard.config.hooks import add_entries, add_front_matter, add_plugins, fill_registry, put_in_sandbox
from callboard.config.settings import LoadedSettings
from callboard.core.decoding import read_value
from callboard.core.keys import session_key
from callboard.core.mcp.catalog import Deferral
from callboard.core.permissions.judge import NOTE_TOOLS
from callboard.core.permissions.rule_match import rules_on_reading
from callboard.core.permissions.values import Floor, Rule
from callboard.engine.commands import create_session, named, naming_version, prompt_envelope
from callboard.engine.hooks.registry import HookRegistry
from callboard.engine.rate_limits.limiter import Governors
from callboard.engine.runtime import Host, Ports
from callboard.engine.team.renew import repair
from callboard.engine.team.supervisor import Team
from callboard.ports.environment import Approver, Observer
from callboard.ports.store import Lease, Put, Row, Store
from callboard.ports.tool import Tool
from callboard.ports.worktrees import WorktreeKeeper
from callboard.sessions.agent_specs import AgentTypes
from callboard.sessions.attached import open_attached
from callboard.sessions.base import OpenSession
from callboard.sessions.compose import (
    all_tools,
    damaged_rows,
    keep_patience,
    memories_of,
    own_stages,
    patiently,
    require_price,
    session_budget,
    with_own,
)
from callboard.sessions.definitions import Definitions, keep_reading
from callboard.sessions.hosted import GO_ON, HostedSession, HostingFacts
from callboard.sessions.lease import hold_lease, watch_take_over
from callboard.sessions.mcp import Running, SessionServers, find_servers, running
from callboard.sessions.options import (
    ExtensionOptions,
    HostingOptions,
    LeadOptions,
    ModelOptions,
    SessionOptions,
    SharedResources,
    WorkspaceOptions,
)
from callboard.sessions.prepare import PreparedSession, prepare_session
from callboard.sessions.replay import Replayed, Wiring, wired, wired_for_replay
from callboard.sessions.result import DeniedCalls, was_cut_short
from callboard.sessions.sandbox import launcher_of, serve_way_out
from callboard.types.agent_spec import AgentSpec
from callboard.types.errors import SessionHosted, heart_of
from callboard.types.records import Envelope, HostRow, SessionRow
from callboard.types.settings import Settings

Attach = Literal["never", "if hosted", "only"]
"""Handling of a session that another process may host: host it or fail, host or follow it, follow it or fail."""


@asynccontextmanager
async def open_session(
    options: SessionOptions, *, observers: Sequence[Observer] = (), approvers: Sequence[Approver] = ()
) -> AsyncGenerator[HostedSession]:
    """Host a session, new or resumed, for as long as the block lasts; its journals stay for the next time.

    Raises the errors of `PersonCanAct` for what a person can mend, `SessionHosted` when another process hosts it and
    `SessionTakenOver` when another is to host it (`IdentityOptions.take_over` of that one), and `NobodyCanAct` when the
    store is damaged, full or taken over: before the block, or out of it.
    """
    resume = options.identity.resume
    carry = resume and options.identity.carry
    async with AsyncExitStack() as stack:
        prepared = await prepare_session(options, stack)
        row = prepared.row
        places = prepared.places
        stack.enter_context(naming_version(row))
        lease, host_row = await stack.enter_async_context(
            hold_lease(prepared.store, row.id, options.identity.take_over)
        )
        make_private(places.session_data(row.id))
        wiring = await stack.enter_async_context(open_model(prepared, options.model))
        launcher = await launcher_of(
            places, prepared.loaded, row.id, attended=prepared.attended, runs=prepared.runs_tools
        )
        prepared = prepared.with_notes(launcher.sandbox.choice.notice)
        definitions = await anyio.to_thread.run_sync(read_definitions, prepared, options)
        launcher = launcher.showing(definitions.library.folders())
        servers = await find_servers(prepared, options.mcp, definitions, project=options.workspace.reads("project"))
        prepared = prepared.with_notes(*servers.refusals)
        hooks, hook_notes = build_hooks(prepared, definitions, launcher, options.extensions)
        denied = DeniedCalls()
        log = EventLog(row.id, stack.enter_context(_open_log(prepared, options.hosting)))
        runtime = await build_runtime(
            prepared,
            options,
            lease,
            wiring=wiring,
            launcher=launcher,
            definitions=definitions,
            servers=servers,
            hooks=hooks,
            grounds=stack.enter_context(closing(Grounds(places.workspace))),
            observers=(*observers, log, denied),
            approvers=approvers,
        )
        cut_short = resume and not carry and await was_cut_short(prepared.store, row.id)
        team = Team(runtime, os.getpid())
        await runtime.load()  # a front end may ask at once
        # Before the agents run: each of them begins by reading its row and its journal.
        repaired = await repair(runtime, damaged_rows(prepared.store, row.id), carry=carry)
        refused = (*definitions.refusals(hook_notes), *repaired.notes)
        facts = HostingFacts(refused, definitions.descriptions(), launcher.level, cut_short)
        session = HostedSession(prepared, team, wiring, options.hosting, denied=denied, facts=facts)
        if resume:
            # Before the agents run, so that the lead has these commands before its next model call.
            await _apply(options, session, prepared.loaded.settings, renewed=repaired.renewed)
        stack.callback(lambda: log_metrics(row.id, {agent.name: agent.metrics for agent in session.team()}))
        async with run_supervisor(team, wiring, host_row, launcher, definitions=definitions, servers=servers.manager):
            yield session


def opened(
    attach: Attach, options: SessionOptions, observers: Sequence[Observer], approvers: Sequence[Approver]
) -> AbstractAsyncContextManager[OpenSession]:
    """Return the session, hosted or followed as `attach` says."""
    ways = {"never": open_session, "if hosted": open_or_attach, "only": open_attached}
    return ways[attach](options, observers=observers, approvers=approvers)


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
    """Open the session's log, for the events of its agents and, where the process is ours alone, for all logging."""
    folder = prepared.places.session_data(prepared.row.id) if prepared.replay else prepared.places.state / "log"
    logged = log_file if options.shared is not None else logging_beside if options.embedded else logging_to
    return logged(folder / f"{prepared.row.id}.jsonl")


async def _apply(options: SessionOptions, session: HostedSession, settings: Settings, *, renewed: bool) -> None:
    """Send the lead of a resumed session what this run changes: its model, its mode and limits, its conversation, a
    prompt. `renewed`: a repair began its conversation anew already."""
    identity = options.identity
    if options.model.name is not None:
        await session.take_model()
    await session.take_flags(options.workspace.flags, settings)
    if identity.carry and not renewed:
        await session.command("new", text="carry")
    if identity.carry or identity.prompt is not None:
        await session.say(identity.prompt or GO_ON)


def open_model(prepared: PreparedSession, options: ModelOptions) -> AbstractAsyncContextManager[Wiring]:
    """Open the model of the session, with its recording or its replay."""
    places = prepared.places
    row = prepared.row
    if prepared.replay is not None:
        return wired_for_replay(prepared.replay, prepared.loaded, places, options.live_tools)
    model = str(row.settings["model"])
    return wired(model, prepared.loaded, places, session=row.id, record=options.record, attended=prepared.attended)


async def build_runtime(
    prepared: PreparedSession,
    options: SessionOptions,
    lease: Lease,
    *,
    wiring: Wiring,
    launcher: ShellLauncher,
    definitions: Definitions,
    servers: SessionServers,
    hooks: HookRegistry,
    grounds: Grounds,
    observers: Sequence[Observer],
    approvers: Sequence[Approver],
) -> Host:
    """Return what the agents of the session share; a new session gets its first records.

    `observers` and `approvers` are all that hear of events and answer requests in this process. A recording or a
    replay wraps the ports once, here.
    """
    loaded = prepared.loaded
    answerable = options.permissions.answerable
    types = AgentTypes(
        definitions.types, loaded, wiring.chosen, prepared.attended, answerable, skills=definitions.library
    )
    lead = _lead_of(types, options.lead, model_chosen=options.model.name is not None)
    initial = definitions.types[options.lead.agent_type].initial_prompt
    row = await _save_row(prepared, options, lease, wiring, lead=lead, initial=initial)
    memories = memories_of(prepared.places, loaded, row.id)
    tools = _runtime_tools(prepared, types.descriptions(options.lead.agent_type), memories, grounds)
    private = dict[str, set[str]]()
    ports = replace(
        _build_ports(prepared, options, wiring, launcher, definitions=definitions, memories=memories),
        tools=servers.added_to(with_own(tools, options.extensions.tools), private),
        hooks=hooks,
        worktrees=await open_worktree_keeper(prepared),
        servers=servers.manager,
        prompt_source=servers.prompts,
        brought=servers.brought,
        observers=observers,
        approvers=approvers,
    )
    budget = session_budget(loaded, row.settings.get("max_cost_usd"))
    require_price(wiring.chosen, loaded, budget)
    patient = servers.manager is None or options.mcp.wait or not prepared.attended
    return Host(
        row.id,
        wiring.wrap(ports),
        lease.fence,
        types.spawned,
        max_agents=loaded.settings.team.max_agents,
        budget=budget,
        grants=types.budget_of,
        mailbox_limit=loaded.settings.team.mailbox,
        max_depth=loaded.settings.team.max_depth,
        deferral=Deferral(loaded.settings.mcp.deferred_over, loaded.settings.mcp.deferred_share),
        server_wait=None if patient else loaded.settings.mcp.wait,
        private=private,
    )


def _runtime_tools(
    prepared: PreparedSession, types: Mapping[str, str], memories: Memories, grounds: Grounds
) -> dict[str, Tool]:
    """Return the tools of the runtime. `types`: descriptions of the agent types that the lead may start."""
    loaded = prepared.loaded
    return all_tools(
        types,
        prepared.places.workspace,
        rules_on_reading(rules_in_force(loaded, "deny"), rules_in_force(loaded, "ask")),
        memories,
        write=loaded.settings.memory.write != "off",
        grounds=grounds,
    )


def _build_ports(
    prepared: PreparedSession,
    options: SessionOptions,
    wiring: Wiring,
    launcher: ShellLauncher,
    *,
    definitions: Definitions,
    memories: Memories,
) -> Ports:
    """Return the ports of a session without tools, hooks, worktrees, servers, and those who listen."""
    places = prepared.places
    skills = definitions.library
    own = (Path.home(), places.config) if options.workspace.reads("user") else (None, None)
    project = options.workspace.reads("project")
    guidance = Guidance(WorkspaceInstructions(places.workspace, *own, project=project), memories)
    sandbox = launcher.sandbox.description()
    return Ports(
        store=prepared.store,
        model=wiring.chosen.model,
        clock=SystemClock(),
        dice=SystemDice(),
        tools={},
        own=options.extensions.own,
        judge=build_judge(prepared, launcher),
        surroundings=WorkspaceSurroundings(places.workspace, os.environ, definitions.reminder),
        prompts=WorkspacePrompts(
            places.workspace,
            skills,
            appended=options.lead.appended,
            facts=wiring.facts,
            walls=sandbox,
            brought=guidance,
        ),
        instructions=guidance.instructions,
        remembered=memories,
        archive=FileArchive(
            places.workspace,
            places.session_data(prepared.row.id),
            (places.state, places.config),
            run=partial(patiently, prepared.store),
            skills=skills.folders(),
        ),
        launcher=launcher,
        skills=skills,
        hooks=HookRegistry(),
        stages=own_stages(prepared.loaded, places, options.extensions.stages),
        governor=governors_of(options.hosting.shared, prepared.loaded).of(wiring.chosen.key),
    )


async def _save_row(
    prepared: PreparedSession,
    options: SessionOptions,
    lease: Lease,
    wiring: Wiring,
    *,
    lead: AgentSpec,
    initial: str,
) -> SessionRow:
    """Write what this opening changes in the session's row, or a new session's first records; return the row.
    `initial`: the text that the lead's type begins with."""
    store = prepared.store
    row = prepared.row
    stored = await store.get(session_key(row.id))
    if stored is not None and options.model.max_cost_usd is not None:  # a later resume keeps it
        await store.commit(Put(stored.key, row.encode(), expected=stored.revision), fence=lease.fence)
    elif stored is not None:
        await _note_version(store, stored, row.callboard, lease)
    elif options.identity.resume:  # its row was damaged, and is made again
        await store.commit(Put(session_key(row.id), row.encode(), expected=0), fence=lease.fence)
    else:
        row, first = _first_prompt(row, options.identity.prompt, initial, wiring)
        await create_session(store, row, lead, fence=lease.fence, first=first)
    return row


async def _note_version(store: Store, stored: Row, version: str, lease: Lease) -> None:
    """Note in the session's row that a newer Callboard hosts it from now on."""
    now = read_value(SessionRow, stored.value or b"", stored.key)
    if now.callboard != version:
        put = Put(stored.key, now.model_copy(update={"callboard": version}).encode(), expected=stored.revision)
        await store.commit(put, fence=lease.fence)


def library_of(files: ExtensionPaths, settings: Settings, state: Path) -> SkillLibrary:
    """Return the skills of a workspace, filtered by its settings; its state contains how often each was loaded."""
    characters = os.environ.get("SLASH_COMMAND_TOOL_CHAR_BUDGET", "")
    wishes = SkillChoices(
        overrides=settings.skills.overrides,
        longest=settings.skills.description,
        share=settings.skills.catalogue,
        characters=int(characters) if characters.isdecimal() else None,
        commands=settings.skills.commands,
    )
    return SkillLibrary(files, wishes, SkillUses(state / "skill-uses.json"))


def governors_of(shared: SharedResources | None, loaded: LoadedSettings) -> Governors:
    """Return the limiters of the process: one for each API key."""
    return shared.governors if shared else Governors(SystemClock(), loaded.settings.rate.calls_at_once)


def build_judge(prepared: PreparedSession, launcher: ShellLauncher) -> PolicyJudge:
    """Return the judge of all calls of the session."""
    permission = prepared.loaded.settings.permission
    return PolicyJudge(
        rules_in_force(prepared.loaded, "allow"),
        rules_in_force(prepared.loaded, "ask"),
        rules_in_force(prepared.loaded, "deny"),
        Floor(frozenset(permission.never), frozenset(permission.always_ask), permission.classic_dd),
        scheduled=TurnRights(permission.schedules.mode, permission.schedules.rules),
        sandbox=lambda: launcher.level,
        git_trusted=prepared.trust.git,
        network_open=lambda: launcher.sandbox.choice.network,
    )


def rules_in_force(loaded: LoadedSettings, kind: str) -> tuple[Rule, ...]:
    """Return the rules of a kind, each with the folder to which a leading `/` in it refers."""
    rules = parse_rules(getattr(loaded.settings.permission, kind), f"permission.{kind}", loaded.rule_bases(kind))
    if kind == "allow" and loaded.settings.memory.write == "allow":
        rules += parse_rules(sorted(NOTE_TOOLS), "memory.write")
    return rules


def read_definitions(prepared: PreparedSession, options: SessionOptions) -> Definitions:
    """Read the agents and skills of the session as they are now, in the thread that calls."""
    loaded = prepared.loaded
    places = prepared.places
    files, notes = _find_files(prepared, options.workspace, options.extensions.plugins)
    library = library_of(files, loaded.settings, places.state)
    definitions = Definitions(
        files,
        lambda agents: _agent_types(agents, loaded, options.extensions, options.lead),
        library,
        places.config,
        by_flag=prepared.trust.how == "flag",
        plugin_notes=notes,
        watches=options.hosting.shared.watches if options.hosting.shared else Watches(),
    )
    definitions.read()
    return definitions


def _find_files(
    prepared: PreparedSession, options: WorkspaceOptions, plugin_folders: Sequence[Path]
) -> tuple[ExtensionPaths, tuple[DiscoveryNote, ...]]:
    """Return the locations of agents and skills, with the workspace's content as it was trusted, and notes on the
    ignored parts of plugins."""
    places = prepared.places
    trust = prepared.trust
    plugins, notes = read_plugins(plugin_folders or tuple(map(Path, prepared.row.settings.get("plugins", ()))))
    config, home = (places.config, Path.home()) if options.reads("user") else (None, None)
    workspace = places.workspace if options.reads("project") else None
    files = ExtensionPaths(
        workspace,
        config,
        home,
        trusted=trust.trusted,
        texts=options.reads_texts,
        brought=trust.brought,
        plugins=plugins,
    )
    return files, notes


def _agent_types(
    agents: Mapping[str, AgentFile], loaded: LoadedSettings, extensions: ExtensionOptions, lead_options: LeadOptions
) -> Mapping[str, AgentFile]:
    """Return the agent types as the options change them; none with a mode that a settings file switches off."""
    agents = {**agents, **extensions.agents}
    lead = agents.get(lead_options.agent_type)
    if lead is not None:
        agents = {**agents, lead_options.agent_type: _chosen_lead(lead, lead_options, extensions.own)}
    if not loaded.bypass_off:
        return agents
    bound = {name: agent for name, agent in agents.items() if agent.permission_mode == "bypassPermissions"}
    return {**agents, **{name: replace(agent, permission_mode=None) for name, agent in bound.items()}}


def _chosen_lead(lead: AgentFile, options: LeadOptions, own_of_all: tuple[str, ...]) -> AgentFile:
    """Return the lead's type with the instructions and tools of the options.

    `tools` choose among the runtime's tools: those of the program (`own_of_all`) stay, unless they are disallowed by
    name.
    """
    lead = replace(lead, instructions=options.instructions or lead.instructions)
    own = lead.own
    if own is None and (options.tools is not None or lead.tools is None):
        own = own_of_all
    if own is not None:
        own = tuple(name for name in own if name not in options.disallowed)
    return replace(lead, tools=lead.tools if options.tools is None else options.tools, own=own)


def _first_prompt(
    row: SessionRow, prompt: str | None, initial: str, wiring: Wiring
) -> tuple[SessionRow, Envelope | None]:
    """Return the row, named by the prompt, and the lead's first envelope: the text that its type begins with, then the
    person's prompt. None: there is neither."""
    text = "\n\n".join(text for text in (initial, prompt) if text)
    if not text and prompt is None:
        return row, None
    nonce = wiring.nonce(secrets.token_hex(8))
    return named(row, prompt or initial), prompt_envelope(row.id, text, now=SystemClock().now(), nonce=nonce)


def _lead_of(types: AgentTypes, options: LeadOptions, *, model_chosen: bool) -> AgentSpec:
    """Return the spec of a new session's lead: a person's choice of model and effort counts before its file."""
    spec = types.lead(options.agent_type, options.disallowed, model_chosen=model_chosen)
    return spec.model_copy(update={"effort": options.effort}) if options.effort else spec


def build_hooks(
    prepared: PreparedSession, definitions: Definitions, launcher: ShellLauncher, extensions: ExtensionOptions
) -> tuple[HookRegistry, tuple[DiscoveryNote, ...]]:
    """Return the hooks of the session, the workspace's as they were read when trusted, and notes on the parts of hooks
    of plugins, agents and skills that are not honored."""
    workspace = prepared.places.workspace
    trust = prepared.trust
    environ = dict(os.environ)
    registry = fill_registry(prepared.loaded, workspace, environ, trusted=trust.trusted, brought=trust.brought)
    front = add_front_matter(registry, prepared.loaded, definitions.files, definitions.types.values())
    notes = (*add_plugins(registry, definitions.files), *front)
    add_entries(registry, extensions.hooks, "person")
    data = prepared.places.state / "hooks"
    put_in_sandbox(registry, HookWalls(launcher, data, trust.brought if trust.trusted else None))
    for function in extensions.hook_functions:
        registry.include(function)
    return registry, notes


async def open_worktree_keeper(prepared: PreparedSession) -> WorktreeKeeper:
    """Return the worktrees of the workspace, after cleaning up what a dead process left half-done. A replay has them in
    memory."""
    places = prepared.places
    if not prepared.runs_tools:
        return MemoryWorktrees(places.worktrees)
    keeper = worktrees_of(
        places.workspace, places.worktrees, prepared.store, environment=os.environ, clock=SystemClock()
    )
    for line in await keeper.recover():
        structlog.get_logger("callboard.worktrees").warning(line)
    return keeper


def _tell(host: Host, line: str) -> None:
    host.notice("lead", line)


@asynccontextmanager
async def run_supervisor(
    team: Team,
    wiring: Wiring,
    host_row: HostRow,
    launcher: ShellLauncher,
    *,
    definitions: Definitions,
    servers: Running | None,
) -> AsyncGenerator[None]:
    """Run the team while the block lasts. An error that nobody can act on, and the request to leave, are raised as
    themselves and not as a group. Agents and skills are read again when their files change, but not in a replay."""
    host = team.host
    tell = partial(_tell, host)
    try:
        async with running(servers, tell), anyio.create_task_group() as group:
            await group.start(serve_way_out, launcher)
            if not isinstance(wiring, Replayed):
                group.start_soon(keep_reading, definitions, tell)
            group.start_soon(keep_patience, host.ports.store, tell)
            group.start_soon(team.run, wiring.schedules)
            group.start_soon(wiring.feed, host)
            group.start_soon(watch_take_over, host.ports.store, host.session, host_row)
            try:
                yield
            finally:
                await team.informer.end()
                await team.keep()
            group.cancel_scope.cancel()
    except BaseExceptionGroup as failed:
        raise heart_of(failed) from failed

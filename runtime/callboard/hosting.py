"""Hosting a session: the one lease, everything that its agents share, and the team that lives while the block lasts."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import structlog

from callboard.adapters.agent_files import AgentFile
from callboard.adapters.archive import FileArchive
from callboard.adapters.clock import SystemClock, SystemDice
from callboard.adapters.files import Note
from callboard.adapters.files import Places as FilePlaces
from callboard.adapters.hook_files import HookEntry
from callboard.adapters.instructions import WorkspaceInstructions
from callboard.adapters.judging import PolicyJudge, TurnRights, parse_rules
from callboard.adapters.launcher import ShellLauncher
from callboard.adapters.memory_worktrees import MemoryWorktrees
from callboard.adapters.plugins import read_plugins
from callboard.adapters.prompting import Guidance, WorkspacePrompts
from callboard.adapters.skill_files import SkillLibrary, Wishes
from callboard.adapters.skill_uses import SkillUses
from callboard.adapters.surroundings import WorkspaceSurroundings
from callboard.adapters.worktrees import worktrees_of
from callboard.agent_types import AgentTypes
from callboard.assembly import all_tools, memories_of, own_stages, session_budget, with_own
from callboard.connecting import Running, running
from callboard.core.names import session_key
from callboard.core.permission.judge import NOTE_TOOLS
from callboard.core.permission.unread import rules_on_reading
from callboard.core.permission.values import Floor, Rule
from callboard.definitions import Definitions, keep_reading
from callboard.engine.governor import Governors
from callboard.engine.hooks.registry import HookRegistry
from callboard.engine.host import Host, Ports
from callboard.engine.sessions import create_session, named, prompt_envelope
from callboard.engine.supervision.team import Team
from callboard.hooking import add_entries, add_front_matter, add_plugins, fill_registry
from callboard.opening import Opened, Options
from callboard.ports.model import Delta
from callboard.ports.store import Lease, Put
from callboard.ports.worktrees import WorktreeKeeper
from callboard.sandboxing import serve_way_out
from callboard.settings import Loaded
from callboard.taking_over import heed_take_over
from callboard.taping import Wiring
from callboard.words.errors import heart_of
from callboard.words.settings_model import Settings
from callboard.words.specs import AgentSpec
from callboard.words.values import Envelope, HostRow, SessionRow


async def host_of(
    options: Options, opened: Opened, wiring: Wiring, lease: Lease, launcher: ShellLauncher, read: Definitions
) -> Host:
    """Everything that the agents of the session share; a new session gets its first records."""
    places, row, store, loaded = opened.places, opened.row, opened.store, opened.loaded
    settings = loaded.settings
    skills = read.library
    types = AgentTypes(read.types, loaded, wiring.chosen, opened.attended, options.answerable, skills)
    spec = _lead_of(types, options)
    kept = await store.get(session_key(row.id))
    if kept is not None and options.max_cost_usd is not None:  # a later resume keeps it
        await store.commit(Put(kept.key, row.encode(), expected=kept.revision), fence=lease.fence)
    elif kept is None:
        row, first = _first_words(row, options.prompt, read.types[options.lead_type].initial_prompt, wiring)
        await create_session(store, row, spec, lease.fence, first)
    rules = {kind: rules_in_force(loaded, kind) for kind in ("allow", "ask", "deny")}
    unread = rules_on_reading(rules["deny"], rules["ask"])
    memories, write = memories_of(places, loaded, row.id), settings.memory.write != "off"
    brought = Guidance(WorkspaceInstructions(places.workspace, Path.home(), places.config), memories)
    tools = all_tools(types.descriptions(options.lead_type), places.workspace, unread, memories, write=write)
    ports = Ports(
        store=store,
        model=wiring.chosen.model,
        clock=SystemClock(),
        dice=SystemDice(),
        tools=with_own(tools, options.tools),
        own=options.own,
        judge=judge_of(opened, rules, launcher),
        surroundings=WorkspaceSurroundings(places.workspace, os.environ, read.reminder),
        prompts=WorkspacePrompts(
            places.workspace, skills, options.appended, wiring.facts, launcher.sandbox.words(), brought
        ),
        instructions=brought.instructions,
        remembered=memories,
        archive=FileArchive(places.workspace, places.session_data(row.id), (places.state, places.config)),
        launcher=launcher,
        skills=skills,
        hooks=with_functions(hooks_of(opened, read, options.hooks), options),
        stages=own_stages(loaded, places, options.stages),
        worktrees=await worktrees_for(opened, live=opened.replay is None or options.live_tools),
        governor=governors_of(options, loaded).of(wiring.chosen.key),
    )
    budget = session_budget(loaded, row.settings.get("max_cost_usd"))
    spawned, team, budget_of = types.spawned, settings.team, types.budget_of
    host = Host(row.id, ports, lease.fence, spawned, team.max_agents, budget, budget_of, mailbox_limit=team.mailbox)
    host.max_depth = team.max_depth
    return host


def library_of(files: FilePlaces, settings: Settings, state: Path) -> SkillLibrary:
    """The skills of a workspace, as its settings want them shown; how often each was loaded stands in its state."""
    characters = os.environ.get("SLASH_COMMAND_TOOL_CHAR_BUDGET", "")
    wishes = Wishes(
        overrides=settings.skills.overrides,
        longest=settings.skills.description,
        share=settings.skills.catalogue,
        characters=int(characters) if characters.isdecimal() else None,
        commands=settings.skills.commands,
    )
    return SkillLibrary(files, wishes, SkillUses(state / "skill-uses.json"))


def governors_of(options: Options, loaded: Loaded) -> Governors:
    """Those of the process."""
    shared = options.shared
    return shared.governors if shared else Governors(SystemClock(), loaded.settings.rate.calls_at_once)


def judge_of(opened: Opened, rules: Mapping[str, Sequence[Rule]], launcher: ShellLauncher) -> PolicyJudge:
    """The judge of all calls of the session."""
    permission = opened.loaded.settings.permission
    judge = PolicyJudge(
        rules["allow"],
        rules["ask"],
        rules["deny"],
        Floor(frozenset(permission.never), frozenset(permission.always_ask), permission.classic_dd),
        scheduled=TurnRights(permission.schedules.mode, permission.schedules.rules),
        sandbox=lambda: launcher.level,
    )
    judge.git_trusted = opened.trust.git
    return judge


def rules_in_force(loaded: Loaded, kind: str) -> tuple[Rule, ...]:
    """The rules of a kind, each with the folder that a leading `/` means in it."""
    rules = parse_rules(getattr(loaded.settings.permission, kind), f"permission.{kind}", loaded.rule_bases(kind))
    if kind == "allow" and loaded.settings.memory.write == "allow":
        rules += parse_rules(sorted(NOTE_TOOLS), "memory.write")
    return rules


def definitions_of(options: Options, opened: Opened) -> Definitions:
    """The agents and skills of the session, read as they stand now."""
    loaded, places = opened.loaded, opened.places
    files, notes = files_of(opened, options)
    library = library_of(files, loaded.settings, places.state)
    read = Definitions(
        files,
        lambda found: agents_of(found, loaded, options),
        library,
        places.config,
        by_flag=opened.trust.how == "flag",
        plugin_notes=notes,
    )
    read.read()
    return read


def files_of(opened: Opened, options: Options) -> tuple[FilePlaces, tuple[Note, ...]]:
    """Where agents and skills are found; the workspace's as they were read when they were trusted. Beside it what of
    the plugins is not honoured."""
    places, trust = opened.places, opened.trust
    plugins, notes = read_plugins(options.plugins or tuple(map(Path, opened.row.settings.get("plugins", ()))))
    config, home, brought = places.config, Path.home(), trust.brought
    found = FilePlaces(places.workspace, config, home, trusted=trust.trusted, brought=brought, plugins=plugins)
    return found, notes


def agents_of(found: Mapping[str, AgentFile], loaded: Loaded, options: Options) -> Mapping[str, AgentFile]:
    """The agent types, with what `options` say of them; none with a mode that a settings file switches off."""
    found = {**found, **options.agents}
    lead = found.get(options.lead_type)
    if lead is not None and (options.instructions or options.lead_tools is not None):
        tools = lead.tools if options.lead_tools is None else options.lead_tools
        lead = replace(lead, instructions=options.instructions or lead.instructions, tools=tools)
        found = {**found, options.lead_type: lead}
    if not loaded.bypass_off:
        return found
    bound = {name: one for name, one in found.items() if one.permission_mode == "bypassPermissions"}
    return {**found, **{name: replace(one, permission_mode=None) for name, one in bound.items()}}


def _first_words(
    row: SessionRow, prompt: str | None, initial: str, wiring: Wiring
) -> tuple[SessionRow, Envelope | None]:
    """The row, which bears the first words, and what the lead hears first: what its type begins with, then what the
    person says. None: nobody has said anything yet."""
    words = "\n\n".join(text for text in (initial, prompt) if text)
    if not words and prompt is None:
        return row, None
    nonce = wiring.nonce(secrets.token_hex(8))
    return named(row, prompt or initial), prompt_envelope(row.id, words, now=SystemClock().now(), nonce=nonce)


def _lead_of(types: AgentTypes, options: Options) -> AgentSpec:
    """The spec of a new session's lead: what a person says of its model and effort counts before its file."""
    spec = types.lead(options.lead_type, options.disallowed, model_chosen=options.model is not None)
    return spec.model_copy(update={"effort": options.effort}) if options.effort else spec


def hooks_of(opened: Opened, read: Definitions, given: Iterable[HookEntry] = ()) -> HookRegistry:
    """The hooks of the session; the workspace's as they were read when they were trusted. `given`: of this run. What
    is not honoured of those of plugins, agents and skills is told with the rest of `read`."""
    workspace, trust = opened.places.workspace, opened.trust
    environ, trusted = dict(os.environ), trust.trusted
    registry = fill_registry(opened.loaded, workspace, environ, trusted=trusted, brought=trust.brought)
    front = add_front_matter(registry, opened.loaded, read.files, read.types.values())
    read.hook_notes = (*add_plugins(registry, read.files), *front)
    add_entries(registry, given, "person")
    return registry


async def worktrees_for(opened: Opened, *, live: bool) -> WorktreeKeeper:
    """The worktrees of the workspace, what a dead process left half-done put in order. A replay only tells of them."""
    places = opened.places
    if not live:
        return MemoryWorktrees(places.worktrees)
    keeper = worktrees_of(places.workspace, places.worktrees, opened.store, os.environ, SystemClock())
    for line in await keeper.recover():
        structlog.get_logger("callboard.worktrees").warning(line)
    return keeper


def _tell(host: Host, line: str) -> None:
    host.streamed("lead", Delta("notice", line))


def with_functions(registry: HookRegistry, options: Options) -> HookRegistry:
    """The hooks with the Python functions of the program that opens the session."""
    for function in options.hook_functions:
        registry.include(function)
    return registry


@asynccontextmanager
async def hosting(
    team: Team,
    wiring: Wiring,
    mine: HostRow,
    launcher: ShellLauncher,
    read: Definitions | None,
    servers: Running | None = None,
) -> AsyncGenerator[None]:
    """The team lives while the block lasts. What nobody can act on, and the word to leave, are raised as themselves and
    not as a group. `read`: the agents and skills that are read again when their files change; None: they are not."""
    try:
        async with running(servers, partial(_tell, team.host)), anyio.create_task_group() as group:
            await group.start(serve_way_out, launcher)
            if read is not None:
                group.start_soon(keep_reading, read, partial(_tell, team.host))
            group.start_soon(team.run, wiring.schedules)
            group.start_soon(wiring.feed, team.host)
            group.start_soon(heed_take_over, team.host.ports.store, team.host.session, mine)
            try:
                yield
            finally:
                await team.informer.end()
            group.cancel_scope.cancel()
    except BaseExceptionGroup as failed:
        raise heart_of(failed) from failed

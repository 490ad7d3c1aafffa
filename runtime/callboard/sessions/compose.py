"""Choice of a session's parts: folders, store, model, tools, rules, prompts. Part of the composition root.

Adapters are imported when they are chosen, so that a command that needs none of them starts fast.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, Protocol

import anyio
import anyio.to_thread

from callboard.adapters.extensions.memory import Memories, MemoryPlaces
from callboard.adapters.extensions.stages import load_stage
from callboard.adapters.system.archive import CopiedLines, Mirror, SharedTranscripts
from callboard.adapters.system.clock import SystemClock
from callboard.adapters.tools.roots import RootCache
from callboard.config.other_services import other_service
from callboard.config.settings import LoadedSettings, pipelines_of
from callboard.core.context.stages.custom import is_own
from callboard.core.permissions.sensitive_paths import claude_folder
from callboard.core.permissions.values import Rule
from callboard.core.tool_access import clashes
from callboard.ports.model import Model
from callboard.ports.tool import Tool
from callboard.sessions.places import WorkspacePaths
from callboard.sessions.quick_imports import collector_paused
from callboard.types.agent_spec import ModelFacts, ModelLimits
from callboard.types.errors import CredentialsMissing, SettingsError, UsageError
from callboard.types.lazy_dataclass import dataclass
from callboard.types.messages import OwnStage
from callboard.types.model_names import without_long
from callboard.types.personal_settings import SearchSettings
from callboard.types.records import Budget, SessionRow

CASSETTE = "cassette"
"""Model of a replay: `cassette:FILE`."""


def shared_transcripts(
    places: WorkspacePaths, loaded: LoadedSettings, row: SessionRow, *, mirror: Mirror | None = None
) -> SharedTranscripts | None:
    """Return the places of transcripts for other programs; None if the settings turn them off.

    `mirror` gets all that is added to them: with it they are written in any case.
    """
    if not loaded.settings.paths.shared_transcripts and mirror is None:
        return None
    folder = claude_folder(Path.home(), os.environ)
    begun = CopiedLines.from_json(row.settings.get("transcript"))
    shared = SharedTranscripts(folder, places.workspace, row.id, mirror=mirror, begun=begun)
    days = loaded.settings.cleanup_days
    if days is not None:
        shared.remove_old(places.data, SystemClock().now() - days * 86_400)
    return shared if days != 0 or mirror is not None else None


# The model

_FACTS_WITHIN = 5.0
"""Most seconds to wait for the limits that a service states."""


@dataclass(frozen=True, slots=True)
class ModelSelection:
    """Model service, and the known facts about its models."""

    model: Model
    name: str
    """Name of the model, as in `AgentSpec.model`."""
    limits: Mapping[str, ModelLimits]
    fallbacks: tuple[str, ...] = ()
    plan: str | None = None
    """Model in plan mode; None: the same one."""
    key: str = ""
    """Digest of the key and of its service, by which users of the same key share their limits."""
    note: str = ""
    """Line about the service for the start of the session; empty: none."""


@asynccontextmanager
async def choose_model(
    model_name: str, loaded: LoadedSettings, places: WorkspacePaths, session: str
) -> AsyncGenerator[ModelSelection]:
    """Yield the model for `rehearsal:FILE`, or for the name of a model of the service. Closed at the end.

    Raises `CredentialsMissing`, `SettingsError`, and `UsageError` for a file that is missing in the name, and for a
    cassette.
    """
    kind, colon, file = model_name.partition(":")
    if kind in ("rehearsal", CASSETTE) and colon and not file:
        raise UsageError(f"the model {model_name} names no file: write {model_name}FILE")
    if kind == CASSETTE and colon:
        raise UsageError(f"{model_name} is a recorded session, which only a new `callboard run` plays: name a model")
    if kind == "rehearsal" and colon:
        async with _rehearsal(Path(file), places, session) as chosen:
            yield chosen
    else:
        settings = loaded.settings
        model = await anyio.to_thread.run_sync(_service, loaded)
        try:
            limits = await limits_of_all(model, loaded, model_name)
            other = other_service(loaded.environment)
            yield ModelSelection(
                model,
                model_name,
                limits,
                settings.fallback_models,
                settings.plan_model,
                _key_digest(loaded),
                other.note(model.host) if other is not None else "",
            )
        finally:
            with anyio.CancelScope(shield=True):
                await model.aclose()


def _key_digest(loaded: LoadedSettings) -> str:
    """Return the digest of the key, of the command that prints it, or of its profile, and of its service."""
    named = [loaded.environment.get(name, "").strip() for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")]
    profile = loaded.environment.get("ANTHROPIC_PROFILE", "")
    secret = next(filter(None, (*named, loaded.settings.api_key_helper, profile)), "")
    return hashlib.sha256(f"{loaded.settings.base_url or ''} {secret}".encode()).hexdigest()[:16]


class StatingModel(Model, Protocol):
    """Model service that may state the limits of its models."""

    host: str
    """Host of the service, for messages."""

    async def facts_of(self, model: str, timeout: float) -> ModelFacts:
        """Return the stated limits of a model; none if the service does not answer within `timeout` seconds."""
        ...

    async def renew_key(self) -> None:
        """Obtain the key if a command prints it. Raises `CredentialsMissing`."""
        ...


async def limits_of_all(model: StatingModel, loaded: LoadedSettings, model_name: str) -> dict[str, ModelLimits]:
    """Return the limits of the session's models. The service is asked for those of models that are not listed.

    Raises `CredentialsMissing` if the command for the key prints none.
    """
    settings = loaded.settings
    subagents = loaded.environment.get("CLAUDE_CODE_SUBAGENT_MODEL", "").strip()
    others = (settings.plan_model, settings.small_model, subagents and settings.model_id(subagents))
    names = (model_name, *settings.fallback_models, *filter(None, others))
    limits = {name: settings.limits_of(name) for name in names if name != "inherit"}
    await model.renew_key()

    async def ask(name: str) -> None:
        limits[name] = settings.with_facts(name, await model.facts_of(without_long(name)[0], _FACTS_WITHIN))

    async with anyio.create_task_group() as group:
        for name in [name for name, known_limits in limits.items() if known_limits.assumed]:
            group.start_soon(ask, name)
    return limits


async def stated_limits(loaded: LoadedSettings, name: str) -> ModelLimits:
    """Return the limits of one model, from its service if the model is not listed."""
    limits = loaded.settings.limits_of(name)
    if not limits.assumed:
        return limits
    try:
        model = await anyio.to_thread.run_sync(_service, loaded)
    except CredentialsMissing:  # this process has no key; the host has one
        return limits
    try:
        return (await limits_of_all(model, loaded, name))[name]
    except CredentialsMissing:
        return limits
    finally:
        with anyio.CancelScope(shield=True):
            await model.aclose()


def _service(loaded: LoadedSettings) -> StatingModel:
    """Return the real service. Loading certificates or the SDK's profiles takes time, so this runs in a thread."""
    with collector_paused():
        from callboard.adapters.models.anthropic.client import AnthropicModel
        from callboard.adapters.models.anthropic.credentials import KeyCommand
        from callboard.adapters.models.anthropic.faults import FaultTexts

    settings = loaded.settings
    environment = loaded.environment
    helper = settings.api_key_helper
    other = other_service(environment)
    return AnthropicModel(
        base_url=settings.base_url,
        api_key=environment.get("ANTHROPIC_API_KEY"),
        auth_token=environment.get("ANTHROPIC_AUTH_TOKEN"),
        key_command=KeyCommand(helper, environment, loaded.place(("api_key_helper",))) if helper else None,
        wording=FaultTexts(too_long=(*FaultTexts().too_long, *settings.recovery.too_long)),
        variables={name: environment[name] for name in loaded.variables},
        without_key=other.missing if other is not None else "",
    )


@asynccontextmanager
async def _rehearsal(scenario_file: Path, places: WorkspacePaths, session: str) -> AsyncGenerator[ModelSelection]:
    """Yield the rehearsal model over real HTTP and SSE on a loopback port of this process."""
    from callboard.adapters.models.anthropic.credentials import FixedKey
    from callboard.adapters.models.anthropic.http import HttpModel
    from callboard.adapters.models.anthropic.service import Route, ServiceConnections
    from callboard.adapters.models.rehearsal.emulator import EmulatorOptions, serve
    from callboard.adapters.models.rehearsal.scenario_file import load_scenario

    file = anyio.Path(scenario_file)
    if not await file.is_file():  # a session that was started in its workspace may be resumed from another folder
        file = anyio.Path(places.workspace, scenario_file)
    if not await file.is_file():
        raise SettingsError("there is no such scenario file", str(scenario_file))
    scenario = await anyio.to_thread.run_sync(load_scenario, Path(file))
    state = places.session_data(session) / "rehearsal.jsonl"
    server = await serve(scenario, options=EmulatorOptions(state=state, keep_bodies=0))
    # A key that no message contains by chance: keys are removed from the texts of a service.
    model = HttpModel(ServiceConnections(Route(server.url), FixedKey(secrets.token_hex(16))))
    limits = {
        name: ModelLimits(window=spec.window, max_output=spec.max_output) for name, spec in scenario.models.items()
    }
    others = tuple(name for name in limits if name != scenario.default_model)
    try:
        yield ModelSelection(model, scenario.default_model, limits, others)
    finally:
        with anyio.CancelScope(shield=True):
            await model.aclose()
            await server.aclose()


# Tools, stages and specs


def own_stages(
    loaded: LoadedSettings, places: WorkspacePaths, existing: Mapping[str, OwnStage] | None = None
) -> dict[str, OwnStage]:
    """Return the Python callables that the user's pipelines name.

    `existing`: those that are already available. Raises `SettingsError` for one that cannot be loaded.
    """
    stages: dict[str, OwnStage] = dict(existing or {})
    for address, chosen in pipelines_of(loaded.settings).items():
        for number, spec in enumerate(() if isinstance(chosen, str) else chosen):
            if not is_own(spec.stage) or spec.stage in stages:
                continue
            try:
                stages[spec.stage] = load_stage(spec.stage, places.config / "stages", places.workspace)
            except ValueError as wrong:
                raise SettingsError(str(wrong), loaded.place((*address, number))) from wrong
    return stages


def rules_in_force(loaded: LoadedSettings, kind: str) -> tuple[Rule, ...]:
    """Return the rules of a kind, each with the folder to which a leading `/` in it refers."""
    from callboard.adapters.shell.policy_judge import parse_rules
    from callboard.core.permissions.judge import NOTE_TOOLS

    rules = parse_rules(getattr(loaded.settings.permission, kind), f"permission.{kind}", loaded.rule_bases(kind))
    if kind == "allow":
        rules += parse_rules(loaded.folder_rules(), "permission.directories")
    if kind == "allow" and loaded.settings.memory.write == "allow":
        rules += parse_rules(sorted(NOTE_TOOLS), "memory.write")
    return rules


def memories_of(places: WorkspacePaths, loaded: LoadedSettings, session: str = "") -> Memories:
    """Return the notes of a session's agents; without a session, those of the workspace and the user."""
    where = MemoryPlaces(places.workspace, Path.home(), places.config, places.data, session)
    return Memories(where, loaded.settings.memory.notes)


def all_tools(
    types: Mapping[str, str],
    workspace: Path,
    unread: Sequence[Rule] = (),
    memories: Memories | None = None,
    *,
    write: bool = True,
    root_cache: RootCache | None = None,
    search: SearchSettings | None = None,
    asks_in_call: bool = False,
    background_s: float | None = None,
) -> dict[str, Tool]:
    """Return every tool of the runtime.

    `types`: agent types and when to use each, for the model. `unread`: rules that deny reading files or ask about it.
    `memories`: the notes, which only `write` allows to change. `asks_in_call`: a question's call has the answer as its
    result. `background_s`: seconds after which a command in the background is ended.
    """
    from callboard.adapters.tools.board import board_tools
    from callboard.adapters.tools.control import control_tools, skill_tools
    from callboard.adapters.tools.cron import cron_tools
    from callboard.adapters.tools.files import file_tools
    from callboard.adapters.tools.memory import note_tools
    from callboard.adapters.tools.notebooks import notebook_tools
    from callboard.adapters.tools.plan_and_report import plan_tools
    from callboard.adapters.tools.search import Searcher, find_rg, search_tools
    from callboard.adapters.tools.shell import background_tools, shell_tools
    from callboard.adapters.tools.team import team_tools
    from callboard.adapters.tools.todo import todo_tools
    from callboard.adapters.tools.web import web_tools
    from callboard.adapters.tools.worktrees import worktree_tools

    root_cache = root_cache or RootCache(workspace)
    changes = threading.Lock()
    searcher = Searcher(os.environ, find_rg(workspace, os.environ))
    families = (
        background_tools(searcher.lines),
        board_tools(),
        control_tools(types, asks_in_call=asks_in_call),
        cron_tools(),
        file_tools(root_cache, changes),
        notebook_tools(root_cache, changes),
        note_tools(memories or Memories(MemoryPlaces(workspace, workspace, workspace, workspace)), write=write),
        plan_tools(),
        search_tools(workspace, os.environ, unread, root_cache),
        shell_tools(background_s),
        skill_tools(),
        team_tools(types),
        todo_tools(),
        web_tools(workspace, os.environ, search or SearchSettings()),
        worktree_tools(),
    )
    tools = [tool for family in families for tool in family]
    if same := clashes(tool.spec.name for tool in tools):
        raise SettingsError(f"two tools have the same name: {', '.join(same[0])}")
    return {tool.spec.name: tool for tool in tools}


def runtime_tools(
    loaded: LoadedSettings,
    workspace: Path,
    types: Mapping[str, str],
    memories: Memories,
    *,
    root_cache: RootCache,
    asks_in_call: bool,
) -> dict[str, Tool]:
    """Return the tools of the runtime.

    `types`: descriptions of the agent types that the lead may start. `asks_in_call`: see `all_tools`.
    """
    from callboard.core.permissions.rule_match import rules_on_reading

    return all_tools(
        types,
        workspace,
        rules_on_reading(rules_in_force(loaded, "deny"), rules_in_force(loaded, "ask")),
        memories,
        write=loaded.settings.memory.write != "off",
        root_cache=root_cache,
        search=loaded.settings.search,
        asks_in_call=asks_in_call,
        background_s=loaded.settings.background.deadline,
    )


def with_own(tools: Mapping[str, Tool], own: Sequence[Tool]) -> dict[str, Tool]:
    """Return the tools of the runtime and those of the program that opens the session.

    Raises `UsageError` for a duplicate name.
    """
    names = [*tools, *(tool.spec.name for tool in own)]
    if same := clashes(names):
        raise UsageError(f"two tools have the name {', '.join(dict.fromkeys(same[0]))}: rename yours")
    return {**tools, **{tool.spec.name: tool for tool in own}}


def search_by(loaded: LoadedSettings, chosen: ModelSelection) -> Literal["service", "command", ""]:
    """Return what searches the web: the model service, the command of the settings, or nothing."""
    search = loaded.settings.search
    if search.command:
        return "command"
    vendors = loaded.settings.base_url is None and chosen.name.startswith("claude-")
    return "service" if search.by == "service" or (search.by == "auto" and vendors) else ""


def model_notes(chosen: ModelSelection) -> tuple[str, ...]:
    """Return the lines about the service, and about each model whose limits are assumed."""
    advice = "State them under `models` in settings.yaml"
    assumed = (f"{limits.assumed}. {advice}" for limits in chosen.limits.values() if limits.assumed)
    return (*filter(None, [chosen.note]), *assumed)


def require_price(chosen: ModelSelection, loaded: LoadedSettings, budget: Budget) -> None:
    """Raise `UnknownModel` if there is a budget in dollars for a model whose price is not known."""
    if budget.cost_usd is None:
        return
    for name, limits in chosen.limits.items():
        if not limits.priced:
            raise loaded.settings.price_needed(name)


def session_budget(loaded: LoadedSettings, *by_flags: float | None) -> Budget:
    """Return the session's budget.

    The first set cost limit of the flags (US dollars) overrides the limit of the settings.
    """
    settings = loaded.settings
    limits = (*by_flags, settings.budget.cost_usd, settings.limits.cost_usd)
    money = next((limit for limit in limits if limit is not None), None)
    return settings.budget.value().model_copy(update={"cost_usd": money})

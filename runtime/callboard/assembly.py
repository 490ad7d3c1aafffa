"""Chooses what a session stands on: folders, store, model, tools, rules, prompts. Part of the composition root.

Adapters are imported here when they are chosen, so that a command that needs none of them starts fast.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread
import platformdirs

from callboard.adapters.memories import Memories, MemoryPlaces
from callboard.adapters.stage_files import load_stage
from callboard.core.context.situation import OwnStage
from callboard.core.context.stages.own import is_own
from callboard.core.names import workspace_folder
from callboard.core.permission.values import Rule
from callboard.core.toolset import clashes
from callboard.ports.model import Model
from callboard.ports.store import Store
from callboard.ports.tool import Tool
from callboard.settings import Loaded, pipelines_of
from callboard.words.errors import SettingsError, UsageError, WorkspaceUnusable
from callboard.words.specs import ModelLimits
from callboard.words.values import Budget


@dataclass(frozen=True, slots=True)
class Places:
    """Where a workspace's things are kept. All absolute."""

    workspace: Path
    state: Path
    """The store and logs: denied to agents."""
    data: Path
    """Large results, transcripts, worktrees."""
    config: Path
    """The person's own settings, agents, skills."""

    @property
    def worktrees(self) -> Path:
        return self.data / "worktrees"

    def session_data(self, session: str) -> Path:
        return self.data / session


def find_places(workspace: Path, *, writable: bool = True) -> Places:
    """The folders of a workspace. Raises `WorkspaceUnusable` for one that is not there or cannot be written."""
    try:
        root = workspace.resolve(strict=True)
    except OSError as missing:
        raise WorkspaceUnusable(f"{workspace}: {missing.strerror}: give an existing folder with --cwd") from missing
    if not root.is_dir():
        raise WorkspaceUnusable(f"{root} is not a folder: give one with --cwd")
    if writable and not os.access(root, os.W_OK):
        raise WorkspaceUnusable(f"{root} cannot be written (read-only mount, or not yours): remount or copy it first")
    own = workspace_folder(root)
    return Places(
        workspace=root,
        state=platformdirs.user_state_path("callboard") / own,
        data=platformdirs.user_data_path("callboard") / own,
        config=platformdirs.user_config_path("callboard"),
    )


async def open_store(places: Places, durability: str) -> Store:
    """The workspace's store. Raises `WorkspaceUnusable`, `StoreDamaged`, `StoreFull`."""
    from callboard.adapters.sqlite import open_store as open_sqlite

    return await open_sqlite(places.state, durability="process" if durability == "process" else "full")


def damage_told(store: Store) -> tuple[str, ...]:
    """What a store found damaged and set aside, and what to do about it, a line each; empty for a sound one."""
    from callboard.adapters.sqlite import SqliteStore

    reports = store.damage if isinstance(store, SqliteStore) else ()
    return tuple(f"{one}. {DAMAGE_ADVICE}" for one in reports)


DAMAGE_ADVICE = "Put a backup in its place, or recover it (docs/store.md), then move what was set aside away"


# The model


@dataclass(frozen=True, slots=True)
class Chosen:
    """A model service, and what is known of the models behind it."""

    model: Model
    name: str
    """What `AgentSpec.model` says."""
    limits: Mapping[str, ModelLimits]
    fallbacks: tuple[str, ...] = ()
    key: str = ""
    """A digest of the key and of where it is used, by which those who share it know each other."""


@asynccontextmanager
async def choose_model(wanted: str, loaded: Loaded, places: Places, session: str) -> AsyncGenerator[Chosen]:
    """`rehearsal:FILE`, or the name of a model of the service. Closed at the end.

    Raises `CredentialsMissing`, `UnknownModel`, `SettingsError`.
    """
    kind, _, rest = wanted.partition(":")
    if kind == "rehearsal" and rest:
        async with _rehearsal(Path(rest), places, session) as chosen:
            yield chosen
    else:
        settings = loaded.settings
        names = (wanted, *settings.fallback_models, *([settings.small_model] if settings.small_model else []))
        limits = {name: settings.limits_of(name) for name in names}
        model = await anyio.to_thread.run_sync(_service, settings.base_url, tuple(settings.recovery.too_long))
        try:
            yield Chosen(model, wanted, limits, settings.fallback_models, _key_digest(settings.base_url))
        finally:
            with anyio.CancelScope(shield=True):
                await model.aclose()


def _key_digest(base_url: str | None) -> str:
    secret = os.environ.get("ANTHROPIC_API_KEY") or os.environ.get("ANTHROPIC_AUTH_TOKEN") or ""
    return hashlib.sha256(f"{base_url or ''} {secret.strip()}".encode()).hexdigest()[:16]


def _service(base_url: str | None, too_long: tuple[str, ...]) -> Model:
    """The real service. Importing its SDK takes a second, so this runs in a thread."""
    from callboard.adapters.anthropic import AnthropicModel
    from callboard.adapters.anthropic_faults import Wording

    wording = Wording(too_long=(*Wording().too_long, *too_long))
    key, token = os.environ.get("ANTHROPIC_API_KEY"), os.environ.get("ANTHROPIC_AUTH_TOKEN")
    return AnthropicModel(base_url=base_url, api_key=key, auth_token=token, wording=wording)


@asynccontextmanager
async def _rehearsal(scenario_file: Path, places: Places, session: str) -> AsyncGenerator[Chosen]:
    """The rehearsal model over real HTTP and SSE on a loopback port of this process."""
    from callboard.adapters.anthropic_http import HttpModel
    from callboard.adapters.rehearsal.client import Loopback
    from callboard.adapters.rehearsal.emulator import Options, serve
    from callboard.adapters.rehearsal.scenario_file import load_scenario

    if not await anyio.Path(scenario_file).is_file():
        raise SettingsError("there is no such scenario file", str(scenario_file))
    scenario = await anyio.to_thread.run_sync(load_scenario, scenario_file)
    state = places.session_data(session) / "rehearsal.jsonl"
    server = await serve(scenario, options=Options(state=state, keep_bodies=0))
    model = HttpModel(Loopback(server.url))
    limits = {
        name: ModelLimits(window=spec.window, max_output=spec.max_output) for name, spec in scenario.models.items()
    }
    others = tuple(name for name in limits if name != scenario.default_model)
    try:
        yield Chosen(model, scenario.default_model, limits, others)
    finally:
        with anyio.CancelScope(shield=True):
            await model.aclose()
            await server.aclose()


# Tools, stages and specs


def own_stages(loaded: Loaded, places: Places, given: Mapping[str, OwnStage] | None = None) -> dict[str, OwnStage]:
    """The Python callables that a person's pipelines name. `given`: those that are at hand already. Raises
    `SettingsError` for one that cannot be had."""
    found: dict[str, OwnStage] = dict(given or {})
    for address, chosen in pipelines_of(loaded.settings).items():
        for number, spec in enumerate(() if isinstance(chosen, str) else chosen):
            if not is_own(spec.stage) or spec.stage in found:
                continue
            try:
                found[spec.stage] = load_stage(spec.stage, places.config / "stages", places.workspace)
            except ValueError as wrong:
                raise SettingsError(str(wrong), loaded.place((*address, number))) from wrong
    return found


def memories_of(places: Places, loaded: Loaded, session: str = "") -> Memories:
    """The notes of a session's agents; without a session, those of the workspace and the person."""
    where = MemoryPlaces(places.workspace, Path.home(), places.config, places.data, session)
    return Memories(where, loaded.settings.memory.notes)


def all_tools(
    types: Mapping[str, str],
    workspace: Path,
    unread: Sequence[Rule] = (),
    memories: Memories | None = None,
    *,
    write: bool = True,
) -> dict[str, Tool]:
    """Every tool of the runtime. `types`: the agent types and when to use each, for the model to read. `unread`: the
    rules that deny reading files or ask for it. `memories`: the notes, which are changed only with `write`."""
    from callboard.adapters.tools.background import background_tools
    from callboard.adapters.tools.board import board_tools
    from callboard.adapters.tools.control import control_tools
    from callboard.adapters.tools.cron import cron_tools
    from callboard.adapters.tools.files import file_tools
    from callboard.adapters.tools.notes import note_tools
    from callboard.adapters.tools.places import Grounds
    from callboard.adapters.tools.plan import plan_tools
    from callboard.adapters.tools.search import search_tools
    from callboard.adapters.tools.shell import shell_tools
    from callboard.adapters.tools.skills import skill_tools
    from callboard.adapters.tools.team import team_tools
    from callboard.adapters.tools.todo import todo_tools
    from callboard.adapters.tools.worktrees import worktree_tools

    grounds = Grounds(workspace)
    families = (
        background_tools(),
        board_tools(),
        control_tools(types),
        cron_tools(),
        file_tools(grounds),
        note_tools(memories or Memories(MemoryPlaces(workspace, workspace, workspace, workspace)), write=write),
        plan_tools(),
        search_tools(workspace, os.environ, unread, grounds),
        shell_tools(),
        skill_tools(),
        team_tools(types),
        todo_tools(),
        worktree_tools(),
    )
    tools = [tool for family in families for tool in family]
    if same := clashes(tool.spec.name for tool in tools):
        raise SettingsError(f"two tools go by one name: {', '.join(same[0])}")
    return {tool.spec.name: tool for tool in tools}


def with_own(tools: Mapping[str, Tool], own: Sequence[Tool]) -> dict[str, Tool]:
    """The tools of the runtime and those of the program that opens the session. Raises `UsageError` for a name that is
    taken."""
    names = [*tools, *(one.spec.name for one in own)]
    if same := clashes(names):
        raise UsageError(f"two tools go by one name: {', '.join(dict.fromkeys(same[0]))}: give yours another name")
    return {**tools, **{one.spec.name: one for one in own}}


def session_budget(loaded: Loaded, *asked: float | None) -> Budget:
    """What the session may use in all. `asked`: its money by flags (US dollars), the first that is one counts."""
    settings = loaded.settings
    known = (*asked, settings.budget.cost_usd, settings.limits.cost_usd)
    money = next((one for one in known if one is not None), None)
    return settings.budget.value().model_copy(update={"cost_usd": money})

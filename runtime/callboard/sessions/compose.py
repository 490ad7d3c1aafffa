"""Choice of a session's parts: folders, store, model, tools, rules, prompts. Part of the composition root.

Adapters are imported when they are chosen, so that a command that needs none of them starts fast.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread
import platformdirs

from callboard.adapters.extensions.memory import Memories, MemoryPlaces
from callboard.adapters.extensions.stages import load_stage
from callboard.adapters.tools.roots import Grounds
from callboard.config.settings import LoadedSettings, pipelines_of
from callboard.core.context.stages.custom import is_own
from callboard.core.keys import session_of, workspace_folder
from callboard.core.permissions.values import Rule
from callboard.core.tool_access import clashes
from callboard.ports.model import Model
from callboard.ports.store import Store
from callboard.ports.tool import Tool
from callboard.types.agent_spec import ModelLimits
from callboard.types.errors import SettingsError, UsageError, WorkspaceUnusable
from callboard.types.messages import OwnStage
from callboard.types.records import Budget

Notice = Callable[[str], None]
"""Receives what a command waits for. Called from another thread."""


@dataclass(frozen=True, slots=True)
class WorkspacePaths:
    """Folders of a workspace and its user. All paths are absolute."""

    workspace: Path
    state: Path
    """Store and logs: denied to agents."""
    data: Path
    """Large results, transcripts, worktrees."""
    config: Path
    """The user's own settings, agents, skills."""

    @property
    def worktrees(self) -> Path:
        return self.data / "worktrees"

    def session_data(self, session: str) -> Path:
        return self.data / session


def find_places(workspace: Path, *, writable: bool = True) -> WorkspacePaths:
    """Return the folders of a workspace. Raises `WorkspaceUnusable` for one that does not exist or cannot be
    written."""
    try:
        root = workspace.resolve(strict=True)
    except OSError as missing:
        raise WorkspaceUnusable(f"{workspace}: {missing.strerror}: give an existing folder with --cwd") from missing
    if not root.is_dir():
        raise WorkspaceUnusable(f"{root} is not a folder: give one with --cwd")
    if writable and not os.access(root, os.W_OK):
        raise WorkspaceUnusable(f"{root} cannot be written (read-only mount, or not yours): remount or copy it first")
    own = workspace_folder(root)
    return WorkspacePaths(
        workspace=root,
        state=platformdirs.user_state_path("callboard") / own,
        data=platformdirs.user_data_path("callboard") / own,
        config=platformdirs.user_config_path("callboard"),
    )


def log_notice(message: str) -> None:
    """Log what is waited for, for a program without its own output: the standard library's logging writes a warning to
    stderr unless the program has configured it."""
    logging.getLogger("callboard.store").warning("%s", message)


async def open_store(places: WorkspacePaths, durability: str, notice: Notice) -> Store:
    """Open the workspace's store. `notice` is called, from another thread, with the lock that is waited for; it has no
    default, so that no caller waits silently. Raises `WorkspaceUnusable`, `StoreDamaged`, `StoreFull`, `StoreBusy`."""
    from callboard.adapters.storage.sqlite import open_store as open_sqlite

    return await open_sqlite(places.state, durability="process" if durability == "process" else "full", notice=notice)


def damage_told(store: Store) -> tuple[str, ...]:
    """Return what a store set aside as damaged, and what to do; empty if there is nothing. One line for each kind, with
    the count if there are several."""
    from callboard.adapters.storage.sqlite import SqliteStore

    reports = store.damage if isinstance(store, SqliteStore) else ()
    kinds: dict[str, list[str]] = {}
    texts: dict[str, str] = {}
    for report in reports:
        kind = _kind_of_damage(report.what)
        kinds.setdefault(kind, []).append(report.set_aside)
        texts[kind] = str(report)
    return tuple(_damage_line(kind, places, texts[kind]) for kind, places in kinds.items())


def _kind_of_damage(part: str) -> str:
    if part == "the whole database":
        return "database"
    return "value" if part.startswith(("record ", "key ")) else "file"


def _damage_line(kind: str, places: Sequence[str], report: str) -> str:
    """Say what was set aside, where, and what to do. `report`: the text about it where there is one such thing."""
    folder = Path(places[-1]).parent
    several = len(places) > 1
    match kind:
        case "database":
            head = f"{len(places):,} damaged databases are set aside in {folder}, the newest is {Path(places[-1]).name}"
            advice = (
                f"`callboard restore {places[-1]}` brings back what can be read of it, `callboard restore BACKUP` a "
                "backup. Move the damaged file away when it is not needed any more"
            )
            advice = advice.replace("file away when it is", "files away when they are") if several else advice
        case "value":
            database = places[-1].partition(", table")[0]
            head = f"{len(places):,} damaged values are set aside in {database}, table damaged"
            its = "their sessions" if several else "its session"
            advice = (
                f"`callboard sessions` says whether {its} can go on as {'they are' if several else 'it is'}, and how"
            )
        case _:
            head = f"{len(places):,} damaged files are set aside in {folder}"
            it_is = "them away when they are" if several else "it away when it is"
            advice = f"The rest is used as it is. Move {it_is} not needed any more"
    return f"{head if several else report}. {advice}"


@contextmanager
def lasting(store: Store, tell: Callable[[str], None]) -> Generator[None]:
    """Let writes wait for a full disk or a stopped process until the block ends. `tell` is called in this event loop
    with the obstacle."""
    from callboard.adapters.storage.sqlite import SqliteStore
    from callboard.adapters.storage.sqlite.threads import run_soon, soon_here

    if not isinstance(store, SqliteStore):
        yield
        return
    soon = soon_here()
    with store.patience.lasting(lambda message: run_soon(soon, tell, message)):
        yield


async def patiently(store: Store, work: Callable[[], None]) -> None:
    """Run `work` in a thread, and again while the disk is full and a session is hosted here."""
    from callboard.adapters.storage.sqlite import SqliteStore

    await (store.patiently(work) if isinstance(store, SqliteStore) else anyio.to_thread.run_sync(work))


async def keep_patience(store: Store, tell: Callable[[str], None]) -> None:
    """Do the same until cancelled: then waiting writes end at once, so that their agents can leave."""
    with lasting(store, tell):
        await anyio.sleep_forever()


def damaged_sessions(store: Store) -> frozenset[str]:
    """Return the sessions with records that were set aside."""
    from callboard.adapters.storage.sqlite import SqliteStore

    reports = store.damage if isinstance(store, SqliteStore) else ()
    names = (report.what.rpartition(" stream ")[2].removeprefix("key ") for report in reports)
    return frozenset(session_of(name) for name in names) - {""}


def damaged_rows(store: Store, session: str = "") -> tuple[str, ...]:
    """The keys of a session's rows that were set aside; without a session, of all rows."""
    from callboard.adapters.storage.sqlite import SqliteStore

    reports = store.damage if isinstance(store, SqliteStore) else ()
    keys = (report.what.removeprefix("key ") for report in reports if report.what.startswith("key "))
    return tuple(key for key in keys if not session or session_of(key) == session)


# The model


@dataclass(frozen=True, slots=True)
class Chosen:
    """A model service, and the known facts about its models."""

    model: Model
    name: str
    """Name of the model, as in `AgentSpec.model`."""
    limits: Mapping[str, ModelLimits]
    fallbacks: tuple[str, ...] = ()
    key: str = ""
    """Digest of the key and of its service, by which users of the same key share their limits."""


@asynccontextmanager
async def choose_model(
    model_name: str, loaded: LoadedSettings, places: WorkspacePaths, session: str
) -> AsyncGenerator[Chosen]:
    """Yield the model for `rehearsal:FILE`, or for the name of a model of the service. Closed at the end.

    Raises `CredentialsMissing`, `SettingsError`.
    """
    kind, _, file = model_name.partition(":")
    if kind == "rehearsal" and file:
        async with _rehearsal(Path(file), places, session) as chosen:
            yield chosen
    else:
        settings = loaded.settings
        names = (model_name, *settings.fallback_models, *([settings.small_model] if settings.small_model else []))
        limits = {name: settings.limits_of(name) for name in names}
        model = await anyio.to_thread.run_sync(_service, settings.base_url, tuple(settings.recovery.too_long))
        try:
            yield Chosen(model, model_name, limits, settings.fallback_models, _key_digest(settings.base_url))
        finally:
            with anyio.CancelScope(shield=True):
                await model.aclose()


def _key_digest(base_url: str | None) -> str:
    secret = os.environ.get("ANTHROPIC_API_KEY") or os.environ.get("ANTHROPIC_AUTH_TOKEN") or ""
    return hashlib.sha256(f"{base_url or ''} {secret.strip()}".encode()).hexdigest()[:16]


def _service(base_url: str | None, too_long: tuple[str, ...]) -> Model:
    """Return the real service. Importing its SDK takes a second, so this runs in a thread."""
    from callboard.adapters.models.anthropic.client import AnthropicModel
    from callboard.adapters.models.anthropic.faults import Wording

    wording = Wording(too_long=(*Wording().too_long, *too_long))
    key = os.environ.get("ANTHROPIC_API_KEY")
    token = os.environ.get("ANTHROPIC_AUTH_TOKEN")
    return AnthropicModel(base_url=base_url, api_key=key, auth_token=token, wording=wording)


@asynccontextmanager
async def _rehearsal(scenario_file: Path, places: WorkspacePaths, session: str) -> AsyncGenerator[Chosen]:
    """Yield the rehearsal model over real HTTP and SSE on a loopback port of this process."""
    from callboard.adapters.models.anthropic.http import HttpModel
    from callboard.adapters.models.rehearsal.client import Loopback
    from callboard.adapters.models.rehearsal.emulator import EmulatorOptions, serve
    from callboard.adapters.models.rehearsal.scenario_file import load_scenario

    if not await anyio.Path(scenario_file).is_file():
        raise SettingsError("there is no such scenario file", str(scenario_file))
    scenario = await anyio.to_thread.run_sync(load_scenario, scenario_file)
    state = places.session_data(session) / "rehearsal.jsonl"
    server = await serve(scenario, options=EmulatorOptions(state=state, keep_bodies=0))
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


def own_stages(
    loaded: LoadedSettings, places: WorkspacePaths, existing: Mapping[str, OwnStage] | None = None
) -> dict[str, OwnStage]:
    """Return the Python callables that the user's pipelines name. `existing`: those that are already available. Raises
    `SettingsError` for one that cannot be loaded."""
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
    grounds: Grounds | None = None,
) -> dict[str, Tool]:
    """Return every tool of the runtime. `types`: agent types and when to use each, for the model. `unread`: rules that
    deny reading files or ask about it. `memories`: the notes, which only `write` allows to change."""
    from callboard.adapters.tools.board import board_tools
    from callboard.adapters.tools.control import control_tools, skill_tools
    from callboard.adapters.tools.cron import cron_tools
    from callboard.adapters.tools.files import file_tools
    from callboard.adapters.tools.memory import note_tools
    from callboard.adapters.tools.plan_and_report import plan_tools
    from callboard.adapters.tools.search import search_tools
    from callboard.adapters.tools.shell import background_tools, shell_tools
    from callboard.adapters.tools.team import team_tools
    from callboard.adapters.tools.todo import todo_tools
    from callboard.adapters.tools.worktrees import worktree_tools

    grounds = grounds or Grounds(workspace)
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
    """Return the tools of the runtime and those of the program that opens the session. Raises `UsageError` for a
    duplicate name."""
    names = [*tools, *(tool.spec.name for tool in own)]
    if same := clashes(names):
        raise UsageError(f"two tools go by one name: {', '.join(dict.fromkeys(same[0]))}: give yours another name")
    return {**tools, **{tool.spec.name: tool for tool in own}}


def model_notes(chosen: Chosen) -> tuple[str, ...]:
    """Return a line for each model whose limits are assumed, with the setting that states them."""
    advice = "State them under `models` in settings.yaml"
    return tuple(f"{limits.assumed}. {advice}" for limits in chosen.limits.values() if limits.assumed)


def require_price(chosen: Chosen, loaded: LoadedSettings, budget: Budget) -> None:
    """Raise `UnknownModel` if there is a budget in dollars for a model whose price is not known."""
    if budget.cost_usd is None:
        return
    for name, limits in chosen.limits.items():
        if not limits.priced:
            raise loaded.settings.price_needed(name)


def session_budget(loaded: LoadedSettings, *by_flags: float | None) -> Budget:
    """Return the session's budget. The first set cost limit of the flags (US dollars) overrides the limit of the
    settings."""
    settings = loaded.settings
    limits = (*by_flags, settings.budget.cost_usd, settings.limits.cost_usd)
    money = next((limit for limit in limits if limit is not None), None)
    return settings.budget.value().model_copy(update={"cost_usd": money})

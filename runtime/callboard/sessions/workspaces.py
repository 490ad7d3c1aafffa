"""The workspace of a session on this host: its own folder, or a clone of the remote at the last checkpoint.

    places, placed = await place_session(store, row, places, settings)

`place_session` prepares everything, under the lease of the session. A session without a remote stays where it is: its
workspace is a path that all hosts share, or that only one has.

A folder is recognised by an id that is stored next to the workspace's logs, never by its path: another machine may have
another folder there.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

import anyio.to_thread
import platformdirs
import structlog

from callboard.adapters.git.checkpoints import base_of, bring_to, bring_to_base, facts_of, fetch_session
from callboard.adapters.git.folders import find_folders
from callboard.adapters.git.git import Git
from callboard.adapters.git.memory import MemoryWorktrees
from callboard.adapters.git.repository import Repository
from callboard.adapters.git.settings import remotes_of
from callboard.adapters.git.worktrees import worktrees_of
from callboard.adapters.storage.file_locks import hold_lock
from callboard.adapters.system.archive import make_private
from callboard.adapters.system.clock import SystemClock
from callboard.core.checkpoints.address import RemoteAddress, check_base, parse_remote, without_credentials
from callboard.core.checkpoints.rules import safe_part
from callboard.core.decoding import read_value
from callboard.core.keys import WORKTREES, checkpoint_key
from callboard.core.team.worktrees import branch_of
from callboard.ports.store import Store
from callboard.ports.store_reading import rows_of
from callboard.ports.worktrees import WorktreeActor, WorktreeKeeper
from callboard.sessions.places import WorkspacePaths, find_places
from callboard.types.checkpoints import CheckpointPolicy, CheckpointRow
from callboard.types.errors import CallboardError, ToolRefused, UsageError, WorkspaceUnusable
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json, SessionRow
from callboard.types.settings import Settings

REMOTE = "workspace_remote"
BASE = "workspace_base"
"""Entries of a session's row."""


@dataclass(frozen=True, slots=True)
class PlacedWorkspace:
    """Workspace of a session with a remote, on this host."""

    remote: RemoteAddress
    base: str
    policy: CheckpointPolicy
    place: str
    """Id of the folder."""
    rows: Mapping[str, CheckpointRow] = field(default_factory=dict[str, CheckpointRow])
    """Newest checkpoints by worktree, as the previous host left them. Empty name: the workspace."""
    moved: bool = False
    """True if another folder was the session's workspace before."""
    restored: Mapping[str, str] = field(default_factory=dict[str, str])
    """Worktree -> commit of the checkpoint that was laid out here."""


def remote_of(settings: Settings, row: SessionRow | None = None) -> tuple[RemoteAddress, str] | None:
    """Return the remote and the base of a session: those of the person's settings, otherwise those of its row.

    None: its changes are not pushed.
    """
    stored = row.settings if row is not None else {}
    url = settings.workspace_remote or str(stored.get(REMOTE) or "")
    if not url:
        return None
    base = settings.workspace_base or ("" if settings.workspace_remote else str(stored.get(BASE) or ""))
    try:
        return parse_remote(url), check_base(base)
    except ValueError as error:
        raise UsageError(f"the remote of the session: {error}") from None


def remote_entries(settings: Settings) -> Json:
    """Return the entries about the remote for the row of a new session."""
    remote = remote_of(settings)
    return {} if remote is None else {REMOTE: remote[0].url, BASE: remote[1]}


async def place_here(places: WorkspacePaths, settings: Settings, row: SessionRow) -> PlacedWorkspace | None:
    """Return the workspace of a new session, which is the folder where it begins.

    Raises `UsageError` for a folder that is no checkout of the remote: its files would be pushed to a remote that has
    nothing to do with them.
    """
    remote = remote_of(settings, row)
    if remote is None:
        return None
    if not await anyio.to_thread.run_sync(is_checkout, places.workspace, remote[0]):
        raise UsageError(
            f"workspace_remote is {remote[0].url}, but no remote of the repository in {places.workspace} is: work in a "
            "clone of it, add it there (`git remote add`), or unset workspace_remote"
        )
    return PlacedWorkspace(*remote, settings.checkpoint, await anyio.to_thread.run_sync(place_id, places))


async def place_session(
    store: Store, row: SessionRow, places: WorkspacePaths, settings: Settings
) -> tuple[WorkspacePaths, PlacedWorkspace | None]:
    """Return the workspace of a session on this host, with its files. Call it with the lease of the session held.

    The folder stays that of the last checkpoint if it is on this host. Otherwise the host makes a clone in its data
    folder, with the worktrees, and brings it to the last checkpoint that the remote has. Raises `WorkspaceUnusable`.
    """
    named = remote_of(settings, row)
    if named is None:
        return places, None
    remote, base = named
    rows = await checkpoint_rows(store, row.id)
    at = await anyio.to_thread.run_sync(_existing_folder, places, row, rows.get(""), remote)
    if at is not None:
        place = await anyio.to_thread.run_sync(place_id, at)
        return at, PlacedWorkspace(remote, base, settings.checkpoint, place, rows)
    try:
        clone = await anyio.to_thread.run_sync(_clone_places, row.id, remote)
        place = await anyio.to_thread.run_sync(place_id, clone)
        async with hold_lock(clone.data / "clone.lock", wait=True):
            restored = await SessionClone(store, row.id, clone, remote.url, base).bring_up(rows)
    except (ToolRefused, OSError) as error:
        raise WorkspaceUnusable(
            f"the workspace of session {row.id} is not on this host, and cannot be cloned from {remote.url}: {error}"
        ) from error
    return clone, PlacedWorkspace(remote, base, settings.checkpoint, place, rows, "" in rows, restored)


def is_checkout(workspace: Path, remote: RemoteAddress) -> bool:
    """Return True if the repository in a folder has the remote, however its address is written. Blocks."""
    folders = find_folders(workspace)
    if folders is None:
        return False
    # As the repository states it, and as the person's own configuration of git rewrites it.
    stated = remotes_of(workspace, folders.common, Path(os.devnull))
    rewritten = remotes_of(workspace, folders.common, Path.home())
    urls = {url for urls in (*stated.values(), *rewritten.values()) for url in urls}
    return any(_identity(url, workspace) == _identity(remote.url, workspace) for url in urls)


def _identity(url: str, workspace: Path) -> str:
    """Return the identity of an address of a remote; empty for one that Callboard does not use."""
    plain = without_credentials(url)
    if plain.startswith((".", "/")):
        plain = os.path.realpath(workspace / plain)
    try:
        return parse_remote(plain).identity
    except ValueError:
        return ""


async def checkpoint_rows(store: Store, session: str) -> dict[str, CheckpointRow]:
    """Return the newest checkpoints of a session, by worktree; that of the workspace has an empty name."""
    rows = await rows_of(store, checkpoint_key(session))
    values = (read_value(CheckpointRow, row.value, row.key) for row in rows if row.value is not None)
    return {value.tree: value for value in values}


def place_id(places: WorkspacePaths) -> str:
    """Return the id of a workspace's folder on this machine; it gets one if it has none. Blocks."""
    file = places.state / "place"  # not in the data folder, which backups contain
    try:
        return file.read_text("utf-8").strip()
    except FileNotFoundError:
        make_private(places.state)
    part = places.state / f"place.{secrets.token_hex(8)}"
    part.write_text(secrets.token_hex(16), "utf-8")
    try:
        os.link(part, file)  # only one of several processes succeeds
    except FileExistsError:
        return file.read_text("utf-8").strip()
    finally:
        part.unlink()
    return file.read_text("utf-8").strip()


def _known_place(places: WorkspacePaths) -> str:
    try:
        return (places.state / "place").read_text("utf-8").strip()
    except OSError:
        return ""


def _existing_folder(
    places: WorkspacePaths, row: SessionRow, home: CheckpointRow | None, remote: RemoteAddress
) -> WorkspacePaths | None:
    """Return the folder where the session works already; None if that is not on this host. Blocks."""
    if home is None:  # no host has worked on it yet
        begun_here = str(places.workspace) == row.workspace and is_checkout(places.workspace, remote)
        return places if begun_here else None
    try:
        earlier = find_places(Path(home.folder))
    except CallboardError:
        return None
    return earlier if _known_place(earlier) == home.place else None


def clones_folder() -> Path:
    """Return the folder of all clones of this user."""
    return platformdirs.user_data_path("callboard") / "clones"


def _clone_places(session: str, remote: RemoteAddress) -> WorkspacePaths:
    name = remote.identity.rpartition("/")[2] or "workspace"
    folder = clones_folder() / safe_part(session) / safe_part(name)
    make_private(clones_folder())
    make_private(folder.parent)
    make_private(folder)
    places = find_places(folder)
    make_private(places.data)
    return places


def worktree_stream(places: WorkspacePaths) -> str:
    """Return the stream of the record of a workspace's worktrees. A clone has its own: its folders are only here."""
    in_clone = places.workspace.is_relative_to(clones_folder().resolve())
    return f"{WORKTREES}/{_known_place(places)}" if in_clone else WORKTREES


def keeper_of(places: WorkspacePaths, store: Store, environment: Mapping[str, str]) -> WorktreeKeeper:
    """Return the worktrees of a workspace. `environment`: the user's."""
    return worktrees_of(
        places.workspace,
        places.worktrees,
        store,
        environment=environment,
        clock=SystemClock(),
        stream=worktree_stream(places),
    )


async def open_keeper(
    places: WorkspacePaths, store: Store, environment: Mapping[str, str], *, real: bool
) -> WorktreeKeeper:
    """Return the worktrees of a workspace, after cleaning up the unfinished actions of a dead process.

    `real` False: for a replay, which has its worktrees in memory.
    """
    if not real:
        return MemoryWorktrees(places.worktrees)
    keeper = keeper_of(places, store, environment)
    for line in await keeper.recover():
        structlog.get_logger("callboard.worktrees").warning(line)
    return keeper


@dataclass(frozen=True, slots=True)
class SessionClone:
    """Clone of the workspace of a session in this host's data folder."""

    store: Store
    session: str
    places: WorkspacePaths
    url: str
    base: str

    async def bring_up(self, rows: Mapping[str, CheckpointRow]) -> dict[str, str]:
        """Bring the clone to the last checkpoint that the remote has. Return worktree -> commit.

        Raises `ToolRefused`.
        """
        environment = dict(os.environ)
        repo = await fetch_session(Git(self.places.workspace, environment), self.url, self.session, self.base)
        home = rows.get("")
        commits = {tree: commit for tree, row in rows.items() if (commit := await _newest_checkpoint(repo, row))}
        if "" in commits:
            await bring_to(repo, repo.workspace, commits[""], session=self.session, tree="")
        else:
            head = await repo.commit_of(home.head) if home is not None else ""
            start = (head, home.branch) if home is not None and head else await base_of(repo, self.url, self.base)
            await bring_to_base(repo, repo.workspace, *start)
        keeper = keeper_of(self.places, self.store, environment)
        for tree, commit in commits.items():
            if tree:
                await self._worktree(repo, keeper, rows[tree], commit)
        return commits

    async def _worktree(self, repo: Repository, keeper: WorktreeKeeper, row: CheckpointRow, commit: str) -> None:
        """Make a worktree of the session, and bring it to its checkpoint."""
        branch = branch_of(row.tree)
        if all(tree.name != row.tree for tree in await keeper.worktrees()):
            await repo.ask("update-ref", f"refs/heads/{branch}", (await facts_of(repo, commit)).head or commit)
            await keeper.create(row.tree, WorktreeActor(row.by or "runtime", self.session, row.call), branch)
            if row.kept_by:
                await keeper.keep(row.tree, WorktreeActor(row.kept_by, self.session))
        folder, _ = await keeper.open(row.tree)
        working_tree = await repo.working_tree(folder)
        if working_tree is None:
            raise ToolRefused(f"git knows no worktree in {folder}")
        await bring_to(repo, working_tree, commit, session=self.session, tree=row.tree)


async def _newest_checkpoint(repo: Repository, row: CheckpointRow) -> str:
    """Return the newest checkpoint that was fetched: the last host may have ended before it noted that it pushed."""
    return await repo.commit_of(row.commit) or await repo.commit_of(row.pushed)

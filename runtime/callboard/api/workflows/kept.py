"""The workflows of a workspace, read from its store: also those that nobody runs at the moment."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio

from callboard.api.errors import UsageError
from callboard.api.workflows.journal import records_of
from callboard.assembly import find_places, open_store
from callboard.core.names import DATABASE, by_beginning, host_lease, workflow_key
from callboard.ports.store import Store
from callboard.settings import load_settings
from callboard.words.workflows import WorkflowNoted, WorkflowRow


@dataclass(frozen=True, slots=True)
class Kept:
    """One run of a workflow. `steps`: the newest record of each, in the order in which they began."""

    session: str
    row: WorkflowRow
    steps: Sequence[WorkflowNoted]
    hosted: bool
    """A process hosts its session at the moment."""

    @property
    def status(self) -> str:
        """`running`, `cut off`, `done` or `failed`."""
        return "cut off" if self.row.status == "running" and not self.hosted else self.row.status


async def kept_workflows(workspace: Path) -> list[Kept]:
    """All of them, newest first, without their steps. Raises `WorkspaceUnusable`."""
    places = find_places(workspace, writable=False)
    if not await anyio.Path(places.state / DATABASE).exists():
        return []
    store = await open_store(places, load_settings(os.environ).settings.durability)
    try:
        return [await _kept(store, session, row) for session, row in await _rows(store)]
    finally:
        await store.aclose()


async def kept_workflow(workspace: Path, wanted: str | None) -> Kept:
    """The one of that id, or a beginning of it; None: the newest. Raises `UsageError` naming those there are."""
    places = find_places(workspace, writable=False)
    if not await anyio.Path(places.state / DATABASE).exists():
        raise UsageError(f"no workflow has run in {places.workspace} yet: callboard workflow run FILE:NAME")
    store = await open_store(places, load_settings(os.environ).settings.durability)
    try:
        rows = await _rows(store)
        session, row = _chosen(rows, wanted)
        kept = await _kept(store, session, row)
        newest = {one.step: one for one in await records_of(store, session, row.id)}
        return Kept(session, row, list(newest.values()), kept.hosted)
    finally:
        await store.aclose()


def _chosen(rows: Sequence[tuple[str, WorkflowRow]], wanted: str | None) -> tuple[str, WorkflowRow]:
    if wanted is None and rows:
        return rows[0]
    fitting = by_beginning([row.id for _, row in rows], wanted or "")
    if not fitting:
        there = ", ".join(row.id for _, row in rows[:8]) or "none"
        raise UsageError(f"{wanted or 'it'!r} is no workflow of this workspace; there are: {there}")
    if len(set(fitting)) > 1:
        raise UsageError(f"{wanted!r} fits {len(fitting)} workflows: {', '.join(fitting[:8])}")
    return next((session, row) for session, row in rows if row.id == fitting[0])


async def _rows(store: Store) -> list[tuple[str, WorkflowRow]]:
    found = [row for row in await store.keys(workflow_key("")[:2]) if row.value is not None]
    rows = [(row.key.split("/")[1], WorkflowRow.model_validate_json(row.value or b"")) for row in found]
    return sorted(rows, key=lambda one: -one[1].created_at)


async def _kept(store: Store, session: str, row: WorkflowRow) -> Kept:
    return Kept(session, row, (), await store.holder(host_lease(session)) is not None)

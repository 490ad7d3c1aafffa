"""Hosts of the store of a workspace, for commands: their list, and the order to hand sessions over."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from callboard.core.keys import drain_key
from callboard.ports.store import Delete, Put, Store
from callboard.sessions.inspect.hosts import StoreHosts, name_of, read_hosts
from callboard.sessions.inspect.serving import about_of
from callboard.sessions.person_actions import refuse_inside_tool
from callboard.sessions.places import Notice, find_places
from callboard.sessions.stores import has_store, open_store, own_settings
from callboard.types.choices import unknown
from callboard.types.errors import UsageError


async def list_hosts(workspace: Path, notice: Notice) -> StoreHosts:
    """Return the hosts of the store of a workspace."""
    async with _opened(workspace, notice) as store:
        return StoreHosts() if store is None else await read_hosts(store)


async def drain_host(workspace: Path, name: str, notice: Notice, *, drain: bool = True) -> tuple[str, ...]:
    """Ask the serving hosts with this name, or of this machine, to hand their sessions over; return their names.

    `drain`: False withdraws that, so that they take up sessions again. Raises `UsageError` if no host has the name.
    """
    refuse_inside_tool("drain a host")
    async with _opened(workspace, notice) as store:
        processes = [] if store is None else [each for each in await store.present() if about_of(each).serves]
        chosen = [each for each in processes if name in (name_of(each), each.machine)]
        if store is None or not chosen:
            raise UsageError(
                unknown("host", name, [name_of(each) for each in processes], where="that serves this store")
            )
        for process in chosen:
            key = drain_key(process.machine, process.holder.pid, process.holder.started)
            await store.commit(Put(key, b"{}") if drain else Delete(key))
        return tuple(name_of(process) for process in chosen)


@asynccontextmanager
async def _opened(workspace: Path, notice: Notice) -> AsyncGenerator[Store | None]:
    places = find_places(workspace, writable=False)
    settings = own_settings()
    if not has_store(places, settings):
        yield None
        return
    store = await open_store(places, settings, notice)
    try:
        yield store
    finally:
        await store.aclose()

"""A session that is only created here: a serving host runs it, on this machine or on another one.

    started = await start_detached(options)

The session is stored with its first prompt and its row among the sessions that need a host. No agent of it runs here.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, closing
from dataclasses import replace

import anyio.to_thread

from callboard.adapters.system.archive import make_private
from callboard.adapters.system.clock import SystemClock
from callboard.adapters.tools.roots import RootCache
from callboard.core.placement import why_waiting
from callboard.engine.commands import queue_write
from callboard.sessions.checkpoints import save_workspace
from callboard.sessions.inspect.hosts import choices_of
from callboard.sessions.lease import hold_lease
from callboard.sessions.mcp import find_servers
from callboard.sessions.open import build_hooks, build_runtime, open_model, read_definitions
from callboard.sessions.options import SessionOptions
from callboard.sessions.prepare import prepare_session
from callboard.sessions.sandbox import launcher_of
from callboard.types.errors import UsageError
from callboard.types.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class DetachedSession:
    """Session that was started for a serving host."""

    session: str
    waits: str
    """Reason why no host takes it now; empty if one does."""
    notes: tuple[str, ...] = ()
    """Notes on its configuration."""


async def start_detached(options: SessionOptions) -> DetachedSession:
    """Create a session that a serving host runs. Raises the errors of `open_session`, except those of a host."""
    if not options.identity.prompt:
        raise UsageError("a session that is detached needs a prompt")
    options = replace(
        options,
        identity=replace(options.identity, detached=True),
        permissions=replace(options.permissions, attended=False, answerable=True),
    )
    async with AsyncExitStack() as stack:
        prepared = await prepare_session(options, stack)
        if prepared.replay or not options.hosting.persistent:
            raise UsageError("a replay, or a session that is not kept, runs only here: omit --detach")
        row = prepared.row
        lease, _ = await stack.enter_async_context(hold_lease(prepared.store, row.id))
        make_private(prepared.places.session_data(row.id))
        source = await stack.enter_async_context(open_model(prepared, options.model))
        launcher = await launcher_of(prepared.places, prepared.loaded, row.id, attended=False, runs=True)
        definitions = await anyio.to_thread.run_sync(read_definitions, prepared, options)
        servers = await find_servers(prepared, options.mcp, definitions, project=options.workspace.reads("project"))
        hooks, _ = build_hooks(prepared, definitions, launcher, options.extensions)
        runtime = await build_runtime(
            prepared,
            options,
            lease,
            source=source,
            launcher=launcher,
            definitions=definitions,
            servers=servers,
            hooks=hooks,
            root_cache=stack.enter_context(closing(RootCache(prepared.places.workspace))),
            observers=(),
            approvers=(),
        )
        unsaved = await save_workspace(runtime, prepared.placed, prepared.places)
        # A session without this row after a crash here is one that nobody was told of; a person can resume it.
        await prepared.store.commit(queue_write(row.id, row.settings, SystemClock().now()), fence=lease.fence)
        waits = why_waiting(prepared.loaded.settings.placement, choices_of(await prepared.store.present()))
        return DetachedSession(row.id, waits, (*prepared.loaded.notes, *unsaved))

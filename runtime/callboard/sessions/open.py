"""Opening a session that this process hosts: read from top to bottom, one part after the other.

    async with open_session(options, observers=[...]) as session:
        await session.say("Fix the failing test")
        end = await session.finished()

Nothing is decided here that a rule could decide. Each builder takes its part of the options (`options.py`); what it
returns is not changed afterwards, and all that hear of events are handed in.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, closing

import anyio.to_thread

from callboard.adapters.system.archive import make_private
from callboard.adapters.system.logs import EventLog, LogFile, log_file, log_metrics, logging_beside, logging_to
from callboard.adapters.tools.roots import Grounds
from callboard.engine.commands import naming_version
from callboard.engine.team.renew import repair
from callboard.engine.team.supervisor import Team
from callboard.ports.environment import Approver, Observer
from callboard.sessions.compose import damaged_rows
from callboard.sessions.host import build_hooks, build_runtime, open_model, read_definitions, run_supervisor
from callboard.sessions.hosted import GO_ON, HostedSession, HostingFacts
from callboard.sessions.lease import hold_lease
from callboard.sessions.mcp import find_servers
from callboard.sessions.options import HostingOptions, SessionOptions
from callboard.sessions.prepare import PreparedSession, prepare_session
from callboard.sessions.result import DeniedCalls, was_cut_short
from callboard.sessions.sandbox import launcher_of
from callboard.types.settings import Settings


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

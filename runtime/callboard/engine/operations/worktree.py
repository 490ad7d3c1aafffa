"""Preparation of the folder in which an agent's tools run, and the session's worktrees with unmerged work.

If the folder was removed and cannot be restored, the agent is informed and does not continue there.
"""

from __future__ import annotations

from functools import partial

import anyio

from callboard.core.agent.rules.worktree import MOVE
from callboard.core.keys import short_id, task_key
from callboard.core.messaging.envelopes import envelope_write
from callboard.core.tasks import board as task_rules
from callboard.core.tasks.board import Holder
from callboard.engine.agent_runtime import AgentRuntime
from callboard.engine.hooks.caller import caller
from callboard.ports.store import Put, Write
from callboard.ports.worktrees import WorktreeKeeper
from callboard.types import events as ev
from callboard.types import hook_answers as hk
from callboard.types import steps as st
from callboard.types.errors import Conflict, ToolRefused
from callboard.types.messages import Injection
from callboard.types.records import Envelope


async def enter_folder(agent: AgentRuntime, step: st.EnterFolder) -> None:
    """Start to prepare the folder, as an operation, because git may be slow."""
    agent.start(MOVE, partial(_enter_folder, agent, step.worktree))


async def _enter_folder(agent: AgentRuntime, name: str) -> None:
    runtime = agent.runtime
    text = ""
    folder = ""
    assert runtime.services.worktrees is not None, "the rule asks where there are worktrees"
    bound = [
        task_id
        for task_id in agent.state.work.tasks
        if name and (row := runtime.rows.task(task_id)) and row[0].worktree == name
    ]
    if name:
        try:
            path, text = await runtime.services.worktrees.open(name)
        except ToolRefused as gone:
            await _handle_lost_folder(agent, name, bound, str(gone))
            return
        folder = str(path)
    me = agent.state.me
    events: list[ev.Event] = []
    if folder != me.folder:  # an agent that begins its life in a worktree has it in its spec, and in its prompt
        events.append(ev.SpecChanged(at=runtime.clock.now(), spec=me.model_copy(update={"folder": folder})))
        text = "\n".join(part for part in (text, _folder_text(name, folder)) if part)
    if text:
        injection = Injection(kind="system-reminder", text=text, key="folder")
        events.append(ev.InjectionQueued(at=runtime.clock.now(), injection=injection))
    if events:
        by = caller(agent.runtime, agent.state)
        await agent.record(*events)
        if folder != me.folder:
            runtime.listeners.inform(
                hk.CwdChanged(by.folder, caller(agent.runtime, agent.state).folder, caller(agent.runtime, agent.state))
            )
    runtime.note_folder_checked(agent.state)


async def _handle_lost_folder(agent: AgentRuntime, name: str, bound: list[str], reason: str) -> None:
    """Handle a folder that was lost.

    An agent that lives in it ends, the lead too: it must not work in the workspace instead. An agent that worked in it
    for a task has failed the task and continues elsewhere.
    """
    me = agent.state.me
    if bound:
        await _fail_tasks(agent, bound, reason)
    elif me.kind == "subagent" or me.worktree == name:
        await _stop_agent(agent, reason)
    else:
        await _end_turn(agent, name, reason)


def _folder_text(name: str, folder: str) -> str:
    if not name:
        return "Your file and shell tools run in the workspace again."
    return (
        f"Your file and shell tools now run in the git worktree {name} (branch wt/{name}): {folder}. Paths are relative"
        " to it. Its files are a copy: what you change there comes into the workspace when it is merged."
    )


async def _fail_tasks(agent: AgentRuntime, held: list[str], reason: str) -> None:
    """Fail the tasks that are bound to the folder: no agent does them in another folder."""
    runtime = agent.runtime
    while True:
        now = runtime.clock.now()
        holder = Holder(agent.name, agent.state.identity.incarnation)
        writes: list[Write] = []
        events: list[ev.Event] = []
        for row in filter(None, map(runtime.rows.task, held)):
            if holder.holds(row[0]):
                failed = task_rules.fail(row[0], holder, now, reason).model_copy(update={"worktree": None})
                writes.append(Put(task_key(runtime.session, failed.id), failed.encode(), expected=row[1]))
                events.append(ev.TaskHeld(at=now, task=failed.id, subject=failed.subject, held=False))
        text = f"Your task has failed: {reason}. Report that; do not do it in another folder."
        events.append(ev.InjectionQueued(at=now, injection=Injection(kind="system-reminder", text=text, key="folder")))
        try:
            await agent.record(*events, writes=writes)
            return
        except Conflict as lost:
            await runtime.refresh(lost.what)  # a row changed meanwhile, for example when the worktree was noted as gone


async def _end_turn(agent: AgentRuntime, name: str, reason: str) -> None:
    """End the turn, because its calls were meant for that folder and must not run in another one.

    A message begins the next turn, in the agent's own folder.
    """
    runtime = agent.runtime
    now = agent.runtime.clock.now()
    life = agent.state.identity.incarnation
    envelope = Envelope(
        id=short_id("env", runtime.session, agent.name, life, agent.state.turns.count, name),
        sender="runtime",
        recipient=agent.name,
        incarnation=life,
        type="error",
        content=f"You were interrupted: {reason}. Your calls in that folder no longer run. Continue without them.",
        mode="wake",
        cause="tool",
        sent_at=now,
    )
    await agent.record(ev.Interrupted(at=now, by="runtime"), writes=[envelope_write(runtime.session, envelope)])


async def _stop_agent(agent: AgentRuntime, reason: str) -> None:
    """End an agent whose own worktree is gone, and inform its lead."""
    runtime = agent.runtime
    now = agent.runtime.clock.now()
    lead = runtime.rows.agent("lead")
    writes: list[Write] = []
    if lead is not None and agent.name != "lead":
        envelope = Envelope(
            id=short_id("env", runtime.session, agent.name, agent.state.identity.incarnation, "worktree"),
            sender="runtime",
            recipient="lead",
            incarnation=lead[0].incarnation,
            type="error",
            content=f"{agent.name} cannot continue: {reason}. Give its work to another agent, or spawn it again.",
            cause="tool",
            sent_at=now,
        )
        writes.append(envelope_write(runtime.session, envelope))
    await agent.record(ev.StopAsked(at=now, by="runtime", why=reason), writes=writes)


AT_ONCE = 4
"""Most worktrees for which git runs at once."""


async def unmerged_worktrees(keeper: WorktreeKeeper | None, session: str) -> tuple[str, ...]:
    """Return the session's worktrees with unmerged work, oldest first, each with the amount of work."""
    trees = [] if keeper is None else [tree.name for tree in await keeper.worktrees() if tree.session == session]
    if keeper is None or not trees:
        return ()
    by_name = dict[str, str]()
    limiter = anyio.CapacityLimiter(AT_ONCE)
    async with anyio.create_task_group() as group:
        for name in trees:
            group.start_soon(partial(_add_losses, keeper, name, limiter, by_name))
    return tuple(f"{name}: {by_name[name]}" for name in trees if name in by_name)


async def _add_losses(
    keeper: WorktreeKeeper, name: str, limiter: anyio.CapacityLimiter, by_name: dict[str, str]
) -> None:
    async with limiter:
        try:
            lost = await keeper.losses(name)
        except ToolRefused:  # its folder is gone, so git reports nothing
            return
    files = len(lost.changed) + len(lost.untracked)
    parts = [(len(lost.commits), "unmerged commits"), (files, "uncommitted files")]
    text = ", ".join(f"{label}: {count}" for count, label in parts if count)
    if text:
        by_name[name] = text

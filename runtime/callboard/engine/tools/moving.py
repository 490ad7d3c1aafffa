"""Opens the folder that an agent's tools run in. What is gone for good is told: nobody goes on as if it were there."""

from __future__ import annotations

from functools import partial

from callboard.core.bus.mail import sending
from callboard.core.names import short_id, task_key
from callboard.core.tasks import laws
from callboard.core.tasks.laws import Holder
from callboard.core.team.moving import MOVE
from callboard.engine.loop import Agent
from callboard.engine.tools.calls import caller
from callboard.ports.store import Put, Write
from callboard.words import events as ev
from callboard.words import hooks as hk
from callboard.words import steps as st
from callboard.words.context import Injection
from callboard.words.errors import Conflict, ToolRefused
from callboard.words.values import Envelope


async def move(agent: Agent, step: st.Move) -> None:
    """Begin to open it: git may take a while."""
    agent.start(MOVE, partial(_move, agent, step.worktree))


async def _move(agent: Agent, name: str) -> None:
    host, told, folder = agent.host, "", ""
    assert host.ports.worktrees is not None, "the rule asks where there are worktrees"
    bound = [one for one in agent.state.tasks if name and (row := host.board.task(one)) and row[0].worktree == name]
    if name:
        try:
            path, told = await host.ports.worktrees.open(name)
        except ToolRefused as gone:
            await _without(agent, name, bound, str(gone))
            return
        folder = str(path)
    me = agent.state.me
    events: list[ev.Event] = []
    if folder != me.folder:  # who begins its life in a worktree has it in its spec, and reads of it in its prompt
        events.append(ev.SpecChanged(at=host.clock.now(), spec=me.model_copy(update={"folder": folder})))
        told = "\n".join(one for one in (told, _where(name, folder)) if one)
    if told:
        injection = Injection(kind="system-reminder", text=told, key="folder")
        events.append(ev.InjectionQueued(at=host.clock.now(), injection=injection))
    if events:
        by = caller(agent)
        await agent.record(*events)
        if folder != me.folder:
            host.inform(hk.CwdChanged(by.folder, caller(agent).folder, caller(agent)))
    host.settle(agent.state)


async def _without(agent: Agent, name: str, bound: list[str], why: str) -> None:
    """It is gone for good. Who lives in it ends; who was in it for a task has failed that, and goes on elsewhere."""
    me = agent.state.me
    if bound:
        await _fail_tasks(agent, bound, why)
    elif me.kind == "subagent" or (me.kind == "teammate" and me.worktree == name):
        await _stop(agent, why)
    else:
        await _leave(agent, name, why)


def _where(name: str, folder: str) -> str:
    if not name:
        return "Your file and shell tools run in the workspace again."
    return (
        f"Your file and shell tools now run in the git worktree {name} (branch wt/{name}): {folder}. Paths are relative"
        " to it. Its files are a copy: what you change there comes into the workspace when it is merged."
    )


async def _fail_tasks(agent: Agent, held: list[str], why: str) -> None:
    """The tasks that were bound to it cannot be done as they stand; nobody does them in another folder."""
    host = agent.host
    while True:
        now, holder = host.clock.now(), Holder(agent.name, agent.state.incarnation)
        writes: list[Write] = []
        events: list[ev.Event] = []
        for row in filter(None, map(host.board.task, held)):
            if holder.holds(row[0]):
                failed = laws.fail(row[0], holder, now, why).model_copy(update={"worktree": None})
                writes.append(Put(task_key(host.session, failed.id), failed.encode(), expected=row[1]))
                events.append(ev.TaskHeld(at=now, task=failed.id, subject=failed.subject, held=False))
        text = f"Your task has failed: {why}. Report that; do not do it in another folder."
        events.append(ev.InjectionQueued(at=now, injection=Injection(kind="system-reminder", text=text, key="folder")))
        try:
            await agent.record(*events, writes=writes)
            return
        except Conflict as lost:
            await host.refresh(lost.what)  # the row moved under us, for one when the worktree was noted as gone


async def _leave(agent: Agent, name: str, why: str) -> None:
    """The calls under way were meant for that folder, and run in no other: the turn ends, and word of it begins the
    next one, in the folder that is the agent's own."""
    host, now, life = agent.host, agent.host.clock.now(), agent.state.incarnation
    envelope = Envelope(
        id=short_id("env", host.session, agent.name, life, agent.state.turns, name),
        sender="runtime",
        recipient=agent.name,
        incarnation=life,
        type="error",
        content=f"You were interrupted: {why}. What you had asked for there does not run any more. Go on without it.",
        mode="wake",
        cause="tool",
        sent_at=now,
    )
    await agent.record(ev.Interrupted(at=now, by="runtime"), writes=[sending(host.session, envelope)])


async def _stop(agent: Agent, why: str) -> None:
    """Its own worktree is gone: it ends in order, and its lead is told."""
    host, now = agent.host, agent.host.clock.now()
    lead = host.board.agent("lead")
    writes: list[Write] = []
    if lead is not None and agent.name != "lead":
        envelope = Envelope(
            id=short_id("env", host.session, agent.name, agent.state.incarnation, "worktree"),
            sender="runtime",
            recipient="lead",
            incarnation=lead[0].incarnation,
            type="error",
            content=f"{agent.name} cannot go on: {why}. Give its work to somebody else, or spawn it anew.",
            cause="tool",
            sent_at=now,
        )
        writes.append(sending(host.session, envelope))
    await agent.record(ev.StopAsked(at=now, by="runtime", why=why), writes=writes)

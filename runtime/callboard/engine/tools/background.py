"""Background commands: watched to their end or deadline; the note of it goes out in the commit that records it.

The journal is their registry. Whoever takes up an agent watches what its journal says is running: by pid, start time
and boot, and where that process is gone by the exit code that it left. What left none is `lost`, and told as that.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import anyio

from callboard.core.bus.mail import sending
from callboard.core.names import short_id
from callboard.core.team.exits import LOST, exit_words, process_of, status_of
from callboard.engine.host import Host
from callboard.engine.loop import Agent
from callboard.ports.store import Write
from callboard.words import events as ev
from callboard.words import steps as st
from callboard.words.values import AgentRow, Envelope


async def watch(agent: Agent, step: st.Watch) -> None:
    """Wait for the ends of background commands that nobody here waits for."""
    for background_id in step.ids:
        agent.start(f"bg:{background_id}", partial(_watch, agent, background_id))


async def end_commands(agent: Agent, step: st.EndCommands) -> None:
    """End commands whose agent's life is about to be over."""
    for background_id in step.ids:
        agent.start(f"end:{background_id}", partial(_end, agent, background_id))


async def _end(agent: Agent, background_id: str) -> None:
    """All of a command is gone before its end is recorded; nobody is told, since nobody is there to hear it."""
    ended = await ended_now(agent.host, agent.state.background[background_id].began)
    await agent.record(ended, unless=lambda state: state.background[background_id].status != "running")


async def ended_now(host: Host, began: ev.BackgroundStarted) -> ev.BackgroundEnded:
    """End all of a command, wherever it was started. Nothing of it runs any more when this returns."""
    launcher = host.ports.launcher
    pid, started = process_of(began.pid, began.started, began.boot, launcher.boot)
    alive = await launcher.end(pid, started)
    code = await launcher.wait(pid, started, Path(began.output))
    status = "stopped" if alive else status_of(code)
    return ev.BackgroundEnded(at=host.clock.now(), id=began.id, status=status, exit_code=code)


def _being_stopped(agent: Agent, background_id: str) -> bool:
    """A call of `task_stop` for it is under way, or it is ended with its agent's life."""
    if f"end:{background_id}" in agent.operations:
        return True
    return any(
        one.stage == "started" and one.call.name == "task_stop" and one.call.input.get("id") == background_id
        for one in agent.state.calls
    )


async def _watch(agent: Agent, background_id: str) -> None:
    """One background command to its end or its deadline; the notification goes out in the commit that records it."""
    began = agent.state.background[background_id].began
    launcher, code = agent.host.ports.launcher, None
    pid, started = process_of(began.pid, began.started, began.boot, launcher.boot)
    left = None if began.deadline is None else max(0.0, began.deadline - agent.host.clock.now())
    with anyio.move_on_after(left) as limit:
        code = await launcher.wait(pid, started, Path(began.output))
    if limit.cancelled_caught:
        await launcher.end(pid, started)
    while _being_stopped(agent, background_id):
        await agent.change()  # the tool that ends it records its end, as stopped
    if agent.state.background[background_id].status != "running":
        return
    status = "timed_out" if limit.cancelled_caught else status_of(code)
    ended = ev.BackgroundEnded(at=agent.host.clock.now(), id=background_id, status=status, exit_code=code)
    lines = await agent.host.ports.archive.ends_of(began.output)
    envelope = notification(agent.row, began, ended, lines)
    writes: list[Write] = [sending(agent.host.session, envelope)]
    await agent.record(ended, writes=writes, unless=lambda state: state.background[background_id].status != "running")


def notification(to: AgentRow, began: ev.BackgroundStarted, ended: ev.BackgroundEnded, lines: str) -> Envelope:
    """What an agent is told of the end of its command. `lines`: the ends of its output, or why it was ended."""
    text = f"{began.id} {ended.status}, {LOST if ended.status == 'lost' else exit_words(ended.exit_code)}"
    return Envelope(
        id=short_id("env", began.id, "ended"),
        sender="runtime",
        recipient=to.name,
        incarnation=to.incarnation,
        type="task_notification",
        content=f"{text}\ncommand: {began.command}\nwhole output: task_output {began.id}\n{lines}".rstrip(),
        cause=began.authority,
        metadata={"id": began.id, "status": ended.status, "exit_code": ended.exit_code},
        sent_at=ended.at,
    )

"""Background commands: watched to their end or deadline; the note of it goes out in the commit that records it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

import anyio

from callboard.core.mail import sending
from callboard.core.names import short_id
from callboard.core.state import AgentState
from callboard.engine.loop import Agent
from callboard.ports.store import Write
from callboard.words import events as ev
from callboard.words import steps as st
from callboard.words.values import Envelope


async def watch(agent: Agent, step: st.Watch) -> None:
    """Wait for the ends of background commands that nobody here waits for."""
    for background_id in step.ids:
        agent.start(f"bg:{background_id}", partial(_watch, agent, background_id))


def _being_stopped(state: AgentState, background_id: str) -> bool:
    """A call of `task_stop` for it is under way."""
    return any(
        one.stage == "started" and one.call.name == "task_stop" and one.call.input.get("id") == background_id
        for one in state.calls
    )


async def _watch(agent: Agent, background_id: str) -> None:
    """One background command to its end or its deadline; the notification goes out in the commit that records it."""
    began = agent.state.background[background_id].began
    launcher, code = agent.host.ports.launcher, None
    left = None if began.deadline is None else max(0.0, began.deadline - agent.host.clock.now())
    with anyio.move_on_after(left) as limit:
        code = await launcher.wait(began.pid, began.started, Path(began.output))
    if limit.cancelled_caught:
        await launcher.end(began.pid, began.started)
    while _being_stopped(agent.state, background_id):
        await agent.change()  # the tool that ends it records its end, as stopped
    if agent.state.background[background_id].status != "running":
        return
    by_code: Literal["completed", "failed"] = "completed" if code == 0 else "failed"
    status: Literal["completed", "failed", "timed_out"] = "timed_out" if limit.cancelled_caught else by_code
    now = agent.host.clock.now()
    ended = ev.BackgroundEnded(at=now, id=background_id, status=status, exit_code=code)
    lines = await agent.host.ports.archive.ends_of(began.output)
    text = f"{background_id} {status}" + (f", exit code {code}" if code is not None else ", exit code unknown")
    envelope = Envelope(
        id=short_id("env", background_id, "ended"),
        sender="runtime",
        recipient=agent.name,
        incarnation=agent.state.incarnation,
        type="task_notification",
        content=f"{text}\ncommand: {began.command}\nwhole output: task_output {background_id}\n{lines}".rstrip(),
        cause="tool",
        metadata={"id": background_id, "status": status, "exit_code": code},
        sent_at=now,
    )
    writes: list[Write] = [sending(agent.host.session, envelope)]
    await agent.record(ended, writes=writes, unless=lambda state: state.background[background_id].status != "running")

"""Background commands and subagents, watched until their end; commands also until their deadline.

The commit that records the end also sends the notification, which has the report of a subagent.

The journal is their registry. A process that takes over an agent watches the commands that the journal lists as
running, by pid, start time and boot. If the process of a command is gone, the exit code that it left counts; without an
exit code the command is reported as `lost`. A subagent is found by its name: its own journal has its end.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import anyio

from callboard.core.agent.state import AgentState
from callboard.core.keys import short_id
from callboard.core.messaging.envelopes import envelope_write
from callboard.core.team.exit_status import LOST, exit_words, process_of, status_of
from callboard.core.team.subagents import notification_text, report_status
from callboard.engine.agent_runtime import AgentRuntime
from callboard.engine.hooks.caller import notice
from callboard.engine.operations.cleanup import child_stopped
from callboard.engine.runtime import SessionRuntime
from callboard.ports.store import Write
from callboard.types import events as ev
from callboard.types import steps as st
from callboard.types.operations import Operation
from callboard.types.records import AgentRow, Envelope


async def watch(agent: AgentRuntime, step: st.WatchBackground) -> None:
    """Wait for the ends of background commands that no operation waits for."""
    for background_id in step.ids:
        began = agent.state.work.background[background_id].began
        watching = (
            partial(_watch_subagent, agent, began) if began.agent else partial(_watch_command, agent, background_id)
        )
        agent.start(Operation("bg", background_id), watching)


async def end_commands(agent: AgentRuntime, step: st.EndCommands) -> None:
    """End the commands of an agent whose life is about to end."""
    for background_id in step.ids:
        agent.start(Operation("end", background_id), partial(_end_one, agent, background_id))


async def _end_one(agent: AgentRuntime, background_id: str) -> None:
    """End all processes of a command, or stop a subagent, and record the end.

    No notification is sent, because the agent is ending.
    """
    began = agent.state.work.background[background_id].began
    writes: list[Write] = []
    if began.agent:
        # It is stopped by mail, as all subagents of an agent that ends: nothing waits for it here.
        ended = stopped_subagent(agent.runtime, began)
        writes = child_stopped(agent.runtime, began.agent, f"{agent.name} has ended")
    else:
        ended = await end_command(agent.runtime, began)
    await agent.record(
        ended, writes=writes, unless=lambda state: state.work.background[background_id].status != "running"
    )


async def end_with_run(agent: AgentRuntime, background_id: str) -> None:
    """End a command that still runs when the run ends. Its agent is informed when the session continues."""
    operation = Operation("end", background_id)
    if operation in agent.operations:
        return
    agent.operations[operation] = None
    try:
        began = agent.state.work.background[background_id].began
        ended = await end_command(agent.runtime, began)
        lines = await agent.runtime.services.archive.ends_of(began.output)
        envelope = notification(agent.row, began, ended, lines).model_copy(update={"mode": "queue"})
        writes: list[Write] = [envelope_write(agent.runtime.session, envelope)]
        await agent.record(
            ended, writes=writes, unless=lambda state: state.work.background[background_id].status != "running"
        )
    finally:
        del agent.operations[operation]
        agent.wake()


async def end_command(runtime: SessionRuntime, began: ev.BackgroundStarted) -> ev.BackgroundEnded:
    """End all processes of a command, wherever it was started. None of them runs when this returns."""
    launcher = runtime.services.launcher
    pid, started = process_of(began.pid, began.started, began.boot, launcher.boot)
    alive = await launcher.end(pid, started)
    code = await launcher.wait(pid, started, Path(began.output))
    status = "stopped" if alive else status_of(code)
    return ev.BackgroundEnded(at=runtime.clock.now(), id=began.id, status=status, exit_code=code)


def stopped_subagent(runtime: SessionRuntime, began: ev.BackgroundStarted) -> ev.BackgroundEnded:
    """Return the record that a subagent in the background was stopped by its own agent."""
    return ev.BackgroundEnded(at=runtime.clock.now(), id=began.id, status="stopped", agent=began.agent)


async def _watch_subagent(agent: AgentRuntime, began: ev.BackgroundStarted) -> None:
    """Wait for the end of a subagent in the background, and record it together with its report.

    A call of `task_output` or `task_stop` for it records the end instead, and then the result of that call is the
    report.
    """
    spawner = agent.spawner
    assert spawner is not None, "a living agent has a spawner"
    outcome, text = await spawner.ended(began.agent)

    def is_recorded_elsewhere(state: AgentState) -> bool:
        return state.work.background[began.id].status != "running" or _is_ended_by_call(state, began.id)

    while agent.state.work.background[began.id].status == "running":
        if _is_ended_by_call(agent.state, began.id):
            await agent.change()
            continue
        now = agent.runtime.clock.now()
        ended = ev.BackgroundEnded(at=now, id=began.id, status=report_status(outcome), agent=began.agent)
        envelope = _notification_envelope(agent.row, began, ended, notification_text(began, outcome, text))
        await agent.record(
            ended, writes=[envelope_write(agent.runtime.session, envelope)], unless=is_recorded_elsewhere
        )


def _is_ended_by_call(state: AgentState, background_id: str) -> bool:
    """Return True if a call that records the end of a subagent in the background is in progress."""
    return _has_call(state, background_id, "task_output", "task_stop")


def _has_call(state: AgentState, background_id: str, *tools: str) -> bool:
    """Return True if a call of one of these tools for this command or subagent is in progress."""
    if state.calls.names.isdisjoint(tools):
        return False
    return any(
        call.call.name in tools and call.call.input.get("id") == background_id for call in state.calls.at("started")
    )


def _is_being_stopped(agent: AgentRuntime, background_id: str) -> bool:
    """Return True if the command is being stopped.

    A call of `task_stop` for it is in progress, or it ends with its agent's life.
    """
    return Operation("end", background_id) in agent.operations or _has_call(agent.state, background_id, "task_stop")


async def _watch_command(agent: AgentRuntime, background_id: str) -> None:
    """Watch one background command until its end or its deadline.

    The commit that records the end also sends the notification.
    """
    began = agent.state.work.background[background_id].began
    launcher = agent.runtime.services.launcher
    code = None
    pid, started = process_of(began.pid, began.started, began.boot, launcher.boot)
    remaining = None if began.deadline is None else max(0.0, began.deadline - agent.runtime.clock.now())
    with anyio.move_on_after(remaining) as limit:
        code = await launcher.wait(pid, started, Path(began.output))
    if limit.cancelled_caught:
        await launcher.end(pid, started)
    # The call of `task_stop` records the end, as stopped
    # (test_a_command_that_is_stopped_ends_once_and_is_not_told_as_failed).
    while _is_being_stopped(agent, background_id):
        await agent.change()  # the tool that ends the command records its end, as stopped
    if agent.state.work.background[background_id].status != "running":
        return
    status = "timed_out" if limit.cancelled_caught else status_of(code)
    ended = ev.BackgroundEnded(at=agent.runtime.clock.now(), id=background_id, status=status, exit_code=code)
    lines = await agent.runtime.services.archive.ends_of(began.output)
    if report := launcher.report(Path(began.output)):
        notice(agent.runtime, agent.name, (f"{began.id} (`{began.command[:200]}`): {report}",))
    envelope = notification(agent.row, began, ended, lines)
    writes: list[Write] = [envelope_write(agent.runtime.session, envelope)]
    await agent.record(
        ended, writes=writes, unless=lambda state: state.work.background[background_id].status != "running"
    )


def notification(to: AgentRow, began: ev.BackgroundStarted, ended: ev.BackgroundEnded, lines: str) -> Envelope:
    """Return the envelope that informs an agent of the end of its command.

    `lines`: the ends of its output, or the reason why the command was ended.
    """
    text = f"{began.id} {ended.status}, {LOST if ended.status == 'lost' else exit_words(ended.exit_code)}"
    content = f"{text}\ncommand: {began.command}\nwhole output: task_output {began.id}\n{lines}".rstrip()
    return _notification_envelope(to, began, ended, content)


def parked_subagent_notification(
    to: AgentRow, began: ev.BackgroundStarted, ended: ev.BackgroundEnded, reason: str
) -> Envelope:
    """Return the envelope that informs an agent that its subagent was stopped with it."""
    return _notification_envelope(to, began, ended, f"{began.id} {ended.status}\nsubagent: {began.command}\n{reason}")


def _notification_envelope(
    to: AgentRow, began: ev.BackgroundStarted, ended: ev.BackgroundEnded, content: str
) -> Envelope:
    return Envelope(
        id=short_id("env", began.id, "ended"),
        sender="runtime",
        recipient=to.name,
        incarnation=to.incarnation,
        type="task_notification",
        content=content,
        cause=began.authority,
        metadata={"id": began.id, "status": ended.status, "exit_code": ended.exit_code},
        sent_at=ended.at,
    )

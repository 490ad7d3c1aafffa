"""Notification of hooks that only inform, and delivery of the output of background hooks.

Nothing waits for a notified hook, and its answer changes nothing. Each hook is notified at most once: a notification in
flight when a process dies is not repeated. At the end of a process the notifications have a bounded time and are then
cancelled. Notifications follow from journal events; other callers use `tell`.

Output of background hooks is delivered to their agent as mail, which waits for the next turn or wakes the agent. The
mail is journalled, survives a crash once it is sent, and reaches an idle agent without a separate turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import structlog

from callboard.core.agent.state import AgentState
from callboard.core.keys import short_id
from callboard.core.messaging.envelopes import envelope_write
from callboard.engine import transcripts
from callboard.engine.agent_runtime import AgentRuntime
from callboard.engine.hooks.caller import caller, notice
from callboard.engine.runtime import SessionRuntime
from callboard.ports.hooks import LateHookOutput
from callboard.ports.notifier import Notifier
from callboard.types import events as ev
from callboard.types import hook_answers as hk
from callboard.types.errors import CallboardError
from callboard.types.records import Envelope, Request

AT_ONCE = 8
"""Most notifications of a session in progress at once. Further ones wait."""
USUAL_END = 5.0
LONGEST_END = 60.0
"""Most seconds for all hooks together at the end of a process, even if a file sets more for `SessionEnd`."""
PERMISSION_WAIT = 6.0
IDLE_WAIT = 60.0
"""Seconds that a question waits, or a lead idles, before a `Notification`; as in Claude Code."""

_FAILURES: Mapping[str, hk.FailureKind] = {
    "rate_limited": "rate_limit",
    "overloaded": "overloaded",
    "server": "server_error",
    "connection": "server_error",
    "silence": "server_error",
    "bad_reply": "server_error",
    "too_long": "invalid_request",
    "overflow": "invalid_request",
    "spend_limit": "billing_error",
    "payment": "billing_error",
    "credentials": "authentication_failed",
    "not_found": "model_not_found",
    "invalid": "invalid_request",
}
"""Kinds of faults and of ends of turns -> names in the compatible form."""
_NEEDED: Mapping[str, str] = {"plan": "approval of a plan", "question": "an answer"}


class HookNotifier:
    """Notifier of the hooks of one session.

    `agent_of(name)` returns the agent that lives in this process, `state_of(name)` its state, also after its end.
    """

    def __init__(
        self,
        runtime: SessionRuntime,
        agent_of: Callable[[str], AgentRuntime | None],
        state_of: Callable[[str], AgentState | None],
        start_task: Callable[..., bool],
    ) -> None:
        """`start_task` runs a function beside the agents; it returns False before the team runs."""
        self._runtime = runtime
        self._agent_of = agent_of
        self._state_of = state_of
        self._start_task = start_task
        self._slots = anyio.Semaphore(AT_ONCE, fast_acquire=True)
        self._open = 0
        self._finished = Notifier()
        self._pending: set[str] = set()
        """Requests known to be pending. Hooks are notified only of the end of these."""
        self.handlers: Mapping[type, Callable[[str, Any], None]] = {
            ev.BudgetReached: self._budget,
            ev.TurnEnded: self._turn_ended,
            ev.Reported: self._reported,
            ev.AgentStopped: self._stopped,
        }
        """Functions for journalled events of an agent, by class."""

    def tell(self, event: hk.HookEvent) -> None:
        """Notify the hooks of an event, if there are any, without waiting for them."""
        if self._runtime.services.hooks.has(type(event).__name__):
            self._start(partial(self._notify, event))

    async def transcribe(self, event: hk.HookEvent) -> str:
        """Append new entries to the transcripts that the event names.

        Return a description of any failure, for the user.
        """
        by = event.by
        paths = {by.main_transcript or by.transcript, *((by.transcript,) if isinstance(event, hk.SubagentStop) else ())}
        for path in sorted(paths):
            agent = self._author(path, by.name)
            if agent is None:
                continue
            try:
                await transcripts.write(agent)
            except (CallboardError, OSError) as failed:
                return f"{path} lacks the newest messages, and hooks that read it miss them: {failed}"
        return ""

    def _author(self, path: str, name: str) -> AgentRuntime | None:
        """Return the agent whose transcript has this path, if it lives in this process. `name`: the likely agent."""
        for candidate in (name, Path(path).name.partition(".")[0], "lead"):
            agent = self._agent_of(candidate)
            if agent is None or agent.retired or agent.state.identity.spec is None:
                continue
            if caller(self._runtime, agent.state).transcript == path:
                return agent
        return None

    def handle_request(self, request: Request) -> None:
        """Handle a changed request row."""
        has = self._runtime.services.hooks.has
        if request.status == "pending":
            if request.id not in self._pending:
                self._pending.add(request.id)
                if has("Notification") and request.kind != "shutdown":
                    self._later(PERMISSION_WAIT, partial(self._waits_still, request.id))
        elif request.id in self._pending:
            self._pending.discard(request.id)
            self.tell(
                hk.RequestAnswered(
                    id=request.id,
                    kind=request.kind,
                    status=request.status,
                    subject=request.subject,
                    answered_by=request.answered_by or "",
                    reason=request.reason,
                    by=self.caller(request.asked_by),
                )
            )

    async def end(self) -> None:
        """Notify hooks of `SessionEnd` and finish outstanding notifications.

        Bounded in time; cancellation waits for the end.
        """
        hooks = self._runtime.services.hooks
        if not hooks.has("SessionEnd") and not self._open:
            return
        with anyio.move_on_after(max(USUAL_END, min(LONGEST_END, hooks.longest_timeout("SessionEnd"))), shield=True):
            if hooks.has("SessionEnd"):
                lead = self._state_of("lead")
                attended = lead is not None and lead.identity.spec is not None and lead.me.ask_deadline != 0
                reason = "prompt_input_exit" if attended else "other"
                verdict = await hooks.fire(hk.SessionEnd(reason, self.caller("lead")))
                self._notice("lead", verdict.notices)
            await self._finished.until(lambda: not self._open)

    def _start(self, work: Callable[[], Any]) -> None:
        """Run `work` beside the agents. Does nothing before the team runs."""
        if self._start_task(self._counted, work):
            self._open += 1

    async def _counted(self, work: Callable[[], Any]) -> None:
        try:
            async with self._slots:
                await work()
        finally:
            self._open -= 1
            self._finished.notify()

    async def _notify(self, event: hk.HookEvent) -> None:
        verdict = await self._runtime.services.hooks.fire(event)
        self._notice(event.by.name, verdict.notices)

    def _later(self, seconds: float, work: Callable[[], None]) -> None:
        self._start_task(self._after, self._runtime.clock.now() + seconds, work)

    async def _after(self, when: float, work: Callable[[], None]) -> None:
        await self._runtime.clock.sleep_until(when)
        work()

    # Notifications of requests, budgets, turns, reports and ends

    def _waits_still(self, request_id: str) -> None:
        match = self._runtime.rows.request(request_id)
        if match is None or match[0].status != "pending":
            return
        request = match[0]
        permission = request.kind == "permission"
        needs = request.subject or f"{request.asked_by} needs {_NEEDED.get(request.kind, 'an answer')}"
        self.tell(
            hk.Notification(
                message=needs,
                notification_type="permission_prompt" if permission else "agent_needs_input",
                title="Permission needed" if permission else "An agent needs you",
                by=self.caller(request.asked_by),
                request_id=request.id,
            )
        )

    def _budget(self, name: str, event: ev.BudgetReached) -> None:
        self.tell(
            hk.BudgetReached(
                budget=event.budget,
                kind=event.kind,
                limit=event.limit,
                spent=event.spent,
                wanted=event.wanted,
                winds_down=event.winds_down,
                by=self.caller(name),
            )
        )

    async def share_transcript(self, agent: AgentRuntime) -> None:
        """Extend the agent's transcript for other programs, if they read it."""
        if self._runtime.services.archive.shares:
            self._open += 1
            await self._counted(partial(self._share, agent))

    async def _share(self, agent: AgentRuntime) -> None:
        try:
            await transcripts.write(agent)
        except (CallboardError, OSError) as failed:  # the journal has everything; the next turn tries again
            log.warning("transcript not written", agent=agent.name, error=str(failed))

    def _turn_ended(self, name: str, event: ev.TurnEnded) -> None:
        agent = self._agent_of(name)
        # The transcript of a subagent is written at its end.
        if agent is not None and agent.row.kind != "subagent" and self._runtime.services.archive.shares:
            self._start(partial(self._share, agent))
        has = self._runtime.services.hooks.has
        if event.reason in ("failed", "overflow", "refused") and has("StopFailure"):
            fault = agent.state.model.last_fault if agent is not None and event.reason == "failed" else event.reason
            self.tell(hk.StopFailure(_FAILURES.get(fault, "unknown"), event.why, self.caller(name)))
        if name == "lead" and agent is not None and has("Notification") and agent.state.me.ask_deadline != 0:
            self._later(IDLE_WAIT, partial(self._idles_still, agent, agent.state.turns.count))

    def _idles_still(self, agent: AgentRuntime, turns: int) -> None:
        if agent.state.turn is None and agent.state.turns.count == turns and agent.state.lifecycle.ended is None:
            message = "The lead waits for you."
            self.tell(hk.Notification(message, "idle_prompt", "Waiting", self.caller(agent.name)))

    def _reported(self, name: str, event: ev.Reported) -> None:
        if self._runtime.services.hooks.has("Notification"):
            first = event.result.strip().partition("\n")[0][:200]
            message = f"{name} is {event.status}" + (f": {first}" if first else "")
            self.tell(hk.Notification(message, "agent_completed", "An agent has reported", self.caller(name)))

    def _stopped(self, name: str, event: ev.AgentStopped) -> None:
        agent = self._agent_of(name) if name == "lead" else None
        if agent is not None and agent.state.lifecycle.renew:
            self.tell(hk.SessionEnd("clear", self.caller(name)))

    def caller(self, name: str) -> hk.Caller:
        """Return the agent with this name in its current or last state in this process."""
        state = self._state_of(name)
        lead = self._state_of("lead")
        if state is not None and state.identity.spec is not None:
            return caller(self._runtime, state)
        row = self._runtime.rows.agent(name)
        by = hk.Caller(session=self._runtime.session)
        if lead is not None and lead.identity.spec is not None:
            by = caller(self._runtime, lead)
        return replace(by, name=name, kind=row[0].kind, agent_type=row[0].agent_type) if row else by

    def _notice(self, name: str, notices: tuple[str, ...]) -> None:
        agent = self._agent_of(name) or self._agent_of("lead")
        if agent is not None:
            notice(agent.runtime, agent.name, notices)


log = structlog.get_logger("callboard.hooks")


async def tend_hooks(runtime: SessionRuntime) -> None:
    """Run the session's background hooks until cancelled."""
    numbers = count(1)

    async def tell(late: LateHookOutput) -> None:
        for text in late.notices:
            log.warning("hook", agent=late.by.name, notice=f"{late.hook}: {text}")
            runtime.notice(late.by.name, f"{late.hook}: {text}")
        match = runtime.rows.agent(late.by.name)
        if not late.context or match is None or match[0].life in ("stopped", "crashed"):
            return
        row = match[0]
        now = runtime.clock.now()
        envelope = Envelope(
            id=short_id("env", late.hook, late.by.name, f"{now}", f"{next(numbers)}"),
            sender="runtime",
            recipient=row.name,
            incarnation=row.incarnation,
            type="task_notification",
            content="\n\n".join((f"{late.hook} ran in the background and says:", *late.context)),
            mode="wake" if late.wake else "queue",
            cause="tool"
            if late.wake
            else "person",  # a turn begun by it has no user's authority; a turn joined by it keeps its own
            sent_at=now,
        )
        await runtime.commit(envelope_write(runtime.session, envelope))

    await runtime.services.hooks.run_background(tell)

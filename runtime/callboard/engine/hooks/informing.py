"""Hooks that are only told of something: nobody waits for their answer, and nothing is changed by it.

Each is told at most once: what is in flight when a process dies is not told again. At the end of a process they have a
bounded time, then they are cancelled. What is in a journal is told from the event that says so; who else knows of a
moment calls `tell`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
from anyio.abc import TaskGroup

from callboard.core.state import AgentState
from callboard.engine.host import Host
from callboard.engine.loop import Agent
from callboard.engine.tools.calls import caller_in, notice
from callboard.words import events as ev
from callboard.words import hooks as hk
from callboard.words.values import Request

AT_ONCE = 8
"""Moments of a session that are told of at the same time; the others wait for their turn."""
USUAL_END, LONGEST_END = 5.0, 60.0
"""Seconds that all hooks together have at the end of a process; and at most, where a file gives `SessionEnd` more."""
PERMISSION_WAIT, IDLE_WAIT = 6.0, 60.0
"""Seconds that a question waits, and that a lead idles, before a `Notification`; as in the compatible tool."""

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
"""Kinds of faults, and of ends of turns, in the compatible words."""
_NEEDED: Mapping[str, str] = {"plan": "approval of a plan", "question": "an answer"}


class Informer:
    """Tells the hooks of one session. `agent_of(name)`: the agent of that name that lives in this process;
    `state_of(name)`: also of one that has ended here."""

    def __init__(
        self,
        host: Host,
        agent_of: Callable[[str], Agent | None],
        state_of: Callable[[str], AgentState | None],
    ) -> None:
        self._host, self._agent_of, self._state_of = host, agent_of, state_of
        self._slots = anyio.Semaphore(AT_ONCE)
        self._open = 0
        self._none_open = anyio.Event()
        self._pending: set[str] = set()
        """Requests that are known to wait: only the end of one of them is told."""
        self._heeded: dict[type, Callable[[str, Any], None]] = {
            ev.BudgetReached: self._budget,
            ev.TurnEnded: self._turn_ended,
            ev.Reported: self._reported,
            ev.AgentStopped: self._stopped,
        }
        self.group: TaskGroup | None = None
        host.inform, host.caller_of = self.tell, self.caller
        host.on_event = self.heed

    def tell(self, event: hk.HookEvent) -> None:
        """Tell the hooks of that event, if there are any, without waiting for them."""
        if self.group is not None and self._host.ports.hooks.has(type(event).__name__):
            self._start(partial(self._tell, event))

    def heed(self, name: str, event: ev.Event) -> None:
        """Something was journalled by that agent."""
        told = self._heeded.get(type(event))
        if told is not None:
            told(name, event)

    def heed_request(self, request: Request) -> None:
        """A request's row has changed."""
        has = self._host.ports.hooks.has
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
        """`SessionEnd`, and the last words of those who are told of something. Bounded; cancellation waits for it."""
        hooks = self._host.ports.hooks
        if not hooks.has("SessionEnd") and not self._open:
            return
        with anyio.move_on_after(max(USUAL_END, min(LONGEST_END, hooks.given("SessionEnd"))), shield=True):
            if hooks.has("SessionEnd"):
                lead = self._state_of("lead")
                attended = lead is not None and lead.spec is not None and lead.me.ask_deadline != 0
                reason = "prompt_input_exit" if attended else "other"
                verdict = await hooks.fire(hk.SessionEnd(reason, self.caller("lead")))
                self._notice("lead", verdict.notices)
            while self._open:
                await self._none_open.wait()

    def _start(self, work: Callable[[], Any]) -> None:
        assert self.group is not None, "told while the team runs"
        self._open += 1
        if self._none_open.is_set():
            self._none_open = anyio.Event()
        self.group.start_soon(self._counted, work)

    async def _counted(self, work: Callable[[], Any]) -> None:
        try:
            async with self._slots:
                await work()
        finally:
            self._open -= 1
            if not self._open:
                self._none_open.set()

    async def _tell(self, event: hk.HookEvent) -> None:
        verdict = await self._host.ports.hooks.fire(event)
        self._notice(event.by.name, verdict.notices)

    def _later(self, seconds: float, work: Callable[[], None]) -> None:
        if self.group is not None:
            self.group.start_soon(self._after, self._host.clock.now() + seconds, work)

    async def _after(self, when: float, work: Callable[[], None]) -> None:
        await self._host.clock.sleep_until(when)
        work()

    # What is told of

    def _waits_still(self, request_id: str) -> None:
        found = self._host.board.request(request_id)
        if found is None or found[0].status != "pending":
            return
        request = found[0]
        permission = request.kind == "permission"
        needs = request.subject or f"{request.asked_by} needs {_NEEDED.get(request.kind, 'an answer')}"
        self.tell(
            hk.Notification(
                message=needs,
                notification_type="permission_prompt" if permission else "agent_needs_input",
                title="Permission needed" if permission else "An agent needs you",
                by=self.caller(request.asked_by),
            )
        )

    def _budget(self, name: str, event: ev.BudgetReached) -> None:
        told = (event.budget, event.kind, event.limit, event.spent, event.wanted, event.winds_down)
        self.tell(hk.BudgetReached(*told, by=self.caller(name)))

    def _turn_ended(self, name: str, event: ev.TurnEnded) -> None:
        agent, has = self._agent_of(name), self._host.ports.hooks.has
        if event.reason in ("failed", "overflow", "refused") and has("StopFailure"):
            fault = agent.state.last_fault if agent is not None and event.reason == "failed" else event.reason
            self.tell(hk.StopFailure(_FAILURES.get(fault, "unknown"), event.why, self.caller(name)))
        if name == "lead" and agent is not None and has("Notification") and agent.state.me.ask_deadline != 0:
            self._later(IDLE_WAIT, partial(self._idles_still, agent, agent.state.turns))

    def _idles_still(self, agent: Agent, turns: int) -> None:
        if agent.state.turn is None and agent.state.turns == turns and agent.state.ended is None:
            message = "The lead waits for you."
            self.tell(hk.Notification(message, "idle_prompt", "Waiting", self.caller(agent.name)))

    def _reported(self, name: str, event: ev.Reported) -> None:
        if self._host.ports.hooks.has("Notification"):
            first = event.result.strip().partition("\n")[0][:200]
            message = f"{name} is {event.status}" + (f": {first}" if first else "")
            self.tell(hk.Notification(message, "agent_completed", "An agent has reported", self.caller(name)))

    def _stopped(self, name: str, event: ev.AgentStopped) -> None:
        agent = self._agent_of(name) if name == "lead" else None
        if agent is not None and agent.state.renew:
            self.tell(hk.SessionEnd("clear", self.caller(name)))

    def caller(self, name: str) -> hk.Caller:
        """The agent of that name as it is, or was last in this process."""
        state, lead = self._state_of(name), self._state_of("lead")
        if state is not None and state.spec is not None:
            return caller_in(self._host, state)
        row = self._host.board.agent(name)
        by = hk.Caller(session=self._host.session)
        if lead is not None and lead.spec is not None:
            by = caller_in(self._host, lead)
        return replace(by, name=name, kind=row[0].kind, agent_type=row[0].agent_type) if row else by

    def _notice(self, name: str, notices: tuple[str, ...]) -> None:
        agent = self._agent_of(name) or self._agent_of("lead")
        if agent is not None:
            notice(agent, notices)

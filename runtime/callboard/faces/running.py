"""A headless run: a prompt in, what happens on stderr, the result on stdout, an exit code that scripts can use.

It refuses to hold a prompt line, and to know what a result means: `End` says how the session ended.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import anyio

from callboard import __version__
from callboard.app import End, OpenSession, Options, Session
from callboard.attaching import Attach, AttachedSession, opened
from callboard.core.context.told.metrics import together
from callboard.faces.approvals import PersonApprover, PlanPolicy
from callboard.faces.gate import PersonGate
from callboard.faces.headless.structured import Structured
from callboard.faces.keyboard import Keyboard
from callboard.faces.leaving import Leaving, heed_signals
from callboard.faces.lines import usage_words
from callboard.faces.pages.listings import attached_block, plain_row, requests_block
from callboard.faces.screen import Screen
from callboard.faces.stream_json import StreamJson
from callboard.faces.stream_parts import Spoken
from callboard.faces.terminal import Terminal, block
from callboard.ports.world import Answer, Approver, Observer
from callboard.words.errors import CallboardError
from callboard.words.values import Json, Request

Output = Literal["text", "json", "stream-json"]


@dataclass(frozen=True, slots=True)
class Headless:
    """What to run. `prompt` None: only finish what the session left under way. `yes`: plans are approved."""

    options: Options
    prompt: str | None
    output: Output = "text"
    yes: bool = False
    mode: str = "default"
    """The permission mode that was asked for, for `system/init`."""
    attach: Attach = "never"
    """What to do where another process hosts the session."""
    partial: bool = False
    """With stream-json: replies are told as they stream too."""
    schema: Json | None = None
    """What the result has to be: JSON of this schema."""


class WaitingShown:
    """Shows what a session waited for already when it was resumed, and answers nothing: nobody is to wonder why it
    rests. What is asked later is shown as it happens."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal, self._since = terminal, time.time()

    async def answer(self, request: Request) -> Answer | None:
        """None, always."""
        if request.created_at < self._since:
            self._terminal.terminal_print(requests_block([request]))
        return None


class HeadlessRun:
    """One run. `go` returns the exit code."""

    def __init__(self, what: Headless, terminal: Terminal, *, verbose: bool = False) -> None:
        self._what, self._terminal = what, terminal
        self._screen = Screen(terminal, result_apart=True, verbose=verbose)
        self._stream: StreamJson | None = None
        self._session: OpenSession | None = None
        self._person: PersonApprover | None = None
        self._last: Json | None = None
        self._more: Json = {}
        if what.output != "text":
            streams = what.output == "stream-json"  # else the result is all that anybody reads
            self._stream = StreamJson(
                self._take,
                cwd=str(what.options.workspace),
                version=__version__,
                only=lambda kind: streams or kind == "result",
                spoken=Spoken(partial=what.partial),
            )

    async def go(self) -> int:
        """Run to the end, to a signal or to an error of ours, which is raised."""
        leaving, began, end = Leaving(), anyio.current_time(), None
        async with anyio.create_task_group() as group:
            await group.start(heed_signals, leaving, group.cancel_scope, self._interrupt)
            try:
                end = await self._host()
            except CallboardError as error:
                self._tell_error(error, anyio.current_time() - began)
                raise
            group.cancel_scope.cancel()
        code = _code(end, leaving)
        self._tell(end, code, anyio.current_time() - began)
        return code

    async def _host(self) -> End:
        what = self._what
        gate = PersonGate(self._terminal, attended=what.options.attended)
        options = replace(what.options, prompt=what.prompt, gate=gate)
        async with opened(what.attach, options, self._observers(), self._approvers()) as session:
            self._session = session
            if isinstance(session, AttachedSession):
                self._terminal.terminal_print(attached_block(session))
            self._screen.attach(session, asks_plans=what.options.attended and not what.yes)
            if self._person is not None:
                self._person.attach(session)
            if self._stream is not None:
                self._stream.commands, self._stream.servers = session.commands, session.servers_now
                self._stream.opened(session.id, session.model, what.mode, calls=session.call)
            if what.prompt is None and isinstance(session, Session):
                await session.go_on()
            end, self._more = await Structured(session, what.schema).finished()
            if isinstance(session, Session):
                await session.mark_ended(end.exit_code)
            else:
                self._terminal.terminal_print(block("its host has left the session", "dim", progress=True))
            return end

    def _observers(self) -> Sequence[Observer]:
        # With JSON on stdout a script reads it all there; what a person may watch stays on stderr either way.
        return [self._screen] if self._stream is None else [self._screen, self._stream]

    def _approvers(self) -> Sequence[Approver]:
        approvers: list[Approver] = [PlanPolicy()] if self._what.yes else []
        if self._what.options.attended:
            ask = Keyboard(self._terminal).ask
            self._person = PersonApprover(ask, self._terminal, leave_plans=self._what.yes)
            approvers.append(self._person)
        elif self._what.options.resume:
            approvers.append(WaitingShown(self._terminal))
        return approvers

    async def _interrupt(self) -> bool:
        if not isinstance(self._session, Session):
            return False  # nothing is open yet, or the turn is another process's: only this screen is left
        self._terminal.terminal_print(block("stopping the turn; Ctrl-C again within 2 s leaves", "warn"))
        await self._session.interrupt()
        return True

    def _take(self, message: Json) -> None:
        if self._what.output == "stream-json":
            self._terminal.record(json.dumps(message))
        else:
            self._last = message

    def _tell_error(self, error: CallboardError, seconds: float) -> None:
        """Whoever reads JSON gets a last message too; the words for a person are printed by whoever catches it."""
        self._screen.finish("")
        if self._stream is not None:
            self._stream.result(code=error.exit_code, text="", why=str(error), seconds=seconds, cost_usd=0.0)
            self._tell_last()

    def _tell_last(self) -> None:
        if self._last is not None:
            self._terminal.record(json.dumps(self._last))

    def _tell(self, end: End | None, code: int, seconds: float) -> None:
        text, why = (end.text, end.why) if end is not None else ("", "left by a signal")
        self._screen.finish(text)
        if self._stream is not None:
            cost = end.usage.cost_usd if end is not None else 0.0
            beside = {"metrics": _metrics(end), **self._more} if end is not None else {}
            self._stream.result(code=code, text=text, why=why, seconds=seconds, cost_usd=cost, **beside)
            self._tell_last()
        elif text:
            self._terminal.result(text)
        if code != 0 and why:
            self._terminal.terminal_print(block(f"callboard: {why}", "bad"))
        if self._session is not None and code in {130, 143}:
            words = f"the session is kept: `callboard resume {self._session.id}` goes on with it"
            if isinstance(self._session, AttachedSession):
                words = f"process {self._session.pid} goes on with the session"
            self._terminal.terminal_print(block(words, "dim"))
        if end is not None:
            self._terminal.terminal_print(block(usage_words(end.usage), "dim", progress=True))


def _metrics(end: End) -> Json:
    """What the session and each of its agents used, as `callboard context --json` has it too."""
    session = together(one.metrics for one in end.agents)
    return {"session": plain_row(session), "agents": {one.name: plain_row(one.metrics) for one in end.agents}}


def _code(end: End | None, leaving: Leaving) -> int:
    if leaving.code is not None:
        return leaving.code
    if leaving.interrupted or end is None:
        return 130
    return end.exit_code


def run_headless(what: Headless, terminal: Terminal, *, verbose: bool = False) -> int:
    """Run in this thread until it is over; the exit code."""
    return anyio.run(HeadlessRun(what, terminal, verbose=verbose).go)

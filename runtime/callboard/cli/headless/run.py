"""Headless run: reads a prompt, reports events on stderr and the result on stdout, and returns an exit code.

Scripts use the exit code.

A headless run has no prompt line, and does not interpret the result: `RunEnd` states how the session ended.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import anyio

from callboard import __version__
from callboard.cli.headless.json_result import StructuredAnswer
from callboard.cli.headless.messages import MessageWording, json_line
from callboard.cli.headless.prompt_commands import CommandRunner, PromptCommand, command_in
from callboard.cli.headless.stream_json import StreamJson
from callboard.cli.terminal.approver import PersonApprover, PlanPolicy
from callboard.cli.terminal.hangup import HANGUP
from callboard.cli.terminal.keyboard import Keyboard, PersonGate
from callboard.cli.terminal.screen import Screen
from callboard.cli.terminal.signals import ExitRequests, ended_by, handle_signals, run_with_signals
from callboard.cli.terminal.terminal import Terminal, block
from callboard.cli.views.requests import requests_block
from callboard.cli.views.resume import resume_hint_block
from callboard.cli.views.status import attached_block
from callboard.core.reports.metrics import together
from callboard.core.reports.spending import usage_words
from callboard.ports.environment import Answer, Approver, Observer
from callboard.sessions.attached import AttachedSession
from callboard.sessions.base import OpenSession, unfinished_end
from callboard.sessions.hosted import HostedSession
from callboard.sessions.inspect.resources import plain_row
from callboard.sessions.open import Attach, open_as
from callboard.sessions.options import SessionOptions
from callboard.sessions.result import DONE, LIMIT, TIME_LIMIT, RunEnd
from callboard.types.agent_spec import AgentSpec
from callboard.types.errors import CallboardError, Fenced, StoreBusy, StoreFull
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json, Request

Output = Literal["text", "json", "stream-json"]


@dataclass(frozen=True, slots=True)
class Headless:
    """Options of a headless run.

    `prompt` None: only finish the unfinished work of the session. `yes`: plans are approved.
    """

    options: SessionOptions
    prompt: str | None
    output: Output = "text"
    yes: bool = False
    mode: str = "default"
    """Requested permission mode, for `system/init`."""
    attach: Attach = "never"
    """Behaviour if another process hosts the session."""
    partial: bool = False
    """With stream-json: True if replies are also reported while they stream."""
    schema: Json | None = None
    """JSON schema for the result."""


class PendingRequests:
    """Approver that only shows the requests that were already pending at the resume.

    Pending requests are the reason why the session is idle. Later requests are shown as they occur.
    """

    def __init__(self, terminal: Terminal, *, attended: bool) -> None:
        self._terminal = terminal
        self._attended = attended
        self._since = time.time()

    async def answer(self, request: Request) -> Answer | None:
        """Return None, always."""
        if request.created_at < self._since:
            self._terminal.terminal_print(requests_block([request], attended=self._attended))
        return None


class HeadlessRun:
    """One headless run. `go` returns the exit code."""

    def __init__(self, headless: Headless, terminal: Terminal, *, verbose: bool = False) -> None:
        self._run_options = headless
        self._terminal = terminal
        self._screen = Screen(terminal, result_apart=True, verbose=verbose)
        self._stream: StreamJson | None = None
        self._session: OpenSession | None = None
        self._earlier_turns = 0
        """Turns of the lead that had ended before this run."""
        self._has_result = False
        """True once the session has its result, so that there is no turn to stop."""
        self._person: PersonApprover | None = None
        self._last_message: Json | None = None
        self._extra_fields: Json = {}
        self._commands = CommandRunner()
        if headless.output != "text":
            streams = headless.output == "stream-json"  # otherwise only the result is read
            self._stream = StreamJson(
                self._emit,
                cwd=str(headless.options.workspace.folder.resolve()),
                version=__version__,
                only=lambda kind: streams or kind == "result",
                spoken=MessageWording(partial=headless.partial),
            )

    async def go(self, leaving: ExitRequests) -> int:
        """Run to the end or to a signal. Raises `CallboardError`."""
        began = anyio.current_time()
        end = None
        async with anyio.create_task_group() as group:
            await group.start(handle_signals, leaving, group.cancel_scope, self._interrupt)
            try:
                end = await self._host()
            except (StoreBusy, StoreFull, Fenced) as error:
                if leaving.code is None:
                    self._emit_error(error, anyio.current_time() - began)
                    raise
                # the obstacle was reported, and the person left because of it
            except CallboardError as error:
                self._emit_error(error, anyio.current_time() - began)
                raise
            group.cancel_scope.cancel()
        code = _exit_code(end, leaving)
        self._emit_end(end or unfinished_end(self._session, code, ended_by(code)), code, anyio.current_time() - began)
        return code

    async def _host(self) -> RunEnd:
        headless = self._run_options
        gate = PersonGate(self._terminal, attended=headless.options.permissions.attended)
        command = command_in(headless.prompt or "")
        if command is not None:
            command.needs_conversation(resumed=bool(headless.options.identity.resume))
        options = replace(
            headless.options,
            workspace=replace(headless.options.workspace, gate=gate),
            identity=replace(headless.options.identity, prompt=None if command else headless.prompt),
            hosting=replace(headless.options.hosting, commands_at_rest="end"),
        )
        async with open_as(headless.attach, options, self._observers(), self._approvers()) as session:
            self._session = session
            self._earlier_turns = _ended_turns(session)
            if isinstance(session, AttachedSession):
                self._terminal.terminal_print(attached_block(session, session.where))
            self._screen.attach(
                session,
                asks=self._person.asks if self._person is not None else (),
                approves=("plan",) if headless.yes else (),
            )
            if self._person is not None:
                self._person.attach(session)
            if self._stream is not None:
                self._stream.begin(
                    session.id,
                    model=session.model,
                    mode=headless.mode,
                    spec=await self._spec_of(session),
                    session=session,
                )
            if headless.prompt is None and isinstance(session, HostedSession):
                await session.go_on()
            try:
                if command is not None and isinstance(session, HostedSession):
                    end = await self._run_command(session, command)
                else:
                    end, self._extra_fields = await StructuredAnswer(session, headless.schema).finished()
            except anyio.get_cancelled_exc_class():  # a signal: no one watches the running commands
                if isinstance(session, HostedSession):
                    # Commands of a run end with it, even if a signal ends it
                    # (test_a_signal_ends_the_background_commands_of_a_run).
                    await session.end_commands()
                raise
            self._has_result = True
            end = end if command is not None else end.of_run()
            if isinstance(session, HostedSession):
                await session.mark_ended(end.exit_code)
            else:
                self._terminal.terminal_print(block("its host has left the session", "dim", progress=True))
            return end

    async def _run_command(self, session: HostedSession, command: PromptCommand) -> RunEnd:
        """Run a command of the runtime. Also wait for a turn of an earlier process, which continues meanwhile."""
        if not self._commands.takes(session, command):
            await session.say(self._run_options.prompt or "")
            end, self._extra_fields = await StructuredAnswer(session, self._run_options.schema).finished()
            return end.of_run()
        end = await self._commands.run(session, command, session.wait_finished)
        if command.only_shows:
            await session.wait_finished()
        return end

    async def _spec_of(self, session: OpenSession) -> AgentSpec | None:
        """Return the spec of a lead that has already started; None for one that has no record yet."""
        if isinstance(session, HostedSession):
            return await session.wait_begun() if self._run_options.options.identity.resume else None
        state = session.state("lead")
        return state.identity.spec if state is not None else None

    def _observers(self) -> Sequence[Observer]:
        # With JSON on stdout a script reads everything there; the output for a person is on stderr in either case.
        return [self._screen, *([self._stream] if self._stream is not None else []), self._commands]

    def _approvers(self) -> Sequence[Approver]:
        approvers: list[Approver] = [self._plan_policy()] if self._run_options.yes else []
        if self._run_options.options.permissions.attended:
            ask = Keyboard(self._terminal).ask
            self._person = PersonApprover(ask, self._terminal, leave_plans=self._run_options.yes)
            approvers.append(self._person)
        elif self._run_options.options.identity.resume:
            approvers.append(PendingRequests(self._terminal, attended=self._run_options.options.permissions.attended))
        return approvers

    def _plan_policy(self) -> PlanPolicy:
        def mode_of(agent: str) -> str:
            return self._session.mode_of(agent) if self._session is not None else ""

        return PlanPolicy(None if self._run_options.options.permissions.attended else mode_of)

    async def _interrupt(self) -> bool:
        if self._has_result or not isinstance(self._session, HostedSession):
            return False  # nothing is open yet, or another process hosts the turn, and only this process leaves
        if self._run_options.prompt is not None and not self._has_turn(self._session):
            return False  # an interrupt would be read before the prompt, and the prompt would begin its turn after it
        self._terminal.terminal_print(block("stopping the turn; Ctrl-C again within 2 s leaves", "warn"))
        await self._session.interrupt()
        return True

    def _has_turn(self, session: HostedSession) -> bool:
        """Return True if the lead has a turn, or had one in this run."""
        lead = session.state("lead")
        return lead is not None and (lead.turn is not None or _ended_turns(session) > self._earlier_turns)

    def _emit(self, message: Json) -> None:
        if self._run_options.output == "stream-json":
            self._terminal.record(json_line(message))
        else:
            self._last_message = message

    def _emit_error(self, error: CallboardError, seconds: float) -> None:
        """Write a last message for readers of JSON. The caller that catches the error prints the text for a person."""
        self._screen.finish("", str(error))
        if self._stream is not None:
            end = unfinished_end(self._session, error.exit_code, str(error))
            self._stream.result(end, seconds=seconds, metrics=_metrics(end))
            self._emit_last()

    def _emit_last(self) -> None:
        if self._last_message is not None:
            self._terminal.record(json_line(self._last_message))

    def _emit_end(self, end: RunEnd, code: int, seconds: float) -> None:
        text = end.text
        reason = end.reason
        self._screen.finish(text, end.why if code != 0 else "")
        if self._stream is not None:
            self._stream.result(
                replace(end, exit_code=code), seconds=seconds, **{"metrics": _metrics(end), **self._extra_fields}
            )
            self._emit_last()
        elif text:
            self._terminal.result(text)
        reasons = [reason] if code != 0 and reason else []
        if not text and self._stream is None and code in {DONE, LIMIT, TIME_LIMIT}:
            reasons.append(_no_text_line(end))
        if reasons:
            self._terminal.terminal_print(block(f"callboard: {'; '.join(reasons)}", "bad" if code != 0 else "warn"))
        if open_lines := end.open.lines():
            lines = ["still open:", *(f"  {line}" for line in open_lines)]
            self._terminal.terminal_print(block("\n".join(lines), "warn"))
        if self._session is not None and code in {HANGUP, 130, 143}:
            if isinstance(self._session, AttachedSession):
                note = block(f"{self._session.where} continues the session", "dim")
            else:
                note = resume_hint_block(self._session.id)
            self._terminal.terminal_print(note)
        if self._session is not None:
            self._terminal.terminal_print(block(usage_words(end.usage), "dim", progress=True))


def _ended_turns(session: OpenSession) -> int:
    """Return the number of turns that the lead has ended."""
    lead = session.state("lead")
    return 0 if lead is None else lead.turns.count - (lead.turn is not None)


def _no_text_line(end: RunEnd) -> str:
    """Return a line about a run that ended without a final text of the lead."""
    steps = next((agent.steps for agent in end.agents if agent.kind == "lead"), 0)
    # Calls that failed or were cut off are no steps, but those of earlier runs are
    # (test_a_run_without_a_text_counts_the_replies_of_the_model).
    replies = {0: "no reply came from the model", 1: "the session has 1 reply of the model"}
    count = replies.get(steps, f"the session has {steps:,} replies of the model")
    return f"the lead ended without any text: {count}"


def _metrics(end: RunEnd) -> Json:
    """Return the usage of the session and of each of its agents, as in `callboard context --json`."""
    session = together(agent.metrics for agent in end.agents)
    return {"session": plain_row(session), "agents": {agent.name: plain_row(agent.metrics) for agent in end.agents}}


def _exit_code(end: RunEnd | None, leaving: ExitRequests) -> int:
    if leaving.code is not None:
        return leaving.code
    if leaving.interrupted or end is None:
        return 130
    return end.exit_code


def run_headless(headless: Headless, terminal: Terminal, *, verbose: bool = False) -> int:
    """Run in this thread to the end, and return the exit code."""
    return run_with_signals(HeadlessRun(headless, terminal, verbose=verbose).go, terminal)

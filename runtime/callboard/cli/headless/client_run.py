"""Session driven by a client: messages and control frames on stdin and stdout.

Messages are answered one after the other, each by one `result`; control frames take effect at once. The session stays
open until stdin ends and the messages sent by then are done. After the client is gone no one can answer, and requests
are rejected. There is no screen: stderr has only ignored options and failures.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import anyio
import structlog
from anyio.abc import TaskGroup

from callboard import __version__
from callboard.cli.headless.client import Client, ClientApprover, PromptTool, lines_of, message_in
from callboard.cli.headless.control import CHANGES, Control
from callboard.cli.headless.initialize import initialize_response, options_of, schema_of, send_to_client
from callboard.cli.headless.json_result import StructuredAnswer
from callboard.cli.headless.messages import ClientSpoken, client_prompt, json_line, mirror_json
from callboard.cli.headless.options import ClientOptions
from callboard.cli.headless.prompt_commands import CommandRunner, PromptCommand, command_in
from callboard.cli.headless.stream_json import StreamJson
from callboard.cli.headless.translated_events import TranslatedEvents
from callboard.cli.terminal.keyboard import PersonGate
from callboard.cli.terminal.signals import ExitRequests, ended_by, handle_signals, run_with_signals
from callboard.cli.terminal.terminal import Terminal, block
from callboard.ports.environment import Interest
from callboard.ports.model import Delta
from callboard.ports.notifier import Notifier
from callboard.sessions.base import unfinished_end
from callboard.sessions.hosted import HostedSession
from callboard.sessions.open import open_session
from callboard.sessions.options import SessionOptions
from callboard.sessions.result import INTERRUPTED, NO_ANSWER, RunEnd
from callboard.types.errors import CallboardError
from callboard.types.events import CallJudged, Event, TurnBegan, TurnEnded
from callboard.types.records import Envelope, Json
from callboard.types.settings import AskSettings

SPOKEN = "2.1.317"
"""Release of the protocol's original program whose frames are supported, by which clients decide what to use."""
_CAPABILITIES = ("interrupt_receipt_v1", "interrupt_cancel_queued_v1")
_IGNORED_TYPES = frozenset({"keep_alive"})
_MOST_JUDGING_S = 30.0
"""Most seconds before the response to `initialize`, for which clients wait 60 s."""

T = TypeVar("T")

log = structlog.get_logger("callboard.client")


class ClientRun:
    """One run, from the first line of stdin to the last line of stdout."""

    def __init__(self, run_options: ClientOptions, terminal: Terminal, stdin: int = 0) -> None:
        """Create a run. `stdin`: the file descriptor to read."""
        self._run_options = run_options
        self._terminal = terminal
        self._stdin = stdin
        self._client = Client(self._write)
        folder = str(run_options.options.workspace.folder.resolve())
        extra: Json = {"claude_code_version": SPOKEN, "capabilities": list(_CAPABILITIES), "fast_mode_state": "off"}
        extra |= {"betas": list(run_options.betas)} if run_options.betas else {}
        spoken = ClientSpoken(
            partial=run_options.partial, extra=extra, folder=folder, streaming=TranslatedEvents(folder)
        )
        self._stream = StreamJson(self._write, cwd=str(Path(folder)), version=__version__, spoken=spoken)
        self._messages: deque[Json] = deque()
        if run_options.first is not None:
            self._messages.append({"type": "user", "message": {"role": "user", "content": run_options.first}})
        self._initialize: tuple[str, Json] | None = None
        self._schema = run_options.schema
        self._ready = anyio.Event()
        self._changed = Notifier()
        self._opened = anyio.Event()
        self._stdin_ended = False
        self._busy = False
        """True while a message is answered, or a turn that no message caused runs."""
        self._stopped = False
        """True once the client has interrupted the current turn."""
        self._resting = False
        """True between the rest of the lead and the result of its turn."""
        self._own_turn = False
        """True after the start of a turn that no message caused, until its report begins."""
        self._expects_turn = False
        """True while the end of something in the background will start another turn."""
        self._began_early = False
        """True if a turn started before the client could send anything."""
        self._turn_began = 0.0
        self._failed: CallboardError | None = None
        self._deferred: Json | None = None
        """The call that a hook deferred: its id, name and input. The run ends, and the next process continues it."""
        self._serving = anyio.CancelScope()
        self._requests_in_progress: dict[str, anyio.CancelScope] = {}
        self._changes: deque[object] = deque()
        """Tickets of the requests in progress that change how the next message is answered: they take turns."""
        self._group: TaskGroup | None = None
        self._session: HostedSession | None = None
        self._control: Control | None = None
        self._commands = CommandRunner()

    async def go(self, leaving: ExitRequests) -> int:
        """Run to the end of stdin and return the exit code of the last message. Raises errors that end a session."""
        began = anyio.current_time()
        code = 0
        async with anyio.create_task_group() as group:
            self._group = group
            await group.start(handle_signals, leaving, group.cancel_scope, self._stop_by_signal)
            group.start_soon(self._read)
            try:
                code = await self._serve()
            except CallboardError as error:
                seconds = anyio.current_time() - began
                self._stream.begin("", model="", mode=self._run_options.mode) if self._session is None else None
                self._stream.result(unfinished_end(self._session, error.exit_code, str(error)), seconds=seconds)
                raise
            group.cancel_scope.cancel()
        if leaving.code is None:
            return code
        end = unfinished_end(self._session, leaving.code, ended_by(leaving.code))
        self._stream.result(end, seconds=anyio.current_time() - began)
        return leaving.code

    # Input

    async def _read(self) -> None:
        """Handle each line as it arrives, then note that the client is gone."""
        try:
            async for number, line in lines_of(self._stdin):
                message = message_in(line, number)
                if message is not None:
                    self._handle_message(message, number)
        except CallboardError as error:
            self._failed = error
            self._serving.cancel()
        self._stdin_ended = True
        # Requests that wait for the client get an answer now (test_who_goes_while_he_is_asked_has_said_no).
        self._client.leave()
        self._ready.set()
        self._changed.notify()

    def _handle_message(self, message: Json, number: int) -> None:
        kind = message["type"]
        request_id = str(message.get("request_id"))
        request = cast("Json", message["request"]) if isinstance(message.get("request"), dict) else {}
        if kind == "control_response":
            self._client.take(message)
        elif kind == "control_cancel_request":
            if request_id in self._requests_in_progress:
                self._requests_in_progress[request_id].cancel()
        elif kind == "user":
            self._messages.append(message)
            self._ready.set()
            self._changed.notify()
        elif kind == "control_request" and request.get("subtype") == "initialize":
            self._handle_initialize(request_id, request)
        elif kind == "control_request" and self._group is not None:
            self._ready.set()
            ticket = object()
            if str(request.get("subtype")) in CHANGES:
                self._changes.append(ticket)
            # Before the task runs: the next line may already cancel the request
            # (test_a_request_that_the_next_line_cancels_has_no_effect).
            scope = self._requests_in_progress[request_id] = anyio.CancelScope()
            self._group.start_soon(self._perform_request, request_id, request, ticket, scope)
        elif kind not in _IGNORED_TYPES:
            self._tell(f"line {number} of stdin: the message type {kind!r} is unknown: the line is skipped")

    def _handle_initialize(self, request_id: str, request: Json) -> None:
        if self._ready.is_set():
            self._client.refuse(request_id, "the session has already begun: send initialize first, and only once")
        else:
            self._initialize = (request_id, request)
            self._ready.set()

    async def _perform_request(self, request_id: str, request: Json, ticket: object, scope: anyio.CancelScope) -> None:
        """Perform a request of the client: concurrently with others, but the changes in their order."""
        with scope:
            try:
                await self._opened.wait()
                assert self._control is not None, "an open session is controlled"
                await self._changed.until(lambda: ticket not in self._changes or ticket is self._changes[0])
                response = await self._control.do(request)
            except CallboardError as refused:
                self._client.refuse(request_id, str(refused))
            except Exception as bug:  # one request of a client ends no work; the trace goes to the log
                log.exception("request failed", subtype=str(request.get("subtype")))
                self._client.refuse(request_id, f"a bug in Callboard: {type(bug).__name__}: {bug}")
            else:
                self._client.answer(request_id, response)
            finally:
                if self._requests_in_progress.get(request_id) is scope:  # a client may use an id twice
                    del self._requests_in_progress[request_id]
                if ticket in self._changes:
                    self._changes.remove(ticket)
                    self._changed.notify()

    # Session

    async def _serve(self) -> int:
        code = 0
        with self._serving:
            await self._ready.wait()
            if self._initialize is not None or self._messages or not self._stdin_ended:
                code = await self._host()
        if self._failed is not None:
            raise self._failed
        return code

    async def _host(self) -> int:
        run_options = self._run_options
        asks = run_options.asks or bool(run_options.prompt_tool)
        options = self._options(asks=asks)
        answers = PromptTool(run_options.prompt_tool) if run_options.prompt_tool else self._client
        approver = ClientApprover(answers, self._tell, self._stop_soon, may_bypass=run_options.may_bypass)
        approvers = [approver] if asks else []
        async with open_session(
            options, observers=[self._stream, self, self._commands], approvers=approvers
        ) as session:
            self._session = session
            for note in session.notes:
                self._tell(note)
            approver.attach(session)
            spec = await session.wait_begun()
            resumed = bool(options.identity.resume)
            if resumed:
                await session.taken_up()
            state = session.state("lead")
            unfinished = resumed and not self._began_early and state is not None and state.turn is not None
            self._stream.begin(
                session.id, model=session.model, mode=run_options.mode, spec=spec, session=session, holds=resumed
            )
            self._control = self._control_of(session, options)
            if self._initialize is not None:
                await self._answer_initialize(session, *self._initialize, unfinished=unfinished)
            if resumed:
                self._stream.choose(model=session.model_of(), permissionMode=session.mode_of())
                await self._apply_options(session)
            self._open_for_client(resumed=resumed, unfinished=unfinished)
            try:
                code = await self._converse(session, unfinished=unfinished)
            finally:
                # Also after a signal, because no one watches the commands of a client that is gone
                # (test_a_result_waits_for_background_commands_within_bounds_and_the_end_of_stdin_ends_them).
                await session.end_commands()
                for command in session.stopped_commands():
                    self._tell(command.line())
            if self._deferred is None:
                await session.mark_ended(code)
            return code

    def _options(self, *, asks: bool) -> SessionOptions:
        """Return the options of the session, with those of `initialize`. `asks`: the client answers requests."""
        run_options = self._run_options
        gate = PersonGate(self._terminal, attended=False)
        bridges = {name: partial(send_to_client, self._client, name) for name in run_options.servers}
        options = replace(
            run_options.options,
            workspace=replace(run_options.options.workspace, gate=gate),
            permissions=replace(run_options.options.permissions, attended=asks, asks_in_call=asks),
            mcp=replace(
                run_options.options.mcp,
                wait=True,
                bridges=bridges,
                bridge_of=partial(partial, send_to_client, self._client),
            ),
            hosting=replace(
                run_options.options.hosting,
                commands_at_rest="leave",
                checkpoints=run_options.checkpoints,
                mirror=self._mirror if run_options.mirrors else None,
            ),
        )
        if self._initialize is not None:
            request = self._initialize[1]
            options, notes = options_of(request, options, self._client, self._tell_hook, defer=self._defer)
            for note in notes:
                self._tell(note)
            self._schema = schema_of(request, run_options.schema)
            if run_options.forwards or request.get("forwardSubagentText") is True:
                self._stream.forward_texts()
        return options

    def _open_for_client(self, *, resumed: bool, unfinished: bool) -> None:
        """Let the client's requests and messages have an effect, and report a turn that old mail has started."""
        self._opened.set()
        if resumed and self._began_early and not unfinished:
            self._own_turn = True
            self._begin_turn()
        elif not unfinished:
            self._stream.release()

    async def _answer_initialize(
        self, session: HostedSession, request_id: str, request: Json, *, unfinished: bool
    ) -> None:
        if str(request.get("title") or "").strip() and not self._run_options.options.identity.resume:
            await session.name_session(str(request["title"]))
        if unfinished:
            await self._wait_until_judged(session)
        self._client.answer(request_id, initialize_response(session, request))

    async def _wait_until_judged(self, session: HostedSession) -> None:
        """Wait, at most `_MOST_JUDGING_S`, until the client's hooks have judged the calls that an earlier process left.

        The Python SDK closes stdin right after the response to `initialize` if it has no prompt, and answers no hook
        after that.
        """

        def judged() -> bool:
            state = session.state("lead")
            return state is None or all(call.stage != "proposed" for call in state.calls)

        with anyio.move_on_after(_MOST_JUDGING_S):
            await self._changed.until(judged)

    def _control_of(self, session: HostedSession, options: SessionOptions) -> Control:
        """Return the handler of the client's requests to the open session."""
        return Control(
            session=session,
            stop=self._stop,
            drop=self._drop_messages,
            queued=self._queued_uuids,
            tell=self._stream.tell,
            choose=self._stream.choose,
            first_model=session.model,
            cancel=self._cancel_message,
            may_bypass=self._run_options.may_bypass,
            first_thinking=options.lead.thinking,
        )

    async def _converse(self, session: HostedSession, *, unfinished: bool) -> int:
        """Answer each message, and report each turn that none caused, until stdin ends; return the last exit code.

        `unfinished`: an earlier process left a turn, which continues.
        """
        code = await self._continue_turn(session) if unfinished else 0
        while self._deferred is None:
            # A client need not wait for the response before it sends the message that a change is for.
            await self._changed.until(
                lambda: not self._changes and bool(self._own_turn or self._messages or self._stdin_ended)
            )
            if self._own_turn:
                code = await self._report_own_turn(session)
            elif self._messages:
                code = await self._process_message(session, self._messages.popleft())
            elif await self._is_finished(session):
                break
        return code

    async def _report_own_turn(self, session: HostedSession) -> int:
        """Report the end of a turn that no message caused, such as one after the end of a subagent."""
        self._own_turn = False
        return self._end_turn(*await self._end_or_deferral(session))

    async def _is_finished(self, session: HostedSession) -> bool:
        """Wait, after the end of stdin, for subagents in the background; return False if one has started a turn."""
        if self._expects_turn:
            await self._unless(lambda: self._own_turn, session.wait_finished())
        return not self._own_turn

    async def _unless(self, condition: Callable[[], bool], work: Awaitable[T]) -> T | None:
        """Return the result of `work`. Cancel `work` and return None as soon as `condition` is true."""
        result: T | None = None
        async with anyio.create_task_group() as group:

            async def cancel_at_condition() -> None:
                await self._changed.until(condition)
                group.cancel_scope.cancel()

            group.start_soon(cancel_at_condition)
            result = await work
            group.cancel_scope.cancel()
        return result

    async def _continue_turn(self, session: HostedSession) -> int:
        """Report the end of a turn that an earlier process left, and return its exit code.

        A message that comes before is part of that turn, and its result is the only one.
        """
        self._begin_turn()
        ending = await self._unless(lambda: bool(self._messages), self._end_or_deferral(session))
        return self._end_turn(*ending) if ending is not None else 0

    async def _apply_options(self, session: HostedSession) -> None:
        """Apply to a resumed session the deadline of requests and the model of this command line."""
        asks = self._run_options.asks or self._run_options.prompt_tool
        seconds = AskSettings().deadline if asks else 0
        await session.command("asking", text=str(seconds))
        if self._run_options.options.model.name is not None and session.model_of() != session.model:
            self._stream.choose(model=(await session.use_model(session.model)).name)
        if self._run_options.options.workspace.flags.get("permission.mode"):
            self._stream.choose(permissionMode=self._run_options.mode)

    async def _process_message(self, session: HostedSession, message: Json) -> int:
        """Process one message to its result and return its exit code."""
        prompt = client_prompt(message)
        if self._run_options.replays:
            self._replay(message)
        if not prompt.starts_turn and not prompt.wrong:
            await session.add_context(prompt.text)
            return 0
        self._begin_turn()
        end = RunEnd(1, "", prompt.wrong, session.usage(), [])
        extra = Json()
        command = None if prompt.wrong or prompt.extras.verbatim else command_in(prompt.text)
        if command is not None and self._commands.takes(session, command):
            end = await self._run_command(session, command)
        elif not prompt.wrong:
            await session.say(prompt.text, extras=prompt.extras)
            end, extra = await self._end_or_deferral(session)
        if prompt.extras.uuid:
            extra |= {"user_message_uuid": prompt.extras.uuid, "user_message_uuids": [prompt.extras.uuid]}
        if prompt.origin is not None:
            extra["origin"] = prompt.origin
        return self._end_turn(end, extra)

    def _begin_turn(self) -> None:
        self._busy = True
        self._stopped = False
        self._turn_began = anyio.current_time()
        self._resting = False
        self._stream.new_turn()
        self._report_state("running")
        self._stream.release()

    async def _end_or_deferral(self, session: HostedSession) -> tuple[RunEnd, Json]:
        """Wait until the turn has ended, or a hook deferred its call. Return its end, and more fields of its result."""
        ending = await self._unless(lambda: self._deferred is not None, self._wait_for_end(session))
        if ending is not None:
            return ending
        reason = "tool_deferred"
        extra: Json = {"stop_reason": reason, "terminal_reason": reason, "deferred_tool_use": self._deferred}
        return session.end_now(0, ""), extra

    async def _wait_for_end(self, session: HostedSession) -> tuple[RunEnd, Json]:
        """Wait for the end of the turn. What is in the background goes on, unless its answer has a form."""
        if self._schema is None:
            return await session.wait_rested(partial(self._hold_for_next_turn, session)), {}
        ending = await StructuredAnswer(session, self._schema).finished()
        self._hold_for_next_turn(session)
        return ending

    def _hold_for_next_turn(self, session: HostedSession) -> None:
        """Keep everything that happens from now on for the next turn."""
        self._resting = True
        self._expects_turn = session.owes_turn()
        self._stream.hold()

    async def _defer(self, event_json: Json) -> None:
        """Leave the call of a `PreToolUse` event to a later process, and end the run; see `Defer`."""
        if "agent_id" in event_json or self._stream.newest_calls() != 1:
            self._tell(
                "a hook defers a call that is not the only one of a reply of the lead: it is asked about instead"
            )
            return
        details = {"id": "tool_use_id", "name": "tool_name", "input": "tool_input"}
        self._deferred = {name: event_json.get(field) for name, field in details.items()}
        self._changed.notify()
        await anyio.sleep_forever()  # the call stays undecided in the journal; the end of the run cancels the hook

    def _end_turn(self, end: RunEnd, extra: Json) -> int:
        """Write the result of a turn, and return its exit code."""
        code = end.exit_code
        by_client = code == INTERRUPTED and self._stopped
        code = 0 if code == NO_ANSWER else code  # a call that no one could allow was denied, and the turn continued
        if by_client:
            extra["is_error"] = False
        extra["queued_turn_count"] = len(self._messages)
        seconds = anyio.current_time() - self._turn_began
        self._stream.result(replace(end, exit_code=code), seconds=seconds, **extra)
        self._busy = self._resting = False
        if self._own_turn:
            self._begin_turn()
        else:
            if not self._messages and not self._expects_turn:
                self._report_state("idle")
            self._stream.release()
        return 0 if by_client else code

    async def _run_command(self, session: HostedSession, command: PromptCommand) -> RunEnd:
        """Run a command of the runtime, and report what it shows."""
        rested = partial(session.wait_rested, partial(self._hold_for_next_turn, session))
        end = await self._commands.run(session, command, rested)
        if command.name == "clear" and end.exit_code == 0:
            self._stream.reset(str(uuid.uuid4()))
        elif command.only_shows and end.exit_code == 0:
            self._stream.tell("local_command_output", content=end.text)
        return end

    def _replay(self, message: Json) -> None:
        session_id = self._session.id if self._session else ""
        replayed: Json = {"message": message.get("message"), "isReplay": True, "session_id": session_id}
        self._stream.user({**replayed, "uuid": message.get("uuid") or str(uuid.uuid4())})

    # Interrupts

    async def _stop(self) -> None:
        """Stop the work for the current message, if there is any."""
        if self._busy and self._session is not None:
            self._stopped = True
            await self._session.interrupt()

    def _stop_soon(self) -> None:
        if self._group is not None:
            self._group.start_soon(self._stop)

    async def _stop_by_signal(self) -> bool:
        if not self._busy:
            return False
        await self._stop()
        return True

    def _drop_messages(self) -> Sequence[str]:
        dropped = self._queued_uuids()
        self._messages.clear()
        return dropped

    def _cancel_message(self, uuid: str) -> bool:
        waiting = next((message for message in self._messages if uuid and message.get("uuid") == uuid), None)
        if waiting is not None:
            self._messages.remove(waiting)
        return waiting is not None

    def _queued_uuids(self) -> Sequence[str]:
        return [str(message["uuid"]) for message in self._messages if message.get("uuid")]

    interest = Interest(frozenset({TurnBegan, CallJudged, TurnEnded}), frozenset({"notice"}))

    def on_event(self, agent: str, seq: int, event: Event) -> None:
        """Note a turn that no message caused, stop one after an interrupt, and note the judgement of calls."""
        if agent == "lead" and isinstance(event, TurnBegan):
            self._note_turn()
        if agent == "lead" and isinstance(event, CallJudged | TurnEnded):
            self._changed.notify()

    def _note_turn(self) -> None:
        """Note that a turn of the lead has begun."""
        if self._resting:  # it is reported after the result of the last turn
            self._own_turn = True
        elif not self._busy and self._opened.is_set():
            self._own_turn = True
            self._begin_turn()
        elif not self._opened.is_set():
            self._began_early = True
        elif self._stopped:  # the interrupt arrived before the turn had begun
            self._stop_soon()
        self._changed.notify()

    def on_delta(self, agent: str, delta: Delta) -> None:
        """Write messages of hooks for the user to stderr."""
        if delta.kind == "notice":
            self._tell(delta.text)

    def on_mail(self, envelope: Envelope) -> None:
        """Do nothing: mail is reported when it enters a conversation."""

    # Output

    def _write(self, message: Json) -> None:
        self._terminal.record(json_line(message))

    def _mirror(self, path: str, lines: Sequence[bytes]) -> None:
        self._write(mirror_json(path, lines))

    def _tell(self, text: str) -> None:
        self._terminal.terminal_print(block(f"callboard: {text}", "warn"))

    def _tell_hook(self, subtype: str, about: Json) -> None:
        if self._run_options.hook_events:
            self._stream.tell(subtype, **about)

    def _report_state(self, state: str) -> None:
        """Report `running` or `idle` to a client that asked for it."""
        if self._run_options.states:
            own: dict[str, Any] = {"sdk_host_only": True} if self._run_options.quiet_states else {}
            self._stream.tell("session_state_changed", state=state, **own)


def run_client(run_options: ClientOptions, terminal: Terminal, stdin: int = 0) -> int:
    """Run in this thread to the end and return the exit code."""

    async def run(leaving: ExitRequests) -> int:
        # Created in the event loop that it belongs to.
        return await ClientRun(run_options, terminal, stdin).go(leaving)

    return run_with_signals(run, terminal)

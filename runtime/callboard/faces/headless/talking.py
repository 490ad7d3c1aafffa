"""A session that a client drives: messages and control frames on stdin, messages and control frames on stdout.

Messages are answered one after the other, each by one `result`; control frames are heeded at once. The session stays
open until stdin ends and what was sent by then is done. A client that goes is nobody who could answer: what is asked
then is refused. It refuses to draw a screen: on stderr stands what is not heeded and what failed, and nothing else.
"""

from __future__ import annotations

import json
import uuid
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
from anyio.abc import TaskGroup

from callboard import __version__
from callboard.app import End, Session, open_session
from callboard.ending import INTERRUPTED, NO_ANSWER
from callboard.faces.gate import PersonGate
from callboard.faces.headless.asking import ClientApprover
from callboard.faces.headless.begun import carried, options_of, told_of
from callboard.faces.headless.client import Client
from callboard.faces.headless.lines import lines_of, message_in
from callboard.faces.headless.names import ClientSpoken, EventsTold
from callboard.faces.headless.serving import Control
from callboard.faces.headless.structured import Structured
from callboard.faces.headless.wishes import Wishes
from callboard.faces.leaving import Leaving, heed_signals
from callboard.faces.stream_json import StreamJson
from callboard.faces.terminal import Terminal, block
from callboard.ports.model import Delta
from callboard.words.errors import CallboardError
from callboard.words.events import Event, TurnBegan
from callboard.words.settings_model import AskSettings
from callboard.words.values import Envelope, Json

SPOKEN = "2.1.317"
"""The release of the protocol's own program whose frames are spoken here: by it clients tell what they may use."""
_CAPABLE = ("interrupt_receipt_v1", "interrupt_cancel_queued_v1")
_PASSED_OVER = frozenset({"keep_alive"})


class ClientRun:
    """One run, from the first line of stdin to the last line of stdout."""

    def __init__(self, wishes: Wishes, terminal: Terminal, stdin: int = 0) -> None:
        """`stdin`: the file descriptor that is read."""
        self._wishes, self._terminal, self._stdin = wishes, terminal, stdin
        self._client = Client(self._write)
        folder = str(wishes.options.workspace.resolve())
        more: Json = {"claude_code_version": SPOKEN, "capabilities": list(_CAPABLE), "fast_mode_state": "off"}
        spoken = ClientSpoken(partial=wishes.partial, more=more, folder=folder, streaming=EventsTold(folder))
        self._stream = StreamJson(self._write, cwd=str(Path(folder)), version=__version__, spoken=spoken)
        self._messages: deque[Json] = deque()
        if wishes.first is not None:
            self._messages.append({"type": "user", "message": {"role": "user", "content": wishes.first}})
        self._initialize: tuple[str, Json] | None = None
        self._ready, self._changed, self._opened = anyio.Event(), anyio.Event(), anyio.Event()
        self._ended = self._busy = self._stopped = False
        self._failed: CallboardError | None = None
        self._serving = anyio.CancelScope()
        self._doing: dict[str, anyio.CancelScope] = {}
        self._group: TaskGroup | None = None
        self._session: Session | None = None
        self._control: Control | None = None

    async def go(self) -> int:
        """Run to the end of stdin; the exit code, that of the last message. Raises what stops a session."""
        leaving, began, code = Leaving(), anyio.current_time(), 0
        async with anyio.create_task_group() as group:
            self._group = group
            await group.start(heed_signals, leaving, group.cancel_scope, self._signalled)
            group.start_soon(self._read)
            try:
                code = await self._serve()
            except CallboardError as error:
                seconds = anyio.current_time() - began
                self._stream.opened("", "", self._wishes.mode) if self._session is None else None
                self._stream.result(code=error.exit_code, text="", why=str(error), seconds=seconds, cost_usd=0.0)
                raise
            group.cancel_scope.cancel()
        if leaving.code is None:
            return code
        seconds = anyio.current_time() - began
        self._stream.result(code=leaving.code, text="", why="left by a signal", seconds=seconds, cost_usd=0.0)
        return leaving.code

    # What comes in

    async def _read(self) -> None:
        """Take each line as it comes; then the client has gone."""
        try:
            async for number, line in lines_of(self._stdin):
                message = message_in(line, number)
                if message is not None:
                    self._take(message, number)
        except CallboardError as error:
            self._failed = error
            self._serving.cancel()
        self._ended = True
        self._client.leave()
        self._ready.set()
        self._ring()

    def _take(self, message: Json, number: int) -> None:
        kind, request_id = message["type"], str(message.get("request_id"))
        request = cast("Json", message["request"]) if isinstance(message.get("request"), dict) else {}
        if kind == "control_response":
            self._client.take(message)
        elif kind == "control_cancel_request":
            if request_id in self._doing:
                self._doing[request_id].cancel()
        elif kind == "user":
            self._messages.append(message)
            self._ready.set()
            self._ring()
        elif kind == "control_request" and request.get("subtype") == "initialize":
            self._begin(request_id, request)
        elif kind == "control_request" and self._group is not None:
            self._ready.set()
            self._group.start_soon(self._do, request_id, request)
        elif kind not in _PASSED_OVER:
            self._tell(f"line {number} of stdin: messages of type {kind!r} are not known: it is passed over")

    def _begin(self, request_id: str, request: Json) -> None:
        if self._ready.is_set():
            self._client.refuse(request_id, "the session has begun: initialize comes first, and once")
        else:
            self._initialize = (request_id, request)
            self._ready.set()

    async def _do(self, request_id: str, request: Json) -> None:
        """Do what the client asks for, beside everything else."""
        with anyio.CancelScope() as scope:
            self._doing[request_id] = scope
            try:
                await self._opened.wait()
                assert self._control is not None, "an open session is controlled"
                response = await self._control.do(request)
            except CallboardError as refused:
                self._client.refuse(request_id, str(refused))
            else:
                self._client.answer(request_id, response)
            finally:
                del self._doing[request_id]

    def _ring(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def _next(self) -> Json | None:
        """The next message, as soon as there is one; None when there will be none."""
        while not self._messages:
            if self._ended:
                return None
            await self._changed.wait()
        return self._messages.popleft()

    # The session

    async def _serve(self) -> int:
        code = 0
        with self._serving:
            await self._ready.wait()
            if self._initialize is not None or self._messages or not self._ended:
                code = await self._host()
        if self._failed is not None:
            raise self._failed
        return code

    async def _host(self) -> int:
        wishes = self._wishes
        gate = PersonGate(self._terminal, attended=False)
        bridges = {name: partial(carried, self._client, name) for name in wishes.servers}
        options = replace(wishes.options, gate=gate, attended=wishes.asks, mcp_wait=True, bridges=bridges)
        if self._initialize is not None:
            options, notes = options_of(self._initialize[1], options, self._client, self._heard)
            for note in notes:
                self._tell(note)
        approver = ClientApprover(self._client, self._tell, self._stop_soon)
        approvers = [approver] if wishes.asks else []
        async with open_session(options, observers=[self._stream, self], approvers=approvers) as session:
            self._session = session
            for note in session.notes:
                self._tell(note)
            approver.attach(session)
            self._stream.commands, self._stream.servers = session.commands, session.servers_now
            self._stream.opened(session.id, session.model, wishes.mode, await session.begun(), session.call)
            self._control = Control(
                session=session,
                stop=self._stop,
                drop=self._drop,
                queued=self._queued,
                tell=self._stream.tell,
                first_model=session.model,
                may_bypass=wishes.may_bypass,
            )
            if self._initialize is not None:
                self._client.answer(self._initialize[0], told_of(session, options))
            self._opened.set()
            if options.resume:
                await self._as_asked(session)
            code = 0
            while (message := await self._next()) is not None:
                code = await self._turn(session, message)
            await session.mark_ended(code)
            return code

    async def _as_asked(self, session: Session) -> None:
        """A session that goes on is told who answers now, and what this command line says of mode and model."""
        seconds = AskSettings().deadline if self._wishes.asks else 0
        await session.command("asking", text=str(seconds))
        if self._wishes.options.flags.get("permission.mode") is not None:
            await session.command("mode", text=self._wishes.mode)
        if self._wishes.options.model is not None and session.model_of() != session.model:
            await session.use_model(session.model)

    async def _turn(self, session: Session, message: Json) -> int:
        """One message, to its result; the exit code that it calls for."""
        began = anyio.current_time()
        self._busy, self._stopped = True, False
        self._stream.new_turn()
        self._state("running")
        if self._wishes.replays:
            self._replay(message)
        text, wrong = text_of_message(message)
        end, more = End(1, "", wrong, session.usage(), []), Json()
        if not wrong:
            await _heard(session, text)
            end, more = await Structured(session, self._wishes.schema).finished()
        code = end.exit_code
        by_client = code == INTERRUPTED and self._stopped
        code = 0 if code == NO_ANSWER else code  # a call that nobody could allow was denied: the turn went on
        if by_client:
            more["is_error"] = False
        if message.get("uuid"):
            more["user_message_uuid"] = message["uuid"]
        seconds, cost = anyio.current_time() - began, end.usage.cost_usd
        self._stream.result(code=code, text=end.text, why=end.why, seconds=seconds, cost_usd=cost, **more)
        self._busy = False
        if not self._messages:
            self._state("idle")
        return 0 if by_client else code

    def _replay(self, message: Json) -> None:
        session_id = self._session.id if self._session else ""
        told: Json = {"message": message.get("message"), "isReplay": True, "session_id": session_id}
        self._stream.user({**told, "uuid": message.get("uuid") or str(uuid.uuid4())})

    # Interrupting

    async def _stop(self) -> None:
        """End what is under way for the message; nothing, where nothing is."""
        if self._busy and self._session is not None:
            self._stopped = True
            await self._session.interrupt()

    def _stop_soon(self) -> None:
        if self._group is not None:
            self._group.start_soon(self._stop)

    async def _signalled(self) -> bool:
        if not self._busy:
            return False
        await self._stop()
        return True

    def _drop(self) -> Sequence[str]:
        dropped = self._queued()
        self._messages.clear()
        return dropped

    def _queued(self) -> Sequence[str]:
        return [str(one["uuid"]) for one in self._messages if one.get("uuid")]

    def on_event(self, agent: str, seq: int, event: Event) -> None:
        """A turn that begins after it was interrupted is interrupted too."""
        if agent == "lead" and isinstance(event, TurnBegan) and self._stopped:
            self._stop_soon()

    def on_delta(self, agent: str, delta: Delta) -> None:
        """What hooks tell the person stands on stderr."""
        if delta.kind == "notice":
            self._tell(delta.text)

    def on_mail(self, envelope: Envelope) -> None:
        """Mail is told when it enters a conversation."""

    # What goes out

    def _write(self, message: Json) -> None:
        self._terminal.record(json.dumps(message))

    def _tell(self, words: str) -> None:
        self._terminal.terminal_print(block(f"callboard: {words}", "warn"))

    def _heard(self, subtype: str, about: Json) -> None:
        if self._wishes.hook_events:
            self._stream.tell(subtype, **about)

    def _state(self, state: str) -> None:
        """For a client that asked to be told: `running`, or `idle`."""
        if self._wishes.states:
            own: dict[str, Any] = {"sdk_host_only": True} if self._wishes.quiet_states else {}
            self._stream.tell("session_state_changed", state=state, **own)


async def _heard(session: Session, text: str) -> None:
    """Words to the lead; `/compact WHAT TO KEEP` and `/clear` are for the runtime."""
    command, _, rest = text.strip().partition(" ")
    if command == "/compact":
        await session.command("compact", text=rest.strip())
    elif text.strip() == "/clear":
        await session.renew(carry=False)
    else:
        await session.say(text)


def text_of_message(message: Json) -> tuple[str, str]:
    """The text of a client's message, and why it cannot be taken: empty when it can."""
    inner: Any = message.get("message")
    content: Any = cast("Json", inner).get("content") if isinstance(inner, dict) else None
    if isinstance(content, str):
        texts = [content]
    elif isinstance(content, list) and all(isinstance(one, dict) for one in cast("list[object]", content)):
        blocks = cast("list[Json]", content)
        if other := sorted({str(one.get("type")) for one in blocks if one.get("type") != "text"}):
            return "", f"a message of text is expected: blocks of type {', '.join(other)} are not taken"
        texts = [str(one.get("text") or "") for one in blocks]
    else:
        return "", "a message has `message.content`: a text, or a list of blocks"
    text = "\n\n".join(texts)
    return (text, "") if text.strip() else ("", "the message is empty: say what to do")


def run_client(wishes: Wishes, terminal: Terminal, stdin: int = 0) -> int:
    """Run in this thread until it is over; the exit code."""

    async def run() -> int:
        return await ClientRun(wishes, terminal, stdin).go()  # made within the loop that it belongs to

    return anyio.run(run)

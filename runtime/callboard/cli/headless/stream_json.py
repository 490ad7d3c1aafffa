"""Session as newline-delimited JSON, in the message types that headless clients already read (`docs/cli.md`).

`system/init` first, then `assistant`, `user` (tool results and delivered mail), `system/api_retry`,
`system/compact_boundary`, `system/task_started`, `system/task_notification`, `system/permission_denied`, and
Callboard's own `system/call_held`, `system/budget_reached`, `system/stuck`; last, one `result`. Each contains `uuid`
and `session_id`. Messages about other agents than the lead also contain `agent` and, in `parent_tool_use_id`, the call
that started the agent. Tools have Callboard's names.

A client that drives the session (`callboard.cli.headless`) reads the same messages with its own `MessageWording`: raw
events of streaming replies, and tools under the names and fields that it knows.

This module writes nothing: `emit` receives plain dicts, and the caller reports the end of the session.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from callboard.cli.headless.messages import (
    ERRORS,
    OF_RESULTS,
    SUMMARIES,
    AgentProgress,
    MessageWording,
    ModelCosts,
    background_entry,
    end_of_run,
    origin,
    plugins_json,
    refused_call,
    result_block,
    session_parts,
    synthetic_reply,
    task_usage,
    usage_part,
)
from callboard.core.budgets.tree import used_up
from callboard.core.context.view.transcript import message_uuid
from callboard.core.mcp.catalog import real_call
from callboard.ports.environment import Interest
from callboard.ports.model import Delta
from callboard.sessions.base import OpenSession
from callboard.sessions.result import RunEnd
from callboard.types.agent_spec import AgentSpec, ModelLimits
from callboard.types.events import (
    AgentCrashed,
    AgentStarted,
    AgentStopped,
    AnswerTaken,
    ApprovalNeeded,
    BackgroundEnded,
    BackgroundStarted,
    BudgetReached,
    CallFailed,
    CallHeld,
    CallJudged,
    ContextEdited,
    EnvelopeReceived,
    EnvelopesDelivered,
    Event,
    ModelCalled,
    ModelReplied,
    ReplyDropped,
    ResultsMerged,
    RetryPlanned,
    StallNoticed,
    StuckNoticed,
    SummaryFailed,
    TasksReminded,
    ToolFinished,
    ToolSettled,
    TurnEnded,
)
from callboard.types.hook_events import HookToolResult
from callboard.types.records import Envelope, Fault, Json, ToolCall, Usage


class StreamJson:
    """Observer that turns events into messages. Nothing is emitted before `begin`; earlier messages follow then."""

    def __init__(
        self,
        emit: Callable[[Json], None],
        *,
        cwd: str,
        version: str,
        only: Callable[[str], bool] = lambda kind: True,
        spoken: MessageWording = MessageWording(),  # noqa: B008 - frozen
    ) -> None:
        """`only`: True for types of messages that are read; the others are counted but not created."""
        self._only = only
        self._spoken = spoken
        self._emit_raw = emit
        self._cwd = cwd
        self._version = version
        self._session = self._model = self._mode = ""
        self._chosen = Json()
        self._open: OpenSession | None = None
        self._early: list[tuple[str, int, Event]] | None = []
        self._begun = False
        self._agents: dict[str, AgentProgress] = {}
        self._mail: dict[str, Envelope] = {}
        self._made: list[tuple[str, str, ToolCall]] = []
        self._costs = ModelCosts()
        self._denials: list[Json] = []
        self._asking: dict[str, str] = {}
        self._backgrounded = set[str]()
        """Subagents for which no call waits."""
        self._errors: list[tuple[str, str]] = []
        """Agents whose turn failed, with the reason."""
        self._waited = 0.0
        self._stop_reason: str | None = None
        self._turns = 0
        self._forwards = not spoken.client
        self._position: tuple[str, int] | None = None
        """Agent and journal position of the event that is being reported."""

    def forward_texts(self) -> None:
        """Report the texts of subagents too, not only their calls and results."""
        self._forwards = True

    def begin(
        self,
        session_id: str,
        *,
        model: str,
        mode: str,
        spec: AgentSpec | None = None,
        session: OpenSession | None = None,
        holds: bool = False,
    ) -> None:
        """Start to emit: the session is open. `holds`: not before `release`.

        These values are written to `system/init` unless the lead's own start differs. `spec`: the lead's, if known.
        `session`: knows the commands, servers and agent types, and the calls that started before this process observed
        it; None for a session that was never opened.
        """
        self._open = session
        self._seen("lead").spec = spec
        self._session = session_id
        self._model = model
        self._mode = mode
        if not holds:
            self.release()

    def choose(self, **chosen: str) -> None:
        """Set the `model` or the `permissionMode` with which the next turn begins.

        The lead takes such a choice only when it reads its mail, after `system/init` of that turn.
        """
        self._chosen |= chosen

    @property
    def interest(self) -> Interest:
        events = frozenset(self._emitters) - (frozenset() if self._only("user") else OF_RESULTS)
        return Interest(events, frozenset({"event"} if self._spoken.partial else ()))

    def on_event(self, agent: str, seq: int, event: Event) -> None:
        """Emit the messages of an event."""
        if self._early is not None:
            self._early.append((agent, seq, event))
            return
        self._position = (agent, seq)
        self._emitters[type(event)](self, event, agent)
        self._position = None

    def on_delta(self, agent: str, delta: Delta) -> None:
        """Emit raw events of the lead's replies if they were requested. Other deltas are not part of this protocol."""
        if delta.event is not None and agent == "lead" and self._spoken.partial and self._early is None:
            for event in self._spoken.events(delta.event):
                self._emit({"type": "stream_event", "event": event})

    def on_mail(self, envelope: Envelope) -> None:
        """Do nothing: mail is reported once it enters a conversation."""

    def tell(self, subtype: str, **fields: Any) -> None:
        """Emit a message of the session itself."""
        self._system(subtype, **fields)

    def user(self, message: Json) -> None:
        """Emit a message of the client, sent back to it."""
        self._emit({"type": "user", **message})

    def reset(self, conversation: str) -> None:
        """Report that a new conversation begins."""
        self._emit({"type": "conversation_reset", "new_conversation_id": conversation})

    def hold(self) -> None:
        """Keep what happens from now on back until `release`: it belongs to the next turn."""
        self._early = []

    def release(self) -> None:
        """Emit the messages of what was kept back."""
        early, self._early = self._early or [], None
        for agent, seq, event in early:
            self.on_event(agent, seq, event)

    def newest_calls(self) -> int:
        """Return the number of calls in the lead's newest reply."""
        return len(self._seen("lead").calls)

    def new_turn(self) -> None:
        """Reset the counts for the `result` of one turn; costs and the usage of each model continue."""
        self._turns += 1
        if self._spoken.client:
            self._begun = False
            self._begin()
        lead = self._seen("lead")
        lead.replies = 0
        lead.fault = None
        lead.usage = Usage()
        self._waited = 0.0
        self._stop_reason = None
        self._denials = []
        self._errors = []

    def result(self, end: RunEnd, *, seconds: float, **extra: Any) -> None:
        """Write the last message of a run or of a turn. `extra` contains more fields, outside the protocol."""
        self._begin()
        lead = self._seen("lead")
        code, subtype, reason = end.exit_code, *end_of_run(end.exit_code, end.limit)
        refused = refused_call(lead.fault, end) if self._spoken.client else None
        if refused is not None:
            subtype = "success"
            reason = "api_error"
            self._emit({"type": "assistant", "message": synthetic_reply(refused.text), "error": refused.error})
        message: Json = {
            "type": "result",
            "subtype": subtype,
            "is_error": code != 0,
            "duration_ms": round(seconds * 1000),
            "duration_api_ms": round(self._waited * 1000),
            "num_turns": lead.replies,
            "stop_reason": self._stop_reason,
            **self._costs.fields(self._limits),
            "usage": usage_part(lead.usage),
            "permission_denials": list(map(self._spoken.call, self._denials)),
            "terminal_reason": reason,
            "exit_code": code,
            "open": end.open.fields(),
            **extra,
        }
        if refused is not None:
            message |= {"result": refused.text, "api_error_status": refused.status, "errors": []}
        elif subtype == "success" or end.text:  # a failed run may have a final text too
            message["result"] = end.text
        if subtype != "success":
            others = [f"{name}: {error}" for name, error in self._errors if name != "lead" or error not in end.reason]
            message["errors"] = [*([end.reason] if end.reason else []), *others]
        self._emit(message)

    def _limits(self, model: str) -> ModelLimits | None:
        return next(
            (spec.models[model] for seen in self._agents.values() if (spec := seen.spec) and model in spec.models), None
        )

    def _started(self, event: AgentStarted, agent: str) -> None:
        seen = self._seen(agent)
        seen.spec = event.spec
        seen.incarnation = event.incarnation
        seen.began_at = event.at
        if event.spec.kind == "lead":
            if not self._spoken.client:
                self._begin()
            return
        maker = self._maker(event.spec)
        seen.parent = None if maker is None else maker.use_id
        # The subagent's own journal may be observed before the caller's record that it is in the background.
        if event.spec.background or (maker is not None and maker.input.get("run_in_background") in (True, "true")):
            self._backgrounded.add(agent)
        kind = "teammate" if event.spec.kind == "teammate" else "local_agent"  # stays after its work
        details: Json = {"description": event.spec.role or agent, "task_type": kind, "tool_use_id": seen.parent}
        details |= {"is_backgrounded": agent in self._backgrounded} if kind == "local_agent" else {}
        self._system("task_started", task_id=agent, subagent_type=event.spec.agent_type, **details)

    def _stopped(self, event: AgentStopped, agent: str) -> None:
        seen = self._seen(agent)
        if agent == "lead":
            return
        status = {"done": "completed", "stopped": "stopped"}.get(event.outcome, "failed")
        state = {"completed": "completed", "stopped": "killed"}.get(status, "failed")
        self._system("task_updated", task_id=agent, patch={"status": state, "end_time": round(event.at * 1000)})
        about: Json = {"status": status, "summary": event.result, "usage": task_usage(seen, event.at)}
        seen.ending = {"task_id": agent, "tool_use_id": seen.parent, **about}
        entry = background_entry(self._open, seen.spec.parent if seen.spec is not None else None, agent)
        # The report of a subagent in the background is in a file before its caller records the end.
        if entry is None or entry.status != "running":
            self._notify(agent, entry.began.output if entry is not None else "")

    def _notify(self, agent: str, output: str) -> None:
        """Report the end of an agent once. `output`: the file with its report."""
        ending, self._seen(agent).ending = self._seen(agent).ending, {}
        if ending:
            self._system("task_notification", **ending, output_file=output)

    def _called(self, event: ModelCalled, agent: str) -> None:
        seen = self._seen(agent)
        seen.called_at = event.at
        if event.purpose == "turn":
            seen.model = event.model

    def _replied(self, event: ModelReplied, agent: str) -> None:
        seen = self._seen(agent)
        self._count(agent, event.model, event.usage, event.at)
        seen.replies, seen.calls, seen.results, seen.fault = seen.replies + 1, event.calls, {}, None
        for call in event.calls:
            if call.name in {"task", "spawn_teammate"}:
                name = call.input.get("description" if call.name == "task" else "name")
                self._made.append((agent, str(name), call))
        seen.tool_uses += len(event.calls)
        if agent == "lead":
            self._stop_reason = event.stop_reason
        if self._only("assistant"):
            self._emit_reply(event, agent)
        if agent != "lead" and event.calls and seen.spec is not None:
            about: Json = {"task_id": agent, "tool_use_id": seen.parent, "usage": task_usage(seen, event.at)}
            about |= {"description": seen.spec.role or agent, "subagent_type": seen.spec.agent_type}
            last = self._spoken.call({"tool_name": event.calls[-1].name})["tool_name"]
            self._system("task_progress", **about, last_tool_name=last)

    def _emit_reply(self, event: ModelReplied, agent: str) -> None:
        message = {"id": event.message_id, "type": "message", "role": "assistant", "model": event.model}
        blocks = [self._spoken.block(real_call(item)) for item in event.blocks if self._reported(agent, item)]
        body = {"content": blocks, "stop_reason": event.stop_reason or None, "stop_sequence": None}
        if blocks or not event.blocks:
            self._emit({"type": "assistant", "message": {**message, **body, "usage": usage_part(event.usage)}}, agent)

    def _reported(self, agent: str, block: Json) -> bool:
        """Return True if a block is reported. Of other agents than the lead, clients may read only the calls."""
        return agent == "lead" or self._forwards or block.get("type") == "tool_use"

    def _dropped(self, event: ReplyDropped, agent: str) -> None:
        self._count(agent, self._seen(agent).model or self._model, event.usage, event.at)

    def _judged(self, event: CallJudged, agent: str) -> None:
        if event.verdict == "deny":
            self._deny(agent, event.call, by=event.by, reason=event.why)

    def _approval_needed(self, event: ApprovalNeeded, agent: str) -> None:
        self._asking[event.request_id] = event.call

    def _answered(self, event: AnswerTaken, agent: str) -> None:
        call = self._asking.pop(event.request_id, "")
        if event.kind == "permission" and (event.status != "approved" or event.void):
            by = event.by or event.status
            reason = event.void or event.reason
            self._deny(agent, call, by=by, reason=reason, text=f"Permission denied: {reason or by}")

    def _deny(self, agent: str, call_id: str, *, by: str, reason: str, text: str = "") -> None:
        """Report a denied call. `text`: from the result for the model, if it says more than `reason`."""
        call = next((candidate for candidate in self._seen(agent).calls if candidate.id == call_id), None)
        if call is None or any(denial["tool_use_id"] == call.use_id for denial in self._denials):
            return
        details: Json = {"tool_name": call.name, "tool_use_id": call.use_id}
        self._denials.append({**details, "tool_input": call.input})
        denied = HookToolResult(({"type": "text", "text": text or reason},), is_error=True)
        self._seen(agent).results.setdefault(call_id, denied)
        self._system("permission_denied", agent, **self._spoken.call(details), message=reason, decision_reason=by)

    def _finished(self, event: ToolFinished, agent: str) -> None:
        self._seen_with(agent, event.call).results[event.call] = HookToolResult(
            event.content, event.is_error, event.data
        )

    def _settled(self, event: ToolSettled, agent: str) -> None:
        results = self._seen_with(agent, event.call).results
        result = results.get(event.call, HookToolResult(()))
        content = result.content if event.content is None else event.content
        results[event.call] = HookToolResult(
            content, result.is_error if event.is_error is None else event.is_error, result.data
        )

    def _merged(self, event: ResultsMerged, agent: str) -> None:
        seen = self._seen(agent)
        results = [(call, seen.results.get(call.id, HookToolResult(()))) for call in seen.calls]
        if self._spoken.client:
            for part, (call, result) in enumerate(results):
                message = {"role": "user", "content": [result_block(call, result)]}
                self._emit({"type": "user", "message": message, **self._spoken.result(call, result)}, agent, part)
        elif results:
            blocks = [result_block(call, result) for call, result in results]
            self._emit({"type": "user", "message": {"role": "user", "content": blocks}}, agent)

    def _received(self, event: EnvelopeReceived, agent: str) -> None:
        if not event.refused:
            self._mail[event.envelope.id] = event.envelope

    def _delivered(self, event: EnvelopesDelivered, agent: str) -> None:
        mail = [envelope for each in event.ids if (envelope := self._mail.pop(each, None)) is not None]
        if mail and all(envelope.type == "prompt" for envelope in mail):
            return  # the client itself sent the person's prompts
        if agent != "lead" and not self._forwards:
            return
        content = [placed.data for placed in event.blocks]
        message: Json = {"type": "user", "message": {"role": "user", "content": content}, "isSynthetic": True}
        if len(mail) == 1:
            message["origin"] = origin(mail[0])
        self._emit(message, agent)

    def _failed(self, event: CallFailed, agent: str) -> None:
        self._seen(agent).fault = event.fault
        if event.fault.usage is not None:
            self._count(agent, event.model, event.fault.usage, event.at)

    def _retry(self, event: RetryPlanned, agent: str) -> None:
        seen = self._seen(agent)
        fault = seen.fault or Fault(kind="server", message=event.why)
        wait = round(max(event.until - event.at, 0.0) * 1000)
        most = seen.spec.attempts if seen.spec else None
        details: Json = {"attempt": event.attempt, "max_retries": most, "retry_delay_ms": wait, "parked": event.parked}
        details["may_be_billed"] = fault.may_bill  # about the failed attempt, while `attempt` is the next one
        error = ERRORS.get(fault.kind, "server_error")
        self._system("api_retry", agent, **details, error_status=fault.status, error=error)

    def _held(self, event: CallHeld, agent: str) -> None:
        self._system("call_held", agent, held_ms=round(event.seconds * 1000), reason=event.why)

    def _budget(self, event: BudgetReached, agent: str) -> None:
        text = used_up(event.budget, event.kind, limit=event.limit, spent=event.spent, needed=event.wanted)
        details: Json = {"budget": event.budget, "kind": event.kind, "limit": event.limit, "spent": event.spent}
        self._system("budget_reached", agent, **details, wanted=event.wanted, last_call=event.winds_down, message=text)

    def _stuck(self, event: StuckNoticed, agent: str) -> None:
        details: Json = {"pattern": event.pattern, "count": event.count, "action": event.action}
        self._system("stuck", agent, **details, message=event.what)

    def _tasks_reminded(self, event: TasksReminded, agent: str) -> None:
        self._system("tasks_reminded", agent, tasks=list(event.tasks))

    def _crashed(self, event: AgentCrashed, agent: str) -> None:
        wait = None if event.again_at is None else round(max(event.again_at - event.at, 0.0) * 1000)
        self._system("agent_crashed", agent, parked=wait is None, retry_delay_ms=wait, message=event.why)

    def _stalled(self, event: StallNoticed, agent: str) -> None:
        waited = round((event.at - event.since) * 1000)
        limit = round(event.limit * 1000)
        self._system("stalled", agent, operation=event.operation, waited_ms=waited, limit_ms=limit, message=event.what)

    def _summarized(self, event: ContextEdited | SummaryFailed, agent: str) -> None:
        """Count the calls of a summary for the model for which `callboard cost` counts them."""
        if event.usage == Usage():
            return
        state = self._open.state(agent) if self._open is not None else None
        spec = state.identity.spec if state is not None else self._seen(agent).spec
        own = self._seen(agent).model or (self._open.model_of(agent) if self._open is not None else self._model)
        self._count(agent, spec.small_model or own if spec is not None else own, event.usage, event.at)

    def _edited(self, event: ContextEdited, agent: str) -> None:
        if not event.undoes:
            self._summarized(event, agent)
        if event.edits and event.stage.startswith(SUMMARIES):
            trigger = "manual" if event.trigger == "manual" else "auto"
            about: Json = {"trigger": trigger, "pre_tokens": event.tokens_before, "post_tokens": event.tokens_after}
            self._system("compact_boundary", agent, compact_metadata=about)

    def _background(self, event: BackgroundStarted, agent: str) -> None:
        if event.agent:  # its own journal tells its start and its end
            is_known = event.agent in self._backgrounded
            self._backgrounded.add(event.agent)
            if self._seen(event.agent).began_at and not is_known:
                self._system("task_updated", task_id=event.agent, patch={"is_backgrounded": True})
            return
        details = {"description": event.command, "task_type": "local_bash", "is_backgrounded": True}
        self._system("task_started", agent, task_id=event.id, **details)

    def _background_ended(self, event: BackgroundEnded, agent: str) -> None:
        entry = background_entry(self._open, agent, event.id)
        output = entry.began.output if entry is not None else ""
        if event.agent:
            self._notify(event.agent, output)
            return
        status = event.status if event.status in {"completed", "stopped"} else "failed"
        code = "" if event.exit_code is None else f" with exit code {event.exit_code}"
        summary = f"{event.status.replace('_', ' ')}{code}"
        self._system("task_notification", agent, task_id=event.id, status=status, output_file=output, summary=summary)

    def _turn_ended(self, event: TurnEnded, agent: str) -> None:
        if event.reason not in {"end", "interrupted", "stopped"} and event.why:
            self._errors.append((agent, event.why))

    def _seen(self, agent: str) -> AgentProgress:
        seen = self._agents.get(agent)
        if seen is None:
            seen = self._agents[agent] = AgentProgress()
        return seen

    def _seen_with(self, agent: str, call: str) -> AgentProgress:
        """Return the record of an agent that has this call.

        A call in a reply from before a resume is read from the journal.
        """
        seen = self._seen(agent)
        if self._open is not None and all(item.id != call for item in seen.calls):
            tool_call = self._open.call(agent, call)
            seen.calls = seen.calls if tool_call is None else (*seen.calls, tool_call)
        return seen

    def _maker(self, spec: AgentSpec) -> ToolCall | None:
        name = spec.name if spec.kind == "teammate" else spec.role
        place = next((at for at, entry in enumerate(self._made) if entry[:2] == (spec.parent, name)), None)
        return None if place is None else self._made.pop(place)[2]

    def _count(self, agent: str, model: str, usage: Usage, at: float) -> None:
        seen = self._seen(agent)
        seen.usage = seen.usage.plus(usage)
        self._costs.add(model, usage)
        if seen.called_at:
            self._waited += max(at - seen.called_at, 0.0)
            seen.called_at = 0.0

    def _begin(self) -> None:
        if self._begun:
            return
        self._begun = True
        spec = self._seen("lead").spec
        session = self._open
        current = session if self._turns > 1 else None  # at first, the options of this run may not be in force yet
        in_force: Json = {
            "model": current.model_of() if current else spec.model if spec else self._model,
            "permissionMode": current.mode_of() if current else spec.permission_mode if spec else self._mode,
        }
        in_force |= self._chosen
        self._chosen = {}
        self._system(
            "init",
            cwd=self._cwd,
            **in_force,
            **session_parts(
                self._spoken,
                spec,
                servers=session.servers_now() if session else (),
                commands=session.commands() if session else (),
                agents=tuple(session.agent_types) if session else (),
                plugins=plugins_json(session.plugins, session.refused_plugins) if session else {"plugins": []},
                style=session.voice.named if session else "default",
            )
            | self._spoken.extra,
            callboard_version=self._version,
        )

    def _system(self, subtype: str, agent: str = "lead", **fields: Any) -> None:
        self._emit({"type": "system", "subtype": subtype, **fields}, agent)

    def _emit(self, message: Json, agent: str = "lead", part: int = 0) -> None:
        if not self._spoken.client:
            self._begin()
        if not self._only(message["type"]):
            return
        about: Json = {"uuid": self._uuid(message, agent, part), "session_id": self._session}
        if message["type"] in {"assistant", "user", "stream_event"} or agent != "lead":
            about["parent_tool_use_id"] = self._seen(agent).parent
        if agent != "lead":
            about["agent"] = agent
        self._emit_raw({**about, **message} if message.get("isReplay") else {**message, **about})

    def _uuid(self, message: Json, agent: str, part: int) -> str:
        """Return the message's UUID; for parts of the conversation that of the transcript, which clients can name."""
        if self._position is None or message["type"] not in {"assistant", "user"}:
            return str(uuid.uuid4())
        name, seq = self._position
        return message_uuid(self._session, name, self._incarnation(name), seq, part=part)

    def _incarnation(self, agent: str) -> int:
        seen = self._seen(agent)
        if not seen.incarnation and self._open is not None:
            state = self._open.state(agent)
            seen.incarnation = state.identity.incarnation if state is not None else 0
        return seen.incarnation or 1

    _emitters: ClassVar[Mapping[type[Any], Callable[[Any, Any, str], None]]] = {
        AgentStarted: _started,
        AgentStopped: _stopped,
        ModelCalled: _called,
        ModelReplied: _replied,
        ReplyDropped: _dropped,
        CallJudged: _judged,
        ApprovalNeeded: _approval_needed,
        AnswerTaken: _answered,
        ToolFinished: _finished,
        ToolSettled: _settled,
        ResultsMerged: _merged,
        EnvelopeReceived: _received,
        EnvelopesDelivered: _delivered,
        CallFailed: _failed,
        RetryPlanned: _retry,
        CallHeld: _held,
        BudgetReached: _budget,
        StuckNoticed: _stuck,
        TasksReminded: _tasks_reminded,
        AgentCrashed: _crashed,
        StallNoticed: _stalled,
        ContextEdited: _edited,
        SummaryFailed: _summarized,
        BackgroundStarted: _background,
        BackgroundEnded: _background_ended,
        TurnEnded: _turn_ended,
    }
    """Method that emits the messages of an event. Other events have none."""

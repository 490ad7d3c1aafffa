"""A world without an engine: does at once, or later, what `decide` asks for, as a list of draws tells it. Pure.

It knows the contract between steps and events and nothing else: each step becomes the events that the engine would
record, each operation ends when it is drawn, and mail, answers, interrupts, stops and deaths of the process come
between. It refuses to go on when `decide` asks for what was asked already.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.core.agent.agent_states import Life, facts

from callboard.core.agent.decide import MODEL, SUMMARY, decide
from callboard.core.agent.state import AgentState
from callboard.core.context.summary.request import summary_edits
from callboard.core.context.view.invariants import invariants
from callboard.core.messaging.envelopes import envelope_block
from callboard.core.recovery.retry_policy import next_output_limit
from callboard.types import events as ev
from callboard.types import steps as st
from callboard.types.messages import StateBlock
from callboard.types.operations import Operation
from callboard.types.records import Fault, Request, ToolCall, Usage

MOST_REPLIES = 12
"""After so many the model only says that it is done: every run ends."""
NAMES = ("read_file", "write_file", "bash", "task", "submit_plan", "compact", "report", "no_such_tool")
LONG = "word " * 900


def begun() -> Life:
    spec = {"context_limit": 6_000, "pipeline": ({"stage": "clear_old_results"}, {"stage": "summarize_all"})}
    return Life.begun(plan_required=True, attempts=2, fallback_models=("two",), models={"one": {}}, **spec)


def _fields(state: AgentState) -> dict[str, int]:
    """The objects in a state and in its parts, by their names: `apply` changes new objects in place, and no other."""
    parts = {"": state, **{name: part for name, part in vars(state).items() if hasattr(part, "__dict__")}}
    return {f"{name}.{inner}": id(value) for name, part in parts.items() for inner, value in vars(part).items()}


@dataclass
class Interpreter:
    """One agent between `decide` and `apply`. `draw(n)` chooses from 0..n-1."""

    draw: Callable[[int], int]
    life: Life = field(default_factory=begun)
    running: dict[Operation, Callable[[], None]] = field(default_factory=dict)
    """Operations under way: what each does when it ends."""
    requests: dict[str, Request] = field(default_factory=dict)
    now: float = 100.0
    replies: int = 0
    faults: list[str] = field(default_factory=list)
    steps: int = 0

    def run(self, happenings: int) -> None:
        """So many things happen; then everything under way ends, until the agent rests or its life is over."""
        for _ in range(happenings):
            self.settle()
            self._happens()
        for _ in range(600):
            self.settle()
            step = self._step()
            if isinstance(step, st.LifeDone) or (isinstance(step, st.Wait) and not self._pass(step)):
                return
        raise AssertionError("it does not come to an end")

    def settle(self) -> None:
        """Follow `decide` until it waits or is done. Each step must bring the state on, or start an operation."""
        for _ in range(80):
            step = self._step()
            if isinstance(step, (st.Wait, st.LifeDone)):
                return
            before = (self.life.state.seq, set(self.running), dict(self.requests))
            _DO[type(step)](self, step)
            after = (self.life.state.seq, set(self.running), dict(self.requests))
            assert before != after, f"{step} brought nothing on"
        raise AssertionError("decide goes round in circles")

    def on(self, kind: type[Any], /, **fields: Any) -> None:
        if kind is ev.ModelCalled:
            paused = self.life.state.model.stop_reason == "pause_turn"
            self.faults += invariants(self.life.state.context.conversation.messages, sent=not paused)
        before = self.life.state
        as_it_was = _fields(before)
        self.life = self.life.on(kind, at=self.now, **fields)
        assert _fields(before) == as_it_was, f"{kind.__name__} changes the state before it"
        self.faults += invariants(self.life.state.context.conversation.messages, sent=False)

    def _step(self) -> st.Step:
        state = self.life.state
        keys = {one.call.id: "a" for one in state.calls if one.call.name == "write_file"}
        known = {"running": frozenset(self.running), "requests": self.requests, "keys": keys, "known": StateBlock()}
        return decide(state, facts(self.now, **known))

    def _pass(self, step: st.Wait) -> bool:
        """What a wait is for: the end of an operation, or a moment. False when it is for the world outside."""
        if self.running:
            self._end(0)
        elif step.until is not None:
            self.now = max(self.now, step.until)
        else:
            return False
        return True

    def _end(self, place: int) -> None:
        name = list(self.running)[place]
        self.running.pop(name)()

    def _happens(self) -> None:
        what = self.draw(10)
        if what < 5 and self.running:
            self._end(self.draw(len(self.running)))
        elif what < 7:
            self._mail()
        elif what == 7:
            self._answer()
        elif what == 8:
            self.now += (1, 40, 4_000)[self.draw(3)]
        else:
            (self._interrupt, self._die, self._compact, self._stop)[self.draw(4)]()

    def _mail(self) -> None:
        fields = (
            {"type": "prompt"},
            {"type": "message", "metadata": {"assignment": True}},
            {"type": "message", "mode": "queue"},
            {"type": "plan_request"},
            {"type": "scheduled"},
            {"type": "message", "depth": 9},
        )[self.draw(6)]
        self.life = self.life.mailed("words", **fields)

    def _answer(self) -> None:
        waiting = [one for one in self.requests.values() if one.status == "pending"]
        if waiting:
            status = ("approved", "rejected", "withdrawn")[self.draw(3)]
            self.requests[waiting[0].id] = waiting[0].model_copy(update={"status": status, "answered_by": "person"})

    def _interrupt(self) -> None:
        self.on(ev.Interrupted)

    def _compact(self) -> None:
        self.life = self.life.mailed("", type="command", metadata={"action": "compact"})

    def _stop(self) -> None:
        self.on(ev.StopAsked, by="person")

    def _die(self) -> None:
        """The process is gone, its operations with it; the journal stays."""
        self.running.clear()
        self.on(ev.AgentResumed, pid=2)


def _ask(self: Interpreter, step: st.AskModel) -> None:
    self.on(ev.ModelCalled, ordinal=step.ordinal, attempt=step.attempt, model=step.model, max_tokens=step.max_tokens)

    def end() -> None:
        what = self.draw(12) if self.replies < MOST_REPLIES else 4
        if what < 3:
            _failed(self, ("server", "overloaded", "too_long")[what])
        else:
            _says(self) if what < 5 else _calls(self) if what < 10 else _cut(self, what)

    self.running[MODEL] = end


def _failed(self: Interpreter, kind: str) -> None:
    self.replies += 1
    call = self.life.state.model.call
    assert call is not None
    fault = Fault.model_validate({"kind": kind})
    self.on(ev.CallFailed, ordinal=call.ordinal, attempt=call.attempt, model=call.model, fault=fault, draw=0.5)


def _reply(self: Interpreter, stop: str, *blocks: Any, calls: tuple[ToolCall, ...] = ()) -> None:
    self.replies += 1
    call = self.life.state.model.call
    assert call is not None
    usage = Usage(input_tokens=self.life.state.context.conversation.tokens + 120, output_tokens=9)
    more = {"stop_reason": stop, "blocks": blocks, "calls": calls, "usage": usage}
    self.on(ev.ModelReplied, ordinal=call.ordinal, model=call.model, **more)


def _says(self: Interpreter) -> None:
    _reply(self, ("end_turn", "refusal")[self.draw(2)], {"type": "text", "text": "done"})


def _calls(self: Interpreter) -> None:
    at = self.life.state.model.ordinal + 1
    names = [NAMES[self.draw(len(NAMES))] for _ in range(1 + self.draw(4))]
    calls = tuple(ToolCall(id=f"c{at}_{n}", use_id=f"u{at}_{n}", name=name, input={}) for n, name in enumerate(names))
    blocks = [{"type": "tool_use", "id": c.use_id, "name": c.name, "input": {}} for c in calls]
    _reply(self, "tool_use", *blocks, calls=calls)


def _cut(self: Interpreter, what: int) -> None:
    if what == 10:
        _reply(self, "pause_turn", {"type": "text", "text": "still at it"})
        return
    higher = next_output_limit(self.life.state.model.recovery, self.life.state.me)
    if higher is None:
        _reply(self, "max_tokens", {"type": "text", "text": "half"})
        return
    self.replies += 1
    self.on(ev.ReplyDropped, ordinal=self.life.state.model.ordinal + 1, why="cut")
    self.on(ev.OutputRaised, limit=higher)


def _judge(self: Interpreter, step: st.CheckPermissions) -> None:
    for call in step.calls:
        if self.draw(2):
            self.running[Operation("judge", call)] = lambda call=call: _judged(self, call)
        else:  # a call that reads
            self.running[Operation("tool", call)] = lambda call=call: _judged_and_begun(self, call)


def _judged_and_begun(self: Interpreter, call: str) -> None:
    _judged(self, call)
    _begins(self, call)


def _judged(self: Interpreter, call: str) -> None:
    if _stage(self, call) != "proposed":
        return
    verdict = self.draw(4)
    if verdict == 0:
        self.on(ev.CallJudged, call=call, verdict="deny", why="no")
    elif verdict == 1:
        request = {"id": f"req_{call}", "kind": "permission", "asked_by": "alice", "expires_at": self.now + 60}
        self.requests[f"req_{call}"] = Request.model_validate(request)
        self.on(ev.ApprovalNeeded, call=call, request_id=f"req_{call}", expires_at=self.now + 60)
    else:
        self.on(ev.CallJudged, call=call, verdict="allow")


def _run(self: Interpreter, step: st.Run) -> None:
    for call in step.calls:
        self.running[Operation("tool", call)] = lambda call=call: _begins(self, call)


def _begins(self: Interpreter, call: str) -> None:
    if _stage(self, call) == "allowed":
        self.on(ev.ToolStarted, call=call, effect="read")
        self.running[Operation("tool", call)] = lambda: _ends(self, call)


def _ends(self: Interpreter, call: str) -> None:
    if _stage(self, call) != "started":
        return
    name = next(one.call.name for one in self.life.state.calls if one.call.id == call)
    text = ({"type": "text", "text": LONG if self.draw(2) else "short"},)
    settled = bool(self.draw(2))  # else there are hooks on results
    self.on(ev.ToolFinished, call=call, content=text, ends_turn=name == "report", settled=settled)
    if name == "submit_plan":
        given = {"id": f"req_{call}", "kind": "plan", "asked_by": "alice", "digest": "d", "expires_at": self.now + 600}
        self.requests[f"req_{call}"] = Request.model_validate(given)
        self.on(ev.GateSet, gate="pending", request_id=f"req_{call}", digest="d", plan="p")
    if name == "compact":
        self.on(ev.CompactAsked)


def _repair(self: Interpreter, step: st.Repair) -> None:
    for call in step.calls:
        self.running[Operation("tool", call)] = lambda call=call: _ends(self, call)


def _settle(self: Interpreter, step: st.Settle) -> None:
    for call in step.calls:
        self.running[Operation("settle", call)] = lambda call=call: _settled(self, call)


def _settled(self: Interpreter, call: str) -> None:
    if _stage(self, call) == "finished":
        self.on(ev.ToolSettled, call=call)


def _stage(self: Interpreter, call: str) -> str:
    return next((one.stage for one in self.life.state.calls if one.call.id == call), "gone")


def _cancel(self: Interpreter, step: st.Cancel) -> None:
    for operation in step.operations:
        del self.running[operation]


def _interrupt(self: Interpreter, step: st.Interrupt) -> None:
    state = self.life.state
    if state.model.call is not None:
        self.on(ev.ReplyInterrupted, ordinal=state.model.call.ordinal, text=("", "so far")[self.draw(2)])
    if state.compaction.summary is not None:
        self.on(ev.SummaryFailed, why=step.why)
    for one in state.calls:
        if one.stage in ("proposed", "asking", "allowed", "started"):
            self.on(ev.ToolFinished, call=one.call.id, content=(), is_error=True, settled=True)
        elif one.stage == "finished":
            self.on(ev.ToolSettled, call=one.call.id)


def _take(self: Interpreter, step: st.TakeAnswer) -> None:
    r = step.request
    self.on(ev.AnswerTaken, request_id=r.id, kind=r.kind, status=r.status, by=r.answered_by or "", digest=r.digest)


def _expire(self: Interpreter, step: st.Expire) -> None:
    self.requests[step.request.id] = step.request.model_copy(update={"status": "expired"})


def _summarise(self: Interpreter, step: st.SummarizeView) -> None:
    if not step.begun:
        self.on(ev.SummaryBegan, wanted=step.wanted, revision=self.life.state.context.conversation.revision)
    self.running[SUMMARY] = lambda: _summarised(self)


def _summarised(self: Interpreter) -> None:
    state = self.life.state
    assert state.compaction.summary is not None
    text = "- it went well" if self.draw(3) else "x" * 90_000
    edits = summary_edits(
        state.context.conversation,
        state.compaction.summary,
        text,
        state=StateBlock(),
        transcript="/t/1.jsonl",
        budget=6_000,
    )
    if not edits:
        self.on(ev.SummaryFailed, why="no smaller")
        return
    _edited(self, st.EditView(state.compaction.summary.stage, state.compaction.summary.trigger, tuple(edits)))


def _edited(self: Interpreter, step: st.EditView) -> None:
    revision = self.life.state.context.conversation.revision
    self.on(ev.ContextEdited, stage=step.stage, trigger=step.trigger, revision=revision, edits=step.edits)


def _deliver(self: Interpreter, step: st.Deliver) -> None:
    blocks = tuple(envelope_block(one) for one in self.life.state.inbox.mail if one.id in step.ids)
    self.on(ev.EnvelopesDelivered, ids=step.ids, blocks=blocks)


def _inject(self: Interpreter, step: st.Inject) -> None:
    blocks = [
        {"data": {"type": "text", "text": i.text}, "source": i.source} for i in self.life.state.context.injections
    ]
    self.on(ev.InjectionsDelivered, blocks=tuple(blocks))


def _stuck(self: Interpreter, step: st.NoticeStuck) -> None:
    self.on(ev.StuckNoticed, pattern=step.pattern, count=step.count, what=step.what, action=step.action)
    if step.action == "stop":
        _end_turn(self, st.EndTurn("limit", step.what))


def _lose(self: Interpreter, step: st.LoseCall) -> None:
    call = self.life.state.model.call
    assert call is not None
    fault = Fault(kind="lost")
    self.on(ev.CallFailed, ordinal=call.ordinal, attempt=call.attempt, model=call.model, fault=fault)


def _end_turn(self: Interpreter, step: st.EndTurn) -> None:
    turn = self.life.state.turn
    assert turn is not None
    self.on(ev.TurnEnded, turn=turn.id, reason=step.reason, text=turn.text, why=step.why)


_DO: dict[type, Callable[[Interpreter, Any], None]] = {
    st.BeginTurn: lambda self, step: self.on(ev.TurnBegan, turn=f"t{self.life.state.turns.count}", cause=step.cause),
    st.Inject: _inject,
    st.Deliver: _deliver,
    st.Drop: lambda self, step: self.on(ev.EnvelopesDropped, ids=step.ids, why=step.why),
    st.AskModel: _ask,
    st.LoseCall: _lose,
    st.CheckPermissions: _judge,
    st.Skip: lambda self, step: [self.on(ev.CallJudged, call=c, verdict="deny", why=step.why) for c in step.calls],
    st.Run: _run,
    st.Repair: _repair,
    st.Settle: _settle,
    st.Merge: lambda self, step: self.on(ev.ResultsMerged, waits=step.waits),
    st.NoticeStuck: _stuck,
    st.Cancel: _cancel,
    st.Interrupt: _interrupt,
    st.TakeAnswer: _take,
    st.Expire: _expire,
    st.PlanRetry: lambda self, step: self.on(
        ev.RetryPlanned, until=step.until, attempt=step.attempt, parked=step.parked, why=step.why
    ),
    st.SwitchModel: lambda self, step: self.on(ev.ModelSwitched, model=step.model, why=step.why),
    st.React: lambda self, step: self.on(ev.ReactAsked, why=step.why),
    st.Continue: lambda self, step: self.on(ev.ContinuationAsked, count=step.count),
    st.EditView: _edited,
    st.SummarizeView: _summarise,
    st.EndTurn: _end_turn,
    st.StopAgent: lambda self, step: self.on(ev.AgentStopped, outcome=step.outcome, result=step.result),
}

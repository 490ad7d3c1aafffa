"""What an event looks like on the screen. Pure: an event in, a block of lines out.

One line each: a retry, a fire, a compaction, an envelope between agents. Whole, never cut: what the model says to the
person, plans, and the text that ends a turn. Only one-liners are progress, which `--quiet` hides. What is shortened
here is shortened for the screen alone.

It refuses to print, to remember and to colour: a line carries the name of a style.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from callboard.core.budget.tree import used_up
from callboard.faces.terminal import Block, Line, Style, block, plain
from callboard.words.events import (
    AgentCrashed,
    AgentResumed,
    AgentStarted,
    AgentStopped,
    AnswerTaken,
    ApprovalNeeded,
    BackgroundEnded,
    BackgroundStarted,
    BudgetReached,
    CacheThrash,
    CallHeld,
    ContextEdited,
    ContinuationAsked,
    EnvelopeReceived,
    Event,
    GateSet,
    Interrupted,
    ModelReplied,
    ModelSwitched,
    OutputRaised,
    ReactAsked,
    ReplyDropped,
    ReplyInterrupted,
    RetryPlanned,
    StallNoticed,
    StopAsked,
    StuckNoticed,
    SummaryFailed,
    TaskHeld,
    TodosSet,
    TurnEnded,
    WaitBegan,
)
from callboard.words.values import Envelope, Json, ToolCall, Usage

WIDTH = 100
"""Columns that a shortened piece may take."""
_FIRE_WIDTH = 60

_MAIN_FIELDS = ("command", "pattern", "path", "description", "name", "to", "subject", "task_id", "cron", "plan", "id")
"""Of a tool's input, the first of these that is there is shown."""

_TODO_MARKS = {"pending": "[ ]", "in_progress": "[>]", "completed": "[x]"}

_SILENT_MAIL = frozenset({"prompt", "command", "scheduled", "plan_approval_request", "permission_request", "question"})
"""Envelopes that are shown otherwise: typed by the person, as a fire, or as a request."""


def lines_of(agent: str, event: Event) -> Block | None:
    """The lines of an event, None when it has none. Those of a finished call are `results.result_block`'s."""
    teller = _TELLERS.get(type(event))
    return None if teller is None else teller(agent, event)


def mail_line(envelope: Envelope) -> Block | None:
    """`sender -> recipient  first line` of an envelope; a fire in its own words; None for what is shown otherwise."""
    if envelope.type == "scheduled":
        schedule = str(envelope.metadata.get("schedule", envelope.id))
        return _progress("schedule", f"{schedule} fired: {shorten(first_line(envelope.content), _FIRE_WIDTH)}")
    if envelope.type in _SILENT_MAIL:
        return None
    what = "" if envelope.type in {"message", "broadcast"} else f" [{envelope.type.replace('_', ' ')}]"
    said = shorten(first_line(envelope.content), WIDTH)
    return _progress("", f"{envelope.sender} -> {envelope.recipient}{what} {said}".rstrip())


def usage_words(usage: Usage) -> str:
    """`12,345 tokens in (90 % cached), 678 out, $0.12`."""
    cached = f" ({usage.cache_read_input_tokens * 100 // usage.prompt_tokens} % cached)" if usage.prompt_tokens else ""
    return f"{usage.prompt_tokens:,} tokens in{cached}, {usage.output_tokens:,} out, ${usage.cost_usd:.2f}"


def text_of(content: Sequence[Json]) -> str:
    """The text of content blocks in the API's form; what is not text is named in brackets."""
    return "\n".join(
        str(one.get("text", "")) if one.get("type") == "text" else f"[{one.get('type')}]" for one in content
    )


def first_line(text: str) -> str:
    """The first line that says something."""
    return next((line.strip() for line in plain(text).split("\n") if line.strip()), "")


def columns(text: str) -> int:
    """How many columns the text takes: wide characters count two, combining ones none."""
    return sum(_columns(char) for char in text)


def shorten(text: str, width: int) -> str:
    """At most `width` columns (wide characters count two), with a mark where it was cut."""
    if text.isascii():
        return text if len(text) <= width else f"{text[: max(width - 1, 0)]}…"
    used = 0
    for at, char in enumerate(text):
        used += _columns(char)
        if used > width:
            return f"{text[: max(at - 1, 0)]}…"
    return text


def _columns(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in {"W", "F"} else 1


def call_words(call: ToolCall) -> str:
    """A tool call in a few words: `bash pytest -q`."""
    given: Mapping[str, Any] = call.input
    main = next((given[field] for field in _MAIN_FIELDS if given.get(field)), None)
    words = main if isinstance(main, str) else json.dumps(given, ensure_ascii=False) if given else ""
    return shorten(f"{tool_words(call.name)} {first_line(words)}".rstrip(), WIDTH)


def tool_words(name: str) -> str:
    """A tool's name for a person; of an MCP server: `server: tool`."""
    server, _, tool = name.removeprefix("mcp__").partition("__")
    return f"{server}: {tool}" if name.startswith("mcp__") and tool else name


def _progress(agent: str, text: str, style: Style = "dim") -> Block:
    return Block((Line(plain(text).replace("\n", " "), style, agent),), progress=True)


def _started(agent: str, event: AgentStarted) -> Block | None:
    spec = event.spec
    if spec.kind == "lead":
        return None
    role = f": {shorten(first_line(spec.role), WIDTH)}" if spec.role else ""
    return _progress(agent, f"started as {spec.kind} ({spec.agent_type}) of {spec.parent}{role}")


def _resumed(agent: str, event: AgentResumed) -> Block:
    return _progress(agent, "goes on where it was")


def _crashed(agent: str, event: AgentCrashed) -> Block:
    if event.again_at is not None:
        wait = max(event.again_at - event.at, 0.0)
        return _progress(agent, f"crashed ({event.why}); goes on from its journal in {wait:.1f} s", "warn")
    words = f"crashed {event.count} times in a minute and is parked: {event.why}. `callboard team resume {agent}`"
    return block(words, "bad", name=agent)


def _wait_began(agent: str, event: WaitBegan) -> Block:
    words = {"rate": "the service's rate", "budget": "money that other calls hold back"}[event.what]
    until = "" if event.until is None else f", {max(event.until - event.at, 0.0):.0f} s at most"
    return _progress(agent, f"waits for {words}{until}")


def _stalled(agent: str, event: StallNoticed) -> Block:
    words = f"waits for {event.what} for {event.at - event.since:.0f} s, {event.limit:.0f} s are allowed"
    return block(f"stalled: {words}. `callboard team kill {agent}` ends it", "warn", name=agent)


def _stopped(agent: str, event: AgentStopped) -> Block:
    return _progress(agent, f"stopped: {event.outcome}", "dim" if event.outcome in {"done", "stopped"} else "warn")


def _stop_asked(agent: str, event: StopAsked) -> Block:
    return _progress(agent, f"asked to stop by {event.by}{_because(event.why)}")


def _replied(agent: str, event: ModelReplied) -> Block | None:
    said = "\n".join(str(one["text"]) for one in event.blocks if one.get("type") == "text" and one.get("text"))
    return block(said.strip("\n"), name=agent) if said.strip() else None


def _ended(agent: str, event: TurnEnded) -> Block | None:
    if event.reason == "end":
        return None
    new = "; /new --carry goes on in a fresh conversation, with what matters" if event.reason == "overflow" else ""
    return block(f"turn ended: {event.reason}{_because(event.why)}{new}", "warn", name=agent)


def _retry(agent: str, event: RetryPlanned) -> Block:
    wait = max(event.until - event.at, 0.0)
    if event.parked:
        return _progress(agent, f"parked for {wait:.0f} s{_because(event.why)}", "warn")
    what = "retry of a summary" if event.purpose == "summary" else "retry"
    return _progress(agent, f"{what} (attempt {event.attempt}) in {wait:.1f} s{_because(event.why)}", "warn")


def _call_held(agent: str, event: CallHeld) -> Block:
    return _progress(agent, f"the call waited {event.seconds:.0f} s{_because(event.why)}")


def _budget(agent: str, event: BudgetReached) -> Block:
    """Whoever reads it can raise the budget: where it is set depends on whose it is."""
    words = used_up(event.budget, event.kind, event.limit, event.spent, event.wanted)
    if event.kind not in ("agents", "depth"):
        words += "; one last call says what is done" if event.winds_down else ""
    setting = "`budget`" if event.budget == "session" else "`budgets`"
    where = "give its schedule more" if ":" in event.budget else f"raise {setting} in settings.yaml, then resume"
    return block(f"{words}. To allow more: {where}", "warn", name=agent)


def _stuck(agent: str, event: StuckNoticed) -> Block:
    words = f"repeats itself, {event.count} times: {event.what}"
    if event.action == "nudge":
        return _progress(agent, f"{words}; it is told to take another way", "warn")
    return block(f"{words}; its turn ends. Tell it what to do otherwise", "warn", name=agent)


def _reply_dropped(agent: str, event: ReplyDropped) -> Block:
    billed = f" ({event.usage.output_tokens:,} output tokens are billed)" if event.usage.output_tokens else ""
    return _progress(agent, f"the reply above is void: {event.why}{billed}", "warn")


def _reply_interrupted(agent: str, event: ReplyInterrupted) -> Block | None:
    return block(f"{event.text}\n[interrupted]", name=agent) if event.text else None


def _switched(agent: str, event: ModelSwitched) -> Block:
    what = "the summary goes" if event.purpose == "summary" else "goes"
    passed = f"; passed over {'; '.join(event.skipped)}" if event.skipped else ""
    return _progress(agent, f"{what} on with model {event.model}{_because(event.why)}{passed}", "warn")


def _raised(agent: str, event: OutputRaised) -> Block:
    return _progress(agent, f"asks again with up to {event.limit:,} output tokens", "warn")


def _continuation(agent: str, event: ContinuationAsked) -> Block:
    return _progress(agent, f"output limit reached: asked to go on (continuation {event.count})", "warn")


def _approval(agent: str, event: ApprovalNeeded) -> Block:
    return _progress(agent, f"waits for permission {event.request_id}{_because(event.why)}", "warn")


def _answered(agent: str, event: AnswerTaken) -> Block:
    style: Style = "good" if event.status in {"approved", "answered"} and not event.void else "warn"
    by = f" by {event.by}" if event.by else ""
    more = f", option: {first_line(event.choice)}" if event.choice else ""
    more += ", as edited" if event.plan else ""
    more += f"; void: {event.void}" if event.void else f"; {event.note}" if event.note else ""
    text = f"{event.kind} {event.request_id} {event.status}{by}{more}{_because(event.reason)}"
    return block(text, style, name=agent)


def _gate(agent: str, event: GateSet) -> Block | None:
    if event.gate == "open":
        return _progress(agent, f"may act now{_because(event.why)}") if event.why else None
    if event.gate == "required":
        return _progress(agent, f"reads only until a plan is approved{_because(event.why)}")
    head = Line(f"plan {event.request_id or ''} waits for approval", "strong", agent)
    return Block((head, *(Line(line) for line in plain(event.plan).split("\n") if event.plan)))


def _todos(agent: str, event: TodosSet) -> Block | None:
    if not event.todos:
        return None
    lines = tuple(Line(f"  {_TODO_MARKS[todo.status]} {first_line(todo.content)}", "dim") for todo in event.todos)
    return Block((Line("todos", "dim", agent), *lines), progress=True)


def _held(agent: str, event: TaskHeld) -> Block:
    return _progress(agent, f"{'took' if event.held else 'has done with'} {event.task} {event.subject}".rstrip())


def _background(agent: str, event: BackgroundStarted) -> Block:
    return _progress(agent, f"background {event.id} started: {shorten(first_line(event.command), WIDTH)}")


def _background_ended(agent: str, event: BackgroundEnded) -> Block:
    code = "" if event.exit_code is None else f" (exit {event.exit_code})"
    style: Style = "dim" if event.status == "completed" else "warn"
    return _progress(agent, f"background {event.id} {event.status.replace('_', ' ')}{code}", style)


def _edited(agent: str, event: ContextEdited) -> Block | None:
    undone = ", ".join(f"edit {seq}" for seq in event.undoes)
    if not event.edits and event.trigger == "manual" and not undone:
        return _progress(agent, f"nothing to compact{_because(event.why)}")
    if not event.edits:
        words = f"did not take back {undone}" if undone else f"the stage {event.stage} is passed over"
        return _progress(agent, f"{words}{_because(event.why)}", "warn") if undone or event.why else None
    where = f", transcript {event.transcript}" if event.transcript else ""
    sizes = f"{event.tokens_before:,} -> {event.tokens_after:,} tokens"
    if undone:
        return _progress(agent, f"took back {undone}, {sizes}")
    return _progress(agent, f"compaction: {event.stage} ({event.trigger}), {sizes}{where}")


def _thrash(agent: str, event: CacheThrash) -> Block:
    words = f"{event.calls} calls in a row found next to nothing in the prompt cache; changed: {event.changed}"
    return _progress(agent, words, "warn")


def _summary_failed(agent: str, event: SummaryFailed) -> Block:
    what = "skipped" if event.skipped else "failed"
    return _progress(agent, f"summary {what}{_because(event.why)}", "warn")


def _react(agent: str, event: ReactAsked) -> Block:
    return _progress(agent, f"the service refused the prompt as too long: compacting{_because(event.why)}", "warn")


def _interrupted(agent: str, event: Interrupted) -> Block:
    return block("interrupted", "warn", name=agent)


def _refused_mail(agent: str, event: EnvelopeReceived) -> Block | None:
    what = f"a {event.envelope.type} of {event.envelope.sender} does not count: {event.refused}"
    return _progress(agent, what, "warn") if event.refused else None


def _because(why: str) -> str:
    return f": {why}" if why else ""


_TELLERS: Mapping[type[Any], Callable[[str, Any], Block | None]] = {
    AgentStarted: _started,
    AgentResumed: _resumed,
    AgentCrashed: _crashed,
    WaitBegan: _wait_began,
    StallNoticed: _stalled,
    AgentStopped: _stopped,
    StopAsked: _stop_asked,
    EnvelopeReceived: _refused_mail,
    ModelReplied: _replied,
    TurnEnded: _ended,
    RetryPlanned: _retry,
    CallHeld: _call_held,
    BudgetReached: _budget,
    StuckNoticed: _stuck,
    ReplyDropped: _reply_dropped,
    ReplyInterrupted: _reply_interrupted,
    ModelSwitched: _switched,
    OutputRaised: _raised,
    ContinuationAsked: _continuation,
    ApprovalNeeded: _approval,
    AnswerTaken: _answered,
    GateSet: _gate,
    TodosSet: _todos,
    TaskHeld: _held,
    BackgroundStarted: _background,
    BackgroundEnded: _background_ended,
    ContextEdited: _edited,
    CacheThrash: _thrash,
    SummaryFailed: _summary_failed,
    ReactAsked: _react,
    Interrupted: _interrupted,
}

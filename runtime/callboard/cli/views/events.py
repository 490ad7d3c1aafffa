"""View of an event on the screen. Pure: an event in, a block of lines out.

A retry, a fire, a compaction and an envelope between agents have one line each. The model's text for the person, plans,
and the text that ends a turn are shown in full. Only single lines are progress, which `--quiet` hides. Text is
shortened only for the screen.

The result of a tool call has one line, then a few lines of its changes or of the end of its output. Its detail is
`brief` on a screen on which nobody types (one line, so that a log stays a log), `folded` on the prompt line, and
`whole` there with `--verbose`. Omitted lines are counted.

This module prints nothing and keeps no state. A line names its style instead of a colour.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

from callboard.cli.terminal.terminal import Block, Line, Style, block, char_columns, plain
from callboard.cli.views.resume import resumed_block
from callboard.core.approvals.plans import subject_of
from callboard.core.budgets.tree import describe_exhausted, used_up
from callboard.core.call_words import input_words, relative_paths
from callboard.core.keys import count_words
from callboard.core.recovery.refused_blocks import LEFT_OUT
from callboard.core.replies import reply_text
from callboard.types.events import (
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
    LimitsLearned,
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
    TasksReminded,
    TodosSet,
    ToolFinished,
    TurnEnded,
    WaitBegan,
)
from callboard.types.records import Envelope, Json, Request, ToolCall

WIDTH = 100
"""Limit of the columns of a shortened piece."""
_FIRE_WIDTH = 60

_TODO_MARKS = {"pending": "[ ]", "in_progress": "[>]", "completed": "[x]"}

_SILENT_MAIL = frozenset(
    {
        *("prompt", "command", "scheduled", "plan_approval_request", "permission_request", "question"),
        *("plan_approval_response", "permission_response"),
    }
)
"""Envelopes that are shown elsewhere: as typed by the person, as a fire, as a request, or as its answer."""


def lines_of(agent: str, event: Event) -> Block | None:
    """Return the lines of an event; None if it has none. For a finished call see `result_block`."""
    teller = _TELLERS.get(type(event))
    return None if teller is None else teller(agent, event)


def mail_line(envelope: Envelope) -> Block | None:
    """Return `sender -> recipient  first line` of an envelope.

    A fire has its own text; None for envelopes that are shown elsewhere.
    """
    if envelope.type == "scheduled":
        schedule = str(envelope.metadata.get("schedule", envelope.id))
        return _progress("schedule", f"{schedule} fired: {shorten(first_line(envelope.content), _FIRE_WIDTH)}")
    if envelope.type in _SILENT_MAIL:
        return None
    label = "" if envelope.type in {"message", "broadcast"} else f" [{envelope.type.replace('_', ' ')}]"
    text = shorten(first_line(envelope.content), WIDTH)
    return _progress("", f"{envelope.sender} -> {envelope.recipient}{label} {text}".rstrip())


def answer_words(row: Request, *, attended: bool = True) -> str:
    """Return the commands that answer a request from another terminal, or who answers it if a person cannot.

    `attended`: someone can allow the edits of an approved plan. If nobody can, its approval allows them.
    """
    if "person" not in row.may_answer:
        return f"waits for {' or '.join(row.may_answer)}"
    if row.kind == "question":
        return f'callboard answer {row.id} "..."'
    mode = "" if attended or row.kind != "plan" else " --mode acceptEdits"
    return f'callboard approve {row.id}{mode}, or: callboard reject {row.id} --why "..."'


def text_of(content: Sequence[Json]) -> str:
    """Return the text of content blocks in the API's format; other blocks are named in brackets."""
    return "\n".join(
        str(item.get("text", "")) if item.get("type") == "text" else f"[{item.get('type')}]" for item in content
    )


def first_line(text: str) -> str:
    """Return the first line with content."""
    return next((line.strip() for line in plain(text).split("\n") if line.strip()), "")


def shorten(text: str, width: int) -> str:
    """Return at most `width` columns of the text (wide characters count two), with a mark where it was cut."""
    if text.isascii():
        return text if len(text) <= width else f"{text[: max(width - 1, 0)]}…"
    used = 0
    for at, char in enumerate(text):
        used += char_columns(char)
        if used > width:
            return f"{text[: max(at - 1, 0)]}…"
    return text


def call_words(call: ToolCall, home: str = "") -> str:
    """Return a short form of a tool call: `bash pytest -q`. `home`: the folder to which paths are relative."""
    words = first_line(input_words(relative_paths(call.input, home)))
    return shorten(f"{tool_words(call.name)} {words}".rstrip(), WIDTH)


def plan_words(plan: str) -> str:
    """Return a short form of a plan: `plan Fix the parser`."""
    return f"plan {shorten(subject_of(plan), WIDTH)}"


def request_words(request: Request, home: str = "") -> str:
    """Return the call or plan of a request in short form; empty for other requests. `home`: as of `call_words`."""
    held = request.payload
    if request.kind == "plan":
        return plan_words(str(held.get("plan", "")))
    tool_input = held.get("input")
    if request.kind != "permission" or not isinstance(tool_input, dict):
        return ""
    words = input_words(relative_paths(cast("Json", tool_input), home))
    return shorten(f"{tool_words(str(held.get('tool', '?')))} {first_line(words)}".rstrip(), WIDTH)


def tool_words(name: str) -> str:
    """Return a tool's name for a person; for an MCP server: `server: tool`."""
    server, _, tool = name.removeprefix("mcp__").partition("__")
    return f"{server}: {tool}" if name.startswith("mcp__") and tool else name


def _progress(agent: str, text: str, style: Style = "dim") -> Block:
    return Block((Line(plain(text).replace("\n", " "), style, agent),), progress=True)


def _started(agent: str, event: AgentStarted) -> Block | None:
    spec = event.spec
    if spec.kind == "lead":
        return None
    role = f": {shorten(first_line(spec.role), WIDTH)}" if spec.role else ""
    agent_type = "" if spec.agent_type == spec.kind else f" ({spec.agent_type})"
    return _progress(agent, f"started as {spec.kind}{agent_type} of {spec.parent}{role}")


def _resumed(agent: str, event: AgentResumed) -> Block:
    return resumed_block(agent)


def _crashed(agent: str, event: AgentCrashed) -> Block:
    if event.again_at is not None:
        wait = max(event.again_at - event.at, 0.0)
        return _progress(agent, f"crashed ({event.why}); continues from its journal in {wait:.1f} s", "warn")
    text = f"crashed {event.count} times in a minute and is parked: {event.why}. `callboard team resume {agent}`"
    return block(text, "bad", name=agent)


def _wait_began(agent: str, event: WaitBegan) -> Block:
    resource = {"rate": "the service's rate", "budget": "money reserved for other calls"}[event.what]
    until = "" if event.until is None else f", {max(event.until - event.at, 0.0):.0f} s at most"
    return _progress(agent, f"waits for {resource}{until}")


def _stalled(agent: str, event: StallNoticed) -> Block:
    text = f"waits for {event.what} for {event.at - event.since:.0f} s, {event.limit:.0f} s are allowed"
    return block(f"stalled: {text}. `callboard team kill {agent}` ends it", "warn", name=agent)


def _stopped(agent: str, event: AgentStopped) -> Block:
    if event.outcome in {"done", "stopped"}:
        return _progress(agent, "is done" if event.outcome == "done" else "has stopped")
    return _progress(agent, f"has stopped: {event.outcome}", "warn")


def _stop_asked(agent: str, event: StopAsked) -> Block:
    return _progress(agent, f"asked to stop by {event.by}{_because(event.why)}")


def _replied(agent: str, event: ModelReplied) -> Block | None:
    text = reply_text(event.blocks)
    return block(text.strip("\n"), name=agent) if text.strip() else None


def _ended(agent: str, event: TurnEnded) -> Block | None:
    if event.reason == "end":
        return None
    stuck = event.reason in ("overflow", "refused") or (event.reason == "failed" and "as invalid" in event.why)
    new = "; if that does not help: /new --carry starts a fresh conversation with a hand-off from this one"
    new = new if agent == "lead" and stuck else ""
    if agent == "lead" and event.limit.startswith("turn_"):
        new = "; your next message starts a turn with the same limit"
    reason = event.reason if event.why != event.reason else ""
    return block(
        f"turn ended{_because(': '.join(part for part in (reason, event.why) if part))}{new}", "warn", name=agent
    )


def _retry(agent: str, event: RetryPlanned) -> Block:
    wait = max(event.until - event.at, 0.0)
    if event.parked:
        return _progress(agent, f"parked for {wait:.0f} s{_because(event.why)}", "warn")
    label = "retry of a summary" if event.purpose == "summary" else "retry"
    return _progress(agent, f"{label} (attempt {event.attempt}) in {wait:.1f} s{_because(event.why)}", "warn")


def _call_held(agent: str, event: CallHeld) -> Block:
    return _progress(agent, f"the call waited {event.seconds:.0f} s{_because(event.why)}")


def budget_block(agent: str, event: BudgetReached, *, by_option: bool = False, told_later: bool = False) -> Block:
    """Return how a budget was reached and, for a person who can raise it, where it is set, which depends on its owner.

    `by_option`: an option of the command line set the session's limit in dollars. `told_later`: the end of the run
    names the budget.

    A used-up budget ends the turn, and the end of the turn or of the run shows its numbers.
    """
    if event.kind in ("agents", "depth"):
        text = used_up(event.budget, event.kind, limit=event.limit, spent=event.spent, needed=event.wanted)
    elif told_later and not event.winds_down:
        text = "stops at a budget"
    else:
        text = describe_exhausted(event.budget, event.kind, event.limit, event.spent)
        text += "; one last call reports the state of the work" if event.winds_down else ""
    return block(f"{text}. To allow more: {_more_budget(event, by_option)}", "warn", name=agent)


def _more_budget(event: BudgetReached, by_option: bool) -> str:
    """Return how to raise a budget.

    An option of a resumed session takes effect wherever the limit was set before; settings do not raise the limit of an
    option.
    """
    if ":" in event.budget:
        return "raise the budget of its schedule (`callboard cron edit`)"
    if event.budget != "session":
        return f"`callboard team budget {event.budget} {event.kind}=N`, or `budgets` in settings.yaml and resume"
    if event.kind == "cost_usd":
        if by_option:
            return "resume with a higher --max-budget-usd"
        return "resume with a higher --max-budget-usd, or a higher `budget` in settings.yaml"
    return "raise `budget` in settings.yaml, then resume"


def _stuck(agent: str, event: StuckNoticed) -> Block:
    text = f"repeats itself, {event.count} times: {event.what}"
    if event.action == "nudge":
        return _progress(agent, f"{text}; it is asked to try another way", "warn")
    return block(f"{text}; its turn ends. Send it new instructions", "warn", name=agent)


def _tasks_reminded(agent: str, event: TasksReminded) -> Block:
    return _progress(agent, f"ended its turn with {', '.join(event.tasks)} unfinished; it is reminded", "warn")


def _reply_dropped(agent: str, event: ReplyDropped) -> Block:
    billed = f" ({event.usage.output_tokens:,} output tokens are billed)" if event.usage.output_tokens else ""
    return _progress(agent, f"a reply is void: {event.why}{billed}", "warn")


def _reply_interrupted(agent: str, event: ReplyInterrupted) -> Block | None:
    return block(f"{event.text}\n[interrupted]", name=agent) if event.text else None


def _switched(agent: str, event: ModelSwitched) -> Block:
    subject = "the summary continues" if event.purpose == "summary" else "continues"
    passed = f"; skipped {'; '.join(event.skipped)}" if event.skipped else ""
    return _progress(agent, f"{subject} with model {event.model}{_because(event.why)}{passed}", "warn")


def _raised(agent: str, event: OutputRaised) -> Block:
    return _progress(agent, f"asks again with up to {event.limit:,} output tokens", "warn")


def _learned(agent: str, event: LimitsLearned) -> Block:
    limits = [f"{event.max_output:,} output tokens"] if event.max_output else []
    limits += [f"a window of {event.window:,} tokens"] if event.window else []
    text = f"the service allows {' and '.join(limits)} with {event.model}: used from now on"
    return _progress(agent, text + _because(event.why), "warn")


def _continuation(agent: str, event: ContinuationAsked) -> Block:
    if event.call:
        text = f"the input of {event.call} did not fit into the output limit: asked for smaller parts"
        return _progress(agent, f"{text} ({event.count})", "warn")
    return _progress(agent, f"output limit reached: asked to continue (continuation {event.count})", "warn")


def _approval(agent: str, event: ApprovalNeeded) -> Block | None:
    if event.expires_at is not None and event.expires_at <= event.at:
        return None  # no one can answer, and the line of the denied call follows at once
    return _progress(agent, f"waits for permission {event.request_id}{_because(event.why)}", "warn")


def answer_block(agent: str, event: AnswerTaken, subject: str = "") -> Block:
    """Return what was decided, and by whom. `subject`: the call or plan; without it, the id of the request."""
    style: Style = "good" if event.status in {"approved", "answered"} and not event.void else "warn"
    by = f" by {event.by}" if event.by else ""
    details = f", option: {first_line(event.choice)}" if event.choice else ""
    details += ", as edited" if event.plan else ""
    details += f", as edited: {first_line(input_words(event.input))}" if event.input is not None else ""
    details += f"; void: {event.void}" if event.void else f"; {event.note}" if event.note else ""
    head = f"{subject}:" if subject else f"{event.kind} {event.request_id}"
    return block(f"{head} {event.status}{by}{details}{_because(event.reason)}", style, name=agent)


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
    return _progress(agent, f"{'took' if event.held else 'no longer holds'} {event.task} {event.subject}".rstrip())


def _background(agent: str, event: BackgroundStarted) -> Block | None:
    if event.moved:
        return None  # the line of its call says so
    if event.agent:
        return _progress(agent, f"subagent {event.agent} goes on in the background")
    return _progress(agent, f"background {event.id} started: {shorten(first_line(event.command), WIDTH)}")


def _background_ended(agent: str, event: BackgroundEnded) -> Block | None:
    if event.agent:  # the end of its life was shown
        return None
    code = "" if event.exit_code is None else f" (exit {event.exit_code})"
    style: Style = "dim" if event.status == "completed" else "warn"
    return _progress(agent, f"background {event.id} {event.status.replace('_', ' ')}{code}", style)


_QUIET_EDITS = frozenset({"cleared", "persisted", "snipped"})
_SHOWN_PERCENT = 20
"""Percentage of the view that an automatic edit must remove to be shown. Summaries and dropped parts are always
shown."""


def _edited(agent: str, event: ContextEdited) -> Block | None:
    undone = ", ".join(f"edit {seq}" for seq in event.undoes)
    if not event.edits and event.trigger == "manual" and not undone:
        return _progress(agent, f"nothing to compact{_because(event.why)}")
    if not event.edits:
        text = f"did not undo {undone}" if undone else f"the stage {event.stage} is skipped"
        return _progress(agent, f"{text}{_because(event.why)}", "warn") if undone or event.why else None
    where = f", transcript {event.transcript}" if event.transcript else ""
    sizes = f"{event.tokens_before:,} -> {event.tokens_after:,} tokens"
    small = event.tokens_before - event.tokens_after < event.tokens_before * _SHOWN_PERCENT // 100
    if event.trigger == "auto" and not undone and small and all(edit.kind in _QUIET_EDITS for edit in event.edits):
        return None  # some presets clear a result at every step
    if event.stage == LEFT_OUT:
        return _progress(agent, event.why, "warn")
    if undone:
        return _progress(agent, f"undid {undone}, {sizes}")
    return _progress(agent, f"compaction: {event.stage} ({event.trigger}), {sizes}{where}")


def _thrash(agent: str, event: CacheThrash) -> Block:
    cause = event.changed.partition(": ")[2] if event.changed.startswith("nothing") else f"changed: {event.changed}"
    text = f"{event.calls} calls in a row read almost nothing from the prompt cache; {cause}"
    return _progress(agent, text, "warn")


def _summary_failed(agent: str, event: SummaryFailed) -> Block:
    outcome = "skipped" if event.skipped else "failed"
    return _progress(agent, f"summary {outcome}{_because(event.why)}", "warn")


def _react(agent: str, event: ReactAsked) -> Block:
    return _progress(agent, f"the service refused the prompt as too long: compacting{_because(event.why)}", "warn")


def _interrupted(agent: str, event: Interrupted) -> Block:
    if event.by in ("person", "runtime"):
        return block("interrupted", "warn", name=agent)
    return block(f"stopped by a hook: {event.by}", "warn", name=agent)


def _refused_mail(agent: str, event: EnvelopeReceived) -> Block | None:
    text = f"mail of {event.envelope.sender} (type {event.envelope.type}) does not count: {event.refused}"
    return _progress(agent, text, "warn") if event.refused else None


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


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
    BudgetReached: budget_block,
    StuckNoticed: _stuck,
    TasksReminded: _tasks_reminded,
    ReplyDropped: _reply_dropped,
    ReplyInterrupted: _reply_interrupted,
    ModelSwitched: _switched,
    OutputRaised: _raised,
    ContinuationAsked: _continuation,
    LimitsLearned: _learned,
    ApprovalNeeded: _approval,
    AnswerTaken: answer_block,
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


Detail = Literal["brief", "folded", "whole"]

DIFF_LINES = 8
LAST_LINES = 3
WHOLE_LINES = 400
"""Limit of the lines of a change, of a command's output, and with `--verbose`."""
SHOWN = frozenset(_TELLERS)
"""Events that have lines of their own."""
_INDENT = "    "
_LAST = frozenset({"bash", "bash_output", "task_output"})
"""Tools whose last lines are the most useful ones."""
_DIFFED = frozenset({"edit_file", "multi_edit", "edit_notebook"})
"""Tools whose result is a diff."""


def result_block(
    agent: str, event: ToolFinished, call: ToolCall | None, detail: Detail = "folded", *, notice: str = ""
) -> Block:
    """Return a finished call, as progress, which `--quiet` hides. `notice`: a part that was printed before."""
    text = text_of(event.content)
    text = plain(text.replace(notice, "", 1) if notice else text)
    style: Style = "bad" if event.is_error else "dim"
    name = call_words(call) if call else event.call
    if call is not None and call.name == "bash" and event.data.get("moved"):
        return Block((Line(f"{name} => goes on in the background as {event.data['id']}", style, agent),), progress=True)
    lines = [line for line in text.split("\n") if line and not line.isspace()]
    below = () if detail == "brief" else tuple(_below(call.name if call else "", text, detail))
    head = _head(lines, call.name if call else "", len(below), style)
    return Block((Line(f"{name} => {head}", style, agent), *below), progress=True)


def diff_lines(text: str, most: int = DIFF_LINES) -> list[Line]:
    """Return the changed lines of a unified diff, coloured; omitted lines are counted. Empty if it has none."""
    lines = text.split("\n")
    begin = next((at for at, line in enumerate(lines) if line.startswith("@@ ")), None)
    if begin is None:
        return []
    hunks = lines[begin:]
    changed = [line for line in hunks if line[:1] in ("+", "-")]
    visible = [Line(f"{_INDENT}{shorten(line, WIDTH)}", "good" if line[0] == "+" else "bad") for line in changed[:most]]
    return [*visible, *_omitted_line(len(changed) - len(visible))]


def count_changes(text: str) -> str:
    """Return `+3 -1` of a unified diff; empty if it has no changes."""
    lines = text.split("\n")
    begin = next((at for at, line in enumerate(lines) if line.startswith("@@ ")), len(lines))
    signs = [line[:1] for line in lines[begin:]]
    added = signs.count("+")
    removed = signs.count("-")
    return f"+{added} -{removed}" if added or removed else ""


def _head(lines: Sequence[str], tool: str, below: int, style: Style) -> str:
    """Return the first line of the result and a count of the others; also the last line, if no line is shown below.

    `lines`: those with content.
    """
    if not lines:
        return "(nothing)"
    first = shorten(lines[0].strip(), WIDTH)
    if tool in _DIFFED and below:
        return count_changes("\n".join(lines)) or first
    if len(lines) == 1:
        return first
    if tool == "read_file" and style != "bad":
        return count_words(len(lines), "line")
    if below:
        return (
            count_words(len(lines), "line")
            if tool in _LAST
            else f"{first} … {count_words(len(lines) - 1, 'more line')}"
        )
    between = f" … {count_words(len(lines) - 2, 'line')} … " if len(lines) > 2 else " / "
    return f"{first}{between}{shorten(lines[-1].strip(), WIDTH)}"


def _below(tool: str, text: str, detail: Detail) -> list[Line]:
    lines = [line.rstrip() for line in text.strip("\n").split("\n")]
    if detail == "whole":
        changes = diff_lines(text, WHOLE_LINES) if tool in _DIFFED else []
        visible = [Line(f"{_INDENT}{line}", "dim") for line in lines[:WHOLE_LINES]] if len(lines) > 1 else []
        return changes or [*visible, *_omitted_line(len(lines) - WHOLE_LINES)]
    if tool in _DIFFED or tool == "write_file":
        return diff_lines(text)
    last = [line for line in lines if line.strip()]
    if tool in _LAST and len(last) > 1:
        return [Line(f"{_INDENT}{shorten(line, WIDTH)}", "dim") for line in last[-LAST_LINES:]]
    return []


def _omitted_line(count: int) -> list[Line]:
    return [Line(f"{_INDENT}… {count} more {'line' if count == 1 else 'lines'}", "dim")] if count > 0 else []

"""Reports on an agent's context: the content of its window, and the edits that reduced it. Pure.

An edit has its time, reason and cost, and the note that it was undone.

`window_map` reads the view that would be sent to the model now; `explain_edits` reads the journal. Nothing is stored
here: the same journal gives the same report. The reason for an edit, and the part of the prompt cache that it
invalidates, are copied into `ContextEdited` when it is recorded, so that `callboard context explain` reports years
later the facts known at the time.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from itertools import chain
from typing import cast

from callboard.core.agent.state import AgentState
from callboard.core.context.cache.tracker import CacheState
from callboard.core.context.stage_input import budget_of
from callboard.core.context.view.conversation import Conversation, message_tokens, size
from callboard.core.context.view.messages import calls_of, is_result
from callboard.core.context.view.tokens import estimate_json, estimate_text
from callboard.core.recovery.retry_policy import model_in_use, output_limit
from callboard.types.agent_spec import AgentSpec
from callboard.types.choices import choose
from callboard.types.errors import UsageError
from callboard.types.events import ContextEdited, Event
from callboard.types.lazy_dataclass import dataclass
from callboard.types.messages import Edit, Source, ViewBlock, ViewMessage
from callboard.types.records import Json, Usage


def edit_reason(event: ContextEdited, before: Conversation, budget: int, focus: str = "") -> str:
    """Return the reason, if the stage has not stated one. `budget`: tokens for the messages."""
    if event.why or not event.edits:
        return event.why
    if event.trigger == "manual":
        return f"asked for, to keep: {focus}" if focus else "asked for"
    if event.trigger == "reactive":
        return "the service refused the prompt as too long"
    if event.stage == "persist_large_results":
        return "results that the model has not seen yet were large"
    share = f" ({message_tokens(before) * 100 // budget} %)" if budget else ""
    return f"the messages held {message_tokens(before):,} of the {budget:,} tokens that they may take{share}"


def rewritten(event: ContextEdited, before: Conversation, after: Conversation, *, cache: CacheState, ttl: float) -> int:
    """Return the estimated number of cached tokens after the first change, which the service has to store again.

    `cache`: the cache after the newest call. It lives `ttl` seconds; after that the result is 0, because the cache is
    gone in any case.
    """
    warm = bool(cache.read or cache.written) and event.at - cache.used_at < ttl
    if event.rewritten or not event.edits or not warm:
        return event.rewritten
    first = min(edit.message for edit in event.edits)
    return sum(message.tokens for message in after.messages if first <= message.id <= before.counted_upto)


Numbered = tuple[int, Event]
"""A journal position and its event."""

UNDO = "undo"
"""Stage name in the records that answer an undo."""
SUBJECTS = ("path", "command", "pattern", "name", "to", "description", "task_id", "id")
"""Input fields of a call; the first one present is the subject of the call."""
_LISTED = 12
"""Maximum number of newest candidate edits listed in an error."""

_ORDER = (
    *("system prompt", "tools", "summaries and state", "person", "schedules", "mail", "assistant text", "thinking"),
    *("tool calls", "tool results", "hooks", "reminders", "editor", "memory", "skills", "project instructions"),
    "beyond the estimate",
    *("output reserve", "free"),
)
_SOURCES: Mapping[str, str] = {
    "person": "person",
    "schedule": "schedules",
    "inbox": "mail",
    "hook": "hooks",
    "reminder": "reminders",
    "ide": "editor",
    "memory": "memory",
    "skill": "skills",
    "instructions": "project instructions",
    "compactor": "summaries and state",
    "tool": "tool results",
}
_ASSISTANT: Mapping[str, str] = {"tool_use": "tool calls", "thinking": "thinking", "redacted_thinking": "thinking"}


@dataclass(frozen=True, slots=True)
class WindowPart:
    """One source's part of the window. `tool`: the tool of these results; empty for other parts."""

    source: str
    tokens: int
    share: float
    """Share of the whole window, 0..1."""
    blocks: int = 0
    tool: str = ""


@dataclass(frozen=True, slots=True)
class WindowMap:
    """The window of the model in use, as the next request would fill it. Sizes in tokens."""

    agent: str
    model: str
    window: int
    budget: int
    """Tokens available for the messages."""
    estimate: int
    """Estimated tokens of system prompt, tools and messages."""
    used: int
    """The estimate corrected by the service's counts, which the thresholds of stages are compared with."""
    counted: int | None
    """Tokens that the service counted at the newest reply (the prompt and the reply); None before the first."""
    counted_estimate: int | None
    """The runtime's estimate of the same tokens."""
    messages: int
    revision: int
    """Number of edits that changed the view."""
    parts: tuple[WindowPart, ...] = ()
    """Every part of the window. Their sum is the window, or more if the view does not fit."""


@dataclass(frozen=True, slots=True)
class EditEffect:
    """Change made by one edit. `what` is the tool, or a count of the content of a range; `about` the call's subject."""

    kind: str
    what: str
    about: str
    message: int
    last: int
    messages: int
    """Number of the changed messages of the history."""
    tokens: int
    """Estimated tokens of these messages in the history."""


@dataclass(frozen=True, slots=True)
class EditReport:
    """One record of context management. Tokens before and after refer to the whole request."""

    seq: int
    at: float
    """Unix seconds."""
    stage: str
    trigger: str
    why: str
    tokens_before: int
    tokens_after: int
    freed: int
    usage: Usage
    """Usage of the summary calls."""
    rewritten: int
    """Tokens that the service had cached and had to store again."""
    cost_usd: float
    """Cost of the summary calls, and of storing again."""
    transcript: str
    files: tuple[str, ...]
    """Files that contain the whole texts."""
    repaired: tuple[str, ...]
    touched: tuple[EditEffect, ...] = ()
    undoes: tuple[int, ...] = ()
    taken_back_by: int | None = None
    refused: bool = False
    """True for an undo, or a stage of the person's own, that changed nothing; `why` contains the reason."""


@dataclass(slots=True)
class _Sum:
    tokens: int = 0
    blocks: int = 0


@dataclass(frozen=True, slots=True)
class _History:
    """Index of the whole history."""

    messages: Mapping[int, ViewMessage]
    calls: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """Calls by the provider's id."""

    def call_of(self, block: ViewBlock) -> Json:
        return self.calls.get(str(block.data.get("tool_use_id")), {})


_SECTIONS: Mapping[str, str] = {
    "# Project instructions\n": "project instructions",
    "# Skills\n": "skills",
    "# Memory\n": "memory",
}
"""Beginning of a section of the system prompt -> the part to which it is counted; all others count as the prompt
itself."""


def window_map(state: AgentState, tools: bytes, system: bytes = b"") -> WindowMap:
    """Return the map of an agent's window.

    `tools`, `system`: the tool list and the system prompt in use, as they are sent.
    """
    spec = state.me
    conv = state.context.conversation
    model = model_in_use(state.model.recovery, spec)
    limits = spec.limits_of(model)
    reserve = output_limit(state.model.recovery, spec)
    used = size(conv)
    estimate = conv.overhead + conv.tokens
    listed = min(conv.overhead, estimate_json(tools))
    sums = _by_source(conv.messages)
    sums["system prompt", ""] = _Sum(conv.overhead - listed, 1)
    _share_out(sums, system)
    sums["tools", ""] = _Sum(listed, 1)
    sums["beyond the estimate", ""] = _Sum(used - estimate)
    sums["output reserve", ""] = _Sum(reserve)
    sums["free", ""] = _Sum(max(0, limits.window - reserve - used))
    parts = [
        WindowPart(source, entry.tokens, entry.tokens / limits.window if limits.window else 0.0, entry.blocks, tool)
        for (source, tool), entry in sums.items()
        if entry.tokens
    ]
    return WindowMap(
        agent=spec.name,
        model=model,
        window=limits.window,
        budget=budget_of(limits, reserve, conv.overhead, spec.context_limit),
        estimate=estimate,
        used=used,
        counted=conv.counted or None,
        counted_estimate=conv.counted_base or None,
        messages=len(conv.messages),
        revision=conv.revision,
        parts=tuple(sorted(parts, key=lambda part: (_ORDER.index(part.source), -part.tokens, part.tool))),
    )


def _share_out(sums: dict[tuple[str, str], _Sum], system: bytes) -> None:
    """Count sections of the system prompt that do not come from the runtime as their own parts."""
    blocks: list[Json] = json.loads(system) if system else []
    whole = sums["system prompt", ""]
    for text in (str(block.get("text", "")) for block in blocks):
        part = next((part for head, part in _SECTIONS.items() if text.startswith(head)), "")
        if part:
            section = sums.setdefault((part, ""), _Sum())
            tokens = min(estimate_text(text), whole.tokens)
            section.tokens, section.blocks, whole.tokens = (
                section.tokens + tokens,
                section.blocks + 1,
                whole.tokens - tokens,
            )


def explain_edits(
    events: Sequence[Numbered], history: Sequence[ViewMessage], spec: AgentSpec
) -> tuple[EditReport, ...]:
    """Return every record that changed the view, and every refused one, oldest first.

    `history`: all messages as if nothing had been edited; `spec`: the agent's, for its models' prices.
    """
    calls = {str(call.get("id")): call for message in history for call in calls_of(message)}
    past = _History({message.id: message for message in history}, calls)
    edits = [(seq, event) for seq, event in events if isinstance(event, ContextEdited) and _tells(event)]
    back = _undone_edits(edits)
    models = _models_at(events, spec.model)
    return tuple(
        _explained(seq, event, past, spec=spec, model=models.get(seq, spec.model), taken_back_by=back.get(seq))
        for seq, event in edits
    )


def undoable(explained: Sequence[EditReport], numbers: Sequence[int]) -> tuple[int, ...]:
    """Return the edits to undo, each once.

    Raises `UsageError` for a number that is not an edit, or was already undone.
    """
    stands = {edit.seq: edit.stage for edit in explained if not edit.refused and edit.taken_back_by is None}
    back = {edit.seq: edit.taken_back_by for edit in explained if edit.taken_back_by is not None}
    for seq in numbers:
        if seq in back:
            raise UsageError(f"edit {seq} was undone already, by {back[seq]}")
        if seq not in stands:
            listed = [f"{number} ({stage})" for number, stage in list(stands.items())[-_LISTED:]]
            raise UsageError(f"there is no edit {seq} to undo: {choose(listed)}")
    if not numbers:
        raise UsageError("which edits? `callboard context explain` lists them with their numbers")
    return tuple(dict.fromkeys(numbers))


def _tells(event: ContextEdited) -> bool:
    return bool(event.edits or event.why)


def _undone_edits(edits: Sequence[tuple[int, ContextEdited]]) -> dict[int, int]:
    """Return the edits that are no longer effective, each with its undo. Undoing an undo restores its edits."""
    back: dict[int, int] = {}
    undoes: dict[int, tuple[int, ...]] = {}
    for seq, event in edits:
        if not event.edits or not event.undoes:
            continue
        undoes[seq] = event.undoes
        for other in event.undoes:
            back[other] = seq
            for restored in undoes.get(other, ()):
                back.pop(restored, None)
    return back


def _models_at(events: Sequence[Numbered], first: str) -> dict[int, str]:
    """Return the model in use at each edit: its prices determine the cost of storing again."""
    model = first
    models = dict[int, str]()
    for seq, event in events:
        if event.t == "model_called" and event.purpose == "turn":
            model = event.model
        elif event.t == "context_edited":
            models[seq] = model
    return models


def _explained(
    seq: int, event: ContextEdited, past: _History, *, spec: AgentSpec, model: str, taken_back_by: int | None
) -> EditReport:
    storing = event.rewritten * spec.limits_of(model).price_write / 1_000_000
    return EditReport(
        seq=seq,
        at=event.at,
        stage=event.stage,
        trigger=event.trigger,
        why=event.why,
        tokens_before=event.tokens_before,
        tokens_after=event.tokens_after,
        freed=event.tokens_before - event.tokens_after,
        usage=event.usage,
        rewritten=event.rewritten,
        cost_usd=event.usage.cost_usd + storing,
        transcript=event.transcript,
        files=tuple(edit.path for edit in event.edits if edit.kind == "persisted" and edit.path),
        repaired=event.repaired,
        touched=tuple(_touched(edit, past) for edit in event.edits),
        undoes=event.undoes,
        taken_back_by=taken_back_by,
        refused=not event.edits,
    )


def _touched(edit: Edit, past: _History) -> EditEffect:
    if edit.kind in ("cleared", "persisted"):
        message = past.messages.get(edit.message)
        blocks = message.blocks if message else ()
        place = -1 if edit.block is None else edit.block
        block = blocks[place] if 0 <= place < len(blocks) else None
        call = past.call_of(block) if block else {}
        subject = str(call.get("name", "unknown")) if block is None or is_result(block) else _key(block, {})[0]
        tokens = block.tokens if block else 0
        return EditEffect(edit.kind, subject, _call_subject(call), edit.message, edit.last, 1, tokens)
    back = {message.id for message in edit.messages}
    gone = [
        message for message in past.messages.values() if message.id in back or (not back and _within(message, edit))
    ]
    tokens = sum(message.tokens for message in gone)
    return EditEffect(edit.kind, _held(gone, past), "", edit.message, edit.last, len(gone), tokens)


def _within(message: ViewMessage, edit: Edit) -> bool:
    return edit.message <= message.id <= edit.last


def _held(messages: Sequence[ViewMessage], past: _History) -> str:
    """Return the content of a range: `12 calls (read_file 8, bash 4), 3 texts, 2 prompts`."""
    blocks = list(chain.from_iterable(message.blocks for message in messages))
    calls = Counter(str(block.data.get("name")) for block in blocks if block.data.get("type") == "tool_use")
    results = Counter(str(past.call_of(block).get("name", "unknown")) for block in blocks if is_result(block))
    sources = Counter(block.source for block in blocks if block.data.get("type") == "text")
    counted = calls or results
    named = ", ".join(f"{name} {count}" for name, count in counted.most_common(4))
    overflow = ", ..." if len(counted) > 4 else ""
    parts = [f"{_counted(counted.total(), 'call' if calls else 'result')} ({named}{overflow})"] if counted else []
    labels: Mapping[Source, str] = {"assistant": "text", "person": "prompt", "inbox": "envelope", "schedule": "fire"}
    parts += [_counted(sources[source], word) for source, word in labels.items() if sources[source]]
    return ", ".join(parts) or "nothing that was said"


def _counted(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _call_subject(call: Json) -> str:
    """Return the subject of a call, such as the path it read or the command it ran."""
    raw = call.get("input")
    tool_input = cast("Json", raw) if isinstance(raw, dict) else {}
    subjects: Iterator[str] = (tool_input[name] for name in SUBJECTS if isinstance(tool_input.get(name), str))
    return next(subjects, "")


def _by_source(messages: Sequence[ViewMessage]) -> dict[tuple[str, str], _Sum]:
    names = {str(call.get("id")): str(call.get("name")) for message in messages for call in calls_of(message)}
    sums: dict[tuple[str, str], _Sum] = {}
    for message in messages:
        for block in message.blocks:
            entry = sums.setdefault(_key(block, names), _Sum())
            entry.tokens, entry.blocks = entry.tokens + block.tokens, entry.blocks + 1
    return sums


def _key(block: ViewBlock, names: Mapping[str, str]) -> tuple[str, str]:
    if block.source == "assistant":
        return _ASSISTANT.get(str(block.data.get("type")), "assistant text"), ""
    if is_result(block):
        return "tool results", names.get(str(block.data.get("tool_use_id")), "unknown")
    return _SOURCES.get(block.source, block.source), ""

"""What fills an agent's window, and what was cut from it: when, why, at what cost, and whether it stands. Pure.

`window_map` reads the view that the model would be sent now; `explain_edits` reads the journal. Nothing here is
remembered: the same journal says the same again. It refuses to render (faces do) and to read a store.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import cast

from callboard.core.context.pipeline import budget_of
from callboard.core.context.view.conversation import calls_of, is_result, size
from callboard.core.context.view.tokens import estimate_json, estimate_text
from callboard.core.recovery.turns import model_in_use, output_limit
from callboard.core.state import AgentState
from callboard.words.context import Block, Edit, Message, Source
from callboard.words.errors import UsageError
from callboard.words.events import ContextEdited, Event
from callboard.words.specs import AgentSpec
from callboard.words.values import Json, Usage

Numbered = tuple[int, Event]
"""A journal position and the event that stands there."""

UNDO = "undo"
"""The stage of the records that answer an undo."""
SUBJECTS = ("path", "command", "pattern", "name", "to", "description", "task_id", "id")
"""Of a call's input, the first of these that is there tells what the call was about."""
_LISTED = 12
"""Of the edits that could be meant, the newest so many are named in an error."""

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
class Part:
    """One source's part of the window. `tool`: whose results these are; empty for all else."""

    source: str
    tokens: int
    share: float
    """Of the whole window, 0..1."""
    blocks: int = 0
    tool: str = ""


@dataclass(frozen=True, slots=True)
class WindowMap:
    """The window of the model in use, as the next request would fill it. Sizes in tokens."""

    agent: str
    model: str
    window: int
    budget: int
    """What the messages may take."""
    estimate: int
    """System prompt, tools and messages by our estimate."""
    used: int
    """The same, corrected by the service's counts: what the thresholds of stages are compared with."""
    counted: int | None
    """What the service counted at the newest reply (the prompt and the reply); None before the first."""
    counted_estimate: int | None
    """What our estimate of the same was."""
    messages: int
    revision: int
    """How many edits the view has behind it that changed something."""
    parts: tuple[Part, ...] = ()
    """Every part of the window; they add up to it, or to more where the view does not fit."""


@dataclass(frozen=True, slots=True)
class Touched:
    """What one edit changed. `what` is the tool, or a count of what a stretch held; `about` the call's subject."""

    kind: str
    what: str
    about: str
    message: int
    last: int
    messages: int
    """How many messages of the history."""
    tokens: int
    """Their estimate as they stood in the history."""


@dataclass(frozen=True, slots=True)
class EditTold:
    """One record of context management. Tokens before and after are of the whole request."""

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
    """Of the summary calls."""
    rewritten: int
    """Tokens that the service had cached and had to store anew."""
    cost_usd: float
    """The summary calls, and storing anew."""
    transcript: str
    files: tuple[str, ...]
    """Where whole texts were written."""
    repaired: tuple[str, ...]
    touched: tuple[Touched, ...] = ()
    undoes: tuple[int, ...] = ()
    taken_back_by: int | None = None
    refused: bool = False
    """An undo, or a stage of the person's own, that changed nothing; `why` says why."""


@dataclass(slots=True)
class _Sum:
    tokens: int = 0
    blocks: int = 0


@dataclass(frozen=True, slots=True)
class _History:
    """Everything that was said, for looking things up."""

    messages: Mapping[int, Message]
    calls: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """By the provider's id."""

    def call_of(self, block: Block) -> Json:
        return self.calls.get(str(block.data.get("tool_use_id")), {})


_SECTIONS: Mapping[str, str] = {
    "# Project instructions\n": "project instructions",
    "# Skills\n": "skills",
    "# Memory\n": "memory",
}
"""How a section of the system prompt begins -> the part that it counts as; all others count as the prompt itself."""


def window_map(state: AgentState, tools: bytes, system: bytes = b"") -> WindowMap:
    """The map of an agent's window. `tools`, `system`: the tool list and the system prompt in use, as they are sent."""
    spec, conv = state.me, state.conversation
    model = model_in_use(state.recovery, spec)
    limits, reserve = spec.limits_of(model), output_limit(state.recovery, spec)
    used, estimate = size(conv), conv.overhead + conv.tokens
    listed = min(conv.overhead, estimate_json(tools))
    sums = _by_source(conv.messages)
    sums["system prompt", ""] = _Sum(conv.overhead - listed, 1)
    _share_out(sums, system)
    sums["tools", ""] = _Sum(listed, 1)
    sums["beyond the estimate", ""] = _Sum(used - estimate)
    sums["output reserve", ""] = _Sum(reserve)
    sums["free", ""] = _Sum(max(0, limits.window - reserve - used))
    parts = [
        Part(source, one.tokens, one.tokens / limits.window if limits.window else 0.0, one.blocks, tool)
        for (source, tool), one in sums.items()
        if one.tokens
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
    """Count sections of the system prompt that are no words of the runtime as what they are."""
    blocks: list[Json] = json.loads(system) if system else []
    whole = sums["system prompt", ""]
    for text in (str(block.get("text", "")) for block in blocks):
        part = next((part for head, part in _SECTIONS.items() if text.startswith(head)), "")
        if part:
            one = sums.setdefault((part, ""), _Sum())
            tokens = min(estimate_text(text), whole.tokens)
            one.tokens, one.blocks, whole.tokens = one.tokens + tokens, one.blocks + 1, whole.tokens - tokens


def explain_edits(events: Sequence[Numbered], history: Sequence[Message], spec: AgentSpec) -> tuple[EditTold, ...]:
    """Every record that changed the view, and every one that was refused, oldest first.

    `history`: all messages as if nothing had been edited; `spec`: the agent's, for its models' prices.
    """
    calls = {str(call.get("id")): call for message in history for call in calls_of(message)}
    known = _History({message.id: message for message in history}, calls)
    edits = [(seq, event) for seq, event in events if isinstance(event, ContextEdited) and _tells(event)]
    back = _taken_back(edits)
    models = _models_at(events, spec.model)
    return tuple(_told(seq, event, known, spec, models.get(seq, spec.model), back.get(seq)) for seq, event in edits)


def undoable(told: Sequence[EditTold], asked: Sequence[int]) -> tuple[int, ...]:
    """What is asked to be taken back, each once. Raises `UsageError` for what is no edit, or was taken back."""
    stands = {one.seq: one.stage for one in told if not one.refused and one.taken_back_by is None}
    back = {one.seq: one.taken_back_by for one in told if one.taken_back_by is not None}
    for seq in asked:
        if seq in back:
            raise UsageError(f"edit {seq} was taken back already, by {back[seq]}")
        if seq not in stands:
            known = ", ".join(f"{one} ({stage})" for one, stage in list(stands.items())[-_LISTED:])
            raise UsageError(f"there is no edit {seq} to take back; there are: {known or 'none'}")
    if not asked:
        raise UsageError("which edits? `callboard context explain` lists them with their numbers")
    return tuple(dict.fromkeys(asked))


def _tells(event: ContextEdited) -> bool:
    return bool(event.edits or event.why)


def _taken_back(edits: Sequence[tuple[int, ContextEdited]]) -> dict[int, int]:
    """Which edits do not stand any more, and by which undo. An undo that is taken back brings them back."""
    back: dict[int, int] = {}
    undoes: dict[int, tuple[int, ...]] = {}
    for seq, event in edits:
        if not event.edits or not event.undoes:
            continue
        undoes[seq] = event.undoes
        for other in event.undoes:
            back[other] = seq
            for again in undoes.get(other, ()):
                back.pop(again, None)
    return back


def _models_at(events: Sequence[Numbered], first: str) -> dict[int, str]:
    """The model that was in use at each edit: its prices are what storing anew costs."""
    model, found = first, dict[int, str]()
    for seq, event in events:
        if event.t == "model_called" and event.purpose == "turn":
            model = event.model
        elif event.t == "context_edited":
            found[seq] = model
    return found


def _told(
    seq: int, event: ContextEdited, known: _History, spec: AgentSpec, model: str, taken_back_by: int | None
) -> EditTold:
    storing = event.rewritten * spec.limits_of(model).price_write / 1_000_000
    return EditTold(
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
        touched=tuple(_touched(edit, known) for edit in event.edits),
        undoes=event.undoes,
        taken_back_by=taken_back_by,
        refused=not event.edits,
    )


def _touched(edit: Edit, known: _History) -> Touched:
    if edit.kind in ("cleared", "persisted"):
        message = known.messages.get(edit.message)
        blocks = message.blocks if message else ()
        place = -1 if edit.block is None else edit.block
        block = blocks[place] if 0 <= place < len(blocks) else None
        call = known.call_of(block) if block else {}
        what = str(call.get("name", "unknown")) if block is None or is_result(block) else _key(block, {})[0]
        tokens = block.tokens if block else 0
        return Touched(edit.kind, what, _about(call), edit.message, edit.last, 1, tokens)
    back = {one.id for one in edit.messages}
    gone = [one for one in known.messages.values() if one.id in back or (not back and _within(one, edit))]
    tokens = sum(message.tokens for message in gone)
    return Touched(edit.kind, _held(gone, known), "", edit.message, edit.last, len(gone), tokens)


def _within(message: Message, edit: Edit) -> bool:
    return edit.message <= message.id <= edit.last


def _held(messages: Sequence[Message], known: _History) -> str:
    """What a stretch held: `12 calls (read_file 8, bash 4), 3 texts, 2 prompts`."""
    blocks = list(chain.from_iterable(message.blocks for message in messages))
    calls = Counter(str(block.data.get("name")) for block in blocks if block.data.get("type") == "tool_use")
    results = Counter(str(known.call_of(block).get("name", "unknown")) for block in blocks if is_result(block))
    said = Counter(block.source for block in blocks if block.data.get("type") == "text")
    counted = calls or results
    named = ", ".join(f"{name} {count}" for name, count in counted.most_common(4))
    more = ", ..." if len(counted) > 4 else ""
    parts = [f"{_several(counted.total(), 'call' if calls else 'result')} ({named}{more})"] if counted else []
    words: Mapping[Source, str] = {"assistant": "text", "person": "prompt", "inbox": "envelope", "schedule": "fire"}
    parts += [_several(said[source], word) for source, word in words.items() if said[source]]
    return ", ".join(parts) or "nothing that was said"


def _several(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _about(call: Json) -> str:
    """The subject of a call: the path it read, the command it ran."""
    raw = call.get("input")
    given = cast("Json", raw) if isinstance(raw, dict) else {}
    found: Iterator[str] = (given[name] for name in SUBJECTS if isinstance(given.get(name), str))
    return next(found, "")


def _by_source(messages: Sequence[Message]) -> dict[tuple[str, str], _Sum]:
    names = {str(call.get("id")): str(call.get("name")) for message in messages for call in calls_of(message)}
    sums: dict[tuple[str, str], _Sum] = {}
    for message in messages:
        for block in message.blocks:
            one = sums.setdefault(_key(block, names), _Sum())
            one.tokens, one.blocks = one.tokens + block.tokens, one.blocks + 1
    return sums


def _key(block: Block, names: Mapping[str, str]) -> tuple[str, str]:
    if block.source == "assistant":
        return _ASSISTANT.get(str(block.data.get("type")), "assistant text"), ""
    if is_result(block):
        return "tool results", names.get(str(block.data.get("tool_use_id")), "unknown")
    return _SOURCES.get(block.source, block.source), ""

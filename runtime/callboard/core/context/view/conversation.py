"""The view: what is sent to the model, kept as finished pieces. Pure.

`Conversation` grows by one message at a time and is reduced by edits alone; each message carries its own JSON and its
tokens (`messages`), so that building and measuring a request never walks the session. `render` folds the same view from
history and edits from scratch: that it equals the one grown step by step is what makes a resume byte-equal. `laws` says
what holds of every view, and of every edit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import groupby
from typing import Literal, cast

from callboard.core.context.view.blocks import (
    calls_of,
    is_empty,
    is_plain,
    is_result,
    joined,
    make_block,
    make_message,
    placed_block,
    result_text,
    results_first,
    serialise,
)
from callboard.core.context.view.laws import edit_faults, invariants, pins
from callboard.core.context.view.messages import Messages
from callboard.core.context.view.tokens import estimate_block
from callboard.core.frozen import replace
from callboard.words.context import Block, Edit, Message, Placed, Restored, Source
from callboard.words.values import Json, Usage

__all__ = [
    "RENDERING",
    "Conversation",
    "Messages",
    "add_assistant",
    "add_user",
    "calls_of",
    "counted",
    "edit_faults",
    "edited",
    "held",
    "invariants",
    "is_plain",
    "is_result",
    "make_block",
    "make_message",
    "pins",
    "render",
    "restored_from",
    "result_text",
    "serialise",
    "size",
    "usage_seen",
    "with_overhead",
]

RENDERING = 2
"""The version of how history and edits become bytes: it rises when the same journal would render otherwise. Snapshots
carry it, so that one made by another rendering is passed over."""

_STEEPEST = 1_500
"""Per mille: how much more than its estimate a new token may count, by the newest usage. Above it, what the service
counted beyond our estimate is taken as an amount of its own and not as a rate."""
_INSTRUCTS: frozenset[Source] = frozenset({"person", "schedule", "inbox"})


@dataclass(frozen=True)
class Conversation:
    """The view of one agent."""

    messages: Messages = Messages()
    rendering: int = RENDERING
    revision: int = 0
    """Rises by one with every `edited` that changed something."""
    overhead: int = 0
    """Estimated tokens of system prompt and tools."""
    counted: int = 0
    """Exact tokens by the newest usage: the prompt, and the reply as far as it stands in the view. 0 before it."""
    counted_base: int = 0
    """What the estimate (overhead and view) was for the same."""
    counted_upto: int = 0
    """Id of the last message that `counted` includes."""
    output: int = 0
    """Exact tokens of a reply that was counted and is not yet in the view."""
    asked: bool = False
    """The service was asked to count this view: what it says holds, also where the estimate says more."""
    instructed: bool = False
    """The first instruction has come; it was pinned."""

    @property
    def tokens(self) -> int:
        """Sum of the messages' estimates."""
        return self.messages.tokens

    @property
    def result_tokens(self) -> int:
        """Tokens of all results: what no clearing can exceed. `messages.bulk` counts the large ones alone."""
        return self.messages.result_tokens


def add_assistant(
    conv: Conversation, id: int, blocks: Sequence[Json], at: float, turn: str, by: str = ""
) -> Conversation:
    """The view with a reply of the model `by`. Empty text is left out; a reply after a reply (`pause_turn`) goes on in
    one message."""
    made = tuple(make_block(data, "assistant", at, by=by) for data in _said(blocks))
    if not made:
        return replace(conv, output=0)
    grown = _grown(conv, id, "assistant", made, turn)
    if not conv.output:
        return grown
    return replace(
        grown,
        counted=conv.counted + conv.output,
        counted_base=conv.counted_base + grown.tokens - conv.tokens,
        counted_upto=grown.messages[-1].id,
        output=0,
    )


def add_user(conv: Conversation, id: int, placed: Sequence[Placed], at: float, turn: str) -> Conversation:
    """The view with more user blocks: in the last message if that is a user's, with results before all else.

    The first instruction (of a person, a schedule or another agent) is pinned. Empty text blocks are left out.
    """
    made: list[Block] = []
    instructed = conv.instructed
    for item in placed:
        if is_empty(item.data):
            continue
        first = not instructed and item.source in _INSTRUCTS
        instructed = instructed or first
        made.append(placed_block(item, at, pinned=item.pinned or first))
    return replace(_grown(conv, id, "user", tuple(made), turn), instructed=instructed) if made else conv


def usage_seen(conv: Conversation, usage: Usage) -> Conversation:
    """The exact count of the view as it was sent. To be called before the reply is added."""
    if not usage.prompt_tokens:
        return conv
    return replace(
        conv,
        counted=usage.prompt_tokens,
        counted_base=conv.overhead + conv.tokens,
        counted_upto=conv.messages[-1].id if conv.messages else 0,
        output=usage.output_tokens,
    )


def counted(conv: Conversation, tokens: int) -> Conversation:
    """The exact count of the view as it stands, before anything more was said."""
    return replace(
        conv,
        counted=tokens,
        counted_base=conv.overhead + conv.tokens,
        counted_upto=conv.messages[-1].id if conv.messages else 0,
        output=0,
        asked=True,
    )


def with_overhead(conv: Conversation, tokens: int) -> Conversation:
    """The view under a system prompt and tool list of that many tokens."""
    return replace(conv, overhead=tokens)


def size(conv: Conversation) -> int:
    """Tokens of the whole request now: the larger of the estimate and the exact usage extrapolated from.

    After the service was asked, near the limit, its numbers alone: there a third too much is a summary too early.
    """
    estimate = conv.overhead + conv.tokens
    if not conv.counted or not conv.counted_base:
        return estimate
    fresh = estimate - conv.counted_base
    if fresh < 0:  # edits took more away than came since
        return max(estimate, -(-conv.counted * estimate // conv.counted_base))
    rate = min(_STEEPEST, max(1_000, conv.counted * 1_000 // conv.counted_base))
    return max(0 if conv.asked else estimate, conv.counted + -(-fresh * rate // 1_000))


def held(conv: Conversation) -> int:
    """Tokens of the messages alone, to be compared with a budget."""
    return max(0, size(conv) - conv.overhead)


def edited(conv: Conversation, edits: Sequence[Edit]) -> Conversation:
    """The view after these edits, in order. One whose target no longer stands changes nothing.

    Only chunks of messages that an edit touches are made anew.
    """
    messages = conv.messages
    for rereads, group in groupby(edits, lambda edit: edit.kind in ("cleared", "persisted")):
        batch = tuple(group)
        messages = _reread(messages, batch) if rereads else reduce(_exchanged, batch, messages)
    if messages == conv.messages:
        return conv
    return replace(conv, messages=messages, revision=conv.revision + 1, asked=False)


def render(history: Iterable[Message], edits: Sequence[Edit]) -> Messages:
    """The view's messages from scratch: the whole history, then every edit in order.

    Equal to the view that was grown and edited step by step, as long as no edit was taken back; where some were, give
    the edits that stand (`undo.standing`).
    """
    return edited(Conversation(messages=Messages.of(history)), edits).messages


def restored_from(message: Message) -> Restored:
    """The message as an undo carries it, to stand again as it is."""
    blocks = tuple(
        Placed(data=block.data, source=block.source, pinned=block.pinned, compactable=block.compactable, by=block.by)
        for block in message.blocks
    )
    at, times = message.blocks[0].at, tuple(block.at for block in message.blocks)
    times = () if set(times) == {at} else times
    return Restored(id=message.id, role=message.role, blocks=blocks, turn=message.turn, at=at, times=times)


def _said(blocks: Sequence[Json]) -> list[Json]:
    """A reply as it may be sent back: no empty text, and no white space at its end (a paused reply comes last)."""
    kept = [data for data in blocks if not is_empty(data)]
    if kept and kept[-1].get("type") == "text":
        kept[-1] = {**kept[-1], "text": str(kept[-1]["text"]).rstrip()}
    return kept


def _grown(
    conv: Conversation, id: int, role: Literal["user", "assistant"], blocks: tuple[Block, ...], turn: str
) -> Conversation:
    last = conv.messages.last
    if last is not None and last.role == role:
        return replace(conv, messages=conv.messages.with_last(joined(last, blocks, turn)))
    return replace(conv, messages=conv.messages.append(make_message(id, role, results_first(blocks), turn)))


def _exchanged(messages: Messages, edit: Edit) -> Messages:
    """Messages in a row that become one, or what they were before."""
    start, stop = messages.span(edit.message, edit.last)
    if start == stop:
        return messages
    if edit.kind == "restored":
        return _spliced(messages, start, stop, [_restored(one) for one in edit.messages])
    gone = messages[start:stop]
    at = max(block.at for message in gone for block in message.blocks)
    blocks = tuple(placed_block(item, at, pinned=item.pinned) for item in edit.blocks)
    folded = [make_message(edit.message, "user", blocks, gone[-1].turn)] if blocks else []
    return _spliced(messages, start, stop, folded)


def _restored(one: Restored) -> Message:
    times = one.times or [one.at] * len(one.blocks)
    blocks = tuple(placed_block(item, at, pinned=item.pinned) for item, at in zip(one.blocks, times, strict=True))
    return make_message(one.id, one.role, blocks, one.turn)


def _spliced(messages: Messages, start: int, stop: int, instead: Sequence[Message]) -> Messages:
    """With others in that place; where neighbours are now of one role, they become one message."""
    before, after = messages[max(0, start - 1) : start], messages[stop : stop + 1]
    whole = _alternating((*before, *instead, *after))
    return messages.spliced(start - len(before), stop + len(after), whole)


def _alternating(messages: Iterable[Message]) -> list[Message]:
    out: list[Message] = []
    for message in messages:
        if out and out[-1].role == message.role:
            out[-1] = joined(out[-1], message.blocks, message.turn)
        else:
            out.append(message)
    return out


def _reread(messages: Messages, edits: Iterable[Edit]) -> Messages:
    """Results that now read otherwise, many at once: each message that is touched is serialised once."""
    targets: dict[int, list[Edit]] = {}
    for edit in edits:
        targets.setdefault(edit.message, []).append(edit)
    found = {index: targets[id] for id in targets if (index := messages.find(id)) is not None}
    return messages.changed({index: _rewritten(messages[index], group) for index, group in found.items()})


def _rewritten(message: Message, edits: Sequence[Edit]) -> Message:
    blocks = list(message.blocks)
    for edit in edits:
        number = -1 if edit.block is None else edit.block
        if 0 <= number < len(blocks) and message.role == "user":
            data = _reading(blocks[number].data, edit)
            blocks[number] = dataclasses.replace(blocks[number], data=data, tokens=estimate_block(data))
    if tuple(blocks) == message.blocks:
        return message
    return make_message(message.id, message.role, tuple(blocks), message.turn)


def _reading(data: Json, edit: Edit) -> Json:
    """A result, or words, that now read as the edit says; where a result is persisted, what is not text in it stays."""
    text = edit.text
    if data.get("type") != "tool_result":
        return {"type": "text", "text": text}
    if edit.kind == "cleared":
        return {**data, "content": text}
    content = data.get("content")
    parts = cast("list[Json]", content) if isinstance(content, list) else []
    rest = [part for part in parts if part.get("type") != "text"]
    return {**data, "content": [{"type": "text", "text": text}, *rest] if rest else text}

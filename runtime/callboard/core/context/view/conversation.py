"""The view: the content that is sent to the model, kept as finished pieces. Pure.

`Conversation` grows by one message at a time, and only edits reduce it. Each message carries its own JSON and its
tokens (`messages`), so that building and measuring a request never walks the session. `render` folds the same view from
history and edits from scratch. It equals the view that was grown step by step; therefore a resume is byte-equal.
`invariants` lists the rules for every view and for every edit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from itertools import groupby
from typing import Literal, cast

from callboard.core.context.view.messages import (
    Messages,
    append_blocks,
    is_empty,
    is_unsigned,
    make_block,
    make_message,
    placed_block,
    results_first,
)
from callboard.core.context.view.tokens import estimate_block
from callboard.core.frozen import replace
from callboard.types.lazy_dataclass import dataclass
from callboard.types.messages import ESSENTIAL, Edit, Placed, Restored, Source, ViewBlock, ViewMessage
from callboard.types.records import Json, Usage

RENDERING = 3
"""Version of the rendering from history and edits to bytes. It increases when the same journal would render
differently. A snapshot contains this number, and a snapshot of another rendering is ignored."""

_STEEPEST = 1_500
"""Per mille: maximum ratio of a new token to its estimate, by the newest usage. Above it, the excess counts as a
constant amount and not as a rate."""
_INSTRUCTS: frozenset[Source] = frozenset({"person", "schedule", "inbox"})


@dataclass(frozen=True)
class Conversation:
    """The view of one agent."""

    messages: Messages = Messages()
    rendering: int = RENDERING
    revision: int = 0
    """Increases by one with every `apply_edits` that changed something."""
    overhead: int = 0
    """Estimated tokens of system prompt and tools."""
    counted: int = 0
    """Exact tokens by the newest usage: the prompt, and the reply as far as it is in the view. 0 before it."""
    counted_base: int = 0
    """Estimate (overhead and view) for the same content as `counted`."""
    counted_upto: int = 0
    """Id of the last message that `counted` includes."""
    output: int = 0
    """Exact tokens of a reply that was counted and is not in the view yet."""
    asked: bool = False
    """True if the service counted this view: its number is used even if the estimate is higher."""
    instructed: bool = False
    """True once the first instruction has arrived; it was pinned."""

    @property
    def tokens(self) -> int:
        """Return the sum of the messages' estimates."""
        return self.messages.tokens

    @property
    def result_tokens(self) -> int:
        """Return the tokens of all results, an upper bound for clearing. `messages.bulk` counts only the large ones."""
        return self.messages.result_tokens


def add_assistant(
    conv: Conversation, id: int, blocks: Sequence[Json], *, at: float, turn: str, by: str = ""
) -> Conversation:
    """Return the view with a reply of the model `by`.

    Empty text is omitted. A reply after a reply (`pause_turn`) continues the same message.
    """
    made = tuple([make_block(data, "assistant", at, by=by) for data in _sendable(blocks)])
    if not made:
        return replace(conv, output=0)
    messages = _grown(conv.messages, id, "assistant", made, turn=turn)
    if not conv.output:
        return replace(conv, messages=messages)
    return replace(
        conv,
        messages=messages,
        counted=conv.counted + conv.output,
        counted_base=conv.counted_base + messages.tokens - conv.tokens,
        counted_upto=_newest(messages),
        output=0,
    )


def add_user(conv: Conversation, id: int, placed: Sequence[Placed], *, at: float, turn: str) -> Conversation:
    """Return the view with more user blocks: in the last message if that is a user message, with results first.

    The first instruction (of a person, a schedule or another agent) is pinned. Empty text blocks are omitted.
    """
    made: list[ViewBlock] = []
    instructed = conv.instructed
    for item in placed:
        if is_empty(item.data):
            continue
        first = not instructed and item.source in _INSTRUCTS
        instructed = instructed or first
        made.append(placed_block(item, at, pinned=item.pinned or first))
    if not made:
        return conv
    return replace(conv, messages=_grown(conv.messages, id, "user", tuple(made), turn=turn), instructed=instructed)


def usage_seen(conv: Conversation, usage: Usage) -> Conversation:
    """Return the view with the exact count as it was sent. Must be called before the reply is added."""
    prompt = usage.prompt_tokens
    if not prompt:
        return conv
    return replace(
        conv,
        counted=prompt,
        counted_base=conv.overhead + conv.tokens,
        counted_upto=_newest(conv.messages),
        output=usage.output_tokens,
    )


def with_count(conv: Conversation, tokens: int) -> Conversation:
    """Return the view with an exact count of its current content, before anything is added."""
    return replace(
        conv,
        counted=tokens,
        counted_base=conv.overhead + conv.tokens,
        counted_upto=_newest(conv.messages),
        output=0,
        asked=True,
    )


def with_overhead(conv: Conversation, tokens: int) -> Conversation:
    """Return the view under a system prompt and tool list with this number of tokens."""
    return replace(conv, overhead=tokens)


def size(conv: Conversation) -> int:
    """Return the current tokens of the whole request: the larger of the estimate and the extrapolated exact usage.

    Once the service has counted the view, near the limit, only its numbers are used: an estimate that is a third too
    high would cause a summary too early.
    """
    estimate = conv.overhead + conv.tokens
    if not conv.counted or not conv.counted_base:
        return estimate
    fresh = estimate - conv.counted_base
    if fresh < 0:  # the edits removed more than was added since
        return max(estimate, -(-conv.counted * estimate // conv.counted_base))
    rate = min(_STEEPEST, max(1_000, conv.counted * 1_000 // conv.counted_base))
    return max(0 if conv.asked else estimate, conv.counted + -(-fresh * rate // 1_000))


def message_tokens(conv: Conversation) -> int:
    """Return the tokens of the messages alone, for comparison with a budget."""
    return max(0, size(conv) - conv.overhead)


def apply_edits(conv: Conversation, edits: Sequence[Edit]) -> Conversation:
    """Return the view after these edits, in order. An edit whose target no longer exists changes nothing.

    Only chunks of messages that an edit touches are rebuilt.
    """
    messages = conv.messages
    for rereads, group in groupby(edits, lambda edit: edit.kind in ("cleared", "persisted")):
        batch = tuple(group)
        messages = _reread(messages, batch) if rereads else reduce(_exchanged, batch, messages)
    if messages == conv.messages:
        return conv
    return replace(conv, messages=messages, revision=conv.revision + 1, asked=False)


def render(history: Iterable[ViewMessage], edits: Sequence[Edit]) -> Messages:
    """Render the view's messages from scratch: the whole history, then every edit in order.

    Equal to the view that was grown and edited step by step, as long as no edit was undone. If some were undone, pass
    only the remaining edits (`undo.remaining_edits`).
    """
    return apply_edits(Conversation(messages=Messages.of(history)), edits).messages


def restored_from(message: ViewMessage) -> Restored:
    """Return the message in the form that an undo carries, to restore it unchanged."""
    blocks = tuple(
        Placed(data=block.data, source=block.source, pinned=block.pinned, compactable=block.compactable, by=block.by)
        for block in message.blocks
    )
    at = message.blocks[0].at
    times = tuple(block.at for block in message.blocks)
    times = () if set(times) == {at} else times
    return Restored(id=message.id, role=message.role, blocks=blocks, turn=message.turn, at=at, times=times)


def _sendable(blocks: Sequence[Json]) -> list[Json]:
    """Return a reply in a form that may be sent back.

    Remove empty text, thinking without a signature, which a service refuses, and whitespace at the end (a paused reply
    comes last).
    """
    blocks_kept = [data for data in blocks if not is_empty(data) and not is_unsigned(data)]
    if blocks_kept and blocks_kept[-1].get("type") == "text":
        blocks_kept[-1] = {**blocks_kept[-1], "text": str(blocks_kept[-1]["text"]).rstrip()}
    return blocks_kept


def _grown(
    messages: Messages, id: int, role: Literal["user", "assistant"], blocks: tuple[ViewBlock, ...], *, turn: str
) -> Messages:
    last = messages.last
    if last is not None and last.role == role:
        return messages.with_last(append_blocks(last, blocks, turn))
    return messages.append(make_message(id, role, results_first(blocks), turn))


def _newest(messages: Messages) -> int:
    """Return the id of the newest message; 0 without messages."""
    last = messages.last
    return last.id if last else 0


def _exchanged(messages: Messages, edit: Edit) -> Messages:
    """Replace consecutive messages with one message, or with the messages that an undo restores."""
    start, stop = messages.span(edit.message, edit.last)
    if start == stop:
        return messages
    if edit.kind == "restored":
        return _spliced(messages, start, stop, [_restored(restored) for restored in edit.messages])
    gone = messages[start:stop]
    at = max(block.at for message in gone for block in message.blocks)
    blocks = tuple(placed_block(item, at, pinned=item.pinned) for item in edit.blocks)
    folded = [make_message(edit.message, "user", blocks, gone[-1].turn)] if blocks else []
    return _spliced(messages, start, stop, folded)


def _restored(restored: Restored) -> ViewMessage:
    times = restored.times or [restored.at] * len(restored.blocks)
    blocks = tuple(placed_block(item, at, pinned=item.pinned) for item, at in zip(restored.blocks, times, strict=True))
    return make_message(restored.id, restored.role, blocks, restored.turn)


def _spliced(messages: Messages, start: int, stop: int, instead: Sequence[ViewMessage]) -> Messages:
    """Replace messages in this range. Neighbours that now have the same role become one message."""
    before = messages[max(0, start - 1) : start]
    after = messages[stop : stop + 1]
    whole = _alternating((*before, *instead, *after))
    return messages.splice(start - len(before), stop + len(after), whole)


def _alternating(messages: Iterable[ViewMessage]) -> list[ViewMessage]:
    out: list[ViewMessage] = []
    for message in messages:
        if out and out[-1].role == message.role:
            out[-1] = append_blocks(out[-1], message.blocks, message.turn)
        else:
            out.append(message)
    return out


def _reread(messages: Messages, edits: Iterable[Edit]) -> Messages:
    """Replace many results, or blocks of unknown kinds, by texts at once. Each changed message is serialised once."""
    targets: dict[int, list[Edit]] = {}
    for edit in edits:
        targets.setdefault(edit.message, []).append(edit)
    groups = {index: targets[id] for id in targets if (index := messages.find(id)) is not None}
    return messages.with_replaced({index: _rewritten(messages[index], group) for index, group in groups.items()})


def _rewritten(message: ViewMessage, edits: Sequence[Edit]) -> ViewMessage:
    blocks = list(message.blocks)
    for edit in edits:
        number = -1 if edit.block is None else edit.block
        if 0 <= number < len(blocks) and (message.role == "user" or blocks[number].data.get("type") not in ESSENTIAL):
            data = _reading(blocks[number].data, edit)
            old = blocks[number]
            tokens = estimate_block(data)
            blocks[number] = ViewBlock(data, old.source, tokens, old.at, old.pinned, old.compactable, old.by)
    if tuple(blocks) == message.blocks:
        return message
    return make_message(message.id, message.role, tuple(blocks), message.turn)


def _reading(data: Json, edit: Edit) -> Json:
    """Return a result or text block with the text of the edit. If a result is persisted, its non-text content stays."""
    text = edit.text
    if data.get("type") != "tool_result":
        return {"type": "text", "text": text}
    if edit.kind == "cleared":
        return {**data, "content": text}
    content = data.get("content")
    parts = cast("list[Json]", content) if isinstance(content, list) else []
    other_parts = [part for part in parts if part.get("type") != "text"]
    return {**data, "content": [{"type": "text", "text": text}, *other_parts] if other_parts else text}

"""The view: what is sent to the model, kept as finished pieces. Pure.

`Conversation` grows by one message at a time and is reduced by edits alone; each message carries its own JSON and its
tokens, so that building and measuring a request never walks the session. `render` folds the same view from history and
edits from scratch: that it equals the one grown step by step is what makes a resume byte-equal.

The laws, checked by `invariants` (one view) and `edit_faults` (before and after an edit):
each call has its result in the next user message; results come first; the first message is the user's; neighbours
differ in role; nothing is empty; pinned blocks, unanswered results and the newest user message are untouched; an edit
never makes the view larger and never adds words to an assistant message.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import groupby, pairwise
from typing import Literal, cast

from callboard.core.context.tokens import estimate_block
from callboard.core.frozen import replace
from callboard.words.context import Block, Edit, Message, Placed, Source
from callboard.words.values import Json, Usage

_STEEPEST = 1_500
"""Per mille: how much more than its estimate a new token may count, by the newest usage. Above it, what the service
counted beyond our estimate is taken as an amount of its own and not as a rate."""
_INSTRUCTS: frozenset[Source] = frozenset({"person", "schedule", "inbox"})


@dataclass(frozen=True)
class Conversation:
    """The view of one agent."""

    messages: tuple[Message, ...] = ()
    revision: int = 0
    """Rises by one with every `edited` that changed something."""
    overhead: int = 0
    """Estimated tokens of system prompt and tools."""
    tokens: int = 0
    """Sum of the messages' estimates."""
    counted: int = 0
    """Exact tokens by the newest usage: the prompt, and the reply as far as it stands in the view. 0 before it."""
    counted_base: int = 0
    """What the estimate (overhead and view) was for the same."""
    counted_upto: int = 0
    """Id of the last message that `counted` includes."""
    output: int = 0
    """Exact tokens of a reply that was counted and is not yet in the view."""
    instructed: bool = False
    """The first instruction has come; it was pinned."""


def add_assistant(conv: Conversation, id: int, blocks: Sequence[Json], at: float, turn: str) -> Conversation:
    """The view with a reply. Empty text is left out; a reply after a reply (`pause_turn`) goes on in one message."""
    made = tuple(_block(data, "assistant", at) for data in _said(blocks))
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
        if _is_empty(item.data):
            continue
        first = not instructed and item.source in _INSTRUCTS
        instructed = instructed or first
        made.append(_placed_block(item, at, pinned=item.pinned or first))
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
    )


def with_overhead(conv: Conversation, tokens: int) -> Conversation:
    """The view under a system prompt and tool list of that many tokens."""
    return replace(conv, overhead=tokens)


def size(conv: Conversation) -> int:
    """Tokens of the whole request now: the larger of the estimate and the exact usage extrapolated from."""
    estimate = conv.overhead + conv.tokens
    if not conv.counted or not conv.counted_base:
        return estimate
    fresh = estimate - conv.counted_base
    if fresh < 0:  # edits took more away than came since
        return max(estimate, -(-conv.counted * estimate // conv.counted_base))
    rate = min(_STEEPEST, max(1_000, conv.counted * 1_000 // conv.counted_base))
    return max(estimate, conv.counted + -(-fresh * rate // 1_000))


def held(conv: Conversation) -> int:
    """Tokens of the messages alone, to be compared with a budget."""
    return max(0, size(conv) - conv.overhead)


def edited(conv: Conversation, edits: Sequence[Edit]) -> Conversation:
    """The view after these edits, in order. One whose target no longer stands changes nothing."""
    messages = conv.messages
    for rereads, group in groupby(edits, lambda edit: edit.kind in ("cleared", "persisted")):
        batch = tuple(group)
        messages = _reread(messages, batch) if rereads else reduce(_folded, batch, messages)
    if messages == conv.messages:
        return conv
    tokens = sum(message.tokens for message in messages)
    return replace(conv, messages=messages, tokens=tokens, revision=conv.revision + 1)


def render(history: Sequence[Message], edits: Sequence[Edit]) -> tuple[Message, ...]:
    """The view's messages from scratch: the whole history, then every edit in order."""
    return edited(Conversation(messages=tuple(history)), edits).messages


def serialise(role: str, blocks: Sequence[Block]) -> bytes:
    """A message as the API gets it: compact JSON in UTF-8."""
    body = b",".join(_dump(block.data) for block in blocks)
    return b'{"role":"%s","content":[%s]}' % (role.encode(), body)


def make_message(id: int, role: Literal["user", "assistant"], blocks: tuple[Block, ...], turn: str) -> Message:
    """A message of these blocks."""
    tokens = sum(block.tokens for block in blocks)
    return Message(id=id, role=role, blocks=blocks, tokens=tokens, wire=serialise(role, blocks), turn=turn)


def make_block(data: Json, source: Source, at: float, *, pinned: bool = False, compactable: bool = True) -> Block:
    """A block with its estimate."""
    return Block(data, source, estimate_block(data), at, pinned, compactable)


def is_result(block: Block) -> bool:
    """It is the result of a call."""
    return block.data.get("type") == "tool_result"


def calls_of(message: Message) -> Iterator[Json]:
    """The calls that stand in a message."""
    return (block.data for block in message.blocks if block.data.get("type") == "tool_use")


def result_text(block: Block) -> str:
    """All text of a result."""
    content = block.data.get("content")
    if isinstance(content, str):
        return content
    parts = cast("list[Json]", content) if isinstance(content, list) else []
    return "\n".join(str(part.get("text", "")) for part in parts if part.get("type") == "text")


def is_plain(block: Block) -> bool:
    """A result that is text and nothing else."""
    content = block.data.get("content")
    parts = cast("list[Json]", content) if isinstance(content, list) else []
    return isinstance(content, str) or (bool(parts) and all(part.get("type") == "text" for part in parts))


def pins(messages: Sequence[Message]) -> tuple[Block, ...]:
    """The blocks that count as pinned: the first instruction, and the newest assignment.

    An older assignment gives way to a newer one: pins that never clear would fill the window in the end.
    """
    marked = [block for message in messages for block in message.blocks if block.pinned]
    return (*marked[:1], *marked[1:][-1:])


def invariants(messages: Sequence[Message], *, sent: bool = True) -> list[str]:
    """Every law that this view breaks, by name. `sent`: it is about to be sent, so it must end with a user message."""
    faults: list[str] = []
    if messages and messages[0].role != "user":
        faults.append("the first message is not the user's")
    if sent and messages and messages[-1].role != "user":
        faults.append("the last message is not the user's")
    faults += [f"neighbours of one role: {b.id}" for a, b in pairwise(messages) if a.role == b.role]
    for message in messages:
        faults += _message_faults(message)
    return [*faults, *_pair_faults(messages, sent=sent)]


def edit_faults(before: Conversation, after: Conversation) -> list[str]:
    """Every law that the step from one view to its edited form breaks, by name."""
    faults = ["the view is larger"] if after.tokens > before.tokens else []
    stands = [block.data for message in after.messages for block in message.blocks]
    faults += ["a pinned block is gone" for pin in pins(before.messages) if pin.data not in stands]
    said = [block.data for message in before.messages for block in message.blocks if block.source == "assistant"]
    words = [block.data for message in after.messages for block in message.blocks if message.role == "assistant"]
    faults += ["words that the model did not say" for data in words if data not in said]
    if before.messages and before.messages[-1].role == "user":
        newest = after.messages[-1].blocks[-len(before.messages[-1].blocks) :] if after.messages else ()
        marks = [(b.source, b.data.get("type"), b.data.get("tool_use_id")) for b in newest]
        kept = [(b.source, b.data.get("type"), b.data.get("tool_use_id")) for b in before.messages[-1].blocks]
        faults += ["the newest user message is not whole"] if marks != kept else []
    return faults


def _message_faults(message: Message) -> Iterator[str]:
    where, blocks = f" in {message.id}", message.blocks
    if not blocks:
        yield "an empty message" + where
    if any(_is_empty(block.data) for block in blocks):
        yield "an empty text block" + where
    if _results_first(blocks) != blocks:
        yield "results do not come first" + where
    if message.role == "assistant" and any(block.source != "assistant" for block in blocks):
        yield "words of another in an assistant message" + where
    if message.wire != serialise(message.role, blocks):
        yield "the wire is not what its blocks say" + where
    if message.tokens != sum(estimate_block(block.data) for block in blocks):
        yield "the tokens are not the sum of its blocks" + where


def _pair_faults(messages: Sequence[Message], *, sent: bool) -> Iterator[str]:
    seen: set[str] = set()
    asked: list[str] = []
    for message in messages:
        answered = [str(block.data.get("tool_use_id")) for block in message.blocks if is_result(block)]
        yield from (f"a call without its result: {call}" for call in asked if call not in answered)
        yield from (f"a result without its call: {call}" for call in answered if call not in asked)
        if len(answered) != len(set(answered)):
            yield f"two results of one call in {message.id}"
        asked = [str(call.get("id")) for call in calls_of(message)]
        for call in asked:
            if call in seen:
                yield f"a call that stands twice: {call}"
            seen.add(call)
    if sent:
        yield from (f"a call without its result: {call}" for call in asked)


def _block(data: Json, source: Source, at: float) -> Block:
    return make_block(data, source, at)


def _placed_block(item: Placed, at: float, *, pinned: bool) -> Block:
    return make_block(item.data, item.source, at, pinned=pinned, compactable=item.compactable)


def _dump(data: Json) -> bytes:
    # A lone surrogate has no UTF-8: it becomes "?" rather than a request that nobody can read.
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _is_empty(data: Json) -> bool:
    return data.get("type") == "text" and not str(data.get("text", "")).strip()


def _said(blocks: Sequence[Json]) -> list[Json]:
    """A reply as it may be sent back: no empty text, and no white space at its end (a paused reply comes last)."""
    kept = [data for data in blocks if not _is_empty(data)]
    if kept and kept[-1].get("type") == "text":
        kept[-1] = {**kept[-1], "text": str(kept[-1]["text"]).rstrip()}
    return kept


def _grown(
    conv: Conversation, id: int, role: Literal["user", "assistant"], blocks: tuple[Block, ...], turn: str
) -> Conversation:
    last = conv.messages[-1] if conv.messages else None
    if last is not None and last.role == role:
        messages = (*conv.messages[:-1], _joined(last, blocks, turn))
    else:
        messages = (*conv.messages, make_message(id, role, _results_first(blocks), turn))
    return replace(conv, messages=messages, tokens=conv.tokens + sum(block.tokens for block in blocks))


def _joined(message: Message, blocks: tuple[Block, ...], turn: str) -> Message:
    """A message with more blocks behind its own; results move up, behind the results that are there."""
    whole = (*message.blocks, *blocks)
    ordered = _results_first(whole)
    if ordered != whole:
        return make_message(message.id, message.role, ordered, turn or message.turn)
    wire = message.wire[:-2] + b"," + b",".join(_dump(block.data) for block in blocks) + b"]}"
    tokens = message.tokens + sum(block.tokens for block in blocks)
    return dataclasses.replace(message, blocks=whole, tokens=tokens, wire=wire, turn=turn or message.turn)


def _results_first(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    # Stable: a result never changes its index once it stands, so that an edit keeps its target.
    return (*(b for b in blocks if is_result(b)), *(b for b in blocks if not is_result(b)))


def _folded(messages: tuple[Message, ...], edit: Edit) -> tuple[Message, ...]:
    covered = [n for n, message in enumerate(messages) if edit.message <= message.id <= edit.last]
    if not covered:
        return messages
    before, after = messages[: covered[0]], messages[covered[-1] + 1 :]
    gone = messages[covered[0] : covered[-1] + 1]
    at = max(block.at for message in gone for block in message.blocks)
    blocks = tuple(_placed_block(item, at, pinned=item.pinned) for item in edit.blocks)
    middle = (make_message(edit.message, "user", blocks, gone[-1].turn),) if blocks else ()
    return _alternating((*before, *middle, *after))


def _alternating(messages: Sequence[Message]) -> tuple[Message, ...]:
    out: list[Message] = []
    for message in messages:
        if out and out[-1].role == message.role:
            out[-1] = _joined(out[-1], message.blocks, message.turn)
        else:
            out.append(message)
    return tuple(out)


def _reread(messages: tuple[Message, ...], edits: Iterable[Edit]) -> tuple[Message, ...]:
    """Results that now read otherwise, many at once: each message that is touched is serialised once."""
    targets: dict[int, list[Edit]] = {}
    for edit in edits:
        targets.setdefault(edit.message, []).append(edit)
    return tuple(_rewritten(one, targets[one.id]) if one.id in targets else one for one in messages)


def _rewritten(message: Message, edits: Sequence[Edit]) -> Message:
    blocks = list(message.blocks)
    for edit in edits:
        number = -1 if edit.block is None else edit.block
        if 0 <= number < len(blocks) and is_result(blocks[number]):
            data = _reading(blocks[number].data, edit.text)
            blocks[number] = dataclasses.replace(blocks[number], data=data, tokens=estimate_block(data))
    if tuple(blocks) == message.blocks:
        return message
    return make_message(message.id, message.role, tuple(blocks), message.turn)


def _reading(data: Json, text: str) -> Json:
    """A result that now reads `text`; what is not text in it (images) stays."""
    content = data.get("content")
    parts = cast("list[Json]", content) if isinstance(content, list) else []
    rest = [part for part in parts if part.get("type") != "text"]
    return {**data, "content": [{"type": "text", "text": text}, *rest] if rest else text}

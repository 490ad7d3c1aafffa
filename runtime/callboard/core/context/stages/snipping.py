"""`snip_middle`: the middle of a long conversation goes, and a placeholder counts what stood there. Pure.

It refuses to cut inside a pair of call and result: the head grows right over results, the tail left over the call;
where they meet there is nothing to snip. Pins, earlier summaries and the person's words in the cut stay verbatim.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from callboard.core.context.situation import Situation
from callboard.core.context.summary.folding import note, placed_again, tail_start, text_of, tokens_of, words_in
from callboard.core.context.view.conversation import Conversation, is_result, pins
from callboard.words.context import Block, Edit, Message, Placed
from callboard.words.values import Json

SNIP: Mapping[str, Any] = MappingProxyType({"over": 50, "first": 3, "last": 47, "keep_person": True})
"""Messages: over how many it acts, and how many it keeps at either end. `keep_person: false` cuts the person's words
too, the classic way."""

_SNIPPED = re.compile(r"\A\[snipped (\d+) messages\]\Z")


def snip_middle(view: Conversation, budget: int, situation: Situation, params: Json) -> list[Edit] | None:
    """The first and the last messages stay, and between them `[snipped N messages]`; N counts over repeated snips."""
    given = {**SNIP, **params}
    messages = view.messages
    if len(messages) <= given["over"]:
        return None
    head, tail = _ends(messages, given["first"], given["last"])
    places = [number for number in range(tail) if _mark_in(messages[number]) is not None]
    alone = sum(number >= head and _mark_in(messages[number]) == len(messages[number].blocks) - 1 for number in places)
    if tail <= head or len(messages) - alone <= given["over"]:
        return None
    # What was snipped before may stand in the last message of the head: neighbours of one role are one message.
    start = head - 1 if head - 1 in places else head
    cut = _cut(messages, start, head, tail, keep_person=given["keep_person"])
    blocks = [*cut.stays, note(f"[snipped {cut.stood} messages]")]
    if tokens_of(blocks) >= sum(message.tokens for message in messages[start:tail]):
        return None
    return [Edit(kind="snipped", message=messages[start].id, last=messages[tail - 1].id, blocks=tuple(blocks))]


class _Cut(NamedTuple):
    stays: list[Placed]
    stood: int
    """Messages that stood there, now and before."""


def _ends(messages: Sequence[Message], first: int, last: int) -> tuple[int, int]:
    """Where the head ends and the tail begins."""
    head, tail = min(first, len(messages)), min(len(messages) - last, tail_start(messages))
    while head < len(messages) and _has_results(messages[head]):
        head += 1
    while tail > 0 and _has_results(messages[tail]):
        tail -= 1
    return head, tail


def _cut(messages: Sequence[Message], start: int, head: int, tail: int, *, keep_person: bool) -> _Cut:
    """What stays of `messages[start:tail]`, of which those before `head` are kept but for the mark of a snip before."""
    pinned = pins(messages)
    first, marked = messages[start], _mark_in(messages[start])
    whole = first.blocks[:marked] if start < head else ()
    gone = [(message, block) for message in messages[start:tail] for block in message.blocks][len(whole) :]
    kept = {id(block) for block in pinned}
    kept |= {id(block) for block in words_in(gone, messages[-1].turn, pinned)} if keep_person else set()
    stays = [*whole, *(block for _, block in gone if id(block) in kept or _outlives(block))]
    return _Cut([placed_again(block, pinned) for block in stays], sum(map(_stood, messages[start:tail])))


def _outlives(block: Block) -> bool:
    """An earlier summary, and what the runtime wrote beside it."""
    return block.source == "compactor" and not _number(block)


def _stood(message: Message) -> int:
    """Messages that a message of the cut stands for. The mark's own counts only where others were joined behind it."""
    mark = _mark_in(message)
    return 1 if mark is None else _number(message.blocks[mark]) + (mark < len(message.blocks) - 1)


def _has_results(message: Message) -> bool:
    return any(is_result(block) for block in message.blocks)


def _mark_in(message: Message) -> int | None:
    """Place of the placeholder in a message."""
    found = (n for n, block in enumerate(message.blocks) if block.source == "compactor" and _number(block))
    return next(found, None) if message.role == "user" else None


def _number(block: Block) -> int:
    found = _SNIPPED.match(text_of(block))
    return int(found[1]) if found else 0

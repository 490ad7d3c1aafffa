"""The laws of a view, and of the step from one view to its edited form. Pure; a broken law is named, never raised.

`invariants` looks at one view: each call has its result in the next user message; results come first; the first message
is the user's; neighbours differ in role; ids rise; nothing is empty; bytes and tokens are what the blocks say.
`edit_faults` looks at two: the first message, pins, unanswered results and the newest user message stand; the view is
not larger; no assistant words were added. What an undo restores may make the view larger, and may bring back words of
the history.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Protocol

from callboard.core.bus.mail import KEPT, unwrapped
from callboard.core.context.view.blocks import calls_of, is_empty, is_result, results_first, serialise
from callboard.core.context.view.messages import Messages
from callboard.core.context.view.tokens import estimate_block
from callboard.words.context import Block, Message
from callboard.words.values import Json


def pins(messages: Sequence[Message]) -> tuple[Block, ...]:
    """The blocks that count as pinned: the first instruction, the newest assignment, and of each instruction file the
    newest text.

    An older assignment gives way to a newer one: pins that never clear would fill the window in the end.
    """
    marked = Messages.of(messages).pinned()
    files = {_first_line(block): block for block in marked if block.source == "instructions"}
    said = [block for block in marked if block.source != "instructions"] if files else marked
    return (*said[:1], *said[1:][-1:], *files.values())


def invariants(messages: Sequence[Message], *, sent: bool = True) -> list[str]:
    """Every law that this view breaks, by name. `sent`: it is about to be sent, so it must end with a user message."""
    faults: list[str] = []
    if messages and messages[0].role != "user":
        faults.append("the first message is not the user's")
    if sent and messages and messages[-1].role != "user":
        faults.append("the last message is not the user's")
    for one, other in pairwise(messages):
        faults += [f"neighbours of one role: {other.id}"] if one.role == other.role else []
        faults += [f"ids that do not rise: {other.id}"] if one.id >= other.id else []
    for message in messages:
        faults += _message_faults(message)
    return [*faults, *_pair_faults(messages, sent=sent)]


class Viewed(Protocol):
    """A `Conversation`, or what holds a view as one does."""

    @property
    def messages(self) -> Messages: ...


def edit_faults(before: Viewed, after: Viewed, history: Sequence[Message] | None = None) -> list[str]:
    """Every law that the step from one view to its edited form breaks, by name.

    `history` is given for an undo alone: the unreduced messages, whose words may come back and make the view larger.
    """
    was, now = before.messages, after.messages
    faults = ["the view is larger"] if history is None and now.tokens > was.tokens else []
    if was and (not now or now[0].id != was[0].id):
        faults.append("the first message is gone")
    standing = [block.data for block in pins(now)]
    kept = [data for data in standing if in_file(data)]
    faults += ["a pinned block is gone" for pin in pins(was) if pin.data not in standing and not kept]
    faults += _forged(was, now, history or ())
    newest = (was if history is None else history)[-1:]
    if newest and newest[0].role == "user":
        kept = bool(now) and _ends_with(now[-1], newest[0])
        faults += [] if kept else ["the newest user message is not whole"]
    return faults


def _first_line(block: Block) -> str:
    """The tag that an instruction file stands in, which names it."""
    return str(block.data.get("text", "")).partition("\n")[0]


def _forged(before: Messages, after: Messages, history: Sequence[Message]) -> Iterator[str]:
    """Assistant words that stand in neither. What was not touched is not looked at."""
    same = {id(message) for message in before}
    fresh = [one for one in after if one.role == "assistant" and id(one) not in same]
    if not fresh:
        return
    said = [block.data for one in (*before, *history) if one.role == "assistant" for block in one.blocks]
    for data in (block.data for one in fresh for block in one.blocks):
        if data not in said:
            yield "words that the model did not say"


def _ends_with(message: Message, newest: Message) -> bool:
    """All of the newest message stands at the end: a result may read otherwise, nothing else may."""
    stands = message.blocks[-len(newest.blocks) :]
    return len(stands) == len(newest.blocks) and all(
        one.data == other.data or in_file(one.data) or (is_result(one) and _of_call(one) == _of_call(other))
        for one, other in zip(stands, newest.blocks, strict=True)
    )


def in_file(data: Json) -> bool:
    """Words that a file holds whole: the last resort, for pinned ones too."""
    return data.get("type") == "text" and KEPT.match(unwrapped(str(data.get("text", "")))) is not None


def _of_call(block: Block) -> tuple[object, object]:
    return block.data.get("type"), block.data.get("tool_use_id")


def _message_faults(message: Message) -> Iterator[str]:
    where, blocks = f" in {message.id}", message.blocks
    if not blocks:
        yield "an empty message" + where
    if any(is_empty(block.data) for block in blocks):
        yield "an empty text block" + where
    if results_first(blocks) != blocks:
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
        asked = [_id(call) for call in calls_of(message)]
        for call in asked:
            if call in seen:
                yield f"a call that stands twice: {call}"
            seen.add(call)
    if sent:
        yield from (f"a call without its result: {call}" for call in asked)


def _id(call: Json) -> str:
    return str(call.get("id"))

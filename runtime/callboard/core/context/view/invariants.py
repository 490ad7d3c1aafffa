"""Invariants of a view, and of an edit. Pure; a violation is returned by name, never raised.

`invariants` checks one view: each call has its result in the next user message; results come first; the first message
is the user's; neighbors differ in role; ids increase; nothing is empty; bytes and tokens match the blocks.
`edit_faults` compares a view with its edited form: the first message, pins, unanswered results and the newest user
message are still there; the view is not larger; no assistant text was added. An undo may make the view larger, and may
restore texts of the history.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Protocol

from callboard.core.context.view.messages import Messages, calls_of, is_empty, is_result, results_first
from callboard.core.context.view.tokens import estimate_block
from callboard.core.messaging.envelopes import KEPT, untag_text
from callboard.types.messages import ViewBlock, ViewMessage, serialise
from callboard.types.records import Json


def pins(messages: Sequence[ViewMessage]) -> tuple[ViewBlock, ...]:
    """Return the blocks that count as pinned.

    The blocks are the first instruction, the newest assignment, and the newest text of each instruction file. An older
    assignment is replaced by a newer one: pins that are never removed would eventually fill the window.
    """
    marked = Messages.of(messages).pinned_blocks()
    files = {_first_line(block): block for block in marked if block.source == "instructions"}
    instructions = [block for block in marked if block.source != "instructions"] if files else marked
    return (*instructions[:1], *instructions[1:][-1:], *files.values())


def invariants(messages: Sequence[ViewMessage], *, sent: bool = True) -> list[str]:
    """Return the names of all invariants that this view violates.

    `sent`: it is about to be sent, so it must end with a user message.
    """
    faults: list[str] = []
    if messages and messages[0].role != "user":
        faults.append("the first message is not the user's")
    if sent and messages and messages[-1].role != "user":
        faults.append("the last message is not the user's")
    for previous, other in pairwise(messages):
        faults += [f"neighbours of one role: {other.id}"] if previous.role == other.role else []
        faults += [f"ids that do not rise: {other.id}"] if previous.id >= other.id else []
    for message in messages:
        faults += _message_faults(message)
    return [*faults, *_pair_faults(messages, sent=sent)]


class Viewed(Protocol):
    """A `Conversation`, or another object that holds a view in the same fields."""

    @property
    def messages(self) -> Messages: ...


def edit_faults(before: Viewed, after: Viewed, history: Sequence[ViewMessage] | None = None) -> list[str]:
    """Return the names of all invariants that the step from one view to its edited form violates.

    `history` is given only for an undo: the unreduced messages, whose texts may be restored and make the view larger.
    """
    was = before.messages
    now = after.messages
    faults = ["the view is larger"] if history is None and now.tokens > was.tokens else []
    if was and (not now or now[0].id != was[0].id):
        faults.append("the first message is gone")
    standing = [block.data for block in pins(now)]
    in_files = [data for data in standing if in_file(data)]
    faults += ["a pinned block is gone" for pin in pins(was) if pin.data not in standing and not in_files]
    faults += _forged(was, now, history or ())
    newest = (was if history is None else history)[-1:]
    if newest and newest[0].role == "user":
        is_whole = bool(now) and _ends_with(now[-1], newest[0])
        faults += [] if is_whole else ["the newest user message is not whole"]
    return faults


def _first_line(block: ViewBlock) -> str:
    """Return the tag around an instruction file, which names the file."""
    return str(block.data.get("text", "")).partition("\n")[0]


def _forged(before: Messages, after: Messages, history: Sequence[ViewMessage]) -> Iterator[str]:
    """Yield errors for assistant texts that are in neither `before` nor `history`. Unchanged messages are skipped."""
    same = {id(message) for message in before}
    fresh = [message for message in after if message.role == "assistant" and id(message) not in same]
    if not fresh:
        return
    stated = [block.data for message in (*before, *history) if message.role == "assistant" for block in message.blocks]
    for data in (block.data for message in fresh for block in message.blocks):
        if data not in stated:
            yield "words that the model did not say"


def _ends_with(message: ViewMessage, newest: ViewMessage) -> bool:
    """Return True if the message ends with the whole newest message. Only the texts of results may differ."""
    last_blocks = message.blocks[-len(newest.blocks) :]
    return len(last_blocks) == len(newest.blocks) and all(
        block.data == other.data or in_file(block.data) or (is_result(block) and _of_call(block) == _of_call(other))
        for block, other in zip(last_blocks, newest.blocks, strict=True)
    )


def in_file(data: Json) -> bool:
    """Return True for text that was moved to a file as a whole: the last resort, also for pinned texts."""
    return data.get("type") == "text" and KEPT.match(untag_text(str(data.get("text", "")))) is not None


def _of_call(block: ViewBlock) -> tuple[object, object]:
    return block.data.get("type"), block.data.get("tool_use_id")


def _message_faults(message: ViewMessage) -> Iterator[str]:
    where = f" in {message.id}"
    blocks = message.blocks
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


def _pair_faults(messages: Sequence[ViewMessage], *, sent: bool) -> Iterator[str]:
    seen: set[str] = set()
    call_ids: list[str] = []
    for message in messages:
        answered = [str(block.data.get("tool_use_id")) for block in message.blocks if is_result(block)]
        yield from (f"a call without its result: {call}" for call in call_ids if call not in answered)
        yield from (f"a result without its call: {call}" for call in answered if call not in call_ids)
        if len(answered) != len(set(answered)):
            yield f"two results of one call in {message.id}"
        call_ids = [_id(call) for call in calls_of(message)]
        for call in call_ids:
            if call in seen:
                yield f"a call that stands twice: {call}"
            seen.add(call)
    if sent:
        yield from (f"a call without its result: {call}" for call in call_ids)


def _id(call: Json) -> str:
    return str(call.get("id"))

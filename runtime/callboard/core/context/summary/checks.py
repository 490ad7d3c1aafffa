"""Content that no compaction may lose. It is checked after each compaction, and put back in the same edit. Pure.

    kept        found in the view by
    ----------  -------------------------------------------------------------------------------------------
    pinned      the block itself: the first instruction, the newest assignment
    unread      the block itself: content of the newest user message, which has no reply yet
    todo        its text, while it is open
    task        its id, while the agent holds it
    plan        its text and its status
    request     its id, while it waits for an answer
    background  its id, while the command runs

Undelivered mail waits in the mailbox, and no edit reaches it. Missing content is put back as a note of the runtime
where messages were folded, or next to the mark of the result that contained it. An edit that would then no longer make
the view smaller is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, cast

from callboard.core.context.summary.folding import note, render_state
from callboard.core.context.view.conversation import Conversation, edited
from callboard.core.context.view.invariants import in_file, pins
from callboard.core.context.view.messages import is_result, result_text
from callboard.core.messaging.envelopes import defused
from callboard.types.messages import Edit, Placed, StateBlock, ViewBlock, ViewMessage

Kind = Literal["pinned", "unread", "todo", "task", "plan", "request", "background"]
_FOLDS = frozenset({"summarised", "dropped", "snipped"})
_FIELDS: Mapping[Kind, str] = MappingProxyType(
    {"todo": "todos", "task": "tasks", "request": "requests", "background": "background"}
)
"""List of a `StateBlock` that contains each kind."""


@dataclass(frozen=True, slots=True)
class RequiredItem:
    """Content that must stay in the view."""

    kind: Kind
    name: str
    """For a person to read, and for `ContextEdited.repaired`."""
    marks: tuple[tuple[str, ...], ...] = ()
    """Texts that represent it: all texts of one of these groups must be in the view."""
    entry: str = ""
    """Its line in the state."""
    block: ViewBlock | None = None
    """Block that must stay unchanged, if any."""
    mailed: bool = False
    """True if it arrives by mail: before its delivery it waits in the mailbox, and is not missing."""


def kept_of(view: Conversation, state: StateBlock, held: Collection[str] = ()) -> tuple[RequiredItem, ...]:
    """Return the content that must still be in this view after an edit. `held`: ids of the tasks that the agent itself
    holds."""
    return (*_blocks_kept(view.messages), *_state_kept(state, held))


def missing(after: Conversation, required: Sequence[RequiredItem]) -> tuple[RequiredItem, ...]:
    """Return the required entries that are missing in a view."""
    stands = [block for message in after.messages for block in message.blocks]
    texts = "\n".join(_line(text) for message in after.messages for block in message.blocks for text in _texts(block))
    return tuple(item for item in required if not _stands(item, stands, texts))


def repaired(
    before: Conversation, edits: Sequence[Edit], state: StateBlock, held: Collection[str] = ()
) -> tuple[tuple[Edit, ...], tuple[str, ...]]:
    """Return the edits with the content that they would lose put back, and its names. No edits: they would not make the
    view smaller."""
    original = tuple(edits)
    after = edited(before, original)
    gone = missing(after, kept_of(before, state, held))
    if any(item.mailed for item in gone):
        untold = missing(before, [item for item in gone if item.mailed])
        gone = tuple(item for item in gone if item not in untold)
    if not gone:
        return original, ()
    mended = _put_back(before, original, gone)
    view = edited(before, mended)
    missing_items = missing(view, gone)
    if missing_items or view.tokens >= before.tokens:
        return (), tuple(item.name for item in missing_items or gone)
    return mended, tuple(item.name for item in gone)


def _blocks_kept(messages: Sequence[ViewMessage]) -> Iterator[RequiredItem]:
    for block in pins(messages):
        yield RequiredItem("pinned", "the first instruction or the assignment", block=block)
    last = messages[-1] if messages else None
    if last is not None and last.role == "user":
        for block in last.blocks:
            if not is_result(block) and block.source != "compactor":
                yield RequiredItem("unread", f"unread: {block.source}", block=block)


def _state_kept(state: StateBlock, held: Collection[str]) -> Iterator[RequiredItem]:
    for entry in state.todos:
        status, _, content = entry.partition("] ")
        if status != "[completed":
            yield RequiredItem("todo", f"todo: {content}", ((_line(content),),), entry)
    for entry in state.tasks:
        if (task := entry.split(" ", 1)[0]) in held:
            yield RequiredItem("task", f"task: {task}", ((task,),), entry)
    if state.plan:
        status, _, body = state.plan.partition(": ")
        decision = "Your plan has expired" if status == "expired" else f"Your plan is {status}"
        decided = ((_line(body), decision),) if status != "gate" else ()
        yield RequiredItem("plan", f"plan: {status}", ((_line(state.plan),), *decided), state.plan)
    for entry in state.requests:
        name = entry.split(" ", 1)[0]
        yield RequiredItem("request", f"request: {name}", ((name,),), entry, mailed="you may answer)" in entry)
    for entry in state.background:
        name = entry.split(":", 1)[0]
        yield RequiredItem("background", f"background: {name}", ((name,),), entry)


def _stands(item: RequiredItem, stands: Sequence[ViewBlock], texts: str) -> bool:
    if item.block is not None:
        return any(_is_same(item.block, block, item.kind) for block in stands)
    return any(all(mark in texts or defused(mark) in texts for mark in marks) for marks in item.marks)


def _is_same(original: ViewBlock, block: ViewBlock, kind: Kind) -> bool:
    """Return True for the same text of the same sender, or the path of the file with the whole text. A pinned block
    must also be pinned."""
    same = block.source == original.source and (block.data == original.data or in_file(block.data))
    return same and (block.pinned or kind != "pinned")


def _texts(block: ViewBlock) -> Iterator[str]:
    """Yield all texts in a block: its own, a result's, and those in the input of a call."""
    if is_result(block):
        yield result_text(block)
    else:
        yield from _strings(block.data.get("input") if block.data.get("type") == "tool_use" else block.data.get("text"))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in cast("dict[str, Any]", value).values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in cast("list[Any]", value):
            yield from _strings(inner)


def _line(text: str) -> str:
    return " ".join(text.split())


def _put_back(before: Conversation, edits: tuple[Edit, ...], gone: Sequence[RequiredItem]) -> tuple[Edit, ...]:
    """Return the edits, extended by the missing content."""
    folds = [number for number, edit in enumerate(edits) if edit.kind in _FOLDS and edit.blocks]
    if not folds:
        return _beside_marks(before, edits, [item for item in gone if item.block is None])
    last = folds[-1]
    edit = edits[last]
    placed = [_placed(item.block, pinned=item.kind == "pinned") for item in gone if item.block is not None]
    state = render_state(_only(gone))
    # The count of a snip stays the last block: what stands behind it counts as more that was snipped.
    end = len(edit.blocks) - (edit.kind == "snipped")
    notes = [note(state)] if state else []
    blocks = (*placed, *edit.blocks[:end], *notes, *edit.blocks[end:])
    return (*edits[:last], edit.model_copy(update={"blocks": blocks}), *edits[last + 1 :])


def _placed(block: ViewBlock, *, pinned: bool) -> Placed:
    return Placed(data=block.data, source=block.source, pinned=pinned, compactable=block.compactable)


def _only(gone: Sequence[RequiredItem]) -> StateBlock:
    """Return a state that contains only the missing content."""
    lists = {field: tuple(item.entry for item in gone if item.kind == kind) for kind, field in _FIELDS.items()}
    return StateBlock.model_validate({**lists, "plan": next((item.entry for item in gone if item.kind == "plan"), "")})


def _beside_marks(before: Conversation, edits: tuple[Edit, ...], gone: Sequence[RequiredItem]) -> tuple[Edit, ...]:
    """Return the edits with each missing entry before the mark of the result that contained it, or before the last
    mark."""
    stood = {message.id: message for message in before.messages}
    reads = [number for number, edit in enumerate(edits) if edit.block is not None and edit.message in stood]
    if not reads:
        return edits
    made = list(edits)
    for item in gone:
        numbers = (n for n in reads if _tells(item, stood[edits[n].message].blocks[edits[n].block or 0]))
        number = next(numbers, reads[-1])
        line = f"Still so: {defused(_line(item.entry))}"
        text = made[number].text
        # A path that stands in a mark is found at the beginning of a persisted one, and at the end of a cleared one.
        both = f"{text}\n{line}" if made[number].kind == "persisted" else f"{line}\n{text}"
        made[number] = made[number].model_copy(update={"text": both})
    return tuple(made)


def _tells(item: RequiredItem, block: ViewBlock) -> bool:
    return _stands(item, (), "\n".join(map(_line, _texts(block))))

"""What no compaction may lose, checked after each, and put back in the same edit. Pure.

    kept        found in the view by
    ----------  -------------------------------------------------------------------------------------------
    pinned      the block itself: the first instruction, the newest assignment
    unread      the block itself: what stands in the newest user message, which nobody has answered
    todo        its words, while it is open
    task        its id, while the agent holds it
    plan        its text and its status
    request     its id, while it waits for an answer
    background  its id, while the command runs

Mail that was not delivered yet waits in the mailbox, and no edit reaches it. What is missing is put back as a note of
the runtime where messages were folded, or beside the mark of the result that told of it. It refuses an edit that would
then no longer make the view smaller.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, cast

from callboard.core.bus.mail import defused
from callboard.core.context.summary.folding import note, render_state
from callboard.core.context.view.conversation import Conversation, edited, is_result, pins, result_text
from callboard.core.context.view.laws import in_file
from callboard.words.context import Block, Edit, Message, Placed, StateBlock

Kind = Literal["pinned", "unread", "todo", "task", "plan", "request", "background"]
_FOLDS = frozenset({"summarised", "dropped", "snipped"})
_FIELDS: Mapping[Kind, str] = MappingProxyType(
    {"todo": "todos", "task": "tasks", "request": "requests", "background": "background"}
)
"""The list of a `StateBlock` in which each stands."""


@dataclass(frozen=True, slots=True)
class Kept:
    """One thing that must stand in the view."""

    kind: Kind
    name: str
    """For a person to read, and for `ContextEdited.repaired`."""
    marks: tuple[tuple[str, ...], ...] = ()
    """Texts that tell of it: all of one of these groups are found in the view."""
    entry: str = ""
    """Its line in the state."""
    block: Block | None = None
    """What must stand as it is."""
    mailed: bool = False
    """It comes by mail: before it was delivered it waits in the mailbox, and is not missing."""


def kept_of(view: Conversation, known: StateBlock, held: Collection[str] = ()) -> tuple[Kept, ...]:
    """What must stand after an edit of this view. `held`: ids of the tasks that the agent holds itself."""
    return (*_blocks_kept(view.messages), *_state_kept(known, held))


def missing(after: Conversation, kept: Sequence[Kept]) -> tuple[Kept, ...]:
    """What of it does not stand in a view."""
    stands = [block for message in after.messages for block in message.blocks]
    texts = "\n".join(_line(text) for message in after.messages for block in message.blocks for text in _texts(block))
    return tuple(one for one in kept if not _stands(one, stands, texts))


def repaired(
    before: Conversation, edits: Sequence[Edit], known: StateBlock, held: Collection[str] = ()
) -> tuple[tuple[Edit, ...], tuple[str, ...]]:
    """The edits with all put back that they would lose, and its names. No edits: they would make nothing smaller."""
    given = tuple(edits)
    after = edited(before, given)
    gone = missing(after, kept_of(before, known, held))
    if any(one.mailed for one in gone):
        untold = missing(before, [one for one in gone if one.mailed])
        gone = tuple(one for one in gone if one not in untold)
    if not gone:
        return given, ()
    mended = _put_back(before, given, gone)
    view = edited(before, mended)
    left = missing(view, gone)
    if left or view.tokens >= before.tokens:
        return (), tuple(one.name for one in left or gone)
    return mended, tuple(one.name for one in gone)


def _blocks_kept(messages: Sequence[Message]) -> Iterator[Kept]:
    for block in pins(messages):
        yield Kept("pinned", "the first instruction or the assignment", block=block)
    last = messages[-1] if messages else None
    if last is not None and last.role == "user":
        for block in last.blocks:
            if not is_result(block) and block.source != "compactor":
                yield Kept("unread", f"unread: {block.source}", block=block)


def _state_kept(known: StateBlock, held: Collection[str]) -> Iterator[Kept]:
    for entry in known.todos:
        status, _, content = entry.partition("] ")
        if status != "[completed":
            yield Kept("todo", f"todo: {content}", ((_line(content),),), entry)
    for entry in known.tasks:
        if (task := entry.split(" ", 1)[0]) in held:
            yield Kept("task", f"task: {task}", ((task,),), entry)
    if known.plan:
        status, _, body = known.plan.partition(": ")
        said = ((_line(body), f"Your plan is {status}"),) if status != "gate" else ()
        yield Kept("plan", f"plan: {status}", ((_line(known.plan),), *said), known.plan)
    for entry in known.requests:
        name = entry.split(" ", 1)[0]
        yield Kept("request", f"request: {name}", ((name,),), entry, mailed="you may answer)" in entry)
    for entry in known.background:
        name = entry.split(":", 1)[0]
        yield Kept("background", f"background: {name}", ((name,),), entry)


def _stands(one: Kept, stands: Sequence[Block], texts: str) -> bool:
    if one.block is not None:
        return any(_is_same(one.block, block, one.kind) for block in stands)
    return any(all(mark in texts or defused(mark) in texts for mark in marks) for marks in one.marks)


def _is_same(kept: Block, block: Block, kind: Kind) -> bool:
    """The same words of the same speaker, or the path of the file that holds them whole; a pinned block only as one
    that is pinned."""
    same = block.source == kept.source and (block.data == kept.data or in_file(block.data))
    return same and (block.pinned or kind != "pinned")


def _texts(block: Block) -> Iterator[str]:
    """All words in a block: its text, a result's, and those in the input of a call."""
    if is_result(block):
        yield result_text(block)
    else:
        yield from _words(block.data.get("input") if block.data.get("type") == "tool_use" else block.data.get("text"))


def _words(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in cast("dict[str, Any]", value).values():
            yield from _words(inner)
    elif isinstance(value, list):
        for inner in cast("list[Any]", value):
            yield from _words(inner)


def _line(text: str) -> str:
    return " ".join(text.split())


def _put_back(before: Conversation, edits: tuple[Edit, ...], gone: Sequence[Kept]) -> tuple[Edit, ...]:
    """The edits that also say what is missing."""
    folds = [number for number, edit in enumerate(edits) if edit.kind in _FOLDS and edit.blocks]
    if not folds:
        return _beside_marks(before, edits, [one for one in gone if one.block is None])
    last = folds[-1]
    edit = edits[last]
    placed = [_placed(one.block, pinned=one.kind == "pinned") for one in gone if one.block is not None]
    state = render_state(_only(gone))
    # The count of a snip stays the last block: what stands behind it counts as more that was snipped.
    end = len(edit.blocks) - (edit.kind == "snipped")
    notes = [note(state)] if state else []
    blocks = (*placed, *edit.blocks[:end], *notes, *edit.blocks[end:])
    return (*edits[:last], edit.model_copy(update={"blocks": blocks}), *edits[last + 1 :])


def _placed(block: Block, *, pinned: bool) -> Placed:
    return Placed(data=block.data, source=block.source, pinned=pinned, compactable=block.compactable)


def _only(gone: Sequence[Kept]) -> StateBlock:
    """A state with nothing but what is missing."""
    lists = {field: tuple(one.entry for one in gone if one.kind == kind) for kind, field in _FIELDS.items()}
    return StateBlock.model_validate({**lists, "plan": next((one.entry for one in gone if one.kind == "plan"), "")})


def _beside_marks(before: Conversation, edits: tuple[Edit, ...], gone: Sequence[Kept]) -> tuple[Edit, ...]:
    """What is missing, before the mark of the result that told of it, or of the last one."""
    stood = {message.id: message for message in before.messages}
    reads = [number for number, edit in enumerate(edits) if edit.block is not None and edit.message in stood]
    if not reads:
        return edits
    made = list(edits)
    for one in gone:
        told = (n for n in reads if _tells(one, stood[edits[n].message].blocks[edits[n].block or 0]))
        number = next(told, reads[-1])
        line = f"Still so: {defused(_line(one.entry))}"
        text = made[number].text
        # A path that stands in a mark is found at the beginning of a persisted one, and at the end of a cleared one.
        both = f"{text}\n{line}" if made[number].kind == "persisted" else f"{line}\n{text}"
        made[number] = made[number].model_copy(update={"text": both})
    return tuple(made)


def _tells(one: Kept, block: Block) -> bool:
    return _stands(one, (), "\n".join(map(_line, _texts(block))))

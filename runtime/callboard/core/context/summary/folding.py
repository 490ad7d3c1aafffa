"""What stays and what goes when the oldest stretch of a view becomes one message. Pure.

Summaries and truncation fold alike: pins, earlier summaries and the person's words stay verbatim and in their order,
what the runtime wrote about the fold before is written anew, all else is folded. It refuses to fold what the model has
not seen: unanswered results stay with their calls, a waiting user message and a paused reply stay whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from callboard.core.bus.mail import defused
from callboard.core.context.summary.demands import demands_of
from callboard.core.context.view.conversation import calls_of, is_result, pins
from callboard.core.context.view.tokens import estimate_block, estimate_text
from callboard.words.context import Block, Message, Placed, StateBlock

COMPACTED = "[Compacted]"
REACTIVE = "[Reactive compact]"
REGION = "[compacted summary of turns "
"""How the mark of a region begins; its first and last turn follow."""
PERSON_SHARE = 20
"""Per cent of the budget that the person's words may take in a folded stretch."""
DEMAND_SHARE = 5
"""Per cent of it that demands may take of those of their messages that do not fit."""
FILES_SHARE = 5
"""Per cent of it that the files read may take after a fold, and the files changed: an agent may have seen thousands."""
_DEMANDS = "What they demand, word for word:"
_STATE = "State (exact, kept by the runtime):"
_TRANSCRIPT = "Transcript: "
_UNSAID = re.compile(r"^\[(\d+) earlier messages of the person are not repeated here")
_SCHEDULED = re.compile(r"\A<scheduled [^\n]*\n")
_DROPPED = re.compile(r"^\[(\d+) earlier turns dropped")


@dataclass(frozen=True, slots=True)
class Split:
    """A stretch of the view, sorted."""

    stays: tuple[Block, ...] = ()
    folds: tuple[Block, ...] = ()
    pinned: tuple[Block, ...] = ()
    """Those of `stays` that are pinned."""
    unsaid: int = 0
    """Messages of the person that do not fit, this time and before."""
    dropped: int = 0
    """Turns that were dropped before without a summary."""
    demands: tuple[str, ...] = ()
    """What these messages demand, word for word, oldest first."""

    @property
    def folded_tokens(self) -> int:
        """What folding takes away, before anything is put in its place."""
        return sum(block.tokens for block in self.folds)

    def placed(self) -> list[Placed]:
        """What stays, as an edit carries it."""
        return [placed_again(block, self.pinned) for block in self.stays]


def tail_start(messages: Sequence[Message], keep: int = 0, *, between_turns: bool = False) -> int:
    """Index of the first message that must stay, of at least `keep`; all that stands before it may be folded.

    `between_turns`: the last reply is finished and answered by nobody yet, so that it may be folded as well.
    """
    if not messages:
        return 0
    start = len(messages) - 1
    last = messages[-1]
    if between_turns and not keep and last.role == "assistant" and not any(calls_of(last)):
        return len(messages)
    start = max(0, min(start, len(messages) - keep))
    while start > 0 and any(is_result(block) for block in messages[start].blocks):
        start -= 1
    return start


def split(messages: Sequence[Message], upto: int, budget: int, *, rebuild: bool = False) -> Split:
    """Sort the blocks of `messages[:upto]`. `rebuild`: earlier summaries are folded too."""
    stretch = [(message, block) for message in messages[:upto] for block in message.blocks]
    pinned = pins(messages)
    said = list(words_in(stretch, messages[-1].turn if messages else "", pinned))
    spoken = _fitting(said, budget * PERSON_SHARE // 100)
    stays: list[Block] = []
    folds: list[Block] = []
    kept = {id(block) for block in (*pinned, *spoken)}
    unsaid = len(said) - len(spoken)
    dropped = 0
    demands: list[str] = []
    for _message, block in stretch:
        if id(block) in kept or (is_summary(block) and not rebuild):
            stays.append(block)
        elif block.source == "compactor" and not is_summary(block):
            unsaid += _number(_UNSAID, block)
            dropped += _number(_DROPPED, block)
            demands += _demands_in(block)
        else:
            folds.append(block)
    demands += [one for block in said if id(block) not in kept for one in _demanded(block)]
    fitting = _newest(list(dict.fromkeys(demands)), budget * DEMAND_SHARE // 100)
    return Split(tuple(stays), tuple(folds), pinned, unsaid, dropped, fitting)


def is_summary(block: Block) -> bool:
    """A summary of ours (what else says so has another source)."""
    return block.source == "compactor" and text_of(block).startswith((COMPACTED, REACTIVE, REGION))


def is_note(block: Block) -> bool:
    """What the runtime wrote beside a summary: state, path, counts. It is written anew at each fold."""
    return block.source == "compactor" and not is_summary(block)


def text_of(block: Block) -> str:
    """The text of a text block, else empty."""
    return str(block.data.get("text", "")) if block.data.get("type") == "text" else ""


def state_of(messages: Sequence[Message]) -> str:
    """The state block that stands in the view, as text; empty if there is none."""
    texts = [text_of(block) for message in messages for block in message.blocks if is_note(block)]
    return next((text for text in reversed(texts) if text.startswith(_STATE)), "")


def placed_again(block: Block, pinned: Sequence[Block]) -> Placed:
    """A block of the view as an edit carries it. `pinned`: the pins that count; an older one gives way."""
    pin = any(block is one for one in pinned)
    return Placed(data=block.data, source=block.source, pinned=pin, compactable=block.compactable)


def note(text: str) -> Placed:
    """A text of the runtime beside what stays; a path or a quoted word in it opens no tag."""
    return Placed(data={"type": "text", "text": defused(text)}, source="compactor")


def notes(sorted_: Split, state: str, transcript: str) -> list[Placed]:
    """State, transcript and what is left out, as blocks."""
    made: list[Placed] = []
    if sorted_.unsaid:
        where = f" Whole: {transcript}" if transcript else ""
        lines = [f"[{sorted_.unsaid} earlier messages of the person are not repeated here.{where}]"]
        lines += [_DEMANDS, *(f"- {one}" for one in sorted_.demands)] if sorted_.demands else []
        made.append(note("\n".join(lines)))
    return made + [note(one) for one in standing_notes(state, transcript)]


def standing_notes(state: str, transcript: str) -> list[str]:
    """What stands once in a view, beside its newest summary: the state, and the path of the transcript."""
    return [one for one in (state, _TRANSCRIPT + transcript if transcript else "") if one]


def is_standing(block: Block) -> bool:
    """The state or the path beside a summary."""
    return is_note(block) and text_of(block).startswith((_STATE, _TRANSCRIPT))


def dropped_mark(turns: int, transcript: str) -> str:
    """What stands where turns were dropped."""
    where = f" Transcript: {transcript}" if transcript else ""
    return f"[{turns} earlier turns dropped: no summary could be made.{where}]"


def tokens_of(blocks: Sequence[Placed]) -> int:
    """Estimated tokens of blocks that are about to be placed."""
    return sum(estimate_block(block.data) for block in blocks)


def state_text(state: StateBlock, budget: int) -> str:
    """The state as it stands after a fold: of files, the newest that fit `FILES_SHARE`; all else is whole."""
    room = budget * FILES_SHARE // 100
    files = {
        "files_read": _newest_files(state.files_read, room),
        "files_changed": _newest_files(state.files_changed, room),
    }
    return render_state(state.model_copy(update=files))


def _newest_files(paths: tuple[str, ...], room: int) -> tuple[str, ...]:
    kept = _newest(paths, room)
    left = len(paths) - len(kept)
    return (f"({left} earlier ones: see the transcript)", *kept) if left else paths


def render_state(state: StateBlock) -> str:
    """What the runtime knows, exactly; empty if it knows nothing. A line each: no name can pose as a heading."""
    lists: tuple[tuple[str, Sequence[str]], ...] = (
        ("Todos", state.todos),
        ("Tasks held", state.tasks),
        ("Teammates", state.teammates),
        ("Background", state.background),
        ("Schedules", state.schedules),
        ("Files read", state.files_read),
        ("Files changed", state.files_changed),
        # Named, not repeated: their text is long, `load_skill` brings it back for one short call, and as it is now.
        ("Skills loaded (load again the one that you go on with)", state.skills),
        ("Waiting for an answer", state.requests),
    )
    lines = [_STATE]
    for name, entries in lists:
        lines += [f"{name}:", *(f"- {_one_line(entry)}" for entry in entries)] if entries else []
    if state.plan:
        lines += ["Plan:", *(f"  {line}" for line in defused(state.plan).splitlines())]
    return "\n".join(lines) if len(lines) > 1 else ""


def _one_line(text: str) -> str:
    return defused(" ".join(text.split()))


def words_in(stretch: Sequence[tuple[Message, Block]], turn: str, pinned: Sequence[Block]) -> Iterator[Block]:
    """What was said to the agent and should survive, oldest first: the person's words, and this turn's instructions."""
    newest: set[str] = set()
    said: list[Block] = []
    for message, block in reversed(stretch):
        if any(block is pin for pin in pinned) or is_result(block):
            continue
        if block.source == "schedule":  # a schedule says the same each time: once is enough
            text = _SCHEDULED.sub("", text_of(block))
            if text not in newest:
                said.append(block)
            newest.add(text)
        elif block.source == "person" or (block.source == "inbox" and turn and message.turn == turn):
            said.append(block)
    yield from reversed(said)


def _fitting(said: Sequence[Block], room: int) -> list[Block]:
    """Those that fit, newest first."""
    kept: list[Block] = []
    for block in reversed(said):
        if block.tokens <= room:
            kept.append(block)
            room -= block.tokens
    return kept


def _demanded(block: Block) -> list[str]:
    """What a message of the person demands that does not fit; of anybody else nothing stays word for word."""
    return [defused(one) for one in demands_of(text_of(block))] if block.source == "person" else []


def _demands_in(block: Block) -> list[str]:
    """The demands that a note of ours carries on."""
    head, mark, rest = text_of(block).partition(f"\n{_DEMANDS}\n")
    return [line.removeprefix("- ") for line in rest.splitlines()] if mark and _UNSAID.match(head) else []


def _newest(texts: Sequence[str], room: int) -> tuple[str, ...]:
    """Those that fit, the newest first, in their order."""
    kept: list[str] = []
    for text in reversed(texts):
        room -= estimate_text(text) + 1
        if room < 0:
            break
        kept.append(text)
    return tuple(reversed(kept))


def _number(pattern: re.Pattern[str], block: Block) -> int:
    found = pattern.match(text_of(block))
    return int(found[1]) if found else 0

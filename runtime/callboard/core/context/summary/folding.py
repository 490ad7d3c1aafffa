"""Rules for the content that stays and the content that is removed when the oldest part of a view becomes one message.

Pure. Summaries and truncation fold in the same way: pins, earlier summaries and the person's texts stay verbatim and in
order, the runtime's notes about the previous fold are written again, and everything else is folded. Messages that the
model has not seen are not folded: unanswered results stay with their calls, and a waiting user message and a paused
reply stay whole.

If the person's messages are too long for the view, their demands stay verbatim: sentences that allow, forbid or limit
something. The search uses words of a few languages, and finds too much rather than too little; for other languages the
summary prompt asks for quotes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from callboard.core.context.view.invariants import pins
from callboard.core.context.view.messages import calls_of, is_result
from callboard.core.context.view.tokens import estimate_block, estimate_text
from callboard.core.messaging.envelopes import defuse_tags
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass
from callboard.types.messages import Placed, StateBlock, ViewBlock, ViewMessage

COMPACTED = "[Compacted]"
REACTIVE = "[Reactive compact]"
REGION = "[compacted summary of turns "
"""Beginning of the mark of a region, followed by its first and last turn."""
PERSON_SHARE = 20
"""Percentage of the budget that the person's texts may take in a folded range."""
DEMAND_SHARE = 5
"""Percentage of the budget for demands from the person's messages that do not fit."""
FILES_SHARE = 5
"""Percentage of the budget for the files read, and for the files changed, after a fold: an agent may have seen
thousands."""
_DEMANDS = "What they demand, word for word:"
_STATE = "State (exact, kept by the runtime):"
_TRANSCRIPT = "Transcript: "
_UNSAID = late_pattern(r"^\[(\d+) earlier messages of the person are not repeated here")
_SCHEDULED = late_pattern(r"\A<scheduled [^\n]*\n")
_DROPPED = late_pattern(r"^\[(\d+) earlier turns? dropped")


@dataclass(frozen=True, slots=True)
class ViewSplit:
    """A range of the view, sorted."""

    stays: tuple[ViewBlock, ...] = ()
    folds: tuple[ViewBlock, ...] = ()
    pinned: tuple[ViewBlock, ...] = ()
    """Pinned blocks of `stays`."""
    unsaid: int = 0
    """Number of the person's messages that do not fit, now and earlier."""
    dropped: int = 0
    """Number of turns that were dropped earlier without a summary."""
    demands: tuple[str, ...] = ()
    """Demands in the person's messages that do not fit, verbatim, oldest first."""

    @property
    def folded_tokens(self) -> int:
        """Return the tokens that folding removes, before the replacement is added."""
        return sum(block.tokens for block in self.folds)

    def placed_blocks(self) -> list[Placed]:
        """Return the blocks that stay, in the form that an edit carries."""
        return [block_of_edit(block, self.pinned) for block in self.stays]


def tail_start(messages: Sequence[ViewMessage], keep: int = 0, *, between_turns: bool = False) -> int:
    """Return the index of the first message that must stay; at least `keep` messages stay.

    All messages before it may be folded.

    `between_turns`: the last reply is finished and has no answer yet, so it may be folded as well.
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


def split(messages: Sequence[ViewMessage], upto: int, budget: int, *, rebuild: bool = False) -> ViewSplit:
    """Sort the blocks of `messages[:upto]`. `rebuild`: earlier summaries are folded too."""
    stretch = [(message, block) for message in messages[:upto] for block in message.blocks]
    pinned = pins(messages)
    spoken_blocks = list(words_in(stretch, messages[-1].turn if messages else "", pinned))
    spoken = _fitting(spoken_blocks, budget * PERSON_SHARE // 100)
    stays: list[ViewBlock] = []
    folds: list[ViewBlock] = []
    retained = {id(block) for block in (*pinned, *spoken)}
    unsaid = len(spoken_blocks) - len(spoken)
    dropped = 0
    demands: list[str] = []
    for _message, block in stretch:
        if id(block) in retained or (is_summary(block) and not rebuild):
            stays.append(block)
        elif block.source == "compactor" and not is_summary(block):
            unsaid += _number(_UNSAID, block)
            dropped += _number(_DROPPED, block)
            demands += _demands_in(block)
        else:
            folds.append(block)
    demands += [demand for block in spoken_blocks if id(block) not in retained for demand in _demanded(block)]
    fitting = _newest_that_fit(list(dict.fromkeys(demands)), budget * DEMAND_SHARE // 100)
    return ViewSplit(tuple(stays), tuple(folds), pinned, unsaid, dropped, fitting)


def is_summary(block: ViewBlock) -> bool:
    """Return True for a summary of the runtime (similar texts of others have another source)."""
    return block.source == "compactor" and text_of(block).startswith((COMPACTED, REACTIVE, REGION))


def is_note(block: ViewBlock) -> bool:
    """Return True if the runtime wrote the block next to a summary: state, path or counts.

    Each fold writes such notes again.
    """
    return block.source == "compactor" and not is_summary(block)


def text_of(block: ViewBlock) -> str:
    """Return the text of a text block, otherwise an empty string."""
    return str(block.data.get("text", "")) if block.data.get("type") == "text" else ""


def state_of(messages: Sequence[ViewMessage]) -> str:
    """Return the text of the state block in the view; empty if there is none."""
    texts = [text_of(block) for message in messages for block in message.blocks if is_note(block)]
    return next((text for text in reversed(texts) if text.startswith(_STATE)), "")


def block_of_edit(block: ViewBlock, pinned: Sequence[ViewBlock]) -> Placed:
    """Return a block of the view in the form that an edit carries.

    `pinned`: the pins that count; an older pin is not kept.
    """
    pin = any(block is pin for pin in pinned)
    return Placed(data=block.data, source=block.source, pinned=pin, compactable=block.compactable)


def note(text: str) -> Placed:
    """Return a text of the runtime as a block. A path or a quoted word in it cannot open a tag."""
    return Placed(data={"type": "text", "text": defuse_tags(text)}, source="compactor")


def notes(sorted_: ViewSplit, state: str, transcript: str) -> list[Placed]:
    """Return the state, the transcript path and the counts of omitted content, as blocks."""
    made: list[Placed] = []
    if sorted_.unsaid:
        where = f" Whole: {transcript}" if transcript else ""
        lines = [f"[{sorted_.unsaid} earlier messages of the person are not repeated here.{where}]"]
        lines += [_DEMANDS, *(f"- {demand}" for demand in sorted_.demands)] if sorted_.demands else []
        made.append(note("\n".join(lines)))
    return made + [note(text) for text in standing_notes(state, transcript)]


def standing_notes(state: str, transcript: str) -> list[str]:
    """Return the notes that occur once in a view, next to its newest summary.

    The notes are the state, and the path of the transcript.
    """
    return [text for text in (state, _TRANSCRIPT + transcript if transcript else "") if text]


def is_standing(block: ViewBlock) -> bool:
    """Return True for the state or the path next to a summary."""
    return is_note(block) and text_of(block).startswith((_STATE, _TRANSCRIPT))


def dropped_mark(turns: int, transcript: str) -> str:
    """Return the mark that replaces dropped turns."""
    where = f" Transcript: {transcript}" if transcript else ""
    return f"[{turns} earlier {'turn' if turns == 1 else 'turns'} dropped: no summary could be made.{where}]"


def tokens_of(blocks: Sequence[Placed]) -> int:
    """Return the estimated tokens of blocks that are not yet in the view."""
    return sum(estimate_block(block.data) for block in blocks)


def state_text(state: StateBlock, budget: int) -> str:
    """Return the state after a fold.

    Of the files, only the newest that fit into `FILES_SHARE` are listed; the rest of the state is complete.
    """
    room = budget * FILES_SHARE // 100
    files = {
        "files_read": _newest_files(state.files_read, room),
        "files_changed": _newest_files(state.files_changed, room),
    }
    return render_state(state.model_copy(update=files))


def _newest_files(paths: tuple[str, ...], room: int) -> tuple[str, ...]:
    fitting = _newest_that_fit(paths, room)
    omitted = len(paths) - len(fitting)
    return (f"({omitted} earlier ones: see the transcript)", *fitting) if omitted else paths


def render_state(state: StateBlock) -> str:
    """Render exactly what the runtime knows; empty if it knows nothing.

    One line per entry, so that no name can look like a heading.
    """
    lists: tuple[tuple[str, Sequence[str]], ...] = (
        ("Todos", state.todos),
        ("Tasks held", state.tasks),
        ("Teammates", state.teammates),
        ("Background", state.background),
        ("Schedules", state.schedules),
        ("Files read", state.files_read),
        ("Files changed", state.files_changed),
        # Only names: the texts are long, and `load_skill` loads the current text with one short call.
        ("Skills loaded (load again the one that you go on with)", state.skills),
        ("Waiting for an answer", state.requests),
    )
    lines = [_STATE]
    for name, entries in lists:
        lines += [f"{name}:", *(f"- {_one_line(entry)}" for entry in entries)] if entries else []
    if state.plan:
        lines += ["Plan:", *(f"  {line}" for line in defuse_tags(state.plan).splitlines())]
    return "\n".join(lines) if len(lines) > 1 else ""


def _one_line(text: str) -> str:
    return defuse_tags(" ".join(text.split()))


def words_in(
    stretch: Sequence[tuple[ViewMessage, ViewBlock]], turn: str, pinned: Sequence[ViewBlock]
) -> Iterator[ViewBlock]:
    """Yield the messages to the agent that should survive, oldest first.

    The messages are the person's texts, and this turn's instructions.
    """
    newest: set[str] = set()
    spoken_blocks: list[ViewBlock] = []
    for message, block in reversed(stretch):
        if any(block is pin for pin in pinned) or is_result(block):
            continue
        if block.source == "schedule":  # a schedule repeats its text: the newest one is enough
            text = _SCHEDULED.sub("", text_of(block))
            if text not in newest:
                spoken_blocks.append(block)
            newest.add(text)
        elif block.source == "person" or (block.source == "inbox" and turn and message.turn == turn):
            spoken_blocks.append(block)
    yield from reversed(spoken_blocks)


def _fitting(spoken_blocks: Sequence[ViewBlock], room: int) -> list[ViewBlock]:
    """Return the blocks that fit, newest first."""
    fitting: list[ViewBlock] = []
    for block in reversed(spoken_blocks):
        if block.tokens <= room:
            fitting.append(block)
            room -= block.tokens
    return fitting


def _demanded(block: ViewBlock) -> list[str]:
    """Return the demands in a person's message that does not fit. Nothing of other senders stays verbatim."""
    return [defuse_tags(sentence) for sentence in demands_of(text_of(block))] if block.source == "person" else []


def _demands_in(block: ViewBlock) -> list[str]:
    """Return the demands in an earlier note of the runtime."""
    head, mark, listed = text_of(block).partition(f"\n{_DEMANDS}\n")
    return [line.removeprefix("- ") for line in listed.splitlines()] if mark and _UNSAID.match(head) else []


def _newest_that_fit(texts: Sequence[str], room: int) -> tuple[str, ...]:
    """Return the newest texts that fit, in their order."""
    fitting: list[str] = []
    for text in reversed(texts):
        room -= estimate_text(text) + 1
        if room < 0:
            break
        fitting.append(text)
    return tuple(reversed(fitting))


def _number(pattern: re.Pattern[str], block: ViewBlock) -> int:
    match = pattern.match(text_of(block))
    return int(match[1]) if match else 0


LONGEST = 400
"""Maximum characters of a demand. A longer sentence is pasted material."""

_ENDS = late_pattern(r"(?<=[.!?;])\s+|(?<=[。！？；])|\n+")
_MARKS = late_pattern(
    r"\b(?:must|never|always|do not|don['’]t|does not|cannot|can['’]t|not|no|only|without|avoid|at most|at least"
    r"|exactly|more than|less than|fewer than|should|shall|have to|has to|needs? to|required?|forbid(?:den)?"
    r"|allow(?:ed)?|ensure|make sure|keep|use|prefer|instead|unless|until|except|limit|leave|important"
    r"|muss|müssen|nie(?:mals)?|immer|nicht|kein\w*|nur|ohne|soll\w*|darf|dürfen|höchstens|mindestens|verwende\w*"
    r"|jamais|toujours|doit|doivent|sans|uniquement|seulement|pas|interdit|nunca|siempre|debe\w*|sin|solo|sólo)\b"
    r"|必须|必須|不要|不得|不能|不可|禁止|只能|务必|始终|必ず|しないで|いけない|のみ|だけ",
    re.IGNORECASE,
)


def demands_of(text: str) -> Iterator[str]:
    """Yield the sentences that demand something, in order, each once, with whitespace collapsed."""
    seen: set[str] = set()
    for sentence in _ENDS.split(text):
        demand = " ".join(sentence.split())
        if 3 < len(demand) <= LONGEST and demand not in seen and _MARKS.search(demand):
            seen.add(demand)
            yield demand

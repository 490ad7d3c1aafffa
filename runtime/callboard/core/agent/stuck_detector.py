"""Detection of an agent that repeats itself, from its actions and results, after every reply and every result. Pure.

    pattern       repetition                                                            limit
    ------------  --------------------------------------------------------------------  -----------------------------
    repeat        the same calls (tool, input) with the same results                    `after` steps in a row
    alternation   two different such steps in turn: A, B, A, B ...                      each `after` times
    errors        calls that all fail, one tool in the same way, with any input         `after` + 2 steps in a row
    monologue     replies without a call and with nearly the same text                  `after` in a row
    mail          messages to others and little other work, with any content            `MOST_MAIL` in a row
    mail          messages that are not sent, regardless of other work                  `MOST_UNSENT` more than are
    tasks         tasks that are not created, regardless of other work                 `MOST_UNSENT` more than are

`after` is `AgentSpec.stuck_after`: 0 means never, and 1 counts as 2, because a single occurrence is not a repetition.
The first time in a turn the agent is nudged, and all counts start again; the next time, for any pattern, the turn ends.

- A *step* is all calls of one reply, in any order; a call that occurs twice in it counts once.
- *The same result* is the same content to the byte, without the call's own id, which is part of the names of files that
  hold long output.
- *The same way* of failing: the first and the last line of the error without numbers, quoted text and paths, so that
  "no such file: /a" and "no such file: /b" are one kind. The line with a command's exit code does not count: a search
  without matches that prints nothing is not a repeated failure.
- *Nearly the same text*: at least 0.6 of all pairs of neighboring words occur in both texts, compared by the 64 pairs
  with the smallest checksums of each (all pairs of a short text). Numbers count as equal, so that a changed
  counter is not progress. Three different words in thirty are nearly the same, one different sentence in three is not.
- *Progress* restarts all counts: another result, mail, an answer to a plan or a question, and a file or a task in a
  state in which this turn has not recently left it. Writing A, B, A, B into a file is therefore not progress.
- *Messages* are counted by calls, including refused ones. Incoming mail does not restart their count, because two
  agents that flood each other would never be stuck. A changed file or task does restart it. A successful call allows
  `MAIL_PER_RESULT` messages if neither that call nor that result was seen recently; so trivial calls allow few or none.
- *Unsent messages* (denied by `core.messaging.floods`, or refused by a full mailbox) count regardless of other work: no
  result, changed file or mail restarts their count. A sent message subtracts one. The same holds for denied tasks. A
  task with a wrong field is an ordinary error.
- *Watching is not stuck.* Steps that only observe others (`ToolSpec.watches`: a background command's output, the board,
  the team, the inbox) are skipped while some of the observed work is in progress, because it may be slow. At most
  `PATIENCE` times `after` such steps in a row are skipped: two agents that watch each other would never stop, and an
  agent that looks thirty times in a row at the same thing should end its turn, since news wakes it. The facts of that
  moment decide that work was in progress, and `ResultsMerged.waits` records it.

The cost of a step depends on its own calls and results, not on the length of the turn.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from callboard.core.call_words import input_words
from callboard.core.frozen import replace
from callboard.core.messaging.floods import MAIL_TOOLS, TASK_TOOLS
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json, ToolCall

Pattern = Literal["repeat", "alternation", "monologue", "errors", "mail", "tasks"]

MORE_ERRORS = 2
"""Additional repetitions allowed for failures, which are common while an agent tries things."""
MOST_MAIL = 100
"""Most messages in a row without other work that allows them."""
MAIL_PER_RESULT = 5
"""Messages that a new result of another call allows."""
MOST_UNSENT = 20
"""Messages that were not sent, beyond those that were, before an agent counts as stuck. The same number for tasks."""
PATIENCE = 10
"""Factor of `after`: this many steps of watching are skipped."""
ALIKE = 0.6
PAIRS = 64
MARKS = 16
"""Number of states of files and tasks to remember."""
SEEN = 128
"""Number of calls and results to remember, to recognize new ones."""
SHOWN = 100
"""Most characters of a call, an error or a text to show to the user."""

_WORD = late_pattern(r"\d+|[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\d_]+")
"""A number, one character of a script without spaces, or a word."""
_EXIT = late_pattern(r"exit code -?\d+")
_QUOTED = late_pattern(r"'[^'\n]*'|\"[^\"\n]*\"|`[^`\n]*`")
_PATH = late_pattern(r"[^\s:,;()\[\]<>]*/[^\s:,;()\[\]<>]*|\b[\w-]+\.[A-Za-z]\w{0,7}\b")
_NUMBER = late_pattern(r"\b0x[0-9a-fA-F]+\b|\b(?=[a-f]*\d)[0-9a-f]{7,}\b|\d+(?:\.\d+)*")


class CallOutcome(NamedTuple):
    """One call of a step, and its result for the model."""

    call: ToolCall
    content: Sequence[Json]
    is_error: bool = False
    denied: bool = False
    """True if the call did not run because it was denied."""


@dataclass(frozen=True, slots=True)
class StuckPattern:
    """Pattern that is present now."""

    pattern: Pattern
    count: int
    what: str
    """Description of the repetition, in one line for the user."""


@dataclass(frozen=True)
class Stuck:
    """Repetition that a turn has shown so far."""

    nudged: bool = False
    """True if the agent was nudged in this turn."""
    last: str = ""
    """Digest of the newest step: its calls with their results."""
    before: str = ""
    """Digest of the step before the newest."""
    last_words: str = ""
    before_words: str = ""
    repeats: int = 0
    """Number of times in a row that the newest step occurs."""
    swings: int = 0
    """Number of steps in a row, up to the newest, that each equal the last but one and differ from the last."""
    failures: tuple[tuple[str, int], ...] = ()
    """Kinds of failures of the newest step, with the number of times in a row."""
    looks: int = 0
    """Number of steps of watching in a row that were skipped."""
    replies: int = 0
    """Number of replies in a row, without a call, with nearly the same text."""
    pairs: tuple[int, ...] = ()
    """Smallest checksums of the word pairs of the newest such reply."""
    said: str = ""
    letters: int = 0
    """Messages sent, minus those that other work allowed."""
    unsent: int = 0
    """Messages that were not sent, minus those that were."""
    uncreated: int = 0
    """Tasks that were denied, minus those that were created."""
    seen: tuple[str, ...] = ()
    """Digests of calls other than messages, and of their results, newest last."""
    marks: tuple[str, ...] = ()
    """States in which files and tasks were left, newest last."""


def after_step(stuck: Stuck, outcomes: Sequence[CallOutcome], after: int, *, waits: bool = False) -> Stuck:
    """Return the repetition after the results of a step. `waits`: the step only watched work in progress."""
    if waits and stuck.looks < PATIENCE * _least(after):
        return replace(stuck, looks=stuck.looks + 1)
    marks = [_Marks.of(outcome) for outcome in outcomes]
    now = _digest(*sorted(set(map(_outcome_key, outcomes, marks))))
    repeats = stuck.repeats + 1 if now == stuck.last else 1
    swings = 1
    if repeats == 1 and stuck.last:
        swings = stuck.swings + 1 if now == stuck.before else 2
    had = dict(stuck.failures)
    failures = _failures(outcomes)
    mail = unsent = created = uncreated = 0
    for outcome in outcomes:
        if outcome.call.name in MAIL_TOOLS:
            mail += 1
            unsent += outcome.is_error
        if outcome.call.name in TASK_TOOLS:
            created += not outcome.is_error
            uncreated += outcome.denied
    new, seen = _new_results(stuck.seen, outcomes, marks)
    return replace(
        stuck,
        last=now,
        before=stuck.last,
        last_words=_step_words(outcomes),
        before_words=stuck.last_words,
        repeats=repeats,
        swings=swings,
        failures=tuple([(kind, had.get(kind, 0) + 1) for kind in failures]),
        looks=stuck.looks if waits else 0,
        letters=max(0, stuck.letters + mail - MAIL_PER_RESULT * new),
        unsent=max(0, stuck.unsent + 2 * unsent - mail),
        uncreated=max(0, stuck.uncreated + uncreated - created),
        seen=seen,
    )


def after_reply(stuck: Stuck, blocks: Sequence[Json], *, calls: bool) -> Stuck:
    """Return the repetition after a reply with the content `blocks` in the form of the API.

    A reply with a tool call ends a monologue.
    """
    if calls:
        return replace(stuck, replies=0, pairs=(), said="") if stuck.replies else stuck
    text = _spoken_content(blocks)
    pairs = _pairs(text)
    same = stuck.replies > 0 and _alike(pairs, stuck.pairs)
    return replace(stuck, replies=stuck.replies + 1 if same else 1, pairs=pairs, said=_short(text))


def after_news(stuck: Stuck) -> Stuck:
    """Return the repetition after new input from outside.

    Everything is reset except the nudge and the counts of messages and denied tasks.
    """
    return Stuck(
        nudged=stuck.nudged,
        letters=stuck.letters,
        unsent=stuck.unsent,
        uncreated=stuck.uncreated,
        seen=stuck.seen,
    )


def after_change(stuck: Stuck, *state: str) -> Stuck:
    """Return the repetition after a file or a task was left in this state (its name and its digest or owner)."""
    mark = _digest(*state)
    if mark in stuck.marks:
        return stuck
    return replace(after_news(stuck), letters=0, marks=(*stuck.marks, mark)[-MARKS:])


def after_nudge(stuck: Stuck) -> Stuck:
    """Return the repetition after the nudge: the counts start again."""
    return Stuck(nudged=True, marks=stuck.marks, seen=stuck.seen)


def find_pattern(stuck: Stuck, after: int) -> StuckPattern | None:
    """Return the pattern that is present now, or None."""
    if after <= 0:
        return None
    most = _least(after)
    if stuck.letters >= MOST_MAIL:
        return StuckPattern("mail", stuck.letters, f"messages to others and little else, the newest {stuck.last_words}")
    if stuck.unsent >= MOST_UNSENT:
        return StuckPattern("mail", stuck.unsent, f"messages that are not sent, the newest {stuck.last_words}")
    if stuck.uncreated >= MOST_UNSENT:
        return StuckPattern("tasks", stuck.uncreated, f"tasks that are not created, the newest {stuck.last_words}")
    if stuck.repeats >= most:
        return StuckPattern("repeat", stuck.repeats, f"{stuck.last_words}, with the same result")
    kind, failed = max(stuck.failures, key=lambda failure: failure[1], default=("", 0))
    if failed >= most + MORE_ERRORS:
        return StuckPattern("errors", failed, f"the same failure, {kind}")
    if stuck.swings >= 2 * most:
        both = f"{stuck.before_words} and {stuck.last_words}"
        return StuckPattern("alternation", stuck.swings // 2, f"{both} in turn, with the same results")
    if stuck.replies >= most:
        return StuckPattern("monologue", stuck.replies, f"nearly the same words, {stuck.said or '(nothing)'}")
    return None


def nudge_words(pattern: str, count: int) -> str:
    """Return the text that the agent gets at the first notice."""
    return (
        f"You repeat yourself, {count} times now: {pattern}. Nothing has come of it, and the same again will bring the "
        "same. Take another way. If there is none, say plainly what is done, what is not and why, and end your turn. "
        "If you wait for others, end your turn too: news wakes you. If it goes on like this, your turn is ended."
    )


def stop_words(pattern: str, count: int) -> str:
    """Return the reason for the end of the turn at the second notice, for the user and the lead."""
    return f"stuck: {pattern}, {count} times, after a warning"


def _least(after: int) -> int:
    return max(after, 2)


def _digest(*parts: str) -> str:
    return hashlib.blake2b("\0".join(parts).encode(errors="surrogatepass"), digest_size=12).hexdigest()


_canonical = json.JSONEncoder(sort_keys=True, ensure_ascii=True, separators=(",", ":"), default=str).encode


class _Marks(NamedTuple):
    """Digests by which an outcome is compared, made once because a result may be long."""

    call: str
    result: str
    """Digest of the content of the result without the id of its call."""

    @classmethod
    def of(cls, outcome: CallOutcome) -> _Marks:
        call = outcome.call
        form, text = _as_text(outcome.content)
        if call.id:
            text = text.replace(call.id, "")
        return cls(_digest("call", call.name, _input_text(call.input)), _digest(form, text))


def _input_text(tool_input: Json) -> str:
    """Return an input as text, the same for each order of its fields. A single text is not encoded."""
    if len(tool_input) == 1:
        for name, text in tool_input.items():
            if isinstance(text, str):
                return f"{name}\0{text}"
    return _canonical(tool_input)


def _as_text(content: Sequence[Json]) -> tuple[str, str]:
    """Return the form of a result and its text: a single text is not encoded, because it may be long."""
    only = content[0] if len(content) == 1 else {}
    text = only.get("text")
    if isinstance(text, str) and len(only) == 2 and only.get("type") == "text":
        return "text", text
    return "result", _canonical(list(content))


def _outcome_key(outcome: CallOutcome, marks: _Marks) -> str:
    return "\0".join((*marks, outcome.call.bad_input or "", str(outcome.is_error)))


def _new_results(
    seen: tuple[str, ...], outcomes: Sequence[CallOutcome], every: Sequence[_Marks]
) -> tuple[int, tuple[str, ...]]:
    """Count successful calls, except messages, whose call and result are both new; add them to `seen`."""
    new = 0
    for outcome, marks in zip(outcomes, every, strict=True):
        if outcome.is_error or outcome.call.name in MAIL_TOOLS:
            continue
        if marks.call not in seen and marks.result not in seen:
            new += 1
        else:
            seen = tuple([mark for mark in seen if mark not in marks])
        seen = (*seen, *marks)
    return new, seen[-SEEN:]


def _failures(outcomes: Sequence[CallOutcome]) -> list[str]:
    """Return the kinds of failures of a step, sorted; none if one of its calls succeeded, which is progress."""
    for outcome in outcomes:
        if not outcome.is_error:
            return []
    kinds = {(outcome.call.name, kind) for outcome in outcomes if (kind := _kind_of(outcome.content))}
    return [f"{name}: {kind}" for name, kind in sorted(kinds)]


def _kind_of(content: Sequence[Json]) -> str:
    text = "\n".join(str(part.get("text", "")) for part in content)
    lines = [line.strip() for line in text.split("\n") if line.strip() and not _EXIT.fullmatch(line.strip())]
    if not lines:
        return ""
    ends = [lines[0], lines[-1]] if len(lines) > 1 else lines
    return " … ".join(_short(_NUMBER.sub("#", _PATH.sub("…", _QUOTED.sub("…", end[:1_000])))) for end in ends)


def _step_words(outcomes: Sequence[CallOutcome]) -> str:
    if not outcomes:
        return "(no call)"
    call = outcomes[0].call
    text = _short(f"{call.name} {input_words(call.input)}")
    return text if len(outcomes) == 1 else f"{text} and {len(outcomes) - 1} more"


def _spoken_content(blocks: Sequence[Json]) -> str:
    """Return the content of a reply, including calls of the service's own tools, without thinking."""
    texts: list[str] = []
    for block in blocks:
        match block.get("type"):
            case "text":
                texts.append(str(block.get("text", "")))
            case "thinking" | "redacted_thinking":
                pass
            case _:
                texts.append(_canonical(block.get("input", block.get("content", ""))))
    return "\n".join(texts)


def _pairs(text: str) -> tuple[int, ...]:
    tokens = ["#" if word.isdigit() else word for word in _WORD.findall(text.lower())]
    both = pairwise(tokens) if len(tokens) > 1 else zip(tokens, tokens, strict=True)
    return tuple(sorted({zlib.crc32(f"{first} {two}".encode(errors="surrogatepass")) for first, two in both})[:PAIRS])


def _alike(first: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Return True if the texts are nearly the same, by the share of common checksums among the smallest of both."""
    together = sorted({*first, *other})[:PAIRS]
    shared = {*first} & {*other}
    return not together or sum(1 for number in together if number in shared) >= ALIKE * len(together)


def _short(text: str) -> str:
    line = " ".join(text[: 10 * SHOWN].split())
    return line if len(line) <= SHOWN else f"{line[: SHOWN - 1]}…"

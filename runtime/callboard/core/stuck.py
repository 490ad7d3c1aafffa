"""Whether an agent repeats itself: what it does and gets, looked at after every reply and every result. Pure.

    pattern       what repeats itself                                                   noticed at
    ------------  --------------------------------------------------------------------  -----------------------------
    repeat        the same calls (tool, input) with the same results                    `after` steps in a row
    alternation   two different such steps in turn: A, B, A, B ...                      each `after` times
    errors        calls that all fail, one tool in the same way, with whatever input    `after` + 2 steps in a row
    monologue     replies without a call that say nearly the same                       `after` in a row

`after` is `AgentSpec.stuck_after`: 0 is never, and 1 counts as 2, since what happened once is no repetition. The first
time in a turn the agent is nudged, and all counts begin anew; the next time, whatever the pattern, the turn ends.

- A *step* is all calls of one reply, in whatever order; a call that stands in it twice counts once.
- *The same result* is the same content to the byte; only the call's own id, which is part of the names of files that
  hold long output, is left out.
- *The same way* of failing: the first and the last line of the error, where numbers, quoted words and paths are not
  looked at, so that "no such file: /a" and "no such file: /b" are one kind. The line that tells a command's exit code
  is no words: a search that finds nothing, silently, is no failure that repeats itself.
- *Nearly the same words*: the pairs of neighbouring words that both texts have are at least 0.6 of all that they have,
  by the 64 pairs with the smallest checksums of each (which is all of a short text). Numbers count as equal, so that a
  counter makes no news; three other words in thirty are still nearly the same, another sentence in three is not.
- *Progress* begins all counts anew: another result, mail, an answer to a plan or a question, and a file or a task in a
  state in which this turn has not left it lately. Writing A, B, A, B into a file is therefore no progress.
- *Who watches is not stuck.* Steps that only look at what others do (`ToolSpec.watches`: a background command's
  output, the board, the team, the inbox) are passed over while something of it is under way: the world may be slow.
  That holds for ten times `after` such steps in a row. Two agents that watch each other are under way for ever, and
  who looks thirty times in a row at the same thing had better end its turn: news wakes it. Whether something was under
  way is decided with the facts of that moment, and stands in `ResultsMerged.waits`.

Each step costs the reading of its own calls and results, whatever the length of the turn.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

from callboard.core.frozen import replace
from callboard.words.values import Json, ToolCall

Pattern = Literal["repeat", "alternation", "monologue", "errors"]

MORE_ERRORS = 2
"""Failures are common where something is tried: so many more of them than of other repetitions."""
PATIENCE = 10
"""So many times `after` steps of watching are passed over."""
ALIKE = 0.6
PAIRS = 64
MARKS = 16
"""States of files and tasks that are remembered."""
SHOWN = 100
"""Characters of a call, an error or a text that a person is shown."""

_WORD = re.compile(r"\d+|[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\d_]+")
"""A number, one sign of a script without spaces, or a word."""
_EXIT = re.compile(r"exit code -?\d+")
_QUOTED = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"|`[^`\n]*`")
_PATH = re.compile(r"[^\s:,;()\[\]<>]*/[^\s:,;()\[\]<>]*|\b[\w-]+\.[A-Za-z]\w{0,7}\b")
_NUMBER = re.compile(r"\b0x[0-9a-fA-F]+\b|\b(?=[a-f]*\d)[0-9a-f]{7,}\b|\d+(?:\.\d+)*")


class Outcome(NamedTuple):
    """One call of a step, and what the model sees of its end."""

    call: ToolCall
    content: Sequence[Json]
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Notice:
    """A pattern that is there now."""

    pattern: Pattern
    count: int
    what: str
    """What is repeated, in a line for a person."""


@dataclass(frozen=True)
class Stuck:
    """What a turn has shown of repetition so far."""

    nudged: bool = False
    """It was told once in this turn."""
    last: str = ""
    """Digest of the newest step: its calls with their results."""
    before: str = ""
    """Of the step before it."""
    last_words: str = ""
    before_words: str = ""
    repeats: int = 0
    """How often the newest step stands in a row."""
    swings: int = 0
    """Steps in a row, up to the newest, that are each as the last but one and not as the last."""
    failures: tuple[tuple[str, int], ...] = ()
    """Kinds of failures of the newest step, and how often each stands in a row."""
    looks: int = 0
    """Steps of watching in a row that were passed over."""
    replies: int = 0
    """Replies in a row, without a call, that say nearly the same."""
    pairs: tuple[int, ...] = ()
    """Of the newest of them: the smallest checksums of its pairs of words."""
    said: str = ""
    marks: tuple[str, ...] = ()
    """States that files and tasks were left in, the newest last."""


def stepped(stuck: Stuck, outcomes: Sequence[Outcome], after: int, *, waits: bool = False) -> Stuck:
    """After the results of a step. `waits`: it only watched what is under way."""
    if waits and stuck.looks < PATIENCE * _least(after):
        return replace(stuck, looks=stuck.looks + 1)
    now = _digest(*sorted({_outcome_digest(one) for one in outcomes}))
    repeats = stuck.repeats + 1 if now == stuck.last else 1
    swings = 1
    if repeats == 1 and stuck.last:
        swings = stuck.swings + 1 if now == stuck.before else 2
    had = dict(stuck.failures)
    return replace(
        stuck,
        last=now,
        before=stuck.last,
        last_words=_step_words(outcomes),
        before_words=stuck.last_words,
        repeats=repeats,
        swings=swings,
        failures=tuple((kind, had.get(kind, 0) + 1) for kind in _failures(outcomes)),
        looks=stuck.looks if waits else 0,
    )


def replied(stuck: Stuck, blocks: Sequence[Json], *, calls: bool) -> Stuck:
    """After a reply, whose content `blocks` are in the API's form. One that calls a tool ends a monologue."""
    if calls:
        return replace(stuck, replies=0, pairs=(), said="") if stuck.replies else stuck
    text = _spoken(blocks)
    pairs = _pairs(text)
    same = stuck.replies > 0 and _alike(pairs, stuck.pairs)
    return replace(stuck, replies=stuck.replies + 1 if same else 1, pairs=pairs, said=_short(text))


def heard(stuck: Stuck) -> Stuck:
    """After new words from outside: all begins anew, but that it was nudged."""
    return Stuck(nudged=stuck.nudged)


def left(stuck: Stuck, *state: str) -> Stuck:
    """After a file or a task was left in this state (its name and its digest, or who holds it)."""
    mark = _digest(*state)
    if mark in stuck.marks:
        return stuck
    return Stuck(nudged=stuck.nudged, marks=(*stuck.marks, mark)[-MARKS:])


def told(stuck: Stuck) -> Stuck:
    """After the nudge: the same must happen as often again."""
    return Stuck(nudged=True, marks=stuck.marks)


def noticed(stuck: Stuck, after: int) -> Notice | None:
    """The pattern that is there now, None without one."""
    if after <= 0:
        return None
    most = _least(after)
    if stuck.repeats >= most:
        return Notice("repeat", stuck.repeats, f"{stuck.last_words}, with the same result")
    kind, failed = max(stuck.failures, key=lambda one: one[1], default=("", 0))
    if failed >= most + MORE_ERRORS:
        return Notice("errors", failed, f"the same failure, {kind}")
    if stuck.swings >= 2 * most:
        both = f"{stuck.before_words} and {stuck.last_words}"
        return Notice("alternation", stuck.swings // 2, f"{both} in turn, with the same results")
    if stuck.replies >= most:
        return Notice("monologue", stuck.replies, f"nearly the same words, {stuck.said or '(nothing)'}")
    return None


def nudge_words(what: str, count: int) -> str:
    """What the agent is told the first time."""
    return (
        f"You repeat yourself, {count} times now: {what}. Nothing has come of it, and the same again will bring the "
        "same. Take another way. If there is none, say plainly what is done, what is not and why, and end your turn. "
        "If you wait for others, end your turn too: news wakes you. If it goes on like this, your turn is ended."
    )


def stop_words(what: str, count: int) -> str:
    """Why the turn ended the next time: for a person, and for the lead."""
    return f"stuck: {what}, {count} times, after it had been told"


def _least(after: int) -> int:
    return max(after, 2)


def _digest(*parts: str) -> str:
    return hashlib.blake2b("\0".join(parts).encode(errors="surrogatepass"), digest_size=12).hexdigest()


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"), default=str)


def _outcome_digest(one: Outcome) -> str:
    call = one.call
    result = _canonical(list(one.content))
    if call.id:
        result = result.replace(call.id, "")
    return _digest(call.name, _canonical(call.input), call.bad_input or "", str(one.is_error), result)


def _failures(outcomes: Sequence[Outcome]) -> list[str]:
    """The kinds of failures of a step, sorted; none where one of its calls succeeded: that was progress."""
    if not all(one.is_error for one in outcomes):
        return []
    kinds = {(one.call.name, kind) for one in outcomes if (kind := _kind_of(one.content))}
    return [f"{name}: {kind}" for name, kind in sorted(kinds)]


def _kind_of(content: Sequence[Json]) -> str:
    text = "\n".join(str(part.get("text", "")) for part in content)
    lines = [line.strip() for line in text.split("\n") if line.strip() and not _EXIT.fullmatch(line.strip())]
    if not lines:
        return ""
    ends = [lines[0], lines[-1]] if len(lines) > 1 else lines
    return " … ".join(_short(_NUMBER.sub("#", _PATH.sub("…", _QUOTED.sub("…", end[:1_000])))) for end in ends)


def _step_words(outcomes: Sequence[Outcome]) -> str:
    if not outcomes:
        return "(no call)"
    call = outcomes[0].call
    words = _short(
        f"{call.name} {json.dumps(call.input, ensure_ascii=False, default=str)}" if call.input else call.name
    )
    return words if len(outcomes) == 1 else f"{words} and {len(outcomes) - 1} more"


def _spoken(blocks: Sequence[Json]) -> str:
    """What a reply says. What the service's own tools did is part of it; what the model only thought is not."""
    said: list[str] = []
    for block in blocks:
        match block.get("type"):
            case "text":
                said.append(str(block.get("text", "")))
            case "thinking" | "redacted_thinking":
                pass
            case _:
                said.append(_canonical(block.get("input", block.get("content", ""))))
    return "\n".join(said)


def _pairs(text: str) -> tuple[int, ...]:
    words = ["#" if word.isdigit() else word for word in _WORD.findall(text.lower())]
    both = pairwise(words) if len(words) > 1 else zip(words, words, strict=True)
    return tuple(sorted({zlib.crc32(f"{one} {two}".encode(errors="surrogatepass")) for one, two in both})[:PAIRS])


def _alike(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Of the smallest checksums that both have together, the share that each of them has."""
    together = sorted({*one, *other})[:PAIRS]
    shared = {*one} & {*other}
    return not together or sum(1 for number in together if number in shared) >= ALIKE * len(together)


def _short(text: str) -> str:
    line = " ".join(text[: 10 * SHOWN].split())
    return line if len(line) <= SHOWN else f"{line[: SHOWN - 1]}…"

"""What the view no longer shows, and what was asked for again because of that. Pure; folded from the journal.

Each result that is cleared or summarised away is noted with its tool and what was asked for, each call is compared with
these notes: one that brings back what was taken away is a re-read. So forgetting has a price that can be counted. It
refuses to grow: the newest notes and paths are kept, so many of each.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from callboard.core.context.view.blocks import calls_of, is_result
from callboard.core.context.view.messages import SMALL, Messages
from callboard.core.frozen import replace
from callboard.words.context import Edit, Message
from callboard.words.values import Json, ToolCall

MOST_GONE = 200
"""Notes of results that are gone."""
MOST_USED = 60
"""Paths whose last use is known."""
LONGEST_GAP = 48
"""Steps: longer gaps between two uses of a file are counted together."""
_LONGEST = 300
"""Characters of what was asked for; beyond that its end, which tells more than its beginning, is left out."""
_PATHS = ("path", "file_path", "notebook_path")
_BESIDE_THE_POINT = frozenset({"description", "timeout", "timeout_s", "offset", "limit", "run_in_background"})
CHANGING = frozenset({"edit_file", "write_file"})
"""Tools after which commands may say another thing."""
_TAKES_AWAY = frozenset({"cleared", "summarised", "dropped", "snipped"})
_WHOLE = 2**31
"""Where a reading without a limit ends."""


@dataclass(frozen=True, slots=True)
class Gone:
    """One result that the view no longer shows."""

    what: str
    """The tool and its input, normalised."""
    first: int
    end: int
    """Lines that were read: the first, and the one behind the last."""
    tokens: int
    used_at: int
    """The step of its last use before it went."""


@dataclass(frozen=True)
class Forgotten:
    """What is gone, and what that has cost."""

    gone: tuple[Gone, ...] = ()
    used: Mapping[str, int] = field(default_factory=dict[str, int])
    """The step at which each path was read or changed last, the longest unused first."""
    taken: int = 0
    """Results taken away so far."""
    rereads: int = 0
    """Calls that asked again for what was taken away."""
    reread_tokens: int = 0
    """Tokens of what they asked for."""
    gaps: tuple[int, ...] = ()
    """How often a file was used again after so many steps (the index), the last entry for all that is longer."""


def called(forgotten: Forgotten, calls: Sequence[ToolCall], step: int) -> Forgotten:
    """After a reply with these calls, the `step`-th of the agent's life."""
    for call in calls:
        forgotten = _asked(forgotten, call.name, call.input, step)
    return forgotten


def taken_away(forgotten: Forgotten, messages: Messages, edits: Sequence[Edit], step: int) -> Forgotten:
    """After edits of this view, which is the one before them."""
    notes: list[Gone] = []
    for edit in edits:
        if edit.kind in _TAKES_AWAY:
            notes += _notes(forgotten, messages, edit, step)
    if not notes:
        return forgotten
    whats = {(note.what, note.first) for note in notes}
    kept = [note for note in forgotten.gone if (note.what, note.first) not in whats]
    return replace(forgotten, gone=tuple([*kept, *notes][-MOST_GONE:]), taken=forgotten.taken + len(notes))


def kept_for(forgotten: Forgotten, least: int, allowed: float) -> int:
    """Steps for which a file should be kept after a use, so that it was used again later than that `allowed` times.

    At least `least`, at most `LONGEST_GAP`: what comes back later than that would be kept at too high a price.
    """
    later = 0
    for gap in range(len(forgotten.gaps) - 1, least, -1):
        later += forgotten.gaps[gap]
        if later > allowed:
            return gap
    return least


def path_of(given: Json) -> str:
    """The file that a call is about; empty if it names none."""
    for name in _PATHS:
        if isinstance(given.get(name), str) and given[name]:
            return posixpath.normpath(str(given[name]))
    return ""


def asked_for(name: str, given: Json) -> str:
    """What a call asks for: its tool and its input, save what makes no difference to the result."""
    path = path_of(given)
    rest = {k: v for k, v in sorted(given.items()) if k not in _BESIDE_THE_POINT and k not in _PATHS}
    said = json.dumps(rest, ensure_ascii=False, separators=(",", ":"), default=str) if rest else ""
    return " ".join(part for part in (name, path, said) if part)[:_LONGEST]


def _asked(forgotten: Forgotten, name: str, given: Json, step: int) -> Forgotten:
    path = path_of(given)
    if name in CHANGING:
        # What a command says of the workspace may now be another thing: to ask again is no re-read.
        gone = tuple(note for note in forgotten.gone if note.what.startswith("read_file "))
        return replace(_used(forgotten, path, step), gone=gone)
    what, (first, end) = asked_for(name, given), _lines(given)
    found = [one for one in forgotten.gone if one.what == what and first < one.end and one.first < end]
    forgotten = _used(forgotten, path, step)
    if not found:
        return forgotten
    return replace(
        forgotten,
        gone=tuple(one for one in forgotten.gone if one not in found),
        rereads=forgotten.rereads + 1,
        reread_tokens=forgotten.reread_tokens + sum(one.tokens for one in found),
    )


def _used(forgotten: Forgotten, path: str, step: int) -> Forgotten:
    if not path:
        return forgotten
    gaps, before = forgotten.gaps, forgotten.used.get(path)
    if before is not None:
        counts = [*gaps, *[0] * (LONGEST_GAP + 1 - len(gaps))]
        counts[min(step - before, LONGEST_GAP)] += 1
        gaps = tuple(counts)
    others = [(one, at) for one, at in forgotten.used.items() if one != path]
    return replace(forgotten, gaps=gaps, used=dict([*others, (path, step)][-MOST_USED:]))


def _lines(given: Json) -> tuple[int, int]:
    offset, limit = given.get("offset"), given.get("limit")
    first = offset if isinstance(offset, int) else 0
    return first, first + limit if isinstance(limit, int) and limit > 0 else _WHOLE


def _notes(forgotten: Forgotten, messages: Messages, edit: Edit, step: int) -> Iterator[Gone]:
    """The results that an edit takes away."""
    start, stop = messages.span(edit.message, edit.last)
    for index in range(start, stop):
        message = messages[index]
        if message.role != "user" or not index:
            continue
        calls = {str(call.get("id")): call for call in calls_of(messages[index - 1])}
        places = range(len(message.blocks)) if edit.block is None else (edit.block,)
        for place in places:
            note = _note(message, place, calls)
            if note is not None:
                name, given, tokens = note
                came = step - (len(messages) - index) // 2  # two messages a step
                used_at = forgotten.used.get(path_of(given), came)
                yield Gone(asked_for(name, given), *_lines(given), tokens, used_at)


def _note(message: Message, place: int, calls: Mapping[str, Json]) -> tuple[str, Json, int] | None:
    """Tool, input and tokens of a result that stands there."""
    if not 0 <= place < len(message.blocks) or not is_result(message.blocks[place]):
        return None
    block = message.blocks[place]
    if block.tokens <= SMALL:  # a mark stands there already, or hardly anything did
        return None
    call = calls.get(str(block.data.get("tool_use_id")))
    given = call.get("input") if call else None
    if call is None or not isinstance(given, dict) or str(call.get("name")) in CHANGING:
        return None
    return str(call.get("name")), cast("Json", given), block.tokens

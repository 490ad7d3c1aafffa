"""Content that the view no longer shows, and content that was requested again because of that.

Pure; folded from the journal.

Each result that is cleared or summarised is noted with its tool and input. Each call is compared with these notes: a
call that requests removed content again is a re-read. So the cost of removing content can be counted. The size is
limited: only the newest notes and paths are kept.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import pairwise
from typing import Any, cast

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from callboard.core.context.view.messages import SMALL, Messages, calls_of, is_result
from callboard.core.frozen import replace
from callboard.types.lazy_dataclass import dataclass
from callboard.types.messages import Edit, ViewMessage
from callboard.types.records import Json, ToolCall

MOST_GONE = 200
"""Maximum number of notes about removed results."""
MOST_USED = 60
"""Maximum number of paths whose last use is kept."""
LONGEST_GAP = 48
"""Steps. Longer gaps between two uses of a file are counted together."""
_LONGEST = 300
"""Characters kept of a normalised call; the rest is cut off."""
_PATHS = ("path", "file_path", "notebook_path")
_BESIDE_THE_POINT = frozenset({"description", "timeout", "timeout_s", "offset", "limit", "run_in_background"})
CHANGING = frozenset({"edit_file", "edit_notebook", "multi_edit", "write_file"})
"""Tools after which the output of commands may differ."""
_TAKES_AWAY = frozenset({"cleared", "summarised", "dropped", "snipped"})
_WHOLE = 2**31
"""End of a read without a limit."""


@dataclass(frozen=True, slots=True)
class HiddenResult:
    """A result that the view no longer shows."""

    what: str
    """The tool and its input, normalised."""
    first: int
    end: int
    """Lines that were read: the first, and the one after the last."""
    tokens: int
    used_at: int
    """Step of its last use before it was removed."""


class HiddenResults(tuple[HiddenResult, ...]):
    """Notes, oldest first, that tell without a search whether any of them is of a call."""

    calls: frozenset[str]
    """`what` of all notes."""

    def __new__(cls, notes: Iterable[HiddenResult] = ()) -> HiddenResults:
        """Create the notes with their index."""
        made = super().__new__(cls, notes)
        made.calls = frozenset([note.what for note in made])
        return made

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Serialise as a list of notes in a snapshot."""
        return core_schema.no_info_after_validator_function(cls, handler(tuple[HiddenResult, ...]))


@dataclass(frozen=True)
class RemovedContent:
    """Content removed from the view, and its cost so far."""

    gone: HiddenResults = HiddenResults()
    used: Mapping[str, int] = field(default_factory=dict[str, int])
    """Step at which each path was last read or changed, least recently used first."""
    taken: int = 0
    """Number of results removed so far."""
    rereads: int = 0
    """Number of calls that requested removed content again."""
    reread_tokens: int = 0
    """Tokens of the content requested again."""
    gaps: tuple[int, ...] = ()
    """Number of times a file was used again after so many steps (the index); the last entry counts all longer gaps."""


_encoded = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=str).encode


def after_calls(forgotten: RemovedContent, calls: Sequence[ToolCall], step: int) -> RemovedContent:
    """Return the record after a reply with these calls, the `step`-th of the agent's life."""
    for call in calls:
        forgotten = _on_call(forgotten, call.name, call.input, step)
    return forgotten


def after_edits(forgotten: RemovedContent, messages: Messages, edits: Sequence[Edit], step: int) -> RemovedContent:
    """Return the record after these edits. `messages`: the view before them."""
    notes: list[HiddenResult] = []
    for edit in edits:
        if edit.kind in _TAKES_AWAY:
            notes += _notes(forgotten, messages, edit, step)
    if not notes:
        return forgotten
    whats = {(note.what, note.first) for note in notes}
    remaining = [note for note in forgotten.gone if (note.what, note.first) not in whats]
    gone = HiddenResults([*remaining, *notes][-MOST_GONE:])
    return replace(forgotten, gone=gone, taken=forgotten.taken + len(notes))


def steps_to_keep(forgotten: RemovedContent, least: int, allowed: float) -> int:
    """Return the number of steps for which to keep a file after a use.

    At most `allowed` of the past uses came later. The number is at least `least`, at most `LONGEST_GAP`: keeping a file
    longer costs too much.
    """
    later = 0
    for gap in range(len(forgotten.gaps) - 1, least, -1):
        later += forgotten.gaps[gap]
        if later > allowed:
            return gap
    return least


def path_of(tool_input: Json) -> str:
    """Return the file that a call is about; empty if it names none."""
    for name in _PATHS:
        path = tool_input.get(name)
        if path and isinstance(path, str):
            return posixpath.normpath(path)
    return ""


def comparable_call(name: str, tool_input: Json, path: str) -> str:
    """Return the tool and the input of a call, without parts that make no difference to the result.

    `path`: the file that the call is about (`path_of`).
    """
    arguments = {k: v for k, v in sorted(tool_input.items()) if k not in _BESIDE_THE_POINT and k not in _PATHS}
    encoded = _encoded(arguments) if arguments else ""
    return " ".join([part for part in (name, path, encoded) if part])[:_LONGEST]


def _on_call(forgotten: RemovedContent, name: str, tool_input: Json, step: int) -> RemovedContent:
    path = path_of(tool_input)
    forgotten = _used(forgotten, path, step)
    if name in CHANGING:
        # A command may now print something else about the workspace: running it again is no re-read.
        gone = [note for note in forgotten.gone if note.what.startswith("read_file ")]
        return replace(forgotten, gone=HiddenResults(gone))
    subject = comparable_call(name, tool_input, path) if forgotten.gone else ""
    if subject not in forgotten.gone.calls:
        return forgotten
    (first, end) = _lines(tool_input)
    matches = [note for note in forgotten.gone if note.what == subject and first < note.end and note.first < end]
    if not matches:
        return forgotten
    return replace(
        forgotten,
        gone=HiddenResults([note for note in forgotten.gone if note not in matches]),
        rereads=forgotten.rereads + 1,
        reread_tokens=forgotten.reread_tokens + sum(note.tokens for note in matches),
    )


def _used(forgotten: RemovedContent, path: str, step: int) -> RemovedContent:
    if not path:
        return forgotten
    gaps = forgotten.gaps
    before = forgotten.used.get(path)
    if before is not None:
        counts = [*gaps, *[0] * (LONGEST_GAP + 1 - len(gaps))]
        counts[min(step - before, LONGEST_GAP)] += 1
        gaps = tuple(counts)
    used = dict(forgotten.used)
    used.pop(path, None)
    used[path] = step
    while len(used) > MOST_USED:
        del used[next(iter(used))]
    return replace(forgotten, gaps=gaps, used=used)


def _lines(tool_input: Json) -> tuple[int, int]:
    offset = tool_input.get("offset")
    limit = tool_input.get("limit")
    first = offset if isinstance(offset, int) else 0
    return first, first + limit if isinstance(limit, int) and limit > 0 else _WHOLE


def _notes(forgotten: RemovedContent, messages: Messages, edit: Edit, step: int) -> Iterator[HiddenResult]:
    """Yield notes about the results that an edit removes."""
    start, stop = messages.span(edit.message, edit.last)
    first = max(1, start)
    for index, (asked, message) in enumerate(pairwise(messages[first - 1 : stop]), first):
        if message.role != "user":
            continue
        calls = {str(call.get("id")): call for call in calls_of(asked)}
        places = range(len(message.blocks)) if edit.block is None else (edit.block,)
        for place in places:
            note = _note(message, place, calls)
            if note is not None:
                name, tool_input, tokens = note
                came = step - (len(messages) - index) // 2  # two messages a step
                path = path_of(tool_input)
                used_at = forgotten.used.get(path, came)
                yield HiddenResult(comparable_call(name, tool_input, path), *_lines(tool_input), tokens, used_at)


def _note(message: ViewMessage, place: int, calls: Mapping[str, Json]) -> tuple[str, Json, int] | None:
    """Return the tool, input and tokens of the result at this place."""
    if not 0 <= place < len(message.blocks) or not is_result(message.blocks[place]):
        return None
    block = message.blocks[place]
    if block.tokens <= SMALL:  # the result is a mark already, or was very short
        return None
    call = calls.get(str(block.data.get("tool_use_id")))
    tool_input = call.get("input") if call else None
    if call is None or not isinstance(tool_input, dict) or str(call.get("name")) in CHANGING:
        return None
    return str(call.get("name")), cast("Json", tool_input), block.tokens

"""Tool results as stages see them: their positions, and the path that outlives a result's text. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from callboard.core.context.view.blocks import is_result, result_text
from callboard.core.messaging.envelopes import unwrapped
from callboard.types.messages import Edit, ViewBlock, ViewMessage

PERSISTED = re.compile(r"\A<persisted-output>\nFull output: ([^\n]+)\n")
"""Pattern of a result whose text was moved to a file."""
_CLEARED = re.compile(r"Full output: ([^\]\n]+)\]\Z")
_CUT = re.compile(r"\[Output cut: \d+ of \d+ characters\. Whole: ([^\]\n]+)\]")


class PlacedResult(NamedTuple):
    """A result and its position."""

    message: ViewMessage
    place: int
    block: ViewBlock
    name: str

    def reads(self, kind: Any, text: str, path: str = "") -> Edit:
        """Return the edit that replaces its text with `text`. `kind`: `cleared` or `persisted`."""
        return Edit(kind=kind, message=self.message.id, last=self.message.id, block=self.place, text=text, path=path)


def results_of(messages: Sequence[ViewMessage], names: Mapping[str, str]) -> Iterator[PlacedResult]:
    """Yield the results that are not pinned, in order. `names`: tool by call id; `unknown` for a call without a
    name."""
    for message in messages:
        if message.role != "user":
            continue
        for place, block in enumerate(message.blocks):
            if not is_result(block):
                break  # results come first
            if not block.pinned:
                yield PlacedResult(message, place, block, names.get(str(block.data.get("tool_use_id")), "unknown"))


def words_of(block: ViewBlock) -> str:
    """Return the text that is written to a file: all text of a result, or the text between the tags of a text block."""
    return result_text(block) if is_result(block) else unwrapped(str(block.data.get("text", "")))


def kept_path(text: str) -> str:
    """Return the path of the file with the whole result, if the text names one: the path must outlive the text."""
    standing = PERSISTED.match(text) or _CLEARED.search(text)
    if standing:
        return standing[1]
    cut = _CUT.findall(text)
    return str(cut[-1]) if cut else ""

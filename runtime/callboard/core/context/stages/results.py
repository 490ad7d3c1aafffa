"""Results of tools as stages look at them: which stand where, and the path that outlives a result's text. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from callboard.core.bus.mail import unwrapped
from callboard.core.context.view.conversation import is_result, result_text
from callboard.words.context import Block, Edit, Message

PERSISTED = re.compile(r"\A<persisted-output>\nFull output: ([^\n]+)\n")
"""How a result reads that stands in a file."""
_CLEARED = re.compile(r"Full output: ([^\]\n]+)\]\Z")
_CUT = re.compile(r"\[Output cut: \d+ of \d+ characters\. Whole: ([^\]\n]+)\]")


class Result(NamedTuple):
    """A result and where it stands."""

    message: Message
    place: int
    block: Block
    name: str

    def reads(self, kind: Any, text: str, path: str = "") -> Edit:
        """The edit after which it reads `text`. `kind`: `cleared` or `persisted`."""
        return Edit(kind=kind, message=self.message.id, last=self.message.id, block=self.place, text=text, path=path)


def results_of(messages: Sequence[Message], names: Mapping[str, str]) -> Iterator[Result]:
    """The results that are not pinned, in order. `names`: tool by call id; a call without a name reads `unknown`."""
    for message in messages:
        if message.role != "user":
            continue
        for place, block in enumerate(message.blocks):
            if not is_result(block):
                break  # results come first
            if not block.pinned:
                yield Result(message, place, block, names.get(str(block.data.get("tool_use_id")), "unknown"))


def words_of(block: Block) -> str:
    """All text of a result, or of a text block what stands between its tags: what goes to a file."""
    return result_text(block) if is_result(block) else unwrapped(str(block.data.get("text", "")))


def kept_path(text: str) -> str:
    """Where the whole of a result stands, if it says so: that must outlive its text."""
    standing = PERSISTED.match(text) or _CLEARED.search(text)
    if standing:
        return standing[1]
    cut = _CUT.findall(text)
    return str(cut[-1]) if cut else ""

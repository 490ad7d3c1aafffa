"""Stages that shorten tool results: `clear_old_results` and `persist_large_results`. Pure.

`clear_old_results` replaces results that the model has answered with a mark, all at once. It does not touch messages
that the model has not seen, pins, images, and short results. It never loses the path of a result that is in a file.

`persist_large_results` writes large results that the model has not seen to files, and keeps a preview and the path. It
does not touch results that the model has answered: their text is cached, and `clear_old_results` removes them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from callboard.core.context.stage_input import Situation
from callboard.core.context.summary.folding import tail_start
from callboard.core.context.view.conversation import Conversation, apply_edits, message_tokens
from callboard.core.context.view.messages import calls_of, is_plain, is_result, result_text
from callboard.core.context.view.tokens import BLOCK_TOKENS, CALL_TOKENS, estimate_text
from callboard.core.messaging.envelopes import defuse_tags, untag_text
from callboard.types.late_pattern import late_pattern
from callboard.types.messages import Edit, ViewBlock, ViewMessage
from callboard.types.records import Json

PERSISTED = late_pattern(r"\A<persisted-output>\nFull output: ([^\n]+)\n")
"""Pattern of a result whose text was moved to a file."""
_CLEARED = late_pattern(r"Full output: ([^\]\n]+)\]\Z")
_CUT = late_pattern(r"\[Output cut: \d+ of \d+ characters\. Whole: ([^\]\n]+)\]")


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
    """Yield the results that are not pinned, in order.

    `names`: tool by call id; `unknown` for a call without a name.
    """
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
    return result_text(block) if is_result(block) else untag_text(str(block.data.get("text", "")))


def result_file(text: str) -> str:
    """Return the path of the file with the whole result, if the text names one: the path must outlive the text."""
    standing = PERSISTED.match(text) or _CLEARED.search(text)
    if standing:
        return standing[1]
    cut = _CUT.findall(text)
    return str(cut[-1]) if cut else ""


CLEAR: Mapping[str, Any] = MappingProxyType(
    {
        "keep": 3,
        "keep_of": "answered",
        "unit": "results",
        "preserve_tools": (),
        "left_alone": 120,
        "mark": "[Previous: used NAME. Result cleared; ask again only if you need it.]",
        "over": 0.6,
        "at_least": 0.1,
    }
)
"""The stage acts over `over` of the budget, if that saves at least `at_least` of it. It keeps the newest `keep`
results, or all results of the newest `keep` turns (`unit`), counted among the answered ones or among all (`keep_of`);
results of `preserve_tools`; and results of up to `left_alone` characters."""


def clear_old_results(view: Conversation, budget: int, situation: Situation, params: Json) -> list[Edit] | None:
    """Replace results that the model has answered with a mark.

    All results that can be cleared are cleared together: each edit costs a cached prefix.
    """
    settings = {**CLEAR, **params}
    if (
        message_tokens(view) <= settings["over"] * budget
        or _savings_bound(view, settings["left_alone"]) < settings["at_least"] * budget
    ):
        return None
    edits: list[Edit] = []
    saved = 0
    for result in _clearable(view.messages, settings):
        text = cleared_mark(result, str(settings["mark"]))
        saving = result.block.tokens - (BLOCK_TOKENS + CALL_TOKENS + estimate_text(text))
        if saving > 0:
            edits.append(result.reads("cleared", text, result_file(result_text(result.block))))
            saved += saving
    return edits if saved >= settings["at_least"] * budget else None


def _savings_bound(view: Conversation, left_alone: int) -> int:
    """Return a quick upper bound of the savings, so that a long view is not searched in vain at each step."""
    # Results that are too small for `bulk` have texts of up to 96 bytes.
    return view.messages.bulk if left_alone >= 96 else view.result_tokens


def _clearable(messages: Sequence[ViewMessage], settings: Json) -> list[PlacedResult]:
    """Return the answered results that may be cleared, oldest first."""
    names = {
        str(call.get("id")): str(call.get("name") or "unknown") for message in messages for call in calls_of(message)
    }
    answered = len(messages) - (messages[-1].role == "user") if messages else 0
    every = list(results_of(messages, names))
    old = [result for result in every if result.message.id <= messages[answered - 1].id] if answered else []
    counted = every if settings["keep_of"] == "all" else old
    recent = _newest_results(counted, int(settings["keep"]), str(settings["unit"]))
    return [
        result
        for result in old
        if (result.message.id, result.place) not in recent
        and result.name not in settings["preserve_tools"]
        and result.block.compactable
        and is_plain(result.block)
        and len(result_text(result.block)) > settings["left_alone"]
    ]


def _newest_results(results: Sequence[PlacedResult], keep: int, unit: str) -> set[tuple[int, int]]:
    """Return the newest `keep` results, or all of the newest `keep` turns."""
    if unit == "turns":
        turns = list(dict.fromkeys(result.message.turn for result in results))
        newest = set(turns[max(0, len(turns) - keep) :])
        return {(result.message.id, result.place) for result in results if result.message.turn in newest}
    return {(result.message.id, result.place) for result in results[max(0, len(results) - keep) :]}


def cleared_mark(result: PlacedResult, mark: str) -> str:
    """Return the text that replaces a cleared result: its tool, and the file with its full output if there is one."""
    path = result_file(result_text(result.block))
    text = mark.replace("NAME", defuse_tags(result.name))
    if not path:
        return text
    return f"{text[:-1]} Full output: {path}]" if text.endswith("]") else f"{text} [Full output: {path}]"


PERSIST: Mapping[str, Any] = MappingProxyType(
    {"trigger": "total", "total": 200_000, "each": 30_000, "preview": 2_000},
)
"""Sizes in characters. `trigger`: `total` acts when unanswered results are over `total` together, `each` whenever one
is over `each`, `fit` when the newest exchange alone is over the budget."""

_UNSAFE = late_pattern(r"[^A-Za-z0-9_-]")


def persist_large_results(view: Conversation, budget: int, situation: Situation, params: Json) -> list[Edit] | None:
    """Write unanswered results over `each` to files, largest first, until the rest fits."""
    settings = {**PERSIST, **params}
    if not view.messages or view.messages[-1].role != "user":
        return None
    if settings["trigger"] == "fit" and _newest_exchange(view) <= budget:
        return None
    large = [result for result in results_of(view.messages[-1:], {}) if result.block.compactable]
    total = sum(len(result_text(result.block)) for result in large)
    most = settings["total"] if settings["trigger"] == "total" else 0
    surplus = _newest_exchange(view) - budget
    edits: list[Edit] = []
    for result in sorted(large, key=lambda candidate: -len(result_text(candidate.block))):
        text = result_text(result.block)
        fits = surplus <= 0 if settings["trigger"] == "fit" else total <= most
        if fits or len(text) <= settings["each"]:
            break
        path = f"{situation.folder}/{_file_name(str(result.block.data.get('tool_use_id')))}"
        mark = persisted_mark(path, text[: settings["preview"]])
        saving = estimate_text(text) - estimate_text(mark)
        if saving > 0 and not PERSISTED.match(text):
            edits.append(result.reads("persisted", mark, path))
            total -= len(text) - len(mark)
            surplus -= saving
    return edits


def persisted_mark(path: str, preview: str) -> str:
    """Return the mark that replaces a large result."""
    return (
        f"<persisted-output>\nFull output: {defuse_tags(path)}\nPreview:\n{defuse_tags(preview)}\n</persisted-output>"
    )


def persisted_texts(view: Conversation, edits: Sequence[Edit]) -> dict[str, str]:
    """Return the whole text for each path that these edits name, each from the view that its edit changes.

    An edit before it can join messages, and so change their ids and the numbers of their blocks.
    """
    texts: dict[str, str] = {}
    for edit in edits:
        index = view.messages.find(edit.message) if edit.kind == "persisted" else None
        blocks = view.messages[index].blocks if index is not None else ()
        if edit.block is not None and 0 <= edit.block < len(blocks):
            texts[edit.path] = words_of(blocks[edit.block])
        view = apply_edits(view, [edit])
    return texts


def _newest_exchange(view: Conversation) -> int:
    """Return the tokens of the messages that can be neither summarised nor dropped."""
    return sum(message.tokens for message in view.messages[tail_start(view.messages) :])


def _file_name(use_id: str) -> str:
    reduced = _UNSAFE.sub("", use_id)[:100]
    if reduced == use_id:
        return f"{reduced}.txt"
    # The removed characters may be the difference to another name.
    return f"{reduced}-{hashlib.sha256(use_id.encode('utf-8', 'replace')).hexdigest()[:8]}.txt"

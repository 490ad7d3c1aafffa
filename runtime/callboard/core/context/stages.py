"""The stages of the context pipeline: each looks at a view and returns edits, or the summary that it wants. Pure.

`(view, budget, situation, params) -> edits | SummaryWanted | None`; None and no edits mean that there is nothing to
do. The budget is what the messages may take, in tokens. A stage heeds its own threshold. It refuses to touch what the
model has not seen, pins, and blocks that are not compactable; and it never returns an edit that does not make the view
smaller.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from callboard.core.context.folding import (
    Split,
    dropped_mark,
    is_summary,
    note,
    notes,
    render_state,
    split,
    state_of,
    tail_start,
    tokens_of,
)
from callboard.core.context.situation import Situation
from callboard.core.context.tokens import BLOCK_TOKENS, CALL_TOKENS, estimate_text
from callboard.core.context.view import Conversation, calls_of, held, is_plain, is_result, result_text
from callboard.core.mail import defused
from callboard.words.context import Block, Edit, Message, SummaryWanted
from callboard.words.values import Json

Found = list[Edit] | SummaryWanted | None
Stage = Callable[[Conversation, int, Situation, Json], Found]

FROM_THE_START = 0
"""`SummaryWanted.message` of a summary that also replaces the summaries made before."""

DEFAULTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "persist_large_results": MappingProxyType(
            {"trigger": "total", "total": 200_000, "each": 30_000, "preview": 2_000}
        ),
        "clear_old_results": MappingProxyType(
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
        ),
        "summarize_all": MappingProxyType(
            {"over": 1.0, "at_least": 0.05, "max_tokens": 2_000, "resummarize": "never", "summaries": 0.15}
        ),
        "react": MappingProxyType({"keep": 5, "max_tokens": 2_000}),
        "truncate_oldest": MappingProxyType({"down_to": 0.7, "force": False}),
    }
)
"""Every stage with its parameters. `over`, `at_least`, `summaries` and `down_to` are shares of the budget; `total`,
`each`, `preview`, `left_alone` are characters; `force` comes from the pipeline."""

CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "trigger": ("total", "each"),
        "keep_of": ("answered", "all"),
        "unit": ("results", "turns"),
        "resummarize": ("never", "allow"),
    }
)

_PATH = re.compile(r"\A<persisted-output>\nFull output: ([^\n]+)\n")
_CLEARED = re.compile(r"Full output: ([^\]\n]+)\]\Z")
_CUT = re.compile(r"\[Output cut: \d+ of \d+ characters\. Whole: ([^\]\n]+)\]")
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


class _Result(NamedTuple):
    """A result and where it stands."""

    message: Message
    place: int
    block: Block
    name: str

    def reads(self, kind: Any, text: str, path: str = "") -> Edit:
        return Edit(kind=kind, message=self.message.id, last=self.message.id, block=self.place, text=text, path=path)


def persist_large_results(view: Conversation, budget: int, situation: Situation, params: Json) -> Found:
    """Results that the model has not seen yet go to files when they are large; a preview and the path stay."""
    given = _given("persist_large_results", params)
    if not view.messages or view.messages[-1].role != "user":
        return None
    large = [result for result in _results(view.messages[-1:], {}) if result.block.compactable]
    total = sum(len(result_text(result.block)) for result in large)
    most = given["total"] if given["trigger"] == "total" else 0
    edits: list[Edit] = []
    for result in sorted(large, key=lambda found: -len(result_text(found.block))):
        text = result_text(result.block)
        if total <= most or len(text) <= given["each"]:
            break
        path = f"{situation.folder}/{_file_name(str(result.block.data.get('tool_use_id')))}"
        shown = persisted_mark(path, text[: given["preview"]])
        if estimate_text(shown) < estimate_text(text) and not _PATH.match(text):
            edits.append(result.reads("persisted", shown, path))
            total -= len(text) - len(shown)
    return edits


def persisted_mark(path: str, preview: str) -> str:
    """What stands where a large result stood."""
    return f"<persisted-output>\nFull output: {path}\nPreview:\n{defused(preview)}\n</persisted-output>"


def persisted_texts(view: Conversation, edits: Sequence[Edit]) -> dict[str, str]:
    """The whole text for each path that these edits name, as it stands in the view before them."""
    standing = {message.id: message for message in view.messages}
    return {
        edit.path: result_text(standing[edit.message].blocks[edit.block])
        for edit in edits
        if edit.kind == "persisted" and edit.block is not None and edit.message in standing
    }


def clear_old_results(view: Conversation, budget: int, situation: Situation, params: Json) -> Found:
    """Results that the model has answered become a mark, all that can go together: each edit costs a cached prefix."""
    given = _given("clear_old_results", params)
    if held(view) <= given["over"] * budget or _tokens_of_results(view) < given["at_least"] * budget:
        return None
    edits: list[Edit] = []
    saved = 0
    for result in _clearable(view.messages, given):
        text = _cleared_mark(result, str(given["mark"]))
        saving = result.block.tokens - (BLOCK_TOKENS + CALL_TOKENS + estimate_text(text))
        if saving > 0:
            edits.append(result.reads("cleared", text, _kept_path(result_text(result.block))))
            saved += saving
    return edits if saved >= given["at_least"] * budget else None


def summarize_all(view: Conversation, budget: int, situation: Situation, params: Json) -> Found:
    """All but the newest exchange becomes one summary. Earlier summaries stay, until they are too many."""
    given = _given("summarize_all", params)
    if held(view) <= given["over"] * budget:
        return None
    summaries = sum(block.tokens for message in view.messages for block in message.blocks if is_summary(block))
    rebuild = given["resummarize"] == "allow" or summaries > given["summaries"] * budget
    upto = tail_start(view.messages)
    sorted_ = split(view.messages, upto, budget, rebuild=rebuild)
    if sorted_.folded_tokens < given["at_least"] * budget:
        return None
    wanted = _wanted(view, upto, sorted_, "summarize_all", given["max_tokens"])
    if wanted is not None and rebuild and summaries:
        return wanted.model_copy(update={"message": FROM_THE_START})
    return wanted


def react(view: Conversation, budget: int, situation: Situation, params: Json) -> Found:
    """What stands before the last messages becomes a summary, whatever the thresholds say.

    Where nothing worth it stands before them, all but the newest exchange does.
    """
    given = _given("react", params)
    for keep in (given["keep"], 0):
        upto = tail_start(view.messages, keep)
        wanted = _wanted(view, upto, split(view.messages, upto, budget), "react", given["max_tokens"])
        if wanted is not None:
            return wanted
    return None


def truncate_oldest(view: Conversation, budget: int, situation: Situation, params: Json) -> Found:
    """The oldest exchanges are dropped, as many as it takes, and a mark says so. What stays in a summary stays here.

    Nothing is dropped if that would not bring the view under the budget (`force`: all the same).
    """
    given = _given("truncate_oldest", params)
    size, messages = held(view), view.messages
    if not messages or (size <= budget and not given["force"]):
        return None
    # With `force` the service has found the view too long, whatever our estimate of it.
    upto = _cut(messages, size - int(given["down_to"] * min(size, budget)), budget)
    if not upto:
        return None
    sorted_ = split(messages, upto, budget)
    mark = note(dropped_mark(sorted_.dropped + _turns(messages[:upto], sorted_), situation.transcript))
    state = render_state(situation.state) if situation.state else ""
    blocks = [*sorted_.placed(), mark, *notes(sorted_, state or state_of(messages[:upto]), "")]
    saved = sum(message.tokens for message in messages[:upto]) - tokens_of(blocks)
    if saved <= 0 or (size - saved > budget and not given["force"]):
        return None
    return [Edit(kind="dropped", message=messages[0].id, last=messages[upto - 1].id, blocks=tuple(blocks))]


STAGES: Mapping[str, Stage] = MappingProxyType(
    {
        "persist_large_results": persist_large_results,
        "clear_old_results": clear_old_results,
        "summarize_all": summarize_all,
        "react": react,
        "truncate_oldest": truncate_oldest,
    }
)


def summary_size(folded_tokens: int, most: int) -> int:
    """How long a summary may be: a fifth of what it replaces and 200 tokens, `most` at most."""
    return min(most, folded_tokens // 5 + 200)


def _given(stage: str, params: Json) -> Json:
    return {**DEFAULTS[stage], **params}


def _results(messages: Sequence[Message], names: Mapping[str, str]) -> Iterator[_Result]:
    for message in messages:
        if message.role != "user":
            continue
        for place, block in enumerate(message.blocks):
            if not is_result(block):
                break  # results come first
            if not block.pinned:
                yield _Result(message, place, block, names.get(str(block.data.get("tool_use_id")), "unknown"))


def _tokens_of_results(view: Conversation) -> int:
    """A quick bound on what clearing can save, so that a long view is not searched in vain at each step."""
    return sum(
        block.tokens
        for message in view.messages
        if message.role == "user"
        for block in message.blocks
        if is_result(block)
    )


def _clearable(messages: Sequence[Message], given: Json) -> list[_Result]:
    """The answered results that may go, oldest first."""
    names = {
        str(call.get("id")): str(call.get("name") or "unknown") for message in messages for call in calls_of(message)
    }
    answered = len(messages) - (messages[-1].role == "user") if messages else 0
    every = list(_results(messages, names))
    old = [result for result in every if result.message.id <= messages[answered - 1].id] if answered else []
    counted = every if given["keep_of"] == "all" else old
    kept = _kept(counted, int(given["keep"]), str(given["unit"]))
    return [
        result
        for result in old
        if (result.message.id, result.place) not in kept
        and result.name not in given["preserve_tools"]
        and result.block.compactable
        and is_plain(result.block)
        and len(result_text(result.block)) > given["left_alone"]
    ]


def _kept(results: Sequence[_Result], keep: int, unit: str) -> set[tuple[int, int]]:
    """The newest `keep` results, or all of the newest `keep` turns."""
    if unit == "turns":
        turns = list(dict.fromkeys(result.message.turn for result in results))
        newest = set(turns[max(0, len(turns) - keep) :])
        return {(result.message.id, result.place) for result in results if result.message.turn in newest}
    return {(result.message.id, result.place) for result in results[max(0, len(results) - keep) :]}


def _cleared_mark(result: _Result, mark: str) -> str:
    path = _kept_path(result_text(result.block))
    text = mark.replace("NAME", defused(result.name))
    if not path:
        return text
    return f"{text[:-1]} Full output: {path}]" if text.endswith("]") else f"{text} [Full output: {path}]"


def _kept_path(text: str) -> str:
    """Where the whole of a result stands, if it says so: that must outlive its text."""
    standing = _PATH.match(text) or _CLEARED.search(text)
    if standing:
        return standing[1]
    cut = _CUT.findall(text)
    return str(cut[-1]) if cut else ""


def _file_name(use_id: str) -> str:
    reduced = _UNSAFE.sub("", use_id)[:100]
    if reduced == use_id:
        return f"{reduced}.txt"
    # What was taken out may have told it from another.
    return f"{reduced}-{hashlib.sha256(use_id.encode('utf-8', 'replace')).hexdigest()[:8]}.txt"


def _wanted(view: Conversation, upto: int, sorted_: Split, stage: str, most: int) -> SummaryWanted | None:
    """The summary of this stretch, if it is long enough to become shorter."""
    longest = summary_size(sorted_.folded_tokens, most)
    if not upto or sorted_.folded_tokens < 2 * longest:
        return None
    return SummaryWanted(
        stage=stage,
        trigger="reactive" if stage == "react" else "auto",
        message=view.messages[0].id,
        last=view.messages[upto - 1].id,
        max_tokens=longest,
    )


def _cut(messages: Sequence[Message], surplus: int, budget: int) -> int:
    """How many of the oldest messages must go to save `surplus` tokens; all that may, if that is not enough."""
    end = tail_start(messages)
    folds = {id(block): block.tokens for block in split(messages, end, budget).folds}
    saved = 0
    for number, message in enumerate(messages[:end]):
        saved += sum(folds.get(id(block), 0) for block in message.blocks)
        after = messages[number + 1] if number + 1 < len(messages) else None
        if saved >= surplus and after is not None and not any(is_result(block) for block in after.blocks):
            return number + 1
    return end if saved else 0


def _turns(gone: Sequence[Message], sorted_: Split) -> int:
    """How many turns are dropped now; one that was cut into before is not counted again."""
    turns = {message.turn for message in gone[1:]} if sorted_.dropped else {message.turn for message in gone}
    cut_into = sorted_.dropped and gone[0].blocks[-1].source == "compactor" and gone[0].turn in turns
    return len(turns) - 1 if cut_into else len(turns)

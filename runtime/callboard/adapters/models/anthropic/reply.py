r"""Builder of a reply from the events of its stream, as plain dicts that can be sent back unchanged. Pure.

Server-sent events are parsed lightly from bytes to JSON objects. Chunks may end anywhere: inside a line, inside a
character, between `\r` and `\n`. Only `data` fields are used, because the Messages API repeats the event's name in its
`type`. Unknown events are skipped; unknown blocks and deltas are kept. Blocks of known kinds have only the fields that
a request may contain: gateways add others, which a strict service refuses.

Raises `BadEvent` for data that is not a JSON object, an event larger than `MAX_EVENT`, events out of order, fields of a
wrong type, and duplicate or unusable call ids, because the API would refuse a history with such a reply forever.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NoReturn, cast

from pydantic_core import from_json

from callboard.core.json_schema import TOO_DEEP, too_deep
from callboard.ports.model import Delta, OnDelta, Reply
from callboard.types.late_pattern import late_pattern
from callboard.types.records import Json, Usage

_CALL_ID = late_pattern(r"[a-zA-Z0-9_-]+")
_CALL_NAME = late_pattern(r"[a-zA-Z0-9_-]{1,128}")
_CALLS = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
"""Blocks whose input streams as pieces of JSON text."""
_FIELDS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "text": frozenset({"type", "text", "citations", "cache_control"}),
        "thinking": frozenset({"type", "thinking", "signature"}),
        "redacted_thinking": frozenset({"type", "data"}),
        "tool_use": frozenset({"type", "id", "name", "input", "cache_control", "caller"}),
    }
)
"""Kind of block -> the fields that the Messages API accepts in a request."""
LARGEST_INPUT = 4_000_000
"""Most characters of a call's input: more than any model writes in one reply."""
_COUNTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")

_Shown = Literal["text", "thinking", "tool"]
_STREAMED: dict[str, tuple[str, _Shown]] = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "input_json_delta": ("partial_json", "tool"),
}
"""Kind of delta -> the field that it extends, and the kind in which it is shown."""
_NOT_FIRST = ("content_block_delta", "content_block_start", "content_block_stop", "message_delta", "message_stop")
"""Events that follow `message_start`."""


class ServiceError(Exception):
    """An `error` event in the stream; `error` is the API's error object."""

    def __init__(self, error: Json) -> None:
        super().__init__(str(error.get("message") or error.get("type") or "an error event without words"))
        self.error = error


class ReplyBuilder:
    """The reply so far. Call `take` with events until `complete`; then `reply` returns the complete reply."""

    def __init__(self, on_delta: OnDelta, *, events: bool = True) -> None:
        """Prepare a reply. `events`: also show each event as it came, after the text in it."""
        self.begun = False
        """True if `message_start` was received: tokens may be billed."""
        self.complete = False
        """True if `message_stop` was received."""
        self._show = on_delta
        self._shows_events = events
        self._blocks: list[Json] = []
        self._pieces: list[dict[str, list[str]]] = []
        """Streamed texts of each field, for each block."""
        self._open: dict[int, dict[str, list[str]]] = {}
        """Those of the blocks that have not ended, by index."""
        self._unshown: list[str] = []
        """Streamed texts of one kind, `_unshown_kind`, that were not shown yet."""
        self._unshown_kind: _Shown = "text"
        self._message: Json = {}
        self._stop_reason = ""
        self._counts: dict[str, int] = {}

    @property
    def usage(self) -> Usage | None:
        """Return the known usage of the call; None before the message began."""
        return Usage(**self._counts) if self.begun else None

    @property
    def partial(self) -> str:
        """Return the text streamed so far."""
        return with_whole_characters("".join("".join(pieces.get("text", ())) for pieces in self._pieces))

    @property
    def streamed(self) -> bool:
        """Return True if anything was shown."""
        return bool(self._blocks)

    def take(self, events: Iterable[Json]) -> bool:
        """Process events that arrived together, up to `message_stop`. Return True if one of them is more than a ping.

        Their text is shown in as few pieces as there are kinds in a row. Raises `BadEvent`, and `ServiceError` for an
        error event.
        """
        content = False
        for event in events:
            kind: object = event.get("type")
            if kind == "ping":
                continue
            content = True
            # Before the message begins, nothing may be counted or shown (test_events_of_a_wrong_shape_are_a_bad_reply).
            if not self.begun and kind in _NOT_FIRST:
                raise BadEvent(f"a {kind} before message_start")
            if kind == "content_block_delta":
                self._block_delta(event)
            elif not self._take_frame(kind, event):
                continue
            if self._shows_events:
                self._show_text()
                self._show(Delta("event", "", event))
            if self.complete:
                break
        self._show_text()
        return content

    def _take_frame(self, kind: object, event: Json) -> bool:
        """Process an event that is not a delta. Return False for an event of an unknown kind."""
        match kind:
            case "content_block_start":
                self._block_start(event)
            case "content_block_stop":
                del self._open[self._open_index(event)]
            case "message_start":
                self._message_start(event)
            case "message_delta":
                self._message_delta(event)
            case "message_stop":
                self._message_stop()
            case "error":
                raise ServiceError(_object(event, "error"))
            case _:
                return False
        return True

    def reply(self) -> Reply:
        """Return the complete reply, once. Raises `BadEvent` if it is inconsistent."""
        bad_inputs: dict[int, str] = {}
        blocks: list[Json] = []
        for block, pieces in zip(self._blocks, self._pieces, strict=True):
            bad = _finish(block, pieces)
            nested: list[object] = [value for value in block.values() if type(value) in (dict, list)]
            if nested and too_deep(nested):
                if block["type"] != "tool_use":
                    raise BadEvent(f"a {block['type']} block that is nested too deeply")
                block["input"] = {}
                bad = TOO_DEEP
            if block["type"] == "text" and not cast("str", block["text"]).strip():
                continue  # the API sends such blocks, but refuses them in a request
            if bad and block["type"] == "tool_use":
                bad_inputs[len(blocks)] = bad
            blocks.append(_with_known_fields(block))
        _check_calls(blocks)
        if not blocks and self._stop_reason in ("", "tool_use"):  # no content, although the stop reason promises some
            raise BadEvent(f"an empty reply with stop_reason {self._stop_reason or 'null'}")
        model = self._message.get("model")
        message_id = self._message.get("id")
        return Reply(
            blocks=tuple(blocks),
            stop_reason=self._stop_reason,
            usage=Usage(**self._counts),
            model=model if isinstance(model, str) else "",
            message_id=message_id if isinstance(message_id, str) else "",
            bad_inputs=bad_inputs,
            cut_call=self._cut_call(),
        )

    def _cut_call(self) -> tuple[str, int] | None:
        if self._stop_reason != "max_tokens" or not self._blocks or self._blocks[-1]["type"] != "tool_use":
            return None
        return str(self._blocks[-1].get("name")), sum(map(len, self._pieces[-1].get("partial_json", ())))

    def _message_start(self, event: Json) -> None:
        if self.begun:
            raise BadEvent("a second message_start")
        self._message = _object(event, "message")
        self._count(self._message.get("usage"))
        self.begun = True

    def _message_delta(self, event: Json) -> None:
        reason = _object(event, "delta").get("stop_reason")
        if reason is not None and not isinstance(reason, str):
            raise BadEvent("a stop_reason that is not text")
        self._stop_reason = reason or self._stop_reason
        self._count(event.get("usage"))

    def _message_stop(self) -> None:
        if self._open:
            raise BadEvent("message_stop inside a block")
        self.complete = True

    def _block_start(self, event: Json) -> None:
        block = _object(event, "content_block")
        kind = _text(block, "type")
        if event.get("index") != len(self._blocks):
            raise BadEvent("a content_block_start out of order")
        pieces: dict[str, list[str]] = {}
        # A block may be complete at its start; its deltas then continue this text.
        if kind in ("text", "thinking"):
            pieces[kind] = [_text(block, kind)]
        elif kind in _CALLS:
            pieces["partial_json"] = []
            self._show_text()
            self._show(Delta("tool", _text(block, "name"), names_tool=True))
        elif isinstance(block.get("input"), dict):  # a kind of call that is not known here
            pieces["partial_json"] = []
        self._open[len(self._blocks)] = pieces
        self._blocks.append(block)
        self._pieces.append(pieces)

    def _block_delta(self, event: Json) -> None:
        index = self._open_index(event)
        delta = _object(event, "delta")
        kind: object = delta.get("type")
        if not isinstance(kind, str) or kind not in _STREAMED:
            _merge(self._blocks[index], delta)
            return
        field, kind_shown = _STREAMED[kind]
        pieces = self._open[index].get(field)
        if pieces is None:
            _extend_other(self._blocks[index], field, delta)
            return
        piece: object = delta.get(field)
        if not isinstance(piece, str):
            raise _no_text(delta, field)
        pieces.append(piece)
        if kind_shown != self._unshown_kind:
            self._show_text()
            self._unshown_kind = kind_shown
        self._unshown.append(piece)

    def _show_text(self) -> None:
        """Show the streamed text that was not shown yet."""
        if not self._unshown:
            return
        text = "".join(self._unshown)
        self._unshown.clear()
        if text:
            self._show(Delta(self._unshown_kind, with_whole_characters(text)))

    def _open_index(self, event: Json) -> int:
        index: int | None = event.get("index")
        if type(index) is not int or index not in self._open:
            raise BadEvent(f"a {event['type']} outside its block")
        return index

    def _count(self, usage: object) -> None:
        """Update the usage.

        Counts are cumulative: a later count replaces an earlier one, a missing one leaves it unchanged.
        """
        if usage is None:
            return
        if not isinstance(usage, dict):
            raise BadEvent("a usage that is not an object")
        for name in _COUNTS:
            count = cast("Json", usage).get(name)
            if count is None:
                continue
            if type(count) is not int or count < 0:
                raise BadEvent(f"usage.{name} is not a count")
            self._counts[name] = count
        tools: object = cast("Json", usage).get("server_tool_use")
        searches: object = cast("Json", tools).get("web_search_requests") if isinstance(tools, dict) else None
        if isinstance(searches, int) and not isinstance(searches, bool) and searches > 0:
            self._counts["web_searches"] = searches


_MOST_DIGITS = 1_000


def strict_input(raw: str) -> Json:
    """Return the input of a call from its JSON text. Raises ValueError with a reason that the model can act on."""
    if len(raw) > LARGEST_INPUT:
        raise ValueError(f"the input has {len(raw):,} characters, and at most {LARGEST_INPUT:,} are accepted")
    try:
        value: object = _STRICT.decode(raw)
    except json.JSONDecodeError as error:
        raise ValueError(f"the input is not valid JSON: {error}") from error
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error
    if too_deep(value):
        raise ValueError(TOO_DEEP)
    if not isinstance(value, dict):
        raise ValueError(f"the input is {_json_name(value)}, not an object")  # noqa: TRY004 - a fault of the text
    if "\\u" in raw or not raw.isascii():
        text = json.dumps(value, ensure_ascii=False)
        whole = with_whole_characters(text)
        return cast("Json", value if whole == text else json.loads(whole))
    return cast("Json", value)


def with_whole_characters(text: str) -> str:
    """Return the text in a form that UTF-8 can encode.

    Halves of surrogate pairs are joined, and each lone half becomes U+FFFD.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        # UTF-16 joins two halves of a character that arrived in two pieces
        # (test_halves_of_a_character_are_joined_and_a_lone_one_can_still_be_sent).
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _finish(block: Json, pieces: dict[str, list[str]]) -> str:
    """Put the streamed pieces into the block.

    Return the reason why a call's input is unusable; empty if it is usable.
    """
    for field, texts in pieces.items():
        raw = "".join(texts)
        if field != "partial_json":
            block[field] = with_whole_characters(raw)
        # Some services send the input with the start of the block and no deltas
        # (test_an_input_that_came_whole_with_its_start_is_kept).
        elif not raw.strip():
            block["input"] = block["input"] if isinstance(block.get("input"), dict) else {}
        else:
            block["input"] = {}
            try:
                block["input"] = strict_input(raw)
            except ValueError as error:
                return str(error)
    return ""


def _with_known_fields(block: Json) -> Json:
    """Return the block without the fields that a request may not contain. Blocks of unknown kinds are unchanged."""
    fields = _FIELDS.get(block["type"])
    if fields is None or block.keys() <= fields:
        return block
    return {name: value for name, value in block.items() if name in fields}


def _check_calls(blocks: Sequence[Json]) -> None:
    ids: set[str] = set()
    for block in blocks:
        if block["type"] != "tool_use":
            continue
        call_id = _text(block, "id")
        # The service would refuse every later request with this reply in its history.
        if call_id in ids or not _CALL_ID.fullmatch(call_id):
            raise BadEvent("a call with a doubled or unusable id")
        if not _CALL_NAME.fullmatch(_text(block, "name")):
            raise BadEvent("a call with an unusable name")
        ids.add(call_id)


def _extend_other(block: Json, field: str, delta: Json) -> None:
    """Apply a delta of a known kind to a block of an unknown one. Raises `BadEvent` for a block of a known kind."""
    if block["type"] in ("text", "thinking", *_CALLS):
        raise BadEvent(f"a {delta['type']} in a {block['type']} block")
    if isinstance(block.get(field), str):
        block[field] += _text(delta, field)


def _merge(block: Json, delta: Json) -> None:
    """Apply a delta that is not shown: a signature, a citation, or an unknown kind."""
    for field, value in delta.items():
        if field == "type":
            continue
        if field == "citation":
            block["citations"] = [*(block.get("citations") or ()), value]
        elif isinstance(value, str) and isinstance(block.get(field), str):
            block[field] += value
        else:
            block[field] = value


def _object(event: Json, field: str) -> Json:
    value: Json | None = event.get(field)
    if type(value) is not dict:
        raise BadEvent(f"a {event.get('type')} without {field}")
    return value


def _text(holder: Json, field: str) -> str:
    value: object = holder.get(field)
    if not isinstance(value, str):
        raise _no_text(holder, field)
    return value


def _no_text(holder: Json, field: str) -> BadEvent:
    return BadEvent(f"a {holder.get('type')} whose {field} is not text")


def _no_doubles(pairs: list[tuple[str, object]]) -> Json:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the input has the key {next(n for n in names if names.count(n) > 1)!r} twice")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"the input holds {name}, which JSON does not have")


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"the input holds a number of {len(digits):,} digits, and at most {_MOST_DIGITS} are accepted")
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"the input holds the number {digits[:20]}, which is out of range")
    return number


_STRICT = json.JSONDecoder(
    object_pairs_hook=_no_doubles, parse_constant=_no_constant, parse_int=_whole, parse_float=_finite
)


def _json_name(value: object) -> str:
    names: dict[type, str] = {str: "a text", list: "a list", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")


MAX_EVENT = 32_000_000
"""Most bytes of one event. The largest legal event is a whole block of a server tool; a larger one is a fault or an
attack.
"""


class BadEvent(Exception):
    """The stream contains something that the Messages API never sends. The text names it."""


class EventReader:
    """Parser state between two chunks of one stream."""

    __slots__ = ("_after_return", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        """Bytes of the unfinished event."""
        self._after_return = False
        r"""True if the last chunk ended with `\r`: a `\n` at the beginning of the next one is its second half."""

    def feed(self, chunk: bytes) -> Iterator[Json]:
        """Yield the events that end in this chunk. Raises `BadEvent`."""
        if self._after_return and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_return = False
        if b"\r" in chunk:  # lines may end with \n, \r\n or \r
            self._after_return = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        text = self._rest + chunk if self._rest else chunk
        *events, self._rest = text.split(b"\n\n")
        # An event without an end is never yielded, so its size is checked here
        # (test_an_event_without_end_is_refused_before_it_fills_the_memory).
        if len(self._rest) > MAX_EVENT:
            raise BadEvent(f"an event of more than {MAX_EVENT:,} bytes")
        for event in events:
            # Nearly all events have a line with their name, then one with their data.
            name, _, data = event.partition(b"\ndata:")
            if not data or b"\n" in data or not name.startswith(b"event:"):
                data = _data_of(event)
                if data is None:
                    continue
            try:
                content: Json = from_json(data)
            except ValueError:
                content = _lone_halves(data)
            if type(content) is not dict:
                raise BadEvent("an event that is not a JSON object")
            yield content


def _data_of(event: bytes) -> bytes | None:
    """Return the joined `data` lines of an event; None if it has none."""
    # A blank at the start of a line may stay: between the parts of JSON it means nothing.
    lines = [line[5:] for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"".join(lines) if lines else None


def _lone_halves(data: bytes) -> Any:
    """Return the value of JSON that may have half a surrogate pair, which a stream may split. Raises `BadEvent`."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadEvent(f"an event that is not valid JSON ({error})") from error

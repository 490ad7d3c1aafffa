"""Format of a cassette: one JSON object per line, a header first. Reading, writing, and comparing requests.

A conversation grows at its end. So a line contains the messages that differ from the agent's previous line, and the
system prompt and tools only if they changed: the file grows with the session, not with its square. Values that differ
between machines are replaced by placeholders. A file that is not a cassette and a damaged line are refused. An
incomplete last line, left by a killed recording, is skipped.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import reduce
from itertools import chain, takewhile, zip_longest
from pathlib import Path
from typing import cast

from callboard.ports.model import ModelRequest
from callboard.types.errors import SettingsError, UsageError
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json

VERSION = 1
WHOLE = "whole"
"""`paths` of the header, see `Placeholders.whole`."""
_OF_THIS_RUN = (
    # Transcripts are named by a journal position, which depends on the arrival of mail.
    (late_pattern(r"(/transcripts/[a-z][a-z0-9-]*)-[0-9]+\.jsonl"), r"\1-{{callboard:position}}.jsonl"),
    # The permitted length of a summary depends on the size of the replaced part, and so on the length of this machine's
    # paths.
    (late_pattern(r"at most [0-9]+ words \([0-9]+ tokens are the limit\)"), "{{callboard:sizes}}"),
    # The fence of a summary depends on the text that it encloses, and so on these paths too.
    (late_pattern(r"(</?(?:record|summary))-[0-9a-f]{12}>"), r"\1-{{callboard:fence}}>"),
)
"""Other parts of a request that differ between machines, and their placeholders."""


@dataclass(frozen=True, slots=True)
class Placeholders:
    """Values that differ from run to run, by name, and their replacement in both directions.

    The names are, for example, `workspace`, `home` and `session`.
    """

    values: Mapping[str, str]
    whole: bool = True
    """True if a path is replaced only where it is a path or the beginning of one: `/app`, not in `src/app` and
    `/apple`. Cassettes whose header has no `paths` were recorded otherwise."""

    def hide(self, value: object) -> object:
        """Return the JSON value with every such value replaced by its placeholder."""
        # The longest first, because a workspace may be inside the home. A root would be found in every path.
        names = {text: name for name, text in reversed(list(self.values.items())) if len(text) > 1}
        longest_first = sorted(names, key=len, reverse=True)
        if not longest_first:
            return value
        pattern = re.compile("|".join(map(self._pattern_of, longest_first)))
        return _mapped(value, lambda text: pattern.sub(lambda found: f"{{{{callboard:{names[found[0]]}}}}}", text))

    def show(self, value: object) -> object:
        """Return the JSON value with every placeholder replaced by the value of this run."""
        pairs = [(f"{{{{callboard:{name}}}}}", text) for name, text in self.values.items() if len(text) > 1]
        return _mapped(value, lambda text: reduce(lambda shown, pair: shown.replace(*pair), pairs, text))

    def _pattern_of(self, text: str) -> str:
        if not (self.whole and text.startswith("/")):
            return re.escape(text)
        # Only a short path is often the end of another one, and `-I/home/ada/include` contains a path.
        before = r"(?<![\w.~}])" if text.count("/") == 1 else ""
        return rf"{before}{re.escape(text)}(?![\w-]|\.\w)"


@dataclass(frozen=True, slots=True)
class ComparableRequest:
    """A request in the form in which it is compared: JSON texts with placeholders, keys sorted."""

    model: str
    max_tokens: int
    system: str
    tools: str
    messages: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Return a digest that is equal for the same request on any machine.

        It excludes the model's name, because a replay uses its own model.
        """
        whole = hashlib.sha256(f"{self.max_tokens}\n{self.system}\n{self.tools}\n".encode("utf-8", "surrogatepass"))
        for message in self.messages:
            whole.update(message.encode("utf-8", "surrogatepass") + b"\n")
        return whole.hexdigest()


@dataclass(slots=True)
class RequestNormalizer:
    """Converter of one agent's requests into `ComparableRequest`, each piece once."""

    places: Placeholders
    _raw: Sequence[bytes] = ()
    _texts: Sequence[tuple[str, ...]] = ()
    """Messages of each piece."""

    def recorded_form(self, request: ModelRequest) -> ComparableRequest:
        """Return the request with placeholders and sorted keys."""
        same = _common(self._raw, request.messages)
        self._texts = (*self._texts[:same], *(self._piece(raw) for raw in request.messages[same:]))
        self._raw = tuple(request.messages)
        texts = tuple(chain.from_iterable(self._texts))
        limit = request.max_tokens if request.purpose == "turn" else 0  # the limit of a summary follows from sizes
        return ComparableRequest(request.model, limit, self._text(request.system), self._text(request.tools), texts)

    def _piece(self, raw: bytes) -> tuple[str, ...]:
        return tuple(map(self._masked_json, json.loads(b"[" + raw + b"]")))

    def _text(self, raw: bytes) -> str:
        return self._masked_json(json.loads(raw or b"[]"))

    def _masked_json(self, value: object) -> str:
        text = json.dumps(self.places.hide(value), ensure_ascii=False, sort_keys=True)
        for pattern, mark in _OF_THIS_RUN:
            text = pattern.sub(mark, text)
        return text


@dataclass(slots=True)
class RequestPacking:
    """Compression of the requests of one agent: each is shortened by the content of the previous one, and restored."""

    last: ComparableRequest = field(default=ComparableRequest("", 0, "", "", ()))

    def pack(self, request: ComparableRequest) -> Json:
        """Return the line's `request`: `keep` messages of the previous one, then the new ones."""
        keep = _common(self.last.messages, request.messages)
        line: Json = {"model": request.model, "max_tokens": request.max_tokens, "keep": keep}
        line["messages"] = [json.loads(text) for text in request.messages[keep:]]
        for name in ("system", "tools"):
            if getattr(request, name) != getattr(self.last, name):
                line[name] = json.loads(cast("str", getattr(request, name)))
        self.last = request
        return line

    def unpack(self, line: Json) -> ComparableRequest:
        """Return the original request. Raises KeyError, TypeError or ValueError for a line of another shape."""
        messages = (*self.last.messages[: line["keep"]], *(_sorted(message) for message in line["messages"]))
        system = _sorted(line["system"]) if "system" in line else self.last.system
        tools = _sorted(line["tools"]) if "tools" in line else self.last.tools
        self.last = ComparableRequest(str(line["model"]), int(line["max_tokens"]), system, tools, messages)
        return self.last


class LineWriter:
    """Writer of a new cassette, readable only by its owner.

    Each line is written as a whole, even from several tasks or threads.
    """

    def __init__(self, path: Path, header: Json) -> None:
        """Create the file. Raises `UsageError` if the file exists or cannot be created."""
        self.path = path
        self._lock = threading.Lock()  # a line may need several writes of the system
        try:
            self._file: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        except FileExistsError as error:
            raise UsageError(f"{path} exists already: record to a new file, or remove it first") from error
        except OSError as error:
            raise UsageError(f"cannot record to {path}: {error.strerror}") from error
        self.write({"cassette": VERSION, "paths": WHOLE, **header})

    def write(self, line: Json) -> None:
        """Append one line; do nothing after `close`. Raises OSError if the disk refuses it."""
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            while data and self._file is not None:
                data = data[os.write(self._file, data) :]

    def close(self) -> None:
        """Close the file. Idempotent."""
        with self._lock:
            file, self._file = self._file, None
        if file is not None:
            os.close(file)


def read_header(path: Path) -> Json:
    """Return the first line. Raises `SettingsError` if the file is not a cassette."""
    return next(read_lines(path))[1]


def read_lines(path: Path) -> Iterator[tuple[int, Json]]:
    """Yield the lines with their numbers, the header first. Raises `SettingsError` with file and line."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise SettingsError(f"cannot read the cassette: {error.strerror}", str(path)) from error
    for number, raw in enumerate(lines[:-1], 1):  # text after the last end of a line is an incomplete line
        line = _line(raw, f"{path}:{number}")
        if number == 1 and line.get("cassette") != VERSION:
            raise SettingsError(f"is not a cassette of version {VERSION}", f"{path}:1")
        yield number, line
    if len(lines) < 2:
        raise SettingsError("is not a cassette: it has no header", str(path))


def difference(recorded: ComparableRequest, current: ComparableRequest) -> str:
    """Return the first difference of two requests: a path and both texts, shortened. Empty if there is none."""
    for name in ("max_tokens", "system", "tools"):
        old = getattr(recorded, name)
        new = getattr(current, name)
        if old != new:
            return _first(json.loads(str(old)), json.loads(str(new)), name)
    for number, (old, new) in enumerate(zip(recorded.messages, current.messages, strict=False)):
        if old != new:
            return _first(json.loads(old), json.loads(new), f"messages[{number}]")
    if len(recorded.messages) != len(current.messages):
        return f"{len(recorded.messages)} messages were recorded, {len(current.messages)} are sent now"
    return ""


def _first(recorded: object, current: object, place: str) -> str:
    """Return the first difference, found by descending through the keys in their order."""
    for step, old, new in _parts(recorded, current):
        if old != new:
            return _first(old, new, f"{place}{step}")
    old = _json_text(recorded)
    new = _json_text(current)
    at = max(0, _common(old, new) - 20)
    return f"{place}: recorded {_cut(old, at)}, now {_cut(new, at)}"


def _parts(recorded: object, current: object) -> Iterator[tuple[str, object, object]]:
    if isinstance(recorded, dict) and isinstance(current, dict):
        old = cast("Json", recorded)
        new = cast("Json", current)
        for key in sorted({*old, *new}):
            yield f".{key}", old.get(key, _NOTHING), new.get(key, _NOTHING)
    elif isinstance(recorded, list) and isinstance(current, list):
        pairs = zip_longest(cast("list[object]", recorded), cast("list[object]", current), fillvalue=_NOTHING)
        for number, (old, new) in enumerate(pairs):
            yield f"[{number}]", old, new


_NOTHING = object()


def _json_text(value: object) -> str:
    return "nothing" if value is _NOTHING else json.dumps(value, ensure_ascii=False)


def _cut(text: str, start: int) -> str:
    end = start + 60
    return ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")


def _common(first: Sequence[object], second: Sequence[object]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def _sorted(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _mapped(value: object, change: Callable[[str], str]) -> object:
    """Return the JSON value with each text and each key changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_mapped(item, change) for item in cast("list[object]", value)]
    if isinstance(value, dict):
        return {_mapped(key, change): _mapped(item, change) for key, item in cast("dict[str, object]", value).items()}
    return value


def _line(raw: bytes, where: str) -> Json:
    try:
        line: object = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"the cassette is damaged: not JSON ({error})", where) from error
    if not isinstance(line, dict):
        raise SettingsError("the cassette is damaged: not a JSON object", where)
    return cast("Json", line)

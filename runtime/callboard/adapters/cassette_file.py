"""What a cassette holds: one JSON object a line, a header first. Reading, writing, and telling two requests apart.

A conversation grows by its end, so a line holds the messages that differ from the agent's line before it, and the
system prompt and tools only when they changed: the file grows with the session, not with its square.
Places that differ from machine to machine stand as placeholders. Refused: a file that is no cassette, a damaged line
(a torn last one is what a killed recording leaves: it is passed over).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, takewhile, zip_longest
from pathlib import Path
from typing import cast

from callboard.ports.model import ModelRequest
from callboard.words.errors import SettingsError, UsageError
from callboard.words.values import Json

VERSION = 1
_OF_THIS_RUN = (
    # Transcripts are named by a journal position, which depends on the moment at which mail arrives.
    (re.compile(r"(/transcripts/[a-z][a-z0-9-]*)-[0-9]+\.jsonl"), r"\1-{{callboard:position}}.jsonl"),
    # How long a summary may be depends on the size of what it replaces, so on the length of this machine's paths;
    (re.compile(r"at most [0-9]+ words \([0-9]+ tokens are the limit\)"), "{{callboard:sizes}}"),
    # and what it is fenced with on their letters.
    (re.compile(r"(</?(?:record|summary))-[0-9a-f]{12}>"), r"\1-{{callboard:fence}}>"),
)
"""What else of a request is not the same on every machine, and what stands for it."""


@dataclass(frozen=True, slots=True)
class Placeholders:
    """What differs from run to run, by name (`workspace`, `home`, `session`), and how it is hidden and shown."""

    values: Mapping[str, str]

    def hide(self, value: object) -> object:
        """The JSON value with every place replaced by its placeholder."""
        return _mapped(value, self._pairs(showing=False))

    def show(self, value: object) -> object:
        """The JSON value with every placeholder replaced by the place of this run."""
        return _mapped(value, self._pairs(showing=True))

    def _pairs(self, *, showing: bool) -> list[tuple[str, str]]:
        # The longest first: a workspace inside the home is the workspace. A root would be found in every path.
        known = [(value, f"{{{{callboard:{name}}}}}") for name, value in self.values.items() if len(value) > 1]
        known.sort(key=lambda pair: len(pair[0]), reverse=True)
        return [(mark, value) for value, mark in known] if showing else known


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it is compared: JSON texts with placeholders, keys sorted."""

    model: str
    max_tokens: int
    system: str
    tools: str
    messages: tuple[str, ...]

    @property
    def digest(self) -> str:
        """The same for the same request on any machine. The model's name is not in it: a replay has its own."""
        whole = hashlib.sha256(f"{self.max_tokens}\n{self.system}\n{self.tools}\n".encode("utf-8", "surrogatepass"))
        for message in self.messages:
            whole.update(message.encode("utf-8", "surrogatepass") + b"\n")
        return whole.hexdigest()


@dataclass(slots=True)
class Asking:
    """Turns one agent's requests into `Asked`, each piece once."""

    places: Placeholders
    _raw: Sequence[bytes] = ()
    _texts: Sequence[tuple[str, ...]] = ()
    """The messages of each piece."""

    def asked(self, request: ModelRequest) -> Asked:
        """The request, hidden and sorted."""
        same = _common(self._raw, request.messages)
        self._texts = (*self._texts[:same], *(self._piece(raw) for raw in request.messages[same:]))
        self._raw = tuple(request.messages)
        texts = tuple(chain.from_iterable(self._texts))
        limit = request.max_tokens if request.purpose == "turn" else 0  # a summary's follows from sizes
        return Asked(request.model, limit, self._text(request.system), self._text(request.tools), texts)

    def _piece(self, raw: bytes) -> tuple[str, ...]:
        return tuple(map(self._shown, json.loads(b"[" + raw + b"]")))

    def _text(self, raw: bytes) -> str:
        return self._shown(json.loads(raw or b"[]"))

    def _shown(self, value: object) -> str:
        text = json.dumps(self.places.hide(value), ensure_ascii=False, sort_keys=True)
        for pattern, mark in _OF_THIS_RUN:
            text = pattern.sub(mark, text)
        return text


@dataclass(slots=True)
class Packing:
    """Shortens one agent's requests by what the one before held, and back."""

    last: Asked = field(default=Asked("", 0, "", "", ()))

    def packed(self, asked: Asked) -> Json:
        """The line's `request`: `keep` messages of the last one, then these."""
        keep = _common(self.last.messages, asked.messages)
        line: Json = {"model": asked.model, "max_tokens": asked.max_tokens, "keep": keep}
        line["messages"] = [json.loads(text) for text in asked.messages[keep:]]
        for name in ("system", "tools"):
            if getattr(asked, name) != getattr(self.last, name):
                line[name] = json.loads(cast("str", getattr(asked, name)))
        self.last = asked
        return line

    def unpacked(self, line: Json) -> Asked:
        """The request that was packed. Raises KeyError, TypeError or ValueError for a line of another shape."""
        messages = (*self.last.messages[: line["keep"]], *(_sorted(message) for message in line["messages"]))
        system = _sorted(line["system"]) if "system" in line else self.last.system
        tools = _sorted(line["tools"]) if "tools" in line else self.last.tools
        self.last = Asked(str(line["model"]), int(line["max_tokens"]), system, tools, messages)
        return self.last


class LineWriter:
    """A new cassette, private to its owner. Each line is written whole, whatever tasks or threads write it."""

    def __init__(self, path: Path, header: Json) -> None:
        """Raises `UsageError` when the file is there already or cannot be made."""
        self.path = path
        self._lock = threading.Lock()  # a line may take several writes of the system
        try:
            self._file: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        except FileExistsError as error:
            raise UsageError(f"{path} exists already: record to a new file, or remove it first") from error
        except OSError as error:
            raise UsageError(f"cannot record to {path}: {error.strerror}") from error
        self.write({"cassette": VERSION, **header})

    def write(self, line: Json) -> None:
        """Append one line. Raises OSError when the disk refuses it. Nothing after `close`."""
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            while data and self._file is not None:
                data = data[os.write(self._file, data) :]

    def close(self) -> None:
        """No more lines. Idempotent."""
        with self._lock:
            file, self._file = self._file, None
        if file is not None:
            os.close(file)


def read_header(path: Path) -> Json:
    """The first line. Raises `SettingsError` for what is no cassette."""
    return next(read_lines(path))[1]


def read_lines(path: Path) -> Iterator[tuple[int, Json]]:
    """The lines with their numbers, the header first. Raises `SettingsError` with file and line."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise SettingsError(f"cannot read the cassette: {error.strerror}", str(path)) from error
    for number, raw in enumerate(lines[:-1], 1):  # what stands after the last line's end is a torn line
        line = _line(raw, f"{path}:{number}")
        if number == 1 and line.get("cassette") != VERSION:
            raise SettingsError(f"is not a cassette of version {VERSION}", f"{path}:1")
        yield number, line
    if len(lines) < 2:
        raise SettingsError("is not a cassette: it has no header", str(path))


def difference(recorded: Asked, asked: Asked) -> str:
    """Where two requests first differ, and how: a path and both texts, cut short. Empty when they do not."""
    for name in ("max_tokens", "system", "tools"):
        mine, theirs = getattr(recorded, name), getattr(asked, name)
        if mine != theirs:
            return _first(json.loads(str(mine)), json.loads(str(theirs)), name)
    for number, (mine, theirs) in enumerate(zip(recorded.messages, asked.messages, strict=False)):
        if mine != theirs:
            return _first(json.loads(mine), json.loads(theirs), f"messages[{number}]")
    if len(recorded.messages) != len(asked.messages):
        return f"{len(recorded.messages)} messages were recorded, {len(asked.messages)} are sent now"
    return ""


def _first(recorded: object, asked: object, place: str) -> str:
    """Go down to the first part that differs, keys in their order."""
    for step, mine, theirs in _parts(recorded, asked):
        if mine != theirs:
            return _first(mine, theirs, f"{place}{step}")
    mine, theirs = _shown(recorded), _shown(asked)
    at = max(0, _common(mine, theirs) - 20)
    return f"{place}: recorded {_cut(mine, at)}, now {_cut(theirs, at)}"


def _parts(recorded: object, asked: object) -> Iterator[tuple[str, object, object]]:
    if isinstance(recorded, dict) and isinstance(asked, dict):
        old, new = cast("Json", recorded), cast("Json", asked)
        for key in sorted({*old, *new}):
            yield f".{key}", old.get(key, _NOTHING), new.get(key, _NOTHING)
    elif isinstance(recorded, list) and isinstance(asked, list):
        pairs = zip_longest(cast("list[object]", recorded), cast("list[object]", asked), fillvalue=_NOTHING)
        for number, (old, new) in enumerate(pairs):
            yield f"[{number}]", old, new


_NOTHING = object()


def _shown(value: object) -> str:
    return "nothing" if value is _NOTHING else json.dumps(value, ensure_ascii=False)


def _cut(text: str, start: int) -> str:
    end = start + 60
    return ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")


def _common(first: Sequence[object], second: Sequence[object]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def _sorted(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _mapped(value: object, pairs: Sequence[tuple[str, str]]) -> object:
    if isinstance(value, str):
        for old, new in pairs:
            value = value.replace(old, new)
        return value
    if isinstance(value, list):
        return [_mapped(item, pairs) for item in cast("list[object]", value)]
    if isinstance(value, dict):
        return {_mapped(key, pairs): _mapped(item, pairs) for key, item in cast("dict[str, object]", value).items()}
    return value


def _line(raw: bytes, where: str) -> Json:
    try:
        line: object = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"the cassette is damaged: not JSON ({error})", where) from error
    if not isinstance(line, dict):
        raise SettingsError("the cassette is damaged: not a JSON object", where)
    return cast("Json", line)

"""Reader of YAML written by users: settings, scenarios, and the front matter of agent and skill files.

Only this module imports `yaml`. Values keep their intended meaning: `no`, `on`, dates, and `1.10` in front matter stay
strings; only `true`, `false`, `null`, integers and (outside front matter) decimals are converted. Duplicate keys,
anything that builds objects, and text that is not YAML are refused with file, line and field.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Literal, cast

import yaml

from callboard.adapters.system.regular_files import read_regular
from callboard.types.errors import SettingsError
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass

Address = tuple[str | int, ...]
"""Place of a value in a document: keys and list positions from the top."""

_MAX_BYTES = 4_000_000
"""Most bytes of a file. Files by users are small; a larger one is a mistake or an attack on the parser."""
_MAX_DEPTH = 60
_MAX_NODES = 200_000
"""Most values after aliases are expanded. Without it, a few lines of nested aliases could expand to billions of values.
"""

_TOO_DEEP = f"is nested more than {_MAX_DEPTH} levels deep"
_TOO_MANY = f"holds more than {_MAX_NODES:,} values"
_BOMB = f"has aliases that expand to more than {_MAX_NODES:,} values: write out what you need instead"
_FIELD_LINE = late_pattern(
    r"(?:name|description|when_to_use|tools|allowed-tools|disallowed-tools|disallowedTools|model|permissionMode|maxTurns"
    r"|skills|mcpServers|hooks|memory|background|effort|isolation|colou?r|initialPrompt|readOnly|budget|license|compatibility"
    r"|metadata|argument-hint|arguments|context|agent|paths|shell|user-invocable|disable-model-invocation|version|author"
    r"|tags|category|type|priority|emoji|vibe):(?:\s|$)"
)
"""Line that begins a field of an agent, skill or command file, after any lines."""
_TOP_LEVEL_LINE = late_pattern(r"^(?P<key>[A-Za-z_][\w.-]*):[ \t]+(?P<value>\S.*?)[ \t]*$")


_Resolvers = dict[str, list[tuple[str, re.Pattern[str]]]]
_TAG = "tag:yaml.org,2002:"
_WORDS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "bool": (r"true|True|TRUE|false|False|FALSE", ("t", "T", "f", "F")),
    "null": (r"~|null|Null|NULL|", ("~", "n", "N", "")),
    "int": (r"[-+]?(?:0|[1-9][0-9]*)", tuple("-+0123456789")),
    "float": (r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?", tuple("-+.0123456789")),
    "merge": (r"<<", ("<",)),
}
"""Patterns and first characters of the plain words that are not strings, by the name of their type."""
_TYPES = frozenset({*_WORDS, "str", "seq", "map"})
_MOST_DIGITS = 400
"""Most characters of a number. Longer ones mean nothing here, and Python refuses to convert very long ones."""


def _resolvers(*, decimals: bool) -> _Resolvers:
    """Return the plain words that are not strings, by their first character, in the parser's format."""
    table: _Resolvers = {}
    for kind, (pattern, starts) in _WORDS.items():
        if kind == "float" and not decimals:
            continue
        plain = late_pattern(f"(?:{pattern})$")
        for start in starts:
            table.setdefault(start, []).append((f"{_TAG}{kind}", plain))
    return table


class _PlainLoader(yaml.CSafeLoader):
    """Loader of YAML 1.2's few implicit types, without decimals, for front matter."""

    yaml_implicit_resolvers = _resolvers(decimals=False)


class _NumberLoader(_PlainLoader):
    """Loader of the same types and decimals, for settings and scenarios."""

    yaml_implicit_resolvers = _resolvers(decimals=True)


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """A parsed document, and the line (from 1) of each of its values."""

    data: object
    where: str
    lines: Mapping[Address, int] = field(default_factory=dict[Address, int])
    quoted_fields: tuple[str, ...] = ()
    """Fields whose value is not valid YAML and was read as plain text."""

    def place(self, address: Address = ()) -> str:
        """Return `file:line: field` of an address; the nearest enclosing line if the field itself is missing."""
        nearest = address
        while nearest and nearest not in self.lines:
            nearest = nearest[:-1]
        line = self.lines.get(nearest, 1)
        return f"{self.where}:{line}: {dotted_address(address)}" if address else f"{self.where}:{line}"

    def error(self, problem: str, address: Address = ()) -> SettingsError:
        """Return the error to raise about a value of this document."""
        return SettingsError(problem, self.place(address))


@dataclass(frozen=True, slots=True)
class YamlSpan:
    """Place of a value in the text of a document, in characters from its start."""

    kind: Literal["scalar", "sequence", "mapping"]
    start: int
    end: int
    """End of its last character. Comments and empty lines after it are not part of it."""
    key_start: int
    key_end: int
    """Place of the key of the value; for an item of a list, both are the start of the value."""
    flow: bool = False
    """True for a list or mapping in brackets."""
    shared: bool = False
    """True if an alias repeats the value elsewhere, or if it is such a repetition."""


def value_spans(text: str) -> dict[Address, YamlSpan]:
    """Return the place of every value in the text of a document that `load_document` accepts.

    Values inside a repetition by an alias have no place of their own.
    """
    loader = _NumberLoader(text)
    try:
        node = loader.get_single_node()
    finally:
        loader.dispose()
    walk = _Spans(text)
    if node is not None:
        walk.add(node, ())
    return walk.spans


def dotted_address(address: Address) -> str:
    """Return an address as users write it: `agents.lead[2].reply`."""
    text = ""
    for part in address:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def load_yaml(source: Path | str, where: str = "") -> object:
    """Return the value of a YAML file (a `Path`) or text (a `str`); None if it is empty. Raises `SettingsError`."""
    return load_document(source, where).data


def load_document(source: Path | str, where: str = "") -> YamlDocument:
    """Return the document with the line of every value. `where` names the source in errors; a path names itself."""
    text, where = _read(source, where)
    return _parse(text, where, _NumberLoader)


class _Spans:
    """One walk over the nodes of a document for the places of its values."""

    def __init__(self, text: str) -> None:
        self.spans: dict[Address, YamlSpan] = {}
        self._text = text
        self._first: dict[int, Address] = {}

    def add(self, node: yaml.Node, address: Address, *, key: yaml.Node | None = None) -> int:
        """Add the places of a node and of the nodes inside it, and return its end."""
        start = node.start_mark.index
        end = node.end_mark.index
        key_start = start if key is None else key.start_mark.index
        key_end = start if key is None else key.end_mark.index
        if id(node) in self._first:
            first = self._first[id(node)]
            self.spans[first] = replace(self.spans[first], shared=True)
            self.spans[address] = YamlSpan("scalar", start, end, key_start, key_end, shared=True)
            return key_end
        self._first[id(node)] = address
        flow = bool(getattr(node, "flow_style", False))
        kind: Literal["scalar", "sequence", "mapping"] = "scalar"
        if isinstance(node, yaml.ScalarNode):
            # A block scalar ends where the next token starts, after empty lines and comments.
            end = start + len(self._text[start:end].rstrip()) if node.style in ("|", ">") else end
        else:
            kind = "mapping" if isinstance(node, yaml.MappingNode) else "sequence"
            ends = self._add_inner(node, address)
            end = end if flow else max(start, *ends)
        self.spans[address] = YamlSpan(kind, start, end, key_start, key_end, flow=flow)
        return max(end, key_end)

    def _add_inner(self, node: yaml.Node, address: Address) -> list[int]:
        if isinstance(node, yaml.MappingNode):
            members = cast("list[tuple[yaml.Node, yaml.Node]]", node.value)
            return [self.add(value, (*address, str(name.value)), key=name) for name, value in members]
        items = cast("list[yaml.Node]", node.value)
        return [self.add(item, (*address, number)) for number, item in enumerate(items)]


def load_front_matter(source: Path | str, where: str = "") -> tuple[dict[str, object], str]:
    """Return the mapping between the `---` lines at the top of a Markdown file, and the body after them.

    Without front matter, return `{}` and the whole text. Accepted are a byte-order mark, any line ending, and a plain
    value that contains `: ` or ` #` (`description: Use when: asked`). Raises `SettingsError` for other mistakes.
    """
    document, body = load_front_document(source, where)
    return cast("dict[str, object]", document.data), body


def load_front_document(source: Path | str, where: str = "") -> tuple[YamlDocument, str]:
    """Return the front matter as a document, and the body.

    `data` of the document is a mapping, with the file's line of every field.
    """
    text, where = _read(source, where)
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise SettingsError("holds a NUL character, so it is not text", f"{where}:{line}")
    lines = text.splitlines(keepends=True)
    if not lines or lines[0].rstrip() != "---":
        return YamlDocument({}, where), text
    end = next((n for n, line in enumerate(lines[1:], 1) if line.rstrip() == "---"), None)
    if end is None:
        raise SettingsError("the front matter opens with `---` and is never closed by another `---` line", f"{where}:1")
    # The opening line becomes an empty one, so that the parser's line numbers are the file's.
    document = _parse_tolerantly("\n" + "".join(_with_plain_ends(lines[1:end])), where)
    body = "".join(lines[end + 1 :])
    if document.data is None:
        return YamlDocument({}, where), body
    if not isinstance(document.data, dict):
        raise document.error("front matter is a mapping of fields (`name: value`)")
    return document, body


def _read(source: Path | str, where: str) -> tuple[str, str]:
    if isinstance(source, Path):
        where = where or str(source)
        try:
            raw = read_regular(source, _MAX_BYTES)
        except OSError as error:
            raise SettingsError(f"cannot be read: {error.strerror or error}", where) from error
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = raw[: error.start].count(b"\n") + 1
            raise SettingsError("is not UTF-8 text", f"{where}:{line}") from error
    else:
        text = source.removeprefix("\ufeff")
    where = where or "<text>"
    if len(text) > _MAX_BYTES:
        raise SettingsError(f"is larger than {_MAX_BYTES:,} characters", where)
    return text, where


def _with_plain_ends(lines: list[str]) -> list[str]:
    return [line.rstrip("\r\n") + "\n" for line in lines]


def _parse_tolerantly(text: str, where: str) -> YamlDocument:
    """Parse the text as written.

    If it is not YAML, parse it with the doubtful plain values of top-level fields quoted, and then with the lines after
    such a value as part of it.
    """
    try:
        return _parse(text, where, _PlainLoader)
    except SettingsError:
        lines = text.splitlines(keepends=True)
        for quote_values in (_quoted_alone, _quoted_with_lines_after):
            quoted, fields = quote_values(lines)
            if not fields:
                continue
            try:
                return replace(_parse(quoted, where, _PlainLoader), quoted_fields=fields)
            except SettingsError:  # the error in the original text is the helpful one
                continue
        raise


def _quoted_alone(lines: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return the text with each doubtful one-line value quoted, and the names of these fields."""
    quoted = [_quoted(line) for line in lines]
    fields = [line.partition(":")[0] for line, now in zip(lines, quoted, strict=True) if line != now]
    return "".join(quoted), tuple(fields)


def _quoted_with_lines_after(lines: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return the text with a description quoted together with its following lines, and the names of the quoted fields.

    The description ends at the next known field. Used if its examples are on separate lines. The lines keep their
    numbers.
    """
    start = next((number for number, line in enumerate(lines) if line.startswith("description:")), len(lines))
    after = (number for number in range(start + 1, len(lines)) if _FIELD_LINE.match(lines[number]))
    end = next(after, len(lines))
    text = "\\n".join(line.strip() for line in lines[start:end]).removeprefix("description:").strip()
    if "<example" not in text.lower() or text[0] in _MARKED:
        return "".join(lines), ()
    value = f"description: '{text.replace(chr(39), chr(39) * 2)}'\n" + "\n" * (end - start - 1)
    tail, fields = _quoted_alone(lines[end:])
    before, fields_before = _quoted_alone(lines[:start])
    return before + value + tail, (*fields_before, "description", *fields)


_PROSE = frozenset({"description", "when_to_use"})
_MARKED = "\"'[{|>&!#"
"""First characters of values that are meant as YAML."""


def _quoted(line: str) -> str:
    match = _TOP_LEVEL_LINE.match(line.rstrip("\n"))
    hint = match is not None and match["key"] == "argument-hint" and match["value"][0] in "[{"  # `[--all] [PATH]`
    if match is None or (match["value"][0] in _MARKED and not hint):
        return line
    value = match["value"]
    comment = " #" in value and match["key"] in _PROSE  # elsewhere a comment is one: `model: opus # the large one`
    doubtful = hint or ": " in value or comment or value.endswith(":") or value[0] in "*@`%"
    return f"{match['key']}: '{value.replace(chr(39), chr(39) * 2)}'\n" if doubtful else line


def _parse(text: str, where: str, kind: type[_PlainLoader]) -> YamlDocument:
    loader = kind(text)
    try:
        _refuse_bombs(text, where, kind)
        node = loader.get_single_node()
        if node is None:
            return YamlDocument(None, where)
        lines = _Survey(where).lines(node)
        data = cast("object", loader.construct_document(node))  # pyright: ignore[reportUnknownMemberType] - its types are partly unknown
        return YamlDocument(data, where, lines)
    except yaml.MarkedYAMLError as error:
        # An unclosed bracket is detected only at the end of the file; the helpful place is its opening.
        unclosed = "flow" in (error.context or "") or "quoted" in (error.context or "")
        mark = (error.context_mark if unclosed else None) or error.problem_mark or error.context_mark
        place = f"{where}:{mark.line + 1}" if mark else where
        raise SettingsError(f"is not valid YAML: {error.problem or error.context}", place) from error
    except (yaml.YAMLError, ValueError) as error:  # invalid characters
        raise SettingsError(f"is not valid YAML: {error}", where) from error
    finally:
        loader.dispose()


def _refuse_bombs(text: str, where: str, kind: type[_PlainLoader]) -> None:
    """Raise `SettingsError` for values that are nested too deeply, or too many once aliases are expanded.

    The parser's events are processed one by one. All later steps (nodes, the walk, the values) are recursive, and a
    text that is deep enough overflows the C stack there, which ends the process.
    """
    sizes: dict[str, tuple[int, int]] = {}
    open_values: list[tuple[str | None, int, int]] = []  # anchor, values so far, depth so far
    aliased = False
    for event in cast("Iterator[yaml.Event]", yaml.parse(text, kind)):  # pyright: ignore[reportUnknownMemberType] - its types are partly unknown
        size = 1
        depth = 0
        if isinstance(event, yaml.DocumentEndEvent):  # a second document is refused without being read
            return
        if isinstance(event, yaml.CollectionStartEvent):
            open_values.append((event.anchor, 1, 1))
            size = 0
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size, depth = open_values.pop()
            if anchor is not None:
                sizes[anchor] = (size, depth)
        elif isinstance(event, yaml.AliasEvent):
            _refuse_circle(event, [anchor for anchor, _, _ in open_values], where)
            aliased = True
            size, depth = sizes.get(event.anchor, (1, 0))
        elif isinstance(event, yaml.ScalarEvent) and event.anchor is not None:
            sizes[event.anchor] = (1, 0)
        if open_values:
            anchor, values, deepest = open_values[-1]
            open_values[-1] = (anchor, values + size, max(deepest, depth + 1))
        values = max((size, *(values for _, values, _ in open_values[-1:])))
        if excess := _excess(values, len(open_values) + depth, aliased=aliased):
            raise SettingsError(excess, f"{where}:{event.start_mark.line + 1}")


def _refuse_circle(alias: yaml.AliasEvent, enclosing: Sequence[str | None], where: str) -> None:
    """Raise `SettingsError` for an alias inside the value that it names."""
    if alias.anchor in enclosing:
        message = f"refers to itself: the alias *{alias.anchor} is inside the value that it names"
        raise SettingsError(message, f"{where}:{alias.start_mark.line + 1}")


def _excess(values: int, depth: int, *, aliased: bool) -> str:
    """Return the exceeded limit of a value; empty if there is none."""
    if depth > _MAX_DEPTH:
        return _TOO_DEEP
    return "" if values <= _MAX_NODES else _BOMB if aliased else _TOO_MANY


def _unusable(node: yaml.Node) -> str:
    """Return why a value cannot be used: a type that JSON does not have, or a word that is not of its written type."""
    kind = str(node.tag).removeprefix(_TAG)
    if kind not in _TYPES:
        return f"is YAML of the type {kind[:40]}, which cannot be used: write text, numbers, lists and mappings"
    if not isinstance(node, yaml.ScalarNode) or kind == "str":
        return ""
    word = str(node.value)
    if kind in ("int", "float") and len(word) > _MOST_DIGITS:
        return f"is a number of more than {_MOST_DIGITS} characters"
    return "" if kind in _WORDS and re.fullmatch(_WORDS[kind][0], word) else f"is not of the type {kind}: {word[:40]}"


class _Survey:
    """One walk over the nodes before anything is built: lines, duplicate keys, size and depth."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._lines: dict[Address, int] = {}
        self._seen = 0

    def lines(self, node: yaml.Node) -> dict[Address, int]:
        self._walk(node, ())
        return self._lines

    def _walk(self, node: yaml.Node, address: Address) -> None:
        self._seen += 1
        line = node.start_mark.line + 1
        if self._seen > _MAX_NODES or len(address) > _MAX_DEPTH:
            raise SettingsError(_TOO_DEEP if len(address) > _MAX_DEPTH else _BOMB, f"{self._where}:{line}")
        self._lines[address] = line
        if problem := _unusable(node):
            raise SettingsError(
                problem, f"{self._where}:{line}: {dotted_address(address)}" if address else f"{self._where}:{line}"
            )
        if isinstance(node, yaml.MappingNode):
            self._walk_mapping(node, address)
        elif isinstance(node, yaml.SequenceNode):
            for position, item in enumerate(cast("list[yaml.Node]", node.value)):
                self._walk(item, (*address, position))

    def _walk_mapping(self, node: yaml.MappingNode, address: Address) -> None:
        met: set[str] = set()
        for key, value in cast("list[tuple[yaml.Node, yaml.Node]]", node.value):
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise SettingsError(
                    "a field's name is a plain word", f"{self._where}:{line}: {dotted_address(address)}"
                )
            name = str(key.value)
            if problem := _unusable(key):
                raise SettingsError(problem, f"{self._where}:{line}: {dotted_address((*address, name[:40]))}")
            if name in met:
                place = f"{self._where}:{line}: {dotted_address((*address, name))}"
                raise SettingsError("is written twice; keep one of the two", place)
            met.add(name)
            self._walk(value, (*address, name))
            self._lines[(*address, name)] = line

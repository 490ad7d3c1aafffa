"""Read YAML that people wrote: settings, scenarios, and the front matter of agent and skill files.

The one importer of `yaml`. What a person means is kept: `no`, `on`, `1.10` in front matter and dates stay the strings
they look like; only `true`, `false`, `null`, integers and (outside front matter) decimals become values.
Refused, each with file, line and field: a key written twice, anything that builds objects, text that is no YAML.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import yaml

from callboard.words.errors import SettingsError

Address = tuple[str | int, ...]
"""Where a value stands in a document: keys and list positions from the top."""

_MAX_BYTES = 4_000_000
"""A file that people write is small; a larger one is a mistake or an attack on the parser."""
_MAX_DEPTH = 60
_MAX_NODES = 200_000
"""Values after aliases are expanded: a few lines of nested aliases can otherwise stand for billions of them."""

_FIELD_LINE = re.compile(
    r"(?:name|description|when_to_use|tools|allowed-tools|disallowed-tools|disallowedTools|model|permissionMode|maxTurns"
    r"|skills|mcpServers|hooks|memory|background|effort|isolation|colou?r|initialPrompt|budget|license|compatibility"
    r"|metadata|argument-hint|arguments|context|agent|paths|shell|user-invocable|disable-model-invocation|version|author"
    r"|tags|category|type|priority|emoji|vibe):(?:\s|$)"
)
"""A line that begins a field of an agent, skill or command file, whatever the lines before it look like."""
_TOP_LEVEL_LINE = re.compile(r"^(?P<key>[A-Za-z_][\w.-]*):[ \t]+(?P<value>\S.*?)[ \t]*$")


_Resolvers = dict[str, list[tuple[str, re.Pattern[str]]]]


def _resolvers(*, decimals: bool) -> _Resolvers:
    """The plain words that are more than strings, by their first character, as the parser looks them up."""
    table: _Resolvers = {}
    for kind, pattern, starts in (
        ("bool", r"true|True|TRUE|false|False|FALSE", ("t", "T", "f", "F")),
        ("null", r"~|null|Null|NULL|", ("~", "n", "N", "")),
        ("int", r"[-+]?(?:0|[1-9][0-9]*)", tuple("-+0123456789")),
        ("float", r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?", tuple("-+.0123456789")),
        ("merge", r"<<", ("<",)),
    ):
        if kind == "float" and not decimals:
            continue
        for start in starts:
            table.setdefault(start, []).append((f"tag:yaml.org,2002:{kind}", re.compile(f"(?:{pattern})$")))
    return table


class _PlainLoader(yaml.CSafeLoader):
    """YAML 1.2's few implicit types, without decimals: front matter."""

    yaml_implicit_resolvers = _resolvers(decimals=False)


class _NumberLoader(_PlainLoader):
    """The same with decimals: settings and scenarios."""

    yaml_implicit_resolvers = _resolvers(decimals=True)


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """A parsed document, and the line (from 1) on which each of its values stands."""

    data: object
    where: str
    lines: Mapping[Address, int] = field(default_factory=dict[Address, int])
    mended: tuple[str, ...] = ()
    """Fields whose value is no YAML as it was written, and was read as the text that it looks like."""

    def place(self, address: Address = ()) -> str:
        """`file:line: field` of an address; the nearest enclosing line when the field itself is missing."""
        known = address
        while known and known not in self.lines:
            known = known[:-1]
        line = self.lines.get(known, 1)
        return f"{self.where}:{line}: {dotted(address)}" if address else f"{self.where}:{line}"

    def error(self, what: str, address: Address = ()) -> SettingsError:
        """The error to raise about a value of this document."""
        return SettingsError(what, self.place(address))


def dotted(address: Address) -> str:
    """An address as people write it: `agents.lead[2].reply`."""
    text = ""
    for part in address:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def load_yaml(source: Path | str, where: str = "") -> object:
    """The value of a YAML file (a `Path`) or text (a `str`); None for an empty one. Raises `SettingsError`."""
    return load_document(source, where).data


def load_document(source: Path | str, where: str = "") -> YamlDocument:
    """The same, with the line of every value. `where` names the source in errors; a path names itself."""
    text, where = _read(source, where)
    return _parse(text, where, _NumberLoader)


def load_front_matter(source: Path | str, where: str = "") -> tuple[dict[str, object], str]:
    """The mapping between the `---` lines at the top of a Markdown file, and the body after them.

    No front matter gives `{}` and the whole text. Tolerant where people are: a byte-order mark, any line ending, and a
    plain value that holds `: ` or ` #` (`description: Use when: asked`). Raises `SettingsError` for the rest.
    """
    document, body = load_front_document(source, where)
    return cast("dict[str, object]", document.data), body


def load_front_document(source: Path | str, where: str = "") -> tuple[YamlDocument, str]:
    """The same as a document, whose `data` is a mapping, with the file's line of every field."""
    text, where = _read(source, where)
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise SettingsError("holds a NUL character, so it is no text", f"{where}:{line}")
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
            raw = source.read_bytes()
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
    """As written; if that is no YAML, once more with the doubtful plain values of top-level fields quoted, and then
    with the lines after such a value taken as its own."""
    try:
        return _parse(text, where, _PlainLoader)
    except SettingsError:
        lines = text.splitlines(keepends=True)
        for mend in (_quoted_alone, _quoted_with_lines_after):
            quoted, fields = mend(lines)
            if not fields:
                continue
            try:
                return replace(_parse(quoted, where, _PlainLoader), mended=fields)
            except SettingsError:  # what is wrong with the text as it was written is what helps
                continue
        raise


def _quoted_alone(lines: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Each doubtful value of one line quoted, and the fields of which that is true."""
    quoted = [_quoted(line) for line in lines]
    fields = [line.partition(":")[0] for line, now in zip(lines, quoted, strict=True) if line != now]
    return "".join(quoted), tuple(fields)


def _quoted_with_lines_after(lines: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The same for a description whose examples stand on lines of their own, up to the next field that is known. The
    lines keep their numbers."""
    start = next((number for number, line in enumerate(lines) if line.startswith("description:")), len(lines))
    after = (number for number in range(start + 1, len(lines)) if _FIELD_LINE.match(lines[number]))
    end = next(after, len(lines))
    text = "\\n".join(line.strip() for line in lines[start:end]).removeprefix("description:").strip()
    if "<example" not in text.lower() or text[0] in _MARKED:
        return "".join(lines), ()
    value = f"description: '{text.replace(chr(39), chr(39) * 2)}'\n" + "\n" * (end - start - 1)
    rest, fields = _quoted_alone(lines[end:])
    before, more = _quoted_alone(lines[:start])
    return before + value + rest, (*more, "description", *fields)


_PROSE = frozenset({"description", "when_to_use"})
_MARKED = "\"'[{|>&!#"
"""A value that begins so is meant as YAML."""


def _quoted(line: str) -> str:
    found = _TOP_LEVEL_LINE.match(line.rstrip("\n"))
    hint = found is not None and found["key"] == "argument-hint" and found["value"][0] in "[{"  # `[--all] [PATH]`
    if found is None or (found["value"][0] in _MARKED and not hint):
        return line
    value = found["value"]
    comment = " #" in value and found["key"] in _PROSE  # elsewhere it is one: `model: opus  # the large one`
    doubtful = hint or ": " in value or comment or value.endswith(":") or value[0] in "*@`%"
    return f"{found['key']}: '{value.replace(chr(39), chr(39) * 2)}'\n" if doubtful else line


def _parse(text: str, where: str, kind: type[_PlainLoader]) -> YamlDocument:
    loader = kind(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return YamlDocument(None, where)
        lines = _Survey(where).lines(node)
        data = cast("object", loader.construct_document(node))  # pyright: ignore[reportUnknownMemberType]
        return YamlDocument(data, where, lines)
    except yaml.MarkedYAMLError as error:
        # An unclosed bracket is noticed at the end of the file; where it opens is what helps.
        unclosed = "flow" in (error.context or "") or "quoted" in (error.context or "")
        mark = (error.context_mark if unclosed else None) or error.problem_mark or error.context_mark
        place = f"{where}:{mark.line + 1}" if mark else where
        raise SettingsError(f"is not valid YAML: {error.problem or error.context}", place) from error
    except (yaml.YAMLError, ValueError) as error:  # odd characters; an integer longer than Python converts
        raise SettingsError(f"is not valid YAML: {error}", where) from error
    finally:
        loader.dispose()


class _Survey:
    """One walk over the nodes before anything is built: lines, doubled keys, size and depth."""

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
            raise SettingsError("is nested too deeply or refers to itself", f"{self._where}:{line}")
        self._lines[address] = line
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
                raise SettingsError("a field's name is a plain word", f"{self._where}:{line}: {dotted(address)}")
            name = str(key.value)
            if name in met:
                place = f"{self._where}:{line}: {dotted((*address, name))}"
                raise SettingsError("is written twice; keep one of the two", place)
            met.add(name)
            self._walk(value, (*address, name))
            self._lines[(*address, name)] = line

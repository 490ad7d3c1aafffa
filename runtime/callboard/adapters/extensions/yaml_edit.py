"""Change of one value in the text of a YAML file: comments, order and all other values stay as they are.

The parser keeps no comments, so the text itself is changed, at the places that the parser reports. Afterwards the new
text is parsed and compared with the expected values: a change that would touch anything else is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from callboard.adapters.extensions.yaml import Address, YamlSpan, load_document, load_yaml, value_spans
from callboard.types.errors import SettingsError

_STEP = "  "


def with_value(text: str, address: Address, value: object, *, where: str) -> str:
    """Return the text with this value at the address, which is replaced or added.

    A number at the end of the address that is the length of the list adds an item. Replacing a list or mapping of
    several lines loses the comments inside it. `where` names the file in errors. Raises `SettingsError`.
    """
    document = load_document(text, where)
    expected = _with_value(_copied(document.data), address, value)
    spans = value_spans(text)
    parent = address
    while parent and parent not in spans:
        parent = parent[:-1]
    if document.data is None:
        changed = _ended(text) + _lines(text, _nested(address, value), "")
    elif parent == address:
        changed = _replaced(text, spans[address], value, in_flow=_in_flow(spans, address))
    else:
        changed = _added(text, spans, parent, _nested(address[len(parent) :], value))
    return _checked(changed, expected, document.place(address))


def without_value(text: str, address: Address, *, where: str) -> str:
    """Return the text without the value at the address, and without mappings and lists that it leaves empty.

    A comment on the lines of the value is removed too. `where` names the file in errors. Raises `SettingsError`.
    """
    document = load_document(text, where)
    while len(address) > 1 and len(cast("Mapping[object, object]", _value_at(document.data, address[:-1]))) == 1:
        address = address[:-1]
    expected = _copied(document.data)
    del cast("dict[object, object]", _value_at(expected, address[:-1]))[address[len(address) - 1]]
    spans = value_spans(text)
    changed = _removed(text, spans, address) if address in spans else ""
    return _checked(changed, expected, document.place(address))


def _checked(changed: str, expected: object, place: str) -> str:
    """Return the text if its values are the expected ones. Raises `SettingsError`."""
    try:
        same = bool(changed or not expected) and _encoded(load_yaml(changed, place)) == _encoded(expected)
    except SettingsError:
        same = False
    if not same:
        reason = "cannot be changed by a command without a change of other values: change it in the file"
        raise SettingsError(f"{reason} (nothing was written)", place)
    return changed


def _encoded(values: object) -> str:
    """Return the values as text, in which 1 and true differ."""
    return json.dumps(values or {}, sort_keys=True)


def _copied(values: object) -> object:
    """Return a copy in which values that an alias repeats are separate, so that a change of all of them is noticed."""
    return json.loads(json.dumps(values))


def _value_at(values: object, address: Address) -> object:
    for part in address:
        values = cast("Mapping[str | int, object]", values)[part]
    return values


def _with_value(values: object, address: Address, value: object) -> object:
    """Return the values with this one at the address; `values` may be changed."""
    if not address:
        return value
    part, *inner = address
    if isinstance(part, int):
        items = cast("list[object]", values if isinstance(values, list) else [])
        items[part : part + 1] = [_with_value(items[part] if part < len(items) else None, tuple(inner), value)]
        return items
    members = cast("dict[str, object]", values if isinstance(values, dict) else {})
    members[part] = _with_value(members.get(part), tuple(inner), value)
    return members


def _nested(address: Address, value: object) -> object:
    """Return the value inside the lists and mappings of an address."""
    for part in reversed(address):
        value = [value] if isinstance(part, int) else {part: value}
    return value


def _in_flow(spans: Mapping[Address, YamlSpan], address: Address) -> bool:
    return any(spans[address[:length]].flow for length in range(len(address)))


def _replaced(text: str, span: YamlSpan, value: object, *, in_flow: bool) -> str:
    if span.shared:
        return ""
    block = span.kind != "scalar" and not span.flow and span.key_start != span.start
    start = span.key_end if block else span.start
    # A value on the line after its key begins there; an empty value begins directly after the colon of its key.
    lead = ": " if block else " " if span.start == span.end and text[start - 1 : start] == ":" else ""
    return text[:start] + lead + _flow(value, in_flow=in_flow) + text[span.end :]


def _added(text: str, spans: Mapping[Address, YamlSpan], parent: Address, addition: object) -> str:
    """Return the text with one more entry in the list or mapping at `parent`; a missing one is created."""
    span = spans[parent]
    if span.shared:
        return ""
    children = [spans[address] for address in spans if len(address) == len(parent) + 1 and address[:-1] == parent]
    if not children or isinstance(addition, list) != (span.kind == "sequence"):
        return _replaced(text, span, addition, in_flow=_in_flow(spans, parent))
    last = max(children, key=lambda child: child.end)
    if span.flow:
        return f"{text[: last.end]}, {_flow(addition, in_flow=True)[1:-1]}{text[last.end :]}"
    lead = text[text.rfind("\n", 0, children[0].key_start) + 1 : children[0].key_start]
    indent = " " * (lead.rfind("-") if span.kind == "sequence" else len(lead))
    end = text.find("\n", last.end)
    at = len(text) if end < 0 else end + 1
    return _ended(text[:at]) + _lines(text, addition, indent) + text[at:]


def _removed(text: str, spans: Mapping[Address, YamlSpan], address: Address) -> str:
    span = spans[address]
    if _in_flow(spans, address):
        siblings = sorted(
            (spans[other] for other in spans if len(other) == len(address) and other[:-1] == address[:-1]),
            key=lambda sibling: sibling.key_start,
        )
        at = siblings.index(span)
        if at + 1 < len(siblings):
            return text[: span.key_start] + text[siblings[at + 1].key_start :]
        start = siblings[at - 1].end if at else span.key_start
        return text[:start] + text[span.end :]
    line = text.rfind("\n", 0, span.key_start) + 1
    if text[line : span.key_start].strip(" -"):
        return ""
    end = text.find("\n", max(span.end, span.key_end))
    return text[:line] + (text[end + 1 :] if end >= 0 else "")


def _ended(text: str) -> str:
    """Return the text with a line break at its end, unless it is empty."""
    return text if not text or text.endswith("\n") else text + ("\r\n" if "\r\n" in text else "\n")


def _lines(text: str, value: object, indent: str) -> str:
    """Return the lines of a list or mapping, with the line breaks of the text."""
    return "".join(_block(value, indent)).replace("\n", "\r\n" if "\r\n" in text else "\n")


def _block(value: object, indent: str) -> list[str]:
    """Return the lines of a list or mapping, each entry on its own line."""
    if isinstance(value, list):
        return [f"{indent}- {_flow(item)}\n" for item in cast("list[object]", value)]
    lines: list[str] = []
    for name, inner in cast("dict[str, Any]", value).items():
        if inner and type(inner) in (list, dict):
            lines += [f"{indent}{_flow(name)}:\n", *_block(inner, indent + _STEP)]
        else:
            lines.append(f"{indent}{_flow(name)}: {_flow(inner)}\n")
    return lines


def _flow(value: object, *, in_flow: bool = False) -> str:
    """Return a value on one line."""
    if isinstance(value, list):
        return f"[{', '.join(_flow(item, in_flow=True) for item in cast('list[object]', value))}]"
    if isinstance(value, dict):
        pairs = cast("dict[str, object]", value).items()
        return f"{{{', '.join(f'{_flow(name, in_flow=True)}: {_flow(inner, in_flow=True)}' for name, inner in pairs)}}}"
    if isinstance(value, str) and _is_plain(value, in_flow=in_flow):
        return value
    return json.dumps(value, ensure_ascii=False)


def _is_plain(text: str, *, in_flow: bool) -> bool:
    """Return True if YAML reads the text without quotes as this text."""
    if not text.isprintable() or text != text.strip() or not text:
        return False
    try:
        return load_yaml(f"[{text}, {text}]" if in_flow else f"- {text}: {text}\n- {text}") in (
            [text, text],
            [{text: text}, text],
        )
    except SettingsError:
        return False

"""Names of settings as a person types them: `permission.allow`, `models.claude-opus-5-5.window`, `permissions.allow`.

A name of Claude Code's settings is read as the setting of Callboard with the same meaning. An unknown name is refused
with similar ones.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, cast

from pydantic import ValidationError

from callboard.adapters.extensions.claude_fields import LOUD, QUIET, SIMPLE, simple_value
from callboard.adapters.extensions.yaml import Address, dotted_address
from callboard.core.trust.yaml_nodes import node_of
from callboard.core.validation import fault_words
from callboard.types.choices import choose
from callboard.types.errors import UsageError
from callboard.types.lazy_dataclass import dataclass
from callboard.types.settings import Settings

_ALL = "`callboard config list --all` lists all of them"
_CLAUDE_NAMES: Mapping[str, Address] = MappingProxyType(
    {
        **{f"permissions.{kind}": ("permission", kind) for kind in ("allow", "ask", "deny")},
        "permissions.defaultMode": ("permission", "mode"),
        "permissions.additionalDirectories": ("permission", "directories"),
        "permissions": ("permission",),
    }
)
"""Names of Claude Code besides those of `SIMPLE`, whose values mean the same here."""


@dataclass(frozen=True, slots=True)
class SettingKey:
    """A setting that a person named."""

    address: Address
    claude: str = ""
    """Name of Claude Code that was typed; empty if it was Callboard's."""
    listed: bool = False
    """True for a list, to which `config add` adds."""

    @property
    def name(self) -> str:
        """Return Callboard's name of the setting."""
        return dotted_address(self.address)

    def resolve(self, value: object) -> tuple[Address, object]:
        """Return address and value of the setting for a value that was typed. Raises `UsageError`.

        A field of Claude Code may mean another value: `autoMemoryEnabled` `false` is `memory.write` `off`.
        """
        if self.claude not in SIMPLE:
            return self.address, value
        read = simple_value(self.claude, node_of(value, {}))
        if read.verdict != "honored":
            raise UsageError(f"{self.claude} {read.reason}")
        ((address, setting),) = read.settings
        return address, setting


def key_of(text: str) -> SettingKey:
    """Return the setting of a dotted name. Raises `UsageError` with similar names."""
    text = text.strip()
    if text in _CLAUDE_NAMES or (text in SIMPLE and text not in Settings.model_fields):
        address = _CLAUDE_NAMES[text] if text in _CLAUDE_NAMES else SIMPLE[text][0]
        return SettingKey(address, text, listed=_is_list(_node_at(address)))
    address = _address_of(text)
    if address is None:
        reason = {**QUIET, **LOUD}.get(text, "")
        raise UsageError(f"{text}: {reason}" if reason else unknown_setting(text, _keys()))
    return SettingKey(address, listed=_is_list(_node_at(address)))


def unknown_setting(name: str, names: Iterable[str]) -> str:
    """Return the message on a name that is none of these names of settings; similar ones are suggested."""
    every = list(names)
    last = name.rpartition(".")[2]
    same = [key for key in every if key.rpartition(".")[2] == last]
    near = list(dict.fromkeys([*get_close_matches(name, every), *same]))[:4]
    return f"unknown setting {name!r}: {f'{choose(near)} (' if near else ''}{_ALL}{')' if near else ''}"


def names_in(address: Address) -> list[str]:
    """Return the names of the settings in the section at an address."""
    return list(_properties(_node_at(address)))


def _node_at(address: Address) -> Mapping[str, Any]:
    """Return the schema of the setting at an address; empty if there is none."""
    node = _schema()
    for part in address:
        node = _inner(node, str(part))
    return node


@functools.cache
def _schema() -> Mapping[str, Any]:
    """Return the schema of all settings. To make it takes 30 ms."""
    schema = Settings.model_json_schema()
    return _resolved(schema, schema["$defs"])


def _resolved(node: Any, definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema with its references replaced."""
    if isinstance(node, list):
        return cast("Any", [_resolved(inner, definitions) for inner in cast("list[Any]", node)])
    if not isinstance(node, dict):
        return node
    members = cast("dict[str, Any]", node)
    if "$ref" in members:
        return _resolved(definitions[str(members["$ref"]).rsplit("/", 1)[-1]], definitions)
    return {name: _resolved(inner, definitions) for name, inner in members.items() if name != "$defs"}


def _properties(node: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    return node.get("properties", {})


def _inner(node: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the schema of a member; empty if there is none."""
    if name in _properties(node):
        return _properties(node)[name]
    extra = node.get("additionalProperties")
    return cast("Mapping[str, Any]", extra) if isinstance(extra, dict) else {}


def _is_list(node: Mapping[str, Any]) -> bool:
    return any(choice.get("type") == "array" for choice in (node, *node.get("anyOf", ())))


def _keys() -> Iterator[str]:
    """Yield the names of all settings and sections, without those inside mappings of free names."""
    sections: list[tuple[str, Mapping[str, Any]]] = [("", _schema())]
    for prefix, section in sections:
        for name, node in _properties(section).items():
            yield prefix + name
            sections.append((f"{prefix}{name}.", node))


def _address_of(text: str) -> Address | None:
    """Return the address of a dotted name; None if there is no such setting."""
    node = _schema()
    parts = text.split(".")
    address: list[str] = []
    while parts:
        if parts[0] in _properties(node):
            length = 1
        elif isinstance(node.get("additionalProperties"), dict) and all(parts):
            # A free name may contain dots: `models.some-4.1.window`.
            ends_in_field = len(parts) > 1 and parts[-1] in _properties(_inner(node, ""))
            length = len(parts) - 1 if ends_in_field else len(parts)
        else:
            return None
        address.append(".".join(parts[:length]))
        node = _inner(node, address[-1])
        del parts[:length]
    return tuple(address)


def first_fault(error: ValidationError) -> tuple[Address, str]:
    """Return the address and the text of the first fault.

    Of a value with several types, the address is that of the type that fits the longest part of it.
    """
    faults = [(_written(fault["loc"]), fault) for fault in error.errors(include_url=False, include_input=False)]
    start = faults[0][0]
    inside = [(address, fault) for address, fault in faults if address[: len(start)] == start]
    deepest = max((address for address, _ in inside), key=len)
    texts = [_fault_text(fault["type"], fault["msg"], at) for at, fault in inside if at == deepest]
    return deepest, " or ".join([texts[0], *(text.removeprefix("must be ") for text in texts[1:])])


def _written(address: Address) -> Address:
    """Return the address without the names of types that pydantic adds to that of a value with several types."""
    return tuple(part for part in address if isinstance(part, int) or not (part == "str" or "[" in part))


def _fault_text(kind: str, message: str, address: Address) -> str:
    if kind == "extra_forbidden":
        return unknown_setting(str(address[-1]), names_in(address[:-1]))
    if kind == "missing":
        return f"{address[-1]} is missing"
    return fault_words(kind, message)

"""Write `docs/settings-reference.md` from the classes: `python tests/config/settings_page.py`. A test checks it."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.core.documented_fields import documented_fields, own_docstring

from callboard.types.settings import Settings
from callboard.types.settings_section import Section

PAGE = Path(__file__).parents[2] / "docs" / "settings-reference.md"
WORDS = {"integer": "number", "number": "number", "string": "text", "boolean": "`true` or `false`", "null": "`null`"}
INTRO = """\
# All settings

Every setting with its values and its default. This page is generated from the classes
(`python tests/config/settings_page.py`), and a test fails if it is out of date. [Settings](settings.md) says where they
come from and how to change them; `callboard config list --all` prints those in force.

The names are those of `settings.yaml`. With dots, they are the keys of `callboard config`: `limits.steps`. Times are in
seconds, money is in US dollars. A setting without a default is not set.
"""
Schema = Mapping[str, Any]
REPEATED = {"ProfileSettings": "Settings: `mode`, `allow`, `ask`, and `deny`, as in `permission`."}
"""Sections that are described elsewhere on the page."""


def page() -> str:
    """Return the whole page."""
    schema = Settings.model_json_schema()
    top = [name for name, value in schema["properties"].items() if _section_of(value) is None]
    parts = [INTRO, "## Settings without a section\n", *_table(Settings, schema, top), ""]
    for name, value in schema["properties"].items():
        if name not in top:
            parts += _sections(name, _meanings(Settings).get(name, ""), value, schema["$defs"])
    return "\n".join(parts)


def _sections(key: str, meaning: str, value: Schema, known: Mapping[str, Schema]) -> Iterator[str]:
    """Yield the text of a section, and of the sections in it."""
    name = _section_of(value)
    assert name is not None
    schema, kind = known[name], _classes()[name]
    yield f"## `{key}{_keyed(value)}`\n"
    said = own_docstring(kind)
    if meaning and not said.startswith(meaning):
        yield f"{_linked(meaning)}\n"
    if name in REPEATED:
        yield f"{REPEATED[name]}\n"
        return
    if said:
        yield f"{_linked(said)}\n"
    inside = {inner: part for inner, part in schema["properties"].items() if _section_of(part)}
    yield from _table(kind, schema, [inner for inner in schema["properties"] if inner not in inside])
    yield ""
    for inner, part in inside.items():
        yield from _sections(f"{key}.{inner}", _meanings(kind).get(inner, ""), part, known)


def _table(kind: type[Section], schema: Schema, names: list[str]) -> Iterator[str]:
    texts = _meanings(kind)
    yield "| setting | values | default | meaning |"
    yield "| --- | --- | --- | --- |"
    for name in names:
        value = schema["properties"][name]
        default = value.get("default")
        yield f"| `{name}` | {_values(value)} | {_shown(default)} | {_linked(texts[name])} |"


def _shown(default: object) -> str:
    """Return a default as it is written in YAML; empty if there is none."""
    if default is None:
        return ""
    whole = int(default) if isinstance(default, float) and default.is_integer() else default
    return f"`{json.dumps(whole)}`"


def _linked(text: str) -> str:
    """Return the text with links to the pages that it names."""
    return re.sub(r"docs/([a-z-]+)\.md", r"[\1](\1.md)", text)


def _values(value: Schema) -> str:
    """Return the values of a setting in words."""
    if "$ref" in value:
        return "stage"
    if options := value.get("anyOf"):
        none = {"type": "null"}
        unset = value.get("default") is None
        return " or ".join(_values(option) for option in options if not (unset and option == none))
    if options := value.get("enum"):
        return ", ".join(f"`{json.dumps(option)}`" if option == "" else f"`{option}`" for option in options)
    if "const" in value:
        return f"`{value['const']}`"
    if value.get("type") == "array":
        return f"list: {_values(value['items'])}" if value.get("items") else "list"
    if value.get("type") == "object":
        inner = value.get("additionalProperties")
        return f"name: {_values(inner)}" if isinstance(inner, dict) and inner else "object"
    return WORDS[str(value.get("type", "string"))]


def _meanings(kind: type[Section]) -> dict[str, str]:
    """Return the meaning of each field of the class, also of those that it inherits."""
    classes = [each for each in reversed(kind.__mro__) if issubclass(each, Section) and each is not Section]
    return {name: said for each in classes for name, _, _, said in documented_fields(each)}


def _section_of(value: Schema) -> str | None:
    """Return the name of the class of a section, also of those in a list or under names."""
    inner = value.get("additionalProperties")
    below = inner if isinstance(inner, dict) else value.get("items", {})
    reference = value.get("$ref") or below.get("$ref")
    name = _bare(reference) if reference else None
    return name if name in _classes() else None


def _keyed(value: Schema) -> str:
    return ".<name>" if value.get("type") == "object" else "[]" if value.get("type") == "array" else ""


def _bare(reference: str) -> str:
    return reference.rpartition("/")[2]


def _classes() -> dict[str, type[Section]]:
    """Return the classes of sections, by their names."""
    pending, found = list(Section.__subclasses__()), dict[str, type[Section]]()
    while pending:
        kind = pending.pop()
        found[kind.__name__] = kind
        pending += kind.__subclasses__()
    return {name: kind for name, kind in found.items() if not inspect.isabstract(kind)}


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

"""JSON schemas as models read them: references written out, titles left out. Pure."""

from __future__ import annotations

from typing import Any, cast

from callboard.words.values import Json


def inlined(schema: Json) -> Json:
    """The schema with its definitions where they are used. One that holds itself (a tree) keeps its `$defs`."""
    definitions = cast("Json", schema.get("$defs", {}))
    if any(_recursive(name, definitions, ()) for name in definitions):
        return cast("Json", _plain(schema, {}))
    body = {key: value for key, value in schema.items() if key != "$defs"}
    return cast("Json", _plain(body, definitions))


def _recursive(name: str, definitions: Json, above: tuple[str, ...]) -> bool:
    if name in above:
        return True
    return any(_recursive(one, definitions, (*above, name)) for one in _named(definitions.get(name)))


def _named(node: object) -> set[str]:
    """The definitions that a schema refers to."""
    if isinstance(node, list):
        return {name for item in cast("list[object]", node) for name in _named(item)}
    if not isinstance(node, dict):
        return set()
    found = cast("Json", node)
    mine = {_name(found["$ref"])} if isinstance(found.get("$ref"), str) else set[str]()
    return mine.union(*(_named(value) for value in found.values()))


def _name(reference: object) -> str:
    return str(reference).rsplit("/", 1)[-1]


def _plain(node: Any, definitions: Json) -> Any:
    if isinstance(node, list):
        return [_plain(item, definitions) for item in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    found = cast("Json", node)
    if "$ref" in found and _name(found["$ref"]) in definitions:
        meant = _plain(definitions[_name(found["$ref"])], definitions)
        return {**meant, **{key: _plain(value, definitions) for key, value in found.items() if key != "$ref"}}
    plain: Json = {}
    for key, value in found.items():
        if key in ("properties", "$defs"):
            plain[key] = {name: _plain(field, definitions) for name, field in cast("Json", value).items()}
        elif key == "const" or key == "default" or key == "enum":
            plain[key] = value
        elif key != "title":
            plain[key] = _plain(value, definitions)
    return plain

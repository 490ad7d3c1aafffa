"""Answers of agents against a JSON schema of the user, and schemas against their metaschema. Pure.

For answers the whole of JSON Schema is checked, by the draft that `$schema` names (2020-12 without it), except
`format`, which only describes. What cannot be checked is refused before the run: references out of the schema, a
definition that is nothing but itself, and patterns with look-around or back-references.

Two hazards are excluded. Patterns run in the engine of pydantic, whose time is linear in the text: in Python's engine,
`(a+)+$` takes exponential time. And each alternative is tried once for each part of an answer: in a recursive schema,
trying them again at each level above takes exponential time, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Any, cast

from jsonschema import Draft202012Validator, SchemaError, ValidationError, validators
from pydantic_core import SchemaError as PatternError
from pydantic_core import SchemaValidator, core_schema
from pydantic_core import ValidationError as NoMatch

from callboard.core.json_schema import reference_target, schema_fault, too_deep
from callboard.types.records import Json

_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose value is an object: names -> schemas."""
_TEXTUAL = frozenset({"enum", "const", "default", "examples"})
"""Keywords whose value is no schema, whatever it looks like."""
_ALTERNATIVES = ("allOf", "anyOf", "oneOf")
_UNSUPPORTED = frozenset({"$schema", "$id", "$dynamicRef", "$recursiveRef"})
"""Keywords that change the meaning of references below them."""
_LONGEST_MESSAGE = 500
"""Characters of an error for the model. The message of a library repeats the value, which may be large."""


def answer_schema_fault(schema: object) -> str:
    """Return why answers cannot be checked against this schema; empty if they can be."""
    if fault := schema_fault(schema):
        return fault
    root = _root(cast("Json", schema))
    nodes = list(_schemas(root))
    if fault := next((fault for node in nodes if (fault := _node_fault(node, root))), ""):
        return fault
    graph = {id(node): [id(inner) for inner in _same_place(node, root)] for node in nodes}
    try:
        TopologicalSorter(graph).prepare()
        _draft(cast("Json", schema)).check_schema(root)
    except CycleError:
        return "a `$ref` of the schema leads back to itself: a recursive reference belongs below a property or `items`"
    except SchemaError as error:
        place = ".".join(map(str, error.absolute_path))
        return f"{f'`{place}`' if place else 'the schema'}: {_short(error.message)}"
    return ""


def invalid_parts(schema: Json) -> Iterator[tuple[str | int, ...]]:
    """Yield the paths of the parts of a schema that are invalid."""
    validator = cast("Any", Draft202012Validator)
    for error in validator(validator.META_SCHEMA, format_checker=validator.FORMAT_CHECKER).iter_errors(schema):
        yield tuple(error.absolute_path)


def answer_fault(schema: Json, answer: object) -> str:
    """Return the first error in an answer, with its place, for the model; empty if it matches the schema.

    `schema` is one without an `answer_schema_fault`.
    """
    if too_deep(answer):
        return "it is nested too deeply"
    try:
        error = next(_Validation(schema).errors(answer), None)
    except RecursionError:
        return "it is nested too deeply"
    return f"`{_place(error)}`: {_short(error.message)}" if error else ""


class _Validation:
    """Check of one answer. Remembers the first error of each alternative for each part of the answer."""

    def __init__(self, schema: Json) -> None:
        self._known: dict[tuple[int, int], ValidationError | None] = {}
        self._patterns: dict[str, SchemaValidator] = {}
        keywords = {
            "anyOf": self._any_of,
            "oneOf": self._one_of,
            "pattern": self._pattern,
            "patternProperties": self._pattern_properties,
            "additionalProperties": self._additional_properties,
        }
        self._validator = cast("Any", validators).extend(_draft(schema), keywords)(_root(schema))

    def errors(self, answer: object) -> Iterator[ValidationError]:
        """Yield the errors, lazily."""
        return self._validator.iter_errors(answer)

    def _first_error(self, validator: Any, part: object, value: object) -> ValidationError | None:
        key = id(part), id(value)
        if key not in self._known:
            self._known[key] = next(validator.descend(value, part), None)
        return self._known[key]

    def _any_of(self, validator: Any, parts: list[object], value: object, schema: Json) -> Iterator[ValidationError]:
        errors = [self._first_error(validator, part, value) for part in parts]
        if None not in errors:
            # The alternative whose error is deepest is most likely the one that was meant.
            deepest = max((error for error in errors if error), key=lambda error: len(error.relative_path))
            yield ValidationError(deepest.message, path=tuple(deepest.relative_path))

    def _one_of(self, validator: Any, parts: list[object], value: object, schema: Json) -> Iterator[ValidationError]:
        yield from self._any_of(validator, parts, value, schema)
        if [self._first_error(validator, part, value) for part in parts].count(None) > 1:
            yield ValidationError("it matches more than one of the alternatives of `oneOf`")

    def _pattern(self, validator: Any, pattern: str, value: object, schema: Json) -> Iterator[ValidationError]:
        if isinstance(value, str) and not self._matches(pattern, value):
            yield ValidationError(f"{value!r:.200} does not match the pattern {pattern!r}")

    def _pattern_properties(
        self, validator: Any, parts: Json, value: object, schema: Json
    ) -> Iterator[ValidationError]:
        for name, field in cast("Json", value).items() if isinstance(value, dict) else ():
            for part in (part for pattern, part in parts.items() if self._matches(pattern, name)):
                yield from validator.descend(field, part, path=name)

    def _additional_properties(
        self, validator: Any, part: object, value: object, schema: Json
    ) -> Iterator[ValidationError]:
        declared: Json = schema.get("properties") or {}
        patterns: Json = schema.get("patternProperties") or {}
        for name, field in cast("Json", value).items() if isinstance(value, dict) else ():
            if name in declared or any(self._matches(pattern, name) for pattern in patterns):
                continue
            if part is False:
                yield ValidationError(
                    f"`{name}` is no field of the schema; its fields are {', '.join(declared) or '(none)'}"
                )
            else:
                yield from validator.descend(field, part, path=name)

    def _matches(self, pattern: str, text: str) -> bool:
        if pattern not in self._patterns:
            self._patterns[pattern] = _compiled(pattern)
        try:
            self._patterns[pattern].validate_python(text)
        except NoMatch:
            return False
        return True


def _compiled(pattern: str) -> SchemaValidator:
    return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))


def _node_fault(node: Json, root: Json) -> str:
    """Return what cannot be checked in a schema, without the schemas in it."""
    if words := sorted(_UNSUPPORTED & node.keys()):
        return f"`{words[0]}` in a part of the schema is not supported: refer to definitions with `#/$defs/NAME`"
    reference = node.get("$ref")
    if reference is not None and not isinstance(reference_target(reference, root), (dict, bool)):
        return f"`$ref` {reference!r:.200} names nothing in the schema: refer to a definition with `#/$defs/NAME`"
    named: object = node.get("patternProperties") or {}
    if named and "unevaluatedProperties" in node:
        return "`patternProperties` with `unevaluatedProperties` is not supported: use `additionalProperties`"
    for pattern in (node.get("pattern", ""), *(cast("Json", named) if isinstance(named, dict) else ())):
        if not isinstance(pattern, str):
            return "`pattern` of the schema must be a text"
        try:
            _compiled(pattern)
        except PatternError as error:
            reason = str(error).strip().splitlines()[-1].strip().removeprefix("error: ")
            return f"the pattern {pattern!r:.200} cannot be checked: {reason}"
    return ""


def _schemas(node: object) -> Iterator[Json]:
    """Yield a schema and the schemas in it."""
    if isinstance(node, list):
        for part in cast("list[object]", node):
            yield from _schemas(part)
    elif isinstance(node, dict):
        schema = cast("Json", node)
        yield schema
        for word, part in schema.items():
            if word in _NAMED and isinstance(part, dict):
                yield from _schemas(list(cast("Json", part).values()))
            elif word not in _TEXTUAL:
                yield from _schemas(part)


def _same_place(node: Json, root: Json) -> Iterator[Json]:
    """Yield the schemas that the same value must match, or may match, because it must match this one."""
    parts = [part for word in _ALTERNATIVES for part in cast("list[object]", node.get(word) or ())]
    parts += [node.get(word) for word in ("not", "if", "then", "else")]
    parts += [reference_target(node["$ref"], root)] if "$ref" in node else []
    dependent: object = node.get("dependentSchemas")
    parts += list(cast("Json", dependent).values()) if isinstance(dependent, dict) else []
    return (cast("Json", part) for part in parts if isinstance(part, dict))


def _root(schema: Json) -> Json:
    """Return the schema without its address and draft: references stay within it, and its draft is already chosen."""
    return {word: part for word, part in schema.items() if word not in ("$id", "id", "$schema")}


def _draft(schema: Json) -> Any:
    """Return the validator of the draft that a schema names."""
    try:
        return validators.validator_for({"$schema": str(schema.get("$schema", ""))}, default=Draft202012Validator)
    except ValueError:  # it is no address
        return Draft202012Validator


def _place(error: ValidationError) -> str:
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.absolute_path)
    return f"answer{''.join(steps)}"


def _short(message: str) -> str:
    return message if len(message) <= _LONGEST_MESSAGE else f"{message[:_LONGEST_MESSAGE]}..."

"""Parameters of a Python function as a JSON schema, and the conversion of a JSON object into arguments.

Pure. Decorating a function fails if JSON cannot express its parameters: a parameter without a type, `*args`, or a type
that pydantic does not support. Parameter names have no special meaning: a parameter may be called `self`, `context` or
`name`.

Descriptions come from docstrings in the styles of Google, NumPy and Sphinx. Schemas have the form that models read
best: references are expanded, titles removed.
"""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, Optional, Union, cast

import typing_extensions
from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticSerializationError, to_jsonable_python

from callboard.core.json_schema import all_finite
from callboard.core.validation import faults_of
from callboard.sdk.errors import NotTyped
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json

_NOTHING = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Argument:
    """One parameter."""

    name: str
    adapter: TypeAdapter[Any]
    schema: Json
    required: bool
    by_position: bool
    field: FieldInfo | None = None
    """Default of the function that is a `Field(...)` of pydantic."""


@dataclass(frozen=True, slots=True)
class FunctionParameters:
    """Parameters of a function. `special`: the parameter that the runtime fills; empty if there is none."""

    arguments: tuple[Argument, ...]
    special: str
    special_by_position: int | None
    summary: str
    returns: Any
    """Return annotation; `inspect.Parameter.empty` if there is none."""

    @property
    def schema(self) -> Json:
        """Return the JSON schema of the input: an object without additional properties."""
        required = [argument.name for argument in self.arguments if argument.required]
        schema: Json = {"type": "object", "properties": {argument.name: argument.schema for argument in self.arguments}}
        definitions = {
            name: definition for each in self.arguments for name, definition in each.schema.get("$defs", {}).items()
        }
        if definitions:
            bare = {
                argument.name: {k: v for k, v in argument.schema.items() if k != "$defs"} for argument in self.arguments
            }
            schema |= {"properties": bare, "$defs": definitions}
        return {**schema, **({"required": required} if required else {}), "additionalProperties": False}

    def bind(self, values_by_name: Mapping[str, Any], special: object = None) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments for a call. Raises `ValueError` that names each invalid field."""
        values: dict[str, Any] = {}
        wrong: list[str] = []
        for argument in self.arguments:
            if argument.name in values_by_name:
                try:
                    values[argument.name] = argument.adapter.validate_python(values_by_name[argument.name])
                except ValidationError as error:
                    wrong += faults_of(error, argument.name)
            elif argument.required:
                wrong.append(f"{argument.name}: is missing")
            elif argument.field is not None:  # the function itself would get the `Field` in place of its default
                values[argument.name] = argument.field.get_default(call_default_factory=True)
        names = {argument.name for argument in self.arguments}
        wrong += [f"{name}: there is no such argument" for name in values_by_name if name not in names]
        if wrong:
            raise ValueError("; ".join(wrong))
        return self._call(values, special)

    def dump(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Json:
        """Return the arguments of a call as JSON values. Raises `ValueError` for values that are not JSON."""
        by_order = [argument.name for argument in self.arguments]
        by_name = {**dict(zip(by_order, args, strict=False)), **kwargs}
        if len(args) > len(by_order):
            raise ValueError(f"it takes {len(by_order)} arguments, not {len(args)}")
        values = self.bind(by_name)
        if not is_finite(values):
            raise ValueError(NOT_FINITE)
        by_argument = {argument.name: argument for argument in self.arguments}
        return {name: by_argument[name].adapter.dump_python(value, mode="json") for name, value in by_name.items()}

    def _call(self, values: dict[str, Any], special: object) -> tuple[list[Any], dict[str, Any]]:
        args = [
            values.pop(argument.name) for argument in self.arguments if argument.by_position and argument.name in values
        ]
        if self.special and self.special_by_position is not None:
            args.insert(self.special_by_position, special)
        elif self.special:
            values[self.special] = special
        return args, values


def parameters_of(function: Callable[..., Any], subject: str, special: type | None = None) -> FunctionParameters:
    """Read the parameters of a function.

    `subject`: its name in messages, such as `tool "search"`. `special`: the class of the parameter that the runtime
    fills. Raises `NotTyped`.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise NotTyped(f"{subject}: {function!r} has no signature that can be read: write a function") from error
    hints = _hints(function, subject)
    docs = parse_docstring(inspect.getdoc(function))
    arguments: list[Argument] = []
    name = ""
    place = None
    for parameter in signature.parameters.values():
        hint = hints.get(parameter.name, _NOTHING)
        if special is not None and _is_special(hint, special):
            if name:
                raise NotTyped(f"{subject}: `{name}` and `{parameter.name}` are both a {special.__name__}: keep one")
            name = parameter.name
            place = len(arguments) if parameter.kind is parameter.POSITIONAL_ONLY else None
            continue
        arguments.append(_argument(parameter, hint, docs.parameters.get(parameter.name, ""), subject))
    return FunctionParameters(tuple(arguments), name, place, docs.summary, hints.get("return", _NOTHING))


def _is_special(hint: Any, special: type) -> bool:
    """Return True for the class, and for `class | None`, as functions write that tests call without it."""
    return hint is special or (
        typing.get_origin(hint) in (Union, UnionType) and set(typing.get_args(hint)) == {special, NoneType}
    )


def _hints(function: Callable[..., Any], subject: str) -> dict[str, Any]:
    """Evaluate the annotations in the scope of the function, including classes that an enclosing function defines."""
    outer: dict[str, Any] = {}
    frame = inspect.currentframe()  # if annotations are strings, the local classes of a function are found only here
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith("callboard.sdk"):
        frame = frame.f_back
    if frame is not None:
        outer = dict(frame.f_locals)
    plain = _annotated(function)
    closed = getattr(plain, "__closure__", None) or ()
    free = getattr(getattr(plain, "__code__", None), "co_freevars", ())
    outer |= {name: cell.cell_contents for name, cell in zip(free, closed, strict=False) if _filled(cell)}
    try:
        return typing_extensions.get_type_hints(plain, localns=outer, include_extras=True)
    except (NameError, TypeError, SyntaxError, AttributeError) as error:
        raise NotTyped(f"{subject}: a type cannot be read: {error}: import it in the module of the function") from error


def _annotated(function: Callable[..., Any]) -> Any:
    """Return the function or method with the annotations: that of a partial, or of an object that can be called."""
    plain: Any = inspect.unwrap(function)
    while isinstance(plain, functools.partial):
        plain = inspect.unwrap(cast("functools.partial[Any]", plain).func)
    return plain if inspect.isroutine(plain) or isinstance(plain, type) else type(plain).__call__


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _argument(parameter: inspect.Parameter, hint: Any, about_it: str, subject: str) -> Argument:
    where = f"{subject}: parameter `{parameter.name}`"
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
        raise NotTyped(f"{subject}: `{stars}{parameter.name}` cannot be described: name each parameter, or take a list")
    if hint is _NOTHING:
        method = ", or, if it is a method, make the tool from that of an object, as `tool(desk.book)`"
        advice = f"write one, as `{parameter.name}: str`{method if parameter.name == 'self' else ''}"
        raise NotTyped(f"{where} has no type: {advice}")
    default: object = parameter.default
    field = default if isinstance(default, FieldInfo) else None
    if field is not None:
        hint = Annotated[hint, field]
        default = _NOTHING if field.is_required() else field.get_default(call_default_factory=True)
    adapter = adapter_of(hint, where)
    if default is None and not _takes_null(adapter):  # `text: str = None`: models send the default that they read
        adapter = adapter_of(Optional[hint], where)  # noqa: UP045 - not every hint has `|`
    schema = schema_of(adapter, where)
    if about := _parameter_description(hint) or about_it:
        schema = {**schema, "description": about}
    if default is not _NOTHING:
        schema |= _default(adapter, default)
    by_position = parameter.kind is parameter.POSITIONAL_ONLY
    return Argument(parameter.name, adapter, schema, default is _NOTHING, by_position, field)


def adapter_of(hint: Any, where: str) -> TypeAdapter[Any]:
    """Return the adapter that checks values of a type. Raises `NotTyped` for a type that pydantic does not know."""
    try:
        return TypeAdapter(modern(hint))
    except (PydanticUserError, TypeError, NameError) as error:
        reason = str(error).strip().splitlines()[0].partition(". ")[0]
        raise NotTyped(f"{where}: {_type_text(hint)} cannot be read from JSON ({reason}): use a plain type") from error


NOT_FINITE = "NaN and infinity cannot be expressed in JSON: use null or a text"


def is_finite(value: object) -> bool:
    """Return False if the value, of any type, contains NaN or infinity."""
    try:
        # An adapter would write null for a NaN inside an untyped value. Types that are unknown here have no numbers.
        return all_finite(to_jsonable_python(value, fallback=str))
    except (PydanticSerializationError, UnicodeDecodeError):
        return True


def schema_of(adapter: TypeAdapter[Any], where: str) -> Json:
    """Return the JSON schema of a type. Raises `NotTyped` for a type without one."""
    try:
        return inline_definitions(adapter.json_schema())
    except PydanticUserError as error:
        reason = str(error).strip().splitlines()[0].partition(". ")[0]
        raise NotTyped(f"{where}: it cannot be expressed in JSON ({reason}): use a plain type") from error


def modern(hint: Any) -> Any:
    """Return the type with each `typing.TypedDict` in the form that pydantic reads on every version of Python."""
    if typing_extensions.is_typeddict(hint) and type(hint).__module__ == "typing":
        return _twin(hint)
    inner = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if not inner or origin is typing.Literal:
        return hint
    if origin is Annotated:
        return Annotated[(modern(inner[0]), *inner[1:])]  # pyright: ignore[reportInvalidTypeArguments] - built from the parts of another one
    parts = cast("tuple[object, ...]", inner)
    changed: tuple[Any, ...] = tuple(_modern_part(part) for part in parts)
    if changed == inner:
        return hint
    return Union[changed] if origin in (Union, UnionType) else origin[changed]  # noqa: UP007 - built from a tuple of types, which `|` cannot take


def _modern_part(part: object) -> object:
    """Convert a part of a type. The parameter list of a callable is not changed."""
    return cast("object", part) if isinstance(part, list) else modern(part)


def _twin(kind: Any) -> Any:
    """Return the `TypedDict` in the form that pydantic reads.

    If its annotations are strings, `NotRequired` is found only by evaluating them.
    """
    fields: dict[str, Any] = {}
    for name, hint in typing_extensions.get_type_hints(kind, include_extras=True).items():
        mark = typing.get_origin(hint)
        marked = mark in (typing.Required, typing.NotRequired)
        needed = mark is typing.Required if marked else name in kind.__required_keys__
        plain = modern(typing.get_args(hint)[0] if marked else hint)
        fields[name] = plain if needed else typing_extensions.NotRequired[plain]
    made = cast("Any", typing_extensions.TypedDict)(kind.__name__, fields)
    made.__doc__ = kind.__doc__
    return made


def _parameter_description(hint: Any) -> str:
    """Return the description of a parameter in its `Annotated`: a text, or pydantic's `Field(description=...)`."""
    for note in typing.get_args(hint)[1:] if typing.get_origin(hint) is Annotated else ():
        if isinstance(note, str):
            return note
        if isinstance(note, FieldInfo) and note.description:
            return note.description
    return ""


def _default(adapter: TypeAdapter[Any], value: object) -> Json:
    """Return the schema's `default` for the model to read; empty for a value that JSON cannot express."""
    try:
        return {"default": adapter.dump_python(value, mode="json", warnings="error")}
    except (ValueError, TypeError):
        return {}


def _takes_null(adapter: TypeAdapter[Any]) -> bool:
    try:
        adapter.validate_python(None)
    except ValidationError:
        return False
    return True


def _type_text(hint: Any) -> str:
    return getattr(hint, "__name__", None) or str(hint)


_SECTION = late_pattern(
    r"(args|arguments|parameters|params|keyword args|other parameters|returns?|raises|yields?|examples?|notes?|see also"
    r"|attributes|warns?|warnings?|references|todo):?",
    re.IGNORECASE,
)
_OF_PARAMETERS = frozenset({"args", "arguments", "parameters", "params", "keyword args", "other parameters"})
_FIELD = late_pattern(r":(param|parameter|arg|argument)\s+(?:[^:]*\s)?\*{0,2}(?P<name>\w+)\s*:\s*(?P<text>.*)")
_GOOGLE = late_pattern(r"\*{0,2}(?P<name>\w+)\s*(?:\([^)]*\))?\s*:\s*(?P<text>.*)")
_NUMPY = late_pattern(r"\*{0,2}(?P<names>\w+(?:\s*,\s*\w+)*)\s*(?::.*)?")


class Described(NamedTuple):
    """Parsed docstring."""

    summary: str
    """Text outside any section and field."""
    parameters: dict[str, str]
    """Parameter -> its description."""


def parse_docstring(text: str | None) -> Described:
    """Parse a docstring; the result is empty for None."""
    lines = inspect.cleandoc(text or "").splitlines()
    summary: list[str] = []
    parameters: dict[str, str] = {}
    place = 0
    while place < len(lines):
        name, body = _section(lines, place)
        if name:
            place = _end(lines, body)
            parameters |= dict(_parameters(lines[body:place])) if name in _OF_PARAMETERS else {}
        elif lines[place].lstrip().startswith(":") and (field := lines[place].strip()):
            place = _sphinx(lines, place, field, parameters)
        else:
            summary.append(lines[place])
            place += 1
    return Described("\n".join(summary).strip(), parameters)


def _section(lines: Sequence[str], place: int) -> tuple[str, int]:
    """Return the name of the section that begins here, in lower case, and the first line of its body.

    The name is empty if no section begins here.
    """
    line = lines[place]
    if line[:1].isspace() or not _SECTION.fullmatch(line.strip()):
        return "", place
    below = lines[place + 1].strip() if place + 1 < len(lines) else ""
    if below and set(below) == {"-"}:
        return line.strip().rstrip(":").lower(), place + 2
    return (line.strip()[:-1].lower(), place + 1) if line.strip().endswith(":") else ("", place)


def _end(lines: Sequence[str], body: int) -> int:
    """Return the line at which the section with this first body line ends."""
    for place in range(body, len(lines)):
        if _section(lines, place)[0]:
            return place
        if lines[place] and not lines[place][0].isspace() and not lines[place - 1].strip() and _google(lines, body):
            return place
    return len(lines)


def _google(lines: Sequence[str], body: int) -> bool:
    """Return True if the body of the section is indented."""
    return next((line[0].isspace() for line in lines[body:] if line.strip()), False)


def _parameters(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each parameter of a section with its text."""
    depth = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    names: list[str] = []
    text_lines: list[str] = []
    for line in [*lines, " " * depth + "_end_:"]:
        head = line[depth : depth + 1]
        if not head or head.isspace():
            text_lines.append(line.strip())
            continue
        yield from ((name, " ".join(filter(None, text_lines))) for name in names if any(text_lines))
        google = _GOOGLE.fullmatch(line.strip()) if depth else None
        others = _NUMPY.fullmatch(line.strip())
        names = [google["name"]] if google else re.split(r"\s*,\s*", others["names"]) if others else []
        text_lines = [google["text"]] if google else []


def _sphinx(lines: Sequence[str], place: int, field: str, parameters: dict[str, str]) -> int:
    """Read a field such as `:param x: text` with the indented lines below it. Return the line after them."""
    end = place + 1
    while end < len(lines) and lines[end].strip() and lines[end][0].isspace():
        end += 1
    match = _FIELD.fullmatch(field)
    if match is not None:
        continuation = [line.strip() for line in lines[place + 1 : end]]
        parameters[match["name"]] = " ".join(filter(None, [match["text"], *continuation]))
    return end


def inline_definitions(schema: Json) -> Json:
    """Return the schema with its definitions expanded in place.

    A schema that contains itself (a tree) keeps its `$defs`.
    """
    definitions = cast("Json", schema.get("$defs", {}))
    if any(_recursive(name, definitions, ()) for name in definitions):
        return cast("Json", _plain(schema, {}))
    body = {key: value for key, value in schema.items() if key != "$defs"}
    return cast("Json", _plain(body, definitions))


def _recursive(name: str, definitions: Json, above: tuple[str, ...]) -> bool:
    if name in above:
        return True
    return any(_recursive(inner, definitions, (*above, name)) for inner in _definition_names(definitions.get(name)))


def _definition_names(node: object) -> set[str]:
    """Return the names of the definitions that a schema refers to."""
    if isinstance(node, list):
        return {name for item in cast("list[object]", node) for name in _definition_names(item)}
    if not isinstance(node, dict):
        return set()
    schema = cast("Json", node)
    own = {_name(schema["$ref"])} if isinstance(schema.get("$ref"), str) else set[str]()
    return own.union(*(_definition_names(value) for value in schema.values()))


def _name(reference: object) -> str:
    return str(reference).rsplit("/", 1)[-1]


def _plain(node: Any, definitions: Json) -> Any:
    if isinstance(node, list):
        return [_plain(item, definitions) for item in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    schema = cast("Json", node)
    if "$ref" in schema and _name(schema["$ref"]) in definitions:
        target = _plain(definitions[_name(schema["$ref"])], definitions)
        return {**target, **{key: _plain(value, definitions) for key, value in schema.items() if key != "$ref"}}
    plain: Json = {}
    for key, value in schema.items():
        if key in ("properties", "$defs"):
            plain[key] = {name: _plain(field, definitions) for name, field in cast("Json", value).items()}
        elif key == "const" or key == "default" or key == "enum":
            plain[key] = value
        elif key != "title":
            plain[key] = _plain(value, definitions)
    return plain

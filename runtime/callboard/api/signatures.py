"""What a Python function takes, as a JSON schema, and how a JSON object becomes its arguments.

Refuses, when the function is decorated and not when it is called, whatever cannot be said in JSON: a parameter without
a type, `*args`, a type that pydantic does not know. No name of a parameter means anything here: a parameter may be
called `self`, `context` or `name`, and arguments never land anywhere else than in theirs.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Union, cast

import typing_extensions
from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo

from callboard.api.docstrings import described
from callboard.api.errors import NotTyped
from callboard.api.schemas import inlined
from callboard.words.values import Json

_NOTHING = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Argument:
    """One parameter."""

    name: str
    adapter: TypeAdapter[Any]
    schema: Json
    required: bool
    by_position: bool


@dataclass(frozen=True, slots=True)
class Taken:
    """What a function takes. `special`: the parameter that gets the runtime's own value, empty for none."""

    arguments: tuple[Argument, ...]
    special: str
    special_by_position: int | None
    summary: str
    returns: Any
    """The annotation of its result; `inspect.Parameter.empty` where it has none."""

    @property
    def schema(self) -> Json:
        """The JSON schema of its input: an object that takes nothing else."""
        required = [one.name for one in self.arguments if one.required]
        found: Json = {"type": "object", "properties": {one.name: one.schema for one in self.arguments}}
        definitions = {name: one for each in self.arguments for name, one in each.schema.get("$defs", {}).items()}
        if definitions:
            bare = {one.name: {k: v for k, v in one.schema.items() if k != "$defs"} for one in self.arguments}
            found |= {"properties": bare, "$defs": definitions}
        return {**found, **({"required": required} if required else {}), "additionalProperties": False}

    def bind(self, given: Mapping[str, Any], special: object = None) -> tuple[list[Any], dict[str, Any]]:
        """The arguments for a call. Raises `ValueError` that names each field that does not fit."""
        values: dict[str, Any] = {}
        wrong: list[str] = []
        for one in self.arguments:
            if one.name in given:
                try:
                    values[one.name] = one.adapter.validate_python(given[one.name])
                except ValidationError as error:
                    wrong += faults_of(error, one.name)
            elif one.required:
                wrong.append(f"{one.name}: is missing")
        known = {one.name for one in self.arguments}
        wrong += [f"{name}: there is no such argument" for name in given if name not in known]
        if wrong:
            raise ValueError("; ".join(wrong))
        return self._call(values, special)

    def dump(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Json:
        """Arguments of a call as JSON values. Raises `ValueError` for those that do not fit."""
        by_order = [one.name for one in self.arguments]
        given = {**dict(zip(by_order, args, strict=False)), **kwargs}
        if len(args) > len(by_order):
            raise ValueError(f"it takes {len(by_order)} arguments, not {len(args)}")
        self.bind(given)
        known = {one.name: one for one in self.arguments}
        return {name: known[name].adapter.dump_python(value, mode="json") for name, value in given.items()}

    def _call(self, values: dict[str, Any], special: object) -> tuple[list[Any], dict[str, Any]]:
        args = [values.pop(one.name) for one in self.arguments if one.by_position and one.name in values]
        if self.special and self.special_by_position is not None:
            args.insert(self.special_by_position, special)
        elif self.special:
            values[self.special] = special
        return args, values


def faults_of(error: ValidationError, where: str = "") -> list[str]:
    """What is wrong, a line for each field, for whoever gave the value."""
    found: list[str] = []
    for fault in error.errors(include_url=False, include_input=False, include_context=False):
        place = ".".join(str(part) for part in ([where] if where else []) + list(fault["loc"]))
        found.append(f"{place}: {fault['msg']}" if place else fault["msg"])
    return found


def taken_by(function: Callable[..., Any], what: str, special: type | None = None) -> Taken:
    """What the function takes. `what`: how messages call it, as `tool "search"`. `special`: the class of the parameter
    that the runtime fills. Raises `NotTyped`."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise NotTyped(f"{what}: {function!r} has no signature that can be read: write a function") from error
    hints = _hints(function, what)
    docs = described(inspect.getdoc(function))
    arguments: list[Argument] = []
    name, place = "", None
    for parameter in signature.parameters.values():
        hint = hints.get(parameter.name, _NOTHING)
        if special is not None and hint is special:
            name = parameter.name
            place = len(arguments) if parameter.kind is parameter.POSITIONAL_ONLY else None
            continue
        arguments.append(_argument(parameter, hint, docs.parameters.get(parameter.name, ""), what))
    return Taken(tuple(arguments), name, place, docs.summary, hints.get("return", _NOTHING))


def _hints(function: Callable[..., Any], what: str) -> dict[str, Any]:
    """The annotations, evaluated where the function was written: also those of classes in a function round it."""
    outer: dict[str, Any] = {}
    frame = inspect.currentframe()  # where annotations are texts, classes of a function are found nowhere else
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith("callboard.api"):
        frame = frame.f_back
    if frame is not None:
        outer = dict(frame.f_locals)
    plain = inspect.unwrap(function)
    closed = getattr(plain, "__closure__", None) or ()
    free = getattr(getattr(plain, "__code__", None), "co_freevars", ())
    outer |= {one: cell.cell_contents for one, cell in zip(free, closed, strict=False) if _filled(cell)}
    try:
        return typing_extensions.get_type_hints(plain, localns=outer, include_extras=True)
    except (NameError, TypeError, SyntaxError, AttributeError) as error:
        raise NotTyped(f"{what}: a type cannot be read: {error}: import it where the function stands") from error


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _argument(parameter: inspect.Parameter, hint: Any, said: str, what: str) -> Argument:
    where = f"{what}: parameter `{parameter.name}`"
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
        raise NotTyped(f"{what}: `{stars}{parameter.name}` cannot be described: name each parameter, or take a list")
    if hint is _NOTHING:
        raise NotTyped(f"{where} has no type: write one, as `{parameter.name}: str`")
    adapter = adapter_of(hint, where)
    schema = schema_of(adapter, where)
    if about := _about(hint) or said:
        schema = {**schema, "description": about}
    if parameter.default is not _NOTHING:
        schema |= _default(adapter, parameter.default)
    by_position = parameter.kind is parameter.POSITIONAL_ONLY
    return Argument(parameter.name, adapter, schema, parameter.default is _NOTHING, by_position)


def adapter_of(hint: Any, where: str) -> TypeAdapter[Any]:
    """What checks values of a type. Raises `NotTyped` for one that pydantic does not know."""
    try:
        return TypeAdapter(modern(hint))
    except (PydanticUserError, TypeError, NameError) as error:
        told = str(error).strip().splitlines()[0].partition(". ")[0]
        raise NotTyped(f"{where}: {_shown(hint)} cannot be read from JSON ({told}): use a plain type") from error


def schema_of(adapter: TypeAdapter[Any], where: str) -> Json:
    """The JSON schema of a type. Raises `NotTyped` for one that has none."""
    try:
        return inlined(adapter.json_schema())
    except PydanticUserError as error:
        told = str(error).strip().splitlines()[0].partition(". ")[0]
        raise NotTyped(f"{where}: it cannot be said in JSON ({told}): use a plain type") from error


def modern(hint: Any) -> Any:
    """The type with each `typing.TypedDict` as pydantic reads it on every Python."""
    if typing_extensions.is_typeddict(hint) and type(hint).__module__ == "typing":
        return _twin(hint)
    inner = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if not inner or origin is typing.Literal:
        return hint
    if origin is Annotated:
        return Annotated[(modern(inner[0]), *inner[1:])]  # pyright: ignore[reportInvalidTypeArguments]  # its parts
    parts = cast("tuple[object, ...]", inner)
    changed: tuple[Any, ...] = tuple(_modern_part(one) for one in parts)
    if changed == inner:
        return hint
    return Union[changed] if origin in (Union, UnionType) else origin[changed]  # noqa: UP007  # made of parts


def _modern_part(part: object) -> object:
    """A part of a type; of a callable, its list of parameters stays."""
    return cast("object", part) if isinstance(part, list) else modern(part)


def _twin(kind: Any) -> Any:
    """The same `TypedDict`, as pydantic reads it. Where annotations are texts, what is not required stands in them."""
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


def _about(hint: Any) -> str:
    """What `Annotated` says of a parameter: a text, or pydantic's `Field(description=...)`."""
    for one in typing.get_args(hint)[1:] if typing.get_origin(hint) is Annotated else ():
        if isinstance(one, str):
            return one
        if isinstance(one, FieldInfo) and one.description:
            return one.description
    return ""


def _default(adapter: TypeAdapter[Any], value: object) -> Json:
    """The default for the model to read, where JSON can say it."""
    try:
        return {"default": adapter.dump_python(value, mode="json", warnings="error")}
    except (ValueError, TypeError):
        return {}


def _shown(hint: Any) -> str:
    return getattr(hint, "__name__", None) or str(hint)

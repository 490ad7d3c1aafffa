"""Input of calls to judge, as people and programs write them: one JSON object. Pure.

Names are the runtime's or the compatible ones. Nothing is guessed. Input that is not understood, contains a NUL
character or has another type where text is required is an `InvalidCall`, which the caller treats as a denial.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import NoReturn, cast, get_args

from callboard.core.hooks.payloads import FIELDS
from callboard.core.permissions.file_tools import FILE_TOOLS
from callboard.core.permissions.rules import parse_rule
from callboard.core.permissions.values import EffectClass, Mode, Rule
from callboard.core.tool_access import COMPATIBLE
from callboard.types.choices import unknown
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json

MODES: Mapping[str, Mode] = MappingProxyType(
    {**{mode: mode for mode in cast("tuple[Mode, ...]", get_args(Mode))}, "manual": "default", "auto": "default"}
)
"""Every name of a mode, and the runtime's mode for it. There is no classifier, so `auto` asks like `default`."""

_KEYS = ("tool", "input", "mode", "rules", "cwd")
_LISTS = ("allow", "ask", "deny")
_MORE_FIELDS: Mapping[str, str] = MappingProxyType({"file_path": "path", "notebook_path": "path"})
"""Further field names of the file tools."""


class InvalidCall(ValueError):
    """Error that describes a mistake in a call to its author."""


@dataclass(frozen=True, slots=True)
class ToolTraits:
    """Facts about a tool: its effect class, and the text fields of its input."""

    effect: EffectClass
    texts: frozenset[str] = frozenset()
    destructive: bool = False


@dataclass(frozen=True, slots=True)
class InputRules:
    """Rules that are part of a call's input."""

    allow: tuple[Rule, ...] = ()
    ask: tuple[Rule, ...] = ()
    deny: tuple[Rule, ...] = ()
    read_only: bool = False
    """True if the agent is of a read-only type."""


@dataclass(frozen=True, slots=True)
class EnteredCall:
    """A call as entered, in the runtime's names. `folder`: the agent's folder, empty for the workspace itself."""

    tool: str
    input: Mapping[str, object]
    mode: Mode = "default"
    rules: InputRules = field(default_factory=InputRules)
    folder: str = ""


def read_line(line: bytes, tools: Mapping[str, ToolTraits]) -> EnteredCall:
    """Read the call on one line of JSON (UTF-8). Raises `InvalidCall`."""
    return read_call(_json_of(line, "the line"), tools)


def _json_of(raw: bytes, label: str) -> object:
    """Parse JSON strictly: UTF-8, no duplicate names, no NaN."""
    try:
        return json.loads(raw.decode("utf-8"), object_pairs_hook=_object, parse_constant=_no_number)
    except UnicodeDecodeError as wrong:
        raise InvalidCall(f"{label} is not UTF-8 (byte {wrong.start})") from wrong
    except json.JSONDecodeError as wrong:
        raise InvalidCall(f"{label} is not JSON: {wrong.msg} at character {wrong.pos}") from wrong
    except RecursionError as wrong:
        raise InvalidCall("the JSON is nested too deep") from wrong
    except ValueError as wrong:
        raise InvalidCall(str(wrong)[:200]) from wrong


def call_of_words(tool: str, text: str, tools: Mapping[str, ToolTraits]) -> tuple[str, Mapping[str, object]]:
    """Return the tool and its input from text that a person types: a command, a path for a file tool, otherwise JSON.

    A rule for one call, `Bash(git status)` or `Read(a.txt)`, is read as that call. Raises `InvalidCall`, also for a
    rule for many calls.
    """
    if (rule := _written_as_rule(text, tools)) is not None:
        if rule.specifier is None or "*" in rule.specifier or rule.specifier.endswith(":"):
            raise InvalidCall(f"{text.strip()} is a rule for many calls: write one of them, such as `git status`")
        tool = rule.tool
        text = rule.specifier
    name = our_tool(tool)
    if name == "bash" and not text.lstrip().startswith("{"):
        data: object = {"command": text}
    elif name in FILE_TOOLS and not text.lstrip().startswith("{"):
        data = {"path": text}
    else:
        data = _json_of(text.encode("utf-8", "surrogateescape"), "the input")
    _refuse_nul(data)
    return _input_of(tool, data, tools)


def _written_as_rule(text: str, tools: Mapping[str, ToolTraits]) -> Rule | None:
    """Return the rule that a text is; None for any other text. `f(x)` in a shell is a mistake, so nothing is lost."""
    if not text.rstrip().endswith(")") or "(" not in text:
        return None
    try:
        rule = parse_rule(text)
    except ValueError:
        return None
    return rule if our_tool(rule.tool) in tools else None


def read_call(data: object, tools: Mapping[str, ToolTraits]) -> EnteredCall:
    """Read the call in a JSON object. Raises `InvalidCall`."""
    if not isinstance(data, dict):
        raise InvalidCall(f"a call is a JSON object with `tool` and `input`, not {_kind(data)}")
    call = cast("Json", data)
    for name in call:
        if name not in _KEYS and (close := difflib.get_close_matches(name.lower(), _KEYS, n=1, cutoff=0.75)):
            raise InvalidCall(f"unknown field {_quoted(name)}: choose {close[0]}")
    _refuse_nul({name: call[name] for name in _KEYS if name in call})
    tool, fields = _input_of(_text(call, "tool"), call.get("input"), tools)
    if not tool:
        raise InvalidCall("`tool` names no tool")
    mode = _text(call, "mode") if call.get("mode") is not None else "default"
    if mode not in MODES:
        raise InvalidCall(unknown("mode", mode[:60], MODES))
    folder = _text(call, "cwd") if call.get("cwd") is not None else ""
    return EnteredCall(tool, fields, MODES[mode], read_rules(call.get("rules")), folder)


def read_rules(data: object) -> InputRules:
    """Read the rules of a JSON object with lists `allow`, `ask`, `deny`.

    Raises `InvalidCall`, also for a text that is not a rule.
    """
    if data is None:
        return InputRules()
    if not isinstance(data, dict):
        raise InvalidCall(f"`rules` is an object with lists `allow`, `ask`, `deny`, not {_kind(data)}")
    lists = cast("Json", data)
    if odd := next((name for name in lists if name not in _LISTS), None):
        raise InvalidCall(unknown("list of rules", odd[:60], _LISTS))
    lists_by_name = {name: tuple(_rules_in(lists[name], name)) for name in lists}
    return InputRules(lists_by_name.get("allow", ()), lists_by_name.get("ask", ()), lists_by_name.get("deny", ()))


def _rules_in(data: object, name: str) -> Iterator[Rule]:
    if data is None:
        return
    if not isinstance(data, list):
        raise InvalidCall(f"`rules.{name}` is a list of texts, not {_kind(data)}")
    for text in cast("Sequence[object]", data):
        if not isinstance(text, str):
            raise InvalidCall(f"a rule in `rules.{name}` is {_kind(text)}, not a text")
        try:
            yield parse_rule(text)
        except ValueError as wrong:
            raise InvalidCall(f"`rules.{name}`: {wrong}") from wrong


def our_tool(name: str) -> str:
    """Return the runtime's name of a tool; an unknown name is returned unchanged.

    If a name matches two tools, the first is returned.
    """
    return next(iter(COMPATIBLE.get(name, ())), name)


def _input_of(name: str, data: object, tools: Mapping[str, ToolTraits]) -> tuple[str, Mapping[str, object]]:
    """Return the runtime's tool, and the input in its fields."""
    tool = our_tool(name)
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise InvalidCall(f"`input` is an object, not {_kind(data)}")
    own_fields = {their_field: field for field, their_field in FIELDS.get(tool, {}).items()}
    if tool in FILE_TOOLS:
        own_fields |= _MORE_FIELDS
    fields: dict[str, object] = {}
    for their_field, value in cast("Json", data).items():
        name = own_fields.get(their_field, their_field)
        if name in fields and fields[name] != value:
            raise InvalidCall(f"the input gives `{name}` twice, and differently")
        fields[name] = value
    if tool == "bash" and "command" not in fields:
        raise InvalidCall("the input of bash has no `command`")
    texts = tools[tool].texts if tool in tools else ()
    if odd := next((name for name in texts if name in fields and not isinstance(fields[name], str)), None):
        raise InvalidCall(f"the input's `{odd}` is {_kind(fields[odd])}, not a text")
    return tool, fields


def _text(call: Json, name: str) -> str:
    value = call.get(name)
    if not isinstance(value, str):
        raise InvalidCall(f"`{name}` is {_kind(value)}, not a text" if name in call else f"there is no `{name}`")
    return value


def _refuse_nul(value: object) -> None:
    """Check the whole input for NUL characters. The reader limits its nesting."""
    todo = [value]
    while todo:
        each = todo.pop()
        if isinstance(each, str) and "\0" in each:
            raise InvalidCall("a value holds a NUL character")
        if isinstance(each, dict):
            todo += [part for pair in cast("Json", each).items() for part in pair]
        elif isinstance(each, list):
            todo += cast("list[object]", each)


def _object(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("the JSON has an object with the same name twice")
    return members


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"it is not JSON: it holds {text}")


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "a text"
        case list():
            return "a list"
        case _:
            return "an object"


def _quoted(text: str) -> str:
    return repr(text[:60])

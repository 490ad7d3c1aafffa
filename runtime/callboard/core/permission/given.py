"""Calls to be judged as people and programs write them: one JSON object, in our names or the compatible ones. Pure.

Nothing is guessed: what is not understood, holds a NUL character or is no text where text is due is a `Misread`, which
whoever asks counts as a denial.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NoReturn, cast, get_args

from callboard.core.hooks.names import FIELDS
from callboard.core.permission.rules import parse_rule
from callboard.core.permission.values import EffectClass, Mode, Rule
from callboard.core.toolset import COMPATIBLE
from callboard.words.values import Json

MODES: Mapping[str, Mode] = MappingProxyType(
    {**{mode: mode for mode in cast("tuple[Mode, ...]", get_args(Mode))}, "manual": "default", "auto": "default"}
)
"""Every name of a mode, and the mode that it stands for here. There is no classifier, so `auto` asks as `default` does.
"""

_KEYS = ("tool", "input", "mode", "rules", "cwd")
_LISTS = ("allow", "ask", "deny")
_MORE_NAMES: Mapping[str, str] = MappingProxyType(
    {"MultiEdit": "edit_file", "NotebookEdit": "edit_file", "NotebookRead": "read_file", "LS": "glob"}
)
"""Names of file tools that others have, beside `COMPATIBLE`, and what they come to."""
_MORE_FIELDS: Mapping[str, str] = MappingProxyType({"file_path": "path", "notebook_path": "path"})
"""Of the file tools."""
_FILE_TOOLS = frozenset({"read_file", "write_file", "edit_file", "glob", "grep"})


class Misread(ValueError):
    """What is wrong with a call, for who wrote it."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a tool: its effect class, and which fields of its input are text."""

    effect: EffectClass
    texts: frozenset[str] = frozenset()
    destructive: bool = False


@dataclass(frozen=True, slots=True)
class GivenRules:
    """The rules that came with a call."""

    allow: tuple[Rule, ...] = ()
    ask: tuple[Rule, ...] = ()
    deny: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True)
class GivenCall:
    """A call as it was given, in our names. `folder`: the agent's, empty for the workspace itself."""

    tool: str
    input: Mapping[str, object]
    mode: Mode = "default"
    rules: GivenRules = field(default_factory=GivenRules)
    folder: str = ""


def read_line(line: bytes, known: Mapping[str, Known]) -> GivenCall:
    """The call on one line of JSON (UTF-8). Raises `Misread`."""
    return read_given(_json_of(line, "the line"), known)


def _json_of(raw: bytes, what: str) -> object:
    """Strictly: UTF-8, no name twice, no NaN."""
    try:
        return json.loads(raw.decode("utf-8"), object_pairs_hook=_object, parse_constant=_no_number)
    except UnicodeDecodeError as wrong:
        raise Misread(f"{what} is not UTF-8 (byte {wrong.start})") from wrong
    except json.JSONDecodeError as wrong:
        raise Misread(f"{what} is not JSON: {wrong.msg} at character {wrong.pos}") from wrong
    except RecursionError as wrong:
        raise Misread("the JSON is nested too deep") from wrong
    except ValueError as wrong:
        raise Misread(str(wrong)[:200]) from wrong


def call_of_words(tool: str, text: str, known: Mapping[str, Known]) -> tuple[str, Mapping[str, object]]:
    """Our tool and its input, as a person types it: a command, a path for a file tool, else JSON. Raises `Misread`."""
    name = our_tool(tool)
    if name == "bash" and not text.lstrip().startswith("{"):
        given: object = {"command": text}
    elif name in _FILE_TOOLS and not text.lstrip().startswith("{"):
        given = {"path": text}
    else:
        given = _json_of(text.encode("utf-8", "surrogateescape"), "the input")
    _refuse_nul(given)
    return _input_of(tool, given, known)


def read_given(given: object, known: Mapping[str, Known]) -> GivenCall:
    """The call that a JSON object states. Raises `Misread`."""
    if not isinstance(given, dict):
        raise Misread(f"a call is a JSON object with `tool` and `input`, not {_kind(given)}")
    call = cast("Json", given)
    for name in call:
        if name not in _KEYS and (close := difflib.get_close_matches(name.lower(), _KEYS, n=1, cutoff=0.75)):
            raise Misread(f"there is no field {_shown(name)}; did you mean `{close[0]}`?")
    _refuse_nul({name: call[name] for name in _KEYS if name in call})
    tool, fields = _input_of(_text(call, "tool"), call.get("input"), known)
    if not tool:
        raise Misread("`tool` names no tool")
    mode = _text(call, "mode") if call.get("mode") is not None else "default"
    if mode not in MODES:
        raise Misread(f"there is no mode {_shown(mode)}; there are {', '.join(MODES)}")
    folder = _text(call, "cwd") if call.get("cwd") is not None else ""
    return GivenCall(tool, fields, MODES[mode], read_rules(call.get("rules")), folder)


def read_rules(given: object) -> GivenRules:
    """The rules of a JSON object with lists `allow`, `ask`, `deny`. Raises `Misread`, also for a text that is none."""
    if given is None:
        return GivenRules()
    if not isinstance(given, dict):
        raise Misread(f"`rules` is an object with lists `allow`, `ask`, `deny`, not {_kind(given)}")
    lists = cast("Json", given)
    if odd := next((name for name in lists if name not in _LISTS), None):
        raise Misread(f"there is no list of rules {_shown(odd)}; there are `allow`, `ask`, `deny`")
    found = {name: tuple(_rules_in(lists[name], name)) for name in lists}
    return GivenRules(**found)


def _rules_in(given: object, name: str) -> Iterator[Rule]:
    if given is None:
        return
    if not isinstance(given, list):
        raise Misread(f"`rules.{name}` is a list of texts, not {_kind(given)}")
    for text in cast("Sequence[object]", given):
        if not isinstance(text, str):
            raise Misread(f"a rule in `rules.{name}` is {_kind(text)}, not a text")
        try:
            yield parse_rule(text)
        except ValueError as wrong:
            raise Misread(f"`rules.{name}`: {wrong}") from wrong


def our_tool(name: str) -> str:
    """Our name of a tool; a name that stands for no tool of ours is itself. Of two the first."""
    return _MORE_NAMES.get(name) or next(iter(COMPATIBLE.get(name, ())), name)


def _input_of(name: str, given: object, known: Mapping[str, Known]) -> tuple[str, Mapping[str, object]]:
    """Our tool, and the input in its fields."""
    tool = our_tool(name)
    if given is None:
        given = {}
    if not isinstance(given, dict):
        raise Misread(f"`input` is an object, not {_kind(given)}")
    ours = {theirs: field for field, theirs in FIELDS.get(tool, {}).items()}
    if tool in _FILE_TOOLS:
        ours |= _MORE_FIELDS
    fields: dict[str, object] = {}
    for theirs, value in cast("Json", given).items():
        name = ours.get(theirs, theirs)
        if name in fields and fields[name] != value:
            raise Misread(f"the input gives `{name}` twice, and differently")
        fields[name] = value
    if tool == "bash" and "command" not in fields:
        raise Misread("the input of bash has no `command`")
    texts = known[tool].texts if tool in known else ()
    if odd := next((name for name in texts if name in fields and not isinstance(fields[name], str)), None):
        raise Misread(f"the input's `{odd}` is {_kind(fields[odd])}, not a text")
    return tool, fields


def _text(call: Json, name: str) -> str:
    value = call.get(name)
    if not isinstance(value, str):
        raise Misread(f"`{name}` is {_kind(value)}, not a text" if name in call else f"there is no `{name}`")
    return value


def _refuse_nul(value: object) -> None:
    """Look through everything that was given. Nested no deeper than its reader let it be."""
    todo = [value]
    while todo:
        each = todo.pop()
        if isinstance(each, str) and "\0" in each:
            raise Misread("a value holds a NUL character")
        if isinstance(each, dict):
            todo += [part for pair in cast("Json", each).items() for part in pair]
        elif isinstance(each, list):
            todo += cast("list[object]", each)


def _object(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("the JSON has an object with the same name twice")
    return found


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


def _shown(text: str) -> str:
    return repr(text[:60])

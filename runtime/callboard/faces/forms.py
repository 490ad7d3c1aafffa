"""What an MCP server asks in the middle of a call, put to a person: the whole form is shown, then asked field by field.

An address is shown whole, and nothing opens it. Nothing typed takes a default, or leaves a field out where it may be;
where neither goes, it is no.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from callboard.core.mcp.forms import Field, Wrong, fields_of, read, value_of
from callboard.faces.terminal import Block, Line, block, visible
from callboard.words.mcp import AnsweredBack, Asked
from callboard.words.values import Json

Put = Callable[[Block, str], Awaitable[str | None]]
"""Show a block, put a question; the line that was typed, None at the end of input."""
_ENDS = frozenset({"decline", "/decline", "cancel", "/cancel"})


def form_lines(asked: Asked) -> tuple[Line, ...]:
    """What is asked for, and by whom."""
    lines = [Line(f"  asked by the MCP server {_one(asked.server)}: what you answer goes to it", "dim")]
    if asked.url:
        lines.append(Line(f"  it wants you to visit: {_one(asked.url)}", "warn"))
    fields = fields_of(asked.schema)
    return (*lines, *(Line(f"  {_about(one)}") for one in fields)) if len(fields) > 1 or not asked.url else tuple(lines)


def words_of(asked: Asked) -> str:
    """The words before the cursor."""
    if asked.url:
        return "have you been there? [y, or decline]> "
    if not fields_of(asked.schema):
        return "agree? [y/N]> "
    return "your answer, or decline> "


async def fill_in(asked: Asked, shown: Block, put: Put) -> str:
    """The person's answer in the words that the request takes: one line, or the form as JSON."""
    fields = fields_of(asked.schema)
    if asked.url or len(fields) < 2:
        return await _one_line(asked, fields, shown, put)
    content: Json = {}
    for field in fields:
        value = await _field(field, shown, put)
        shown = Block(())
        if isinstance(value, AnsweredBack):
            return value.action
        if value is not None:
            content[field.name] = value
    return json.dumps(content, ensure_ascii=False)


async def _one_line(asked: Asked, fields: tuple[Field, ...], shown: Block, put: Put) -> str:
    while True:
        typed = (await put(shown, words_of(asked)) or "").strip()
        if not typed and fields and fields[0].default is not None:
            typed = json.dumps({fields[0].name: fields[0].default})
        found = read(asked, typed)
        if isinstance(found, AnsweredBack):
            return typed
        shown = block(found, "warn")


async def _field(field: Field, shown: Block, put: Put) -> Any:
    """Its value, None where it is left out, and the end of it all where the person says so."""
    while True:
        typed = await put(shown, f"{_one(field.name)}{_hint(field)}> ")
        words = (typed or "").strip()
        if words.lower() in _ENDS:
            return AnsweredBack("cancel" if "cancel" in words.lower() else "decline")
        if not words:
            if field.default is not None or not field.required:
                return field.default
            return AnsweredBack("decline")
        value = value_of(field, words)
        if not isinstance(value, Wrong):
            return value
        shown = block(value.why, "warn")


def _hint(field: Field) -> str:
    if field.options:
        return f" [{', '.join(f'{number} {_one(one)}' for number, one in enumerate(field.options, 1))}]"
    if field.default is not None:
        return f" [{_one(str(field.default))}]"
    return " [y/n]" if field.kind == "boolean" else ""


def _about(field: Field) -> str:
    need = "" if field.required else ", may be left out"
    about = f": {_one(field.about)}" if field.about else ""
    return f"{_one(field.name)} ({field.kind}{need}){about}"


def _one(text: str) -> str:
    return visible(text).replace("\n", "\\n")

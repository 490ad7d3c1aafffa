"""Tools for notebooks (`.ipynb`): `read_notebook` shows the cells and their outputs, `edit_notebook` changes one cell.

A notebook is a JSON file. An edit replaces only the bytes of the changed cell, in the style of the file (indentation,
line ends, escapes): everything else keeps its bytes, so that the change is small in version control. The base of the
file tools writes the change: complete or not at all, and only to content that the agent knows.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Literal, cast

import anyio.to_thread
from pydantic import Field

from callboard.adapters.tools.base import TypedTool
from callboard.adapters.tools.files import (
    IMAGE,
    SHOWN,
    ChangeTool,
    FileChange,
    PathInput,
    content_of,
    digest_of,
    encode_text,
    refuse_changed,
    text_in,
)
from callboard.adapters.tools.roots import RootCache, ToolPath, refusing_os_errors
from callboard.adapters.tools.text_edits import describe_change
from callboard.ports.tool import CallContext, Folders, Tool, ToolOutcome
from callboard.types.choices import unknown
from callboard.types.errors import ToolRefused
from callboard.types.events import FileSeen
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json

OUTPUT = 5_000
WHOLE_OUTPUT = 50_000
"""Most characters of one cell's outputs among all cells (`OUTPUT`), and of a cell that was named (`WHOLE_OUTPUT`)."""
IMAGES = 10
"""Most images of one answer."""
_IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_ANSI = late_pattern(r"\x1b\[[0-9;?]*[A-Za-z]")
_SPACE = late_pattern(r"[ \t\r\n]*")
_BEGIN = late_pattern(r"\{(\r?\n)([ \t]+)\"")
_CELLS_WITH_IDS = (4, 5)
"""Version of the format since which each cell has an id."""

CellType = Literal["code", "markdown", "raw"]


@dataclass(frozen=True, slots=True)
class Cell:
    """Cell of a notebook, and its place in the text."""

    number: int
    data: Json
    start: int
    end: int

    @property
    def id(self) -> str:
        """Return the id by which tools name the cell; `cell-N` if the file has none."""
        value: object = self.data.get("id")
        return value if isinstance(value, str) and value else f"cell-{self.number}"

    @property
    def source(self) -> str:
        return joined_text(self.data.get("source"))


@dataclass(frozen=True, slots=True)
class Notebook:
    """A notebook's text with the places of its cells."""

    text: str
    cells: tuple[Cell, ...]
    start: int
    end: int
    """Place of the list of cells."""
    version: tuple[int, int]

    def find(self, name: str) -> Cell:
        """Return the cell with this id, or `cell-N`. Raises `ToolRefused`."""
        numbered = re.fullmatch(r"(?:cell-)?(\d+)", name)
        cell = next((cell for cell in self.cells if cell.id == name), None)
        if cell is None and numbered and int(numbered[1]) < len(self.cells):
            cell = self.cells[int(numbered[1])]
        if cell is None:
            raise ToolRefused(f"cell_id: {unknown('cell', name[:60], [cell.id for cell in self.cells])}")
        return cell


def joined_text(value: object) -> str:
    """Return a text of a notebook: one text, or a list of lines."""
    return "".join(map(str, cast("list[object]", value))) if isinstance(value, list) else str(value or "")


def read_cells(text: str, label: str) -> Notebook:
    """Return the cells of a notebook. Raises `ToolRefused` for a file that is not one."""
    try:
        start = _skip(text, 1 if text.startswith("\ufeff") else 0)
        data = _object(json.loads(text[start:]))
        if not isinstance(data.get("cells"), list):
            raise ToolRefused(f"{label} is not a notebook of format 4: it has no list of cells")
        places = {name: (begin, end) for name, begin, end in _members(text, start)}
        first, last = places["cells"]
        cells = tuple(
            Cell(number, _object(value), begin, end) for number, (value, begin, end) in enumerate(_items(text, first))
        )
    except json.JSONDecodeError as wrong:
        raise ToolRefused(f"{label} is not a notebook: {wrong.msg} in line {wrong.lineno}") from wrong
    except RecursionError as wrong:
        raise ToolRefused(f"{label} is not a notebook that can be read: it is nested too deep") from wrong
    version = tuple(value if isinstance(value := data.get(name), int) else 0 for name in ("nbformat", "nbformat_minor"))
    return Notebook(text, cells, first, last, (version[0], version[1]))


def _object(value: object) -> Json:
    return cast("Json", value) if isinstance(value, dict) else {}


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _members(text: str, at: int) -> Iterator[tuple[str, int, int]]:
    """Yield the name of each member of the object at `at`, and the place of its value."""
    decoder = json.JSONDecoder()
    at = _skip(text, at + 1)
    while text[at] != "}":
        name, at = decoder.raw_decode(text, at)
        begin = _skip(text, _skip(text, at) + 1)
        _, end = decoder.raw_decode(text, begin)
        yield name, begin, end
        at = _skip(text, end)
        at = _skip(text, at + 1) if text[at] == "," else at


def _items(text: str, at: int) -> Iterator[tuple[object, int, int]]:
    """Yield each item of the list at `at`, and its place."""
    decoder = json.JSONDecoder()
    at = _skip(text, at + 1)
    while text[at] != "]":
        value, end = decoder.raw_decode(text, at)
        yield value, at, end
        at = _skip(text, end)
        at = _skip(text, at + 1) if text[at] == "," else at


# Changes


@dataclass(frozen=True, slots=True)
class JsonStyle:
    """Style in which a notebook is written. `indent` is empty for one without line breaks."""

    newline: str
    indent: str
    ascii: bool
    space: str

    def written(self, value: object, level: int) -> str:
        """Return the value as it stands at a level of nesting."""
        if not self.indent:
            return json.dumps(value, ensure_ascii=self.ascii, separators=(f",{self.space}", f":{self.space}"))
        text = json.dumps(value, ensure_ascii=self.ascii, indent=self.indent)
        return text.replace("\n", self.newline + self.indent * level)

    def next_line(self, level: int) -> str:
        """Return the space before a value on a line of its own."""
        return self.newline + self.indent * level if self.indent else self.space


def style_of(text: str) -> JsonStyle:
    """Return the style of a notebook."""
    begin = _BEGIN.match(text, _skip(text, 1 if text.startswith("\ufeff") else 0))
    escaped = text.isascii() and "\\u" in text
    space = " " if '": ' in text else ""
    return JsonStyle(begin[1], begin[2], escaped, space) if begin else JsonStyle("", "", escaped, space)


_CELLS = 2
_FIELDS = 3
"""Levels of nesting: the cells, and the fields of a cell."""


def with_source(book: Notebook, cell: Cell, source: str, kind: CellType | None) -> str:
    """Return the notebook's text with another source for a cell. `kind`: the cell's new type; None: as before."""
    style = style_of(book.text)
    former = cell.data.get("source")
    value = source if isinstance(former, str) else source.splitlines(keepends=True)
    if kind in (None, cell.data.get("cell_type")) and former is not None:
        places = [(begin, end) for name, begin, end in _members(book.text, cell.start) if name == "source"]
        begin, end = places[-1]
        return book.text[:begin] + style.written(value, _FIELDS) + book.text[end:]
    data: Json = {name: field for name, field in cell.data.items() if name not in ("outputs", "execution_count")}
    data |= {"cell_type": kind or cell.data.get("cell_type", "code"), "source": value}
    if data["cell_type"] == "code":
        data |= {"execution_count": None, "outputs": list[Json]()}
    return book.text[: cell.start] + style.written(dict(sorted(data.items())), _CELLS) + book.text[cell.end :]


def with_cell(book: Notebook, after: Cell | None, source: str, kind: CellType) -> tuple[str, str]:
    """Return the notebook's text with a new cell after `after` (None: as the first), and the new cell's id."""
    style = style_of(book.text)
    number = 0 if after is None else after.number + 1
    new_id = _new_id(book, number, source) if book.version >= _CELLS_WITH_IDS else ""
    data: Json = {"cell_type": kind, "metadata": {}, "source": source.splitlines(keepends=True)}
    data |= {"id": new_id} if new_id else {}
    data |= {"execution_count": None, "outputs": list[Json]()} if kind == "code" else {}
    cell = style.written(dict(sorted(data.items())), _CELLS)
    text = book.text
    if not book.cells:
        text = f"{text[: book.start]}[{style.next_line(_CELLS)}{cell}{style.next_line(1)}]{text[book.end :]}"
    elif after is None:
        first = book.cells[0].start
        text = f"{text[:first]}{cell},{style.next_line(_CELLS)}{text[first:]}"
    else:
        text = f"{text[: after.end]},{style.next_line(_CELLS)}{cell}{text[after.end :]}"
    return text, new_id or f"cell-{number}"


def _new_id(book: Notebook, number: int, source: str) -> str:
    """Return an id that no other cell has. The same change of the same notebook gives the same id."""
    ids = {cell.id for cell in book.cells}
    seed = f"{number}\0{source}\0{book.text}"
    while True:
        seed = hashlib.sha256(seed.encode("utf-8", "replace")).hexdigest()
        if seed[:8] not in ids:
            return seed[:8]


def without_cell(book: Notebook, cell: Cell) -> str:
    """Return the notebook's text without a cell."""
    if len(book.cells) == 1:
        return f"{book.text[: book.start]}[]{book.text[book.end :]}"
    last = cell.number == len(book.cells) - 1
    begin = book.cells[cell.number - 1].end if last else cell.start
    end = cell.end if last else book.cells[cell.number + 1].start
    return book.text[:begin] + book.text[end:]


# The tools


class EditNotebookInput(PathInput):
    """Input of `edit_notebook`."""

    cell_id: str = Field(
        "",
        description="The cell's id, or `cell-N` from 0. To insert: the cell before the new one; empty: at the start.",
    )
    new_source: str = Field("", description="All of the cell's source. Not needed to delete.")
    cell_type: CellType | None = Field(None, description="Needed to insert; otherwise the cell's own type.")
    edit_mode: Literal["replace", "insert", "delete"] = Field("replace")


class EditNotebook(ChangeTool[EditNotebookInput]):
    """Tool that changes one cell of a notebook."""

    def __init__(self, lock: threading.Lock, root_cache: RootCache) -> None:
        self.lock = lock
        self.root_cache = root_cache
        super().__init__(
            "edit_notebook",
            "Replace, insert or delete one cell of a notebook (.ipynb). The rest of the file keeps its bytes. A "
            "replaced cell keeps its outputs, which may no longer be those of its source. Refused when the file "
            "changed since you read it.",
            EditNotebookInput,
            effect="reconcile",
            concurrency="keyed",
        )

    def plan(
        self,
        arguments: EditNotebookInput,
        target: ToolPath,
        existing: tuple[bytes, int] | None,
        known_digest: str | None,
    ) -> FileChange:
        if existing is None:
            raise FileNotFoundError
        before = digest_of(existing[0])
        refuse_changed(target, before, known_digest)
        book = read_cells(text_in(target, existing[0]), target.label)
        text, report = _changed(arguments, book, target.label)
        return FileChange(before, encode_text(text, "new_source"), existing[1], report)


def _changed(arguments: EditNotebookInput, book: Notebook, label: str) -> tuple[str, str]:
    """Return the notebook's new text, and the report of the change. Raises `ToolRefused`."""
    if arguments.edit_mode == "insert":
        if arguments.cell_type is None:
            raise ToolRefused("cell_type: say which type the new cell has (code or markdown)")
        after = book.find(arguments.cell_id) if arguments.cell_id else None
        text, new_id = with_cell(book, after, arguments.new_source, arguments.cell_type)
        place = f"after cell {after.id}" if after else "as the first cell"
        return text, f"Inserted the {arguments.cell_type} cell {new_id} {place} of {label}."
    if not arguments.cell_id:
        raise ToolRefused(f"cell_id: name the cell to {arguments.edit_mode}")
    cell = book.find(arguments.cell_id)
    if arguments.edit_mode == "delete":
        return without_cell(book, cell), f"Deleted the cell {cell.id} of {label}."
    if "new_source" not in arguments.model_fields_set:
        raise ToolRefused("new_source: give all of the cell's new source")
    text = with_source(book, cell, arguments.new_source, arguments.cell_type)
    diff = describe_change(cell.source, arguments.new_source, f"{label} cell {cell.id}")
    return text, f"Edited cell {cell.id} of {label}:\n{diff}"


class ReadNotebookInput(PathInput):
    """Input of `read_notebook`."""

    cell_id: str = Field("", description="Only this cell, with more of its outputs: its id, or `cell-N` from 0.")


class ReadNotebook(TypedTool[ReadNotebookInput]):
    """Tool that shows the cells of a notebook with their outputs."""

    def __init__(self, root_cache: RootCache) -> None:
        self._root_cache = root_cache
        super().__init__(
            "read_notebook",
            "Read a notebook (.ipynb): each cell's id, type and source, and its outputs as text and images.",
            ReadNotebookInput,
            effect="read",
            concurrency="keyed",
        )

    def key(self, tool_input: Json, folders: Folders) -> str:
        return self._root_cache.key(tool_input, folders)

    async def act(self, arguments: ReadNotebookInput, context: CallContext) -> ToolOutcome:
        target = self._root_cache.find(arguments.path, context.folders, grants=context.grants)
        return await anyio.to_thread.run_sync(_shown, arguments, target, context)


def _shown(arguments: ReadNotebookInput, target: ToolPath, context: CallContext) -> ToolOutcome:
    with refusing_os_errors(target):
        existing = content_of(target)
        if existing is None:
            raise FileNotFoundError
    digest = digest_of(existing[0])
    book = read_cells(text_in(target, existing[0]), target.label)
    cells = [book.find(arguments.cell_id)] if arguments.cell_id else book.cells
    answer = _Answer(WHOLE_OUTPUT if arguments.cell_id else OUTPUT)
    for cell in cells:
        if answer.size > SHOWN:
            answer.add(f"[Cells {cell.number} to {book.cells[-1].number} are not shown: name one with cell_id.]")
            break
        answer.add_cell(cell)
    if not cells:
        answer.add("[The notebook has no cells.]")
    event = FileSeen(at=context.now, path=target.text, digest=digest)
    data: Json = {"path": target.text, "cells": len(book.cells), "digest": digest}
    blocks = answer.blocks
    content = blocks if len(blocks) > 1 else str(blocks[0]["text"])
    return ToolOutcome(content, events=(event,), data=data)


class _Answer:
    """Blocks of an answer, in the order of the cells."""

    def __init__(self, most: int) -> None:
        self.blocks: list[Json] = []
        self.size = 0
        self._most = most
        self._images = 0

    def add(self, text: str) -> None:
        text = text.replace("\0", "\N{REPLACEMENT CHARACTER}")
        self.size += len(text)
        if self.blocks and self.blocks[-1]["type"] == "text":
            self.blocks[-1] = {"type": "text", "text": f"{self.blocks[-1]['text']}\n{text}"}
        else:
            self.blocks.append({"type": "text", "text": text})

    def add_cell(self, cell: Cell) -> None:
        kind = str(cell.data.get("cell_type", "code"))
        count = cell.data.get("execution_count")
        self.add(f"[Cell {cell.number}, id {cell.id}, {kind}{f', run {count}' if count is not None else ''}]")
        self.add(cell.source)
        outputs: object = cell.data.get("outputs")
        remaining = self._most
        for output in cast("list[object]", outputs) if isinstance(outputs, list) else ():
            text, image = output_of(_object(output))
            text = _ANSI.sub("", text).rstrip("\n")
            if text and remaining:
                cut = f"\n[Output cut: {remaining} of {len(text)} characters.]" if len(text) > remaining else ""
                self.add(f"[Output]\n{text[:remaining]}{cut}")
                remaining = max(0, remaining - len(text))
            elif text:
                self.add(f"[Output of {len(text)} characters left out: name the cell with cell_id.]")
            if image is not None:
                self._add_image(image)

    def _add_image(self, image: Json) -> None:
        self._images += 1
        if self._images > IMAGES:
            self.add("[Image left out: name the cell with cell_id.]")
        elif len(str(image["source"]["data"])) > IMAGE * 4 // 3:
            self.add(f"[Image left out: it has more than {IMAGE} bytes.]")
        else:
            self.blocks.append(image)


def output_of(output: Json) -> tuple[str, Json | None]:
    """Return the text of a cell's output, and its image."""
    if output.get("output_type") == "stream":
        return joined_text(output.get("text")), None
    if output.get("output_type") == "error":
        lines: object = output.get("traceback")
        trace = "\n".join(map(str, cast("Sequence[object]", lines))) if isinstance(lines, list) else ""
        return trace or f"{output.get('ename')}: {output.get('evalue')}", None
    data: dict[str, Any] = _object(output.get("data"))
    media = next((kind for kind in _IMAGE_TYPES if kind in data), "")
    image: Json | None = None
    if media:
        source = {"type": "base64", "media_type": media, "data": "".join(joined_text(data[media]).split())}
        image = {"type": "image", "source": source}
    if "text/plain" in data and not image:
        return joined_text(data["text/plain"]), None
    others = [kind for kind in data if kind not in (media, "text/plain")]
    return (f"[{', '.join(others)}: not shown]" if others and not image else ""), image


def notebook_tools(root_cache: RootCache | None = None, lock: threading.Lock | None = None) -> tuple[Tool, ...]:
    """Return the tools of this module. `lock`: shared with all other tools of the session that change files."""
    root_cache = root_cache or RootCache()
    return (ReadNotebook(root_cache), EditNotebook(lock or threading.Lock(), root_cache))

"""Notebooks are shown cell by cell, and an edit changes only the bytes of one cell."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.shell.outside_world import OutsideWorld, text_of

from callboard.adapters.tools.notebooks import notebook_tools, read_cells

pytestmark = pytest.mark.anyio

READ, EDIT = notebook_tools()
PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"0" * 40).decode()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def world(tmp_path: Path) -> OutsideWorld:
    return OutsideWorld(tmp_path)


def code(cell_id: str, *lines: str, outputs: list[Any] | None = None) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "execution_count": 3,
        "id": cell_id,
        "metadata": {"tags": ["ä"]},
        "outputs": outputs or [],
        "source": [f"{line}\n" for line in lines[:-1]] + list(lines[-1:]),
    }


CELLS = [
    {"cell_type": "markdown", "id": "intro", "metadata": {}, "source": ["# Title\n", "Ünïcode"]},
    code("load", "import pandas", "x = 1", outputs=[{"name": "stdout", "output_type": "stream", "text": ["one\n"]}]),
    code("last", "print(x)"),
]


def written(cells: list[Any], *, indent: int | None = 1, minor: int = 5, ascii: bool = False) -> str:
    """Return a notebook as Jupyter writes it, or in another style."""
    data = {"cells": cells, "metadata": {"kernelspec": {"name": "python3"}}, "nbformat": 4, "nbformat_minor": minor}
    return json.dumps(data, indent=indent, ensure_ascii=ascii) + "\n"


async def edited(world: OutsideWorld, text: str, **change: Any) -> str:
    """Return the notebook's text after an edit by an agent that has not read it."""
    world.files.clear()
    path = world.write("book.ipynb", text)
    outcome = await world.run(EDIT, path="book.ipynb", **change)
    assert not outcome.is_error, outcome.content
    return path.read_bytes().decode()


@pytest.mark.parametrize("ascii", [False, True])
@pytest.mark.parametrize("indent", [None, 1, 4])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
async def test_a_replaced_source_leaves_every_other_byte(
    world: OutsideWorld, indent: int | None, ascii: bool, newline: str
) -> None:
    before = written(CELLS, indent=indent, ascii=ascii).replace("\n", newline)
    after = await edited(world, before, cell_id="load", new_source="import polars\ny = 'é'\n")
    changed = [*CELLS[:1], {**CELLS[1], "source": ["import polars\n", "y = 'é'\n"]}, *CELLS[2:]]
    assert after == written(changed, indent=indent, ascii=ascii).replace("\n", newline)


async def test_odd_spacing_and_unknown_fields_elsewhere_stay(world: OutsideWorld) -> None:
    before = '{"x":1e3,  "cells": [ {"source":"a","cell_type":"raw", "new":[1,  2]} ,{"source": "b"}], "nbformat":4 }'
    after = await edited(world, before, cell_id="cell-0", new_source='a"b')
    assert after == before.replace('"source":"a"', '"source":"a\\"b"')


async def test_a_new_cell_comes_after_the_named_one_with_an_id_of_its_own(world: OutsideWorld) -> None:
    after = await edited(
        world, written(CELLS), cell_id="load", new_source="z = 2", cell_type="code", edit_mode="insert"
    )
    cells = json.loads(after)["cells"]
    assert [cell["id"] for cell in cells if cell["source"] != ["z = 2"]] == ["intro", "load", "last"]
    new = cells[2]
    assert (new["cell_type"], new["outputs"], new["execution_count"]) == ("code", [], None)
    assert after == written([*CELLS[:2], new, CELLS[2]])


async def test_a_new_cell_without_a_name_is_the_first_and_older_formats_have_no_ids(world: OutsideWorld) -> None:
    after = await edited(world, written(CELLS, minor=2), new_source="hi", cell_type="markdown", edit_mode="insert")
    new = {"cell_type": "markdown", "metadata": {}, "source": ["hi"]}
    assert after == written([new, *CELLS], minor=2)
    empty = await edited(world, written([], minor=2), new_source="hi", cell_type="markdown", edit_mode="insert")
    assert empty == written([new], minor=2)


@pytest.mark.parametrize("name", ["intro", "load", "cell-2"])
async def test_a_deleted_cell_takes_nothing_else_along(world: OutsideWorld, name: str) -> None:
    after = await edited(world, written(CELLS), cell_id=name, edit_mode="delete")
    gone = {"cell-2": "last"}.get(name, name)
    assert after == written([cell for cell in CELLS if cell["id"] != gone])
    assert await edited(world, written(CELLS[:1]), cell_id="intro", edit_mode="delete") == written([])


async def test_a_cell_that_becomes_text_loses_its_outputs_and_one_that_becomes_code_gets_none(
    world: OutsideWorld,
) -> None:
    cells = json.loads(await edited(world, written(CELLS), cell_id="load", new_source="t", cell_type="markdown"))
    assert cells["cells"][1] == {
        "cell_type": "markdown", "id": "load", "metadata": {"tags": ["ä"]}, "source": ["t"]
    }  # fmt: skip
    cells = json.loads(await edited(world, written(CELLS), cell_id="intro", new_source="1", cell_type="code"))
    assert (cells["cells"][0]["outputs"], cells["cells"][0]["execution_count"]) == ([], None)


@pytest.mark.parametrize(
    ("text", "change", "reason"),
    [
        (written(CELLS), {"cell_id": "lod", "new_source": "x"}, "choose load, intro or last"),
        (written(CELLS), {"cell_id": "cell-3", "new_source": "x"}, "cell-3"),
        (written(CELLS), {"new_source": "x"}, "name the cell to replace"),
        (written(CELLS), {"cell_id": "load"}, "new_source"),
        (written(CELLS), {"new_source": "x", "edit_mode": "insert"}, "cell_type"),
        ("{", {"cell_id": "load", "new_source": "x"}, "is not a notebook"),
        ("[]", {"cell_id": "load", "new_source": "x"}, "is not a notebook of format 4"),
        (f'{{"cells": {"[" * 200_000}{"]" * 200_000}}}', {"cell_id": "a", "new_source": "x"}, "nested too deep"),
    ],
)
async def test_what_does_not_fit_is_refused_and_changes_nothing(
    world: OutsideWorld, text: str, change: dict[str, Any], reason: str
) -> None:
    path = world.write("book.ipynb", text)
    outcome = await world.run(EDIT, path="book.ipynb", **change)
    assert outcome.is_error
    assert reason.lower() in text_of(outcome).lower()
    assert path.read_text() == text


async def test_a_notebook_that_changed_since_it_was_read_is_not_edited(world: OutsideWorld) -> None:
    path = world.write("book.ipynb", written(CELLS))
    await world.run(READ, path="book.ipynb")
    path.write_text(written(CELLS[:2]))
    outcome = await world.run(EDIT, path="book.ipynb", cell_id="load", new_source="x")
    assert "has changed since you read it" in text_of(outcome)


async def test_after_a_crash_the_digests_show_whether_the_edit_was_made(world: OutsideWorld) -> None:
    world.write("book.ipynb", written(CELLS))
    change = {"path": "book.ipynb", "new_source": "n", "cell_type": "code", "edit_mode": "insert"}
    context = world.context()
    marks = await EDIT.prepare(change, context)
    assert await EDIT.repair(change, marks, context) is None
    done = await EDIT.run(change, context)
    assert await EDIT.repair(change, marks, context) == done, "the new cell has the same id both times"


async def test_cells_are_shown_with_ids_outputs_and_images(world: OutsideWorld) -> None:
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": ["a\n", "b\n"]},
        {"output_type": "error", "ename": "E", "evalue": "v", "traceback": ["\x1b[31mE\x1b[0m: v"]},
        {"output_type": "display_data", "data": {"image/png": PIXEL, "text/plain": ["<Figure>"]}},
        {"output_type": "execute_result", "data": {"text/html": "<b>1</b>", "text/plain": ["1"]}},
        {"output_type": "display_data", "data": {"application/vnd.plotly": {}}},
    ]
    world.write("book.ipynb", written([CELLS[0], code("run", "go()", outputs=outputs)]))
    outcome = await world.run(READ, path="book.ipynb")
    text, image, rest = outcome.content
    assert text["text"] == (
        "[Cell 0, id intro, markdown]\n# Title\nÜnïcode\n"
        "[Cell 1, id run, code, run 3]\ngo()\n[Output]\na\nb\n[Output]\nE: v"
    )
    assert image["source"] == {"type": "base64", "media_type": "image/png", "data": PIXEL}
    assert rest["text"] == "[Output]\n1\n[Output]\n[application/vnd.plotly: not shown]"


async def test_long_outputs_are_cut_until_their_cell_is_named(world: OutsideWorld) -> None:
    long = [{"output_type": "stream", "name": "stdout", "text": "x" * 9_000}]
    world.write("book.ipynb", written([code("a", "1", outputs=long * 2)]))
    text = text_of(await world.run(READ, path="book.ipynb"))
    assert "[Output cut: 5000 of 9000 characters.]" in text
    assert "[Output of 9000 characters left out" in text
    assert text_of(await world.run(READ, path="book.ipynb", cell_id="a")).count("x") == 18_000


def test_a_byte_order_mark_and_missing_ids_are_no_obstacle() -> None:
    book = read_cells('\ufeff {"cells": [{"source": "a"}, {"source": ["b"]}]}', "book")
    assert [(cell.id, cell.source) for cell in book.cells] == [("cell-0", "a"), ("cell-1", "b")]

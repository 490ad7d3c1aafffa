"""Fields of a class with their docstrings, for pages that are generated from classes."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator


def documented_fields(kind: type) -> Iterator[tuple[str, str, str, str]]:
    """Return (name, annotation, default, meaning) of each field that the class itself defines.

    The meaning is the docstring below the field, in one line, with `|` escaped for a table.
    """
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    for place, node in enumerate(body.body):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        after = body.body[place + 1] if place + 1 < len(body.body) else None
        said = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
        yield node.target.id, ast.unparse(node.annotation), _default(node.value), in_a_cell(str(said))


def own_docstring(kind: type) -> str:
    """Return the docstring of the class itself; empty if it has none."""
    return (inspect.getdoc(kind) or "") if "__doc__" in vars(kind) and kind.__doc__ else ""


def in_a_cell(text: str) -> str:
    """Return the text as the cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def _default(value: ast.expr | None) -> str:
    if value is None:
        return ""
    text = ast.unparse(value)
    return {"Field(default_factory=dict)": "{}", "Field(default=())": "()"}.get(text, text)

"""The figures count what they claim to count, on code that is written out here."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from tests import code_figures
from tests.code_figures import Code


def code(**modules: str) -> Code:
    return Code({name.replace("__", "."): ast.parse(text) for name, text in modules.items()})


@pytest.mark.parametrize(
    "text",
    [
        "found = 1",
        "for one in range(3): pass",
        "def run(given): pass",
        "def told(): pass",
        "x = [_ for one in (1,)]",
        "with open('x') as found: pass",
        "try: pass\nexcept OSError as why: pass",
        "match 1:\n    case rest: pass",
        "_kept = 1",
    ],
)
def test_each_way_to_bind_a_vague_name_counts(text: str) -> None:
    assert code_figures.vague_bindings(code(a=text))[0] == 1


def test_reading_a_name_and_a_telling_name_do_not_count() -> None:
    assert code_figures.vague_bindings(code(a="call = found\nprint(one)")) == (0, 1)


def test_docstrings_and_attribute_docs_that_ask_are_counted() -> None:
    text = '"""What it is."""\nx = 1\n"""Whether it is."""\ny = 2\n"""Seconds."""\ndef f():\n    """Return x."""\n'
    assert code_figures.questioning_docstrings(code(a=text)) == (1, 2)
    assert code_figures.questioning_attribute_docs(code(a=text)) == (1, 2)


@pytest.mark.parametrize(
    ("text", "count"),
    [("a, b = 1, 2", 1), ("a, b = b, a", 0), ("a, b = f()", 0), ("a, *b = 1, 2", 1), ("a.x, b = 0, a.x", 0)],
)
def test_a_swap_and_an_unpacking_are_no_unrelated_assignment(text: str, count: int) -> None:
    assert code_figures.unrelated_tuple_assignments(code(a=text))[0] == count


def test_the_longest_chain_follows_imports_between_modules() -> None:
    measured = code(p__a="from p.b import x", p__b="from p import c", p__c="import os", p__d="")
    assert code_figures.longest_import_chain(measured) == ["p.a", "p.b", "p.c"]
    assert code_figures.single_importer_modules(measured) == (2, 4)


def test_a_private_function_named_once_counts_and_one_named_twice_does_not() -> None:
    text = "def _once(): pass\ndef _twice(): pass\n_once()\n_twice()\n_twice()\n"
    assert code_figures.once_called_functions(code(a=text)) == (1, 2)


def test_the_script_prints_every_figure_of_the_project_in_a_folder(tmp_path: Path) -> None:
    """The package itself is measured by `tests/test_architecture.py`; to parse it here takes seconds."""
    package = tmp_path / "runtime" / "callboard"
    package.mkdir(parents=True)
    text = '"""What it is."""\nfrom callboard import {}\nlimit = 1\n"""Seconds."""\ndef f(): pass\nclass C: pass\n'
    for name, other in (("first", "second"), ("second", "third"), ("third", "nothing")):
        (package / f"{name}.py").write_text(text.format(other))
    script = Path(code_figures.__file__)
    line = [sys.executable, str(script), str(tmp_path)]
    printed = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    assert "modules (mean lines)                                 3 (6)\n" in printed
    assert "docstrings that begin with a question word           100.0% (3 of 3)\n" in printed
    assert "modules with one importer                            66.7% (2 of 3)\n" in printed
    assert "vague bindings, per 1,000                            0.0 (0 of 9)\n" in printed
    assert printed.endswith("The longest chain:\ncallboard.first\ncallboard.second\ncallboard.third\n")

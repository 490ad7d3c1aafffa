"""What a start does not do (decision 0040)."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest
from pydantic import BaseModel
from tests.test_architecture import PACKAGE, ROOT, RUNTIME, imported, module_name, short, tree_of


@pytest.mark.slow
def test_a_data_class_compiles_its_methods_when_they_are_first_used() -> None:
    """A class of `dataclasses` takes 0.5 ms while its module is imported (decision 0040)."""
    eager = {module_name(p) for p in RUNTIME if "dataclasses.dataclass" in set(imported(p))}
    assert eager == {"callboard.types.lazy_dataclass"}


def test_a_module_of_models_evaluates_its_annotations_itself() -> None:
    """With annotations as texts, pydantic compiles each field's while the module is imported (decision 0040)."""
    bases = {"Value", "Base", "Section"}
    models = {
        short(path)
        for path in (PACKAGE / "types").glob("*.py")
        for node in tree_of(path).body
        if isinstance(node, ast.ClassDef) and bases & {ast.unparse(base) for base in node.bases}
    }
    assert len(models) > 5
    assert [name for name in sorted(models) if "__future__.annotations" in set(imported(ROOT / name))] == []


def test_a_pattern_is_compiled_when_it_is_first_used() -> None:
    """300 patterns took 30 ms of a start: a constant is made by `late_pattern`."""
    compiled = {
        f"{short(path)}:{node.lineno}"
        for path in RUNTIME
        for node in tree_of(path).body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value and _is_compiled(node.value)
    }
    lowest = short(PACKAGE / "types" / "records.py")  # it imports nothing of ours
    assert {name for name in compiled if not name.startswith(lowest)} == set()


def _is_compiled(value: ast.expr) -> bool:
    return any(isinstance(node, ast.Call) and ast.unparse(node.func) == "re.compile" for node in ast.walk(value))


def modules() -> list[ModuleType]:
    """All modules of the runtime."""
    names = [module_name(path) for path in RUNTIME if path.name not in ("__main__.py", "__init__.py")]
    return [importlib.import_module(name) for name in names]


def test_every_pattern_is_valid() -> None:
    """A pattern is compiled at its first use, which would be late to learn that it is not valid."""
    values = [inner for module in modules() for value in vars(module).values() for inner in flat(value)]
    patterns = [value for value in values if type(value).__name__ == "_LatePattern"]
    assert len(patterns) > 200
    for pattern in patterns:
        re.compile(
            pattern.pattern, pattern.flags & ~re.UNICODE if isinstance(pattern.pattern, bytes) else pattern.flags
        )


def flat(value: object) -> Iterator[object]:
    """Yield the values in a constant: those of tuples, lists, and dictionaries in it, too."""
    if isinstance(value, tuple | list | dict):
        for inner in cast("Iterable[object]", value.values() if isinstance(value, dict) else value):
            yield from flat(inner)
    else:
        yield value


def test_every_model_can_be_built() -> None:
    """A model is built at its first use, which would be late to learn of an annotation that is wrong."""
    assert modules()
    models = list(derived(BaseModel))
    assert len(models) > 150
    assert [model.__name__ for model in models if model.model_rebuild() is False] == []


def derived(base: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """All models of the runtime."""
    for model in base.__subclasses__():
        if model.__module__.startswith("callboard."):
            yield model
        yield from derived(model)


NOT_TO_LOOK = (
    *("callboard.engine.runtime", "callboard.engine.agent_runtime", "callboard.adapters.processes.launcher"),
    *("callboard.adapters.git.git", "callboard.adapters.shell.parser", "callboard.core.permissions.judge"),
    *("croniter", "importlib.metadata", "pathspec", "urllib.request"),
)
"""What runs agents, judges calls, or takes long, and shows nothing of a session."""
LOOKED = """
import sys
sys.argv = ["callboard", "sessions", "--json"]
from callboard.__main__ import main
main()
print(sorted({names!r} & sys.modules.keys()))
"""


def test_a_command_that_only_looks_loads_nothing_that_runs_agents(tmp_path: Path) -> None:
    assert last_line(LOOKED.format(names=set(NOT_TO_LOOK)), tmp_path) == "[]"


def last_line(program: str, home: Path) -> str:
    """Return the last line that a Python program prints."""
    places = {f"XDG_{name}_HOME": str(home / name) for name in ("STATE", "DATA", "CONFIG", "CACHE")}
    environment = {**os.environ, **places}
    ran = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=home, capture_output=True, text=True, check=True
    )
    return ran.stdout.splitlines()[-1]


NOT_TO_RUN = (
    *("callboard.adapters.models.cassette", "callboard.cli.headless.client", "callboard.sessions.replay"),
    *("jsonschema", "http.client"),
)
"""What only a recording, a replay, a client of `callboard run`, a JSON schema, or an HTTP hook needs."""
RUN = """
import sys
import callboard.cli.commands.run, callboard.sessions.open
print([name for name in {names!r} if name in sys.modules])
"""


def test_a_run_loads_neither_cassettes_nor_what_serves_a_client(tmp_path: Path) -> None:
    assert last_line(RUN.format(names=NOT_TO_RUN), tmp_path) == "[]"


COLLECTED = """
import gc, sys
largest = [0]
gc.callbacks.append(lambda phase, _: largest.append(len(gc.get_objects())) if phase == "start" else None)
sys.argv = ["callboard", "sessions", "--json"]
from callboard.__main__ import main
main()
print(max(largest))
"""


def test_the_collector_never_walks_over_what_a_start_imports(tmp_path: Path) -> None:
    """A collection of the objects of all imports took 36 ms of `callboard run`."""
    assert int(last_line(COLLECTED, tmp_path)) < 50_000

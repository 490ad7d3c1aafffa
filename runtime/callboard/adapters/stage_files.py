"""A person's own stages: a name like `module:callable` becomes the callable.

The module is a file of the person's `stages/` folder, or one that Python finds installed. It refuses whatever lies in
the workspace: what a repository brings is never run by naming it.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from callboard.core.context.situation import OwnStage


def load_stage(name: str, folder: Path, workspace: Path) -> OwnStage:
    """The callable of that name. Raises `ValueError` with what is wrong, for the person who wrote it."""
    where, _, what = name.partition(":")
    if not all(part.isidentifier() for part in (*where.split("."), what)):
        raise ValueError(f"{name!r} names no stage: write module:callable")
    stage: object = getattr(_module(where, folder, workspace), what, None)
    if not callable(stage) or inspect.iscoroutinefunction(stage):
        raise ValueError(f"{name!r}: the module {where} has no function {what!r} (or it is async, which no stage is)")
    return stage


def _module(name: str, folder: Path, workspace: Path) -> ModuleType:
    file = folder / f"{name}.py"
    spec = spec_from_file_location(f"callboard_stage_{name}", file) if file.is_file() else _installed(name)
    if spec is None:
        raise ValueError(f"there is no module {name!r}: put it into {folder}, or install it")
    for place in (spec.origin, *(spec.submodule_search_locations or ())):
        if place and Path(place).resolve().is_relative_to(workspace.resolve()):
            raise ValueError(f"the module {name!r} lies in the workspace ({place}): nothing there is run by its name")
    try:
        return _run(spec) if file.is_file() else importlib.import_module(name)
    except Exception as failed:
        raise ValueError(f"the module {name!r} cannot be imported: {type(failed).__name__}: {failed}") from failed


def _installed(name: str) -> ModuleSpec | None:
    """Where the module, or the package that holds it, would be loaded from. Runs nothing."""
    try:
        return find_spec(name.partition(".")[0])
    except (ImportError, ValueError):  # a module without a spec, such as `__main__`
        return None


def _run(spec: ModuleSpec) -> ModuleType:
    assert spec.loader is not None, "the spec of a file has a loader"
    module = sys.modules[spec.name] = module_from_spec(spec)  # where its own classes look for it
    spec.loader.exec_module(module)
    return module

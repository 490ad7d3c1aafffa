"""Import of the user's own stages: each is a callable with a name like `module:callable`.

The module is a file in the user's `stages/` folder, or an installed one. A module in the workspace is refused: a name
alone must not run code of a repository.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from callboard.types.messages import OwnStage


def load_stage(name: str, folder: Path, workspace: Path) -> OwnStage:
    """Return the callable of that name. Raises `ValueError` with the problem, for the user who wrote the name."""
    where, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in (*where.split("."), attribute)):
        raise ValueError(f"{name!r} names no stage: write module:callable")
    stage: object = getattr(_module(where, folder, workspace), attribute, None)
    if not callable(stage) or inspect.iscoroutinefunction(stage):
        raise ValueError(
            f"{name!r}: the module {where} has no function {attribute!r} (or it is async, which no stage is)"
        )
    return stage


def _module(name: str, folder: Path, workspace: Path) -> ModuleType:
    file = folder / f"{name}.py"
    spec = spec_from_file_location(f"callboard_stage_{name}", file) if file.is_file() else _installed(name)
    if spec is None:
        raise ValueError(f"there is no module {name!r}: put it into {folder}, or install it")
    for place in (spec.origin, *(spec.submodule_search_locations or ())):
        if place and Path(place).resolve().is_relative_to(workspace.resolve()):
            raise ValueError(f"the module {name!r} is in the workspace ({place}): nothing there is run by its name")
    try:
        return _run(spec) if file.is_file() else importlib.import_module(name)
    except Exception as failed:
        raise ValueError(f"the module {name!r} cannot be imported: {type(failed).__name__}: {failed}") from failed


def _installed(name: str) -> ModuleSpec | None:
    """Return the spec of the module, or of the package that contains it. Runs nothing."""
    try:
        return find_spec(name.partition(".")[0])
    except (ImportError, ValueError):  # a module without a spec, such as `__main__`
        return None


def _run(spec: ModuleSpec) -> ModuleType:
    assert spec.loader is not None, "the spec of a file has a loader"
    module = sys.modules[spec.name] = module_from_spec(spec)  # its own classes look for the module here
    spec.loader.exec_module(module)
    return module

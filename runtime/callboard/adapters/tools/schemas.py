"""Writer of `data/tool_schemas.json`: the JSON schema of each tool's input, as `base.schema_of` returns it. Pure.

A session needs the schemas of all tools for its first request. Making them from the models takes 60 ms of CPU. A test
fails if the file differs from the output of `python -m callboard.adapters.tools.schemas`.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
from collections.abc import Iterator

from callboard.adapters import tools
from callboard.adapters.tools.base import ToolInput, made_schema, schema_key


def stored_schemas() -> str:
    """Return the whole file: one input per line, sorted by its key."""
    rows = {schema_key(kind): made_schema(kind) for kind in own_inputs()}
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {json.dumps(rows[key])}" for key in sorted(rows)) + "\n}\n"


def own_inputs() -> list[type[ToolInput]]:
    """Return the classes of inputs of the package's own tools."""
    for module in pkgutil.iter_modules(tools.__path__, f"{tools.__name__}."):
        importlib.import_module(module.name)
    return list(_inputs(ToolInput))


def _inputs(kind: type[ToolInput]) -> Iterator[type[ToolInput]]:
    """Yield the subclasses in the package's modules of tools."""
    for inner in kind.__subclasses__():
        if inner.__module__.startswith(f"{tools.__name__}.") and "<locals>" not in inner.__qualname__:
            yield inner
        yield from _inputs(inner)


if __name__ == "__main__":
    sys.stdout.write(stored_schemas())

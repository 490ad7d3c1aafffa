"""What a start does not do (decision 0040)."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator

from pydantic import BaseModel
from tests.test_architecture import PACKAGE, ROOT, RUNTIME, imported, module_name, short, tree_of


def test_a_data_class_compiles_its_methods_when_they_are_first_used() -> None:
    """A class of `dataclasses` takes 0.5 ms while its module is imported (decision 0040)."""
    service = PACKAGE / "adapters" / "models" / "anthropic"
    eager = {
        module_name(p) for p in RUNTIME if "dataclasses.dataclass" in set(imported(p)) and service not in p.parents
    }
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


def test_every_model_can_be_built() -> None:
    """Models are built at their first use, which would be late to learn of an annotation that is wrong."""
    for path in RUNTIME:
        if path.name not in ("__main__.py", "__init__.py"):
            importlib.import_module(module_name(path))
    models = list(derived(BaseModel))
    assert len(models) > 150
    assert [model.__name__ for model in models if model.model_rebuild() is False] == []


def derived(base: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """All models of the runtime."""
    for model in base.__subclasses__():
        if model.__module__.startswith("callboard."):
            yield model
        yield from derived(model)

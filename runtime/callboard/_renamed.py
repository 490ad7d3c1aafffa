"""Imports of modules by the names in earlier versions of the documentation, with a `DeprecationWarning`.

Both names refer to one module object, so that an `isinstance` check never sees two classes.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

RENAMED = {
    "callboard.adapters.anthropic": "callboard.adapters.models.anthropic.client",
    "callboard.adapters.cassette": "callboard.adapters.models.cassette.recorder",
    "callboard.adapters.rehearsal": "callboard.adapters.models.rehearsal",
    "callboard.adapters.rehearsal.emulator": "callboard.adapters.models.rehearsal.emulator",
    "callboard.adapters.rehearsal.replies": "callboard.adapters.models.rehearsal.replies",
    "callboard.adapters.rehearsal.scenario": "callboard.adapters.models.rehearsal.scenario",
    "callboard.api": "callboard.sdk",
    "callboard.api.errors": "callboard.sdk.errors",
    "callboard.api.events": "callboard.sdk.events",
    "callboard.core.context.view.laws": "callboard.core.context.view.invariants",
    "callboard.core.permission": "callboard.core.permissions",
    "callboard.core.permission.judge": "callboard.core.permissions.judge",
    "callboard.words": "callboard.types",
    "callboard.words.context": "callboard.types.messages",
    "callboard.words.hooks": "callboard.types.hook_answers",
    "callboard.words.workflows": "callboard.types.workflows",
}
"""Earlier documented name -> module."""


class _Alias:
    """Loader that returns the module of the new name for the old one."""

    def __init__(self, new: str) -> None:
        self._module = import_module(new)
        self._spec = self._module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module, which is already loaded."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the module's own spec, which the import system has replaced with that of the old name."""
        module.__spec__ = self._spec


class _Finder:
    """Finder of the old names.

    It precedes the finder of files, which would load a submodule of a renamed package twice.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of an old name; None for all other names."""
        new = RENAMED.get(fullname)
        if new is None:
            return None
        warnings.warn(f"{fullname} is now {new}: import that", DeprecationWarning, stacklevel=2)
        # The bases in `importlib.abc` take longer to import than `callboard`; the import system needs the methods only.
        return ModuleSpec(fullname, _Alias(new))  # pyright: ignore[reportArgumentType] - no base of importlib.abc, as said above


def install() -> None:
    """Make the old names importable in this process; once is enough."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())

"""Paths in the input of file tools, and how the tools access them."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping

from callboard.core.permissions import globs
from callboard.core.permissions.effects import Access
from callboard.core.permissions.values import PathQuery, ProposedCall, UnparsedScript
from callboard.types.lazy_dataclass import dataclass

FILE_TOOLS: Mapping[str, Access] = {
    "read_file": "read",
    "glob": "read",
    "grep": "read",
    "list_folder": "read",
    "read_notebook": "read",
    "write_file": "write",
    "edit_file": "write",
    "multi_edit": "write",
    "edit_notebook": "write",
}
_OWN_FOLDER = frozenset({"glob", "grep", "list_folder"})
"""Tools that use the agent's folder if their input names no path."""


@dataclass(frozen=True, slots=True)
class NamedPath:
    """A path that a call names."""

    access: Access
    query: PathQuery


def named_paths(call: ProposedCall) -> tuple[NamedPath, ...] | UnparsedScript:
    """Return the paths of a file tool's call, or an error in them."""
    access = FILE_TOOLS[call.name]
    path = call.input.get("path")
    if path is None and call.name in _OWN_FOLDER:
        path = "."
    if not isinstance(path, str) or not path or "\0" in path:
        return UnparsedScript("the path is not text, is empty, or holds a NUL character")
    if path.startswith("~"):
        return UnparsedScript(
            "a `~` at its beginning is expanded only by a shell: write the whole path, or `./~` for a file"
        )
    named = [NamedPath(access, PathQuery(path))]
    pattern = call.input.get("pattern") if call.name == "glob" else None
    if pattern is not None:
        if not isinstance(pattern, str) or "\0" in pattern:
            return UnparsedScript("the pattern is not text")
        if pattern.startswith(("/", "~")) or ".." in pattern.split("/"):
            named.append(NamedPath(access, PathQuery(posixpath.join(globs.escape(path), pattern), glob=True)))
        elif ".." in re.split(r"[/{},]", pattern):
            named.append(NamedPath(access, PathQuery(posixpath.join(path, ".."))))
    return tuple(named)

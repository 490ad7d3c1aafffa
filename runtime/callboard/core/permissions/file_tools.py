"""Paths in the input of file tools, and how the tools access them."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass

from callboard.core.permissions import globs
from callboard.core.permissions.effects import Access
from callboard.core.permissions.values import PathQuery, ProposedCall, Unparsed

FILE_TOOLS: Mapping[str, Access] = {
    "read_file": "read",
    "glob": "read",
    "grep": "read",
    "write_file": "write",
    "edit_file": "write",
}


@dataclass(frozen=True, slots=True)
class Named:
    """A path that a call names."""

    access: Access
    query: PathQuery


def named_paths(call: ProposedCall) -> tuple[Named, ...] | Unparsed:
    """Return the paths of a file tool's call, or an error in them."""
    access = FILE_TOOLS[call.name]
    searching = call.name in ("glob", "grep")
    path = call.input.get("path")
    if path is None and searching:
        path = "."
    if not isinstance(path, str) or not path or "\0" in path:
        return Unparsed("the path is not text, is empty, or holds a NUL character")
    if path.startswith("~"):
        return Unparsed("a `~` at its beginning is a home to a shell alone: write the whole path, or `./~` for a file")
    named = [Named(access, PathQuery(path))]
    pattern = call.input.get("pattern") if call.name == "glob" else None
    if pattern is not None:
        if not isinstance(pattern, str) or "\0" in pattern:
            return Unparsed("the pattern is not text")
        if pattern.startswith(("/", "~")) or ".." in pattern.split("/"):
            named.append(Named(access, PathQuery(posixpath.join(globs.escape(path), pattern), glob=True)))
        elif ".." in re.split(r"[/{},]", pattern):
            named.append(Named(access, PathQuery(posixpath.join(path, ".."))))
    return tuple(named)

"""Files that a git command writes or deletes because its words name them: `--output=FILE`, `checkout -- FILE`, `rm`.

An allow rule for a git command covers neither the runtime's own files nor files that other tools run, whichever option
names them.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest

from callboard.core.permissions import globs
from callboard.core.permissions.effects import Effect, delete, write
from callboard.core.permissions.git_options import git_options
from callboard.core.permissions.option_parser import has_option, names_long, operands
from callboard.core.permissions.values import Arg

_WITH_SHORT_OUTPUT = frozenset(("archive", "format-patch"))
_CHANGE_OPERANDS = frozenset(("checkout", "restore", "mv", "init"))
_MAKE_FOLDERS = frozenset(("worktree", "submodule", "bundle", "clone"))
"""Commands whose first operand is no path."""


def git_writes(args: Sequence[Arg]) -> Iterator[Effect]:
    """Yield the writes and deletions of paths that the words of a git command name."""
    arguments = list(args)
    folder, _ = git_options(arguments)
    if not arguments or not all(arg.known for arg in arguments):
        return
    subcommand = arguments.pop(0).text
    paths = [_placed(arg, folder) for arg in operands(arguments) if arg.text != "-"]
    yield from (write(_placed(path, folder), "rule") for path in _outputs(subcommand, arguments))
    if subcommand == "rm" and not has_option(arguments, "", ("cached",)):
        yield from (delete(path) for path in paths)
    elif subcommand in _CHANGE_OPERANDS and not (subcommand == "restore" and _index_only(arguments)):
        yield from (write(path, "rule") for path in paths)
    elif subcommand in _MAKE_FOLDERS:
        yield from (write(path, "rule") for path in paths[1:] if ":" not in path.text)


def _placed(path: Arg, folder: str) -> Arg:
    """Return the path in the folder of `-C`."""
    if not folder:
        return path
    pattern = posixpath.join(globs.escape(folder), path.pattern) if path.glob else ""
    return replace(path, text=posixpath.join(folder, path.text), pattern=pattern)


def _outputs(subcommand: str, args: Sequence[Arg]) -> Iterator[Arg]:
    """Yield the values of options that name a file to write."""
    names = ("output", "output-directory", *(("file",) if subcommand == "config" else ()))
    for arg, following in zip_longest(args, args[1:]):
        if arg.text == "--":
            return
        if arg.text.startswith("--"):
            if names_long(arg.text, names):
                yield Arg(arg.text.partition("=")[2]) if "=" in arg.text else following or Arg(".")
            continue
        letter = "o" if subcommand in _WITH_SHORT_OUTPUT else "f" if subcommand == "config" else ""
        if letter and (match := re.fullmatch(f"-{letter}(.*)", arg.text, re.DOTALL)):
            yield Arg(match[1]) if match[1] else following or Arg(".")


def _index_only(args: Sequence[Arg]) -> bool:
    """Return True if `git restore` changes only the index."""
    return has_option(args, "S", ("staged",)) and not has_option(args, "W", ("worktree",))

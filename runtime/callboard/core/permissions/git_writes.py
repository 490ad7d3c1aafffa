"""Files that a git command writes or deletes: those that its words name, and folders whose files it changes.

Words name files in `--output=FILE`, `checkout -- FILE`, `rm`. `clean` and `reset --hard` change files of any name.

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
from callboard.core.permissions.effects import SETTINGS_FOLDER, Effect, GitSweep, delete, write
from callboard.core.permissions.git_options import git_options
from callboard.core.permissions.option_parser import has_option, names_long, operands
from callboard.core.permissions.values import Arg

_WITH_SHORT_OUTPUT = frozenset(("archive", "format-patch"))
_CHANGE_OPERANDS = frozenset(("checkout", "checkout-index", "restore", "mv", "init"))
_FOLDERS_OF_FILES = {"apply": "directory", "am": "directory", "checkout-index": "prefix", "read-tree": "prefix"}
"""Commands with an option that names the folder of the files that they write."""
_MAKE_FOLDERS = frozenset(("worktree", "submodule", "bundle", "clone"))
"""Commands whose first operand is no path."""


def _command(args: Sequence[Arg]) -> tuple[str, Sequence[Arg], str]:
    """Return the subcommand, its arguments, and git's folder.

    The subcommand is empty if there is none, or if the text of a word is unknown.
    """
    arguments = list(args)
    folder, _ = git_options(arguments)
    if not arguments or not all(arg.known for arg in arguments):
        return "", (), folder
    return arguments[0].text, arguments[1:], folder


def git_writes(args: Sequence[Arg]) -> Iterator[Effect]:
    """Yield the writes and deletions of paths that the words of a git command name."""
    subcommand, arguments, folder = _command(args)
    paths = [_placed(arg, folder) for arg in operands(arguments) if arg.text != "-"]
    yield from (write(_placed(path, folder), "rule") for path in _outputs(subcommand, arguments))
    if subcommand == "rm" and not has_option(arguments, "", ("cached",)):
        yield from (delete(path) for path in paths)
    elif subcommand in _CHANGE_OPERANDS and not (subcommand == "restore" and _index_only(arguments)):
        yield from (write(path, "rule") for path in paths)
    elif subcommand == "stash" and arguments and arguments[0].text not in _KEEP_FILES:
        yield from (write(_placed(path, folder), "rule") for path in _after_dashes(arguments))
    elif subcommand == "clean":
        yield from (delete(path) for path in _swept(arguments) if path.text != ".")
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
    names = ["output", "output-directory", *(["file"] if subcommand == "config" else [])]
    names += [_FOLDERS_OF_FILES[subcommand]] if subcommand in _FOLDERS_OF_FILES else []
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


_KEEP_FILES = frozenset(("list", "show", "drop", "clear", "pop", "apply", "branch", "create", "store"))
"""Commands of `git stash` that move no file of the folder away."""


def git_sweeps(args: Sequence[Arg]) -> Iterator[GitSweep]:
    """Yield the folders in which a git command changes files that its words do not name."""
    subcommand, arguments, folder = _command(args)
    untracked = subcommand == "clean" or (
        subcommand == "stash" and has_option(arguments, "ua", ("include-untracked", "all"))
    )
    for path in _swept_by(subcommand, arguments):
        yield GitSweep(subcommand, posixpath.join(folder, path), tracked=not untracked)
        if path == "." and folder and subcommand != "clean":
            # The whole repository, which may be the agent's own.
            yield GitSweep(subcommand, path, tracked=not untracked)


def _swept_by(subcommand: str, args: Sequence[Arg]) -> Iterator[str]:
    forced = has_option(args, "f", ("force",))
    if subcommand == "clean" and not has_option(args, "n", ("dry-run",)) and not _spares_settings(args):
        yield from (path.text for path in _swept(args))
    elif subcommand == "stash" and (not args or args[0].text not in _KEEP_FILES):
        pushes = bool(args) and args[0].text == "push" and not has_option(args, "m", ("message",))
        yield from _folders(args[1:] if pushes else _after_dashes(args))
    elif (
        (subcommand == "reset" and has_option(args, "", ("hard", "merge", "keep")))
        or (subcommand == "checkout" and forced)
        or (subcommand == "switch" and (forced or has_option(args, "", ("discard-changes",))))
        or (subcommand == "read-tree" and has_option(args, "u"))
        or (subcommand == "checkout-index" and has_option(args, "a", ("all",)))
    ):
        yield "."
    elif subcommand == "checkout" or (subcommand == "restore" and not _index_only(args)):
        yield from _folders(args) if operands(args) else ()


def _after_dashes(args: Sequence[Arg]) -> Sequence[Arg]:
    at = next((at for at, arg in enumerate(args) if arg.text == "--"), len(args))
    return args[at + 1 :]


def _folders(args: Sequence[Arg]) -> Iterator[str]:
    """Yield the folders that git's paths begin with; the current folder if there is no path, or one is a pattern."""
    paths = operands(args)
    if not paths or has_option(args, "", ("pathspec-from-file",)):
        yield "."
    for path in paths:
        yield "." if path.glob or path.text.startswith(":") or globs.is_pattern(path.text) else path.text


def _swept(args: Sequence[Arg]) -> list[Arg]:
    """Return the paths of `git clean`: its operands without values of `-e`, or the current folder."""
    plain = [arg for before, arg in zip((None, *args), args, strict=False) if not (before and _takes_pattern(before))]
    paths = operands(plain)
    return [Arg(".") if path.text.startswith(":") else path for path in paths] or [Arg(".")]


def _takes_pattern(option: Arg) -> bool:
    return re.fullmatch(r"-[dfiqxX]*e|--exc(?:l(?:u(?:de?)?)?)?", option.text) is not None


def _spares_settings(args: Sequence[Arg]) -> bool:
    """Return True if `git clean` leaves the settings out."""
    values = (arg.text for before, arg in zip((None, *args), args, strict=False) if before and _takes_pattern(before))
    attached = (match[1] for arg in args if (match := re.fullmatch(r"(?:-[dfiqxX]*e|--exclude=)(.+)", arg.text)))
    return any(text.strip("/") == SETTINGS_FOLDER for text in (*values, *attached))

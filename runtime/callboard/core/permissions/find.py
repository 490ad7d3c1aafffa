"""Effects of a `find` command: a small language of tests and actions.

It is read with a list of words that are known to only read. Allow rules do not cover its actions that delete, write or
run programs (docs/permissions.md, letter P).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from callboard.core.permissions import globs
from callboard.core.permissions.command_table import names
from callboard.core.permissions.effects import Effect, Risk, delete, read, write
from callboard.core.permissions.values import HOLE, Arg
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass

_FIND_BARE = names(
    "-empty -nouser -nogroup -mount -xdev -depth -d -daystart -print -print0 -ls -prune -quit -not ! -a -and "
    "-o -or ( ) , -readable -writable -executable -true -false -noleaf -ignore_readdir_race -H -P -warn "
    "-nowarn"
)
_FIND_VALUE = names(
    "-name -iname -path -ipath -wholename -iwholename -regex -iregex -type -xtype -size -mtime -atime -ctime "
    "-mmin -amin -cmin -perm -user -group -uid -gid -links -inum -maxdepth -mindepth -printf -regextype "
    "-fstype -lname -ilname -used"
)
_FIND_PATH_VALUE = late_pattern(r"-newer..|-newer|-anewer|-cnewer|-samefile")
_FIND_WRITES = names("-fprint -fprint0 -fprintf -fls")
_FIND_RUNS = names("-exec -execdir -ok -okdir")
_COMBINING = names("-o -or , ! -not ( )")
_LEFTOVER = late_pattern(
    r"\*\.(?:py[co]|o|obj|class|log|tmp|temp|swp|bak|orig|rej|egg-info)|\*~|__pycache__|node_modules|htmlcov"
    r"|\.(?:DS_Store|pytest_cache|mypy_cache|ruff_cache|coverage)"
)
"""Names that only tools give, to files that they can make again or that nobody needs."""


@dataclass(frozen=True, slots=True)
class FindEffects:
    """Effects of a find command: its own, and the programs that it runs."""

    effects: tuple[Effect, ...]
    programs: tuple[tuple[Arg, ...], ...]


def find_effects(args: Sequence[Arg]) -> FindEffects:
    """Read a find command. Deleting is an effect on its starting points."""
    if not all(arg.known for arg in args):
        emptied = tuple(replace(arg, text=text) for arg in args if (text := arg.text.replace(HOLE, "")))
        empty = find_effects(emptied)  # the effects if its unknown parts are empty can only add denials
        return FindEffects(
            (Risk("L", "a word of `find` is only known when it runs", "bypass"), *empty.effects),
            (*empty.programs, *_templates(args)),
        )
    effects: list[Effect] = []
    programs: list[tuple[Arg, ...]] = []
    roots, at = _find_roots(args)
    follows = any(arg.text in ("-L", "-follow") for arg in args)
    effects += [read(root, tree=follows) for root in roots]
    effects += [
        Risk("P", "a glob can become an action of `find`", "bypass") for a in args if a.glob and a.text[0] in "*?[-"
    ]
    while at < len(args):
        text = args[at].text
        value = args[at + 1 : at + 2]
        if text in _FIND_RUNS:
            end = next((i for i in range(at + 1, len(args)) if args[i].text in (";", "+")), len(args))
            programs += _started(args[at + 1 : end], _reached_paths(args[:at], roots))
            effects.append(Risk("X", f"`find {text}` runs a program", "bypass"))
            at = end
        elif text in _FIND_WRITES:
            effects += [write(arg, "bypass") for arg in value] + [Risk("E", f"`find {text}` writes", "bypass")]
            at += 2 if text == "-fprintf" else 1
        elif text in _FIND_VALUE:
            at += 1
        elif _FIND_PATH_VALUE.fullmatch(text):
            effects += [read(arg) for arg in value]
            at += 1
        elif text not in _FIND_BARE and text not in ("-L", "-follow", "-delete"):
            effects.append(Risk("X", f"`find {text}` is not known to only read", "bypass"))
        at += 1
    return FindEffects((*effects, *_find_deletes(args)), tuple(programs))


def _templates(args: Sequence[Arg]) -> Iterator[tuple[Arg, ...]]:
    """Yield the words of each `-exec` as they are."""
    for at, arg in enumerate(args):
        if arg.text in _FIND_RUNS:
            end = next((i for i in range(at + 1, len(args)) if args[i].text in (";", "+")), len(args))
            yield tuple(args[at + 1 : end])


def _started(template: Sequence[Arg], roots: Sequence[Arg]) -> Iterator[tuple[Arg, ...]]:
    """Yield the programs that `-exec` runs. `{}` is replaced by each path of `_reached_paths`, also inside a word."""
    if any("{}" in arg.text != "{}" for arg in template):
        yield from (tuple(replace(arg, text=arg.text.replace("{}", root.text)) for arg in template) for root in roots)
    else:
        yield tuple(word for arg in template for word in (roots if arg.text == "{}" else (arg,)))


def _find_roots(args: Sequence[Arg]) -> tuple[list[Arg], int]:
    at = 0
    while at < len(args) and re.fullmatch(r"-[HLPEXsx]+|-O\d*|-D|--", args[at].text):
        at += 2 if args[at].text == "-D" else 1
    end = next((i for i in range(at, len(args)) if args[i].text.startswith(("-", "(", "!", ","))), len(args))
    return list(args[at:end]) or [Arg(".")], end


def _reached_paths(tests: Sequence[Arg], roots: Sequence[Arg]) -> list[Arg]:
    """Return the paths that an action with these words before it concerns: all that is below a starting point.

    A name that only tools leave behind (`-name '*.pyc'`) restricts them. A root that is absolute or leads up, and words
    that combine tests, do not let it.
    """
    texts = [arg.text for arg in tests if not arg.glob]
    name = next((word for option, word in pairwise(texts) if option == "-name" and _LEFTOVER.fullmatch(word)), None)
    if name is None or not _COMBINING.isdisjoint(texts) or any(not _is_beneath(root) for root in roots):
        return list(roots)
    return [
        Arg(f"{root.text}/{name}", glob="*" in name, pattern=f"{globs.escape(root.text)}/{name}" if "*" in name else "")
        for root in roots
    ]


def printed_paths(args: Sequence[Arg]) -> tuple[Arg, ...]:
    """Return folders or names that contain the paths that a find command prints."""
    roots, _ = _find_roots(args)
    end = next((at for at, arg in enumerate(args) if arg.text.startswith(("-print", "-ls", "-f"))), len(args))
    paths = _reached_paths(args[:end], roots)
    restricted = paths != roots and _COMBINING.isdisjoint(arg.text for arg in args)
    return tuple(paths) if restricted else tuple(arg for arg in args if arg.text[:1] not in "-")


def _is_beneath(root: Arg) -> bool:
    return not root.glob and not root.text.startswith(("/", "~")) and ".." not in root.text.split("/")


def _find_deletes(args: Sequence[Arg]) -> Iterator[Effect]:
    at = next((at for at, arg in enumerate(args) if arg.text == "-delete"), None)
    if at is not None:
        from_roots, _ = _find_roots(args)
        yield Risk("D", "`find -delete` deletes", "person")
        for root in _reached_paths(args[:at], from_roots):
            if root.known:
                yield delete(root, "person")

"""What a `find` command does: a language of tests and actions, read by the list of words that are known to only look.

Allow rules do not cover its actions that delete, write or run programs (docs/permissions.md, letter P).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from callboard.core.permission.commands import names
from callboard.core.permission.effects import Does, Effect, delete, read, write
from callboard.core.permission.words import Arg

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
_FIND_PATH_VALUE = re.compile(r"-newer..|-newer|-anewer|-cnewer|-samefile")
_FIND_WRITES = names("-fprint -fprint0 -fprintf -fls")
_FIND_RUNS = names("-exec -execdir -ok -okdir")


@dataclass(frozen=True, slots=True)
class Found:
    """What a find command does: its own effects, and the programs that it runs."""

    effects: tuple[Effect, ...]
    programs: tuple[tuple[Arg, ...], ...]


def find_effects(args: Sequence[Arg]) -> Found:
    """Read a find command. Deleting is an effect on its starting points."""
    if not all(arg.known for arg in args):
        return Found((Does("L", "a word of `find` is only known when it runs"), *_find_deletes(args)), ())
    effects: list[Effect] = []
    programs: list[tuple[Arg, ...]] = []
    roots, at = _find_roots(args)
    follows = any(arg.text in ("-L", "-follow") for arg in args)
    effects += [read(root, tree=follows) for root in roots]
    effects += [
        Does("P", "a glob can become an action of `find`", "bypass") for a in args if a.glob and a.text[0] in "*?[-"
    ]
    while at < len(args):
        text = args[at].text
        value = args[at + 1 : at + 2]
        if text in _FIND_RUNS:
            end = next((i for i in range(at + 1, len(args)) if args[i].text in (";", "+")), len(args))
            programs += _started(args[at + 1 : end], roots)
            effects.append(Does("X", f"`find {text}` runs a program", "bypass"))
            at = end
        elif text in _FIND_WRITES:
            effects += [write(arg, "bypass") for arg in value] + [Does("E", f"`find {text}` writes", "bypass")]
            at += 2 if text == "-fprintf" else 1
        elif text in _FIND_VALUE:
            at += 1
        elif _FIND_PATH_VALUE.fullmatch(text):
            effects += [read(arg) for arg in value]
            at += 1
        elif text not in _FIND_BARE and text not in ("-L", "-follow", "-delete"):
            effects.append(Does("X", f"`find {text}` is not known to only read", "bypass"))
        at += 1
    return Found((*effects, *_find_deletes(args)), tuple(programs))


def _started(words: Sequence[Arg], roots: Sequence[Arg]) -> Iterator[tuple[Arg, ...]]:
    """Yield the programs that `-exec` runs: `{}` is each starting point, also inside a word."""
    if any("{}" in arg.text != "{}" for arg in words):
        yield from (tuple(replace(arg, text=arg.text.replace("{}", root.text)) for arg in words) for root in roots)
    else:
        yield tuple(word for arg in words for word in (roots if arg.text == "{}" else (arg,)))


def _find_roots(args: Sequence[Arg]) -> tuple[list[Arg], int]:
    at = 0
    while at < len(args) and re.fullmatch(r"-[HLPEXsx]+|-O\d*|-D|--", args[at].text):
        at += 2 if args[at].text == "-D" else 1
    end = next((i for i in range(at, len(args)) if args[i].text.startswith(("-", "(", "!", ","))), len(args))
    return list(args[at:end]) or [Arg(".")], end


def _find_deletes(args: Sequence[Arg]) -> Iterator[Effect]:
    if any(arg.text == "-delete" for arg in args):
        from_roots, _ = _find_roots(args)
        yield Does("D", "`find -delete` deletes", "person")
        for root in from_roots:
            if root.known:
                yield delete(root, "person")

"""Reading the options of programs, as GNU and BSD programs read them, erring towards what is dangerous."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from callboard.core.permission.commands import Reader
from callboard.core.permission.effects import Does, Effect, read, write
from callboard.core.permission.words import Arg

SHORTEST_LONG = 2
"""Beginnings of long options shorter than this are taken as ambiguous by every program."""


@dataclass(frozen=True, slots=True)
class Command:
    """A program with its words, wrappers taken off."""

    name: str
    args: tuple[Arg, ...]


def names_long(text: str, names: Sequence[str]) -> bool:
    """Whether `text` (`--word` or `--word=value`) is one of `names` or a beginning of one."""
    word = text[2:].partition("=")[0]
    return len(word) >= SHORTEST_LONG and any(name.startswith(word) for name in names)


def has_option(args: Sequence[Arg], letters: str, names: Sequence[str] = ()) -> bool:
    """Whether any word before `--` is such an option; a letter counts anywhere in a cluster."""
    for arg in args:
        if arg.text == "--":
            return False
        if arg.text.startswith("--"):
            if names_long(arg.text, names):
                return True
        elif arg.text.startswith("-") and any(letter in arg.text[1:] for letter in letters):
            return True
    return False


def operands(args: Sequence[Arg]) -> list[Arg]:
    """Return the words that are no options. Values of options count as operands: more is asked, not less."""
    out: list[Arg] = []
    ended = False
    for arg in args:
        if not ended and arg.text == "--":
            ended = True
        elif ended or not arg.text.startswith("-") or arg.text == "-":
            out.append(arg)
    return out


def value_paths(args: Sequence[Arg]) -> Iterator[Effect]:
    """Yield reads for what may be a path inside an option: `--file=PATH`, `-fPATH`."""
    for arg in args:
        if arg.text == "--":
            return
        value = ""
        if arg.text.startswith("--") and "=" in arg.text:
            value = arg.text.partition("=")[2]
        elif arg.text.startswith("-") and not arg.text.startswith("--"):
            value = arg.text[2:]
        if value:
            yield read(Arg(value))


def reader_effects(command: Command, spec: Reader) -> Iterator[Effect]:
    """Yield what a program of the table of readers does with these words."""
    args = command.args
    for arg in args:
        if not arg.known:
            yield Does("L", f"a word of `{command.name}` is only known when it runs")
            return
    if has_option(args, spec.short, spec.long):
        yield Does("X", f"`{command.name}` has an option that writes or runs something")
    if spec.glob_options and any(a.glob and a.text[0] in "*?[-" for a in _before_end(args)):
        yield Does("P", f"a glob can become an option of `{command.name}`", "bypass")
    yield from value_paths(args)
    tree = has_option(args, spec.tree, spec.tree_long)
    paths = operands(_without_values(args, spec.values))
    if spec.pattern and paths and not has_option(args, spec.pattern, spec.pattern_long) and not paths[0].glob:
        paths = paths[1:]
    for index, path in enumerate(paths):
        yield read(path, tree=tree) if index < spec.most else write(path)
    if tree and not paths:
        yield read(Arg("."), tree=True)


def _without_values(args: Sequence[Arg], values: str) -> list[Arg]:
    """Leave out the words that an option before them takes as its value."""
    takes = {f"-{letter}" for letter in values}
    return [arg for i, arg in enumerate(args) if i == 0 or args[i - 1].text not in takes]


def _before_end(args: Sequence[Arg]) -> Sequence[Arg]:
    end = next((i for i, arg in enumerate(args) if arg.text == "--"), len(args))
    return args[:end]

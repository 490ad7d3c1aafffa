"""Parsing of program options, as GNU and BSD programs parse them. Doubtful cases count as dangerous."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field

from callboard.core.permissions.command_table import CODE_NAMES, EVERY, ReadingProgram
from callboard.core.permissions.effects import Effect, Risk, read, write
from callboard.core.permissions.values import Arg, LeftOut, ProgramWords
from callboard.types.lazy_dataclass import dataclass

WHOLE_FOLDER = read(Arg("."), tree=True, left_out="ignored")
"""Effect of ripgrep if no path is given and nothing is piped to it."""


def names_long(text: str, names: Sequence[str]) -> bool:
    """Return True if `text` (`--word` or `--word=value`) is one of `names` or a prefix of one, however short."""
    word = text[2:].partition("=")[0]
    return bool(word) and any(name.startswith(word) for name in names)


def end_of_options(args: Sequence[Arg]) -> int:
    """Return the index of the `--` that certainly ends the options.

    A `--` after an option may be that option's value.
    """
    for at, arg in enumerate(args):
        if arg.text == "--" and not (at and args[at - 1].text.startswith("-") and args[at - 1].text != "--"):
            return at
    return len(args)


def has_option(args: Sequence[Arg], letters: str, names: Sequence[str] = ()) -> bool:
    """Return True if any word that may be an option is one of these; a letter counts anywhere in a cluster."""
    for arg in args[: end_of_options(args)]:
        if arg.text.startswith("--"):
            if names_long(arg.text, names):
                return True
        elif arg.text.startswith("-") and any(letter in arg.text[1:] for letter in letters):
            return True
    return False


def operands(args: Sequence[Arg]) -> list[Arg]:
    """Return the words that are not options. Values of options count as operands, which causes more asks, not fewer."""
    out: list[Arg] = []
    ended = False
    for arg in args:
        if not ended and arg.text == "--":
            ended = True
        elif ended or not arg.text.startswith("-") or arg.text == "-":
            out.append(arg)
    return out


def value_paths(args: Sequence[Arg]) -> Iterator[Effect]:
    """Yield reads for possible paths inside an option: `--file=PATH`, `-fPATH`."""
    for arg in args[: end_of_options(args)]:
        value = ""
        if arg.text.startswith("--") and "=" in arg.text:
            value = arg.text.partition("=")[2]
        elif arg.text.startswith("-") and not arg.text.startswith("--"):
            value = arg.text[2:]
        if value:
            yield read(Arg(value))


@dataclass(slots=True)
class _Read:
    """Words of a reader, collected from left to right as the program itself does it."""

    spec: ReadingProgram
    effects: list[Effect] = field(default_factory=list[Effect])
    paths: list[Arg] = field(default_factory=list[Arg])
    picked: list[str] = field(default_factory=list[str])
    """File patterns of its options."""
    widened: bool = False
    """True if an option that excludes files came before: files that match no pattern are read too (GNU grep)."""
    pattern_given: bool = False
    unsure: bool = False
    """True if the first of the paths may be a pattern."""
    tree: bool = False
    linked: bool = False
    lists: bool = False
    """True if it shows only names."""

    def option(self, arg: Arg, after: Arg | None) -> bool:
        """Read one option. Return True if it takes the next word as its value."""
        if arg.text.startswith("--"):
            return self.long(arg.text, after)
        letters = arg.text[1:] if self.spec.clusters else arg.text[1:2]
        for at, letter in enumerate(letters, start=2):
            attached = arg.text[at:]
            self.tree |= letter in self.spec.tree
            self.linked |= letter in "RL"
            if letter in self.spec.short:
                self.bad()
            if letter in self.spec.files and attached:
                self.effects += [read(Arg(path)) for path in dict.fromkeys((attached, *attached.split(":"))) if path]
            if letter in self.spec.pattern and letter != "-":
                self.pattern_given = True
                self.file(attached or (after.text if after else ""), letter == "f")
                return not attached
            if letter in self.spec.values:
                value = attached or (after.text if after else "")
                if letter == "C" and not value.isdigit():
                    return False  # some versions take a number here, some take no value
                self.value(letter, value)
                return not attached
        if len(arg.text) > 2:
            self.effects.append(read(Arg(arg.text[2:])))
        return False

    def long(self, text: str, after: Arg | None) -> bool:
        name, equals, value = text[2:].partition("=")
        self.lists |= name in self.spec.listers
        if names_long(text, self.spec.long):
            self.bad()
        if names_long(text, self.spec.tree_long):
            self.tree = True
            self.linked |= name.startswith(("deref", "follow", "directories"))
        value = value if equals else after.text if after else ""
        if name in self.spec.long_values:
            self.value(name, value)
            return not equals
        if names_long(text, self.spec.pattern_long):
            self.pattern_given = True
            self.file(value, names_long(text, ("file",)))
            return not equals and names_long(text, ("regexp", "file")) and name != "files"
        if equals and value:
            self.effects.append(read(Arg(value)))
        return False

    def file(self, value: str, of_patterns: bool) -> None:
        if of_patterns and value:
            self.effects.append(read(Arg(value)))

    def value(self, option: str, value: str) -> None:
        if option in self.spec.picks:
            self.picked.append(value)
        self.widened |= option in self.spec.widens and not self.picked
        if option in self.spec.writes:
            self.bad()
            self.effects.append(write(Arg(value), "rule"))

    def bad(self) -> None:
        self.effects.append(Risk("X", "an option of it writes or runs something"))


def reader_effects(command: ProgramWords, spec: ReadingProgram) -> Iterator[Effect]:
    """Yield the effects of a program from the table of readers with these words."""
    args = command.args
    if not all(arg.known for arg in args):
        yield Risk("L", f"a word of `{command.name}` is only known when it runs")
        return
    seen = _gathered(args, spec)
    yield from seen.effects
    if spec.glob_options and any(a.glob and a.text[0] in "*?[-" for a in args[: end_of_options(args)]):
        yield Risk("P", f"a glob can become an option of `{command.name}`", "bypass")
    if spec.most < EVERY and any(path.glob for path in seen.paths):
        yield Risk("P", f"a glob can become the file that `{command.name}` writes", "bypass")
    tree = _whole(seen) and (seen.tree or not seen.lists)
    ignoring = spec.ignores and not tree and not _only_code(seen) and not seen.lists
    left_out: LeftOut = "ignored" if ignoring else "nothing"
    for index, path in enumerate(seen.paths):
        yield read(path, tree=tree or ignoring, left_out=left_out) if index < spec.most else write(path)
    if (tree or ignoring) and not spec.every and len(seen.paths) <= seen.unsure:
        yield read(Arg("."), tree=True, left_out=left_out)


def _gathered(args: Sequence[Arg], spec: ReadingProgram) -> _Read:
    seen = _Read(spec)
    end = end_of_options(args)
    at = 0
    ended = False
    while at < len(args):
        arg = args[at]
        after = args[at + 1] if at + 1 < len(args) else None
        at += 1
        if arg.text == "--" and not ended:
            ended = True
        elif arg.text.startswith("-") and arg.text != "-" and (not ended or at - 1 < end):
            if ended:
                seen.paths.append(arg)
            at += seen.option(arg, after)
        else:
            if not seen.paths:
                seen.unsure = not ended and at > 1 and _may_take(args[at - 2].text, spec)
            seen.paths.append(arg)
    first = seen.paths[0] if seen.paths else None
    if spec.pattern and first and not seen.pattern_given and not first.glob:
        seen.paths = seen.paths if seen.unsure else seen.paths[1:]  # a pattern is not a path
    else:
        seen.unsure = False
    return seen


def _may_take(option: str, spec: ReadingProgram) -> bool:
    """Return True if the next word may be the option's value, according to the table."""
    if option.startswith("--"):
        return "=" not in option
    return option.startswith("-") and not set(option[1:]) <= set(spec.flags)


def _whole(seen: _Read) -> bool:
    """Return True if secrets beneath a folder are read too: the whole tree, not only files with the names of code."""
    if seen.spec.picks_widen:
        return seen.tree or not all(CODE_NAMES.fullmatch(pattern) for pattern in _picked(seen))
    return (seen.tree or seen.spec.every) and (seen.linked or seen.widened or not _only_code(seen))


def _only_code(seen: _Read) -> bool:
    picked = _picked(seen)
    return bool(picked) and all(CODE_NAMES.fullmatch(pattern) for pattern in picked)


def _picked(seen: _Read) -> list[str]:
    return [pattern for pattern in seen.picked if not pattern.startswith("!")]

"""Reading the options of programs, as GNU and BSD programs read them, erring towards what is dangerous."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from callboard.core.permission.commands import CODE_NAMES, EVERY, Reader
from callboard.core.permission.effects import Does, Effect, read, write
from callboard.core.permission.words import Arg


@dataclass(frozen=True, slots=True)
class Command:
    """A program with its words, wrappers taken off."""

    name: str
    args: tuple[Arg, ...]


def names_long(text: str, names: Sequence[str]) -> bool:
    """Whether `text` (`--word` or `--word=value`) is one of `names` or a beginning of one, however short."""
    word = text[2:].partition("=")[0]
    return bool(word) and any(name.startswith(word) for name in names)


def end_of_options(args: Sequence[Arg]) -> int:
    """Return the index of the `--` that ends the options for sure: one after an option may be that option's value."""
    for at, arg in enumerate(args):
        if arg.text == "--" and not (at and args[at - 1].text.startswith("-") and args[at - 1].text != "--"):
            return at
    return len(args)


def has_option(args: Sequence[Arg], letters: str, names: Sequence[str] = ()) -> bool:
    """Whether any word that may be an option is one of these; a letter counts anywhere in a cluster."""
    for arg in args[: end_of_options(args)]:
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
    """What the words of a reader say: gathered from left to right, as the program itself does it."""

    spec: Reader
    effects: list[Effect] = field(default_factory=list[Effect])
    paths: list[Arg] = field(default_factory=list[Arg])
    picked: list[str] = field(default_factory=list[str])
    """File patterns that its options choose by."""
    pattern_given: bool = False
    unsure: bool = False
    """The first of the paths may be a pattern."""
    tree: bool = False
    linked: bool = False

    def option(self, arg: Arg, after: Arg | None) -> bool:
        """Read one option. True when it takes the word after it as its value."""
        if arg.text.startswith("--"):
            return self.long(arg.text, after)
        letters = arg.text[1:] if self.spec.clusters else arg.text[1:2]
        for at, letter in enumerate(letters, start=2):
            rest = arg.text[at:]
            self.tree |= letter in self.spec.tree
            self.linked |= letter in "RL"
            if letter in self.spec.short:
                self.bad()
            if letter in self.spec.pattern and letter != "-":
                self.pattern_given = True
                self.file(rest or (after.text if after else ""), letter == "f")
                return not rest
            if letter in self.spec.values:
                value = rest or (after.text if after else "")
                if letter == "C" and not value.isdigit():
                    return False  # some versions take a number here or none
                self.value(letter, value)
                return not rest
        if len(arg.text) > 2:
            self.effects.append(read(Arg(arg.text[2:])))
        return False

    def long(self, text: str, after: Arg | None) -> bool:
        name, equals, value = text[2:].partition("=")
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
        if option in self.spec.writes:
            self.bad()
            self.effects.append(write(Arg(value), "rule"))

    def bad(self) -> None:
        self.effects.append(Does("X", "an option of it writes or runs something"))


def reader_effects(command: Command, spec: Reader) -> Iterator[Effect]:
    """Yield what a program of the table of readers does with these words."""
    args = command.args
    if not all(arg.known for arg in args):
        yield Does("L", f"a word of `{command.name}` is only known when it runs")
        return
    seen = _gathered(args, spec)
    yield from seen.effects
    if spec.glob_options and any(a.glob and a.text[0] in "*?[-" for a in args[: end_of_options(args)]):
        yield Does("P", f"a glob can become an option of `{command.name}`", "bypass")
    if spec.most < EVERY and any(path.glob for path in seen.paths):
        yield Does("P", f"a glob can become the file that `{command.name}` writes", "bypass")
    tree = _whole(seen)
    for index, path in enumerate(seen.paths):
        yield read(path, tree=tree) if index < spec.most else write(path)
    if tree and len(seen.paths) <= seen.unsure:
        yield read(Arg("."), tree=True)


def _gathered(args: Sequence[Arg], spec: Reader) -> _Read:
    seen, end = _Read(spec), end_of_options(args)
    at, ended = 0, False
    while at < len(args):
        arg, after = args[at], args[at + 1] if at + 1 < len(args) else None
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
        seen.paths = seen.paths if seen.unsure else seen.paths[1:]  # a pattern is no path
    else:
        seen.unsure = False
    return seen


def _may_take(option: str, spec: Reader) -> bool:
    """Whether the word after this one may be its value, for all that the table says."""
    if option.startswith("--"):
        return "=" not in option
    return option.startswith("-") and not set(option[1:]) <= set(spec.flags)


def _whole(seen: _Read) -> bool:
    """Whether secrets beneath a folder are read too: the whole tree, not only files with the names of code."""
    picked = [pattern for pattern in seen.picked if not pattern.startswith("!")]
    code = all(CODE_NAMES.fullmatch(pattern) for pattern in picked)
    if seen.spec.picks_widen:
        return seen.tree or not code
    return seen.tree and not (picked and code and not seen.linked)

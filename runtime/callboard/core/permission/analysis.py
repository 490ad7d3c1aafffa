"""From a parsed script to its parts: each simple command, redirect and assignment, with what it would do.

Everything that the grammar resolves without running code is seen through: lists, pipes, loops, functions,
substitutions, wrappers, literal `sh -c` and `eval`, text given to a shell. The working directory is followed as a set:
a relative path is judged in every folder that some `cd` of the script could have led to.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from callboard.core.permission.commands import SHELLS
from callboard.core.permission.effects import Does, Effect, GitIn, Part, Touch, View, queries_in, read, write
from callboard.core.permission.find import find_effects
from callboard.core.permission.git import GIT_PREMISE, git_effects
from callboard.core.permission.never import is_fork_bomb, name_of, never, walk
from callboard.core.permission.options import Command
from callboard.core.permission.programs import STANDARD_FOLDERS, effects_of
from callboard.core.permission.shells import named_by, reads_itself, script_of_shell, shared_input, stdin_of, text_of
from callboard.core.permission.values import (
    Dynamic,
    Floor,
    Function,
    Group,
    Node,
    Parsed,
    PathQuery,
    Pipeline,
    Redirect,
    Script,
    Simple,
    Unparsed,
    Word,
)
from callboard.core.permission.words import Arg, expand, literal
from callboard.core.permission.wrappers import OTHERS, TRANSPARENT_FOR_ALLOW, harmless_assignment, is_wrapper, peel

MOST_PARTS = 400
MOST_FOLDERS = 16
DEEPEST = 12
_SILENT = frozenset((":", "true", "false", "cd", "test", "[", "sleep", "set", "exit", "return"))
_DUPLICATES = re.compile(r"\d+-?|-")


@dataclass(frozen=True, slots=True)
class Analysis:
    """What a script would do, and what must be found out to decide on it."""

    parts: tuple[Part, ...]
    queries: frozenset[PathQuery]
    missing: tuple[str, ...]
    """Literal scripts inside it that were not parsed yet."""
    folders: tuple[str, ...] = ("",)


def analyse(source: str, scripts: Mapping[str, Parsed], home: str, floor: Floor) -> Analysis:
    """Return the parts of `source`. Total: what is not understood is a part that asks."""
    reader = _Reader(scripts, home, floor, *_plumbing(scripts.values()))
    reader.script(source)
    folders = reader.folders()
    parts = tuple(reader.placed(part, folders) for part in reader.parts)
    queries = frozenset(query for part in parts for query in queries_in(part.effects))
    return Analysis(parts, queries, tuple(reader.missing), folders)


def _plumbing(scripts: Iterable[Parsed]) -> tuple[frozenset[str], bool]:
    """Return every name that a function takes anywhere, and whether `exec` could lead the input elsewhere."""
    nodes = [node for script in scripts if isinstance(script, Script) for node in walk(script.nodes)]
    functions = frozenset(node.name for node in nodes if isinstance(node, Function))
    simple = (node for node in nodes if isinstance(node, Simple) and node.redirects)
    return functions, any("exec" in name_of(word) for node in simple for word in node.words)


@dataclass(slots=True)
class _Reader:
    scripts: Mapping[str, Parsed]
    home: str
    floor: Floor
    taken: frozenset[str] = frozenset()
    rewired: bool = False
    fed: tuple[Arg, ...] = ()
    parts: list[Part] = field(default_factory=list[Part])
    missing: list[str] = field(default_factory=list[str])
    moves: list[str] = field(default_factory=list[str])
    lost: bool = False
    functions: frozenset[str] = frozenset()
    depth: int = 0

    def script(self, source: str) -> None:
        """Read a script by its text."""
        parsed = self.scripts.get(source)
        if parsed is None or self.depth > DEEPEST or len(self.parts) > MOST_PARTS:
            if parsed is None and source not in self.missing:
                self.missing.append(source)
            self.add(Does("M", "a script in it is too large or nested too deep to be judged", "person"))
        elif isinstance(parsed, Unparsed):
            self.add(Does("M", parsed.why, "never" if parsed.nul else "person"))
        else:
            if is_fork_bomb(parsed):
                self.add(Does("S", "a function in it multiplies itself without end", "never"))
            outer, self.functions, self.depth = self.functions, frozenset[str](), self.depth + 1
            for node in parsed.nodes:
                self.node(node)
                if isinstance(node, Function):
                    self.functions |= {node.name}
            self.functions, self.depth = outer, self.depth - 1

    def add(self, *effects: Effect) -> None:
        """Add a part that no rule covers."""
        self.parts.append(Part(effects))

    def nodes(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            self.node(node)

    def node(self, node: Node, stdin: str | None = None) -> None:
        if len(self.parts) > MOST_PARTS:
            self.add(Does("M", "it has too many parts to be judged", "person"))
        elif isinstance(node, Simple):
            self.simple(node, stdin)
        elif isinstance(node, Pipeline):
            self.pipeline(node)
        elif isinstance(node, Function):
            self.nodes(node.body)
        else:
            self.group(node, stdin)

    def pipeline(self, pipeline: Pipeline) -> None:
        text: str | None = None
        for stage in pipeline.stages:
            self.node(stage, text)
            self.fed = named_by(stage, self.home)
            taken = isinstance(stage, Simple) and stage.words and name_of(stage.words[0]) in self.taken
            text = None if taken else text_of(stage, self.home, text)
        self.fed = ()

    def group(self, group: Group, stdin: str | None) -> None:
        self.inside(group.words)
        for redirect in group.redirects:
            self.redirect(redirect, empties=False)
        stdin = self.given(group.redirects, stdin)
        if stdin is not None and (group.kind == "loop" or shared_input(group.body)):
            self.add(Does("L", "what each of several commands reads is only known when it runs"))
        if group.kind in ("arithmetic", "coproc"):
            self.add(Does("V", f"{group.kind} evaluates or sets variables"))
        if not all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in group.sets):
            self.add(Does("V", "a loop sets a variable that other programs heed"))
        args = [arg for word in group.words for arg in expand(word, self.home)]
        if group.kind == "test":
            self.part(Command("[", tuple(args)), (), (View((Arg("[["), *args), for_allow=True),))
        elif any(not arg.known and not arg.output_only for arg in args):
            self.add(Does("O", "it uses a variable's value"))
        elif any(arg.glob for arg in args) and group.kind == "loop":
            self.add(*(read(arg) for arg in args if arg.glob))
        for node in group.body:
            self.node(node, stdin)

    def inside(self, words: Iterable[Word]) -> None:
        """Read what runs while words are expanded."""
        dynamic = (part for word in words for part in word.parts if isinstance(part, Dynamic))
        for part in dynamic:
            for script in part.scripts:
                self.nodes(script.nodes)

    def simple(self, node: Simple, stdin: str | None) -> None:
        self.inside(assign.value for assign in node.assigns)
        self.inside(node.words)
        for assign in node.assigns:
            value = literal(assign.value, self.home)
            if not node.words or not harmless_assignment(assign.name) or not value.known:
                self.add(Does("V", f"it sets the variable {assign.name}", "bypass"))
        args = tuple(arg for word in node.words for arg in expand(word, self.home))
        for redirect in node.redirects:
            self.redirect(redirect, empties=_prints_nothing(args, node.redirects))
        stdin = self.given(node.redirects, stdin)
        if args and args[0].text == "tee" and any(_from_nothing(redirect) for redirect in node.redirects):
            self.add(Does("D", "it empties a file"))
        if any(arg.variable and arg.known for arg in args):
            self.add(Does("O", "it uses a variable's value"))
        if args:
            self.chain(args, stdin, assigned=bool(node.assigns))

    def given(self, redirects: Sequence[Redirect], stdin: str | None) -> str | None:
        """Return the text that a command reads with these redirects, where it is known."""
        return stdin_of(redirects, self.home, None if self.rewired else stdin)

    def redirect(self, redirect: Redirect, *, empties: bool) -> None:
        self.inside((redirect.target,))
        if redirect.op in ("<<", "<<<"):
            target = literal(redirect.target, self.home)
            if not target.known and not target.output_only:
                self.add(Does("O", "it uses a variable's value"))
            return
        for target in expand(redirect.target, self.home):
            if redirect.op in (">&", "<&") and _DUPLICATES.fullmatch(target.text):
                continue
            if target.text.startswith(("/dev/tcp/", "/dev/udp/")):
                self.add(Does("N", "it opens a network connection"))
            elif redirect.op == "<":
                self.add(read(target))
            elif empties and redirect.op != ">>" and target.text != "/dev/null":
                self.add(Does("D", "it empties a file"), write(target, "rule"))
            else:
                self.add(write(target))

    def chain(self, args: tuple[Arg, ...], stdin: str | None, *, assigned: bool = False, own: bool = True) -> None:
        """Read one command with all its wrappers, and add it as one part. `own`: the shell itself starts it."""
        effects: list[Effect] = []
        views = [View(args, for_allow=not assigned)]
        transparent = not assigned
        while args and is_wrapper(_base(args[0])) and len(views) < DEEPEST:
            name = _base(args[0])
            peeled = peel(name, args[1:], stdin)
            effects += peeled.effects
            if peeled.folder is not None:
                self.move(peeled.folder)
                effects.append(read(peeled.folder))
            if not peeled.sure:
                self.guess(args[1:], effects, stdin)
            transparent = transparent and name in TRANSPARENT_FOR_ALLOW
            args = peeled.inner
            if name == "xargs" and self.fed:
                fed, self.fed = self.fed, ()
                self.chain((*(arg for arg in args if arg.known), *fed), None, own=False)
            if args:
                views.append(View(args, transparent))
        if args and len(views) >= DEEPEST:
            effects.append(Does("M", "it has too many wrappers", "person"))
        if args:
            self.program(args, stdin, effects, own=own and len(views) == 1)
        effects += self.by_floor(views)
        words = tuple(arg.text for arg in views[0].words if arg.known)
        self.parts.append(Part(tuple(effects), tuple(views), words))

    def by_floor(self, views: Iterable[View]) -> Iterable[Effect]:
        for view in views:
            base = _base(view.words[0]) if view.words else ""
            if base in self.floor.never:
                yield Does("S", f"`{base}` is never run here", "never")
            if base in self.floor.ask:
                yield Does("F", f"`{base}` always asks here", "person")
            if base == "dd" and self.floor.classic_dd == "deny" and any(a.text.startswith("if=") for a in view.words):
                yield Does("S", "`dd if=` is never run here", "never")

    def part(self, command: Command, effects: tuple[Effect, ...], views: tuple[View, ...]) -> None:
        self.parts.append(Part((*effects, *effects_of(command)), views, tuple(a.text for a in command.args if a.known)))

    def program(self, args: tuple[Arg, ...], stdin: str | None, effects: list[Effect], *, own: bool) -> None:
        """Add what the program itself does to `effects`. `own`: the shell itself starts it, so functions count."""
        first, rest = args[0], args[1:]
        if not first.known or first.glob:
            effects.append(Does("L", "which program runs is only known when it runs", "person"))
            return
        name, base = first.text, _base(first)
        if own and name in self.functions:
            return
        if base == "find":
            self.find(rest, effects, stdin)
        elif base == "git":
            effects += git_effects(Command(base, rest))
        elif base in SHELLS:
            self.shell(base, rest, stdin, effects)
        elif base in ("eval", "trap", ".", "source"):
            self.evaluate(base, rest, stdin, effects)
        else:
            effects += effects_of(Command(name, rest))
            if base in OTHERS:
                self.guess(rest, effects, stdin)
        if base in ("cd", "pushd", "popd"):
            self.move(
                next((arg for arg in rest if not arg.text.startswith("-")), Arg("" if base == "popd" else self.home))
            )

    def find(self, args: tuple[Arg, ...], effects: list[Effect], stdin: str | None) -> None:
        found = find_effects(args)
        effects += found.effects
        if found.programs and self.depth > DEEPEST:
            effects.append(Does("M", "it is nested too deep to be judged", "person"))
            return
        self.depth += 1
        for program in found.programs:
            before = len(self.parts)
            self.chain(program, stdin, own=False)
            inner = self.parts[before:]
            self.parts[before:] = [
                replace(part, views=tuple(replace(v, for_allow=False) for v in part.views)) for part in inner
            ]
        self.depth -= 1

    def shell(self, base: str, args: tuple[Arg, ...], stdin: str | None, effects: list[Effect]) -> None:
        if [arg.text for arg in args] == ["--version"]:
            return
        found = script_of_shell(base, args, stdin)
        effects += found.effects
        if found.script is not None:
            parsed = self.scripts.get(found.script)
            if found.from_input and isinstance(parsed, Script) and reads_itself(parsed):
                effects.append(Does("L", "its commands may read what the shell was to run"))
            self.script(found.script)
        elif found.effects:
            self.guess(args, effects, stdin)

    def evaluate(self, base: str, args: tuple[Arg, ...], stdin: str | None, effects: list[Effect]) -> None:
        """Read `eval`, `trap` and `source`."""
        if base == "eval" and all(arg.known for arg in args):
            self.script(" ".join(arg.text for arg in args if arg.text != "--"))
            return
        if base == "eval":
            effects.append(Does("L", "what `eval` runs is only known when it runs", "person"))
            return
        effects.append(Does("X", f"`{base}` runs code"))
        if base == "trap" and args and args[0].known:
            self.script(args[0].text)
        elif base != "trap" and stdin is not None and any(arg.text == "/dev/stdin" for arg in args):
            self.script(stdin)

    def guess(self, args: tuple[Arg, ...], effects: list[Effect], stdin: str | None) -> None:
        """Judge every word of an unclear wrapper as if its program began there: this can only deny more."""
        if self.depth > DEEPEST or len(args) > MOST_FOLDERS or len(self.parts) > MOST_PARTS:
            return
        self.depth += 1
        for at, arg in enumerate(args):
            if arg.known and " " in arg.text:
                self.script(arg.text)
            elif arg.known and (_guessable(_base(arg)) or never(Command(arg.text, args[at + 1 :]))):
                self.chain(args[at:], stdin, own=False)
        self.depth -= 1

    def move(self, folder: Arg) -> None:
        if folder.known and not folder.glob:
            self.moves.append(folder.text)
        else:
            self.lost = True

    def folders(self) -> tuple[str, ...]:
        """Return every folder that the script may work in, relative to where it starts."""
        folders = [""]
        for move in self.moves:
            fresh = [posixpath.normpath(posixpath.join(folder or ".", move)) for folder in folders]
            folders += [folder for folder in dict.fromkeys(fresh) if folder not in folders]
            if len(folders) > MOST_FOLDERS:
                self.lost = True
                break
        return tuple(folders[:MOST_FOLDERS])

    def placed(self, part: Part, folders: tuple[str, ...]) -> Part:
        """Put relative paths into every folder that the script may work in."""
        if folders == ("",) and not self.lost:
            return part
        effects: list[Effect] = []
        for effect in part.effects:
            if isinstance(effect, Touch) and not effect.query.text.startswith("/"):
                text = effect.query.text
                effects += [
                    replace(effect, query=replace(effect.query, text=posixpath.join(folder, text) if folder else text))
                    for folder in folders
                ]
                if self.lost:
                    effects.append(Does("O", "the working directory is only known when it runs"))
            elif isinstance(effect, GitIn):
                effects += [GitIn(posixpath.join(folder, effect.folder)) for folder in folders]
            else:
                effects.append(effect)
        if Does("G", GIT_PREMISE) in effects:
            effects += [GitIn(folder) for folder in folders if folder]
            if self.lost:
                effects.append(Does("G", "`git` in another folder may find another configuration"))
        return replace(part, effects=tuple(effects))


def _prints_nothing(args: Sequence[Arg], redirects: Sequence[Redirect]) -> bool:
    """Whether a command is known to print nothing: its output then empties a file."""
    if not args or args[0].text in _SILENT:
        return True
    texts = [arg.text for arg in args]
    if texts in (["echo", "-n"], ["echo", "-n", ""], ["printf", ""]):
        return True
    nothing = any(_from_nothing(redirect) for redirect in redirects)
    return texts[0] == "cat" and (set(texts[1:]) == {"/dev/null"} or (len(texts) == 1 and nothing))


def _from_nothing(redirect: Redirect) -> bool:
    return redirect.op == "<" and name_of(redirect.target) == "/dev/null"


def _base(arg: Arg) -> str:
    """The program's name; a path counts where programs of the system live, or where denials must see it."""
    folder, _, base = arg.text.rpartition("/")
    return base if not folder or f"{folder}/" in STANDARD_FOLDERS else arg.text


def _guessable(base: str) -> bool:
    return base in SHELLS or is_wrapper(base) or base in ("rm", "find", "dd", "eval", "mv", "chmod", "tee", "cp")

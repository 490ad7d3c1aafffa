"""Conversion of a parsed script to its parts: each simple command, redirect and assignment, with its effects.

Everything that the grammar resolves without running code is resolved: lists, pipes, loops, functions, substitutions,
wrappers, literal `sh -c` and `eval`, text passed to a shell. A relative path is judged in each folder of some `cd`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import field, replace

from callboard.core.permissions import globs
from callboard.core.permissions.command_table import READERS, SHELLS, TEXT_ONLY
from callboard.core.permissions.effects import (
    Analysis,
    CallFacts,
    Effect,
    GitContent,
    GitRead,
    GitSweep,
    NamedInCode,
    PathAccess,
    Risk,
    RunsProjectFile,
    ScriptPart,
    View,
    behind_links,
    named_in_code,
    queries_in,
    read,
    write,
)
from callboard.core.permissions.find import find_effects
from callboard.core.permissions.git import GIT_PREMISE, git_effects
from callboard.core.permissions.git_writes import git_sweeps, git_writes
from callboard.core.permissions.hard_deny import is_fork_bomb, name_of, never, walk
from callboard.core.permissions.option_parser import WHOLE_FOLDER
from callboard.core.permissions.programs import effects_of, likely_name, program_name
from callboard.core.permissions.sensitive_paths import raw_device
from callboard.core.permissions.shell_builtins import scripts_in_environment, scripts_in_value, scripts_in_words
from callboard.core.permissions.values import (
    HOLE,
    Arg,
    DynamicPart,
    Function,
    Group,
    HardRules,
    Node,
    Parsed,
    Pipeline,
    ProgramWords,
    Redirect,
    Script,
    Simple,
    UnparsedScript,
    Word,
)
from callboard.core.permissions.word_expansion import expand, literal
from callboard.core.permissions.wrappers import (
    TRANSPARENT_FOR_ALLOW,
    descriptor,
    from_nothing,
    harmless_assignment,
    is_wrapper,
    named_by,
    peel,
    prints_nothing,
    reads_itself,
    reads_unknown,
    script_of_shell,
    shared_input,
    starts_others,
    stdin_of,
    text_of,
)
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass

MOST_PARTS = 400
MOST_FOLDERS = 16
DEEPEST = 12
_MOVES = ("cd", "pushd", "popd")
_UNKNOWN_PROGRAM = late_pattern(rf"(?:^|[;&|({{\n!])\s*{HOLE}")
_DUPLICATES = late_pattern(r"\d+-?|-")
_BUILT_IN = frozenset(("cd", "pushd", "popd", "eval", "trap", "alias", ".", "source"))
"""Commands of the shell itself, which cannot be given by a path."""


def analyse(source: str, scripts: Mapping[str, Parsed], home: str, hard_rules: HardRules) -> Analysis:
    """Return the parts of `source`. Never fails: text that is not understood becomes a part that asks."""
    reader = _Reader(scripts, home, hard_rules, *_plumbing(scripts.values()))
    reader.script(source)
    folders = tuple(reader.visited)
    parts = tuple(reader.resolve_paths(part, part.folders or folders) for part in reader.parts)
    queries = frozenset(query for part in parts for query in queries_in(part.effects))
    return Analysis(
        source=source,
        hard_rules=hard_rules,
        parts=parts,
        queries=queries,
        missing=tuple(reader.missing),
        folders=folders,
    )


def analysis_in(facts: CallFacts, source: str, hard_rules: HardRules) -> Analysis:
    """Return the analysis of `source` under these facts: the one that they hold, or a new one."""
    held = facts.analysis
    if held is not None and held.source == source and held.hard_rules == hard_rules:
        return held
    return analyse(source, facts.scripts, facts.home, hard_rules)


def _plumbing(scripts: Iterable[Parsed]) -> tuple[frozenset[str], bool]:
    """Return the names of all functions in the scripts, and True if `exec` or `<&3` could redirect the input."""
    nodes = [node for script in scripts if isinstance(script, Script) for node in walk(script.nodes)]
    functions = frozenset(node.name for node in nodes if isinstance(node, Function))
    redirected = [node for node in nodes if isinstance(node, Simple | Group) and node.redirects]
    by_exec = any("exec" in name_of(word) for node in redirected for word in node.words)
    return functions, by_exec or any(redirect.op == "<&" for node in redirected for redirect in node.redirects)


@dataclass(slots=True)
class _Reader:
    scripts: Mapping[str, Parsed]
    home: str
    hard_rules: HardRules
    taken: frozenset[str] = frozenset()
    rewired: bool = False
    fed: tuple[Arg, ...] = ()
    piped: bool = False
    """True if the commands read from a pipe unless they redirect their input."""
    parts: list[ScriptPart] = field(default_factory=list[ScriptPart])
    missing: list[str] = field(default_factory=list[str])
    here: tuple[str, ...] = ("",)
    """Folders in which the next command may run, relative to the script's."""
    arrived: tuple[str, ...] = ("",)
    """The same if the command before it succeeded."""
    visited: dict[str, None] = field(default_factory=lambda: {"": None})
    """Every folder in which the script may work."""
    repeated: int = 0
    """Depth of loops around the command, whose commands run again, in the folder in which they ended."""
    called: int = 0
    """Depth of functions around the command, whose commands run where they are called."""
    lost: bool = False
    functions: frozenset[str] = frozenset()
    depth: int = 0

    def script(self, source: str, stdin: str | None = None) -> None:
        """Read a script from its text. `stdin`: what its only command reads, if known."""
        parsed = self.scripts.get(source)
        if parsed is None or self.depth > DEEPEST or len(self.parts) > MOST_PARTS:
            if parsed is None and source not in self.missing:
                self.missing.append(source)
            self.add(Risk("M", "a script in it is too large or nested too deep to be judged", "person"))
        elif isinstance(parsed, UnparsedScript):
            self.add(Risk("M", parsed.why, "never" if parsed.nul else "person"))
        else:
            if is_fork_bomb(parsed):
                self.add(Risk("S", "a function in it multiplies itself without end", "never"))
            outer, self.functions, self.depth = self.functions, frozenset[str](), self.depth + 1
            for node in parsed.nodes:
                self.node(node, stdin if len(parsed.nodes) == 1 else None)
                if isinstance(node, Function):
                    self.functions |= {node.name}
            self.functions, self.depth = outer, self.depth - 1

    def add(self, *effects: Effect) -> None:
        """Add a part that no rule covers."""
        self.parts.append(ScriptPart(effects))

    def nodes(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            self.node(node)

    def node(self, node: Node, stdin: str | None = None) -> None:
        if len(self.parts) > MOST_PARTS:
            self.add(Risk("M", "it has too many parts to be judged", "person"))
        elif isinstance(node, Simple):
            self.simple(node, stdin)
        elif isinstance(node, Pipeline):
            self.pipeline(node)
        elif isinstance(node, Function):
            with self.later():
                self.nodes(node.body)
        else:
            self.group(node, stdin)

    def pipeline(self, pipeline: Pipeline) -> None:
        text: str | None = None
        for at, stage in enumerate(pipeline.stages):
            before, self.piped = self.piped, self.piped or at > 0
            with self.apart():
                self.node(stage, text)
            self.piped = before
            self.fed = named_by(stage, self.home)
            consumed = isinstance(stage, Simple) and stage.words and name_of(stage.words[0]) in self.taken
            text = None if consumed else text_of(stage, self.home, text)
        self.fed = ()

    def group(self, group: Group, stdin: str | None) -> None:
        self.inside(group.words)
        for redirect in group.redirects:
            self.redirect(redirect, empties=False)
        stdin = self.input_text(group.redirects, stdin)
        if stdin is not None and (group.kind == "loop" or shared_input(group.body)):
            self.add(Risk("L", "what each of several commands reads is only known when it runs"))
        if group.kind in ("arithmetic", "coproc"):
            self.add(Risk("V", f"{group.kind} evaluates or sets variables"))
        if not all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in group.sets):
            self.add(Risk("V", "a loop sets a variable that other programs read"))
        args = [arg for word in group.words for arg in expand(word, self.home)]
        self.evaluated(scripts_in_words(group.kind, (arg.text for arg in args)))
        if group.kind == "test":
            plain = tuple(replace(arg, glob=False, pattern="") for arg in args)  # `[[ $x == a* ]]` names no file
            self.part(ProgramWords("[", plain), (), (View((Arg("[["), *args), for_allow=True),))
        elif any(not arg.known and not arg.output_only for arg in args):
            self.add(Risk("O", "it uses a variable's value"))
        elif any(arg.glob for arg in args) and group.kind == "loop":
            self.add(*(read(arg) for arg in args if arg.glob))
        if group.kind == "and":
            self.both(group.body, stdin)
            return
        self.repeated += group.kind == "loop"
        with self.apart() if group.kind in ("subshell", "background", "coproc") else nullcontext():
            for node in group.body:
                self.node(node, stdin)
        self.repeated -= group.kind == "loop"
        self.arrived = self.here

    def both(self, nodes: Sequence[Node], stdin: str | None) -> None:
        """Read two commands of which the second runs only if the first succeeded."""
        left, right = nodes
        self.node(left, stdin)
        failed = self.here
        self.here = self.arrived
        self.node(right, stdin)
        self.here = tuple(dict.fromkeys((*self.here, *failed)))

    @contextmanager
    def apart(self) -> Generator[None]:
        """Read the commands of another process: the folder of the shell stays."""
        here = self.here
        repeated, self.repeated = self.repeated, 0
        yield
        self.here = self.arrived = here
        self.repeated = repeated

    @contextmanager
    def later(self) -> Generator[None]:
        """Read commands that run at another time, and so perhaps in another folder."""
        self.called += 1
        yield
        self.called -= 1
        self.arrived = self.here

    def inside(self, shell_words: Iterable[Word]) -> None:
        """Read the scripts that run while words are expanded."""
        dynamic = (part for word in shell_words for part in word.parts if isinstance(part, DynamicPart))
        for script in (script for part in dynamic for script in part.scripts):
            with self.apart():
                self.nodes(script.nodes)

    def simple(self, node: Simple, stdin: str | None) -> None:
        start = len(self.parts)
        before = self.arrived = self.here
        self.command(node, stdin)
        goes = bool(node.words) and name_of(node.words[0]) in _MOVES
        if not goes:
            self.arrived = self.here
        if not self.repeated and not self.called:
            folders = before if goes else tuple(dict.fromkeys((*before, *self.here)))
            placed = (part if part.folders else replace(part, folders=folders) for part in self.parts[start:])
            self.parts[start:] = list(placed)

    def command(self, node: Simple, stdin: str | None) -> None:
        self.inside(assign.value for assign in node.assigns)
        self.inside(node.words)
        for assign in node.assigns:
            value = literal(assign.value, self.home)
            if not node.words or not harmless_assignment(assign.name) or not value.known:
                self.add(Risk("V", f"it sets the variable {assign.name}", "bypass"))
            self.evaluated(scripts_in_value(assign.name, value.text))
        args = tuple(arg for word in node.words for arg in expand(word, self.home))
        for redirect in node.redirects:
            self.redirect(redirect, empties=prints_nothing(args, node.redirects))
        stdin = self.input_text(node.redirects, stdin)
        if args and args[0].text == "tee" and any(from_nothing(redirect) for redirect in node.redirects):
            self.add(Risk("D", "it empties a file"))
        if any(arg.variable and arg.known for arg in args):
            self.add(Risk("O", "it uses a variable's value"))
        if args:
            self.chain(args, stdin, assigned=bool(node.assigns))

    def input_text(self, redirects: Sequence[Redirect], stdin: str | None) -> str | None:
        """Return the text that a command reads with these redirects, if known."""
        return stdin_of(redirects, self.home, None if self.rewired else stdin)

    def redirect(self, redirect: Redirect, *, empties: bool) -> None:
        self.inside((redirect.target,))
        if redirect.op in ("<<", "<<<"):
            target = literal(redirect.target, self.home)
            if not target.known and not target.output_only:
                self.add(Risk("O", "it uses a variable's value"))
            return
        for target in expand(redirect.target, self.home):
            if redirect.op in (">&", "<&") and _DUPLICATES.fullmatch(target.text):
                continue
            if target.text.startswith(("/dev/tcp/", "/dev/udp/")):
                self.add(Risk("N", "it opens a network connection"))
            elif redirect.op == "<":
                self.add(read(target))
            elif not target.known and raw_device(target.text.replace(HOLE, "")):
                self.add(Risk("S", "it may write to a device or a switch of the kernel", "never"))
            elif empties and redirect.op != ">>" and target.text != "/dev/null":
                self.add(Risk("D", "it empties a file"), write(target, "rule"))
            else:
                self.add(write(target))

    def chain(self, args: tuple[Arg, ...], stdin: str | None, *, assigned: bool = False, own: bool = True) -> None:
        """Read one command with all its wrappers, and add it as one part. `own`: the shell itself starts it."""
        effects: list[Effect] = []
        views = [View(args, for_allow=not assigned)]
        transparent = not assigned
        while args and is_wrapper(name := _known_as(args[0])) and len(views) < DEEPEST:
            self.evaluated(scripts_in_environment(name, (arg.text for arg in args[1:])))
            peeled = peel(name, args[1:], stdin)
            effects += peeled.effects
            if "/" in (path := program_name(args[0].text)):
                effects.append(Risk("X", f"`{path}` is a program given by its path"))
                transparent = False
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
            effects.append(Risk("M", "it has too many wrappers", "person"))
        if args:
            self.program(args, stdin, effects, own=own and len(views) == 1)
            effects += named_in_code(_known_as(args[0]), (stdin, *(arg.text for arg in args[1:])), self.home)
            if starts_others(_known_as(args[0]), args[1:]):
                views += (View(args[at:], for_allow=False) for at in range(1, min(len(args), MOST_FOLDERS)))
        effects += self.by_hard_rules(views)
        texts = tuple(arg.text for arg in views[0].words if arg.known)
        self.parts.append(ScriptPart(tuple(effects), tuple(views), texts))

    def by_hard_rules(self, views: Iterable[View]) -> Iterable[Effect]:
        rules = self.hard_rules
        for view in views:
            base = _known_as(view.words[0]) if view.words else ""
            if base in rules.never:
                yield Risk("S", f"`{base}` is never run here", "never")
            if base in rules.ask:
                yield Risk("F", f"`{base}` always asks here", "person")
            if base == "dd" and rules.classic_dd == "deny" and any(a.text.startswith("if=") for a in view.words):
                yield Risk("S", "`dd if=` is never run here", "never")

    def part(self, command: ProgramWords, effects: tuple[Effect, ...], views: tuple[View, ...]) -> None:
        self.parts.append(
            ScriptPart((*effects, *effects_of(command)), views, tuple(a.text for a in command.args if a.known))
        )

    def program(self, args: tuple[Arg, ...], stdin: str | None, effects: list[Effect], *, own: bool) -> None:
        """Add the effects of the program itself to `effects`. `own`: the shell itself starts it, so functions count."""
        first = args[0]
        arguments = args[1:]
        if not first.known or first.glob:
            effects.append(Risk("L", "which program runs is only known when it runs", "person"))
            self.could_be(args, stdin)
            return
        name = first.text
        base = program_name(first.text)
        effects += _denied_if_empty(base, arguments)
        self.evaluated(scripts_in_words(base, (arg.text for arg in arguments)))
        if likely := likely_name(name):
            self.likely(likely, arguments, stdin, effects)
        if own and name in self.functions:
            return
        if base == "find":
            self.find(arguments, effects, stdin)
        elif base == "git":
            effects += (*git_effects(ProgramWords(base, arguments)), *git_writes(arguments), *git_sweeps(arguments))
        elif base in SHELLS:
            self.shell(base, arguments, stdin, effects)
        elif base in ("eval", "trap", "alias", ".", "source"):
            self.evaluate(base, arguments, stdin, effects)
        else:
            effects_found = effects_of(ProgramWords(name, arguments))
            effects += (each for each in effects_found if each != WHOLE_FOLDER) if self.piped and own else effects_found
        if starts_others(base, arguments):
            self.guess(arguments, effects, stdin)
        if base in _MOVES:
            self.change_folder(base, arguments)

    def change_folder(self, base: str, arguments: tuple[Arg, ...]) -> None:
        """Read `cd`, `pushd` and `popd`."""
        # The folder above a link is another one with -P: the names do not show it.
        self.lost |= any(re.match(r"-[A-Za-z]*P", arg.text) for arg in arguments)
        target = next((arg for arg in arguments if not arg.text.startswith("-")), None)
        back = base != "cd" or any(arg.text == "-" for arg in arguments)
        self.move(target or Arg("" if base == "popd" else self.home), stacked=back)

    def likely(self, name: str, arguments: tuple[Arg, ...], stdin: str | None, effects: list[Effect]) -> None:
        """Add the changes of a program given by its path as if it were the program of that name: only more denials."""
        if self.depth > DEEPEST or name in _BUILT_IN:
            return
        self.depth += 1
        before = len(self.parts)
        inner: list[Effect] = []
        self.program((Arg(name), *arguments), stdin, inner, own=False)
        effects += (effect for effect in inner if _changes_or_is_denied(effect))
        self.mark_guesses(before)
        self.depth -= 1

    def could_be(self, args: tuple[Arg, ...], stdin: str | None) -> None:
        """Judge an unknown name (`s$!udo`, `rm$IFS-rf$IFS/`) with its holes empty, or as spaces: only more denials."""
        if self.depth > DEEPEST or args[0].known:
            return
        self.depth += 1
        before = len(self.parts)
        empty = (replace(arg, text=arg.text.replace(HOLE, "")) for arg in args)
        split = (Arg(word) for arg in args for word in arg.text.replace(HOLE, " ").split(" "))
        for variant in (empty, split):
            if emptied := tuple(word for word in variant if word.text):
                self.chain(emptied, stdin, own=False)
        self.mark_guesses(before)
        self.depth -= 1

    def find(self, args: tuple[Arg, ...], effects: list[Effect], stdin: str | None) -> None:
        search = find_effects(args)
        effects += search.effects
        if search.programs and self.depth > DEEPEST:
            effects.append(Risk("M", "it is nested too deep to be judged", "person"))
            return
        self.depth += 1
        for program in search.programs:
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
        shell_script = script_of_shell(base, args, stdin)
        effects += shell_script.effects
        if (self.rewired or (self.called and not self.piped)) and reads_unknown(base) in shell_script.effects:
            effects.append(replace(reads_unknown(base), letter="L", ease="person"))
        if shell_script.script is not None:
            parsed = self.scripts.get(shell_script.script)
            if shell_script.from_input and isinstance(parsed, Script) and reads_itself(parsed):
                effects.append(Risk("L", "its commands may read what the shell was to run"))
            with self.apart():
                self.script(shell_script.script, None if shell_script.from_input else stdin)
        elif shell_script.effects:
            self.guess(args, effects, stdin)

    def evaluate(self, base: str, args: tuple[Arg, ...], stdin: str | None, effects: list[Effect]) -> None:
        """Read `eval`, `trap`, `alias` and `source`."""
        if base == "eval" and all(arg.known for arg in args):
            self.script(" ".join(arg.text for arg in args if arg.text != "--"), stdin)
            return
        if base == "alias":
            effects.append(Risk("V", "`alias` changes what a word of a command means"))
            with self.later():
                for arg in args:
                    self.script(arg.text.partition("=")[2] if arg.known else "")
            return
        source = descriptor(args) if base in (".", "source") else None
        if base == "eval" or source not in (None, "0"):
            effects.append(Risk("L", f"what `{base}` runs is only known when it runs", "person"))
            return
        effects.append(Risk("X", f"`{base}` runs code"))
        action = next((arg for arg in args if arg.text != "--"), Arg(HOLE))
        if base == "trap" and action.known and not action.text.startswith("-"):
            with self.later():
                self.script(action.text)
        elif base == "trap" and _UNKNOWN_PROGRAM.search(action.text):
            effects.append(Risk("L", "what `trap` runs is only known when it runs", "person"))
        elif source is not None and stdin is not None:
            self.script(stdin)

    def guess(self, args: tuple[Arg, ...], effects: list[Effect], stdin: str | None) -> None:
        """Judge every word of an unclear wrapper as if its program began there. Can only cause more denials."""
        if self.depth > DEEPEST or len(args) > MOST_FOLDERS or len(self.parts) > MOST_PARTS:
            return
        self.depth += 1
        before = len(self.parts)
        for at, arg in enumerate(args):
            if arg.known and " " in arg.text:
                self.script(arg.text)
            elif arg.known and (_guessable(_known_as(arg)) or never(ProgramWords(arg.text, args[at + 1 :]))):
                self.chain(args[at:], stdin, own=False)
        self.mark_guesses(before)
        self.depth -= 1

    def mark_guesses(self, before: int) -> None:
        """Mark the parts after the first `before` as guesses."""
        self.parts[before:] = [replace(part, guessed=True) for part in self.parts[before:]]

    def evaluated(self, scripts: Iterable[str]) -> None:
        """Judge scripts in text that bash may expand again. Can only cause more denials."""
        before = len(self.parts)
        for script in scripts:
            with self.apart():
                self.script(script)
        self.mark_guesses(before)

    def move(self, folder: Arg, *, stacked: bool = False) -> None:
        """Change the folder. `stacked`: it may also be a folder in which the script was before, or stay the same."""
        absolute = folder.text.startswith("/")
        self.lost |= not folder.known or folder.glob or self.called > 0 or (self.repeated > 0 and not absolute)
        if not folder.known or folder.glob:
            return
        fresh = (posixpath.normpath(posixpath.join(place or ".", folder.text)) for place in self.here)
        reached = dict.fromkeys("" if place == "." else place for place in fresh)
        visited = list(self.visited | reached)
        self.lost |= len(visited) > MOST_FOLDERS
        self.visited = dict.fromkeys(visited[:MOST_FOLDERS])
        self.arrived = tuple(self.visited if stacked else reached)
        self.here = tuple(self.visited if stacked else dict.fromkeys((*self.here, *reached)))

    def resolve_paths(self, part: ScriptPart, folders: tuple[str, ...]) -> ScriptPart:
        """Resolve relative paths in every folder in which the script may work."""
        part = replace(part, effects=(*part.effects, *behind_links(part.effects)))
        if folders == ("",) and not self.lost:
            return part
        effects: list[Effect] = []
        for effect in part.effects:
            if isinstance(effect, PathAccess | NamedInCode) and not effect.query.text.startswith("/"):
                query = effect.query
                above = [globs.escape(folder) if query.glob else folder for folder in folders]
                effects += [
                    replace(
                        effect, query=replace(query, text=posixpath.join(folder, query.text) if folder else query.text)
                    )
                    for folder in above
                ]
                if self.lost and isinstance(effect, PathAccess):
                    effects.append(Risk("O", "the working directory is only known when it runs"))
            elif isinstance(effect, GitRead | GitSweep):
                effects += [replace(effect, folder=posixpath.join(folder, effect.folder)) for folder in folders]
            elif isinstance(effect, GitContent):
                effects.append(GitContent(effect.subcommand) if self.lost else effect.within(folders))
            elif isinstance(effect, RunsProjectFile):
                effects += [replace(effect, folder=folder) for folder in folders]
            else:
                effects.append(effect)
        if Risk("G", GIT_PREMISE) in effects:
            effects += [GitRead(folder) for folder in folders if folder]
            if self.lost:
                effects.append(Risk("G", "`git` in another folder may find another configuration"))
        return replace(part, effects=tuple(effects))


def _denied_if_empty(base: str, arguments: Sequence[Arg]) -> Iterable[Effect]:
    """Yield the denial of a command that is never run with the unknown parts of its words empty."""
    if all(arg.known for arg in arguments):
        return
    emptied = tuple(replace(arg, text=arg.text.replace(HOLE, "")) for arg in arguments)
    if denied := never(ProgramWords(base, emptied)):
        yield denied
    if base not in READERS and base not in TEXT_ONLY:
        paths = (
            arg.text.partition("=")[2] or arg.text for arg, was in zip(emptied, arguments, strict=True) if not was.known
        )
        if any(raw_device(path) for path in paths):
            yield Risk("S", f"`{base}` may write to a device or a switch of the kernel", "never")


def _known_as(arg: Arg) -> str:
    """Return the program's name; for a path, the program that it most likely refers to."""
    return likely_name(arg.text) or program_name(arg.text)


def _changes_or_is_denied(effect: Effect) -> bool:
    if isinstance(effect, PathAccess):
        return effect.access != "read"
    return isinstance(effect, GitSweep) or (isinstance(effect, Risk) and effect.ease == "never")


def _guessable(base: str) -> bool:
    return base in SHELLS or is_wrapper(base) or base in ("rm", "find", "dd", "eval", "mv", "chmod", "tee", "cp")

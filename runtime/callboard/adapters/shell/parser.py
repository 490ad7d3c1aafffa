"""Parser of shell scripts for the permission judge: Callboard's own reader for plain commands, shfmt for the rest.

Unusual characters and sizes are refused before any parser sees them, because parsers and bash disagree about them. A
failure, a timeout or an unknown form gives `UnparsedScript`, which asks the user. Nothing is ever run here, and nothing
is raised.

Plain commands use the fast path (`PlainReader`, about 0.05 ms; a run of shfmt takes 3 ms). It reads words, quotes
without expansions, pipes and lists of them, and output to nowhere, and accepts only scripts that are plainly within
this small language. tree-sitter's grammar reads each of them a second time: if both see another number of commands or
another form, shfmt decides. A test compares the result with shfmt's.

All scripts with expansions or nesting go to shfmt, whose tree hides nothing that bash would run. Its JSON tree is
converted to the values that the permission judge reads. Every node type that can contain code is listed here; any other
type raises `UnknownSyntax`, so that a newer grammar can never hide a command from the judge.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import tree_sitter_bash
from tree_sitter import Language, Parser
from tree_sitter import Node as SyntaxNode

from callboard.adapters.processes.programs import find_program
from callboard.adapters.shell.hidden_text import (
    computes_with_quoted_text,
    expands_quoted_text,
    heredoc_ends_elsewhere,
    is_quoted,
    pattern_may_hide,
    refuse_odd_text,
)
from callboard.core.permissions.command_table import names
from callboard.core.permissions.values import (
    Assign,
    DynamicPart,
    Function,
    Group,
    Node,
    Parsed,
    Pipeline,
    Redirect,
    Script,
    Simple,
    Text,
    UnparsedScript,
    Word,
)
from callboard.core.permissions.word_expansion import NUMBER, decode_ansi_c
from callboard.types.late_pattern import late_pattern

SECONDS = 5.0
REMEMBERED = 256
"""Most scripts that a parser caches: an agent runs the same few repeatedly."""

Json = Mapping[str, Any]
DEEPEST = 60
_BAD_TREE = (ValueError, RecursionError, LookupError, TypeError, AttributeError)
"""Errors of reading a tree that has another shape than expected, as one of a newer shfmt may."""
_NUMBERS = frozenset("?#$")
"""Parameters that are always numbers. `$!` is empty until a command runs in the background."""
_POSITIONS = frozenset({"Pos", "End", "Type", "Param", "Short", "Rbrace", "Dollar"})


def find_shfmt() -> str | None:
    """Return the shfmt of Callboard's environment, else one on the PATH outside the current folder, else None."""
    bundled = Path(sys.executable).parent / "shfmt"
    return str(bundled) if bundled.is_file() else find_program("shfmt", Path.cwd())


class BashParser:
    """`ShellParser` for production. `shfmt` is the program's path; without it only plain scripts are parsed.

    `plain`: use the fast path if possible.
    """

    def __init__(self, shfmt: str | None = None, *, plain: bool = True) -> None:
        self._shfmt = shfmt or find_shfmt()
        self._plain = PlainReader() if plain else None
        # A run of shfmt takes 3 ms, and agents repeat the same few commands
        # (test_what_was_parsed_is_remembered_and_what_failed_too).
        self._parsed = lru_cache(maxsize=REMEMBERED)(self._parse)

    def parse(self, source: str) -> Parsed:
        """Return the script as bash would read it, or `UnparsedScript` with the reason. Never raises."""
        return self._parsed(source)

    def _parse(self, source: str) -> Parsed:
        if refusal := refuse_odd_text(source):
            return refusal
        return (self._plain.read(source) if self._plain else None) or self._with_shfmt(source)

    def _with_shfmt(self, source: str) -> Parsed:
        if self._shfmt is None:
            return UnparsedScript("the parser shfmt is not installed: reinstall the package")
        try:
            done = subprocess.run(
                [self._shfmt, "--to-json", "-ln", "bash"],
                input=source.encode(),
                capture_output=True,
                timeout=SECONDS,
                check=False,
                env={},
                cwd="/",  # it searches for .editorconfig from this folder upwards
            )
            if done.returncode != 0:
                return UnparsedScript("it is not a valid script: " + done.stderr.decode(errors="replace").strip()[:200])
            tree: Any = json.loads(done.stdout)
            if "<<" in source and heredoc_ends_elsewhere(tree, source.encode()):
                return UnparsedScript("bash may end a heredoc at another line than it seems")
            if expands_quoted_text(tree) or computes_with_quoted_text(tree):
                return UnparsedScript("bash may expand text in it that is in quotes")
            return script_from_tree(tree)
        except (OSError, subprocess.TimeoutExpired, *_BAD_TREE) as error:
            return UnparsedScript(f"the parser failed ({type(error).__name__})")
        except UnknownSyntax as form:
            return UnparsedScript(f"it uses {form}, which is not understood")


_RESERVED = names(
    "case coproc do done elif else esac fi for function if in select then time until while "
    "declare typeset local export readonly unset let [[ ]] { } !"
)
_TOKEN = late_pattern(
    r"(?P<space>[ \t]+)"
    r"|(?P<end>&&|\|\||;(?!;)|\|(?![|&]))"
    r"|(?P<to>(?:(?P<fd>[12])?>>?|&>)(?P<gap>[ \t]*)(?P<nowhere>/dev/null)(?=[ \t;|]|$)|2(?P<copy>>&)1(?=[ \t;|]|$))"
    r"|(?P<plain>(?:[A-Za-z0-9_./:@%+,=^*?-]|\\[;()!. ])+)"
    r"|'(?P<single>[^'\n\\]*)'"
    r'|"(?P<double>[^"\n\\$`!]*)"'
    r"|(?P<other>\{\}(?=[ \t]|$)|\[(?=[ \t])|\](?=[ \t;|]|$))"
)
_FORMS = names(
    "program command command_name word string string_content raw_string number concatenation pipeline list "
    'test_command redirected_statement file_redirect file_descriptor test_operator unary_expression " | || && ; '
    "binary_expression extglob_pattern regex > >> &> >& [ ]"
)


class PlainReader:
    """Reader of plain scripts. One per parser, because it holds tree-sitter's tables."""

    def __init__(self) -> None:
        self._grammar = Parser(Language(tree_sitter_bash.language()))

    def read(self, source: str) -> Script | None:
        """Return the script, or None if it is not plain."""
        script = plain_script(source)
        if script is None:
            return None
        root = self._grammar.parse(source.encode()).root_node
        # Two independent readers must agree, or shfmt decides: a command that one of them overlooks would run unseen
        # (test_the_quick_way_and_the_whole_grammar_agree).
        if root.has_error:
            return None
        seen = list(_named(root))
        if not _FORMS.issuperset(node.type for node in seen):
            return None
        commands = sum(node.type in ("command", "test_command") for node in seen)
        return script if commands == sum(1 for _ in _simple(script.nodes)) else None


def _named(node: SyntaxNode) -> Iterator[SyntaxNode]:
    yield node
    for child in node.children:
        yield from _named(child)


def _simple(nodes: Sequence[Node]) -> Iterator[Simple]:
    for node in nodes:
        if isinstance(node, Simple):
            yield node
        elif isinstance(node, Pipeline):
            yield from _simple(node.stages)
        elif isinstance(node, Group):
            yield from _simple(node.body)


def plain_script(source: str) -> Script | None:
    """Return the script as in shfmt's tree, or None if it is not plain."""
    commands = [_Command()]
    ends = list[str]()
    at = 0
    while at < len(source):
        token = _TOKEN.match(source, at)
        if token is None:
            return None
        at = token.end()
        if token["end"]:
            ends.append(token["end"])
            commands.append(_Command())
        elif not commands[-1].take(token):
            return None
    nodes = [command.node() for command in commands]
    whole = [node for node in nodes if node is not None]
    return _joined(whole, ends) if len(whole) == len(nodes) else None


class _Command:
    """One simple command while its words are read."""

    def __init__(self) -> None:
        self._words: list[list[Text | DynamicPart]] = []
        self._redirects: list[Redirect] = []
        self._open = False

    def take(self, token: re.Match[str]) -> bool:
        """Add a token. Return False for one that is not valid here."""
        if token["space"]:
            self._open = False
            return True
        if token["to"]:
            if self._open or not self._words:
                return False
            target = "1" if token["copy"] else token["nowhere"]
            op = token["copy"] or token["to"].removeprefix(token["fd"] or "").partition("/")[0].strip()
            descriptor = "2" if token["copy"] else token["fd"] or ""
            self._redirects.append(Redirect(op, Word((Text(target, quoted=False),)), descriptor))
            return True
        if self._redirects or (token["other"] and self._open):
            return False  # words after a redirect, braces and brackets within a word: shfmt reads these
        if not self._open:
            self._words.append([])
        self._open = True
        self._words[-1] += _parts(token)
        return True

    def node(self) -> Simple | None:
        """Return the command, or None if no plain command begins with its first word."""
        if not self._words:
            return None
        first = "".join(part.text for part in self._words[0] if isinstance(part, Text))
        # A keyword or an assignment changes the meaning of the other words
        # (test_the_quick_way_leaves_grammar_to_the_grammar).
        if first in _RESERVED or "=" in first or not first or first == "\\":
            return None
        return Simple((), tuple(Word(tuple(parts)) for parts in self._words), tuple(self._redirects))


def _parts(token: re.Match[str]) -> Iterator[Text | DynamicPart]:
    if token["single"] is not None:
        yield Text(token["single"], quoted=True)
    elif token["double"] is not None:
        yield Text("", quoted=True)
        if token["double"]:
            yield Text(token["double"], quoted=True)
    else:
        yield from literal_parts(token["plain"] or token["other"], "none")


def _joined(commands: Sequence[Simple], ends: Sequence[str]) -> Script:
    """Join commands as the grammar does: pipes first, then `&&` and `||` from the left, then the list."""
    done = list[Node]()
    chain = list[Node]()
    now = list[Simple]([commands[0]])
    joint = ""
    for end, command in zip((*ends, ";"), (*commands[1:], None), strict=True):
        if end == "|" and command:
            now.append(command)
            continue
        piped: Node = Pipeline(tuple(now)) if len(now) > 1 else now[0]
        chain = [Group("and" if joint == "&&" else "list", (chain[0], piped)) if chain else piped]
        joint = end
        if end == ";":
            done += chain
            chain = []
        now = [command] if command else []
    return Script(tuple(done))


class UnknownSyntax(Exception):
    """The tree contains an unknown form, which the text names."""


def script_from_tree(tree: Json) -> Script:
    """Return the script. Raises `UnknownSyntax`, or RecursionError for extreme nesting."""
    return Script(_statements(tree.get("Stmts"), 0))


def _statements(stmts: Any, depth: int) -> tuple[Node, ...]:
    if depth > DEEPEST:
        raise UnknownSyntax("too deep nesting")
    return tuple(_statement(stmt, depth + 1) for stmt in stmts or ())


def _statement(stmt: Json, depth: int) -> Node:
    redirects = tuple(_redirect(r, depth) for r in stmt.get("Redirs") or ())
    command: Json | None = stmt.get("Cmd")
    if command is None:
        node: Node = Simple((), (), redirects)
    elif command["Type"] == "CallExpr":
        node = Simple(_assigns(command.get("Assigns"), depth), _read_words(command.get("Args"), depth), redirects)
    else:
        make = _COMMANDS.get(command["Type"])
        if make is None:
            raise UnknownSyntax(command["Type"])
        node = make(command, depth)
        if redirects:
            node = Group("list", (node,), redirects=redirects)
    if stmt.get("Negated"):  # its success is the failure of what it runs
        node = Group("list", (node,))
    background = stmt.get("Background") or stmt.get("Coprocess") or stmt.get("Disown")
    return Group("background", (node,)) if background else node


def _binary(c: Json, depth: int) -> Node:
    if depth > DEEPEST:
        raise UnknownSyntax("too deep nesting")
    sides = _statement(c["X"], depth + 1), _statement(c["Y"], depth + 1)
    if c["Op"] in ("|", "|&"):
        return Pipeline(_flat(sides))
    return Group("and" if c["Op"] == "&&" else "list", sides)


def _flat(sides: tuple[Node, Node]) -> tuple[Node, ...]:
    first, second = sides
    return (*first.stages, second) if isinstance(first, Pipeline) else (first, second)


def _if(c: Json, depth: int) -> Node:
    body = _statements(c.get("Cond"), depth) + _statements(c.get("Then"), depth)
    other: Json | None = c.get("Else")
    return Group("branch", (*body, _if(other, depth + 1)) if other else body)


def _for(c: Json, depth: int) -> Node:
    loop: Json = c["Loop"]
    body = _statements(c.get("Do"), depth)
    if loop["Type"] == "WordIter":
        return Group("loop", body, _read_words(loop.get("Items"), depth), sets=(loop["Name"]["Value"],))
    return Group("loop", (Group("arithmetic", _nested(loop, depth)), *body))


def _case(c: Json, depth: int) -> Node:
    items: list[Json] = c.get("Items") or []
    case_words = (_word(c["Word"], depth), *(_word(p, depth) for item in items for p in item.get("Patterns") or ()))
    return Group("branch", tuple(node for item in items for node in _statements(item.get("Stmts"), depth)), case_words)


def _declaration(c: Json, depth: int) -> Node:
    naked = tuple(_word(a["Value"], depth) for a in c.get("Args") or () if a.get("Naked") and a.get("Value"))
    bare = tuple(_plain(a["Name"]["Value"]) for a in c.get("Args") or () if a.get("Naked") and a.get("Name"))
    assigns = _assigns([a for a in c.get("Args") or () if not a.get("Naked")], depth)
    indexed = (Word((_dynamic(a["Index"], depth),)) for a in c.get("Args") or () if a.get("Naked") and a.get("Index"))
    return Simple(assigns, (_plain(c["Variant"]["Value"]), *naked, *bare, *indexed))


def _function(c: Json, depth: int) -> Node:
    if not c.get("Name"):  # shfmt accepts `() a` as zsh does; bash reports a syntax error
        raise UnknownSyntax("a function without a name")
    return Function(c["Name"]["Value"], (_statement(c["Body"], depth + 1),))


def _coproc(c: Json, depth: int) -> Node:
    stmt: Json = c["Stmt"]
    if c.get("Name") and not stmt.get("Cmd"):  # `coproc ls > x`: for bash `ls` is the command, not a name
        stmt = {**stmt, "Cmd": {"Type": "CallExpr", "Args": [c["Name"]]}}
    elif c.get("Name") and stmt["Cmd"]["Type"] in ("TimeClause", "DeclClause", "LetClause"):  # and here
        raise UnknownSyntax("`coproc` before `time` or a declaration")
    return Group("coproc", (_keyworded("coproc", stmt, depth),))


def _time(c: Json, depth: int) -> Node:
    return Group("list", (_keyworded("time", c["Stmt"], depth),) if c.get("Stmt") else ())


def _keyworded(keyword: str, stmt: Json, depth: int) -> Node:
    """Return the command after `coproc` or `time`. After them shfmt takes `--`, `a=1` and `2>` for a program."""
    command: Json = stmt.get("Cmd") or {}
    words: list[Json] = command.get("Args") or []
    first = [part for word in words[:1] for part in cast("list[Json]", word.get("Parts") or [])]
    if re.match(r"--$|\d+$|\w+(?:\[.*)?\+?=", "".join(part.get("Value", "") for part in first), re.DOTALL):
        raise UnknownSyntax(f"`{keyword}` before an option, an assignment, or a number")
    return _statement(stmt, depth + 1)


def _test(c: Json, depth: int) -> Node:
    return Group("test", _nested(c, depth), tuple(_word(w, depth) for w in _operands(c["X"])))


def _operands(x: Any) -> Iterator[Json]:
    """Yield the words of a test and its operators in order."""
    if isinstance(x, Mapping):
        node = cast("Json", x)
        if "Parts" in node:
            yield node
            return
        operator = node.get("Op")
        operators: list[Json] = [{"Parts": [{"Type": "SglQuoted", "Value": operator}]}]
        operators = operators if isinstance(operator, str) and operator.startswith("-") else []
        if "Y" not in node:
            yield from operators
        yield from _operands(node.get("X"))
        if "Y" in node:
            yield from operators
            yield from _operands(node["Y"])


_COMMANDS: Mapping[str, Callable[[Json, int], Node]] = {
    "BinaryCmd": _binary,
    "Subshell": lambda c, d: Group("subshell", _statements(c.get("Stmts"), d)),
    "Block": lambda c, d: Group("list", _statements(c.get("Stmts"), d)),
    "IfClause": _if,
    "WhileClause": lambda c, d: Group("loop", _statements(c.get("Cond"), d) + _statements(c.get("Do"), d)),
    "ForClause": _for,
    "CaseClause": _case,
    "FuncDecl": _function,
    "ArithmCmd": lambda c, d: Group("arithmetic", _nested(c, d)),
    "LetClause": lambda c, d: Group("arithmetic", _nested(c, d)),
    "TestClause": _test,
    "DeclClause": _declaration,
    "TimeClause": _time,
    "CoprocClause": _coproc,
}


def _assigns(assigns: Any, depth: int) -> tuple[Assign, ...]:
    out: list[Assign] = []
    for a in assigns or ():
        if a["Name"]["Value"] in ("BASH_ALIASES", "BASH_CMDS"):
            raise UnknownSyntax("an array that changes what a word of a command means")
        odd = a.get("Array") or a.get("Index") or a.get("Append")
        value = Word((_dynamic(a, depth),)) if odd else _word(a.get("Value") or {"Parts": ()}, depth)
        out.append(Assign(a["Name"]["Value"] + ("[]" if odd else ""), value))
    return tuple(out)


def _redirect(r: Json, depth: int) -> Redirect:
    op: str = r["Op"]
    descriptor: Json = r.get("N") or {"Value": ""}
    if descriptor["Value"].startswith("{"):
        raise UnknownSyntax("a redirect that sets a variable")
    if op not in ("<<", "<<-"):
        return Redirect(op, _word(r["Word"], depth), descriptor["Value"])
    delimiter: list[Json] = r["Word"].get("Parts") or []
    body = _word(r.get("Hdoc") or {"Parts": ()}, depth, quotes="raw" if is_quoted(delimiter) else "heredoc")
    if op == "<<-":
        body = Word(tuple(_without_tabs(part) for part in body.parts))
    return Redirect("<<", body, descriptor["Value"])


def _without_tabs(part: Text | DynamicPart) -> Text | DynamicPart:
    return Text(re.sub(r"(?m)^\t+", "", part.text), quoted=True) if isinstance(part, Text) else part


def _read_words(nodes: Any, depth: int) -> tuple[Word, ...]:
    return tuple(_word(word, depth) for word in nodes or ())


def _plain(text: str) -> Word:
    return Word((Text(text, quoted=True),))


def _word(word: Json, depth: int, quotes: str = "none") -> Word:
    return Word(tuple(piece for part in word.get("Parts") or () for piece in _part(part, depth, quotes)))


def _part(part: Json, depth: int, quotes: str) -> Iterator[Text | DynamicPart]:
    kind: str = part["Type"]
    if kind == "Lit":
        yield from literal_parts(part.get("Value", ""), quotes)
    elif kind == "SglQuoted":
        yield from _single(part)
    elif kind == "DblQuoted":
        yield Text("", quoted=True)
        for inner in part.get("Parts") or ():
            yield from _part(inner, depth, "double")
    elif kind == "ExtGlob":
        _refuse_hiding(part)
        yield Text("*", quoted=False)  # valid only if `extglob` is on, and a command that sets it asks
    elif kind == "ParamExp":
        yield _parameter(part, depth)
    elif kind in ("CmdSubst", "ProcSubst"):
        yield _substitution(part, depth)
    elif kind == "ArithmExp":
        yield _dynamic(part, depth, runs_only=not _names(part))
    else:
        raise UnknownSyntax(kind)


def _substitution(part: Json, depth: int) -> DynamicPart:
    kind: str = part["Type"]
    if part.get("TempFile") or part.get("ReplyVar"):
        raise UnknownSyntax("a function substitution")
    if kind == "ProcSubst" and not part.get("Stmts"):  # bash makes no word of it: `<()rm x` runs `rm`
        raise UnknownSyntax("an empty process substitution")
    return DynamicPart(kind, scripts=(Script(_statements(part.get("Stmts"), depth + 1)),), runs_only=True)


def _refuse_hiding(part: Json) -> None:
    if part.get("Type") == "ExtGlob" and pattern_may_hide(part):
        raise UnknownSyntax("a pattern `@(...)` with quotes or expansions")


def literal_parts(value: str, quotes: str) -> Iterator[Text]:
    """Yield literal text in pieces, with escapes removed according to these quotes."""
    if quotes == "raw" or "\\" not in value:
        yield Text(value, quoted=quotes != "none")
        return
    # Within double quotes a backslash escapes only these characters, and otherwise stays (man bash, QUOTING).
    special = {"double": '$`"\\', "heredoc": "$`\\"}.get(quotes)
    at = 0
    for match in re.finditer(r"\\(.)", value, re.DOTALL):
        char = match[1]
        if special is not None and char not in special:
            continue
        yield Text(value[at : match.start()], quoted=quotes != "none")
        yield Text(char, quoted=True)
        at = match.end()
    yield Text(value[at:], quoted=quotes != "none")


def _single(part: Json) -> Iterator[Text | DynamicPart]:
    value: str = part.get("Value", "")
    text = decode_ansi_c(value) if part.get("Dollar") else value
    yield DynamicPart("$'...'") if text is None else Text(text, quoted=True)


def _parameter(part: Json, depth: int) -> Text | DynamicPart:
    name: str = (part.get("Param") or {"Value": ""})["Value"]
    expansion: Json = part.get("Exp") or {}
    if expansion.get("Op") == "@" and expansion["Word"]["Parts"][0]["Value"] == "P":
        raise UnknownSyntax("`@P`, which runs what a variable holds")
    simple = not set(part) - _POSITIONS
    if simple and name in _NUMBERS:
        return DynamicPart(NUMBER, runs_only=True)
    if simple and name:
        return DynamicPart(name, name=name)
    if name == "HOME" and set(part) - _POSITIONS == {"Exp"}:  # `${HOME:?}`, `${HOME%/}`: close enough for deny rules
        return DynamicPart(name, name=name, scripts=_dynamic(part, depth).scripts)
    return _dynamic(part, depth)


def _dynamic(tree: Json, depth: int, *, runs_only: bool = False) -> DynamicPart:
    nested = _nested(tree, depth)
    return DynamicPart(str(tree.get("Type", "")), scripts=(Script(nested),) if nested else (), runs_only=runs_only)


def _nested(tree: Any, depth: int) -> tuple[Node, ...]:
    """Return everything that runs anywhere beneath `tree`, inside any forms."""
    if depth > DEEPEST:
        raise UnknownSyntax("too deep nesting")
    if isinstance(tree, Mapping):
        node = cast("Json", tree)
        _refuse_hiding(node)
        if "Stmts" in node:
            return _statements(node["Stmts"], depth + 1)
        return tuple(inner for value in node.values() for inner in _nested(value, depth))
    if isinstance(tree, list):
        return tuple(inner for value in cast("list[Any]", tree) for inner in _nested(value, depth))
    return ()


def _names(tree: Any) -> bool:
    """Return True if arithmetic reads anything but numbers: names are evaluated again, and can run code."""
    if isinstance(tree, Mapping):
        node = cast("Json", tree)
        if node.get("Type") == "Lit":
            return not re.fullmatch(r"[0-9]+", node.get("Value", ""))
        kinds = ("ParamExp", "CmdSubst", "ProcSubst", "SglQuoted")
        return node.get("Type") in kinds or any(_names(value) for value in node.values())
    return isinstance(tree, list) and any(_names(value) for value in cast("list[Any]", tree))

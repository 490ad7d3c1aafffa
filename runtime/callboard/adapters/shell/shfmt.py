"""Conversion of shfmt's JSON tree to the values that the permission judge reads.

Every node type that can contain code is listed here; any other type raises `NotUnderstood`, so that a newer grammar can
never hide a command from the judge.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from callboard.core.permissions.values import (
    Assign,
    Dynamic,
    Function,
    Group,
    Node,
    Pipeline,
    Redirect,
    Script,
    Simple,
    Text,
    Word,
)
from callboard.core.permissions.word_expansion import NUMBER, decode_ansi_c

Json = Mapping[str, Any]
DEEPEST = 60

_NUMBERS = frozenset("?#$")
"""Parameters that are always numbers. `$!` is empty until a command runs in the background."""
_POSITIONS = frozenset({"Pos", "End", "Type", "Param", "Short", "Rbrace", "Dollar"})


class NotUnderstood(Exception):
    """The tree contains an unknown form, which the text names."""


def script_from_tree(tree: Json) -> Script:
    """Return the script. Raises `NotUnderstood`, or RecursionError on absurd nesting."""
    return Script(_statements(tree.get("Stmts"), 0))


def _statements(stmts: Any, depth: int) -> tuple[Node, ...]:
    if depth > DEEPEST:
        raise NotUnderstood("too deep nesting")
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
            raise NotUnderstood(command["Type"])
        node = make(command, depth)
        if redirects:
            node = Group("list", (node,), redirects=redirects)
    background = stmt.get("Background") or stmt.get("Coprocess") or stmt.get("Disown")
    return Group("background", (node,)) if background else node


def _binary(c: Json, depth: int) -> Node:
    if depth > DEEPEST:
        raise NotUnderstood("too deep nesting")
    sides = _statement(c["X"], depth + 1), _statement(c["Y"], depth + 1)
    return Pipeline(_flat(sides)) if c["Op"] in ("|", "|&") else Group("list", sides)


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


def _coproc(c: Json, depth: int) -> Node:
    return Group("coproc", (_statement(c["Stmt"], depth + 1),))


def _time(c: Json, depth: int) -> Node:
    return Group("list", (_statement(c["Stmt"], depth + 1),) if c.get("Stmt") else ())


def _test(c: Json, depth: int) -> Node:
    return Group("test", _nested(c, depth), tuple(_word(w, depth) for w in _operands(c["X"])))


def _arithmetic(c: Json, depth: int) -> Node:
    return Group("arithmetic", _nested(c, depth))


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
    "FuncDecl": lambda c, d: Function(c["Name"]["Value"], (_statement(c["Body"], d + 1),)),
    "ArithmCmd": _arithmetic,
    "LetClause": _arithmetic,
    "TestClause": _test,
    "DeclClause": _declaration,
    "TimeClause": _time,
    "CoprocClause": _coproc,
}


def _assigns(assigns: Any, depth: int) -> tuple[Assign, ...]:
    out: list[Assign] = []
    for a in assigns or ():
        odd = a.get("Array") or a.get("Index") or a.get("Append")
        value = Word((_dynamic(a, depth),)) if odd else _word(a.get("Value") or {"Parts": ()}, depth)
        out.append(Assign(a["Name"]["Value"] + ("[]" if odd else ""), value))
    return tuple(out)


def _redirect(r: Json, depth: int) -> Redirect:
    op: str = r["Op"]
    descriptor: Json = r.get("N") or {"Value": ""}
    if descriptor["Value"].startswith("{"):
        raise NotUnderstood("a redirect that sets a variable")
    if op not in ("<<", "<<-"):
        return Redirect(op, _word(r["Word"], depth), descriptor["Value"])
    delimiter: list[Json] = r["Word"].get("Parts") or []
    # A delimiter with quotes: bash expands nothing in the text.
    raw = any(p["Type"] != "Lit" or "\\" in p.get("Value", "") for p in delimiter)
    body = _word(r.get("Hdoc") or {"Parts": ()}, depth, quotes="raw" if raw else "heredoc")
    if op == "<<-":
        body = Word(tuple(_without_tabs(part) for part in body.parts))
    return Redirect("<<", body, descriptor["Value"])


def _without_tabs(part: Text | Dynamic) -> Text | Dynamic:
    return Text(re.sub(r"(?m)^\t+", "", part.text), quoted=True) if isinstance(part, Text) else part


def _read_words(nodes: Any, depth: int) -> tuple[Word, ...]:
    return tuple(_word(word, depth) for word in nodes or ())


def _plain(text: str) -> Word:
    return Word((Text(text, quoted=True),))


def _word(word: Json, depth: int, quotes: str = "none") -> Word:
    return Word(tuple(piece for part in word.get("Parts") or () for piece in _part(part, depth, quotes)))


def _part(part: Json, depth: int, quotes: str) -> Iterator[Text | Dynamic]:
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
        yield Text("*", quoted=False)  # valid only where `extglob` is on, and turning that on asks
    elif kind == "ParamExp":
        yield _parameter(part, depth)
    elif kind in ("CmdSubst", "ProcSubst"):
        if part.get("TempFile") or part.get("ReplyVar"):
            raise NotUnderstood("a function substitution")
        yield Dynamic(kind, scripts=(Script(_statements(part.get("Stmts"), depth + 1)),), runs_only=True)
    elif kind == "ArithmExp":
        yield _dynamic(part, depth, runs_only=not _names(part))
    else:
        raise NotUnderstood(kind)


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


def _single(part: Json) -> Iterator[Text | Dynamic]:
    value: str = part.get("Value", "")
    text = decode_ansi_c(value) if part.get("Dollar") else value
    yield Dynamic("$'...'") if text is None else Text(text, quoted=True)


def _parameter(part: Json, depth: int) -> Text | Dynamic:
    name: str = (part.get("Param") or {"Value": ""})["Value"]
    simple = not set(part) - _POSITIONS
    if simple and name in _NUMBERS:
        return Dynamic(NUMBER, runs_only=True)
    if simple and name:
        return Dynamic(name, name=name)
    if name == "HOME" and set(part) - _POSITIONS == {"Exp"}:  # `${HOME:?}`, `${HOME%/}`: near enough to deny by
        return Dynamic(name, name=name, scripts=_dynamic(part, depth).scripts)
    return _dynamic(part, depth)


def _dynamic(tree: Json, depth: int, *, runs_only: bool = False) -> Dynamic:
    nested = _nested(tree, depth)
    return Dynamic(str(tree.get("Type", "")), scripts=(Script(nested),) if nested else (), runs_only=runs_only)


def _nested(tree: Any, depth: int) -> tuple[Node, ...]:
    """Return everything that runs anywhere beneath `tree`, inside any forms."""
    if depth > DEEPEST:
        raise NotUnderstood("too deep nesting")
    if isinstance(tree, Mapping):
        node = cast("Json", tree)
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

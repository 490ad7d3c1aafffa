"""The quick way to read a command: words, quotes without expansions, pipes and lists of them, output to nowhere.

About 0.05 ms where a run of shfmt takes 3. What is not plainly within this small language is not read here at all, and
what is read here is read a second time by tree-sitter's grammar: where the two see another number of commands or any
other form, shfmt decides. A test compares the result with shfmt's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from callboard.adapters.shell_tree import literal_parts
from callboard.core.permission.commands import names
from callboard.core.permission.values import Dynamic, Group, Pipeline, Redirect, Script, Simple, Text, Word
from callboard.core.permission.values import Node as Read

_RESERVED = names(
    "case coproc do done elif else esac fi for function if in select then time until while "
    "declare typeset local export readonly unset let [[ ]] { } !"
)
_TOKEN = re.compile(
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
    """Reads what is plain. One for a parser: it holds tree-sitter's tables."""

    def __init__(self) -> None:
        self._grammar = Parser(Language(tree_sitter_bash.language()))

    def read(self, source: str) -> Script | None:
        """Return the script, or None for one that is not plain."""
        script = plain_script(source)
        if script is None:
            return None
        root = self._grammar.parse(source.encode()).root_node
        if root.has_error:
            return None
        seen = list(_named(root))
        if not _FORMS.issuperset(node.type for node in seen):
            return None
        commands = sum(node.type in ("command", "test_command") for node in seen)
        return script if commands == sum(1 for _ in _simple(script.nodes)) else None


def _named(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from _named(child)


def _simple(nodes: Sequence[Read]) -> Iterator[Simple]:
    for node in nodes:
        if isinstance(node, Simple):
            yield node
        elif isinstance(node, Pipeline):
            yield from _simple(node.stages)
        elif isinstance(node, Group):
            yield from _simple(node.body)


def plain_script(source: str) -> Script | None:
    """Return the script as shfmt's tree would give it, or None for one that is not plain."""
    commands, ends = [_Command()], list[str]()
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
        self._words: list[list[Text | Dynamic]] = []
        self._redirects: list[Redirect] = []
        self._open = False

    def take(self, token: re.Match[str]) -> bool:
        """Add a token; False for one that cannot stand here."""
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
            return False  # words after a redirect, braces and brackets within a word: left to shfmt
        if not self._open:
            self._words.append([])
        self._open = True
        self._words[-1] += _parts(token)
        return True

    def node(self) -> Simple | None:
        """Return the command, or None where its first word is none that a plain command begins with."""
        if not self._words:
            return None
        first = "".join(part.text for part in self._words[0] if isinstance(part, Text))
        if first in _RESERVED or "=" in first or not first or first == "\\":
            return None
        return Simple((), tuple(Word(tuple(parts)) for parts in self._words), tuple(self._redirects))


def _parts(token: re.Match[str]) -> Iterator[Text | Dynamic]:
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
    done, left, now = list[Read](), list[Read](), list[Simple]([commands[0]])
    for end, command in zip((*ends, ";"), (*commands[1:], None), strict=True):
        if end == "|" and command:
            now.append(command)
            continue
        piped: Read = Pipeline(tuple(now)) if len(now) > 1 else now[0]
        left = [Group("list", (left[0], piped)) if left else piped]
        if end == ";":
            done += left
            left = []
        now = [command] if command else []
    return Script(tuple(done))

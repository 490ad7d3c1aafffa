"""Findings on the rules of settings, and a check of the examples next to rules. Pure.

Findings are ignored rules, duplicates, and rules that another rule makes redundant. An example is a call with its
expected decision, and a message if the decision differs.

Only certain findings are reported: a rule covers another one if it matches every call that the other matches.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from callboard.core.permissions import gitignore
from callboard.core.permissions.call_input import (
    MODES,
    EnteredCall,
    InputRules,
    InvalidCall,
    ToolTraits,
    call_of_words,
    read_call,
)
from callboard.core.permissions.gitignore import Anchors
from callboard.core.permissions.rule_check import Kind, rule_note
from callboard.core.permissions.rules import PATH_RULES, names_tool, parse_rule
from callboard.core.permissions.values import Decision, Mode, Rule, Verdict
from callboard.core.tool_access import ALL_TOOLS
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json

Code = Literal[
    "refused", "ignored", "double", "shadowed", "no-effect", "matcher", "note", "hook", "dead-script", "setting"
]  # fmt: skip

_STAND_IN = "\N{LATIN SMALL LETTER O WITH STROKE}\N{LATIN SMALL LETTER O WITH STROKE}"
"""Replacement for a star of a covered pattern in comparisons: text that no real pattern contains."""
_FOLDER = "/-"


@dataclass(frozen=True, slots=True)
class WrittenRule:
    """A rule as written in settings. `scope`: the agent type or the turns that it is for; empty: all."""

    text: str
    kind: Kind
    place: str
    scope: str = ""


@dataclass(frozen=True, slots=True)
class LintFinding:
    """One finding. `place`: file, line and field; `text`: the text there."""

    place: str
    code: Code
    text: str
    why: str


@dataclass(frozen=True, slots=True)
class Sample:
    """The simplest call that a rule matches."""

    tool: str
    input: Mapping[str, object]
    shown: str


@dataclass(frozen=True, slots=True)
class _Read:
    written: WrittenRule
    rule: Rule
    tools: frozenset[str]
    """All known tools that the rule applies to; for an MCP tool its own name."""


def lint_rules(rules: Sequence[WrittenRule], tools: Iterable[str] = ()) -> list[LintFinding]:
    """Return the findings on these rules, in their order. `tools`: names of tools besides the built-in ones."""
    tool_names = tuple(tools)
    notes: list[LintFinding] = []
    readable: list[_Read] = []
    for written in rules:
        note = rule_note(written.text, written.kind, tool_names)
        if note.status == "honored":
            readable.append(_read(written, tool_names))
        else:
            notes.append(LintFinding(written.place, note.status, _rule_text(written), note.why))
    for number, item in enumerate(readable):
        others = [(other, at < number) for at, other in enumerate(readable) if at != number]
        if (hidden := _hidden(item, others)) is not None:
            notes.append(hidden)
    order = {(each.place, _rule_text(each)): at for at, each in enumerate(rules)}
    return sorted(notes, key=lambda each: order[each.place, each.text])


def sample_of(written: WrittenRule) -> Sample | None:
    """Return the simplest call that a rule for commands or files matches.

    None if there is none, or it is not certain.
    """
    try:
        rule = parse_rule(written.text)
    except ValueError:
        return None
    if rule.specifier is None or rule_note(written.text, written.kind).status != "honored":
        return None
    if rule.tool in ("Bash", "bash"):
        text, _ = _prefix(rule.specifier)
        return None if text is None else Sample("bash", {"command": text}, text)
    plain = not any(char in rule.specifier for char in "[\\!~?:") and ".." not in rule.specifier.split("/")
    if rule.tool not in ("Read", "Edit") or not plain:
        return None
    path = re.sub(r"\*+", "x", rule.specifier)
    path = path[1:] if path.startswith("//") else path.lstrip("/")
    tool = "read_file" if rule.tool == "Read" else "write_file"
    return Sample(tool, {"path": path}, f"{rule.tool} {path}")


def _read(written: WrittenRule, tool_names: Sequence[str]) -> _Read:
    rule = parse_rule(written.text)
    allow = written.kind == "allow"
    named = {tool for tool in (*ALL_TOOLS, *tool_names) if names_tool(rule, tool, allow=allow)}
    return _Read(written, rule, frozenset(named or {rule.tool}))


def _rule_text(written: WrittenRule) -> str:
    return f"{written.kind} {written.text}"


def _hidden(item: _Read, others: Iterable[tuple[_Read, bool]]) -> LintFinding | None:
    """Return the rule that makes this one redundant.

    Rules that decide earlier are checked first, then those of its own kind.
    """
    comparable = [(other, earlier) for other, earlier in others if other.written.scope in ("", item.written.scope)]
    for kind, says in (("deny", "is denied before"), ("ask", "asks before")):
        stronger = [
            other for other, _ in comparable if other.written.kind == kind and kind in _BEFORE[item.written.kind]
        ]
        if (by := next((other for other in stronger if covers(other, item)), None)) is not None:
            return _finding(item, "shadowed", f"it never decides: every call that it matches {says}, by {_named(by)}")
    same = [(other, earlier) for other, earlier in comparable if other.written.kind == item.written.kind]
    for other, earlier in same:
        if not covers(other, item):
            continue
        if covers(item, other) and item.written.scope == other.written.scope:
            if earlier:
                return _finding(item, "double", f"it is a duplicate of {_named(other)}")
            continue
        return _finding(item, "double", f"it adds nothing to {_named(other)}, which is wider")
    return None


_BEFORE: dict[Kind, tuple[Kind, ...]] = {"allow": ("deny", "ask"), "ask": ("deny",), "deny": ()}


def _finding(item: _Read, code: Code, reason: str) -> LintFinding:
    return LintFinding(item.written.place, code, _rule_text(item.written), reason)


def _named(item: _Read) -> str:
    scope = f" (of {item.written.scope})" if item.written.scope else ""
    return f"`{_rule_text(item.written)}`{scope} at {item.written.place}"


def covers(wide: _Read, narrow: _Read) -> bool:
    """Return True if every call that `narrow` matches is certainly also matched by `wide`."""
    if not _covers_tools(wide, narrow):
        return False
    if wide.rule.specifier in (None, narrow.rule.specifier):
        return True
    if narrow.rule.specifier is None:
        return False
    if _is_path(wide.rule):
        return _is_path(narrow.rule) and _covers_path(wide, narrow)
    return _covers_words(wide.rule.specifier, narrow.rule.specifier, loose=narrow.written.kind != "allow")


def _covers_tools(wide: _Read, narrow: _Read) -> bool:
    tools = {narrow.rule.tool.replace("*", _STAND_IN)} if "*" in narrow.rule.tool else narrow.tools
    if wide.rule.tool == narrow.rule.tool:
        return True
    return all(names_tool(wide.rule, tool, allow=wide.written.kind == "allow") for tool in tools)


def _is_path(rule: Rule) -> bool:
    return rule.tool in PATH_RULES


def _covers_words(wide: str, narrow: str, *, loose: bool) -> bool:
    """Compare rules for commands and names. A prefix covers commands that begin with its words; stars cover any text.

    `loose`: a narrow rule without stars ignores options between its words; a text with stars does not.
    """
    start, open_ended = _prefix(wide)
    text, others = _prefix(narrow)
    if start is None:
        if loose and text is not None:
            return False
        plain = [narrow[:-2]] if narrow.endswith((":*", " *")) else []
        samples = [narrow.replace(":*", " *"), *plain]
        return all(_fits(wide, sample.replace("*", _STAND_IN)) for sample in samples)
    narrow_words = (text if text is not None else narrow.partition("*")[0].rpartition(" ")[0]).split()
    if not open_ended:
        return text is not None and not others and narrow_words == start.split()
    return narrow_words[: len(start.split())] == start.split()


def _prefix(specifier: str) -> tuple[str | None, bool]:
    """Return the words of a prefix or exact rule, and True if more may follow; None for a rule with other stars."""
    text = specifier.strip()
    open_ended = False
    if text.endswith((":*", " *")):
        text = text[:-2]
        open_ended = True
    return (None, False) if "*" in text else (text, open_ended)


def _fits(wide: str, text: str) -> bool:
    """Return True if a rule with stars matches a text; `x *` matches `x` too."""
    short = wide[:-2].split("*") if wide.endswith((" *", ":*")) else None
    return _runs_through(wide.split("*"), text) or (short is not None and _runs_through(short, text))


def _runs_through(pieces: Sequence[str], text: str) -> bool:
    """Return True if the text contains the pieces in this order, the first at its beginning, the last at its end."""
    if len(pieces) == 1:
        return text == pieces[0]
    if not text.startswith(pieces[0]) or len(text) < len("".join(pieces)):
        return False
    at = len(pieces[0])
    for piece in pieces[1:-1]:
        at = text.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return text.endswith(pieces[-1]) and len(text) - len(pieces[-1]) >= at


def _covers_path(wide: _Read, narrow: _Read) -> bool:
    """Compare path patterns, by sample paths of the narrow one.

    In a sample, a star is replaced by a name, and two stars by no folder, one folder and two folders.
    """
    anchors = Anchors(f"{_FOLDER}folder", f"{_FOLDER}home")
    samples = list(_samples(narrow.rule.specifier or "", anchors, loose=narrow.written.kind != "allow"))
    loose = wide.written.kind != "allow"
    return bool(samples) and all(
        gitignore.names_path(wide.rule.specifier or "", sample, anchors, loose=loose) for sample in samples
    )


def _samples(pattern: str, anchors: Anchors, *, loose: bool) -> Iterator[str]:
    """Yield absolute paths that the pattern matches; none if it contains parts that cannot be sampled."""
    if any(char in pattern for char in "[\\!") or ".." in pattern.split("/"):
        return
    for deep in ("", f"{_STAND_IN}", f"{_STAND_IN}/{_STAND_IN}"):
        text = pattern.rstrip("/")
        text = text.replace("**", deep).replace("//", "/") if "**" in text else text
        text = text.replace("*", _STAND_IN).replace("?", _STAND_IN[0])
        for path in _absolute(text, pattern, anchors):
            both = (path, f"{path}/{_STAND_IN}")
            yield from (sample for sample in both if gitignore.names_path(pattern, sample, anchors, loose=loose))


def _absolute(text: str, pattern: str, anchors: Anchors) -> Iterator[str]:
    if pattern.startswith("//"):
        yield f"/{text.lstrip('/')}"
    elif pattern.startswith("~/"):
        yield f"{anchors.home}/{text[2:]}"
    elif pattern.startswith("/"):
        yield f"{anchors.folder}/{text.lstrip('/')}"
    else:
        yield f"{anchors.folder}/{text.removeprefix('./')}".rstrip("/")
        yield f"{anchors.folder}/{_STAND_IN}/{text.removeprefix('./')}".rstrip("/")


@dataclass(frozen=True, slots=True)
class Example:
    """One example, and its location. `call`: a shell command, or an object with `tool` and `input`."""

    call: str | Json
    decision: Decision
    place: str
    by: str | None = None
    mode: Mode | None = None
    agent: str = "lead"
    folder: str = ""

    @property
    def call_text(self) -> str:
        """Return the call as one line."""
        if isinstance(self.call, str):
            return self.call
        tool_input: Json = self.call.get("input") or {}
        named = next((str(tool_input[name]) for name in ("command", "path", "file_path") if name in tool_input), "")
        return f"{self.call.get('tool')} {named}".strip()


@dataclass(frozen=True, slots=True)
class CheckedExample:
    """An example and its decision under the current rules."""

    example: Example
    verdict: Verdict

    @property
    def wrong(self) -> str:
        """Return the difference from the example; empty if there is none."""
        expected = self.example
        got = self.verdict
        if got.decision != expected.decision:
            return f"expected {expected.decision}, got {got.decision}"
        if expected.by is not None and got.rule != expected.by:
            return f"expected by {expected.by}, got by {got.rule}"
        return ""


def call_of(example: Example, mode: Mode, rules: InputRules, tools: Mapping[str, ToolTraits]) -> EnteredCall:
    """Return the call of an example, with the mode and the rules in force for its agent. Raises `InvalidCall`."""
    if isinstance(example.call, str):
        tool, fields = call_of_words("bash", example.call, tools)
    else:
        if odd := sorted(set(example.call) - {"tool", "input"}):
            raise InvalidCall(f"the call of an example has `tool` and `input`, not `{odd[0]}`")
        stated = read_call(example.call, tools)
        tool = stated.tool
        fields = stated.input
    return EnteredCall(tool, fields, MODES[example.mode or mode], rules, example.folder)

"""Rules that do not do what they seem to: ignored ones, doubles, and those that another one leaves nothing to. Pure.

Only what is sure is told: a rule is said to cover another one where every call that the other matches matches it too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from callboard.core.permission import gitignore
from callboard.core.permission.gitignore import Anchors
from callboard.core.permission.grammar import Kind, rule_note
from callboard.core.permission.rules import PATH_RULES, names_tool, parse_rule
from callboard.core.permission.values import Rule
from callboard.core.toolset import ALL_TOOLS

Code = Literal[
    "refused", "ignored", "double", "shadowed", "no-effect", "matcher", "note", "hook", "dead-script", "setting"
]  # fmt: skip

_STAND_IN = "\N{LATIN SMALL LETTER O WITH STROKE}\N{LATIN SMALL LETTER O WITH STROKE}"
"""What a star of a covered pattern is compared as: text that no pattern of people names."""
_FOLDER = "/-"


@dataclass(frozen=True, slots=True)
class Written:
    """A rule as it stands in settings. `scope`: the agent type or the turns that it is for; empty: all."""

    text: str
    kind: Kind
    place: str
    scope: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """One thing that lint has to say. `place`: file, line and field; `text`: what stands there."""

    place: str
    code: Code
    text: str
    why: str


@dataclass(frozen=True, slots=True)
class Sample:
    """The plainest call that a rule names."""

    tool: str
    input: Mapping[str, object]
    shown: str


@dataclass(frozen=True, slots=True)
class _Read:
    written: Written
    rule: Rule
    tools: frozenset[str]
    """All tools that it is about, of those that there are; for an MCP tool its own name."""


def lint_rules(rules: Sequence[Written], tools: Iterable[str] = ()) -> list[Found]:
    """What is to be said of these rules, in their order. `tools`: names of tools beside the built-in ones."""
    there = tuple(tools)
    found: list[Found] = []
    readable: list[_Read] = []
    for written in rules:
        note = rule_note(written.text, written.kind, there)
        if note.status == "honoured":
            readable.append(_read(written, there))
        else:
            found.append(Found(written.place, note.status, _shown(written), note.why))
    for number, one in enumerate(readable):
        others = [(other, at < number) for at, other in enumerate(readable) if at != number]
        if (hidden := _hidden(one, others)) is not None:
            found.append(hidden)
    order = {(each.place, _shown(each)): at for at, each in enumerate(rules)}
    return sorted(found, key=lambda each: order[each.place, each.text])


def sample_of(written: Written) -> Sample | None:
    """The plainest call that a rule of commands or files names. None where there is none, or it is not said."""
    try:
        rule = parse_rule(written.text)
    except ValueError:
        return None
    if rule.specifier is None or rule_note(written.text, written.kind).status != "honoured":
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


def _read(written: Written, there: Sequence[str]) -> _Read:
    rule = parse_rule(written.text)
    allow = written.kind == "allow"
    named = {tool for tool in (*ALL_TOOLS, *there) if names_tool(rule, tool, allow=allow)}
    return _Read(written, rule, frozenset(named or {rule.tool}))


def _shown(written: Written) -> str:
    return f"{written.kind} {written.text}"


def _hidden(one: _Read, others: Iterable[tuple[_Read, bool]]) -> Found | None:
    """The rule that leaves this one nothing to do: what decides before it comes first, then its own kind."""
    mine = [(other, earlier) for other, earlier in others if other.written.scope in ("", one.written.scope)]
    for kind, says in (("deny", "is denied before"), ("ask", "asks before")):
        stronger = [other for other, _ in mine if other.written.kind == kind and kind in _BEFORE[one.written.kind]]
        if (by := next((other for other in stronger if covers(other, one)), None)) is not None:
            return _found(one, "shadowed", f"it never has a say: all that it matches {says}, by {_named(by)}")
    same = [(other, earlier) for other, earlier in mine if other.written.kind == one.written.kind]
    for other, earlier in same:
        if not covers(other, one):
            continue
        if covers(one, other) and one.written.scope == other.written.scope:
            if earlier:
                return _found(one, "double", f"it says what {_named(other)} says")
            continue
        return _found(one, "double", f"it adds nothing to {_named(other)}, which is wider")
    return None


_BEFORE: dict[Kind, tuple[Kind, ...]] = {"allow": ("deny", "ask"), "ask": ("deny",), "deny": ()}


def _found(one: _Read, code: Code, why: str) -> Found:
    return Found(one.written.place, code, _shown(one.written), why)


def _named(one: _Read) -> str:
    scope = f" (of {one.written.scope})" if one.written.scope else ""
    return f"`{_shown(one.written)}`{scope} at {one.written.place}"


def covers(wide: _Read, narrow: _Read) -> bool:
    """Whether every call that `narrow` matches matches `wide` too. False where that is not sure."""
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
    """Of commands and names. A prefix covers what begins with its words; stars cover any text.

    `loose`: the narrow one sees through options between its words, where it has no stars; a text with stars does not.
    """
    start, more = _prefix(wide)
    text, others = _prefix(narrow)
    if start is None:
        if loose and text is not None:
            return False
        plain = [narrow[:-2]] if narrow.endswith((":*", " *")) else []
        samples = [narrow.replace(":*", " *"), *plain]
        return all(_fits(wide, sample.replace("*", _STAND_IN)) for sample in samples)
    words = (text if text is not None else narrow.partition("*")[0].rpartition(" ")[0]).split()
    if not more:
        return text is not None and not others and words == start.split()
    return words[: len(start.split())] == start.split()


def _prefix(specifier: str) -> tuple[str | None, bool]:
    """The words of a prefix or exact rule and whether more may follow; None for one with other stars."""
    text, more = specifier.strip(), False
    if text.endswith((":*", " *")):
        text, more = text[:-2], True
    return (None, False) if "*" in text else (text, more)


def _fits(wide: str, text: str) -> bool:
    """Whether a rule with stars matches a text; `x *` matches `x` too."""
    short = wide[:-2].split("*") if wide.endswith((" *", ":*")) else None
    return _runs_through(wide.split("*"), text) or (short is not None and _runs_through(short, text))


def _runs_through(pieces: Sequence[str], text: str) -> bool:
    """Whether the pieces stand in the text in this order, the first at its beginning, the last at its end."""
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
    """Of path patterns, by samples of what the narrow one names: a star as a name, two as no, one and two folders."""
    anchors = Anchors(f"{_FOLDER}folder", f"{_FOLDER}home")
    samples = list(_samples(narrow.rule.specifier or "", anchors, loose=narrow.written.kind != "allow"))
    loose = wide.written.kind != "allow"
    return bool(samples) and all(
        gitignore.names_path(wide.rule.specifier or "", sample, anchors, loose=loose) for sample in samples
    )


def _samples(pattern: str, anchors: Anchors, *, loose: bool) -> Iterator[str]:
    """Absolute paths that the pattern names; none where it holds what is not sampled."""
    if any(char in pattern for char in "[\\!") or ".." in pattern.split("/"):
        return
    for deep in ("", f"{_STAND_IN}", f"{_STAND_IN}/{_STAND_IN}"):
        text = pattern.rstrip("/")
        text = text.replace("**", deep).replace("//", "/") if "**" in text else text
        text = text.replace("*", _STAND_IN).replace("?", _STAND_IN[0])
        for path in _placed(text, pattern, anchors):
            both = (path, f"{path}/{_STAND_IN}")
            yield from (one for one in both if gitignore.names_path(pattern, one, anchors, loose=loose))


def _placed(text: str, pattern: str, anchors: Anchors) -> Iterator[str]:
    if pattern.startswith("//"):
        yield f"/{text.lstrip('/')}"
    elif pattern.startswith("~/"):
        yield f"{anchors.home}/{text[2:]}"
    elif pattern.startswith("/"):
        yield f"{anchors.folder}/{text.lstrip('/')}"
    else:
        yield f"{anchors.folder}/{text.removeprefix('./')}".rstrip("/")
        yield f"{anchors.folder}/{_STAND_IN}/{text.removeprefix('./')}".rstrip("/")

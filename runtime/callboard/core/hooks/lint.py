r"""Matchers of hooks that do not mean what they say. Pure.

A matcher of letters, digits, `_`, `-`, spaces, commas and bars is a list of names. Anything else is a regular
expression that is searched for anywhere in a name, which is where people err: `Bash*` is `Bas` and any number of `h`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from callboard.core.hooks.rules import Misfit, names_of, read_matcher
from callboard.core.hooks.subjects import MATCHED, fits_nothing
from callboard.core.toolset import ALL_TOOLS, COMPATIBLE
from callboard.words.hooks import TOOL_EVENTS

_SERVER = re.compile(r"mcp__[^_]+(?:_[^_]+)*_*")
_LOOSE_DOT = re.compile(r"\.(?![*+?{])")
_OPEN_EXCLUSION = re.compile(r"(?<!\^)\(\?!")
_SHORT_EXCLUSION = re.compile(r"\^\(\?!([A-Za-z_|]+)\)")
_REPEATED = re.compile(r"([A-Za-z0-9_])\*")


def lint_matcher(event: str, text: str) -> Iterator[str]:
    """What is to be said of a matcher at an event. Nothing for one that says what it means."""
    if event not in MATCHED:
        if text not in ("", "*"):
            yield f"{event} has no matcher: its hooks run each time"
        return
    try:
        matcher = read_matcher(text)
    except Misfit as misfit:
        yield str(misfit)
        return
    if matcher.names is not None:
        yield from (_of_name(event, name) for name in sorted(matcher.names) if _of_name(event, name))
    elif matcher.pattern is not None:
        yield from _of_pattern(text)
        if fits_nothing(event, matcher):
            yield f"{text!r} matches nothing that there is: its hooks never run"


def matcher_notes(event: str, text: str) -> Iterator[str]:
    """What a matcher means that says it in a way which is easily misread. Nothing is wrong with it."""
    try:
        matcher = read_matcher(text)
    except Misfit:
        return
    if event in TOOL_EVENTS and matcher.excludes:
        yield f"{text!r} is about every tool but those: also such as only read, and what MCP servers bring later"


def _of_name(event: str, name: str) -> str:
    """What is wrong with one name of a list; empty when nothing is."""
    if event not in TOOL_EVENTS:
        fits = not fits_nothing(event, read_matcher(name))
        return "" if fits else f"{name!r} is nothing that {event} tells of"
    if name.startswith("mcp__"):
        return (
            f"{name!r} is no tool: write {name.rstrip('_')}__.* for all of its server"
            if _SERVER.fullmatch(name)
            else ""
        )
    if name in ALL_TOOLS or name in COMPATIBLE:
        return ""
    known = sorted({*ALL_TOOLS, *COMPATIBLE})
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    near = near or [one for one in known if one.lower() == name.lower()]
    return f"there is no tool {name!r} here{f': did you mean {near[0]}?' if near else ''}"


def _of_pattern(text: str) -> Iterator[str]:
    bare = _without_brackets(text)
    if _OPEN_EXCLUSION.search(bare):
        yield f"{text!r} excludes nothing: without ^ before (?! it fits further on in every name"
    if (short := _SHORT_EXCLUSION.search(text)) is not None:
        yield from _excluded_too(text, short[1])
    if _binds_one(bare):
        yield f"the ^ or $ in {text!r} binds one alternative only: write ^({text.strip('^$')})$"
    if (star := _REPEATED.search(bare)) is not None:
        meant = _REPEATED.sub(r"\1.*", text)
        yield f"{text!r} is a regular expression, in which {star[0]!r} repeats {star[1]!r}: write {meant}"
    if _LOOSE_DOT.search(re.sub(r"\\.", "", bare)):
        yield f"a dot in {text!r} stands for any character: write \\."


def _excluded_too(text: str, names: str) -> Iterator[str]:
    """Tools that a `^(?!Name)` without an end leaves out besides those that it names."""
    wanted = tuple(names.split("|"))
    every = {name for tool in ALL_TOOLS for name in names_of(tool)}
    more = sorted(name for name in every - set(wanted) if name.startswith(wanted))
    if more:
        yield f"{text!r} also leaves out {', '.join(more)}: write ^(?!({names})$)"


def _binds_one(text: str) -> bool:
    """Whether an anchor stands in one of several alternatives at the top, and not in the others."""
    parts, depth = [""], 0
    for char in text:
        depth += (char == "(") - (char == ")")
        if char == "|" and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    starts, ends = [part.startswith("^") for part in parts], [part.endswith("$") for part in parts]
    return len(parts) > 1 and (any(starts) != all(starts) or any(ends) != all(ends))


def _without_brackets(text: str) -> str:
    """The expression without its character classes, in which nothing of this means anything."""
    return re.sub(r"(?<!\\)\[\^?\]?(?:\\.|[^\]\\])*\]", "-", text)

"""Path patterns of rules, as in a .gitignore, with anchors of their own. Pure.

    //x    absolute              /x    from where the rule is written (a settings file's folder, else the agent's own)
    ~/x    in the home           ./x   in the agent's folder, and so does x/y
    x      a bare name: at any depth in the agent's folder

`*` and `?` stay within a name, `**` goes through folders, `[a-z]` is one character, a backslash takes the next one as
it is. A deny or ask rule is read loosely: it names everything beneath what it names, `x/**` is meant at any depth, and
brackets may also be meant as they stand (`app/[id]/page.tsx`). An allow rule names no more than it says. There is no
negation.
"""

from __future__ import annotations

import posixpath
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

_ONE_FOLDER = re.compile(r"[^/*?\[]+/\*\*/?")
_TOKEN = re.compile(r"/\*\*/|^\*\*/|/\*\*$|\*\*|\*|\?|\[[!^]?\]?[^\]/]*\]|\\.|.", re.DOTALL)
_WILD = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class Anchors:
    """What patterns are relative to. All absolute, without links."""

    folder: str
    """The agent's own."""
    home: str
    base: str = ""
    """What a leading slash means; empty: the agent's folder."""
    folds: bool = False
    """The file system does not tell upper from lower case: a deny or ask rule does not either."""


def names_path(pattern: str, path: str, anchors: Anchors, *, loose: bool) -> bool:
    """Whether a pattern names this absolute path. `loose`: as deny and ask rules are read."""
    if loose and anchors.folds:
        pattern, path = folded(pattern), folded(path)
        anchors = Anchors(folded(anchors.folder), folded(anchors.home), folded(anchors.base))
    return any(re.fullmatch(regex, path, re.DOTALL) for regex in _regexes(pattern, anchors, loose=loose))


def folded(text: str) -> str:
    """The text as a file system that does not tell case and Unicode forms apart compares it."""
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", text).casefold())


def _regexes(pattern: str, anchors: Anchors, *, loose: bool) -> Iterator[str]:
    base, rest, deep = _anchored(pattern, anchors, loose=loose)
    start = "" if base == "/" else re.escape(base)
    between = "/(?:.*/)?" if deep else "/"
    last = rest.rstrip("/").rpartition("/")[2]
    beneath = "(?:/.*)?" if loose or not _WILD.search(last) else ""
    for brackets in (True, False) if loose and "[" in rest else (True,):
        inner = _translated(rest.rstrip("/"), brackets=brackets)
        if rest.rstrip("/") in ("", "**"):
            yield f"{start}(?:/.*)?" if start else "/.*"
        else:
            yield f"{start}{between}{inner}{beneath}"


def _anchored(pattern: str, anchors: Anchors, *, loose: bool) -> tuple[str, str, bool]:
    """The folder that a pattern is relative to, what is left of it, and whether it holds at any depth."""
    if pattern.startswith("//"):
        return "/", pattern.lstrip("/"), False
    if pattern == "~" or pattern.startswith("~/"):
        return anchors.home, pattern[2:], False
    if pattern.startswith("/"):
        return anchors.base or anchors.folder, pattern.lstrip("/"), False
    base, rest, dotted = anchors.folder, pattern, pattern.startswith(("./", "../")) or pattern in (".", "..")
    while rest.startswith(("./", "../")) or rest in (".", ".."):
        base = posixpath.dirname(base) if rest.startswith("..") else base
        rest = rest.partition("/")[2]
    bare = "/" not in rest.rstrip("/") and (loose or not rest.endswith("/"))
    return base, rest, not dotted and (bare or (loose and _ONE_FOLDER.fullmatch(rest) is not None))


def _translated(pattern: str, *, brackets: bool) -> str:
    meanings = {"/**/": "/(?:.*/)?", "**/": "(?:.*/)?", "/**": "(?:/.*)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    out = ""
    for token in _TOKEN.findall(pattern):
        if token in meanings:
            out += meanings[token]
        elif brackets and token.startswith("[") and len(token) > 2:
            out += _set(token)
        else:
            out += re.escape(token[1:] if len(token) == 2 and token[0] == "\\" else token)
    return out


def _set(token: str) -> str:
    inner = token[1:-1]
    no = inner[:1] in ("!", "^")
    inner = inner[1:] if no else inner
    made = f"(?!/)[{'^' if no else ''}{re.escape(inner).replace(chr(92) + '-', '-')}]"
    try:
        re.compile(made)
    except re.error:  # a range that runs backwards: git takes it for nothing, here it stands for itself
        return re.escape(token)
    return made

"""Path patterns of rules, as in a .gitignore, with additional anchors. Pure.

    //x    absolute              /x    in the folder of the rule's settings file, otherwise in the agent's folder
    ~/x    in the home           ./x   in the agent's folder, as is x/y
    x      a bare name: at any depth in the agent's folder

`*` and `?` match within a name, `**` matches across folders, `[a-z]` is one character, and a backslash makes the next
character literal. A deny or ask rule is read loosely: it includes everything beneath its matches, `x/**` matches at any
depth, and brackets may also be literal (`app/[id]/page.tsx`). An allow rule matches exactly. There is no negation.
"""

from __future__ import annotations

import posixpath
import re
import unicodedata
from collections.abc import Iterator

from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass

_ONE_FOLDER = late_pattern(r"[^/*?\[]+/\*\*/?")
_TOKEN = late_pattern(r"/\*\*/|^\*\*/|/\*\*$|\*\*|\*|\?|\[[!^]?\]?[^\]/]*\]|\\.|.", re.DOTALL)
_WILD = late_pattern(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class Anchors:
    """Folders to which patterns are relative. All absolute, without links."""

    folder: str
    """The agent's own folder."""
    home: str
    base: str = ""
    """Folder of a leading slash; empty: the agent's folder."""
    folds: bool = False
    """True if the file system ignores case. A deny or ask rule then does so too."""


def names_path(pattern: str, path: str, anchors: Anchors, *, loose: bool) -> bool:
    """Return True if a pattern matches this absolute path. `loose`: as deny and ask rules are read."""
    if loose and anchors.folds:
        pattern = fold_case(pattern)
        path = fold_case(path)
        anchors = Anchors(fold_case(anchors.folder), fold_case(anchors.home), fold_case(anchors.base))
    return any(re.fullmatch(regex, path, re.DOTALL) for regex in _regexes(pattern, anchors, loose=loose))


def fold_case(text: str) -> str:
    """Return the text as compared by a file system that ignores case and Unicode forms."""
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", text).casefold())


def _regexes(pattern: str, anchors: Anchors, *, loose: bool) -> Iterator[str]:
    base, remaining, deep = _anchored(pattern, anchors, loose=loose)
    start = "" if base == "/" else re.escape(base)
    between = "/(?:.*/)?" if deep else "/"
    last = remaining.rstrip("/").rpartition("/")[2]
    beneath = "(?:/.*)?" if loose or not _WILD.search(last) else ""
    for brackets in (True, False) if loose and "[" in remaining else (True,):
        inner = _translated(remaining.rstrip("/"), brackets=brackets)
        if remaining.rstrip("/") in ("", "**"):
            yield f"{start}(?:/.*)?" if start else "/.*"
        else:
            yield f"{start}{between}{inner}{beneath}"


def _anchored(pattern: str, anchors: Anchors, *, loose: bool) -> tuple[str, str, bool]:
    """Return the folder that a pattern is relative to, the rest of the pattern, and True if it matches at any depth."""
    if pattern.startswith("//"):
        return "/", pattern.lstrip("/"), False
    if pattern == "~" or pattern.startswith("~/"):
        return anchors.home, pattern[2:], False
    if pattern.startswith("/"):
        return anchors.base or anchors.folder, pattern.lstrip("/"), False
    base = anchors.folder
    remaining = pattern
    dotted = pattern.startswith(("./", "../")) or pattern in (".", "..")
    while remaining.startswith(("./", "../")) or remaining in (".", ".."):
        base = posixpath.dirname(base) if remaining.startswith("..") else base
        remaining = remaining.partition("/")[2]
    bare = "/" not in remaining.rstrip("/") and (loose or not remaining.endswith("/"))
    return base, remaining, not dotted and (bare or (loose and _ONE_FOLDER.fullmatch(remaining) is not None))


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
    except re.error:  # a reversed range: git ignores it, here it is literal
        return re.escape(token)
    return made

"""Git's configuration files: their settings as git reads them, and which of them a person has to trust. Pure.

A setting that is not known to be harmless is a claim, as it is for the judge of commands (letter G): what git would
run, whom it would ask, what it would include or send elsewhere. A line that git would refuse is a claim of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from callboard.core.permission.git import setting_is_quiet
from callboard.core.trust.claims import Claim

_HEADER = re.compile(r'\[([A-Za-z0-9.-]+)(?:[ \t]+"((?:[^"\\\n]|\\.)*)")?\]')
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]*")
_ESCAPES = {"n": "\n", "t": "\t", "b": "\b"}


@dataclass(frozen=True, slots=True)
class Setting:
    """A line of a configuration. `name`: `section.subsection.key`, section and key in lower case; empty: unreadable."""

    name: str
    value: str
    line: int

    @property
    def includes(self) -> bool:
        """It names another file of configuration."""
        return self.name == "include.path" or (self.name.startswith("includeif.") and self.name.endswith(".path"))


def git_settings(text: str) -> list[Setting]:
    """The settings of a configuration file in their order. Raises nothing: what cannot be read is a nameless one."""
    found: list[Setting] = []
    section = ""
    for line, words in _logical_lines(text):
        rest = words
        while (header := _HEADER.match(rest)) is not None:
            inner = re.sub(r"\\(.)", r"\1", header[2]) if header[2] is not None else None
            section = header[1].lower() + (f".{inner}" if inner is not None else "")
            rest = rest[header.end() :].lstrip()
        if not rest or rest[0] in "#;":
            continue
        key = _NAME.match(rest)
        after = rest[key.end() :].lstrip() if key else ""
        if key is None or not section or (after and after[0] not in "=#;"):
            found.append(Setting("", words, line))
            continue
        value = _value(after[1:]) if after.startswith("=") else "true"
        found.append(Setting(f"{section}.{key[0].lower()}", value, line))
    return found


def git_claims(path: str, settings: list[Setting]) -> list[Claim]:
    """The settings that a person has to trust before git may be taken to run nothing."""
    return [
        Claim(path, "git", f"{one.name} = {one.value}" if one.name else one.value, one.line) for one in loud(settings)
    ]


def loud(settings: list[Setting]) -> Iterator[Setting]:
    """Those that are not known to be harmless. An alias of another git command is: it does not run by itself."""
    for one in settings:
        alias = one.name.startswith("alias.") and not one.value.lstrip().startswith("!")
        if not alias and not setting_is_quiet(one.name):
            yield one


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines without the blanks round them, those that a backslash continues joined; in a comment none does."""
    kept, begun = "", 0
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        begun = begun or number
        if _continues(kept + line):
            kept += line[:-1]
            continue
        yield begun, (kept + line).strip()
        kept, begun = "", 0
    if kept:
        yield begun, kept.strip()


def _continues(line: str) -> bool:
    """Whether it ends with a backslash that neither a comment nor another backslash takes its meaning from."""
    quoted = escaped = False
    for one in line:
        if escaped:
            escaped = False
        elif one == "\\":
            escaped = True
        elif one == '"':
            quoted = not quoted
        elif one in "#;" and not quoted:
            return False
    return escaped


def _value(text: str) -> str:
    """As git reads it: comments cut, quotes taken away, escapes resolved."""
    out, quoted, position, text = "", False, 0, text.strip()
    while position < len(text):
        one = text[position]
        if one == "\\" and position + 1 < len(text):
            position += 1
            out += _ESCAPES.get(text[position], text[position])
        elif one == '"':
            quoted = not quoted
        elif one in "#;" and not quoted:
            return out.rstrip()
        else:
            out += one
        position += 1
    return out

"""The few git settings that the runtime accepts from the user's files and from a repository's own.

The runtime's git never reads a repository's configuration (`folders.py`). The necessary settings are read here, by a
separate parser, and only the names below pass, each with a value of a known form. None of them names a program, a
protocol or a file to read, except the user's own ignore file. All other settings have no effect.

The URLs of a repository's remotes are also read here, from its settings and the user's, without running git.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from callboard.adapters.system.regular_files import read_regular
from callboard.types.late_pattern import late_pattern

MOST_BYTES = 1_000_000
"""Most bytes of one configuration file."""
MOST_INCLUDES = 20
"""Most files that the user's configuration may include."""

Setting = tuple[str, str]
"""Name and value. Section and key are in lower case, a subsection is unchanged."""

_SWITCH = late_pattern(r"true|false|yes|no|on|off|1|0", re.IGNORECASE)
_TEXT = late_pattern(r"[^\x00-\x1f\x7f]{0,300}")
_REPOSITORY: Mapping[str, re.Pattern[str]] = {
    **dict.fromkeys(
        (
            *("core.filemode", "core.ignorecase", "core.precomposeunicode", "core.symlinks", "core.trustctime"),
            *("core.sparsecheckout", "core.sparsecheckoutcone"),
        ),
        _SWITCH,
    ),
    "core.autocrlf": late_pattern(_SWITCH.pattern + "|input", re.IGNORECASE),
    "core.safecrlf": late_pattern(_SWITCH.pattern + "|warn", re.IGNORECASE),
    "core.eol": late_pattern("lf|crlf|native", re.IGNORECASE),
    "core.checkstat": late_pattern("default|minimal", re.IGNORECASE),
    "merge.conflictstyle": late_pattern("merge|diff3|zdiff3"),
    "user.name": _TEXT,
    "user.email": _TEXT,
}
_PERSON: Mapping[str, re.Pattern[str]] = {**_REPOSITORY, "core.excludesfile": _TEXT}
_FORMATS: Mapping[str, re.Pattern[str]] = {
    "extensions.objectformat": late_pattern("sha1|sha256"),
    "extensions.refstorage": late_pattern("files|reftable"),
}
"""Formats of a repository's store. With a wrong value, git refuses the repository."""
_HEADER = late_pattern(r'\[\s*([A-Za-z0-9.-]+)(?:\s+"((?:[^"\\\n]|\\.)*)")?\s*\]')
_KEY = late_pattern(r"([A-Za-z][A-Za-z0-9-]*)[ \t]*(=?)")
_ESCAPED = late_pattern(r"\\(.)")
_ESCAPES = {"n": "\n", "t": "\t", "b": "\b"}


def parse(text: str) -> Iterator[Setting]:
    """Yield the settings of a git configuration file in order. Invalid lines are skipped."""
    section = ""
    at = 0
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    while at < len(text):
        if header := _HEADER.match(text, at):
            name = header[1].lower()
            sub = header[2]
            section = name if sub is None else name + "." + _ESCAPED.sub(r"\1", sub)
            at = header.end()
        elif section and (key := _KEY.match(text, at)):
            value, at = _value(text, key.end()) if key[2] else ("true", _line_end(text, key.end()))
            yield f"{section}.{key[1].lower()}", value
        elif text[at] in " \t\n":
            at += 1
        else:
            at = _line_end(text, at)


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end + 1


def _value(text: str, at: int) -> tuple[str, int]:
    """Return the value that begins at this position, and the end of its line."""
    # solid: up to this index trailing blanks belong to the value
    value = ""
    quoted = False
    solid = 0
    while at < len(text) and text[at] != "\n":
        char = text[at]
        at += 1
        if char == "\\":
            escaped = text[at : at + 1]
            at += 1
            value += "" if escaped == "\n" else _ESCAPES.get(escaped, escaped)
            solid = len(value)
        elif char == '"':
            quoted = not quoted
            solid = len(value)
        elif char in "#;" and not quoted:
            return value[: max(solid, len(value.rstrip()))], _line_end(text, at)
        elif quoted or value or not char.isspace():  # blanks before the value do not belong to it
            value += char
            solid = len(value) if quoted else solid
    return value[: max(solid, len(value.rstrip()))], at + 1


def read_settings(file: Path) -> tuple[Setting, ...]:
    """Return every setting of a file; empty if it is missing, not a regular file, or too large."""
    try:
        return tuple(parse(read_regular(file, MOST_BYTES).decode(errors="replace")))
    except OSError:
        return ()


def repository_settings(common: Path, own: Path) -> dict[str, str]:
    """Return the accepted settings of a repository.

    `common`: git's folder of the repository, `own`: that of the working tree.
    """
    settings = read_settings(common / "config")
    if _last(settings, "extensions.worktreeconfig").lower() == "true":
        settings += read_settings(own / "config.worktree")
    return _allowed(settings, _REPOSITORY)


def store_format(common: Path) -> dict[str, str]:
    """Return the format of the repository's objects and references if it is not the default."""
    return _allowed(read_settings(common / "config"), _FORMATS)


def upstream_settings(common: Path, branch: str) -> list[Setting]:
    """Return the settings that name the remote branch with which a branch is compared.

    They are only names: nothing is ever fetched.
    """
    settings = read_settings(common / "config")
    remote = _last(settings, f"branch.{branch}.remote")
    merge = _last(settings, f"branch.{branch}.merge")
    if not (remote and merge and re.fullmatch(r"[\w./-]{1,200}", remote) and _TEXT.fullmatch(merge)):
        return []
    fetched = [(name, value) for name, value in settings if name == f"remote.{remote}.fetch" and _TEXT.fullmatch(value)]
    return [(f"branch.{branch}.remote", remote), (f"branch.{branch}.merge", merge), *fetched[:20]]


def person_settings(environment: Mapping[str, str], own: Path) -> dict[str, str]:
    """Return the user's accepted settings for a repository; `own` is git's folder of its working tree."""
    home = Path(environment.get("HOME") or "/nonexistent")
    config = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    settings: list[Setting] = []
    for file in (config / "git" / "config", home / ".gitconfig"):
        settings += _with_includes(file, home, own, budget=[MOST_INCLUDES])
    return _allowed(tuple(settings), _PERSON)


def _with_includes(file: Path, home: Path, own: Path, budget: list[int]) -> Iterator[Setting]:
    """Yield the settings of one of the user's files, with the files that it includes in their places."""
    for name, value in read_settings(file):
        condition = name.removeprefix("includeif.").removesuffix(".path")
        includes = name == "include.path" or (
            name.startswith("includeif.") and name.endswith(".path") and _applies(condition, file, home, own)
        )
        # Files may include each other in a circle.
        if includes and budget[0] > 0:
            budget[0] -= 1
            yield from _with_includes(_place(value, file, home), home, own, budget)
        yield name, value


def _place(text: str, file: Path, home: Path) -> Path:
    return home / text[2:] if text.startswith("~/") else file.parent / text


def _applies(condition: str, file: Path, home: Path, own: Path) -> bool:
    """Return True if a `gitdir:PATTERN` condition matches the repository. Other kinds never match."""
    kind, _, pattern = condition.partition(":")
    if kind not in ("gitdir", "gitdir/i") or not pattern:
        return False
    if pattern.startswith(("~/", "./")):
        pattern = str(_place(pattern, file, home)) + ("/" if pattern.endswith("/") else "")
    elif not pattern.startswith("/"):
        pattern = f"**/{pattern}"
    pattern += "**" if pattern.endswith("/") else ""
    paths = {str(own), os.path.realpath(own)}
    fold = str.lower if kind == "gitdir/i" else str
    return any(fnmatchcase(fold(path), fold(pattern.replace("**", "*"))) for path in paths)


def _allowed(settings: tuple[Setting, ...], names: Mapping[str, re.Pattern[str]]) -> dict[str, str]:
    return {name: value for name, value in settings if name in names and names[name].fullmatch(value)}


def _last(settings: tuple[Setting, ...], name: str) -> str:
    return next((value for each, value in reversed(settings) if each == name), "")


_SECTION = late_pattern(r'\[\s*([\w.-]+)(?:\s+"((?:[^"\\]|\\.)*)")?\s*\]')
_LARGEST = 1 << 18


def remotes_of(folder: Path, git: Path | None, home: Path) -> Mapping[str, tuple[str, ...]]:
    """Return the URLs of each remote of the repository in a folder, in the form that git would use.

    Empty without remotes. `git`: the repository's own folder if it is elsewhere, for a worktree.
    """
    own = git or folder / ".git"
    common = own.parents[1] if own.parent.name == "worktrees" else own
    entries = [
        *_entries(home / ".gitconfig"),
        *_entries(home / ".config" / "git" / "config"),
        *_entries(common / "config"),
    ]
    longest_first = sorted(
        ((value, base) for section, base, key, value in entries if section == "url" and key in _REPLACING),
        key=lambda pair: -len(pair[0]),
    )
    remotes: dict[str, tuple[str, ...]] = {}
    for section, name, key, value in entries:
        if section == "remote" and key in ("url", "pushurl"):
            base = next(((prefix, base) for prefix, base in longest_first if value.startswith(prefix)), None)
            url = value if base is None else base[1] + value.removeprefix(base[0])
            remotes[name] = (*remotes.get(name, ()), url)
    return remotes


_REPLACING = ("insteadof", "pushinsteadof")


def _entries(path: Path) -> list[tuple[str, str, str, str]]:
    """Return each (section, subsection, key, value) of a settings file; unreadable parts are left out."""
    try:
        if not path.is_file():
            return []
        with path.open("rb") as file:
            text = file.read(_LARGEST).decode(errors="replace")
    except OSError:
        return []
    entries: list[tuple[str, str, str, str]] = []
    section = ""
    name = ""
    for line in text.splitlines():
        line = line.strip()
        if match := _SECTION.match(line):
            section = match[1].lower()
            name = re.sub(r"\\(.)", r"\1", match[2] or "")
            line = line[match.end() :].strip()
        key, equals, value = line.partition("=")
        if equals and not line.startswith(("#", ";")):
            entries.append((section, name, key.strip().lower(), value.strip().strip('"')))
    return entries

"""Git's configuration files: their settings as git reads them, and the settings that a person has to trust. Pure.

A setting that is not known to be harmless is a claim, as for the judge of commands (letter G): programs that git would
run, hosts that it would contact, and files that it would include or send elsewhere. A line that git would refuse is a
separate claim.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from callboard.core.trust.claims import Claim
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass

_HEADER = late_pattern(r'\[([A-Za-z0-9.-]+)(?:[ \t]+"((?:[^"\\\n]|\\.)*)")?\]')
_NAME = late_pattern(r"[A-Za-z][A-Za-z0-9-]*")
_ESCAPES = {"n": "\n", "t": "\t", "b": "\b"}
_QUIET_KEY = late_pattern(
    r"core\.(?:repositoryformatversion|filemode|bare|logallrefupdates|ignorecase|precomposeunicode|symlinks|autocrlf|eol)"
    r"|(?:remote|branch|submodule|user|init|push|pull|merge|rebase|color|advice|gc|fetch)\..*"
    r"|extensions\.(?:noop|objectformat|refstorage)"
)
_LOUD_KEY = late_pattern(
    r"(?:submodule\..*\.update|remote\..*\.(?:uploadpack|receivepack|vcs|proxy|promisor|partialclonefilter)|merge\..*\.driver|gc\..*hook)"
)


@dataclass(frozen=True, slots=True)
class Setting:
    """A line of a configuration. `name`: `section.subsection.key`, section and key in lower case; empty: unreadable."""

    name: str
    value: str
    line: int

    @property
    def includes(self) -> bool:
        """Return True if it names another configuration file."""
        return self.name == "include.path" or (self.name.startswith("includeif.") and self.name.endswith(".path"))


def git_settings(text: str) -> list[Setting]:
    """Return the settings of a configuration file in order.

    Raises nothing: an unreadable line becomes a setting without a name.
    """
    settings: list[Setting] = []
    section = ""
    for line, content in _logical_lines(text):
        remaining = content
        while (header := _HEADER.match(remaining)) is not None:
            inner = re.sub(r"\\(.)", r"\1", header[2]) if header[2] is not None else None
            section = header[1].lower() + (f".{inner}" if inner is not None else "")
            remaining = remaining[header.end() :].lstrip()
        if not remaining or remaining[0] in "#;":
            continue
        key = _NAME.match(remaining)
        after = remaining[key.end() :].lstrip() if key else ""
        if key is None or not section or (after and after[0] not in "=#;"):
            settings.append(Setting("", content, line))
            continue
        value = _value(after[1:]) if after.startswith("=") else "true"
        settings.append(Setting(f"{section}.{key[0].lower()}", value, line))
    return settings


def git_claims(path: str, settings: list[Setting]) -> list[Claim]:
    """Return the settings that a person has to trust before git can be assumed to run nothing."""
    return [
        Claim(path, "git", f"{setting.name} = {setting.value}" if setting.name else setting.value, setting.line)
        for setting in loud(settings)
    ]


def loud(settings: list[Setting]) -> Iterator[Setting]:
    """Yield the settings that are not known to be harmless.

    An alias of another git command is harmless: it does not run by itself.
    """
    for setting in settings:
        alias = setting.name.startswith("alias.") and not setting.value.lstrip().startswith("!")
        if not alias and not setting_is_quiet(setting.name):
            yield setting


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines without surrounding spaces, with lines joined that a backslash continues.

    A backslash in a comment continues nothing.
    """
    joined = ""
    begun = 0
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        begun = begun or number
        if _continues(joined + line):
            joined += line[:-1]
            continue
        yield begun, (joined + line).strip()
        joined = ""
        begun = 0
    if joined:
        yield begun, joined.strip()


def _continues(line: str) -> bool:
    """Return True if the line ends with a backslash that is neither in a comment nor escaped by another backslash."""
    quoted = escaped = False
    for character in line:
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif character == '"':
            quoted = not quoted
        elif character in "#;" and not quoted:
            return False
    return escaped


def _value(text: str) -> str:
    """Return the value as git reads it: comments cut, quotes removed, escapes resolved."""
    out = ""
    quoted = False
    position = 0
    text = text.strip()
    while position < len(text):
        character = text[position]
        if character == "\\" and position + 1 < len(text):
            position += 1
            out += _ESCAPES.get(text[position], text[position])
        elif character == '"':
            quoted = not quoted
        elif character in "#;" and not quoted:
            return out.rstrip()
        else:
            out += character
        position += 1
    return out


def config_is_quiet(text: str) -> bool:
    """Return True if a repository's configuration file does not make git run, include or redirect anything."""
    section = ""
    for line in text.splitlines():
        line = line.strip()
        if not line or line[0] in "#;":
            continue
        if line.endswith("\\"):
            return False
        header = re.fullmatch(r'\[([A-Za-z0-9.-]+)(?:\s+"([^"\\]*)")?\]', line)
        if header:
            section = header[1].lower() + (f".{header[2]}" if header[2] is not None else "")
            continue
        key = re.match(r"([A-Za-z][A-Za-z0-9-]*)\s*(?:=|$)", line)
        name = f"{section}.{key[1].lower()}" if key and section else ""
        if not setting_is_quiet(name):
            return False
    return True


def setting_is_quiet(name: str) -> bool:
    """Return True if a setting of this name does not make git run, include or redirect anything.

    The name is section and key in lower case.
    """
    return bool(_QUIET_KEY.fullmatch(name)) and not _LOUD_KEY.fullmatch(name)

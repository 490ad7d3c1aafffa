"""Matching of shell patterns (globs) as bash could do it, under any locale and options. Pure.

Every answer is a superset: a name that bash could match is matched here. A bracket expression that depends on the
locale (`[[:lower:]]`, `[[=e=]]`, `[^a]`) or is unusual matches anything. A pattern is text in which a backslash makes
the next character literal; quoted characters of a word are escaped in this way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from callboard.types.late_pattern import late_pattern

_ANY = "[^/]*"
_ONE = "[^/]"
_IN_SET = late_pattern(r"[A-Za-z]-[A-Za-z]|[0-9]-[0-9]|\\[^A-Za-z0-9]|[A-Za-z0-9_.,@%+~=:]", re.DOTALL)
_PLAIN_SET = late_pattern(rf"\[([!^]?)((?:{_IN_SET.pattern})+)\]", re.DOTALL)
_DOTTED_SECRETS = (
    *(".env", ".env.local", ".env.production", ".env.prod", ".env.dev", ".envrc", ".netrc", ".npmrc", ".pypirc"),
    *(".pgpass", ".htpasswd", ".git-credentials", ".dockercfg", ".ssh", ".aws", ".gnupg", ".kube", ".docker"),
)
_NAMED_SECRETS = (
    *("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "credentials", "credentials.json", "secret.yaml", "secrets.yaml"),
    *("secrets.yml", "secrets.json", "secrets.toml", "secrets.txt", "service-account.json", "service_account.json"),
)
_SECRET_ENDINGS = ("pem", "key", "p12", "pfx", "jks", "keystore", "kdbx", "asc", "gpg", "ppk", "tfstate")
_FEWEST_LETTERS = 3
"""Minimum literal letters of a name in a pattern for the pattern to count as meant for that name."""


def escape(text: str) -> str:
    """Return the pattern that matches exactly `text`."""
    return re.sub(r"([^A-Za-z0-9/_.,@%+-])", r"\\\1", text)


def unescape(pattern: str) -> str:
    """Return the text that bash uses if a pattern matches nothing."""
    return re.sub(r"\\(.)", r"\1", pattern, flags=re.DOTALL)


def is_pattern(segment: str) -> bool:
    """Return True if a path component can match anything but itself."""
    return any(kind != "literal" for kind, _ in _tokens(segment))


def matcher(segment: str, *, dots: bool = True) -> re.Pattern[str]:
    """Return a regular expression for one path component.

    `dots`: a leading dot must be matched by a dot, as in bash; git patterns have no such rule.
    """
    tokens = list(_tokens(segment))
    hidden = "" if not dots or (tokens and tokens[0][0] in ("literal", "set")) else r"(?!\.)"
    body = "".join(re.escape(value) if kind == "literal" else value for kind, value in tokens)
    return re.compile(hidden + body, re.DOTALL | re.IGNORECASE)


def means_secret(segment: str, *, dots: bool = True) -> bool:
    """Return True if a pattern spells out enough of a secret's name to be meant for it.

    The file need not exist.
    """
    match = matcher(segment, dots=dots).fullmatch
    dotted = segment.startswith((".", "\\.", "["))
    if (dotted or (not dots and _letters(segment) >= _FEWEST_LETTERS)) and any(map(match, _DOTTED_SECRETS)):
        return True
    stem, dot, ending = segment.rpartition(".")
    if dot and _letters(ending) >= _FEWEST_LETTERS - 1 and any(map(matcher(ending).fullmatch, _SECRET_ENDINGS)):
        return True
    return _letters(stem if dot else segment) >= _FEWEST_LETTERS and any(map(match, _NAMED_SECRETS))


def _letters(segment: str) -> int:
    return sum(kind == "literal" and value != "." for kind, value in _tokens(segment))


def _tokens(segment: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(segment):
        char = segment[at]
        if char == "\\" and at + 1 < len(segment):
            yield "literal", segment[at + 1]
            at += 2
        elif match := _PLAIN_SET.match(segment, at):
            yield "set", _set(match[1], match[2])
            at = match.end()
        elif char == "[" and "]" in segment[at + 2 :]:
            yield "set", _ANY  # the end and the content depend on the locale and on the version
            at = segment.rindex("]") + 1
        else:
            yield {"*": ("any", _ANY), "?": ("any", _ONE)}.get(char, ("literal", char))
            at += 1


def _set(negation: str, body: str) -> str:
    """Return a plain bracket expression as a regular expression that matches at least the same characters."""
    out = ""
    for piece in _IN_SET.findall(body):
        if len(piece) == len("a-z"):
            if piece[0] > piece[2] or piece[0].islower() != piece[2].islower():
                return _ONE
            out += piece
        else:
            out += re.escape(piece[-1])
    return _ONE if negation else f"[{out}]"

"""Detection of text that must never be stored: keys, tokens, private keys, passwords. Pure.

Known forms are found by their prefix; others by an indicative name next to a value that looks random; the rest only by
being long and random. A digest, a uuid, a path, a word of a language and a placeholder are not secrets. Doubtful text
is refused. The refusal names the line, so that its author can write it differently.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from callboard.core.keys import UUID_PATTERN
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Secret:
    """A detected secret. The text itself is not repeated."""

    line: int
    """Line number from 1."""
    what: str


_FORMS: tuple[tuple[str, str], ...] = (
    ("a private key", r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----"),
    ("an Anthropic key", r"\bsk-ant-[A-Za-z0-9_-]{16,}"),
    ("an API key", r"\b[rs]k-(?:proj-|live-|test-|or-v1-)?[A-Za-z0-9_-]{20,}"),
    ("a Stripe key", r"\b[rsp]k_(?:live|test)_[A-Za-z0-9]{16,}"),
    ("an AWS access key", r"\b(?:AKIA|ASIA|AGPA|AIDA|AROA)[A-Z0-9]{16}\b"),
    ("a GitHub token", r"\bgh[pousr]_[A-Za-z0-9]{30,}|\bgithub_pat_[A-Za-z0-9_]{40,}"),
    ("a GitLab token", r"\bgl(?:pat|dt|rt|ptt|cbt|oas)-[A-Za-z0-9_-]{18,}"),
    ("a Slack token", r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}|\bxapp-\d-[A-Za-z0-9-]{10,}"),
    ("a Slack webhook", r"hooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9/_-]{20,}"),
    ("a Google key", r"\bAIza[A-Za-z0-9_-]{35}|\bya29\.[A-Za-z0-9_-]{20,}|\bGOCSPX-[A-Za-z0-9_-]{20,}"),
    ("an npm token", r"\bnpm_[A-Za-z0-9]{30,}"),
    ("a PyPI token", r"\bpypi-[A-Za-z0-9_-]{30,}"),
    ("a Hugging Face token", r"\bhf_[A-Za-z0-9]{30,}"),
    ("a SendGrid key", r"\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"),
    ("a DigitalOcean token", r"\bdo[opr]_v1_[a-f0-9]{40,}"),
    ("a Telegram token", r"\b\d{8,10}:AA[A-Za-z0-9_-]{32,}"),
    ("a JSON web token", r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"),
    ("an age key", r"\bAGE-SECRET-KEY-1[A-Z0-9]{40,}"),
)
_KNOWN = tuple((label, late_pattern(form)) for label, form in _FORMS)
_URL = late_pattern(r"\b[a-z][a-z0-9+.-]{1,20}://[^\s/:@'\"<>]{0,200}:(?P<value>[^\s/@'\"<>]{1,200})@", re.IGNORECASE)
_QUERY = late_pattern(
    r"[?&](?:access_?token|api_?key|key|token|sig|signature|secret|password|auth)=(?P<value>[^\s&#'\"<>]{8,})",
    re.IGNORECASE,
)
_BEARER = late_pattern(
    r"\b(?:authorization\s*[:=]\s*['\"]?\s*)?(?:bearer|basic)\s+(?P<value>[A-Za-z0-9._~+/=-]{16,})", re.IGNORECASE
)
_NAMED = late_pattern(
    r"(?P<name>(?:passw(?:or)?d|passwd|passphrase|pwd|secret|api[_-]?key|access[_-]?key|auth[_-]?key"
    r"|private[_-]?key|token|credential)s?[A-Za-z0-9_.-]{0,20})['\"`]?\s*(?:=>|:=|==?|:|\bis\b)\s*"
    r"(?P<quote>['\"`]?)(?P<value>[^\s'\"`,;]{4,200})",
    re.IGNORECASE,
)
_RUN = late_pattern(r"[A-Za-z0-9+/_=-]{24,}")
_HEX = late_pattern(r"(?:0x)?[0-9a-fA-F]+")
_PLACEHOLDER = late_pattern(
    r"[$%<{\[(].*|x{3,}.*|\*{2,}.*|\.{3}.*|….*|(?:os|process|self|config|settings|secrets|vars|env)\..*"
    r"|(?:(?:your|my|the|a|an|some|this|example|sample|dummy|fake|test|placeholder|change|me|redacted|hidden|none"
    r"|null|nil|undefined|true|false|required|optional|string|str|secret|password|passwd|token|key|api|access|value|here"
    r"|todo|not|never|empty|env|stored|kept|in|on|set|is|from|file|vault|keychain|user|pass|admin|root|bar|foo|hash|field"
    r"|expired?|rotated?|invalid|missing|wrong|length|count|limit|budget|size|type|name)[-_. ]?)+\d{0,3}[>}\])]*",
    re.IGNORECASE | re.DOTALL,
)
"""Matches a whole value that is a placeholder for a secret."""
_SURE = frozenset({"passw", "pwd", "passphrase"})
_MOST_LINE = 20_000
"""Maximum characters of a line that is examined as a whole; a longer line is examined in pieces."""
_DRAWN = 3.6
"""Bits per character: random base64 of 24 characters has about 4.2, names and words under 3.5."""


def secrets_in(text: str) -> tuple[Secret, ...]:
    """Return the secrets of a text, one for each line that contains any."""
    labels: dict[int, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        pieces = (line[at : at + _MOST_LINE + 200] for at in range(0, max(1, len(line)), _MOST_LINE))
        first_label = next((label for piece in pieces for label in _in_line(piece)), "")
        if first_label:
            labels[number] = first_label
    return tuple(Secret(number, label) for number, label in labels.items())


def refusal(text: str) -> str:
    """Return the reason why a text is not stored, for its author; empty if it contains no secret."""
    secrets = secrets_in(text)
    if not secrets:
        return ""
    lines = ", ".join(f"line {secret.line}: {secret.what}" for secret in secrets[:5])
    return (
        f"not kept, since it looks like a secret ({lines}). Secrets are never stored: write where it is kept instead "
        "(the name of a variable, of an entry in a password manager), or leave the value out"
    )


def without_secrets(text: str) -> str:
    """Return the text with a mark in place of each line that contains a secret.

    Used for text that the runtime stores by itself.
    """
    secret_lines = {secret.line for secret in secrets_in(text)}
    lines = enumerate(text.splitlines(), 1)
    return "\n".join("(left out: it looks like a secret)" if at in secret_lines else line for at, line in lines)


def _in_line(line: str) -> Iterator[str]:
    for label, form in _KNOWN:
        if form.search(line):
            yield label
    if any(not _stands_for(match["value"]) for match in _URL.finditer(line)):
        yield "a password in a URL"
    if any(_drawn(match["value"], 12) for match in _QUERY.finditer(line)):
        yield "a token in a URL"
    if any(_drawn(match["value"], 16) for match in _BEARER.finditer(line)):
        yield "a bearer token"
    if any(_is_named_secret(match) for match in _NAMED.finditer(line)):
        yield "a password or key beside its name"
    if any(_random(match[0]) for match in _RUN.finditer(line)):
        yield "a long value that looks drawn at random"


def _is_named_secret(match: re.Match[str]) -> bool:
    """Return True if a value next to an indicative name is a secret: a password may be short, a key looks random."""
    value = match["value"].rstrip(".,;:!?)]}")
    if _stands_for(value) or (value.isalpha() and not match["quote"]):
        return False
    sure = any(word in match["name"].casefold() for word in _SURE)
    if value.startswith(("/", "~", "./", "http")) or (_is_name(value) and (not sure or "." in value or "/" in value)):
        return False
    mixed = any(c.isdigit() for c in value) or any(not c.isalnum() for c in value)
    if sure:
        return len(value) >= 4 and (mixed or bool(match["quote"]))
    return len(value) >= 12 and mixed and _drawn(value, 12)


def _random(run: str) -> bool:
    """Return True for a run of letters and digits that is not a word, path, digest or uuid."""
    if _HEX.fullmatch(run) or UUID_PATTERN.fullmatch(run):
        return False  # a digest or a commit; a hexadecimal key is found by the name next to it
    parts = [part for part in re.split(r"[/_=+-]+", run) if part]
    longest = max(parts, key=len, default="")
    if len(longest) < 20 and not ("+" in run or run.endswith("=")):
        return False  # joined words: a path, a name
    kinds = sum((any(c.isupper() for c in run), any(c.islower() for c in run), any(c.isdigit() for c in run)))
    return kinds == 3 and _entropy(run) >= _DRAWN and _switches(run) >= len(run) // 4


def _drawn(value: str, least: int) -> bool:
    """Return True if a value looks random: long enough, of several kinds of characters, none too frequent."""
    if len(value) < least or _stands_for(value) or _is_name(value):
        return False
    if _HEX.fullmatch(value):
        return len(value) >= 20 and any(c.isdigit() for c in value)
    digits = any(c.isdigit() for c in value)
    return digits and any(c.isalpha() for c in value) and _entropy(value) >= 2.8


def _stands_for(value: str) -> bool:
    """Return True for a placeholder in place of a secret."""
    return bool(_PLACEHOLDER.fullmatch(value)) or len(set(value)) <= 2


def _is_name(value: str) -> bool:
    """Return True for words joined by dots, underscores or hyphens, such as names of variables and keys."""
    parts = re.split(r"[._/-]", value.strip("()[]"))
    return len(parts) > 1 and all(re.fullmatch(r"[A-Za-z]*\d{0,3}", part) for part in parts)


def _entropy(text: str) -> float:
    counts = Counter(text)
    return -sum(n / len(text) * math.log2(n / len(text)) for n in counts.values())


def _switches(text: str) -> int:
    """Return the number of changes between kinds of characters, which is high for random text."""
    kinds = [0 if c.islower() else 1 if c.isupper() else 2 if c.isdigit() else 3 for c in text]
    return sum(a != b for a, b in pairwise(kinds))

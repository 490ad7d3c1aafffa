"""Whether a text holds what must never be kept: keys, tokens, private keys, passwords. Pure.

Known forms are found by their beginning; others by a name that says so beside a value that looks drawn at random; the
rest by being long and drawn at random alone. A digest, a uuid, a path, a word of a language and a placeholder are no
secrets. It errs towards refusing: what is refused is told with its line, and can be written otherwise.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Secret:
    """One that was found. The text itself is not repeated."""

    line: int
    """From 1."""
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
_KNOWN = tuple((what, re.compile(form)) for what, form in _FORMS)
_URL = re.compile(r"\b[a-z][a-z0-9+.-]{1,20}://[^\s/:@'\"<>]{0,200}:(?P<value>[^\s/@'\"<>]{1,200})@", re.IGNORECASE)
_QUERY = re.compile(
    r"[?&](?:access_?token|api_?key|key|token|sig|signature|secret|password|auth)=(?P<value>[^\s&#'\"<>]{8,})",
    re.IGNORECASE,
)
_BEARER = re.compile(
    r"\b(?:authorization\s*[:=]\s*['\"]?\s*)?(?:bearer|basic)\s+(?P<value>[A-Za-z0-9._~+/=-]{16,})", re.IGNORECASE
)
_NAMED = re.compile(
    r"(?P<name>(?:passw(?:or)?d|passwd|passphrase|pwd|secret|api[_-]?key|access[_-]?key|auth[_-]?key"
    r"|private[_-]?key|token|credential)s?[A-Za-z0-9_.-]{0,20})['\"`]?\s*(?:=>|:=|==?|:|\bis\b)\s*"
    r"(?P<quote>['\"`]?)(?P<value>[^\s'\"`,;]{4,200})",
    re.IGNORECASE,
)
_RUN = re.compile(r"[A-Za-z0-9+/_=-]{24,}")
_HEX = re.compile(r"(?:0x)?[0-9a-fA-F]+")
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_PLACEHOLDER = re.compile(
    r"[$%<{\[(].*|x{3,}.*|\*{2,}.*|\.{3}.*|….*|(?:os|process|self|config|settings|secrets|vars|env)\..*"
    r"|(?:(?:your|my|the|a|an|some|this|example|sample|dummy|fake|test|placeholder|change|me|redacted|hidden|none"
    r"|null|nil|undefined|true|false|required|optional|string|str|secret|password|passwd|token|key|api|access|value|here"
    r"|todo|not|never|empty|env|stored|kept|in|on|set|is|from|file|vault|keychain|user|pass|admin|root|bar|foo|hash|field"
    r"|expired?|rotated?|invalid|missing|wrong|length|count|limit|budget|size|type|name)[-_. ]?)+\d{0,3}[>}\])]*",
    re.IGNORECASE | re.DOTALL,
)
"""Fits a whole value that stands where a secret would."""
_SURE = frozenset({"passw", "pwd", "passphrase"})
_MOST_LINE = 20_000
"""Characters of a line that are looked at whole; a longer one is looked at in pieces."""
_DRAWN = 3.6
"""Bits a character: random base64 of 24 characters has about 4.2, names and words under 3.5."""


def secrets_in(text: str) -> tuple[Secret, ...]:
    """The secrets of a text, one for each line that holds any."""
    found: dict[int, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        pieces = (line[at : at + _MOST_LINE + 200] for at in range(0, max(1, len(line)), _MOST_LINE))
        what = next((what for piece in pieces for what in _in_line(piece)), "")
        if what:
            found[number] = what
    return tuple(Secret(number, what) for number, what in found.items())


def refusal(text: str) -> str:
    """Why a text is not kept, for who wrote it; empty for one that holds no secret."""
    found = secrets_in(text)
    if not found:
        return ""
    lines = ", ".join(f"line {one.line}: {one.what}" for one in found[:5])
    return (
        f"not kept, since it looks like a secret ({lines}). Secrets are never stored: write where it is kept instead "
        "(the name of a variable, of an entry in a password manager), or leave the value out"
    )


def without_secrets(text: str) -> str:
    """The text, a mark in place of each line that holds a secret: for what the runtime keeps by itself."""
    found = {one.line for one in secrets_in(text)}
    lines = enumerate(text.splitlines(), 1)
    return "\n".join("(left out: it looks like a secret)" if at in found else line for at, line in lines)


def _in_line(line: str) -> Iterator[str]:
    for what, form in _KNOWN:
        if form.search(line):
            yield what
    if any(not _stands_for(found["value"]) for found in _URL.finditer(line)):
        yield "a password in a URL"
    if any(_drawn(found["value"], 12) for found in _QUERY.finditer(line)):
        yield "a token in a URL"
    if any(_drawn(found["value"], 16) for found in _BEARER.finditer(line)):
        yield "a bearer token"
    if any(_named(found) for found in _NAMED.finditer(line)):
        yield "a password or key beside its name"
    if any(_random(found[0]) for found in _RUN.finditer(line)):
        yield "a long value that looks drawn at random"


def _named(found: re.Match[str]) -> bool:
    """A value beside a name that says what it is: a password may be short, a key is drawn at random."""
    value = found["value"].rstrip(".,;:!?)]}")
    if _stands_for(value) or (value.isalpha() and not found["quote"]):
        return False
    sure = any(word in found["name"].casefold() for word in _SURE)
    if value.startswith(("/", "~", "./", "http")) or (_is_name(value) and (not sure or "." in value or "/" in value)):
        return False
    mixed = any(c.isdigit() for c in value) or any(not c.isalnum() for c in value)
    if sure:
        return len(value) >= 4 and (mixed or bool(found["quote"]))
    return len(value) >= 12 and mixed and _drawn(value, 12)


def _random(run: str) -> bool:
    """A run of letters and digits that is no word, path, digest or uuid."""
    if _HEX.fullmatch(run) or _UUID.fullmatch(run):
        return False  # a digest or a commit; a key in hex stands beside its name
    parts = [part for part in re.split(r"[/_=+-]+", run) if part]
    longest = max(parts, key=len, default="")
    if len(longest) < 20 and not ("+" in run or run.endswith("=")):
        return False  # words put together: a path, a name
    kinds = sum((any(c.isupper() for c in run), any(c.islower() for c in run), any(c.isdigit() for c in run)))
    return kinds == 3 and _entropy(run) >= _DRAWN and _switches(run) >= len(run) // 4


def _drawn(value: str, least: int) -> bool:
    """A value that looks drawn at random: long enough, of several kinds of characters, none too often."""
    if len(value) < least or _stands_for(value) or _is_name(value):
        return False
    if _HEX.fullmatch(value):
        return len(value) >= 20 and any(c.isdigit() for c in value)
    digits = any(c.isdigit() for c in value)
    return digits and any(c.isalpha() for c in value) and _entropy(value) >= 2.8


def _stands_for(value: str) -> bool:
    """A placeholder: it stands where a secret would."""
    return bool(_PLACEHOLDER.fullmatch(value)) or len(set(value)) <= 2


def _is_name(value: str) -> bool:
    """Words joined by dots, underscores or hyphens, as names of variables and keys are."""
    parts = re.split(r"[._/-]", value.strip("()[]"))
    return len(parts) > 1 and all(re.fullmatch(r"[A-Za-z]*\d{0,3}", part) for part in parts)


def _entropy(text: str) -> float:
    counts = Counter(text)
    return -sum(n / len(text) * math.log2(n / len(text)) for n in counts.values())


def _switches(text: str) -> int:
    """How often the kind of character changes: in what was drawn at random it does all the time."""
    kinds = [0 if c.islower() else 1 if c.isupper() else 2 if c.isdigit() else 3 for c in text]
    return sum(a != b for a, b in pairwise(kinds))

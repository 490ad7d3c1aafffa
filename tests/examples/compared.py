"""Compare a page's output with the printed one, except for differences between runs: ids, times, numbers, widths."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

ALPHABET = "[a-z2-7]"
VARIABLE_PARTS: tuple[tuple[str, str], ...] = (
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|[+-]\d\d:?\d\d)?", "TIME"),
    (r"\b(?:\d{8}-\d{6}-[0-9a-f]{6}|[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})\b", "SESSION"),
    (rf"\b(req|task|cron|env|bash|note|fire|run)_{ALPHABET}+", r"\1_ID"),
    (rf"\b([a-z]+)-{ALPHABET}{{12}}\b", r"\1-ID"),
    # About one in a hundred short commit ids has only digits; an ordinary number never has ten of them.
    (r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,64}\b|\b\d{10}\b", "SHA"),
    (r"\$?\d+(,\d{3})*(\.\d+)?([kM%]|ms|s|min|h)?", "N"),
    (r"[#.]{3,}", "BAR"),
    (r"\s+", " "),
)


def normalized(line: str) -> str:
    """Return the line without the parts that may differ."""
    for pattern, word in VARIABLE_PARTS:
        line = re.sub(pattern, word, line)
    return line.strip()


def _fits(shown: str, printed: str) -> bool:
    pieces = (re.escape(normalized(piece)) for piece in shown.split("…"))
    return re.fullmatch(r"\s*.*?\s*".join(pieces), normalized(printed)) is not None


def _matches(shown: list[str], printed: list[str]) -> bool:
    if not shown:
        return not printed
    if shown[0].strip() == "...":
        return any(_matches(shown[1:], printed[at:]) for at in range(len(printed) + 1))
    return bool(printed) and _fits(shown[0], printed[0]) and _matches(shown[1:], printed[1:])


def difference(shown: str, printed: str, folders: dict[Path, str]) -> str:
    """Return the difference, or an empty string. `folders`: paths of this run, and the pages' names for them."""
    for folder, name in folders.items():
        printed = printed.replace(str(folder), name)
    expected = [line.rstrip() for line in shown.strip("\n").splitlines()]
    actual = [line.rstrip() for line in printed.strip("\n").splitlines()]
    if _matches(expected, actual):
        return ""
    rows = difflib.unified_diff(expected, actual, "the page", "printed", lineterm="", n=99)
    return "\n".join(rows)

"""Replacement of exact pieces of text, with a hint to the nearest match if there is none, and the diff of a change."""

from __future__ import annotations

import re
from difflib import SequenceMatcher, unified_diff

from callboard.core.messaging.envelopes import restore_tags
from callboard.types.errors import ToolRefused

DIFF_SHOWN = 10_000
"""Most characters of a diff that are shown."""
_DIFF_LINES = 4_000
"""Most lines of a changed section that are compared line by line."""
_HINT_LINES = 5_000


def replace_text(content: str, old: str, new: str, *, everywhere: bool, name: str) -> str:
    """Return the content with `old` replaced by `new`.

    Raises `ToolRefused` if `old` is missing or occurs more than once.

    In a file whose lines all end in CR LF, line ends in `old` and `new` are converted to CR LF.
    """
    if not old:
        raise ToolRefused("old_text is empty; to make a file use write_file")
    if old == new:
        raise ToolRefused("old_text and new_text are the same: there is nothing to change")
    if old not in content and _is_crlf(content):
        old, new = _to_crlf(old), _to_crlf(new)
    if (
        old not in content and restore_tags(old) in content
    ):  # copied from the shown text, in which such tags are disarmed
        old, new = restore_tags(old), restore_tags(new)
    count = content.count(old)
    if not count:
        raise ToolRefused(f"old_text was not found in {name}.{_hint(content, old)}")
    if count > 1 and not everywhere:
        lines = ", ".join(str(line) for line in _lines_of(content, old)[:10])
        raise ToolRefused(
            f"old_text occurs {count} times in {name} (lines {lines}). Add surrounding lines until it is unique, "
            "or set replace_all."
        )
    return content.replace(old, new)


def _is_crlf(content: str) -> bool:
    return "\r\n" in content and content.count("\n") == content.count("\r\n")


def _to_crlf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def _lines_of(content: str, old: str) -> list[int]:
    numbers: list[int] = []
    place = content.find(old)
    while place >= 0:
        numbers.append(content.count("\n", 0, place) + 1)
        place = content.find(old, place + len(old))
    return numbers


def _hint(content: str, old: str) -> str:
    """Return a hint at the nearest match.

    The nearest match is the same text with other white space, or the line most similar to the first line.
    """
    parts = old.split()
    if parts and len(parts) < _HINT_LINES:
        loose = re.search(r"\s+".join(map(re.escape, parts)), content)
        if loose:
            line = content.count("\n", 0, loose.start()) + 1
            return f" Line {line} has the same words with other white space: copy it exactly, without line numbers."
    first = next((line.strip() for line in old.splitlines() if line.strip()), "")
    best = 0.6
    where = 0
    lines = content.splitlines()[:_HINT_LINES]
    matcher = SequenceMatcher(None, "", first[:200], autojunk=False)
    for number, line in enumerate(lines, 1):
        matcher.set_seq1(line.strip()[:200])
        if matcher.real_quick_ratio() > best and matcher.quick_ratio() > best and (ratio := matcher.ratio()) > best:
            best = ratio
            where = number
    return f" The nearest is line {where}: {lines[where - 1].strip()[:200]}" if where else " Read the file again."


def describe_change(before: str, after: str, name: str) -> str:
    """Return a unified diff with three lines of context, shortened if it is long.

    Its cost depends on the changed section only.
    """
    old, new, skip = _changed_section(before, after)
    if max(len(old), len(new)) > _DIFF_LINES:
        return f"(lines {skip + 1} to {skip + len(new)} of {name} changed; too many for a diff)"
    text = text_diff(before, after, name)
    if len(text) > DIFF_SHOWN:
        return f"{text[:DIFF_SHOWN]}\n[Output cut: {DIFF_SHOWN} of {len(text)} characters.]"
    return text or "(only line ends changed)"


def text_diff(before: str, after: str, name: str) -> str:
    """Return a unified diff with three lines of context.

    Empty for equal lines, and for a changed section of more than 4,000 lines.
    """
    old, new, skip = _changed_section(before, after)
    if max(len(old), len(new)) > _DIFF_LINES:
        return ""
    return "\n".join(_moved(line, skip) for line in unified_diff(old, new, name, name, lineterm=""))


def _changed_section(before: str, after: str) -> tuple[list[str], list[str], int]:
    """Return the lines from the first to the last changed one, with context, and the number of lines before them."""
    old = before.splitlines()
    new = after.splitlines()
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    skip = max(0, head - 3)
    keep = max(0, tail - 3)
    return old[skip : len(old) - keep], new[skip : len(new) - keep], skip


def _moved(line: str, skipped: int) -> str:
    """Return a hunk's header with the line numbers of the whole file."""
    if not line.startswith("@@ "):
        return line
    return re.sub(r"([-+])(\d+)", lambda match: f"{match[1]}{int(match[2]) + skipped}", line)

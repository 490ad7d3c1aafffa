"""How a text is changed by an edit, and how a change is told: exact replacement, hints when it misses, a short diff.

Functions of texts, no files. Refuses an edit that does not fit exactly, and says where it nearly did.
"""

from __future__ import annotations

import re
from difflib import SequenceMatcher, unified_diff

from callboard.core.bus.mail import rearmed
from callboard.words.errors import ToolRefused

DIFF_SHOWN = 10_000
"""Characters of a diff that are shown."""
_DIFF_LINES = 4_000
"""Changed stretches longer than this are not compared line by line."""
_HINT_LINES = 5_000


def replace_text(content: str, old: str, new: str, *, everywhere: bool, name: str) -> str:
    """The content with `old` replaced by `new`. Raises `ToolRefused` when it is not there, or there more than once.

    In a file whose lines all end in CR LF, line ends of `old` and `new` mean that.
    """
    if not old:
        raise ToolRefused("old_text is empty; to make a file use write_file")
    if old == new:
        raise ToolRefused("old_text and new_text are the same: there is nothing to change")
    if old not in content and _is_crlf(content):
        old, new = _to_crlf(old), _to_crlf(new)
    if old not in content and rearmed(old) in content:  # copied from what was shown, where such tags are defused
        old, new = rearmed(old), rearmed(new)
    count = content.count(old)
    if not count:
        raise ToolRefused(f"old_text was not found in {name}.{_hint(content, old)}")
    if count > 1 and not everywhere:
        lines = ", ".join(str(line) for line in _lines_of(content, old)[:10])
        raise ToolRefused(
            f"old_text stands {count} times in {name} (lines {lines}). Add lines round it until it is the only one, "
            "or set replace_all."
        )
    return content.replace(old, new)


def _is_crlf(content: str) -> bool:
    return "\r\n" in content and content.count("\n") == content.count("\r\n")


def _to_crlf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def _lines_of(content: str, old: str) -> list[int]:
    found: list[int] = []
    place = content.find(old)
    while place >= 0:
        found.append(content.count("\n", 0, place) + 1)
        place = content.find(old, place + len(old))
    return found


def _hint(content: str, old: str) -> str:
    """Where the text nearly stands: the same words with other white space, or the line most like its first one."""
    words = old.split()
    if words and len(words) < _HINT_LINES:
        loose = re.search(r"\s+".join(map(re.escape, words)), content)
        if loose:
            line = content.count("\n", 0, loose.start()) + 1
            return f" Line {line} has the same words with other white space: copy it exactly, without line numbers."
    first = next((line.strip() for line in old.splitlines() if line.strip()), "")
    best, where = 0.6, 0
    lines = content.splitlines()[:_HINT_LINES]
    matcher = SequenceMatcher(None, "", first[:200], autojunk=False)
    for number, line in enumerate(lines, 1):
        matcher.set_seq1(line.strip()[:200])
        if matcher.real_quick_ratio() > best and matcher.quick_ratio() > best and (ratio := matcher.ratio()) > best:
            best, where = ratio, number
    return f" The nearest is line {where}: {lines[where - 1].strip()[:200]}" if where else " Read the file again."


def tell_change(before: str, after: str, name: str) -> str:
    """A unified diff with three lines of context, cut when it is long. Its cost follows the changed stretch."""
    old, new = before.splitlines(), after.splitlines()
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    skip, keep = max(0, head - 3), max(0, tail - 3)
    old, new = old[skip : len(old) - keep], new[skip : len(new) - keep]
    if max(len(old), len(new)) > _DIFF_LINES:
        return f"(lines {skip + 1} to {skip + len(new)} of {name} changed; too many for a diff)"
    lines = [_moved(line, skip) for line in unified_diff(old, new, name, name, lineterm="")]
    text = "\n".join(lines)
    if len(text) > DIFF_SHOWN:
        return f"{text[:DIFF_SHOWN]}\n[Output cut: {DIFF_SHOWN} of {len(text)} characters.]"
    return text or "(only line ends changed)"


def _moved(line: str, skipped: int) -> str:
    """A hunk's header with the line numbers of the whole file."""
    if not line.startswith("@@ "):
        return line
    return re.sub(r"([-+])(\d+)", lambda found: f"{found[1]}{int(found[2]) + skipped}", line)

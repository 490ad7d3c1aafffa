r"""Instruction files and memory notes in a conversation: their texts, which ones it has, and includes. Pure.

Both are injected as data in their own tag: they give no permission, and cannot close their tag. The key of such an
injection has the state and the subject: `<digest> <path or note>`. An instruction file is injected once and stays,
pinned, through every compaction (`view.invariants.pins`); a note is injected again after a compaction has removed it.

An include is `@path` between spaces, outside code spans and fences: `@notes/style.md`, `@./x.md`, `@../x.md`,
`@~/x.md`, `@/x.md`; a space in a path is written `\ `. A name after an `@` may also be a person or a package; the
reader decides by checking for such a file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping

from callboard.types.late_pattern import late_pattern
from callboard.types.messages import Edit, Injection

_DIGEST = 12
"""Hex digits of a sha256 that distinguish two versions of one file."""


def digest_of(text: str) -> str:
    """Return the digest that distinguishes this text from other versions of the same file."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]


def instructions(path: str, digest: str, text: str, reason: str) -> Injection:
    """Return the text of an instruction file, for the next user message. `reason`: why it is injected now."""
    return Injection(
        kind="project-instructions", text=f"{reason}\n\n{text}", source="instructions", key=f"{digest} {path}"
    )


def note(place: str, name: str, digest: str, text: str) -> Injection:
    """Return a memory note, for the next user message."""
    return Injection(kind="memory", text=text, source="memory", key=f"{digest[:_DIGEST]} {place}/{name}")


def instructed_with(files: Mapping[str, str] | None, injection: Injection) -> Mapping[str, str] | None:
    """Return the known files, once this injection is queued."""
    if injection.source != "instructions":
        return files
    return {**(files or {}), injection.subject: injection.key.partition(" ")[0]}


def with_note(noted: frozenset[str], injection: Injection) -> frozenset[str]:
    """Return the notes in the conversation, once this injection is queued."""
    return noted | {injection.key} if injection.source == "memory" else noted


def notes_after_edits(noted: frozenset[str], edits: Iterable[Edit]) -> frozenset[str]:
    """Return the notes that remain in the view after these edits; none if the edits removed messages."""
    return noted if all(edit.block is not None for edit in edits) else frozenset()


MOST = 200
"""Maximum number of includes read from one file."""
_WORD = late_pattern(r"(?<!\S)@((?:\\ |[^\s\\@`])(?:\\ |[^\s\\`])*)")
_FENCE = late_pattern(r" {0,3}(`{3,}|~{3,})(.*)\Z")
_TICKS = late_pattern(r"`+")
_AFTER = ".,;:!?)]}'\"*_"
"""Characters that may follow a path in a sentence and are not part of it."""


def includes_in(text: str) -> tuple[str, ...]:
    """Return the paths, each once, in the order of the text."""
    paths: dict[str, None] = {}
    for part in _prose(text):
        for match in _WORD.finditer(part):
            path = _path(match[1])
            if path and len(paths) < MOST:
                paths[path] = None
    return tuple(paths)


def only_includes(text: str) -> bool:
    """Return True if a file contains nothing but includes."""
    prose = "\n".join(_prose(text, code=True))
    return bool(includes_in(text)) and not _WORD.sub("", prose).strip(" \t\r\n-*")


def _path(word: str) -> str:
    """Return the path of an include; empty if the word cannot be one."""
    path = word.replace("\\ ", " ").rstrip(_AFTER).strip()
    return "" if not path or path.startswith(("#", "@")) or "\0" in path else path


def _prose(text: str, *, code: bool = False) -> Iterator[str]:
    """Yield the text outside fences, with lines joined to paragraphs. Code spans are omitted unless `code` is true."""
    fence = ""
    lines: list[str] = []
    for line in [*text.splitlines(), ""]:
        mark = _FENCE.match(line)
        if fence:
            if mark and mark[1].startswith(fence) and not mark[2].strip():
                fence = ""
            elif code:
                yield line
            continue
        opens = mark is not None and not (mark[1][0] == "`" and "`" in mark[2])
        if opens or not line.strip():
            paragraph = "\n".join(lines)
            yield paragraph if code else _without_spans(paragraph)
            lines = []
        if opens and mark is not None:
            fence = mark[1]
            if code:
                yield "```"
        elif line.strip():
            lines.append(line)
    yield "\n".join(lines) if code else _without_spans("\n".join(lines))


def _without_spans(text: str) -> str:
    """Return the text with a space in place of each code span.

    A run of backticks is closed by the next run of the same length.
    """
    runs = [(match.start(), match.end()) for match in _TICKS.finditer(text)]
    later: dict[int, list[int]] = {}
    for number in range(len(runs) - 1, -1, -1):
        later.setdefault(runs[number][1] - runs[number][0], []).append(number)
    parts: list[str] = []
    at = number = 0
    while number < len(runs):
        start, end = runs[number]
        same = later[end - start]
        while same and same[-1] <= number:
            same.pop()
        if not same:
            number += 1
            continue
        parts += [text[at:start], " ` "]
        number = same.pop()
        at = runs[number][1]
        number += 1
    return "".join([*parts, text[at:]])

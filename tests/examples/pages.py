"""The fenced blocks of the pages, each with its kind: a language, and a file's place in the page's folder."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "runtime" / "callboard"
GENERATED = ("cli.md", "records.md")
"""Pages that a program writes; other tests compare them with its output."""
LANGUAGES = ("console", "ini", "json", "jsonl", "markdown", "python", "sh", "text", "toml", "yaml")
TOP = ("README", "CONTRIBUTING")
"""Pages beside the docs folder."""
DIAGRAM = "mermaid"
"""The language of diagrams: nothing is run, and each file in them must exist in the package."""
FILE_NAME = re.compile(r"[\w/]+\.py\b")
PLACED = ("ini", "json", "markdown", "toml", "yaml")
"""Languages whose blocks are files, so each block gives its path."""
FENCE = re.compile(r"^( *)(`{3,}|~{3,})(.*)$")
ITEM = re.compile(r"^ *(?:[-*+]|\d+[.)]) ")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block."""

    page: str
    """`README`, `CONTRIBUTING`, or the name of a page of docs without its suffix."""
    line: int
    """The line of its fence, from 1."""
    language: str
    info: str
    """Text after the language: the path of a file, or a keyword of the language."""
    text: str

    def __str__(self) -> str:
        folder = "" if self.page in TOP else "docs/"
        return f"{folder}{'README' if self.page == 'docs' else self.page}.md:{self.line}"


def pages() -> dict[str, Path]:
    """Return all pages with examples, by name."""
    docs = {page.stem: page for page in sorted((ROOT / "docs").glob("*.md")) if page.name not in GENERATED}
    return {**{name: ROOT / f"{name}.md" for name in TOP}, "docs": docs.pop("README"), **docs}


def blocks_of(page: str, text: str) -> tuple[list[Block], list[str]]:
    """Return the blocks of a page, and the errors in their fences, one per line."""
    blocks: list[Block] = []
    wrong: list[str] = []
    lines = text.splitlines()
    at, listed = 0, False
    while at < len(lines):
        fence = FENCE.match(lines[at])
        if fence is None:
            listed = bool(ITEM.match(lines[at])) or (listed and lines[at][:1] in ("", " "))
            if lines[at].startswith("    ") and not listed and (not at or not lines[at - 1].strip()):
                wrong.append(f"{page}:{at + 1}: code by indentation: put it between fences")
            at += 1
            continue
        end = _end(lines, at, fence[2])
        language, _, info = fence[3].strip().partition(" ")
        body = [line.removeprefix(fence[1]) for line in lines[at + 1 : end]]
        block = Block(page, at + 1, language, info.strip(), "".join(f"{line}\n" for line in body))
        wrong += _wrong(block)
        if language != DIAGRAM:
            blocks.append(block)
        at = end + 1
    return blocks, wrong


def missing_files(text: str) -> list[str]:
    """Return the file names in a diagram that are missing in the package."""
    return [name for name in FILE_NAME.findall(text) if not (PACKAGE / name).is_file()]


def _end(lines: list[str], start: int, mark: str) -> int:
    for at in range(start + 1, len(lines)):
        if lines[at].strip().startswith(mark) and not lines[at].strip().strip(mark[0]):
            return at
    raise AssertionError(f"line {start + 1}: the block has no end")


def _wrong(block: Block) -> list[str]:
    if block.language == DIAGRAM:
        return [f"{block}: {name} is no file of the package" for name in missing_files(block.text)]
    if block.language not in LANGUAGES:
        return [f"{block}: language {block.language!r}: there are: {', '.join(LANGUAGES)}"]
    if block.language in PLACED and not block.info:
        return [f"{block}: say behind {block.language!r} where this file stands"]
    return []

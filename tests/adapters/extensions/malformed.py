"""Malformed files, each with a single fault, and the position and text that its message must have."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Make = Callable[[Path], object]
"""Creates the malformed file at a path."""


@dataclass(frozen=True, slots=True)
class Case:
    """One malformed file. `line` 0 means the whole file; an empty `field` means no field in particular."""

    name: str
    make: Make
    line: int = 0
    field: str = ""
    words: str = ""
    """Part of the message."""
    loads: bool = False
    """True if the rest of the file is used."""


def text(content: str) -> Make:
    return lambda path: path.write_bytes(content.encode())


def raw(content: bytes) -> Make:
    return lambda path: path.write_bytes(content)


def front(*lines: str, body: str = "Body") -> Make:
    return text("\n".join(["---", *lines, "---", body, ""]))


def outside(path: Path) -> None:
    target = path.parents[3] / "outside.md"
    target.write_text("---\nname: bad\ndescription: d\n---\n")
    path.symlink_to(target)


def dangling(path: Path) -> None:
    path.symlink_to(path.parent / "nowhere.md")


def circle(path: Path) -> None:
    path.symlink_to(path)


def directory(path: Path) -> None:
    path.mkdir()


def pipe(path: Path) -> None:
    os.mkfifo(path)


NAMED = ("name: bad", "description: d")
BOMB = "\n".join(
    ["---", *NAMED, 'a: &a ["x","x","x","x","x","x","x","x","x"]']
    + [f"{two}: &{two} [{','.join(['*' + one] * 9)}]" for one, two in zip("abcdefgh", "bcdefghi", strict=True)]
    + ["---", ""]
)

AGENTS: tuple[Case, ...] = (
    Case("empty file", text(""), words="no front matter"),
    Case("prose", text("# A read-me\n\nNothing here.\n"), words="no front matter"),
    Case("never closed", text("---\nname: bad\ndescription: d\nBody\n"), 1, words="never closed"),
    Case("empty front matter", text("---\n---\nBody\n"), words="no front matter"),
    Case("no name", front("description: d"), 0, "name", "is missing"),
    Case("empty name", front("name:", "description: d"), 2, "name", "is missing"),
    Case("name is a list", front("name: [a, b]", "description: d"), 2, "name", "a list"),
    Case("name is a mapping", front("name: {a: b}", "description: d"), 2, "name", "a mapping"),
    Case("name is a truth value", front("name: true", "description: d"), 2, "name", "true or false"),
    Case("name with a colon", front("name: 'a:b'", "description: d"), 2, "name", "lower-case letters"),
    Case("name begins with a hyphen", front("name: -bad", "description: d"), 2, "name", "lower-case letters"),
    Case("name of signs", front("name: '../..'", "description: d"), 2, "name", "lower-case letters"),
    Case("name too long", front(f"name: {'x' * 65}", "description: d"), 2, "name", "lower-case letters"),
    Case("no description", front("name: bad"), 0, "description", "is missing"),
    Case("empty description", front("name: bad", "description: ''"), 3, "description", "is missing"),
    Case("description is a list", front("name: bad", "description: [a]"), 3, "description", "a list"),
    Case("description is a mapping", front("name: bad", "description:", "  a: b"), 3, "description", "a mapping"),
    Case("open bracket", front("name: bad", "tools: [Read", "description: d"), 3, words="YAML"),
    Case("open quote", front("name: bad", 'description: "d', "tools: Read"), 3, words="YAML"),
    Case("tab for blanks", front("name: bad", "description: d", "hooks:", "\tStop: []"), 5, words="YAML"),
    Case("wrong indentation", front("name: bad", "  description: d", " tools: Read"), 3, words="YAML"),
    Case("a list for fields", front("- name: bad", "- description: d"), 2, words="mapping"),
    Case("a text for fields", front("bad"), 2, words="mapping"),
    Case("a field twice", front("name: bad", "description: d", "name: worse"), 4, "name", "written twice"),
    Case("a key that is a list", front(*NAMED, "? [a, b]", ": c"), 4, words="plain word"),
    Case("a tag that builds", front(*NAMED, "x: !!python/object:os.system ls"), 4, "x", "YAML"),
    Case("an alias of nothing", front(*NAMED, "tools: [*nothing]"), 4, words="YAML"),
    Case("an alias bomb", text(BOMB), 9, words="aliases that expand to more than"),
    Case("nested deeply", front(*NAMED, "x: " + "[" * 200 + "]" * 200), 4, words="more than 60 levels deep"),
    Case("two documents", text("---\nname: bad\n...\n--- x\ndescription: d\n---\n"), 4, words="YAML"),
    Case("NUL in front matter", raw(b"---\nname: bad\ndescription: d\0d\n---\n"), 3, words="NUL"),
    Case("NUL in the body", raw(b"---\nname: bad\ndescription: d\n---\nx\0\n"), 5, words="NUL"),
    Case("binary", raw(bytes(range(256)) * 4), 2, words="UTF-8"),
    Case("UTF-16", raw("---\nname: bad\ndescription: d\n---\n".encode("utf-16")), 1, words="UTF-8"),
    Case("latin letters", raw(b"---\nname: bad\ndescription: Caf\xe9\n---\n"), 3, words="UTF-8"),
    Case("huge", raw(b"---\nname: bad\n---\n" + b"x" * 1_000_001), words="larger than"),
    Case("a link outside", outside, words="link"),
    Case("a link to nothing", dangling, words="cannot be read"),
    Case("a link to itself", circle, words="cannot be read"),
    Case("a pipe", pipe, words="regular file"),
    Case("a name that is taken", front("name: good", "description: d"), 2, "name", "is defined by"),
    Case("tools is a number", front(*NAMED, "tools: 7"), 4, "tools", "a number"),
    Case("tools is a mapping", front(*NAMED, "tools: {Read: true}"), 4, "tools", "a mapping"),
    Case("no tool that exists", front(*NAMED, "tools: Nope, Never"), 4, "tools", "none of these", loads=True),
    Case("one tool that exists", front(*NAMED, "tools: Read, Nope"), 4, "tools", "no tool Nope", loads=True),
    Case("no mode", front(*NAMED, "permissionMode: wild"), 4, "permissionMode", "is not a mode", loads=True),
    Case("turns are words", front(*NAMED, "maxTurns: many"), 4, "maxTurns", "whole number", loads=True),
    Case("effort is no effort", front(*NAMED, "effort: huge"), 4, "effort", "is unknown", loads=True),
    Case("memory nowhere", front(*NAMED, "memory: moon"), 4, "memory", "is unknown", loads=True),
    Case("model is a list", front(*NAMED, "model: [a]"), 4, "model", "a list", loads=True),
    Case("skills are numbers", front(*NAMED, "skills: [1]"), 4, "skills", "not a name", loads=True),
    Case("servers are a number", front(*NAMED, "mcpServers: 1"), 4, "mcpServers", "a list of names", loads=True),
    Case("budget is a text", front(*NAMED, "budget: much"), 4, "budget", "limits by name", loads=True),
    Case("background is a word", front(*NAMED, "background: maybe"), 4, "background", "true or false", loads=True),
    Case("a field that is none", front(*NAMED, "frobnicate: 1"), 4, "frobnicate", "not a field", loads=True),
    Case("hooks are a text", front(*NAMED, "hooks: all"), 4, "hooks", "", loads=True),
)

SKILLS: tuple[Case, ...] = (
    Case("open bracket", front("name: bad", "allowed-tools: [Bash", "description: d"), words="YAML", loads=True),
    Case("never closed", text("---\nname: bad\ndescription: d\nBody\n"), words="never closed", loads=True),
    Case("a field twice", front("name: bad", "description: d", "name: worse"), words="written twice", loads=True),
    Case("a list for fields", front("- a"), words="mapping", loads=True),
    Case("latin letters", raw(b"---\ndescription: d\n---\nCaf\xe9\n"), 4, words="not UTF-8", loads=True),
    Case("huge", raw(b"x" * 1_000_001), words="larger than"),
    Case("a link to nothing", dangling, words="cannot be read"),
    Case("a pipe", pipe, words="regular file"),
    Case("a directory", directory, words="regular file"),
    Case("a name with blanks", front("name: a b", "description: d"), 2, "name", "is not a valid name", loads=True),
    Case("a field that is none", front("description: d", "frobnicate: 1"), field="frobnicate", words="", loads=True),
)

PLUGINS: tuple[Case, ...] = (
    Case("empty file", text(""), 1, words="JSON"),
    Case("no JSON", text('{\n  "name": "bad",\n}\n'), 3, words="JSON"),
    Case("a list", text("[]"), 1, words="object"),
    Case("no name", text("{}"), 0, "name", "is missing"),
    Case("name is a number", text('{\n"name": 7}'), 2, "name", "a number"),
    Case("name with blanks", text('{"name": "a b"}'), 1, "name", "hyphens"),
    Case("a field twice", text('{"name": "bad",\n "name": "worse"}'), 2, "name", "written twice"),
    Case("agents is a number", text('{"name": "bad",\n\n "agents": 7}'), 3, "agents", "a number"),
    Case("skills hold a number", text('{"name": "bad",\n "skills": [7]}'), 2, "skills", "a list"),
    Case("version is a list", text('{"name": "bad",\n "version": []}'), 2, "version", "a list"),
    Case("binary", raw(bytes(range(256))), 2, words="UTF-8"),
    Case("huge", raw(b" " * 1_000_001), words="larger than"),
    Case("nested deeply", text("[" * 100_000), words="too deeply"),
    Case("a directory", directory, words="regular file"),
    Case("a path outside", text('{"name": "bad", "agents": "./../x"}'), 1, "agents", "leads out", loads=True),
    Case("a path without a dot", text('{"name": "bad", "agents": "agents"}'), 1, "agents", "begins with", loads=True),
    Case("a path to nothing", text('{"name": "bad", "agents": "./no"}'), 1, "agents", "No such file", loads=True),
    Case("a field that is none", text('{"name": "bad",\n "zap": 1}'), 2, "zap", "not a field", loads=True),
)

"""Files that are wrong in one way each, as people and machines make them: what is written, and where it is told."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Make = Callable[[Path], object]
"""Makes the bad thing at a path."""


@dataclass(frozen=True, slots=True)
class Bad:
    """One bad file. `line` 0: the file as a whole; `field` empty: none in particular."""

    name: str
    make: Make
    line: int = 0
    field: str = ""
    words: str = ""
    """What the message says, in part."""
    loads: bool = False
    """The file is used all the same, without what is wrong."""


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

AGENTS: tuple[Bad, ...] = (
    Bad("empty file", text(""), words="no front matter"),
    Bad("prose", text("# A read-me\n\nNothing here.\n"), words="no front matter"),
    Bad("never closed", text("---\nname: bad\ndescription: d\nBody\n"), 1, words="never closed"),
    Bad("empty front matter", text("---\n---\nBody\n"), words="no front matter"),
    Bad("no name", front("description: d"), 0, "name", "is missing"),
    Bad("empty name", front("name:", "description: d"), 2, "name", "is missing"),
    Bad("name is a list", front("name: [a, b]", "description: d"), 2, "name", "a list"),
    Bad("name is a mapping", front("name: {a: b}", "description: d"), 2, "name", "a mapping"),
    Bad("name is a truth value", front("name: true", "description: d"), 2, "name", "true or false"),
    Bad("name with a colon", front("name: 'a:b'", "description: d"), 2, "name", "lower-case letters"),
    Bad("name begins with a hyphen", front("name: -bad", "description: d"), 2, "name", "lower-case letters"),
    Bad("name of signs", front("name: '../..'", "description: d"), 2, "name", "lower-case letters"),
    Bad("name too long", front(f"name: {'x' * 65}", "description: d"), 2, "name", "lower-case letters"),
    Bad("no description", front("name: bad"), 0, "description", "is missing"),
    Bad("empty description", front("name: bad", "description: ''"), 3, "description", "is missing"),
    Bad("description is a list", front("name: bad", "description: [a]"), 3, "description", "a list"),
    Bad("description is a mapping", front("name: bad", "description:", "  a: b"), 3, "description", "a mapping"),
    Bad("open bracket", front("name: bad", "tools: [Read", "description: d"), 3, words="YAML"),
    Bad("open quote", front("name: bad", 'description: "d', "tools: Read"), 3, words="YAML"),
    Bad("tab for blanks", front("name: bad", "description: d", "hooks:", "\tStop: []"), 5, words="YAML"),
    Bad("wrong indentation", front("name: bad", "  description: d", " tools: Read"), 3, words="YAML"),
    Bad("a list for fields", front("- name: bad", "- description: d"), 2, words="mapping"),
    Bad("a text for fields", front("bad"), 2, words="mapping"),
    Bad("a field twice", front("name: bad", "description: d", "name: worse"), 4, "name", "written twice"),
    Bad("a key that is a list", front(*NAMED, "? [a, b]", ": c"), 4, words="plain word"),
    Bad("a tag that builds", front(*NAMED, "x: !!python/object:os.system ls"), 4, words="YAML"),
    Bad("an alias of nothing", front(*NAMED, "tools: [*nothing]"), 4, words="YAML"),
    Bad("an alias bomb", text(BOMB), 9, words="aliases that expand to more than"),
    Bad("nested deeply", front(*NAMED, "x: " + "[" * 200 + "]" * 200), 4, words="more than 60 levels deep"),
    Bad("two documents", text("---\nname: bad\n...\n--- x\ndescription: d\n---\n"), 4, words="YAML"),
    Bad("NUL in front matter", raw(b"---\nname: bad\ndescription: d\0d\n---\n"), 3, words="NUL"),
    Bad("NUL in the body", raw(b"---\nname: bad\ndescription: d\n---\nx\0\n"), 5, words="NUL"),
    Bad("binary", raw(bytes(range(256)) * 4), 2, words="UTF-8"),
    Bad("UTF-16", raw("---\nname: bad\ndescription: d\n---\n".encode("utf-16")), 1, words="UTF-8"),
    Bad("latin letters", raw(b"---\nname: bad\ndescription: Caf\xe9\n---\n"), 3, words="UTF-8"),
    Bad("huge", raw(b"---\nname: bad\n---\n" + b"x" * 1_000_001), words="larger than"),
    Bad("a link outside", outside, words="link"),
    Bad("a link to nothing", dangling, words="cannot be read"),
    Bad("a link to itself", circle, words="cannot be read"),
    Bad("a pipe", pipe, words="regular file"),
    Bad("a name that is taken", front("name: good", "description: d"), 2, "name", "is defined by"),
    Bad("tools is a number", front(*NAMED, "tools: 7"), 4, "tools", "a number"),
    Bad("tools is a mapping", front(*NAMED, "tools: {Read: true}"), 4, "tools", "a mapping"),
    Bad("no tool that exists", front(*NAMED, "tools: Nope, Never"), 4, "tools", "none of these"),
    Bad("one tool that exists", front(*NAMED, "tools: Read, Nope"), 4, "tools", "no tool Nope", loads=True),
    Bad("no mode", front(*NAMED, "permissionMode: wild"), 4, "permissionMode", "is not a mode", loads=True),
    Bad("turns are words", front(*NAMED, "maxTurns: many"), 4, "maxTurns", "whole number", loads=True),
    Bad("effort is no effort", front(*NAMED, "effort: huge"), 4, "effort", "is unknown", loads=True),
    Bad("memory nowhere", front(*NAMED, "memory: moon"), 4, "memory", "is unknown", loads=True),
    Bad("model is a list", front(*NAMED, "model: [a]"), 4, "model", "a list", loads=True),
    Bad("skills are numbers", front(*NAMED, "skills: [1]"), 4, "skills", "not a name", loads=True),
    Bad("servers are a number", front(*NAMED, "mcpServers: 1"), 4, "mcpServers", "a list of names", loads=True),
    Bad("budget is a text", front(*NAMED, "budget: much"), 4, "budget", "limits by name", loads=True),
    Bad("background is a word", front(*NAMED, "background: maybe"), 4, "background", "true or false", loads=True),
    Bad("a field that is none", front(*NAMED, "frobnicate: 1"), 4, "frobnicate", "not a field", loads=True),
    Bad("hooks are a text", front(*NAMED, "hooks: all"), 4, "hooks", "", loads=True),
)

SKILLS: tuple[Bad, ...] = (
    Bad("open bracket", front("name: bad", "allowed-tools: [Bash", "description: d"), words="YAML", loads=True),
    Bad("never closed", text("---\nname: bad\ndescription: d\nBody\n"), words="never closed", loads=True),
    Bad("a field twice", front("name: bad", "description: d", "name: worse"), words="written twice", loads=True),
    Bad("a list for fields", front("- a"), words="mapping", loads=True),
    Bad("huge", raw(b"x" * 1_000_001), words="larger than"),
    Bad("a link to nothing", dangling, words="cannot be read"),
    Bad("a pipe", pipe, words="regular file"),
    Bad("a directory", directory, words="regular file"),
    Bad("a name that is taken", front("name: good", "description: d"), words="is defined by"),
    Bad("a field that is none", front("description: d", "frobnicate: 1"), field="frobnicate", words="", loads=True),
)

PLUGINS: tuple[Bad, ...] = (
    Bad("empty file", text(""), 1, words="JSON"),
    Bad("no JSON", text('{\n  "name": "bad",\n}\n'), 3, words="JSON"),
    Bad("a list", text("[]"), 1, words="object"),
    Bad("no name", text("{}"), 0, "name", "is missing"),
    Bad("name is a number", text('{\n"name": 7}'), 2, "name", "a number"),
    Bad("name with blanks", text('{"name": "a b"}'), 1, "name", "hyphens"),
    Bad("a field twice", text('{"name": "bad",\n "name": "worse"}'), 2, "name", "written twice"),
    Bad("agents is a number", text('{"name": "bad",\n\n "agents": 7}'), 3, "agents", "a number"),
    Bad("skills hold a number", text('{"name": "bad",\n "skills": [7]}'), 2, "skills", "a list"),
    Bad("version is a list", text('{"name": "bad",\n "version": []}'), 2, "version", "a list"),
    Bad("binary", raw(bytes(range(256))), 2, words="UTF-8"),
    Bad("huge", raw(b" " * 1_000_001), words="larger than"),
    Bad("nested deeply", text("[" * 100_000), words="too deeply"),
    Bad("a directory", directory, words="regular file"),
    Bad("a path outside", text('{"name": "bad", "agents": "./../x"}'), 1, "agents", "leads out", loads=True),
    Bad("a path without a dot", text('{"name": "bad", "agents": "agents"}'), 1, "agents", "begins with", loads=True),
    Bad("a path to nothing", text('{"name": "bad", "agents": "./no"}'), 1, "agents", "No such file", loads=True),
    Bad("a field that is none", text('{"name": "bad",\n "zap": 1}'), 2, "zap", "not a field", loads=True),
)

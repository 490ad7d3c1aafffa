"""Name and text of commands, skills, and agents in shapes of public collections, compared with a rule of their own.

The rule is written from the published documentation of Claude Code: a command is named after its folders and file, a
skill after its folder (its front matter may give a second name), an agent by its front matter; `plugin:` comes first in
a plugin. The text is everything after the front matter.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from callboard.adapters.extensions.agents import load_agents
from callboard.adapters.extensions.discovery import ExtensionPaths
from callboard.adapters.extensions.plugins import read_plugins
from callboard.adapters.extensions.skills import SkillLibrary

WORDS = ("review", "commit", "fix", "docs", "api", "test", "deploy", "lint", "plan", "schema", "ui", "data", "audit")
BODIES = (
    "Do the work.\n",
    "# Title\n\nSteps:\n\n1. Read $ARGUMENTS.\n2. Report.\n",
    "---\n\nA rule above, and one below.\n\n---\n\nThe end.\n",
    "Ünïcode, tabs\tand trailing blanks.  \n\n\n",
    "```yaml\n---\nname: not-a-name\n---\n```\n",
)
PLACES = ("home", "workspace", "plugin")
Kind = Literal["command", "skill", "agent"]


@dataclass
class Definition:
    """One generated file, and what the documentation says about it."""

    kind: Kind
    path: str
    text: str
    name: str
    body: str
    description: str | None
    second_name: str = ""
    place: str = field(default="home")


def front_matter(fields: dict[str, str], ending: str) -> str:
    return f"---{ending}" + "".join(f"{key}: {value}{ending}" for key, value in fields.items()) + f"---{ending}"


def described(draw: random.Random, number: int) -> tuple[str, str]:
    """Return a description as written in the front matter, and its value."""
    plain = f"Work number {number} on {draw.choice(WORDS)}"
    return draw.choice(
        [
            (plain, plain),
            (f'"{plain}: with a colon"', f"{plain}: with a colon"),
            (f"'{plain}, it''s quoted'", f"{plain}, it's quoted"),
            (f"{plain}: unquoted, with a colon", f"{plain}: unquoted, with a colon"),
            (f">\n  {plain}\n  on two lines", f"{plain} on two lines"),
        ]
    )


def definition(draw: random.Random, number: int) -> Definition:
    kind: Kind = draw.choice(("command", "skill", "agent"))
    place = draw.choice(PLACES)
    stem = f"{draw.choice(WORDS)}-{number}"
    folders = [draw.choice(WORDS) for _ in range(draw.choice((0, 0, 1, 2)))]
    body = draw.choice(BODIES)
    written, description = described(draw, number)
    ending = "\r\n" if draw.random() < 0.1 and "\n  " not in written else "\n"
    mark = "\ufeff" if draw.random() < 0.1 else ""
    prefix = ["tools"] if place == "plugin" else []
    if kind == "command":
        fields = {"description": written, "argument-hint": "[ticket] [branch]"}
        if draw.random() < 0.3:
            fields["name"] = "another-name"  # ignored: the file decides
        bare = draw.random() < 0.2 and not body.startswith("---")
        text = body if bare else front_matter(fields, ending) + body
        name = ":".join((*prefix, *folders, stem))
        path = f"commands/{'/'.join((*folders, stem))}.md"
        return Definition(kind, path, mark + text, name, body, None if bare else description, place=place)
    if kind == "skill":
        second = draw.choice(("", f"{stem}-shown"))
        fields = {"description": written} | ({"name": second} if second else {})
        path = f"skills/{stem}/SKILL.md"
        name = ":".join((*prefix, stem))
        shown = ":".join((*prefix, second)) if second else ""
        return Definition(kind, path, mark + front_matter(fields, ending) + body, name, body, description, shown, place)
    fields = {"name": stem, "description": written, "tools": draw.choice(("Read, Grep", '"*"', "[Read, Bash]"))}
    path = f"agents/{'/'.join((*folders, f'file-{number}'))}.md"
    name = ":".join((*prefix, *(folders if place == "plugin" else ()), stem))
    return Definition(kind, path, mark + front_matter(fields, ending) + body, name, body, description, place=place)


many = pytest.mark.parametrize("count", [120, pytest.param(500, marks=pytest.mark.soak)])
"""How many definitions; each name is looked up among all of them."""


def definitions(count: int) -> list[Definition]:
    return [definition(random.Random(number), number) for number in range(count)]


def write_all(items: list[Definition], base: Path) -> ExtensionPaths:
    """Write the definitions where they belong, below a folder."""
    roots = {
        "home": base / "home/.claude",
        "workspace": base / "home/work/.claude",
        "plugin": base / "tools",
    }
    for item in items:
        path = roots[item.place] / item.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(item.text.encode())
    manifest = roots["plugin"] / ".claude-plugin/plugin.json"
    manifest.parent.mkdir()
    manifest.write_text('{"name": "tools", "version": "1.0.0"}')
    plugins, notes = read_plugins([roots["plugin"]])
    assert not notes
    return ExtensionPaths(base / "home/work", home=base / "home", trusted=True, bundled=False, plugins=plugins)


@pytest.mark.slow
@many
def test_commands_and_skills_have_their_documented_names_and_texts(tmp_path: Path, count: int) -> None:
    items = definitions(count)
    library = SkillLibrary(write_all(items, tmp_path))
    for item in items:
        if item.kind == "agent":
            continue
        for name in filter(None, (item.name, item.second_name)):
            skill = library.command(name)
            assert skill is not None, f"{name} of {item.path}"
            assert skill.description == (item.description or skill.description), item.path
            assert skill.body.strip() == item.body.strip(), item.path
            assert skill.name == item.name, "lists show one name: that of the folder or file"


@many
def test_agents_have_their_documented_names_and_texts(tmp_path: Path, count: int) -> None:
    items = definitions(count)
    agents = load_agents(write_all(items, tmp_path)).items
    written = [item for item in items if item.kind == "agent"]
    for item in written:
        agent = agents[item.name]
        assert agent.description == item.description, item.path
        assert agent.instructions.strip() == item.body.strip(), item.path
    assert len(agents) == len(written) > 20

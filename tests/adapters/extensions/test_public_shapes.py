"""Agent and skill files in the forms that public collections use load, and oddities in them are reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard.adapters.extensions.agents import AgentFile, load_agents
from callboard.adapters.extensions.discovery import ExtensionPaths, LoadedItems
from callboard.adapters.extensions.skills import load_skills
from callboard.core.context.system_prompt import ALL, shorten_descriptions

PLAIN = """\
---
name: code-reviewer
description: Expert code review specialist. Proactively reviews code for quality, \
security, and maintainability. Use immediately after writing or modifying code.
tools: Read, Grep, Glob, Bash
model: inherit
---

You are a senior code reviewer.
"""
GENERATED = """\
---
name: test-runner
description: Use this agent when you need to run tests. Examples:\\n\\n<example>\\nContext: The user \
changed a parser.\\nuser: "I changed the parser"\\nassistant: "I'll use the test-runner agent"\\n<commentary>\\n\
Code changed: run the tests.\\n</commentary>\\n</example>
model: sonnet
color: yellow
---

Run the tests.
"""
EXAMPLES_ON_LINES = """\
---
name: ux-researcher
description: Use this agent when conducting user research. Examples:

<example>
Context: Understanding needs
user: "What do users want?"
assistant: "I'll find out: interviews first."
<commentary>
It's research.
</commentary>
</example>
color: purple
tools: Write, Read, MultiEdit, WebSearch, WebFetch
---

You are an empathetic researcher.
"""
TITLE_CASE = """\
---
name: Frontend Developer
description: Expert frontend developer: modern web technologies, UI implementation and performance
color: "#00FFFF"
emoji: 🖥️
vibe: Builds responsive, accessible web apps with pixel-perfect precision.
---

# Frontend Developer 🖥️
"""
SERVERS = """\
---
name: docs-lookup
description: "Looks things up: quickly"
tools: Read, mcp__context7__resolve-library-id, mcp__context7__get-library-docs
disallowedTools: mcp__github, Write
mcpServers:
  - context7
  - local: {command: npx, args: [-y, x]}
---
Look it up.
"""
FOLDED = """\
---
name: data-scientist
description: >
  Data analysis expert for SQL queries,
  BigQuery operations and insights.
tools:
  - Bash
  - Read
skills: [one, two]
maxTurns: 12
effort: high
memory: project
permissionMode: plan
hooks:
  PreToolUse:
    - matcher: Bash
      hooks:
        - type: command
          command: ./check.sh
---
Analyse.
"""
ALL_TOOLS = """\
---
name: orchestrator
description: Coordinates. MUST BE USED for multi-step work, 'always'
tools: "*"
---
Coordinate.
"""
COORDINATOR = """\
---
name: coordinator
description: Coordinates
tools: Agent(code-reviewer, test-runner), Read, Task
initialPrompt: Begin with the board
background: true
isolation: worktree
---
Coordinate.
"""
SHAPES = {
    "code-reviewer": PLAIN,
    "test-runner": GENERATED,
    "ux-researcher": EXAMPLES_ON_LINES,
    "frontend-developer": TITLE_CASE,
    "docs-lookup": SERVERS,
    "data-scientist": FOLDED,
    "orchestrator": ALL_TOOLS,
    "coordinator": COORDINATOR,
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / ".claude/agents").mkdir(parents=True)
    return tmp_path


def _load(home: Path, ending: str = "\n", mark: str = "") -> LoadedItems[AgentFile]:
    for name, text in SHAPES.items():
        (home / f".claude/agents/{name}.md").write_bytes((mark + text.replace("\n", ending)).encode())
    return load_agents(ExtensionPaths(home=home, bundled=False))


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_each_shape_loads_with_any_line_ending_and_a_byte_order_mark(home: Path, ending: str, mark: str) -> None:
    loaded = _load(home, ending, mark)
    assert set(loaded.items) == set(SHAPES)
    assert not [note for note in loaded.notes if note.verdict == "refused"]
    assert loaded.items["test-runner"].model == "sonnet"
    assert loaded.items["ux-researcher"].tools == ("Write", "Read", "MultiEdit", "WebSearch", "WebFetch")
    assert loaded.items["ux-researcher"].description.startswith("Use this agent when conducting user research.")


def test_what_was_read_in_another_way_than_it_is_written_is_told(home: Path) -> None:
    told = {(Path(note.path).stem, note.field) for note in _load(home).notes}
    assert {
        ("test-runner", "description"),
        ("test-runner", "color"),
        ("ux-researcher", "description"),
        ("frontend-developer", "name"),
        ("frontend-developer", "emoji"),
    } <= told
    assert not {name for name, _ in told} & {"code-reviewer", "docs-lookup", "data-scientist", "orchestrator"}


def test_fields_of_servers_effort_and_memory_are_read(home: Path) -> None:
    items = _load(home).items
    docs = items["docs-lookup"]
    assert docs.tools == ("Read",)
    assert docs.mcp == ("mcp__context7__resolve-library-id", "mcp__context7__get-library-docs")
    assert (docs.denied, docs.mcp_denied) == (("Write",), ("mcp__github",))
    assert docs.mcp_servers == ("context7", {"local": {"command": "npx", "args": ["-y", "x"]}})
    data = items["data-scientist"]
    assert (data.tools, data.mcp, data.effort, data.memory) == (("Bash", "Read"), (), "high", "project")
    assert (data.skills, data.max_turns, data.permission_mode) == (("one", "two"), 12, "plan")
    assert (items["orchestrator"].tools, items["orchestrator"].mcp) == (None, None)
    lead = items["coordinator"]
    assert (lead.initial_prompt, lead.isolation, lead.background) == ("Begin with the board", "worktree", True)
    assert lead.may_spawn is None  # beside it, a plain Task restricts nothing


def test_models_read_what_an_agent_is_for_and_not_its_examples(home: Path) -> None:
    told = shorten_descriptions({name: one.description for name, one in _load(home).items.items()})
    assert told["ux-researcher"] == "Use this agent when conducting user research."
    assert "<example>" not in "".join(told.values())
    many = shorten_descriptions({str(number): "word " * 400 for number in range(60)})
    assert sum(map(len, many.values())) <= ALL


def test_a_collection_of_skills_with_resources_loads(home: Path) -> None:
    folder = home / ".claude/skills/pdf"
    (folder / "scripts").mkdir(parents=True)
    (folder / "SKILL.md").write_text(
        "---\nname: pdf\ndescription: Work with PDF files: extract, fill, merge. Use when a PDF is mentioned\n"
        "license: Apache-2.0\nmetadata:\n  version: '1.0'\nallowed-tools: Read Bash(python:*)\n---\n# PDF\n",
        encoding="utf-8",
    )
    loaded = load_skills(ExtensionPaths(home=home, bundled=False))
    assert loaded.items["pdf"].text.description.startswith("Work with PDF files: extract")

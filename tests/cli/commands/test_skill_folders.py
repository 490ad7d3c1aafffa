"""Skills and plugins outside the workspace: agents read their files, run their scripts, and change nothing there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.adapters.processes.cage import require_level
from tests.cli.commands.command import Command

SKILL = """---
name: pdf
description: Fill in forms.
{fields}---
To fill in a form, read forms.md. Then run `python scripts/check.py file.pdf`.
"""
SCRIPT = """import pathlib, sys
print("checked", *sys.argv[1:])
try:
    pathlib.Path(__file__).with_name("more.py").write_text("x")
except OSError as error:
    print("read-only:", error.strerror)
"""


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def skill(folder: Path, fields: str = "") -> Path:
    """Write a skill in its published form: a text that names files beside it, and a script."""
    write(folder / "SKILL.md", SKILL.format(fields=fields))
    write(folder / "forms.md", "Fill in the form with care.\n")
    write(folder / "scripts/check.py", SCRIPT)
    return folder


def tool_results(
    command: Command, calls: list[tuple[str, dict[str, str]]], *options: str, prompt: str = "go"
) -> list[str]:
    """Return the tools' results for each of these calls, in order."""
    steps = [{"reply": [{"tool_use": {"name": name, "input": given}}]} for name, given in calls]
    model = command.scenario(json.dumps({"agents": {"lead": [*steps, {"reply": "done", "repeat": "forever"}]}}))
    ran = command.run("-p", "--output-format", "stream-json", "--verbose", "--model", model, *options, prompt)
    blocks = [block for one in ran.messages if one["type"] == "user" for block in one["message"]["content"]]
    found = [block["content"] for block in blocks if block["type"] == "tool_result"]
    return [one if isinstance(one, str) else "".join(part["text"] for part in one) for one in found]


@pytest.mark.slow
@pytest.mark.parametrize("place", [".claude/skills", "config/callboard/skills", "linked"])
def test_the_files_of_a_persons_skill_are_read_and_its_scripts_run(tmp_path: Path, place: str) -> None:
    require_level(2)
    command = Command(tmp_path)
    if place == "linked":
        skill(tmp_path / "dotfiles/skills/pdf")
        (tmp_path / ".claude").mkdir()
        (tmp_path / ".claude/skills").symlink_to(tmp_path / "dotfiles/skills")
        folder = tmp_path / ".claude/skills/pdf"
    else:
        folder = skill(tmp_path / place / "pdf")
    write(folder.parent.parent / "settings.json", "{}")
    secret = write(folder / ".env", "KEY=hidden")
    said = tool_results(
        command,
        [
            ("load_skill", {"name": "pdf"}),
            ("read_file", {"path": f"{folder}/forms.md"}),
            ("glob", {"pattern": "**/*.py", "path": str(folder)}),
            ("grep", {"pattern": "care", "path": str(folder)}),
            ("bash", {"command": f"cat {folder}/forms.md"}),
            ("bash", {"command": f"python3 {folder}/scripts/check.py a.pdf"}),
            ("bash", {"command": f"python3 {folder}/scripts/../scripts/check.py b.pdf; ls {folder}/../.."}),
            ("read_file", {"path": str(secret)}),
            ("write_file", {"path": f"{folder}/new.md", "content": "x"}),
            ("read_file", {"path": f"{folder.parent.parent}/settings.json"}),
        ],
        *("--allowedTools", f"Bash(python3 {folder}/scripts/check.py:*)"),
    )
    assert f"folder {folder}" in said[0]
    assert "with care" in said[1]
    assert "scripts/check.py" in said[2]
    assert "forms.md" in said[3]
    assert said[4] == "Fill in the form with care."
    assert said[5].startswith("checked a.pdf\nread-only:"), said[5]
    for refused in said[6:]:
        assert "Permission denied" in refused, refused


@pytest.mark.slow
def test_its_own_rules_let_its_scripts_run(tmp_path: Path) -> None:
    require_level(2)
    command = Command(tmp_path)
    fields = 'allowed-tools: ["Bash(python3 ${CLAUDE_SKILL_DIR}/scripts/check.py:*)", "Bash(x ${CLAUDE_ODD})"]\n'
    folder = skill(tmp_path / ".claude/skills/pdf", fields)
    call = ("bash", {"command": f"python3 {folder}/scripts/check.py a.pdf"})
    assert "Permission denied" in tool_results(command, [call])[0]
    assert "checked a.pdf" in tool_results(command, [call], prompt="/pdf")[0]
    told = command.run("doctor", "--compat").out
    assert (
        f"ignored   {folder}/SKILL.md:4: allowed-tools: Bash(x ${{CLAUDE_ODD}}): ${{CLAUDE_ODD}} is not known here"
        in told
    )


@pytest.mark.slow
def test_the_command_of_a_plugin_runs_the_plugins_script(tmp_path: Path) -> None:
    require_level(2)
    command, plugin = Command(tmp_path), tmp_path / "plug"
    write(plugin / ".claude-plugin/plugin.json", '{"name": "ralph"}')
    write(
        plugin / "commands/loop.md",
        '---\nallowed-tools: ["Bash(${CLAUDE_PLUGIN_ROOT}/scripts/setup.sh:*)"]\n---\n'
        'Begin.\n```!\n"${CLAUDE_PLUGIN_ROOT}/scripts/setup.sh" $ARGUMENTS\n```\n',
    )
    write(plugin / "scripts/setup.sh", '#!/bin/bash\necho "set up: $*" | tee made\n').chmod(0o755)
    model = command.scenario(
        json.dumps({"agents": {"lead": [{"when": {"contains": "set up: do it"}, "reply": "It is set up."}]}})
    )
    ran = command.run("run", "--model", model, "--plugin", str(plugin), "/ralph:loop do it")
    assert (ran.code, ran.out) == (0, "It is set up.\n"), ran.err
    assert (command.workspace / "made").read_text() == "set up: do it\n"

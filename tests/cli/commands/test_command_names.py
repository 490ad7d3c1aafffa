"""Every command that a message or a page names exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from callboard.cli.commands.root import cli

ROOT = Path(__file__).parents[3]
NAMED = re.compile(r"`callboard ([a-z][^`\n]*)`")
"""A command line in a text, in backquotes, both in messages and in pages."""


def texts() -> Iterator[tuple[str, str]]:
    """Yield each string literal of the runtime, and each page."""
    for path in sorted((ROOT / "runtime").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node.value
            elif isinstance(node, ast.JoinedStr):
                parts = [str(one.value) if isinstance(one, ast.Constant) else "X" for one in node.values]
                yield f"{path.relative_to(ROOT)}:{node.lineno}", "".join(parts)
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def fault_of(line: str) -> str:
    """Return the reason why a command line is not valid, or an empty string."""
    line = "" if line == "help NAME" else line
    command: click.Command = cli
    context = click.Context(cli, info_name="callboard")
    for word in line.split():
        if not isinstance(command, click.Group) or not re.fullmatch(r"[a-z][a-z-]*", word):
            break
        found = command.get_command(context, word) if word in command.list_commands(context) else None
        if found is None:
            return "" if command is not cli and command.invoke_without_command else f"there is no {word!r} in {line!r}"
        command, context = found, click.Context(found, parent=context, info_name=word)
    return ""


@pytest.mark.slow
def test_every_command_that_a_text_names_exists() -> None:
    faults = {
        f"{where}: {fault}" for where, text in texts() for line in NAMED.findall(text) if (fault := fault_of(line))
    }
    assert faults == set()


def test_a_command_that_does_not_exist_is_found() -> None:
    assert fault_of("agent resume alice") == "there is no 'agent' in 'agent resume alice'"
    assert fault_of("cron rewind X") == "there is no 'rewind' in 'cron rewind X'"
    assert fault_of("team resume alice") == ""

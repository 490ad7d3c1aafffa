"""`completion`: the script that completes `callboard` in a shell; and `_complete`, which that script calls.

An answer of `_complete` is lines: first `values`, `file` or `dir`, then a word, a tab and a few words about it. It
imports no command, opens no store and says nothing on stderr.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

import click

from callboard.adapters.glance import Row, glance
from callboard.faces.cli.options import everywhere
from callboard.faces.completing import Choice, offered, shell_words
from callboard.faces.terminal import Terminal

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@everywhere
def completion(shell: str) -> None:
    """Print the script that completes commands in a shell.

    For this shell alone: eval "$(callboard completion bash)", the same with zsh; callboard completion fish | source.
    How to keep it stands at the top of the script. Commands, options, and the sessions, agents, requests, tasks and
    schedules of the workspace are completed.
    """
    terminal = Terminal(sys.stdout, sys.stderr)
    terminal.result((files("callboard") / "data" / "completion" / f"callboard.{shell}").read_text("utf-8"))
    terminal.close()


@click.command("_complete", hidden=True, context_settings={"ignore_unknown_options": True})
@click.argument("at", type=int)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def _complete(at: int, words: Sequence[str]) -> None:
    """Answer a completion script: the number of the word under the cursor, and the words from the command's name on."""
    try:
        shape = json.loads((files("callboard") / "data" / "commands.json").read_text("utf-8"))
        found = offered(shell_words(words, at), shape, _names)
    except (OSError, ValueError, LookupError):
        return  # the shell's line is no place for what went wrong here
    terminal = Terminal(sys.stdout, sys.stderr)
    terminal.result("\n".join([found.kind, *(f"{word}\t{about}" for word, about in found.choices)]))
    terminal.close()


def _names(kind: str, said: Mapping[str, str]) -> Sequence[Choice]:
    if kind == "model":
        return [("rehearsal:", "a scenario file"), ("cassette:", "a recorded session")]
    rows = glance(Path(said.get("dir") or "."), kind, said.get("session", ""))
    return [choice for row in rows for choice in _choices(kind, row)]


def _choices(kind: str, row: Row) -> Sequence[Choice]:
    told = row.fields
    match kind:
        case "session":
            return [(row.name, str(told.get("prompt") or ""))]
        case "agent":
            return [(row.name, f"{told.get('role') or told.get('kind') or ''}, {told.get('life') or ''}")]
        case "request":
            waits = told.get("status") == "pending"
            return [(row.name, f"{told.get('kind')} of {told.get('agent')}")] if waits else []
        case "schedule":
            about = f"{told.get('cron')}: {told.get('prompt')}"
            named = [(str(told["name"]), about)] if told.get("name") else []
            return [*named, (row.name, about)] if told.get("state") != "cancelled" else []
        case "task":
            return [(row.name, f"{told.get('status')}: {told.get('subject')}")]
        case _:
            return [(row.name, "")]

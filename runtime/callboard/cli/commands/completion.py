"""`completion`: the script that completes `callboard` in a shell, and `_complete`, which that script calls.

The output of `_complete` is lines: first `values`, `file` or `dir`, then one line for each choice with a word, a tab
and a short description. It imports no command, opens no store and prints nothing on stderr.

Importing the commands would take longer than a person waits after the tab key, so their shape is read from
`data/commands.json`, which `cli/commands/command_tree.py` writes. Unknown words are skipped, and nothing fails.
Completion itself is pure: the shape and a function that returns names are arguments, and the shell and the store are
unknown to it.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import click

from callboard.adapters.storage.quick_names import NamedRow, glance
from callboard.cli.commands.options import everywhere
from callboard.cli.terminal.terminal import Terminal
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@everywhere
def completion(shell: str) -> None:
    """Print a completion script for a shell.

    For this shell only: eval "$(callboard completion bash)", the same with zsh; callboard completion fish | source. The
    top of the script says how to install it. It completes commands, options, and the sessions, agents, requests, tasks
    and schedules of the workspace.
    """
    terminal = Terminal(sys.stdout, sys.stderr)
    terminal.result((files("callboard") / "data" / "completion" / f"callboard.{shell}").read_text("utf-8"))
    terminal.close()


@click.command("_complete", hidden=True, context_settings={"ignore_unknown_options": True})
@click.argument("at", type=int)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def _complete(at: int, arguments: Sequence[str]) -> None:
    """Answer a completion script: the number of the word under the cursor, and the words from the command's name on."""
    try:
        shape = json.loads((files("callboard") / "data" / "commands.json").read_text("utf-8"))
        offer = find_completions(shell_words(arguments, at), shape, partial(_names, shape[""]["names"]))
    except (OSError, ValueError, LookupError):
        return  # an error text would appear in the shell's line
    terminal = Terminal(sys.stdout, sys.stderr)
    terminal.result("\n".join([offer.kind, *(f"{word}\t{about}" for word, about in offer.choices)]))
    terminal.close()


def _names(known: Mapping[str, Sequence[str]], kind: str, values: Mapping[str, str]) -> Sequence[Choice]:
    """Return the names of a kind. `known`: names that do not depend on the workspace, by kind."""
    folder = Path(values.get("dir") or ".")
    if kind == "model":
        return [
            *((name, "") for name in known[kind]),
            ("rehearsal:", "scenario file"),
            ("cassette:", "recorded session"),
        ]
    if kind == "agent_type":
        return [*_own_types(folder), *((name, "bundled") for name in known[kind])]
    rows = glance(folder, kind, values.get("session", ""))
    return [choice for row in rows for choice in _choices(kind, row)]


def _own_types(workspace: Path) -> Iterator[Choice]:
    """Return the agent types that files of the workspace or the user define. Raises `OSError`."""
    home = Path.home()
    own = Path(os.environ.get("XDG_CONFIG_HOME", "").strip() or home / ".config") / "callboard"
    for folder in (workspace / ".callboard", own, workspace / ".claude", home / ".claude"):
        for file in sorted((folder / "agents").rglob("*.md"))[:_MOST_FILES]:
            with file.open("rb") as stream:
                name = _NAME.search(stream.read(_FRONT_BYTES).decode(errors="replace"))
            if name is not None:
                yield name[1], str(file)


def _choices(kind: str, row: NamedRow) -> Sequence[Choice]:
    fields = row.fields
    match kind:
        case "session":
            return [(row.name, str(fields.get("prompt") or ""))]
        case "agent":
            return [(row.name, f"{fields.get('role') or fields.get('kind') or ''}, {fields.get('life') or ''}")]
        case "request":
            waits = fields.get("status") == "pending"
            return [(row.name, f"{fields.get('kind')} of {fields.get('agent')}")] if waits else []
        case "schedule":
            about = f"{fields.get('cron')}: {fields.get('prompt')}"
            named = [(str(fields["name"]), about)] if fields.get("name") else []
            return [*named, (row.name, about)] if fields.get("state") != "cancelled" else []
        case "task":
            return [(row.name, f"{fields.get('status')}: {fields.get('subject')}")]
        case _:
            return [(row.name, "")]


Values = Literal["values", "file", "dir"]
Choice = tuple[str, str]
"""A possible word, and a short description."""
Ask = Callable[[str, Mapping[str, str]], Sequence[Choice]]
"""Function that returns names of a kind (`session`, `agent`, `request` ...), given the values on the line so far:
`session`, `dir`."""
Shape = Mapping[str, Any]

_NAME = late_pattern(r"(?m)^name: *[\"']?([\w:-]+)")
_FRONT_BYTES = 2_000
"""Bytes of a file in which its name is sought."""
_MOST_FILES = 200
_SAFE = late_pattern(r"[\w.:@/+=,-]+")
"""Words that need no quotes in any shell. Others are not offered."""
_ABOUT = 60
_SPECIAL = ("-p", "--print")


@dataclass(frozen=True, slots=True)
class Completions:
    """Matching completions. `file`, `dir`: the shell itself completes a path."""

    kind: Values = "values"
    choices: tuple[Choice, ...] = ()


@dataclass(slots=True)
class _Line:
    """Meaning of the words before the last one."""

    path: str = ""
    values: dict[str, str] = field(default_factory=dict[str, str])
    """Values of options and arguments, by kind."""
    used: set[str] = field(default_factory=set[str])
    places: int = 0
    """Number of arguments so far."""
    takes: Any = None
    """Kind of value that the preceding option takes; None: there is no such option."""
    no_options: bool = False


def find_completions(tokens: Sequence[str], shape: Shape, ask: Ask) -> Completions:
    """Return the completions of the last word; the command's own name is not among the words."""
    *before, current = list(tokens) or [""]
    line = _read(before, shape)
    if line.takes is not None:
        return _of_kind(line.takes, current, line, ask)
    name, equals, begun = current.partition("=")
    if current.startswith("--") and equals and (option := _option(line, shape, name)):
        return _of_kind(option["takes"], begun, line, ask)
    node = shape[line.path]
    if current.startswith("-") and not line.no_options:
        return Completions(choices=_fitting(_option_names(line, shape), current))
    choices: list[Choice] = []
    if not line.places:
        choices += [(command, str(shape[f"{line.path} {command}".strip()]["about"])) for command in node["commands"]]
    kinds: list[Any] = node["arguments"]
    if kinds and (line.places < len(kinds) or node["many"]):
        of_argument = _of_kind(kinds[min(line.places, len(kinds) - 1)], current, line, ask)
        if of_argument.kind != "values" and not choices:
            return of_argument
        choices += of_argument.choices
    return Completions(choices=_fitting(choices, current))


def shell_words(tokens: Sequence[str], at: int) -> list[str]:
    """Return the words up to the cursor as the command would get them, without the first word, the command.

    The words have no quotes, and have `--name=value` and `rehearsal:FILE` joined again where a shell has split them at
    `=` and `:` (bash).
    """
    joined: list[str] = []
    glue = False
    for word in tokens[1 : at + 1]:
        breaks = word in {"=", ":"} and bool(joined) and joined[-1] != ""
        if breaks and (word == ":" or joined[-1].startswith("--")):
            joined[-1] += word
            glue = True
        elif glue:
            joined[-1] += word
            glue = False
        else:
            joined.append(word)
    return [_unquoted(word) for word in joined] or [""]


def _unquoted(word: str) -> str:
    for end in ("", '"', "'"):  # the quotes of the last word may still be open
        try:
            parts = shlex.split(word + end)
        except ValueError:
            continue
        return parts[0] if parts else ""
    return word


def _read(tokens: Sequence[str], shape: Shape) -> _Line:
    line = _Line()
    for number, word in enumerate(tokens):
        if number == 0 and word in _SPECIAL:
            line.path = "run"
        elif number == 0 and word == "help":
            continue
        elif line.takes is not None:
            _keep(line, line.takes, word)
            line.takes = None
        elif word == "--":
            line.no_options = True
        elif word.startswith("-") and len(word) > 1 and not line.no_options:
            _read_option(line, word, shape)
        elif not line.places and word in shape[line.path]["commands"]:
            line.path = f"{line.path} {word}".strip()
        else:
            kinds = shape[line.path]["arguments"]
            _keep(line, kinds[min(line.places, len(kinds) - 1)] if kinds else "text", word)
            line.places += 1
    return line


def _read_option(line: _Line, word: str, shape: Shape) -> None:
    name, equals, value = word.partition("=")
    option = _option(line, shape, name)
    if option is None:
        return
    line.used.update(() if option["many"] else option["names"])
    if equals:
        _keep(line, option["takes"], value)
    else:
        line.takes = option["takes"] or None  # a flag takes no value


def _option(line: _Line, shape: Shape, name: str) -> Mapping[str, Any] | None:
    return next((option for option in _options(line, shape) if name in option["names"]), None)


def _options(line: _Line, shape: Shape) -> Sequence[Mapping[str, Any]]:
    return [*shape[line.path]["options"], *shape[""]["everywhere"]]


def _option_names(line: _Line, shape: Shape) -> Iterator[Choice]:
    for option in _options(line, shape):
        if not line.used & set(option["names"]):
            yield from ((str(name), str(option["about"])) for name in option["names"])


def _keep(line: _Line, kind: Any, value: str) -> None:
    if isinstance(kind, str):
        line.values[kind] = value


def _of_kind(kind: Any, begun: str, line: _Line, ask: Ask) -> Completions:
    """Return values of a kind: a list, a path, or known names."""
    if isinstance(kind, list):
        return Completions(choices=_fitting([(str(value), "") for value in kind], begun))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType] - JSON
    if kind == "model" and begun.startswith(("rehearsal:", "cassette:")):
        return Completions("file")
    if kind in {"file", "dir"}:
        return Completions("file" if kind == "file" else "dir")
    if kind in {"", "text"}:
        return Completions()
    return Completions(choices=_fitting(ask(kind, line.values), begun))


def _fitting(choices: Iterator[Choice] | Sequence[Choice], begun: str) -> tuple[Choice, ...]:
    """Return the choices with this beginning, without duplicates, that a shell can show on one line."""
    fitting = {word: about for word, about in choices if word.startswith(begun) and _SAFE.fullmatch(word)}
    return tuple((word, _printable(about)) for word, about in fitting.items())


def _printable(about: str) -> str:
    text = " ".join(about.split())
    return "".join(char if char.isprintable() else "?" for char in text)[:_ABOUT]

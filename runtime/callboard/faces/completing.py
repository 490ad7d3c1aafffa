"""What may stand at the end of a command line that is being typed. Pure: the shape of the commands comes in, and a way
to ask for names.

The shape (`data/commands.json`, written by `faces/cli/shape.py`) is there because importing the commands takes longer
than a person waits after the tab key. A word that is not understood is passed over: nothing here fails.

It refuses to know a shell (`faces/cli/completion.py`) and the store.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Values = Literal["values", "file", "dir"]
Choice = tuple[str, str]
"""A word that may stand there, and a few words about it."""
Ask = Callable[[str, Mapping[str, str]], Sequence[Choice]]
"""Names of a kind (`session`, `agent`, `request` ...), with what the line says so far: `session`, `dir`."""
Shape = Mapping[str, Any]

_SAFE = re.compile(r"[\w.:@/+=,-]+")
"""What needs no quotes in any shell; anything else is not offered."""
_ABOUT = 60
_SPECIAL = ("-p", "--print")


@dataclass(frozen=True, slots=True)
class Offer:
    """What fits. `file`, `dir`: the shell completes a path by itself."""

    kind: Values = "values"
    choices: tuple[Choice, ...] = ()


@dataclass(slots=True)
class _Line:
    """What the words before the last one say."""

    path: str = ""
    said: dict[str, str] = field(default_factory=dict[str, str])
    """The values of options and arguments by their kind."""
    used: set[str] = field(default_factory=set[str])
    places: int = 0
    """Arguments that are there."""
    takes: Any = None
    """What the option takes whose value comes next; None: no such option."""
    no_options: bool = False


def offered(words: Sequence[str], shape: Shape, ask: Ask) -> Offer:
    """What may stand in the place of the last of the words; the command's own name is not among them."""
    *before, current = list(words) or [""]
    line = _read(before, shape)
    if line.takes is not None:
        return _of_kind(line.takes, current, line, ask)
    name, equals, begun = current.partition("=")
    if current.startswith("--") and equals and (found := _option(line, shape, name)):
        return _of_kind(found["takes"], begun, line, ask)
    node = shape[line.path]
    if current.startswith("-") and not line.no_options:
        return Offer(choices=_fitting(_option_names(line, shape), current))
    choices: list[Choice] = []
    if not line.places:
        choices += [(one, str(shape[f"{line.path} {one}".strip()]["about"])) for one in node["commands"]]
    kinds: list[Any] = node["arguments"]
    if kinds and (line.places < len(kinds) or node["many"]):
        of_argument = _of_kind(kinds[min(line.places, len(kinds) - 1)], current, line, ask)
        if of_argument.kind != "values" and not choices:
            return of_argument
        choices += of_argument.choices
    return Offer(choices=_fitting(choices, current))


def shell_words(words: Sequence[str], at: int) -> list[str]:
    """The words up to the one under the cursor as the command would get them: without quotes, and `--name=value`,
    `rehearsal:FILE` joined again where a shell has cut them at `=` and `:` (bash). The first, the command, is gone."""
    joined: list[str] = []
    glue = False
    for word in words[1 : at + 1]:
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
    for end in ("", '"', "'"):  # the last word may be in the middle of its quotes
        try:
            parts = shlex.split(word + end)
        except ValueError:
            continue
        return parts[0] if parts else ""
    return word


def _read(words: Sequence[str], shape: Shape) -> _Line:
    line = _Line()
    for number, word in enumerate(words):
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
    found = _option(line, shape, name)
    if found is None:
        return
    line.used.update(() if found["many"] else found["names"])
    if equals:
        _keep(line, found["takes"], value)
    else:
        line.takes = found["takes"] or None  # a flag takes nothing


def _option(line: _Line, shape: Shape, name: str) -> Mapping[str, Any] | None:
    return next((one for one in _options(line, shape) if name in one["names"]), None)


def _options(line: _Line, shape: Shape) -> Sequence[Mapping[str, Any]]:
    return [*shape[line.path]["options"], *shape[""]["everywhere"]]


def _option_names(line: _Line, shape: Shape) -> Iterator[Choice]:
    for one in _options(line, shape):
        if not line.used & set(one["names"]):
            yield from ((str(name), str(one["about"])) for name in one["names"])


def _keep(line: _Line, kind: Any, value: str) -> None:
    if isinstance(kind, str):
        line.said[kind] = value


def _of_kind(kind: Any, begun: str, line: _Line, ask: Ask) -> Offer:
    """Values of a kind: a list of them, a path, or names that somebody knows."""
    if isinstance(kind, list):
        return Offer(choices=_fitting([(str(one), "") for one in kind], begun))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]  JSON
    if kind == "model" and begun.startswith(("rehearsal:", "cassette:")):
        return Offer("file")
    if kind in {"file", "dir"}:
        return Offer("file" if kind == "file" else "dir")
    if kind in {"", "text"}:
        return Offer()
    return Offer(choices=_fitting(ask(kind, line.said), begun))


def _fitting(choices: Iterator[Choice] | Sequence[Choice], begun: str) -> tuple[Choice, ...]:
    """Those that begin so, each once, with words that a shell can show on one line."""
    fitting = {word: about for word, about in choices if word.startswith(begun) and _SAFE.fullmatch(word)}
    return tuple((word, _shown(about)) for word, about in fitting.items())


def _shown(about: str) -> str:
    words = " ".join(about.split())
    return "".join(char if char.isprintable() else "?" for char in words)[:_ABOUT]

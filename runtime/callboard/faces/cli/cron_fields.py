"""The options of `cron add` and `cron edit`: every field of a schedule, as text.

What they mean is read by `core.schedule.fields`, as of files and of an agent's tool.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from callboard.core.schedule.fields import FieldWrong
from callboard.words.errors import UsageError

Command = TypeVar("Command", bound=Callable[..., Any])

_KINDS = "cost_usd, tokens, steps or seconds"
_OPTIONS: Sequence[tuple[str, str, str, bool]] = (
    ("--name", "NAME", "What to call it in place of its id.", False),
    ("--timezone", "ZONE", "Such as Europe/Berlin; left out: UTC.", False),
    ("--misfire", "skip|latest|all", "What runs of the times that were missed; left out: latest.", False),
    ("--misfire-cap", "N", "With --misfire all: the newest N of them (10).", False),
    ("--window", "SPAN", "A missed run may be so late and still run (1h).", False),
    ("--overlap", "skip|queue|replace|parallel", "While an earlier fire is under way; left out: skip.", False),
    ("--context", "lead|fresh|own", "In whose conversation: the lead's, a new agent's, one of its own.", False),
    ("--agent-type", "TYPE", "Of its agents, with --context fresh (which it means) or own.", False),
    ("--deliver", "turn|step", "As a turn of its own, or into the turn under way.", False),
    ("--jitter", "SPAN", "Put each fire off by up to so much (1m); 0: never.", False),
    ("--deadline", "SPAN", "Stop the turn of a fire after so long.", False),
    ("--retries", "N", "Try a fire that failed again, up to N times.", False),
    ("--budget", "KIND=N", f"At most so much in all: {_KINDS}; repeatable.", True),
    ("--fire-budget", "KIND=N", "The same for each fire.", True),
    ("--permission-mode", "MODE", "Of its turns, at most what scheduled turns have.", False),
    ("--allow", "RULE", "Only what these permission rules name runs unasked, as in Bash(npm test); repeatable.", True),
    ("--ask", "RULE", "A permission rule: ask first.", True),
    ("--deny", "RULE", "A permission rule: refuse.", True),
    ("--expires", "TIME", "No fire from then on: 2026-12-01T09:00, or a span from now (30d).", False),
    ("--max-runs", "N", "It ends after so many fires.", False),
)


def fields(command: Command) -> Command:
    """Add an option for each field."""
    for name, metavar, help_, many in reversed(_OPTIONS):
        command = click.option(name, metavar=metavar, help=help_, multiple=many)(command)
    return command


def budgets(command: Command) -> Command:
    """Add `--budget` and `--fire-budget`."""
    for name, metavar, help_, many in reversed([one for one in _OPTIONS if one[0].endswith("budget")]):
        command = click.option(name, metavar=metavar, help=help_, multiple=many)(command)
    return command


def fields_given(asked: Mapping[str, object]) -> dict[str, object]:
    """Of the options of a command those that name a field and were given."""
    known = {name.removeprefix("--").replace("-", "_") for name, _, _, _ in _OPTIONS}
    return {name: value for name, value in asked.items() if name in known and value not in (None, ())}


@contextmanager
def told_by_option(**names: str) -> Generator[None]:
    """A field that is wrong is told by its option; `names`: what some are called instead (`cron`: EXPR). Raises
    `UsageError`."""
    try:
        yield
    except FieldWrong as wrong:
        option = names.get(wrong.field, f"--{wrong.field.replace('_', '-')}")
        raise UsageError(f"{option}: {wrong.what}") from wrong

"""A command line without a command that means `run`: it begins with an option that only `run` has. Imports click only.

So `callboard -p "Mend it"` is a run, and so is what a program writes that drives one:
`callboard --output-format stream-json --verbose --input-format stream-json`.
"""

from __future__ import annotations

from collections.abc import Sequence

from callboard.faces.cli.client_options import option_names

_RUNS = frozenset(
    {
        *("-p", "--print", "--output-format", "--allowed-tools", "--allowedTools", "--disallowed-tools"),
        *("--disallowedTools", "--append-system-prompt", "--max-turns", "--max-budget-usd", "--max-seconds"),
        *option_names(),
    }
)
_VALUED = frozenset({"-C", "--cwd", "--color", "-r", "--resume", "--session", "--model", "--permission-mode", "--wait"})
"""Options before a command that take the next word."""


def as_run(args: Sequence[str]) -> list[str]:
    """The line with its command: `run` where an option of it stands before any other word; as it is else."""
    at = 0
    while at < len(args) and args[at].startswith("-") and args[at] not in ("-", "--"):
        name, equals, _ = args[at].partition("=")
        if name in _RUNS:
            return ["run", *args]
        at += 2 if name in _VALUED and not equals else 1
    return list(args)

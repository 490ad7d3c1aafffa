"""`policy explain`, `test`, `lint`, `log`: what is allowed, asked and refused, before and after it happens. Reads only.

Nothing here asks anybody, runs a tool or a hook, or changes what is in force.
"""

from __future__ import annotations

import json
import sys

import click

from callboard.explaining import Explaining
from callboard.faces.cli.options import Given, everywhere
from callboard.words.errors import UsageError


@click.group()
def policy() -> None:
    """Explain, test and lint what is allowed; list what was decided."""


@policy.command()
@click.option("--stdin", is_flag=True, help="One JSON call a line on stdin, one JSON decision a line on stdout.")
@everywhere
@click.pass_obj
def explain(given: Given, /, stdin: bool) -> None:
    """Say what would be decided of a call, and why. Runs nothing.

    --stdin reads {"tool", "input", "mode", "rules": {"allow", "ask", "deny"}, "cwd"} and answers {"decision", "reason",
    "by"}, until the input ends. Only the rules of the call and the built-in ones count there.
    """
    if not stdin:
        raise UsageError("say which: --stdin")
    _answer_lines(Explaining(given.workspace))


def _answer_lines(explaining: Explaining) -> None:
    """One answer for each line, whatever it holds, written before the next one is read."""
    for line in sys.stdin.buffer:
        verdict = explaining.line(line)
        answer = {"decision": verdict.decision, "reason": verdict.why, "by": verdict.rule}
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()

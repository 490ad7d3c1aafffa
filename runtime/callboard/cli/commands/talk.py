"""The bare `callboard`: conversion of its options into a session at a prompt line."""

from __future__ import annotations

import importlib
import shutil
import sys
from typing import Any

import anyio

from callboard.adapters.processes.tool_ancestry import refuse_inside_tool
from callboard.cli.commands.client_flags import with_client_flags
from callboard.cli.commands.options import Invocation, is_resumed
from callboard.cli.commands.output import notice_of, print_notes, terminal_of
from callboard.cli.commands.session_options import session_options
from callboard.cli.terminal.keyboard import Keyboard, person_is_there
from callboard.cli.terminal.terminal import block
from callboard.cli.views.events import first_line, shorten
from callboard.sessions.inspect.inspector import list_sessions
from callboard.sessions.inspect.resources import when
from callboard.types.errors import UsageError

_CHOICES = 20
"""Limit of the sessions that `--resume` without a value offers."""


def talk(invocation: Invocation, /, **values: Any) -> int:
    """Open a prompt line, if there is a terminal. `values`: the options of the bare `callboard`, or those of `run`."""
    refuse_inside_tool("Talking to the lead")
    if not (person_is_there() and sys.stdout.isatty()):
        raise UsageError('the prompt line needs a terminal. For scripts: callboard run "what to do"')
    is_resumed(values)
    if values["resumed"] == "":  # `--resume` without a value
        values["resumed"] = _chosen_session(invocation)
    goes_on = is_resumed(values)
    options = session_options(invocation, values, resume=goes_on, session=values["resumed"])
    options, notes = with_client_flags(values, options)
    # prompt_toolkit takes 100 ms to import, and a headless run does not need it.
    repl = importlib.import_module("callboard.cli.repl.repl")
    with terminal_of(invocation) as terminal:
        print_notes(notes, terminal)
        attach = "never" if options.identity.take_over is not None else "if hosted"
        return repl.run_repl(
            options, terminal, verbose=invocation.verbose, attach=attach, first=values.get("prompt") or ""
        )


def _chosen_session(invocation: Invocation) -> str:
    """Let the person choose one of the newest sessions by its number, and return its id. Raises `UsageError`."""
    rows = anyio.run(list_sessions, invocation.workspace, notice_of(invocation))
    if not rows:
        raise UsageError("there is no session in this workspace yet: start one with `callboard`")
    rows = ([row for row in rows if row.prompt] or rows)[:_CHOICES]
    width = shutil.get_terminal_size().columns - 1
    texts = [f"{number:>2}  {when(row.created_at)}  {row.prompt}" for number, row in enumerate(rows, 1)]
    page = block("\n".join(shorten(first_line(text), width) for text in texts))
    question = f"continue which session? [1-{len(rows)}, Enter: 1] "
    with terminal_of(invocation) as terminal:
        answer = anyio.run(Keyboard(terminal).ask, page, question, lambda: "no session was chosen")
    if answer is None:
        raise UsageError("no session was chosen")
    number = answer.strip() or "1"
    if not number.isdecimal() or not 1 <= int(number) <= len(rows):
        raise UsageError(f"{number!r} is not the number of a listed session; `callboard sessions` lists all")
    return rows[int(number) - 1].id

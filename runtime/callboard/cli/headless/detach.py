"""`run --detach`: start a session that a serving host runs, and print its id."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import anyio

from callboard.cli.terminal.terminal import Terminal, block
from callboard.sessions.detached import start_detached
from callboard.sessions.options import SessionOptions
from callboard.types.errors import UsageError

_ONLY_HERE = ("record", "live_tools", "with_schedules", "yes", "json_schema", "take_over", "mcp_config")
"""Options that need the process of the run."""


def run_detached(options: SessionOptions, prompt: str, values: Mapping[str, Any], terminal: Terminal) -> int:
    """Start the session and print its id to stdout. Raises `UsageError` for options that have no effect then."""
    for name in _ONLY_HERE:
        if values.get(name):
            raise UsageError(
                f"--{name.replace('_', '-')} has no effect with --detach: another process runs the session"
            )
    if options.identity.resume:
        raise UsageError("--detach begins a session: `callboard send --session ID` gives a prompt to an existing one")
    started = anyio.run(start_detached, replace(options, identity=replace(options.identity, prompt=prompt)))
    for note in started.notes:
        terminal.terminal_print(block(f"callboard: {note}", "warn"))
    if started.waits:
        text = f"callboard: the session is stored and waits for a host: {started.waits}"
        terminal.terminal_print(block(text, "warn"))
    if values["output_format"] == "text":
        terminal.result(started.session)
    else:
        terminal.record(json.dumps({"session_id": started.session, "waits": started.waits}))
    return 0

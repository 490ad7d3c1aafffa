"""`serve`: fires the schedules of a workspace without a terminal, a line for each thing that happens.

It refuses to ask anybody: who wants to see or answer attaches from another terminal.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import anyio
import click

from callboard.faces.cli.options import Given, as_json, everywhere, refuse_tools
from callboard.faces.cli.run import terminal_of
from callboard.faces.terminal import Style, Terminal, block
from callboard.serving import Serving, Told, WouldHost, would_host
from callboard.serving import serve as serving
from callboard.words.values import Json

_STYLES: dict[str, Style] = {"trouble": "bad", "paused": "warn", "missed": "warn", "note": "dim"}
_LOUD = frozenset({"trouble", "paused", "missed"})
"""Lines that --quiet leaves."""
_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


@click.command()
@click.option("--once", is_flag=True, help="Fire what is due now, wait for its end, and exit: for a system's cron.")
@click.option("--dry-run", is_flag=True, help="List what would be hosted and the next fire times; fire nothing.")
@click.option("--model", metavar="NAME", help="Of the session of schedule files; others keep their own.")
@click.option("--trust", is_flag=True, help="Use what this workspace brings: hooks, agents, schedules, settings.")
@as_json
@everywhere
@click.pass_obj
def serve(given: Given, /, json_: bool, dry_run: bool, **asked: Any) -> int:
    """Fire the schedules of a workspace, without a terminal.

    Each session that has schedules is hosted while nobody else hosts it, and left when a person takes it over. Another
    terminal can attach to it, look and answer. What is asked and not answered in time ends in no.

    Any number may run beside each other: each time fires once, and where one dies another goes on. Lines go to stderr,
    with --json objects to stdout. SIGTERM and Ctrl-C leave in order, SIGHUP reads the settings again.
    """
    refuse_tools("Serving schedules")
    what = Serving(given.workspace, trust=bool(asked["trust"]), model=asked["model"], once=bool(asked["once"]))
    with terminal_of(given) as terminal:
        if dry_run:
            _show(terminal, anyio.run(would_host, what), json_=json_)
            return 0
        return anyio.run(_Serve(what, _Lines(terminal, quiet=given.quiet, json_=json_)).run)


@dataclass(frozen=True, slots=True)
class _Lines:
    """Where what is told goes."""

    terminal: Terminal
    quiet: bool
    json_: bool

    def tell(self, told: Told) -> None:
        """One line."""
        if self.json_:
            self.terminal.record(json.dumps(_object(told)))
        elif not self.quiet or told.what in _LOUD:
            about = " ".join(one for one in (told.session, told.schedule) if one)
            words = f"{_stamp(told.at)}  {told.what:<8} {about}{': ' if about else ''}{told.words}"
            line = " ".join(words.splitlines())
            self.terminal.terminal_print(block(line, _STYLES.get(told.what, "plain")))


def _object(told: Told) -> Json:
    of = {"session": told.session} | ({"schedule": told.schedule} if told.schedule else {}) if told.session else {}
    return {"at": told.at, "event": told.what, **of, "text": told.words, **told.more}


class _Serve:
    """One `callboard serve`, from its start to a signal."""

    def __init__(self, what: Serving, lines: _Lines) -> None:
        self._what, self._lines = what, lines
        self._left: int | None = None
        self._again = True

    async def run(self) -> int:
        """The exit code. SIGHUP begins anew, with the settings as they are then."""
        code = 0
        while self._again:
            self._again = False
            async with anyio.create_task_group() as group:
                await group.start(self._heed, group.cancel_scope)
                code = await serving(self._what, self._lines.tell)
                group.cancel_scope.cancel()
        return code if self._left is None else self._left

    async def _heed(self, scope: anyio.CancelScope, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            task_status.started()
            async for received in signals:
                self._left, self._again = _CODES.get(received), received == signal.SIGHUP
                words = "reads its settings again" if self._again else f"leaves at {received.name}: nothing is lost"
                self._lines.tell(Told("serving", words))
                scope.cancel()
                return


def _show(terminal: Terminal, found: Sequence[WouldHost], *, json_: bool) -> None:
    """What would be hosted, for a person or as JSON."""
    if json_:
        rows = [
            {
                "session": one.session,
                "host": one.host,
                "schedules": [
                    {"id": each.id, "name": each.name, "cron": each.cron, "timezone": each.timezone, "next": wake}
                    for each, wake in one.schedules
                ],
            }
            for one in found
        ]
        terminal.record(json.dumps(rows, indent=2))
        return
    lines = [line for one in found for line in _told(one)]
    terminal.rows(block("\n".join(lines or ["no session has a schedule that fires: `callboard cron add` makes one"])))


def _told(one: WouldHost) -> list[str]:
    hosted = f"hosted by process {one.host}, which fires them" if one.host is not None else "would be hosted"
    rows = [
        f"  {_stamp(wake) if wake is not None else 'cannot be read':<19}  {each.name or each.id}  {each.cron}"
        f" ({each.timezone})"
        for each, wake in one.schedules
    ]
    return [f"session {one.session}: {hosted}", *rows]


def _stamp(at: float) -> str:
    """A moment in the zone of the machine."""
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")

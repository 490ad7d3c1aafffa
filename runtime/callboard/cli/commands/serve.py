"""`serve`: the schedules of a workspace without a terminal, with one line of output for each event.

The process asks no questions: attach from another terminal to watch or answer.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from datetime import datetime
from typing import Any

import anyio
import click

from callboard.adapters.processes.tool_ancestry import refuse_inside_tool
from callboard.adapters.storage.patience import PROCESS_ENDS, one_command
from callboard.adapters.system.open_files import raise_limit
from callboard.cli.commands.options import FiniteRange, Invocation, as_json, everywhere, refuse_idle
from callboard.cli.commands.output import notice_of, terminal_of
from callboard.cli.terminal.hangup import HANGUP
from callboard.cli.terminal.page_process import page_beside
from callboard.cli.terminal.signals import next_hangup
from callboard.cli.terminal.terminal import Block, Style, Terminal, block
from callboard.core.placement import read_labels
from callboard.sessions.serve import UPGRADED, DryRun, HostCandidate, LogLine, Serving, until_replaced, would_host
from callboard.sessions.serve import serve as serve_schedules
from callboard.types.errors import UsageError
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json

_STYLES: dict[str, Style] = {"trouble": "bad", "paused": "warn", "missed": "warn", "waits": "warn", "note": "dim"}
_LOUD = frozenset({"trouble", "paused", "missed", "waits"})
"""Kinds of lines that --quiet keeps."""
_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


@click.command()
@click.option("--once", is_flag=True, help="Fire what is due now, wait for its end, and exit: for a system's cron.")
@click.option("--dry-run", is_flag=True, help="List what would be hosted and the next fire times; fire nothing.")
@click.option("--model", metavar="NAME", help="Model of the session for schedule files; other sessions keep theirs.")
@click.option(
    "--label",
    "labels",
    metavar="KEY=VALUE",
    multiple=True,
    help="Label of this host for `run --placement`. Repeatable.",
)
@click.option(
    "--hand-over",
    "handing_over",
    type=FiniteRange(min=0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Time that a step may take to its end at SIGTERM or `hosts drain`.",
)
@click.option("--sessions", type=click.IntRange(min=1), metavar="N", help="Most sessions to host at once.")
@click.option("--web", "web_", is_flag=True, help="Also serve the web page, as `callboard web` does.")
@click.option("--port", type=click.IntRange(0, 65_535), metavar="N", help="Port of --web, as in `callboard web`.")
@click.option("--trust", is_flag=True, help="Trust this workspace: use its hooks, agents, schedules and settings.")
@as_json
@everywhere
@click.pass_obj
def serve(invocation: Invocation, /, json_: bool, dry_run: bool, **values: Any) -> int:
    """Fire the schedules of a workspace, without a terminal.

    Each session with schedules is hosted while no other process hosts it, and released when a person takes it over.
    So is each session of `run --detach`, and each whose host died, unless a person sat there. Another terminal can
    attach to it, watch and answer. Requests that no one answers in time are rejected.

    Any number of processes may run, on any machine of the store: each slot fires once, and if one process dies, another
    continues. It prints lines to stderr, or with --json objects to stdout. SIGTERM hands the sessions over at the end
    of their steps; Ctrl-C and closing the terminal shut it down at once, in order; SIGHUP rereads the settings.
    """
    refuse_inside_tool("Serving schedules", service=True)
    port: int | None = values["port"]
    if port is not None and not values["web_"]:
        raise UsageError("--port is that of the web page: add --web")
    if dry_run:
        refuse_idle(("once", "web_", "handing_over"), "with --dry-run, which serves nothing")
    if values["once"]:
        refuse_idle(("handing_over",), "with --once, which ends by itself")
    serving = Serving(
        invocation.workspace,
        trust=bool(values["trust"]),
        model=values["model"],
        once=bool(values["once"]),
        labels=read_labels(values["labels"], "--label"),
        sessions=values["sessions"] or 0,
        handing_over=values["handing_over"],
    )
    with terminal_of(invocation) as terminal:
        if dry_run:
            _show(terminal, anyio.run(would_host, serving, notice_of(invocation)), json_=json_)
            return 0
        put_back = raise_limit()
        try:
            lines = _Lines(terminal, quiet=invocation.quiet, json_=json_)
            return anyio.run(_Serve(serving, lines, page_options=_page_options(web=values["web_"], port=port)).run)
        finally:
            put_back()


def _page_options(*, web: bool, port: int | None) -> Sequence[str] | None:
    """Return the options of the web page; None without one."""
    if not web:
        return None
    return () if port is None else ("--port", str(port))


@dataclass(frozen=True, slots=True)
class _Lines:
    """Output of events on a terminal."""

    terminal: Terminal
    quiet: bool
    json_: bool

    def tell(self, event: LogLine) -> None:
        """Print one line."""
        if self.json_:
            self.terminal.record(json.dumps(_object(event)))
        elif not self.quiet or event.kind in _LOUD:
            about = " ".join(part for part in (event.session, event.schedule) if part)
            text = f"{_stamp(event.at)}  {event.kind:<8} {about}{': ' if about else ''}{event.text}"
            line = " ".join(text.splitlines())
            self.terminal.terminal_print(block(line, _STYLES.get(event.kind, "plain")))


def _object(event: LogLine) -> Json:
    of = {"session": event.session} | ({"schedule": event.schedule} if event.schedule else {}) if event.session else {}
    return {"at": event.at, "event": event.kind, **of, "text": event.text, **event.details}


class _Serve:
    """One `callboard serve`, from its start to a signal."""

    def __init__(self, serving: Serving, lines: _Lines, *, page_options: Sequence[str] | None = None) -> None:
        self._leaving = anyio.Event()
        self._handed_over: int | None = None
        """Exit code once the sessions are handed over at a signal."""
        self._serving = replace(serving, leaving=self._leaving)
        self._lines = lines
        self._page_options = page_options
        self._left: int | None = None
        self._again = True
        self._scope: anyio.CancelScope
        """Scope of the current serving."""

    async def run(self) -> int:
        """Serve and return the exit code. SIGHUP starts again with the new settings."""
        code = 0
        self._scope = anyio.CancelScope()
        with one_command():
            async with anyio.create_task_group() as group:
                await group.start(self._take_signals)
                group.start_soon(self._take_hangups)
                group.start_soon(self._take_upgrade)
                async with self._page():
                    code = await self._serve()
                group.cancel_scope.cancel()
        codes = (self._left, self._handed_over, code)
        return next(each for each in codes if each is not None)

    async def _serve(self) -> int:
        code = 0
        while self._again:
            self._again = False
            with self._scope:
                code = await serve_schedules(self._serving, self._lines.tell)
            self._scope = anyio.CancelScope()
        return code

    def _page(self) -> AbstractAsyncContextManager[None]:
        """Return the web page, or nothing. Lines that may be kept in a log have its address without the token."""
        if self._page_options is None:
            return nullcontext()
        kept = self._lines.json_ or not sys.stderr.isatty()
        return page_beside(self._serving.workspace, self._show_page, *self._page_options, address_only=kept)

    def _show_page(self, page: Block) -> None:
        for line in page.lines:
            self._lines.tell(LogLine("web", line.text))

    async def _take_signals(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Hand the sessions over at the first SIGTERM. Leave at SIGINT or a second SIGTERM.

        Any later signal ends the process at once.
        """
        with anyio.open_signal_receiver(*_CODES) as signals:
            task_status.started()
            async for received in signals:
                if received == signal.SIGTERM and self._handed_over is None and not self._serving.once:
                    self._hand_over()
                    continue
                self._leave(_CODES[received], received.name)
                return

    async def _take_hangups(self) -> None:
        """Start again at each SIGHUP, and leave when the terminal is gone.

        This includes a SIGHUP during the start or another reload.
        """
        while await next_hangup() == "signal":
            if self._left is None and self._handed_over is None:
                self._again = True
                self._lines.tell(LogLine("serving", "reads its settings again"))
                self._scope.cancel()
        self._leave(HANGUP, "the end of its terminal")

    async def _take_upgrade(self) -> None:
        """Leave when another version of Callboard is installed, because new child processes would use that version."""
        text = await until_replaced()
        if self._left is None:
            self._lines.tell(LogLine("trouble", text))
        self._leave(UPGRADED, "the upgrade")

    def _leave(self, code: int, cause: str) -> None:
        if self._left is not None:
            return
        self._left = code
        self._again = False
        self._lines.tell(LogLine("serving", f"leaves at {cause}: nothing is lost"))
        PROCESS_ENDS.set()
        self._scope.cancel()

    def _hand_over(self) -> None:
        """Leave when each session has come to the end of its step."""
        self._again = False
        self._lines.tell(LogLine("serving", "hands its sessions over at SIGTERM; a second one leaves at once"))
        self._handed_over = _CODES[signal.SIGTERM]
        self._leaving.set()


def _show(terminal: Terminal, dry_run: DryRun, *, json_: bool) -> None:
    """Show the sessions to host, for a user or as JSON, and the faults of schedule files."""
    if json_:
        rows = [
            {
                "session": row.session or None,
                "host": row.host,
                "schedules": [
                    {"id": each.id, "name": each.name, "cron": each.cron, "timezone": each.timezone, "next": wake}
                    for each, wake in row.schedules
                ],
            }
            for row in dry_run.sessions
        ]
        terminal.record(json.dumps(rows, indent=2))
    else:
        lines = [line for row in dry_run.sessions for line in _session_lines(row)]
        nothing = "no session has a schedule that fires: `callboard cron add` creates one"
        terminal.rows(block("\n".join(lines or [nothing])))
    for line in dry_run.faults:
        terminal.terminal_print(block(line, "warn"))


def _session_lines(row: HostCandidate) -> list[str]:
    if not row.session:
        heading = "a new session for schedule files: would be created and hosted"
    elif row.host is None:
        heading = f"session {row.session}: would be hosted"
    else:
        heading = f"session {row.session}: hosted by process {row.host}, which fires them"
    rows = [
        f"  {_stamp(wake) if wake is not None else 'cannot be read':<19}  {each.name or each.id}  {each.cron}"
        f" ({each.timezone})"
        for each, wake in row.schedules
    ]
    return [heading, *rows]


def _stamp(at: float) -> str:
    """Return a time in the zone of the machine."""
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")

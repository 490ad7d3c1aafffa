"""`web`: the open requests and the sessions of this workspace in a browser, until Ctrl-C."""

from __future__ import annotations

import html
import os
import signal
import webbrowser
from collections.abc import Generator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path

import anyio
import anyio.to_thread
import click

from callboard.cli.commands.options import Invocation, everywhere, refuse_tools
from callboard.cli.commands.output import notice_of, terminal_of
from callboard.cli.terminal.qr import qr_block
from callboard.cli.terminal.terminal import Terminal, block, plain
from callboard.sessions.places import find_places
from callboard.types.errors import UsageError
from callboard.web.app import PageServer, serving_page
from callboard.web.guard import Refusal

_PORT = 7333
_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


@click.command()
@click.option("--open", "open_", is_flag=True, help="Open the page in your browser.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), metavar="N", default=_PORT, show_default=True, help="0: any free port."
)
@click.option("--qr", is_flag=True, help="Also show the address as a QR code.")
@click.option("--bind", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="An address of this machine.")
@everywhere
@click.pass_obj
def web(invocation: Invocation, /, *, open_: bool, qr: bool, port: int, bind: str) -> int:
    """Show the open requests and the sessions of this workspace in a browser.

    Prints an address that signs in one browser, then the next one, until Ctrl-C. The page hosts no session: it reads
    what hosts write, and your answers go the same way as those of `callboard approve`. Only this machine reaches it,
    and processes of agents are refused.
    """
    refuse_tools("Serving the page")
    _check_address(bind)
    with terminal_of(invocation) as terminal:
        return anyio.run(_Web(invocation, terminal, open_=open_, qr=qr).run, bind, port)


def _check_address(bind: str) -> None:
    try:
        local = ip_address(bind).is_loopback
    except ValueError:
        raise UsageError(f"--bind {bind}: give an IP address, such as 127.0.0.1 or ::1") from None
    if not local:
        raise UsageError(
            f"--bind {bind}: the page has no TLS yet, so that other machines could read what you send. Use 127.0.0.1, "
            "and reach it from another machine through SSH: ssh -L 7333:127.0.0.1:7333 HOST"
        )


class _Web:
    """One `callboard web`, from its start to a signal."""

    def __init__(self, invocation: Invocation, terminal: Terminal, *, open_: bool, qr: bool) -> None:
        self._invocation = invocation
        self._terminal = terminal
        self._open = open_
        self._qr = qr
        self._serving: PageServer | None = None

    async def run(self, bind: str, port: int) -> int:
        """Serve until a signal, and return the exit code."""
        page = serving_page(
            self._invocation.workspace,
            bind,
            port,
            signed_in=self._tell_address,
            refused=self._tell_refusal,
            notice=notice_of(self._invocation),
        )
        try:
            async with page as serving:
                self._serving = serving
                self._tell_code(serving)
                self._tell_address()
                if not self._open:
                    return await _next_signal()
                with _redirecting_file(self._invocation.workspace, serving) as file:
                    await anyio.to_thread.run_sync(webbrowser.open, file.as_uri())
                    return await _next_signal()
        except OSError as failed:
            raise UsageError(f"--port {port}: {failed.strerror}: choose another port, or 0 for any") from failed

    def _tell_address(self) -> None:
        if self._serving is not None:
            self._terminal.rows(block(f"open {self._serving.address}", "strong"))
            if self._qr:
                self._terminal.rows(qr_block(self._serving.address))

    def _tell_code(self, serving: PageServer) -> None:
        text = f"code for changes from a browser in a sandbox: {serving.access.code}. Ctrl-C ends the page"
        self._terminal.terminal_print(block(text, "dim"))

    def _tell_refusal(self, refusal: Refusal) -> None:
        owner = refusal.owner
        text = f"refused {refusal.method} {refusal.path} of process {owner.pid} ({owner.program}): {owner.reason}"
        self._terminal.terminal_print(block(plain(text), "bad"))


async def _next_signal() -> int:
    """Wait for SIGINT or SIGTERM, and return its exit code."""
    with anyio.open_signal_receiver(*_CODES) as signals:
        async for received in signals:
            return _CODES[received]
    raise AssertionError("signals do not end")


@contextmanager
def _redirecting_file(workspace: Path, serving: PageServer) -> Generator[Path]:
    """Yield a file that leads a browser to the address, so that no command line contains the token.

    Only the user can read it, and no agent: it is in the state folder. It exists while the block runs.
    """
    state = find_places(workspace, writable=False).state
    file = state / f"web-{os.getpid()}.html"
    address = html.escape(serving.address)
    file.touch(0o600)
    file.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={address}">', "utf-8")
    try:
        yield file
    finally:
        file.unlink(missing_ok=True)

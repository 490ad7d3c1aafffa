"""`web`: the open requests and the sessions of this workspace in a browser, until Ctrl-C."""

from __future__ import annotations

import getpass
import hashlib
import html
import os
import secrets
import signal
import sys
import webbrowser
from collections.abc import Generator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import click

from callboard.adapters.processes.tool_ancestry import refuse_inside_tool
from callboard.cli.commands.options import Invocation, everywhere, refuse_idle
from callboard.cli.commands.output import notice_of, terminal_of
from callboard.cli.terminal.qr import qr_block
from callboard.cli.terminal.terminal import Terminal, block, plain
from callboard.cli.views.settings import SettingsEditor
from callboard.sessions.places import find_places
from callboard.sessions.stores import own_settings
from callboard.types.errors import UsageError
from callboard.types.late_pattern import late_pattern
from callboard.web.app import PageOptions, PageServer, serving_page
from callboard.web.guard import Refusal
from callboard.web.passwords import LEAST_LENGTH, password_hash
from callboard.web.peer import PROXY_HEADER

_PORT = 7333
_NAME = late_pattern(r"[A-Za-z0-9_-]{1,40}")
_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


@click.command()
@click.option("--open", "open_", is_flag=True, help="Open the page in your browser.")
@click.option("--qr", is_flag=True, help="Also show the address as a QR code.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), metavar="N", default=_PORT, show_default=True, help="0: any free port."
)
@click.option("--bind", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="An address of this machine.")
@click.option("--add-user", metavar="NAME", help="Ask for a password, and let this user sign in with it.")
@click.option("--with-parent", is_flag=True, hidden=True, help="End when the input ends.")
@click.option("--new-proxy-secret", is_flag=True, help="Make the secret of a reverse proxy, and print its header.")
@everywhere
@click.pass_obj
def web(invocation: Invocation, /, *, port: int, bind: str, **values: Any) -> int:
    """Show the open requests and the sessions of this workspace in a browser.

    Prints an address that signs in one browser, then the next one, until Ctrl-C. The page hosts no session: it reads
    what hosts write, and your answers go the same way as those of `callboard approve`. Processes of agents are refused.

    Only this machine reaches the page, unless --bind names another address. That needs TLS or a reverse proxy, and
    users that sign in, all in your own settings (`web`).
    """
    refuse_inside_tool("Serving the page")
    with terminal_of(invocation) as terminal:
        if values["add_user"]:
            refuse_idle(("new_proxy_secret", "open_", "qr", "port", "bind"), "with --add-user, which serves no page")
            return _add_user(terminal, values["add_user"])
        if values["new_proxy_secret"]:
            refuse_idle(("open_", "qr", "port", "bind"), "with --new-proxy-secret, which serves no page")
            return _make_proxy_secret(terminal)
        options = PageOptions(_address(bind), port, own_settings().web)
        running = _Web(invocation, terminal, **{name: values[name] for name in ("open_", "qr", "with_parent")})
        return anyio.run(running.run, options)


def _address(bind: str) -> str:
    try:
        return str(ip_address(bind))
    except ValueError:
        raise UsageError(f"--bind {bind}: give an IP address, such as 127.0.0.1 or ::1") from None


def _add_user(terminal: Terminal, name: str) -> int:
    """Ask for a password, and write its hash to the person's settings."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"--add-user {name}: use letters, digits, `_`, and `-`")
    if sys.stdin.isatty():
        password = getpass.getpass(f"Password of {name}: ")
        if getpass.getpass("Again: ") != password:
            raise UsageError("the passwords differ: nothing was changed")
    else:
        password = sys.stdin.readline().rstrip("\n")
    if len(password) < LEAST_LENGTH:
        raise UsageError(f"a password has at least {LEAST_LENGTH} characters: nothing was changed")
    SettingsEditor(Path(), own=True).set(f"web.users.{name}", password_hash(password))
    terminal.rows(block(f"{name} can sign in with this password, once `callboard web` starts again", "good"))
    return 0


def _make_proxy_secret(terminal: Terminal) -> int:
    """Make a secret, write its digest to the person's settings, and print the header with it."""
    secret = secrets.token_urlsafe(32)
    SettingsEditor(Path(), own=True).set("web.proxy.secret", hashlib.sha256(secret.encode()).hexdigest())
    terminal.rows(block(f"{PROXY_HEADER}: {secret}"))
    note = "let the proxy send this header with every request, and keep it where agents cannot read it"
    terminal.terminal_print(block(note, "dim"))
    return 0


class _Web:
    """One `callboard web`, from its start to a signal."""

    def __init__(self, invocation: Invocation, terminal: Terminal, *, open_: bool, qr: bool, with_parent: bool) -> None:
        self._invocation = invocation
        self._terminal = terminal
        self._open = open_
        self._qr = qr
        self._with_parent = with_parent
        self._serving: PageServer | None = None

    async def run(self, options: PageOptions) -> int:
        """Serve until a signal, and return the exit code."""
        page = serving_page(
            self._invocation.workspace,
            options,
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
                    return await self._end()
                with _redirecting_file(self._invocation.workspace, serving) as file:
                    await anyio.to_thread.run_sync(webbrowser.open, file.as_uri())
                    return await self._end()
        except OSError as failed:
            raise UsageError(f"--port {options.port}: {failed.strerror}: choose another port, or 0 for any") from failed

    async def _end(self) -> int:
        """Wait for a signal, or for the end of the command that started this one; return the exit code."""
        code = 0
        async with anyio.create_task_group() as group:
            if self._with_parent:
                group.start_soon(_end_with_input, group.cancel_scope)
            code = await _next_signal()
            group.cancel_scope.cancel()
        return code

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


async def _end_with_input(scope: anyio.CancelScope) -> None:
    """Cancel a scope when the input ends. It has no content."""
    descriptor = sys.stdin.fileno()
    await anyio.wait_readable(descriptor)
    while os.read(descriptor, 4096):
        await anyio.wait_readable(descriptor)
    scope.cancel()


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

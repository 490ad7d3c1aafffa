"""`link`: an address that answers one request once, without a sign-in."""

from __future__ import annotations

import click

from callboard.adapters.processes.tool_ancestry import refuse_inside_tool
from callboard.cli.commands.options import Invocation, everywhere, of_session, refuse_idle
from callboard.cli.commands.output import terminal_of, with_handle
from callboard.cli.terminal.qr import qr_block
from callboard.cli.terminal.terminal import block
from callboard.cli.views.permission import seconds_of, spell_out
from callboard.cli.views.requests import find_request
from callboard.core.keys import count_words
from callboard.sessions.answer_links import MadeLink
from callboard.sessions.handle import SessionHandle
from callboard.sessions.inspect.resources import when
from callboard.sessions.places import find_places
from callboard.sessions.running_page import page_address
from callboard.sessions.stores import own_settings
from callboard.types.errors import UsageError


@click.command()
@click.argument("request_id", metavar="REQUEST")
@click.option("--for", "time_", default="", metavar="TIME", help="How long the link is valid (30m, 2h, 1d).")
@click.option(
    "--as", "user", default="", metavar="NAME", help="Whom the link is for: the record of the answer says so."
)
@click.option("--revoke", is_flag=True, help="Revoke the links to this request.")
@click.option("--qr", is_flag=True, help="Also show the link as a QR code.")
@of_session
@everywhere
@click.pass_obj
def link(
    invocation: Invocation, /, request_id: str, *, session: str | None, time_: str, user: str, revoke: bool, qr: bool
) -> None:
    """Make a link that answers one request once, without a sign-in.

    The link opens the web page of this workspace (`callboard web`) with the request, and asks before it answers. It
    ends with the first answer, whoever gives it, when the request changes, and after a time (`web.link_seconds`).
    Whoever has the link can answer. REQUEST is shown by `callboard plans`; a prefix is enough.
    """
    refuse_inside_tool("Making an answer link")
    settings = own_settings().web
    seconds = seconds_of(time_) if time_ else settings.link_seconds
    if seconds is None:
        raise UsageError(f"--for {time_}: give a time such as 30m, 2h or 1d")
    if revoke:
        refuse_idle(("time_", "user", "qr"), "with --revoke, which ends all links to the request")
        ended = with_handle(invocation, session, lambda handle: _revoked(handle, request_id), request=request_id)
        with terminal_of(invocation) as terminal:
            terminal.rows(block(f"{count_words(ended, 'link')} revoked", "good"))
        return
    base = page_address(find_places(invocation.workspace, writable=False).state, settings.address)

    async def make(handle: SessionHandle) -> MadeLink:
        request = find_request(handle.requests(pending_only=False), request_id)
        return await handle.make_link(request, seconds=seconds, user=user)

    made = with_handle(invocation, session, make, request=request_id)
    address = made.address(base)
    until = when(made.row.expires_at)
    with terminal_of(invocation) as terminal:
        terminal.rows(block(address, "strong"))
        if qr:
            terminal.rows(qr_block(address))
        note = (
            f"answers {made.row.request} once, until {until}, for whoever has it; the history names {spell_out(user)}"
        )
        terminal.terminal_print(block(note if user else note.rpartition(";")[0], "dim"))


async def _revoked(handle: SessionHandle, request_id: str) -> int:
    return await handle.revoke_links(find_request(handle.requests(pending_only=False), request_id))

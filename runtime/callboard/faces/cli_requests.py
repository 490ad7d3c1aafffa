"""`plans`, `approve`, `reject`, `answer`: a person's word from another terminal. The first answer wins.

It refuses to work inside a tool call: nobody approves himself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import click

from callboard.desk import Desk
from callboard.faces.cli_options import Given, as_json, everywhere, of_session, refuse_tools
from callboard.faces.cli_run import terminal_of
from callboard.faces.cli_team import at_desk, print_rows
from callboard.faces.listings import find_request, requests_block
from callboard.faces.terminal import block
from callboard.words.errors import UsageError
from callboard.words.values import Request

Status = Literal["approved", "rejected", "answered"]


@click.command()
@click.option("--all", "all_", is_flag=True, help="Also what was answered.")
@of_session
@as_json
@everywhere
@click.pass_obj
def plans(given: Given, /, session: str | None, all_: bool, json_: bool) -> None:
    """Show what waits for a person's word, in full.

    Plans, permissions and questions, each with the command that answers it.
    """

    async def read(desk: Desk) -> Sequence[Request]:
        return desk.requests(pending_only=not all_)

    print_rows(given, at_desk(given, session, read), requests_block, json_=json_)


@click.command()
@click.argument("request_id", metavar="ID")
@click.option("--why", default="", metavar="TEXT", help="Words that the agent gets with it.")
@of_session
@everywhere
@click.pass_obj
def approve(given: Given, /, request_id: str, why: str, session: str | None) -> None:
    """Approve a plan or allow a tool.

    ID is what `callboard plans` shows, or a beginning of it.
    """
    refuse_tools("Approving")
    _give(given, session, request_id, "approved", why)


@click.command()
@click.argument("request_id", metavar="ID")
@click.option("--why", default="", metavar="TEXT", help="What the agent should do instead.")
@of_session
@everywhere
@click.pass_obj
def reject(given: Given, /, request_id: str, why: str, session: str | None) -> None:
    """Reject a plan or refuse a tool.

    ID is what `callboard plans` shows, or a beginning of it.
    """
    refuse_tools("Rejecting")
    _give(given, session, request_id, "rejected", why)


@click.command()
@click.argument("request_id", metavar="ID")
@click.argument("text")
@of_session
@everywhere
@click.pass_obj
def answer(given: Given, /, request_id: str, text: str, session: str | None) -> None:
    """Answer an agent's question.

    TEXT is what it reads.
    """
    refuse_tools("Answering")
    _give(given, session, request_id, "answered", text)


def _give(given: Given, session: str | None, wanted: str, status: Status, reason: str) -> None:
    async def giving(desk: Desk) -> str:
        request = find_request(desk.requests(pending_only=False), wanted)
        refused = await desk.answer(request.id, status, reason)
        if refused is not None:
            raise UsageError(refused)
        return request.id

    done = at_desk(given, session, giving)
    with terminal_of(given) as terminal:
        terminal.rows(block(f"{done} {status}", "good"))

"""`plans`, `show`, `approve`, `edit`, `reject`, `answer`: a person's word from another terminal. The first answer wins.

It refuses to work inside a tool call: nobody approves himself.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

from callboard.core.asking.plans import Word
from callboard.core.asking.session_rules import Always
from callboard.desks.desk import Desk
from callboard.faces.cli.options import Given, as_json, everywhere, of_session, refuse_tools
from callboard.faces.cli.run import terminal_of
from callboard.faces.cli.team import at_desk, print_rows
from callboard.faces.editing import PLAN_BYTES, approval, editable, in_editor, kept
from callboard.faces.pages.listings import find_request, requests_table
from callboard.faces.pages.plan import Told, request_json, request_page, told
from callboard.faces.pages.rules import made_lines
from callboard.faces.permission import seconds_of
from callboard.faces.terminal import Block, Line, block
from callboard.words.errors import UsageError
from callboard.words.values import Request

Status = Literal["approved", "rejected", "answered"]


@dataclass(frozen=True, slots=True)
class Said:
    """A person's answer to a request. `digest`: of the content that it is for, or a beginning of it; empty: whatever
    stands there."""

    status: Status
    reason: str = ""
    option: int = 0
    plan: str = ""
    digest: str = ""
    always: Always | None = None


@click.command()
@click.option("--all", "all_", is_flag=True, help="Also what was answered.")
@of_session
@as_json
@everywhere
@click.pass_obj
def plans(given: Given, /, session: str | None, all_: bool, json_: bool) -> None:
    """List what waits for a person's word.

    Plans, permissions and questions, the oldest first: who asks, since when and until when it waits. `callboard show`
    shows one in full; with `--json` each is whole here too.
    """

    async def read(desk: Desk) -> Sequence[Request]:
        return sorted(desk.requests(pending_only=not all_), key=lambda one: (one.created_at, one.id))

    print_rows(given, at_desk(given, session, read), requests_table, json_=json_)


@click.command()
@click.argument("request_id", metavar="ID")
@of_session
@as_json
@everywhere
@click.pass_obj
def show(given: Given, /, request_id: str, session: str | None, json_: bool) -> None:
    """Show a plan or another request in full.

    With a plan: its options, folder and commit, what differs from the revision before, and what was said to it. ID is
    what `callboard plans` shows, or a beginning of it.
    """

    async def read(desk: Desk) -> Told:
        return await _told(desk, request_id)

    found = at_desk(given, session, read)
    with terminal_of(given) as terminal:
        if json_:
            terminal.record(json.dumps(request_json(found), indent=2))
        else:
            terminal.rows(request_page(found))


@click.command()
@click.argument("request_id", metavar="ID")
@click.option("--option", type=click.IntRange(min=1), default=None, metavar="N", help="This one of a plan's options.")
@click.option("--why", default="", metavar="TEXT", help="Words that the agent gets with it.")
@click.option("--digest", default="", metavar="HEX", help="Only this content: `show --json` tells its digest.")
@click.option("--always", is_flag=True, help="Allow all of its class in this session, as `show` says.")
@click.option("--for", "time_", default="", metavar="TIME", help="With --always: for so long (30m, 2h, 1d).")
@click.option("--this-agent", is_flag=True, help="With --always: only the agent that asks.")
@of_session
@everywhere
@click.pass_obj
def approve(given: Given, /, request_id: str, option: int | None, session: str | None, **asked: Any) -> None:
    """Approve a plan or allow a tool.

    ID is what `callboard plans` shows, or a beginning of it. `callboard policy rules` lists what was allowed with
    --always, and `callboard policy revoke` takes it back.
    """
    refuse_tools("Approving")
    always = _always(asked["time_"], given_for=asked["this_agent"], wanted=asked["always"])
    said = Said("approved", asked["why"], option or 0, digest=asked["digest"], always=always)
    _give(given, session, request_id, said)


@click.command()
@click.argument("request_id", metavar="ID")
@click.option("--file", "file", metavar="FILE", help="The edited text; `-` reads it from stdin. Then no editor opens.")
@click.option("--why", default="", metavar="TEXT", help="Words that the agent gets with it.")
@of_session
@everywhere
@click.pass_obj
def edit(given: Given, /, request_id: str, file: str | None, why: str, session: str | None) -> None:
    """Edit a plan and approve it.

    The plan opens in $VISUAL or $EDITOR; what is saved there is the approved plan, whole, and the agent gets it in
    place of its own. Nothing is approved when the text is left as it was, or empty. Without a terminal, and with
    `--file -`, the text is read from stdin.
    """
    refuse_tools("Editing a plan")
    plan = at_desk(given, session, lambda desk: _told(desk, request_id)).request
    editable(plan)
    text = _edited(plan, file)
    word = approval(plan, text)
    try:
        _give(given, session, plan.id, Said("approved", why, plan=word.plan, digest=word.seen))
    except UsageError as refused:
        raise UsageError(f"{refused}. {kept(plan, text)}") from refused


@click.command()
@click.argument("request_id", metavar="ID")
@click.option("--why", default="", metavar="TEXT", help="What the agent should do instead; a plan needs it.")
@of_session
@everywhere
@click.pass_obj
def reject(given: Given, /, request_id: str, why: str, session: str | None) -> None:
    """Reject a plan or refuse a tool.

    ID is what `callboard plans` shows, or a beginning of it.
    """
    refuse_tools("Rejecting")
    _give(given, session, request_id, Said("rejected", why))


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
    _give(given, session, request_id, Said("answered", text))


def _always(time_: str, *, given_for: bool, wanted: bool) -> Always | None:
    """What `--always` asks for. Raises `UsageError` for a time that is none, and for more words without it."""
    seconds = seconds_of(time_) if time_ else None
    if time_ and seconds is None:
        raise UsageError(f"--for {time_}: give a time such as 30m, 2h or 1d")
    if not wanted and (time_ or given_for):
        raise UsageError("--for and --this-agent go with --always")
    return Always(seconds, given_for) if wanted else None


async def _told(desk: Desk, wanted: str) -> Told:
    requests = desk.requests(pending_only=False)
    request = find_request(requests, wanted)
    return told(request, requests, await desk.moved(request) if request.status == "pending" else "")


def _edited(plan: Request, file: str | None) -> str:
    """The text from the file, from stdin or from the person's editor. Raises `UsageError`."""
    if file is None and sys.stdin.isatty():
        return in_editor(plan)
    if file is None or file == "-":
        data = sys.stdin.buffer.read(PLAN_BYTES + 1)
    else:
        try:
            data = Path(file).read_bytes()
        except OSError as failed:
            raise UsageError(f"{file}: cannot be read: {failed.strerror}") from failed
    return data.decode("utf-8", errors="replace")


def _give(given: Given, session: str | None, wanted: str, said: Said) -> None:
    """Answer, and say what came of it. Raises `UsageError` when the answer does not count, with who was first."""

    made: list[Line] = []

    async def giving(desk: Desk) -> Told:
        request = find_request(desk.requests(pending_only=False), wanted)
        if request.kind == "plan" and said.status == "rejected" and not said.reason.strip():
            raise UsageError(f"say what is to change: callboard reject {request.id} --why TEXT")
        if not request.digest.startswith(said.digest.lower()):
            raise UsageError(f"{request.id}: its content has changed: callboard show {request.id}")
        word = Word(said.option, said.plan, request.digest if said.digest else "")
        refused = await desk.answer(request.id, said.status, said.reason, word, said.always)
        if refused is not None:
            raise UsageError(refused)
        if said.always is not None:
            made.extend(made_lines(await desk.rules.made_by(request.id)))
        return Told(request, note=await desk.moved(request) if said.status == "approved" else "")

    done = at_desk(given, session, giving)
    words = " as edited" if said.plan else f", option {said.option}" if said.option else ""
    with terminal_of(given) as terminal:
        note = (Line(done.note, "warn"),) if done.note else ()
        terminal.rows(Block((*block(f"{done.request.id} {said.status}{words}", "good").lines, *made, *note)))

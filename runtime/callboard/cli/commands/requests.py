"""`plans`, `show`, `approve`, `edit`, `reject`, `answer`: the user's answers from another terminal.

The first answer wins. Answers are refused inside a tool call, because no agent approves its own actions.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import anyio
import click

from callboard.adapters.processes.tool_ancestry import refuse_inside_tool
from callboard.cli.commands.options import Invocation, as_json, everywhere, of_session
from callboard.cli.commands.output import notice_of, print_rows, terminal_of, with_handle
from callboard.cli.terminal.plan_editor import in_editor, keep_text
from callboard.cli.terminal.terminal import Block, Line, block, stacked
from callboard.cli.views.edits import PLAN_BYTES, approval, editable
from callboard.cli.views.permission import seconds_of
from callboard.cli.views.policy import created_rule_lines
from callboard.cli.views.requests import (
    RequestDetails,
    details_of,
    find_request,
    request_json,
    request_page,
    requests_table,
    waiting_line,
)
from callboard.core.approvals.plans import PLAN_MODES, AnswerDetails
from callboard.core.approvals.session_rules import AlwaysAllow
from callboard.sessions.handle import SessionHandle
from callboard.sessions.inspect.inspector import waiting_elsewhere
from callboard.sessions.inspect.resources import REQUESTS
from callboard.types.errors import UsageError
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Request

Status = Literal["approved", "rejected", "answered"]


@dataclass(frozen=True, slots=True)
class PersonAnswer:
    """Answer of the user to a request.

    `digest`: digest of the content that it is for, or a prefix; empty: the current content.
    """

    status: Status
    reason: str = ""
    option: int = 0
    plan: str = ""
    digest: str = ""
    always: AlwaysAllow | None = None
    mode: str = ""


@click.command()
@click.option("--all", "all_", is_flag=True, help="Also show answered requests.")
@of_session
@as_json
@everywhere
@click.pass_obj
def plans(invocation: Invocation, /, session: str | None, all_: bool, json_: bool) -> None:
    """List the requests that wait for your answer.

    Plans, permissions and questions, the oldest first: the agent, the time, the deadline. `callboard show` shows one in
    full, and so does `--json`. Other sessions of the workspace that wait for you are named.
    """

    async def read(handle: SessionHandle) -> tuple[str, Sequence[Request]]:
        rows = sorted(handle.requests(pending_only=not all_), key=lambda request: (request.created_at, request.id))
        return handle.id, rows

    current, rows = with_handle(invocation, session, read)
    others = (
        [] if session or json_ else anyio.run(waiting_elsewhere, invocation.workspace, current, notice_of(invocation))
    )

    def listed(rows: Sequence[Request]) -> Block:
        return stacked(requests_table(rows), *map(waiting_line, others))

    print_rows(invocation, rows, listed, json_=json_, record=REQUESTS.record)


@click.command()
@click.argument("request_id", metavar="ID")
@of_session
@as_json
@everywhere
@click.pass_obj
def show(invocation: Invocation, /, request_id: str, session: str | None, json_: bool) -> None:
    """Show a plan or another request in full.

    For a plan: its options, folder and commit, the differences from the previous revision, and earlier answers. ID is
    shown by `callboard plans`; a prefix is enough.
    """

    async def read(handle: SessionHandle) -> RequestDetails:
        return await _details(handle, request_id)

    details = with_handle(invocation, session, read, request=request_id)
    with terminal_of(invocation) as terminal:
        if json_:
            terminal.record(json.dumps(request_json(details), indent=2))
        else:
            terminal.rows(request_page(details))


@click.command()
@click.argument("request_id", metavar="ID")
@click.option("--option", type=click.IntRange(min=1), default=None, metavar="N", help="Choose this option of a plan.")
@click.option(
    "--mode", type=click.Choice(PLAN_MODES), default=None, help="With a plan: permission mode in which to carry it out."
)
@click.option("--why", default="", metavar="TEXT", help="Message to the agent.")
@click.option(
    "--digest", default="", metavar="HEX", help="Approve only if the content has this digest (see `show --json`)."
)
@click.option("--always", is_flag=True, help="Allow all calls of this class in this session; `show` names the class.")
@click.option(
    "--for", "time_", default="", metavar="TIME", help="With --always: limit the permission to this time (30m, 2h, 1d)."
)
@click.option("--this-agent", is_flag=True, help="With --always: allow only the agent that asks.")
@of_session
@everywhere
@click.pass_obj
def approve(invocation: Invocation, /, request_id: str, option: int | None, session: str | None, **values: Any) -> None:
    """Approve a plan or allow a tool call.

    ID is shown by `callboard plans`; a prefix is enough. `callboard policy rules` lists the permissions granted with
    --always, and `callboard policy revoke` revokes them.
    """
    refuse_inside_tool("Approving")
    always = _always_option(values["time_"], given_for=values["this_agent"], always=values["always"])
    mode = values["mode"] or ""
    reply = PersonAnswer("approved", values["why"], option or 0, digest=values["digest"], always=always, mode=mode)
    _answer_and_print(invocation, session, request_id, reply)


@click.command()
@click.argument("request_id", metavar="ID")
@click.option(
    "--file",
    "file",
    metavar="FILE",
    help="Read the edited text from this file (`-` for stdin) instead of opening an editor.",
)
@click.option("--why", default="", metavar="TEXT", help="Message to the agent.")
@of_session
@everywhere
@click.pass_obj
def edit(invocation: Invocation, /, *, request_id: str, file: str | None, why: str, session: str | None) -> None:
    """Edit a plan and approve it.

    The plan opens in $VISUAL or $EDITOR. The saved text is the approved plan, and the agent gets it in place of its
    own. Nothing is approved if the text is unchanged or empty. Without a terminal, and with `--file -`, the text is
    read from stdin.
    """
    refuse_inside_tool("Editing a plan")
    plan = with_handle(invocation, session, lambda handle: _details(handle, request_id), request=request_id).request
    editable(plan)
    text = _edited(plan, file, invocation.workspace)
    word = approval(plan, text)
    try:
        _answer_and_print(invocation, session, plan.id, PersonAnswer("approved", why, plan=word.plan, digest=word.seen))
    except UsageError as refused:
        raise UsageError(f"{refused}. {keep_text(plan, text)}") from refused


@click.command()
@click.argument("request_id", metavar="ID")
@click.option(
    "--why", default="", metavar="TEXT", help="Reason, or what the agent should do instead; required for a plan."
)
@of_session
@everywhere
@click.pass_obj
def reject(invocation: Invocation, /, request_id: str, why: str, session: str | None) -> None:
    """Reject a plan or deny a tool call.

    ID is shown by `callboard plans`; a prefix is enough.
    """
    refuse_inside_tool("Rejecting")
    _answer_and_print(invocation, session, request_id, PersonAnswer("rejected", why))


@click.command()
@click.argument("request_id", metavar="ID")
@click.argument("text")
@of_session
@everywhere
@click.pass_obj
def answer(invocation: Invocation, /, request_id: str, text: str, session: str | None) -> None:
    """Answer an agent's question.

    The agent reads TEXT.
    """
    refuse_inside_tool("Answering")
    _answer_and_print(invocation, session, request_id, PersonAnswer("answered", text))


def _always_option(time_: str, *, given_for: bool, always: bool) -> AlwaysAllow | None:
    """Return the meaning of `--always`. Raises `UsageError` for an invalid time, and for its options without it."""
    seconds = seconds_of(time_) if time_ else None
    if time_ and seconds is None:
        raise UsageError(f"--for {time_}: give a time such as 30m, 2h or 1d")
    if not always and (time_ or given_for):
        raise UsageError("--for and --this-agent require --always")
    return AlwaysAllow(seconds, given_for) if always else None


async def _details(handle: SessionHandle, request_id: str) -> RequestDetails:
    requests = handle.requests(pending_only=False)
    request = find_request(requests, request_id)
    return details_of(request, requests, await handle.commit_change(request) if request.status == "pending" else "")


def _edited(plan: Request, file: str | None, workspace: Path) -> str:
    """Return the text from the file, from stdin or from the user's editor. Raises `UsageError`."""
    if file is None and sys.stdin.isatty():
        return in_editor(plan, workspace)
    if file is None or file == "-":
        data = sys.stdin.buffer.read(PLAN_BYTES + 1)
    else:
        try:
            data = Path(file).read_bytes()
        except OSError as failed:
            raise UsageError(f"{file}: cannot be read: {failed.strerror}") from failed
    return data.decode("utf-8", errors="replace")


def _answer_and_print(invocation: Invocation, session: str | None, request_id: str, reply: PersonAnswer) -> None:
    """Answer, and print the result.

    Raises `UsageError` if the answer is not accepted, with the author of an earlier one.
    """
    made: list[Line] = []

    async def giving(handle: SessionHandle) -> RequestDetails:
        request = find_request(handle.requests(pending_only=False), request_id)
        if request.kind == "plan" and reply.status == "rejected" and not reply.reason.strip():
            raise UsageError(f"say what to change: callboard reject {request.id} --why TEXT")
        if not request.digest.startswith(reply.digest.lower()):
            raise UsageError(f"{request.id}: its content has changed: callboard show {request.id}")
        word = AnswerDetails(reply.option, reply.plan, request.digest if reply.digest else "", reply.mode)
        refused = await handle.answer(request.id, reply.status, reply.reason, word=word, always=reply.always)
        if refused is not None:
            raise UsageError(refused)
        if reply.always is not None:
            made.extend(created_rule_lines(await handle.rules.made_by(request.id)))
        return RequestDetails(request, note=await handle.commit_change(request) if reply.status == "approved" else "")

    done = with_handle(invocation, session, giving, request=request_id)
    suffix = " as edited" if reply.plan else f", option {reply.option}" if reply.option else ""
    with terminal_of(invocation) as terminal:
        note = (Line(done.note, "warn"),) if done.note else ()
        terminal.rows(Block((*block(f"{done.request.id} {reply.status}{suffix}", "good").lines, *made, *note)))

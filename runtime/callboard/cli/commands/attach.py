"""`attach` and `send`: work with a session that another process hosts. Neither command hosts a session."""

from __future__ import annotations

import importlib
import sys
from typing import Any, cast

import anyio
import click

from callboard.adapters.processes.tool_ancestry import refuse_inside_tool
from callboard.cli.commands.options import Invocation, everywhere, of_session, with_output_format
from callboard.cli.commands.output import notice_of, terminal_of
from callboard.cli.commands.prompt_input import read_prompt
from callboard.cli.terminal.keyboard import person_is_there
from callboard.cli.terminal.terminal import block
from callboard.sessions.inspect.inspector import open_handle


@click.command()
@click.argument("session", required=False)
@click.option("-f", "--follow", is_flag=True, help="Only watch: no prompt line, no questions.")
@with_output_format
@everywhere
@click.pass_obj
def attach(invocation: Invocation, /, session: str | None, follow: bool, **values: Any) -> int:
    """Follow SESSION (the current one) while another process hosts it.

    On a terminal there is a prompt line: your input goes to the lead, and requests can be answered here as well as
    there; the first answer wins. Leaving does not affect the host. The command ends when the host leaves, with the exit
    code of a finished run. At the prompt line, text appears as it streams if the host is on this machine; otherwise,
    and with --follow, a reply appears when it is complete.
    """
    # `send` needs neither; both take 100 ms of CPU to import.
    from callboard.cli.headless.run import Headless, Output, run_headless  # noqa: PLC0415 - see above
    from callboard.sessions import options as parts  # noqa: PLC0415 - see above

    refuse_inside_tool("Attaching to a session")
    attended = person_is_there() and not follow
    options = parts.SessionOptions(
        parts.WorkspaceOptions(invocation.workspace),
        identity=parts.IdentityOptions(session=session, resume=True),
        permissions=parts.PermissionOptions(attended=attended),
        hosting=parts.HostingOptions(notice=notice_of(invocation)),
    )
    with terminal_of(invocation) as terminal:
        if attended and sys.stdout.isatty() and values["output_format"] == "text":
            # prompt_toolkit takes 100 ms to import, and is not needed without a prompt line.
            repl = importlib.import_module("callboard.cli.repl.repl")
            return repl.run_repl(options, terminal, verbose=invocation.verbose, attach="only")
        headless = Headless(options, None, output=cast("Output", values["output_format"]), attach="only")
        return run_headless(headless, terminal, verbose=invocation.verbose)


@click.command()
@click.argument("text", required=False)
@click.option("--to", default="lead", metavar="NAME", show_default=True, help="Agent that receives the text.")
@of_session
@everywhere
@click.pass_obj
def send(invocation: Invocation, /, text: str | None, to: str, session: str | None) -> None:
    """Send TEXT to an agent of a session, whichever process hosts it.

    Piped input follows TEXT, or is the text if there is none. A working agent reads it at its next step. Without a host
    it waits until the session is resumed; a detached session gets a serving host.
    """
    refuse_inside_tool("Speaking as the person")
    missing = 'there is no text. Say what to send: callboard send "How far are you?" --to NAME'
    message, note = read_prompt(text, required=True, missing=missing)

    async def sending() -> tuple[str, str]:
        async with open_handle(invocation.workspace, session, notice=notice_of(invocation)) as handle:
            await handle.say(message or "", to)
            return handle.id, await handle.hosting_words()

    name, where = anyio.run(sending)
    with terminal_of(invocation) as terminal:
        if note:
            terminal.terminal_print(block(f"callboard: {note}", "warn"))
        terminal.rows(block(f"sent to {to} of session {name}; {where}", "good"))

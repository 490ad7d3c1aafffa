"""`attach` and `send`: beside a session that another process hosts. Neither hosts anything, whatever happens."""

from __future__ import annotations

import importlib
import sys
from typing import Any, cast

import anyio
import click

from callboard.app import Options
from callboard.desks.desk import open_desk
from callboard.faces.cli.options import Given, everywhere, of_session, refuse_tools
from callboard.faces.cli.run import given_prompt, terminal_of
from callboard.faces.keyboard import person_is_there
from callboard.faces.running import Headless, Output, run_headless
from callboard.faces.terminal import block


@click.command()
@click.argument("session", required=False)
@click.option("-f", "--follow", is_flag=True, help="Only look on: no prompt line, no questions.")
@click.option("--output-format", type=click.Choice(["text", "json", "stream-json"]), default="text", show_default=True)
@everywhere
@click.pass_obj
def attach(given: Given, /, session: str | None, follow: bool, **asked: Any) -> int:
    """Follow SESSION (the current one) while another process hosts it.

    At a terminal there is a prompt line: what is typed goes to the lead, and what waits for an answer is asked here as
    well as there; the first answer counts. Leaving leaves the host alone. It ends when the host leaves, with the exit
    code of a run that came to its end. Text streams on the host's screen alone; here a reply is
    shown when it is whole.
    """
    refuse_tools("Attaching to a session")
    there = person_is_there() and not follow
    options = Options(workspace=given.workspace, session=session, resume=True, attended=there)
    with terminal_of(given) as terminal:
        if there and sys.stdout.isatty() and asked["output_format"] == "text":
            # prompt_toolkit takes 100 ms to import, and a follower without a prompt line never needs it.
            repl = importlib.import_module("callboard.faces.prompt.repl")
            return repl.run_repl(options, terminal, verbose=given.verbose, attach="only")
        what = Headless(options, None, output=cast("Output", asked["output_format"]), attach="only")
        return run_headless(what, terminal, verbose=given.verbose)


@click.command()
@click.argument("text", required=False)
@click.option("--to", default="lead", metavar="NAME", show_default=True, help="The agent that it is for.")
@of_session
@everywhere
@click.pass_obj
def send(given: Given, /, text: str | None, to: str, session: str | None) -> None:
    """Say TEXT to an agent of a session, whoever hosts it.

    It is read from stdin when it is `-`, or when there is none and stdin is not a terminal. An agent at work hears it
    at its next step. Where nobody hosts the session it waits for whoever resumes it.
    """
    refuse_tools("Speaking as the person")
    said = given_prompt(text, needed=True) or ""

    async def sending() -> tuple[str, int | None]:
        async with open_desk(given.workspace, session) as desk:
            await desk.send(said, to)
            return desk.session.id, await desk.host()

    name, host = anyio.run(sending)
    where = f"process {host} hosts the session" if host is not None else f"nobody hosts it: `callboard resume {name}`"
    with terminal_of(given) as terminal:
        terminal.rows(block(f"sent to {to} of session {name}; {where}", "good"))

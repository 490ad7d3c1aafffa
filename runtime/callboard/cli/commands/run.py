"""The commands `run` and `resume`: their options, and the way on to a headless run, a client, or the prompt line."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import click

from callboard.adapters.processes.tool_ancestry import refuse_inside_tool
from callboard.cli.commands.client_flags import mode_of, options_for_client, with_client_flags
from callboard.cli.commands.client_options import (
    RunCommand,
    answer_schema,
    client_options,
    is_for_run,
)
from callboard.cli.commands.options import (
    FiniteRange,
    Invocation,
    everywhere,
    in_worktree,
    is_resumed,
    permission_options,
    refuse_idle,
    taking_over,
    with_detach_options,
    with_output_format,
    with_plugins,
    with_servers,
)
from callboard.cli.commands.output import print_notes, terminal_of
from callboard.cli.commands.prompt_input import read_prompt
from callboard.cli.commands.session_options import session_options
from callboard.cli.headless.run import Headless, Output, run_headless
from callboard.sessions.open import Attach
from callboard.sessions.options import SessionOptions
from callboard.types.errors import UsageError


def _one_prompt(ctx: click.Context, param: click.Parameter, words: tuple[str, ...]) -> str | None:
    """Return the only argument that is not empty; some clients pass empty ones. Raises `click.UsageError`."""
    prompts = [word for word in words if word.strip()]
    if len(prompts) > 1:
        raise click.UsageError(f"a run has one prompt, not {len(prompts)}: put it in quotes", ctx)
    return (*prompts, *words)[0] if words else None


@click.command(cls=RunCommand)
@click.argument("prompt", nargs=-1, metavar="[PROMPT]", callback=_one_prompt)
@click.option("-c", "--continue", "continue_", is_flag=True, help="Continue the current session.")
@click.option(
    *("-r", "--resume", "--session", "resumed"),
    is_flag=False,
    flag_value="",
    metavar="ID|NAME",
    help="Continue this session.",
)
@click.option("-n", "--name", "title", metavar="NAME", help="Name of the session, for lists and --resume NAME.")
@in_worktree
@click.option("--carry", is_flag=True, help="With -c or -r: start a fresh conversation from a summary of the old one.")
@click.option("--model", metavar="NAME", help="The lead's model; rehearsal:FILE and cassette:FILE need no key.")
@permission_options
@click.option("--append-system-prompt", "appended", metavar="TEXT", help="Add this to the lead's instructions.")
@click.option("--max-turns", type=click.IntRange(min=1), metavar="N", help="Maximum model steps per turn.")
@click.option(
    "--max-budget-usd", type=FiniteRange(min=0), metavar="USD", help="Maximum cost of the session in dollars."
)
@click.option(
    "--max-seconds", type=FiniteRange(min=0), metavar="SECONDS", help="Maximum duration of a turn in seconds."
)
@with_output_format
@click.option("--record", type=click.Path(dir_okay=False, path_type=Path), help="Record the session to this cassette.")
@click.option("--live-tools", is_flag=True, help="With --model cassette:FILE: also run the tools.")
@click.option("--trust", is_flag=True, help="Trust this workspace: use its hooks, agents, servers and settings.")
@click.option("-y", "--yes", is_flag=True, help="Approve plans without asking. Permissions are still asked for.")
@click.option("--with-schedules", is_flag=True, help="Keep running until the session's schedules have fired.")
@with_detach_options
@with_plugins
@with_servers
@client_options
@click.option("-p", "--print", "print_", is_flag=True, hidden=True, help="Accepted; a run prints its result anyway.")
@click.option("--at-prompt-line", is_flag=True, hidden=True, help="Set by the bare `callboard` on a terminal.")
@taking_over
@everywhere
@click.pass_obj
def run(invocation: Invocation, /, **values: Any) -> int:
    """Run PROMPT to its end, without a prompt line.

    Progress goes to stderr, the result to stdout. Piped input follows PROMPT, or is the prompt if there is none: `git
    diff | callboard -p "review this"`. A first Ctrl-C stops the turn, a second within two seconds leaves; nothing is
    lost.
    """
    if values.pop("at_prompt_line") and not is_for_run(click.get_current_context()):
        # Imported here: a run needs no prompt line.
        return importlib.import_module("callboard.cli.commands.talk").talk(invocation, **values)
    if values["resumed"] == "":
        raise UsageError("--resume requires the id or the name of a session: `callboard sessions` lists them")
    goes_on = is_resumed(values)
    if values["carry"] and not goes_on:
        raise UsageError("--carry requires -c or -r: a new session has nothing to carry over")
    if goes_on and not values["fork_session"]:
        refuse_idle(("placement",), "on a session that goes on: it keeps the labels with which it began")
    _refuse_policy(values)
    options = session_options(invocation, values, resume=goes_on, session=values["resumed"])
    options, notes = with_client_flags(values, options)
    if values["input_format"] == "stream-json":
        refuse_idle(("detach", "yes"), "with --input-format stream-json: the client drives the session, and answers")
        run_options = options_for_client(values, options, mode_of(values, options))
        with terminal_of(invocation) as terminal:
            print_notes(notes, terminal)
            return importlib.import_module("callboard.cli.headless.client_run").run_client(run_options, terminal)
    prompt, note = read_prompt(values["prompt"], required=not goes_on)
    if values["detach"]:
        with terminal_of(invocation) as terminal:
            print_notes([*notes, note] if note else notes, terminal)
            detach = importlib.import_module("callboard.cli.headless.detach")
            return detach.run_detached(options, prompt or "", values, terminal)
    return _headless(invocation, values, options, prompt, notes=[*notes, note] if note else notes)


@click.command()
@click.argument("session", required=False)
@click.option("--carry", is_flag=True, help="Start a fresh conversation from a summary of the old one.")
@click.option("--max-turns", type=click.IntRange(min=1), metavar="N", help="Maximum model steps per turn, from now on.")
@click.option(
    "--max-seconds",
    type=FiniteRange(min=0),
    metavar="SECONDS",
    help="Maximum duration of a turn in seconds, from now on.",
)
@click.option(
    "--max-budget-usd",
    type=FiniteRange(min=0),
    metavar="USD",
    help="Maximum cost of the session in dollars, including what it has spent.",
)
@with_output_format
@click.option("--trust", is_flag=True, help="Trust this workspace: use its hooks, agents, servers and settings.")
@click.option("-y", "--yes", is_flag=True, help="Approve plans without asking. Permissions are still asked for.")
@with_plugins
@with_servers
@taking_over
@everywhere
@click.pass_obj
def resume(invocation: Invocation, /, **values: Any) -> int:
    """Finish the unfinished work of SESSION (the current one).

    It continues after a crash or a Ctrl-C, and ends as a run does. If another process hosts the session, this one
    follows it to its end, like `callboard attach`, and refuses options that only a host can apply, such as --max-turns.
    With --take-over it becomes the host.

    To continue the conversation instead: `callboard --resume SESSION`. To give it another prompt: `callboard run
    --resume SESSION`.
    """
    _refuse_policy(values)
    options = session_options(invocation, values, resume=True, session=values["session"])
    for_a_host = (
        options.identity.carry
        or options.workspace.trust
        or options.model.max_cost_usd is not None
        or options.identity.take_over is not None
        or bool(options.workspace.flags or options.extensions.plugins or options.mcp.config or options.mcp.strict)
    )
    return _headless(invocation, values, options, None, attach="never" if for_a_host else "if hosted")


def _headless(
    invocation: Invocation,
    values: dict[str, Any],
    options: SessionOptions,
    prompt: str | None,
    *,
    attach: Attach = "never",
    notes: Sequence[str] = (),
) -> int:
    headless = Headless(
        options,
        prompt,
        output=cast("Output", values["output_format"]),
        yes=bool(values["yes"]),
        mode=mode_of(values, options),
        attach=attach,
        partial=bool(values.get("include_partial_messages")),
        schema=answer_schema(values.get("json_schema")),
    )
    with terminal_of(invocation) as terminal:
        print_notes(notes, terminal)
        return run_headless(headless, terminal, verbose=invocation.verbose)


def _refuse_policy(values: dict[str, Any]) -> None:
    for option, name in (("trust", "--trust"), ("yes", "--yes"), ("permission_mode", "--permission-mode")):
        if values.get(option):
            refuse_inside_tool(name)

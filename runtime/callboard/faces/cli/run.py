"""`run`, `resume`, and the bare `callboard`: from options to a session. It refuses to run anything itself."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import click

from callboard.app import Options, TakeOver
from callboard.attaching import Attach
from callboard.faces.cli.client_options import client_options, json_object, split_list
from callboard.faces.cli.client_wishes import mode_of, told_options, wishes_of
from callboard.faces.cli.options import Given, everywhere, refuse_tools, taking_over, with_plugins, with_servers
from callboard.faces.keyboard import person_is_there
from callboard.faces.running import Headless, Output, run_headless
from callboard.faces.terminal import Terminal, block
from callboard.words.errors import UsageError
from callboard.words.specs import READ_AS

MODES = ("default", "acceptEdits", "plan", "dontAsk", "sandboxed", "bypassPermissions", *READ_AS)
PROMPT_BYTES = 10_000_000
"""A longer prompt on stdin is refused."""


@click.command()
@click.argument("prompt", required=False)
@click.option("-c", "--continue", "continue_", is_flag=True, help="Go on with the current session.")
@click.option("-r", "--resume", "--session", "resumed", metavar="ID", help="Go on with this session.")
@click.option("--carry", is_flag=True, help="With -c or -r: in a fresh conversation, with what matters of the old one.")
@click.option("--model", metavar="NAME", help="The lead's model; rehearsal:FILE and cassette:FILE need no key.")
@click.option("--permission-mode", type=click.Choice(MODES), help="What happens to calls that no rule decides.")
@click.option("--allowed-tools", "--allowedTools", "allow", multiple=True, metavar="RULE", help="Allow without asking.")
@click.option("--disallowed-tools", "--disallowedTools", "deny", multiple=True, metavar="RULE", help="Refuse.")
@click.option("--append-system-prompt", "appended", metavar="TEXT", help="Add this to the lead's instructions.")
@click.option("--max-turns", type=click.IntRange(min=1), help="Model steps in a turn, at most.")
@click.option("--max-budget-usd", type=click.FloatRange(min=0), help="Dollars that the session may cost, at most.")
@click.option("--max-seconds", type=click.FloatRange(min=0), help="Seconds that a turn may take, at most.")
@click.option("--output-format", type=click.Choice(["text", "json", "stream-json"]), default="text", show_default=True)
@click.option("--record", type=click.Path(dir_okay=False, path_type=Path), help="Record the session to this cassette.")
@click.option("--live-tools", is_flag=True, help="With --model cassette:FILE: run the tools too.")
@click.option("--trust", is_flag=True, help="Use what this workspace brings: hooks, agents, servers, settings.")
@click.option("-y", "--yes", is_flag=True, help="Approve plans without asking. Permissions are still asked for.")
@click.option("--with-schedules", is_flag=True, help="Do not end before the session's schedules have fired.")
@with_plugins
@with_servers
@client_options
@click.option("-p", "--print", "print_", is_flag=True, hidden=True, help="Accepted; a run prints its result anyway.")
@taking_over
@everywhere
@click.pass_obj
def run(given: Given, /, **asked: Any) -> int:
    """Run PROMPT to its end, without a prompt line.

    What happens goes to stderr, the result to stdout. PROMPT is read from stdin when it is `-`, or when there is none
    and stdin is not a terminal. A first Ctrl-C stops the turn, a second within two seconds leaves; nothing is lost.
    """
    goes_on = bool(asked["continue_"] or asked["resumed"])
    if asked["carry"] and not goes_on:
        raise UsageError("--carry goes with -c or -r: a new session has nothing to carry over")
    _refuse_policy(asked)
    options, notes = told_options(asked, _options(given, asked, resume=goes_on, session=asked["resumed"]))
    if asked["input_format"] == "stream-json":
        wishes = wishes_of(asked, options, mode_of(asked, options))
        with terminal_of(given) as terminal:
            _tell(notes, terminal)
            return importlib.import_module("callboard.faces.headless.talking").run_client(wishes, terminal)
    return _headless(given, asked, options, given_prompt(asked["prompt"], needed=not goes_on), notes=notes)


@click.command()
@click.argument("session", required=False)
@click.option("--carry", is_flag=True, help="In a fresh conversation, with what matters of the one before.")
@click.option("--max-budget-usd", type=click.FloatRange(min=0), help="Dollars that the session may cost in all.")
@click.option("--output-format", type=click.Choice(["text", "json", "stream-json"]), default="text", show_default=True)
@click.option("--trust", is_flag=True, help="Use what this workspace brings: hooks, agents, servers, settings.")
@click.option("-y", "--yes", is_flag=True, help="Approve plans without asking. Permissions are still asked for.")
@with_plugins
@with_servers
@taking_over
@everywhere
@click.pass_obj
def resume(given: Given, /, **asked: Any) -> int:
    """Finish what SESSION (the current one) left under way.

    It goes on after a crash or a Ctrl-C, and ends as a run does. Where another process hosts the session, this one
    follows it to its end, as `callboard attach` does, unless --take-over says otherwise.

    To go on talking instead: `callboard --resume SESSION`. To give it another prompt: `callboard run --resume SESSION`.
    """
    _refuse_policy(asked)
    options = _options(given, asked, resume=True, session=asked["session"])
    for_a_host = options.carry or options.trust or options.max_cost_usd is not None or options.take_over is not None
    return _headless(given, asked, options, None, "never" if for_a_host else "if hosted")


def talk(given: Given, /, **asked: Any) -> int:
    """The bare `callboard`: a prompt line, where there is a terminal."""
    refuse_tools("Talking to the lead")
    if not (person_is_there() and sys.stdout.isatty()):
        raise UsageError('there is no terminal to talk at. For scripts: callboard run "what to do"')
    goes_on = bool(asked["continue_"] or asked["session"])
    options = _options(given, asked, resume=goes_on, session=asked["session"])
    # prompt_toolkit takes 100 ms to import, and a headless run never needs it.
    repl = importlib.import_module("callboard.faces.prompt.repl")
    with terminal_of(given) as terminal:
        attach = "never" if options.take_over is not None else "if hosted"
        return repl.run_repl(options, terminal, verbose=given.verbose, attach=attach)


@contextmanager
def terminal_of(given: Given) -> Generator[Terminal]:
    """The terminal of this process, written out and closed in the end. Raises `ResultUnwritten`."""
    terminal = Terminal(sys.stdout, sys.stderr, color=given.color, quiet=given.quiet)
    try:
        yield terminal
    finally:
        terminal.close()


_SETTINGS = {
    "permission_mode": "permission.mode",
    "allow": "permission.allow",
    "deny": "permission.deny",
    "max_turns": "limits.steps",
    "max_seconds": "limits.seconds",
}
"""Options that are settings for this session, by their dotted names."""


def flags_of(asked: Mapping[str, Any]) -> dict[str, object]:
    """The settings that options stand for. Zero is a value; what was not given is left out."""
    given = {name: asked.get(option) for option, name in _SETTINGS.items()}
    return {
        name: list(split_list(cast("tuple[str, ...]", value))) if isinstance(value, tuple) else value
        for name, value in given.items()
        if value is not None and value != ()
    }


def _tell(notes: Sequence[str], terminal: Terminal) -> None:
    for note in notes:
        terminal.terminal_print(block(f"callboard: {note}", "warn"))


def _headless(
    given: Given,
    asked: dict[str, Any],
    options: Options,
    prompt: str | None,
    attach: Attach = "never",
    *,
    notes: Sequence[str] = (),
) -> int:
    what = Headless(
        options,
        prompt,
        output=cast("Output", asked["output_format"]),
        yes=bool(asked["yes"]),
        mode=mode_of(asked, options),
        attach=attach,
        partial=bool(asked.get("include_partial_messages")),
        schema=json_object(asked["json_schema"], "--json-schema") if asked.get("json_schema") else None,
    )
    with terminal_of(given) as terminal:
        _tell(notes, terminal)
        return run_headless(what, terminal, verbose=given.verbose)


def _options(given: Given, asked: dict[str, Any], *, resume: bool, session: str | None) -> Options:
    return Options(
        workspace=given.workspace,
        flags=flags_of(asked),
        session=session,
        resume=resume,
        trust=bool(asked.get("trust")),
        record=asked.get("record"),
        live_tools=bool(asked.get("live_tools")),
        model=asked.get("model"),
        attended=person_is_there(),
        appended=asked.get("appended") or "",
        max_cost_usd=asked.get("max_budget_usd"),
        carry=bool(asked.get("carry")),
        take_over=_take_over(asked, resume=resume),
        with_schedules=bool(asked.get("with_schedules")),
        plugins=tuple(asked.get("plugins") or ()),
        mcp_config=tuple(asked.get("mcp_config") or ()),
        mcp_strict=bool(asked.get("strict_mcp_config")),
        lead_type=asked.get("agent") or "lead",
        effort=asked.get("effort") or "",
    )


def _take_over(asked: Mapping[str, Any], *, resume: bool) -> TakeOver | None:
    """Raises `UsageError` for options that say nothing without others."""
    if not asked.get("take_over"):
        if asked.get("force") or asked.get("wait") is not None:
            raise UsageError("--force and --wait go with --take-over")
        return None
    refuse_tools("--take-over")
    if not resume:
        raise UsageError("--take-over goes with -c or -r: a new session is nobody's yet")
    wait = asked.get("wait")
    return TakeOver(TakeOver().wait if wait is None else float(wait), bool(asked.get("force")))


def given_prompt(said: str | None, *, needed: bool) -> str | None:
    """The prompt from the line or from stdin. Raises `UsageError` when there is none."""
    if said == "-" or (said is None and not sys.stdin.isatty() and needed):
        data = sys.stdin.buffer.read(PROMPT_BYTES + 1)
        if len(data) > PROMPT_BYTES:
            raise UsageError(
                f"the prompt on stdin is over {PROMPT_BYTES:,} bytes: put it into a file and name the file"
            )
        said = data.decode("utf-8", errors="replace")
    if said is not None and said.strip():
        return said
    if needed or said is not None:
        raise UsageError('there is no prompt. Say what to do: callboard run "Mend the failing tests"')
    return None


def _refuse_policy(asked: dict[str, Any]) -> None:
    for option, name in (("trust", "--trust"), ("yes", "--yes"), ("permission_mode", "--permission-mode")):
        if asked.get(option):
            refuse_tools(name)

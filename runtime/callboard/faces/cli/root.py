"""The command line's root: which commands there are, each in a module of its own that is imported when it is called.

`--help` and completion of a command's name import nothing but click: the table below holds the short texts, and a test
holds the table to the commands.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import Any, NoReturn

import click

from callboard.faces.cli.bare import as_run
from callboard.faces.cli.options import everywhere, taking_over, with_plugins, with_servers

COMMANDS: Mapping[str, tuple[str, str]] = {
    "run": ("run", "Run a prompt to its end, without a prompt line."),
    "resume": ("run", "Finish what a session left under way."),
    "attach": ("attach", "Follow a session while another process hosts it."),
    "send": ("attach", "Say TEXT to an agent of a session, whoever hosts it."),
    "sessions": ("team", "List the sessions of this workspace."),
    "team": ("team", "Show the agents of a session."),
    "tasks": ("tasks", "Show the task board of a session."),
    "workflow": ("workflow", "Run, list, show and resume workflows from Python files."),
    "inbox": ("mail", "Show the mail of the team, or of one AGENT."),
    "trace": ("mail", "Show where an envelope came from and what it caused."),
    "context": ("context", "Show what fills an agent's window."),
    "cost": ("cost", "Show what a session spent."),
    "memory": ("memory", "Show and change the notes that agents keep."),
    "plans": ("requests", "List what waits for a person's word."),
    "show": ("requests", "Show a plan or another request in full."),
    "approve": ("requests", "Approve a plan or allow a tool."),
    "edit": ("requests", "Edit a plan and approve it."),
    "reject": ("requests", "Reject a plan or refuse a tool."),
    "answer": ("requests", "Answer an agent's question."),
    "policy": ("policy", "Explain, test and lint what is allowed; list what was decided."),
    "trust": ("trust", "Decide whether what this workspace brings is used."),
    "agents": ("agents", "List agent types, show one, begin a new one."),
    "skills": ("skills", "List skills, show one, begin a new one, check one."),
    "worktrees": ("worktrees", "List, merge and remove git worktrees."),
    "mcp": ("mcp", "List, add, remove and test MCP servers, or serve this runtime as one."),
    "cron": ("cron", "Add, list, edit, pause and run schedules, and see what they did."),
    "serve": ("serve", "Fire the schedules of a workspace, without a terminal."),
    "service": ("service", "Let `callboard serve` run as a service of the machine."),
    "rehearse": ("setup", "Play a model service from a scenario file."),
    "demo": ("setup", "Watch a team mend a sample project; no key, no network."),
    "doctor": ("setup", "Say what is found, what is missing and what to do."),
    "settings": ("setup", "Show each setting and where it came from."),
    "completion": ("completion", "Print the script that completes commands in a shell."),
}
"""Name -> the module of `callboard.faces.cli` that holds it under that name, and its short help."""

_HIDDEN: Mapping[str, tuple[str, str]] = {"_complete": ("completion", "What a completion script asks.")}


class Root(click.Group):
    """A group whose commands are imported late, and which knows what was meant."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the table, which is the order of use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module."""
        found = COMMANDS.get(cmd_name) or _HIDDEN.get(cmd_name)
        return getattr(importlib.import_module(f"callboard.faces.cli.{found[0]}"), cmd_name) if found else None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """`callboard -p PROMPT` is `callboard run PROMPT`, `callboard help NAME` is `callboard NAME --help`."""
        if args and args[0] == "help":
            args = [*args[1:], "--help"]
        return super().parse_args(ctx, as_run(args))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command. Raises `click.UsageError` with the nearest names."""
        if args[0] not in COMMANDS and args[0] not in _HIDDEN:
            _unknown(args[0], ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The short texts come from the table, so that no command is imported for them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, short) for name, (_, short) in COMMANDS.items()])


def _unknown(name: str, ctx: click.Context) -> NoReturn:
    near = difflib.get_close_matches(name, COMMANDS, n=2, cutoff=0.5)
    meant = f" Did you mean {' or '.join(near)}?" if near else ""
    quoted = f' To run it as a prompt: callboard run "{name} …".' if not near else ""
    raise click.UsageError(f"there is no command {name!r}.{meant}{quoted}", ctx)


@click.group(
    cls=Root,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@everywhere
@click.option("-c", "--continue", "continue_", is_flag=True, help="Go on with the current session.")
@click.option("-r", "--resume", "session", metavar="ID", help="Go on with this session.")
@click.option("--model", metavar="NAME", help="The lead's model; rehearsal:FILE and cassette:FILE need no key.")
@click.option("--agent", metavar="TYPE", help="The agent type of a new session's lead.")
@with_plugins
@with_servers
@click.option("--permission-mode", metavar="MODE", help="default, acceptEdits, plan, dontAsk, sandboxed, ...")
@click.option("--trust", is_flag=True, help="Use what this workspace brings: hooks, agents, servers, settings.")
@taking_over
@click.pass_context
def cli(ctx: click.Context, /, **asked: Any) -> int | None:
    """A lead agent, its team, approvals and schedules. Without a command: a prompt line to talk to the lead.

    Exit codes: 0 done, 1 the task failed, 2 usage, 3 configuration or credentials, 4 needs an answer that nobody can
    give, 5 budget or limit, 6 model service unavailable, 70 a bug of ours, 124 time limit, 130 Ctrl-C, 143 SIGTERM.
    """
    if ctx.invoked_subcommand is not None:
        return None
    talk = importlib.import_module("callboard.faces.cli.run").talk
    return talk(ctx.obj, **asked)

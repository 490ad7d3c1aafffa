"""Root of the command line: the table of commands. The module of a command is imported when it is called.

`--help` and completion of a command's name import only click: the table has the short texts, and a test compares it
with the commands.

A command line without a command that begins with an option of `run` means `run`. So `callboard -p "Fix it"` is a run,
and so is the command line of a program that drives one: `callboard --output-format stream-json --verbose --input-format
stream-json`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import click
from click.core import ParameterSource

from callboard.cli.commands.client_options import option_names
from callboard.cli.commands.options import everywhere, in_worktree, taking_over, with_plugins, with_servers
from callboard.sessions.quick_imports import collector_paused
from callboard.types.late_pattern import late_pattern

COMMANDS: Mapping[str, tuple[str, str]] = {
    "run": ("run", "Run a prompt to its end, without a prompt line."),
    "resume": ("run", "Finish the unfinished work of a session."),
    "attach": ("attach", "Follow a session while another process hosts it."),
    "send": ("attach", "Send TEXT to an agent of a session, whichever process hosts it."),
    "sessions": ("team", "List the sessions of this workspace."),
    "hosts": ("hosts", "List the hosts of the store, and the sessions that wait for one."),
    "team": ("team", "Show the agents of a session."),
    "tasks": ("tasks", "Show the task board of a session."),
    "workflow": ("workflow", "Run, list, show and resume workflows from Python files."),
    "inbox": ("mail", "Show the mail of the team, or of one AGENT."),
    "trace": ("mail", "Show the origin and effects of an envelope."),
    "context": ("context", "Show what fills an agent's context window."),
    "cost": ("cost", "Show what a session spent."),
    "memory": ("memory", "Show and change the notes that agents keep."),
    "plans": ("requests", "List the requests that wait for your answer."),
    "show": ("requests", "Show a plan or another request in full."),
    "approve": ("requests", "Approve a plan or allow a tool call."),
    "edit": ("requests", "Edit a plan and approve it."),
    "reject": ("requests", "Reject a plan or deny a tool call."),
    "answer": ("requests", "Answer an agent's question."),
    "link": ("link", "Make a link that answers one request once, without a sign-in."),
    "web": ("web", "Show the open requests and the sessions of this workspace in a browser."),
    "policy": ("policy", "Explain, test and lint permissions; list decisions."),
    "trust": ("trust", "Decide whether to trust the content of this workspace."),
    "agents": ("agents", "List, show and create agent types."),
    "skills": ("skills", "List, show, create and check skills."),
    "worktrees": ("worktrees", "List, merge and remove git worktrees."),
    "mcp": ("mcp", "List, add, remove and test MCP servers, or serve Callboard as one."),
    "plugin": ("plugin", "Install, list, switch, and remove plugins, and add marketplaces."),
    "cron": ("cron", "Add, list, edit, pause and run schedules, and see their results."),
    "serve": ("serve", "Fire the schedules of a workspace, without a terminal."),
    "service": ("service", "Run `callboard serve` as a service of systemd or launchd."),
    "backup": ("backup", "Write the sessions of this workspace to a file, even while they run."),
    "restore": ("backup", "Restore the sessions of a backup, or the readable part of a damaged database."),
    "store": ("store", "Show where sessions are stored, check that, and copy them to another store."),
    "rehearse": ("setup", "Play a model service from a scenario file."),
    "demo": ("setup", "Watch a team fix a sample project; no key, no network."),
    "doctor": ("setup", "Check the machine: what is found, what is missing, and what to do."),
    "rate": ("rate", "Show parked models and refused keys."),
    "config": ("config", "Get, set and list settings."),
    "settings": ("config", "Show changed settings and their origins."),
    "update": ("update", "Show how Callboard was installed, and the command that updates it."),
    "completion": ("completion", "Print a completion script for a shell."),
}
"""Name -> module of `callboard.cli.commands` with that command, and its short help."""

GROUPS: Mapping[str, tuple[str, ...]] = {
    "Work": ("run", "resume", "attach", "send", "workflow", "demo"),
    "Watch": ("sessions", "hosts", "team", "tasks", "inbox", "trace", "context", "cost", "memory", "worktrees"),
    "Decide": ("plans", "show", "approve", "edit", "reject", "answer", "link", "web", "policy", "trust"),
    "Extend": ("agents", "skills", "mcp", "plugin"),
    "Schedule": ("cron", "serve", "service"),
    "Set up": (),
}
"""Sections of `--help`. Commands without a section are in the last one."""

_HIDDEN: Mapping[str, tuple[str, str]] = {"_complete": ("completion", "What a completion script asks.")}


class RootGroup(click.Group):
    """Command group that imports its commands late and suggests similar names."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order of the table, which is the order of use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module."""
        cmd_name = _NAMES.get(cmd_name, cmd_name)
        entry = COMMANDS.get(cmd_name) or _HIDDEN.get(cmd_name)
        if entry is None:
            return None
        with collector_paused():
            module = importlib.import_module(f"callboard.cli.commands.{entry[0]}")
        return getattr(module, cmd_name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Rewrite `callboard -p PROMPT` to `callboard run PROMPT`.

        Rewrite `callboard help NAME` to `callboard NAME --help`, and `callboard -v` to `callboard --version`.
        """
        if args and args[0] == "help":
            args = [*args[1:], "--help"]
        if args == ["-v"]:  # as `claude -v`; with anything else on the line it means `--verbose`
            args = ["--version"]
        terminal = sys.stdin.isatty() and sys.stdout.isatty()
        line = with_first_prompt(as_run(args, self.params), self.params, terminal=terminal)
        if terminal and line[:1] == ["run"] != args[:1]:
            # Without `run` and `-p`, the options of `run` are those of a session at the prompt line, as in Claude Code.
            line.insert(1, "--at-prompt-line")
        return super().parse_args(ctx, line)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command. Raises `click.UsageError` with the nearest names."""
        if args[0] not in COMMANDS and args[0] not in _HIDDEN and args[0] not in _NAMES:
            _unknown(args[0], ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print the short texts of the table, without importing a command."""
        remaining = tuple(name for name in COMMANDS if not any(name in names for names in GROUPS.values()))
        for title, names in GROUPS.items():
            names = names or remaining
            with formatter.section(title):
                formatter.write_dl([(name, COMMANDS[name][1]) for name in names])


_SIGN_IN = "Callboard has no sign-in: set ANTHROPIC_API_KEY or ANTHROPIC_AUTH_TOKEN, and see `callboard doctor`"
_NAMES: Mapping[str, str] = {"upgrade": "update", "plugins": "plugin"}
"""Other names of commands, as in Claude Code -> names."""
_ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(("auth", "login", "logout", "setup-token"), _SIGN_IN),
    "install": "Callboard is installed already; `callboard update` says how",
    "migrate-installer": "Callboard is installed already; `callboard update` says how",
    "auto-mode": "no model decides about permissions here: `callboard policy` explains and tests the rules",
    "commit": 'to run it as a prompt: callboard run "Commit my changes"',
    "export": "`callboard sessions` names the session; its transcript is in ~/.claude/projects",
    "init": 'to run it as a prompt: callboard run "Write an AGENTS.md for this project"',
    "project": "`callboard sessions` lists the sessions of this workspace",
    "stats": "use `callboard cost` for a session, and ccusage for all: it reads ~/.claude/projects",
    "ultrareview": 'to run it as a prompt: callboard run "Review my changes"',
    "remote-control": "sessions run on this machine; `callboard attach` follows one from another terminal",
}
"""Commands of Claude Code that Callboard does not have -> what to do instead."""


def _unknown(name: str, ctx: click.Context) -> NoReturn:
    if name in _ELSEWHERE:
        raise click.UsageError(f"there is no command {name!r}. {_ELSEWHERE[name]}", ctx)
    near = _similar_commands(name)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    raise click.UsageError(f"there is no command {name!r}.{hint} To send it as a prompt: callboard -p {name}", ctx)


def _similar_commands(name: str) -> list[str]:
    from difflib import get_close_matches  # a rare case; it would slow down `--help`

    return get_close_matches(name, COMMANDS, n=2)


def _is_like_command(name: str) -> bool:
    """Return True if this word is a command, of Callboard or of Claude Code, or may be one with a mistake."""
    return any(name in names for names in (COMMANDS, _HIDDEN, _NAMES, _ELSEWHERE)) or bool(_similar_commands(name))


def _refuse_misplaced(ctx: click.Context, names: Iterable[str]) -> None:
    """Raise `click.UsageError` for an option of the prompt line before a command, where it would have no effect."""
    options = {param.name: param.opts[-1] for param in ctx.command.params}
    for name in names:
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            command = ctx.invoked_subcommand
            raise click.UsageError(f"{options[name]} before `{command}` has no effect: write it after `{command}`", ctx)


@click.group(
    cls=RootGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@everywhere
@click.option("-c", "--continue", "continue_", is_flag=True, help="Continue the current session.")
@click.option(
    "-r",
    "--resume",
    "resumed",
    is_flag=False,
    flag_value="",
    metavar="[ID|NAME]",
    help="Continue this session; alone: choose one.",
)
@click.option("-n", "--name", "title", metavar="NAME", help="Name of the session, for lists and --resume NAME.")
@in_worktree
@click.option("--model", metavar="NAME", help="The lead's model; rehearsal:FILE and cassette:FILE need no key.")
@click.option("--agent", metavar="TYPE", help="The agent type of a new session's lead.")
@click.option("--prompt", "prompt", hidden=True, help="First prompt of the lead; written as a bare argument.")
@with_plugins
@with_servers
@click.option(
    "--permission-mode",
    metavar="MODE",
    help="Mode for calls that no rule decides: default, acceptEdits, plan, dontAsk, sandboxed, ...",
)
@click.option("--trust", is_flag=True, help="Trust this workspace: use its hooks, agents, servers and settings.")
@taking_over
@click.pass_context
def cli(ctx: click.Context, /, **values: Any) -> int | None:
    """A lead agent, its team, approvals and schedules. Without a command: a prompt line to talk to the lead.

    callboard "Fix the tests" sends that prompt first. callboard -p "Fix the tests" runs it without a prompt line, as
    `run` does; it also reads stdin. The other options of `run` (`callboard run --help`) are accepted here too.

    -v alone prints the version; with anything else it means --verbose.

    Exit codes: 0 done, 1 the task failed, 2 usage, 3 configuration or credentials, 4 needs an answer that no one can
    give, 5 budget or limit, 6 model service unavailable, 70 a bug in Callboard, 124 time limit, 129 the terminal was
    closed, 130 Ctrl-C, 143 SIGTERM.
    """  # noqa: D401 - the text of `callboard --help`, which says what the program is
    if ctx.invoked_subcommand is not None:
        _refuse_misplaced(ctx, values)
        return None
    with collector_paused():
        talk = importlib.import_module("callboard.cli.commands.talk").talk
    return talk(ctx.obj, **values)


_RUNS = frozenset(
    {
        *("-p", "--print", "--output-format", "--allowed-tools", "--allowedTools", "--disallowed-tools"),
        *("--disallowedTools", "--append-system-prompt", "--max-turns", "--max-budget-usd", "--max-seconds"),
        *option_names(),
    }
)


_TOGETHER = late_pattern(r"-[cdpqv]{2,}")
"""Several flags of one letter each behind one dash, such as `-pc`."""


def as_run(args: Sequence[str], before: Iterable[click.Parameter]) -> list[str]:
    """Return the line with its command: `run` if one of its options comes before any other word; otherwise unchanged.

    A word that is no command, with `-p` after it, is the prompt of a run. `before`: options that may come before a
    command.
    """
    options = _options_of(before)
    at = _first_word(args, options)
    if at is None:
        return ["run", *args]
    word, *rest = args[at:] or [""]
    if word not in COMMANDS and word not in _HIDDEN and not {"-p", "--print"}.isdisjoint(rest):
        return ["run", *args]
    return list(args)


def with_first_prompt(args: Sequence[str], before: Iterable[click.Parameter], *, terminal: bool) -> list[str]:
    """Return the line with its command if its first word is a prompt: a text with a blank, or unlike any command.

    `callboard "Fix it"` sends the prompt at a prompt line on a terminal, and is a run elsewhere or with `-p`. A single
    word is a prompt only on a terminal, where the person sees what becomes of it.
    """
    options = _options_of(before)
    at = _first_word(args, options)
    if at is None or at >= len(args) or not args[at].strip():
        return list(args)
    others = [*args[:at], *args[at + 1 :]]
    next_word = _first_word(others, options)
    alone = next_word is None or next_word >= len(others)
    if len(args[at].split()) < 2 and not (terminal and alone and not _is_like_command(args[at])):
        return list(args)
    if not terminal or next_word is None:
        return ["run", *args]
    return [*others, "--prompt", args[at]]


def _options_of(parameters: Iterable[click.Parameter]) -> list[click.Option]:
    return [option for option in parameters if isinstance(option, click.Option)]


def _first_word(args: Sequence[str], options: Sequence[click.Option]) -> int | None:
    """Return the place of the first word that is no option and no value of one.

    None if an option of `run` comes before that word. `options`: those that may come before a command.
    """
    runs = _RUNS.difference(*(option.opts for option in options))
    valued = {name for option in options if not option.is_flag and not option.count for name in option.opts}
    bare = {name for option in options if option.flag_value == "" for name in option.opts}  # their value is optional
    at = 0
    while at < len(args) and args[at].startswith("-") and args[at] not in ("-", "--"):
        name, equals, _ = args[at].partition("=")
        if name in runs or (_TOGETHER.fullmatch(name) and "p" in name):
            return None
        alone = name in bare and args[at + 1 : at + 2] and args[at + 1].startswith("-")
        at += 2 if name in valued and not equals and not alone else 1
    return at

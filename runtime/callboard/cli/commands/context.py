"""`context [AGENT]`, `context explain`, `context undo`: the content of a window, the parts that were cut, and undo.

Reading works beside any host. Only the user may undo: it is refused inside a tool call.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from callboard.adapters.processes.tool_ancestry import refuse_inside_tool
from callboard.cli.commands.options import Invocation, as_json, everywhere, of_session
from callboard.cli.commands.output import terminal_of, with_handle
from callboard.cli.terminal.terminal import Block
from callboard.cli.views.context import context_block, context_json, edits_block, undo_line
from callboard.cli.views.listings import as_json as json_of
from callboard.core.reports.context import EditReport
from callboard.sessions.handle import Context, SessionHandle

_VALUED = frozenset({"-C", "--cwd", "--color", "--session", "--agent"})
"""Options with a value."""
_SHOW = "show"


class ContextGroup(click.Group):
    """Command group whose first word may be an agent instead of a command; it then shows the map of that agent."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move the command to the front, wherever it is; without one use the hidden `show`."""
        if {"-h", "--help"} & set(args[:1]):
            return super().parse_args(ctx, args)
        before = ["", *args]
        positions = [at for at, word in enumerate(args) if not word.startswith("-") and before[at] not in _VALUED]
        first = next(iter(positions), None)
        if first is not None and args[first] in self.list_commands(ctx):
            return super().parse_args(ctx, [args[first], *args[:first], *args[first + 1 :]])
        return super().parse_args(ctx, [_SHOW, *args])

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all commands except the hidden one."""
        return [name for name in super().list_commands(ctx) if name != _SHOW]

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the options without a command, for help."""
        return [param for param in self.commands[_SHOW].get_params(ctx) if isinstance(param, click.Option)]

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the usage for help: an agent, or a command."""
        return ["[OPTIONS]", "[AGENT]"]


@click.group(cls=ContextGroup)
def context(**_: Any) -> None:
    """Show what fills an agent's context window.

    Lists tokens and share by source, for the lead or for AGENT. `context explain` lists what was cut and why,
    `context undo` restores it.
    """


@context.command(_SHOW, hidden=True)
@click.argument("agent", default="lead")
@of_session
@as_json
@everywhere
@click.pass_obj
def show(invocation: Invocation, /, agent: str, session: str | None, json_: bool) -> None:
    """Show what fills an agent's context window."""

    async def read(handle: SessionHandle) -> Context:
        return await handle.context(agent)

    context = with_handle(invocation, session, read)
    _print(invocation, context_block(context), json.dumps(context_json(context), indent=2) if json_ else None)


@context.command()
@click.argument("agent", default="lead")
@of_session
@as_json
@everywhere
@click.pass_obj
def explain(invocation: Invocation, /, agent: str, session: str | None, json_: bool) -> None:
    """List what was cut from AGENT's conversation.

    Each line has the time, stage, reason, savings and cost, the affected messages, and the place of the full text. The
    newest comes last.
    """

    async def read(handle: SessionHandle) -> Sequence[EditReport]:
        return await handle.edits(agent)

    edits = with_handle(invocation, session, read)
    _print(invocation, edits_block(edits, agent), json_of(edits) if json_ else None)


@context.command()
@click.argument("edits", metavar="N...", type=click.IntRange(min=1), nargs=-1, required=True)
@click.option("--agent", default="lead", show_default=True, metavar="NAME", help="Agent whose edits to undo.")
@of_session
@as_json
@everywhere
@click.pass_obj
def undo(invocation: Invocation, /, *, edits: tuple[int, ...], agent: str, session: str | None, json_: bool) -> None:
    """Undo the edits with these numbers.

    Their content returns to the conversation, and stays as long as it fits. An undo is an edit too: it has a
    number and can be undone. It is refused if the conversation would not fit.
    """
    refuse_inside_tool("Undoing an edit")

    answer = with_handle(invocation, session, lambda handle: handle.undo(edits, agent))
    record = json_of([] if answer is None else [answer]) if json_ else None
    _print(invocation, Block((undo_line(answer, edits, agent),)), record)


def _print(invocation: Invocation, page: Block, record: str | None) -> None:
    with terminal_of(invocation) as terminal:
        if record is None:
            terminal.rows(page)
        else:
            terminal.record(record)

"""`context [AGENT]`, `context explain`, `context undo`: what fills a window, what was cut, and taking it back.

Looking works beside any host. Taking back is a person's: it is refused inside a tool call.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from callboard.core.context.told.explain import EditTold
from callboard.desks.desk import Context, Desk
from callboard.faces.cli.options import Given, as_json, everywhere, of_session, refuse_tools
from callboard.faces.cli.run import terminal_of
from callboard.faces.cli.team import at_desk
from callboard.faces.pages.context import context_block, context_json, edits_block, undo_line
from callboard.faces.pages.listings import as_json as json_of
from callboard.faces.terminal import Block

_VALUED = frozenset({"-C", "--cwd", "--color", "--session", "--agent"})
"""Options that take the next word."""
_SHOW = "show"


class OrAgent(click.Group):
    """A group whose first word may be an agent instead of a command: then the map of that agent is shown."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Bring the command to the front, wherever it stands; without one it is the hidden `show`."""
        if {"-h", "--help"} & set(args[:1]):
            return super().parse_args(ctx, args)
        before = ["", *args]
        words = [at for at, word in enumerate(args) if not word.startswith("-") and before[at] not in _VALUED]
        first = next(iter(words), None)
        if first is not None and args[first] in self.list_commands(ctx):
            return super().parse_args(ctx, [args[first], *args[:first], *args[first + 1 :]])
        return super().parse_args(ctx, [_SHOW, *args])

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All but the one that needs no name."""
        return [name for name in super().list_commands(ctx) if name != _SHOW]

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """For help: the options of what is shown without a command."""
        return [one for one in self.commands[_SHOW].get_params(ctx) if isinstance(one, click.Option)]

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """For help: an agent, or a command."""
        return ["[OPTIONS]", "[AGENT]"]


@click.group(cls=OrAgent)
def context(**_: Any) -> None:
    """Show what fills an agent's window.

    By source, with each one's tokens and share: the lead's window, or AGENT's. `context explain` lists what was cut and
    why, `context undo` takes it back.
    """


@context.command(_SHOW, hidden=True)
@click.argument("agent", default="lead")
@of_session
@as_json
@everywhere
@click.pass_obj
def show(given: Given, /, agent: str, session: str | None, json_: bool) -> None:
    """Show what fills an agent's window."""

    async def read(desk: Desk) -> Context:
        return await desk.context(agent)

    found = at_desk(given, session, read)
    _print(given, context_block(found), json.dumps(context_json(found), indent=2) if json_ else None)


@context.command()
@click.argument("agent", default="lead")
@of_session
@as_json
@everywhere
@click.pass_obj
def explain(given: Given, /, agent: str, session: str | None, json_: bool) -> None:
    """List what was cut from AGENT's conversation.

    When, by which stage, why, what it freed and cost, what it touched, where the whole stands. The newest comes last.
    """

    async def read(desk: Desk) -> Sequence[EditTold]:
        return await desk.edits(agent)

    found = at_desk(given, session, read)
    _print(given, edits_block(found, agent), json_of(found) if json_ else None)


@context.command()
@click.argument("edits", metavar="N...", type=click.IntRange(min=1), nargs=-1, required=True)
@click.option("--agent", default="lead", show_default=True, metavar="NAME", help="Whose edits they are.")
@of_session
@as_json
@everywhere
@click.pass_obj
def undo(given: Given, /, edits: tuple[int, ...], agent: str, session: str | None, json_: bool) -> None:
    """Take back the edits with these numbers.

    What they had cut stands in the conversation again, and is left alone for as long as it fits. An undo is an edit
    too: it has a number, and can be taken back. It is refused if the conversation would not fit.
    """
    refuse_tools("Taking an edit back")

    async def taking(desk: Desk) -> EditTold | None:
        return await desk.undo(edits, agent)

    answer = at_desk(given, session, taking)
    said = json_of([] if answer is None else [answer]) if json_ else None
    _print(given, Block((undo_line(answer, edits, agent),)), said)


def _print(given: Given, shown: Block, said: str | None) -> None:
    with terminal_of(given) as terminal:
        if said is None:
            terminal.rows(shown)
        else:
            terminal.record(said)

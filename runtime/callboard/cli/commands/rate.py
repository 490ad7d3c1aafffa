"""`rate`: parked models and refused API keys of a workspace.

After `rate reset` they are tried again at once.
"""

from __future__ import annotations

import json

import anyio
import click

from callboard.adapters.processes.tool_ancestry import refuse_inside_tool
from callboard.adapters.system.clock import SystemClock
from callboard.cli.commands.options import Invocation, as_json, everywhere, refuse_before_command
from callboard.cli.commands.output import notice_of, terminal_of
from callboard.cli.terminal.terminal import block
from callboard.cli.views.rate import in_force, rate_block, rate_json
from callboard.engine.rate_limits.limiter import rates_of, reset_rates
from callboard.sessions.places import find_places
from callboard.sessions.stores import existing_store
from callboard.types.rate_limits import RateNotice


@click.group(invoke_without_command=True)
@as_json
@everywhere
@click.pass_context
def rate(context: click.Context, /, json_: bool) -> None:
    """Show parked models and refused keys.

    A model is parked when the service answers 429 with a wait. One call tries it again after a minute at the latest,
    and your next prompt tries it at once.
    """
    if context.invoked_subcommand is not None:
        refuse_before_command(context)
        return
    invocation: Invocation = context.obj
    notices = anyio.run(_notices, invocation, False)
    with terminal_of(invocation) as terminal:
        now = SystemClock().now()
        if json_:
            terminal.record(json.dumps([rate_json(notice) for notice in in_force(notices, now)], indent=2))
        else:
            terminal.rows(rate_block(notices, now))


@rate.command()
@everywhere
@click.pass_obj
def reset(invocation: Invocation, /) -> None:
    """Remove parks and refusals in every process of this workspace: the next call tries the key again."""
    refuse_inside_tool("Resetting rate limits")
    notices = in_force(anyio.run(_notices, invocation, True), SystemClock().now())
    names = ", ".join(dict.fromkeys(notice.model or "the API key" for notice in notices))
    with terminal_of(invocation) as terminal:
        text = f"reset for {names}: waiting agents try again now" if names else "nothing was parked or refused"
        terminal.rows(block(text, "good" if names else "dim"))


async def _notices(invocation: Invocation, reset: bool) -> list[RateNotice]:
    """Return the notices of all keys in the workspace's store; with `reset` they are removed."""
    async with existing_store(find_places(invocation.workspace), notice_of(invocation)) as store:
        if store is None:
            return []
        return await reset_rates(store, SystemClock().now()) if reset else await rates_of(store)

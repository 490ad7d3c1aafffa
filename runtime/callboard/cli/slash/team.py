"""Slash commands about the session and its agents: the team, costs, and changes to a conversation."""

from __future__ import annotations

from callboard.cli.slash.context import Here, Leave, Switch, living, nothing_more, suggestion
from callboard.cli.terminal.terminal import Block, Line, block
from callboard.cli.views.context import context_block, edits_block, undo_line
from callboard.cli.views.cost import cost_block
from callboard.cli.views.events import first_line, shorten
from callboard.cli.views.status import sessions_table, status_block
from callboard.cli.views.tasks import tasks_table
from callboard.cli.views.team import team_table
from callboard.core.keys import by_beginning
from callboard.core.permissions.modes import selectable_modes
from callboard.types.errors import UsageError

_SOON = 0.5
"""Seconds that the prompt line waits for the result of an undo; a later result is shown on the screen."""
_SESSIONS = 15
"""Most sessions that /resume lists."""


async def team(console: Here, arguments: str) -> Block:
    nothing_more(arguments, "/team")
    return team_table(console.session.team())


async def tasks(console: Here, arguments: str) -> Block:
    nothing_more(arguments, "/tasks")
    return tasks_table(console.session.tasks())


async def clear(console: Here, arguments: str) -> Block:
    nothing_more(arguments, "/clear")
    await console.session.renew(carry=False)
    return Block(())  # the screen says it, also on those of other processes


async def status(console: Here, arguments: str) -> Block:
    nothing_more(arguments, "/status")
    return status_block(console.session, console.host)


async def agents(console: Here, arguments: str) -> Block:
    nothing_more(arguments, "/agents")
    types = console.session.agent_types
    if not types:
        return block("another process hosts the session: callboard agents list", "dim")
    width = max(map(len, types))
    return Block(tuple(Line(f"{name:<{width}}  {shorten(first_line(about), 90)}") for name, about in types.items()))


async def compact(console: Here, arguments: str) -> Block:
    await console.session.command("compact", text=arguments)
    return block("asked for a compaction", "dim", progress=True)


async def new(console: Here, arguments: str) -> Block:
    if arguments not in ("", "--carry"):
        return block("/new, or /new --carry", "warn")
    await console.session.renew(carry=bool(arguments))
    return Block(())  # the screen says it, also on those of other processes


async def stop(console: Here, arguments: str) -> Block:
    if not arguments:
        return block("name an agent: /stop NAME; /team lists them", "warn")
    name = living(console, arguments)
    if name == "lead":
        return block(
            "the lead ends with its session: ! stops its turn, /new starts a fresh conversation, /quit leaves", "warn"
        )
    await console.session.command("stop", to=name)
    return block(f"asked {name} to stop", "dim")


async def cost(console: Here, arguments: str) -> Block:
    if arguments not in ("", "agent", "model"):
        return block("/cost, or /cost model", "warn")
    spending = await console.session.cost()
    budgets = await console.session.budgets()
    return cost_block(spending, "model" if arguments == "model" else "agent", budgets)


async def context(console: Here, arguments: str) -> Block:
    """Show an agent's context, or explain or undo its edits: `[AGENT]`, `explain [AGENT]` or `undo N... [AGENT]`."""
    action, _, remaining = arguments.partition(" ")
    if action == "explain":
        agent = remaining.strip() or "lead"
        return edits_block(await console.session.edits(agent), agent)
    if action == "undo":
        named = [word for word in remaining.split() if not word.isdecimal()]
        edits = [int(word) for word in remaining.split() if word.isdecimal()]
        agent = named[0] if named else "lead"
        return Block((undo_line(await console.session.undo(edits, agent, _SOON), edits, agent),))
    return context_block(await console.session.context(arguments or "lead"))


async def model(console: Here, arguments: str) -> Block:
    """Show or set the model: `[NAME]`."""
    if not arguments:
        others = [choice for choice in console.session.models_of() if choice != console.session.model_of()]
        hint = f"; /model NAME chooses another one: {', '.join(others)}" if others else "; /model NAME chooses another"
        return Block((Line(console.session.model_of(), "strong"), Line(f"  the lead's model{hint}", "dim")))
    if len(arguments.split()) > 1:
        return block("give one name: /model NAME", "warn")
    if arguments == console.session.model_of():
        return block(f"the lead already uses {arguments}", "dim")
    await console.session.use_model(arguments)
    return block(f"the lead uses {arguments} from its next call on", "good")


async def mode(console: Here, arguments: str) -> Block:
    """Show or set the permission mode: `[MODE]`."""
    if not arguments:
        others = [
            choice
            for choice in selectable_modes(may_bypass=console.session.may_bypass)
            if choice != console.session.mode_of()
        ]
        hint = f"  the lead's permission mode; /mode MODE chooses another: {', '.join(others)}"
        return Block((Line(console.session.mode_of(), "strong"), Line(hint, "dim")))
    if len(arguments.split()) > 1:
        return block("give one mode: /mode MODE", "warn")
    if arguments == console.session.mode_of():
        return block(f"the lead is already in the mode {arguments}", "dim")
    chosen = await console.session.use_mode(arguments)
    return block(f"the lead's next calls are judged in the mode {chosen}", "good")


async def resume(console: Here, arguments: str) -> Block:
    """List sessions or switch to one: `[ID]`. Raises `Switch`."""
    rows = await console.session.sessions()
    if not arguments:
        listing = sessions_table(rows[:_SESSIONS])
        hint = f"; {len(rows) - _SESSIONS} older ones: callboard sessions" if len(rows) > _SESSIONS else ""
        arguments = f"this is {console.session.id}; /resume ID continues another one, and keeps this one{hint}"
        return Block((*listing.lines, Line(arguments, "dim")))
    ids = [row.id for row in rows]
    matches = by_beginning(ids, arguments)
    if len(matches) != 1:
        problem = (
            f"{arguments!r} matches {len(matches)} sessions"
            if matches
            else f"{arguments!r} is not a session of this workspace"
        )
        raise UsageError(f"{problem}.{suggestion(arguments, ids)} /resume lists them")
    if matches[0] == console.session.id:
        return block(f"this is session {matches[0]}", "dim")
    raise Switch(matches[0])


async def quit_(console: Here, arguments: str) -> Block:
    raise Leave

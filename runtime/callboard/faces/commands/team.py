"""Slash commands about the session and its agents: who is there, what it costs, what is made of a conversation."""

from __future__ import annotations

from callboard.core.names import by_beginning
from callboard.faces.commands.here import Here, Leave, Switch, living, meant, nothing_more
from callboard.faces.pages.context import context_block, edits_block, undo_line
from callboard.faces.pages.cost import cost_block
from callboard.faces.pages.listings import sessions_table, team_table
from callboard.faces.pages.tasks import tasks_table
from callboard.faces.terminal import Block, Line, block
from callboard.words.errors import UsageError

_SOON = 0.5
"""Seconds that the prompt line waits to hear what came of an undo; after that the screen tells."""
_SESSIONS = 15
"""Sessions that /resume lists."""


async def team(here: Here, words: str) -> Block:
    nothing_more(words, "/team")
    return team_table(here.session.team())


async def tasks(here: Here, words: str) -> Block:
    nothing_more(words, "/tasks")
    return tasks_table(here.session.tasks())


async def compact(here: Here, words: str) -> Block:
    await here.session.command("compact", text=words)
    return block("asked for a compaction", "dim", progress=True)


async def new(here: Here, words: str) -> Block:
    if words not in ("", "--carry"):
        return block("what is to be carried over? /new, or /new --carry", "warn")
    await here.session.renew(carry=bool(words))
    carried = "your words, the state and a hand-off note are carried over" if words else "nothing is carried over"
    return block(f"a fresh conversation: {carried}", "good")


async def stop(here: Here, words: str) -> Block:
    if not words:
        return block("whom? /stop NAME; /team shows who there is", "warn")
    name = living(here, words)
    if name == "lead":
        return block("the lead ends with its session: ! stops its turn, /new begins it anew, /quit leaves", "warn")
    await here.session.command("stop", to=name)
    return block(f"asked {name} to stop", "dim")


async def cost(here: Here, words: str) -> Block:
    if words not in ("", "agent", "model"):
        return block("by what? /cost, or /cost model", "warn")
    spending, budgets = await here.session.desk.cost(), await here.session.desk.budgets()
    return cost_block(spending, "model" if words == "model" else "agent", budgets)


async def context(here: Here, words: str) -> Block:
    """`[AGENT]`, `explain [AGENT]` or `undo N... [AGENT]`."""
    action, _, rest = words.partition(" ")
    if action == "explain":
        agent = rest.strip() or "lead"
        return edits_block(await here.session.desk.edits(agent), agent)
    if action == "undo":
        named = [word for word in rest.split() if not word.isdecimal()]
        edits = [int(word) for word in rest.split() if word.isdecimal()]
        agent = named[0] if named else "lead"
        return Block((undo_line(await here.session.desk.undo(edits, agent, _SOON), edits, agent),))
    return context_block(await here.session.desk.context(words or "lead"))


async def model(here: Here, words: str) -> Block:
    """`[NAME]`."""
    if not words:
        others = [one for one in here.session.models_of() if one != here.session.model_of()]
        more = f"; /model NAME chooses another one: {', '.join(others)}" if others else "; /model NAME chooses another"
        return Block((Line(here.session.model_of(), "strong"), Line(f"  the lead's model{more}", "dim")))
    if len(words.split()) > 1:
        return block("one name, please: /model NAME", "warn")
    if words == here.session.model_of():
        return block(f"the lead asks {words} already", "dim")
    await here.session.use_model(words)
    return block(f"from its next call on the lead asks {words}", "good")


async def resume(here: Here, words: str) -> Block:
    """`[ID]`. Raises `Switch`."""
    rows = await here.session.sessions()
    if not words:
        shown = sessions_table(rows[:_SESSIONS])
        more = f"; {len(rows) - _SESSIONS} older ones: callboard sessions" if len(rows) > _SESSIONS else ""
        words = f"this is {here.session.id}; /resume ID goes on with another one, and keeps this{more}"
        return Block((*shown.lines, Line(words, "dim")))
    ids = [one.id for one in rows]
    found = by_beginning(ids, words)
    if len(found) != 1:
        what = f"{words!r} fits {len(found)} sessions" if found else f"{words!r} is no session of this workspace"
        raise UsageError(f"{what}.{meant(words, ids)} /resume lists them")
    if found[0] == here.session.id:
        return block(f"this is session {found[0]}", "dim")
    raise Switch(found[0])


async def quit_(here: Here, words: str) -> Block:
    raise Leave

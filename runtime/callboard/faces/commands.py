"""The slash commands of the prompt line: what each does, in the words of `Session`. It prints by the terminal only."""

from __future__ import annotations

import difflib
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from callboard.app import OpenSession
from callboard.core.asking.plans import AS_IT_STANDS, Word
from callboard.core.asking.session_rules import Always
from callboard.faces.editing import Edit, approval, editable, kept
from callboard.faces.pages.context import context_block, edits_block, undo_line
from callboard.faces.pages.cost import cost_block
from callboard.faces.pages.listings import (
    find_request,
    requests_block,
    schedules_table,
    table,
    team_table,
)
from callboard.faces.pages.mail import inbox_table, to_show, trace_block
from callboard.faces.pages.plan import request_page, told
from callboard.faces.pages.rules import made_lines
from callboard.faces.pages.tasks import tasks_table
from callboard.faces.permission import read_always
from callboard.faces.terminal import Block, Line, Terminal, block
from callboard.words.errors import CallboardError

_OPTION = re.compile(r"(\S+) option (\d{1,4})(?: (.*))?")
_SOON = 0.5
"""Seconds that the prompt line waits to hear what came of an undo; after that the screen tells."""


class Leave(Exception):
    """The person is done with this prompt line."""


@dataclass(frozen=True, slots=True)
class Here:
    """What a slash command works on: the session, and an editor at this prompt line."""

    session: OpenSession
    edit: Edit


@dataclass(frozen=True, slots=True)
class Command:
    """One slash command: its arguments and its meaning, for /help, and what it does with the words after its name."""

    words: str
    help: str
    act: Callable[[Here, str], Awaitable[Block]]


async def perform(line: str, here: Here, terminal: Terminal) -> None:
    """Do what a `/command` line says and print what came of it. Raises `Leave` for /quit."""
    name, _, words = line.removeprefix("/").partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        near = difflib.get_close_matches(name, COMMANDS, n=2, cutoff=0.5)
        meant = f" Did you mean {' or '.join(f'/{one}' for one in near)}?" if near else " /help lists them."
        terminal.terminal_print(block(f"there is no command /{name}.{meant}", "warn"))
        return
    try:
        terminal.terminal_print(await command.act(here, words.strip()))
    except CallboardError as error:
        terminal.terminal_print(block(str(error), "bad"))


async def _help(here: Here, words: str) -> Block:
    rows = [[f"/{name} {command.words}".rstrip(), command.help] for name, command in COMMANDS.items()]
    keys = ["Ctrl-C", "drop the draft, else stop the turn; twice within 2 s: leave"], ["Ctrl-D", "leave"]
    return table(["COMMAND", "WHAT IT DOES"], [*rows, *keys], "")


async def _team(here: Here, words: str) -> Block:
    return team_table(here.session.team())


async def _tasks(here: Here, words: str) -> Block:
    return tasks_table(here.session.tasks())


async def _plans(here: Here, words: str) -> Block:
    return requests_block(here.session.requests())


async def _show(here: Here, words: str) -> Block:
    if not words:
        return block("which one? /inbox shows what waits", "warn")
    requests = here.session.requests(pending_only=False)
    request = find_request(requests, words)
    return request_page(told(request, requests, await here.session.moved(request)))


async def _inbox(here: Here, words: str) -> Block:
    if words:
        return inbox_table(to_show(await here.session.desk.inbox(None if words == "all" else words), everything=False))
    waiting = here.session.requests()
    rows = [[row.id, row.kind, row.asked_by, row.subject] for row in waiting]
    return table(["REQUEST", "KIND", "FROM", "ABOUT"], rows, "nothing waits for you")


async def _trace(here: Here, words: str) -> Block:
    if not words:
        return block("which envelope? /inbox all shows them", "warn")
    return trace_block(await here.session.desk.trace(words))


async def _cron(here: Here, words: str) -> Block:
    return schedules_table(here.session.schedules())


async def _approve(here: Here, words: str) -> Block:
    """`ID [option N] [always [agent] [2h]] [words]`."""
    wanted, _, rest = words.partition(" ")
    if rest.split(" ")[0] == "always":
        always, reason = read_always(rest.partition(" ")[2])
        return await _give(here.session, f"{wanted} {reason}", "approved", always=always)
    found = _OPTION.fullmatch(words)
    if found is None:
        return await _give(here.session, words, "approved")
    return await _give(here.session, f"{found[1]} {found[3] or ''}", "approved", Word(int(found[2])))


async def _edit(here: Here, words: str) -> Block:
    """`ID [words]`."""
    wanted, _, why = words.partition(" ")
    if not wanted:
        return block("which one? /inbox shows what waits", "warn")
    plan = find_request(here.session.requests(pending_only=False), wanted)
    editable(plan)
    text = await here.edit(plan)
    refused = await here.session.answer(plan.id, "approved", why.strip(), approval(plan, text))
    if refused is not None:
        return block(f"{refused}. {kept(plan, text)}", "warn")
    return block(f"{plan.id} approved as edited", "good")


async def _reject(here: Here, words: str) -> Block:
    return await _give(here.session, words, "rejected")


async def _answer(here: Here, words: str) -> Block:
    return await _give(here.session, words, "answered")


async def _compact(here: Here, words: str) -> Block:
    await here.session.command("compact", text=words)
    return block("asked for a compaction", "dim", progress=True)


async def _new(here: Here, words: str) -> Block:
    if words not in ("", "--carry"):
        return block("what is to be carried over? /new, or /new --carry", "warn")
    await here.session.renew(carry=bool(words))
    carried = "your words, the state and a hand-off note are carried over" if words else "nothing is carried over"
    return block(f"a fresh conversation: {carried}", "good")


async def _stop(here: Here, words: str) -> Block:
    if not words:
        return block("whom? /stop NAME; /team shows who there is", "warn")
    await here.session.command("stop", to=words)
    return block(f"asked {words} to stop", "dim")


async def _cost(here: Here, words: str) -> Block:
    if words not in ("", "agent", "model"):
        return block("by what? /cost, or /cost model", "warn")
    spending, budgets = await here.session.desk.cost(), await here.session.desk.budgets()
    return cost_block(spending, "model" if words == "model" else "agent", budgets)


async def _context(here: Here, words: str) -> Block:
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


async def _model(here: Here, words: str) -> Block:
    if words:
        return block(f"a session keeps its model; start another one: callboard --model {words}", "warn")
    return block(here.session.model)


async def _resume(here: Here, words: str) -> Block:
    return block(f"this is session {here.session.id}; leave and call: callboard --resume {words or 'ID'}", "warn")


async def _quit(here: Here, words: str) -> Block:
    raise Leave


COMMANDS: Mapping[str, Command] = {
    "help": Command("", "show this", _help),
    "team": Command("", "show the agents", _team),
    "inbox": Command("[AGENT]", "what waits for you, a line each; or the mail of an agent, or of all", _inbox),
    "trace": Command("ENVELOPE", "where an envelope came from and what it caused", _trace),
    "tasks": Command("", "show the task board", _tasks),
    "plans": Command("", "show what waits for you, in full", _plans),
    "show": Command("ID", "show a plan or another request in full, with its history", _show),
    "approve": Command("ID [option N | always] [words]", "approve a plan or allow a tool", _approve),
    "edit": Command("ID [words]", "edit a plan in $VISUAL or $EDITOR, and approve it", _edit),
    "reject": Command("ID why", "reject a plan or refuse a tool", _reject),
    "answer": Command("ID words", "answer a question", _answer),
    "cron": Command("", "show the schedules", _cron),
    "compact": Command("[focus]", "summarise the lead's conversation now", _compact),
    "new": Command("[--carry]", "begin a fresh conversation, with what matters of this one", _new),
    "context": Command("[AGENT]", "what fills a window; also: explain [AGENT], undo N [AGENT]", _context),
    "cost": Command("[model]", "show what each agent spent, or each model", _cost),
    "model": Command("", "show the model", _model),
    "resume": Command("[ID]", "how to go on with another session", _resume),
    "stop": Command("NAME", "ask an agent to stop", _stop),
    "quit": Command("", "leave; the session is kept", _quit),
}


async def _give(
    session: OpenSession,
    words: str,
    status: Literal["approved", "rejected", "answered"],
    word: Word = AS_IT_STANDS,
    always: Always | None = None,
) -> Block:
    wanted, _, reason = words.partition(" ")
    if not wanted:
        return block("which one? /inbox shows what waits", "warn")
    request = find_request(session.requests(), wanted)
    if request.kind == "plan" and status == "rejected" and not reason.strip():
        return block(f"say what is to change: /reject {request.id} WHY", "warn")
    refused = await session.answer(request.id, status, reason.strip(), word, always)
    if refused is not None:
        return block(refused, "warn")
    made = made_lines(await session.desk.rules.made_by(request.id)) if always is not None else ()
    return Block((Line(f"{request.id} {status}", "good"), *made))

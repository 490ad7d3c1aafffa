"""All slash commands by name, and what becomes of a line that holds one. It prints by the terminal only."""

from __future__ import annotations

from collections.abc import Mapping

from callboard.faces.commands import answers, servers, team
from callboard.faces.commands.cron import cron
from callboard.faces.commands.here import Command, Here, meant
from callboard.faces.commands.memory import memory
from callboard.faces.lines import first_line, shorten
from callboard.faces.steering import Say, heed
from callboard.faces.terminal import Block, Line, Terminal, block
from callboard.words.errors import CallboardError


async def perform(line: str, here: Here, terminal: Terminal) -> None:
    """Do what a `/command` line says and print what came of it. Raises `Leave` for /quit, `Switch` for /resume ID."""
    name, words = named(line)
    command = COMMANDS.get(name)
    if command is None:
        typed = line.split()[0].removeprefix("/")
        others = [one.name for one in here.session.commands()]
        if typed in others:
            await _said(line, here, terminal)
            return
        better = meant(name, (*COMMANDS, *others), "/") or " /help lists them."
        say = f" To say it to the lead, begin with a backslash: \\{line.split()[0]} ..."
        terminal.terminal_print(block(f"there is no command /{name}.{better}{say}", "warn"))
        return
    try:
        terminal.terminal_print(await command.act(here, words))
    except CallboardError as error:
        terminal.terminal_print(block(str(error), "bad"))


async def _said(line: str, here: Here, terminal: Terminal) -> None:
    """A skill or another command of the session: the lead hears it as what it stands for."""
    told, _ = await heed(here.session, Say(line))
    if told.lines:
        terminal.terminal_print(told)


def named(line: str) -> tuple[str, str]:
    """The command's name without its slash, and the words after it."""
    name, *words = line.removeprefix("/").split(maxsplit=1)
    return name.lower(), words[0].strip() if words else ""


async def _help(here: Here, words: str) -> Block:
    wanted = words.removeprefix("/")
    known = COMMANDS.get(wanted)
    other = next((one for one in here.session.commands() if one.name == wanted), None)
    if words and known is None and other is not None:
        return block(f"/{other.name} {other.hint}".rstrip() + f"\n{other.about}")
    if words and known is None:
        return block(f"there is no command /{wanted}.{meant(wanted, COMMANDS, '/') or ' /help lists them.'}", "warn")
    shown = COMMANDS if known is None else {wanted: known}
    rows = [(f"/{name} {command.words}".rstrip(), command.help) for name, command in shown.items()]
    if not words:
        rows += [
            (f"/{one.name} {one.hint}".rstrip(), shorten(first_line(one.about), _ABOUT))
            for one in here.session.commands()
        ]
        rows += _LINES
    width = max(len(typed) for typed, _ in rows)
    return Block(tuple(Line(f"{typed:<{width}}  {does}") for typed, does in rows))


_ABOUT = 72
"""Characters of what a skill says of itself in the list."""
_LINES = (
    ("TEXT", "to the lead; while it works: queued"),
    ("!TEXT", "interrupts the lead's turn and says this; ! alone interrupts"),
    ("@NAME TEXT", "to a teammate; !@NAME TEXT interrupts it; @all TEXT: to all"),
    ("\\TEXT", "to the lead as it stands, also with / @ or ! at its beginning"),
    ("Ctrl-C", "drops the draft, else stops the turn; twice in 2 s: leave"),
    ("Ctrl-D", "leaves, on an empty line"),
)
"""What may be typed beside commands."""

COMMANDS: Mapping[str, Command] = {
    "help": Command("[COMMAND]", "show this", _help),
    "team": Command("", "show the agents", team.team),
    "inbox": Command("[AGENT]", "what waits for you; or the mail of an agent, or of all", answers.inbox),
    "trace": Command("ENVELOPE", "where an envelope came from and what it caused", answers.trace),
    "tasks": Command("", "show the task board", team.tasks),
    "plans": Command("", "show what waits for you, in full", answers.plans),
    "show": Command("ID", "show a request in full, with its history", answers.show),
    "approve": Command("ID [option N | always] [why]", "approve a plan or allow a tool", answers.approve),
    "edit": Command("ID [words]", "edit a plan in $VISUAL or $EDITOR, and approve it", answers.edit),
    "reject": Command("ID why", "reject a plan or refuse a tool", answers.reject),
    "answer": Command("ID words", "answer a question", answers.answer),
    "rules": Command("[revoke ID]", "what was allowed for always, and taking it back", answers.rules),
    "cron": Command("", "show the schedules", cron),
    "memory": Command("[NAME | forget NAME]", "show the notes that agents keep, one of them, or delete it", memory),
    "mcp": Command("[connect | off NAME]", "show the MCP servers, connect one or switch it off", servers.mcp),
    "compact": Command("[focus]", "summarise the lead's conversation now", team.compact),
    "new": Command("[--carry]", "a fresh conversation, with what matters of this one", team.new),
    "context": Command("[AGENT]", "what fills a window; also: explain [AGENT], undo N [AGENT]", team.context),
    "cost": Command("[model]", "show what each agent spent, or each model", team.cost),
    "model": Command("[NAME]", "show the lead's model, or choose another", team.model),
    "resume": Command("[ID]", "list the sessions, or go on with another one", team.resume),
    "stop": Command("NAME", "ask an agent to stop", team.stop),
    "quit": Command("", "leave; the session is kept", team.quit_),
}

"""All slash commands by name, and the execution of a line that contains one. Output goes only through the terminal.

Each command is a function of the conversation and the text after its name. `COMMANDS` has their names and helps.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Literal

import anyio.to_thread

from callboard.adapters.processes.tool_ancestry import refuse_inside_tool
from callboard.cli.repl.input import Say, submit
from callboard.cli.slash.context import (
    LeavePrompt,
    SlashCommand,
    SlashContext,
    Switch,
    living_agent,
    nothing_more,
    suggestion,
)
from callboard.cli.terminal.page_process import open_page
from callboard.cli.terminal.plan_editor import keep_text
from callboard.cli.terminal.terminal import Block, Line, Terminal, block, columns, stacked, wrap_line
from callboard.cli.views.context import context_block, edits_block, undo_line
from callboard.cli.views.cost import cost_block
from callboard.cli.views.edits import approval, editable
from callboard.cli.views.events import first_line, shorten
from callboard.cli.views.listings import render_listing
from callboard.cli.views.mail import inbox_table, to_show, trace_block
from callboard.cli.views.memory import diff_block, note_block, notes_table
from callboard.cli.views.permission import read_always
from callboard.cli.views.policy import created_rule_lines, permissions_block, revoked_words, rules_table
from callboard.cli.views.requests import details_of, find_request, request_page, requests_block
from callboard.cli.views.schedules import cron_page
from callboard.cli.views.servers import NO_SERVERS, states_block, tools_count
from callboard.cli.views.settings import SettingChange, SettingsEditor
from callboard.cli.views.status import sessions_table, status_block
from callboard.cli.views.tasks import tasks_table
from callboard.cli.views.team import team_table
from callboard.config.setting_keys import key_of
from callboard.core.approvals.plans import PLAIN_ANSWER, AnswerDetails
from callboard.core.approvals.session_rules import AlwaysAllow
from callboard.core.keys import by_beginning
from callboard.core.permissions.modes import selectable_modes
from callboard.core.skills.substitution import unknown_command, untrusted_command
from callboard.ports.mcp import Servers
from callboard.sessions.base import OpenSession
from callboard.sessions.inspect.memory import MemoryInspector, NoteSelection, open_memory
from callboard.sessions.inspect.resources import REQUESTS
from callboard.types.choices import unknown
from callboard.types.errors import CallboardError, ToolRefused, UsageError
from callboard.types.late_pattern import late_pattern
from callboard.types.records import Request

_SOON = 0.5
"""Seconds that the prompt line waits for the result of an undo; a later result is shown on the screen."""
_SESSIONS = 15
"""Limit of the sessions that /resume lists."""


async def team(console: SlashContext, arguments: str) -> Block:
    """Open the tree of the team, or the stream of an agent; list the agents with their ids: `[NAME | ids]`."""
    if arguments == "ids" or (console.panel is None and not arguments):
        return team_table(console.session.team())
    if console.panel is None:
        raise UsageError("this terminal shows every agent line by line; /team lists them")
    if arguments:
        console.panel.open_agent(arguments)
    else:
        console.panel.open_tree()
    return Block(())


async def tasks(console: SlashContext, arguments: str) -> Block:
    """List the tasks of the board."""
    nothing_more(arguments, "/tasks")
    return tasks_table(console.session.tasks())


async def clear(console: SlashContext, arguments: str) -> Block:
    """Start an empty conversation of the lead."""
    nothing_more(arguments, "/clear")
    await console.session.renew(carry=False)
    return Block(())  # every screen reports it, including those of other processes


async def status(console: SlashContext, arguments: str) -> Block:
    """Show the place, the settings and the open work of the session."""
    nothing_more(arguments, "/status")
    return status_block(console.session, console.host)


async def agents(console: SlashContext, arguments: str) -> Block:
    """List the agent types that the lead can start."""
    nothing_more(arguments, "/agents")
    types = console.session.agent_types
    if not types:
        return block("another process hosts the session: callboard agents list", "dim")
    return _two_columns([(name, shorten(first_line(about), 90)) for name, about in types.items()])


async def compact(console: SlashContext, arguments: str) -> Block:
    """Ask for a compaction of the lead's conversation: `[FOCUS]`."""
    await console.session.command("compact", text=arguments)
    return block("asked for a compaction", "dim", progress=True)


async def new(console: SlashContext, arguments: str) -> Block:
    """Start a fresh conversation of the lead: `[--carry]`."""
    if arguments not in ("", "--carry"):
        return block("/new, or /new --carry", "warn")
    await console.session.renew(carry=bool(arguments))
    return Block(())  # every screen reports it, including those of other processes


async def stop(console: SlashContext, arguments: str) -> Block:
    """Ask an agent to stop: `NAME`."""
    if not arguments:
        return block("name an agent: /stop NAME; /team lists them", "warn")
    name = living_agent(console, arguments)
    if name == "lead":
        return block(
            "the lead ends with its session: ! stops its turn, /new starts a fresh conversation, /quit leaves", "warn"
        )
    await console.session.command("stop", to=name)
    return block(f"asked {name} to stop", "dim")


async def cost(console: SlashContext, arguments: str) -> Block:
    """Show the cost by agent or by model, and the budgets: `[agent | model]`."""
    if arguments not in ("", "agent", "model"):
        return block("/cost, or /cost model", "warn")
    spending = await console.session.cost()
    return cost_block(spending, "model" if arguments == "model" else "agent", await console.session.budgets())


async def context(console: SlashContext, arguments: str) -> Block:
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


async def model(console: SlashContext, arguments: str) -> Block:
    """Show or set the model: `[NAME]`."""
    if not arguments:
        others = [choice for choice in console.session.models_of() if choice != console.session.model_of()]
        hint = f"; /model NAME chooses another one: {', '.join(others)}" if others else "; /model NAME chooses another"
        return Block((Line(console.session.model_of(), "strong"), Line(f"  the lead's model{hint}", "dim")))
    if len(arguments.split()) > 1:
        return block("give one name: /model NAME", "warn")
    if arguments == console.session.model_of():
        return block(f"the lead already uses {arguments}", "dim")
    used = await console.session.use_model(arguments)
    assumed = (Line(f"{used.assumed}. State them under `models` in settings.yaml", "warn"),) if used.assumed else ()
    return Block((Line(f"the lead uses {used.name} from its next call on", "good"), *assumed))


async def mode(console: SlashContext, arguments: str) -> Block:
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
    return block(f"the lead's mode is {chosen} from its next call on", "good")


async def config(console: SlashContext, arguments: str) -> Block:
    """Show or change settings: `[KEY | list | set KEY VALUE | unset KEY | add KEY ITEM... | remove KEY ITEM...]`.

    `-g` after the first word means the person's own file.
    """
    return await anyio.to_thread.run_sync(partial(_config, console.session.workspace, arguments))


def _config(folder: Path, arguments: str) -> Block:
    try:
        first, *words = shlex.split(arguments) or ["list"]
    except ValueError as error:
        raise UsageError(f"a quote is not closed: {arguments}") from error
    own = bool(words) and words[0] in ("-g", "--global")
    editor = SettingsEditor(folder, own=own)
    match first, words[own:]:
        case "list", ([] | ["--all"]) as options:
            page = editor.page(everything=bool(options))
            left_out = page.left_out.replace("callboard config", "/config")
            lines = [Line(left_out, "dim")] if left_out else []
            lines += [Line(page.fault, "warn")] if page.fault else []
            return stacked(page.listing, *lines)
        case "get", [key]:
            return _one_setting(editor, key)
        case "set", [key, value, *others]:
            # A value of several words may be a list: `[a, b]`. Its quotes belong to it.
            text = arguments.split(key, 1)[1].strip() if others else value
            return _changed_setting(key, lambda: editor.set(key, text))
        case "unset", [key]:
            return _changed_setting(key, lambda: editor.unset(key))
        case "add", [key, _, *_] as given:
            return _changed_setting(key, lambda: editor.add(key, given[1:]))
        case "remove", [key, _, *_] as given:
            return _changed_setting(key, lambda: editor.remove(key, given[1:]))
        case key, [] if key not in _CONFIG_WORDS:
            return _one_setting(editor, key)
        case _:
            raise UsageError(
                "/config, /config KEY, or /config set KEY VALUE; also unset, add, remove. -g before KEY: your own file"
            )


_CONFIG_WORDS = frozenset({"list", "get", "set", "unset", "add", "remove"})
_HERE = {"model": "/model NAME", "permission.mode": "/mode MODE"}
"""Settings that a running session can change, and how."""


def _one_setting(editor: SettingsEditor, key: str) -> Block:
    setting = editor.get(key)
    return Block(
        (Line(setting.text() or "(no value)", "strong"), Line(f"  {setting.name}, from {setting.origin}", "dim"))
    )


def _changed_setting(key: str, change: Callable[[], SettingChange]) -> Block:
    """Change a settings file, and return the change. Raises `UsageError` in a process that an agent's tool started."""
    refuse_inside_tool("Changing settings")
    made = change()
    here = _HERE.get(key_of(key).name)
    effect = "sessions that begin from now on use it" + (f"; {here} changes this one" if here else "")
    return Block((Line(made.text, "good"), *(Line(note, "warn") for note in made.notes), Line(effect, "dim")))


async def resume(console: SlashContext, arguments: str) -> Block:
    """List sessions or switch to one: `[ID]`. Raises `Switch`."""
    rows = await console.session.sessions()
    if not arguments:
        listing = sessions_table(rows[:_SESSIONS])
        hint = f"; {len(rows) - _SESSIONS} older ones: callboard sessions" if len(rows) > _SESSIONS else ""
        arguments = f"this is {console.session.id}; /resume ID continues another one, and keeps this one{hint}"
        return stacked(listing, Line(arguments, "dim"))
    ids = [row.id for row in rows]
    matches = by_beginning(ids, arguments)
    if len(matches) != 1:
        if matches:
            raise UsageError(f"{arguments!r} matches {len(matches)} sessions: /resume lists them")
        raise UsageError(f"{unknown('session', arguments, ids, where='of this workspace')}; /resume lists them")
    if matches[0] == console.session.id:
        return block(f"this is session {matches[0]}", "dim")
    raise Switch(matches[0])


async def quit_(console: SlashContext, arguments: str) -> Block:
    """Leave the prompt line."""
    raise LeavePrompt


async def mcp(console: SlashContext, arguments: str) -> Block:
    """List the MCP servers, connect one, or switch one off: `[connect NAME | off NAME]`."""
    servers = console.session.servers
    if servers is None:
        return block(NO_SERVERS, "dim")
    action, _, name = arguments.partition(" ")
    if not action:
        return states_block(servers.now())
    if action not in ("connect", "off") or not name.strip():
        return block("/mcp, /mcp connect NAME, or /mcp off NAME", "warn")
    return await _act_on_server(servers, action, name.strip())


async def _act_on_server(servers: Servers, action: str, name: str) -> Block:
    try:
        now = await (servers.connect(name) if action == "connect" else servers.switch_off(name))
    except ToolRefused as refused:
        return block(str(refused), "warn")
    return block(f"{now.name} is {now.state}, {tools_count(now)}", "good" if now.state == "connected" else "dim")


async def memory(console: SlashContext, arguments: str) -> Block:
    """List the notes, show one, or delete one: `[NAME | forget NAME [yes]]`."""
    return await anyio.to_thread.run_sync(partial(_memory, console, arguments.split()))


def _memory(console: SlashContext, arguments: list[str]) -> Block:
    inspector = _inspector(console)
    match arguments:
        case []:
            notes, problems = inspector.notes()
            return stacked(notes_table(notes), *(Line(problem, "warn") for problem in problems))
        case ["forget", name]:
            preview = diff_block(inspector.without(name).diff)
            return Block((*preview.lines, Line(f"to delete it: /memory forget {name} yes", "dim")))
        case ["forget", name, "yes"]:
            inspector.without(name).make()
            return Block((Line(f"the note {name} is deleted", "good"),))
        case [name]:
            return note_block(inspector.note(name))
        case _:
            raise UsageError("/memory [NAME | forget NAME]: `callboard memory` does more")


def _inspector(console: SlashContext) -> MemoryInspector:
    """Return the notes of the session, the project and the person."""
    request = NoteSelection(session=console.session.id)
    try:
        return open_memory(console.session.workspace, request)
    except UsageError:  # the session has no folder yet, so it has no notes
        return open_memory(console.session.workspace, NoteSelection())


async def cron(console: SlashContext, arguments: str) -> Block:
    """List the schedules of the session."""
    nothing_more(arguments, "/cron")
    return cron_page(console.session.schedules(), time.time())


_WORD = late_pattern(r"(\S+)(?: option (\d{1,4}))?(?: mode (\S+))?(?: (.*))?", re.DOTALL)
WHICH = "which one? /inbox shows what waits"


async def inbox(console: SlashContext, arguments: str) -> Block:
    """List the pending requests, or mail of all agents or of one: `[all | NAME]`."""
    if arguments:
        return inbox_table(
            to_show(await console.session.inbox(None if arguments == "all" else arguments), everything=False)
        )
    names = ("REQUEST", "KIND", "FROM", "ABOUT")
    return render_listing(REQUESTS, console.session.requests(), names, "nothing waits for you")


async def trace(console: SlashContext, arguments: str) -> Block:
    """Show the origin and the effects of an envelope: `ID`."""
    if not arguments:
        return block("which envelope? /inbox all shows them", "warn")
    return trace_block(await console.session.trace(arguments))


async def plans(console: SlashContext, arguments: str) -> Block:
    """List the pending requests, or show one: `[ID]`."""
    if arguments:
        return await show(console, arguments)
    return requests_block(console.session.requests())


async def show(console: SlashContext, arguments: str) -> Block:
    """Show a request in full: `ID`."""
    if not arguments:
        return block(WHICH, "warn")
    requests = console.session.requests(pending_only=False)
    request = find_request(requests, arguments)
    return request_page(details_of(request, requests, await console.session.commit_change(request)))


async def approve(console: SlashContext, arguments: str) -> Block:
    """Approve a request: `ID [option N] [mode MODE] [always [agent] [2h]] [words]`."""
    request_id, _, remaining = arguments.partition(" ")
    if remaining.split(" ")[0] == "always":
        always, reason = read_always(remaining.partition(" ")[2])
        return await _answer_request(console.session, f"{request_id} {reason}", "approved", always=always)
    match = _WORD.fullmatch(arguments)
    if match is None:
        return await _answer_request(console.session, arguments, "approved")
    word = AnswerDetails(int(match[2] or 0), mode=match[3] or "")
    return await _answer_request(console.session, f"{match[1]} {match[4] or ''}", "approved", word=word)


async def edit(console: SlashContext, arguments: str) -> Block:
    """Edit a plan and approve the edited text: `ID [words]`."""
    request_id, _, reason = arguments.partition(" ")
    if not request_id:
        return block(WHICH, "warn")
    plan = find_request(console.session.requests(pending_only=False), request_id)
    editable(plan)
    text = await console.edit(plan)
    refused = await console.session.answer(plan.id, "approved", reason.strip(), word=approval(plan, text))
    if refused is not None:
        return block(f"{refused}. {keep_text(plan, text)}", "warn")
    return block(f"{plan.id} approved as edited", "good")


async def reject(console: SlashContext, arguments: str) -> Block:
    """Reject a request: `ID [REASON]`."""
    return await _answer_request(console.session, arguments, "rejected")


async def answer(console: SlashContext, arguments: str) -> Block:
    """Answer a question: `ID TEXT`."""
    return await _answer_request(console.session, arguments, "answered")


async def rules(console: SlashContext, arguments: str) -> Block:
    """List or revoke rules: `[revoke ID]`."""
    action, _, rule_id = arguments.partition(" ")
    inspector = console.session.rules
    if action == "revoke" and rule_id.strip():
        revoked = await inspector.revoke(rule_id.strip())
        return block(revoked_words(revoked), "good")
    if arguments:
        return block("/rules lists the rules of this session; /rules revoke ID revokes one", "warn")
    return rules_table(inspector.all(), time.time())


async def permissions(console: SlashContext, arguments: str) -> Block:
    """Show the permission mode, and the rules of the settings and of the session."""
    nothing_more(arguments, "/permissions")
    session = console.session
    if console.host is not None:
        return block(f"process {console.host} hosts the session: callboard settings lists its rules", "dim")
    return permissions_block(session.mode_of(), session.written_rules(), session.rules.all(), time.time())


async def _answer_request(
    session: OpenSession,
    arguments: str,
    status: Literal["approved", "rejected", "answered"],
    *,
    word: AnswerDetails = PLAIN_ANSWER,
    always: AlwaysAllow | None = None,
) -> Block:
    request_id, _, reason = arguments.partition(" ")
    if not request_id:
        return block(WHICH, "warn")
    request = find_request(session.requests(pending_only=False), request_id)
    if problem := _other_command(request, status, reason.strip()):
        return block(problem, "warn")
    refused = await session.answer(request.id, status, reason.strip(), word=word, always=always)
    if refused is not None:
        return block(refused, "warn")
    made = created_rule_lines(await session.rules.made_by(request.id)) if always is not None else ()
    return Block((Line(f"{request.id} {status}", "good"), *made))


def _other_command(request: Request, status: str, reason: str) -> str:
    """Return the command to type instead; empty if the answer is allowed."""
    if request.status != "pending":
        return ""  # its row names the first answer
    if request.kind == "question":
        return "" if status == "answered" and reason else f"{request.id} is a question: /answer {request.id} WORDS"
    if status == "answered":
        return f"{request.id} is a {request.kind}: /approve {request.id}, or /reject {request.id} WHY"
    if request.kind == "plan" and status == "rejected" and not reason:
        return f"say what to change: /reject {request.id} WHY"
    return ""


async def perform(line: str, console: SlashContext, terminal: Terminal) -> None:
    """Execute a `/command` line and print the result. Raises `LeavePrompt` for /quit, `Switch` for /resume ID."""
    name, arguments = split_command(line)
    command = COMMANDS.get(name)
    if command is None:
        typed = line.split()[0].removeprefix("/")
        others = console.session.commands()
        if any(command.goes_by(typed) for command in others):
            await _run_session_command(line, console, terminal)
            return
        names = (*COMMANDS, *(command.name for command in others))
        waits = console.session.awaits_trust(typed)
        terminal.terminal_print(block(untrusted_command(typed) if waits else unknown_command(typed, names), "warn"))
        return
    try:
        terminal.terminal_print(await command.act(console, arguments))
    except CallboardError as error:
        terminal.terminal_print(block(str(error), "bad"))


async def _run_session_command(line: str, console: SlashContext, terminal: Terminal) -> None:
    """Run a skill or another command of the session: the lead receives its expanded text."""
    output, _ = await submit(console.session, Say(line))
    if output.lines:
        terminal.terminal_print(output)


def split_command(line: str) -> tuple[str, str]:
    """Return the command's name without its slash, and the text after it."""
    name, *arguments = line.removeprefix("/").split(maxsplit=1)
    return "quit" if name.lower() == "exit" else name.lower(), arguments[0].strip() if arguments else ""


async def _help(console: SlashContext, arguments: str) -> Block:
    command_name = arguments.removeprefix("/")
    builtin = COMMANDS.get(command_name)
    other = next((entry for entry in console.session.commands() if entry.goes_by(command_name)), None)
    if arguments and builtin is None and other is not None:
        return block(f"/{other.name} {other.hint}".rstrip() + f"\n{other.about}")
    if arguments and builtin is None and console.session.awaits_trust(command_name):
        return block(untrusted_command(command_name, effect="it is not used"), "warn")
    if arguments and builtin is None:
        return block(
            f"there is no command /{command_name}.{suggestion(command_name, COMMANDS, '/') or ' /help lists them.'}",
            "warn",
        )
    commands = COMMANDS if builtin is None else {command_name: builtin}
    rows = [(f"/{name} {command.words}".rstrip(), command.help) for name, command in commands.items()]
    if not arguments:
        rows += [
            (f"/{entry.name} {entry.hint}".rstrip(), shorten(first_line(entry.about), _ABOUT))
            for entry in console.session.commands()
        ]
        rows += _LINES
    return _two_columns(rows)


def _two_columns(rows: Sequence[tuple[str, str]]) -> Block:
    """Return names with a text beside each, such as what can be typed and its effect."""
    return Block(_beside_lines(rows, 0), fit=partial(_beside_lines, rows))


def _beside_lines(rows: Sequence[tuple[str, str]], width: int) -> tuple[Line, ...]:
    """Return names with a text beside each. `width`: columns of the screen; 0: as many as needed.

    On a narrow screen, a long name has a line of its own, and each text stays in its column.
    """
    column = max(len(typed) for typed, _ in rows)
    if not width or column + 2 + max(columns(does) for _, does in rows) <= width:
        return tuple(Line(f"{typed:<{column}}  {does}") for typed, does in rows)
    column = min(column, _TYPED)
    lines: list[Line] = []
    for typed, does in rows:
        parts = [part.text for part in wrap_line(Line(does), max(width - column - 2, _TYPED))]
        if len(typed) > column:
            lines.append(Line(typed))
            typed = ""
        lines += (Line(f"{start:<{column}}  {part}") for start, part in zip_longest([typed], parts, fillvalue=""))
    return tuple(lines)


_TYPED = 24
"""Columns of the names on a narrow screen."""
_ABOUT = 72
"""Limit of the characters of a skill's description in the list."""
_LINES = (
    ("TEXT", "send a message to the lead; while it works, the message is queued"),
    ("!COMMAND", "run a command in your shell; the lead reads its output at its next step"),
    ("@NAME TEXT", "send a message to a teammate; @all TEXT sends it to all"),
    ("!@NAME TEXT", "interrupt an agent's turn and send it TEXT; ! alone interrupts the lead"),
    ("\\TEXT", "send TEXT to the lead unchanged, even if it begins with /, @ or !"),
    ("Shift-Tab", "switch to the next permission mode: default, acceptEdits, plan"),
    ("Ctrl-T, Ctrl-O", "open the tree of the team; the output of an agent at work, then of the next one"),
    ("Ctrl-B", "let the lead go on without the command or subagent that it waits for"),
    ("Ctrl-C", "drop the draft, or stop the turn; twice within two seconds: leave"),
    ("Ctrl-D", "leave, on an empty line"),
)
"""Other kinds of input that `/help` lists."""

COMMANDS: Mapping[str, SlashCommand] = {
    "help": SlashCommand("[COMMAND]", "show this list, or one command", _help),
    "status": SlashCommand("", "show session, folder, model, mode, sandbox and open work", status),
    "team": SlashCommand("[NAME | ids]", "open the tree of the team, or the output of an agent; list ids", team),
    "agents": SlashCommand("", "list the agent types that the lead can start", agents),
    "inbox": SlashCommand("[AGENT]", "show what waits for you, or the mail of an agent or of `all`", inbox),
    "trace": SlashCommand("ENVELOPE", "show where an envelope came from and what it caused", trace),
    "tasks": SlashCommand("", "show the task board", tasks),
    "plans": SlashCommand("", "show the requests that wait for you, in full", plans),
    "show": SlashCommand("ID", "show a request in full, with its history", show),
    "approve": SlashCommand("ID [option N | mode MODE | always] [why]", "approve a plan or allow a tool call", approve),
    "edit": SlashCommand("ID [words]", "edit a plan in $VISUAL or $EDITOR, and approve it", edit),
    "reject": SlashCommand("ID why", "reject a plan or deny a tool call", reject),
    "answer": SlashCommand("ID words", "answer an agent's question", answer),
    "web": SlashCommand("", "open the web page of this workspace, or name the one that runs", open_page),
    "permissions": SlashCommand("", "show the permission mode and the rules, with their places", permissions),
    "rules": SlashCommand("[revoke ID]", "list the rules that you allowed with `always`, or revoke one", rules),
    "cron": SlashCommand("", "show the schedules", cron),
    "memory": SlashCommand("[NAME | forget NAME]", "list the notes that agents keep, show one, or delete one", memory),
    "mcp": SlashCommand("[connect | off NAME]", "show the MCP servers, connect one, or switch one off", mcp),
    "compact": SlashCommand("[focus]", "summarize the lead's conversation now", compact),
    "clear": SlashCommand("", "start an empty conversation; the old one is kept on disk", clear),
    "new": SlashCommand("[--carry]", "start a fresh conversation; --carry: from a summary of this one", new),
    "context": SlashCommand("[AGENT]", "show what fills a window; also: explain [AGENT], undo N [AGENT]", context),
    "cost": SlashCommand("[model]", "show the cost of each agent, or of each model", cost),
    "model": SlashCommand("[NAME]", "show the lead's model, or choose another", model),
    "mode": SlashCommand("[MODE]", "show the lead's permission mode, or choose another", mode),
    "config": SlashCommand(
        "[KEY | set KEY VALUE]", "show the settings or one of them, or change one; also unset, add, remove", config
    ),
    "resume": SlashCommand("[ID]", "list the sessions, or continue another one", resume),
    "stop": SlashCommand("NAME", "ask an agent to stop", stop),
    "quit": SlashCommand("", "leave; the session is kept", quit_),
}

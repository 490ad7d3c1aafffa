"""State of a session as text: `/status`, the first screen, the notices when leaving, the list of sessions.

`status_line.py` has the line below the prompt line. Nothing here draws.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from callboard import __version__
from callboard.cli.terminal.terminal import Block, Line, block, stacked
from callboard.cli.views.agents import is_at_work
from callboard.cli.views.events import first_line, shorten
from callboard.cli.views.listings import render_listing
from callboard.core.reports.spending import usage_words
from callboard.sessions.base import OpenSession
from callboard.sessions.inspect.health import ListedSession
from callboard.sessions.inspect.resources import SESSIONS
from callboard.types.records import Json, SessionRow


def attached_block(session: OpenSession, host: str, *, listed: bool = False, streams: bool = False) -> Block:
    """Return the text for a person who follows a session that another process (`process 4711`) hosts.

    `listed`: True if the screen lists the agents at work. `streams`: True if text appears there as it streams, if the
    host is on this machine.
    """
    text = f"{host} hosts session {session.id}; this screen follows it, and leaving it stops nothing"
    lines = (
        Line("is at work" if streams else "is at work: a reply is shown here when it is complete", "dim", name)
        for name in ([] if listed else at_work(session))
    )
    return Block((Line(text, "dim"), *lines))


def at_work(session: OpenSession) -> list[str]:
    """Return the agents with a running turn, according to the rows.

    An open model call is not in a journal yet (decision 0007).
    """
    return [row.name for row in session.living_agents() if row.life == "working"]


def status_words(session: OpenSession) -> str:
    """Return the state of the session in one line: `2 working, 1 idle | 1 waits for you | 12,345 tokens in, ...`."""
    parts = [lives_words(session), waiting_words(session), *rate_waits(session), usage_words(session.usage())]
    return " | ".join(part for part in parts if part)


def lives_words(session: OpenSession) -> str:
    """Return `2 working, 1 idle`. A lead without a prompt is idle: it starts with the first one."""
    lives = Counter(
        "idle" if (row.name, row.life) == ("lead", "starting") else row.life for row in session.living_agents()
    )
    return ", ".join(f"{number} {life}" for life, number in lives.items()) or "no agents yet"


def waiting_words(session: OpenSession) -> str:
    """Return how many requests wait for the person; empty for none. Others wait for the lead or for a teammate."""
    waiting = sum("person" in request.may_answer for request in session.requests())
    return f"{waiting} {'waits' if waiting == 1 else 'wait'} for you (/plans)" if waiting else ""


def rate_waits(session: OpenSession) -> list[str]:
    """Return the agents that wait for the service's rate limit, and until when.

    For example `lead waits for the rate limit until 14:05`.
    """
    states = [
        (session.label(row.name), session.state(row.name, row.incarnation))
        for row in session.living_agents()
        if row.waiting_for.startswith("rate")
    ]
    if not states:
        return []
    names = ", ".join(name for name, _ in states)
    ends = [until for _, state in states if state is not None and (until := state.model.recovery.waiting_until)]
    until = f" until {datetime.fromtimestamp(max(ends)).astimezone():%H:%M}" if ends else ""
    return [f"{names} {'wait' if len(states) > 1 else 'waits'} for the rate limit{until} (callboard rate)"]


def setting_words(session: OpenSession) -> str:
    """Return folder, model, mode and sandbox in one line: `~/project, model claude-..., mode default, sandbox 2`."""
    level = {None: "", 0: ", no sandbox"}.get(session.level, f", sandbox level {session.level}")
    return f"{_folder_words(session)}, model {session.model_of()}, mode {session.mode_of()}{level}"


def _folder_words(session: OpenSession) -> str:
    folder = session.workspace
    home = Path.home()
    return f"~/{folder.relative_to(home)}" if folder.is_relative_to(home) and folder != home else str(folder)


_SANDBOX: Mapping[int | None, str] = {
    None: "that of the process that hosts the session",
    0: "none (level 0): commands run with your rights",
    1: "level 1: commands write only in their folder",
    2: "level 2: commands write only in their folder, and see no home",
    3: "level 3: as level 2, with the network of the allowed hosts",
}


def first_screen(session: OpenSession, width: int, *, has_keys: bool = True) -> Block:
    """Return the first lines of the prompt line: name, folder, model, mode, sandbox, and what to type.

    `has_keys`: the line takes single keys; otherwise commands that do the same are named.
    """
    next_mode = "Shift-Tab: the next one" if has_keys else "/mode: the others"
    team = "Ctrl-T" if has_keys else "/team"
    settings = (
        *([("name", first_line(session.row.prompt))] if session.row.prompt else []),
        ("folder", _folder_words(session)),
        ("model", session.model_of()),
        ("mode", f"{session.mode_of()} ({next_mode})"),
        ("sandbox", _SANDBOX.get(session.level, f"level {session.level}")),
    )
    room = width or _SCREEN
    lines = [Line(shorten(f"{name:<8} {value}", room), "dim") for name, value in settings]
    text = f"session {session.id}; /help lists the commands"
    return Block(
        (
            *lines,
            Line(f"type what to do; @ names an agent or a file, ! runs a command, {team}: the team"),
            Line(text, "dim"),
        )
    )


def window_title(session: OpenSession) -> str:
    """Return the title of the window: the session's name or its first words, else its folder.

    It begins with a mark while agents work.
    """
    words = first_line(session.row.prompt) or session.workspace.name or "callboard"
    working = any(map(is_at_work, session.living_agents()))
    return f"{_WORKING if working else ''}{shorten(words, _TITLE)}"


def leaving_block(session: OpenSession, names: Sequence[str], commands: Sequence[str]) -> Block:
    """Return the effect of leaving while agents or background commands run, and how to return.

    `names`: the agents that can continue without the person.
    """
    lines: list[str] = []
    if names:
        listed = ", ".join(session.label(name) for name in names[:_NAMED])
        others = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        lines.append(f"{_still_at_work(len(names))}: {listed}{others}")
        lines.append(f"leaving stops {'it' if len(names) == 1 else 'them'} until `callboard resume {session.id}`")
    if commands:
        runs_on = "run in the background and continue" if len(commands) > 1 else "runs in the background and continues"
        lines.append(f"{', '.join(commands)} {runs_on} when you leave")
    return block("\n".join([*lines, "Ctrl-D again within 2 s leaves"]), "warn")


def _still_at_work(count: int) -> str:
    return f"{count} agent{' is' if count == 1 else 's are'} still at work"


def background_commands(session: OpenSession) -> list[str]:
    """Return the background commands that still run, each with its agent. Subagents are agents at work."""
    states = [(row.name, session.state(row.name)) for row in session.team() if row.life != "stopped"]
    return [
        f"{shorten(first_line(entry.began.command), _COMMAND)} ({name})"
        for name, state in states
        if state is not None
        for entry in state.work.background.values()
        if entry.status == "running" and not entry.began.agent
    ]


def left_block(session: OpenSession, host: int | None) -> Block:
    """Return the last line of the prompt line: how to return, and who works on.

    It is empty for a session without a prompt. `host`: the process that hosts the session, if it is not this one.
    """
    if host is None:
        used = any(row.kind != "lead" or row.life != "starting" for row in session.living_agents())
        waiting = waiting_words(session).replace("(/plans)", "(`callboard plans`)")
        asked = (Line(waiting, "warn"),) if waiting else ()
        hint = block(f"the session is kept: `callboard --resume {session.id}` continues it", "dim")
        return Block((*asked, *hint.lines)) if used else Block(())
    number = sum(map(is_at_work, session.living_agents()))
    working = f"{_still_at_work(number)}: " if number else ""
    return block(f"{working}process {host} continues the session; `callboard attach` shows it again", "dim")


def status_block(session: OpenSession, host: int | None) -> Block:
    """Return the text of `/status`: the location, the settings and the open work of the session.

    `host`: the process that hosts it, if it is not this one.
    """
    open_tasks = sum(task.status in ("pending", "in_progress") for task in session.tasks())
    tasks = f"{open_tasks} open task{'s' if open_tasks != 1 else ''} (/tasks)" if open_tasks else "no open task"
    schedules = len(session.schedules())
    fires = f", {schedules} schedule{'s' if schedules != 1 else ''} (/cron)" if schedules else ""
    hosted = "" if host is None else f", hosted by process {host}"
    return Block(
        (
            Line(f"session {session.id}{hosted}"),
            Line(setting_words(session)),
            Line(status_words(session)),
            Line(f"{tasks}{fires}"),
        )
    )


def sessions_table(rows: Sequence[SessionRow]) -> Block:
    """Return the id, start, end and first words of each session; then the errors of each."""
    listed = render_listing(SESSIONS, rows)
    troubles = [row.trouble for row in rows if isinstance(row, ListedSession) and row.trouble]
    return stacked(listed, *(Line(trouble, "bad") for trouble in troubles))


_TITLE = 60
"""Columns of the window's title, without its mark."""
_WORKING = "* "
_NAMED = 3
"""Limit of the agents that are named when the person leaves."""
_COMMAND = 40
"""Columns of a background command in the notice when leaving."""
_SCREEN = 80
"""Columns of a screen of unknown width."""
_LONG_PROMPT = 200_000


def status_json(session: OpenSession) -> Json:
    """Return the state of a session for a person's own status command, in the form that Claude Code documents."""
    folder = str(session.workspace)
    usage = session.usage()
    model = session.model_of()
    state = session.state("lead")
    known = state is not None and state.identity.spec is not None
    window = state.me.limits_of(model).window if state is not None and known else 0
    tokens = state.context.conversation.tokens if state is not None else 0
    share = min(100, round(100 * tokens / window)) if window else None
    return {
        "hook_event_name": "Status",
        "session_id": session.id,
        "transcript_path": str(session.places.session_data(session.id) / "transcripts" / "lead.jsonl"),
        "cwd": folder,
        "model": {"id": model, "display_name": model},
        "workspace": {"current_dir": folder, "project_dir": folder, "added_dirs": []},
        "version": __version__,
        "output_style": {"name": session.voice.style},
        "permission_mode": session.mode_of(),
        "cost": {"total_cost_usd": usage.stated_cost},
        "context_window": {
            "context_window_size": window or None,
            "total_input_tokens": usage.prompt_tokens,
            "total_output_tokens": usage.output_tokens,
            "used_percentage": share,
            "remaining_percentage": None if share is None else 100 - share,
        },
        "exceeds_200k_tokens": tokens > _LONG_PROMPT,
        "agents": {"working": sum(row.life == "working" for row in session.team())},
        "requests": len(session.requests()),
    }

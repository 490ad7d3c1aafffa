"""State of a session as text: the status line, `/status`, the working agents, the list of sessions.

The status line shows the working agents, pending requests for the person, tokens and cost, and the next schedule.
`StatusLine` decides its parts, and `fitted` shortens them to the width. Nothing here draws.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from callboard import __version__
from callboard.cli.terminal.terminal import Block, Line, block, colored_line, columns, plain
from callboard.cli.views.agents import is_at_work, tokens_of, working_agents
from callboard.cli.views.events import first_line, shorten
from callboard.cli.views.listings import listing
from callboard.cli.views.team import short_number
from callboard.core.reports.spending import cost_words, usage_words
from callboard.core.scheduling import next_wake
from callboard.sessions.base import OpenSession
from callboard.sessions.inspect.health import ListedSession
from callboard.sessions.inspect.resources import SESSIONS
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json, SessionRow
from callboard.types.schedules import Schedule


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
    return [row.name for row in session.living() if row.life == "working"]


def status_words(session: OpenSession) -> str:
    """Return the state of the session in one line: `2 working, 1 idle | 1 waits for you | 12,345 tokens in, ...`."""
    parts = [lives_words(session), waiting_words(session), *rate_waits(session), usage_words(session.usage())]
    return " | ".join(part for part in parts if part)


def lives_words(session: OpenSession) -> str:
    """Return `2 working, 1 idle`. A lead without a prompt is idle: it starts with the first one."""
    lives = Counter("idle" if (row.name, row.life) == ("lead", "starting") else row.life for row in session.living())
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
        for row in session.living()
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


def first_screen(session: OpenSession, width: int) -> Block:
    """Return the first lines of the prompt line: name, folder, model, mode, sandbox, and what to type."""
    settings = (
        *([("name", first_line(session.row.prompt))] if session.row.prompt else []),
        ("folder", _folder_words(session)),
        ("model", session.model_of()),
        ("mode", f"{session.mode_of()} (Shift-Tab: the next one)"),
        ("sandbox", _SANDBOX.get(session.level, f"level {session.level}")),
    )
    room = width or _SCREEN
    lines = [Line(shorten(f"{name:<8} {value}", room), "dim") for name, value in settings]
    text = f"session {session.id}; /help lists the commands"
    return Block(
        (
            *lines,
            Line("type what to do; @ names an agent or a file, ! runs a command, Ctrl-T: the team"),
            Line(text, "dim"),
        )
    )


def window_title(session: OpenSession) -> str:
    """Return the title of the window: the session's name or its first words, else its folder.

    It begins with a mark while agents work.
    """
    words = first_line(session.row.prompt) or session.workspace.name or "callboard"
    working = any(map(is_at_work, session.living()))
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
        used = any(row.kind != "lead" or row.life != "starting" for row in session.living())
        waiting = waiting_words(session).replace("(/plans)", "(`callboard plans`)")
        asked = (Line(waiting, "warn"),) if waiting else ()
        hint = block(f"the session is kept: `callboard --resume {session.id}` continues it", "dim")
        return Block((*asked, *hint.lines)) if used else Block(())
    number = sum(map(is_at_work, session.living()))
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
    listed = listing(SESSIONS, rows)
    troubles = [row.trouble for row in rows if isinstance(row, ListedSession) and row.trouble]
    return Block((*listed.lines, *(Line(trouble, "bad") for trouble in troubles)))


_NAME = 20
_TITLE = 60
"""Columns of the window's title, without its mark."""
_WORKING = "* "
_NAMED = 3
"""Limit of the agents that are named when the person leaves."""
_COMMAND = 40
"""Columns of a background command in the notice when leaving."""
_DOING_WIDTH = 30
_DOING_SHOWN = 3
_SCREEN = 80
"""Columns of a screen of unknown width."""
_BETWEEN = " | "


@dataclass(frozen=True, slots=True)
class StatusPart:
    """Part of the status line. `rank`: rank 0 is dropped last. `short`: shown instead before the part is dropped."""

    text: str
    rank: int
    short: str = ""


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


_LONG_PROMPT = 200_000


class StatusLine:
    """Texts of the line below; the next times are recomputed only when a schedule has changed."""

    def __init__(self, session: OpenSession, own: Callable[[], str] = str) -> None:
        """Store the session. `own`: function that returns the line of the person's own command; empty: none."""
        self._session = session
        self._own = own
        self._for: Sequence[Schedule] = ()
        self._next: tuple[float, str] | None = None

    def text(self, width: int, *, listed: bool) -> str:
        """Return the line, at most `width` columns.

        `listed`: True if the screen lists the agents at work; otherwise the line names the first ones.
        The line of the person's own command replaces all parts but the requests that wait for the person.
        """
        session = self._session
        if own := self._own():
            waiting = waiting_words(session)
            return colored_line(f"{waiting}{_BETWEEN}{own}" if waiting else own, width)
        rows = self._session.schedules()
        if rows != self._for:
            self._for = rows
            self._next = next_of(rows)
        usage = session.usage()
        parts = [
            *(() if listed else _doing_parts(session)),
            StatusPart(f"mode {session.mode_of()}", 40),
            StatusPart(lives_words(session), 50),
            StatusPart(waiting_words(session), 0),
            *(StatusPart(wait, 2) for wait in rate_waits(session)),
            StatusPart(usage_words(usage), 1, short=f"{short_number(tokens_of(usage))} tokens, {cost_words(usage)}"),
            StatusPart(next_words(self._next, time.time()), 70),
        ]
        return fitted(parts, width)


def _doing_parts(session: OpenSession) -> list[StatusPart]:
    agents, others = working_agents(session, _DOING_SHOWN)
    parts = [
        StatusPart(f"{agent.name}: {shorten(agent.activity, _DOING_WIDTH)}", 41 + at) for at, agent in enumerate(agents)
    ]
    return [*parts, *([StatusPart(f"{others} more", 45)] if others else [])]


def fitted(parts: Sequence[StatusPart], width: int) -> str:
    """Return the parts in one line.

    If they are wider than `width` columns, shorten and drop whole parts, the highest rank first; only a last part that
    is too wide by itself is cut.
    """
    visible = [StatusPart(plain(part.text).replace("\n", " "), part.rank, part.short) for part in parts if part.text]
    while len(visible) > 1 and columns(_BETWEEN.join(part.text for part in visible)) > width:
        last = max(visible, key=lambda part: (bool(part.short), part.rank))
        at = visible.index(last)
        visible[at : at + 1] = [StatusPart(last.short, last.rank)] if last.short else []
    return shorten(_BETWEEN.join(part.text for part in visible), width)


def next_of(rows: Sequence[Schedule]) -> tuple[float, str] | None:
    """Return the next slot of all schedules, as unix seconds, and the schedule's name; None if none will fire."""
    slots = [(at, row.name or row.id) for row in rows if (at := next_wake(row)) is not None]
    return min(slots, default=None)


def next_words(slot: tuple[float, str] | None, now: float) -> str:
    """Return `next 09:00 standup`, in this machine's time; with the day if it is not today."""
    if slot is None:
        return ""
    at, name = slot
    then = datetime.fromtimestamp(at).astimezone()
    today = datetime.fromtimestamp(now).astimezone().date()
    when = f"{then:%H:%M}" if then.date() == today else f"{then:%a %d %b %H:%M}"
    return f"next {'now' if at <= now else when} {shorten(name, _NAME)}"

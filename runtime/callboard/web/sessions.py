"""Screens of the sessions: the list, and one session with its agents, open requests, and tasks.

States come from the journals and rows that `TeamInspector` reads, never from this process: a session without a host is
shown with its last state, and says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import htpy as h
from htpy import Element, Node
from starlette.requests import Request as WebRequest
from starlette.responses import Response
from starlette.routing import Route

from callboard.cli.terminal.terminal import Line
from callboard.cli.views.cost import budget_lines
from callboard.cli.views.events import first_line, shorten
from callboard.cli.views.permission import spelled
from callboard.cli.views.tasks import tasks_table
from callboard.cli.views.team import TeamRow, summary_texts, team_rows
from callboard.core.keys import host_lease
from callboard.core.tasks.board import by_id, is_ready
from callboard.ports.notifier import Notifier
from callboard.sessions.handle import SessionHandle
from callboard.sessions.inspect.health import ListedSession, listed_sessions
from callboard.sessions.inspect.inspector import handle_of
from callboard.sessions.inspect.open_requests import OpenRequest
from callboard.sessions.inspect.resources import SESSIONS, TASKS, BoardTask
from callboard.sessions.inspect.team import TeamOverview
from callboard.types.errors import UsageError
from callboard.types.records import Task
from callboard.web.agent import agent_controls, agent_path
from callboard.web.cost import cost_path
from callboard.web.guard import EVENTS, visit_of
from callboard.web.html import Viewer, WebPage, moment, path_of, shown_lines, table
from callboard.web.policy import decisions_path
from callboard.web.routes import EventStream, Messages, PageServices, changed_fragments, done, viewer_of
from callboard.web.waiting import request_card

PATH = "/sessions"
_TITLE = 70
_COLUMNS: Sequence[tuple[str, str]] = (
    ("ready", "Ready"),
    ("pending", "Waits"),
    ("in_progress", "In progress"),
    ("completed", "Completed"),
    ("failed", "Failed"),
    ("cancelled", "Cancelled"),
)
"""States of a task, in the order of the columns of the board, and their heads."""


# The list


async def _list_page(services: PageServices) -> WebPage:
    rows = await listed_sessions(services.store)
    hosts = {row.id: await services.store.holder(host_lease(row.id)) for row in rows if row.ended_at is None}
    waiting: dict[str, int] = {}
    for open_request in await services.requests.earliest_first():
        waiting[open_request.session.id] = waiting.get(open_request.session.id, 0) + 1
    return WebPage("Sessions", PATH, {"sessions": _listed(rows, {name for name in hosts if hosts[name]}, waiting)})


def _listed(rows: Sequence[ListedSession], hosted: set[str], waiting: dict[str, int]) -> Element:
    heads, cells = SESSIONS.cells(rows, ("STATE", "MODEL"))
    lines = [
        (
            _link(row),
            moment(row.created_at),
            _state(row, dict(zip(heads, texts, strict=True))["STATE"], hosted),
            str(waiting.get(row.id, "")),
            spelled(dict(zip(heads, texts, strict=True))["MODEL"]),
        )
        for row, texts in zip(rows, cells, strict=True)
    ]
    return h.section("#sessions")[
        table(("Session", "Began", "State", "Waiting", "Model"), lines, nothing="There is no session yet.")
    ]


def _link(row: ListedSession) -> Node:
    title = spelled(shorten(first_line(row.prompt), _TITLE)) or row.id
    return [h.a(href=path_of("sessions", row.id))[title], h.div(".about")[h.code[row.id[:8]]]]


def _state(row: ListedSession, state: str, hosted: set[str]) -> Node:
    if row.trouble:
        return [h.span(".state.bad")[state], h.div(".about")[spelled(row.trouble)]]
    if row.ended_at is not None:
        return h.span(".state.dim")[state]
    if row.id in hosted:
        return h.span(".state.good")[state]
    return [h.span(".state.warn")["no host"], h.div(".about")["callboard resume continues it"]]


# One session


def _session_page(handle: SessionHandle, seen: TeamOverview, budgets: Sequence[Line], viewer: Viewer) -> WebPage:
    title = spelled(shorten(first_line(handle.row.prompt), _TITLE)) or f"Session {handle.id}"
    requests = handle.requests(pending_only=False)
    waiting = sorted(
        (row for row in requests if row.status == "pending"), key=lambda row: row.expires_at or float("inf")
    )
    fragments = {
        "state": _state_section(seen, budgets),
        "requests": h.section("#requests", aria_label="Open requests")[
            [
                request_card(OpenRequest(handle.row, row, requests, seen.host is not None), viewer, alone=True)
                for row in waiting
            ]
        ],
        "team": _team_section(handle.id, seen),
        "board": _board_section(handle.tasks()),
    }
    controls = (
        agent_controls(handle.id, "lead", viewer) if seen.host is not None or handle.row.ended_at is None else None
    )
    return WebPage(title, path_of("sessions", handle.id), fragments, controls, back=(PATH, "Sessions"))


def _state_section(seen: TeamOverview, budgets: Sequence[Line]) -> Element:
    texts = list(summary_texts(seen))
    return h.section("#state")[
        _host(seen),
        h.nav(".links", aria_label="More about this session")[
            h.a(href=cost_path(seen.session))["Cost"], h.a(href=decisions_path(seen.session))["Decisions"]
        ],
        [h.p(".about")[spelled(text)] for text in texts[1:]],
        [h.p(class_=f"about {line.style}")[spelled(line.text)] for line in budgets],
        [h.p(".about.bad")[spelled(text)] for text in seen.troubles],
    ]


def _host(seen: TeamOverview) -> Element:
    """Return the session's id, and the process that hosts it."""
    if seen.host is None:
        text = h.span(".state.warn")["No process hosts it: this is its last state."]
    else:
        text = h.span(".state.good")[f"Hosted by process {seen.host}."]
    return h.p[text, " ", h.code[spelled(seen.session)]]


def _team_section(session: str, seen: TeamOverview) -> Element:
    heads = ("Agent", "State", "Does or waits for", "Since", "Until", "Tokens", "Cost", "Model")
    rows = [_agent_cells(session, row) for row in team_rows(seen, labels=True)]
    listed = sum(row.agent.row.life == "stopped" for row in team_rows(seen))
    hidden = seen.ended.count - listed
    return h.section("#team")[
        h.h2["Agents"],
        table(heads, rows, nothing="No agent has begun."),
        h.p(".about")[f"{hidden:,} more agents have ended."] if hidden > 0 else None,
    ]


def _agent_cells(session: str, row: TeamRow) -> Sequence[Node]:
    agent = row.agent
    name = agent.label or agent.row.name
    role = spelled(shorten(first_line(agent.row.role), _TITLE))
    return (
        h.span(class_=f"tree level-{min(row.depth, 6)}")[
            h.a(href=agent_path(session, agent.row.name))[spelled(name)],
            h.span(".about")[f" {spelled(agent.row.agent_type)}" if agent.row.agent_type != agent.row.name else ""],
            h.div(".about")[role] if role else None,
        ],
        h.span(class_=f"state {row.style}")[spelled(row.state)],
        spelled(row.does),
        moment(agent.doing.since or agent.row.since),
        moment(agent.doing.until, counts=True),
        *row.cells[2:],
        spelled(agent.model),
    )


def _board_section(tasks: Sequence[Task]) -> Element:
    board = by_id(tasks)
    columns: dict[str, list[BoardTask]] = {}
    for task in tasks:
        state = "ready" if is_ready(task, board) else task.status
        columns.setdefault(state, []).append(BoardTask(task, board))
    notes = [line for line in tasks_table(tasks).lines if line.style == "warn"]
    return h.section("#board")[
        [
            h.h2["Tasks"],
            shown_lines(notes) if notes else None,
            h.div(".board")[
                [
                    h.section(".column")[
                        h.h3[head, " ", h.span(".about")[str(len(columns[state]))]], _tasks(columns[state])
                    ]
                    for state, head in _COLUMNS
                    if state in columns
                ]
            ],
        ]
        if tasks
        else None
    ]


def _tasks(rows: Sequence[BoardTask]) -> Iterator[Node]:
    heads, cells = TASKS.cells(rows, ("OWNER", "WAITS FOR", "FILES"))
    for row, texts in zip(rows, cells, strict=True):
        parts = dict(zip(heads, texts, strict=True))
        yield h.article(".task")[
            h.div[spelled(row.task.subject)],
            h.div(".about")[
                h.code[row.task.id],
                f" {spelled(parts['OWNER'])}" if parts["OWNER"] else None,
                f" waits for {spelled(parts['WAITS FOR'])}" if parts["WAITS FOR"] else None,
            ],
            h.div(".about")[h.code[spelled(parts["FILES"])]] if parts["FILES"] else None,
        ]


class _SessionRoutes:
    """Handlers of requests."""

    def __init__(self, services: PageServices) -> None:
        self._services = services

    async def list(self, request: WebRequest) -> Response:
        return self._services.page(request, await _list_page(self._services))

    async def follow_list(self, request: WebRequest) -> EventStream:
        services = self._services
        return EventStream(lambda: changed_fragments(services.news, lambda: _list_page(services)))

    async def session(self, request: WebRequest) -> Response:
        handle = await handle_of(self._services.store, request.path_params["session"])
        seen = await handle.agents.look()
        budgets = budget_lines(await handle.budgets())
        return self._services.page(request, _session_page(handle, seen, budgets, viewer_of(request)))

    async def follow_session(self, request: WebRequest) -> EventStream:
        handle = await handle_of(self._services.store, request.path_params["session"])
        news = Notifier()

        async def page() -> WebPage:
            await handle.agents.look_around()  # no row changes when a host is killed
            return _session_page(handle, handle.agents.seen(), budgets, viewer_of(request))

        async def messages() -> Messages:
            await news.changed(0)
            async for message in changed_fragments(news, page):
                yield message

        budgets = budget_lines(await handle.budgets())
        return EventStream(messages, lambda: handle.agents.watch(news.notify))

    async def say(self, request: WebRequest) -> Response:
        """Send a text to an agent."""
        handle = await handle_of(self._services.store, request.path_params["session"])
        text = visit_of(request).form.get("text", "").strip()
        if not text:
            raise UsageError("write a message first")
        agent = request.path_params["agent"]
        await handle.say(text, agent)
        waits = "" if await handle.host() else " No process hosts the session: it is read when one does."
        return done(request, f"Sent to {agent}.{waits}", agent_path(handle.id, agent))

    async def interrupt(self, request: WebRequest) -> Response:
        """Stop the turn of an agent."""
        handle = await handle_of(self._services.store, request.path_params["session"])
        agent = request.path_params["agent"]
        await handle.interrupt(None if agent == "lead" else agent)
        return done(request, f"{agent} is interrupted.", agent_path(handle.id, agent))

    async def stop(self, request: WebRequest) -> Response:
        """Stop an agent for good."""
        handle = await handle_of(self._services.store, request.path_params["session"])
        agent = request.path_params["agent"]
        stopped = await handle.agents.stop(agent, visit_of(request).form.get("text", "").strip())
        text = f"{agent} has stopped." if stopped else f"{agent} is asked to stop."
        return done(request, text, agent_path(handle.id, agent))


def session_routes(services: PageServices) -> list[Route]:
    """Return the routes of the list and of one session, and those that take messages and commands for its agents."""
    routes = _SessionRoutes(services)
    session = f"{PATH}/{{session}}"
    agent = f"{session}/agents/{{agent}}"
    return [
        Route(PATH, routes.list),
        Route(f"{PATH}{EVENTS}", routes.follow_list),
        Route(session, routes.session),
        Route(f"{session}{EVENTS}", routes.follow_session),
        Route(f"{agent}/say", routes.say, methods=["POST"]),
        Route(f"{agent}/interrupt", routes.interrupt, methods=["POST"]),
        Route(f"{agent}/stop", routes.stop, methods=["POST"]),
    ]

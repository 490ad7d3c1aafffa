"""Screens of the sessions: the list, and one session with its agents, open requests, and tasks.

States come from the journals and rows that `TeamInspector` reads, never from this process: a session without a host is
shown with its last state, and says so.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence

import htpy as h
from htpy import Element, Node
from starlette.requests import Request as WebRequest
from starlette.responses import Response
from starlette.routing import Route

from callboard.cli.terminal.terminal import Line
from callboard.cli.views.cost import budget_lines
from callboard.cli.views.permission import spell_out
from callboard.cli.views.tasks import tasks_table
from callboard.cli.views.team import TeamRow, summary_texts, team_rows
from callboard.core.keys import host_lease
from callboard.core.scheduling.budget import budget_words
from callboard.core.tasks.board import blockers, by_id, is_ready
from callboard.core.team.waits import Deadlock, WaitEdge
from callboard.ports.notifier import Notifier
from callboard.sessions.handle import SessionHandle
from callboard.sessions.inspect.health import ListedSession, listed_sessions
from callboard.sessions.inspect.inspector import handle_of
from callboard.sessions.inspect.open_requests import OpenRequest
from callboard.sessions.inspect.resources import SESSIONS, TASKS, BoardTask
from callboard.sessions.inspect.team import TeamOverview, limits_given
from callboard.types.errors import UsageError
from callboard.types.records import Task
from callboard.web.agent import ACTIONS, LIMITS, agent_path, budget_fields
from callboard.web.changes import PATH as CHANGES
from callboard.web.cost import cost_path
from callboard.web.guard import EVENTS, visit_of
from callboard.web.hosts import PATH as HOSTS
from callboard.web.html import Viewer, WebPage, brief, chosen, field, form, moment, path_of, shown_lines, table
from callboard.web.new_session import PATH as NEW
from callboard.web.policy import decisions_path
from callboard.web.routes import EventStream, Messages, PageServices, changed_fragments, viewer_of
from callboard.web.schedules import PATH as SCHEDULES
from callboard.web.waiting import request_card

PATH = "/sessions"
_LONGEST = 4_000
"""Characters of a text of a task that the board shows."""
_COUNT = 5.0
"""Seconds after which a followed session's budgets are read again, which reads journals."""
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
            spell_out(dict(zip(heads, texts, strict=True))["MODEL"]),
        )
        for row, texts in zip(rows, cells, strict=True)
    ]
    return h.section("#sessions")[
        h.nav(".links", aria_label="More")[h.a(href=NEW)["New session"], h.a(href=HOSTS)["Hosts"]],
        table(("Session", "Began", "State", "Waiting", "Model"), lines, nothing="There is no session yet."),
    ]


def _link(row: ListedSession) -> Node:
    title = brief(row.prompt) or row.id
    return [h.a(href=path_of("sessions", row.id))[title], h.div(".about")[h.code[row.id[:8]]]]


def _state(row: ListedSession, state: str, hosted: set[str]) -> Node:
    if row.trouble:
        return [h.span(".state.bad")[state], h.div(".about")[spell_out(row.trouble)]]
    if row.ended_at is not None:
        return h.span(".state.dim")[state]
    if row.id in hosted:
        return h.span(".state.good")[state]
    return [h.span(".state.warn")["no host"], h.div(".about")["callboard resume continues it"]]


# One session


def _session_page(handle: SessionHandle, seen: TeamOverview, budgets: Sequence[Line], viewer: Viewer) -> WebPage:
    title = brief(handle.row.prompt) or f"Session {handle.id}"
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
        "talk": _talk_section(handle, seen, viewer),
        "waits": waits_section(handle.id, *handle.agents.waits()),
        "team": _team_section(handle.id, seen),
        "board": _board_section(handle.tasks()),
    }
    return WebPage(title, path_of("sessions", handle.id), fragments, back=(PATH, "Sessions"))


def _talk_section(handle: SessionHandle, seen: TeamOverview, viewer: Viewer) -> Element:
    """Return the forms for any of the living agents. It changes with their names only, so that typed text stays."""
    names = [agent.row.name for agent in seen.agents if agent.row.life != "stopped" or agent.row.kind == "lead"]
    if seen.host is None and handle.row.ended_at is not None:
        return h.section("#talk")
    action = f"{path_of('sessions', handle.id)}/act"
    agents = field("Agent", chosen("agent", [(name, spell_out(name)) for name in names], "lead"))
    text = field("Reason", h.input(name="text"), "(optional)")
    return h.section("#talk", aria_label="Talk to an agent")[
        form(
            viewer,
            action,
            h.div(".row")[agents],
            h.label[h.span["Message"], h.textarea(name="text", rows="2")],
            h.div(".buttons")[_act("say", "Send", "primary"), _act("interrupt", "Interrupt its turn")],
            label="Message",
        ),
        h.details[
            h.summary["Stop or kill an agent, or raise its budget …"],
            form(
                viewer,
                action,
                h.div(".row")[agents, text],
                h.div(".buttons")[_act("stop", "Stop for good", "danger"), _act("kill", "Kill", "danger")],
                label="End an agent",
            ),
            form(
                viewer,
                action,
                h.div(".row")[agents],
                budget_fields(),
                _act("budget", "Raise the budget"),
                label="Budget",
            ),
        ],
    ]


def _act(action: str, text: str, kind: str | None = None) -> Element:
    return h.button(type="submit", name="act", value=action, class_=kind)[text]


# Waits

_LAYER = 210
"""Units of the drawing between two columns."""
_ROW = 44
_BOX = 150
_HEIGHT = 30
_LONGEST_NAME = 18
_MOST_DRAWN = 40
"""Most names of a drawing; more are only listed."""


def waits_section(session: str, graph: Mapping[str, Sequence[WaitEdge]], stuck: Sequence[Deadlock]) -> Element:
    """Return which agent waits for which, as a drawing and as a list; empty if none waits."""
    if not graph:
        return h.section("#waits")
    edges = [edge for each in graph.values() for edge in each]
    return h.section("#waits")[
        h.h2["Who waits for whom"],
        [h.p(".about.bad")[spell_out(each.text())] for each in stuck],
        _drawing(edges, {name for each in stuck for name in each.names}),
        h.ul(".bullets")[
            [
                h.li[
                    h.a(href=agent_path(session, edge.who))[spell_out(edge.who)],
                    " waits for ",
                    h.b[spell_out(" and ".join(" or ".join(sorted(need)) for need in edge.needs))],
                    f": {spell_out(edge.why)}",
                ]
                for edge in edges
            ]
        ],
    ]


def _drawing(edges: Sequence[WaitEdge], stuck: Collection[str]) -> Node:
    """Return the graph as a drawing: each name in a column to the left of those that it waits for."""
    pairs = sorted({(edge.who, name) for edge in edges for name in edge.names})
    columns = _columns(pairs)
    if len(columns) > _MOST_DRAWN:
        return None
    rows: dict[int, int] = {}
    places: dict[str, tuple[int, int]] = {}
    for name, column in columns.items():
        places[name] = (column * _LAYER + 2, rows.get(column, 0) * _ROW + 2)
        rows[column] = rows.get(column, 0) + 1
    width = (max(columns.values()) + 1) * _LAYER - _LAYER + _BOX + 4
    height = max(rows.values()) * _ROW
    return h.svg(
        ".graph",
        viewBox=f"0 0 {width} {height}",
        width=str(width),
        height=str(height),
        role="img",
        aria_label="Who waits for whom; the list below says the same",
    )[
        [_arrow(places[waiter], places[name]) for waiter, name in pairs],
        [_box(name, place, bad=name in stuck) for name, place in places.items()],
    ]


def _columns(pairs: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Return the column of each name: at least one more than that of each name that waits for it, except in cycles."""
    columns = {name: 0 for pair in pairs for name in pair}
    for _ in columns:
        for waiter, name in pairs:
            if columns[name] <= columns[waiter] < len(columns) - 1 and columns[waiter] < _MOST_DRAWN:
                columns[name] = columns[waiter] + 1
    used = sorted(set(columns.values()))
    return {name: used.index(column) for name, column in columns.items()}


def _arrow(start: tuple[int, int], end: tuple[int, int]) -> Element:
    middle = _HEIGHT // 2
    forward = end[0] > start[0]
    x1 = start[0] + (_BOX if forward else 0)
    x2 = end[0] + (0 if forward else _BOX)
    y1 = start[1] + middle
    y2 = end[1] + middle
    tip = -7 if forward else 7
    line = f"M {x1} {y1} L {x2} {y2} M {x2 + tip} {y2 - 4} L {x2} {y2} L {x2 + tip} {y2 + 4}"
    return h.path(d=line)


def _box(name: str, place: tuple[int, int], *, bad: bool) -> Element:
    x, y = place
    return h.g(class_="bad" if bad else None)[
        h.rect(x=str(x), y=str(y), width=str(_BOX), height=str(_HEIGHT), rx="6"),
        h.text(x=str(x + 10), y=str(y + 20))[brief(name, _LONGEST_NAME)],
    ]


# The board


def _state_section(seen: TeamOverview, budgets: Sequence[Line]) -> Element:
    texts = list(summary_texts(seen))
    return h.section("#state")[
        _host(seen),
        h.nav(".links", aria_label="More about this session")[
            h.a(href=cost_path(seen.session))["Cost"],
            h.a(href=decisions_path(seen.session))["Decisions"],
            h.a(href=CHANGES)["Changes"],
            h.a(href=SCHEDULES)["Schedules"],
        ],
        [h.p(".about")[spell_out(text)] for text in texts[1:]],
        [h.p(class_=f"about {line.style}")[spell_out(line.text)] for line in budgets],
        [h.p(".about.bad")[spell_out(text)] for text in seen.troubles],
    ]


def _host(seen: TeamOverview) -> Element:
    """Return the session's id, and the process that hosts it."""
    if seen.host is None:
        text = h.span(".state.warn")["No process hosts it: this is its last state."]
    else:
        text = h.span(".state.good")[f"Hosted by process {seen.host}."]
    return h.p[text, " ", h.code[spell_out(seen.session)]]


def _team_section(session: str, seen: TeamOverview) -> Element:
    heads = ("Agent", "State", "Does or waits for", "Since", "Until", "Tokens", "Cost", "Model")
    rows = [_agent_cells(session, row) for row in team_rows(seen, labels=True)]
    listed = sum(row.agent.row.life == "stopped" for row in team_rows(seen))
    hidden = seen.ended.count - listed
    return h.section("#team")[
        h.h2["Agents"],
        table(heads, rows, nothing="No agent has begun."),
        h.p(".about")[f"{hidden:,} more {'agent has' if hidden == 1 else 'agents have'} ended."]
        if hidden > 0
        else None,
    ]


def _agent_cells(session: str, row: TeamRow) -> Sequence[Node]:
    agent = row.agent
    name = agent.label or agent.row.name
    role = brief(agent.row.role)
    return (
        h.span(class_=f"tree level-{min(row.depth, 6)}")[
            h.a(href=agent_path(session, agent.row.name))[spell_out(name)],
            h.span(".about")[f" {spell_out(agent.row.agent_type)}" if agent.row.agent_type != agent.row.name else ""],
            h.div(".about")[role] if role else None,
        ],
        h.span(class_=f"state {row.style}")[spell_out(row.state)],
        spell_out(row.does),
        moment(agent.doing.since or agent.row.since),
        moment(agent.doing.until, counts=True),
        *row.cells[2:],
        spell_out(agent.model),
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
    heads, cells = TASKS.cells(rows, ("OWNER", "FILES"))
    for row, texts in zip(rows, cells, strict=True):
        parts = dict(zip(heads, texts, strict=True))
        task = row.task
        more = [
            ("Description", task.description),
            ("Result", task.result or ""),
            ("Evidence", task.evidence or ""),
        ]
        shown = [(title, text) for title, text in more if text]
        yield h.article(".task", id=f"task-{task.id}")[
            h.div[spell_out(task.subject)],
            h.div(".about")[h.code[task.id], f" {spell_out(parts['OWNER'])}" if parts["OWNER"] else None],
            _blockers(row),
            h.div(".about")["Check ", h.code[brief(task.check)]] if task.check else None,
            h.div(".about")["Files ", h.code[spell_out(parts["FILES"])]] if parts["FILES"] else None,
            h.details[
                h.summary[", ".join(title for title, _ in shown)],
                [h.div(".text")[spell_out(text[:_LONGEST])] for _, text in shown],
            ]
            if shown
            else None,
        ]


def _blockers(row: BoardTask) -> Node:
    """Return the open tasks that a task waits for, as links to them."""
    if row.task.status not in ("pending", "failed"):
        return None
    return [
        h.div(".about.warn")[
            "Waits for ",
            h.a(href=f"#task-{name}")[brief(row.board[name].subject)] if name in row.board else h.code[spell_out(name)],
        ]
        for name in blockers(row.task, row.board)
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
            nonlocal budgets, counted
            await handle.agents.look_around()  # no row changes when a host is killed
            if time.monotonic() - counted > _COUNT:
                budgets = budget_lines(await handle.budgets())
                counted = time.monotonic()
            return _session_page(handle, handle.agents.overview(), budgets, viewer_of(request))

        async def messages() -> Messages:
            await news.changed(0)
            async for message in changed_fragments(news, page):
                yield message

        budgets = budget_lines(await handle.budgets())
        counted = time.monotonic()
        return EventStream(messages, lambda: handle.agents.watch(news.notify))

    async def act(self, request: WebRequest) -> Response:
        """Act on the agent that the form names."""
        form_fields = visit_of(request).form
        handle = await handle_of(self._services.store, request.path_params["session"])
        text = await _acted(handle, form_fields.get("act", ""), form_fields.get("agent", ""), form_fields)
        return self._services.done(request, text, path_of("sessions", handle.id))

    def act_on(self, action: str) -> Callable[[WebRequest], Awaitable[Response]]:
        """Return the handler of an action on the agent of the path."""

        async def acting(request: WebRequest) -> Response:
            handle = await handle_of(self._services.store, request.path_params["session"])
            agent = request.path_params["agent"]
            text = await _acted(handle, action, agent, visit_of(request).form)
            return self._services.done(request, text, agent_path(handle.id, agent))

        return acting


async def _acted(handle: SessionHandle, action: str, agent: str, form_fields: Mapping[str, str]) -> str:
    """Act on an agent, and return the result in a line. Raises `UsageError`."""
    text = form_fields.get("text", "").strip()
    match action:
        case "say":
            if not text:
                raise UsageError("write a message first")
            await handle.say(text, agent)
            waits = "" if await handle.host() else " No process hosts the session: it is read when one does."
            return f"Sent to {agent}.{waits}"
        case "interrupt":
            handle.agent_row(agent)
            await handle.interrupt(None if agent == "lead" else agent)
            return f"{agent} is interrupted."
        case "stop":
            return f"{agent} has stopped." if await handle.agents.stop(agent, text) else f"{agent} is asked to stop."
        case "kill":
            return f"{agent} is ended." if await handle.agents.kill(agent, text) else f"{agent} will be ended."
        case "budget":
            limits = [f"{kind}={form_fields[kind].strip()}" for kind, _ in LIMITS if form_fields.get(kind, "").strip()]
            now = await handle.agents.raise_budget(agent, limits_given(limits, "budget"))
            return f"{agent} may use {budget_words(now)} in all. Send it a message to let it continue."
        case _:
            raise UsageError(f"choose one of {', '.join(ACTIONS)}")


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
        Route(f"{session}/act", routes.act, methods=["POST"]),
        *(Route(f"{agent}/{action}", routes.act_on(action), methods=["POST"]) for action in ACTIONS),
    ]

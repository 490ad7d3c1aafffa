"""Screens of the cost: of the newest sessions of a workspace, and of one session by agent, model, day, and schedule.

The columns and their texts are those of `callboard cost` (`cli/views/cost.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date

import htpy as h
from htpy import Element, Node
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from callboard.cli.terminal.terminal import Line
from callboard.cli.views.cost import HEADS, budget_lines, cost_notes, spent_cells, spent_words
from callboard.cli.views.permission import spell_out
from callboard.core.keys import rows_prefix
from callboard.core.reports.spending import AgentSpending, CallTotals, Spending, by_day
from callboard.engine.budgets.spending import SpendingReader
from callboard.engine.commands import sessions_of
from callboard.sessions.handle import SessionHandle
from callboard.sessions.inspect.inspector import handle_of
from callboard.types.errors import SessionUnreadable
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import SessionRow
from callboard.web.agent import agent_path
from callboard.web.guard import EVENTS
from callboard.web.html import Viewer, WebPage, path_of, session_title, table
from callboard.web.routes import EventStream, PageServices, row_stream, viewer_of

PATH = "/cost"
_SESSIONS = 20
"""Newest sessions that the screen of the workspace reads."""
_REST = 2.0
"""Seconds between two messages: each reads journals."""
_HEADS = tuple(head.capitalize() for head in HEADS)
_WIDTH = 1_000
_AGENTS = 200
"""Most agents that have a row of their own: the first in the order of the tree."""


@dataclass(frozen=True, slots=True)
class _SessionCost:
    """Spending of one session of the list."""

    row: SessionRow
    spending: Spending


def cost_path(session: str) -> str:
    """Return the path of the screen of a session's cost."""
    return path_of("sessions", session, "cost")


def _workspace_page(sessions: Sequence[_SessionCost], older: int, viewer: Viewer) -> WebPage:
    models: dict[str, CallTotals] = {}
    for session in sessions:
        for name, spent in session.spending.models.items():
            models[name] = models.get(name, CallTotals()).plus(spent)
    rows = [(_session_name(each), each.spending.total) for each in sessions]
    fragments = {
        "days": _days(by_day([each.spending for each in sessions], viewer.local)),
        "models": _section("models", "By model", "Model", [(spell_out(name), models[name]) for name in models]),
        "sessions": _section("sessions", "By session", "Session", rows, note=_older(older)),
    }
    return WebPage("Cost", PATH, fragments)


def _session_name(each: _SessionCost) -> Node:
    title = session_title(each.row.id, each.row.prompt)
    return h.a(href=cost_path(each.row.id))[title]


def _older(count: int) -> Node:
    return h.p(".about")[f"{count:,} older sessions are not counted here."] if count > 0 else None


def _session_page(handle: SessionHandle, spending: Spending, budgets: Sequence[Line], viewer: Viewer) -> WebPage:
    notes = [Line(text, "dim") for text in cost_notes(replace(spending, schedules=()), _WIDTH)]
    agents = [each for root in spending.agents for each in root.flat()]
    fragments = {
        "total": h.section("#total")[
            [h.p(class_=f"about {line.style}")[spell_out(_sentence(line.text))] for line in (*budgets, *notes)]
        ],
        "days": _days(spending.days(viewer.local)),
        "models": _section(
            "models", "By model", "Model", [(spell_out(name), spent) for name, spent in spending.models.items()]
        ),
        "agents": _section(
            "agents",
            "By agent",
            "Agent",
            [*_agent_rows(handle.id, agents[:_AGENTS]), (h.b["all"], spending.total)],
            note=h.p(".about")[f"{len(agents) - _AGENTS:,} more agents are in the sum."]
            if len(agents) > _AGENTS
            else None,
        ),
        "schedules": _schedules(spending),
    }
    title = session_title(handle.id, handle.row.prompt)
    back = (path_of("sessions", handle.id), "Session")
    return WebPage(f"Cost: {title}", cost_path(handle.id), fragments, back=back)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _agent_rows(session: str, agents: Iterable[tuple[int, AgentSpending]]) -> Iterator[tuple[Node, CallTotals]]:
    for depth, agent in agents:
        lives = f" ({agent.lives} lives)" if agent.lives > 1 else ""
        link = h.a(href=agent_path(session, agent.name))[spell_out(agent.name)]
        yield h.span(class_=f"tree level-{min(depth, 6)}")[link, lives], agent.own


def _schedules(spending: Spending) -> Element:
    return h.section("#schedules")[
        [
            h.h2["By schedule"],
            h.p(".about")["Part of the cost of the agents that ran them."],
            [h.p[h.b[spell_out(each.id)], f": {spent_words(each)}"] for each in spending.schedules],
        ]
        if spending.schedules
        else None
    ]


def _days(days: Mapping[date, CallTotals]) -> Element:
    most = max((spent.usage.cost_usd for spent in days.values()), default=0.0)
    rows = [
        [
            f"{day:%a} {day.day} {day:%b %Y}",
            *spent_cells(spent),
            h.meter(max="1", value=f"{spent.usage.cost_usd / most:.3f}", aria_label="Share of the most expensive day")
            if most
            else "",
        ]
        for day, spent in days.items()
    ]
    listed = table(("Day", *_HEADS, "Share"), rows, nothing="Nothing was spent yet.", numbers=_HEADS)
    return h.section("#days")[h.h2["By day"], listed]


def _section(
    name: str, title: str, head: str, rows: Iterable[tuple[Node, CallTotals]], *, note: Node = None
) -> Element:
    cells = [(first, *spent_cells(spent)) for first, spent in rows]
    listed = table((head, *_HEADS), cells, nothing="Nothing was spent yet.", numbers=_HEADS)
    return h.section(f"#{name}")[h.h2[title], listed, note]


class _CostRoutes:
    """Handlers of requests."""

    def __init__(self, services: PageServices) -> None:
        self._services = services

    async def workspace(self, request: Request) -> Response:
        """Show the newest sessions."""
        return self._services.page(request, await self._workspace(request)())

    async def follow_workspace(self, request: Request) -> EventStream:
        """Follow the newest sessions."""
        return row_stream(self._services.store, {"s/": "/agent/"}, self._workspace(request), rest=_REST)

    async def session(self, request: Request) -> Response:
        """Show one session."""
        return self._services.page(request, await self._session(request)())

    async def follow_session(self, request: Request) -> EventStream:
        """Follow one session."""
        handle = await handle_of(self._services.store, request.path_params["session"])
        prefixes = {f"{rows_prefix(handle.id)}agent/": ""}
        return row_stream(self._services.store, prefixes, self._session(request), rest=_REST)

    def _workspace(self, request: Request) -> Callable[[], Awaitable[WebPage]]:
        """Return the function that makes the page. It reads each event once."""
        store = self._services.store
        readers: dict[str, SpendingReader] = {}

        async def page() -> WebPage:
            rows = await sessions_of(store)
            costs: list[_SessionCost] = []
            for row in rows[:_SESSIONS]:
                reader = readers.setdefault(row.id, SpendingReader(store, row.id))
                try:
                    handle = await handle_of(store, row.id)
                    costs.append(_SessionCost(row, await reader.read(handle.agent_rows())))
                except SessionUnreadable:
                    continue  # the list of sessions says why
            return _workspace_page(costs, len(rows) - _SESSIONS, viewer_of(request))

        return page

    def _session(self, request: Request) -> Callable[[], Awaitable[WebPage]]:
        store = self._services.store
        readers: dict[str, SpendingReader] = {}

        async def page() -> WebPage:
            handle = await handle_of(store, request.path_params["session"])
            reader = readers.setdefault(handle.id, SpendingReader(store, handle.id))
            spending = await reader.read(handle.agent_rows())
            return _session_page(handle, spending, budget_lines(await handle.budgets()), viewer_of(request))

        return page


def cost_routes(services: PageServices) -> list[Route]:
    """Return the routes of both screens."""
    routes = _CostRoutes(services)
    session = "/sessions/{session}/cost"
    return [
        Route(PATH, routes.workspace),
        Route(f"{PATH}{EVENTS}", routes.follow_workspace),
        Route(session, routes.session),
        Route(f"{session}{EVENTS}", routes.follow_session),
    ]

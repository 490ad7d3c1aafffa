"""Screens of an agent's context and mail: what fills its window, what was cut and can be undone, and its receipts.

Texts are those of `callboard context` and `callboard inbox`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import htpy as h
from htpy import Element, Node
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from callboard.cli.views.context import edit_details, metrics_lines, undo_line
from callboard.cli.views.events import first_line, shorten
from callboard.cli.views.permission import spell_out
from callboard.core.keys import agent_key, mailbox
from callboard.core.reports.context import EditReport, WindowPart
from callboard.core.reports.receipts import Receipt
from callboard.sessions.handle import Context, SessionHandle
from callboard.sessions.inspect.inspector import handle_of
from callboard.types.errors import UsageError
from callboard.web.guard import EVENTS, visit_of
from callboard.web.html import Viewer, WebPage, clock, facts, form, path_of, table
from callboard.web.routes import EventStream, PageServices, row_stream, viewer_of

_REST = 2.0
"""Seconds between two messages: each reads a journal."""
_SAYS = 300
_LONGEST = 4_000
"""Characters of a message that can be opened."""
_MAIL = 200
"""Newest messages that are listed."""
_STATES = {"dropped": "warn", "dead": "bad", "done": "dim"}

Screen = Callable[[SessionHandle, str, Viewer], Awaitable[WebPage]]


def agent_screen_path(session: str, agent: str, screen: str) -> str:
    """Return the path of one of the screens: `context` or `mail`."""
    return path_of("sessions", session, "agents", agent, screen)


def _titled(kind: str, handle: SessionHandle, agent: str, screen: str) -> WebPage:
    """Return a page with its title and way back, without fragments."""
    back = (path_of("sessions", handle.id, "agents", agent), spell_out(agent))
    return WebPage(f"{kind} of {spell_out(agent)}", agent_screen_path(handle.id, agent, screen), {}, back=back)


# Context


async def _context_page(handle: SessionHandle, agent: str, viewer: Viewer) -> WebPage:
    page = _titled("Context", handle, agent, "context")
    context = await handle.context(agent)
    edits = await handle.edits(agent)
    fragments = {"window": _window_section(context), "edits": _edits_section(page.path, edits, viewer)}
    return WebPage(page.title, page.path, fragments, back=page.back)


def _window_section(context: Context) -> Element:
    window = context.window
    share = f" ({window.used / window.window:.0%})" if window.window else ""
    rows = [
        (
            spell_out(f"results of {part.tool}" if part.tool else part.source),
            f"{part.tokens:,}",
            f"{part.share:.1%}",
            _meter(part),
        )
        for part in window.parts
    ]
    return h.section("#window")[
        facts(
            [
                ("Model", spell_out(window.model)),
                ("In use", f"{window.used:,} of {window.window:,} tokens{share}"),
                ("Messages", f"{window.messages:,}; they may take {window.budget:,} tokens"),
                ("So far", [h.div[spell_out(line)] for line in metrics_lines(context.metrics)]),
            ]
        ),
        h.h2["What fills the window"],
        table(("Source", "Tokens", "Share", ""), rows, nothing="It is empty.", numbers=("Tokens", "Share")),
    ]


def _meter(part: WindowPart) -> Node:
    return (
        h.meter(max="1", value=f"{min(part.share, 1.0):.3f}", aria_label="Share of the window") if part.tokens else ""
    )


def _edits_section(path: str, edits: Sequence[EditReport], viewer: Viewer) -> Element:
    return h.section("#edits")[
        h.h2["What was cut"],
        [_edit_card(path, edit, viewer) for edit in reversed(edits)]
        or h.p(".nothing")["Nothing was cut from its conversation."],
    ]


def _edit_card(path: str, edit: EditReport, viewer: Viewer) -> Element:
    stands = edit.taken_back_by is None and not edit.refused
    state = "refused" if edit.refused else f"undone by {edit.taken_back_by}" if edit.taken_back_by is not None else ""
    return h.article(".card.file", id=f"edit-{edit.seq}", data_card=True, tabindex="-1")[
        h.h2[spell_out(edit.stage), " ", h.span(".about")[spell_out(f"{edit.trigger} {state}".strip())]],
        h.p(".about")[
            clock(edit.at, viewer),
            f", as event {edit.seq}: {edit.tokens_before:,} → {edit.tokens_after:,} tokens, {edit.freed:,} freed",
        ],
        h.ul(".bullets")[[h.li[spell_out(line)] for line in edit_details(edit)]],
        form(
            viewer,
            f"{path}/undo",
            h.input(type="hidden", name="edit", value=str(edit.seq)),
            h.button(type="submit")["Undo"],
            label=f"Undo edit {edit.seq}",
        )
        if stands
        else None,
    ]


# Mail


async def _mail_page(handle: SessionHandle, agent: str, viewer: Viewer) -> WebPage:
    page = _titled("Messages", handle, agent, "mail")
    receipts = sorted(await handle.inbox(agent), key=lambda receipt: -receipt.envelope.sent_at)
    rows = [_mail_cells(receipt, viewer) for receipt in receipts[:_MAIL]]
    heads = ("Sent", "From", "Type", "State", "Delivered", "Says")
    older = len(receipts) - _MAIL
    listed = h.section("#mail")[
        table(heads, rows, nothing="It has got no messages."),
        h.p(".about")[f"{older:,} older messages are not shown."] if older > 0 else None,
    ]
    return WebPage(page.title, page.path, {"mail": listed}, back=page.back)


def _mail_cells(receipt: Receipt, viewer: Viewer) -> Sequence[Node]:
    envelope = receipt.envelope
    content = spell_out(envelope.content[:_LONGEST])
    brief = shorten(first_line(content), _SAYS)
    return (
        clock(envelope.sent_at, viewer),
        spell_out(envelope.sender),
        envelope.type.replace("_", " "),
        [
            h.span(class_=f"state {_STATES.get(receipt.state, '')}")[receipt.state],
            h.div(".about")[spell_out(receipt.why)],
        ],
        clock(receipt.delivered_at, viewer),
        brief if brief == content else h.details[h.summary[brief], h.div(".text")[content]],
    )


# Routes


class _AgentContextRoutes:
    """Handlers of requests."""

    def __init__(self, services: PageServices) -> None:
        self._services = services

    def show(self, screen: Screen) -> Callable[[Request], Awaitable[Response]]:
        """Return the handler that shows a screen."""

        async def showing(request: Request) -> Response:
            return self._services.page(request, await self._page(request, screen))

        return showing

    def follow(self, screen: Screen) -> Callable[[Request], Awaitable[EventStream]]:
        """Return the handler that follows a screen."""

        async def following(request: Request) -> EventStream:
            handle = await handle_of(self._services.store, request.path_params["session"])
            row = handle.agent_row(request.path_params["agent"])
            prefixes = {agent_key(handle.id, row.name): ""}
            log = mailbox(handle.id, row.name, row.incarnation)
            return row_stream(self._services.store, prefixes, lambda: self._page(request, screen), rest=_REST, log=log)

        return following

    async def undo(self, request: Request) -> Response:
        """Undo an edit."""
        handle = await handle_of(self._services.store, request.path_params["session"])
        agent = request.path_params["agent"]
        number = visit_of(request).form.get("edit", "")
        if not number.isdecimal():
            raise UsageError(f"edit: {number!r} is not a number")
        answer = await handle.undo([int(number)], agent)
        text = undo_line(answer, [int(number)], agent).text
        return self._services.done(request, f"{text}.", agent_screen_path(handle.id, agent, "context"))

    async def _page(self, request: Request, screen: Screen) -> WebPage:
        handle = await handle_of(self._services.store, request.path_params["session"])
        return await screen(handle, request.path_params["agent"], viewer_of(request))


def agent_context_routes(services: PageServices) -> list[Route]:
    """Return the routes of both screens, and the one that undoes an edit."""
    routes = _AgentContextRoutes(services)
    agent = "/sessions/{session}/agents/{agent}"
    screens = {"context": _context_page, "mail": _mail_page}
    return [
        *(Route(f"{agent}/{name}", routes.show(screen)) for name, screen in screens.items()),
        *(Route(f"{agent}/{name}{EVENTS}", routes.follow(screen)) for name, screen in screens.items()),
        Route(f"{agent}/context/undo", routes.undo, methods=["POST"]),
    ]

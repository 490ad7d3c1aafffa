"""Screen of the hosts of the store: each process with its labels and sessions, and the sessions that wait for one.

The rows are those of `callboard hosts`.
"""

from __future__ import annotations

from collections.abc import Sequence

import htpy as h
from htpy import Element, Node
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from callboard.cli.views.permission import spell_out
from callboard.core.keys import drain_key, host_key, queue_key
from callboard.sessions.fleet import drain_in
from callboard.sessions.inspect.hosts import ListedHost, StoreHosts, read_hosts
from callboard.sessions.inspect.resources import HOSTS, WAITING_SESSIONS
from callboard.web.guard import EVENTS, visit_of
from callboard.web.html import Viewer, WebPage, form, moment, path_of, table
from callboard.web.routes import EventStream, PageServices, row_stream, viewer_of

PATH = "/hosts"
_REST = 2.0
"""Seconds between two messages."""
_STYLES = {"serving": "good", "hosting": "good", "draining": "warn"}


def _hosts_page(seen: StoreHosts, viewer: Viewer) -> WebPage:
    heads = ("Host", "State", "Sessions", "Since", "Version", "Labels", "")
    _, cells = HOSTS.cells(seen.hosts, ("STATE", "SESSIONS", "VERSION"))
    rows = [_host_cells(host, texts, viewer) for host, texts in zip(seen.hosts, cells, strict=True)]
    fragments = {
        "hosts": h.section("#hosts")[
            table(heads, rows, nothing="No process hosts a session: start one with callboard serve.")
        ],
        "waiting-sessions": _waiting_section(seen),
    }
    return WebPage("Hosts", PATH, fragments, back=("/sessions", "Sessions"))


def _host_cells(host: ListedHost, texts: Sequence[str], viewer: Viewer) -> Sequence[Node]:
    state, load, version = texts
    labels = " ".join(f"{name}={value}" for name, value in host.labels.items())
    sessions = [h.div[h.a(href=path_of("sessions", name))[spell_out(name[:8])]] for name in host.sessions]
    return (
        spell_out(host.name),
        h.span(class_=f"state {_STYLES.get(host.state, 'bad')}")[spell_out(state)],
        [spell_out(load), sessions],
        moment(host.since),
        spell_out(version),
        spell_out(labels),
        _drain(host, viewer),
    )


def _drain(host: ListedHost, viewer: Viewer) -> Node:
    if host.state not in ("serving", "draining"):
        return ""
    undo = host.state == "draining"
    fields = [h.input(type="hidden", name="host", value=spell_out(host.name))]
    if undo:
        fields.append(h.input(type="hidden", name="undo", value="1"))
    text = "Take sessions again" if undo else "Hand its sessions over"
    return form(viewer, f"{PATH}/drain", fields, h.button(type="submit")[text], label=text)


def _waiting_section(seen: StoreHosts) -> Element:
    _, cells = WAITING_SESSIONS.cells(seen.waiting, ("SESSION", "WHY"))
    rows = [
        (h.a(href=path_of("sessions", row.session))[spell_out(row.session[:8])], moment(row.since), spell_out(why))
        for row, (_, why) in zip(seen.waiting, cells, strict=True)
    ]
    return h.section("#waiting-sessions")[
        [h.h2["Sessions that wait for a host"], table(("Session", "Since", "Why"), rows, nothing="")] if rows else None
    ]


class _HostRoutes:
    """Handlers of requests."""

    def __init__(self, services: PageServices) -> None:
        self._services = services

    async def show(self, request: Request) -> Response:
        """Show the hosts."""
        return self._services.page(request, await self._page(request))

    async def follow(self, request: Request) -> EventStream:
        """Follow the hosts."""
        prefixes = {host_key(""): "", queue_key(): "", drain_key(): ""}
        return row_stream(self._services.store, prefixes, lambda: self._page(request), rest=_REST)

    async def drain(self, request: Request) -> Response:
        """Let a host hand its sessions over, or take up sessions again."""
        posted = visit_of(request).form
        undo = bool(posted.get("undo"))
        names = await drain_in(self._services.store, posted.get("host", ""), drain=not undo)
        text = "takes up sessions again" if undo else "hands its sessions over"
        return self._services.done(request, f"{', '.join(names)} {text}.", PATH)

    async def _page(self, request: Request) -> WebPage:
        return _hosts_page(await read_hosts(self._services.store), viewer_of(request))


def host_routes(services: PageServices) -> list[Route]:
    """Return the routes of the screen, and the one that drains a host."""
    routes = _HostRoutes(services)
    return [
        Route(PATH, routes.show),
        Route(f"{PATH}{EVENTS}", routes.follow),
        Route(f"{PATH}/drain", routes.drain, methods=["POST"]),
    ]

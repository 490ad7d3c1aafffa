"""The page of a workspace: its routes, and the server from the store to the end of its block.

The page hosts nothing: it reads the store, and follows what hosts write to it.
"""

from __future__ import annotations

import getpass
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from importlib.resources import files
from ipaddress import ip_address
from pathlib import Path

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from callboard.adapters.processes.connection_owner import OwnerLookup, ProcessLookup
from callboard.adapters.system.http_server import TlsFiles, serving_app
from callboard.adapters.system.logs import logging_to
from callboard.core.agent.snapshot import shape
from callboard.ports.notifier import Notifier
from callboard.sessions.inspect.open_requests import OpenRequests
from callboard.sessions.person_actions import record_refusal
from callboard.sessions.places import Notice, find_places
from callboard.sessions.running_page import announce_page
from callboard.sessions.stores import open_store, own_settings
from callboard.types.errors import CallboardError, SettingsError
from callboard.types.lazy_dataclass import dataclass
from callboard.types.personal_settings import WebSettings
from callboard.types.records import RefusedRequest
from callboard.web.access import Access, TooManyTries
from callboard.web.agent import agent_routes
from callboard.web.agent_context import agent_context_routes
from callboard.web.changes import changes_routes
from callboard.web.cost import cost_routes
from callboard.web.guard import SIGN_IN, Guard, Refusal, Visit, cookie_in, cookie_name, too_many, visit_of
from callboard.web.hosts import host_routes
from callboard.web.html import notice_document, sign_in_document
from callboard.web.links import link_routes
from callboard.web.live import LiveFeeds
from callboard.web.new_session import new_session_routes
from callboard.web.passwords import check_hash
from callboard.web.peer import LOOPBACK_ONLY, Reach
from callboard.web.policy import policy_routes
from callboard.web.routes import Notices, PageServices, html_response, refusal
from callboard.web.schedules import schedule_routes
from callboard.web.sessions import session_routes
from callboard.web.waiting import PATH, waiting_routes

_MOST_REPORTED = 200
"""Refused requests of agents' processes that are reported, so that an agent cannot fill the log or the screen."""


def page_app(
    services: PageServices,
    owner: OwnerLookup,
    report: Callable[[Refusal], Awaitable[None]],
    reach: Reach = LOOPBACK_ONLY,
) -> Guard:
    """Return the page behind its guard. `report`: receives each request of an agent's process."""
    routes = Routes(services)
    app = Starlette(
        routes=[
            Route("/", routes.entry),
            Route(SIGN_IN, routes.sign_in, methods=["POST"]),
            Route("/sign-out", routes.sign_out, methods=["POST"]),
            *link_routes(services),
            *waiting_routes(services),
            *session_routes(services),
            *agent_routes(services),
            *agent_context_routes(services),
            *schedule_routes(services),
            *cost_routes(services),
            *policy_routes(services),
            *changes_routes(services),
            *host_routes(services),
            *new_session_routes(services),
            Mount("/static", StaticFiles(directory=str(files("callboard.web") / "static"))),
        ],
        exception_handlers={CallboardError: _failed, 404: _not_found},
    )
    return Guard(app, services.access, owner=owner, report=report, sign_in_page=routes.sign_in_page, reach=reach)


class Routes:
    """The handlers of requests."""

    def __init__(self, services: PageServices) -> None:
        self._services = services

    async def entry(self, request: Request) -> Response:
        """Show the sign-in, or lead a signed-in browser to the open requests."""
        if visit_of(request).browser is not None:
            return RedirectResponse(PATH, 303)
        return html_response(sign_in_document(users=bool(self._services.access.users)))

    def sign_in_page(self) -> Response:
        """Return the response to a request that needs a cookie and has none."""
        return html_response(sign_in_document(users=bool(self._services.access.users)), 401)

    async def sign_in(self, request: Request) -> Response:
        """Exchange the token, or a password, for a cookie."""
        visit = visit_of(request)
        try:
            cookie, problem = await self._cookie_for(visit)
        except TooManyTries as many:
            return too_many(many)
        if cookie is None:
            return PlainTextResponse(f"{problem}\n", 403)
        response = RedirectResponse(PATH, 303)
        name = _cookie_of(request)
        response.set_cookie(name, cookie, httponly=True, samesite="strict", path="/", secure=visit.secure)
        return response

    async def _cookie_for(self, visit: Visit) -> tuple[str | None, str]:
        """Return the cookie of a browser that may sign in, or None and the reason. Raises `TooManyTries`."""
        access = self._services.access
        token = visit.form.get("token", "").strip()
        if not token:
            password = visit.form.get("password", "")
            cookie = await access.sign_in_user(visit.form.get("user", "").strip(), password, client=visit.client)
            return cookie, "The name or the password is wrong."
        if visit.client:
            return None, "The token signs in a browser of its own machine. Sign in with your name and password."
        text = "This token is wrong or was used. The terminal of callboard web shows the current one."
        return access.sign_in(token), text

    async def sign_out(self, request: Request) -> Response:
        """Forget this browser."""
        self._services.access.sign_out(cookie_in(request.headers, _port(request)))
        response = RedirectResponse("/", 303)
        response.delete_cookie(_cookie_of(request), httponly=True, samesite="strict", path="/")
        return response


def _port(request: Request) -> int:
    port: int = request.scope["server"][1]
    return port


def _cookie_of(request: Request) -> str:
    return cookie_name(_port(request))


async def _failed(request: Request, error: Exception) -> Response:
    return refusal(request, str(error), 409)


async def _not_found(request: Request, error: Exception) -> Response:
    return html_response(notice_document("There is no page at this address.", "Not found"), 404)


@dataclass(frozen=True, slots=True)
class PageOptions:
    """Address of a server, and the settings that say who reaches it."""

    host: str = "127.0.0.1"
    port: int = 7333
    """0: any free one."""
    web: WebSettings = WebSettings()

    @property
    def beyond(self) -> bool:
        """Return True if other machines reach the address."""
        return not ip_address(self.host).is_loopback

    @property
    def tls(self) -> TlsFiles | None:
        """Return the files for TLS; None if the server does not encrypt."""
        return TlsFiles(self.web.certificate, self.web.key) if self.web.certificate else None

    @property
    def reach(self) -> Reach:
        """Return the limits on connections."""
        address = ip_address(self.host)
        host = f"[{address}]" if ":" in self.host else self.host
        own = () if address.is_unspecified else (host,)
        return Reach((*self.web.hosts, *own), self.beyond, self.web.proxy)

    def check(self) -> None:
        """Raise `SettingsError` unless everybody whom the server reaches is encrypted and has to sign in."""
        web = self.web
        proxy = web.proxy
        if bool(web.certificate) != bool(web.key):
            raise SettingsError("web.certificate and web.key belong together: set both, or none")
        for name, stored in web.users.items():
            check_hash(name, stored)
        if not self.beyond:
            return
        if not web.certificate and not proxy.secret:
            raise SettingsError(
                f"{self.host} is reached by other machines: set web.certificate and web.key, or declare a proxy in "
                "web.proxy. Or use 127.0.0.1 and SSH: ssh -L 7333:127.0.0.1:7333 HOST"
            )
        if not web.users and not (proxy.secret and proxy.user_header):
            raise SettingsError(
                "nobody can sign in from another machine: callboard web --add-user NAME, or name the header of a proxy "
                "that signs users in, in web.proxy.user_header"
            )
        if not web.hosts and ip_address(self.host).is_unspecified:
            raise SettingsError("say under which names browsers open the page: web.hosts")


@dataclass(frozen=True, slots=True)
class PageServer:
    """A running server."""

    options: PageOptions
    port: int
    access: Access

    @property
    def base(self) -> str:
        """Return the address without a secret, for a browser of this machine."""
        host = self.options.host
        if self.options.tls is not None and self.options.web.hosts:
            host = self.options.web.hosts[0]
            return f"https://{host}" if ":" in host else f"https://{host}:{self.port}"
        if ip_address(host).is_unspecified:
            host = "::1" if ":" in host else "127.0.0.1"
        host = f"[{host}]" if ":" in host else host
        return f"http{'' if self.options.tls is None else 's'}://{host}:{self.port}"

    @property
    def address(self) -> str:
        """Return the address with the token that signs in the next browser."""
        return f"{self.base}/#{self.access.token}"


@asynccontextmanager
async def serving_page(
    workspace: Path,
    options: PageOptions,
    *,
    signed_in: Callable[[], None],
    refused: Callable[[Refusal], None],
    notice: Notice,
) -> AsyncGenerator[PageServer]:
    """Serve the page of a workspace while the block runs.

    `signed_in` is called after each sign-in, when the token is a new one; `refused` for each request of an agent's
    process. Raises `OSError` for an address in use, `SettingsError` as `PageOptions.check` does, and the errors of
    `open_store`.
    """
    options.check()
    places = find_places(workspace, writable=False)
    store = await open_store(places, own_settings(), notice)
    news = Notifier()
    requests = OpenRequests(store)
    users = options.web.users
    access = Access(signed_in, users=users, own_name=getpass.getuser() if users else "")
    reported = 0

    async def report(refusal: Refusal) -> None:
        nonlocal reported
        reported += 1
        if reported > _MOST_REPORTED:
            return
        refused(refusal)
        session = refusal.path.split("/")[2] if refusal.path.startswith("/sessions/") else ""
        if requests.session(session) is not None:
            owner = refusal.owner
            action = f"{refusal.method} {refusal.path}"
            entry = RefusedRequest(
                at=time.time(), pid=owner.pid, program=owner.program, action=action, why=owner.reason
            )
            await record_refusal(store, session, entry)

    # The store is closed even if the log cannot be opened, and the log is open while the store is closed.
    log = ExitStack()
    try:
        log.enter_context(logging_to(places.state / "log" / "web.jsonl"))
        await requests.read()
        live = LiveFeeds(store, places.live)
        services = PageServices(store, places, access, requests, news, live, Notices())
        app = page_app(services, ProcessLookup(), report, options.reach)
        running = serving_app(app, options.host, options.port, lifespan="off", tls=options.tls)
        async with running as bound, anyio.create_task_group() as group:
            group.start_soon(requests.follow, news.notify)
            await group.start(live.run)
            # The first screen of a session needs it, and it takes 60 ms.
            group.start_soon(anyio.to_thread.run_sync, shape)
            serving = PageServer(options, bound, access)
            with app.ending_streams(), announce_page(places.state, options.web.address or serving.base):
                yield serving
            group.cancel_scope.cancel()
    finally:
        with log, anyio.CancelScope(shield=True):
            await store.aclose()

"""Middleware in front of every route, streams included: it decides whether a request may reach the page.

The checks, in order: a connection of this machine; a known host (against DNS rebinding); an origin and a fetch site of
our own; a method and a content type that forms have; the process behind the connection, because an agent's command can
reach the loopback; the cookie of a signed-in browser; the secret of its forms; and the code of the terminal, where the
process cannot be determined. Every response has the headers that keep scripts, frames, and other pages out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from typing import Any
from urllib.parse import parse_qsl

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from callboard.adapters.processes.connection_owner import Address, ConnectionOwner, OwnerLookup
from callboard.types.lazy_dataclass import dataclass
from callboard.web.access import Access, Browser, TooManyTries

ACCESS = "callboard.web"
"""Key in the scope of a request with its `Visit`."""
SIGN_IN = "/sign-in"
FORM_TOKEN = "form_token"  # noqa: S105 - the name of a field
CODE = "code"
EVENTS = "/events"
"""End of the path of every stream."""

_FORM = "application/x-www-form-urlencoded"
_LARGEST = 1_000_000
"""Most bytes of a form."""
_FIELDS = 100
_OWN_SITES = ("same-origin", "none")
_HEADERS: Mapping[str, str] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    # Not `no-referrer`: with it, browsers send forms with the origin `null`.
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


@dataclass(frozen=True, slots=True)
class Visit:
    """Facts about a request that the guard let through."""

    browser: Browser | None
    """None on the few routes that need no cookie."""
    needs_code: bool
    """True if a change from this connection needs the code of the terminal."""
    form: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request of an agent's process, for the policy log and for the user."""

    path: str
    method: str
    owner: ConnectionOwner


class _Refused(Exception):
    """A request that does not reach the page. `status`: of the response."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Guard:
    """The middleware."""

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        *,
        owner: OwnerLookup,
        report: Callable[[Refusal], Awaitable[None]],
        sign_in_page: Callable[[], Response],
    ) -> None:
        self._app = app
        self._access = access
        self._owner = owner
        self._report = report
        self._sign_in_page = sign_in_page
        self._streams: set[anyio.CancelScope] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or refuse it. Nothing but HTTP is served."""
        if scope["type"] != "http":
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                public = scope["path"].startswith("/static/")
                headers.setdefault("cache-control", "no-cache" if public else "no-store")
                headers.update(_HEADERS)
            await send(message)

        try:
            visit = await self._admit(Request(scope, receive))
        except _Refused as refused:
            response = PlainTextResponse(f"{refused}\n", refused.status)
            if refused.status == 401 and scope["method"] in ("GET", "HEAD") and not scope["path"].endswith(EVENTS):
                response = self._sign_in_page()
            await response(scope, receive, send_safely)
            return
        except TooManyTries as many:
            await too_many(many)(scope, receive, send_safely)
            return
        scope[ACCESS] = visit
        if scope["path"].endswith(EVENTS):
            await self._stream(scope, receive, send_safely)
        else:
            await self._app(scope, receive, send_safely)

    def end_streams(self) -> None:
        """End all streams, which would otherwise last until their browsers leave. For the end of the server."""
        for stream in self._streams:
            stream.cancel()

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        with anyio.CancelScope() as stream:
            self._streams.add(stream)
            try:
                await self._app(scope, receive, send)
            finally:
                self._streams.discard(stream)
        if stream.cancelled_caught:
            await send({"type": "http.response.body", "body": b""})

    async def _admit(self, request: Request) -> Visit:
        client, server = _ends(request.scope)
        changes = request.method == "POST"
        _check_host(request.headers, server)
        _check_origin(request, needed=changes or request.url.path.endswith(EVENTS))
        _check_method(request)
        owner = await self._owner(client, server, again=changes)
        if owner.origin == "tool":
            await self._report(Refusal(request.url.path, request.method, owner))
            raise _Refused(403, f"an agent's tool may not use this page: {owner.reason}")
        browser = self._access.browser_of(cookie_in(request.headers, server[1]))
        if browser is None and not _is_public(request):
            raise _Refused(401, "sign in first: open the address that `callboard web` prints")
        form = await _form_of(request) if changes else {}
        needs_code = owner.origin == "unknown"
        if changes and browser is not None and request.url.path != SIGN_IN:
            self._check_form(browser, form, owner)
        return Visit(browser, needs_code, form)

    def _check_form(self, browser: Browser, form: Mapping[str, str], owner: ConnectionOwner) -> None:
        if form.get(FORM_TOKEN) != browser.form_token:
            raise _Refused(403, "this form is not of this page, or the page is old: reload it")
        if owner.origin == "unknown" and not self._access.is_code(form.get(CODE, "")):
            raise _Refused(403, f"type the code that `callboard web` shows in its terminal, because {owner.reason}")


def too_many(tries: TooManyTries) -> Response:
    """Return the response to a try that does not count."""
    return PlainTextResponse(f"{tries}\n", 429, headers={"retry-after": f"{tries.wait:.0f}"})


def visit_of(request: Request) -> Visit:
    """Return the facts about a request that the guard let through."""
    visit: Visit = request.scope[ACCESS]
    return visit


def cookie_name(port: int) -> str:
    """Return the name of the cookie. Cookies of one host are shared by its ports, so the name has the port."""
    return f"callboard_{port}"


def cookie_in(headers: Headers, port: int) -> str:
    """Return the value of the cookie of a request; empty if it has none."""
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(cookie_name(port))
    except CookieError:
        return ""
    return "" if morsel is None else morsel.value


def _ends(scope: Scope) -> tuple[Address, Address]:
    """Return both ends of the connection. Raises `_Refused` for one that comes from another machine."""
    client: Any = scope.get("client")
    server: Any = scope.get("server")
    if not client or not server or not ip_address(client[0]).is_loopback:
        raise _Refused(403, "this page is for this machine only")
    return (client[0], client[1]), (server[0], server[1])


def _check_host(headers: Headers, server: Address) -> None:
    if headers.get("host") not in {f"{name}:{server[1]}" for name in ("127.0.0.1", "localhost", "[::1]")}:
        raise _Refused(421, f"unknown host: open http://127.0.0.1:{server[1]}/")


def _check_origin(request: Request, *, needed: bool) -> None:
    """Refuse requests that another page causes. `needed`: the request must prove that our own page made it."""
    origin = request.headers.get("origin")
    site = request.headers.get("sec-fetch-site")
    if origin is not None and origin != f"http://{request.headers['host']}":
        raise _Refused(403, "another page may not use this one")
    if site is not None and site not in _OWN_SITES and not _is_entry(request):
        raise _Refused(403, "another page may not use this one: open its address yourself")
    if needed and site != "same-origin" and (origin is None or site is not None):
        raise _Refused(403, "only this page itself may do that")


def _check_method(request: Request) -> None:
    if request.method not in ("GET", "HEAD", "POST"):
        raise _Refused(405, "use GET or POST")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if request.method == "POST" and kind != _FORM:
        raise _Refused(415, f"a change is a form: {_FORM}")


def _is_entry(request: Request) -> bool:
    """Return True for the page of the sign-in, which a link or a file may open. It shows nothing of a session."""
    return request.method == "GET" and request.url.path == "/"


def _is_public(request: Request) -> bool:
    path = request.url.path
    return path == "/" or path.startswith("/static/") or (path == SIGN_IN and request.method == "POST")


async def _form_of(request: Request) -> dict[str, str]:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LARGEST:
            raise _Refused(413, "the form is too large")
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_FIELDS))
    except ValueError as wrong:
        raise _Refused(400, "the form cannot be read") from wrong

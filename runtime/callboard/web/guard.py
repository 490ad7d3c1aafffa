"""Middleware in front of every route, streams included: it decides whether a request may reach the page.

The checks, in order: a connection that may be (`peer.py`: of this machine, of the declared proxy, or with TLS); a known
host (against DNS rebinding); an origin and a fetch site of our own; a method and a content type that forms have; the
process behind a connection of this machine, because an agent's command can reach the loopback; the cookie of a
signed-in browser, or the user whom the proxy names; the secret of its forms; and the code of the terminal, where the
process cannot be determined. Every response has the headers that keep scripts, frames, and other pages out.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import aclosing, contextmanager
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl

import anyio
from starlette.datastructures import FormData, Headers, MutableHeaders
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from callboard.adapters.processes.connection_owner import ConnectionOwner, OwnerLookup
from callboard.sessions.running_page import LINK_PATH
from callboard.types.lazy_dataclass import dataclass
from callboard.web.access import Access, Browser, TooManyTries
from callboard.web.peer import LOOPBACK_ONLY, Peer, PeerRefused, Reach, peer_of, server_of

ACCESS = "callboard.web"
"""Key in the scope of a request with its `Visit`."""
SIGN_IN = "/sign-in"
LINK = LINK_PATH
LINK_ANSWER = f"{LINK}/answer"
NEW_SESSION = "/new"
"""Path of the only form that may have files."""
FORM_TOKEN = "form_token"  # noqa: S105 - the name of a field
CODE = "code"
EVENTS = "/events"
"""End of the path of every stream."""

_FORM = "application/x-www-form-urlencoded"
_FILES_FORM = "multipart/form-data"
_LARGEST = 1_000_000
_LARGEST_WITH_FILES = 10_000_000
"""Most bytes of a form, and of one with files."""
_FIELDS = 100
_WITH_SECRET = (SIGN_IN, LINK, LINK_ANSWER)
"""Changes whose form has a secret of its own in place of that of a signed-in browser."""
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
class UploadedFile:
    """File of a form. The browser chooses its name."""

    name: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Visit:
    """Facts about a request that the guard let through."""

    browser: Browser | None
    """None on the few routes that need no cookie."""
    needs_code: bool
    """True if a change from this connection needs the code of the terminal."""
    form: Mapping[str, str]
    client: str = ""
    """Address of the other machine; empty: this machine."""
    secure: bool = False
    """True if the browser's connection is encrypted."""
    files: tuple[UploadedFile, ...] = ()


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
        reach: Reach = LOOPBACK_ONLY,
    ) -> None:
        self._app = app
        self._reach = reach
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

    @contextmanager
    def ending_streams(self) -> Generator[None]:
        """End all streams after the block. They would otherwise last until their browsers leave."""
        try:
            yield
        finally:
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
        path = request.url.path
        changes = request.method == "POST"
        try:
            peer = await peer_of(request.scope, request.headers, self._reach, self._owner, fresh=changes)
        except PeerRefused as refused:
            raise _Refused(403, str(refused)) from refused
        _check_host(request, peer, self._reach)
        _check_origin(request, peer, needed=changes or path.endswith(EVENTS))
        _check_method(request)
        if peer.owner.origin == "tool":
            await self._report(Refusal(path, request.method, peer.owner))
            raise _Refused(403, f"an agent's tool may not use this page: {peer.owner.reason}")
        browser = self._browser_of(request, peer)
        if browser is None and not _is_public(request):
            raise _Refused(401, "sign in first: open the address that `callboard web` prints")
        form, files = await _form_of(request) if changes else ({}, ())
        if changes and browser is not None and path not in _WITH_SECRET and form.get(FORM_TOKEN) != browser.form_token:
            raise _Refused(403, "this form is not of this page, or the page is old: reload it")
        if changes and peer.in_doubt and path not in (SIGN_IN, LINK) and not self._access.is_code(form.get(CODE, "")):
            reason = peer.owner.reason
            raise _Refused(403, f"type the code that `callboard web` shows in its terminal, because {reason}")
        return Visit(browser, peer.in_doubt, form, peer.client, peer.secure, files)

    def _browser_of(self, request: Request, peer: Peer) -> Browser | None:
        """Return the signed-in browser of a request; None if it has to sign in. A user of the proxy need not."""
        if peer.user is not None:
            return self._access.browser_of_user(peer.user) if peer.user else None
        return self._access.browser_of(cookie_in(request.headers, server_of(request.scope)[1]))


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


def _check_host(request: Request, peer: Peer, reach: Reach) -> None:
    port = server_of(request.scope)[1]
    host = request.headers.get("host", "").lower()
    own = set[str]() if peer.proxied else {f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")}
    if host not in own | reach.names(port):
        raise _Refused(421, f"unknown host: open {'its own address' if peer.proxied else f'http://127.0.0.1:{port}/'}")


def _check_origin(request: Request, peer: Peer, *, needed: bool) -> None:
    """Refuse requests that another page causes. `needed`: the request must prove that our own page made it."""
    origin = request.headers.get("origin")
    site = request.headers.get("sec-fetch-site")
    own = f"{'https' if peer.secure else 'http'}://{request.headers['host']}"
    if origin is not None and origin.lower() != own.lower():
        raise _Refused(403, "another page may not use this one")
    if site is not None and site not in _OWN_SITES and not _is_entry(request):
        raise _Refused(403, "another page may not use this one: open its address yourself")
    if needed and site != "same-origin" and (origin is None or site is not None):
        raise _Refused(403, "only this page itself may do that")


def _check_method(request: Request) -> None:
    if request.method not in ("GET", "HEAD", "POST"):
        raise _Refused(405, "use GET or POST")
    forms = (_FORM, _FILES_FORM) if request.url.path == NEW_SESSION else (_FORM,)
    if request.method == "POST" and _content_type(request) not in forms:
        raise _Refused(415, f"a change is a form: {_FORM}")


def _content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _is_entry(request: Request) -> bool:
    """Return True for the pages that a link or a file may open. They show nothing of a session."""
    return request.method in ("GET", "HEAD") and request.url.path in ("/", LINK)


def _is_public(request: Request) -> bool:
    path = request.url.path
    if path in _WITH_SECRET and request.method == "POST":
        return True
    return path in ("/", LINK) or path.startswith("/static/")


async def _form_of(request: Request) -> tuple[dict[str, str], tuple[UploadedFile, ...]]:
    """Return the fields and the files of a form."""
    has_files = _content_type(request) == _FILES_FORM
    try:
        async with aclosing(_body_of(request, _LARGEST_WITH_FILES if has_files else _LARGEST)) as body:
            if has_files:
                parser = MultiPartParser(
                    request.headers, body, max_files=_FIELDS, max_fields=_FIELDS, max_part_size=_LARGEST
                )
                return await _parts_of(await parser.parse())
            text = b"".join([chunk async for chunk in body]).decode()
            return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_FIELDS)), ()
    except (ValueError, MultiPartException) as wrong:
        raise _Refused(400, "the form cannot be read") from wrong


async def _body_of(request: Request, limit: int) -> AsyncGenerator[bytes, None]:
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise _Refused(413, f"the form is too large: it may have {limit // 1_000_000} MB with its files")
        yield chunk


async def _parts_of(form: FormData) -> tuple[dict[str, str], tuple[UploadedFile, ...]]:
    fields: dict[str, str] = {}
    files: list[UploadedFile] = []
    try:
        for name, value in form.multi_items():
            if isinstance(value, str):
                fields[name] = value
            elif value.filename:  # an empty field for files sends a file without a name
                files.append(UploadedFile(value.filename, await value.read()))
    finally:
        await form.close()
    return fields, tuple(files)

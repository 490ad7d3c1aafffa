"""Parts that the routes of all screens share: services, the viewer of a request, responses, and event streams.

One stream belongs to each open page. A burst of changes is one message: after each message the stream rests for a
moment. A comment in between keeps the connection, and shows the server that the browser is gone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from datetime import tzinfo
from hashlib import sha256
from typing import Any, NamedTuple
from urllib.parse import unquote

import anyio
import htpy as h
from htpy import Element, Fragment
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from callboard.cli.views.permission import spell_out
from callboard.core.scheduling.cron import CronInvalid, zone_named
from callboard.ports.notifier import Notifier
from callboard.ports.store import Store
from callboard.sessions.inspect.open_requests import OpenRequests
from callboard.sessions.places import WorkspacePaths
from callboard.types.errors import CallboardError, heart_of
from callboard.types.lazy_dataclass import dataclass
from callboard.web.access import Access
from callboard.web.guard import visit_of
from callboard.web.html import REPLY, ZONE, Viewer, WebPage, document, notice_document, notice_line, partial
from callboard.web.live import LiveFeeds

_REST = 0.2
"""Seconds between two messages of a stream."""
_TEXT_REST = 0.05
"""The same for a reply that streams."""
_NOTICES = 100
"""Most results that wait for their pages."""
_QUIET = 5.0
"""Seconds after which a stream without news looks again whether the host lives, and sends a comment."""


class StreamMessage(NamedTuple):
    """One message of a stream."""

    html: str
    """Partial elements; empty: nothing has changed."""
    position: str = ""
    """Position from which a browser continues after a lost connection; empty: it starts anew."""


Messages = AsyncIterator[StreamMessage]


class Notices:
    """Results of changes, each for the next page of its path in the browser that sent the change."""

    def __init__(self) -> None:
        self._texts: OrderedDict[tuple[str, str], str] = OrderedDict()

    def put(self, browser: str, path: str, text: str) -> None:
        """Keep a text. `browser`: the secret of its forms."""
        self._texts[browser, path] = text
        while len(self._texts) > _NOTICES:
            self._texts.popitem(last=False)

    def take(self, browser: str, path: str) -> str:
        """Return the text for a page once; empty if there is none."""
        return self._texts.pop((browser, path), "")


@dataclass(frozen=True, slots=True)
class PageServices:
    """Parts that the routes use."""

    store: Store
    places: WorkspacePaths
    access: Access
    requests: OpenRequests
    news: Notifier
    """Notified after each change of a session or a request."""
    live: LiveFeeds
    """Replies while they stream."""
    notices: Notices
    """Results of changes that were sent without a script."""

    def page(self, request: Request, page: WebPage) -> Response:
        """Return a whole page, with the result of a change that led to it."""
        viewer = viewer_of(request)
        notice = self.notices.take(viewer.form_token, page.path)
        return html_response(document(page, str(self.places.workspace), viewer, notice))

    def done(self, request: Request, text: str, back: str) -> Response:
        """Return the response to a change: its result for the script that sent it, or the way to a page that shows it.

        A browser sends a form itself if scripts are off, and if its user is faster than the scripts of a new page.
        `back`: the path of the screen.
        """
        if request.headers.get("hx-request"):
            return html_response(notice_line(text))
        self.notices.put(viewer_of(request).form_token, back, text)
        return RedirectResponse(back, 303)


def viewer_of(request: Request) -> Viewer:
    """Return the browser of a request that needs a cookie."""
    visit = visit_of(request)
    assert visit.browser is not None, "the guard admits no other"
    return Viewer(visit.browser.form_token, visit.needs_code, _zone(request))


def _zone(request: Request) -> tzinfo | None:
    """Return the time zone that the browser names; None without one, or for one that does not exist."""
    name = unquote(request.cookies.get(ZONE, ""))
    try:
        return zone_named(name) if name else None
    except CronInvalid:
        return None


def html_response(element: Element | Fragment, status: int = 200) -> Response:
    """Return an element as a response."""
    return HTMLResponse(str(element), status)


def refusal(request: Request, text: str, status: int) -> Response:
    """Return the response to a request that cannot be carried out, with the reason."""
    if request.headers.get("hx-request"):
        return html_response(h.p(".bad")[spell_out(text)], status)
    return html_response(notice_document(spell_out(text)), status)


class EventStream:
    """Response that sends messages as server-sent events until the browser leaves or the messages end.

    `follow` runs meanwhile. An ASGI application, because a task of its own waits for the browser to leave.
    """

    def __init__(
        self, messages: Callable[[], Messages], follow: Callable[[], Coroutine[Any, Any, None]] | None = None
    ) -> None:
        self._messages = messages
        self._follow = follow

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the messages."""
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        last = b""
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._until_left, receive, group.cancel_scope)
                if self._follow is not None:
                    group.start_soon(self._follow)
                async for message in self._messages():
                    await send({"type": "http.response.body", "body": encode_event(message), "more_body": True})
                group.cancel_scope.cancel()
        except* CallboardError as failed:  # such as a journal that a newer version wrote
            last = encode_event(StreamMessage(partial(REPLY, str(_reason(failed)), swap="innerHTML")))
        with anyio.CancelScope(shield=True):
            await send({"type": "http.response.body", "body": last})

    async def _until_left(self, receive: Receive, scope: anyio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()


def _reason(failed: BaseExceptionGroup[CallboardError]) -> Element:
    """Return why a stream has ended, in a line."""
    return h.p(".bad")[f"This page is not updated any more: {spell_out(str(heart_of(failed)))}"]


def encode_event(message: StreamMessage) -> bytes:
    """Return a message as one event; an empty one as a comment. No text can end the event or begin another one."""
    if not message.html:
        return b": still here\n\n"
    lines = message.html.replace("\r", "&#13;").split("\n")
    position = f"id: {message.position}\n" if message.position else ""
    return (position + "".join(f"data: {line}\n" for line in lines) + "\n").encode()


async def next_news(news: Notifier, seen: int, *, rest: float = _REST) -> int:
    """Rest, then wait for news, at most until the stream has to show that it lives. Return the number of changes."""
    await anyio.sleep(rest)
    with anyio.move_on_after(_QUIET):
        return await news.changed(seen)
    return seen


class RestingNews:
    """Wait of a stream that shows a reply as it streams: for its text, and less often for everything else."""

    def __init__(self, changed: Notifier, journal: Notifier) -> None:
        """Wait for `changed`, notified of all changes, and `journal`, of those that are not about the text."""
        self._changed = changed
        self._journal = journal
        self._seen = -1
        self._read = -1
        self._due = 0.0
        """Time from which changes of the journal are due."""

    def is_due(self) -> bool:
        """Return True if the stream has to look at everything now. Call it before the stream looks at anything."""
        self._seen = self._changed.changes
        now = anyio.current_time()
        if now < self._due or (self._journal.changes == self._read and now < self._due + _QUIET):
            return False
        self._read = self._journal.changes
        self._due = now + _REST
        return True

    async def next(self) -> None:
        """Rest, then wait for the next change that is due, at most until the stream has to show that it lives."""
        await anyio.sleep(_TEXT_REST)
        until = self._due if self._journal.changes != self._read else self._due + _QUIET
        with anyio.move_on_after(max(0.0, until - anyio.current_time())):
            await self._changed.changed(self._seen)


async def changed_fragments(
    news: Notifier, screen: Callable[[], Awaitable[WebPage]], *, rest: float = _REST
) -> Messages:
    """Yield the fragments of a screen that differ from those that were sent, all of them at first."""
    sent: dict[str, str] = {}
    seen = news.changes
    while True:
        yield StreamMessage("".join(_news((await screen()).fragments, sent)))
        seen = await next_news(news, seen, rest=rest)


def row_stream(
    store: Store,
    prefixes: Mapping[str, str],
    screen: Callable[[], Awaitable[WebPage]],
    *,
    rest: float = _REST,
    log: str = "",
) -> EventStream:
    """Return the stream of a screen that is derived from rows, sent again after their changes.

    `prefixes`: prefixes of keys, each with a text that the keys contain. `rest`: seconds between two messages. `log`:
    a stream of the store whose new records change the screen, too.
    """
    news = Notifier()

    async def follow() -> None:
        async with anyio.create_task_group() as group:
            for prefix, part in prefixes.items():
                group.start_soon(_watch, store, prefix, part, news)
            if log:
                group.start_soon(_follow_log, store, log, news)

    return EventStream(lambda: changed_fragments(news, screen, rest=rest), follow)


async def _follow_log(store: Store, log: str, news: Notifier) -> None:
    async with store.follow(log, await store.last(log)) as records:
        async for _ in records:
            news.notify()


async def _watch(store: Store, prefix: str, part: str, news: Notifier) -> None:
    async with store.watch(prefix) as rows:
        async for row in rows:
            if any(part in each.key for each in (row, *rows.at_hand())):
                news.notify()


def _news(fragments: Mapping[str, Element], sent: dict[str, str]) -> Iterator[str]:
    """Yield a message part for each fragment that is not in `sent` as it is now, and keep it there."""
    for name, element in fragments.items():
        text = str(element)
        digest = sha256(text.encode()).hexdigest()
        if sent.get(name) != digest:
            sent[name] = digest
            yield partial(name, text)

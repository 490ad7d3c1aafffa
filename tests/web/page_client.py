"""The page in this process, and a browser's requests to it: no sockets, and processes as the test says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlencode

import anyio

from callboard.adapters.processes.connection_owner import Address, ConnectionOwner
from callboard.adapters.storage.memory import MemoryStore
from callboard.ports.notifier import Notifier
from callboard.ports.store import Store
from callboard.sessions.inspect.open_requests import OpenRequests
from callboard.sessions.places import WorkspacePaths
from callboard.web.access import Access
from callboard.web.app import page_app
from callboard.web.guard import Refusal, cookie_name
from callboard.web.live import LiveFeeds
from callboard.web.peer import LOOPBACK_ONLY, Reach
from callboard.web.routes import Notices, PageServices

PORT = 7333
HOST = f"127.0.0.1:{PORT}"
FORM = "application/x-www-form-urlencoded"
OWN = {"host": HOST, "sec-fetch-site": "same-origin", "origin": f"http://{HOST}"}
"""Headers of a request that the page itself makes."""


@dataclass
class PageResponse:
    status: int
    headers: dict[str, str]
    text: str


@dataclass
class Page:
    """The page of a store in memory."""

    app: Any
    access: Access
    store: Store
    owner: ConnectionOwner = ConnectionOwner("person")
    refusals: list[Refusal] = field(default_factory=list)
    cookie: str = ""
    client: str = "127.0.0.1"
    server: str = "127.0.0.1"
    scheme: str = "http"

    async def get(self, path: str, headers: Mapping[str, str] = OWN) -> PageResponse:
        return await self.send("GET", path, headers)

    async def post(
        self, path: str, form: Mapping[str, str] | None = None, headers: Mapping[str, str] = OWN, kind: str = FORM
    ) -> PageResponse:
        body = urlencode({"form_token": self.form_token, **(form or {})}).encode()
        return await self.send("POST", path, {**headers, "content-type": kind}, body)

    @property
    def form_token(self) -> str:
        browser = self.access.browser_of(self.cookie)
        return "" if browser is None else browser.form_token

    async def send(self, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> PageResponse:
        """Send one request; the browser leaves as soon as it has the first part of a stream."""
        sent = dict(headers)
        if self.cookie:
            sent["cookie"] = f"{cookie_name(PORT)}={self.cookie}"
        messages: list[Any] = []
        asked = False
        left = anyio.Event()

        async def receive() -> Any:
            nonlocal asked
            if not asked:
                asked = True
                return {"type": "http.request", "body": body, "more_body": False}
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            messages.append(message)
            if message["type"] == "http.response.body" and message.get("body"):
                left.set()

        bare, _, query = path.partition("?")
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "scheme": self.scheme,
            "path": unquote(bare),
            "raw_path": bare.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
            "client": (self.client, 50_000),
            "server": (self.server, PORT),
        }
        await self.app(scope, receive, send)
        start = next(message for message in messages if message["type"] == "http.response.start")
        parts = b"".join(message.get("body", b"") for message in messages if message["type"] == "http.response.body")
        names = {name.decode(): value.decode() for name, value in start["headers"]}
        return PageResponse(start["status"], names, parts.decode(errors="replace"))

    async def sign_in(self) -> None:
        response = await self.post("/sign-in", {"token": self.access.token})
        assert response.status == 303, response.text
        self.cookie = response.headers["set-cookie"].partition("=")[2].partition(";")[0]


@asynccontextmanager
async def opened_page(
    workspace: Path = Path("/work/roof"),
    store: Store | None = None,
    data: Path | None = None,
    *,
    reach: Reach = LOOPBACK_ONLY,
    users: Mapping[str, str] | None = None,
) -> AsyncIterator[Page]:
    """Open the page of a store, signed in. `data`: the folder with the worktrees."""
    store = store or MemoryStore()
    access = Access(lambda: None, users=users, own_name="root" if users else "")
    pending = OpenRequests(store)
    news = Notifier()
    own = workspace / ".test"
    places = WorkspacePaths(workspace, own / "state", data or own / "data", own / "config")
    page = Page(None, access, store)

    async def owner(client: Address, server: Address, *, again: bool) -> ConnectionOwner:
        return page.owner

    async def report(refusal: Refusal) -> None:
        page.refusals.append(refusal)

    services = PageServices(store, places, access, pending, news, LiveFeeds(store, places.live), Notices())
    page.app = page_app(services, owner, report, reach)
    await pending.read()
    await page.sign_in()
    async with anyio.create_task_group() as group:
        group.start_soon(pending.follow, news.notify)
        yield page
        group.cancel_scope.cancel()
    await store.aclose()

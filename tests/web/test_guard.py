"""Requests that must not reach the page: of other sites, other hosts, other users, and processes of agents."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import anyio
import pytest
from starlette.routing import Mount, Route
from tests.web.page_client import FORM, HOST, OWN, PORT, Page, opened_page

from callboard.adapters.processes.connection_owner import ConnectionOwner, owner_of, socket_inode
from callboard.web.access import Access, TooManyTries
from callboard.web.guard import NEW_SESSION

TOOL = ConnectionOwner("tool", "it was started by a tool", 42, "curl")
UNKNOWN = ConnectionOwner("unknown", "it has a system call filter, as the commands of tools", 43, "firefox")
NAMES = {"session": "s1", "request": "req_1", "agent": "lead", "schedule": "cron_1", "worktree": "parser"}
LINKS = {("POST", "/link"), ("POST", "/link/answer")}
"""Routes of answer links, whose forms have the secret of the link in place of that of a browser."""
OPEN = {("GET", "/"), ("GET", "/link"), ("POST", "/sign-in"), ("GET", "/static/page.css"), *LINKS}
"""Routes that need no cookie. Without a secret, they show nothing of a session."""
ENTRIES = ("/", "/link")
"""Pages that a link from elsewhere may open."""


def routes_of(page: Page) -> list[tuple[str, str]]:
    """Return the method and an example path of every route."""
    found: list[tuple[str, str]] = []
    for route in page.app._app.routes:
        if isinstance(route, Mount):
            found.append(("GET", f"{route.path}/page.css"))
            continue
        assert isinstance(route, Route)
        methods = (route.methods or set()) - {"HEAD"}
        found += [(method, route.path.format(**NAMES)) for method in methods]
    return found


ATTACKS: Mapping[str, tuple[dict[str, str], set[int]]] = {
    "a foreign origin": ({**OWN, "origin": "https://evil.example"}, {403}),
    "an opaque origin": ({**OWN, "origin": "null"}, {403}),
    "another port's origin": ({**OWN, "origin": "http://127.0.0.1:8000"}, {403}),
    "a cross-site request": ({"host": HOST, "sec-fetch-site": "cross-site"}, {403}),
    "a form of another site": ({"host": HOST, "origin": "https://a.example", "sec-fetch-site": "cross-site"}, {403}),
    "a request of the same site": ({"host": HOST, "sec-fetch-site": "same-site"}, {403}),
    "a foreign host": ({**OWN, "host": f"evil.example:{PORT}", "origin": f"http://evil.example:{PORT}"}, {421}),
    "a host without the port": ({**OWN, "host": "127.0.0.1", "origin": "http://127.0.0.1"}, {421}),
}


@pytest.mark.anyio
@pytest.mark.parametrize("name", ATTACKS)
async def test_no_route_answers_another_page(name: str) -> None:
    headers, statuses = ATTACKS[name]
    async with opened_page() as page:
        for method, path in routes_of(page):
            if method == "GET" and path in ENTRIES and "site" in name:
                continue
            response = await page.send(method, path, {**headers, "content-type": FORM})
            assert response.status in statuses, (method, path, response.text)


@pytest.mark.anyio
async def test_no_route_but_the_sign_in_answers_without_a_cookie() -> None:
    async with opened_page() as page:
        page.cookie = "wrong"
        for method, path in routes_of(page):
            response = await page.send(method, path, {**OWN, "content-type": FORM})
            expected = {200, 403} if (method, path) in OPEN else {401}
            assert response.status in expected, (method, path)
            assert "Sign in" in response.text or "sign in" in response.text or (method, path) in OPEN


@pytest.mark.anyio
async def test_a_change_is_a_form_with_the_secret_of_its_browser() -> None:
    async with opened_page() as page:
        changes = [path for method, path in routes_of(page) if method == "POST" and path != "/sign-in"]
        assert changes
        for path in changes:
            for kind in ("text/plain", "application/json", "multipart/form-data; boundary=x", ""):
                status = 400 if path == NEW_SESSION and kind.startswith("multipart") else 415
                assert (await page.post(path, kind=kind)).status == status, (path, kind)
            assert (await page.post(path, {"form_token": "guess"})).status == 403
            assert (await page.send("POST", path, {**OWN, "content-type": FORM})).status == 403
            bare = {"host": HOST}
            assert (await page.post(path, headers=bare)).status == 403, "nothing shows that the page sent it"
            assert (await page.send("PUT", path, OWN)).status == 405
        large = await page.post(changes[0], {"text": "x" * 1_000_001})
        assert large.status == 413


@pytest.mark.anyio
async def test_a_stream_proves_that_the_page_asks_for_it() -> None:
    async with opened_page() as page:
        streams = [path for _, path in routes_of(page) if path.endswith("/events")]
        assert streams
        for path in streams:
            assert (await page.get(path, {"host": HOST})).status == 403
            assert (await page.get(path, {"host": HOST, "sec-fetch-site": "none"})).status == 403


@pytest.mark.anyio
async def test_every_request_of_a_tools_process_is_refused_and_reported() -> None:
    async with opened_page() as page:
        page.owner = TOOL
        for method, path in routes_of(page):
            response = await page.send(method, path, {**OWN, "content-type": FORM})
            assert (response.status, "an agent's tool" in response.text) == (403, True), (method, path)
            assert page.refusals[-1].path == path
            assert page.refusals[-1].owner == TOOL


@pytest.mark.anyio
async def test_a_change_of_an_unknown_process_needs_the_code() -> None:
    async with opened_page() as page:
        page.owner = UNKNOWN
        assert (await page.get("/waiting")).status == 200
        without = await page.post("/sign-out")
        assert (without.status, "type the code" in without.text) == (403, True)
        assert (await page.post("/sign-out", {"code": "AAAA-AAAA"})).status == 403
        assert (await page.post("/sign-out", {"code": page.access.code.lower().replace("-", " ")})).status == 303
        assert (await page.get("/waiting")).status == 401


@pytest.mark.anyio
async def test_a_token_signs_in_one_browser_and_wrong_ones_are_counted() -> None:
    async with opened_page() as page:
        first = page.access.token
        await page.sign_in()
        used = await page.post("/sign-in", {"token": first})
        assert (used.status, "was used" in used.text) == (403, True)
        for _ in range(9):
            await page.post("/sign-in", {"token": "guess"})
        limited = await page.post("/sign-in", {"token": page.access.token})
        assert limited.status == 429
        assert int(limited.headers["retry-after"]) > 0


def test_wrong_secrets_are_forgotten_after_a_minute() -> None:
    now = 0.0
    access = Access(lambda: None, clock=lambda: now)
    assert [access.sign_in("guess") for _ in range(10)] == [None] * 10
    with pytest.raises(TooManyTries):
        access.is_code(access.code)
    now = 61.0
    assert access.is_code(access.code)


@pytest.mark.anyio
async def test_every_response_keeps_scripts_frames_and_other_pages_out() -> None:
    async with opened_page() as page:
        for path in ("/", "/waiting", "/nowhere", "/static/page.js", "/waiting/events"):
            headers = (await page.get(path)).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cache-control"] == ("no-cache" if path.startswith("/static/") else "no-store")
        cookie = (await page.post("/sign-in", {"token": page.access.token})).headers["set-cookie"]
        assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))


@pytest.mark.anyio
async def test_scripts_run_in_order_before_the_document_is_complete() -> None:
    """A deferred htmx begins before its extension for streams is there, if that file arrives later."""
    async with opened_page() as page:
        for path in ("/waiting", "/sessions"):
            text = (await page.get(path)).text
            scripts = re.findall(r"<script[^>]*>", text)
            assert [re.sub(r".*/|[^a-z].*", "", script) for script in scripts] == ["htmx", "hx", "page"]
            assert not re.search("defer|async", "".join(scripts))
            assert text.index("</main>") < text.index("<script")


@pytest.mark.anyio
async def test_nothing_but_http_and_this_machine_is_served() -> None:
    async with opened_page() as page:
        sent: list[object] = []

        async def collect(message: object) -> None:
            sent.append(message)

        await page.app({"type": "websocket", "path": "/waiting"}, None, collect)
        assert sent == []


# The process behind a connection

CONNECT = "import socket; socket.create_connection(('127.0.0.1', {port})).recv(1)"
MARKED = """
import os, sys
from callboard.adapters.processes.tool_mark import mark_process
mark_process()
os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
"""


def peer_of(argv: list[str], port_of: socket.socket, env: Mapping[str, str]) -> ConnectionOwner:
    """Start a process that connects, and return what is known about it."""
    with subprocess.Popen(argv, env=dict(env)) as process:
        connection, client = port_of.accept()
        with connection:
            owner = owner_of(socket_inode(client[:2], port_of.getsockname()[:2]))
        process.wait()
    assert owner.pid in (process.pid, 0)
    return owner


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="this system has no /proc/net/tcp")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_process_of_a_connection_is_a_tools_a_persons_or_in_doubt(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    with listening:
        code = CONNECT.format(port=listening.getsockname()[1]).replace("127.0.0.1", host)
        plain = {name: value for name, value in os.environ.items() if name != "CALLBOARD_TOOL"}
        command = [sys.executable, "-S", "-c", code]
        assert peer_of(command, listening, plain).origin == "person"
        told = peer_of(command, listening, {**plain, "CALLBOARD_TOOL": "1"})
        assert (told.origin, "started by a tool" in told.reason) == ("tool", True)
        hidden = [sys.executable, "-c", MARKED, code]
        doubtful = peer_of(hidden, listening, plain)
        assert doubtful.origin == "unknown", "a command that hides its mark still has the filter"
    assert owner_of("").origin == "unknown"
    assert owner_of("999999999999").origin == "unknown"


def test_a_mapped_address_is_found_too() -> None:
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listening:
        port = listening.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as made:
            assert socket_inode(made.getsockname(), ("127.0.0.1", port))
            assert owner_of(socket_inode(made.getsockname(), ("127.0.0.1", port))).pid == os.getpid()


def test_the_loops_of_a_page_end() -> None:
    """A page that is closed leaves no task behind."""

    async def opened() -> None:
        with anyio.fail_after(60):
            async with opened_page() as page:
                assert (await page.get("/waiting/events")).status == 200

    anyio.run(opened)

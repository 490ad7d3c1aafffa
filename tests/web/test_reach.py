"""The page for other machines: TLS, a declared proxy, users with passwords, and what stays refused."""

from __future__ import annotations

import hashlib
import http.client
import io
import re
import ssl
import subprocess
from pathlib import Path
from unittest import mock
from urllib.parse import urlencode

import pytest
from tests.cli.commands.command import Command
from tests.cli.commands.pending_requests import create_session_with, stored_request
from tests.cli.views.plan_rows import plan
from tests.web.page_client import PORT, Page, opened_page
from tests.web.page_process import serving
from tests.web.test_answers import PERMISSION, store_of, stored
from tests.web.test_guard import TOOL, routes_of

from callboard.adapters.processes import tool_ancestry
from callboard.adapters.processes.connection_owner import ConnectionOwner
from callboard.types.errors import SettingsError
from callboard.types.personal_settings import ProxySetting, WebSettings
from callboard.web.app import PageOptions
from callboard.web.passwords import check_hash, is_password, password_hash
from callboard.web.peer import PROXY_HEADER, Reach

HASH = password_hash("correct horse battery")
NAME = "agents.example.org"
SECRET = "s" * 43
DIGEST = hashlib.sha256(SECRET.encode()).hexdigest()
NOBODY = ConnectionOwner("unknown", "the process of the connection cannot be found")
REMOTE = {"host": f"{NAME}:{PORT}", "sec-fetch-site": "same-origin", "origin": f"https://{NAME}:{PORT}"}
PROXIED = {"host": NAME, "sec-fetch-site": "same-origin", "origin": f"https://{NAME}", PROXY_HEADER: SECRET}


def from_elsewhere(page: Page, *, tls: bool = True) -> Page:
    """Let the next requests come from another machine."""
    page.client = "192.0.2.7"
    page.server = "192.0.2.1"
    page.scheme = "https" if tls else "http"
    page.owner = NOBODY
    page.cookie = ""
    return page


@pytest.mark.anyio
async def test_a_user_signs_in_from_another_machine_and_is_named_in_the_answer() -> None:
    reach = Reach((NAME,), beyond=True)
    async with opened_page(store=await store_of(PERMISSION), reach=reach, users={"ada": HASH}) as page:
        from_elsewhere(page)
        assert "Name" in (await page.get("/", REMOTE)).text
        token = await page.post("/sign-in", {"token": page.access.token}, REMOTE)
        assert (token.status, "of its own machine" in token.text) == (403, True)
        for form in ({"user": "ada", "password": "guess"}, {"user": "bob", "password": "correct horse battery"}):
            assert (await page.post("/sign-in", form, REMOTE)).status == 403
        signed_in = await page.post("/sign-in", {"user": "ada", "password": "correct horse battery"}, REMOTE)
        assert signed_in.status == 303
        assert {"HttpOnly", "SameSite=strict", "Secure"} <= set(signed_in.headers["set-cookie"].split("; "))
        page.cookie = signed_in.headers["set-cookie"].partition("=")[2].partition(";")[0]
        assert 'name="code"' not in (await page.get("/waiting", REMOTE)).text, "no process can be looked up"
        form = {"choice": "y", "digest": PERMISSION.digest}
        assert (await page.post("/sessions/s1/requests/req_1", form, REMOTE)).status == 303
        assert (await stored(page)).history[-1].user == "ada"


@pytest.mark.anyio
async def test_no_route_answers_another_machine_without_tls_a_known_name_and_a_sign_in() -> None:
    async with opened_page(reach=Reach((NAME,), beyond=True), users={"ada": HASH}) as page:
        for method, path in routes_of(from_elsewhere(page)):
            foreign = {**REMOTE, "host": "evil.example", "origin": "https://evil.example"}
            assert (await page.send(method, path, foreign)).status == 421, path
            plain = {**REMOTE, "origin": f"http://{NAME}:{PORT}"}
            assert (await page.send(method, path, plain)).status == 403, path
        from_elsewhere(page, tls=False)
        for method, path in routes_of(page):
            assert (await page.send(method, path, REMOTE)).status == 403, path
    async with opened_page() as page:
        for method, path in routes_of(from_elsewhere(page)):
            assert (await page.send(method, path, REMOTE)).status == 403, path


@pytest.mark.anyio
async def test_a_command_of_an_agent_is_found_behind_every_address_of_the_machine() -> None:
    async with opened_page(reach=Reach((NAME,), beyond=True), users={"ada": HASH}) as page:
        from_elsewhere(page)
        page.owner = TOOL
        for headers in (REMOTE, {**PROXIED, "host": f"{NAME}:{PORT}", "origin": REMOTE["origin"]}):
            assert "an agent's tool" in (await page.get("/waiting", headers)).text
        assert len(page.refusals) == 2
        page.owner = ConnectionOwner("unknown", "it has a filter", 43, "curl")
        signed_in = await page.post("/sign-in", {"user": "ada", "password": "correct horse battery"}, REMOTE)
        page.cookie = signed_in.headers["set-cookie"].partition("=")[2].partition(";")[0]
        assert "type the code" in (await page.post("/sign-out", headers=REMOTE)).text, "it is a process of this machine"


@pytest.mark.anyio
async def test_wrong_passwords_are_counted_for_each_machine() -> None:
    async with opened_page(reach=Reach((NAME,), beyond=True), users={"ada": HASH}) as page:
        from_elsewhere(page)
        for _ in range(10):
            page.access.tries_of("192.0.2.7").count_wrong()
        form = {"user": "ada", "password": "correct horse battery"}
        assert (await page.post("/sign-in", form, REMOTE)).status == 429
        page.client = "192.0.2.8"
        assert (await page.post("/sign-in", form, REMOTE)).status == 303


@pytest.mark.anyio
async def test_a_proxy_proves_itself_by_its_secret_and_names_the_user() -> None:
    proxy = ProxySetting(secret=DIGEST, user_header="X-Remote-User")
    reach = Reach((NAME,), proxy=proxy)
    async with opened_page(store=await store_of(PERMISSION), reach=reach) as page:
        page.cookie = ""
        page.owner = NOBODY
        named = {**PROXIED, "x-remote-user": "Ada"}
        for wrong in ({**named, PROXY_HEADER: "guess"}, {**named, PROXY_HEADER: DIGEST}):
            assert (await page.get("/waiting", wrong)).status == 403
        assert (await page.get("/waiting", PROXIED)).status == 401, "it names nobody"
        bare = {name: text for name, text in named.items() if name != PROXY_HEADER}
        assert (await page.get("/waiting", bare)).status == 403, "an agent's command that lacks the secret"
        assert (await page.get("/waiting", {**bare, "origin": f"http://{NAME}"})).status == 401
        page.client = "192.0.2.9"
        assert (await page.get("/waiting", named)).status == 403, "another machine than the proxy"
        page.client = "127.0.0.1"
        shown = await page.get("/waiting", named)
        token = re.search(r'name="form_token" value="([^"]+)"', shown.text)
        assert token is not None
        form = {"choice": "y", "digest": PERMISSION.digest}
        assert (await page.post("/sessions/s1/requests/req_1", form, named)).status == 403, "a form needs its secret"
        answered = await page.post("/sessions/s1/requests/req_1", {**form, "form_token": token[1]}, named)
        assert answered.status == 303
        assert (await stored(page)).history[-1].user == "Ada"
        other = {**named, "x-remote-user": "Bob"}
        assert (await page.post("/sign-out", {"form_token": token[1]}, other)).status == 403, "the secret is Ada's"


@pytest.mark.parametrize(
    ("web", "words"),
    [
        ({}, "reached by other machines"),
        ({"certificate": "a.pem"}, "belong together"),
        ({"certificate": "a.pem", "key": "b.pem"}, "nobody can sign in"),
        ({"proxy": {"secret": DIGEST}}, "nobody can sign in"),
        ({"proxy": {"secret": DIGEST, "user_header": "X-User"}}, "web.hosts"),
        ({"users": {"ada": "secret"}}, "not a hash"),
    ],
)
def test_an_address_for_other_machines_needs_tls_or_a_proxy_and_a_sign_in(web: dict[str, object], words: str) -> None:
    options = PageOptions("0.0.0.0", 0, WebSettings.model_validate(web))
    with pytest.raises(SettingsError, match=words):
        options.check()


def test_a_hash_is_of_its_password_only() -> None:
    assert is_password("correct horse battery", HASH)
    assert not is_password("correct horse", HASH)
    assert not is_password("correct horse battery", None)
    assert password_hash("correct horse battery") != HASH
    for wrong in ("", "scrypt$1$8$1$x$x", HASH.replace("scrypt", "md5")):
        with pytest.raises(SettingsError, match=r"web\.users\.ada"):
            check_hash("ada", wrong)


@pytest.mark.skipif(bool(tool_ancestry.started_by_tool()), reason="these tests run in a tool's process")
def test_the_page_speaks_tls_and_takes_a_password(tmp_path: Path) -> None:
    command = Command(tmp_path)
    create_session_with(command, plan())
    certificate = tmp_path / "cert.pem"
    key = tmp_path / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "2"]
    names = ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    try:
        subprocess.run([*made, *names], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("this machine has no openssl")
    with mock.patch("sys.stdin", io.StringIO("short\n")):
        short = command.run_inline("web", "--add-user", "ada")
    assert (short.code, "at least 12" in short.err) == (2, True)
    with mock.patch("sys.stdin", io.StringIO("correct horse battery\n")):
        added = command.run_inline("web", "--add-user", "ada")
    assert (added.code, "ada can sign in" in added.out) == (0, True), added.err
    for name, value in (("certificate", certificate), ("key", key), ("hosts", "[localhost]")):
        assert command.run_inline("config", "set", "-g", f"web.{name}", str(value)).code == 0
    assert "scrypt" not in command.run_inline("config", "list").out
    with serving(command, "--bind", "0.0.0.0") as page:
        assert page.address.startswith("https://localhost:")
        trusted = ssl.create_default_context(cafile=str(certificate))
        connection = http.client.HTTPSConnection("localhost", page.port, timeout=60, context=trusted)
        headers = {"Origin": page.address, "Content-Type": "application/x-www-form-urlencoded"}
        form = {"user": "ada", "password": "correct horse battery"}
        connection.request("POST", "/sign-in", urlencode(form), headers)
        response = connection.getresponse()
        response.read()
        assert response.status == 303
        cookie = (response.headers["Set-Cookie"] or "").partition(";")[0]
        connection.request("GET", "/waiting", headers={"Cookie": cookie})
        response = connection.getresponse()
        assert (response.status, b"approve a plan" in response.read()) == (200, True)
        connection.close()
    assert stored_request(command).status == "pending"

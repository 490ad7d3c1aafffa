"""Fetch of one page for `web_fetch`, in a separate process, so that a server or a page that never ends can be ended.

Standard input: `{"url", "private", "most", "agent"}`. Standard output: the page as `{"url", "status", "type", "text",
"cut"}`, `{"redirect", "status"}` for a redirect to another host, or `{"refused"}` with the reason. `private`: the host
may be of this machine or its network.

The name of the host is looked up once for each request, and the connection goes to the checked address. Nothing of the
user is sent: no cookies, no credentials. No proxy is used.
"""
# ruff: noqa: PTH100, PTH120 - importing pathlib takes longer

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import sys
import zlib
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit

from callboard.types.late_pattern import late_pattern

if __name__ == "__main__":  # a package of that name without its `__init__`, which would import unneeded modules
    package = type(sys)("callboard")
    package.__path__ = [os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))]
    sys.modules["callboard"] = package

from bs4 import BeautifulSoup
from markdownify import MarkdownConverter

from callboard.adapters.system import release
from callboard.core.permissions.hosts import address_of, is_loopback, is_public

REDIRECTS = 10
WAIT = 15.0
"""Most redirects within a host, and most seconds of silence."""
_MOVED = frozenset({301, 302, 303, 307, 308})
_HTML = frozenset({"text/html", "application/xhtml+xml"})
_TEXT = late_pattern(
    r"text/.*|application/(.*\+)?(json|xml|yaml|toml|javascript|x-javascript|x-yaml|ld\+json|x-ndjson)"
)
_UNSEEN = ("script", "style", "noscript", "template", "svg", "iframe", "object", "head")
_AROUND = ("nav", "header", "footer", "aside")
_BLANK = late_pattern(r"\n\s*\n\s*\n+")
_SHORT = 200
"""Characters below which the part of a page that is marked as its main part does not count as such."""


class Refused(Exception):
    """The page is not fetched or shown. The text has the reason."""


def fetch(url: str, *, private: bool, most: int, agent: str) -> dict[str, Any]:
    """Return the page, or its redirect to another host. Raises `Refused`."""
    parts = check_address(url, private=private)
    for _ in range(REDIRECTS + 1):
        response = request(parts, private=private, agent=agent)
        location = response.getheader("Location")
        if response.status not in _MOVED or not location:
            return page(response, parts.geturl(), most)
        target = urljoin(parts.geturl(), location)
        following = check_address(target, private=private)
        if origin(following) != origin(parts):
            return {"redirect": target, "status": response.status}
        parts = following
    raise Refused(f"it redirects more than {REDIRECTS} times")


def origin(parts: SplitResult) -> tuple[str, int]:
    """Return host and port of an address."""
    return (parts.hostname or "").lower().rstrip("."), parts.port or (443 if parts.scheme == "https" else 80)


def check_address(url: str, *, private: bool) -> SplitResult:
    """Return the parts of an address, with https in place of http. Raises `Refused`.

    Only an explicitly allowed host of this machine keeps http.
    """
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
        parts = urlsplit("")
    if not usable:
        raise Refused(f"{url[:200]!r} is not an http or https address")
    if parts.username is not None or parts.password is not None:
        raise Refused("an address with a user name or a password is not fetched")
    if parts.scheme == "http" and not (private and is_loopback(parts.hostname or "")):
        netloc = parts.netloc.removesuffix(":80")
        parts = parts._replace(scheme="https", netloc=netloc)
    return parts._replace(fragment="")


def request(parts: SplitResult, *, private: bool, agent: str) -> http.client.HTTPResponse:
    """Send the request to a checked address, and return the beginning of the response. Raises `Refused`."""
    host, port = origin(parts)
    try:
        ascii_host = host if ":" in host else host.encode("idna").decode()
    except UnicodeError as wrong:
        raise Refused(f"{host} is not the name of a host") from wrong
    connected = connect(ascii_host, port, private=private)
    tls = parts.scheme == "https"
    connection = http.client.HTTPConnection(ascii_host, port)
    try:
        connection.sock = (
            ssl.create_default_context().wrap_socket(connected, server_hostname=ascii_host) if tls else connected
        )
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        named = f"[{ascii_host}]" if ":" in ascii_host else ascii_host
        headers = {
            "Host": named if port == (443 if tls else 80) else f"{named}:{port}",
            "User-Agent": agent,
            "Accept": "text/markdown, text/html;q=0.9, text/plain;q=0.8, application/json;q=0.8, */*;q=0.1",
            "Accept-Encoding": "identity",
            "Connection": "close",
        }
        connection.request("GET", target.encode("utf-8").decode("latin-1") if not target.isascii() else target,
                           headers=headers)  # fmt: skip
        return connection.getresponse()
    except ssl.SSLError as wrong:
        raise Refused(f"the connection to {host} is not secure: {wrong.reason or wrong}") from wrong
    except (OSError, http.client.HTTPException, ValueError) as wrong:
        raise Refused(f"{host} did not answer: {wrong or type(wrong).__name__}") from wrong


def connect(host: str, port: int, *, private: bool) -> socket.socket:
    """Return a connection to the first reachable address that is allowed. Raises `Refused`."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as wrong:
        raise Refused(f"{host} was not found: {wrong}") from wrong
    addresses = dict.fromkeys(str(place[0]) for *_, place in found)
    allowed = [text for text in addresses if (known := address_of(text)) and (private or is_public(known))]
    if not allowed:
        rule = f"WebFetch(domain:{host})"
        raise Refused(
            f"{host} leads to an address of this machine or its network: only an allow rule {rule} permits it"
        )
    failure: OSError | None = None
    for address in allowed:
        try:
            return socket.create_connection((address, port), timeout=WAIT)
        except OSError as wrong:
            failure = wrong
    raise Refused(f"{host} cannot be reached: {failure}")


def page(response: http.client.HTTPResponse, url: str, most: int) -> dict[str, Any]:
    """Return the text of a response. Raises `Refused` for content that is not text."""
    kind = response.headers.get_content_type() if response.getheader("Content-Type") else ""
    try:
        body = response.read(most + 1)
    except (OSError, http.client.HTTPException) as wrong:
        raise Refused(f"the connection ended before the page: {wrong or type(wrong).__name__}") from wrong
    cut = len(body) > most
    body = unpack_body(body[:most], response.getheader("Content-Encoding", ""), most)
    if not kind:
        kind = "text/html" if body[:1_000].lstrip().lower().startswith((b"<!doctype html", b"<html")) else "text/plain"
    if not _TEXT.fullmatch(kind) and kind not in _HTML:
        raise Refused(f"it is {kind} ({response.getheader('Content-Length', 'an unknown number of')} bytes), not text")
    charset = response.headers.get_content_charset()
    if kind in _HTML:
        text = markdown(body, url, charset)
    elif b"\0" in body[:1_000]:
        raise Refused(f"it is called {kind}, but is not text")
    else:
        text = decode_body(body, charset)
    return {"url": url, "status": response.status, "type": kind, "text": text, "cut": cut}


def unpack_body(body: bytes, encoding: str, most: int) -> bytes:
    """Return a body that a server compressed although it was not asked to, at most `most` bytes. Raises `Refused`."""
    if encoding.strip().lower() in ("", "identity"):
        return body
    if encoding.strip().lower() not in ("gzip", "deflate"):
        raise Refused(f"it is compressed as {encoding}, which was not asked for")
    try:
        return zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(body, most)
    except zlib.error as wrong:
        raise Refused(f"it cannot be decompressed: {wrong}") from wrong


def decode_body(body: bytes, charset: str | None) -> str:
    """Return the text of a body."""
    try:
        return body.decode(charset or "utf-8", "replace")
    except LookupError:
        return body.decode("utf-8", "replace")


def markdown(body: bytes, url: str, charset: str | None) -> str:
    """Return the readable text of an HTML page as markdown: its main part, or all without what is around it."""
    soup = BeautifulSoup(decode_body(body, charset) if charset else body, "html.parser")
    title = soup.title.get_text(" ", strip=True) if soup.title else ""
    for tag in soup.find_all(_UNSEEN):
        tag.decompose()
    for link in soup.find_all("a", href=True):
        link["href"] = urljoin(url, str(link["href"]))
    main = soup.find("main") or soup.find("article")
    text = _converted(main) if main is not None else ""
    if len(text) < _SHORT:
        for tag in soup.find_all(_AROUND):
            tag.decompose()
        text = _converted(soup.body or soup) or text
    head = "" if not title or title in text[:_SHORT] else f"# {title}\n\n"
    return head + text


def _converted(part: Any) -> str:
    try:
        text = MarkdownConverter(heading_style="ATX", strip=["img"]).convert_soup(part)
    except RecursionError:  # a page that is nested too deep: its text without structure
        text = part.get_text("\n", strip=True)
    return _BLANK.sub("\n\n", text).strip()


def main() -> int:
    """Fetch one page. Return 3 after an upgrade of Callboard."""
    if differs := release.parent_differs():
        sys.stderr.write(differs)
        return 3
    order = json.load(sys.stdin)
    try:
        answer = fetch(order["url"], private=order["private"], most=order["most"], agent=order["agent"])
    except Refused as refusal:
        answer = {"refused": str(refusal)}
    sys.stdout.write(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())

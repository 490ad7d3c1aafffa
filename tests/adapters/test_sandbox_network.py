"""The way out of level 3: exactly the named hosts, by what was looked up and checked, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import anyio
import pytest
from tests.adapters.cage import Cage, build, machine, need

from callboard.adapters.launcher import ShellLauncher
from callboard.adapters.sandbox.ground import find_ground
from callboard.adapters.sandbox.proxy import Proxy, Refused, Target, find_address, is_allowed, read_head
from callboard.adapters.sandbox.sandbox import Choice, Sandbox
from callboard.ports.tool import Finished

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize(
    ("host", "port", "allowed", "wanted"),
    [
        ("example.org", 443, ["example.org"], True),
        ("Example.ORG.", 80, ["example.org"], True),
        ("example.org", 22, ["example.org"], False),
        ("example.org", 8443, ["example.org:8443"], True),
        ("example.org", 443, ["example.org:8443"], False),
        ("sub.example.org", 443, ["example.org"], False),
        ("example.org.evil.net", 443, ["example.org"], False),
        ("notexample.org", 443, ["example.org"], False),
        ("127.0.0.1", 80, ["example.org"], False),
        ("127.0.0.1", 81, ["127.0.0.1:81"], True),
        ("::1", 81, ["[::1]:81"], True),
        ("example.org", 443, ["*.org"], False),
        ("example.org", 443, [], False),
    ],
)
def test_exactly_the_named_hosts_are_let_through(host: str, port: int, allowed: list[str], wanted: bool) -> None:
    assert is_allowed(host, port, allowed) == wanted


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1", "2130706433", "0x7f.1", "::1", "10.0.0.1", "169.254.169.254"]
)
async def test_addresses_and_names_of_this_machine_are_refused(host: str) -> None:
    allowed = ["localhost"] if host == "localhost" else ["example.org"]
    with pytest.raises(Refused):
        await find_address(Target(host, 80), allowed)


async def test_an_address_that_was_named_is_connected_to_as_it_is() -> None:
    assert await find_address(Target("127.0.0.1", 81), ["127.0.0.1:81"]) == "127.0.0.1"


@pytest.mark.parametrize(
    "head",
    [b"GET / HTTP/1.1", b"GET https://example.org/ HTTP/1.1", b"GET http://u:p@example.org/ HTTP/1.1", b"\xff", b""],
)
def test_what_is_no_request_to_a_proxy_is_refused(head: bytes) -> None:
    with pytest.raises(Refused):
        read_head(head)


def test_a_request_goes_on_to_the_host_that_was_checked() -> None:
    """A `Host` of the program's own choosing would lead a server of many names elsewhere."""
    head = b"GET http://example.org:8080/a?b HTTP/1.1\r\nHost: other.net\r\nProxy-Authorization: x\r\nAccept: */*"
    target = read_head(head)
    assert (target.host, target.port) == ("example.org", 8080)
    lines = target.first.decode().split("\r\n")
    assert lines[:3] == ["GET /a?b HTTP/1.1", "Host: example.org:8080", "Accept: */*"]
    assert "other.net" not in target.first.decode()


class Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"from outside")

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the test looks at the answers."""


@pytest.fixture
def server() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), Answer) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield serving.server_port
        serving.shutdown()


async def test_a_command_reaches_what_was_named_and_nothing_else(tmp_path: Path, server: int) -> None:
    need(3)
    build(tmp_path)
    cage = Cage(tmp_path, 3)
    hosts = (f"127.0.0.1:{server}",)
    ground = find_ground(cage.workspace, cage.launcher.environment, locks=cage.state / "locks")
    sandbox = Sandbox(Choice(3), machine(), ground, hosts=hosts, way_out=f"{tmp_path}/out")
    launcher = ShellLauncher(cage.workspace, cage.launcher.environment, (), sandbox)
    get = (
        "import sys, urllib.request, urllib.error\n"
        "for port in sys.argv[1:]:\n"
        "    try: print(urllib.request.urlopen(f'http://127.0.0.1:{port}/').read().decode())\n"
        "    except urllib.error.HTTPError as refused: print(refused.code, refused.read().decode().strip())\n"
    )
    (cage.workspace / "get.py").write_text(get)
    past = f"exec 3<>/dev/tcp/127.0.0.1/{server}"
    command = f"NO_PROXY= no_proxy= python get.py {server} 1; ({past}) && echo PAST; (sleep 300 &); exit 4"
    ended: list[Finished] = []
    async with anyio.create_task_group() as group:
        await group.start(Proxy(sandbox.way_out, hosts).serve)
        ended.append(await launcher.run(command, cage.workspace, 60, tmp_path / "call.out"))
        group.cancel_scope.cancel()
    (ran,) = ended
    assert "PAST" not in ran.output
    lines = ran.output.splitlines()
    assert lines[:2] == ["from outside", "403 callboard: 127.0.0.1:1 is not in sandbox.network.allow"], ran.output
    assert "were ended" in ran.output
    assert ran.exit_code == 4
    assert launcher.network

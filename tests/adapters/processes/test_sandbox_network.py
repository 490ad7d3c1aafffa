"""Level 3 allows exactly the named hosts, at the addresses that were looked up and checked, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from shutil import which

import anyio
import pytest
from tests.adapters.processes.cage import Cage, create_folders, machine, require_level

from callboard.adapters.processes.launcher import ShellLauncher
from callboard.adapters.processes.sandbox.machine import Machine
from callboard.adapters.processes.sandbox.proxy import ProxyRefused, Target, find_address, is_allowed, read_head
from callboard.adapters.processes.sandbox.sandbox import NetworkReach, Sandbox, SandboxLevel, choose, explain
from callboard.adapters.processes.sandbox.sandbox_paths import find_sandbox_paths
from callboard.ports.tool import Finished
from callboard.types.records import HostGrant

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
    with pytest.raises(ProxyRefused):
        await find_address(Target(host, 80), allowed)


async def test_an_address_that_was_named_is_connected_to_as_it_is() -> None:
    assert await find_address(Target("127.0.0.1", 81), ["127.0.0.1:81"]) == "127.0.0.1"


@pytest.mark.parametrize(
    "head",
    [b"GET / HTTP/1.1", b"GET https://example.org/ HTTP/1.1", b"GET http://u:p@example.org/ HTTP/1.1", b"\xff", b""],
)
def test_what_is_no_request_to_a_proxy_is_refused(head: bytes) -> None:
    with pytest.raises(ProxyRefused):
        read_head(head)


def test_a_request_goes_on_to_the_host_that_was_checked() -> None:
    """The program could otherwise choose a `Host` that leads a server with many names to another site."""
    head = b"GET http://example.org:8080/a?b HTTP/1.1\r\nHost: other.net\r\nProxy-Authorization: x\r\nAccept: */*"
    target = read_head(head)
    assert (target.host, target.port) == ("example.org", 8080)
    lines = target.first.decode().split("\r\n")
    assert lines[:3] == ["GET /a?b HTTP/1.1", "Host: example.org:8080", "Accept: */*"]
    assert "other.net" not in target.first.decode()


class AnswerHandler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"from outside")

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the test checks the answers."""


@pytest.fixture
def server() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), AnswerHandler) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield serving.server_port
        serving.shutdown()


class OutsideServer:
    """A launcher whose proxies are served, and a server on this machine outside the sandbox."""

    def __init__(self, base: Path, level: int, port: int, hosts: tuple[str, ...] = ()) -> None:
        create_folders(base)
        self.cage, self.port = Cage(base, level), port
        sandbox_paths = find_sandbox_paths(
            self.cage.workspace, self.cage.launcher.environment, locks=self.cage.state / "locks"
        )
        sandbox = Sandbox(SandboxLevel(level), machine(), sandbox_paths, hosts=hosts)
        self.launcher = ShellLauncher(self.cage.workspace, self.cage.launcher.environment, (), sandbox)

    async def run(self, command: str, *hosts: str) -> Finished:
        """Run a command that is approved with these hosts."""
        ended: list[Finished] = []
        keep = self.cage.base / "call.out"
        grants = tuple(HostGrant(host=host) for host in hosts)
        async with anyio.create_task_group() as group:
            await group.start(self.launcher.ways_out.serve)
            ended.append(await self.launcher.run(command, self.cage.workspace, timeout=60, keep=keep, grants=grants))
            group.cancel_scope.cancel()
        return ended[0]


async def test_a_command_reaches_what_was_named_and_nothing_else(tmp_path: Path, server: int) -> None:
    require_level(3)
    far = OutsideServer(tmp_path, 3, server, (f"127.0.0.1:{server}",))
    get = (
        "import sys, urllib.request, urllib.error\n"
        "for port in sys.argv[1:]:\n"
        "    try: print(urllib.request.urlopen(f'http://127.0.0.1:{port}/').read().decode())\n"
        "    except urllib.error.HTTPError as refused: print(refused.code, refused.read().decode().strip())\n"
    )
    (far.cage.workspace / "get.py").write_text(get)
    past = "exec 3<>/dev/tcp/127.0.0.1/1"
    ran = await far.run(f"NO_PROXY= no_proxy= python get.py {server} 1; ({past}) && echo PAST; (sleep 300 &); exit 4")
    assert "PAST" not in ran.output
    lines = ran.output.splitlines()
    assert lines[:2] == ["from outside", "403 callboard: 127.0.0.1:1 is not in sandbox.network.allow"], ran.output
    assert "were ended" in ran.output
    assert ran.exit_code == 4
    assert far.launcher.network


@pytest.mark.slow(keep=3)
@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize(
    ("host", "reached"), [("", False), ("*", True), ("127.0.0.1:PORT", True), ("localhost:PORT", True)]
)
async def test_a_command_has_the_network_that_it_was_approved_with(
    tmp_path: Path, server: int, level: int, host: str, reached: bool
) -> None:
    require_level(level)
    far = OutsideServer(tmp_path, level, server)
    hosts = (host.replace("PORT", str(server)),) if host else ()
    ran = await far.run(f"curl -sS http://127.0.0.1:{server}/", *hosts)
    assert (ran.exit_code == 0, "from outside" in ran.output) == (reached, reached), ran.output
    assert ("The sandbox gave this command no network" in ran.output) != reached
    assert ran.report == ran.output[ran.output.find("[The sandbox") :].rstrip() if not reached else not ran.report
    after = await far.run(f"curl -sS http://127.0.0.1:{server}/")
    assert after.exit_code != 0, "an approval applies to one command"


async def test_a_host_beside_the_approved_ones_is_named_with_the_way_out(tmp_path: Path, server: int) -> None:
    require_level(2)
    far = OutsideServer(tmp_path, 2, server)
    ran = await far.run("curl -sS https://other.example.org/", "example.org")
    assert "refused other.example.org:443" in ran.output
    assert '`hosts: ["other.example.org:443"]`' in ran.output


async def test_no_approval_opens_the_network_where_nobody_watches_at_level_1(tmp_path: Path, server: int) -> None:
    sandbox = Sandbox(choose(None, Machine(7, ""), (), attended=False, any_level=False), machine())
    assert not sandbox.reach((HostGrant(host="*"),)).open
    watched = Sandbox(choose(None, Machine(7, ""), (), attended=True, any_level=False), machine())
    assert watched.reach((HostGrant(host="*"),)).open


FAILURES = [
    ("curl: (6) Could not resolve host: example.org", "no network"),
    ("npm error code ENOTFOUND", "no network"),
    ("npm ERR! request failed, reason: getaddrinfo EAI_AGAIN registry.example.org", "no network"),
    ("ERROR: Could not find a version; NewConnectionError: Temporary failure in name resolution", "no network"),
    ("fatal: unable to access 'https://example.org/': Could not resolve host: example.org", "no network"),
    ("ssh: Could not resolve hostname example.org: Temporary failure in name resolution", "no network"),
    ("dial tcp: lookup modules.example.org: no such host", "no network"),
    ("touch: cannot touch '/usr/x': Read-only file system", "only your folder"),
    ("cat: HOME/.netrc: No such file or directory", "hides HOME/.netrc"),
    ("fatal: 'HOME/.netrc' does not appear to be a git repository", "hides HOME/.netrc"),
    ("assert 1 == 2", ""),
    ("FileNotFoundError: No such file or directory: '/work/missing'", ""),
]


@pytest.mark.parametrize(("output", "cause"), FAILURES)
def test_a_failure_that_looks_like_the_sandboxs_is_told_apart(tmp_path: Path, output: str, cause: str) -> None:
    create_folders(tmp_path)
    cage = Cage(tmp_path, 2)
    sandbox_paths = cage.launcher.sandbox.paths
    assert sandbox_paths is not None
    text = explain(output.replace("HOME", str(cage.home)), NetworkReach(), (), sandbox_paths)
    assert cause.replace("HOME", str(cage.home)) in text
    assert bool(text) == bool(cause)
    assert not _reports_no_network(text) or not explain(output, NetworkReach(open=True), (), sandbox_paths)


LANDLOCK_FAILURES = [
    ("npm error code EACCES\nnpm error syscall mkdir\nnpm error path HOME/.npm", True),
    ("bash: line 1: HOME/notes: Permission denied", True),
    ("error: remote unpack failed: unable to create temporary object directory\nTo HOME/remote.git", True),
    ("bash: line 1: WORK/run.sh: Permission denied", False),
    ("bash: ./run.sh: Permission denied", False),
    ("HOME/notes: 3 errors", False),
]


@pytest.mark.parametrize(("output", "caused"), LANDLOCK_FAILURES)
def test_a_refused_change_outside_is_explained_where_landlock_refuses_it(
    tmp_path: Path, output: str, caused: bool
) -> None:
    create_folders(tmp_path)
    cage = Cage(tmp_path, 1)
    sandbox_paths = cage.launcher.sandbox.paths
    assert sandbox_paths is not None
    printed = output.replace("HOME", str(cage.home)).replace("WORK", str(cage.workspace))
    assert ("only your folder" in explain(printed, NetworkReach(open=True), (), sandbox_paths, level=1)) == caused
    assert "only your folder" not in explain(printed, NetworkReach(open=True), (), sandbox_paths)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("level", [1, 2])
async def test_npm_installs_where_the_home_cannot_be_written(tmp_path: Path, level: int) -> None:
    require_level(level)
    create_folders(tmp_path)
    cage = Cage(tmp_path, level)
    if not which("npm", path=cage.launcher.environment["PATH"]):
        pytest.skip("npm is not installed")
    (cage.workspace / "package").mkdir()
    (cage.workspace / "package" / "package.json").write_text('{"name": "dependency", "version": "1.0.0"}')
    ran = await cage.run("tar czf dependency.tgz package && npm install --offline ./dependency.tgz", timeout=60)
    assert ran.exit_code == 0, ran.output
    assert (cage.workspace / "node_modules" / "dependency").exists()
    assert not (cage.home / ".npm").exists()


def _reports_no_network(text: str) -> bool:
    return "no network" in text

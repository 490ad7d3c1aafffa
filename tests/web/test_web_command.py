"""`callboard web` as a process: its address, its answers, its end, and the processes that it refuses."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.commands.command import Command
from tests.cli.commands.pending_requests import create_session_with, stored_request
from tests.cli.views.plan_rows import plan
from tests.web.page_process import serving, state_folder

from callboard.adapters.processes import tool_ancestry

proc = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="this system has no /proc/net/tcp")
unmarked = pytest.mark.skipif(bool(tool_ancestry.started_by_tool()), reason="these tests run in a tool's process")


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


@proc
@unmarked
def test_a_plan_is_rejected_from_a_browser_until_the_page_ends(command: Command) -> None:
    create_session_with(command, plan(), prompt="Mend the roof")
    with serving(command) as page:
        assert page.request("GET", "/waiting")[0] == 401
        page.sign_in()
        status, _, text = page.request("GET", "/waiting")
        assert (status, "alice asks you to approve a plan" in text) == (200, True)
        form = {"form_token": page.form_token(), "digest": stored_request(command).digest, "choice": "n"}
        path = "/sessions/s1/requests/req_a1"
        bare = page.request("POST", path, form)
        assert (bare[0], "say what to change" in bare[2]) == (409, True)
        assert page.request("POST", path, {**form, "text": "Use slate."})[0] == 303
        after = stored_request(command)
        assert (after.status, after.answered_by, after.reason) == ("rejected", "person", "Use slate.")
        again = page.request("POST", path, {**form, "choice": "y"})
        assert (again[0], "is rejected by person already" in again[2]) == (409, True)
        with page.stream("/waiting/events") as stream:
            assert stream.readline().startswith(b"data: <hx-partial")
            page.process.send_signal(signal.SIGTERM)
            out, err = page.process.communicate(timeout=60)
        assert (page.process.returncode, err) == (143, ""), "an open page does not hold up the end"
        assert page.token not in out, "the token was used"
        assert re.search(r"http://127\.0\.0\.1:\d+/#\S+", out), "the address for the next browser"
    kept = [path for path in state_folder(command).rglob("*") if path.is_file()]
    assert not [path for path in kept if page.token.encode() in path.read_bytes()]


@unmarked
def test_a_browser_is_led_to_the_address_by_a_private_file(command: Command) -> None:
    """The command line of a browser, which every process can see, lacks the token."""
    seen = command.workspace.parent / "seen"
    os.mkfifo(seen)
    browser = command.workspace.parent / "browser"
    browser.write_text(f'#!/bin/sh\nfile=${{1#file://}}\n(echo "$1"; stat -c %a "$file"; cat "$file") > {seen}\n')
    browser.chmod(0o700)
    command.env["BROWSER"] = f"{browser} %s"
    create_session_with(command, plan())
    with serving(command, "--open") as page:
        argument, mode, html = seen.read_text().split("\n", 2)
        assert mode == "600"
        assert f"{page.address}/#{page.token}" in html
        assert page.token not in argument
        file = Path(argument.strip().removeprefix("file://"))
        assert file.parent == state_folder(command)
    assert not file.exists()


ATTACK = """
import http.client, sys
port, cookie, form, digest = sys.argv[1:]
headers = {"Origin": f"http://127.0.0.1:{port}", "Sec-Fetch-Site": "same-origin", "Cookie": cookie}
connection = http.client.HTTPConnection("127.0.0.1", int(port))
connection.request("GET", "/waiting", headers=headers)
response = connection.getresponse()
response.read()
first = response.status
headers["Content-Type"] = "application/x-www-form-urlencoded"
body = f"form_token={form}&digest={digest}&choice=y"
connection.request("POST", "/sessions/s1/requests/req_a1", body, headers)
print(first, connection.getresponse().status)
"""
HIDDEN = """
import os, sys
from callboard.adapters.processes.tool_mark import mark_process
mark_process()
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@proc
@unmarked
def test_an_agents_command_that_has_the_cookie_approves_nothing(command: Command) -> None:
    """The command has stolen everything but the code of the terminal, and hides that a tool started it."""
    create_session_with(command, plan())
    with serving(command) as page:
        page.sign_in()
        attack = ["-c", ATTACK, str(page.port), page.cookie, page.form_token(), stored_request(command).digest]
        plain = {name: value for name, value in os.environ.items() if name != "CALLBOARD_TOOL"}
        told = subprocess.run(
            [sys.executable, *attack], env={**plain, "CALLBOARD_TOOL": "1"}, capture_output=True, text=True, check=True
        )
        assert told.stdout.split() == ["403", "403"]
        hidden = subprocess.run(
            [sys.executable, "-c", HIDDEN, *attack], env=plain, capture_output=True, text=True, check=True
        )
        assert hidden.stdout.split()[1] == "403", "it may read with the cookie, and change nothing"
        assert stored_request(command).status == "pending"
        page.process.send_signal(signal.SIGINT)
        _, err = page.process.communicate(timeout=60)
        assert "refused POST /sessions/s1/requests/req_a1 of process" in err
        assert "was started by a tool" in err
    log = json.loads(command.run_inline("policy", "log", "--session", "s1", "--json").out)
    assert [(entry["tool"], entry["verdict"], entry["by"]) for entry in log] == [("web", "deny", "person only")]


@unmarked
def test_a_port_in_use_is_named(command: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused = command.run_inline("web", "--port", str(taken.getsockname()[1]))
    assert (refused.code, "choose another port" in refused.err) == (2, True), refused.err


def test_a_tools_process_starts_no_page(command: Command) -> None:
    refused = command.run_inline("web", CALLBOARD_TOOL="1")
    assert (refused.code, "is for a person" in refused.err) == (2, True)


@pytest.mark.parametrize(
    ("address", "words"),
    [("0.0.0.0", "ssh -L"), ("192.0.2.1", "web.certificate"), ("localhost", "give an IP address")],
)
def test_the_page_stays_on_the_loopback_without_tls_and_says_why(command: Command, address: str, words: str) -> None:
    refused = command.run_inline("web", "--bind", address)
    assert (refused.code in (2, 3), words in refused.err) == (True, True), refused.err

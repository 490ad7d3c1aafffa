"""The page beside another command: `/web`, `serve --web`, and `demo --web`."""

from __future__ import annotations

import http.client
import io
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from unittest import mock

import anyio
import pytest
from tests.cli.commands.command import Command
from tests.cli.commands.pending_requests import create_session_with
from tests.cli.views.plan_rows import plan
from tests.simulation.processes import AtTerminal, started, until
from tests.warm import PIPE, Process
from tests.web.page_process import PageProcess, state_folder

from callboard.adapters.processes import tool_ancestry
from callboard.cli.terminal.page_process import PageConsole, _show_address, open_page, page_beside
from callboard.cli.terminal.terminal import Block
from callboard.sessions.running_page import announce_page, running_page
from callboard.types.errors import UsageError

unmarked = pytest.mark.skipif(bool(tool_ancestry.started_by_tool()), reason="these tests run in a tool's process")
SCENARIO = "agents: {lead: [{repeat: forever, reply: Hello.}]}"
ADDRESS = re.compile(r"(http://[\w.]+:(\d+))/#([\w-]+)")


@pytest.fixture
def command(tmp_path: Path) -> Command:
    command = Command(tmp_path)
    create_session_with(command, plan())
    return command


@unmarked
def test_a_page_beside_a_command_ends_with_it(command: Command) -> None:
    shown: list[str] = []

    async def beside() -> None:
        address = anyio.Event()

        def show(page: Block) -> None:
            shown.extend(line.text for line in page.lines)
            if "/#" in shown[-1]:
                address.set()

        with anyio.fail_after(60):
            async with page_beside(command.workspace, show, "--port", "0"):
                await address.wait()
                page = running_page(state_folder(command))
                assert page is not None
                assert any(page.address in line for line in shown)

    with mock.patch.dict(os.environ, command.env, clear=True):
        anyio.run(beside)
    assert running_page(state_folder(command)) is None


@unmarked
def test_a_page_ends_with_the_process_that_started_it(command: Command) -> None:
    process = command.start("web", "--port", "0", "--with-parent", stdin=PIPE)
    assert process.stdout is not None
    assert process.stdin is not None
    assert "/#" in process.stdout.readline()
    process.stdin.close()
    assert process.wait() == 0


def test_lines_that_are_kept_have_no_token() -> None:
    shown: list[str] = []

    async def lines() -> AsyncIterator[str]:
        for line in ("open http://127.0.0.1:1/#first", "open http://127.0.0.1:1/#second", "refused GET /"):
            yield line
        yield "code for changes from a browser in a sandbox: AAAA-AAAA. Ctrl-C ends the page"

    async def show() -> None:
        await _show_address(lines(), lambda page: shown.extend(line.text for line in page.lines), "strong")

    anyio.run(show)
    assert shown == ["open http://127.0.0.1:1/", "refused GET /"]


def test_the_prompt_names_a_page_that_runs_or_says_where_to_start_one(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", command.env)
    started: list[object] = []

    class Console(PageConsole):
        workspace = command.workspace
        beside = None

    class Prompt(Console):
        beside = staticmethod(started.append)  # pyright: ignore[reportAssignmentType] - a list stands in

    with announce_page(state_folder(command), "http://127.0.0.1:1"):
        named = anyio.run(open_page, Console(), "")
    assert "http://127.0.0.1:1 (process" in named.lines[0].text
    with pytest.raises(UsageError, match="in another terminal"):
        anyio.run(open_page, Console(), "")
    if not tool_ancestry.started_by_tool():
        assert "starting the page" in anyio.run(open_page, Prompt(), "").lines[0].text
        assert len(started) == 1


@pytest.fixture
def opened(command: Command) -> Path:
    """Make a program that stands in for a browser, and return the file that gets the page that it is led to."""
    opened = command.workspace.parent / "opened"
    browser = command.workspace.parent / "browser"
    browser.write_text(f'#!/bin/sh\ncat "${{1#file://}}" > {opened}.new && mv {opened}.new {opened}\n')
    browser.chmod(0o700)
    command.env["BROWSER"] = f"{browser} %s"
    return opened


def page_of(process: Process, opened: Path) -> PageProcess:
    """Return the page that the browser is led to, when it is."""
    until(opened.exists, "a browser is opened")
    address = ADDRESS.search(opened.read_text())
    assert address is not None
    return PageProcess(process, int(address[2]), address[3], "", address[1])


@unmarked
@pytest.mark.slow
def test_serve_shows_its_page_for_a_password_and_no_token_in_its_log(command: Command) -> None:
    with mock.patch("sys.stdin", io.StringIO("correct horse battery\n")):
        assert command.run_inline("web", "--add-user", "ada").code == 0
    refused = command.run_inline("serve", "--port", "0")
    assert (refused.code, "--web" in refused.err) == (2, True)
    with started(command, "serve", "--web", "--port", "0", "--model", command.scenario(SCENARIO)) as host:
        host.wait_for("open http://")
        running = running_page(state_folder(command))
        assert running is not None
        page = PageProcess(host.process, int(running.address.rpartition(":")[2]), "", "", running.address)
        assert page.request("GET", "/waiting")[0] == 401
        status, page.cookie, text = page.request(
            "POST", "/sign-in", {"user": "ada", "password": "correct horse battery"}
        )
        assert status == 303, text
        assert "alice asks you to approve a plan" in page.request("GET", "/waiting")[2]
        host.signal(signal.SIGINT)
        ended = host.end()
    assert (ended.code, "#" in ended.err, " code for " in ended.err) == (130, False, False), ended.err
    assert running_page(state_folder(command)) is None


@unmarked
@pytest.mark.slow
def test_the_demo_opens_its_page_and_keeps_no_token_in_its_output(command: Command, opened: Path) -> None:
    with started(command, "demo", "--web", "--yes", TMPDIR=str(opened.parent)) as demo:
        page = page_of(demo.process, opened)
        page.sign_in()
        assert "/sessions/" in page.request("GET", "/sessions")[2]
        demo.signal(signal.SIGTERM)
        ended = demo.end()
    assert ended.code == 143, ended.err
    assert page.address in ended.out + ended.err
    assert page.token not in ended.out + ended.err
    with pytest.raises(ConnectionRefusedError):
        page.request("GET", "/")


@unmarked
@pytest.mark.slow
def test_the_prompt_line_opens_a_page_that_ends_with_it(command: Command, opened: Path) -> None:
    person = AtTerminal(command, "--model", command.scenario(SCENARIO))
    person.type("/web\r")
    person.wait_for("open http://")
    page = page_of(person.process, opened)
    page.sign_in()
    assert "alice asks you to approve a plan" in page.request("GET", "/waiting")[2]
    person.type("/web\r")
    person.wait_for(f"the page is {page.address}")
    person.type("/exit\r")
    assert person.end() == 0, person.shown
    assert running_page(state_folder(command)) is None


@unmarked
@pytest.mark.slow
def test_the_header_of_a_new_proxy_secret_lets_its_proxy_in(command: Command) -> None:
    made = command.run("web", "--new-proxy-secret")
    header, _, secret = made.out.strip().partition(": ")
    assert (made.code, header) == (0, "x-callboard-proxy"), made.err
    settings = Path(command.env["XDG_CONFIG_HOME"]) / "callboard" / "settings.yaml"
    assert secret not in settings.read_text()
    for name, value in (("hosts", "[agents.example.org]"), ("proxy.user_header", "X-Remote-User")):
        assert command.run_inline("config", "set", "-g", f"web.{name}", value).code == 0
    process = command.start("web", "--port", "0", stdin=PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    running = running_page(state_folder(command))
    assert running is not None
    try:
        own = {"Host": "agents.example.org", "Sec-Fetch-Site": "same-origin", "X-Remote-User": "Ada"}
        for sent, expected in ((secret, 200), (f"{secret}x", 403)):
            connection = http.client.HTTPConnection("127.0.0.1", int(running.address.rpartition(":")[2]), timeout=60)
            connection.request("GET", "/waiting", headers={**own, header: sent})
            response = connection.getresponse()
            assert (response.status, b"alice asks you" in response.read()) == (expected, expected == 200)
            connection.close()
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)

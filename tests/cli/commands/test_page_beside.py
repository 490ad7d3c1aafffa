"""The page beside another command: `/web`, `serve --web`, and `demo --web`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from unittest import mock

import anyio
import pytest
from tests.cli.commands.command import Command
from tests.cli.commands.pending_requests import create_session_with
from tests.cli.views.plan_rows import plan
from tests.warm import PIPE
from tests.web.page_process import state_folder

from callboard.adapters.processes import tool_ancestry
from callboard.cli.terminal.page_process import PageConsole, _show_address, open_page, page_beside
from callboard.cli.terminal.terminal import Block
from callboard.sessions.running_page import announced, running_page
from callboard.types.errors import UsageError

unmarked = pytest.mark.skipif(bool(tool_ancestry.started_by_tool()), reason="these tests run in a tool's process")


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

    with announced(state_folder(command), "http://127.0.0.1:1"):
        named = anyio.run(open_page, Console(), "")
    assert "http://127.0.0.1:1 (process" in named.lines[0].text
    with pytest.raises(UsageError, match="in another terminal"):
        anyio.run(open_page, Console(), "")
    if not tool_ancestry.started_by_tool():
        assert "starting the page" in anyio.run(open_page, Prompt(), "").lines[0].text
        assert len(started) == 1

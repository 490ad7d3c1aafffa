"""`callboard link`: its address, its end, and where its secret is not."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from tests.cli.commands.command import Command
from tests.cli.commands.pending_requests import create_session_with, stored_request
from tests.cli.views.plan_rows import plan
from tests.web.page_process import serving, state_folder

from callboard.adapters.processes import tool_ancestry
from callboard.sessions.running_page import announce_page, running_page

unmarked = pytest.mark.skipif(bool(tool_ancestry.started_by_tool()), reason="these tests run in a tool's process")


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


@unmarked
def test_a_link_answers_through_the_running_page_and_leaves_its_secret_nowhere(command: Command) -> None:
    create_session_with(command, plan())
    none = command.run_inline("link", "req_a1")
    assert (none.code, "start `callboard web`" in none.err) == (2, True)
    with serving(command) as page:
        made = command.run_inline("link", "a1", "--as", "Ada", "--for", "2h")
        assert made.code == 0, made.err
        assert "answers req_a1 once, until" in made.err
        address = re.fullmatch(rf"{page.address}/link#(\S{{43}})\n", made.out)
        assert address is not None, made.out
        form = {"secret": address[1], "digest": stored_request(command).digest}
        status, _, text = page.request("POST", "/link", form)
        assert (status, "asks you to approve a plan" in text) == (200, True)
        status, cookie, text = page.request("POST", "/link/answer", {**form, "choice": "n", "text": "Use slate."})
        assert (status, cookie, "req_a1 rejected" in text) == (200, "", True), text
    after = stored_request(command)
    assert (after.status, after.history[-1].user) == ("rejected", "Ada")
    assert "rejected by person (Ada): Use slate." in command.run_inline("show", "req_a1").out
    kept = [path for path in state_folder(command).rglob("*") if path.is_file()]
    assert not [path for path in kept if address[1].encode() in path.read_bytes()]
    assert not (state_folder(command) / "web.json").exists()


def test_links_are_revoked_and_named_by_the_address_of_the_settings(command: Command) -> None:
    create_session_with(command, plan())
    assert command.run_inline("config", "set", "-g", "web.address", "https://callboard.example/").code == 0
    made = command.run_inline("link", "req_a1", "--qr")
    assert made.out.startswith("https://callboard.example/link#")
    lines = made.out.splitlines()[1:]
    assert len(lines) > 15
    assert {len(line) for line in lines} == {len(lines[0])}, "a square"
    assert set("".join(lines)) == set("█▀▄ ")
    assert "1 link revoked" in command.run_inline("link", "req_a1", "--revoke").out
    assert command.run_inline("link", "req_a1", "--for", "soon").code == 2


def test_a_tools_process_makes_no_link(command: Command) -> None:
    refused = command.run_inline("link", "req_a1", CALLBOARD_TOOL="1")
    assert (refused.code, "is for a person" in refused.err) == (2, True)


def test_a_page_whose_process_is_gone_is_not_named(tmp_path: Path) -> None:
    with announce_page(tmp_path, "http://127.0.0.1:1"):
        page = running_page(tmp_path)
        assert page is not None
        assert (page.address, page.pid) == ("http://127.0.0.1:1", os.getpid())
        file = tmp_path / "web.json"
        assert file.stat().st_mode & 0o777 == 0o600
        file.write_text(json.dumps({"address": "x", "pid": os.getpid(), "started": 1.0}))
        assert running_page(tmp_path) is None
        file.write_text("{")
        assert running_page(tmp_path) is None

"""The screen of an agent shows a reply while it streams, and once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.commands.command import Command
from tests.simulation.processes import started
from tests.simulation.streaming_service import MODEL, StreamingService, streaming_service
from tests.web.browser_tab import MARKS, Tab, opened_chromium
from tests.web.page_process import serving

pytestmark = MARKS


@pytest.fixture
def command(tmp_path: Path, service: StreamingService) -> Command:
    command = Command(tmp_path)
    command.env.update(service.environment)
    return command


@pytest.fixture
def service() -> Iterator[StreamingService]:
    with streaming_service() as serving_model:
        yield serving_model


def test_a_page_shows_text_before_the_reply_is_complete_and_replaces_it(
    command: Command, service: StreamingService
) -> None:
    with started(command, "run", "--model", MODEL, "Go.") as host:
        reply = service.reply()
        session = json.loads(command.run_inline("sessions", "--json").out)[0]["id"]
        with serving(command) as page, opened_chromium() as chromium:
            user = Tab(chromium, page)
            user.tab.goto(f"{page.address}/sessions/{session}/agents/lead")
            user.tab.locator("#live.on").wait_for()
            reply.think("Hm, ", "well.")
            reply.open_text()
            reply.more("First line\nand <img src=x onerror=alert(1)> ")
            streaming = user.tab.locator("#streaming")
            streaming.get_by_text("and <img src=x onerror=alert(1)>").wait_for()
            late = user.open()
            late.goto(user.tab.url)
            late.locator("#streaming").get_by_text("First line").wait_for()
            reply.more("more \u202e&amp; ")
            reply.more("the end.")
            for tab in (user.tab, late):
                shown = tab.locator("#streaming .text", has_text="the end.")
                shown.wait_for()
                assert shown.inner_text() == "First line\nand <img src=x onerror=alert(1)> more \\u202e&amp; the end."
                assert tab.locator("#streaming summary").inner_text() == "Thinking …"
                assert tab.locator("#transcript .entry.reply").count() == 0
            reply.finish(closes_block=True)
            for tab in (user.tab, late):
                tab.locator("#transcript .entry.reply", has_text="the end.").wait_for()
                assert tab.locator("#streaming").inner_text() == ""
                assert tab.get_by_text("the end.").count() == 1
            user.close()
        assert host.end().code == 0


def test_the_next_reply_streams_after_the_one_before_it(command: Command, service: StreamingService) -> None:
    (command.workspace / "a.txt").write_text("alpha")
    with started(command, "run", "--model", MODEL, "Go.") as host:
        first = service.reply()
        session = json.loads(command.run_inline("sessions", "--json").out)[0]["id"]
        with serving(command) as page, opened_chromium() as chromium:
            user = Tab(chromium, page)
            user.tab.goto(f"{page.address}/sessions/{session}/agents/lead")
            streaming = user.tab.locator("#streaming")
            first.text("I read.")
            first.call("read_file", '{"path": ', '"a.txt"}')
            streaming.get_by_text("calls read_file").wait_for()
            first.finish()
            second = service.reply()
            second.open_text()
            second.more("It says alpha.")
            streaming.get_by_text("It says alpha.").wait_for()
            user.tab.locator("#transcript .entry.reply", has_text="I read.").wait_for()
            assert streaming.inner_text() == "It says alpha."
            second.finish(closes_block=True)
            user.tab.locator("#transcript .entry.reply", has_text="It says alpha.").wait_for()
            user.close()
        assert host.end().code == 0

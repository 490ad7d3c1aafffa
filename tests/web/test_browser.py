"""The page in a real Chromium: a session approved and rejected from it, a host that is killed, a phone, no scripts."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from tests.cli.commands.command import Command
from tests.cli.commands.pending_requests import create_session_with, stored_request
from tests.cli.views.plan_rows import answered_request, plan
from tests.simulation.processes import AtTerminal
from tests.web.browser_tab import LATE_REPLIES, MARKS, Tab, opened_chromium
from tests.web.page_process import serving

from callboard.core.approvals.requests import open_request
from callboard.types.records import Request

pytestmark = MARKS
SCENARIO = """
agents:
  lead:
    - reply:
        - I clean up.
        - tool_use: {name: bash, input: {command: "rm -f old.txt && echo gone"}}
    - when: {contains: gone}
      reply:
        - One file is left. <img src=x onerror=alert(1)>
        - tool_use: {name: bash, input: {command: "rm -f kept.txt"}}
    - when: {contains: keep it}
      reply: I keep it.
    - repeat: forever
      reply:
        - tool_use: {name: bash, input: {command: "rm -f kept.txt"}}
"""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


def test_a_real_session_is_answered_from_the_page_and_survives_its_host(command: Command) -> None:
    for name in ("old.txt", "kept.txt"):
        (command.workspace / name).write_text("x")
    model = command.scenario(SCENARIO)
    host = AtTerminal(command, "run", "--model", model, "Clean up.")
    host.wait_for("allow this?")
    with serving(command) as page, opened_chromium() as chromium:
        user = Tab(chromium, page)
        waiting = user.tab
        assert waiting.url == f"{page.address}/waiting", "the token is no longer in the address"
        team = user.open()
        team.goto(f"{page.address}/sessions")
        team.get_by_role("link", name="Clean up.").click()
        team.get_by_text(f"Hosted by process {host.process.pid}").wait_for()
        agent = user.open()
        agent.goto(f"{team.url}/agents/lead")
        waiting.evaluate(LATE_REPLIES)
        first = waiting.locator("article", has_text="rm -f old.txt")
        first.get_by_role("button", name="Approve", exact=True).click()
        first.wait_for(state="detached")
        waiting.locator("#reply", has_text="approved").wait_for()
        second = waiting.locator("article", has_text="rm -f kept.txt")
        second.locator("textarea[name=text]").fill("keep it")
        agent.get_by_text("One file is left. <img src=x onerror=alert(1)>").wait_for()
        assert not (command.workspace / "old.txt").exists()

        host.process.send_signal(signal.SIGKILL)
        host.end()
        for tab in (team, agent):
            tab.get_by_text("No process hosts").first.wait_for()
        assert second.locator("textarea[name=text]").input_value() == "keep it", "updates keep what is typed"
        host = AtTerminal(command, "resume")
        team.get_by_text(f"Hosted by process {host.process.pid}").wait_for()
        second = waiting.locator("article", has_text="rm -f kept.txt")
        second.locator("textarea[name=text]").fill("keep it")
        second.get_by_role("button", name="Reject").click()
        agent.get_by_text("I keep it.", exact=True).wait_for()
        waiting.get_by_text("Nothing waits for an answer.").wait_for()
        assert host.end() == 0, host.shown
        user.close()
    assert (command.workspace / "kept.txt").exists()


def permission() -> Request:
    now = time.time()
    payload = {
        **{"tool": "bash", "input": {"command": "npm test"}, "why": "no rule allows it", "rule": "D"},
        "always": ["Bash(npm test:*)"],
    }
    times = {"created_at": now, "expires_at": now + 600}
    base = {"id": "req_p1", "kind": "permission", "asked_by": "alice", "payload": payload}
    return open_request(Request.model_validate({**base, **times}))


def test_a_phone_a_keyboard_and_a_browser_without_scripts_suffice(command: Command) -> None:
    first = answered_request(plan("1. read\n2. burn"), "rejected", "too hot")
    second = plan("1. read\n2. mend", id="req_a2", revision=2, created_at=first.created_at + 5)
    create_session_with(command, first, second, permission(), prompt="Mend the roof")
    with serving(command) as page, opened_chromium() as chromium:
        for scheme in ("light", "dark"):
            phone = Tab(chromium, page, viewport={"width": 360, "height": 740}, color_scheme=scheme)
            for path in ("/waiting", "/sessions", "/sessions/s1", "/sessions/s1/agents/lead"):
                phone.tab.goto(page.address + path)
                phone.tab.locator("#live.on").wait_for()
                assert phone.tab.evaluate("document.documentElement.scrollWidth") == 360, path
            if directory := os.environ.get("SCREENSHOTS"):
                phone.tab.goto(f"{page.address}/waiting")
                phone.tab.screenshot(path=f"{directory}/waiting-360-{scheme}.png", full_page=True)
            page.token = page.next_token()
            phone.close()
        keys = Tab(chromium, page)
        keys.tab.locator("#live.on").wait_for()
        keys.tab.keyboard.press("j")
        keys.tab.keyboard.press("Tab")
        while keys.tab.evaluate("document.activeElement.textContent").split(" ")[:2] != ["Always", "allow"]:
            keys.tab.keyboard.press("Tab")
        keys.tab.keyboard.press("Enter")
        for _ in range(3):
            keys.tab.keyboard.press("Tab")
        keys.tab.keyboard.press("Enter")
        keys.tab.locator("article", has_text="npm test").wait_for(state="detached")
        keys.close()
        page.token = page.next_token()
        plain = chromium.new_context(java_script_enabled=False)
        tab = plain.new_page()
        tab.goto(page.address)
        tab.get_by_label("Token").fill(page.token)
        tab.get_by_role("button", name="Sign in").click()
        tab.get_by_text("changes since revision 1 (req_a1, rejected by person: too hot)").wait_for()
        tab.get_by_label("What to change").fill("Use slate.")
        tab.get_by_role("button", name="Reject").click()
        tab.get_by_text("Nothing waits for an answer.").wait_for()
        tab.get_by_text("req_a2 rejected").wait_for()
        plain.close()
    assert stored_request(command, "req_p1").status == "approved"
    assert stored_request(command, "req_a2").reason == "Use slate."


def test_a_page_whose_server_is_gone_says_so_also_at_an_answer(command: Command) -> None:
    create_session_with(command, permission(), plan("1. read"), prompt="Mend the roof")
    with serving(command) as page, opened_chromium() as chromium:
        context = chromium.new_context()
        tab = context.new_page()
        tab.goto(f"{page.address}/#{page.token}")
        tab.locator("#live.on").wait_for()
        tab.locator("article", has_text="npm test").get_by_role("button", name="Approve", exact=True).click()
        tab.locator("#reply", has_text="req_p1 approved").wait_for()
        page.process.send_signal(signal.SIGTERM)
        page.process.communicate(timeout=60)
        tab.locator("#live.off", has_text="not connected").wait_for()
        tab.get_by_label("What to change").fill("Use slate.")
        tab.get_by_role("button", name="Reject").click()
        tab.locator("#reply .bad", has_text="callboard web does not answer").wait_for()
        assert "req_p1" not in tab.locator("#reply").inner_text(), "an earlier result is not that of this answer"
        with serving(command, "--port", str(page.port)) as again:
            tab.locator("#live.off", has_text="signed out").wait_for()
            tab.goto(f"{again.address}/#{again.token}")
            tab.locator("#live.on").wait_for()
            assert tab.get_by_label("What to change").input_value() == "Use slate."
            tab.get_by_role("button", name="Reject").click()
            tab.locator("#reply", has_text="req_a1 rejected").wait_for()
        context.close()

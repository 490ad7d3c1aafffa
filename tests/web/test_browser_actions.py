"""Actions from the page in a real Chromium: on agents, schedules, and cuts, and the answer of a link."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import anyio
import pytest
from tests.cli.commands.command import Command
from tests.cli.commands.pending_requests import create_session_with
from tests.cli.views.plan_rows import plan
from tests.simulation.processes import started
from tests.web.browser_tab import LATE_REPLIES, MARKS, Tab, opened_chromium
from tests.web.page_process import PageProcess, serving
from tests.web.test_agent_context import cut_life, write_life

from callboard.sessions.places import find_places
from callboard.sessions.stores import log_notice, open_store
from callboard.types.settings import Settings

pytestmark = MARKS
TEAM = """
agents:
  lead:
    - reply:
        - tool_use: {name: spawn_teammate, input: {name: alice, role: r, prompt: go, budget: {cost_usd: 5}}}
        - tool_use: {name: spawn_teammate, input: {name: bob, role: r, prompt: go}}
        - tool_use: {name: spawn_teammate, input: {name: carol, role: r, prompt: go}}
    - repeat: forever
      reply: waiting
  alice: &sleeper
    - reply:
        - tool_use: {name: bash, input: {command: sleep 600}}
    - repeat: forever
      reply: I was woken.
  bob: *sleeper
  carol: *sleeper
"""


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """Return a workspace with a session: a request, a schedule, and an agent with a cut in its context."""
    command = Command(tmp_path_factory.mktemp("actions"))
    create_session_with(command, plan(), prompt="Mend the roof")
    added = command.run_inline("cron", "add", "--name", "nightly", "30 2 * * *", "Update the changelog.")
    assert added.code == 0, added.err
    with mock.patch.dict(os.environ, command.env, clear=True):
        anyio.run(_write_cut, command.workspace)
    return command


async def _write_cut(workspace: Path) -> None:
    store = await open_store(find_places(workspace), Settings(durability="process"), log_notice)
    await write_life(store, cut_life())
    await store.aclose()


@pytest.fixture(scope="module")
def page(command: Command) -> Iterator[PageProcess]:
    with serving(command) as page:
        yield page


@pytest.fixture(scope="module")
def chromium(command: Command) -> Iterator[Any]:
    """Return one Chromium. While it runs, commands run as processes: this thread has its event loop."""
    with opened_chromium() as browser:
        yield browser


@pytest.fixture
def user(page: PageProcess, chromium: Any) -> Iterator[Tab]:
    user = Tab(chromium, page)
    page.token = page.next_token()
    yield user
    user.close()


def test_agents_are_interrupted_stopped_and_killed_and_a_budget_is_raised(command: Command, user: Tab) -> None:
    options = ("--permission-mode", "bypassPermissions", "--output-format", "json")
    settings = Path(command.env["XDG_CONFIG_HOME"]) / "callboard" / "settings.yaml"
    settings.parent.mkdir(parents=True)
    settings.write_text("sandbox: {unattended: any}\n")
    with started(command, "run", *options, "--model", command.scenario(TEAM), "Go.") as host:
        user.show("/sessions")
        user.tab.get_by_role("link", name="Go.").click()
        session = user.tab.url
        alice = open_agent(user, session, "alice")
        alice.get_by_text("Raise its budget").click()
        alice.locator("input[name=cost_usd]").fill("9")
        alice.get_by_role("button", name="Raise the budget").click()
        alice.get_by_text("may use $9.0000 in all").wait_for()
        alice.get_by_role("button", name="Interrupt its turn").click()
        alice.get_by_text("interrupted").first.wait_for()
        alice.get_by_label("Message to alice").fill("Wake up.")
        alice.get_by_role("button", name="Send").click()
        alice.get_by_text("I was woken.").first.wait_for()
        for name, summary, verb in (("bob", "Stop", "Stop"), ("carol", "Kill", "Kill")):
            tab = open_agent(user, session, name)
            tab.locator("summary", has_text=summary).click()
            tab.get_by_role("button", name=verb, exact=True).click()
            tab.locator("#state", has_text="stopped").or_(tab.get_by_text("killed")).first.wait_for()
        assert host.end().code == 0
    team = json.loads(command.run("team", "--session", session.rpartition("/")[2], "--json").out)
    lives = {each["name"]: each["life"] for each in team}
    assert lives == {"lead": "idle", "alice": "idle", "bob": "stopped", "carol": "stopped"}


def open_agent(user: Tab, session: str, name: str) -> Any:
    """Return the screen of an agent whose command runs."""
    user.tab.goto(session)
    user.tab.locator(f"a[href$='/agents/{name}']").first.click()  # which appears when the lead has spawned it
    user.tab.get_by_text("sleep 600").first.wait_for()
    return user.tab


def test_a_schedule_is_paused_resumed_edited_and_run(command: Command, user: Tab) -> None:
    tab = user.tab
    user.show("/sessions/s1/schedules/nightly")
    tab.get_by_text("Pause …").click()
    tab.locator("form[aria-label=Pause] input[name=text]").fill("until Monday")
    tab.get_by_role("button", name="Pause it").click()
    tab.get_by_role("button", name="Resume").wait_for()
    assert "until Monday" in tab.locator("main").inner_text()
    tab.get_by_role("button", name="Resume").click()
    tab.get_by_text("Pause …").wait_for()
    tab.get_by_role("button", name="Run now").click()
    tab.get_by_text("It is sent").wait_for()
    tab.get_by_text("Edit …").click()
    tab.locator("input[name=cron]").fill("0 4 * * 1")
    tab.get_by_role("button", name="Save").click()
    tab.get_by_text("Saved: at 04:00 on Monday").wait_for()
    rows = json.loads(command.run("cron", "list", "--session", "s1", "--json").out)
    assert ("nightly", "0 4 * * 1", "active") in [(row["name"], row["cron"], row["state"]) for row in rows]


def test_a_cut_is_undone_where_the_transcript_leads_to_it(command: Command, user: Tab) -> None:
    user.show("/sessions/s1/agents/alice")
    user.tab.locator("a[href*='#edit-']").first.click()
    cut = user.tab.locator("article", has_text="because go")
    cut.get_by_role("button", name="Undo").click()
    user.tab.get_by_text("alice undid").wait_for()
    cut.get_by_text("undone by").wait_for()
    cut.get_by_role("button", name="Undo").wait_for(state="detached")


def test_a_link_is_opened_and_answered_without_a_sign_in(command: Command, page: PageProcess, chromium: Any) -> None:
    made = command.run("link", "req_a1", "--as", "Ada", "--session", "s1")
    assert made.code == 0, made.err
    phone = chromium.new_context(viewport={"width": 360, "height": 740})
    tab = phone.new_page()
    tab.goto(made.out.split()[0])
    tab.get_by_role("button", name="Reject").wait_for()
    assert "#" not in tab.url
    assert tab.evaluate("document.documentElement.scrollWidth") == 360
    tab.locator("textarea[name=text]").fill("Use slate.")
    tab.get_by_role("button", name="Reject").click()
    tab.get_by_text("req_a1 rejected").wait_for()
    tab.goto(made.out.split()[0])
    tab.get_by_text("is rejected by person already").wait_for()
    tab.goto(f"{page.address}/waiting")
    assert "Sign in" in tab.locator("body").inner_text()
    phone.close()
    shown = json.loads(command.run("show", "req_a1", "--session", "s1", "--json").out)
    assert (shown["reason"], shown["history"][-1]["user"]) == ("Use slate.", "Ada")


def test_a_schedule_is_added(user: Tab) -> None:
    tab = user.tab
    user.show("/schedules")
    tab.get_by_text("Add a schedule …").click()
    add = tab.locator("form[aria-label=Add]")
    add.locator("[name=name]").fill("weekly")
    add.locator("[name=cron]").fill("61 4 * * 1")
    add.get_by_label("Prompt").fill("Say what is old.")
    add.get_by_role("button", name="Add").click()
    tab.locator("#reply .bad", has_text="Times: ").wait_for()
    assert add.locator("[name=cron]").input_value() == "61 4 * * 1", "a refused form keeps what is typed"
    user.errors.clear()  # the browser logs a refused form as an error
    add.locator("[name=cron]").fill("30 4 * * 1")
    add.get_by_role("button", name="Add").click()
    tab.locator("#schedules").get_by_role("link", name="weekly").wait_for()
    tab.locator("#reply").get_by_role("link", name="weekly").click()
    tab.get_by_text("Say what is old.").first.wait_for()


def test_a_double_click_sends_a_message_once(command: Command, user: Tab) -> None:
    user.show("/sessions/s1/agents/lead")
    user.tab.evaluate(LATE_REPLIES)
    user.tab.get_by_label("Message to lead").fill("Only once, please.")
    user.tab.get_by_role("button", name="Send").dblclick()
    user.tab.locator("#reply", has_text="Sent to lead.").wait_for()
    user.tab.get_by_label("Message to lead").fill("And this.")
    user.tab.get_by_role("button", name="Send").click()
    user.tab.locator("form.htmx-request").wait_for(state="detached")
    listed = json.loads(command.run("inbox", "lead", "--session", "s1", "--json").out)
    texts = [row["envelope"]["content"] for row in listed if row["envelope"]["sender"] == "person"]
    assert texts == ["Only once, please.", "And this."]


def test_what_is_typed_is_there_after_back_and_a_reload_until_it_is_sent(user: Tab) -> None:
    tab = user.tab
    user.show("/sessions/s1/agents/lead")
    tab.get_by_label("Message to lead").fill("Half a tho")
    user.show("/sessions/s1/schedules/nightly")
    tab.get_by_text("Edit …").click()
    edit = tab.locator("form[aria-label=Edit]")
    edit.get_by_label("Prompt").fill("Update the changelog, and")
    user.show("/hosts")
    for come_back in (tab.go_back, tab.reload):
        come_back()
        tab.locator("#live.on").wait_for()
        assert edit.get_by_label("Prompt").input_value() == "Update the changelog, and"
        assert edit.get_by_label("Prompt").is_visible(), "its section is open"
    assert "form_token" not in tab.evaluate("JSON.stringify(sessionStorage)")
    tab.go_back()
    tab.locator("#live.on").wait_for()
    message = tab.get_by_label("Message to lead")
    assert message.input_value() == "Half a tho"
    message.fill("Half a thought, completed.")
    tab.get_by_role("button", name="Send").click()
    tab.locator("#reply", has_text="Sent to lead.").wait_for()
    tab.reload()
    tab.locator("#live.on").wait_for()
    assert message.input_value() == ""
    tab.get_by_role("button", name="Sign out").click()
    tab.get_by_label("Token").wait_for()
    assert tab.evaluate("sessionStorage.length") == 0


def test_an_unknown_address_leads_to_the_page(user: Tab) -> None:
    for path in ("/nothing", "/sessions/s1/agents/lead/nothing"):
        response = user.tab.goto(user.address + path)
        assert response.status == 404
        user.tab.get_by_text("There is no page at this address.").wait_for()
        user.tab.get_by_role("link", name="Continue").click()
        user.tab.wait_for_url("**/waiting")
    user.errors.clear()  # the browser reports the status

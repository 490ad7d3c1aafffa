"""Work from the page in a real Chromium: answers from several places, edits, comments, merges, and a new session."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.git.worktree_world import run_git
from tests.cli.commands.command import Command, command_in_repository
from tests.simulation.processes import AtTerminal, started
from tests.web.browser_tab import MARKS, Tab, opened_chromium
from tests.web.page_process import serving

pytestmark = MARKS
ASKS = """
agents:
  lead:
    - reply:
        - tool_use: {name: bash, input: {command: "rm -f old.txt && echo gone"}}
    - repeat: forever
      reply: Done.
"""
WORKS = """
agents:
  lead:
    - reply:
        - tool_use: {name: spawn_teammate, input: {name: alice, role: writer, prompt: write it, worktree: parser}}
    - reply: waiting
    - repeat: forever
      reply: all done
  alice:
    - reply:
        - tool_use: {name: write_file, input: {path: new.txt, content: "one\\ntwo\\n"}}
    - reply:
        - tool_use: {name: report, input: {status: done, result: written}}
    - repeat: forever
      reply: ok
"""


WRITE = """
import anyio
from pathlib import Path
from tests.web.large_session import write_large
anyio.run(write_large, Path.cwd())
"""


def writing_env(command: Command) -> dict[str, str]:
    return {**command.env, "PYTHONPATH": str(Path(__file__).parents[2])}


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Return one Chromium. Its event loop is that of the whole module: commands run as processes."""
    with opened_chromium() as browser:
        yield browser


def test_of_two_pages_and_a_terminal_one_answers_and_the_others_show_who(command: Command, chromium: Any) -> None:
    (command.workspace / "old.txt").write_text("x")
    host = AtTerminal(command, "run", "--model", command.scenario(ASKS), "Clean up.")
    host.wait_for("allow this?")
    with serving(command) as page:
        first = Tab(chromium, page)
        page.token = page.next_token()
        second = Tab(chromium, page)
        other = second.tab.locator("article", has_text="rm -f old.txt")
        other.locator("textarea[name=text]").first.fill("not now")
        card = first.tab.locator("article", has_text="rm -f old.txt")
        answered = str(card.locator("code").first.inner_text())
        session = str(card.get_by_role("link").first.get_attribute("href")).rpartition("/")[2]
        card.get_by_text("Edit it first").click()
        card.locator("textarea[name=edited]").fill("rm -f old.txt && echo gone > gone.txt")
        card.get_by_role("button", name="Approve as edited").click()
        first.tab.get_by_text("approved as edited").wait_for()
        other.wait_for(state="detached")
        host.wait_for("approved")
        late = command.run("approve", answered, "--session", session)
        assert (late.code, f"{answered} is approved by person already" in late.err) == (2, True), late.err
        assert host.end() == 0, host.shown
        first.close()
        second.close()
    assert (command.workspace / "gone.txt").exists()
    assert not (command.workspace / "old.txt").exists()


def test_a_comment_and_a_merge_from_the_page(tmp_path: Path, chromium: Any) -> None:
    command = command_in_repository(tmp_path)
    ran = command.run("run", "--permission-mode", "acceptEdits", "--model", command.scenario(WORKS), "Go.")
    assert ran.code == 0, ran.err
    with serving(command) as page:
        user = Tab(chromium, page)
        user.show("/changes")
        user.tab.get_by_role("link", name="parser").click()
        user.tab.get_by_text("Comment for").first.click()
        user.tab.locator("select[name=line]").select_option("2 + two")
        user.tab.locator("textarea[name=text]").fill("Why two?")
        user.tab.get_by_role("button", name="Send").click()
        user.tab.get_by_text("Sent to").wait_for()
        user.tab.locator("input[name=check]").fill("test -f new.txt")
        user.tab.get_by_role("button", name="Merge it into the workspace").click()
        user.tab.get_by_text(re.compile("merged wt/parser into main")).wait_for()
        user.tab.get_by_text("It has no changes").wait_for()
        user.close()
    assert (command.workspace / "new.txt").read_text() == "one\ntwo\n"
    assert "Merge wt/parser" in run_git(command.workspace, "log", "-1", "--format=%s")


def test_a_new_session_runs_to_its_end_in_a_serving_host(command: Command, chromium: Any) -> None:
    model = command.scenario("agents:\n  lead:\n    - repeat: forever\n      reply: It is mended.\n")
    with serving(command) as page, started(command, "serve", "--model", model):
        user = Tab(chromium, page)
        user.show("/new")
        user.tab.locator("textarea[name=prompt]").fill("Mend it.")
        user.tab.locator("input[name=model]").fill(model)
        notes = {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"Use slate.\n"}
        user.tab.locator("input[type=file]").set_input_files([notes])
        user.tab.get_by_role("button", name="Start").click()
        user.tab.get_by_role("link", name="show the session").click()
        user.tab.get_by_role("link", name="lead").first.click()
        user.tab.get_by_text("It is mended.", exact=True).wait_for()
        user.tab.get_by_text("attachments/notes.txt").first.wait_for()
        user.close()
    assert (command.workspace / "attachments" / "notes.txt").read_text() == "Use slate.\n"


def test_a_session_of_100_agents_and_10_000_events_is_shown_and_followed(command: Command, chromium: Any) -> None:
    # In a process: this thread has the event loop of Chromium.
    done = subprocess.run([sys.executable, "-c", WRITE], cwd=command.workspace, env=writing_env(command), check=False)
    assert done.returncode == 0
    with serving(command) as page:
        user = Tab(chromium, page, viewport={"width": 360, "height": 740})
        for path in ("/sessions/s1", "/sessions/s1/cost", "/sessions/s1/decisions", "/sessions/s1/agents/lead"):
            user.show(path)
            assert user.tab.evaluate("document.documentElement.scrollWidth") == 360, path
        user.show("/sessions/s1")
        user.tab.get_by_text("None of them can continue before another does.").wait_for()
        user.tab.keyboard.press("Tab")
        user.tab.locator("select[name=agent]").first.select_option("agent-050")
        user.tab.locator("#talk textarea").fill("Use slate.")
        user.tab.get_by_role("button", name="Send", exact=True).click()
        user.tab.get_by_text("Sent to agent-050").wait_for()
        user.close()

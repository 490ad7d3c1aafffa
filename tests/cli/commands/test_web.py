"""The web in sessions: pages by rules for their hosts, and searches by the model service or a command."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.cli.commands.command import Command

SCENARIO = """
agents:
  lead:
    - reply:
        - I look it up.
        - web_search: {query: first release}
      stop_reason: pause_turn
    - reply:
        - web_search_results:
            - {title: History, url: 'https://example.org/history', page_age: June 2020}
        - It was in 2020. I read the notes.
        - tool_use: {name: read_file, input: {path: notes.txt}}
    - when: {contains: in 2020}
      reply:
        - web_search: {query: second release, results: [{title: More, url: 'https://example.org/more'}]}
        - Both are known.
    - when: {contains: again}
      reply: Nothing was lost.
"""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


def settings(command: Command, text: str) -> None:
    folder = command.workspace.parent / "config" / "callboard"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "settings.yaml").write_text(text)


@pytest.mark.slow
def test_what_the_service_found_goes_back_unchanged_through_a_pause_a_call_and_a_resume(command: Command) -> None:
    """The emulator refuses a request whose results differ from those that it sent, or lack their search."""
    settings(command, "search: {by: service, allowed_domains: [example.org]}\n")
    (command.workspace / "notes.txt").write_text("in 2020\n")
    model = ("--model", command.scenario(SCENARIO))
    ran = command.run_inline("run", "When was it?", *model, "--allowed-tools", "WebSearch", "--output-format", "json")
    assert ran.code == 0, ran.err
    result = json.loads(ran.out)
    assert result["result"] == "Both are known."
    assert result["total_cost_usd"] >= 0.02, "two searches are billed"
    resumed = command.run_inline("run", "--continue", "Once again", *model, "--allowed-tools", "WebSearch")
    assert (resumed.code, resumed.out) == (0, "Nothing was lost.\n"), resumed.err


def test_without_a_rule_the_service_does_not_search(command: Command) -> None:
    settings(command, "search: {by: service}\n")
    ran = command.run_inline("run", "When was it?", "--model", command.scenario(SCENARIO))
    assert ran.code != 0
    assert "web_search" in ran.err, "the scenario calls a tool that was not offered"


@pytest.mark.parametrize(("by", "advice"), [("service", "rule WebSearch"), ("off", "set search.command")])
def test_an_agent_that_names_the_tool_loads_without_it_and_says_so_once(command: Command, by: str, advice: str) -> None:
    settings(command, f"search: {{by: {by}}}\n")
    agents = command.workspace.parent / ".claude" / "agents"
    agents.mkdir(parents=True)
    (agents / "searcher.md").write_text("---\nname: searcher\ndescription: d\ntools: Read, WebSearch\n---\nSearch.\n")
    ran = command.run_inline("run", "Hi", "--model", command.scenario("agents: {lead: [{reply: Hello.}]}"))
    assert ran.out == "Hello.\n", ran.err
    assert ran.err.count("WebSearch is not offered to agents of the type searcher") == 1
    assert advice in ran.err


FETCHING = """
agents:
  lead:
    - reply: [{tool_use: {name: web_fetch, input: {url: 'http://127.0.0.1:PORT/page', prompt: what it says}}}]
    - when: {contains: 'The answer is 42'}
      reply: It is 42.
    - when: {contains: 'only an allow rule'}
      reply: I may not look.
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rules", "answer"), [(["WebFetch(domain:127.0.0.1)"], "It is 42.\n"), (["WebFetch"], "I may not look.\n")]
)
def test_a_session_fetches_from_this_machine_only_by_a_rule_for_that_host(
    command: Command, rules: list[str], answer: str
) -> None:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<p>The answer is 42.</p>")

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        model = command.scenario(FETCHING.replace("PORT", str(server.server_port)))
        ran = command.run_inline("run", "What is it?", "--model", model, "--allowed-tools", *rules)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert ran.out == answer, ran.err


def test_a_workspace_cannot_set_the_command_that_searches(command: Command) -> None:
    (command.workspace / ".callboard").mkdir()
    (command.workspace / ".callboard" / "settings.yaml").write_text("search: {command: [sh, -c, 'touch /tmp/x']}\n")
    ran = command.run_inline("run", "Hi", "--trust", "--model", command.scenario("agents: {lead: [{reply: Hello.}]}"))
    assert ran.code == 3
    assert "a workspace may not set this" in ran.err

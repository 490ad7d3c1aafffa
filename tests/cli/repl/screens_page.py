"""The page `docs/screens.md`: ten situations of the real command in a pseudo-terminal, at two sizes.

Run `PYTHONPATH=. .venv/bin/python tests/cli/repl/screens_page.py` to write the page anew; `test_screens.py` compares.
Ids, times, and token counts differ from run to run: their digits and letters are replaced by fixed ones of the same
width.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cli.commands.command import Command
from tests.cli.repl.pty_screen import PtyScreen

PAGE = Path(__file__).resolve().parents[3] / "docs" / "screens.md"
SIZES = ((80, 24), (120, 40))
HEAD = """# Screens

Ten situations at the prompt line, in terminals of 80 by 24 and 120 by 40 characters. A test runs the real command in a
pseudo-terminal, with a [rehearsed](rehearsal.md) model, and compares these captures with it
(`tests/cli/repl/screens_page.py`). Ids, times, and token counts are replaced by fixed ones. [The
terminal](terminal.md) explains what you see.
"""

SCENARIO = r"""
agents:
  lead:
    - when: {contains: How is the parser tested}
      reply:
        - text: I look at the tests first.
        - tool_use: {name: read_file, input: {path: test_parse.py}}
    - when: {result_of: read_file, contains: assert}
      reply:
        - tool_use: {name: glob, input: {pattern: "*"}}
    - when: {result_of: glob}
      reply: |-
        One test covers it:

        - `test_parse.py` splits a line with one comma.
        - Nothing covers quoted fields, so `"a,b",c` would be split in the wrong place, and no test would fail.
    - when: {contains: Run the tests}
      reply:
        - tool_use: {name: bash, input: {command: make check}}
    - when: {contains: Handle quotes}
      reply:
        - tool_use: {name: read_file, input: {path: parse.py}}
    - when: {result_of: read_file, contains: yield}
      reply:
        - tool_use:
            name: edit_file
            input:
              path: parse.py
              old_text: "        yield line.split(\",\")"
              new_text: "        yield next(csv.reader([line]))"
    - when: {contains: Plan it}
      reply:
        - tool_use:
            name: submit_plan
            input:
              plan: |-
                # Handle quoted fields
                1. add a test with a quoted comma
                2. read lines with the csv module
                3. run the tests
              options: [keep the generator, return a list]
    - when: {contains: Which format}
      reply:
        - tool_use:
            name: ask_person
            input: {question: Which format shall the export use?, options: [CSV, JSON lines]}
    - when: {contains: Start the team}
      reply:
        - text: I start six subagents.
        - tool_use: {name: task, input: {agent_type: explore, description: Audit parser, prompt: "Audit parser."}}
        - tool_use: {name: task, input: {agent_type: explore, description: Audit writer, prompt: "Audit writer."}}
        - tool_use: {name: task, input: {agent_type: explore, description: Audit tests, prompt: "Audit tests."}}
        - tool_use: {name: task, input: {agent_type: explore, description: Audit documents, prompt: "Audit documents."}}
        - tool_use: {name: task, input: {agent_type: explore, description: Audit build, prompt: "Audit build."}}
        - tool_use: {name: task, input: {agent_type: explore, description: Audit names, prompt: "Audit names."}}
    - when: {contains: Ask one}
      reply:
        - tool_use:
            name: task
            input: {agent_type: explore, description: Find quotes, prompt: Where are quotes handled?}
    - when: {result_of: task}
      reply: Quotes are not handled anywhere.
    - when: {contains: Say hello}
      reply: Hello.
      fault: {status: 400, message: the request was malformed}
    - otherwise: true
      reply: I see.
  explore-*:
    - when: {contains: Audit}
      reply: Nothing wrong here.
      latency_ms: 600000
    - otherwise: true
      reply: Nowhere. parse.py splits at every comma.
"""


@dataclass(frozen=True)
class Situation:
    """Title, what the person types, what the screen shows then, and the options of the command."""

    title: str
    play: Callable[[PtyScreen], None]
    args: tuple[str, ...] = ()


def _typed(text: str, pattern: str) -> Callable[[PtyScreen], None]:
    def play(screen: PtyScreen) -> None:
        screen.type(f"{text}\r")
        screen.wait(pattern)

    return play


def _first(screen: PtyScreen) -> None:
    screen.wait(r"1 idle")


def _team(screen: PtyScreen) -> None:
    screen.type("Start the team\r")
    screen.wait(r"(?s)I start six.*^lead .*waits for 6 subagents.*^explore 1 .*^explore 5 .*^explore 6 [^\n]*thinks")


def _leaving(screen: PtyScreen) -> None:
    _team(screen)
    screen.type("\x04")
    screen.wait(r"Ctrl-D again")


ALLOW = r"allow this\? .*> ?$"
SITUATIONS = (
    Situation("The first screen", _first),
    Situation("A turn with tools", _typed("How is the parser tested?", r"(?s)no test would fail.*idle"), ()),
    Situation("A permission", _typed("Run the tests", ALLOW)),
    Situation("An edit with its diff", _typed("Handle quotes", ALLOW)),
    Situation("A plan", _typed("Plan it", r"approve this plan\? .*> ?$"), ("--permission-mode", "plan")),
    Situation("A question with choices", _typed("Which format?", r"your answer \[.*> ?$")),
    Situation("A team of six at work", _team),
    Situation("A finished team run", _typed("Ask one", r"(?s)not handled anywhere.*idle")),
    Situation("An error of the model service", _typed("Say hello", r"(?s)turn ended.*idle")),
    Situation("Ctrl-D with agents at work", _leaving),
)


@contextmanager
def opened(situation: Situation, columns: int, rows: int) -> Generator[tuple[PtyScreen, Path]]:
    """Open the command in a workspace whose path has the same length in each run."""
    with tempfile.TemporaryDirectory(prefix="x", dir="/tmp") as folder:
        command = Command(Path(folder))
        (command.workspace / "Makefile").write_text("check:\n\tpython3 -m unittest\n")
        (command.workspace / "parse.py").write_text(
            'import csv\n\n\ndef rows(text):\n    for line in text.splitlines():\n        yield line.split(",")\n'
        )
        (command.workspace / "test_parse.py").write_text('assert list(rows("a,b")) == [["a", "b"]]\n')
        args = ("--model", command.scenario(SCENARIO), *situation.args)
        screen = PtyScreen(command, *args, columns=columns, rows=rows)
        try:
            screen.wait(r"^> ?$")
            yield screen, Path(folder)
        finally:
            screen.close()


def capture(situation: Situation, columns: int, rows: int) -> str:
    """Return the window in this situation, without its empty last rows."""
    with opened(situation, columns, rows) as (screen, folder):
        situation.play(screen)
        before = ""
        # The window is complete when two looks are the same; nothing else says that no output is on its way.
        while (now := fixed("\n".join(screen.rows_now()), folder)) != before:
            before = now
            time.sleep(1)
    return now.rstrip("\n")


def fixed(text: str, folder: Path) -> str:
    """Return the text with fixed ids, times, counts, and paths in place of those of this run."""
    text = text.replace(str(folder), "/home/me".ljust(len(str(folder)), "0"))
    text = re.sub(r"\b(req|bg|task|cron|env)_[a-z0-9]{12}\b", lambda match: f"{match[1]}_" + "a2b3c4d5e6f7", text)
    text = re.sub(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "01234567-89ab-4cde-8f01-23456789abcd", text)
    text = re.sub(r"\b\d+(\.\d)? s\b", lambda match: "9 s".rjust(len(match[0]), " "), text)
    text = re.sub(
        r"\d[\d,.]*k?(?= (tokens|in|out|cached|% cached)\b)", lambda match: re.sub(r"\d", "9", match[0]), text
    )
    text = re.sub(r"\d+ % cached", "99 % cached", text)
    return re.sub(r"\$\d+\.\d\d", "$0.09", text)


def page() -> str:
    """Return the whole page."""
    with ThreadPoolExecutor(4) as pool:  # each capture waits for another process most of the time
        return "\n".join([HEAD, *pool.map(section, SITUATIONS)])


def section(situation: Situation) -> str:
    """Return the part of the page about one situation."""
    parts = [f"## {situation.title}\n"]
    for columns, rows in SIZES:
        parts.append(f"{columns} by {rows}:\n\n```text\n{capture(situation, columns, rows)}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

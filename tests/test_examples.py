"""Every example of README and docs runs as it stands: one test a page, its blocks in order, in one folder.

How a page marks its blocks, and what it may need beyond its text, is told in docs/README.md, "Examples on these pages".
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.examples import compared, kinds
from tests.examples.folder import STAND_INS, Folder
from tests.examples.pages import ROOT, Block, blocks_of, pages

PAGES = pages()
DRAWINGS = {
    "budgets": "who spends from whose budget",
    "many-machines": "commands for a server, which tests/cli/commands/test_store.py gives, and a file for docker",
    "requests": "the states of a request, and a question",
    "screens": "captures of the prompt line, which tests/cli/repl/test_screens.py compares",
    "tasks": "the states of a task",
    "team": "the states of a task",
    "terminal": "the list of a team at work",
}
"""Pages with a `text` block, and what it draws: nothing of it can be run."""
SLOW = {"bus", "context", "cost", "demo", "mcp", "memory", "model", "plans", "plugins", "policy", "python", "rehearsal"}
SLOW |= {"schedules", "serve", "settings", "skills", "store", "testing", "tutorial", "workflows"}
SLOW |= {"from-crewai", "from-langgraph", "from-openai-agents", "headless"}
"""Pages whose examples start many commands and sessions. README and the short ones always run."""


def blocks(page: str) -> list[Block]:
    found, wrong = blocks_of(page, PAGES[page].read_text("utf-8"))
    assert wrong == []
    return found


def run(folder: Folder, block: Block, before: str) -> str:
    """Run or check one block: what it prints. `before`: what the block before it printed."""
    if block.language == "sh":
        return folder.shell(folder.with_ids(block.text), str(block))
    if block.language == "console":
        return session(folder, block)
    if block.language == "python" and not block.info:
        return folder.python(block)
    if block.language == "jsonl":
        assert not kinds.lines_of(block)
    elif (ROOT / block.info).is_file() and block.info.endswith(".py"):
        assert block.text.strip() in (ROOT / block.info).read_text("utf-8"), f"{block}: not what stands in {block.info}"
    elif block.language == "text":
        drawn(folder, block, before)
    else:
        wrong = kinds.errors_in(folder, block, folder.write(block.info, block.text))
        assert not wrong, f"{block}: {wrong}"
    return ""


def session(folder: Folder, block: Block) -> str:
    """Commands and what they print: each `$ ` line is run, and what stands beneath it is compared."""
    script: list[list[str]] = []
    shown: list[str] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            script.append([line[2:], ""])
            shown.append("")
        elif line.startswith("> "):
            script[-1][1] += f"{line[2:]}\n"
        elif script[-1][0].endswith("\\"):
            script[-1][0] += f"\n{line}"
        else:
            shown[-1] += f"{line}\n"
    pieces = [f"{words} <<'INPUT'\n{given}INPUT" if given else words for words, given in script]
    # A command that is shown may fail: what it prints, and the exit code that it says, is what the page shows.
    names = {folder.home: "/home/me"}
    printed = ""
    for piece, expected in zip(pieces, shown, strict=True):
        words = folder.with_ids(piece)
        said = folder.shell(f"{{ {words}\n}} || true", str(block))
        printed += said
        differs = compared.difference(expected, said, names)
        assert not differs, f"{block}: {words}\n{differs}"
    return printed


def drawn(folder: Folder, block: Block, before: str) -> None:
    """What the block before printed, or a drawing that is named here."""
    if block.info == "output":
        differs = compared.difference(block.text, before, {folder.home: "/home/me"})
        assert not differs, f"{block}\n{differs}"
    else:
        assert block.page in DRAWINGS, f"{block}: text that nothing runs: make it an example, or say here what it draws"


SANDBOXED = ("headless", "tutorial")
"""Pages that show all that a session prints on a machine with a whole sandbox."""


@pytest.mark.parametrize("page", [pytest.param(page, marks=pytest.mark.slow if page in SLOW else ()) for page in PAGES])
def test_every_example_of_a_page_runs_as_it_stands(page: str, tmp_path: Path) -> None:
    found = blocks(page)
    if not found:
        return
    if page in SANDBOXED and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed, and a session says so among what the page shows")
    with Folder(page, tmp_path) as folder:
        said = ""
        for block in found:
            said = run(folder, block, said)
        unused = set(folder.config.commands) - set(folder.server.ran)
        assert not unused, f"{page}.yaml names commands that the page does not run: {sorted(unused)}"


def test_programs_that_no_example_starts_are_named_with_a_reason() -> None:
    used = {
        word
        for page in PAGES
        for block in blocks(page)
        if block.language in ("sh", "console")
        for word in block.text.split()
    }
    assert [name for name in STAND_INS if name not in {*used, "systemctl"}] == []


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("a\nb\n", "a\n"),
        ("a\n", "a\nb\n"),
        ("TASK  OWNER\n", "OWNER  TASK\n"),
        ("approved … by ada\n", "approved req_abc by bob\n"),
        ("first\n...\nlast\n", "first\nbetween\n"),
    ],
)
def test_an_output_that_is_another_one_is_told(shown: str, printed: str) -> None:
    assert compared.difference(shown, printed, {})


def test_ids_times_and_numbers_of_another_run_are_forgiven() -> None:
    shown = "req_pxwfjyatwmrz  plan  alice  2    2026-11-21 19:31:33\n...\ntakes … tokens\n"
    printed = "req_aaaaaaaaaaaa  plan  alice  14  2027-01-02 03:04:05\nx\ny\ntakes 1,234 of 99 tokens\n"
    assert compared.difference(shown, printed, {}) == ""


def test_a_commit_id_of_digits_alone_is_a_commit_id() -> None:
    assert compared.difference("at commit 64fbef54f4\n", "at commit 8688457022\n", {}) == ""

"""Tab completes the text before the cursor from the session's names."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from callboard.cli.repl.input import (
    MOST_SHOWN,
    CompletionChoice,
    CompletionNames,
    Files,
    LineCompleter,
    files_for,
    offers,
)
from callboard.cli.repl.prompt_line import wants_menu
from callboard.cli.slash.registry import COMMANDS

NAMES = CompletionNames(
    {name: (one.words, one.help) for name, one in COMMANDS.items()},
    [CompletionChoice("lead", "idle"), CompletionChoice("alice", "working")],
    [CompletionChoice("req_abc", "plan of alice: Build it"), CompletionChoice("req_xyz", "permission of lead: run rm")],
)


def offered_words(before: str) -> list[str]:
    return [one.word for one in offers(before, NAMES)[1]]


@pytest.mark.parametrize(
    ("before", "found"),
    [
        ("/appr", ["/approve"]),
        ("/approve ", ["req_abc", "req_xyz"]),
        ("/reject req_x", ["req_xyz"]),
        ("/stop a", ["alice"]),
        ("/new -", ["--carry"]),
        ("@", ["@lead", "@alice"]),
        ("tell @al", ["@alice"]),
        ("a word", []),
        ("first\n/te", []),
        ("/nothing ", []),
    ],
)
def test_what_is_offered(before: str, found: list[str]) -> None:
    assert offered_words(before) == found


def test_every_command_is_offered_with_its_help() -> None:
    assert [one.word for one in offers("/", NAMES)[1]] == [f"/{name}" for name in COMMANDS]
    assert all(one.meta for one in offers("/", NAMES)[1])


def test_files_begin_with_those_whose_name_or_path_begins_so() -> None:
    files = ["docs/src.md", "src/main.py", "tests/test_src_main.py", *[f"many/file_{at}.txt" for at in range(200)]]
    assert [one.word for one in files_for("@src", files)] == ["@docs/src.md", "@src/main.py", "@tests/test_src_main.py"]
    assert len(files_for("@many", files)) == MOST_SHOWN


@pytest.mark.parametrize(
    ("before", "menu"), [("/", True), ("/te", True), ("/team x", False), ("say @s", True), ("a@b", False), ("@", False)]
)
def test_when_the_menu_opens_by_itself(before: str, menu: bool) -> None:
    assert wants_menu(before) is menu


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_agents_come_before_files_and_what_git_ignores_is_not_offered(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("*.log\n")
    for name in ("alpha.py", "alpha.log", "bad\x1b[2J.py", "with blank.py"):
        (tmp_path / name).touch()
    os.mkfifo(tmp_path / "alpipe")
    completer = LineCompleter(lambda: NAMES, Files(tmp_path))
    asked = completer.get_completions_async(Document("look at @al"), CompleteEvent())
    with anyio.fail_after(180):
        found = [one.text async for one in asked]
    assert found == ["@alice", "@alpha.py"]


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_workspace_that_cannot_be_read_offers_no_files(tmp_path: Path) -> None:
    assert list(await Files(tmp_path / "gone").list_paths()) == []

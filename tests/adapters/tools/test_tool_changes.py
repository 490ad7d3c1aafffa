"""The file tools change only files that the agent has read, whole or not at all, and report it after a crash."""

from __future__ import annotations

import hashlib
import os
import signal
import stat
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.adapters.shell.outside_world import OutsideWorld, text_of

from callboard.adapters.tools.files import file_tools
from callboard.adapters.tools.text_edits import describe_change, replace_text
from callboard.types.errors import ToolRefused
from callboard.types.events import FileSeen

pytestmark = pytest.mark.anyio

READ, WRITE, EDIT, MULTI = file_tools()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def world(tmp_path: Path) -> OutsideWorld:
    return OutsideWorld(tmp_path)


def sha(content: str | bytes) -> str:
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


async def test_a_new_file_is_made_with_its_folders(world: OutsideWorld) -> None:
    outcome = await world.run(WRITE, path="a/b/c.txt", content="one\ntwo\n")
    path = world.root / "a/b/c.txt"
    assert path.read_text() == "one\ntwo\n"
    assert text_of(outcome) == "Made a/b/c.txt (2 lines, 8 bytes)."
    (seen,) = outcome.events
    assert isinstance(seen, FileSeen)
    assert (seen.path, seen.digest, seen.changed) == (str(path), sha("one\ntwo\n"), True)
    assert not [one for one in path.parent.iterdir() if one != path], "no temporary file is left"


async def test_a_file_that_was_not_read_is_not_overwritten(world: OutsideWorld) -> None:
    path = world.write("a.txt", "theirs\n")
    outcome = await world.run(WRITE, path="a.txt", content="mine\n")
    assert "have not read it" in text_of(outcome)
    assert path.read_text() == "theirs\n"
    await world.run(READ, path="a.txt")
    assert not (await world.run(WRITE, path="a.txt", content="mine\n")).is_error
    assert path.read_text() == "mine\n"


async def test_what_changed_since_it_was_read_is_not_changed(world: OutsideWorld) -> None:
    path = world.write("a.txt", "one\n")
    await world.run(READ, path="a.txt")
    path.write_text("one more\n")
    for tool, fields in ((WRITE, {"content": "mine\n"}), (EDIT, {"old_text": "one", "new_text": "two"})):
        assert "has changed since you read it" in text_of(await world.run(tool, path="a.txt", **fields))
    assert path.read_text() == "one more\n"


async def test_the_agents_own_changes_need_no_new_reading(world: OutsideWorld) -> None:
    await world.run(WRITE, path="a.txt", content="one\n")
    await world.run(EDIT, path="a.txt", old_text="one", new_text="two")
    await world.run(WRITE, path="a.txt", content="three\n")
    assert (world.root / "a.txt").read_text() == "three\n"


async def test_an_edit_keeps_the_mode_and_shows_a_diff(world: OutsideWorld) -> None:
    path = world.write("run.sh", "".join(f"line {number}\n" for number in range(1, 21)))
    path.chmod(0o750)
    outcome = await world.run(EDIT, path="run.sh", old_text="line 10\n", new_text="line ten\nand more\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o750
    assert text_of(outcome) == (
        "Edited run.sh:\n--- run.sh\n+++ run.sh\n@@ -7,7 +7,8 @@\n line 7\n line 8\n line 9\n-line 10\n+line ten\n"
        "+and more\n line 11\n line 12\n line 13"
    )


async def test_text_that_stands_twice_needs_replace_all(world: OutsideWorld) -> None:
    path = world.write("a.txt", "x = 1\ny = 2\nx = 1\n")
    told = text_of(await world.run(EDIT, path="a.txt", old_text="x = 1", new_text="x = 3"))
    assert "occurs 2 times" in told
    assert "(lines 1, 3)" in told
    await world.run(EDIT, path="a.txt", old_text="x = 1", new_text="x = 3", replace_all=True)
    assert path.read_text() == "x = 3\ny = 2\nx = 3\n"


@pytest.mark.parametrize(
    ("old", "said"),
    [
        ("def f( ):\n    return 1", "Line 2 has the same words with other white space"),
        ("def fun():", "The nearest is line 2: def f():"),
        ("@@@", "Read the file again"),
        ("", "old_text is empty"),
    ],
)
async def test_an_edit_that_misses_says_where_it_nearly_stood(world: OutsideWorld, old: str, said: str) -> None:
    world.write("a.py", "\ndef f():\n\treturn 1\n" if "( )" not in old else "\ndef f( ):\n\treturn 1\n")
    assert said in text_of(await world.run(EDIT, path="a.py", old_text=old, new_text="x"))


@pytest.mark.parametrize("name", [".env", "missing.txt", "../outside.txt"])
async def test_a_preview_tells_nothing_of_a_file_that_the_agent_has_not_read(world: OutsideWorld, name: str) -> None:
    """A refusal before the question would quote the nearest line, or say whether the file exists."""
    world.write(".env", "PASSWORD=hunter2\n")
    change = {"path": name, "old_text": "PASSWORD=guess", "new_text": "x"}
    assert await EDIT.preview(change, world.context()) == ""
    assert (
        await MULTI.preview({"path": name, "edits": [{"old_text": "PASSWORD=guess", "new_text": "x"}]}, world.context())
        == ""
    )
    assert await WRITE.preview({"path": name, "content": "x"}, world.context()) == ""


async def test_a_change_that_does_not_fit_a_file_that_was_read_is_refused_before_the_question(
    world: OutsideWorld,
) -> None:
    world.write("a.txt", "one\ntwo\n")
    await world.run(READ, path="a.txt")
    with pytest.raises(ToolRefused, match="not found"):
        await EDIT.preview({"path": "a.txt", "old_text": "three", "new_text": "x"}, world.context())
    assert "+three" in await EDIT.preview({"path": "a.txt", "old_text": "two", "new_text": "three"}, world.context())


async def test_a_file_that_does_not_exist_is_not_edited(world: OutsideWorld) -> None:
    assert "does not exist" in text_of(await world.run(EDIT, path="no/a.txt", old_text="a", new_text="b"))
    assert not (world.root / "no").exists()


async def test_windows_line_ends_and_marks_of_order_stay(world: OutsideWorld) -> None:
    path = world.write("a.txt", "\ufeffone\r\ntwo\r\nthree\r\n")
    assert not (await world.run(EDIT, path="a.txt", old_text="two\nthree", new_text="2\n3")).is_error
    assert path.read_bytes() == "\ufeffone\r\n2\r\n3\r\n".encode()


async def test_a_file_that_is_no_utf8_is_not_edited(world: OutsideWorld) -> None:
    path = world.write("a.txt", b"caf\xe9\n")
    assert "not UTF-8" in text_of(await world.run(EDIT, path="a.txt", old_text="caf", new_text="b"))
    assert path.read_bytes() == b"caf\xe9\n"


async def test_two_agents_never_lose_each_others_edit(world: OutsideWorld) -> None:
    path = world.write("a.txt", "".join(f"<{number}>\n" for number in range(30)))

    async def edit(number: int) -> None:
        context = world.context()
        await EDIT.run({"path": "a.txt", "old_text": f"<{number}>", "new_text": f"[{number}]"}, context)

    async with anyio.create_task_group() as group:
        for number in range(30):
            group.start_soon(edit, number)
    assert path.read_text() == "".join(f"[{number}]\n" for number in range(30))


async def test_a_write_that_fails_leaves_the_old_content(world: OutsideWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    path = world.write("a.txt", "old\n")
    await world.run(READ, path="a.txt")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "disk is full" in text_of(await world.run(WRITE, path="a.txt", content="new\n"))
    assert path.read_text() == "old\n"
    assert [one.name for one in world.root.iterdir()] == ["a.txt"]


# After a crash


@pytest.mark.parametrize("tool", [WRITE, EDIT])
async def test_a_cut_change_is_told_by_the_content_that_is_there(world: OutsideWorld, tool: Any) -> None:
    path = world.write("a.txt", "one\n")
    await world.run(READ, path="a.txt")
    fields = {"content": "two\n"} if tool is WRITE else {"old_text": "one", "new_text": "two"}
    change = {"path": "a.txt", **fields}
    context = world.context()
    marks = await tool.prepare(change, context)
    assert (marks["before"], marks["after"]) == (sha("one\n"), sha("two\n"))
    assert await tool.repair(change, marks, context) is None, "not done: it is run again"
    done = await tool.run(change, context)
    repaired = await tool.repair(change, marks, context)
    assert repaired == done
    path.write_text("three\n")
    neither = await tool.repair(change, marks, context)
    assert neither is not None
    assert neither.is_error
    assert "somebody else" in text_of(neither)
    assert path.read_text() == "three\n"


_DIES_AT_THE_RENAME = """
import os, signal, sys
from callboard.adapters.system.regular_files import part_name, write_in_folder
os.rename = lambda *paths, **folders: os.kill(os.getpid(), signal.SIGKILL)
folder = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY)
write_in_folder(folder, "a.txt", b"two\\n", mode=None, part=part_name("a.txt", sys.argv[2]))
"""


async def test_a_kill_while_a_file_is_written_leaves_nothing_beside_it_after_the_repair(world: OutsideWorld) -> None:
    path = world.write("a.txt", "one\n")
    await world.run(READ, path="a.txt")
    change = {"path": "a.txt", "content": "two\n"}
    context = world.context("call_cut_off")
    marks = await WRITE.prepare(change, context)
    command = [sys.executable, "-c", _DIES_AT_THE_RENAME, str(world.root), context.call]
    died = await anyio.run_process(command, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert len(list(world.root.iterdir())) == 2, "the kill left a temporary file"
    assert await WRITE.repair(change, marks, context) is None, "not done: it is run again"
    assert list(world.root.iterdir()) == [path]


async def test_a_cut_making_of_a_file_is_told_too(world: OutsideWorld) -> None:
    change = {"path": "new/a.txt", "content": "one\n"}
    context = world.context()
    marks = await WRITE.prepare(change, context)
    assert marks["before"] == ""
    assert not (world.root / "new").exists(), "preparing has no effect"
    assert await WRITE.repair(change, marks, context) is None
    done = await WRITE.run(change, context)
    assert await WRITE.repair(change, marks, context) == done


def test_calls_on_one_file_share_a_key_however_they_spell_it(world: OutsideWorld) -> None:
    world.write("a/b.txt", "x")
    (world.root / "link").symlink_to("a")
    folders = world.context().folders
    spellings = ["a/b.txt", "./a//b.txt", "link/b.txt", "a/../link/b.txt", str(world.root / "a/b.txt")]
    keys = {tool.key({"path": path}, folders) for tool in file_tools() for path in spellings}
    assert keys == {str(world.root / "a/b.txt")}
    odd = ["", "a\0b", "\ud800", "x" * 5_000, "/etc/passwd", "~/x", 7, None]
    for tool in file_tools():
        assert all(isinstance(tool.key({"path": path}, folders), str) for path in odd), "a refused call has a key too"
        assert tool.key({}, folders) == ""
    assert WRITE.spec.effect == EDIT.spec.effect == "reconcile"


# Functions on texts


@given(st.text("ab\n", max_size=40), st.text("ab\n", min_size=1, max_size=4), st.text("ab\n", max_size=4))
@settings(max_examples=200)
def test_an_edit_changes_exactly_one_place_or_none(content: str, old: str, new: str) -> None:
    try:
        changed = replace_text(content, old, new, everywhere=False, name="f")
    except ToolRefused:
        assert content.count(old) != 1 or old == new
        return
    place = content.index(old)
    assert changed == content[:place] + new + content[place + len(old) :]


@given(st.lists(st.sampled_from("abc"), max_size=12), st.lists(st.sampled_from("abc"), max_size=12))
@settings(max_examples=200)
def test_a_diff_leads_from_the_old_lines_to_the_new(old: list[str], new: list[str]) -> None:
    shown = describe_change("".join(f"{x}\n" for x in old), "".join(f"{x}\n" for x in new), "f").split("\n")
    if old == new:
        assert shown == ["(only line ends changed)"]
        return
    rebuilt, place = [], 0
    for line in shown[2:]:
        if line.startswith("@@"):
            start, _, count = line.split()[1][1:].partition(",")
            upto = int(start) if count == "0" else int(start) - 1
            rebuilt += old[place:upto]
            place = upto
        elif line[0] in " -":
            assert line[1:] == old[place]
            place += 1
        if line[0] in " +" and not line.startswith("@@"):
            rebuilt.append(line[1:])
    assert rebuilt + old[place:] == new


# Several edits at once


async def test_several_edits_are_made_in_order_and_written_once(world: OutsideWorld) -> None:
    path = world.write("a.txt", "one\ntwo\ntwo\n")
    edits = [
        {"old_text": "one", "new_text": "three"},
        {"old_text": "three", "new_text": "four"},
        {"old_text": "two", "new_text": "2", "replace_all": True},
    ]
    outcome = await world.run(MULTI, path="a.txt", edits=edits)
    assert path.read_text() == "four\n2\n2\n"
    assert text_of(outcome).startswith("Edited a.txt:\n--- a.txt")
    assert "three" not in text_of(outcome), "one diff from the first text to the last"


async def test_if_one_edit_does_not_fit_none_is_made(world: OutsideWorld) -> None:
    path = world.write("a.txt", "one\n")
    edits = [{"old_text": "one", "new_text": "two"}, {"old_text": "one", "new_text": "three"}]
    outcome = await world.run(MULTI, path="a.txt", edits=edits)
    assert text_of(outcome).startswith("edit 2: old_text was not found in a.txt.")
    assert text_of(outcome).endswith("None of the edits was made.")
    assert path.read_text() == "one\n"


async def test_an_empty_first_text_makes_a_file_and_never_replaces_one(world: OutsideWorld) -> None:
    edits = [{"old_text": "", "new_text": "one\n"}, {"old_text": "one", "new_text": "two"}]
    outcome = await world.run(MULTI, path="new/a.txt", edits=edits)
    assert (world.root / "new/a.txt").read_text() == "two\n"
    assert text_of(outcome) == "Made new/a.txt (1 lines, 4 bytes)."
    assert (await world.run(MULTI, path="new/a.txt", edits=edits)).is_error
    assert (world.root / "new/a.txt").read_text() == "two\n"


async def test_edits_that_a_crash_cut_off_are_found_done_or_made_again(world: OutsideWorld) -> None:
    world.write("a.txt", "one\n")
    change = {"path": "a.txt", "edits": [{"old_text": "one", "new_text": "two"}]}
    context = world.context()
    marks = await MULTI.prepare(change, context)
    assert await MULTI.repair(change, marks, context) is None
    done = await MULTI.run(change, context)
    assert await MULTI.repair(change, marks, context) == done

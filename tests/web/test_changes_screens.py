"""Worktrees on the page: their changes, comments to their agents, and the merge."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.adapters.git.worktree_world import LEAD, Trees
from tests.web.page_client import Page, opened_page
from tests.web.test_inert import HOSTILE, check_inert

from callboard.adapters.git.diffs import MOST_LINES, parsed_diff
from callboard.core.keys import agent_key, mailbox, session_key, task_key
from callboard.ports.store import Put
from callboard.ports.worktrees import DiffLine, WorktreeActor
from callboard.types.records import AgentRow, Envelope, SessionRow, Task

ALICE = WorktreeActor("alice", "s1")
PATH = "/changes/parser"


async def parser_tree(folder: Path) -> Trees:
    """Return a workspace with the worktree `parser` of alice: a commit, a change, and a new file."""
    trees = Trees(folder)
    await trees.store.commit(Put(session_key("s1"), SessionRow(id="s1", workspace="/w", created_at=1.0).encode()))
    for name, kind in (("lead", "lead"), ("alice", "teammate")):
        tree = "parser" if name == "alice" else ""
        row = AgentRow.model_validate({"name": name, "kind": kind, "created_at": 1.0, "life": "idle", "worktree": tree})
        await trees.store.commit(Put(agent_key("s1", name), row.encode()))
    task = Task(id="task_a", subject="Parse", worktree="parser", check="test -f new.txt")
    await trees.store.commit(Put(task_key("s1", task.id), task.encode()))
    await trees.keeper.create("parser", ALICE)
    trees.commit("parser", "b.txt", "b2\n")
    (trees.root / "parser" / "a.txt").write_text("one\n2\nthree\n")
    (trees.root / "parser" / "new.txt").write_text("new\n")
    return trees


async def mail_of(page: Page, agent: str) -> list[Envelope]:
    return [Envelope.model_validate_json(record.data) for record in await page.store.read(mailbox("s1", agent, 1))]


@pytest.mark.anyio
async def test_a_worktree_shows_what_was_committed_changed_and_added(tmp_path: Path) -> None:
    trees = await parser_tree(tmp_path)
    async with opened_page(trees.workspace, trees.store, trees.base / "data") as page:
        listed = (await page.get("/changes")).text
        assert ('href="/changes/parser"' in listed, "1 ahead, 0 behind" in listed) == (True, True)
        text = (await page.get(PATH)).text
        assert text.index("a.txt") < text.index("b.txt") < text.index("new.txt")
        assert '<span class="line bad"><span class="number">2 - </span>two</span>' in text
        assert '<span class="line good"><span class="number">2 + </span>2</span>' in text
        assert 'value="test -f new.txt"' in text, "the check of its task"
        for path in ("/changes", PATH):
            assert (await page.get(f"{path}/events")).text.startswith("data: <hx-partial")
        missing = await page.get("/changes/roof")
        assert (missing.status, "there is no worktree roof" in missing.text) == (409, True)


@pytest.mark.anyio
async def test_a_comment_on_a_line_goes_to_the_worktrees_agent(tmp_path: Path) -> None:
    trees = await parser_tree(tmp_path)
    async with opened_page(trees.workspace, trees.store, trees.base / "data") as page:
        comment = {"file": "a.txt", "line": "2 + 2", "text": "Why not two?"}
        assert (await page.post(f"{PATH}/comment", comment)).status == 303
        (envelope,) = await mail_of(page, "alice")
        assert envelope.content == "A comment on your change of a.txt, line 2:\n\n> 2 + 2\n\nWhy not two?"
        assert (await page.post(f"{PATH}/comment", {**comment, "text": " "})).status == 409
        ended = AgentRow(name="alice", kind="teammate", created_at=1.0, life="stopped", worktree="parser")
        await page.store.commit(Put(agent_key("s1", "alice"), ended.encode()))
        assert (await page.post(f"{PATH}/comment", comment)).status == 303
        assert len(await mail_of(page, "lead")) == 1, "nobody else reads it"


@pytest.mark.anyio
async def test_a_merge_says_what_it_merged_or_why_not(tmp_path: Path) -> None:
    trees = await parser_tree(tmp_path)
    async with opened_page(trees.workspace, trees.store, trees.base / "data") as page:
        assert (await page.post(f"{PATH}/merge", {"check": ""})).status == 303
        assert (trees.workspace / "new.txt").read_text() == "new\n"
        assert "merged" not in (await page.get("/changes")).text
        shown = (await page.get(PATH)).text
        assert ("It has no changes" in shown, "merged wt/parser into main" in shown) == (True, True)
        assert "merged wt/parser" not in (await page.get(PATH)).text, "the result is shown once"
        again = await page.post(f"{PATH}/merge", {})
        assert again.status == 303
        assert "main already contains it" in (await page.get(PATH)).text
        (trees.root / "parser" / "a.txt").write_text("theirs\n")
        (trees.workspace / "a.txt").write_text("ours\n")
        trees.git("commit", "-qam", "ours")
        conflict = await page.post(f"{PATH}/merge", {})
        assert (conflict.status, "both sides changed the same lines" in conflict.text) == (409, True)


@pytest.mark.anyio
async def test_names_and_texts_of_files_are_inert(tmp_path: Path) -> None:
    trees = await parser_tree(tmp_path)
    folder = trees.root / "parser"
    for number, text in enumerate(HOSTILE[::8]):
        name = text.replace("/", "_").replace("\0", "_").encode()[:200].decode(errors="ignore")
        (folder / f"{number}{name}").write_text("\n".join(HOSTILE[::8]), newline="")
    (folder / "link").symlink_to("/etc/passwd")
    async with opened_page(trees.workspace, trees.store, trees.base / "data") as page:
        before = (await page.get(PATH)).text
        check_inert(before)
        assert "root:" not in before, "a link is not followed"
        trees.at("parser", "add", "-A")
        check_inert((await page.get(PATH)).text)


@pytest.mark.anyio
async def test_a_worktree_whose_folder_is_gone_says_so(tmp_path: Path) -> None:
    trees = Trees(tmp_path)
    await trees.keeper.create("parser", LEAD)
    (trees.root / "parser").rename(trees.base / "away")
    async with opened_page(trees.workspace, trees.store, trees.base / "data") as page:
        gone = await page.get(PATH)
        assert (gone.status, "is missing" in gone.text) == (409, True)


def test_a_line_that_looks_like_the_head_of_a_file_stays_a_line() -> None:
    text = (
        ":100644 100644 1 2 M\0a b.txt\0:100644 100644 1 2 M\0b.txt\0\0diff --git a/a b.txt b/a b.txt\nindex 1..2\n"
        "--- a/a b.txt\n+++ b/a b.txt\n@@ -1,2 +1,2 @@ def f():\n-diff --git a/x b/x\n+++ b/x\n same\n"
        "diff --git a/b.txt b/b.txt\nBinary files a/b.txt and b/b.txt differ\n"
    )
    first, second = parsed_diff(text)
    assert (first.path, second.path, second.binary) == ("a b.txt", "b.txt", True)
    assert first.hunks[0].title == "def f():"
    assert first.hunks[0].lines == (
        DiffLine("-", 1, "diff --git a/x b/x"),
        DiffLine("+", 1, "++ b/x"),
        DiffLine(" ", 2, "same"),
    )
    long = ":100644 100644 1 2 M\0a\0\0diff --git a/a b/a\n@@ -0,0 +1,9999 @@\n" + "+x\n" * 9_999
    (cut,) = parsed_diff(long)
    assert (cut.cut, len(cut.hunks[0].lines)) == (True, MOST_LINES - 1)

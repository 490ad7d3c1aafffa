"""Sessions started from the page, and the hosts that run them."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from tests.web.page_client import OWN, opened_page

from callboard.adapters.storage.memory import MemoryStore
from callboard.core.keys import queue_key
from callboard.ports.store import Put
from callboard.types.errors import UsageError
from callboard.types.records import QueuedSession
from callboard.web.new_session import arguments_of, prompt_of

SCENARIO = """
agents:
  lead:
    - reply: Done.
"""


def test_a_form_means_options_of_the_command_line() -> None:
    assert arguments_of({}) == []
    form = {"agent_type": "reviewer", "mode": "plan", "budget": " 2.5 ", "model": "", "name": "n", "worktree": "--yes"}
    assert arguments_of(form) == [
        *("--agent=reviewer", "--permission-mode=plan", "--max-budget-usd=2.5", "--name=n", "--worktree=--yes")
    ]
    with pytest.raises(UsageError, match="use the command line"):
        arguments_of({"mode": "bypassPermissions"})


def test_a_prompt_names_its_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    assert prompt_of({"prompt": "Read.\r\nWrite. "}, tmp_path) == "Read.\nWrite."
    assert prompt_of({"prompt": "Read.", "files": "a.txt\n\n"}, tmp_path) == "Read.\n\nFiles: a.txt"
    for form, reason in (({"prompt": " "}, "write what"), ({"prompt": "x", "files": "b.txt"}, "no such file")):
        with pytest.raises(UsageError, match=reason):
            prompt_of(form, tmp_path)


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_session_is_stored_for_a_serving_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("STATE", "DATA", "CONFIG"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind.lower()))
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    form = {"prompt": "Mend it.", "model": f"rehearsal:{tmp_path / 'scenario.yaml'}"}
    async with opened_page(workspace) as page:
        text = (await page.get("/new")).text
        assert ("No callboard serve runs" in text, 'value="plan"' in text) == (True, True)
        sent = await page.post("/new", form, {**OWN, "hx-request": "true"})
        assert re.search(r'href="/sessions/[0-9a-f-]{36}".*It waits for a host', sent.text), sent.text
        wrong = await page.post("/new", {**form, "budget": "-1"})
        assert (wrong.status, "no session was started" in wrong.text) == (409, True), wrong.text
        assert "Mend it." not in wrong.text


@pytest.mark.anyio
async def test_sessions_that_wait_for_a_host_are_listed_with_the_reason() -> None:
    store = MemoryStore()
    queued = QueuedSession(since=time.time(), placement={"gpu": "yes"})
    await store.commit(Put(queue_key("s1"), queued.encode()))
    async with opened_page(store=store) as page:
        text = (await page.get("/hosts")).text
        assert 'href="/sessions/s1"' in text
        assert "No process hosts a session" in text
        assert (await page.get("/hosts/events")).text.startswith("data: <hx-partial")
        unknown = await page.post("/hosts/drain", {"host": "nobody:1"})
        assert (unknown.status, "unknown host" in unknown.text) == (409, True)

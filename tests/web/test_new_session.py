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
from callboard.web.guard import UploadedFile
from callboard.web.new_session import arguments_of, keep_attachments, prompt_of

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


def test_a_path_that_cannot_be_looked_up_is_refused_and_shown_in_short(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="File name too long: write the paths") as refused:
        prompt_of({"prompt": "x", "files": "a prompt in the wrong field " * 100}, tmp_path)
    assert len(str(refused.value)) < 400 + len(str(tmp_path))


def test_attachments_are_kept_under_safe_names_and_replace_nothing(tmp_path: Path) -> None:
    png = b"\x89PNG\r\n\x1a\n\0"
    files = [
        UploadedFile("../../roof plan.png", png),
        UploadedFile("C:\\notes.txt", b"one"),
        UploadedFile("notes.txt", b"2"),
    ]
    kept = keep_attachments(files, tmp_path)
    folder = tmp_path / "attachments"
    assert kept == [folder / "roof_plan.png", folder / "notes.txt", folder / "notes-2.txt"]
    assert [path.read_bytes() for path in kept] == [png, b"one", b"2"]
    assert (folder / ".gitignore").read_text() == "*\n"
    prompt = prompt_of({"prompt": "Read."}, tmp_path, kept[1:2])
    assert prompt == f"Read.\n\nFiles: {folder / 'notes.txt'}"
    for refused, reason in (
        ([UploadedFile("a.zip", b"PK\3\4\xff\0")], "agents cannot read it"),
        ([UploadedFile("a.txt", b"x" * 5_000_001)], "too large"),
        ([UploadedFile("...", b"x")], "rename"),
        ([UploadedFile("a.txt", b"x")] * 11, "at most 10"),
    ):
        with pytest.raises(UsageError, match=reason):
            keep_attachments(refused, tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == [".gitignore", "notes-2.txt", "notes.txt", "roof_plan.png"]


def test_a_folder_of_attachments_that_is_a_link_is_refused(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    elsewhere = tmp_path / "elsewhere"
    workspace.mkdir()
    elsewhere.mkdir()
    (workspace / "attachments").symlink_to(elsewhere)
    with pytest.raises(UsageError, match="cannot be kept"):
        keep_attachments([UploadedFile("a.txt", b"x")], workspace)
    assert list(elsewhere.iterdir()) == []
    (workspace / "attachments").unlink()
    (workspace / "attachments").mkdir()
    (workspace / "attachments" / "a.txt").symlink_to(elsewhere / "a.txt")
    (kept,) = keep_attachments([UploadedFile("a.txt", b"x")], workspace)
    assert (kept.name, list(elsewhere.iterdir())) == ("a-2.txt", [])


KIND = "multipart/form-data; boundary=xYz"


def part(name: str, content: bytes, filename: str | None = None) -> bytes:
    file = "" if filename is None else f'; filename="{filename}"'
    return f'--xYz\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode() + content + b"\r\n"


@pytest.mark.anyio
async def test_a_form_with_files_needs_the_secret_of_its_browser_and_a_type_that_agents_read(tmp_path: Path) -> None:
    async with opened_page(tmp_path) as page:
        token = part("form_token", page.form_token.encode())
        zipped = part("prompt", b"Read.") + part("attachments", b"\0", "a.zip") + b"--xYz--"
        headers = {**OWN, "content-type": KIND}
        assert (await page.send("POST", "/new", headers, zipped)).status == 403
        refused = await page.send("POST", "/new", headers, token + zipped)
        assert (refused.status, "a.zip: agents cannot read it" in refused.text) == (409, True), refused.text
        large = token + part("attachments", b"x" * 10_000_001, "a.txt") + b"--xYz--"
        assert (await page.send("POST", "/new", headers, large)).status == 413
        ends = part("a", b"")
        for wrong in (b"x", b"--xYz\r\n\r\nx\r\n--xYz--", ends.replace(b"name=", b"nom=") + b"--xYz--"):
            assert (await page.send("POST", "/new", headers, wrong)).status == 400
        no_boundary = {**OWN, "content-type": "multipart/form-data"}
        assert (await page.send("POST", "/new", no_boundary, zipped)).status == 400
        many = token + b"".join(part("attachments", b"x", f"{n}.txt") for n in range(101)) + b"--xYz--"
        assert (await page.send("POST", "/new", headers, many)).status == 400
    assert not (tmp_path / "attachments").exists()


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
        assert 'enctype="multipart/form-data"' in text, "files are sent without scripts, too"
        image = b"\x89PNG\r\n" + bytes(range(256)) + b"\r\n--xY\r\n\r\n"
        fields = {"form_token": page.form_token, **form}
        body = b"".join(part(name, value.encode()) for name, value in fields.items())
        body += part("attachments", image, "a b.png") + part("attachments", b"", "") + b"--xYz--\r\n"
        sent = await page.send("POST", "/new", {**OWN, "content-type": KIND, "hx-request": "true"}, body)
        assert [path.read_bytes() for path in (workspace / "attachments").glob("*.png")] == [image]
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

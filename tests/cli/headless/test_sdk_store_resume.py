"""Sessions that are continued from a client's own store, on a machine that has only their transcript."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands.command import Command
from tests.cli.headless.test_sdk_options import ServedBench, result_of
from tests.examples.programs import warm_program

from callboard.adapters.system.archive import project_name

sdk = pytest.importorskip("claude_agent_sdk", reason="the package claude-agent-sdk is not installed")
pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[ServedBench]:
    made = ServedBench(tmp_path)
    with warm_program(made.cli):
        await made.start()
        yield made
        await made.service.aclose()


def move_to(bench: ServedBench, machine: Path) -> None:
    """Give the command the homes of another machine, which has none of the sessions."""
    homes = {f"XDG_{kind}_HOME": str(machine / kind.lower()) for kind in ("STATE", "DATA", "CONFIG")}
    bench.env |= {**homes, "HOME": str(machine), "CLAUDE_CONFIG_DIR": str(machine / ".claude")}


def chain_of(entries: list[Any]) -> list[str]:
    """Return the texts from the first message to the last one, by the parents of the lines."""
    by_uuid = {entry["uuid"]: entry for entry in entries if "uuid" in entry}
    assert len(by_uuid) == sum("uuid" in entry for entry in entries), "each UUID names one line"
    entry = entries[-1]
    words: list[str] = []
    while entry is not None:
        content = entry["message"]["content"]
        words.append(content if isinstance(content, str) else str(content[0].get("text") or content[0]["type"]))
        entry = by_uuid[entry["parentUuid"]] if entry["parentUuid"] else None
    return words[::-1]


async def test_a_session_goes_on_from_the_store_of_a_client_alone(bench: ServedBench, tmp_path: Path) -> None:
    store = sdk.InMemorySessionStore()
    move_to(bench, tmp_path / "first")
    first = result_of(await bench.ask("write it twice", session_store=store, permission_mode="acceptEdits"))
    key = {"project_key": sdk.project_key_for_directory(str(bench.workspace)), "session_id": first.session_id}
    entries = list(await store.load(key))
    for number, prompt in enumerate(("the second", "the third")):
        move_to(bench, tmp_path / f"later{number}")
        result = result_of(await bench.ask(prompt, session_store=store, resume=first.session_id))
        assert (result.is_error, result.session_id) == (False, first.session_id), result
        later = list(await store.load(key))
        assert later[: len(entries)] == entries
        assert chain_of(later)[-2:] == [prompt, "All done."]
        assert chain_of(later)[0] == "write it twice", "a reader that follows the parents sees the whole conversation"
        entries = later
    messages = bench.bodies()[-1]["messages"]
    kinds = [block["type"] for message in messages for block in message["content"]]
    assert kinds.count("tool_use") == kinds.count("tool_result") == 1
    said = json.dumps(messages)
    assert said.index("write it twice") < said.index("the second") < said.index("the third")


@pytest.mark.slow
async def test_a_store_has_what_follows_a_clear_under_the_same_session(bench: ServedBench, tmp_path: Path) -> None:
    store = sdk.InMemorySessionStore()
    move_to(bench, tmp_path / "first")
    first = result_of(await bench.ask("before", session_store=store))
    for prompt in ("/clear", "after"):
        result = result_of(await bench.ask(prompt, session_store=store, resume=first.session_id))
        assert (result.is_error, result.session_id) == (False, first.session_id), result
    move_to(bench, tmp_path / "later")
    assert not result_of(await bench.ask("later", session_store=store, resume=first.session_id)).is_error
    said = json.dumps(bench.bodies()[-1]["messages"])
    assert ("before" in said, "after" in said, "later" in said) == (False, True, True)
    key = {"project_key": sdk.project_key_for_directory(str(bench.workspace)), "session_id": first.session_id}
    assert chain_of(list(await store.load(key))) == ["after", "All done.", "later", "All done."]


async def test_a_session_of_claude_code_is_continued_and_its_file_grows(bench: ServedBench, tmp_path: Path) -> None:
    session = str(uuid.uuid4())
    file = tmp_path / ".claude/projects" / project_name(str(bench.workspace)) / f"{session}.jsonl"
    file.parent.mkdir(parents=True)
    asked = {"role": "user", "content": "Which word?"}
    told = {"role": "assistant", "model": "m", "id": "msg_1", "content": [{"type": "text", "text": "Plum."}]}
    lines: list[dict[str, Any]] = [
        {"type": "mode", "mode": "normal", "sessionId": session},
        {"type": "user", "uuid": "u1", "parentUuid": None, "message": asked},
        {"type": "assistant", "uuid": "u2", "parentUuid": "u1", "message": told},
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    first = result_of(await bench.ask("and now", resume=session))
    assert (first.is_error, first.session_id) == (False, session)
    again = result_of(await bench.ask("once more", resume=session))
    assert again.session_id == session
    messages = bench.bodies()[-1]["messages"]
    assert [json.dumps(message).count("Plum.") for message in messages[:2]] == [0, 1]
    written = [json.loads(line) for line in file.read_text().splitlines()]
    assert written[:3] == lines
    assert chain_of(written) == ["Which word?", "Plum.", "and now", "All done.", "once more", "All done."]
    fork = result_of(await bench.ask("aside", resume=session, fork_session=True))
    assert fork.session_id != session
    copy = [json.loads(line) for line in file.with_name(f"{fork.session_id}.jsonl").read_text().splitlines()]
    assert chain_of(copy)[:2] == ["Which word?", "Plum."]
    assert chain_of(copy)[-2:] == ["aside", "All done."]


def test_an_unknown_session_without_a_transcript_is_an_error(tmp_path: Path, anyio_backend: str) -> None:
    command = Command(tmp_path)
    model = command.scenario("agents: {lead: [{otherwise: true, reply: done}]}\n")
    run = command.run_inline("-p", "hi", "--resume", str(uuid.uuid4()), "--model", model)
    assert run.code == 2
    assert "there is no session in this workspace yet" in run.err


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("folder", "cannot be read (Is a directory)"),
        ("loop", "cannot be read (Too many levels of symbolic links)"),
        ("latin-1", "is not UTF-8 text"),
        ("empty", "has no messages"),
    ],
)
def test_a_transcript_that_cannot_be_read_is_named_with_the_reason(
    tmp_path: Path, anyio_backend: str, kind: str, reason: str
) -> None:
    command = Command(tmp_path)
    session = str(uuid.uuid4())
    file = tmp_path / ".claude/projects" / project_name(str(command.workspace)) / f"{session}.jsonl"
    file.parent.mkdir(parents=True)
    if kind == "folder":
        file.mkdir()
    elif kind == "loop":
        file.symlink_to(file)
    elif kind == "latin-1":
        message = {"role": "user", "content": "caf\u00e9"}
        line = json.dumps({"type": "user", "uuid": "u1", "message": message}, ensure_ascii=False)
        file.write_bytes(line.encode("latin-1"))
    else:
        file.write_bytes(b"")
    model = command.scenario("agents: {lead: [{otherwise: true, reply: done}]}\n")
    run = command.run_inline("-p", "hi", "--resume", session, "--model", model)
    assert run.code == 2
    assert str(file) in run.err
    assert reason in run.err

"""Transcripts of Claude Code and of other machines as the beginning of a conversation."""

from __future__ import annotations

import json
from typing import Any

from callboard.core.context.view.transcript import foreign_transcript
from callboard.types.events import MessageCopied

_NOW = 1_800_000_000.0


def user(uuid: str, parent: str | None, content: Any, **fields: Any) -> dict[str, Any]:
    message = {"role": "user", "content": content}
    about = {"type": "user", "uuid": uuid, "parentUuid": parent, "timestamp": "2026-11-01T10:00:00.000Z"}
    return {**about, "isSidechain": False, "sessionId": "s", "message": message, **fields}


def reply(uuid: str, parent: str | None, *blocks: Any, id: str = "", **fields: Any) -> dict[str, Any]:
    message = {"id": id or f"msg_{uuid}", "role": "assistant", "model": "claude-sonnet-4-5", "content": list(blocks)}
    return {"type": "assistant", "uuid": uuid, "parentUuid": parent, "message": message, **fields}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def call(id: str, name: str = "Read", **tool_input: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": tool_input, "caller": {"type": "direct"}}


def result(id: str, content: Any = "found") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": content}


def read(*entries: Any) -> tuple[MessageCopied, ...]:
    lines = [entry if isinstance(entry, bytes) else json.dumps(entry).encode() for entry in entries]
    return foreign_transcript(b"\n".join(lines) + b"\n", _NOW).events


def shape(events: tuple[MessageCopied, ...]) -> list[tuple[str, list[str]]]:
    """Return the role of each message, and the text, call or result of each block."""
    return [(event.role, [_words(block.data) for block in event.blocks]) for event in events]


def _words(block: dict[str, Any]) -> str:
    return str(block.get("text") or block.get("id") or f"={block.get('tool_use_id')}")


def test_the_chain_of_the_last_message_is_the_conversation() -> None:
    events = read(
        {"type": "summary", "summary": "A title", "leafUuid": "b"},
        {"type": "file-history-snapshot", "messageId": "x"},
        user("a", None, "First question"),
        reply("b", "a", {"type": "thinking", "thinking": "hm", "signature": "sig"}, id="m1"),
        reply("c", "b", text("First answer"), id="m1"),
        user("x", "c", "A branch that was left"),
        reply("y", "x", text("Its answer")),
        {"type": "system", "subtype": "informational", "uuid": "n", "parentUuid": "c", "content": "note"},
        user("d", "n", [text("Second question")], cwd="/w"),
        reply("e", "d", text("Second answer ")),
        user("z", "e", "of a subagent", isSidechain=True),
        b'{"type": "user", "torn',
    )
    assert shape(events) == [
        ("user", ["First question"]),
        ("assistant", ["=None", "First answer"]),
        ("user", ["Second question"]),
        ("assistant", ["Second answer "]),
    ]
    assert [event.uuid for event in events] == ["a", "c", "d", "e"]
    assert [event.turn for event in events] == ["copied-1", "copied-1", "copied-2", "copied-2"]
    assert events[1].blocks[0].by == "claude-sonnet-4-5"
    assert [block.source for event in events for block in event.blocks][:2] == ["person", "assistant"]
    assert events[0].at == 1_793_527_200.0


def test_a_compaction_begins_it() -> None:
    events = read(
        user("a", None, "Old question"),
        reply("b", "a", text("Old answer")),
        {"type": "system", "subtype": "compact_boundary", "uuid": "c", "parentUuid": None, "logicalParentUuid": "b"},
        user("d", "c", "The summary of all that", isCompactSummary=True),
        user("e", "d", "Next"),
        reply("f", "e", text("Done")),
    )
    assert shape(events) == [("user", ["The summary of all that", "Next"]), ("assistant", ["Done"])]
    assert [block.source for block in events[0].blocks] == ["compactor", "person"]


def test_parallel_calls_keep_their_results_in_the_form_of_a_request() -> None:
    events = read(
        user("a", None, "Look"),
        reply("b", "a", text("I look."), id="m"),
        reply("c", "b", call("t1", file_path="/w/a.py"), id="m"),
        reply("d", "c", call("t2", "Bash", command="ls", timeout=5000), id="m"),
        user("e", "c", [result("t1")], sourceToolAssistantUUID="c"),
        user("f", "d", [result("t2", [text("x"), {"type": "tool_reference", "tool_name": "y"}])]),
        reply("g", "f", text("Both seen."), call("t3")),
    )
    assert shape(events) == [
        ("user", ["Look"]),
        ("assistant", ["I look.", "t1", "t2"]),
        ("user", ["=t1", "=t2"]),
        ("assistant", ["Both seen."]),
    ], "the last call has no result"
    calls = [block.data for block in events[1].blocks[1:]]
    assert calls == [
        {"type": "tool_use", "id": "t1", "name": "read_file", "input": {"path": "/w/a.py"}},
        {"type": "tool_use", "id": "t2", "name": "bash", "input": {"command": "ls", "timeout_s": 5}},
    ]
    assert events[2].blocks[1].data["content"] == [text("x")]


def test_what_no_request_may_contain_is_left_out() -> None:
    events = read(
        reply("0", None, text("begins with a reply")),
        user("a", "0", "Question"),
        reply("b", "a", text("API Error"), isApiErrorMessage=True),
        user("c", "b", [result("orphan"), text("  ")]),
        reply("d", "c", {"type": "thinking", "thinking": "unsigned"}, call("t1")),
        user("e", "d", [text("stop"), {"type": "unheard"}]),
    )
    assert shape(events) == [("user", ["Question", "stop"])]


def test_lines_without_ids_are_read_in_their_order() -> None:
    bare = [{"type": kind, "message": {"role": kind, "content": kind}} for kind in ("user", "assistant", "user")]
    assert shape(read(*bare)) == [("user", ["user"]), ("assistant", ["assistant"]), ("user", ["user"])]
    assert read({"type": "summary"}, b"[]") == ()
    changed = {**bare[0], "callboard": {"v": 2, "blocks": 7}}
    assert shape(read(changed)) == [("user", ["user"])], "a line of Callboard that somebody has changed"

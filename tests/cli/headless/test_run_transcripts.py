"""Hook scripts written for the compatible tool read the file of `transcript_path`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml
from claude_agent_sdk import get_session_messages, get_subagent_messages, list_sessions, list_subagents
from tests.adapters.processes.cage import require_level
from tests.cli.commands.command import Command

from callboard import __version__
from callboard.core.context.view.transcript import load_transcript

SCRIPT = """\
import json, sys

told = json.load(sys.stdin)
lines = [json.loads(line) for line in open(told.get("agent_transcript_path") or told["transcript_path"])]
said = [one for one in lines if one["type"] == "assistant"]
texts = [part["text"] for part in said[-1]["message"]["content"] if part["type"] == "text"] if said else []
calls = [part["name"] for part in said[-1]["message"]["content"] if part["type"] == "tool_use"] if said else []
seen = [told["hook_event_name"], len(lines), " ".join(texts), *calls]
with open(sys.argv[1], "a") as out:
    print(json.dumps(seen), file=out)
"""
SCENARIO = """
agents:
  lead:
    - reply: [Let me see., {tool_use: {name: read_file, input: {path: hello.txt}}}]
    - when: {result_of: read_file}
      reply: [{tool_use: {name: task, input: {description: look, prompt: look, agent_type: explore}}}]
    - when: {result_of: task}
      reply: All is well.
    - reply: Still well.
  "*":
    - reply: Nothing to see.
"""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    command = Command(tmp_path)
    (command.workspace / "hello.txt").write_text("hello\n")
    (tmp_path / "last.py").write_text(SCRIPT)
    return command


def reading_hooks(command: Command) -> dict[str, Any]:
    """Return settings that run the script at several events of a turn."""
    folder = command.workspace.parent
    handler = {"type": "command", "command": f"{sys.executable} {folder}/last.py {folder}/seen"}
    moments = ("UserPromptSubmit", "PreToolUse", "Stop", "SubagentStop", "SessionEnd")
    return {"hooks": {moment: [{"hooks": [handler]}] for moment in moments}}


def settings(command: Command) -> Path:
    path = command.workspace.parent / "config" / "callboard" / "settings.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def hook_records(command: Command) -> list[list[Any]]:
    path = command.workspace.parent / "seen"
    found = [json.loads(line) for line in path.read_text().splitlines()]
    path.unlink()
    return found


def transcript(command: Command) -> Path:
    (found,) = command.workspace.parent.glob("data/callboard/**/transcripts/lead.jsonl")
    return found


@pytest.mark.slow
def test_a_stop_hook_reads_the_last_reply_in_the_transcript(command: Command) -> None:
    settings(command).write_text(yaml.safe_dump(reading_hooks(command)))
    ran = command.run_inline("run", "--model", command.scenario(SCENARIO), "Go.")
    assert ran.out == "All is well.\n", ran.err
    assert hook_records(command) == [
        ["PreToolUse", 2, "Let me see.", "read_file"],
        ["PreToolUse", 4, "", "task"],
        ["SubagentStop", 2, "Nothing to see."],
        ["Stop", 6, "All is well."],
        ["SessionEnd", 6, "All is well."],
    ]
    lines = [json.loads(line) for line in transcript(command).read_text().splitlines()]
    assert [one["type"] for one in lines] == ["user", "assistant"] * 3
    assert [one["message"]["role"] for one in lines] == [one["type"] for one in lines]
    assert [one["parentUuid"] for one in lines] == [None, *(one["uuid"] for one in lines[:-1])]
    assert {(one["userType"], one["version"]) for one in lines} == {("external", __version__)}, "readers require them"
    assert {one["cwd"] for one in lines} == {str(command.workspace)}
    assert len({one["uuid"] for one in lines}) == 6
    assert [one["message"]["stop_reason"] for one in lines[1::2]] == ["tool_use", "tool_use", "end_turn"]
    assert lines[2]["message"]["content"][0]["type"] == "tool_result"


@pytest.mark.slow
def test_a_subagent_names_the_transcript_of_the_main_conversation(command: Command) -> None:
    script = "import json, sys\ntold = json.load(sys.stdin)\nprint(json.dumps(told), file=open(sys.argv[1], 'a'))\n"
    (command.workspace.parent / "last.py").write_text(script)
    settings(command).write_text(yaml.safe_dump(reading_hooks(command)))
    command.run_inline("run", "--model", command.scenario(SCENARIO), "Go.")
    events = [json.loads(line) for line in (command.workspace.parent / "seen").read_text().splitlines()]
    assert {event["transcript_path"] for event in events} == {str(transcript(command))}
    (stopped,) = [event for event in events if event["hook_event_name"] == "SubagentStop"]
    assert Path(stopped["agent_transcript_path"]).stem == stopped["agent_id"]


@pytest.mark.slow
def test_a_transcript_with_lines_of_the_first_format_goes_on(command: Command) -> None:
    command.run_inline("run", "--model", command.scenario(SCENARIO), "Go.")
    settings(command).write_text(yaml.safe_dump(reading_hooks(command)))
    folder = next(command.workspace.parent.glob("data/callboard/*/*/transcripts"))
    old: list[dict[str, Any]] = [
        {"v": 1, "id": 1, "role": "user", "turn": "t", "blocks": []},
        {"v": 1, "id": 2, "role": "assistant", "turn": "t", "blocks": []},
    ]
    before = "".join(json.dumps(line) + "\n" for line in old)
    (folder / "lead.jsonl").write_text(before + '{"v": 1, "torn')
    (command.workspace.parent / "last.py").write_text(SCRIPT.replace('one["type"]', 'one.get("type")'))
    ran = command.run_inline("run", "--resume", folder.parent.name, "And now?")
    assert ran.out == "Still well.\n", ran.err
    text = (folder / "lead.jsonl").read_text()
    assert text.startswith(before)
    assert len(load_transcript(text.encode())) == 8
    assert ["Stop", 8, "Still well."] in hook_records(command)


def test_a_hook_of_the_workspace_reads_the_transcript_from_the_sandbox(command: Command) -> None:
    require_level(1)
    (command.workspace / "last.py").write_text(SCRIPT)
    handler = {"type": "command", "command": f"{sys.executable} last.py seen"}
    (command.workspace / ".claude").mkdir()
    (command.workspace / ".claude/settings.json").write_text(json.dumps({"hooks": {"Stop": [{"hooks": [handler]}]}}))
    ran = command.run_inline("run", "--trust", "--model", command.scenario("agents: {lead: [{reply: Done.}]}"), "Go.")
    assert ran.out == "Done.\n", ran.err
    assert json.loads((command.workspace / "seen").read_text()) == ["Stop", 2, "Done."]


def test_session_lists_of_the_sdk_find_a_session_and_its_subagents(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = str(uuid4())
    ran = command.run_inline("run", "--model", command.scenario(SCENARIO), "--session-id", session, "Say it all.")
    assert ran.out == "All is well.\n", ran.err
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(Path(command.env["HOME"]) / ".claude"))
    (info,) = list_sessions(str(command.workspace))
    assert (info.session_id, info.first_prompt, info.cwd) == (session, "Say it all.", str(command.workspace))
    messages = get_session_messages(session, str(command.workspace))
    assert [message.type for message in messages] == ["user", "assistant"] * 3
    assert messages[-1].message["content"][0]["text"] == "All is well."
    (subagent,) = list_subagents(session, str(command.workspace))
    (replied,) = [m for m in get_subagent_messages(session, subagent, str(command.workspace)) if m.type == "assistant"]
    assert replied.message["content"][0]["text"] == "Nothing to see."
    again = command.run_inline("run", "-c", "--model", command.scenario(SCENARIO), "Again.")
    assert again.out == "Still well.\n", again.err
    assert len(get_session_messages(session, str(command.workspace))) == 8


def test_no_copy_is_written_if_the_settings_say_so(command: Command) -> None:
    settings(command).write_text("paths: {shared_transcripts: false}\n")
    ran = command.run_inline("run", "--model", command.scenario(SCENARIO), "Go.")
    assert ran.out == "All is well.\n", ran.err
    assert not list(Path(command.env["HOME"]).glob(".claude/projects/**/*"))

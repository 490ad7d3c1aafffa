"""Transcripts of Claude Code that a crash or an editor left odd, continued by `--resume`."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands.command import Command, CommandResult

from callboard.adapters.system.archive import project_name

ANSWER = "agents: {lead: [{otherwise: true, reply: done}]}\n"


def line(number: int, content: str) -> bytes:
    """Return the line of a message: prompts have even numbers, replies odd ones."""
    role = "assistant" if number % 2 else "user"
    message: dict[str, Any] = {"role": role, "content": [{"type": "text", "text": content}]}
    if role == "assistant":
        message |= {"id": f"msg_{number}", "model": "m"}
    parent = f"u{number - 1}" if number else None
    return json.dumps({"type": role, "uuid": f"u{number}", "parentUuid": parent, "message": message}).encode()


@dataclass
class Transcript:
    """A transcript in the place where `--resume` looks for it."""

    command: Command
    session: str
    file: Path

    def resume(self, prompt: str) -> CommandResult:
        model = self.command.scenario(ANSWER)
        return self.command.run_inline("-p", prompt, "--resume", self.session, "--model", model)

    def texts(self) -> list[str]:
        """Return the texts of the chain that ends with the last line."""
        entries = [json.loads(each) for each in self.file.read_bytes().splitlines() if each.strip()]
        by_uuid = {entry["uuid"]: entry for entry in entries}
        assert len(by_uuid) == len(entries), "each line once"
        entry, words = entries[-1], list[str]()
        while entry is not None:
            blocks = [block for block in entry["message"]["content"] if "system-reminder" not in block["text"]]
            words.append(" / ".join(block["text"] for block in blocks))
            entry = by_uuid[entry["parentUuid"]] if entry["parentUuid"] else None
        return words[::-1]


@pytest.fixture
def transcript(tmp_path: Path) -> Transcript:
    command = Command(tmp_path)
    session = str(uuid.uuid4())
    file = tmp_path / ".claude/projects" / project_name(str(command.workspace)) / f"{session}.jsonl"
    file.parent.mkdir(parents=True)
    return Transcript(command, session, file)


@pytest.mark.parametrize(
    ("data", "kept"),
    [
        (b"\n".join([line(0, "one"), line(1, "two")]), ["one", "two"]),
        (b"\n\n".join([line(0, "one"), line(1, "two")]) + b"\n\n \n", ["one", "two"]),
        (b"\n".join([line(0, "one"), line(1, "two"), line(2, "three")[:-9]]), ["one", "two"]),
    ],
    ids=["no last line break", "blank lines", "cut off"],
)
def test_an_odd_end_of_a_transcript_costs_no_line(transcript: Transcript, data: bytes, kept: list[str]) -> None:
    transcript.file.write_bytes(data)
    for number, prompt in enumerate(("next", "later")):
        ran = transcript.resume(prompt)
        assert (ran.code, ran.out) == (0, "done\n"), ran.err
        assert transcript.texts() == [*kept, "next", "done", "later", "done"][: len(kept) + 2 + 2 * number]


@pytest.mark.parametrize("before", [[line(0, "one"), line(1, "two")], []], ids=["later", "first"])
def test_a_prompt_that_follows_one_without_a_reply_is_in_the_transcript(
    transcript: Transcript, before: list[bytes]
) -> None:
    texts = ["one", "two"][: len(before)]
    transcript.file.write_bytes(b"".join(each + b"\n" for each in [*before, line(len(before), "unanswered")]))
    for number, prompt in enumerate(("next", "later")):
        ran = transcript.resume(prompt)
        assert (ran.code, ran.out) == (0, "done\n"), ran.err
        expected = [*texts, "unanswered / next", "done", "later", "done"]
        assert transcript.texts() == expected[: len(texts) + 2 + 2 * number]


def test_half_of_an_emoji_in_a_transcript_becomes_a_question_mark(transcript: Transcript) -> None:
    transcript.file.write_bytes(line(0, "one \ud83d two") + b"\n" + line(1, "three") + b"\n")
    ran = transcript.resume("next")
    assert (ran.code, ran.out) == (0, "done\n"), ran.err

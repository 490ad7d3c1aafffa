"""Transcripts: the full history as JSONL, one message a line, and back. Pure.

What is loaded renders to the same bytes as what was written: a message keeps its id, so that the edits of the journal
find their targets in it. It refuses to guess at a damaged line.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import cast

from callboard.core.context.view.conversation import make_block, make_message
from callboard.words.context import Message
from callboard.words.values import Json


def transcript_lines(messages: Sequence[Message]) -> bytes:
    """JSONL in UTF-8, one message a line, for a person, an agent and `load_transcript`."""
    return b"".join(_dumped(_message_json(message)) + b"\n" for message in messages)


def load_transcript(data: bytes) -> tuple[Message, ...]:
    """What `transcript_lines` wrote. Raises `ValueError` or `KeyError` on anything else."""
    return tuple(_message(cast("Json", json.loads(line))) for line in data.split(b"\n") if line.strip())


def _dumped(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _message_json(message: Message) -> Json:
    blocks = [
        {
            "source": block.source,
            "at": block.at,
            "pinned": block.pinned,
            "compactable": block.compactable,
            "data": block.data,
        }
        for block in message.blocks
    ]
    return {"v": 1, "id": message.id, "role": message.role, "turn": message.turn, "blocks": blocks}


def _message(line: Json) -> Message:
    blocks = tuple(
        make_block(
            entry["data"], entry["source"], entry["at"], pinned=entry["pinned"], compactable=entry["compactable"]
        )
        for entry in line["blocks"]
    )
    return make_message(line["id"], line["role"], blocks, line["turn"])

"""Transcripts: the full history as JSONL, one message per line, written and loaded. Pure.

A line has the fields that hook scripts read: `type`, `message`, `uuid`, `timestamp`. `callboard` contains the runtime's
other data, so that a loaded message renders to the same bytes and keeps its id, by which the edits of the journal find
it. Lines of the first format are loaded too. A damaged line is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast
from uuid import NAMESPACE_URL, uuid5

from callboard.core.context.view.messages import make_block, make_message
from callboard.types.events import ModelReplied
from callboard.types.messages import ViewBlock, ViewMessage
from callboard.types.records import Json

_FORMAT = 2


@dataclass(frozen=True, slots=True)
class Origin:
    """The life of an agent whose messages are written."""

    session: str = ""
    agent: str = "lead"
    incarnation: int = 1
    kind: str = "lead"
    folder: str = "/"


def transcript_lines(
    messages: Sequence[ViewMessage], origin: Origin, after: int = 0, replies: Mapping[int, ModelReplied] | None = None
) -> list[bytes]:
    """Return a line of JSON in UTF-8 for each message.

    `after`: id of the message before the first one; 0 if there is none. `replies`: the service's replies for assistant
    messages, by their ids. The same journal and folder give the same lines, whenever they are written.
    """
    lines: list[bytes] = []
    for message in messages:
        line = _message_json(message, origin, after, (replies or {}).get(message.id))
        lines.append(json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n")
        after = message.id
    return lines


def load_transcript(data: bytes) -> tuple[ViewMessage, ...]:
    """Load what `transcript_lines` wrote. Raises `ValueError` or `KeyError` on anything else."""
    return tuple(_message(cast("Json", json.loads(line))) for line in data.split(b"\n") if line.strip())


def _message_json(message: ViewMessage, origin: Origin, after: int, reply: ModelReplied | None) -> Json:
    of_agent = {} if origin.kind == "lead" else {"agentId": origin.agent}
    at = max((block.at for block in message.blocks), default=0.0)
    return {
        "type": message.role,
        "uuid": _uuid(origin, message.id),
        "parentUuid": _uuid(origin, after) if after else None,
        "isSidechain": origin.kind == "subagent",
        "sessionId": origin.session,
        **of_agent,
        "cwd": origin.folder,
        "timestamp": datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "message": {
            **(_reply_json(reply) if reply else {}),
            "role": message.role,
            "content": [block.data for block in message.blocks],
        },
        "callboard": {
            "v": _FORMAT,
            "id": message.id,
            "turn": message.turn,
            "blocks": [_block_json(block) for block in message.blocks],
        },
    }


def _uuid(origin: Origin, id: int) -> str:
    return str(uuid5(NAMESPACE_URL, f"callboard:{origin.session}/{origin.agent}.{origin.incarnation}/{id}"))


def _reply_json(reply: ModelReplied) -> Json:
    usage = reply.usage
    return {
        **({"id": reply.message_id} if reply.message_id else {}),
        "type": "message",
        "model": reply.model,
        "stop_reason": reply.stop_reason,
        "usage": {
            "input_tokens": usage.input_tokens,
            "cache_creation_input_tokens": usage.cache_creation_input_tokens,
            "cache_read_input_tokens": usage.cache_read_input_tokens,
            "output_tokens": usage.output_tokens,
        },
    }


def _block_json(block: ViewBlock) -> Json:
    return {
        "source": block.source,
        "at": block.at,
        "pinned": block.pinned,
        "compactable": block.compactable,
        **({"by": block.by} if block.by else {}),
    }


def _message(line: Json) -> ViewMessage:
    if "callboard" not in line:  # the first format: blocks with their data
        return _loaded(line, line["role"], [entry["data"] for entry in line["blocks"]])
    return _loaded(line["callboard"], line["message"]["role"], line["message"]["content"])


def _loaded(record: Json, role: str, content: Sequence[Json]) -> ViewMessage:
    blocks = tuple(
        make_block(
            data,
            entry["source"],
            entry["at"],
            pinned=entry["pinned"],
            compactable=entry["compactable"],
            by=entry.get("by", ""),
        )
        for data, entry in zip(content, record["blocks"], strict=True)
    )
    return make_message(record["id"], "assistant" if role == "assistant" else "user", blocks, record["turn"])

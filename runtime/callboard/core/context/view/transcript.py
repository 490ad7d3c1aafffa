"""Transcripts: the full history as JSONL, one message per line, written and loaded. Pure.

A line has the fields that hook scripts and session lists read: `type`, `message`, `uuid`, `timestamp`. What a person
wrote comes first in its message, because session lists show the first text. `callboard` contains the runtime's other
data, so that a loaded message renders to the same bytes and keeps the id that the edits of the journal refer to. Lines
of the first format are loaded too. A damaged line is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import cast
from uuid import NAMESPACE_URL, uuid5

from callboard.core.context.view.messages import make_block, make_message
from callboard.types.events import ModelReplied
from callboard.types.lazy_dataclass import dataclass
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


def message_uuid(session: str, agent: str, incarnation: int, id: int, *, part: int = 0) -> str:
    """Return the UUID of a message: the same in transcripts and in the output for clients, whenever it is made.

    `id`: position of the message's event in the journal. `part`: number of a message that has only a part of the event,
    such as one of several results.
    """
    suffix = f".{part}" if part else ""
    return str(uuid5(NAMESPACE_URL, f"callboard:{session}/{agent}.{incarnation}/{id}{suffix}"))


def load_transcript(data: bytes) -> tuple[ViewMessage, ...]:
    """Load what `transcript_lines` wrote. Raises `ValueError` or `KeyError` on anything else."""
    return tuple(_message(cast("Json", json.loads(line))) for line in data.split(b"\n") if line.strip())


def _message_json(message: ViewMessage, origin: Origin, after: int, reply: ModelReplied | None) -> Json:
    of_agent = {} if origin.kind == "lead" else {"agentId": origin.agent}
    at = max((block.at for block in message.blocks), default=0.0)
    places = _person_first(message)
    blocks = [message.blocks[place] for place in places]
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
            "content": [block.data for block in blocks],
        },
        "callboard": {
            "v": _FORMAT,
            "id": message.id,
            "turn": message.turn,
            "blocks": [_block_json(block) for block in blocks],
            **({} if places == sorted(places) else {"places": places}),
        },
    }


def _person_first(message: ViewMessage) -> list[int]:
    """Return the places of the blocks in the order in which they are written. Tool results stay first."""
    sources = [block.source for block in message.blocks]
    if "tool" in sources:
        return list(range(len(sources)))
    return sorted(range(len(sources)), key=lambda place: sources[place] != "person")


def _uuid(origin: Origin, id: int) -> str:
    return message_uuid(origin.session, origin.agent, origin.incarnation, id)


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
    written = tuple(
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
    order: Sequence[int] = record.get("places") or range(len(written))
    blocks = tuple(block for _, block in sorted(zip(order, written, strict=True), key=lambda pair: pair[0]))
    return make_message(record["id"], "assistant" if role == "assistant" else "user", blocks, record["turn"])

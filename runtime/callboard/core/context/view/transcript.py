"""Transcripts: the full history as JSONL, one message per line, written and loaded. Pure.

A line has the fields that hook scripts and session lists read: `type`, `message`, `uuid`, `timestamp`. What a person
wrote comes first in its message, because session lists show the first text. `callboard` contains the runtime's other
data, so that a loaded message renders to the same bytes and keeps the id that the edits of the journal refer to. Lines
of the first format are loaded too. A damaged line is refused.

`foreign_transcript` reads a transcript that Claude Code wrote, or Callboard on another machine, as the beginning of a
conversation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Literal, cast
from uuid import NAMESPACE_URL, uuid5

from callboard import __version__
from callboard.core.context.view.conversation import restored_from
from callboard.core.context.view.messages import is_thinking, make_block, make_message
from callboard.core.hooks.payloads import from_compatible
from callboard.core.tool_access import our_names
from callboard.core.utf8 import is_json, storable_json
from callboard.types.events import MessageCopied, ModelReplied
from callboard.types.lazy_dataclass import dataclass
from callboard.types.messages import Placed, ViewBlock, ViewMessage
from callboard.types.records import Json, compact_json

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
    same = _origin_json(origin)
    before = _uuid(origin, after) if after else None
    for message in messages:
        own = _uuid(origin, message.id)
        lines.append(_line(message, same, (own, before), (replies or {}).get(message.id)))
        before = own
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


def _origin_json(origin: Origin) -> bytes:
    """Return the fields that all lines of an agent's life have in common, as JSON without braces."""
    of_agent = {} if origin.kind == "lead" else {"agentId": origin.agent}
    same = {
        "isSidechain": origin.kind == "subagent",
        "sessionId": origin.session,
        **of_agent,
        "cwd": origin.folder,
        "userType": "external",  # programs that read transcripts require these two
        "version": __version__,
    }
    return compact_json(same)[1:-1]


def _line(message: ViewMessage, same: bytes, uuids: tuple[str, str | None], reply: ModelReplied | None) -> bytes:
    """Return the line of a message. `same`: see `_origin_json`. `uuids`: its own, and that of the message before it.

    The blocks are not serialised again: they are those of the request.
    """
    blocks = message.blocks
    at = max([block.at for block in blocks], default=0.0)
    time = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    uuid, before = uuids
    parent = f'"{before}"' if before else "null"
    head = f'"type":"{message.role}","uuid":"{uuid}","parentUuid":{parent}'
    said = b"%s," % compact_json(_reply_json(reply))[1:-1] if reply else b""
    own: Json = {"v": _FORMAT, "id": message.id, "turn": message.turn, "blocks": [_block_json(each) for each in blocks]}
    content = message.content
    places = _person_first(message)
    if places is not None:
        own |= {"blocks": [own["blocks"][place] for place in places], "places": places}
        content = b"[%s]" % b",".join([compact_json(blocks[place].data) for place in places])
    return b'{%s,%s,"timestamp":"%s","message":{%s"role":"%s","content":%s},"callboard":%s}\n' % (
        *(head.encode(), same, time.encode()),
        *(said, message.role.encode(), content),
        compact_json(own),
    )


def _person_first(message: ViewMessage) -> list[int] | None:
    """Return the places of the blocks in the order in which they are written; None for that of the message.

    Tool results stay first.
    """
    sources = [block.source for block in message.blocks]
    if "person" not in sources or "tool" in sources:
        return None
    places = sorted(range(len(sources)), key=lambda place: sources[place] != "person")
    return None if places == list(range(len(sources))) else places


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


@dataclass(frozen=True, slots=True)
class ForeignTranscript:
    """Conversation of a transcript that this store has no journal of."""

    events: tuple[MessageCopied, ...]
    """Messages of the conversation, in a form that a request may contain."""
    lines: int
    """Lines of the file that are not blank, without a last one that is cut off."""
    last: str
    """UUID of the last message of the conversation."""


def foreign_transcript(data: bytes, now: float) -> ForeignTranscript:
    """Read a transcript of Claude Code, or of Callboard on another machine.

    The conversation is the chain of messages that ends with the last one and begins at the start or after the newest
    compaction. Results without a call, and calls without a result, are left out. `now`: time of messages without one.
    """
    lines = data.split(b"\n")
    entries = [entry for line in lines if (entry := _entry(line)) is not None]
    chain = [entry for entry in _chained(entries) if _is_message(entry)]
    merged = list[_Draft]()
    for entry in chain:
        draft = _draft(entry, now)
        if merged and merged[-1].role == draft.role:
            merged[-1] = merged[-1].join(draft)
        elif draft.blocks:
            merged.append(draft)
    events = tuple(_valid(merged))
    whole = [line for line in lines[:-1] if line.strip()] + [line for line in lines[-1:] if is_json(line)]
    return ForeignTranscript(events, len(whole), str(chain[-1].get("uuid") or "") if chain else "")


@dataclass(frozen=True, slots=True)
class _Draft:
    """Message of a foreign transcript before its calls and results are compared."""

    role: Literal["user", "assistant"]
    blocks: tuple[Placed, ...]
    at: float
    turn: str
    uuid: str

    def join(self, later: _Draft) -> _Draft:
        """Return this message with the blocks of a later one of the same role."""
        return _Draft(self.role, (*self.blocks, *later.blocks), later.at, self.turn, later.uuid or self.uuid)


def _entry(line: bytes) -> Json | None:
    try:
        value: object = storable_json(json.loads(line))
    except (ValueError, RecursionError):  # the last line of a process that was killed
        return None
    return cast("Json", value) if isinstance(value, dict) else None


def _is_message(entry: Json) -> bool:
    message = entry.get("message")
    is_own = entry.get("type") in ("user", "assistant") and isinstance(message, dict) and not entry.get("isSidechain")
    return is_own and not entry.get("isApiErrorMessage") and cast("Json", message).get("model") != "<synthetic>"


def _chained(entries: Sequence[Json]) -> list[Json]:
    """Return the entries from the last message back to the start, or to the newest compaction.

    Parallel calls are lines of one reply whose results branch off: all of them belong to the chain.
    """
    places = {str(entry["uuid"]): place for place, entry in enumerate(entries) if entry.get("uuid")}
    messages = [place for place, entry in enumerate(entries) if _is_message(entry)]
    place = messages[-1] if messages else -1
    chain = set[int]()
    while place >= 0 and place not in chain:
        entry = entries[place]
        if entry.get("subtype") == "compact_boundary":
            break
        chain.add(place)
        parent = entry.get("parentUuid")
        if parent is None and "parentUuid" in entry:
            break
        # The file lacks the parent of a line that another machine added after a resume: take the line before it.
        place = places.get(str(parent), place - 1)
    replies = {reply for each in chain if (reply := _reply_id(entries[each]))}
    start = min(chain, default=0)
    chain |= {each for each in messages if each > start and _reply_id(entries[each]) in replies}
    calls = {str(block.get("id")) for each in chain for block in _content(entries[each]) if _is(block, "tool_use")}
    for each in messages:
        results = [block for block in _content(entries[each]) if _is(block, "tool_result")]
        if each > start and results and all(str(block.get("tool_use_id")) in calls for block in results):
            chain.add(each)
    return [entries[each] for each in sorted(chain)]


def _reply_id(entry: Json) -> str:
    message = entry.get("message")
    is_reply = entry.get("type") == "assistant" and isinstance(message, dict)
    return str(cast("Json", message).get("id") or "") if is_reply else ""


def _content(entry: Json) -> list[Json]:
    message = entry.get("message")
    content = cast("Json", message).get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    listed = cast("list[object]", content) if isinstance(content, list) else []
    return [cast("Json", block) for block in listed if isinstance(block, dict)]


def _is(block: Json, kind: str) -> bool:
    return block.get("type") == kind


def _draft(entry: Json, now: float) -> _Draft:
    role: Literal["user", "assistant"] = "assistant" if entry["type"] == "assistant" else "user"
    uuid = str(entry.get("uuid") or "")
    message = _own_message(entry)
    if message is not None:
        at = max(block.at for block in message.blocks)
        return _Draft(role, restored_from(message).blocks, at, message.turn, uuid)
    model = str(cast("Json", entry["message"]).get("model") or "")
    blocks = [placed for block in _content(entry) if (placed := _placed(entry, block, model)) is not None]
    return _Draft(role, tuple(blocks), _time_of(entry, now), "", uuid)


def _own_message(entry: Json) -> ViewMessage | None:
    """Return a message that Callboard wrote; None for a foreign one, and for one that somebody has changed."""
    try:
        message = _message(entry) if "callboard" in entry else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return message if message is not None and message.blocks else None


def _placed(entry: Json, block: Json, model: str) -> Placed | None:
    """Return a block of a foreign message; None for one that a request may not contain."""
    fields = _KEPT.get(str(block.get("type")))
    if fields is None:
        return None
    data: Json = {"type": block["type"], **{name: block[name] for name in fields if name in block}}
    match block["type"]:
        case "text" if not str(block.get("text") or "").strip():
            return None
        case "thinking" if not block.get("signature"):
            return None
        case "thinking" | "redacted_thinking":
            return Placed(data=data, source="assistant", by=model)
        case "tool_use":
            return Placed(data=_own_call(data), source="assistant")
        case "tool_result":
            return Placed(data=_result(data), source="tool")
        case _:
            source = "compactor" if entry.get("isCompactSummary") else "reminder" if entry.get("isMeta") else "person"
            return Placed(data=data, source="assistant" if entry["type"] == "assistant" else source)


_KEPT: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "text": ("text",),
        "thinking": ("thinking", "signature"),
        "redacted_thinking": ("data",),
        "tool_use": ("id", "name", "input"),
        "tool_result": ("tool_use_id", "content", "is_error"),
        "image": ("source",),
        "document": ("source", "title", "context", "citations"),
    }
)
"""Type of a block -> its fields that are taken over."""


def _own_call(call: Json) -> Json:
    """Return a call with Callboard's name of the tool and of its fields, so that the model goes on with these."""
    name = str(call.get("name"))
    own = next(iter(our_names(name)), name)
    raw = call.get("input")
    tool_input = cast("Json", raw) if isinstance(raw, dict) else {}
    changed = tool_input if own in ("ask_person", name) else from_compatible(own, {}, tool_input, "/")
    return {**call, "name": own, "input": changed}


def _result(result: Json) -> Json:
    content = result.get("content")
    if not isinstance(content, list):
        return result
    parts = [part for part in _content({"message": {"content": content}}) if part.get("type") in ("text", "image")]
    return {**result, "content": parts or "(no output)"}


def _time_of(entry: Json, now: float) -> float:
    try:
        return datetime.fromisoformat(str(entry.get("timestamp"))).timestamp()
    except ValueError:
        return now


def _valid(drafts: Sequence[_Draft]) -> Iterator[MessageCopied]:
    """Yield the messages of a valid request: each call has its result in the next message, and only once."""
    seen = set[str]()
    turn = 0
    open_calls: tuple[str, ...] = ()
    last: MessageCopied | None = None
    for place, draft in enumerate(drafts):
        following = drafts[place + 1].blocks if place + 1 < len(drafts) else ()
        results = {
            str(block.data.get("tool_use_id")): block for block in draft.blocks if _is(block.data, "tool_result")
        }
        others = [block for block in draft.blocks if not _is(block.data, "tool_result")]
        if draft.role == "user":
            blocks = [*(results[call] for call in open_calls), *others]
            turn += any(block.source == "person" for block in others)
        else:
            blocks = list(_answered(others, following, seen))
        if all(is_thinking(block.data) for block in blocks) or (last is None and draft.role == "assistant"):
            open_calls = ()
            continue
        open_calls = tuple(str(block.data["id"]) for block in blocks if _is(block.data, "tool_use"))
        if last is not None and last.role == draft.role:  # what was between them is left out
            last = last.model_copy(update={"blocks": (*last.blocks, *blocks), "uuid": draft.uuid or last.uuid})
            continue
        if last is not None:
            yield last
        number = draft.turn or f"copied-{turn}"
        last = MessageCopied(at=draft.at, role=draft.role, blocks=tuple(blocks), turn=number, uuid=draft.uuid)
    if last is not None:
        yield last


def _answered(blocks: Sequence[Placed], following: Sequence[Placed], seen: set[str]) -> Iterator[Placed]:
    """Yield the blocks of a reply except calls that the following blocks do not answer. `seen`: calls so far."""
    results = {str(block.data.get("tool_use_id")) for block in following if _is(block.data, "tool_result")}
    for block in blocks:
        call = str(block.data.get("id"))
        if _is(block.data, "tool_use") and (call not in results or call in seen):
            continue
        if _is(block.data, "tool_use"):
            seen.add(call)
        yield block

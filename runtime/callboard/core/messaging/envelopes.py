"""Envelopes as writes, and their rendering for a model. Pure.

A rendering is never cut: a long text goes to a file, and the conversation has the path, its beginning and its end. Text
from anyone but the user is wrapped so that it can neither close its tag nor open a tag of the runtime.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from callboard.core.keys import mailbox
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass
from callboard.types.messages import Injection, Placed
from callboard.types.records import Envelope, Json
from callboard.types.store_writes import Append

CONTINUES = "continues"
"""Field in the metadata of a result, true if the sender continues with another task of the board."""

TAGS = (
    "system-reminder",
    "user-prompt-submit-hook",
    "pre-tool-use-hook",
    "post-tool-use-hook",
    "stop-hook",
    "session-start-hook",
    "subagent-start-hook",
    "envelope-delivered-hook",
    "post-tool-batch-hook",
    "inbox",
    "task-notification",
    "scheduled",
    "plan-decision",
    "ide_selection",
    "ide_opened_file",
    "memory",
    "project-instructions",
    "persisted-output",
    "piped-input",
)
"""Tags in which the runtime speaks or quotes text (docs/design.md, "The next user message")."""
SHOWN_END = 2_000
"""Characters to show of the beginning and of the end of a long text."""
_OURS = late_pattern(rf"<(\s*/?\s*(?:{'|'.join(TAGS)})\b)", re.IGNORECASE)
_WRAPPED = late_pattern(rf"\A<({'|'.join(TAGS)})([^\n]*)>\n(.*)\n</\1>\Z", re.DOTALL)
KEPT = late_pattern(r"\A\[Large \w+ saved to ([^\n]+), \d+ chars\. Read it in parts\.\]\n")
"""Pattern of a text that was moved to a file."""
_OPENED = late_pattern(r"<(\s*/?\s*)\Z")
_DEFUSED = late_pattern(rf"&lt;(\s*/?\s*(?:{'|'.join(TAGS)})\b)", re.IGNORECASE)

_ENTITIES = str.maketrans({"&": "&amp;", ">": "&gt;", "<": "&lt;", "\n": "&#10;", "\r": "&#13;", "\t": "&#9;"})


@dataclass(frozen=True, slots=True)
class PromptExtras:
    """Properties of a prompt besides its text."""

    attachments: tuple[Json, ...] = ()
    """Images and documents, as blocks of the API."""
    verbatim: bool = False
    """True if the text is not searched for commands and resources."""
    uuid: str = ""
    """Id that the client gave to the prompt."""

    def metadata(self) -> Json:
        """Return the metadata of the prompt's envelope."""
        return {
            **({"attachments": list(self.attachments)} if self.attachments else {}),
            **({"verbatim": True} if self.verbatim else {}),
            **({"uuid": self.uuid} if self.uuid else {}),
        }


PLAIN_PROMPT = PromptExtras()
"""Extras of a prompt that consists of its text."""


def envelope_write(session: str, envelope: Envelope) -> Append:
    """Return the write that sends the envelope. Its id makes repeated sending idempotent."""
    stream = mailbox(session, envelope.recipient, envelope.incarnation)
    return Append(stream, envelope.encode(), id=envelope.id)


def defuse_tags(text: str) -> str:
    """Return `text` without active tags of the runtime: the `<` of each such tag is replaced by `&lt;`."""
    return _OURS.sub(r"&lt;\1", text) if "<" in text else text


def defused_parts(parts: Sequence[Json]) -> list[Json]:
    """Return the parts of a result with each text defused, so that two parts together cannot form a tag either."""
    made: list[Json] = []
    for part in parts:
        if part.get("type") == "text":
            text = defuse_tags(str(part.get("text", "")))
            part = {**part, "text": _OPENED.sub(r"&lt;\1", text) if len(parts) > 1 else text}
        made.append(part)
    return made


def restore_tags(text: str) -> str:
    """Return `text` as it was before `defuse_tags`, for text that a model copies from its input."""
    return _DEFUSED.sub(r"<\1", text) if "&lt;" in text else text


def quoted_value(value: str) -> str:
    """Return `value` as an attribute of a tag, with its quotation marks, as `xml.sax.saxutils.quoteattr` does.

    That module imports an HTTP client, which takes 5 ms of a start.
    """
    text = value.translate(_ENTITIES)
    if '"' in text and "'" in text:
        text = text.replace('"', "&quot;")
    mark = "'" if '"' in text else '"'
    return f"{mark}{text}{mark}"


def tag_text(tag: str, text: str, **attributes: str) -> str:
    """Return `<tag a="b">`, newline, the defused text, newline, `</tag>`."""
    head = "".join(f" {name.rstrip('_')}={quoted_value(value)}" for name, value in attributes.items() if value)
    return f"<{tag}{head}>\n{defuse_tags(text)}\n</{tag}>"


def injection_block(injection: Injection) -> Placed:
    """Return the block of an injection. A kind that is not a tag of the runtime becomes a `system-reminder`."""
    tag = injection.kind if injection.kind in TAGS else "system-reminder"
    if injection.is_guidance:
        named = {"path" if injection.source == "instructions" else "note": injection.subject}
        return Placed(
            data=_text(tag_text(tag, injection.text, **named)),
            source=injection.source,
            pinned=injection.source == "instructions",
        )
    request, _, status = injection.key.partition(" ") if tag == "plan-decision" else ("", "", "")
    return Placed(data=_text(tag_text(tag, injection.text, request=request, status=status)), source=injection.source)


def large_mark(text: str, path: str, label: str = "input", excerpt: int = SHOWN_END) -> str:
    """Return the mark that replaces a text moved to a file: the path, and the text's beginning and end."""
    head = f"[Large {label} saved to {defuse_tags(path)}, {len(text)} chars. Read it in parts.]"
    if len(text) <= 2 * excerpt:
        return f"{head}\n{text}"
    return f"{head}\nIt begins:\n{text[:excerpt]}\n[...]\nIt ends:\n{text[-excerpt:]}"


def untag_text(text: str) -> str:
    """Return the text between the tags of a runtime block, or all of the text if it has none."""
    match = _WRAPPED.match(text)
    return match[3] if match else text


def file_reference(text: str, path: str, excerpt: int) -> str:
    """Return the text of a block whose content is in a file: the same tags, with path, beginning and end."""
    match = _WRAPPED.match(text)
    if match is None:
        return large_mark(text, path, excerpt=excerpt)
    tag = match[1]
    fields = match[2]
    body = match[3]
    return f"<{tag}{fields}>\n{large_mark(body, path, 'message', excerpt)}\n</{tag}>"


def envelope_block(envelope: Envelope, path: str = "") -> Placed:
    """Return the block of this envelope for its recipient's conversation.

    `path`: the file with its content, which is then shown by path, beginning and end.
    """
    label = "input" if envelope.type in ("prompt", "scheduled") else "message"
    content = large_mark(envelope.content, path, label) if path else envelope.content
    if envelope.type == "prompt":
        pinned = bool(envelope.metadata.get("assignment"))
        return Placed(data=_text(content), source="person", pinned=pinned)
    if envelope.type == "scheduled":
        fired = str(envelope.metadata.get("fired_at", ""))
        text = tag_text("scheduled", content, id=str(envelope.metadata.get("schedule", "")), fired_at=fired)
        return Placed(data=_text(text), source="schedule")
    if envelope.type == "task_notification":
        return Placed(data=_text(tag_text("task-notification", content)), source="reminder")
    text = tag_text(
        "inbox",
        content,
        from_=envelope.sender,
        type=envelope.type,
        id=envelope.id,
        request=envelope.request_id or "",
        reply_to=envelope.reply_to or "",
        status=str(envelope.metadata.get("status", "")),
    )
    return Placed(data=_text(text), source="inbox", pinned=bool(envelope.metadata.get("assignment")))


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text or "(empty)"}

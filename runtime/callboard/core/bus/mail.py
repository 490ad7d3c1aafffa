"""Envelopes as writes, and how they are rendered for a model. Pure.

Rendering is whole, never cut: what is too long stands in a file, and its path, beginning and end in the conversation.
What comes from anyone but the person is wrapped so that its text can neither close its tag nor open one of ours.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.sax.saxutils import quoteattr

from callboard.core.context.guidance import about, is_guidance
from callboard.core.names import mailbox
from callboard.words.context import Injection, Placed
from callboard.words.values import Envelope, Json
from callboard.words.writes import Append

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
)
"""The tags in which the runtime speaks, or quotes others (docs/design.md, "The next user message")."""
SHOWN_END = 2_000
"""Characters of a long text that are shown of its beginning, and of its end."""
_OURS = re.compile(rf"<(\s*/?\s*(?:{'|'.join(TAGS)})\b)", re.IGNORECASE)
_WRAPPED = re.compile(rf"\A<({'|'.join(TAGS)})([^\n]*)>\n(.*)\n</\1>\Z", re.DOTALL)
KEPT = re.compile(r"\A\[Large \w+ saved to ([^\n]+), \d+ chars\. Read it in parts\.\]\n")
"""How words read that stand in a file."""
_OPENED = re.compile(r"<(\s*/?\s*)\Z")
_DEFUSED = re.compile(rf"&lt;(\s*/?\s*(?:{'|'.join(TAGS)})\b)", re.IGNORECASE)


def sending(session: str, envelope: Envelope) -> Append:
    """The write that sends it. Its id makes sending it twice send it once."""
    stream = mailbox(session, envelope.recipient, envelope.incarnation)
    return Append(stream, envelope.encode(), id=envelope.id)


def defused(text: str) -> str:
    """`text` so that none of the runtime's own tags begins or ends in it: `<` of such a tag becomes `&lt;`."""
    return _OURS.sub(r"&lt;\1", text) if "<" in text else text


def defused_parts(parts: Sequence[Json]) -> list[Json]:
    """The parts of a result, each text of them defused; a tag cannot be put together out of two of them either."""
    made: list[Json] = []
    for part in parts:
        if part.get("type") == "text":
            text = defused(str(part.get("text", "")))
            part = {**part, "text": _OPENED.sub(r"&lt;\1", text) if len(parts) > 1 else text}
        made.append(part)
    return made


def rearmed(text: str) -> str:
    """`text` as it was before `defused`: for what a model copies out of something that it was shown."""
    return _DEFUSED.sub(r"<\1", text) if "&lt;" in text else text


def tagged(tag: str, text: str, **attributes: str) -> str:
    """`<tag a="b">`, newline, text, newline, `</tag>`, the text defused."""
    head = "".join(f" {name.rstrip('_')}={quoteattr(value)}" for name, value in attributes.items() if value)
    return f"<{tag}{head}>\n{defused(text)}\n</{tag}>"


def injected(injection: Injection) -> Placed:
    """The block that stands for a waiting injection. One of a kind that is no tag of ours is a `system-reminder`."""
    tag = injection.kind if injection.kind in TAGS else "system-reminder"
    if is_guidance(injection):
        named = {"path" if injection.source == "instructions" else "note": about(injection)}
        return Placed(
            data=_text(tagged(tag, injection.text, **named)),
            source=injection.source,
            pinned=injection.source == "instructions",
        )
    request, _, status = injection.key.partition(" ") if tag == "plan-decision" else ("", "", "")
    return Placed(data=_text(tagged(tag, injection.text, request=request, status=status)), source=injection.source)


def large_mark(text: str, path: str, what: str = "input", shown: int = SHOWN_END) -> str:
    """What stands where a text stood that went to a file: the path, and the text's beginning and end."""
    head = f"[Large {what} saved to {defused(path)}, {len(text)} chars. Read it in parts.]"
    if len(text) <= 2 * shown:
        return f"{head}\n{text}"
    return f"{head}\nIt begins:\n{text[:shown]}\n[...]\nIt ends:\n{text[-shown:]}"


def unwrapped(text: str) -> str:
    """What stands between the tags of a block of ours, or all of it where there are none."""
    found = _WRAPPED.match(text)
    return found[3] if found else text


def kept_words(text: str, path: str, shown: int) -> str:
    """The text of a block, its words in a file: in the same tags, with path, beginning and end."""
    found = _WRAPPED.match(text)
    if found is None:
        return large_mark(text, path, shown=shown)
    tag, fields, words = found[1], found[2], found[3]
    return f"<{tag}{fields}>\n{large_mark(words, path, 'message', shown)}\n</{tag}>"


def placed(envelope: Envelope, kept: str = "") -> Placed:
    """The block that stands for this envelope in its recipient's conversation. `kept`: the file that holds its content,
    which is then shown by that path, its beginning and its end."""
    what = "input" if envelope.type in ("prompt", "scheduled") else "message"
    content = large_mark(envelope.content, kept, what) if kept else envelope.content
    if envelope.type == "prompt":
        pinned = bool(envelope.metadata.get("assignment"))
        return Placed(data=_text(content), source="person", pinned=pinned)
    if envelope.type == "scheduled":
        fired = str(envelope.metadata.get("fired_at", ""))
        text = tagged("scheduled", content, id=str(envelope.metadata.get("schedule", "")), fired_at=fired)
        return Placed(data=_text(text), source="schedule")
    if envelope.type == "task_notification":
        return Placed(data=_text(tagged("task-notification", content)), source="reminder")
    text = tagged(
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

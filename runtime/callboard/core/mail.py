"""Envelopes as writes, and how they are rendered for a model. Pure.

Rendering is whole, never cut; what comes from anyone but the person is wrapped so that its text cannot close its tag.
"""

from __future__ import annotations

import re
from xml.sax.saxutils import quoteattr

from callboard.core.names import mailbox
from callboard.words.context import Placed
from callboard.words.values import Envelope
from callboard.words.writes import Append

_TAGS = (
    "system-reminder|user-prompt-submit-hook|pre-tool-use-hook|post-tool-use-hook|stop-hook|inbox|task-notification|"
    "scheduled|plan-decision|ide_selection|ide_opened_file|memory|persisted-output"
)
_OURS = re.compile(rf"<(\s*/?\s*(?:{_TAGS})\b)", re.IGNORECASE)


def sending(session: str, envelope: Envelope) -> Append:
    """The write that sends it. Its id makes sending it twice send it once."""
    stream = mailbox(session, envelope.recipient, envelope.incarnation)
    return Append(stream, envelope.encode(), id=envelope.id)


def defused(text: str) -> str:
    """`text` so that none of the runtime's own tags begins or ends in it: `<` of such a tag becomes `&lt;`."""
    return _OURS.sub(r"&lt;\1", text)


def tagged(tag: str, text: str, **attributes: str) -> str:
    """`<tag a="b">`, newline, text, newline, `</tag>`, the text defused."""
    head = "".join(f" {name.rstrip('_')}={quoteattr(value)}" for name, value in attributes.items() if value)
    return f"<{tag}{head}>\n{defused(text)}\n</{tag}>"


def placed(envelope: Envelope) -> Placed:
    """The block that stands for this envelope in its recipient's conversation."""
    if envelope.type == "prompt":
        pinned = bool(envelope.metadata.get("assignment"))
        return Placed(data=_text(envelope.content), source="person", pinned=pinned)
    if envelope.type == "scheduled":
        fired = str(envelope.metadata.get("fired_at", ""))
        text = tagged("scheduled", envelope.content, id=str(envelope.metadata.get("schedule", "")), fired_at=fired)
        return Placed(data=_text(text), source="schedule")
    if envelope.type == "task_notification":
        return Placed(data=_text(tagged("task-notification", envelope.content)), source="reminder")
    text = tagged(
        "inbox",
        envelope.content,
        from_=envelope.sender,
        type=envelope.type,
        id=envelope.id,
        request=envelope.request_id or "",
        status=str(envelope.metadata.get("status", "")),
    )
    return Placed(data=_text(text), source="inbox", pinned=bool(envelope.metadata.get("assignment")))


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text or "(empty)"}

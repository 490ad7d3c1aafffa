"""Model that plays a session: it takes the next step, or rereads content that the step needs and the request lacks.

The player knows only the request and the session, not how the request was made.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from context_session import Session, Work

Json = dict[str, Any]

_FACT = re.compile(r"fact_\d+_\d{6}")
_FOUND = re.compile(r"Found (fact_\d+_\d{6})")
_PATH = re.compile(r"src/module_\d+\.py")
FACTS_OF_A_SUMMARY = 40
"""Maximum number of facts in a summary: first those that the model noted, then the newest."""


@dataclass
class Player:
    """Player of one session, to its end."""

    session: Session
    place: int = 0
    reread: list[str] = field(default_factory=list[str])
    """Content that was reread, in order."""

    @property
    def done(self) -> bool:
        return self.place >= len(self.session.works)

    def next(self, shown: bytes) -> Work:
        """Return the step that follows a request of these bytes."""
        work = self.session.works[self.place]
        for need in work.needs:
            if need.mark.encode() not in shown:
                self.reread.append(need.mark)
                return need.again
        self.place += 1
        return work


def reply_of(work: Work, use_id: str) -> list[Json]:
    """Return a step as a reply of the model."""
    said: list[Json] = [{"type": "text", "text": work.words}]
    return [*said, {"type": "tool_use", "id": use_id, "name": work.tool, "input": work.input}] if work.tool else said


def summary_of(record: str, max_tokens: int) -> str:
    """Return a summary as a model would write it: facts, files, and text up to about two thirds of the limit."""
    noted = list(dict.fromkeys(_FOUND.findall(record)))
    newest = [fact for fact in reversed(_FACT.findall(record)) if fact not in noted]
    facts = [*noted, *dict.fromkeys(newest)][:FACTS_OF_A_SUMMARY]
    lines = [f"- Found {fact}." for fact in facts]
    lines.append("- Files: " + ", ".join(dict.fromkeys(_PATH.findall(record))))
    text = "\n".join(lines)
    room = max_tokens * 4 * 2 // 3 - len(text)
    return text + "\n- " + ("and so it was done " * (room // 19 + 1))[:room] if room > 0 else text[: max_tokens * 4]

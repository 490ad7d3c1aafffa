"""Choice of the sessions that are old enough to be removed. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from callboard.types.lazy_dataclass import dataclass
from callboard.types.personal_settings import RetentionSettings

_DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class SessionAge:
    """Times at which a session began and ended (Unix seconds)."""

    id: str
    created_at: float
    ended_at: float | None


def expired_sessions(sessions: Iterable[SessionAge], retention: RetentionSettings, now: float) -> list[str]:
    """Return the sessions that the settings remove, oldest first.

    A session that has not ended never expires, but counts among those that are kept.
    """
    newest_first = sorted(sessions, key=lambda session: (session.ended_at or now, session.created_at, session.id))[::-1]
    old: list[str] = []
    for place, session in enumerate(newest_first):
        if session.ended_at is None:
            continue
        too_old = retention.days is not None and session.ended_at < now - retention.days * _DAY
        if too_old or (retention.sessions is not None and place >= retention.sessions):
            old.append(session.id)
    return old[::-1]

"""Choice of the sessions that the setting `retention` removes."""

from __future__ import annotations

import pytest

from callboard.core.retention import SessionAge, expired_sessions
from callboard.types.personal_settings import RetentionSettings

DAY = 86_400.0
SESSIONS = [
    SessionAge("open", 0.0, None),
    SessionAge("old", 1.0, 10 * DAY),
    SessionAge("older", 2.0, 5 * DAY),
    SessionAge("new", 3.0, 99 * DAY),
]


@pytest.mark.parametrize(
    ("retention", "removed"),
    [
        (RetentionSettings(), []),
        (RetentionSettings(days=91), ["older"]),
        (RetentionSettings(days=30), ["older", "old"]),
        (RetentionSettings(sessions=3), ["older"]),
        (RetentionSettings(sessions=0), ["older", "old", "new"]),
        (RetentionSettings(days=91, sessions=2), ["older", "old"]),
        (RetentionSettings(sessions=4), []),
    ],
)
def test_old_sessions_expire_by_age_and_by_number_oldest_first(
    retention: RetentionSettings, removed: list[str]
) -> None:
    assert expired_sessions(SESSIONS, retention, 100 * DAY) == removed

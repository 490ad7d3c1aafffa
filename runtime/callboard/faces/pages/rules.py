"""Session rules as a table. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from callboard.core.asking.session_rules import ended
from callboard.faces.pages.listings import table, when
from callboard.faces.terminal import Block, Line
from callboard.words.values import SessionRule


def rules_table(rows: Sequence[SessionRule], now: float) -> Block:
    """Id, the rule, for whom, since when, until when or how it ended. `now`: Unix seconds."""
    cells = [
        [one.id, one.rule, one.agent or "every agent", when(one.created_at), _until(one, now), one.request_id]
        for one in rows
    ]
    heads = ["ID", "RULE", "FOR", "SINCE", "UNTIL", "MADE WITH"]
    return table(heads, cells, "no session rules: answer a question with `a` to make one")


def _until(one: SessionRule, now: float) -> str:
    return ended(one, now) or when(one.expires_at) or "the session's end"


def made_lines(rows: Sequence[SessionRule]) -> tuple[Line, ...]:
    """What an answer made, a line each, and how to take it back."""
    return tuple(
        Line(
            f"  {one.rule} is allowed {f'to {one.agent}' if one.agent else 'here'} until "
            f"{when(one.expires_at) or 'the session ends'}; to take it back: callboard policy revoke {one.id}",
            "dim",
        )
        for one in rows
    )

"""Rules that a person makes by answering a question with "always": which are made, and which hold for a call. Pure.

Only a person makes them, only those that the question named (`always` of its payload), and they end with their time,
with the session, or when they are taken back. They hold for turns that people and agents began; a turn that a schedule
or a tool's text began never has them. They lift what an allow rule of the settings lifts, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

from callboard.core.asking.requests import Refusal
from callboard.core.bus.authority import reaches
from callboard.core.names import short_id
from callboard.core.permission.lifts import Lift
from callboard.core.permission.rules import parse_rule
from callboard.words.values import Cause, Request, SessionRule


@dataclass(frozen=True, slots=True)
class Always:
    """What a person says beside yes: not this call alone, but all of its class."""

    seconds: float | None = None
    """For so long; None: as long as the session."""
    agent_only: bool = False
    """Only for the agent that asked, in this life of it."""


def offered(request: Request) -> tuple[str, ...]:
    """The rules that "always" would make of a permission; none where it is not offered."""
    given: Any = request.payload.get("always")
    if request.kind != "permission" or request.person_only or not isinstance(given, list | tuple):
        return ()
    return tuple(text for text in cast("list[Any]", given) if isinstance(text, str) and _lift_of(text))


def made(request: Request, word: Always, by: str, now: float) -> tuple[SessionRule, ...] | Refusal:
    """The rules that an approval with "always" makes, or why it makes none. `now`: Unix seconds."""
    texts = offered(request)
    if by != "person":
        return Refusal("not_yours", f"{request.id}: only a person allows anything for more than once")
    if not texts:
        return Refusal("status", f"{request.id} cannot be allowed for always: answer yes or no to this call")
    if word.seconds is not None and not 0 < word.seconds < float("inf"):
        return Refusal("status", f"{request.id}: a time has to be more than nothing")
    return tuple(
        SessionRule(
            id=short_id("rule", request.id, text),
            rule=text,
            agent=request.asked_by if word.agent_only else "",
            incarnation=request.incarnation if word.agent_only else 0,
            request_id=request.id,
            created_by=by,
            created_at=now,
            expires_at=None if word.seconds is None else now + word.seconds,
        )
        for text in texts
    )


def ended(rule: SessionRule, now: float) -> str:
    """`revoked`, `expired`, or empty for one that stands."""
    if rule.revoked_at is not None:
        return "revoked"
    return "expired" if rule.expires_at is not None and now >= rule.expires_at else ""


def in_force(
    rules: Iterable[SessionRule], agent: str, incarnation: int, authority: Cause, now: float
) -> tuple[Lift, ...]:
    """What holds for a call of this life of this agent, in a turn of this authority, now."""
    if not reaches(authority, "teammate"):
        return ()
    mine = [
        one for one in rules if not ended(one, now) and one.agent in ("", agent) and one.incarnation in (0, incarnation)
    ]
    texts = dict.fromkeys(one.rule for one in mine)
    return tuple(lift for text in texts if (lift := _lift_of(text)) is not None)


def _lift_of(text: str) -> Lift | None:
    try:
        parse_rule(text)
    except ValueError:
        return None
    return Lift(text, f"session rule {text}")


def settles(request: Request, rules: Iterable[SessionRule], now: float) -> str:
    """The session rules that answer a permission which was asked before they were made; empty: they do not."""
    texts = offered(request)
    lifts = in_force(rules, request.asked_by, request.incarnation, request.cause, now)
    if request.status != "pending" or not texts or not set(texts) <= {one.rule for one in lifts}:
        return ""
    return ", ".join(f"session rule {text}" for text in texts)

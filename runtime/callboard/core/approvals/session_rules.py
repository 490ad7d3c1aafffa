"""Rules that the user creates in an answer: their creation, and their effect on a call. Pure.

Only the user creates them. The answer "always" creates the allow rules that the question offered (`always` of its
payload); a client that acts as the user may also add rules that ask or deny. They end at their expiry, with the
session, or when they are revoked, and have the effect of such a rule of the settings. An allow rule applies to turns
that users and agents began, never to turns that a schedule or a tool's text began; the others apply to every turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from callboard.core.approvals.requests import AnswerRefusal
from callboard.core.keys import short_id
from callboard.core.messaging.authority import is_at_least
from callboard.core.permissions.rules import parse_rule
from callboard.core.permissions.values import AllowOverride
from callboard.types.agent_spec import PermissionRules
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Cause, Request, RuleEffect, SessionRule


@dataclass(frozen=True, slots=True)
class AlwaysAllow:
    """Details of an approval for all calls of the same class."""

    seconds: float | None = None
    """Lifetime in seconds; None: as long as the session."""
    agent_only: bool = False
    """True to limit the rule to the current life of the agent that asked."""


def offered_rules(request: Request) -> tuple[str, ...]:
    """Return the rules that "always" would create for a permission request; none if it is not offered."""
    rules: Any = request.payload.get("always")
    if request.kind != "permission" or request.person_only or not isinstance(rules, list | tuple):
        return ()
    return tuple(text for text in cast("list[Any]", rules) if isinstance(text, str) and _override_of(text))


def created_rules(request: Request, word: AlwaysAllow, by: str, now: float) -> tuple[SessionRule, ...] | AnswerRefusal:
    """Return the rules that an approval with "always" creates, or the reason why it creates none.

    `now`: Unix seconds.
    """
    texts = offered_rules(request)
    if by != "person":
        return AnswerRefusal("not_yours", f"{request.id}: only a person may allow anything more than once")
    if not texts:
        return AnswerRefusal("status", f"{request.id} cannot always be allowed: approve or reject this call")
    if word.seconds is not None and not 0 < word.seconds < float("inf"):
        return AnswerRefusal("status", f"{request.id}: the time must be longer than 0")
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


def end_state(rule: SessionRule, now: float) -> str:
    """Return `revoked`, `expired`, or an empty text for a rule in force."""
    if rule.revoked_at is not None:
        return "revoked"
    return "expired" if rule.expires_at is not None and now >= rule.expires_at else ""


def active_overrides(
    rules: Iterable[SessionRule], agent: str, incarnation: int, *, authority: Cause, now: float
) -> tuple[AllowOverride, ...]:
    """Return the allow rules that apply now to a call of this life of this agent, in a turn of this authority."""
    if not is_at_least(authority, "teammate"):
        return ()
    texts = _active(rules, agent, incarnation, effect="allow", now=now)
    return tuple(override for text in texts if (override := _override_of(text)) is not None)


def restrictions(rules: Sequence[SessionRule], agent: str, incarnation: int, *, now: float) -> PermissionRules:
    """Return the ask and deny rules that apply now to a call of this life of this agent, in any turn."""
    return PermissionRules(
        ask=_active(rules, agent, incarnation, effect="ask", now=now),
        deny=_active(rules, agent, incarnation, effect="deny", now=now),
    )


def _active(
    rules: Iterable[SessionRule], agent: str, incarnation: int, *, effect: RuleEffect, now: float
) -> tuple[str, ...]:
    """Return the texts of the rules with this effect that are in force for this life of the agent."""
    texts = (
        rule.rule
        for rule in rules
        if rule.effect == effect
        and not end_state(rule, now)
        and rule.agent in ("", agent)
        and rule.incarnation in (0, incarnation)
    )
    return tuple(dict.fromkeys(texts))


def _override_of(text: str) -> AllowOverride | None:
    try:
        parse_rule(text)
    except ValueError:
        return None
    return AllowOverride(text, f"session rule {text}")


def settling_rules(request: Request, rules: Iterable[SessionRule], now: float) -> str:
    """Return the session rules that allow a permission request made before they existed; empty if it is not allowed."""
    texts = offered_rules(request)
    overrides = active_overrides(rules, request.asked_by, request.incarnation, authority=request.cause, now=now)
    if request.status != "pending" or not texts or not set(texts) <= {override.rule for override in overrides}:
        return ""
    return ", ".join(f"session rule {text}" for text in texts)

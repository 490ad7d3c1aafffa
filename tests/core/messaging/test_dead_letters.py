"""Who is told of an envelope that nobody will read, and what."""

from __future__ import annotations

import pytest

from callboard.core.messaging.dead_letters import dead_letter, life_to_notify, over
from callboard.types.records import AgentRow, Envelope


def row(name: str = "bob", **more: object) -> AgentRow:
    kind = "lead" if name == "lead" else "teammate"
    return AgentRow.model_validate({"name": name, "kind": kind, "life": "idle", **more})


def dead(type: str = "message", sender: str = "bob", **more: object) -> Envelope:
    given = {"id": "env_1", "sender": sender, "sender_incarnation": 1, "recipient": "alice", "incarnation": 2}
    return Envelope.model_validate({**given, "type": type, "content": "do it\nnow", "sent_at": 1_780_000_000.0, **more})


@pytest.mark.parametrize(
    ("life", "row", "is_over"),
    [
        (1, row(), False),
        (1, row(life="stopping"), False),
        (1, row(life="stopped"), True),
        (1, row(life="crashed"), False),
        (1, row(incarnation=2), True),
        (2, row(incarnation=2), False),
    ],
)
def test_a_life_is_over_when_it_stopped_or_another_took_its_name(life: int, row: AgentRow, is_over: bool) -> None:
    assert over(life, row) is is_over


@pytest.mark.parametrize(
    ("envelope", "sender", "told"),
    [
        (dead(), row(), 1),
        (dead(sender="person"), None, None),
        (dead(sender="runtime"), None, None),
        (dead(), row(life="stopped"), None),
        (dead(), row(life="crashed"), 1),
        (dead(), row(incarnation=2), None),
        (dead(sender_incarnation=2), row(incarnation=2), 2),
        (dead(sender_incarnation=0), row(incarnation=2), 2),
        (dead(sender="lead"), row("lead", incarnation=3), 3),
        (dead(), row(kind="subagent"), None),
        (dead("dead_letter"), row(), None),
        (dead("command"), row(), None),
        (dead("shutdown_request"), row(), None),
        (dead("result"), row(), 1),
    ],
)
def test_the_life_that_sent_it_is_told_if_it_still_lives(
    envelope: Envelope, sender: AgentRow | None, told: int | None
) -> None:
    assert life_to_notify(envelope, sender) == told


@pytest.mark.parametrize(
    ("type", "mode", "wakes"),
    [
        ("message", "wake", "wake"),
        ("message", "queue", "queue"),
        ("broadcast", "queue", "queue"),
        ("plan_request", "wake", "wake"),
        ("result", "wake", "queue"),
        ("idle_notification", "queue", "queue"),
    ],
)
def test_only_who_may_be_waiting_for_a_word_is_woken(type: str, mode: str, wakes: str) -> None:
    assert dead_letter(dead(type, mode=mode), 1, 2.0).mode == wakes


def test_a_dead_letter_names_the_envelope_and_claims_no_more_than_it() -> None:
    told = dead_letter(dead(cause="teammate", depth=3, request_id="req_1"), 1, 2.0)
    assert told.content == (
        "alice has ended and never read your message of 2026-05-28 20:26:40 UTC: nobody will read it.\nIt began: do it"
    )
    assert (told.recipient, told.incarnation, told.sender) == ("bob", 1, "runtime")
    assert (told.reply_to, told.caused_by, told.request_id) == ("env_1", "env_1", "req_1")
    assert (told.cause, told.depth) == ("teammate", 3)
    assert told.id == dead_letter(dead(), 1, 99.0).id, "told twice, it arrives once"


def test_a_long_first_line_is_shortened_and_says_so() -> None:
    assert dead_letter(dead(content="x" * 500), 1, 2.0).content.endswith("It began: " + "x" * 200 + "...")
    assert dead_letter(dead(content=" "), 1, 2.0).content.endswith("nobody will read it.")

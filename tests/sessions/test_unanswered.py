"""What the end of a run says of requests that nobody answered."""

from __future__ import annotations

import pytest

from callboard.sessions.result import unanswered_words
from callboard.types.records import Request, RequestKind


def request(kind: RequestKind, *, waits: bool) -> Request:
    return Request(
        id=f"req_{kind}",
        kind=kind,
        asked_by="lead",
        subject=f"a {kind}",
        payload={},
        digest="d",
        created_at=100.0,
        expires_at=200.0 if waits else 100.0,
    )


@pytest.mark.parametrize(
    ("kinds", "advice"),
    [
        (["plan"], "To let it through: run it in a terminal, or answer with `callboard approve`"),
        (["question"], "To answer it: run it in a terminal, or answer with `callboard answer`"),
        (
            ["question", "plan"],
            "To let it through: run it in a terminal, or answer with `callboard approve` and `callboard answer`",
        ),
    ],
)
def test_the_advice_names_the_command_that_answers_this_kind(kinds: list[RequestKind], advice: str) -> None:
    assert unanswered_words([request(kind, waits=True) for kind in kinds]).endswith(advice)


def test_what_could_not_be_asked_needs_a_terminal() -> None:
    text = unanswered_words([request("question", waits=False)])
    assert (
        text
        == "without a terminal nobody can be asked about req_question (a question). To answer it: run it in a terminal"
    )

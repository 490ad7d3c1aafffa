"""A question of a workflow to the person: a request like any other, made once and waited for."""

from __future__ import annotations

import time
from collections.abc import Sequence

from callboard.api.errors import UsageError
from callboard.app import Session as HostedSession
from callboard.core.asking.requests import asked
from callboard.core.names import request_key, short_id
from callboard.ports.store import Put
from callboard.words.errors import AnswerNeeded, Conflict
from callboard.words.values import Request

ASKER = "workflow"
"""Who asks: no agent has this name, so nobody but a person answers."""


async def ask_person(
    here: HostedSession, origin: tuple[str, str], question: str, options: Sequence[str], seconds: float | None
) -> str:
    """The answer. `origin`: run and step. Raises `AnswerNeeded`, and `UsageError` for an empty question."""
    if not question.strip():
        raise UsageError("the question is empty")
    spec = await here.begun()
    wait = seconds if seconds is not None or spec is None else spec.ask_deadline
    if wait == 0:
        raise AnswerNeeded(
            f"nobody can answer in this run: {question.strip().splitlines()[0]!r}. Give the session an `approver`, or "
            "`answerable=True` and answer with session.answer or `callboard answer`"
        )
    now = time.time()
    request = asked(
        Request(
            id=short_id("req", here.id, *origin),
            kind="question",
            asked_by=ASKER,
            may_answer=("person",),
            subject=question.strip().splitlines()[0],
            payload={"question": question, "options": list(options)},
            escalation="policy",
            created_at=now,
            expires_at=None if wait is None else now + wait,
        )
    )
    key = request_key(here.id, request.id)
    try:
        await here.commit(Put(key, request.encode(), 0))
    except Conflict:
        pass  # it was asked before the process was cut off: the same question waits, or is answered
    return await _answer(here, key, question)


async def _answer(here: HostedSession, key: str, question: str) -> str:
    """Wait for the row to be decided. Raises `AnswerNeeded`."""
    async with here.store.watch(key) as rows:
        async for row in rows:
            now = Request.model_validate_json(row.value) if row.key == key and row.value is not None else None
            if now is None or now.status == "pending":
                continue
            if now.status == "answered":
                return now.reason
            raise AnswerNeeded(f"nobody answered in time: {question.strip().splitlines()[0]!r} ({now.id})")
    raise AnswerNeeded("the session was closed before anybody answered")
